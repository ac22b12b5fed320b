//! Mending the metadata of a log that was read back, before anything is appended to it.

use super::super::Engine;
use super::super::lifecycle::Step;
use super::Slot;
use crate::effect::Effect;
use crate::format::{Layout, Records, SegmentTable, Superblock, TableCopy, UNINDEXED_MAX};
use crate::planted::{Bug, planted};

impl Engine {
    /// Mends the metadata before anything is appended: free segments begin a new generation, both copies of each page of the
    /// table are there, and the superblock says that the log goes on.
    pub(super) fn repair(&mut self) {
        let Some(recovery) = self.recovery.as_mut() else { return };
        let Some(geometry) = recovery.superblock.as_ref().map(Superblock::geometry) else { return };
        // While records are missing, what the superblock says of them, and where they may be, is kept.
        let whole = recovery.unknown().is_none();
        if geometry.layout == Layout::One || recovery.restoring || !whole {
            return self.replay(true);
        }
        let mut pages = std::mem::take(&mut recovery.table);
        for page in &mut pages {
            page.sequence += 1;
            for (at, segment) in geometry.segments_of_page(page.page).enumerate() {
                let read = recovery.unreadable.get(&segment).is_none_or(Vec::is_empty);
                let free = recovery.found.get(&segment).is_none_or(Records::is_empty);
                if free && read {
                    page.generations[at] += u32::from(!planted(Bug::StaleRecordsLeft));
                    page.indexed[at] = false;
                }
            }
        }
        recovery.table = pages;
        let unindexed = recovery.found.values().filter(|records| !records.is_empty());
        let unindexed = unindexed.map(|records| records.segment).filter(|segment| !recovery.is_indexed(*segment));
        let unindexed: Vec<u32> = unindexed.collect();
        let unindexed = Some(unindexed).filter(|list| geometry.indexed && list.len() <= UNINDEXED_MAX);
        let superblock = recovery.superblock.as_mut().map(|superblock| {
            superblock.sequence += 1;
            superblock.closed = false;
            superblock.last = None;
            superblock.unindexed = unindexed;
            superblock.clone()
        });
        self.write_pages(false);
        if let (Some(superblock), Step::RecoverRepair { left, .. }) = (superblock, &mut self.step) {
            *left += 1;
            self.step_write(|id| Effect::WriteSuperblock { id, offset: superblock.offset(), superblock });
        }
    }

    /// Writes one copy of each page of the table: first the one that is not needed should the other be torn meanwhile.
    pub(in crate::engine) fn write_pages(&mut self, second: bool) {
        let Some(recovery) = self.recovery.as_ref() else { return };
        let Some(geometry) = recovery.superblock.as_ref().map(Superblock::geometry) else { return };
        let newest = |copies: &[Slot<SegmentTable>; 2], copy: TableCopy| {
            let [this, other] =
                [copy, copy.other()].map(|copy| copies[copy as usize].valid().map(|page| page.sequence));
            this >= other
        };
        let writes: Vec<_> = recovery
            .table
            .iter()
            .zip(&recovery.copies)
            .map(|(page, copies)| {
                let dispensable = if newest(copies, TableCopy::Second) { TableCopy::First } else { TableCopy::Second };
                let copy = if second { dispensable.other() } else { dispensable };
                (geometry.table_offset(page.page, copy), page.clone())
            })
            .collect();
        self.step = Step::RecoverRepair { left: writes.len() as u32, failed: false, second };
        self.step_serial += 1;
        for (offset, page) in writes {
            self.step_write(|id| Effect::WriteTable { id, offset, page: Box::new(page) });
        }
    }
}
