//! Mixes of skewed reads, loops, scans, writes and discards, of more blocks than a sample has.

use surgetank_model::random::Random;
use surgetank_mrc::{Access, OnlineCurve, spread_sizes};

use super::cache::{error, misses, said};
use super::ensure;

use Access::{Discard, Read, Write};

pub const BLOCKS: u64 = 60_000;
const ACCESSES: u64 = 250_000;
/// 256 KiB of blocks of 4 KiB. What smaller caches do is decided by a few blocks, and a sample has them or not.
const SIZE_MIN: u64 = 64;
/// The bar.
pub const ERROR_MAX: f64 = 0.02;

/// Zipf-like ranks without a table: the inverse of the continuous law.
fn zipf(random: &mut Random, blocks: u64, exponent: f64) -> u64 {
    let (unit, top) = (random.unit(), (blocks as f64).powf(1.0 - exponent));
    (1.0 + unit * (top - 1.0)).powf(1.0 / (1.0 - exponent)) as u64
}

pub fn accesses(seed: u64) -> Vec<(Access, u64)> {
    let random = &mut Random::from_seed(seed);
    let spread = random.next_u64() | 1;
    let access = |at: u64, random: &mut Random| {
        let exponent = [0.7, 0.9, 1.1, 1.2][random.below(2) as usize + seed as usize % 2 * 2];
        let skewed = zipf(random, BLOCKS, exponent);
        match seed % 7 {
            0 | 1 => (Read, skewed),
            // One that is read and written alike.
            2 | 3 => (if random.chance(0.5) { Write } else { Read }, skewed),
            // A loop beside it.
            4 => (Read, if random.chance(0.3) { (1 << 30) + at % 20_000 } else { skewed }),
            // Scans now and then.
            5 => (Read, if at % 40_000 < 4_000 { (1 << 30) + at } else { skewed }),
            // Writes in order, as a log has them, to what is rarely read; and discards.
            _ if random.chance(0.5) => (Write, at % BLOCKS),
            _ => (if random.chance(0.02) { Discard } else { Read }, skewed),
        }
    };
    let all = (0..ACCESSES).map(|at| access(at, random));
    all.map(|(access, block)| (access, block.wrapping_mul(spread))).collect()
}

pub fn run(seed: u64) -> Result<(), String> {
    let accesses = accesses(seed);
    let sizes: Vec<u64> = spread_sizes(BLOCKS, 16).into_iter().filter(|size| *size >= SIZE_MIN).collect();
    let mut curve = OnlineCurve::default();
    accesses.iter().for_each(|(access, block)| curve.observe(*access, *block));
    let (exact, said) = (misses(&accesses, &sizes), said(&curve, &sizes));
    let error = error(&exact, &said);
    ensure(error <= ERROR_MAX, || format!("a mean error of {error}: {said:.3?}, not {exact:.3?}, at {sizes:?}"))
}
