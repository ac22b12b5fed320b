//! What is at each slot: its block, how often that was used since it came, and its checksum. Nine bytes a slot.

use super::index::Blocks;

/// Bits of a block's number.
pub const BLOCK_BITS: u32 = 38;
/// The number that no block has: nothing is at the slot.
const NOTHING: u64 = (1 << BLOCK_BITS) - 1;
/// Uses that are told apart.
const USES_MAX: u8 = 3;
const USES_SHIFT: u32 = 6;
const HIGH: u8 = (1 << USES_SHIFT) - 1;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Slots {
    low: Vec<u32>,
    /// Six bits of the block's number, two of its uses.
    high: Vec<u8>,
    /// crc32c of the block; of the last one that was here, if nothing is.
    checksums: Vec<u32>,
}

impl Blocks for Slots {
    fn block(&self, slot: u32) -> u64 {
        let slot = slot as usize;
        u64::from(self.high[slot] & HIGH) << 32 | u64::from(self.low[slot])
    }
}

impl Slots {
    /// Has so many slots.
    pub fn grow(&mut self, slots: usize) {
        self.low.resize(slots, NOTHING as u32);
        self.high.resize(slots, (NOTHING >> 32) as u8);
        self.checksums.resize(slots, 0);
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        self.low.capacity() * 4 + self.high.capacity() + self.checksums.capacity() * 4
    }

    /// Slots.
    pub fn len(&self) -> usize {
        self.low.len()
    }

    /// What is at a slot.
    pub fn get(&self, slot: u32) -> Option<u64> {
        Some(self.block(slot)).filter(|block| *block != NOTHING)
    }

    /// A block comes to a slot, unused yet.
    pub fn set(&mut self, slot: u32, block: u64) {
        let slot = slot as usize;
        (self.low[slot], self.high[slot]) = (block as u32, (block >> 32) as u8 & HIGH);
    }

    /// Nothing is at a slot any more.
    pub fn clear(&mut self, slot: u32) {
        self.set(slot, NOTHING);
    }

    /// How often its block was used since it came, as far as that is told apart.
    pub fn uses(&self, slot: u32) -> u8 {
        self.high[slot as usize] >> USES_SHIFT
    }

    /// Sets that.
    pub fn set_uses(&mut self, slot: u32, uses: u8) {
        let high = &mut self.high[slot as usize];
        *high = *high & HIGH | uses.min(USES_MAX) << USES_SHIFT;
    }

    /// The checksum of what is at a slot.
    pub fn checksum(&self, slot: u32) -> u32 {
        self.checksums[slot as usize]
    }

    /// Sets that.
    pub fn set_checksum(&mut self, slot: u32, checksum: u32) {
        self.checksums[slot as usize] = checksum;
    }
}
