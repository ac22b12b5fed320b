//! Small cases as a whole.

use surgetank_allocation::Hierarchy;
use surgetank_hierarchy::{Area, Case, DiskType, Layout, Pattern, Phase, Reach, Replacement, Scheme, Source, Times};

use super::ensure;

/// Two applications on one server each level: a loop that half of the caches does not hold, and one that needs little.
pub fn case(seed: u64) -> Case {
    let source = |name: &str, accesses_per_s: f64, blocks: u64| Source {
        name: name.to_owned(),
        accesses_per_s,
        phases: vec![Phase {
            lasts_s: 1e6,
            areas: vec![
                Area { base: 0, pattern: Pattern::Sweep { blocks, stride: 1 }, weight: 0.6, run: 4 },
                Area { base: 1 << 20, pattern: Pattern::Zipf { blocks: 200, skew: 0.8 }, weight: 0.4, run: 1 },
            ],
        }],
    };
    Case {
        layout: Layout {
            hierarchy: Hierarchy::Exclusive,
            behind: Replacement::Lru,
            block: 16 << 10,
            level1: vec![600],
            level2: vec![500; 2],
            reach: vec![Reach { level1: 0, level2: vec![0, 1] }; 2],
        },
        times: Times { level1_ms: 0.25, level2_ms: 0.75 },
        disk: DiskType::PAPER,
        disks: 4,
        sources: vec![source("loop", 300.0, 1100 + seed % 100), source("small", 300.0, 100)],
        seed,
        interval_s: 10.0,
        intervals: 30,
        warmup: 10,
        slos: vec![0.1; 2],
        change_max: Some(0.1),
        deviations: Some(1.64),
        sampled: 1.0,
    }
}

/// What must hold of runs and of how they are judged.
pub fn run(seed: u64) -> Result<(), String> {
    let case = case(seed);
    let run = |scheme: Scheme| case.run(scheme).map_err(|error| error.to_string());
    let fair = run(Scheme::FairShare)?;
    let itself = case.judge(&fair, &fair);
    ensure(itself.broken() == (0, 40) && (itself.fair_speedup - 1.0).abs() < 1e-12, || format!("{itself:?}"))?;
    let accesses = fair[0].measured[0].accesses;
    ensure((2700..3300).contains(&accesses), || format!("{accesses} accesses in the first interval"))?;
    let optimal = case.judge(&run(Scheme::Optimal)?, &fair);
    ensure(optimal.broken().0 == 0, || format!("an SLO is broken: {optimal:?}"))?;
    ensure(optimal.fair_speedup > 1.05, || format!("optimal: {}", optimal.fair_speedup))?;
    let alone = case.judge(&run(Scheme::Independent)?, &fair);
    ensure(alone.fair_speedup > optimal.fair_speedup, || "alone is slower than among others".to_owned())
}

/// The paper's algorithm takes each first sample at shares that stay, and then goes no further in an interval than shares may change.
pub fn steps(seed: u64) -> Result<(), String> {
    let case = Case { warmup: 17, ..case(seed) };
    let intervals = case.run(Scheme::Mlms).map_err(|error| error.to_string())?;
    for of in 0..2 {
        let has = |at: usize| (intervals[at].measured[of].level1, intervals[at].measured[of].level2);
        // After one interval of the fair share two for each of the eight samples.
        let changes: Vec<usize> = (1..case.warmup).filter(|at| has(*at) != has(at - 1)).collect();
        ensure(changes == [1, 3, 5, 7, 9, 11, 13, 15], || format!("shares of {of} change at {changes:?}"))?;
        for at in case.warmup..case.intervals {
            let (now, before) = (has(at), has(at - 1));
            let far = (now.0.abs_diff(before.0), now.1.abs_diff(before.1));
            ensure(far.0 <= 60 + 1 && far.1 <= 100 + 2, || format!("{of} goes from {before:?} to {now:?} at {at}"))?;
        }
    }
    Ok(())
}
