//! SIEVE (SIEVE24): a queue in the order of coming in, a mark on what was used, and a hand that goes from old to new, takes
//! marks off and evicts the first block without one.

use crate::bits::Bits;
use crate::history::History;

/// See the module.
#[derive(Debug)]
pub struct Sieve {
    /// Positions are the queue: a block keeps its own from coming in to leaving.
    history: History,
    visited: Bits,
    size: u64,
    blocks: u64,
    /// Where the hand stands; at the oldest block if nowhere.
    hand: Option<usize>,
}

impl Sieve {
    pub fn new(size: u64) -> Self {
        let history = History::new();
        let visited = Bits::clear_of(history.live().capacity());
        Self { history, visited, size, blocks: 0, hand: None }
    }

    #[inline]
    pub fn touch(&self, keys: &[u64]) {
        self.history.touch(keys);
    }

    /// Whether it hits.
    #[inline]
    pub fn access(&mut self, key: u64) -> bool {
        if self.size == 0 {
            return false;
        }
        if self.history.is_full() {
            self.compact();
        }
        let (slot, at) = self.history.find(key);
        if let Some(at) = at {
            self.visited.set(at);
            return true;
        }
        if self.blocks == self.size {
            self.evict();
        } else {
            self.blocks += 1;
        }
        self.history.append(slot, key);
        false
    }

    fn evict(&mut self) {
        let live = self.history.live();
        let oldest = |from| live.next_set(from).or_else(|| live.next_set(0));
        let mut hand = self.hand.or_else(|| oldest(0));
        while let Some(at) = hand.filter(|at| self.visited.get(*at)) {
            self.visited.clear(at);
            hand = oldest(at + 1);
        }
        if let Some(at) = hand {
            // Past the newest block it stands nowhere, and begins at the oldest even if more come in.
            self.hand = live.next_set(at + 1);
            self.history.remove(at);
        }
    }

    fn compact(&mut self) {
        let ranks = self.history.compact(0);
        let mut visited = Bits::clear_of(self.history.live().capacity());
        let mut at = self.visited.next_set(0);
        while let Some(old) = at {
            if let Some(new) = ranks.kept(old, 0) {
                visited.set(new);
            }
            at = self.visited.next_set(old + 1);
        }
        self.visited = visited;
        self.hand = self.hand.map(|hand| ranks.of(hand));
    }
}
