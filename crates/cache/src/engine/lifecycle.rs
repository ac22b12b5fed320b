//! Attach and detach as the engine sees them: adopting a caching volume, and releasing it.

use std::time::Duration;

use surgetank_model::Instant;

use super::checkpoint::Checkpoint;
use super::drain::Drain;
use super::failure::Trouble;
use super::growth::Growth;
use super::port::Port;
use super::reclaim::Reclaim;
use super::{Attach, Boost, CacheMode, Engine, EngineStage, Event, FlushRequest, Pending, Recorder, Rejected, Waiter};
use crate::effect::{Effect, EffectId, IoFailure, Outcome, Owner, Target};
use crate::format::{Geometry, Layout, LogState, SegmentTable, Superblock, TableCopy};
use crate::index::Index;
use crate::planted::{Bug, planted};
use crate::space::Space;

/// How long to wait before the owner record is written again after a failure.
const RETRY: Duration = Duration::from_secs(1);

/// What the life cycle waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    None,
    /// Superblocks and table are being written; so many have not ended.
    AdoptFormat {
        left: u32,
        failed: bool,
    },
    AdoptFlush,
    AdoptOwner,
    /// Adopting failed after the owner record may have been written.
    AdoptUndo,
    ReleaseFlush,
    /// CLEAN is being written: no way back from here.
    ReleaseMark,
    ReleaseMarkFlush,
    ReleaseOwner,
    /// Reads of the caching volume are still in flight.
    ReleaseReads,
    /// Superblocks, segment table and log are being read.
    RecoverRead,
    RecoverFlush {
        left: u8,
        failed: bool,
    },
    /// Metadata of a log that was read back are being repaired; so many writes have not ended.
    RecoverRepair {
        left: u32,
        failed: bool,
        turn: TableCopy,
    },
    RecoverRepairFlush(TableCopy),
    /// The failed cache is released: what was rescued is made durable.
    DropFlush,
    DropOwner,
    DropReads,
    AcceptLoss,
    /// The engine stops, when no record is in flight any more: everything in the log is made durable, then the superblock
    /// says so.
    StopSettle,
    StopFlush,
    StopMark,
    StopMarkFlush,
    /// The effect of this step failed; it is tried again at this time.
    Retry {
        at: Instant,
        step: Box<Step>,
    },
}

impl Engine {
    /// The caching volume that is to be read back cannot be opened: requests wait for it as for one that cannot be read.
    pub fn recovery_unavailable(&mut self, now: Instant) {
        self.pass_to(now);
        if self.stage == EngineStage::Recovering && self.recovery.is_none() {
            self.unrecovered_since.get_or_insert(self.now);
        }
    }

    /// Formats a caching volume and absorbs with it; ends in `Event::Adopted` or `AdoptFailed`.
    ///
    /// # Errors
    /// If a cache is already in use, or the volume is too small.
    pub fn adopt(&mut self, now: Instant, attach: Attach) -> Result<(), Rejected> {
        self.pass_to(now);
        if self.stage != EngineStage::PassThrough || self.step != Step::None {
            return Err(Rejected(format!(
                "a caching volume cannot be adopted in stage {:?}: release the present one first",
                self.stage
            )));
        }
        let geometry = Geometry::divide(attach.cache_size, Layout::default(), attach.indexes).ok_or_else(|| {
            Rejected(format!("a caching volume of {} bytes is too small: 1 MiB is the least", attach.cache_size))
        })?;
        let (mut space, superblock) =
            (Space::new(geometry, |_| 1), Superblock::new(attach.epoch, geometry, self.config.size));
        let superblock = Superblock { unindexed: space.list(), ..superblock };
        space.listed(superblock.unindexed.as_deref());
        self.count_unseen_writes();
        self.cache = Port::new(self.now, attach.cache_limits);
        self.stage = EngineStage::Adopting;
        self.needs_pump = true;
        // Both slots: an older attachment's superblock in the other one might carry a higher sequence.
        let newer = Superblock { sequence: 2, ..superblock.clone() };
        let pages = (0..geometry.table_pages()).map(|page| SegmentTable {
            layout: geometry.layout,
            page,
            sequence: 1,
            epoch: attach.epoch,
            generations: vec![1; geometry.segments_of_page(page).len()],
            indexed: vec![false; geometry.segments_of_page(page).len()],
        });
        self.step = Step::AdoptFormat { left: 2 + 2 * geometry.table_pages(), failed: false };
        self.step_serial += 1;
        for superblock in [superblock, newer.clone()] {
            self.step_write(|id| Effect::WriteSuperblock { id, offset: superblock.offset(), superblock });
        }
        for page in pages {
            for copy in TableCopy::ALL {
                let (offset, page) = (geometry.table_offset(page.page, copy), Box::new(page.clone()));
                self.step_write(|id| Effect::WriteTable { id, offset, page });
            }
        }
        let tables = vec![1; geometry.table_pages() as usize];
        self.boost = Some(Boost::new(self.now, attach, newer, tables, space));
        Ok(())
    }

    /// Says what is wanted of the adopted cache. `Absorb` cancels a release that has not written CLEAN yet.
    pub fn set_mode(&mut self, now: Instant, mode: CacheMode) {
        self.pass_to(now);
        self.needs_pump = true;
        if let Some(boost) = self.boost.as_mut() {
            boost.drain.finishing = mode == CacheMode::Finish;
        }
        match (mode, self.stage) {
            (CacheMode::Absorb, EngineStage::Drain) => self.stage = EngineStage::Absorb,
            (CacheMode::Absorb, EngineStage::Releasing) if self.step == Step::ReleaseFlush => {
                self.stage = EngineStage::Absorb;
                self.abandon_step();
            }
            (CacheMode::Drain | CacheMode::Finish, EngineStage::Absorb | EngineStage::Drain) => {
                self.stage = EngineStage::Drain;
                self.retry_waiting = true;
                return;
            }
            _ => return,
        }
        self.retry_waiting = true;
        let wanted = self.boost.as_mut().is_some_and(|boost| std::mem::take(&mut boost.release_wanted));
        if wanted {
            self.events.push_back(Event::ReleaseCancelled);
        }
    }

    /// Drains what is left, makes CLEAN durable, clears the owner; ends in `Released` or `ReleaseCancelled`, or, if the
    /// cache fails, in `CacheDropped` or `CacheLost`.
    ///
    /// # Errors
    /// If there is no cache to release.
    pub fn release(&mut self, now: Instant) -> Result<(), Rejected> {
        self.pass_to(now);
        self.needs_pump = true;
        match (self.stage, self.boost.as_mut()) {
            (EngineStage::Absorb | EngineStage::Drain | EngineStage::Releasing | EngineStage::Failing, Some(boost)) => {
                boost.release_wanted = true;
                if self.stage == EngineStage::Absorb {
                    self.stage = EngineStage::Drain;
                    self.retry_waiting = true;
                }
                Ok(())
            }
            _ => Err(Rejected(format!("there is no caching volume to release in stage {:?}", self.stage))),
        }
    }

    /// The driver stops in order, once all requests are answered: the log is closed, so that the next recovery knows that
    /// every record in it was whole. Ends in `Event::Stopped`.
    pub fn stop(&mut self, now: Instant) {
        self.pass_to(now);
        self.stopping = true;
        let closes = self.step == Step::None && matches!(self.stage, EngineStage::Absorb | EngineStage::Drain);
        if !closes || planted(Bug::StopNotMarked) {
            self.events.push_back(Event::Stopped);
        } else {
            self.step = Step::StopSettle;
            self.needs_pump = true;
        }
    }

    /// Records in flight are what the log ends with.
    fn settle_for_stop(&mut self) {
        if self.boost.as_ref().is_some_and(|boost| boost.batches_in_flight == 0) {
            self.step = Step::StopFlush;
            self.enter_step();
        }
    }

    /// A superblock that the stop waited for is there.
    pub(super) fn resume_stop(&mut self) {
        if self.step == Step::StopMark {
            self.enter_step();
        }
    }

    fn stopped(&mut self) {
        self.abandon_step();
        self.events.push_back(Event::Stopped);
    }

    pub(super) fn lifecycle_deadline(&self) -> Option<Instant> {
        match self.step {
            Step::Retry { at, .. } => Some(at),
            _ => self.failing_deadline(),
        }
    }

    pub(super) fn pump_lifecycle(&mut self) {
        match &self.step {
            Step::None if self.stage == EngineStage::Drain => self.begin_release(),
            Step::None if self.stage == EngineStage::Failing => self.pump_failing(),
            Step::ReleaseReads if self.cache_is_quiet() => {
                self.end_boost();
                self.events.push_back(Event::Released);
            }
            Step::DropReads if self.cache_is_quiet() => self.drop_cache(),
            Step::StopSettle => self.settle_for_stop(),
            Step::Retry { at, step } if self.now >= *at => {
                self.step = (**step).clone();
                self.needs_pump = true;
                self.enter_step();
            }
            _ => {}
        }
    }

    fn begin_release(&mut self) {
        let wanted = self.boost.as_ref().is_some_and(|boost| {
            boost.release_wanted && boost.reclaim.is_idle() && !boost.checkpoint.is_listing() && boost.growth.is_idle()
        });
        if wanted && self.is_drained() {
            self.stage = EngineStage::Releasing;
            self.retry_waiting = true;
            self.step = Step::ReleaseFlush;
            self.enter_step();
        }
    }

    /// Nothing of ours is in flight on the caching volume.
    fn cache_is_quiet(&self) -> bool {
        self.cache.effects_in_flight == 0 && !self.cache.flushes.is_flushing()
    }

    /// Forgets the caching volume.
    pub(super) fn end_boost(&mut self) {
        self.boost = None;
        self.unrecovered_since = None;
        self.cache_forgot = false;
        self.stage = EngineStage::PassThrough;
        self.step = Step::None;
        self.retry_waiting = true;
        self.needs_pump = true;
    }

    /// Stops waiting for the present step.
    pub(super) fn abandon_step(&mut self) {
        self.step = Step::None;
        self.step_serial += 1;
    }

    /// A write of the caching volume for a step: the volume is not released before it has ended.
    pub(super) fn step_write(&mut self, effect: impl FnOnce(EffectId) -> Effect) {
        let id = self.pending.insert(Pending::StepWrite(self.step_serial));
        self.cache.started(self.now, 0);
        self.effects.push_back(effect(id));
    }

    /// A flush that a step waited for has ended.
    pub(super) fn step_flushed(&mut self, serial: u64, result: Result<(), IoFailure>) {
        if serial != self.step_serial {
            return;
        }
        match self.step {
            Step::RecoverFlush { .. } => self.recovery_flushed(result),
            _ => self.step_ended(result.is_ok()),
        }
    }

    /// Emits what the present step needs.
    pub(super) fn enter_step(&mut self) {
        self.step_serial += 1;
        match &self.step {
            Step::AdoptFlush if planted(Bug::AdoptNotFlushed) => self.step_ended(true),
            Step::AdoptFlush | Step::ReleaseMarkFlush | Step::RecoverRepairFlush(_) => self.step_flush(Target::Cache),
            Step::StopFlush | Step::StopMarkFlush => self.step_flush(Target::Cache),
            Step::ReleaseFlush if planted(Bug::CleanBeforeFlush) => self.step_ended(true),
            Step::DropFlush if planted(Bug::DropWithoutFlush) => self.step_ended(true),
            Step::ReleaseFlush | Step::DropFlush => self.step_flush(Target::Backing),
            Step::AdoptOwner if planted(Bug::OwnerDropped) => self.step_ended(true),
            Step::AdoptOwner => {
                let epoch = self.boost.as_ref().map_or_else(Default::default, |boost| boost.attach.epoch);
                self.persist_owner(Recorder::Step(self.step_serial), Owner::Cache { epoch });
            }
            Step::AcceptLoss if planted(Bug::AcceptedReplayed) => self.step_ended(true),
            Step::AdoptUndo | Step::ReleaseOwner | Step::AcceptLoss => {
                self.persist_owner(Recorder::Step(self.step_serial), Owner::Backing);
            }
            Step::DropOwner if planted(Bug::LossNotRecorded) => self.step_ended(true),
            Step::DropOwner => {
                let owner = self.owner_after_drop();
                self.persist_owner(Recorder::Step(self.step_serial), owner);
            }
            Step::ReleaseMark => {
                if let Some(boost) = self.boost.as_mut() {
                    boost.superblock.state = LogState::Clean;
                    self.write_superblock();
                }
            }
            // Of two superblocks that are written at a time, a crash might leave neither.
            Step::StopMark if self.is_listing() => {}
            Step::StopMark => self.close_log(),
            _ => {}
        }
    }

    /// Has the superblock say that no record follows those that were written, and which of them are durable.
    pub(super) fn close_log(&mut self) {
        if let Some(boost) = self.boost.as_mut() {
            boost.superblock.durable = boost.durable;
            // A log of the first release is not opened again in its superblock.
            if boost.superblock.layout == Layout::Two {
                boost.superblock.closed = true;
                boost.superblock.last = boost.last_appended;
            }
            self.write_superblock();
        }
    }

    fn write_superblock(&mut self) {
        let serial = self.step_serial;
        self.emit_superblock(Pending::StepSuperblock(serial));
    }

    /// Writes the next superblock: over the older of the two, or, if the newer one may not be durable, over that one.
    pub(super) fn emit_superblock(&mut self, pending: Pending) {
        let durable = self.cache.flushes.durable();
        let Some(boost) = self.boost.as_mut() else { return };
        let settled = boost.superblock_written.is_some_and(|written| written <= durable);
        boost.superblock.sequence += if settled { 1 } else { 2 };
        boost.superblock_written = None;
        let superblock = boost.superblock.clone();
        let id = self.pending.insert(pending);
        self.cache.started(self.now, 0);
        self.effects.push_back(Effect::WriteSuperblock { id, offset: superblock.offset(), superblock });
    }

    /// A superblock is written, or not.
    pub(super) fn superblock_written(&mut self, result: Result<(), IoFailure>) {
        self.cache.ended(self.now, 0);
        self.cache.wrote(false);
        let written = if result.is_ok() { self.cache.flushes.written() } else { u64::MAX };
        if let Some(boost) = self.boost.as_mut() {
            boost.superblock_written = Some(written);
        }
    }

    fn step_flush(&mut self, target: Target) {
        if self.flush_target(target, Waiter::Lifecycle(self.step_serial)) == FlushRequest::Ready {
            self.step_ended(true);
        }
    }

    /// An effect of a step has ended. Answers to a step that was abandoned come late and count no more.
    pub(super) fn step_done(&mut self, serial: u64, outcome: Outcome) {
        if serial != self.step_serial {
            return;
        }
        let success = !matches!(outcome, Outcome::Failed(_));
        match &mut self.step {
            Step::AdoptFormat { left, failed } | Step::RecoverRepair { left, failed, .. } => {
                *left -= 1;
                *failed |= !success;
                if *left == 0 {
                    let success = !*failed;
                    self.step_ended(success);
                }
            }
            _ => self.step_ended(success),
        }
    }

    /// The present step has ended: what comes next.
    pub(super) fn step_ended(&mut self, success: bool) {
        let now = self.now;
        let retry = |step| Step::Retry { at: now + RETRY, step: Box::new(step) };
        self.step = match (&self.step, success) {
            (Step::AdoptFormat { .. }, true) => Step::AdoptFlush,
            (Step::AdoptFlush, true) => Step::AdoptOwner,
            (Step::AdoptOwner, true) => {
                self.stage = EngineStage::Absorb;
                self.events.push_back(Event::Adopted);
                self.retry_waiting = true;
                Step::None
            }
            (Step::AdoptFormat { .. } | Step::AdoptFlush, false) => return self.adopt_failed(),
            (Step::AdoptUndo, true) => return self.adopt_failed(),
            (Step::AdoptOwner, false) => Step::AdoptUndo,
            (Step::AdoptUndo, false) => retry(Step::AdoptUndo),
            (Step::ReleaseFlush, true) => Step::ReleaseMark,
            (Step::ReleaseMark, true) => Step::ReleaseMarkFlush,
            // A recovered CLEAN: the backing volume was durable before it was written, so nothing is lost without it.
            (Step::ReleaseMarkFlush, false) if self.boost.is_none() => Step::DropOwner,
            (Step::ReleaseMark | Step::ReleaseMarkFlush, false) => return self.cache_failing(),
            (Step::ReleaseMarkFlush, true) => Step::ReleaseOwner,
            (Step::ReleaseOwner, true) => Step::ReleaseReads,
            (Step::ReleaseOwner, false) => retry(Step::ReleaseOwner),
            (Step::DropFlush, true) => Step::DropOwner,
            (Step::DropOwner, true) => Step::DropReads,
            (Step::DropOwner, false) => retry(Step::DropOwner),
            (Step::RecoverRepair { turn, .. }, true) => Step::RecoverRepairFlush(*turn),
            (Step::RecoverRepairFlush(TableCopy::First), true) => {
                return self.write_pages(TableCopy::Second, None);
            }
            (Step::RecoverRepair { .. } | Step::RecoverRepairFlush(_), sound) => return self.replay(sound),
            (Step::StopFlush, true) => Step::StopMark,
            (Step::StopMark, true) => Step::StopMarkFlush,
            (Step::StopFlush | Step::StopMark | Step::StopMarkFlush, _) => return self.stopped(),
            (Step::AcceptLoss, true) => return self.loss_accepted(),
            (Step::AcceptLoss, false) => retry(Step::AcceptLoss),
            (step, _) => step.clone(),
        };
        self.needs_pump = true;
        self.enter_step();
    }

    /// The backing volume did not flush, and may have forgotten what was drained since it last did: that is dirty again,
    /// and a release or a failed cache that waits for this flush goes back to draining. Once a later flush has succeeded
    /// and CLEAN or the owner record is on its way, nothing drained depends on this any more.
    pub(super) fn backing_flush_failed(&mut self) {
        let waits = matches!(self.step, Step::ReleaseFlush | Step::DropFlush);
        match self.stage {
            EngineStage::Absorb | EngineStage::Drain => {}
            EngineStage::Releasing if waits => self.stage = EngineStage::Drain,
            EngineStage::Failing if waits || !matches!(self.step, Step::DropOwner | Step::DropReads) => {}
            _ => return,
        }
        if waits {
            self.step_serial += 1;
            self.step = Step::Retry { at: self.now + RETRY, step: Box::new(Step::None) };
            self.retry_waiting = true;
        }
        self.needs_pump = true;
        if let Some(boost) = self.boost.as_mut().filter(|_| !planted(Bug::FailedFlushForgotten)) {
            boost.mark_drained_dirty();
        }
    }

    fn adopt_failed(&mut self) {
        self.end_boost();
        self.events.push_back(Event::AdoptFailed);
    }
}

impl Boost {
    pub(super) fn new(
        now: Instant,
        attach: Attach,
        superblock: Superblock,
        table_sequences: Vec<u64>,
        space: Space,
    ) -> Self {
        Self {
            attach,
            superblock,
            table_sequences,
            last_record: None,
            last_appended: None,
            appending: std::collections::BTreeSet::new(),
            durable: 0,
            flushing: 0,
            durable_frozen: false,
            superblock_written: Some(0),
            index: Index::default(),
            space,
            next_sequence: 1,
            queue: std::collections::VecDeque::new(),
            queued_blocks: 0,
            batches_in_flight: 0,
            merges_in_flight: 0,
            fills: std::collections::BTreeMap::new(),
            missed: Vec::new(),
            drain: Drain::default(),
            reclaim: Reclaim::new(now),
            checkpoint: Checkpoint::default(),
            growth: Growth::default(),
            space_wanted: false,
            release_wanted: false,
            trouble: Trouble::default(),
            evicted_bytes: 0,
            drained_bytes: 0,
            split_bytes: 0,
            hit_bytes: 0,
        }
    }
}
