//! Blocks that were evicted lately: two bytes each, of which some are forgotten early and few are confused.
//!
//! A set of sixteen fingerprints for every sixteen blocks, first in, first out. A fingerprint of 16 bits stands for another
//! block once in 4,096 looks; such a block is kept longer than it deserves, once.
//!
//! A cache that may use a part of its members only remembers as much less: each set has fewer places then.

/// Fingerprints in a set.
const WAYS: usize = 16;
/// No fingerprint.
const NONE: u16 = 0;

/// See the module.
#[derive(Debug)]
pub(super) struct Ghosts {
    sets: Vec<[u16; WAYS]>,
    /// Places of a set that are used.
    ways: usize,
}

impl Ghosts {
    /// Remembers about so many blocks.
    pub fn new(blocks: u64) -> Self {
        Self { sets: vec![[NONE; WAYS]; blocks.div_ceil(WAYS as u64).max(1) as usize], ways: WAYS }
    }

    /// Remembers about so many blocks from now on; what it remembers is forgotten if that changes the sets.
    pub fn resize(&mut self, blocks: u64) {
        let resized = Self::new(blocks);
        if resized.sets.len() != self.sets.len() {
            *self = resized;
        }
    }

    /// Remembers about so many of them from now on, a sixteenth at least. What is remembered stays, as far as there are places.
    pub fn limit(&mut self, blocks: u64) {
        self.ways = blocks.div_ceil(self.sets.len() as u64).clamp(1, WAYS as u64) as usize;
    }

    /// Bytes of memory.
    pub fn memory(&self) -> usize {
        self.sets.capacity() * size_of::<[u16; WAYS]>()
    }

    fn place(&self, block: u64) -> (usize, u16) {
        // Another hash than that of the index.
        let spread = (block ^ (block >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let hash = (spread ^ (spread >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let set = ((u128::from(hash) * self.sets.len() as u128) >> 64) as usize;
        (set, (hash as u16).max(1))
    }

    /// The block was evicted.
    pub fn add(&mut self, block: u64) {
        let (set, fingerprint) = self.place(block);
        let set = &mut self.sets[set][..self.ways];
        // A free place ends the move, so that a taken fingerprint does not shorten the others' time.
        let last = set.iter().position(|held| *held == NONE || *held == fingerprint).unwrap_or(set.len() - 1);
        set.copy_within(..last, 1);
        set[0] = fingerprint;
    }

    /// Whether it was evicted lately; it is forgotten.
    pub fn take(&mut self, block: u64) -> bool {
        let (set, fingerprint) = self.place(block);
        let held = self.sets[set][..self.ways].iter_mut().find(|held| **held == fingerprint);
        held.map(|held| *held = NONE).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_are_remembered_once_and_the_oldest_forgotten() {
        let mut ghosts = Ghosts::new(1600);
        (0..100_000).for_each(|block| ghosts.add(block));
        let taken = |ghosts: &mut Ghosts, blocks: std::ops::Range<u64>| blocks.filter(|b| ghosts.take(*b)).count();
        assert!(taken(&mut ghosts, 99_500..100_000) > 495);
        assert!(taken(&mut ghosts, 99_500..100_000) < 5);
        assert!(taken(&mut ghosts, 0..10_000) < 10);
        ghosts.limit(400);
        (100_000..200_000).for_each(|block| ghosts.add(block));
        let quarter = taken(&mut ghosts, 190_000..200_000);
        assert!((380..=440).contains(&quarter), "{quarter}");
    }
}
