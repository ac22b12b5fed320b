//! Which changes of the device are in flight, and which reads they overtook, without a list to search.
//!
//! A table of counters, of which each stands for every 4,096th piece of 16 blocks. Two ranges that share a counter seem to
//! overlap: then something that could have been cached is not, and that is all.

use std::ops::Range;

/// Blocks of a piece.
const PIECE: u64 = 16;
/// Counters: 64 KiB.
const COUNTERS: u64 = 1 << 12;

#[derive(Clone, Copy, Debug, Default)]
struct Counter {
    /// The number of the last change that began.
    last: u64,
    in_flight: u32,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Changes {
    counters: Vec<Counter>,
    begun: u64,
}

/// A change in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change {
    number: u64,
    alone: bool,
}

/// The counters of a range: each once.
fn counters(range: &Range<u64>) -> impl Iterator<Item = usize> + use<> {
    let (first, end) = (range.start / PIECE, range.end.div_ceil(PIECE));
    (first..end).take(COUNTERS as usize).map(|piece| (piece % COUNTERS) as usize)
}

impl Changes {
    pub fn new() -> Self {
        Self { counters: vec![Counter::default(); COUNTERS as usize], begun: 0 }
    }

    /// Changes that have begun.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// A change of these blocks begins.
    pub fn begin(&mut self, range: &Range<u64>) -> Change {
        self.begun += 1;
        let mut alone = true;
        for at in counters(range) {
            let counter = &mut self.counters[at];
            alone &= counter.in_flight == 0;
            *counter = Counter { last: self.begun, in_flight: counter.in_flight + 1 };
        }
        Change { number: self.begun, alone }
    }

    /// It has ended. Whether the blocks now have what it brought: no other change was in flight with it.
    pub fn end(&mut self, range: &Range<u64>, change: Change) -> bool {
        let mut last = change.alone;
        for at in counters(range) {
            let counter = &mut self.counters[at];
            counter.in_flight -= 1;
            last &= counter.last == change.number;
        }
        last
    }

    /// A read of these blocks begins. `None` if they are being changed: what it returns is not to be kept.
    pub fn read_begins(&self, range: &Range<u64>) -> Option<u64> {
        counters(range).all(|at| self.counters[at].in_flight == 0).then_some(self.begun)
    }

    /// Whether what a read returned may be kept: no change of these blocks has begun since it did.
    pub fn may_keep(&self, range: &Range<u64>, since: u64) -> bool {
        counters(range).all(|at| self.counters[at].last <= since)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_read_that_a_change_overtakes_is_not_kept() {
        let mut changes = Changes::new();
        let since = changes.read_begins(&(0..32)).expect("nothing is in flight");
        let other = changes.read_begins(&(160..170)).expect("nothing is in flight");
        let change = changes.begin(&(16..17));
        assert_eq!(changes.read_begins(&(0..32)), None);
        assert!(changes.end(&(16..17), change));
        assert!(!changes.may_keep(&(0..32), since));
        assert!(changes.may_keep(&(160..170), other));
        assert!(changes.read_begins(&(0..32)).is_some());
    }

    #[test]
    fn of_two_changes_in_flight_neither_is_kept() {
        let mut changes = Changes::new();
        let (one, two) = (changes.begin(&(0..8)), changes.begin(&(4..12)));
        assert!(!changes.end(&(4..12), two));
        assert!(!changes.end(&(0..8), one));
        let (one, two) = (changes.begin(&(0..8)), changes.begin(&(4..12)));
        assert!(!changes.end(&(0..8), one));
        assert!(!changes.end(&(4..12), two));
        let all = changes.begin(&(0..u64::MAX / 2));
        assert!(changes.end(&(0..u64::MAX / 2), all));
    }
}
