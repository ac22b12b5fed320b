//! A hash table from keys to numbers that forgets lazily.
//!
//! Linear probing over entries of 16 bytes. Nothing is removed one by one: owners let entries go stale and drop them when
//! the table is rebuilt, which is a walk in order of memory. That is cheaper than the random access that a removal costs,
//! and chains never hold tombstones.

use crate::BATCH;

/// Marks a free slot; no owner stores it.
const FREE: u64 = u64::MAX;
const SLOTS_MIN: usize = 64;

#[derive(Clone, Copy, Debug)]
struct Entry<N> {
    key: u64,
    value: u64,
    note: N,
}

/// Where a key's entry is, or would be. Good until the table is rebuilt.
#[derive(Clone, Copy, Debug)]
pub struct Slot(usize);

/// See the module. Values are below `u64::MAX`. Owners may keep a note with each value.
#[derive(Debug)]
pub struct Table<N = ()> {
    /// A power of two of them.
    entries: Vec<Entry<N>>,
    shift: u32,
    used: usize,
}

impl<N: Copy + Default> Table<N> {
    pub fn new() -> Self {
        Self::with_slots(SLOTS_MIN)
    }

    fn with_slots(slots: usize) -> Self {
        let free = Entry { key: 0, value: FREE, note: N::default() };
        Self { entries: vec![free; slots], shift: 64 - slots.trailing_zeros(), used: 0 }
    }

    /// Where the search for a key begins. Samples are taken by another hash (`sample::mix`): with the same one, all
    /// sampled keys would meet in one corner of the table.
    #[inline]
    fn start(&self, key: u64) -> usize {
        let spread = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        ((spread ^ (spread >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93) >> self.shift) as usize
    }

    /// Brings the entries of these keys nearer: their loads do not wait for each other.
    #[inline]
    pub fn touch(&self, keys: &[u64]) {
        let mut starts = [0; BATCH];
        for keys in keys.chunks(BATCH) {
            // Where to look is known before: the fewer instructions between two loads, the more of them are under way.
            starts.iter_mut().zip(keys).for_each(|(start, key)| *start = self.start(*key));
            let sum = starts[..keys.len()].iter().fold(0, |sum, start| sum ^ self.entries[*start].key);
            std::hint::black_box(sum);
        }
    }

    /// A key's slot, and its value if it has one.
    #[inline]
    pub fn find(&self, key: u64) -> (Slot, Option<u64>) {
        let last = self.entries.len() - 1;
        let mut at = self.start(key);
        loop {
            let entry = self.entries[at];
            if entry.value == FREE {
                return (Slot(at), None);
            }
            if entry.key == key {
                return (Slot(at), Some(entry.value));
            }
            at = (at + 1) & last;
        }
    }

    /// Whether it wants to be rebuilt before the next [`Self::put`] of a new key.
    #[inline]
    pub fn is_full(&self) -> bool {
        // Five eighths: a search for an absent key then looks at four entries, a cache line.
        self.used * 8 >= self.entries.len() * 5
    }

    /// Sets a key's value at the slot that [`Self::find`] gave; its note is the default one again.
    #[inline]
    pub fn put(&mut self, slot: Slot, key: u64, value: u64) {
        self.put_noted(slot, key, value, N::default());
    }

    #[inline]
    fn put_noted(&mut self, slot: Slot, key: u64, value: u64, note: N) {
        let entry = &mut self.entries[slot.0];
        self.used += usize::from(entry.value == FREE);
        *entry = Entry { key, value, note };
    }

    /// The note of the value at a slot that [`Self::find`] gave.
    #[inline]
    pub fn note(&mut self, slot: Slot) -> &mut N {
        &mut self.entries[slot.0].note
    }

    /// All notes with their keys, also of what the owner has forgotten.
    pub fn notes(&mut self) -> impl Iterator<Item = (u64, &mut N)> {
        let taken = self.entries.iter_mut().filter(|entry| entry.value != FREE);
        taken.map(|entry| (entry.key, &mut entry.note))
    }

    /// Keeps what `keep` gives a new value, at most `live` entries, with room for half as many more before it is full.
    pub fn rebuild(&mut self, live: usize, mut keep: impl FnMut(u64, u64) -> Option<u64>) {
        self.rebuild_noted(live, |key, value, _| keep(key, value));
    }

    /// The same for who changes notes too.
    pub fn rebuild_noted(&mut self, live: usize, mut keep: impl FnMut(u64, u64, &mut N) -> Option<u64>) {
        let wanted = (live + live / 2 + 1) * 8 / 5 + 1;
        let mut rebuilt = Self::with_slots(wanted.next_power_of_two().max(SLOTS_MIN));
        let used = close_up(&mut self.entries, |_, value, _| (value != FREE).then_some(value));
        let kept = close_up(&mut self.entries[..used], &mut keep);
        for Entry { key, value, note } in &self.entries[..kept] {
            let (slot, _) = rebuilt.find(*key);
            rebuilt.put_noted(slot, *key, *value, *note);
        }
        *self = rebuilt;
    }
}

/// Moves what `keep` gives a new value to the front, and says how much that is. All is moved and some overwritten: a
/// branch on what nobody can guess costs more.
#[inline]
fn close_up<N: Copy>(entries: &mut [Entry<N>], mut keep: impl FnMut(u64, u64, &mut N) -> Option<u64>) -> usize {
    let mut count = 0;
    for at in 0..entries.len() {
        let Entry { key, value, mut note } = entries[at];
        let kept = keep(key, value, &mut note);
        entries[count] = Entry { key, value: kept.unwrap_or(FREE), note };
        count += usize::from(kept.is_some());
    }
    count
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_map_that_forgets_when_told(steps in prop::collection::vec((0u64..300, 0u64..1000), 1..2000)) {
            let mut table: Table = Table::new();
            let mut naive = HashMap::new();
            for (key, value) in steps {
                // Keys that differ in high bits alone, in low bits alone, and by multiples of a power of two.
                let key = [key, key << 40, key << 12][key as usize % 3];
                if table.is_full() {
                    naive.retain(|_, value| *value % 2 == 0);
                    table.rebuild(naive.len(), |_, value| (value % 2 == 0).then_some(value + 2));
                    naive.values_mut().for_each(|value| *value += 2);
                }
                let (slot, found) = table.find(key);
                prop_assert_eq!(found, naive.insert(key, value));
                table.put(slot, key, value);
            }
            for (key, value) in naive {
                prop_assert_eq!(table.find(key).1, Some(value));
            }
        }
    }
}
