//! The holes of a buffer, between the pieces that are still needed.

use std::collections::{BTreeMap, BTreeSet};

/// Holes, none of which touches another.
#[derive(Debug)]
pub(super) struct Holes {
    chunk: u64,
    /// Lengths by offsets.
    by_offset: BTreeMap<u64, u64>,
    /// Lengths and offsets.
    by_length: BTreeSet<(u64, u64)>,
    chunks: u64,
}

impl Holes {
    pub(super) const fn new(chunk: u64) -> Self {
        Self { chunk, by_offset: BTreeMap::new(), by_length: BTreeSet::new(), chunks: 0 }
    }

    /// Whole chunks that have room in them.
    pub(super) const fn chunks(&self) -> u64 {
        self.chunks
    }

    /// Room that was used until now, or never.
    pub(super) fn add(&mut self, offset: u64, length: u64) {
        if length == 0 {
            return;
        }
        let (mut begins, mut ends) = (offset, offset + length);
        if let Some((before, length)) = self.by_offset.range(..offset).next_back().map(|(at, length)| (*at, *length))
            && before + length == offset
        {
            self.remove(before, length);
            begins = before;
        }
        if let Some(length) = self.by_offset.get(&ends).copied() {
            self.remove(ends, length);
            ends += length;
        }
        self.insert(begins, ends - begins);
    }

    /// Takes so many bytes from the smallest hole that has them; where they are.
    pub(super) fn take(&mut self, wanted: u64) -> Option<u64> {
        let (length, offset) = *self.by_length.range((wanted, 0)..).next()?;
        self.remove(offset, length);
        if length > wanted {
            self.insert(offset + wanted, length - wanted);
        }
        Some(offset)
    }

    fn insert(&mut self, offset: u64, length: u64) {
        self.by_offset.insert(offset, length);
        self.by_length.insert((length, offset));
        self.chunks += length / self.chunk;
    }

    fn remove(&mut self, offset: u64, length: u64) {
        self.by_offset.remove(&offset);
        self.by_length.remove(&(length, offset));
        self.chunks -= length / self.chunk;
    }
}
