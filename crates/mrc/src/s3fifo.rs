//! S3-FIFO (S3FIFO23): a small queue of a tenth of the cache filters what is used once; a main queue gives what was used
//! another round; a ghost queue remembers what the filter dropped.
//!
//! As in algorithm 1 and section 4.2 of the paper: frequencies up to 3; more than one use in the small queue leads to the
//! main queue, with the frequency cleared; the ghost queue has as many entries as the main queue has blocks, and an entry
//! ages out by the number of those that came after it.

use std::collections::VecDeque;

use crate::table::Table;

const FREQUENCY_MAX: u64 = 3;

/// Where a key is. Packed into a table's value: two bits for where, the rest a frequency or a number.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Small(u64),
    Main(u64),
    /// With how many ghosts came before.
    Ghost(u64),
    /// Evicted from the main queue; dropped when the table is rebuilt.
    Gone,
}

impl Place {
    fn pack(self) -> u64 {
        match self {
            Self::Small(frequency) => frequency << 2,
            Self::Main(frequency) => frequency << 2 | 1,
            Self::Ghost(number) => number << 2 | 2,
            Self::Gone => 3,
        }
    }

    fn unpack(value: u64) -> Self {
        match value & 3 {
            0 => Self::Small(value >> 2),
            1 => Self::Main(value >> 2),
            2 => Self::Ghost(value >> 2),
            _ => Self::Gone,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub struct S3Fifo {
    table: Table,
    small: VecDeque<u64>,
    main: VecDeque<u64>,
    size: u64,
    small_size: u64,
    /// Ghosts so far.
    ghosts: u64,
}

impl S3Fifo {
    pub fn new(size: u64) -> Self {
        let small_size = (size / 10).max(1);
        Self { table: Table::new(), small: VecDeque::new(), main: VecDeque::new(), size, small_size, ghosts: 0 }
    }

    #[inline]
    pub fn touch(&self, keys: &[u64]) {
        self.table.touch(keys);
    }

    fn main_size(&self) -> u64 {
        self.size.saturating_sub(self.small_size)
    }

    fn is_ghost(&self, number: u64) -> bool {
        self.ghosts - number <= self.main_size()
    }

    /// Whether it hits.
    #[inline]
    pub fn access(&mut self, key: u64) -> bool {
        if self.size == 0 {
            return false;
        }
        if self.table.is_full() {
            self.forget();
        }
        let (slot, value) = self.table.find(key);
        let place = value.map_or(Place::Gone, Place::unpack);
        let used = |frequency: u64| (frequency + 1).min(FREQUENCY_MAX);
        match place {
            Place::Small(frequency) => self.table.put(slot, key, Place::Small(used(frequency)).pack()),
            Place::Main(frequency) => self.table.put(slot, key, Place::Main(used(frequency)).pack()),
            Place::Ghost(_) | Place::Gone => {
                // In the paper's order: what goes now may be the ghost that ages this one out.
                while self.blocks() >= self.size {
                    self.evict();
                }
                if matches!(place, Place::Ghost(number) if self.is_ghost(number)) {
                    self.main.push_front(key);
                    self.table.put(slot, key, Place::Main(0).pack());
                } else {
                    self.small.push_front(key);
                    self.table.put(slot, key, Place::Small(0).pack());
                }
                return false;
            }
        }
        true
    }

    fn blocks(&self) -> u64 {
        (self.small.len() + self.main.len()) as u64
    }

    fn evict(&mut self) {
        if self.small.len() as u64 >= self.small_size { self.evict_small() } else { self.evict_main() }
    }

    fn evict_small(&mut self) {
        while let Some(key) = self.small.pop_back() {
            if self.frequency(key) > 1 {
                self.set(key, Place::Main(0));
                self.main.push_front(key);
                if self.main.len() as u64 > self.main_size() {
                    self.evict_main();
                }
            } else {
                self.set(key, Place::Ghost(self.ghosts));
                self.ghosts += 1;
                return;
            }
        }
    }

    fn evict_main(&mut self) {
        while let Some(key) = self.main.pop_back() {
            let frequency = self.frequency(key);
            if frequency == 0 {
                self.set(key, Place::Gone);
                return;
            }
            self.set(key, Place::Main(frequency - 1));
            self.main.push_front(key);
        }
    }

    fn frequency(&self, key: u64) -> u64 {
        match self.table.find(key).1.map(Place::unpack) {
            Some(Place::Small(frequency) | Place::Main(frequency)) => frequency,
            _ => 0,
        }
    }

    /// Of a key that is in the table.
    fn set(&mut self, key: u64, place: Place) {
        let (slot, _) = self.table.find(key);
        self.table.put(slot, key, place.pack());
    }

    fn forget(&mut self) {
        let (ghosts, main_size) = (self.ghosts, self.main_size());
        let remembered = main_size.min(ghosts) as usize;
        self.table.rebuild(self.small.len() + self.main.len() + remembered, |_, value| {
            let stays = match Place::unpack(value) {
                Place::Small(_) | Place::Main(_) => true,
                Place::Ghost(number) => ghosts - number <= main_size,
                Place::Gone => false,
            };
            stays.then_some(value)
        });
    }
}
