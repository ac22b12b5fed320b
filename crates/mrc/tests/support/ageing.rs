//! A change of what is read, with known answers.

use surgetank_model::random::Random;
use surgetank_mrc::{Access, Online, OnlineCurve};

use super::cache::said;
use super::ensure;

const READS: u64 = 8000;
const BEFORE: i32 = 30;

/// A loop over 1000 blocks becomes one over 4000. At 2000 blocks the first hits and the second misses.
pub fn run(seed: u64) -> Result<(), String> {
    let random = &mut Random::from_seed(seed);
    let (kept, other) = (0.3 + 0.5 * random.unit(), random.next_u64());
    let mut curve = OnlineCurve::new(Online { kept, ..Online::default() });
    let interval = |curve: &mut OnlineCurve, from: u64, length: u64| {
        (0..READS).for_each(|read| curve.observe(Access::Read, (from + read % length) ^ other));
        curve.end_interval();
    };
    for _ in 0..BEFORE {
        interval(&mut curve, 0, 1000);
    }
    for after in 1..=12 {
        interval(&mut curve, 1 << 20, 4000);
        let weight = |intervals: i32| kept * (1.0 - kept.powi(intervals)) / (1.0 - kept);
        let (all, new) = (weight(BEFORE + after), weight(after));
        let reads = curve.reads() / READS as f64;
        ensure((reads / all - 1.0).abs() < 1e-9, || format!("{reads} intervals' weight, not {all}"))?;
        ensure((curve.sampled() / READS as f64 / all - 1.0).abs() < 1e-9, || "all are sampled".to_owned())?;
        // In its first interval, the second loop has blocks that are new and miss at every size.
        let cold = 0.5 * kept.powi(after) / all;
        for (size, expected) in [(500, 1.0), (2000, new / all), (5000, cold)] {
            let found = said(&curve, &[size])[0];
            ensure((found - expected).abs() < 1e-3, || {
                format!("{found} misses at {size} blocks after {after} intervals that keep {kept}, not {expected}")
            })?;
        }
    }
    Ok(())
}
