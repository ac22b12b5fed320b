//! LRU at every size, by stack distances (Mattson70): a cache hits a request if fewer blocks than its size were used
//! since the same block was.

use crate::BATCH;
use crate::bits::Counts;
use crate::curve::{Curve, Point};
use crate::history::{History, Note};

/// Stack distances of a stream of keys.
#[derive(Debug)]
pub(crate) struct Distances<N = ()> {
    history: History<N>,
    counts: Counts,
    keys: usize,
}

impl<N: Note> Distances<N> {
    pub(crate) fn new() -> Self {
        let history = History::new();
        let counts = Counts::of(history.live());
        Self { history, counts, keys: 0 }
    }

    #[inline]
    pub(crate) fn touch(&self, keys: &[u64]) {
        self.history.touch(keys);
    }

    /// How many other keys were used since this one was, and its note; `None` if it never was, or was forgotten.
    #[inline]
    pub(crate) fn access(&mut self, key: u64) -> Option<(u64, N)> {
        if self.history.is_full() {
            self.history.compact(0);
            self.counts = Counts::of(self.history.live());
        }
        let (slot, before) = self.history.find(key);
        let found = before.map(|before| {
            let note = *self.history.note(slot);
            let distance = self.counts.above(self.history.live(), note.since(before));
            self.history.remove(before);
            self.counts.removed(before);
            (distance, note)
        });
        let now = self.history.append(slot, key);
        self.counts.added(now);
        self.keys += usize::from(found.is_none());
        found
    }

    /// How many other keys were used since this one was, the last position that was given away, and its note, all as it
    /// was: nothing is used.
    pub(crate) fn look(&mut self, key: u64) -> Option<(u64, usize, &mut N)> {
        let (slot, at) = self.history.find(key);
        let at = at?;
        let last = self.history.next().saturating_sub(1);
        let since = self.history.note(slot).since(at);
        let distance = self.counts.above(self.history.live(), since);
        Some((distance, last, self.history.note(slot)))
    }

    /// All notes with their keys, also of keys that are forgotten.
    pub(crate) fn notes(&mut self) -> impl Iterator<Item = (u64, &mut N)> {
        self.history.notes()
    }

    /// Forgets a key.
    pub(crate) fn forget(&mut self, key: u64) {
        if let (_, Some(at)) = self.history.find(key) {
            self.history.remove(at);
            self.counts.removed(at);
            self.keys -= 1;
        }
    }

    /// How many keys it knows.
    pub(crate) fn keys(&self) -> usize {
        self.keys
    }
}

/// The exact LRU curve.
#[derive(Debug)]
pub struct ExactLru {
    distances: Distances,
    /// Requests by the number of other blocks since the last use.
    histogram: Vec<u64>,
    requests: u64,
}

impl ExactLru {
    /// Nothing fed yet.
    #[must_use]
    pub fn new() -> Self {
        Self { distances: Distances::new(), histogram: Vec::new(), requests: 0 }
    }
}

impl Default for ExactLru {
    fn default() -> Self {
        Self::new()
    }
}

impl Curve for ExactLru {
    fn feed(&mut self, keys: &[u64]) {
        self.requests += keys.len() as u64;
        for batch in keys.chunks(BATCH) {
            self.distances.touch(batch);
            for key in batch {
                let Some((distance, ())) = self.distances.access(*key) else { continue };
                let at = distance as usize;
                if at >= self.histogram.len() {
                    // Distances are below the number of keys; as many places as keys are enough for a while.
                    self.histogram.resize(self.distances.keys().max(at + 1), 0);
                }
                self.histogram[at] += 1;
            }
        }
    }

    fn requests(&self) -> u64 {
        self.requests
    }

    fn distinct(&self) -> Option<u64> {
        Some(self.distances.keys() as u64)
    }

    fn points(&self, sizes: &[u64]) -> Vec<Point> {
        let mut sums = Vec::with_capacity(self.histogram.len() + 1);
        let mut sum = 0;
        sums.push(0);
        for requests in &self.histogram {
            sum += requests;
            sums.push(sum);
        }
        let hits = |size: u64| sums[usize::try_from(size).unwrap_or(usize::MAX).min(sums.len() - 1)];
        sizes.iter().map(|size| Point::exact(*size, hits(*size), self.requests)).collect()
    }
}
