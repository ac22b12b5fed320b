//! Reading indexes and segments: those that cannot be read whole are read in parts.

use std::ops::Range;

use super::super::Engine;
use super::{EXCESSIVE, Scan, Wanted};
use crate::effect::ScratchId;
use crate::format::{BLOCK, Parse, Records, Superblock};

/// Segments, or runs of indexes, read at a time.
const SCANS: usize = 4;

impl Engine {
    pub(super) fn pump_indexes(&mut self) {
        while let Some(recovery) = self.recovery.as_mut().filter(|recovery| recovery.indexes_in_flight < SCANS) {
            let Some(geometry) = recovery.superblock.as_ref().map(Superblock::geometry) else { return };
            let Some(segments) = recovery.indexes.pop() else { break };
            recovery.indexes_in_flight += 1;
            let length = segments.len() as u32 * geometry.index_length();
            let offset = geometry.index_offset(segments.start);
            let scratch = self.allocate(length);
            self.recovery_fetch(Wanted::Indexes { segments, scratch }, offset, scratch, 0, length);
        }
        if self.recovery.as_ref().is_some_and(|recovery| recovery.indexes_in_flight == 0) {
            self.pump_scan();
        }
    }

    pub(super) fn pump_scan(&mut self) {
        while let Some(recovery) = self.recovery.as_mut().filter(|recovery| recovery.scans.len() < SCANS) {
            let Some(superblock) = recovery.superblock.as_ref() else { return };
            let (geometry, length) = (superblock.geometry(), superblock.segment_size);
            let blocks = geometry.segment_blocks();
            let Some(segment) = recovery.to_scan.pop_first() else { break };
            recovery.scans.insert(segment, Scan { scratch: ScratchId(0), left: 1, unreadable: Vec::new() });
            let offset = geometry.segment_offset(segment);
            let scratch = self.allocate(length);
            if let Some(scan) = self.recovery.as_mut().and_then(|recovery| recovery.scans.get_mut(&segment)) {
                scan.scratch = scratch;
            }
            self.recovery_fetch(Wanted::Segment { segment, blocks: 0..blocks }, offset, scratch, 0, length);
        }
        if self.recovery.as_ref().is_some_and(|recovery| recovery.scans.is_empty()) {
            self.resolve();
        }
    }

    /// A part of a segment cannot be read. Is it the part, or the volume?
    pub(super) fn part_unreadable(&mut self, segment: u32, blocks: Range<u32>) {
        let Some(recovery) = self.recovery.as_mut() else { return };
        let Some(scan) = recovery.scans.get_mut(&segment) else { return };
        let whole = recovery.superblock.as_ref().map(|superblock| 0..superblock.geometry().segment_blocks());
        if Some(&blocks) == whole.as_ref() {
            let offset = recovery.readable_at;
            let scratch = self.allocate(BLOCK);
            return self.recovery_fetch(Wanted::Answer { segment, scratch }, offset, scratch, 0, BLOCK);
        }
        if blocks.len() > 1 {
            let middle = blocks.start + blocks.len() as u32 / 2;
            return self.read_parts(segment, [blocks.start..middle, middle..blocks.end]);
        }
        let at = scan.unreadable.partition_point(|block| *block < blocks.start);
        scan.unreadable.insert(at, blocks.start);
        self.part_read(segment);
    }

    pub(super) fn read_apart(&mut self, segment: u32) {
        let superblock = self.recovery.as_ref().and_then(|recovery| recovery.superblock.as_ref());
        let Some(blocks) = superblock.map(|superblock| superblock.geometry().segment_blocks()) else { return };
        self.read_parts(segment, [0..blocks / 2, blocks / 2..blocks]);
    }

    pub(super) fn read_parts(&mut self, segment: u32, parts: [Range<u32>; 2]) {
        let Some(recovery) = self.recovery.as_mut() else { return };
        let Some(geometry) = recovery.superblock.as_ref().map(Superblock::geometry) else { return };
        let Some(scan) = recovery.scans.get_mut(&segment) else { return };
        scan.left += 1;
        let scratch = scan.scratch;
        for blocks in parts {
            let (at, length) = (blocks.start * BLOCK, blocks.len() as u32 * BLOCK);
            let offset = geometry.segment_offset(segment) + u64::from(at);
            self.recovery_fetch(Wanted::Segment { segment, blocks }, offset, scratch, at, length);
        }
    }

    /// A part of a segment is as far read as it can be.
    pub(super) fn part_read(&mut self, segment: u32) {
        let Some(recovery) = self.recovery.as_mut() else { return };
        let generation = recovery.generation(segment);
        let Some(length) = recovery.superblock.as_ref().map(|superblock| superblock.segment_size) else { return };
        let Some(scan) = recovery.scans.get_mut(&segment) else { return };
        scan.left -= 1;
        if scan.left > 0 {
            return;
        }
        let (epoch, scratch, unreadable) = (recovery.attach.epoch, scan.scratch, scan.unreadable.clone());
        let repeats = recovery.repeats.get(&segment).cloned().unwrap_or_default();
        let what = Parse::Segment { epoch, segment, generation, unreadable, repeats };
        self.recovery_parse(Wanted::Segment { segment, blocks: 0..0 }, scratch, length, what);
    }

    pub(super) fn segment_read(&mut self, segment: u32, records: Records) {
        let Some(recovery) = self.recovery.as_mut() else { return };
        let Some(scan) = recovery.scans.remove(&segment) else { return };
        recovery.unreadable.insert(segment, scan.unreadable);
        if records.segment == segment {
            recovery.found(segment, records);
        }
        let is_excessive = recovery.is_excessive();
        self.release_scratch(Some(scan.scratch));
        if is_excessive {
            return self.recovery_fails(EXCESSIVE);
        }
        self.pump_scan();
    }
}
