//! The cache fails: save what can be read, tell exactly what is lost, never serve what is old.

use std::collections::VecDeque;
use std::time::Duration;

use surgetank_model::{Instant, RequestId};

use super::append::Part;
use super::lifecycle::Step;
use super::loss::Loss;
use super::{Engine, Event, Pending, Stage};
use crate::effect::{Effect, IoFailure, Owner, ReplyError, Target};
use crate::format::{BLOCK, Content};
use crate::index::{Extent, State};
use crate::ranges::RangeSet;

const BLOCK64: u64 = BLOCK as u64;

/// Times that extents which could not be read are tried again before they count as lost, and the time between.
const RETRIES: u32 = 3;
const RETRY_AFTER: Duration = Duration::from_secs(1);

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
        if result.is_ok() {
            self.heal(part.request, &bytes);
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
        if boost.space.bad > 0 && !boost.gone && boost.retries < RETRIES {
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
        if lost_bytes > 0 {
            self.fail_waiting_flushes();
        }
        for request in boost.stalled_flushes {
            self.finish_part(request, if lost_bytes > 0 { Err(IoFailure::Io) } else { Ok(()) });
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
}

impl super::Boost {
    /// Bytes of the device that could not be read.
    fn bad_ranges(&self) -> RangeSet {
        let bad = self.index.iter().filter(|extent| extent.state == State::Bad);
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
