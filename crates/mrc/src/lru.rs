//! LRU at several sizes in one pass.
//!
//! An LRU cache of n blocks holds the n keys that were used last: those from some position on, its *floor*. A request
//! hits if its key's last position is not below the floor; a miss moves the floor past the oldest key. All sizes share the
//! table and the bitmap (KHW91 marks the same borders in a linked list).

use crate::BATCH;
use crate::history::History;

/// See the module.
#[derive(Debug)]
pub struct Lru {
    history: History,
    caches: Vec<Cache>,
    /// By the smallest cache that hit; the last for none.
    hits: Vec<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Cache {
    floor: usize,
    /// Blocks that still fit before the floor must move.
    room: u64,
}

impl Lru {
    /// Caches of these sizes, ascending.
    pub fn new(sizes: &[u64]) -> Self {
        let caches = sizes.iter().map(|size| Cache { floor: 0, room: *size }).collect();
        Self { history: History::new(), caches, hits: vec![0; sizes.len() + 1] }
    }

    pub fn feed(&mut self, keys: &[u64]) {
        for batch in keys.chunks(BATCH) {
            self.history.touch(batch);
            for key in batch {
                self.access(*key);
            }
        }
    }

    #[inline]
    fn access(&mut self, key: u64) {
        if self.history.is_full() {
            self.compact();
        }
        let (before, _) = self.history.renew(key);
        let mut hit = 0;
        for cache in &mut self.caches {
            if before.is_some_and(|before| before >= cache.floor) {
                break;
            }
            hit += 1;
            if cache.room > 0 {
                cache.room -= 1;
            } else if let Some(oldest) = self.history.live().next_set(cache.floor) {
                cache.floor = oldest + 1;
            }
        }
        self.hits[hit] += 1;
    }

    fn compact(&mut self) {
        let floor = self.caches.last().map_or(0, |largest| largest.floor);
        let ranks = self.history.compact(floor);
        for cache in &mut self.caches {
            cache.floor = ranks.of(cache.floor);
        }
    }

    /// Hits at each size.
    pub fn hits(&self) -> Vec<u64> {
        let within = self.hits.iter().take(self.caches.len());
        within.scan(0, |sum, hits| Some(*sum + *hits).inspect(|total| *sum = *total)).collect()
    }
}
