//! The paper's algorithm over curves that it does not know.

use std::time::Duration;

use surgetank_allocation::mlms::{Gap, Mlms, Sample, Surface};
use surgetank_allocation::{
    Application, Basis, Description, Estimate, Fallback, Hierarchy, Latencies, MissCurve, Model, Plan, Problem, Server,
    Slo, solve,
};
use surgetank_model::Bytes;
use surgetank_model::random::Random;

use super::{Extent, description, ensure, naive, problem, with_absolute_bounds};

const EXTENT: Extent = Extent { applications: 4, first: 2, second: 4, grains: 60 };

fn measure(mlms: &mut Mlms, checked: &Problem, plan: &Plan) {
    for (share, real) in plan.shares.iter().zip(Gap::judged(checked, plan).shares) {
        let second = Bytes::new(share.level2.values().map(|bytes| bytes.get()).sum());
        mlms.observe(&share.application, Sample { first: share.level1, second, latency_ms: real.latency_ms });
    }
}

pub fn run(seed: u64) -> Result<(), String> {
    let random = &mut Random::from_seed(seed);
    let mut description = description(random, EXTENT);
    let is_absolute = random.chance(0.4);
    if is_absolute {
        description = with_absolute_bounds(description, 0.9 + 0.3 * random.unit());
    }
    let checked = problem(&description)?;
    let mut mlms = Mlms::default();
    for interval in 0..8 {
        if interval < 6 {
            let is_early = mlms.solve(&checked, None).basis == Basis::FairShare(Fallback::Bootstrap);
            ensure(is_early, || format!("there is a surface after {interval} samples"))?;
        }
        let plan = Mlms::bootstrap(&checked, interval);
        naive::fits(&description, &plan)?;
        measure(&mut mlms, &checked, &plan);
    }
    let mut plan = Mlms::bootstrap(&checked, 0);
    for _ in 0..6 {
        plan = mlms.solve(&checked, Some(&plan));
        naive::fits(&description, &plan)?;
        if matches!(plan.basis, Basis::FairShare(_)) {
            let is_said = plan.infeasible().is_some() || plan.basis == Basis::FairShare(Fallback::NoCombination);
            ensure(is_said, || format!("it is {:?}", plan.basis))?;
            ensure(is_absolute, || "the fair share meets bounds above it".to_owned())?;
            return Ok(());
        }
        let broken = plan.shares.iter().find(|share| !share.slo_met);
        ensure(broken.is_none(), || format!("{broken:?} is expected to break its SLO"))?;
        ensure(is_absolute || plan.fair_speedup > 1.0 - 1e-6, || format!("the fair speedup is {}", plan.fair_speedup))?;
        idle(&description, &plan)?;
        measure(&mut mlms, &checked, &plan);
    }
    let gap = Gap::of(&checked, &plan);
    let is_comparable = gap.broken.is_empty()
        && description.applications.iter().all(|application| application.margin == 0.0)
        && solve(&checked, None).basis == Basis::Optimal;
    ensure(!is_comparable || gap.fair_speedup <= gap.best_fair_speedup * (1.0 + 5e-5), || {
        format!("more than the optimum: {gap}")
    })?;
    surfaces(random)?;
    remainder(random)
}

/// No server of the first level has room that nobody has, nor has one of the second level that somebody reaches, but for what rounding leaves.
fn idle(description: &Description, plan: &Plan) -> Result<(), String> {
    let rounded = 64 * description.applications.len() as u64;
    let reached = |server: &Server| description.applications.iter().any(|one| one.level2.contains(&server.name));
    let used = |server: &Server| description.applications.iter().any(|one| one.level1 == server.name);
    let first = description.level1.iter().filter(|server| used(server)).map(|server| {
        let has = plan.shares.iter().zip(&description.applications).filter(|(_, one)| one.level1 == server.name);
        (server, has.map(|(share, _)| share.level1.get()).sum::<u64>())
    });
    let second = description.level2.iter().filter(|server| reached(server)).map(|server| {
        let has = plan.shares.iter().filter_map(|share| share.level2.get(&server.name));
        (server, has.map(|bytes| bytes.get()).sum::<u64>())
    });
    let idle = first.chain(second).find(|(server, has)| has + rounded < server.cache.get());
    ensure(idle.is_none(), || format!("of {idle:?} the rest is idle"))
}

/// Where SLOs take nothing, each level is divided in proportion to gains, and all of it.
fn remainder(random: &mut Random) -> Result<(), String> {
    let curve =
        MissCurve::new(&[(Bytes::ZERO, 1.0), (Bytes::from_mib(400), 0.0)]).map_err(|error| error.to_string())?;
    let server = |name: &str, mib: u64| Server { name: name.to_owned(), cache: Bytes::from_mib(mib) };
    let count = 2 + random.below(3) as usize;
    let application = |index: usize| Application {
        name: index.to_string(),
        level1: "io".to_owned(),
        level2: vec!["st0".to_owned(), "st1".to_owned()],
        latencies: None,
        estimate: Estimate::Whole,
        slo: Slo::Latency(Duration::from_secs(1)),
        model: Model::Curve(curve.clone()),
        accesses_per_s: 1.0,
        most: None,
        queue: None,
        margin: 0.0,
        violations: 0,
    };
    let [level1, level2, disk] = [100, 1000, 10_000].map(Duration::from_micros);
    let description = Description {
        latencies: Latencies { level1, level2, disk },
        hierarchy: Hierarchy::Exclusive,
        level1: vec![server("io", 128)],
        level2: vec![server("st0", 256), server("st1", 512)],
        applications: (0..count).map(application).collect(),
        segment: Bytes::new(1),
        change_max: None,
    };
    let checked = problem(&description)?;
    // Latencies that fall by so many ms with all of level 1, and of level 2.
    let falls: Vec<[f64; 2]> = (0..count).map(|_| [0; 2].map(|_| 0.5 + 3.0 * random.unit())).collect();
    let at = |index: usize, parts: [f64; 2]| 1.0 + (0..2).map(|of| falls[index][of] * (1.0 - parts[of])).sum::<f64>();
    let mut mlms = Mlms::default();
    for (index, application) in description.applications.iter().enumerate() {
        for part in [[0.0, 0.0], [0.3, 0.9], [0.9, 0.2], [0.5, 0.5], [0.1, 0.6], [1.0, 1.0], [0.7, 0.4], [0.2, 0.1]] {
            let of = |part: f64, mib: u64| Bytes::new((part * Bytes::from_mib(mib).get() as f64) as u64);
            let (first, second) = (of(part[0], 128), of(part[1], 768));
            mlms.observe(&application.name, Sample { first, second, latency_ms: at(index, part) });
        }
    }
    let plan = mlms.solve(&checked, None);
    let gains: Vec<[f64; 2]> =
        (0..count).map(|index| falls[index].map(|fall| fall / at(index, [1.0 / count as f64; 2]))).collect();
    let sum = |level: usize| gains.iter().map(|gains| gains[level]).sum::<f64>();
    for (share, gains) in plan.shares.iter().zip(&gains) {
        let second: u64 = share.level2.values().map(|bytes| bytes.get()).sum();
        for (level, bytes, mib) in [(0, share.level1.get(), 128.0), (1, second, 768.0)] {
            let (has, expected) = (bytes as f64 / 1_048_576.0, mib * gains[level] / sum(level));
            ensure((has - expected).abs() < 1e-3 * mib, || {
                format!("{} has {has} MiB of level {}, {expected} in proportion", share.application, level + 1)
            })?;
        }
    }
    Ok(())
}

/// Surfaces never rise, whatever is measured, and fit no worse than a constant.
fn surfaces(random: &mut Random) -> Result<(), String> {
    let extent = (Bytes::from_mib(100), Bytes::from_mib(300));
    let sample = |random: &mut Random| Sample {
        first: Bytes::new((random.unit() * extent.0.get() as f64) as u64),
        second: Bytes::new((random.unit() * extent.1.get() as f64) as u64),
        latency_ms: 0.1 + 10.0 * random.unit(),
    };
    let samples: Vec<Sample> = (0..6 + random.below(20)).map(|_| sample(random)).collect();
    let surface = Surface::fit(&samples, extent).map_err(|error| error.to_string())?;
    let grid = (0..10).flat_map(|x| (0..10).map(move |y| (f64::from(x) * 1.2e7, f64::from(y) * 4e7)));
    for (first, second) in grid {
        let at = surface.at(first, second);
        let rises = surface.at(first + 1e6, second) > at + 1e-9 || surface.at(first, second + 1e6) > at + 1e-9;
        ensure(!rises, || format!("it rises at {first}, {second}"))?;
    }
    let mean = samples.iter().map(|sample| sample.latency_ms).sum::<f64>() / samples.len() as f64;
    let error =
        |fitted: &dyn Fn(&Sample) -> f64| samples.iter().map(|s| (s.latency_ms - fitted(s)).powi(2)).sum::<f64>();
    let fitted = error(&|sample| surface.at(sample.first.get() as f64, sample.second.get() as f64));
    ensure(fitted <= error(&|_| mean) + 1e-9, || "a constant fits better".to_owned())
}
