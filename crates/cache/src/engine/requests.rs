//! Requests from submission to reply: admission, range locks, waiting, parts.

use std::ops::Range;
use std::time::Duration;

use surgetank_model::{Instant, Operation, Request, RequestId};

use super::{Engine, EngineStage, FlushRequest, Waiter};
use crate::effect::{Effect, IoFailure, ReplyError, Target};
use crate::format::BLOCK;
use crate::planted::{Bug, planted};

/// A request that has been started.
#[derive(Debug)]
pub(super) struct Active {
    pub request: Request,
    /// Parts that have not ended, one of them the start itself.
    pub parts: u32,
    error: Option<ReplyError>,
    /// It overwrote lost ranges: that is recorded before the reply, or they would be lost again after a restart.
    pub healed: bool,
    /// A flush of the backing volume failed meanwhile, and may have made it forget a part of this change.
    pub forgotten: bool,
    /// Flush: its reply says that an earlier one failed.
    pub tells: bool,
    /// Flush: its reply says that something was lost.
    tells_loss: bool,
    /// It waits until what was healed up to this write of the backing volume is on record.
    pub loss: Option<u64>,
}

/// What the application did so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub read_bytes: u64,
    pub written_bytes: u64,
    pub requests: u64,
    /// Time in which there was a request, until the last event.
    pub busy: Duration,
}

/// The blocks that a request touches.
pub(super) fn covered(request: &Request) -> Range<u64> {
    let block = u64::from(BLOCK);
    request.offset / block..(request.offset + request.length).div_ceil(block)
}

pub(super) fn is_change(operation: Operation) -> bool {
    match operation {
        Operation::Write { .. } | Operation::Discard | Operation::WriteZeroes { .. } => true,
        Operation::Read | Operation::Flush => false,
    }
}

impl Engine {
    /// Takes a request; exactly one `Effect::Reply` answers it.
    pub fn submit(&mut self, now: Instant, mut request: Request) {
        self.pass_to(now);
        self.needs_pump = true;
        if self.own_flush != Some(request.id) {
            self.count_unseen_writes();
        }
        if !self.is_valid(&request) {
            let result = Err(ReplyError::Invalid);
            self.effects.push_back(Effect::Reply { request: request.id, result });
            return;
        }
        match &mut request.operation {
            Operation::Write { fua } => *fua |= self.flush_pattern.change(),
            Operation::Discard | Operation::WriteZeroes { .. } => _ = self.flush_pattern.change(),
            Operation::Flush => self.flush_pattern.flush(),
            Operation::Read => {}
        }
        if request.operation != Operation::Flush {
            self.last_activity = self.now;
        }
        // A write that comes now does not overtake those that are held back.
        let is_write = matches!(request.operation, Operation::Write { .. });
        let queues = is_write && self.is_direct() && !self.waiting.is_empty();
        let behind = is_change(request.operation) && Self::overlaps_waiting(self.waiting.iter(), &request);
        if queues || behind || !self.try_start(request) {
            self.waiting.push_back(request);
            self.retry_waiting |= queues;
        }
    }

    fn is_valid(&self, request: &Request) -> bool {
        if request.operation == Operation::Flush {
            return true;
        }
        let block = u64::from(self.config.logical_block);
        let transfers = matches!(request.operation, Operation::Read | Operation::Write { .. });
        request.length > 0
            && request.offset.is_multiple_of(block)
            && request.length.is_multiple_of(block)
            && request.offset.checked_add(request.length).is_some_and(|end| end <= self.config.size)
            && !(transfers && request.length > Request::LENGTH_MAX)
            && !self.requests.contains_key(&request.id)
    }

    fn overlaps_waiting<'a>(mut waiting: impl Iterator<Item = &'a Request>, request: &Request) -> bool {
        let range = covered(request);
        waiting.any(|other| {
            let other_range = covered(other);
            is_change(other.operation) && other_range.start < range.end && range.start < other_range.end
        })
    }

    /// Starts a request, unless it must wait.
    fn try_start(&mut self, request: Request) -> bool {
        if self.stage == EngineStage::Recovering {
            return false;
        }
        match request.operation {
            // While it is not known what the failing cache takes with it, nothing can be promised.
            Operation::Flush if self.stage == EngineStage::Failing && !self.is_restoring() => false,
            Operation::Flush => {
                self.begin(request);
                self.start_flush(request.id);
                self.finish_part(request.id, Ok(()));
                true
            }
            Operation::Read => {
                self.begin(request);
                self.start_read(&request);
                self.finish_part(request.id, Ok(()));
                true
            }
            Operation::Write { .. } if self.holds_back_writes() => false,
            Operation::Write { .. } | Operation::Discard | Operation::WriteZeroes { .. } => {
                !self.is_locked(&covered(&request)) && self.start_change(&request)
            }
        }
    }

    /// Whether every change goes to the backing volume.
    fn is_direct(&self) -> bool {
        matches!(self.stage, EngineStage::PassThrough | EngineStage::Adopting | EngineStage::Lost)
    }

    /// Without a cache, writes beyond what keeps the backing volume busy wait here rather than in its queue: when a
    /// caching volume is adopted, they can still go there. While a drain is to be finished, writes have a fifth of the
    /// backing volume.
    fn holds_back_writes(&self) -> bool {
        if self.is_direct() {
            return self.direct_bytes >= self.backing.queue_bytes_max();
        }
        let draining =
            self.boost.as_ref().filter(|_| self.is_finishing()).map_or(0, |boost| boost.drain.bytes_in_flight());
        draining > 0 && self.direct_bytes >= (draining / 4).max(1)
    }

    /// Starts those of the waiting requests that need not wait any more; overlapping changes keep their order.
    pub(super) fn retry_waiting(&mut self) {
        if !std::mem::take(&mut self.retry_waiting) || self.waiting.is_empty() {
            return;
        }
        let mut still = std::collections::VecDeque::with_capacity(self.waiting.len());
        while let Some(request) = self.waiting.pop_front() {
            let held = self.holds_back_writes() && matches!(request.operation, Operation::Write { .. });
            let behind = !held && is_change(request.operation) && Self::overlaps_waiting(still.iter(), &request);
            if held || behind || !self.try_start(request) {
                still.push_back(request);
            }
        }
        self.waiting = still;
    }

    pub(super) fn begin(&mut self, request: Request) {
        let (healed, forgotten, tells, tells_loss) = (false, false, false, false);
        let active = Active { request, parts: 1, error: None, healed, forgotten, tells, tells_loss, loss: None };
        self.requests.insert(request.id, active);
    }

    pub(super) fn is_locked(&self, range: &Range<u64>) -> bool {
        self.locks
            .range(..range.end)
            .next_back()
            .is_some_and(|(_, &end)| end > range.start && !planted(Bug::NoRangeLock))
    }

    pub(super) fn lock(&mut self, range: Range<u64>) {
        self.locks.insert(range.start, range.end);
    }

    pub(super) fn add_part(&mut self, request: RequestId) {
        if let Some(active) = self.requests.get_mut(&request) {
            active.parts += 1;
        }
    }

    /// One part of a request has ended; the last one answers it.
    pub(super) fn finish_part(&mut self, id: RequestId, result: Result<(), IoFailure>) {
        let Some(active) = self.requests.get_mut(&id) else { return };
        if let Err(failure) = result {
            let error = match failure {
                IoFailure::NoSpace => ReplyError::NoSpace,
                IoFailure::Unsupported => ReplyError::Unsupported,
                IoFailure::Io | IoFailure::Corrupt | IoFailure::Gone => ReplyError::Io,
            };
            active.error.get_or_insert(error);
        }
        active.parts -= 1;
        if active.parts > 0 {
            return;
        }
        if active.error.is_none() && std::mem::take(&mut active.healed) {
            active.parts = 1;
            self.start_flush(id);
            self.finish_part(id, Ok(()));
            return;
        }
        if active.error.is_none() && active.loss.is_some() {
            self.persist_loss(id);
            return;
        }
        self.reply(id);
    }

    /// The backing volume did not flush, and may have forgotten what the application wrote to it. A flush of the
    /// application that waits for this one is told by its reply; else the next one is.
    pub(super) fn note_forgotten(&mut self, waiters: &[Waiter]) {
        if planted(Bug::FlushFailureUnreported) {
            return;
        }
        let reported =
            waiters.iter().any(|waiter| matches!(waiter, Waiter::Request(request) if self.is_told(*request)));
        self.unreported_flush_failure |= !reported && self.backing.owes_application();
        for active in self.requests.values_mut() {
            active.forgotten |= is_change(active.request.operation);
        }
    }

    /// Whether the reply to this request tells an application that a flush failed. What a change says concerns itself
    /// alone.
    pub(super) fn is_told(&self, id: RequestId) -> bool {
        if self.own_flush == Some(id) {
            return planted(Bug::OwnFlushTakesNote);
        }
        let operation = self.requests.get(&id).map(|active| active.request.operation);
        operation == Some(Operation::Flush) || planted(Bug::HealingTakesNote)
    }

    /// A flush that no application asked for, as the last one before a stop; answered like others. If it fails, or an
    /// earlier one did, that is still to be told: see [`Engine::owes_flush_failure`].
    pub fn flush(&mut self, now: Instant, id: RequestId) {
        self.own_flush = Some(id);
        self.submit(now, Request { id, operation: Operation::Flush, offset: 0, length: 0 });
    }

    /// Whether a flush has failed, and no flush of the application has been told so. Whoever ends the engine in order
    /// keeps this for the next one.
    #[must_use]
    pub fn owes_flush_failure(&self) -> bool {
        self.unreported_flush_failure || self.telling_flush_failure > 0
    }

    /// The engine before this one owed it: the application's next flush fails.
    pub fn owe_flush_failure(&mut self) {
        self.unreported_flush_failure = true;
    }

    pub(super) fn reply(&mut self, id: RequestId) {
        let Some(active) = self.requests.remove(&id) else { return };
        self.telling_flush_failure -= u32::from(active.tells);
        let Request { operation, length, .. } = active.request;
        if is_change(operation) {
            self.locks.remove(&covered(&active.request).start);
            self.retry_waiting |= !self.waiting.is_empty();
        }
        let result = match active.error {
            None => Ok(()),
            Some(error) => Err(error),
        };
        if active.tells_loss
            && let Some(loss) = self.loss.as_mut()
        {
            loss.untold = false;
        }
        // From its reply on, the application counts on the next flush for it.
        self.unreported_flush_failure |= active.forgotten;
        if result.is_ok() {
            self.counters.requests += 1;
            match operation {
                Operation::Read => self.counters.read_bytes += length,
                Operation::Write { .. } => self.counters.written_bytes += length,
                Operation::Flush | Operation::Discard | Operation::WriteZeroes { .. } => {}
            }
        }
        if operation != Operation::Flush {
            self.last_activity = self.now;
        }
        self.needs_pump = true;
        self.effects.push_back(Effect::Reply { request: id, result });
    }

    pub(super) fn fail_request(&mut self, id: RequestId, error: ReplyError) {
        if let Some(active) = self.requests.get_mut(&id) {
            active.error.get_or_insert(error);
        }
    }

    /// Makes everything completed so far durable, as a part of this request.
    fn start_flush(&mut self, id: RequestId) {
        let told = self.is_told(id) && std::mem::take(&mut self.unreported_flush_failure);
        let covered = self.loss.as_ref().map(|_| self.backing.flushes.written());
        if let Some(active) = self.requests.get_mut(&id) {
            active.loss = covered;
            active.tells = told;
        }
        // Until one has been answered, all are told.
        let untold = self.is_told(id) && self.loss.as_ref().is_some_and(|loss| loss.untold);
        if let Some(active) = self.requests.get_mut(&id) {
            active.tells_loss = untold;
        }
        if let Some(loss) = self.loss.as_mut().filter(|_| planted(Bug::HealConsumesNote)) {
            let heals = self.requests.get(&id).is_some_and(|active| is_change(active.request.operation));
            loss.untold &= !heals;
        }
        if untold {
            self.add_part(id);
            self.finish_part(id, Err(IoFailure::Io));
        }
        if told {
            self.telling_flush_failure += 1;
            self.add_part(id);
            self.finish_part(id, Err(IoFailure::Io));
        }
        let cached = self.boost.is_some() && self.stage != EngineStage::Adopting && !self.is_restoring();
        for target in [Target::Backing, Target::Cache] {
            let skipped = match target {
                Target::Backing => cached && planted(Bug::FlushSkipsBacking),
                Target::Cache => !cached || planted(Bug::FlushSkipsCache),
            };
            if skipped {
                continue;
            }
            self.add_part(id);
            if self.flush_target(target, Waiter::Request(id)) == FlushRequest::Ready {
                self.finish_part(id, Ok(()));
            }
        }
    }
}
