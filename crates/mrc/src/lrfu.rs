//! LRFU (LRFU01): a block's value is the sum of ½^(λ·age) over all its
//! uses while it is cached, ages in requests; the block of the least value goes. λ = 0 is LFU, λ = 1 is LRU.
//!
//! Values shrink alike as time passes, so their order changes only where a block is used: what is compared is the
//! logarithm of the value as of time 0, log₂ value + λ·now, which stays put in between. Ties go to the older use.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use crate::resident::Held;
use crate::table::Table;

/// A block's worth: that of the least is evicted.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Worth {
    logarithm: f64,
    last_use: u64,
}

impl Eq for Worth {}

impl Ord for Worth {
    fn cmp(&self, other: &Self) -> Ordering {
        self.logarithm.total_cmp(&other.logarithm).then(self.last_use.cmp(&other.last_use))
    }
}

impl PartialOrd for Worth {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Clone, Copy, Debug)]
struct Block {
    key: u64,
    worth: Worth,
    /// What its entry in the queue says; other entries of this place have had their day.
    queued: Worth,
    is_held: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Lrfu {
    lambda: f64,
    size: u64,
    now: u64,
    /// Changes so far: of equal values the older one goes.
    changes: u64,
    /// Key to place in `blocks`; stale if another key is there, or none.
    table: Table,
    blocks: Vec<Block>,
    /// Places without a block.
    free: Vec<usize>,
    /// Each place with a worth that it has or had: use only adds to it, so what stands on top with its present worth is
    /// the least.
    queue: BinaryHeap<Reverse<(Worth, usize)>>,
}

impl Lrfu {
    pub fn new(size: u64, lambda: f64) -> Self {
        let (table, blocks, free, queue) = (Table::new(), Vec::new(), Vec::new(), BinaryHeap::new());
        Self { lambda, size, now: 0, changes: 0, table, blocks, free, queue }
    }

    #[inline]
    pub fn touch(&self, keys: &[u64]) {
        self.table.touch(keys);
    }

    /// Whether it hits. What it misses comes in.
    pub fn access(&mut self, key: u64) -> bool {
        if self.size == 0 {
            return false;
        }
        self.now += 1;
        let now = self.now;
        let hit = self.hit(key, now);
        if !hit {
            if self.held() >= self.size {
                self.evict();
            }
            self.insert(Held { key, standing: self.standing(None, now) });
        }
        hit
    }

    /// Blocks that it holds.
    pub fn held(&self) -> u64 {
        (self.blocks.len() - self.free.len()) as u64
    }

    pub fn holds(&self, key: u64) -> bool {
        self.place(key).is_some()
    }

    pub fn resize(&mut self, size: u64) {
        self.size = size;
    }

    /// All blocks.
    pub fn blocks(&self) -> Vec<Held> {
        let held = self.blocks.iter().filter(|block| block.is_held);
        held.map(|block| Held { key: block.key, standing: block.worth.logarithm }).collect()
    }

    /// The standing of a block that is used now and had this one before.
    pub fn standing(&self, before: Option<f64>, now: u64) -> f64 {
        let decay = self.lambda * now as f64;
        match before {
            None => decay,
            // Not less than before, not even by rounding.
            Some(before) => ((1.0 + (before - decay).exp2()).log2() + decay).max(before),
        }
    }

    #[inline]
    fn place(&self, key: u64) -> Option<usize> {
        let (_, at) = self.table.find(key);
        at.map(|at| at as usize).filter(|at| self.blocks[*at].key == key && self.blocks[*at].is_held)
    }

    /// Uses a block; whether it is here.
    #[inline]
    pub fn hit(&mut self, key: u64, now: u64) -> bool {
        let Some(at) = self.place(key) else { return false };
        let logarithm = self.standing(Some(self.blocks[at].worth.logarithm), now);
        self.changes += 1;
        self.blocks[at].worth = Worth { logarithm, last_use: self.changes };
        true
    }

    /// Takes in a block that is not here; there must be room.
    pub fn insert(&mut self, block: Held) {
        if self.table.is_full() {
            let (blocks, live) = (&self.blocks, self.held() as usize);
            let is_there = |key, at: u64| blocks[at as usize].key == key && blocks[at as usize].is_held;
            self.table.rebuild(live, |key, at| is_there(key, at).then_some(at));
        }
        self.changes += 1;
        let worth = Worth { logarithm: block.standing, last_use: self.changes };
        let block = Block { key: block.key, worth, queued: worth, is_held: true };
        let at = self.free.pop().unwrap_or(self.blocks.len());
        match self.blocks.get_mut(at) {
            Some(place) => *place = block,
            None => self.blocks.push(block),
        }
        self.queue.push(Reverse((worth, at)));
        let (slot, _) = self.table.find(block.key);
        self.table.put(slot, block.key, at as u64);
    }

    /// Takes a block out; its standing.
    pub fn remove(&mut self, key: u64) -> Option<f64> {
        let at = self.place(key)?;
        self.blocks[at].is_held = false;
        self.free.push(at);
        Some(self.blocks[at].worth.logarithm)
    }

    /// The block that goes.
    pub fn evict(&mut self) -> Option<Held> {
        while let Some(mut top) = self.queue.peek_mut() {
            let Reverse((worth, at)) = *top;
            let block = &mut self.blocks[at];
            if !block.is_held || block.queued != worth {
                PeekMut::pop(top);
            } else if block.worth == worth {
                PeekMut::pop(top);
                block.is_held = false;
                self.free.push(at);
                return Some(Held { key: block.key, standing: worth.logarithm });
            } else {
                block.queued = block.worth;
                *top = Reverse((block.worth, at));
            }
        }
        None
    }
}
