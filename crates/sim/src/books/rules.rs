//! What must hold of every write to the log, so that a recovery can read the log whatever it cannot read of it.

use std::collections::{BTreeMap, BTreeSet};

use surgetank_cache::Effect;
use surgetank_cache::format::{BLOCK, Superblock};

use super::record::Record;
use super::{Books, Io};
use crate::disk::Disk;

/// Which records may vanish in a power cut.
#[derive(Debug, Default)]
pub(super) struct Rules {
    /// Whether a record that is not durable has been written.
    volatile: BTreeMap<u64, bool>,
    /// Written records that a flush failed to make durable: the volume may have dropped them, and a later flush says nothing.
    forgotten: BTreeSet<u64>,
}

impl Rules {
    pub(super) fn begin(&mut self, sequence: u64) {
        self.volatile.insert(sequence, false);
    }

    pub(super) fn written(&mut self, sequence: u64, forced: bool) {
        if forced {
            self.volatile.remove(&sequence);
        } else if let Some(written) = self.volatile.get_mut(&sequence) {
            *written = true;
        }
    }

    /// Records that a flush that begins now makes durable.
    pub(super) fn complete(&self) -> Vec<u64> {
        self.volatile.iter().filter(|(_, written)| **written).map(|(&sequence, _)| sequence).collect()
    }

    /// These may vanish no more, or nobody misses them.
    pub(super) fn durable(&mut self, sequences: &[u64]) {
        for sequence in sequences.iter().filter(|sequence| !self.forgotten.contains(sequence)) {
            self.volatile.remove(sequence);
        }
    }

    pub(super) fn flush_failed(&mut self) {
        self.forgotten.extend(self.complete());
    }

    /// The engine that knew of failed flushes is gone; all that the volume holds is written.
    pub(super) fn restart(&mut self, records: &[Record]) {
        self.forgotten.clear();
        self.volatile.retain(|sequence, _| records.iter().any(|record| record.sequence == *sequence));
        self.volatile.values_mut().for_each(|written| *written = true);
    }
}

impl Books {
    /// What the volume has in its slots, whatever the engine before knew of it. One that holds none misleads nobody.
    pub(super) fn read_superblocks(&mut self, disk: &Disk) {
        for (slot, segments) in (0..).zip(&mut self.segments) {
            let mut block = [0; BLOCK as usize];
            disk.peek(slot * u64::from(BLOCK), &mut block);
            *segments = Superblock::decode(&block).map_or(u32::MAX, |superblock| superblock.segments);
        }
    }

    /// What is wrong with asking for this now.
    pub(super) fn check_rules(&self, effect: &Effect) -> Result<(), String> {
        match effect {
            Effect::Append { summary, offset, fua, .. } if !summary.is_copies() => {
                let place = summary.place;
                let begins = |io: &Io| matches!(io, Io::Append(record) if record.holds_changes() && record.segment == place.segment && record.position == 0);
                // A recovery looks for records that cannot be read where a segment begins.
                if place.position > 0 && self.effects.values().any(begins) {
                    return Err(format!(
                        "a record is written to byte {offset}, behind the first one of a segment in flight"
                    ));
                }
                // Either superblock is enough for it.
                if self.segments.iter().any(|segments| *segments <= place.segment) {
                    return Err(format!(
                        "a record is written to segment {}, though the superblocks name {:?} segments",
                        place.segment, self.segments
                    ));
                }
                // It looks behind what may be missing for as many records as are in flight at a time.
                if *fua && self.rules.volatile.values().any(|written| *written) {
                    return Err(format!("record {} is forced, though one before it may vanish", place.sequence));
                }
                self.check_mark(summary.durable)
            }
            Effect::WriteSuperblock { superblock, .. } => self.check_mark(superblock.durable),
            _ => Ok(()),
        }
    }

    /// What is said to be durable, and cannot be read, counts as damaged.
    fn check_mark(&self, durable: u64) -> Result<(), String> {
        let counts = |sequence: &u64| self.records.iter().any(|record| record.sequence == *sequence);
        match self.rules.volatile.range(..=durable).map(|(sequence, _)| sequence).find(|sequence| counts(sequence)) {
            Some(sequence) => Err(format!("records up to {durable} are said to be durable, but {sequence} may vanish")),
            None => Ok(()),
        }
    }
}
