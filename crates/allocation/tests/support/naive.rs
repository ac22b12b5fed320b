//! What plans are, said a second time and without cleverness.

use surgetank_allocation::{Basis, Description, Estimate, Hierarchy, MissCurve, Model, Plan, Server, Slo};

use super::ensure;

const TOLERANCE: f64 = 2e-6;

pub fn curve(description: &Description, of: usize) -> &MissCurve {
    match &description.applications[of].model {
        Model::Curve(curve) => curve,
        Model::Surface(_) => panic!("these problems have curves"),
    }
}

fn whole(points: &[(f64, f64)], size: f64) -> f64 {
    let mut value = points[0].1;
    for pair in points.windows(2) {
        let ((from, high), (to, low)) = (pair[0], pair[1]);
        if size >= from {
            value = high + (low - high) * ((size - from) / (to - from)).min(1.0);
        }
    }
    value
}

/// The least of all chords.
fn split(points: &[(f64, f64)], size: f64) -> f64 {
    let mut least = whole(points, size);
    for (at, &(from, high)) in points.iter().enumerate() {
        for &(to, low) in &points[at + 1..] {
            if from <= size && size <= to {
                least = least.min(high + (low - high) * (size - from) / (to - from));
            }
        }
    }
    least
}

pub fn latency_ms(description: &Description, of: usize, first: f64, second: f64, is_split: bool) -> f64 {
    let points = curve(description, of).points();
    let misses = |size: f64| if is_split { split(points, size) } else { whole(points, size) };
    let behind = match description.hierarchy {
        Hierarchy::Exclusive => misses(first + second),
        Hierarchy::Inclusive => misses(first).min(misses(second)),
    };
    let [t1, t2, t3] = latencies_ms(description, of);
    // Hits of level 1, hits of level 2, and the rest.
    (1.0 - misses(first)) * t1 + (misses(first) - behind) * t2 + behind * t3
}

/// Of level 1, level 2 and the disk.
pub fn latencies_ms(description: &Description, of: usize) -> [f64; 3] {
    let latencies = description.applications[of].latencies.unwrap_or(description.latencies);
    [latencies.level1, latencies.level2, latencies.disk].map(|latency| latency.as_secs_f64() * 1e3)
}

pub fn cache(servers: &[Server], name: &str) -> u64 {
    servers.iter().find(|server| server.name == name).map_or(0, |server| server.cache.get())
}

pub fn fair_latency_ms(description: &Description, of: usize) -> f64 {
    let application = &description.applications[of];
    let sharing = |is: &dyn Fn(&&surgetank_allocation::Application) -> bool| {
        description.applications.iter().filter(is).count() as u64
    };
    let segment = description.segment.get();
    let part = |cache: u64, users: u64| cache / segment / users * segment;
    let first =
        part(cache(&description.level1, &application.level1), sharing(&|other| other.level1 == application.level1));
    let second: u64 = application
        .level2
        .iter()
        .map(|server| part(cache(&description.level2, server), sharing(&|other| other.level2.contains(server))))
        .sum();
    latency_ms(description, of, first as f64, second as f64, false)
}

pub fn bound_ms(description: &Description, of: usize) -> f64 {
    match description.applications[of].slo {
        Slo::AboveFair(slo) => fair_latency_ms(description, of) * (1.0 + slo),
        Slo::Latency(latency) => latency.as_secs_f64() * 1e3,
    }
}

pub fn shares(plan: &Plan) -> Vec<(f64, f64)> {
    let second =
        |share: &surgetank_allocation::Share| share.level2.values().map(|bytes| bytes.get()).sum::<u64>() as f64;
    plan.shares.iter().map(|share| (share.level1.get() as f64, second(share))).collect()
}

/// Nobody has what he does not reach, and no server is overcommitted.
pub fn fits(description: &Description, plan: &Plan) -> Result<(), String> {
    ensure(plan.shares.len() == description.applications.len(), || "not everybody has a share".to_owned())?;
    for (share, application) in plan.shares.iter().zip(&description.applications) {
        let mut sizes = share.level2.values().chain([&share.level1]);
        let is_whole = plan.basis == Basis::Mlms || sizes.all(|size| size.get() % description.segment.get() == 0);
        ensure(is_whole || plan.basis == Basis::Baseline, || format!("{share:?} is not in whole segments"))?;
        ensure(share.application == application.name, || format!("{} is not where it was", share.application))?;
        for server in share.level2.keys() {
            ensure(application.level2.contains(server), || format!("{} does not reach {server}", application.name))?;
        }
    }
    for server in &description.level1 {
        let users = description.applications.iter().zip(&plan.shares).filter(|(of, _)| of.level1 == server.name);
        let shared: u64 = users.map(|(_, share)| share.level1.get()).sum();
        ensure(shared <= server.cache.get(), || format!("{} shares out {shared}", server.name))?;
    }
    for server in &description.level2 {
        let of = |share: &surgetank_allocation::Share| share.level2.get(&server.name).map_or(0, |bytes| bytes.get());
        let shared: u64 = plan.shares.iter().map(of).sum();
        ensure(shared <= server.cache.get(), || format!("{} shares out {shared}", server.name))?;
    }
    Ok(())
}

/// Everything that a plan says of itself, and all SLOs if it says that it is the best one.
pub fn check(description: &Description, plan: &Plan) -> Result<(), String> {
    fits(description, plan)?;
    let is_best = plan.basis == Basis::Optimal;
    let mut sum = 0.0;
    for (of, ((first, second), share)) in shares(plan).into_iter().zip(&plan.shares).enumerate() {
        let near = |a: f64, b: f64| (a - b).abs() <= TOLERANCE * b;
        let application = &description.applications[of];
        let is_split = is_best && application.estimate == Estimate::Split;
        let latency_ms = latency_ms(description, of, first, second, is_split);
        let (fair_ms, bound_ms) = (fair_latency_ms(description, of), bound_ms(description, of));
        let says = |what: &str, said: f64, is: f64| format!("{}'s {what} is {is}, not {said}", application.name);
        ensure(near(share.latency_ms, latency_ms), || says("latency", share.latency_ms, latency_ms))?;
        ensure(near(share.fair_latency_ms, fair_ms), || says("fair latency", share.fair_latency_ms, fair_ms))?;
        ensure(near(share.bound_ms, bound_ms), || says("bound", share.bound_ms, bound_ms))?;
        let target_ms = bound_ms * (1.0 - application.margin);
        ensure(!is_best || latency_ms <= target_ms * (1.0 + TOLERANCE), || {
            format!("{} takes {latency_ms} ms, and may take {target_ms}", application.name)
        })?;
        ensure(share.slo_met == (latency_ms <= bound_ms * (1.0 + 1e-6)) || near(latency_ms, bound_ms), || {
            format!("{}'s SLO is met or not", application.name)
        })?;
        sum += latency_ms / fair_ms;
    }
    let speedup = plan.shares.len() as f64 / sum;
    ensure((plan.fair_speedup - speedup).abs() < TOLERANCE * speedup, || format!("the fair speedup is {speedup}"))
}

/// Σ latency ÷ fair latency of these shares.
pub fn cost(description: &Description, shares: &[(f64, f64)]) -> f64 {
    let of = |(of, (first, second)): (usize, &(f64, f64))| {
        latency_ms(description, of, *first, *second, true) / fair_latency_ms(description, of)
    };
    shares.iter().enumerate().map(of).sum()
}

/// Whether every application is within its bound without the margin.
pub fn meets_all(description: &Description, shares: &[(f64, f64)]) -> bool {
    shares.iter().enumerate().all(|(of, (first, second))| {
        let target_ms = bound_ms(description, of) * (1.0 - description.applications[of].margin);
        latency_ms(description, of, *first, *second, true) <= target_ms
    })
}

/// Whether these second-level shares, by application, are within what every set of applications reaches.
pub fn has_place(servers: &[Server], reach: &[Vec<String>], wants: &[u64]) -> bool {
    (1_u32..1 << wants.len()).all(|set| {
        let inside = |of: &usize| set & 1 << of != 0;
        let wanted: u64 = (0..wants.len()).filter(inside).map(|of| wants[of]).sum();
        let reached =
            servers.iter().filter(|server| (0..wants.len()).filter(inside).any(|of| reach[of].contains(&server.name)));
        wanted <= reached.map(|server| server.cache.get()).sum()
    })
}
