//! When nobody can tell what a log holds that cannot be read whole.

use surgetank_cache::format::{BLOCK, IN_FLIGHT_BLOCKS_MAX, Place, Summary};

use super::{BLOCK64, Books, Record};
use crate::disk::Disk;

impl Books {
    /// Whether no engine could tell which blocks lie in the log.
    #[must_use]
    pub fn may_be_unknown(&self, disk: &Disk) -> bool {
        self.unknown(disk).is_some()
    }

    /// The highest sequence of a record of which no engine could tell what it holds: its summary cannot be read and no other
    /// record repeats it, or nobody can tell whether there is one.
    #[must_use]
    pub fn unknown(&self, disk: &Disk) -> Option<u64> {
        let failed = |at: u64| self.tries.contains_key(&(at / BLOCK64)) || disk.is_bad(at, BLOCK64);
        let bad = |at: u64| at + BLOCK64 <= disk.size() && failed(at);
        let geometry = self.geometry.filter(|_| self.recovered)?;
        let stored = |record: &Record| {
            let mut bytes = [0; BLOCK as usize];
            disk.peek_sound(record.offset, &mut bytes);
            Summary::decode(&bytes)
        };
        let sound = || self.records.iter().filter(|record| !bad(record.offset));
        let starts = || (0..geometry.segments).map(|segment| geometry.segment_offset(segment));
        let repeat = |record| stored(record).and_then(|summary| summary.repeat);
        let repeated: Vec<u64> = sound().filter_map(repeat).map(|repeat| repeat.place.sequence).collect();
        let is_unread = |record: &&Record| bad(record.offset) && !repeated.contains(&record.sequence);
        // Where the log ends, there may be a record; those in flight may never arrive although one behind them did.
        let behind = match self.records.iter().max_by_key(|record| record.sequence) {
            None => starts().any(bad),
            Some(last) => {
                let end = geometry.segment_offset(last.segment) + u64::from(geometry.segment_size);
                let window = last.end() + u64::from(IN_FLIGHT_BLOCKS_MAX) * BLOCK64;
                let mut behind = (last.end()..end.min(window)).step_by(BLOCK as usize);
                behind.any(bad) || window + 2 * BLOCK64 > end && starts().any(bad)
            }
        };
        if behind {
            return Some(u64::MAX);
        }
        let unread = self.records.iter().filter(is_unread).map(|record| record.sequence).max();
        // What a record named that was freed, or is not there, is named by nothing any more: others may have been wherever one
        // could begin, and in its own segment wherever none is known.
        let named = |summary: Summary| {
            let repeated = summary.repeat.and_then(|repeat| repeat.previous);
            [summary.previous, repeated].into_iter().flatten()
        };
        let is_gone = |place: &Place| self.records.iter().all(|record| record.sequence != place.sequence);
        let gone: Vec<Place> = sound().filter_map(stored).flat_map(named).filter(is_gone).collect();
        let any_open = starts().chain(self.records.iter().map(Record::end)).any(bad);
        let is_free = |at: &u64| self.records.iter().all(|record| !(record.offset..record.end()).contains(at));
        let hides = |place: &&Place| {
            let start = geometry.segment_offset(place.segment);
            let mut before = (start..=start + u64::from(place.position) * BLOCK64).step_by(BLOCK as usize);
            any_open || before.any(|at| is_free(&at) && bad(at))
        };
        unread.max(gone.iter().filter(hides).map(|place| place.sequence).max())
    }

    /// Whether the newest version of a block can be read, and is newer than any record of which nobody can tell what it holds.
    #[must_use]
    pub fn is_known(&self, block: u64, unknown: u64, disk: &Disk) -> bool {
        self.newest.get(&block).is_some_and(|place| place.sequence > unknown) && self.is_readable(block, disk)
    }
}
