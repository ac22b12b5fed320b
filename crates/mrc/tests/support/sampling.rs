//! What a full sample does.

use surgetank_model::random::Random;
use surgetank_mrc::online::KEYS_MAX;
use surgetank_mrc::{Access, Curve, Online, OnlineCurve, Rate};

use super::cache::said;
use super::ensure;

/// Its rate falls with what is read, and rises again when that was long ago.
pub fn run(seed: u64) -> Result<(), String> {
    let random = &mut Random::from_seed(seed);
    let (other, keys_max) = (random.next_u64(), [500, 2000, KEYS_MAX, usize::MAX][random.below(4) as usize]);
    let mut curve = OnlineCurve::new(Online { keys_max, renewed_after: 4, ..Online::default() });
    let scanned = 100_000;
    curve.observe_range(Access::Read, 0..scanned);
    let (rate, distinct) = (curve.rate().share(), curve.distinct().unwrap_or(0) as f64);
    let most = keys_max.min(KEYS_MAX) as f64;
    ensure(rate * scanned as f64 <= most * 1.1 && rate * scanned as f64 >= most * 0.9, || {
        format!("a rate of {rate} for {most} of {scanned} blocks")
    })?;
    ensure((distinct / scanned as f64 - 1.0).abs() < 0.1, || format!("{distinct} blocks, not {scanned}"))?;
    ensure(said(&curve, &[10, 1000, scanned]).iter().all(|misses| *misses > 0.98), || {
        format!("a scan misses, {:?}", said(&curve, &[10, 1000, scanned]))
    })?;
    // A loop over less than a sample.
    let blocks = 100 + random.below(300);
    for _ in 0..20 {
        for _ in 0..4 {
            (0..blocks).for_each(|block| curve.observe(Access::Read, block ^ other));
        }
        curve.end_interval();
    }
    ensure(curve.rate() == Rate::ALL, || format!("a rate of {:?} for {blocks} blocks", curve.rate()))?;
    let [small, large] = said(&curve, &[blocks - 1, blocks])[..] else { return Err("two points".to_owned()) };
    ensure(small > 0.98 && large < 0.02, || format!("{small} and {large} misses around a loop of {blocks}"))
}
