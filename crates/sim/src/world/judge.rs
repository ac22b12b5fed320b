//! What may fail, and what may be discarded: the world's own books decide, not what the engine says.

use std::time::Duration;

use surgetank_cache::{Owner, Status};
use surgetank_model::{Operation, Request};

use crate::books::Touched;
use crate::content::SECTOR;
use crate::world::renting::LONGEST_PAUSE;
use crate::world::{Expect, Step, World};

/// Longest pause before recovery is tried again.
pub(super) const RECOVERY_PAUSE: Duration = Duration::from_secs(5);
/// Recoveries that may fail because a part of the log cannot be read: then it counts as lost.
const RECOVERIES: u32 = 3;

/// Sectors of a block.
pub(super) const BLOCK_SECTORS: u32 = 8;

/// The blocks that a request touches.
fn blocks(request: &Request) -> std::ops::Range<u64> {
    request.offset / 4096..(request.offset + request.length).div_ceil(4096)
}

impl World<'_> {
    /// A fault excuses the requests that it touches, and no others.
    pub(super) fn touch(&mut self, touched: &Touched) {
        let lost = self.report.losses > 0;
        for outstanding in &mut self.outstanding {
            let range = blocks(&outstanding.request);
            let is_flush = outstanding.request.operation == Operation::Flush;
            let is_change = matches!(outstanding.expect, Expect::Write(_));
            outstanding.excused |= match touched {
                Touched::Nothing => false,
                Touched::Backing(bytes) => {
                    !is_flush && range.start * 4096 < bytes.end && bytes.start < range.end * 4096
                }
                // A change over what is lost is flushed before its reply.
                Touched::Flush(target) => {
                    *target == surgetank_cache::Target::Backing && (is_flush || is_change && lost)
                }
                Touched::Log(blocks) => !is_flush && blocks.iter().any(|block| range.contains(block)),
                Touched::Owner => lost && (is_flush || is_change),
            };
        }
    }

    /// Whether something has failed since the process, or the caching volume, is there.
    pub(super) fn faulty_lately(&self) -> bool {
        self.rotten || self.vanished || self.books.all_failures > 0
    }

    /// Whether a request asks for something lost. A part of a lost block cannot be merged with the rest of it.
    pub(super) fn touches_lost(&self, request: &Request) -> bool {
        let range = blocks(request);
        let (first, end) = (range.start as u32 * BLOCK_SECTORS, range.end as u32 * BLOCK_SECTORS);
        self.oracle.is_lost(first, end - first)
    }

    /// Whether the caching volume could not be read back for as long as the engine must wait.
    pub(super) fn has_waited_for_recovery(&self) -> bool {
        let patience = self.scenario.patience;
        self.recovering && self.recover_failed.is_some_and(|first| self.now.since(first) >= patience)
    }

    /// Whether a fault lets a recovery fail that ends now: nothing can be read, the superblocks or the segment table cannot,
    /// something went wrong while it ran, or, a few times, nobody can tell what the log holds.
    pub(super) fn may_fail_to_recover(&mut self) -> bool {
        let lasts = self.vanished || self.faulty || self.is_header_unreadable() || self.outages.is_any_passing();
        if lasts || self.health.disturbed >= self.recover_began {
            return true;
        }
        self.unknown_recoveries += 1;
        let unknown = self.disks.cache.as_ref().is_some_and(|disk| self.books.may_be_unknown(disk));
        unknown && self.unknown_recoveries <= RECOVERIES
    }

    /// Whether a request asks for something that could not be read from the log.
    pub(super) fn touches_doubt(&self, request: &Request) -> bool {
        blocks(request).any(|block| self.books.is_doubtful(block))
    }

    /// The owner record is about to be written: what it discards must be unreadable, and possibly dirty.
    pub(super) fn judge_owner(&mut self, owner: &Owner) -> Step {
        let Owner::Lost { ranges, .. } = owner else { return Ok(()) };
        // Nobody tells a rental that its volume is here again: it looks for it.
        let unseen = if self.rents() { LONGEST_PAUSE } else { Duration::ZERO };
        let out_of_patience = self.books.is_out_of_patience(self.now, self.scenario.patience, unseen);
        // Then everything may be discarded that no sound record after the unreadable one covers.
        let cannot_tell = |disk| self.books.unknown(disk);
        let unknown = self.disks.cache.as_ref().and_then(cannot_tell).max(self.books.was_unknown(self.now));
        let mut end_before = 0;
        for &(offset, length) in ranges {
            let sector = SECTOR as u64;
            if offset < end_before || length == 0 || offset % sector != 0 {
                return Err(format!("the lost ranges {ranges:?} are not sorted and disjoint"));
            }
            end_before = offset + length;
            let end = (offset + length).div_ceil(sector).min(u64::from(self.oracle.sectors()));
            for sector in (offset / sector) as u32..end as u32 {
                if self.oracle.is_discarded(sector) || self.lost && self.oracle.is_healed(sector) {
                    continue;
                }
                let block = u64::from(sector / BLOCK_SECTORS);
                if self.lost {
                    return Err(format!("sector {sector} is discarded, but was not lost with the cache"));
                }
                let may_be_in_it =
                    |unknown| self.disks.cache.as_ref().is_none_or(|disk| !self.books.is_known(block, unknown, disk));
                if !unknown.is_some_and(may_be_in_it) && !self.deceived {
                    self.books.may_be_lost(self.now, block, out_of_patience)?;
                }
                self.oracle.condemn(sector, 1);
                self.loss_untold = Some(self.next_request);
            }
        }
        // Their answers may come when the loss is over.
        let excused = |request: &Request| request.operation == Operation::Flush || self.touches_lost(request);
        let excused: Vec<bool> = self.outstanding.iter().map(|outstanding| excused(&outstanding.request)).collect();
        for (outstanding, excused) in self.outstanding.iter_mut().zip(excused) {
            outstanding.excused |= excused;
        }
        Ok(())
    }

    /// What the status calls lost is lost.
    pub(super) fn check_lost_bytes(&self, status: &Status) -> Step {
        let ranges = self.engine.lost_ranges(usize::MAX);
        let total: u64 = ranges.iter().map(|(_, length)| length).sum();
        if status.lost_bytes != total {
            return Err(format!("the status says {} bytes are lost, the ranges say {total}", status.lost_bytes));
        }
        for (offset, length) in ranges {
            let end = (offset + length).div_ceil(SECTOR as u64).min(u64::from(self.oracle.sectors()));
            for sector in (offset / SECTOR as u64) as u32..end as u32 {
                if !self.oracle.is_lost(sector, 1) {
                    return Err(format!("sector {sector} counts as lost, but is not"));
                }
            }
        }
        Ok(())
    }
}
