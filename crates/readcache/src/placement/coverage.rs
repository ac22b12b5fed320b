//! How many blocks of each part of the device are cached, so that a discard of what was never read costs nothing.

use std::ops::Range;

use super::slots::BLOCK_BITS;

/// Parts of a device, at most: 256 KiB of counters.
const PARTS_MAX: u64 = 1 << 16;
const PART_LEAST: u64 = 1 << 10;

/// See the module.
#[derive(Debug)]
pub(super) struct Coverage {
    /// Blocks of a part, as a power of two.
    shift: u32,
    cached: Vec<u32>,
}

impl Coverage {
    /// Of a device of so many blocks, none of them cached.
    pub fn new(blocks: u64) -> Self {
        let shift = blocks.div_ceil(PARTS_MAX).max(PART_LEAST).next_power_of_two().trailing_zeros();
        Self { shift, cached: vec![0; (blocks >> shift) as usize + 1] }
    }

    /// Of a device that is one part, whatever its size.
    pub fn none() -> Self {
        Self { shift: BLOCK_BITS, cached: vec![0] }
    }

    /// The device has so many blocks now; it does not shrink.
    pub fn grow(&mut self, blocks: u64) {
        let parts = (blocks >> self.shift) as usize + 1;
        self.cached.resize(parts.max(self.cached.len()), 0);
    }

    pub fn add(&mut self, block: u64) {
        self.cached[(block >> self.shift) as usize] += 1;
    }

    pub fn remove(&mut self, block: u64) {
        self.cached[(block >> self.shift) as usize] -= 1;
    }

    /// The next range of blocks of `range` in a part that has any.
    pub fn next(&self, range: Range<u64>) -> Option<Range<u64>> {
        let part = |block: u64| (block >> self.shift) as usize;
        if range.is_empty() {
            return None;
        }
        let last = part(range.end - 1).min(self.cached.len() - 1);
        let found = (part(range.start)..=last).find(|part| self.cached[*part] > 0)? as u64;
        Some(range.start.max(found << self.shift)..range.end.min((found + 1) << self.shift))
    }

    /// Cached blocks.
    #[cfg(debug_assertions)]
    pub fn total(&self) -> u64 {
        self.cached.iter().map(|cached| u64::from(*cached)).sum()
    }
}
