//! Mending the metadata of a log that was read back, before anything is appended to it.

use super::super::Engine;
use super::super::lifecycle::Step;
use crate::effect::Effect;
use crate::format::{Layout, Records, Superblock, TableCopy, UNINDEXED_MAX};

impl Engine {
    /// Writes copies of pages of the table that are missing (segments must not be used again before both name what is free),
    /// and a superblock, if there is none that says that the log goes on and which segments may hold records.
    pub(super) fn repair(&mut self) {
        let Some(recovery) = self.recovery.as_mut() else { return };
        let Some(geometry) = recovery.superblock.as_ref().map(Superblock::geometry) else { return };
        // While records are missing, what the superblock says of them, and where they may be, is kept.
        if geometry.layout == Layout::One || recovery.restoring || recovery.unknown().is_some() {
            return self.replay(true);
        }
        let mut missing = Vec::new();
        for (page, copies) in recovery.table.iter().zip(&recovery.copies) {
            for copy in TableCopy::ALL {
                if copies[copy as usize].valid().is_none_or(|of_copy| of_copy.sequence != page.sequence) {
                    missing.push((geometry.table_offset(page.page, copy), page.clone()));
                }
            }
        }
        let trusted = recovery.listed().is_some();
        let closed = recovery.superblock.as_ref().is_some_and(|superblock| superblock.closed);
        let holds =
            recovery.found.values().filter(|records| !records.is_empty()).map(|records: &Records| records.segment);
        let unindexed: Vec<u32> = holds.filter(|segment| !recovery.is_indexed(*segment)).collect();
        let superblock =
            recovery.superblock.as_mut().filter(|_| closed || geometry.indexed && !trusted).map(|superblock| {
                superblock.sequence += 1;
                superblock.closed = false;
                superblock.last = None;
                if !trusted {
                    let fits = geometry.indexed && unindexed.len() <= UNINDEXED_MAX;
                    superblock.unindexed = fits.then_some(unindexed);
                }
                superblock.clone()
            });
        if missing.is_empty() && superblock.is_none() {
            return self.replay(true);
        }
        self.step = Step::RecoverRepair { left: missing.len() as u32 + u32::from(superblock.is_some()), failed: false };
        self.step_serial += 1;
        if let Some(superblock) = superblock {
            self.step_write(|id| Effect::WriteSuperblock { id, offset: superblock.offset(), superblock });
        }
        for (offset, page) in missing {
            self.step_write(|id| Effect::WriteTable { id, offset, page: Box::new(page) });
        }
    }
}
