//! The paper's algorithm over curves that it does not know.

use surgetank_allocation::mlms::{Gap, Mlms, Sample, Surface};
use surgetank_allocation::{Basis, Fallback, Plan, Problem, solve};
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
        measure(&mut mlms, &checked, &plan);
    }
    let gap = Gap::of(&checked, &plan);
    let is_comparable = gap.broken.is_empty()
        && description.applications.iter().all(|application| application.margin == 0.0)
        && solve(&checked, None).basis == Basis::Optimal;
    ensure(!is_comparable || gap.fair_speedup <= gap.best_fair_speedup * (1.0 + 5e-5), || {
        format!("more than the optimum: {gap}")
    })?;
    surfaces(random)
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
