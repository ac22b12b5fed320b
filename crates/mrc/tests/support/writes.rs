//! What writes and discards do, with known answers.

use surgetank_model::random::Random;
use surgetank_mrc::{Access, OnlineCurve};

use super::cache::{misses, said};
use super::ensure;

use Access::{Discard, Read, Write};

/// What happens to block 0 between two reads of it, and other blocks that are read before, between and after.
pub fn run(seed: u64) -> Result<(), String> {
    let random = &mut Random::from_seed(seed);
    let key = random.next_u64();
    let mut accesses = vec![(Read, 0)];
    let mut other = 0;
    for _ in 0..=random.below(3) {
        for _ in 0..random.below(12) {
            other += 1;
            accesses.push((Read, other));
        }
        let what = [Write, Write, Write, Discard][random.below(4) as usize];
        // A block that was never read, one that was, or the one that is asked about.
        let block = [1000, 0, 0][random.below(3) as usize];
        // Discarded, the other blocks would leave places that an online curve does not know of.
        accesses.push((what, block));
    }
    accesses.extend((0..random.below(12)).map(|block| (Read, other + 1 + block)));
    accesses.push((Read, 0));
    let mut curve = OnlineCurve::default();
    for (access, block) in &accesses {
        curve.observe(*access, block ^ key);
    }
    let sizes: Vec<u64> = (0..60).collect();
    let (exact, said) = (misses(&accesses, &sizes), said(&curve, &sizes));
    let differs = exact.iter().zip(&said).position(|(exact, said)| (exact - said).abs() > 1e-12);
    match differs {
        Some(size) => Err(format!("{} at {size} blocks, not {}, of {accesses:?}", said[size], exact[size])),
        None => ensure(curve.reads() == accesses.iter().filter(|(access, _)| *access == Read).count() as f64, || {
            format!("{} reads of {accesses:?}", curve.reads())
        }),
    }
}
