//! The placement as a cache of keys, for `surgetank mrc`: every I/O ends at once, nothing is written.

use crate::placement::{BLOCKS_MAX, Placement, Queue, Slot};

/// Segments of a simulated cache, at least. A real one has more: 10 GiB have 10,240 of 1 MiB.
const SEGMENTS_LEAST: u64 = 128;
/// Blocks of a simulated segment, at most; as a real one has them.
const SEGMENT_BLOCKS_MAX: u64 = 256;

/// A cache of a number of blocks, of which those in open segments and in the free one that evictions need are a part.
#[derive(Debug)]
pub struct Simulated {
    placement: Placement,
    survivors: Vec<Slot>,
    segment_blocks: u32,
}

impl Simulated {
    /// A cache of so many blocks. One block is the free one that evictions need, so of one it holds nothing.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        let segment_blocks = (blocks / SEGMENTS_LEAST).clamp(1, SEGMENT_BLOCKS_MAX) as u32;
        let mut placement = Placement::new(BLOCKS_MAX, segment_blocks);
        placement.add_member(u32::try_from(blocks / u64::from(segment_blocks)).unwrap_or(u32::MAX));
        Self { placement, survivors: Vec::new(), segment_blocks }
    }

    /// A use of a key; whether it hits. Keys are mapped to 38 bits, so of a million about four share a block with another.
    pub fn access(&mut self, key: u64) -> bool {
        let spread = (key ^ (key >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
        let block = (spread ^ (spread >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53) >> 26;
        let block = block.min(BLOCKS_MAX - 1);
        if let Some(slot) = self.placement.find(block) {
            self.placement.touch(slot);
            return true;
        }
        let queue = self.placement.queue_for(block);
        if self.has_room(queue) {
            self.placement.insert(block, queue);
        }
        false
    }

    /// Makes room for one block in the open segment of a queue.
    fn has_room(&mut self, queue: Queue) -> bool {
        self.close_full(queue);
        while self.placement.open(queue).is_none() {
            // One stays free for survivors.
            while self.placement.free_segments() < 2 {
                if !self.evict() {
                    return false;
                }
            }
            // The survivors may have opened it.
            if self.placement.open(queue).is_none() {
                self.placement.open_segment(queue);
            }
            self.close_full(queue);
        }
        true
    }

    fn close_full(&mut self, queue: Queue) {
        if self.placement.open(queue).is_some_and(|(_, filled)| filled == self.segment_blocks) {
            self.placement.close(queue);
        }
    }

    fn evict(&mut self) -> bool {
        let mut survivors = std::mem::take(&mut self.survivors);
        let evicted = self.placement.evict(|_| true, &mut survivors);
        for slot in survivors.drain(..) {
            self.close_full(Queue::Main);
            if self.placement.open(Queue::Main).is_none() {
                self.placement.open_segment(Queue::Main);
            }
            self.placement.relocate(slot);
        }
        self.survivors = survivors;
        evicted.map(|segment| self.placement.free(segment)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use surgetank_model::random::Random;

    use super::*;

    #[test]
    fn what_is_kept_agrees_with_itself_and_takes_sixteen_bytes_a_block() {
        let mut random = Random::from_seed(7);
        for blocks in [0, 1, 2, 3, 4, 5, 17, 200, 1_000] {
            let mut cache = Simulated::new(blocks);
            let mut hits = 0;
            for _ in 0..2_000 {
                // Skewed: the square of something even.
                let key = (random.unit() * random.unit() * 600.0) as u64;
                hits += u64::from(cache.access(key));
                assert!(cache.placement.blocks() as u64 <= blocks);
                #[cfg(debug_assertions)]
                assert_eq!(cache.placement.check(), Ok(()));
            }
            assert_eq!(hits > 0, blocks >= 2, "{hits} hits of {blocks} blocks");
        }
        let blocks = 1 << 20;
        let memory = Simulated::new(blocks).placement.memory() as u64;
        assert!(memory <= 16 * blocks, "{memory} bytes for {blocks} blocks");
    }
}
