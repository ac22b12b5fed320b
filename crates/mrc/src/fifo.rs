//! FIFO: the block that came in first goes first, used or not.
//!
//! A cache of n blocks holds the last n that came in, so whether a block is in it follows from when it came in.

use crate::table::Table;

/// See the module.
#[derive(Debug)]
pub struct Fifo {
    /// Key to how many had come in before it.
    table: Table,
    size: u64,
    came: u64,
}

impl Fifo {
    pub fn new(size: u64) -> Self {
        Self { table: Table::new(), size, came: 0 }
    }

    #[inline]
    pub fn touch(&self, keys: &[u64]) {
        self.table.touch(keys);
    }

    /// Whether it hits.
    #[inline]
    pub fn access(&mut self, key: u64) -> bool {
        let gone = self.came.saturating_sub(self.size);
        if self.table.is_full() {
            let live = usize::try_from(self.came - gone).unwrap_or(usize::MAX);
            self.table.rebuild(live, |_, number| (number >= gone).then_some(number));
        }
        let (slot, number) = self.table.find(key);
        let hit = number.is_some_and(|number| number >= gone);
        if !hit {
            self.table.put(slot, key, self.came);
            self.came += 1;
        }
        hit
    }
}
