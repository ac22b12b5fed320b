//! The copy to a joining member.
//!
//! Regions are copied in ascending order, so many at once, at a rate. Once a region is copied, both members hold the same
//! and changes go to both. How far the copy is, is recorded on the joining member after a flush of *both*: what the active one
//! could still forget must not count as copied.

use std::collections::{BTreeMap, BTreeSet};

use surgetank_model::{FlushRequest, Instant, TokenBucket};

use super::change::Hold;
use super::membership::Purpose;
use super::{Engine, Pending, RETRY_AFTER};
use crate::bitmap::{Bitmap, Bits};
use crate::effect::{BufferId, Effect, EffectId, ScratchId, Slice, Target};
use crate::geometry::Run;
use crate::planted::{Bug, planted};
use crate::port::Waiter;

/// Of the I/Os in flight on a member whose copy is hurried, the copy's are one in so many or more.
pub const HURRIED_SHARE: u32 = 4;
/// Memory of such a copy, in bytes: more of its regions are not in flight.
const HURRIED_BYTES_MAX: u64 = 32 << 20;

/// Writes that a joining member may fail, before it is dropped.
const FAILURES_MAX: u32 = 8;

/// The copy of one region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Job {
    /// It waits for the changes in flight; new ones wait for it.
    Claimed,
    InFlight,
}

/// What is being recorded as copied.
#[derive(Debug)]
pub(super) struct Checkpoint {
    pub serial: u32,
    regions: Vec<u64>,
    /// Flushes that have not ended.
    left: u32,
}

/// A joining member and its copy.
#[derive(Debug)]
pub(super) struct Join {
    pub target: Target,
    /// Regions that both members hold the same.
    pub synced: Bits,
    /// Regions that are not.
    pub unsynced: u64,
    /// Regions that were written to both: they count as copied only until a crash.
    pub touched: Bits,
    /// Regions of the joining member that are as blank as it came.
    pub pristine: Bits,
    /// No region before it is to be copied.
    cursor: u64,
    pub jobs: BTreeMap<u64, Job>,
    bucket: Option<TokenBucket>,
    /// When the rate allows the next one.
    pace_at: Option<Instant>,
    /// Regions whose copy failed, until `retry_at`.
    failed: BTreeSet<u64>,
    retry_at: Option<Instant>,
    failures: u32,
    /// Reads in flight on the joining member, and the ranges (start, end) of the array that they are of.
    pub reads: BTreeMap<EffectId, (u64, u64)>,
    /// Copied since the last checkpoint.
    fresh: Vec<u64>,
    pub checkpoint: Option<Checkpoint>,
    pub copied_bytes: u64,
    /// The member is open.
    pub begun: bool,
}

impl Join {
    fn new(regions: u64, target: Target, pristine: bool) -> Self {
        Self {
            target,
            synced: Bits::new(regions, false),
            unsynced: regions,
            touched: Bits::new(regions, false),
            pristine: Bits::new(regions, pristine),
            cursor: 0,
            jobs: BTreeMap::new(),
            bucket: None,
            pace_at: None,
            failed: BTreeSet::new(),
            retry_at: None,
            failures: 0,
            reads: BTreeMap::new(),
            fresh: Vec::new(),
            checkpoint: None,
            copied_bytes: 0,
            begun: false,
        }
    }

    /// A blank volume.
    pub fn fresh(regions: u64, target: Target) -> Self {
        Self::new(regions, target, true)
    }

    /// One to which a copy had begun: what has no bit on it may hold anything.
    pub fn resumed(regions: u64, target: Target) -> Self {
        Self::new(regions, target, planted(Bug::LeftoversBlank))
    }

    /// Whether a read of it in flight overlaps this range of the array.
    pub fn is_read(&self, range: (u64, u64)) -> bool {
        self.reads.values().any(|read| read.0 < range.1 && range.0 < read.1)
    }

    /// Whether both members hold the same.
    pub fn is_complete(&self) -> bool {
        self.begun && self.unsynced == 0 && self.jobs.is_empty()
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.pace_at.into_iter().chain(self.retry_at).min()
    }

    fn sync(&mut self, region: u64) {
        if !self.synced.get(region) {
            self.synced.set(region, true);
            self.unsynced -= 1;
        }
    }

    fn unsync(&mut self, region: u64) {
        if self.synced.get(region) {
            self.synced.set(region, false);
            self.unsynced += 1;
            self.cursor = self.cursor.min(region);
        }
    }

    /// The next region to copy.
    fn next_region(&mut self) -> Option<u64> {
        let mut at = self.cursor;
        while let Some(region) = self.synced.first_clear(at) {
            if !self.jobs.contains_key(&region) && !self.failed.contains(&region) {
                return Some(region);
            }
            at = region + 1;
        }
        None
    }
}

impl Engine {
    /// A joining member is open: what its bitmap says is copied.
    pub(super) fn begin_copy(&mut self, slot: u32) {
        let (now, rate, region) = (self.now, self.config.copy_rate, self.geometry.region);
        let Some(join) = self.slots[slot as usize].join.as_mut() else { return };
        let bitmap = self.members.get(&join.target).and_then(|member| member.bitmap.as_ref());
        for region in 0..self.geometry.regions() {
            if bitmap.is_some_and(|bitmap| bitmap.is_durably(region, true)) {
                join.sync(region);
            }
        }
        join.bucket = rate.map(|rate| TokenBucket::full(now, rate.get(), u64::from(region)));
        join.begun = true;
    }

    /// Starts what may be copied now.
    pub(super) fn advance_copies(&mut self) {
        for slot in 0..self.slots.len() as u32 {
            if self.slots[slot as usize].join.is_none() {
                continue;
            }
            self.retry_copies(slot);
            loop {
                while self.claim_next(slot) {}
                // What is copied at once makes room for more.
                if !self.copy_claimed(slot) {
                    break;
                }
            }
            self.begin_checkpoint(slot);
        }
    }

    /// Copies the claimed regions that nothing changes any more. Whether there were any.
    fn copy_claimed(&mut self, slot: u32) -> bool {
        let place = &self.slots[slot as usize];
        let Some(join) = place.join.as_ref().filter(|_| !place.dropping) else { return false };
        let quiet = |region: &u64| !self.is_changing(slot, *region) || planted(Bug::CopyOverWrite);
        let claimed = join.jobs.iter().filter(|(_, job)| **job == Job::Claimed).map(|(region, _)| *region);
        let ready: Vec<u64> = claimed.filter(quiet).collect();
        ready.iter().for_each(|region| self.copy_region(slot, *region));
        !ready.is_empty()
    }

    fn retry_copies(&mut self, slot: u32) {
        let now = self.now;
        let Some(join) = self.slots[slot as usize].join.as_mut() else { return };
        if join.retry_at.is_some_and(|at| at <= now) {
            join.retry_at = None;
            join.failed.clear();
            join.cursor = 0;
        }
        if join.pace_at.is_some_and(|at| at <= now) {
            join.pace_at = None;
        }
    }

    /// A slot's member serves little, and what is asked of it queues: its copy, also one to come, gets a share of the queue
    /// ([`HURRIED_SHARE`]), so that it ends although the application asks for everything. Takes effect with the next request.
    pub fn set_hurried(&mut self, slot: u32, hurried: bool) {
        if let Some(slot) = self.slots.get_mut(slot as usize) {
            slot.hurried = hurried;
        }
    }

    /// Regions of a slot's copy in flight, at most.
    fn copies_max(&self, slot: u32) -> usize {
        let most = self.config.copies_in_flight_max.max(1) as usize;
        let place = &self.slots[slot as usize];
        let Some(join) = place.join.as_ref().filter(|_| place.hurried) else { return most };
        let queued = self.members.get(&place.active).map_or(0, |member| member.port.effects_in_flight as usize);
        let others = queued.saturating_sub(join.jobs.len());
        let memory = (HURRIED_BYTES_MAX / u64::from(self.geometry.region).max(1)) as usize;
        most.max((others / (HURRIED_SHARE as usize - 1)).min(memory))
    }

    /// Claims the next region of a slot, if one more may be in flight.
    fn claim_next(&mut self, slot: u32) -> bool {
        let (now, most) = (self.now, self.copies_max(slot));
        let serves = self.serving(slot).is_some();
        let place = &mut self.slots[slot as usize];
        if place.hold != Hold::No || place.dropping || !serves {
            return false;
        }
        let Some(join) = place.join.as_mut().filter(|join| join.begun && join.jobs.len() < most) else { return false };
        let Some(region) = join.next_region() else { return false };
        let written = self.members.get(&place.active).is_some_and(|member| member.is_written(region));
        if (written || !join.pristine.get(region))
            && let Some(bucket) = join.bucket.as_mut()
        {
            let bytes = self.geometry.region_bytes(region);
            if let Err(at) = bucket.take(now, bytes.end - bytes.start) {
                join.pace_at = Some(at);
                return false;
            }
        }
        join.cursor = join.cursor.max(region);
        join.jobs.insert(region, Job::Claimed);
        // Nothing to copy and nobody at work: at once, so that long blank stretches take no time.
        let blank = !written && join.pristine.get(region);
        if blank && !self.is_changing(slot, region) {
            self.copy_region(slot, region);
        }
        true
    }

    /// Copies a claimed region. Nothing changes it meanwhile.
    fn copy_region(&mut self, slot: u32, region: u64) {
        let bytes = self.geometry.region_bytes(region);
        let (offset, length) = (self.geometry.data_offset() + bytes.start, bytes.end - bytes.start);
        let place = &mut self.slots[slot as usize];
        let Some(join) = place.join.as_mut() else { return };
        let (from, to) = (place.active, join.target);
        let written = self.members.get(&from).is_some_and(|member| member.is_written(region));
        if !written && join.pristine.get(region) {
            join.jobs.remove(&region);
            join.sync(region);
            join.fresh.push(region);
            self.retry_waiting = true;
            return;
        }
        join.jobs.insert(region, Job::InFlight);
        join.pristine.set(region, false);
        if !written {
            let Some(member) = self.member(to) else { return };
            member.port.started(length);
            let failures = member.port.failures;
            let pending = Pending::CopyWrite { slot, region, scratch: None, to, failures };
            self.emit(pending, |id| Effect::WriteZeroes { id, target: to, offset, length, fua: false });
            return;
        }
        let scratch = ScratchId(self.next_scratch);
        self.next_scratch = self.next_scratch.wrapping_add(1);
        self.effects.push_back(Effect::Allocate { scratch, length: length as u32 });
        if let Some(member) = self.member(from) {
            member.port.started(length);
        }
        let slice = Slice { buffer: BufferId::Scratch(scratch), offset: 0, length: length as u32 };
        let pending = Pending::CopyRead { slot, region, scratch, from, to };
        self.emit(pending, |id| Effect::Read { id, target: from, offset, into: smallvec::smallvec![slice] });
    }

    pub(super) fn copy_read(
        &mut self,
        (slot, region): (u32, u64),
        scratch: ScratchId,
        (from, to): (Target, Target),
        success: bool,
    ) {
        let bytes = self.geometry.region_bytes(region);
        let length = bytes.end - bytes.start;
        if let Some(member) = self.member(from) {
            member.port.ended(length);
        }
        let joins = self.slots[slot as usize].join.as_ref().is_some_and(|join| join.target == to);
        if !success || !joins {
            self.effects.push_back(Effect::Release { scratch });
            return self.copy_failed(slot, region, to);
        }
        let offset = self.geometry.data_offset() + bytes.start;
        let Some(member) = self.member(to) else { return };
        member.port.started(length);
        let failures = member.port.failures;
        let slice = Slice { buffer: BufferId::Scratch(scratch), offset: 0, length: length as u32 };
        let pending = Pending::CopyWrite { slot, region, scratch: Some(scratch), to, failures };
        let from = smallvec::smallvec![slice];
        self.emit(pending, |id| Effect::Write { id, target: to, offset, from, fua: false });
    }

    pub(super) fn copy_written(
        &mut self,
        (slot, region): (u32, u64),
        scratch: Option<ScratchId>,
        (to, failures): (Target, u64),
        success: bool,
    ) {
        let bytes = self.geometry.region_bytes(region);
        let length = bytes.end - bytes.start;
        if let Some(scratch) = scratch {
            self.effects.push_back(Effect::Release { scratch });
        }
        let mut kept = success;
        if let Some(member) = self.member(to) {
            member.port.ended(length);
            if success {
                member.port.flushes.wrote(false);
                // A flush that failed meanwhile may have forgotten it.
                kept = member.port.failures == failures || planted(Bug::ForgottenCopyCounts);
            }
        }
        if !kept {
            self.count_failure(slot, to);
            return self.copy_failed(slot, region, to);
        }
        self.retry_waiting = true;
        let Some(join) = self.slots[slot as usize].join.as_mut().filter(|join| join.target == to) else { return };
        join.jobs.remove(&region);
        join.sync(region);
        join.fresh.push(region);
        join.copied_bytes += length;
    }

    /// A region could not be copied now.
    fn copy_failed(&mut self, slot: u32, region: u64, to: Target) {
        let at = self.now + RETRY_AFTER;
        self.retry_waiting = true;
        let Some(join) = self.slots[slot as usize].join.as_mut().filter(|join| join.target == to) else { return };
        join.jobs.remove(&region);
        join.failed.insert(region);
        join.retry_at.get_or_insert(at);
    }

    /// The joining member failed a write.
    fn count_failure(&mut self, slot: u32, target: Target) {
        let Some(join) = self.slots[slot as usize].join.as_mut().filter(|join| join.target == target) else { return };
        join.failures += 1;
        if join.failures > FAILURES_MAX {
            self.drop_join(slot);
        }
    }

    /// The joining member failed a part of a change, or may have forgotten it.
    pub(super) fn double_failed(&mut self, run: &Run) {
        if !planted(Bug::FailedDoubleIgnored) {
            self.unsync(run);
        }
        if let Some(target) = self.slots[run.slot as usize].join.as_ref().map(|join| join.target) {
            self.count_failure(run.slot, target);
        }
    }

    /// The members differ in a range.
    pub(super) fn unsync(&mut self, run: &Run) {
        let regions = self.geometry.regions_of(run);
        if let Some(join) = self.slots[run.slot as usize].join.as_mut() {
            regions.for_each(|region| join.unsync(region));
        }
    }

    /// Whether both members of a slot hold the same.
    pub(super) fn is_copied(&self, slot: u32) -> bool {
        let slot = &self.slots[slot as usize];
        !slot.dropping && slot.join.as_ref().is_some_and(Join::is_complete)
    }

    /// A flush of a joining member failed: what is not recorded as copied may be forgotten.
    pub(super) fn forget_copies(&mut self, slot: u32) {
        let Some(join) = self.slots[slot as usize].join.as_mut() else { return };
        join.checkpoint = None;
        join.fresh.clear();
        if planted(Bug::ForgottenCopyCounts) {
            return;
        }
        let bitmap: Option<&Bitmap> = self.members.get(&join.target).and_then(|member| member.bitmap.as_ref());
        for region in 0..self.geometry.regions() {
            let recorded = bitmap.is_some_and(|bitmap| bitmap.is_durably(region, true));
            if !recorded && !join.pristine.get(region) {
                join.unsync(region);
            }
        }
    }

    /// Begins to record what was copied.
    fn begin_checkpoint(&mut self, slot: u32) {
        let most = self.config.checkpoint_regions.max(1) as usize;
        let serves = self.serving(slot).is_some();
        let place = &mut self.slots[slot as usize];
        if place.hold != Hold::No || place.dropping || !serves {
            return;
        }
        let active = place.active;
        // Once it has forgotten something, nobody knows what it would still show after a power cut.
        let forgets = self.members.get(&active).is_some_and(|member| member.port.failures > 0);
        let Some(join) = place.join.as_mut().filter(|_| !forgets) else { return };
        if join.fresh.len() < most || join.checkpoint.is_some() {
            return;
        }
        let (serial, to) = (self.next_checkpoint, join.target);
        self.next_checkpoint = self.next_checkpoint.wrapping_add(1);
        join.checkpoint = Some(Checkpoint { serial, regions: std::mem::take(&mut join.fresh), left: 2 });
        for target in [to, active] {
            let skipped = target == active && planted(Bug::ProgressBeforeFlush);
            if skipped || self.flush_member(target, Waiter::Checkpoint(serial)) == FlushRequest::Ready {
                self.checkpoint_flushed(serial, true);
            }
        }
    }

    /// A flush of a checkpoint has ended.
    pub(super) fn checkpoint_flushed(&mut self, serial: u32, success: bool) {
        let is_it = |join: &&mut Join| join.checkpoint.as_ref().is_some_and(|checkpoint| checkpoint.serial == serial);
        let Some(join) = self.slots.iter_mut().filter_map(|slot| slot.join.as_mut()).find(is_it) else { return };
        let Some(checkpoint) = join.checkpoint.as_mut() else { return };
        checkpoint.left -= 1;
        if success && checkpoint.left > 0 {
            return;
        }
        let Some(checkpoint) = join.checkpoint.take().filter(|_| success) else { return };
        let Some(bitmap) = self.members.get_mut(&join.target).and_then(|member| member.bitmap.as_mut()) else { return };
        for region in checkpoint.regions {
            if join.synced.get(region) && !join.touched.get(region) {
                bitmap.set(region, true);
            }
        }
    }

    /// The joining member of a slot is dropped. Until that is recorded, changes of the slot wait: else a later start might
    /// take what it holds for what they left.
    pub(super) fn drop_join(&mut self, slot: u32) {
        let place = &mut self.slots[slot as usize];
        if place.join.is_some() && !place.dropping {
            place.dropping = true;
            self.transitions.push_back(Purpose::Drop(slot));
        }
    }
}
