//! Curves from a sample of the keys: SHARDS (SHARDS15) for LRU, and miniature simulations (Mini17) for all
//! policies.
//!
//! A key is sampled if its hash is below a threshold, so all requests of a sampled key are. Among sampled keys, distances
//! and cache sizes are smaller by the sampling rate. Both count on the adjustment of the first paper (SHARDS-adj): when
//! more or fewer requests than expected were sampled, a few very popular keys were or were not, and they would hit at
//! nearly any size; the difference is given to the hits.

use std::collections::BinaryHeap;
use std::fmt;

use crate::BATCH;
use crate::curve::{Curve, Point};
use crate::exact::Distances;
use crate::simulation::{Policy, Simulation};

/// The output of the generator wyrand (Wang Yi, wyhash) in the state that the key makes: the two halves of a product of
/// twice the width, which every bit of the key changes. Half the instructions of a hash of shifts and multiplications.
#[inline]
fn mix(key: u64) -> u64 {
    // The key 0 shall not be 0, which every sample takes.
    let state = (key ^ 0x2d35_8dcc_aa6c_78a5).wrapping_mul(0xa076_1d64_78bd_642f);
    let product = u128::from(state) * u128::from(state ^ 0xe703_7ed1_a0b4_28db);
    product as u64 ^ (product >> 64) as u64
}

/// Share of the keys that is sampled: above 0, at most 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// The highest hash that is sampled.
    threshold: u64,
}

/// A rate that is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateError;

impl fmt::Display for RateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sampling rate is above 0 and at most 1, for example 0.01")
    }
}

impl std::error::Error for RateError {}

impl Rate {
    /// All keys.
    pub const ALL: Self = Self { threshold: u64::MAX };

    /// # Errors
    /// If `share` is not above 0 and at most 1.
    pub fn new(share: f64) -> Result<Self, RateError> {
        if !(share > 0.0 && share <= 1.0) {
            return Err(RateError);
        }
        // 2^64 itself and above saturate.
        Ok(Self { threshold: (share * 2f64.powi(64)) as u64 })
    }

    /// The share of the keys.
    #[must_use]
    pub fn share(self) -> f64 {
        (self.threshold as f64 + 1.0) / 2f64.powi(64)
    }
}

/// Takes the sampled ones of keys.
#[derive(Debug)]
struct Sampler {
    /// What was taken last; kept, so that nothing has to be cleared.
    sampled: Box<[u64; CHUNK]>,
}

impl Sampler {
    fn new() -> Self {
        Self { sampled: Box::new([0; CHUNK]) }
    }

    /// Gives the sampled ones of these keys, in order.
    #[inline]
    fn sample(&mut self, rate: Rate, keys: &[u64], mut take: impl FnMut(&[u64])) {
        // Guessing that no key is sampled is cheaper than to store each for the case, but half wrong at worst.
        let scan = if rate.threshold <= u64::MAX / 16 { rare } else { common };
        for chunk in keys.chunks(CHUNK) {
            let count = scan(chunk, rate.threshold, &mut self.sampled);
            take(&self.sampled[..count]);
        }
    }
}

/// Puts the keys of which few are sampled into `sampled`, in order; how many. By itself, so that the loop has the
/// registers.
#[inline(never)]
fn rare(keys: &[u64], threshold: u64, sampled: &mut [u64; CHUNK]) -> usize {
    let mut count = 0;
    let mut look = |keys: &[u64]| {
        for key in keys {
            if mix(*key) <= threshold {
                sampled[count % CHUNK] = *key;
                count += 1;
            }
        }
    };
    let (fours, rest) = keys.as_chunks::<4>();
    for four in fours {
        if four.iter().fold(false, |any, key| any | (mix(*key) <= threshold)) {
            look(four);
        }
    }
    look(rest);
    count
}

/// The same for keys of which many are.
#[inline(never)]
fn common(keys: &[u64], threshold: u64, sampled: &mut [u64; CHUNK]) -> usize {
    let mut count = 0;
    for key in keys {
        sampled[count % CHUNK] = *key;
        count += usize::from(mix(*key) <= threshold);
    }
    count
}

/// Keys that are looked at at once: as many as are fed, so that what is found of sampled ones comes from memory together.
const CHUNK: usize = 2048;

/// The LRU curve from a sample, at a fixed rate or of a bounded number of keys.
#[derive(Debug)]
pub struct SampledLru {
    sampler: Sampler,
    sample: KeySample,
    /// All requests, sampled or not.
    requests: u64,
}

impl SampledLru {
    /// SHARDS at a fixed rate: memory grows with the rate × the distinct blocks.
    #[must_use]
    pub fn fixed_rate(rate: Rate) -> Self {
        Self::new(rate, usize::MAX)
    }

    /// SHARDS of fixed size: at most so many keys are sampled, at most at this rate; when more would be, the rate falls.
    /// Memory is bounded.
    #[must_use]
    pub fn fixed_size(rate: Rate, keys_max: usize) -> Self {
        Self::new(rate, keys_max.max(1))
    }

    fn new(rate: Rate, keys_max: usize) -> Self {
        Self { sampler: Sampler::new(), sample: KeySample::new(rate, keys_max), requests: 0 }
    }

    /// The rate now: that of a bounded sample falls.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.sample.rate
    }
}

/// What is known of the sampled keys.
#[derive(Debug)]
struct KeySample {
    rate: Rate,
    /// Requests that one of a sampled key stands for.
    weight: f64,
    keys_max: usize,
    /// The sampled keys by hash; empty while their number is not bounded.
    highest: BinaryHeap<(u64, u64)>,
    distances: Distances,
    histogram: Histogram,
    /// Requests that the sampled ones stand for.
    represented: f64,
}

impl KeySample {
    fn new(rate: Rate, keys_max: usize) -> Self {
        Self {
            rate,
            weight: 1.0 / rate.share(),
            keys_max,
            highest: BinaryHeap::new(),
            distances: Distances::new(),
            histogram: Histogram::default(),
            represented: 0.0,
        }
    }

    fn take(&mut self, sampled: &[u64]) {
        for batch in sampled.chunks(BATCH) {
            self.distances.touch(batch);
            let mut found = [(0, 0.0); BATCH];
            let mut count = 0;
            for key in batch {
                if let Some(place) = self.access(*key) {
                    found[count] = place;
                    count += 1;
                }
            }
            // Apart, so that no addition waits for the one before to come from memory.
            found[..count].iter().for_each(|(bucket, weight)| self.histogram.add(*bucket, *weight));
        }
    }

    /// Where the histogram counts a key, and with which weight, if it was used before.
    #[inline]
    fn access(&mut self, key: u64) -> Option<(usize, f64)> {
        let is_bounded = self.keys_max < usize::MAX;
        // The rate may have fallen since the key was taken.
        if is_bounded && mix(key) > self.rate.threshold {
            return None;
        }
        let weight = self.weight;
        self.represented += weight;
        if let Some(others) = self.distances.access(key) {
            // To the nearest: distances are far below 2^52.
            return Some((Histogram::bucket((others as f64 * weight + 0.5) as u64), weight));
        }
        if is_bounded {
            self.highest.push((mix(key), key));
            if self.distances.keys() > self.keys_max {
                self.lower();
            }
        }
        None
    }

    /// Takes the keys of the highest hash out of the sample, and no such keys from now on.
    fn lower(&mut self) {
        let Some((highest, _)) = self.highest.peek().copied() else { return };
        while let Some((hash, key)) = self.highest.peek().copied() {
            if hash < highest {
                break;
            }
            self.highest.pop();
            self.distances.forget(key);
        }
        self.rate.threshold = highest.saturating_sub(1);
        self.weight = 1.0 / self.rate.share();
    }
}

impl Curve for SampledLru {
    fn feed(&mut self, keys: &[u64]) {
        self.requests += keys.len() as u64;
        self.sampler.sample(self.sample.rate, keys, |sampled| self.sample.take(sampled));
    }

    fn requests(&self) -> u64 {
        self.requests
    }

    fn distinct(&self) -> Option<u64> {
        Some((self.sample.distances.keys() as f64 / self.sample.rate.share()).round() as u64)
    }

    fn points(&self, sizes: &[u64]) -> Vec<Point> {
        let sums = self.sample.histogram.sums();
        let missing = self.requests as f64 - self.sample.represented;
        let hits = |size: u64| if size == 0 { 0.0 } else { sums.below(size) + missing };
        sizes.iter().map(|size| Point::estimated(*size, hits(*size), self.requests)).collect()
    }
}

/// Distances below this have a bucket each; above, each doubling has half as many buckets.
const EXACT: u64 = 1 << 12;
const PER_DOUBLING: usize = (EXACT / 2) as usize;

/// Weights by distance, in buckets that are at most 0.05 % of the distance wide: its memory does not grow with the trace.
#[derive(Debug, Default)]
struct Histogram {
    buckets: Vec<f64>,
}

impl Histogram {
    fn bucket(distance: u64) -> usize {
        let doublings = (distance / EXACT).checked_ilog2().map_or(0, |log| log + 1);
        // Within its doubling, the leading bits of the distance.
        (distance >> doublings) as usize + doublings as usize * PER_DOUBLING
    }

    /// The smallest distance of a bucket.
    fn smallest(bucket: usize) -> u64 {
        if (bucket as u64) < EXACT {
            return bucket as u64;
        }
        let doublings = (bucket / PER_DOUBLING - 1) as u32;
        let leading = (bucket % PER_DOUBLING + PER_DOUBLING) as u64;
        leading.checked_shl(doublings).filter(|smallest| smallest >> doublings == leading).unwrap_or(u64::MAX)
    }

    #[inline]
    fn add(&mut self, bucket: usize, weight: f64) {
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, 0.0);
        }
        self.buckets[bucket] += weight;
    }

    fn sums(&self) -> Sums<'_> {
        let sum = |sum: &mut f64, weight: &f64| Some(std::mem::replace(sum, *sum + weight));
        Sums { histogram: self, before: self.buckets.iter().scan(0.0, sum).collect() }
    }
}

struct Sums<'a> {
    histogram: &'a Histogram,
    /// Weight before each bucket.
    before: Vec<f64>,
}

impl Sums<'_> {
    /// The weight of all distances below this one; within a bucket, its share.
    fn below(&self, distance: u64) -> f64 {
        let bucket = Histogram::bucket(distance);
        let (Some(before), Some(weight)) = (self.before.get(bucket), self.histogram.buckets.get(bucket)) else {
            return self.histogram.buckets.iter().sum();
        };
        let (from, to) = (Histogram::smallest(bucket), Histogram::smallest(bucket + 1));
        before + weight * (distance - from) as f64 / (to - from) as f64
    }
}

/// Simulated caches that are smaller by the sampling rate, and fed with the sample.
#[derive(Debug)]
pub struct Miniature {
    rate: Rate,
    sampler: Sampler,
    simulation: Simulation,
    requests: u64,
}

impl Miniature {
    /// Empty caches that stand for ones of these sizes, in blocks.
    #[must_use]
    pub fn new(policy: Policy, sizes: &[u64], rate: Rate) -> Self {
        let policy = match policy {
            // Ages are counted in requests, of which the miniature sees fewer.
            Policy::Lrfu { lambda } => Policy::Lrfu { lambda: lambda / rate.share() },
            other => other,
        };
        let scaled: Vec<u64> = sizes.iter().map(|size| scaled(*size, rate)).collect();
        Self { rate, sampler: Sampler::new(), simulation: Simulation::new(policy, &scaled), requests: 0 }
    }
}

/// The size of the miniature: at least one block, so that small ones are overestimated.
fn scaled(size: u64, rate: Rate) -> u64 {
    if size == 0 { 0 } else { ((size as f64 * rate.share()).round() as u64).max(1) }
}

impl Curve for Miniature {
    fn feed(&mut self, keys: &[u64]) {
        self.requests += keys.len() as u64;
        self.sampler.sample(self.rate, keys, |sampled| self.simulation.feed(sampled));
    }

    fn requests(&self) -> u64 {
        self.requests
    }

    fn distinct(&self) -> Option<u64> {
        None
    }

    fn points(&self, sizes: &[u64]) -> Vec<Point> {
        let share = self.rate.share();
        let missing = self.requests as f64 - self.simulation.requests() as f64 / share;
        let point = |size: &u64| {
            let (_, hits) = self.simulation.hits_at(&[scaled(*size, self.rate)]).next()?;
            let hits = if *size == 0 { 0.0 } else { hits as f64 / share + missing };
            Some(Point::estimated(*size, hits, self.requests))
        };
        sizes.iter().filter_map(point).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rates_are_shares() {
        assert_eq!(Rate::new(1.0), Ok(Rate::ALL));
        assert!((Rate::new(0.01).unwrap().share() - 0.01).abs() < 1e-12);
        assert!(Rate::new(1e-30).is_ok());
        for none in [0.0, -0.1, 1.000_001, f64::NAN, f64::INFINITY] {
            assert_eq!(Rate::new(none), Err(RateError));
        }
    }

    #[test]
    fn the_hash_spreads_regular_keys() {
        let rate = Rate::new(0.01).unwrap();
        for step in [1, 8, 4096, 1 << 20, 1 << 40, 0x9e37_79b9_7f4a_7c15] {
            let keys: Vec<u64> = (0..100_000u64).map(|index| index.wrapping_mul(step)).collect();
            let mut sampled = 0;
            Sampler::new().sample(rate, &keys, |keys| sampled += keys.len());
            assert!((800..1200).contains(&sampled), "{sampled} of every {step}");
        }
    }

    proptest! {
        #[test]
        fn both_scans_take_the_same_keys(keys in prop::collection::vec(any::<u64>(), 0..40), shift in 0u32..6) {
            let (mut some, mut all) = ([0; CHUNK], [0; CHUNK]);
            let taken = rare(&keys, u64::MAX >> shift, &mut some);
            prop_assert_eq!(taken, common(&keys, u64::MAX >> shift, &mut all));
            prop_assert_eq!(&some[..taken], &all[..taken]);
        }

        #[test]
        fn buckets_are_narrow_and_in_order(distance in any::<u64>(), shift in 0u32..64) {
            let distance = distance >> shift;
            let bucket = Histogram::bucket(distance);
            let (from, to) = (Histogram::smallest(bucket), Histogram::smallest(bucket + 1));
            prop_assert!(from <= distance && (distance < to || to == u64::MAX), "{from} {distance} {to}");
            prop_assert!(distance < EXACT || (to - from) as f64 <= distance as f64 / 2000.0);
            prop_assert_eq!(Histogram::bucket(from), bucket);
        }
    }
}
