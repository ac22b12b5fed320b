//! What becomes cached: the blocks that a read of the backing volume returned, and those that a write brought to it.

use std::ops::Range;

use super::Engine;
use crate::effect::BufferId;
use crate::placement::Queue;

impl Engine {
    /// Caches the blocks of a buffer, of which `blocks` is the whole, that are not cached.
    pub(super) fn fill(&mut self, blocks: Range<u64>, from: BufferId) {
        for (block, offset) in blocks.zip((0..).step_by(self.config.block as usize)) {
            if self.placement.find(block).is_none() {
                let queue = self.placement.queue_for(block);
                self.cache(block, queue, from, offset);
            }
        }
        self.end_run();
    }

    /// Caches blocks again that were cached until a write changed them. They have been used twice.
    pub(super) fn update(&mut self, blocks: Range<u64>, from: BufferId, offset: u32) {
        for (block, offset) in blocks.zip((offset..).step_by(self.config.block as usize)) {
            self.cache(block, Queue::Main, from, offset);
        }
        self.end_run();
    }

    fn cache(&mut self, block: u64, queue: Queue, from: BufferId, offset: u32) {
        let slot = if self.has_room_for_fill(queue) { self.placement.insert(block, queue) } else { None };
        match slot {
            Some(slot) => self.put(slot, from, offset),
            None => self.status.unfilled_blocks += 1,
        }
    }
}
