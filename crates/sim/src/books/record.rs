//! Records of the log, as they were handed to the driver and as the volume holds them.

use surgetank_cache::format::{BLOCK, Content, Entry, Summary, Superblock};

use super::{BLOCK64, Books};
use crate::disk::Disk;

/// A record of the log, as it was handed to the driver.
#[derive(Clone, Debug)]
pub(super) struct Record {
    pub(super) sequence: u64,
    pub(super) segment: u32,
    pub(super) generation: u32,
    pub(super) position: u32,
    /// Byte of its summary on the caching volume.
    pub(super) offset: u64,
    pub(super) entries: Vec<Entry>,
    /// It is durable when it has been written.
    pub(super) forced: bool,
    pub(super) freed: Freed,
    /// Its write was answered with a failure.
    pub(super) failed: bool,
}

/// How far the page of the segment table that voids a record has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Freed {
    No,
    Begun,
    Written,
}

impl Record {
    /// Whether it is more than copies of what the backing volume has.
    pub(super) fn holds_changes(&self) -> bool {
        self.entries.iter().any(|entry| entry.content != Content::Copied)
    }

    pub(super) fn data_blocks(&self) -> u64 {
        let data = self.entries.iter().filter(|entry| entry.content.has_data());
        data.map(|entry| u64::from(entry.blocks)).sum()
    }

    pub(super) fn end(&self) -> u64 {
        self.offset + (1 + self.data_blocks()) * BLOCK64
    }

    /// The blocks of the device that it holds: (block, byte of its data on the caching volume).
    pub(super) fn blocks(&self) -> impl Iterator<Item = (u64, Option<u64>)> + '_ {
        let mut at = self.offset + BLOCK64;
        let own = self.entries.iter().map(move |entry| {
            let start = at;
            at += if entry.content.has_data() { u64::from(entry.blocks) * BLOCK64 } else { 0 };
            (entry, start)
        });
        let own = own.filter(|(entry, _)| entry.content != Content::Copied);
        own.flat_map(|(entry, start)| {
            (0..u64::from(entry.blocks))
                .map(move |number| (entry.block + number, entry.content.has_data().then_some(start + number * BLOCK64)))
        })
    }
}

impl Books {
    /// A record's summary, if the volume holds it.
    pub(super) fn stored(&self, record: &Record, disk: &Disk) -> Option<Summary> {
        let mut bytes = [0; BLOCK as usize];
        disk.peek_sound(record.offset, &mut bytes);
        let own = |summary: &Summary| summary.epoch == self.epoch && summary.place.sequence == record.sequence;
        Summary::decode(&bytes).filter(own)
    }

    /// Sequences of the records that the newest superblock of the volume calls failed.
    pub(super) fn void(&self, disk: &Disk) -> Vec<u64> {
        let slots = [0, BLOCK64].into_iter().filter(|at| !disk.is_bad(*at, BLOCK64));
        let superblocks = slots.filter_map(|at| {
            let mut bytes = [0; BLOCK as usize];
            disk.peek_sound(at, &mut bytes);
            Superblock::decode(&bytes).filter(|superblock| superblock.epoch == self.epoch)
        });
        superblocks.max_by_key(|superblock| superblock.sequence).map(|superblock| superblock.void).unwrap_or_default()
    }
}
