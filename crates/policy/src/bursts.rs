//! How much bursts write: what was seen of them, and how much more of the present one is likely.
//!
//! A burst is what the backing volume cannot serve in time, whether a cache absorbs it or not, so every one of them
//! teaches. Before the first has ended, a guess stands for it.

use std::collections::VecDeque;
use std::time::Duration;

use surgetank_model::{Bytes, Instant};

/// Bursts that are remembered: enough for a distribution, few enough to follow a change.
pub const MEMORY: usize = 16;
/// The weight of a burst to that of the next one.
const FADING: f64 = 0.85;
/// A burst of as much as an earlier one may be larger or smaller by this share of it.
const TOLERANCE: f64 = 0.1;

/// A likely size, and its weight.
pub type Likely = (f64, f64);

/// A burst that may go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Burst {
    last_hot: Instant,
    /// Bytes written until then.
    written: u64,
    /// Bytes written since.
    pending: u64,
}

/// The bursts of one device. See the module.
#[derive(Clone, Debug)]
pub struct Bursts {
    /// Bytes written in each, oldest first.
    sizes: VecDeque<u64>,
    current: Option<Burst>,
    /// What stands for the first burst.
    guess: u64,
}

impl Bursts {
    /// Those of a device that had `past` bursts, oldest first; without any, the first is expected to write `guess`.
    #[must_use]
    pub fn new(guess: u64, past: &[Bytes]) -> Self {
        let sizes = past.iter().skip(past.len().saturating_sub(MEMORY)).map(|size| size.get()).collect();
        Self { sizes, current: None, guess }
    }

    /// A sample from `from` to `to`, in which so much was written. What is apart by less than `calm` is one burst. Answers
    /// whether a burst has ended.
    pub fn observe(&mut self, from: Instant, to: Instant, hot: bool, written: u64, calm: Duration) -> bool {
        let ends = hot && self.current.is_some_and(|burst| from.since(burst.last_hot) >= calm);
        if ends {
            self.end();
        }
        match &mut self.current {
            Some(burst) if hot => {
                burst.written = burst.written.saturating_add(burst.pending).saturating_add(written);
                (burst.pending, burst.last_hot) = (0, to);
            }
            Some(burst) => burst.pending = burst.pending.saturating_add(written),
            None if hot => self.current = Some(Burst { last_hot: to, written, pending: 0 }),
            None => {}
        }
        let ended = self.ends_at(calm).is_some_and(|end| end <= to);
        if ended {
            self.end();
        }
        ends || ended
    }

    /// When the present burst is over, if no hot sample comes; `None`: there is none.
    #[must_use]
    pub fn ends_at(&self, calm: Duration) -> Option<Instant> {
        self.current.map(|burst| burst.last_hot + calm)
    }

    fn end(&mut self) {
        if let Some(burst) = self.current.take() {
            if self.sizes.len() == MEMORY {
                self.sizes.pop_front();
            }
            self.sizes.push_back(burst.written);
        }
    }

    /// Bytes that the present burst has written.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.current.map_or(0, |burst| burst.written)
    }

    /// Those that have ended, oldest first.
    #[must_use]
    pub fn past(&self) -> Vec<Bytes> {
        self.sizes.iter().map(|size| Bytes::new(*size)).collect()
    }

    /// Whether any burst has been seen to its end.
    #[must_use]
    pub fn is_known(&self) -> bool {
        !self.sizes.is_empty()
    }

    /// What a burst that has written `so_far` is likely to write from now on.
    #[must_use]
    pub fn likely(&self, so_far: u64) -> Vec<Likely> {
        let guess = [self.guess];
        let sizes: &mut dyn Iterator<Item = &u64> =
            if self.sizes.is_empty() { &mut guess.iter() } else { &mut self.sizes.iter().rev() };
        let (so_far, mut weight, mut largest) = (so_far as f64, 1.0, 0.0f64);
        let mut likely = Vec::with_capacity(3 * MEMORY);
        for size in sizes {
            for size in [1.0 - TOLERANCE, 1.0, 1.0 + TOLERANCE].map(|share| *size as f64 * share) {
                largest = largest.max(size);
                if size > so_far {
                    likely.push((size - so_far, weight));
                }
            }
            weight *= FADING;
        }
        if likely.is_empty() {
            // Larger than all before: as much again as it is larger.
            likely.push((so_far - largest, 1.0));
        }
        likely
    }
}
