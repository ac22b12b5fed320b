//! What a failed cache took with it: what is lost, what heals it, and the record of both.
//!
//! Overwriting heals. Until that is on record the range would be lost again after a crash, so the change is answered only
//! then: its data are flushed, and the next record says what was healed since the last one. All of this costs what is
//! healed, not what is lost.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use smallvec::SmallVec;
use surgetank_model::{Instant, RequestId};

use super::lifecycle::Step;
use super::records::{Note, Recorder};
use super::requests::is_change;
use super::{Engine, EngineStage, Event, Rejected};
use crate::effect::{IoFailure, Owner, ReplyError};
use crate::format::Epoch;
use crate::planted::{Bug, planted};
use crate::ranges::RangeSet;

/// How long to wait before a record that failed is tried again though nobody waits for it.
const RETRY: Duration = Duration::from_secs(1);

/// What a failed cache took with it.
#[derive(Debug)]
pub(super) struct Loss {
    epoch: Epoch,
    /// Bytes of the device that answer EIO.
    ranges: RangeSet,
    /// No flush has told the application since. Those that waited for the cache may not cover all that is lost.
    pub(super) untold: bool,
    /// Sequences of records on the volume that failed and were never acknowledged, as far as they are known.
    void: Vec<u64>,
    /// Overwritten and not on record, oldest first.
    healed: VecDeque<Healed>,
    /// Requests that wait until what was healed up to a write of the backing volume is on record.
    waiting: VecDeque<(RequestId, u64)>,
    recording: Option<Recording>,
    retry_at: Option<Instant>,
}

/// What one write healed.
#[derive(Debug)]
struct Healed {
    /// The number of that write on the backing volume: once it is durable, so is the healing.
    write: u64,
    /// What was lost before, in order; at least one.
    pieces: SmallVec<[Range<u64>; 1]>,
}

impl Healed {
    /// From the first to the last piece: what lies between is not lost either.
    fn span(&self) -> Range<u64> {
        let ends = self.pieces.first().zip(self.pieces.last());
        ends.map_or(0..0, |(first, last)| first.start..last.end)
    }
}

/// A record on its way.
#[derive(Clone, Copy, Debug)]
struct Recording {
    /// It covers what was healed up to this write.
    until: u64,
    /// Nothing is lost after it.
    all: bool,
}

impl Loss {
    pub(super) fn new(epoch: Epoch, ranges: RangeSet, void: Vec<u64>) -> Self {
        // A crash may have come between the last healing and the end of the loss.
        let retry_at = ranges.is_empty().then_some(Instant::ZERO);
        Self {
            epoch,
            ranges,
            untold: false,
            void,
            healed: VecDeque::new(),
            waiting: VecDeque::new(),
            recording: None,
            retry_at,
        }
    }

    pub(super) fn ranges(&self) -> &RangeSet {
        &self.ranges
    }

    pub(super) fn void(&self) -> &[u64] {
        &self.void
    }

    /// Requests that wait until what they healed or cover is on record.
    pub(super) fn into_waiting(self) -> Vec<RequestId> {
        self.waiting.into_iter().map(|(request, _)| request).collect()
    }

    /// Bytes that are lost.
    pub(super) fn total(&self) -> u64 {
        self.ranges.total()
    }

    /// Ranges that are lost.
    pub(super) fn count(&self) -> usize {
        self.ranges.len()
    }

    pub(super) fn overlaps(&self, bytes: &Range<u64>) -> bool {
        self.ranges.overlaps(bytes)
    }

    /// The first ranges (offset, length).
    pub(super) fn first(&self, most: usize) -> Vec<(u64, u64)> {
        self.ranges.iter().take(most).map(|range| (range.start, range.end - range.start)).collect()
    }

    /// Whether a part of this is healed and not on record yet.
    fn is_unrecorded(&self, bytes: &Range<u64>) -> bool {
        self.healed.iter().map(Healed::span).any(|span| span.start < bytes.end && bytes.start < span.end)
    }

    /// A write has overwritten a range: it is not lost any more. Says whether that, or an earlier healing of a part of it
    /// that is not on record yet, must be on record before the reply.
    fn heal(&mut self, bytes: &Range<u64>, write: u64) -> bool {
        let pieces = self.ranges.remove(bytes);
        if pieces.is_empty() {
            return self.is_unrecorded(bytes);
        }
        self.healed.push_back(Healed { write, pieces });
        true
    }

    /// Whether something that was healed up to this write is not on record.
    fn owes(&self, until: u64) -> bool {
        self.healed.front().is_some_and(|healed| healed.write <= until)
    }

    /// The backing volume may have forgotten every write after this one: what they healed is lost again.
    fn forget_after(&mut self, durable: u64) {
        let kept = self.healed.partition_point(|healed| healed.write <= durable);
        for healed in self.healed.drain(kept..) {
            healed.pieces.into_iter().for_each(|piece| self.ranges.insert(piece));
        }
    }
}

impl Engine {
    /// A change of the backing volume by a request has succeeded; it may have overwritten what was lost.
    pub(super) fn heal(&mut self, request: RequestId, bytes: &Range<u64>) {
        let Some(loss) = self.loss.as_mut() else { return };
        let Some(active) = self.requests.get_mut(&request) else { return };
        // What the volume may have forgotten already heals nothing, and the request will fail.
        active.healed |= match active.forgotten {
            true => loss.overlaps(bytes) || loss.is_unrecorded(bytes),
            false => loss.heal(bytes, self.backing.flushes.written()),
        };
    }

    /// The backing volume failed to flush.
    pub(super) fn healing_forgotten(&mut self) {
        let durable = self.backing.flushes.durable();
        if let Some(loss) = self.loss.as_mut().filter(|_| !planted(Bug::ForgottenHealingCounts)) {
            loss.forget_after(durable);
        }
    }

    /// A request that covers writes over lost ranges, or is one, has been flushed: it is answered when that is on record.
    pub(super) fn persist_loss(&mut self, id: RequestId) {
        let Some(active) = self.requests.get_mut(&id) else { return };
        let (request, until) = (active.request, active.loss.take().unwrap_or(0));
        if let Some(loss) = self.loss.as_mut() {
            if is_change(request.operation) && loss.overlaps(&(request.offset..request.offset + request.length)) {
                // A flush failed meanwhile.
                self.fail_request(id, ReplyError::Io);
            } else if loss.owes(until) {
                if !(planted(Bug::HealingUnrecorded) && is_change(request.operation)) {
                    loss.waiting.push_back((id, until));
                    return self.record_loss();
                }
                self.record_loss();
            }
        }
        self.reply(id);
    }

    /// Has what was healed, and is durable, recorded; one record at a time, so what comes meanwhile shares the next one.
    fn record_loss(&mut self) {
        // What stays lost is being recorded as a whole, which answers who waits.
        if self.is_recording_loss() {
            return;
        }
        let until = if planted(Bug::HealingUnflushed) { u64::MAX } else { self.backing.flushes.durable() };
        let Some(loss) = self.loss.as_mut().filter(|loss| loss.recording.is_none()) else { return };
        let durable = loss.healed.partition_point(|healed| healed.write <= until);
        let all = loss.ranges.is_empty() && durable == loss.healed.len();
        if durable == 0 && !all {
            return;
        }
        loss.recording = Some(Recording { until, all });
        let note = if all {
            Note::Owner(Owner::Backing)
        } else {
            let spans = loss.healed.iter().take(durable).map(Healed::span);
            Note::Healed { epoch: loss.epoch, ranges: spans.map(|span| (span.start, span.end - span.start)).collect() }
        };
        self.persist(Recorder::Loss, note);
    }

    pub(super) fn loss_persisted(&mut self, result: Result<(), IoFailure>) {
        let now = self.now;
        let Some(loss) = self.loss.as_mut() else { return };
        let Some(Recording { until, all }) = loss.recording.take() else { return };
        // While the volume is being read back, its end is the end of the loss.
        if result.is_ok() && all && self.boost.is_none() && self.recovery.is_none() {
            self.forget_loss();
            self.events.push_back(Event::CacheDropped);
            return;
        }
        if result.is_ok() {
            while loss.owes(until) {
                loss.healed.pop_front();
            }
        } else {
            loss.retry_at = Some(now + RETRY);
        }
        let waiting = std::mem::take(&mut loss.waiting);
        let (done, later): (VecDeque<_>, VecDeque<_>) =
            waiting.into_iter().partition(|&(_, needed)| needed <= until || !loss.owes(needed));
        let more = !later.is_empty();
        loss.waiting = later;
        for (request, _) in done {
            if result.is_err() {
                self.fail_request(request, ReplyError::Io);
            }
            self.reply(request);
        }
        if more {
            self.record_loss();
        }
    }

    /// Whether everything lost was overwritten while the volume was being read back, and that is being recorded: the end
    /// of the loss is the end of the reading, which failed.
    pub(super) fn ends_healed_loss(&mut self) -> bool {
        if !self.loss.as_ref().is_some_and(|loss| loss.ranges.is_empty()) {
            return false;
        }
        self.record_loss();
        let now = self.now;
        let Some(loss) = self.loss.as_mut() else { return false };
        let ends = loss.recording.as_ref().is_some_and(|recording| recording.all);
        if !ends {
            loss.retry_at = Some(now + RETRY);
        }
        ends
    }

    pub(super) fn loss_deadline(&self) -> Option<Instant> {
        self.loss.as_ref().and_then(|loss| loss.retry_at)
    }

    pub(super) fn pump_loss(&mut self) {
        let now = self.now;
        if self.loss.as_mut().is_some_and(|loss| loss.retry_at.take_if(|at| *at <= now).is_some()) {
            self.record_loss();
        }
    }

    /// The user accepts the loss: lost ranges, or all that an unrecovered cache holds, read as the backing volume has
    /// them. Ends in `CacheDropped`.
    ///
    /// # Errors
    /// If nothing is lost.
    pub fn accept_loss(&mut self, now: Instant) -> Result<(), Rejected> {
        self.now = self.now.max(now);
        self.needs_pump = true;
        let unrecovered = self.stage == EngineStage::Recovering && self.recovery.is_none();
        if !(self.stage == EngineStage::Lost || unrecovered) || self.step != Step::None {
            return Err(Rejected("nothing is lost: there is no loss to accept".to_owned()));
        }
        self.step = Step::AcceptLoss;
        self.enter_step();
        Ok(())
    }

    pub(super) fn loss_accepted(&mut self) {
        self.forget_loss();
        self.events.push_back(Event::CacheDropped);
    }

    fn forget_loss(&mut self) {
        if let Some(loss) = self.loss.take() {
            for (request, _) in loss.waiting {
                self.reply(request);
            }
        }
        self.end_boost();
    }

    /// The first lost ranges (offset, length in bytes), in order; [`Status::lost_ranges`](super::Status::lost_ranges)
    /// says how many there are.
    #[must_use]
    pub fn lost_ranges(&self, most: usize) -> Vec<(u64, u64)> {
        self.loss.as_ref().map_or_else(Vec::new, |loss| loss.first(most))
    }
}

#[cfg(debug_assertions)]
mod check {
    use surgetank_model::RequestId;

    use super::super::check::holds;
    use super::Loss;

    impl Loss {
        /// Whether what is lost is sound. Answers the requests that wait until something is on record.
        pub fn check(&self) -> Result<impl Iterator<Item = RequestId> + '_, String> {
            let pieces = || self.healed.iter().flat_map(|healed| &healed.pieces);
            holds("what is healed is not lost", !pieces().any(|piece| self.overlaps(piece)))?;
            holds("the oldest healing is the first", self.healed.iter().is_sorted_by_key(|healed| healed.write))?;
            Ok(self.waiting.iter().map(|(request, _)| *request))
        }

        pub fn is_recording(&self) -> bool {
            self.recording.is_some()
        }
    }
}
