//! Miniatures of a read cache against the whole one, and known answers.

use surgetank_model::random::Random;
use surgetank_mrc::miniature::BLOCKS_MAX;
use surgetank_mrc::{Access, MiniatureCurve, Miniatures};
use surgetank_readcache::Simulated;

use super::cache::error;
use super::{ensure, mixes};

use Access::{Discard, Read, Write};

/// Sizes and the share of the reads that misses.
pub fn said(curve: &MiniatureCurve) -> (Vec<u64>, Vec<f64>) {
    curve.points().iter().map(|point| (point.size_blocks, point.miss_ratio)).unzip()
}

/// What misses in read caches of these sizes, of all blocks. A larger one may miss more, which a curve does not say.
pub fn whole(accesses: &[(Access, u64)], sizes: &[u64]) -> Vec<f64> {
    let reads = accesses.iter().filter(|(access, _)| *access == Read).count();
    let mut least = 1.0_f64;
    let misses = |size: &u64| {
        let mut cache = Simulated::new(*size);
        let missed = accesses.iter().filter(|(access, block)| {
            let was_cached = match access {
                Read => cache.access(*block),
                Write => cache.write(*block),
                Discard => cache.remove(*block),
            };
            *access == Read && !was_cached
        });
        least = least.min(missed.count() as f64 / reads as f64);
        least
    };
    sizes.iter().map(misses).collect()
}

pub fn observed(options: Miniatures, accesses: &[(Access, u64)]) -> MiniatureCurve {
    let mut curve = MiniatureCurve::new(options);
    accesses.iter().for_each(|(access, block)| curve.observe(*access, *block));
    curve
}

/// The mean error of sampled miniatures, and what it is of.
pub fn mean_error(accesses: &[(Access, u64)], largest: u64) -> (f64, String) {
    let curve = observed(Miniatures::up_to(largest), accesses);
    let (sizes, said) = said(&curve);
    let whole = whole(accesses, &sizes);
    (error(&whole, &said), format!("{said:.3?}, not {whole:.3?}, at {sizes:?}"))
}

/// Mixes of skewed reads, loops, scans, writes and discards, of several times the blocks that miniatures have; the last two seeds are loops alone.
pub fn accesses(seed: u64) -> Vec<(Access, u64)> {
    match seed {
        14.. => looped(seed),
        _ => mixes::accesses(seed).into_iter().map(|(access, block)| (access, block >> 26)).collect(),
    }
}

pub fn mixed(seed: u64) -> Result<(), String> {
    let (error, what) = mean_error(&accesses(seed), mixes::BLOCKS);
    ensure(error <= mixes::ERROR_MAX, || format!("a mean error of {error}: {what}"))
}

/// Two loops of different lengths, one read after the other.
fn looped(seed: u64) -> Vec<(Access, u64)> {
    let random = &mut Random::from_seed(seed);
    let (from, short, long) = (random.below(1 << 30), 2000 + random.below(8000), 20_000 + random.below(20_000));
    let mut at = [0, 0];
    let access = |_| {
        let is_long = random.chance(0.5);
        at[usize::from(is_long)] += 1;
        (Read, if is_long { from + (1 << 31) + at[1] % long } else { from + at[0] % short })
    };
    (0..400_000).map(access).collect()
}

/// Writes and discards of single blocks and of ranges, with known answers at every size, from caches that have all that is read on.
pub fn changed(seed: u64) -> Result<(), String> {
    let random = &mut Random::from_seed(seed);
    let (from, blocks) = (random.below(1 << 37), 4000 + random.below(8000));
    let mut curve = MiniatureCurve::new(Miniatures::up_to(blocks * 16));
    let mut other = MiniatureCurve::new(Miniatures::up_to(blocks * 16));
    let hot = from..from + blocks;
    // What is written before it was read is not cached then.
    other.observe_range(Write, hot.clone());
    for _ in 0..3 {
        curve.observe_range(Read, hot.clone());
    }
    curve.observe_range(Write, hot.clone());
    let long = match seed % 3 {
        0 => {
            hot.clone().for_each(|block| curve.observe(Discard, block));
            true
        }
        1 => {
            // Longer than the miniatures are large.
            curve.observe_range(Discard, from..from + (1 << 24));
            true
        }
        _ => {
            curve.observe_range(Discard, from + blocks..u64::MAX);
            false
        }
    };
    curve.observe_range(Read, hot.clone());
    other.observe_range(Read, hot);
    // Of four rounds of reads the first misses, and the last one if all was discarded.
    let expected = if long { 0.5 } else { 0.25 };
    let (sizes, misses) = said(&curve);
    for (size, misses) in sizes.iter().zip(misses).filter(|(size, _)| **size >= 2 * blocks) {
        ensure((misses - expected).abs() < 0.1, || format!("{misses} misses at {size}, not {expected}"))?;
    }
    let (_, misses) = said(&other);
    ensure(misses.iter().all(|misses| (*misses - 1.0).abs() < 0.15), || format!("{misses:?} of what was only written"))
}

/// One block has half of the reads, and is in the sample or not.
pub fn adjusted(seed: u64) -> Result<(), String> {
    let random = &mut Random::from_seed(seed);
    let (often, from) = (random.below(1 << 37), random.below(1 << 36));
    let reads = (0..200_000u64).map(|at| (Read, if at % 2 == 0 { often } else { from + at }));
    let curve = observed(Miniatures::up_to(BLOCKS_MAX * 10), &reads.collect::<Vec<_>>());
    let (sizes, misses) = said(&curve);
    let share = curve.rate().share();
    ensure((share - 0.1).abs() < 1e-9, || format!("a rate of {share}"))?;
    ensure(misses.iter().all(|misses| (misses - 0.5).abs() < 0.02), || format!("{misses:.3?} at {sizes:?}, not 0.5"))
}

const READS: u64 = 4000;
const BEFORE: i32 = 30;

/// Reads of a few blocks become reads of what is read once.
pub fn aged(seed: u64) -> Result<(), String> {
    let random = &mut Random::from_seed(seed);
    let kept = 0.3 + 0.5 * random.unit();
    let mut curve = MiniatureCurve::new(Miniatures { kept, ..Miniatures::up_to(2000) });
    let mut forgetful = MiniatureCurve::new(Miniatures { kept, change_max: 0.1, ..Miniatures::up_to(2000) });
    let mut interval = |curve: &mut MiniatureCurve, few: bool| {
        let from = random.below(1 << 37);
        (0..READS).for_each(|read| curve.observe(Read, if few { read % 10 } else { from + read }));
        curve.end_interval();
    };
    for _ in 0..BEFORE {
        interval(&mut curve, true);
        interval(&mut forgetful, true);
    }
    for after in 1..=8 {
        interval(&mut curve, false);
        let weight = |intervals: i32| kept * (1.0 - kept.powi(intervals)) / (1.0 - kept);
        let (all, new) = (weight(BEFORE + after), weight(after));
        let reads = curve.reads() / READS as f64;
        ensure((reads / all - 1.0).abs() < 1e-9, || format!("{reads} intervals' weight, not {all}"))?;
        let (sizes, misses) = said(&curve);
        for (size, misses) in sizes.iter().zip(misses).filter(|(size, _)| **size >= 200) {
            ensure((misses - new / all).abs() < 0.02, || {
                format!("{misses} misses at {size} after {after} intervals that keep {kept}, not {}", new / all)
            })?;
        }
    }
    interval(&mut forgetful, false);
    let (_, misses) = said(&forgetful);
    ensure(misses.iter().all(|misses| *misses > 0.98), || format!("{misses:?} after another mix"))
}
