//! LRFU (LRFU01): a block's value is the sum of ½^(λ·age) over all its
//! uses while it is cached, ages in requests; the block of the least value goes. λ = 0 is LFU, λ = 1 is LRU.
//!
//! Values shrink alike as time passes, so their order changes only where a block is used: what is compared is the
//! logarithm of the value as of time 0, log₂ value + λ·now, which stays put in between. Ties go to the older use.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

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
}

/// See the module.
#[derive(Debug)]
pub struct Lrfu {
    lambda: f64,
    size: u64,
    now: u64,
    /// Key to place in `blocks`; stale if another key is there.
    table: Table,
    blocks: Vec<Block>,
    /// Each place with a worth that it has or had: use only adds to it, so what stands on top with its present worth is
    /// the least.
    queue: BinaryHeap<Reverse<(Worth, usize)>>,
}

impl Lrfu {
    pub fn new(size: u64, lambda: f64) -> Self {
        let (table, blocks, queue) = (Table::new(), Vec::new(), BinaryHeap::new());
        Self { lambda, size, now: 0, table, blocks, queue }
    }

    #[inline]
    pub fn touch(&self, keys: &[u64]) {
        self.table.touch(keys);
    }

    /// Whether it hits.
    pub fn access(&mut self, key: u64) -> bool {
        if self.size == 0 {
            return false;
        }
        if self.table.is_full() {
            let blocks = &self.blocks;
            self.table.rebuild(blocks.len(), |key, at| (blocks[at as usize].key == key).then_some(at));
        }
        self.now += 1;
        let decay = self.lambda * self.now as f64;
        let (slot, at) = self.table.find(key);
        if let Some(at) = at.map(|at| at as usize).filter(|at| self.blocks[*at].key == key) {
            let before = self.blocks[at].worth.logarithm;
            let value = 1.0 + (before - decay).exp2();
            // Not less than before, not even by rounding.
            let logarithm = (value.log2() + decay).max(before);
            self.blocks[at].worth = Worth { logarithm, last_use: self.now };
            return true;
        }
        let worth = Worth { logarithm: decay, last_use: self.now };
        let at = if (self.blocks.len() as u64) < self.size {
            self.blocks.push(Block { key, worth });
            self.blocks.len() - 1
        } else {
            self.evict()
        };
        self.blocks[at] = Block { key, worth };
        self.queue.push(Reverse((worth, at)));
        self.table.put(slot, key, at as u64);
        false
    }

    /// The place of the block that goes.
    fn evict(&mut self) -> usize {
        while let Some(mut top) = self.queue.peek_mut() {
            let Reverse((worth, at)) = *top;
            let present = self.blocks[at].worth;
            if present == worth {
                PeekMut::pop(top);
                return at;
            }
            *top = Reverse((present, at));
        }
        // Every block is in the queue, so this is not reached with blocks.
        0
    }
}
