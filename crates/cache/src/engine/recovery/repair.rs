//! Repairing the metadata of a log that was read back, before anything is appended to it.

use super::super::Engine;
use super::super::lifecycle::Step;
use super::{Recovery, Slot};
use crate::effect::Effect;
use crate::format::{Layout, Records, SegmentTable, Superblock, TableCopy, UNINDEXED_MAX};

impl Engine {
    /// Repairs the segment table and the superblock, as far as something is wrong with them:
    /// - copies of pages of the table that are missing: segments must not be used again before both name what is free;
    /// - the generations of segments in which nothing was found and something could not be read: it might be read next time,
    ///   and hold records that were in flight when a crash came;
    /// - a superblock, if there is none that says that the log goes on and which segments may hold records, or if only one
    ///   names a part by which the volume has grown: records go there when both do.
    pub(super) fn repair(&mut self) {
        let Some(recovery) = self.recovery.as_mut() else { return };
        let Some(geometry) = recovery.superblock.as_ref().map(Superblock::geometry) else { return };
        // While records are missing, what the superblock says of them, and where they may be, is kept.
        if geometry.layout == Layout::One || recovery.restoring || recovery.unknown.is_some() {
            return self.replay(true);
        }
        let mut table = std::mem::take(&mut recovery.table);
        for page in &mut table {
            let hides = |segment: u32| {
                recovery.unreadable.get(&segment).is_some_and(|blocks| !blocks.is_empty())
                    && recovery.found.get(&segment).is_none_or(Records::is_empty)
            };
            let hiding: Vec<_> =
                geometry.segments_of_page(page.page).enumerate().filter(|(_, segment)| hides(*segment)).collect();
            page.sequence += u64::from(!hiding.is_empty());
            hiding.iter().for_each(|(at, _)| page.generations[*at] += 1);
        }
        recovery.table = table;
        let trusted = recovery.listed().is_some();
        let closed = recovery.superblock.as_ref().is_some_and(|superblock| superblock.closed);
        let holds = recovery.found.values().filter(|records| !records.is_empty()).map(|records| records.segment);
        let unindexed: Vec<u32> = holds.filter(|segment| !recovery.is_indexed(*segment)).collect();
        let wanted = closed || geometry.indexed && !trusted || recovery.is_growth_half_marked();
        let superblock = recovery.superblock.as_mut().filter(|_| wanted).map(|superblock| {
            superblock.sequence += 1;
            superblock.closed = false;
            superblock.last = None;
            if !trusted {
                let fits = geometry.indexed && unindexed.len() <= UNINDEXED_MAX;
                superblock.unindexed = fits.then_some(unindexed);
            }
            superblock.clone()
        });
        self.write_pages(TableCopy::First, superblock);
    }

    /// Writes the copies of pages of the table that are not as they should be: first those that are not needed should they be
    /// torn, then the others.
    pub(in crate::engine) fn write_pages(&mut self, turn: TableCopy, superblock: Option<Superblock>) {
        let Some(recovery) = self.recovery.as_ref() else { return };
        let Some(geometry) = recovery.superblock.as_ref().map(Superblock::geometry) else { return };
        let sequence = |copy: &Slot<SegmentTable>| copy.valid().map(|page| page.sequence);
        let mut writes = Vec::new();
        for (page, copies) in recovery.table.iter().zip(&recovery.copies) {
            let [first, second] = [TableCopy::First, TableCopy::Second].map(|copy| sequence(&copies[copy as usize]));
            let dispensable = if second >= first { TableCopy::First } else { TableCopy::Second };
            let copy = if turn == TableCopy::First { dispensable } else { dispensable.other() };
            if sequence(&copies[copy as usize]) != Some(page.sequence) {
                writes.push((geometry.table_offset(page.page, copy), page.clone()));
            }
        }
        let left = writes.len() as u32 + u32::from(superblock.is_some());
        if left == 0 {
            return match turn {
                TableCopy::First => self.write_pages(TableCopy::Second, None),
                TableCopy::Second => self.replay(true),
            };
        }
        self.step = Step::RecoverRepair { left, failed: false, turn };
        self.step_serial += 1;
        if let Some(superblock) = superblock {
            self.step_write(|id| Effect::WriteSuperblock { id, offset: superblock.offset(), superblock });
        }
        for (offset, page) in writes {
            self.step_write(|id| Effect::WriteTable { id, offset, page: Box::new(page) });
        }
    }
}

impl Recovery {
    /// The page of the table for a segment, if it is among those that were read, and where in it that is.
    pub(super) fn page_of(&self, segment: u32) -> Option<(&SegmentTable, usize)> {
        let (page, at) = self.superblock.as_ref()?.geometry().place_in_table(segment);
        Some((self.table.get(page as usize)?, at))
    }

    /// Whether a part by which the volume has grown is named by one superblock, and may not be by the other.
    fn is_growth_half_marked(&self) -> bool {
        let Some(geometry) = self.superblock.as_ref().map(Superblock::geometry) else { return false };
        let agree = self.superblocks.iter().filter_map(Slot::valid).all(|other| other.geometry() == geometry);
        geometry.has_grown() && !(agree && self.has_newest())
    }
}
