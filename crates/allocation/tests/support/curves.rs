//! Shared caches against what happens in them, step by step.

use surgetank_allocation::{Description, Hierarchy, Plan, baselines};
use surgetank_model::random::Random;

use super::{Extent, description, ensure, naive, problem};

const EXTENT: Extent = Extent { applications: 4, first: 1, second: 1, grains: 40 };

/// The bytes that each application has brought into one list when all together have brought in its size.
fn brought(description: &Description, size: f64) -> Vec<f64> {
    let mut bytes = vec![0.0; description.applications.len()];
    loop {
        let rates: Vec<f64> = (0..bytes.len())
            .map(|of| {
                let surgetank_allocation::Model::Curve(curve) = &description.applications[of].model else { return 0.0 };
                curve.at(bytes[of]) * description.applications[of].accesses_per_s
            })
            .collect();
        let (sum, rate) = (bytes.iter().sum::<f64>(), rates.iter().sum::<f64>());
        let left = size - sum;
        if left < 1.0 || rate < 1e-9 {
            return bytes;
        }
        // A step in which all together bring in a thousandth of the cache.
        let step = left.min(size / 4000.0) / rate;
        for (bytes, rate) in bytes.iter_mut().zip(rates) {
            *bytes += rate * step;
        }
    }
}

pub fn run(seed: u64) -> Result<(), String> {
    let random = &mut Random::from_seed(seed);
    let mut description = description(random, EXTENT);
    description.hierarchy = Hierarchy::Exclusive;
    let checked = problem(&description)?;
    let named = |plan: Result<Plan, baselines::NoCurve>| plan.map_err(|error| error.to_string());
    let plan = named(baselines::uncontrolled(&checked))?;
    let (one, two) = (description.level1[0].cache.get() as f64, description.level2[0].cache.get() as f64);
    let (first, both) = (brought(&description, one), brought(&description, one + two));
    for (of, (has, second)) in naive::shares(&plan).into_iter().enumerate() {
        let near = |a: f64, b: f64, size: f64| (a - b).abs() < 0.01 * size;
        ensure(near(has, first[of], one), || format!("app{of} has {has} of level 1, not {}", first[of]))?;
        let behind = both[of] - first[of];
        ensure(near(second, behind, two), || format!("app{of} has {second} of level 2, not {behind}"))?;
    }
    // Who is alone has at least what he has of anything shared.
    let alone = baselines::independent(&checked);
    let others = [
        plan,
        baselines::fair_share(&checked),
        named(baselines::first_level_only(&checked))?,
        named(baselines::second_level_only(&checked))?,
    ];
    for other in others {
        naive::fits(&description, &other)?;
        for (best, share) in alone.shares.iter().zip(&other.shares) {
            ensure(best.latency_ms <= share.latency_ms * (1.0 + 1e-6), || {
                format!("{} is faster shared", share.application)
            })?;
        }
    }
    Ok(())
}
