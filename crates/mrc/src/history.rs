//! Keys in order of time: each key's position, and which positions still count.

use crate::bits::{Bits, Ranks};
use crate::table::{Slot, Table};

/// Positions a key, when they are dealt anew: how many accesses pass before the next time. A bit each.
const POSITIONS_PER_KEY: usize = 8;
const POSITIONS_MIN: usize = 4096;

/// What is kept with a key beside its position.
pub trait Note: Copy + Default {
    /// From which position on other keys count as used since the key at `at` was.
    #[inline]
    fn since(self, at: usize) -> usize {
        at
    }

    /// Positions are dealt anew.
    fn follow(&mut self, _ranks: &Ranks) {}
}

impl Note for () {}

/// Positions grow with time. A key's newest position is in the table, and its bit is set while it counts.
#[derive(Debug)]
pub struct History<N = ()> {
    table: Table<N>,
    live: Bits,
    next: usize,
}

impl<N: Note> History<N> {
    pub fn new() -> Self {
        Self { table: Table::new(), live: Bits::clear_of(POSITIONS_MIN), next: 0 }
    }

    /// Brings the entries of these keys nearer.
    #[inline]
    pub fn touch(&self, keys: &[u64]) {
        self.table.touch(keys);
    }

    /// The positions that count.
    pub fn live(&self) -> &Bits {
        &self.live
    }

    /// Where a key's entry is, and its position if that counts.
    #[inline]
    pub fn find(&self, key: u64) -> (Slot, Option<usize>) {
        let (slot, value) = self.table.find(key);
        (slot, value.map(|value| value as usize).filter(|at| self.live.get(*at)))
    }

    /// The note of the key at a slot.
    #[inline]
    pub fn note(&mut self, slot: Slot) -> &mut N {
        self.table.note(slot)
    }

    /// All notes with their keys, also of keys that are forgotten.
    pub fn notes(&mut self) -> impl Iterator<Item = (u64, &mut N)> {
        self.table.notes()
    }

    /// The position that the next use gets.
    #[inline]
    pub fn next(&self) -> usize {
        self.next
    }

    /// Gives a key the newest position; an older one of it must have been taken away.
    #[inline]
    pub fn append(&mut self, slot: Slot, key: u64) -> usize {
        let at = self.next;
        self.live.set(at);
        self.table.put(slot, key, at as u64);
        self.next += 1;
        at
    }

    /// A position no longer counts.
    #[inline]
    pub fn remove(&mut self, at: usize) {
        self.live.clear(at);
    }

    /// Moves a key to the newest position; the one that it had, if that still counted.
    #[inline]
    pub fn renew(&mut self, key: u64) -> (Option<usize>, usize) {
        let (slot, before) = self.find(key);
        if let Some(before) = before {
            self.live.clear(before);
        }
        (before, self.append(slot, key))
    }

    /// Whether [`Self::compact`] must come before the next position.
    #[inline]
    pub fn is_full(&self) -> bool {
        self.next == self.live.capacity() || self.table.is_full()
    }

    /// Drops what does not count and everything before `floor`, and numbers the rest anew from 0. Positions that owners
    /// hold must follow the ranks.
    pub fn compact(&mut self, floor: usize) -> Ranks {
        let ranks = Ranks::new(std::mem::take(&mut self.live), floor);
        let count = ranks.count();
        self.table.rebuild_noted(count, |_, value, note| {
            note.follow(&ranks);
            ranks.kept(value as usize, floor).map(|at| at as u64)
        });
        self.live = Bits::ones_of(count, (count * POSITIONS_PER_KEY).max(POSITIONS_MIN));
        self.next = count;
        ranks
    }
}
