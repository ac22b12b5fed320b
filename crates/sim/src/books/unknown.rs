//! When nobody can tell what a log holds that cannot be read whole.

use surgetank_cache::format::{BLOCK, IN_FLIGHT_BLOCKS_MAX, Place, Summary};

use super::{BLOCK64, Books, Record};
use crate::disk::Disk;
use crate::scenario::division;

impl Books {
    /// Whether no engine could tell which blocks lie in the log: a summary cannot be read and no other repeats it, or nobody
    /// can tell whether there is one where the log ends.
    #[must_use]
    pub fn may_be_unknown(&self, disk: &Disk) -> bool {
        let failed = |at: u64| self.tries.contains_key(&(at / BLOCK64)) || disk.is_bad(at, BLOCK64);
        let bad = |at: u64| at + BLOCK64 <= disk.size() && failed(at);
        let Some(geometry) = division(disk.size()).filter(|_| self.recovered) else { return false };
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
        // What a record named that was freed, or is not there, is named by nothing any more: others may have been wherever one
        // could begin, and in its own segment wherever none is known.
        let gone = |place: &Place| self.records.iter().all(|record| record.sequence != place.sequence);
        let named = |summary: Summary| {
            let repeated = summary.repeat.and_then(|repeat| repeat.previous);
            [summary.previous, repeated].into_iter().flatten()
        };
        let gone: Vec<Place> = sound().filter_map(stored).flat_map(named).filter(gone).collect();
        if !gone.is_empty() && starts().chain(self.records.iter().map(Record::end)).any(bad) {
            return true;
        }
        let is_free = |at: &u64| self.records.iter().all(|record| !(record.offset..record.end()).contains(at));
        let before = |place: &Place| {
            let start = geometry.segment_offset(place.segment);
            (start..=start + u64::from(place.position) * BLOCK64).step_by(BLOCK as usize)
        };
        if gone.iter().flat_map(before).filter(is_free).any(bad) {
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
