//! Which keys are sampled (SHARDS15), and what is known of them.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fmt;

use crate::exact::Distances;
use crate::history::Note;
use crate::planted::{Bug, planted};

/// The output of the generator wyrand (Wang Yi, wyhash) in the state that the key makes: the two halves of a product of
/// twice the width, which every bit of the key changes. Half the instructions of a hash of shifts and multiplications.
#[inline]
pub(crate) fn mix(key: u64) -> u64 {
    // The key 0 shall not be 0, which every sample takes.
    let state = (key ^ 0x2d35_8dcc_aa6c_78a5).wrapping_mul(0xa076_1d64_78bd_642f);
    let product = u128::from(state) * u128::from(state ^ 0xe703_7ed1_a0b4_28db);
    product as u64 ^ (product >> 64) as u64
}

/// Share of the keys that is sampled: above 0, at most 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// The highest hash that is sampled.
    pub(crate) threshold: u64,
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

/// A use of a sampled key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Use<N> {
    /// Requests that it stands for.
    pub weight: f64,
    /// Blocks that were used since the key was, about; `None` if it is new.
    pub distance: Option<u64>,
    /// The key's note so far.
    pub note: N,
}

/// The sampled keys in order of use.
#[derive(Debug)]
pub(crate) struct KeySample<N = ()> {
    rate: Rate,
    /// Requests that one of a sampled key stands for.
    weight: f64,
    keys_max: usize,
    /// The sampled keys; empty while their number is not bounded.
    highest: BinaryHeap<ByHash>,
    distances: Distances<N>,
}

/// A key in the order of hashes, which is cheaper made again than kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ByHash(u64);

impl Ord for ByHash {
    fn cmp(&self, other: &Self) -> Ordering {
        (mix(self.0), self.0).cmp(&(mix(other.0), other.0))
    }
}

impl PartialOrd for ByHash {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<N: Note> KeySample<N> {
    /// Of at most `keys_max` keys, unless that is `usize::MAX`, and at most this rate.
    pub fn new(rate: Rate, keys_max: usize) -> Self {
        let (highest, distances) = (BinaryHeap::new(), Distances::new());
        Self { rate, weight: 1.0 / rate.share(), keys_max, highest, distances }
    }

    /// The rate now: that of a bounded sample falls.
    pub fn rate(&self) -> Rate {
        self.rate
    }

    /// How many keys are sampled.
    pub fn keys(&self) -> usize {
        self.distances.keys()
    }

    /// Brings what is known of these keys nearer.
    #[inline]
    pub fn touch(&self, keys: &[u64]) {
        self.distances.touch(keys);
    }

    /// A use of a key that was sampled at the rate as it was then or is now.
    #[inline]
    pub fn access(&mut self, key: u64) -> Option<Use<N>> {
        let is_bounded = self.keys_max < usize::MAX;
        // The rate may have fallen since the key was taken.
        if is_bounded && mix(key) > self.rate.threshold {
            return None;
        }
        let weight = self.weight;
        if let Some((others, note)) = self.distances.access(key) {
            return Some(Use { weight, distance: Some(blocks(others, weight)), note });
        }
        if is_bounded {
            self.highest.push(ByHash(key));
            if self.distances.keys() > self.keys_max {
                self.lower();
            }
        }
        Some(Use { weight, distance: None, note: N::default() })
    }

    /// How many blocks were used since a sampled key was, about, the last position that was given away, and the key's
    /// note. `None` if it is not sampled.
    pub fn look(&mut self, key: u64) -> Option<(u64, usize, &mut N)> {
        if mix(key) > self.rate.threshold {
            return None;
        }
        let weight = self.weight;
        self.distances.look(key).map(|(others, last, note)| (blocks(others, weight), last, note))
    }

    /// All notes with their keys, also of keys that are no longer sampled.
    pub fn notes(&mut self) -> impl Iterator<Item = (u64, &mut N)> {
        self.distances.notes()
    }

    /// Takes the keys of the highest hash out of the sample, and no such keys from now on.
    fn lower(&mut self) {
        let Some(ByHash(key)) = self.highest.peek().copied() else { return };
        let highest = mix(key);
        while let Some(ByHash(key)) = self.highest.peek().copied() {
            if mix(key) < highest {
                break;
            }
            self.highest.pop();
            self.distances.forget(key);
        }
        if planted(Bug::ThresholdKept) {
            return;
        }
        self.rate.threshold = highest.saturating_sub(1);
        if !planted(Bug::WeightKept) {
            self.weight = 1.0 / self.rate.share();
        }
    }
}

/// Blocks that so many sampled ones stand for.
#[inline]
fn blocks(sampled: u64, weight: f64) -> u64 {
    // To the nearest: what is sampled is far below 2^52.
    (sampled as f64 * weight + 0.5) as u64
}

#[cfg(test)]
mod tests {
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
}
