//! The placement as a cache of keys, for curves: every I/O ends at once, nothing is written.

use std::ops::Range;

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
        Self::of_segments(blocks, 1)
    }

    /// The same of segments of so many blocks at least. What such a cache cannot use of few large segments it does not have.
    #[must_use]
    pub fn of_segments(blocks: u64, least: u32) -> Self {
        let segment_blocks = ((blocks / SEGMENTS_LEAST).clamp(1, SEGMENT_BLOCKS_MAX) as u32).max(least);
        let segments = u32::try_from(blocks / u64::from(segment_blocks)).unwrap_or(u32::MAX);
        let mut placement = Placement::to_simulate(segments.saturating_mul(segment_blocks), segment_blocks);
        placement.add_member(segments);
        Self { placement, survivors: Vec::new(), segment_blocks }
    }

    /// A use of a key; whether it hits.
    pub fn access(&mut self, key: u64) -> bool {
        let block = block_of(key);
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

    /// A write of a key, which keeps it cached if it is, and takes it to the main queue; whether it was cached.
    pub fn write(&mut self, key: u64) -> bool {
        let was_cached = self.remove(key);
        if was_cached && self.has_room(Queue::Main) {
            self.placement.insert(block_of(key), Queue::Main);
        }
        was_cached
    }

    /// Removes a key; whether it was cached.
    pub fn remove(&mut self, key: u64) -> bool {
        self.placement.remove(block_of(key))
    }

    /// Removes all keys of a range, which are ones that a device has. Takes time in proportion to the cache.
    pub fn remove_range(&mut self, keys: &Range<u64>) {
        for slot in 0..self.slots() {
            let cached = self.placement.block_at(Slot(slot));
            if let Some(block) = cached.filter(|block| keys.contains(block)) {
                self.placement.remove(block);
            }
        }
    }

    /// Blocks that it has room for.
    #[must_use]
    pub fn slots(&self) -> u32 {
        self.placement.segments() as u32 * self.segment_blocks
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

/// Keys are the blocks of a device. Others, which some traces have, are mapped to 38 bits, so that of a million about four share a
/// block with another.
fn block_of(key: u64) -> u64 {
    if key < BLOCKS_MAX {
        return key;
    }
    let spread = (key ^ (key >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let block = (spread ^ (spread >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53) >> 26;
    block.min(BLOCKS_MAX - 1)
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
        let memory = |mut placement: Placement| {
            placement.add_member(blocks as u32 / 256);
            placement.memory() as u64
        };
        let (memory, simulated) =
            (memory(Placement::new(1 << 30, 256)), memory(Placement::to_simulate(blocks as u32, 256)));
        assert!(simulated <= 19 * blocks, "{simulated} bytes for {blocks} simulated blocks");
        assert!(memory <= 16 * blocks, "{memory} bytes for {blocks} blocks");
    }

    #[test]
    fn a_write_keeps_what_is_cached_and_brings_in_nothing_and_what_is_removed_misses() {
        let mut cache = Simulated::new(100);
        assert!(!cache.write(1));
        assert!(!cache.access(1));
        assert!(cache.write(1));
        // It is in the main queue: blocks that are read once do not push it out.
        (1000..2000).for_each(|key| _ = cache.access(key));
        assert!(cache.access(1));
        assert!(cache.remove(1));
        assert!(!cache.remove(1) && !cache.write(1) && !cache.access(1));
        let before = cache.placement.blocks();
        cache.remove_range(&(1990..2010));
        assert_eq!(cache.placement.blocks(), before - 10);
        cache.remove_range(&(0..BLOCKS_MAX));
        assert_eq!(cache.placement.blocks(), 0);
        #[cfg(debug_assertions)]
        assert_eq!(cache.placement.check(), Ok(()));
    }

    #[test]
    fn a_cache_of_few_segments_has_less_of_its_size() {
        // Two of them are open and one stays free.
        let hits = |least: u32| {
            let mut cache = Simulated::of_segments(400, least);
            (0..8000).filter(|read| cache.access(read % 360)).count()
        };
        assert!(hits(100) < hits(1), "{} {}", hits(100), hits(1));
        assert_eq!(Simulated::of_segments(400, 100).slots(), 400);
        assert_eq!(Simulated::of_segments(399, 100).slots(), 300);
    }
}
