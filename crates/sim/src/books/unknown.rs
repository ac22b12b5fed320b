//! When nobody can tell what a log holds that cannot be read whole.

use surgetank_cache::format::{BLOCK, Geometry, IN_FLIGHT_BLOCKS_MAX, Summary};

use super::{BLOCK64, Books, Record};
use crate::disk::Disk;

impl Books {
    /// Whether no engine could tell which blocks lie in the log: a summary cannot be read and no other repeats it, or nobody
    /// can tell whether there is one where the log ends.
    #[must_use]
    pub fn may_be_unknown(&self, disk: &Disk) -> bool {
        let failed = |at: u64| self.tries.contains_key(&(at / BLOCK64)) || disk.is_bad(at, BLOCK64);
        let bad = |at: u64| at + BLOCK64 <= disk.size() && failed(at);
        let Some(geometry) = Geometry::of_volume(disk.size()).filter(|_| self.recovered) else { return false };
        let stored = |record: &Record| {
            let mut bytes = [0; BLOCK as usize];
            disk.peek_sound(record.offset, &mut bytes);
            Summary::decode(&bytes)
        };
        let sound = || self.records.iter().filter(|record| !bad(record.offset));
        let repeated = |sequence: u64| {
            let repeat = |record| stored(record).and_then(|summary| summary.repeat);
            sound().filter_map(repeat).any(|repeat| repeat.place.sequence == sequence)
        };
        if self.records.iter().any(|record| bad(record.offset) && !repeated(record.sequence)) {
            return true;
        }
        let starts = || (0..geometry.segments).map(|segment| geometry.segment_offset(segment));
        // What a freed segment named is named by nothing any more: a record may have been wherever one could begin.
        let freed = |sequence: u64| self.records.iter().all(|record| record.sequence != sequence);
        let named = |summary: Summary| {
            let repeated = summary.repeat.and_then(|repeat| repeat.previous);
            [summary.previous, repeated].into_iter().flatten()
        };
        if sound().filter_map(stored).flat_map(named).any(|place| freed(place.sequence))
            && starts().chain(self.records.iter().map(Record::end)).any(bad)
        {
            return true;
        }
        let Some(last) = self.records.iter().max_by_key(|record| record.sequence) else { return starts().any(bad) };
        // Records in flight may never arrive although one behind them did.
        let end = geometry.segment_offset(last.segment + 1);
        let window = last.end() + u64::from(IN_FLIGHT_BLOCKS_MAX) * BLOCK64;
        let mut behind = (last.end()..end.min(window)).step_by(BLOCK as usize);
        behind.any(bad) || window + 2 * BLOCK64 > end && starts().any(bad)
    }
}
