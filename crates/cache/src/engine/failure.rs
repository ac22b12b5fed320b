//! The cache fails: save what can be read, tell exactly what is lost, never serve what is old.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use surgetank_model::{Instant, RequestId};

use super::append::Part;
use super::lifecycle::Step;
use super::{Engine, Event, Pending, Recorder, Rejected, Stage};
use crate::effect::{Effect, IoFailure, Owner, ReplyError, Target};
use crate::format::{BLOCK, Content, Epoch};
use crate::index::{Extent, State};
use crate::planted::{Bug, planted};
use crate::ranges::RangeSet;

const BLOCK64: u64 = BLOCK as u64;

/// Times that extents which could not be read are tried again before they count as lost, and the time between.
const RETRIES: u32 = 3;
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// What a failed cache took with it.
#[derive(Debug)]
pub(super) struct Loss {
    epoch: Epoch,
    /// Bytes of the device that answer EIO.
    ranges: RangeSet,
    /// Grows when ranges are overwritten.
    version: u64,
    /// The version that the owner record holds.
    recorded: u64,
    /// Flushes that wait until the record holds what they cover.
    waiting: VecDeque<(RequestId, u64, RangeSet)>,
    recording: Option<(u64, bool)>,
}

impl Loss {
    pub(super) fn new(epoch: Epoch, ranges: RangeSet) -> Self {
        Self { epoch, ranges, version: 0, recorded: 0, waiting: VecDeque::new(), recording: None }
    }

    pub(super) fn total(&self) -> u64 {
        self.ranges.total()
    }

    pub(super) fn overlaps(&self, bytes: &Range<u64>) -> bool {
        self.ranges.overlaps(bytes)
    }

    pub(super) fn pairs(&self) -> Vec<(u64, u64)> {
        self.ranges.iter().map(|range| (range.start, range.end - range.start)).collect()
    }

    /// A range has been overwritten: it is not lost any more. Says whether the owner record must learn of it, or of an
    /// earlier overwriting that may have been the same range's, before the reply.
    pub(super) fn heal(&mut self, bytes: &Range<u64>) -> bool {
        self.version += u64::from(self.ranges.remove(bytes));
        self.version != self.recorded
    }

    /// What the owner record should say now, if it does not.
    pub(super) fn unrecorded(&self) -> Option<(u64, RangeSet)> {
        (self.version != self.recorded).then(|| (self.version, self.ranges.clone()))
    }
}

impl Engine {
    /// The caching volume vanished: everything not on the backing volume is lost (now, without waiting for errors).
    pub fn cache_gone(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.cache_failing();
        if let Some(boost) = self.boost.as_mut().filter(|_| self.stage == Stage::Failing) {
            boost.gone = true;
            let dirty: Vec<Extent> = boost.index.iter().filter(|extent| extent.state == State::Dirty).collect();
            dirty.iter().for_each(|extent| boost.mark_bad(extent));
        }
    }

    /// Something on the caching volume failed: no more appends; what is dirty is drained as far as it can be read.
    pub(super) fn cache_failing(&mut self) {
        if self.boost.is_none() || !matches!(self.stage, Stage::Absorb | Stage::Drain | Stage::Releasing) {
            return;
        }
        self.stage = Stage::Failing;
        self.give_up_step();
        self.retry_waiting = true;
        self.stirred = true;
        if let Some(boost) = self.boost.as_mut() {
            boost.reclaim = super::Reclaim::new(self.now);
            boost.drain.stir();
        }
        self.events.push_back(Event::CacheFailing);
    }

    /// A flush of the cache has ended that a request waits for. Once one has failed, no later one tells anything.
    pub(super) fn cache_flushed_for(&mut self, request: RequestId, result: Result<(), IoFailure>) {
        match self.boost.as_mut().filter(|_| self.stage == Stage::Failing) {
            Some(boost) => boost.stalled_flushes.push(request),
            None => self.finish_part(request, result),
        }
    }

    pub(super) fn strand_queue(&mut self) {
        let Some(boost) = self.boost.as_mut() else { return };
        boost.queued_blocks = 0;
        let queue = std::mem::take(&mut boost.queue);
        for part in queue {
            if let Some(boost) = self.boost.as_mut() {
                boost.space.reserved -= part.reserved;
            }
            self.strand(part);
        }
    }

    /// A part that the log did not take goes to the backing volume: at once where no record covers it, else when it is
    /// certain that no record will be replayed.
    pub(super) fn strand(&mut self, part: Part) {
        let Some(boost) = self.boost.as_mut() else { return };
        let blocks = part.block..part.block + u64::from(part.blocks);
        if boost.index.overlapping(blocks).any(|extent| extent.state.replayable()) {
            boost.stranded.push(part);
        } else {
            self.rescue(part);
        }
    }

    fn rescue(&mut self, part: Part) {
        let (offset, length) = (part.block * BLOCK64, u64::from(part.blocks) * BLOCK64);
        if let Some(boost) = self.boost.as_mut() {
            let super::Boost { index, space, .. } = boost;
            let blocks = part.block..part.block + u64::from(part.blocks);
            index.remove_where(blocks, |extent| !extent.state.replayable(), |old| space.removed(&old, None));
        }
        let (content, source, fua) = (part.content, part.source, part.fua);
        let id = self.pending.insert(Pending::Rescue { part });
        self.backing.started(self.now, if source.is_some() { length } else { 0 });
        self.effects.push_back(match (content, source) {
            (Content::Data | Content::Copied, Some(source)) => {
                let from = smallvec::smallvec![source];
                Effect::Write { id, target: Target::Backing, offset, from, fua }
            }
            (Content::Discarded, _) => Effect::Discard { id, offset, length },
            (Content::Zeroes | Content::Data | Content::Copied, _) => Effect::WriteZeroes { id, offset, length, fua },
        });
    }

    pub(super) fn rescue_done(&mut self, part: &Part, result: Result<(), IoFailure>) {
        let length = u64::from(part.blocks) * BLOCK64;
        self.backing.ended(self.now, if part.source.is_some() { length } else { 0 });
        self.backing.wrote_for_application(false);
        let bytes = part.block * BLOCK64..part.block * BLOCK64 + length;
        if result.is_ok() && self.loss.as_mut().is_some_and(|loss| loss.heal(&bytes)) {
            self.mark_healed(part.request);
        }
        self.release_scratch(part.scratch);
        self.finish_part(part.request, result);
    }

    pub(super) fn failing_deadline(&self) -> Option<Instant> {
        let boost = self.boost.as_ref().filter(|_| self.stage == Stage::Failing)?;
        boost.retry_at.filter(|at| *at > self.now)
    }

    /// When everything that can be read is drained: try the rest again, or let the cache go.
    pub(super) fn pump_failing(&mut self) {
        let now = self.now;
        let Some(boost) = self.boost.as_mut() else { return };
        let busy = !boost.drain.is_idle()
            || boost.batches_in_flight > 0
            || boost.merges_in_flight > 0
            || !boost.queue.is_empty()
            || boost.space.dirty > boost.space.bad;
        if busy {
            return;
        }
        if boost.space.bad > 0 && !boost.gone && boost.retries < RETRIES && !planted(Bug::NoRetries) {
            match boost.retry_at {
                None => boost.retry_at = Some(now + RETRY_AFTER),
                Some(at) if now >= at => {
                    boost.retry_at = None;
                    boost.retries += 1;
                    boost.retry_bad();
                    self.stirred = true;
                }
                Some(_) => {}
            }
            return;
        }
        self.step = Step::DropFlush;
        self.enter_step();
    }

    pub(super) fn owner_after_drop(&self) -> Owner {
        let Some(boost) = &self.boost else { return Owner::Backing };
        let ranges = boost.bad_ranges();
        if ranges.is_empty() {
            return Owner::Backing;
        }
        let ranges = ranges.iter().map(|range| (range.start, range.end - range.start)).collect();
        Owner::Lost { epoch: boost.attach.epoch, ranges }
    }

    /// The owner record says what became of the cache: forget it, and let what waited go on.
    pub(super) fn drop_cache(&mut self) {
        let Some(boost) = self.boost.take() else {
            self.end_boost();
            self.events.push_back(Event::CacheDropped);
            return;
        };
        let ranges = boost.bad_ranges();
        let lost_bytes = ranges.total();
        self.end_boost();
        if lost_bytes > 0 {
            self.stage = Stage::Lost;
            self.loss = Some(Loss::new(boost.attach.epoch, ranges));
            self.events.push_back(Event::CacheLost { lost_bytes });
        } else {
            self.events.push_back(Event::CacheDropped);
        }
        for part in boost.stranded {
            self.rescue(part);
        }
        let succeed = planted(Bug::WaitingFlushesSucceed);
        if lost_bytes > 0 && !succeed {
            self.fail_waiting_flushes();
        }
        for request in boost.stalled_flushes {
            self.finish_part(request, if lost_bytes > 0 && !succeed { Err(IoFailure::Io) } else { Ok(()) });
        }
    }

    /// Flushes that came while the cache was failing cover writes that are lost with it.
    fn fail_waiting_flushes(&mut self) {
        let (flushes, others): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|request| request.operation == surgetank_model::Operation::Flush);
        self.waiting = others;
        for flush in flushes {
            self.effects.push_back(Effect::Reply { request: flush.id, result: Err(ReplyError::Io) });
        }
    }

    /// The user accepts the loss: lost ranges, or all that an unrecovered cache holds, read as the backing volume has
    /// them. Ends in `CacheDropped`.
    ///
    /// # Errors
    /// If nothing is lost.
    pub fn accept_loss(&mut self, now: Instant) -> Result<(), Rejected> {
        self.now = self.now.max(now);
        self.stirred = true;
        let unrecovered = self.stage == Stage::Recovering && self.recovery.is_none();
        if !(self.stage == Stage::Lost || unrecovered) || self.step != Step::None {
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
            for (request, ..) in loss.waiting {
                self.reply(request);
            }
        }
        self.end_boost();
    }

    /// A flush covers writes over lost ranges: it is answered when the owner record knows of them.
    pub(super) fn persist_loss(&mut self, id: RequestId) {
        let snapshot = self.requests.get_mut(&id).and_then(|active| active.loss.take());
        match (snapshot, self.loss.as_mut()) {
            (Some((version, ranges)), Some(loss)) if version > loss.recorded => {
                loss.waiting.push_back((id, version, ranges));
                self.record_loss();
            }
            _ => self.reply(id),
        }
    }

    fn record_loss(&mut self) {
        let Some(loss) = self.loss.as_mut().filter(|loss| loss.recording.is_none()) else { return };
        let Some((_, version, ranges)) = loss.waiting.iter().max_by_key(|(_, version, _)| *version) else { return };
        loss.recording = Some((*version, ranges.is_empty()));
        let owner = if ranges.is_empty() {
            Owner::Backing
        } else {
            let ranges = ranges.iter().map(|range| (range.start, range.end - range.start)).collect();
            Owner::Lost { epoch: loss.epoch, ranges }
        };
        self.persist_owner(Recorder::Loss, owner);
    }

    pub(super) fn loss_persisted(&mut self, result: Result<(), IoFailure>) {
        let Some(loss) = self.loss.as_mut() else { return };
        let Some((recorded, all_healed)) = loss.recording.take() else { return };
        let waiting = std::mem::take(&mut loss.waiting);
        let (done, later): (VecDeque<_>, VecDeque<_>) =
            waiting.into_iter().partition(|(_, version, _)| *version <= recorded);
        loss.waiting = later;
        if result.is_ok() {
            loss.recorded = recorded;
        }
        for (request, ..) in done {
            if result.is_err() {
                self.fail_request(request, ReplyError::Io);
            }
            self.reply(request);
        }
        if result.is_ok() && all_healed {
            self.forget_loss();
            self.events.push_back(Event::CacheDropped);
            return;
        }
        self.record_loss();
    }
}

impl super::Boost {
    /// Bytes of the device that could not be read.
    fn bad_ranges(&self) -> RangeSet {
        let all = planted(Bug::AllLostWithOneBlock) && self.space.bad > 0;
        let bad = self.index.iter().filter(|extent| all || extent.state == State::Bad);
        bad.map(|extent| extent.block * BLOCK64..extent.end() * BLOCK64).collect()
    }

    fn retry_bad(&mut self) {
        let bad: Vec<Extent> = self.index.iter().filter(|extent| extent.state == State::Bad).collect();
        for extent in bad {
            self.index.replace(extent.block..extent.end(), Some(Extent { state: State::Dirty, ..extent }), |_| ());
        }
        self.space.bad = 0;
        self.drain.stir();
    }
}
