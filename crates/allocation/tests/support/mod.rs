//! Random problems from seeds, and what is checked of them.
#![allow(dead_code, reason = "each test uses a part")]

pub mod curves;
pub mod exact;
pub mod exhaustive;
pub mod ledger;
pub mod naive;
pub mod optimum;
pub mod paper;
pub mod placement;
pub mod promises;
pub mod scales;
pub mod simplex;

use std::time::Duration;

use surgetank_allocation::{
    Application, Description, Estimate, Hierarchy, Latencies, MissCurve, Model, Problem, Server, Slo,
};
use surgetank_model::Bytes;
use surgetank_model::random::Random;

/// What sizes are multiples of.
pub const GRAIN: Bytes = Bytes::from_mib(4);

/// How large a random problem is at most.
#[derive(Clone, Copy, Debug)]
pub struct Extent {
    pub applications: u64,
    pub first: u64,
    pub second: u64,
    /// Multiples of [`GRAIN`] that a server has.
    pub grains: u64,
}

pub const SMALL: Extent = Extent { applications: 3, first: 2, second: 3, grains: 10 };
pub const MEDIUM: Extent = Extent { applications: 12, first: 3, second: 5, grains: 200 };

pub fn grains(count: u64) -> Bytes {
    Bytes::new(count * GRAIN.get())
}

/// Any problem of this extent, with bounds above the fair share.
pub fn description(random: &mut Random, extent: Extent) -> Description {
    let servers = |random: &mut Random, letter: &str, most: u64| -> Vec<Server> {
        let count = 1 + random.below(most);
        let least = extent.applications.min(extent.grains);
        let cache = |random: &mut Random| grains(least + random.below(extent.grains - least + 1));
        (0..count).map(|index| Server { name: format!("{letter}{index}"), cache: cache(random) }).collect()
    };
    let (level1, level2) = (servers(random, "io", extent.first), servers(random, "st", extent.second));
    let is_partial = random.chance(0.7);
    let count = 1 + random.below(extent.applications);
    let applications = (0..count).map(|index| {
        let mut reached: Vec<String> = level2.iter().map(|server| server.name.clone()).collect();
        if is_partial {
            random.shuffle(&mut reached);
            reached.truncate(1 + random.below(reached.len() as u64) as usize);
        }
        let slo = [0.01, 0.02, 0.05, 0.08, 0.1, 0.3][random.below(6) as usize];
        let margin = if random.chance(0.3) { slo * 0.8 * random.unit() } else { 0.0 };
        Application {
            name: format!("app{index}"),
            level1: level1[random.below(level1.len() as u64) as usize].name.clone(),
            level2: reached,
            latencies: random.chance(0.2).then(|| latencies(random)),
            estimate: Estimate::Split,
            slo: Slo::AboveFair(slo),
            model: Model::Curve(curve(random, 3 * extent.grains)),
            accesses_per_s: 10.0 + 990.0 * random.unit(),
            most: None,
            queue: None,
            margin: margin / (1.0 + slo),
            violations: 0,
        }
    });
    let applications = applications.collect();
    Description {
        latencies: latencies(random),
        hierarchy: if random.chance(0.3) { Hierarchy::Inclusive } else { Hierarchy::Exclusive },
        level1,
        level2,
        applications,
        segment: Bytes::new(1),
        change_max: None,
    }
}

fn latencies(random: &mut Random) -> Latencies {
    let times = [50 + random.below(100), 500 + random.below(1000), 3000 + random.below(9000)];
    let [level1, level2, disk] = times.map(Duration::from_micros);
    Latencies { level1, level2, disk }
}

/// A curve with points at multiples of the grain, with plateaus and cliffs.
pub fn curve(random: &mut Random, end: u64) -> MissCurve {
    let mut sizes: Vec<u64> = (0..1 + random.below(6)).map(|_| 1 + random.below(end)).collect();
    sizes.sort_unstable();
    sizes.dedup();
    // Accesses to what was written a moment ago hit without any cache.
    let mut ratio = if random.chance(0.2) { 0.3 + 0.7 * random.unit() } else { 1.0 };
    let mut points = vec![(Bytes::ZERO, ratio)];
    for size in sizes {
        ratio *= if random.chance(0.2) { 1.0 } else { 0.2 + 0.8 * random.unit() };
        points.push((grains(size), ratio));
    }
    MissCurve::new(&points).expect("it falls")
}

/// The problem, or the reason why it is none.
pub fn problem(description: &Description) -> Result<Problem, String> {
    Problem::new(description.clone()).map_err(|error| error.to_string())
}

/// Makes all bounds absolute: `factor` × what the fair share takes.
pub fn with_absolute_bounds(mut description: Description, factor: f64) -> Description {
    let bounds: Vec<f64> =
        (0..description.applications.len()).map(|of| naive::fair_latency_ms(&description, of) * factor).collect();
    for (application, bound_ms) in description.applications.iter_mut().zip(bounds) {
        application.slo = Slo::Latency(Duration::from_secs_f64(bound_ms / 1e3));
    }
    description
}

/// All seeds below `count`; the first failure.
pub fn all(count: u64, run: fn(u64) -> Result<(), String>) {
    for seed in 0..count {
        if let Err(error) = run(seed) {
            panic!("seed {seed}: {error}");
        }
    }
}

pub fn ensure(holds: bool, message: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(message()) }
}
