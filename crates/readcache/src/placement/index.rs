//! From a block to its slot: a hash table of four bytes an entry, with linear probing.
//!
//! An entry is a slot and four bits of the block's hash, which spare most looks at the slots of other blocks. Removal moves
//! the entries behind it up, so there are no tombstones, and a cache that lives for months is as fast as a new one.

/// Bits of an entry that are the slot.
const SLOT_BITS: u32 = 28;
/// Slots that an index can name.
pub const SLOTS_MAX: u32 = (1 << SLOT_BITS) - 1;
/// A free entry; its slot is beyond [`SLOTS_MAX`], so no other entry equals it.
const FREE: u32 = u32::MAX;
/// Entries per slot as a fraction: four fifths of the entries are used at most, so an entry costs five bytes a slot.
const LOAD: (u64, u64) = (4, 5);

/// See the module.
#[derive(Debug)]
pub(super) struct Index {
    entries: Vec<u32>,
    used: usize,
}

/// What an entry's block is: the index stores slots, the slots their blocks.
pub(super) trait Blocks {
    fn block(&self, slot: u32) -> u64;
}

fn hash(block: u64) -> u64 {
    let spread = block.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (spread ^ (spread >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93)
}

fn entry(hash: u64, slot: u32) -> u32 {
    ((hash as u32 & 0xf) << SLOT_BITS) | slot
}

fn slot(entry: u32) -> u32 {
    entry & SLOTS_MAX
}

impl Index {
    /// Room for so many slots.
    pub fn with_slots(slots: u32) -> Self {
        let entries = u64::from(slots) * LOAD.1 / LOAD.0 + 2;
        Self { entries: vec![FREE; entries as usize], used: 0 }
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        self.entries.capacity() * size_of::<u32>()
    }

    /// Room for so many slots; takes time in proportion to what it holds.
    pub fn reserve(&mut self, slots: u32, blocks: &impl Blocks) {
        let mut larger = Self::with_slots(slots);
        if larger.entries.len() <= self.entries.len() {
            return;
        }
        for entry in self.entries.drain(..).filter(|entry| *entry != FREE) {
            larger.insert(blocks.block(slot(entry)), slot(entry));
        }
        *self = larger;
    }

    fn home(&self, hash: u64) -> usize {
        ((u128::from(hash) * self.entries.len() as u128) >> 64) as usize
    }

    fn after(&self, at: usize) -> usize {
        if at + 1 == self.entries.len() { 0 } else { at + 1 }
    }

    fn locate(&self, block: u64, blocks: &impl Blocks) -> Option<usize> {
        let hash = hash(block);
        let tag = entry(hash, 0);
        let mut at = self.home(hash);
        loop {
            let found = self.entries[at];
            if found == FREE {
                return None;
            }
            if found & !SLOTS_MAX == tag && blocks.block(slot(found)) == block {
                return Some(at);
            }
            at = self.after(at);
        }
    }

    /// The block's slot.
    pub fn find(&self, block: u64, blocks: &impl Blocks) -> Option<u32> {
        self.locate(block, blocks).map(|at| slot(self.entries[at]))
    }

    /// Takes in a block that it does not have.
    pub fn insert(&mut self, block: u64, slot: u32) {
        debug_assert!(self.used + 1 < self.entries.len(), "there is room for every slot");
        let hash = hash(block);
        let mut at = self.home(hash);
        while self.entries[at] != FREE {
            at = self.after(at);
        }
        self.entries[at] = entry(hash, slot);
        self.used += 1;
    }

    /// The block is at another slot now. `blocks` still knows the old one.
    pub fn replace(&mut self, block: u64, slot: u32, blocks: &impl Blocks) {
        if let Some(at) = self.locate(block, blocks) {
            self.entries[at] = entry(hash(block), slot);
        }
    }

    /// Removes a block. `blocks` still knows its slot.
    pub fn remove(&mut self, block: u64, blocks: &impl Blocks) -> Option<u32> {
        let mut gap = self.locate(block, blocks)?;
        let removed = slot(self.entries[gap]);
        let length = self.entries.len();
        let distance = |from: usize, to: usize| if to >= from { to - from } else { to + length - from };
        let mut at = gap;
        loop {
            at = self.after(at);
            let entry = self.entries[at];
            if entry == FREE {
                break;
            }
            let home = self.home(hash(blocks.block(slot(entry))));
            if distance(home, at) >= distance(gap, at) {
                self.entries[gap] = entry;
                gap = at;
            }
        }
        self.entries[gap] = FREE;
        self.used -= 1;
        Some(removed)
    }

    /// Blocks that it has.
    pub fn len(&self) -> usize {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    impl Blocks for HashMap<u32, u64> {
        fn block(&self, slot: u32) -> u64 {
            self[&slot]
        }
    }

    proptest! {
        #[test]
        fn it_is_a_map(steps in prop::collection::vec((0u8..4, 0u64..90), 1..600)) {
            let (mut index, mut blocks) = (Index::with_slots(20), HashMap::new());
            let mut naive: HashMap<u64, u32> = HashMap::new();
            for (kind, block) in steps {
                let block = block << (block % 30);
                prop_assert_eq!(index.find(block, &blocks), naive.get(&block).copied());
                let free = (0..60).find(|slot| !blocks.contains_key(slot)).expect("there are fewer blocks than slots");
                match (kind, naive.get(&block).copied()) {
                    (0 | 1, None) => {
                        index.reserve(naive.len() as u32 + 1, &blocks);
                        if naive.len() < 55 {
                            index.insert(block, free);
                            naive.insert(block, free);
                            blocks.insert(free, block);
                        }
                    }
                    (0 | 1, Some(old)) => {
                        index.replace(block, free, &blocks);
                        naive.insert(block, free);
                        blocks.remove(&old);
                        blocks.insert(free, block);
                    }
                    (_, old) => {
                        prop_assert_eq!(index.remove(block, &blocks), old);
                        naive.remove(&block);
                        old.and_then(|old| blocks.remove(&old));
                    }
                }
                prop_assert_eq!(index.len(), naive.len());
            }
            for (block, slot) in naive {
                prop_assert_eq!(index.find(block, &blocks), Some(slot));
            }
        }
    }
}
