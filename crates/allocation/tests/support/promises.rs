//! What holds of every plan, whatever the problem is.

use std::time::Duration;

use surgetank_allocation::{
    Basis, Change, Description, Fallback, Hierarchy, Level, Plan, Share, Slo, baselines, solve, verify, verify_change,
};
use surgetank_model::Bytes;
use surgetank_model::random::Random;

use super::{Extent, description, ensure, naive, problem, with_absolute_bounds};

const EXTENT: Extent = Extent { applications: 6, first: 2, second: 4, grains: 60 };

/// What whole segments may cost.
const ROUNDING: f64 = 0.1;

fn cost(plan: &Plan) -> f64 {
    plan.shares.len() as f64 / plan.fair_speedup
}

fn same(plan: &Plan, other: &Plan) -> bool {
    let sizes = |share: &Share| (share.application.clone(), share.level1, share.level2.clone());
    plan.shares.iter().map(sizes).eq(other.shares.iter().map(sizes))
}

pub fn run(seed: u64) -> Result<(), String> {
    let random = &mut Random::from_seed(seed);
    let mut description = description(random, EXTENT);
    let is_absolute = random.chance(0.3);
    if is_absolute {
        description = with_absolute_bounds(description, 0.75 + 0.4 * random.unit());
    }
    let checked = problem(&description)?;
    let plan = solve(&checked, None);
    naive::check(&description, &plan)?;
    verify(&checked, &plan).map_err(|error| error.to_string())?;
    ensure(!matches!(plan.basis, Basis::FairShare(Fallback::Solver(_))), || format!("{:?}", plan.basis))?;
    ensure(same(&solve(&checked, Some(&plan)), &plan), || "solved again, the plan is another one".to_owned())?;
    if plan.infeasible().is_some() {
        remedies_suffice(&description, &plan)?;
    } else {
        independent_of_units(&description, &plan)?;
        previous_plans(random, &description, &plan)?;
        if is_absolute {
            more_cache(random, &description, &plan)?;
        }
    }
    bounded_changes(random, &description, &plan)?;
    equals(random, &description)?;
    unknown(random, description.clone())?;
    violations(random, description)
}

/// Of whom too little is known has the fair share of both levels at least, and keeps nobody else from another one.
fn unknown(random: &mut Random, mut description: Description) -> Result<(), String> {
    let of = random.below(description.applications.len() as u64) as usize;
    (description.applications[of].slo, description.applications[of].margin) = (Slo::AboveFair(0.05), 0.5);
    let own_server = description.applications[of].level1.clone();
    let checked = problem(&description)?;
    let (plan, fair) = (solve(&checked, None), baselines::fair_share(&checked));
    verify(&checked, &plan).map_err(|error| error.to_string())?;
    ensure(!matches!(plan.basis, Basis::FairShare(Fallback::Solver(_))), || format!("{:?}", plan.basis))?;
    let second = |share: &Share| share.level2.values().map(|bytes| bytes.get()).sum::<u64>();
    let (has, fair) = (&plan.shares[of], &fair.shares[of]);
    ensure(has.level1 >= fair.level1 && second(has) >= second(fair), || format!("{has:?} is below {fair:?}"))?;
    // With what it does not keep the others do as well as without it.
    let fair = fair.clone();
    description.applications.remove(of);
    for server in description.level1.iter_mut().filter(|server| server.name == own_server) {
        server.cache = Bytes::new(server.cache.get() - fair.level1.get());
    }
    for server in &mut description.level2 {
        let its = fair.level2.get(&server.name).map_or(0, |bytes| bytes.get());
        server.cache = Bytes::new(server.cache.get() - its);
    }
    let Ok(others) = problem(&description) else { return Ok(()) };
    let others = solve(&others, None);
    ensure(others.infeasible().is_some() || cost(&plan) <= cost(&others) + 1.0 + ROUNDING, || {
        format!("{} with it and {} without it", cost(&plan), cost(&others))
    })
}

/// Which equal plan is the previous one decides, and a broken one or a worse one does not.
fn previous_plans(random: &mut Random, description: &Description, plan: &Plan) -> Result<(), String> {
    let checked = problem(description)?;
    let mut greedy = plan.clone();
    let favoured = random.below(plan.shares.len() as u64) as usize;
    for (of, share) in greedy.shares.iter_mut().enumerate() {
        let all = naive::cache(&description.level1, &description.applications[of].level1);
        share.level1 = if of == favoured { Bytes::new(all) } else { Bytes::ZERO };
        share.level2.clear();
    }
    // What would be better if nobody had an SLO.
    let mut loose = description.clone();
    for application in &mut loose.applications {
        (application.slo, application.margin) = (Slo::AboveFair(9.0), 0.0);
    }
    let unbound = solve(&problem(&loose)?, None);
    for previous in [greedy, unbound, baselines::fair_share(&checked)] {
        let next = solve(&checked, Some(&previous));
        naive::check(description, &next)?;
        let (cost, least) = (cost(&next), cost(plan));
        ensure(cost <= least + 3e-6 * plan.shares.len() as f64, || format!("it costs {cost}, and could cost {least}"))?;
    }
    Ok(())
}

/// Of two equal applications either may have more. Whoever has keeps it.
fn equals(random: &mut Random, description: &Description) -> Result<(), String> {
    let mut description = description.clone();
    let twin = |name: &str| {
        let mut twin = description.applications[0].clone();
        (twin.name, twin.slo, twin.margin) = (name.to_owned(), Slo::AboveFair(3.0), 0.0);
        twin
    };
    description.applications = vec![twin("left"), twin("right")];
    let plan = solve(&problem(&description)?, None);
    if plan.basis != Basis::Optimal {
        return Ok(());
    }
    let mut swapped = plan.clone();
    swapped.shares.reverse();
    for (share, name) in swapped.shares.iter_mut().zip(["left", "right"]) {
        share.application = name.to_owned();
    }
    let previous = if random.chance(0.5) { &swapped } else { &plan };
    let next = solve(&problem(&description)?, Some(previous));
    ensure(same(&next, previous), || "an equal plan takes the place of the previous one".to_owned())
}

/// Sizes and latencies may be in any unit.
fn independent_of_units(description: &Description, plan: &Plan) -> Result<(), String> {
    let mut larger = description.clone();
    for server in larger.level1.iter_mut().chain(&mut larger.level2) {
        server.cache = Bytes::new(server.cache.get() * 1000);
    }
    for application in &mut larger.applications {
        let surgetank_allocation::Model::Curve(curve) = &application.model else { continue };
        let points: Vec<(Bytes, f64)> =
            curve.points().iter().map(|(size, ratio)| (Bytes::new(*size as u64 * 1000), *ratio)).collect();
        let curve = surgetank_allocation::MissCurve::new(&points).map_err(|error| error.to_string())?;
        application.model = surgetank_allocation::Model::Curve(curve);
        if let Slo::Latency(latency) = &mut application.slo {
            *latency *= 8;
        }
    }
    let own = larger.applications.iter_mut().filter_map(|application| application.latencies.as_mut());
    for latencies in own.chain([&mut larger.latencies]) {
        for latency in [&mut latencies.level1, &mut latencies.level2, &mut latencies.disk] {
            *latency *= 8;
        }
    }
    let other = solve(&problem(&larger)?, None);
    naive::check(&larger, &other)?;
    let near = (other.fair_speedup - plan.fair_speedup).abs() < 2e-5 * plan.fair_speedup;
    ensure(near, || format!("in other units the fair speedup is {}, not {}", other.fair_speedup, plan.fair_speedup))
}

/// With more cache a plan with absolute bounds is at least as good as the one before.
fn more_cache(random: &mut Random, description: &Description, plan: &Plan) -> Result<(), String> {
    let mut larger = description.clone();
    let level = if random.chance(0.5) { &mut larger.level1 } else { &mut larger.level2 };
    let server = random.below(level.len() as u64) as usize;
    level[server].cache = Bytes::new(level[server].cache.get() * 5 / 4);
    let next = solve(&problem(&larger)?, None);
    naive::check(&larger, &next)?;
    ensure(next.infeasible().is_none(), || "with more cache it is infeasible".to_owned())?;
    let before = naive::cost(&larger, &naive::shares(plan));
    ensure(cost(&next) <= before * (1.0 + 3e-5), || format!("with more cache it costs {}, not {before}", cost(&next)))
}

/// What an infeasible problem names makes it feasible, and a little less does not.
fn remedies_suffice(description: &Description, plan: &Plan) -> Result<(), String> {
    let infeasible = plan.infeasible().ok_or("it is feasible")?;
    ensure(!infeasible.relaxed.is_empty(), || "nobody is named".to_owned())?;
    let relaxed = |by: f64| {
        let mut relaxed = description.clone();
        for one in &infeasible.relaxed {
            let named = relaxed.applications.iter_mut().find(|application| application.name == one.application);
            let named = named.ok_or_else(|| format!("{} is nobody", one.application))?;
            named.slo = match one.feasible {
                Slo::AboveFair(slo) => Slo::AboveFair((1.0 + slo) * by - 1.0),
                Slo::Latency(latency) => Slo::Latency(Duration::from_secs_f64(latency.as_secs_f64() * by)),
            };
        }
        Ok::<bool, String>(solve(&problem(&relaxed)?, None).infeasible().is_none())
    };
    ensure(relaxed(1.0 + 1e-5)?, || format!("{:?} do not suffice", infeasible.relaxed))?;
    ensure(!relaxed(0.999)?, || format!("less than {:?} suffices", infeasible.relaxed))?;
    let Some(added) = &infeasible.added else { return Ok(()) };
    let mut larger = description.clone();
    for one in added {
        let level = match one.level {
            Level::First => &mut larger.level1,
            Level::Second => &mut larger.level2,
        };
        let server = level.iter_mut().find(|server| server.name == one.server).ok_or("a server is not there")?;
        server.cache = Bytes::new(server.cache.get() + one.cache.get() + one.cache.get() / 100_000 + 2);
    }
    let is_infeasible = solve(&problem(&larger)?, None).infeasible().is_some();
    ensure(!is_infeasible, || format!("{added:?} does not suffice"))
}

/// Plans change step by step, and end where they would have gone at once.
fn bounded_changes(random: &mut Random, description: &Description, goal: &Plan) -> Result<(), String> {
    let mut description = description.clone();
    description.change_max = Some(0.05 + 0.2 * random.unit());
    let checked = problem(&description)?;
    let mut plan = baselines::fair_share(&checked);
    for step in 0..100 {
        let next = solve(&checked, Some(&plan));
        naive::check(&description, &next)?;
        verify_change(&checked, &plan, &next).map_err(|error| error.to_string())?;
        // Shares that meet all SLOs are within any bound on changes from themselves.
        let is_within = next.change == Change::Within || !naive::meets_all(&description, &naive::shares(&plan));
        ensure(is_within, || "it changes too much".to_owned())?;
        if next.infeasible().is_none() && next.change == Change::Within {
            near(&description, &plan, &next)?;
        }
        if same(&next, &plan) {
            // Which of both levels holds an application's blocks is no choice that small steps find.
            let is_convex = description.hierarchy == Hierarchy::Exclusive;
            let is_there = (next.fair_speedup - goal.fair_speedup).abs() < 1e-4 * goal.fair_speedup;
            ensure(is_there || !is_convex, || {
                format!("after {step} steps the fair speedup is {}, not {}", next.fair_speedup, goal.fair_speedup)
            })?;
            return Ok(());
        }
        plan = next;
    }
    Err("plans go on to change".to_owned())
}

fn near(description: &Description, before: &Plan, after: &Plan) -> Result<(), String> {
    let change_max = description.change_max.unwrap_or(1.0);
    for (of, (before, after)) in naive::shares(before).into_iter().zip(naive::shares(after)).enumerate() {
        let application = &description.applications[of];
        let first = naive::cache(&description.level1, &application.level1) as f64;
        let second: u64 = application.level2.iter().map(|server| naive::cache(&description.level2, server)).sum();
        let within = |before: f64, after: f64, of: f64| (after - before).abs() <= change_max * of * (1.0 + 1e-6) + 1.0;
        let holds = within(before.0, after.0, first) && within(before.1, after.1, second as f64);
        ensure(holds, || format!("{} goes from {before:?} to {after:?}", application.name))?;
    }
    Ok(())
}

/// Whose measured latency was above its bound twice puts everybody on the fair share.
fn violations(random: &mut Random, mut description: Description) -> Result<(), String> {
    let of = random.below(description.applications.len() as u64) as usize;
    let name = description.applications[of].name.clone();
    description.applications[of].violations = 1;
    let once = solve(&problem(&description)?, None);
    ensure(!matches!(once.basis, Basis::FairShare(Fallback::Violated { .. })), || "once is enough".to_owned())?;
    description.applications[of].violations = 2;
    let checked = problem(&description)?;
    let plan = solve(&checked, Some(&once));
    naive::check(&description, &plan)?;
    let reason = Basis::FairShare(Fallback::Violated { application: name, times: 2 });
    ensure(plan.basis == reason, || format!("it is {:?}", plan.basis))?;
    ensure(same(&plan, &baselines::fair_share(&checked)), || "it is not the fair share".to_owned())
}
