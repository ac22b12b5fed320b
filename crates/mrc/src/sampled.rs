//! Curves from a sample of the keys: SHARDS (SHARDS15) for LRU, and miniature simulations (Mini17) for all
//! policies.
//!
//! A key is sampled if its hash is below a threshold, so all requests of a sampled key are. Among sampled keys, distances
//! and cache sizes are smaller by the sampling rate. Both count on the adjustment of the first paper (SHARDS-adj): when
//! more or fewer requests than expected were sampled, a few very popular keys were or were not, and they would hit at
//! nearly any size; the difference is given to the hits.

use crate::BATCH;
use crate::curve::{Curve, Point};
use crate::histogram::Histogram;
use crate::sample::{KeySample, Rate, mix};
use crate::simulation::{Policy, Simulation};

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
    counted: Counted,
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
        Self { sampler: Sampler::new(), counted: Counted::new(rate, keys_max), requests: 0 }
    }

    /// The rate now: that of a bounded sample falls.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.counted.sample.rate()
    }
}

/// Buckets that are at most 0.05 % of their distance wide.
type Fine = Histogram<4096>;

/// What is known of the sampled keys.
#[derive(Debug)]
struct Counted {
    sample: KeySample,
    histogram: Fine,
    /// Requests that the sampled ones stand for.
    represented: f64,
}

impl Counted {
    fn new(rate: Rate, keys_max: usize) -> Self {
        Self { sample: KeySample::new(rate, keys_max), histogram: Fine::new(), represented: 0.0 }
    }

    fn take(&mut self, sampled: &[u64]) {
        for batch in sampled.chunks(BATCH) {
            self.sample.touch(batch);
            let mut found = [(0, 0.0); BATCH];
            let mut count = 0;
            for key in batch {
                let Some(used) = self.sample.access(*key) else { continue };
                self.represented += used.weight;
                if let Some(distance) = used.distance {
                    found[count] = (Fine::bucket(distance), used.weight);
                    count += 1;
                }
            }
            // Apart, so that no addition waits for the one before to come from memory.
            found[..count].iter().for_each(|(bucket, weight)| self.histogram.add(*bucket, *weight));
        }
    }
}

impl Curve for SampledLru {
    fn feed(&mut self, keys: &[u64]) {
        self.requests += keys.len() as u64;
        self.sampler.sample(self.rate(), keys, |sampled| self.counted.take(sampled));
    }

    fn requests(&self) -> u64 {
        self.requests
    }

    fn distinct(&self) -> Option<u64> {
        Some((self.counted.sample.keys() as f64 / self.rate().share()).round() as u64)
    }

    fn points(&self, sizes: &[u64]) -> Vec<Point> {
        let sums = self.counted.histogram.sums();
        let missing = self.requests as f64 - self.counted.represented;
        let hits = |size: u64| if size == 0 { 0.0 } else { sums.below(size) + missing };
        sizes.iter().map(|size| Point::estimated(*size, hits(*size), self.requests)).collect()
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
    }
}
