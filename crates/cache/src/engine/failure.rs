//! The cache fails: save what can be read, wait for what may come back, tell what is lost, never serve what is old.
//!
//! A failed read does not say whether one block cannot be read or nothing can. So a few blocks are probed: while none of
//! them can be read there is an *outage*, in which nothing else is asked of the volume, nothing is discarded, and whoever
//! needs what is on it waits, for [`Config::outage_patience`](super::Config) at most. Once the volume answers, what can be
//! read is drained, and what cannot is tried again a few times.
//!
//! What is discarded in the end is recorded as the ranges whose newest data are on that volume alone
//! ([`Owner::Lost`]). They come back if the volume does ([`Engine::restore`]).

use std::ops::Range;
use std::time::Duration;

use surgetank_model::{Instant, Request, RequestId};

use super::append::Part;
use super::change::Merge;
use super::lifecycle::Step;
use super::loss::Loss;
use super::requests::is_change;
use super::{Boost, Engine, EngineStage, Event, Pending};
use crate::effect::{BufferId, Effect, IoFailure, Owner, ReplyError, ScratchId, Slice, Target};
use crate::format::{BLOCK, Content};
use crate::index::{Extent, ExtentState, Kind};
use crate::planted::{Bug, planted};
use crate::ranges::RangeSet;

const BLOCK64: u64 = BLOCK as u64;

/// Times that extents which could not be read are tried again before they count as lost, and the time between.
const RETRIES: u32 = 3;
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// First and longest pause between two probes.
const PROBE_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Nothing can be read of the caching volume, as far as is known.
#[derive(Debug)]
pub(super) struct Outage {
    /// Since the first read that failed.
    since: Instant,
    /// A probe has failed too: it is not just one block.
    confirmed: bool,
    /// The volume is not there; it is not asked before it has returned.
    gone: bool,
    /// The probe at the end of patience has begun.
    last_probe: bool,
    pub probes_in_flight: u32,
    /// One of the probes in flight could be read.
    answered: bool,
    next_probe: Instant,
    pause: Duration,
    /// Block of the device from which a dirty one is looked for, to be probed.
    cursor: u64,
}

impl Outage {
    fn new(now: Instant) -> Self {
        Self {
            since: now,
            confirmed: false,
            gone: false,
            last_probe: false,
            probes_in_flight: 0,
            answered: false,
            next_probe: now,
            pause: PROBE_PAUSE.0,
            cursor: 0,
        }
    }
}

/// Records are missing from the log of which nothing is known.
#[derive(Debug)]
pub(super) struct Unknown {
    /// Bytes of the device with newer records than those: nothing is missing there.
    pub newer: RangeSet,
}

/// The state of a failing caching volume.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    pub outage: Option<Outage>,
    /// The patience with an outage has ended: what was not read by then is lost.
    out_of_patience: bool,
    /// Times that unreadable extents were tried again.
    pub retries: u32,
    retry_at: Option<Instant>,
    /// What was bad when the retries began.
    retried: RangeSet,
    /// Segments that were being freed when the cache began to fail: what was drained from them is durable.
    pub freeing: Vec<u32>,
    /// Parts of changes that must reach the backing volume once it is known what the failed cache took with it.
    pub stranded: Vec<Part>,
    /// Changes of parts of blocks whose old content could not be read.
    pub stranded_merges: Vec<Merge>,
    /// Parts of reads that wait for what cannot be read now.
    pub parked: Vec<(RequestId, Range<u64>)>,
    /// Flushes that the failing cache did not do: answered when it is known what it took with it.
    pub stalled_flushes: Vec<RequestId>,
    /// The superblock says, as far as it could be written, that no record follows.
    closed: bool,
    /// Records may be missing.
    pub unknown: Option<Unknown>,
    /// Only these bytes of the device are wanted of the volume: the lost ranges when [`Engine::restore`] read it.
    pub only: Option<RangeSet>,
}

impl Trouble {
    /// Whether nothing can be read, as far as is known.
    pub fn is_out(&self) -> bool {
        self.outage.is_some()
    }
}

impl Engine {
    /// The caching volume vanished. It is waited for as in any outage, and left alone until [`Engine::cache_returned`].
    pub fn cache_gone(&mut self, now: Instant) {
        self.pass_to(now);
        self.cache_failing();
        if self.stage != EngineStage::Failing {
            return;
        }
        self.begin_outage();
        if let Some(outage) = self.boost.as_mut().and_then(|boost| boost.trouble.outage.as_mut()) {
            outage.gone = true;
            outage.confirmed = true;
        }
    }

    /// The caching volume that had vanished is there again: the driver has put it under its effects.
    pub fn cache_returned(&mut self, now: Instant) {
        self.pass_to(now);
        self.needs_pump = true;
        if let Some(outage) = self.boost.as_mut().and_then(|boost| boost.trouble.outage.as_mut()) {
            outage.gone = false;
            outage.next_probe = self.now;
        }
    }

    /// Something on the caching volume failed: no more appends; what is dirty is drained as far as it can be read.
    pub(super) fn cache_failing(&mut self) {
        let works = matches!(self.stage, EngineStage::Absorb | EngineStage::Drain | EngineStage::Releasing);
        if self.boost.is_none() || !works {
            return;
        }
        self.stage = EngineStage::Failing;
        if matches!(self.step, Step::StopSettle | Step::StopFlush | Step::StopMark | Step::StopMarkFlush) {
            self.events.push_back(Event::Stopped);
        }
        self.abandon_step();
        (self.retry_waiting, self.needs_pump) = (true, true);
        if let Some(boost) = self.boost.as_mut() {
            boost.trouble.freeing.extend_from_slice(boost.reclaim.freeing());
            boost.reclaim = super::Reclaim::new(self.now);
            boost.drain.stir();
        }
        self.abandon_growth();
        self.events.push_back(Event::CacheFailing);
    }

    /// A read of the caching volume has failed. One that was answered with the wrong bytes is no outage.
    pub(super) fn cache_read_failed(&mut self, failure: IoFailure) {
        self.cache_failing();
        if failure != IoFailure::Corrupt {
            self.begin_outage();
        }
    }

    fn begin_outage(&mut self) {
        let now = self.now;
        self.needs_pump = true;
        if let Some(boost) = self.boost.as_mut().filter(|_| self.stage == EngineStage::Failing) {
            boost.trouble.outage.get_or_insert_with(|| Outage::new(now));
        }
    }

    /// Reads a few blocks to see whether the volume answers: the superblocks, and one that is wanted.
    fn probe(&mut self) {
        let Some(boost) = self.boost.as_mut() else { return };
        let Boost { trouble, index, space, .. } = boost;
        let Some(outage) = trouble.outage.as_mut() else { return };
        let dirty = |extent: &Extent| extent.kind == Kind::Data && extent.state.dirty();
        let wanted = index.find(outage.cursor, dirty).or_else(|| index.find(0, dirty));
        let wanted = wanted.map(|extent| {
            outage.cursor = extent.block + 1;
            (space.offset(extent.location), space.checksums(extent.location, 1), true)
        });
        let superblocks = [0, BLOCK64].map(|offset| (offset, None, false));
        let probes: Vec<_> = superblocks.into_iter().chain(wanted).collect();
        outage.probes_in_flight = probes.len() as u32;
        outage.answered = false;
        for (offset, checksums, wanted) in probes {
            let scratch = self.allocate(BLOCK);
            let id = self.pending.insert(Pending::Probe { scratch, wanted });
            self.cache.started(self.now, BLOCK64);
            let into = Slice { buffer: BufferId::Scratch(scratch), offset: 0, length: BLOCK };
            self.effects.push_back(Effect::Read { id, target: Target::Cache, offset, into, checksums });
        }
    }

    pub(super) fn probed(&mut self, scratch: ScratchId, wanted: bool, result: Result<(), IoFailure>) {
        self.cache.ended(self.now, BLOCK64);
        self.release_scratch(Some(scratch));
        let now = self.now;
        let Some(boost) = self.boost.as_mut() else { return };
        if wanted && result.is_ok() {
            // What could not be read can: one try more.
            boost.trouble.retries = boost.trouble.retries.min(RETRIES - 1);
        }
        let Some(outage) = boost.trouble.outage.as_mut() else { return };
        outage.probes_in_flight -= 1;
        outage.answered |= matches!(result, Ok(()) | Err(IoFailure::Corrupt));
        if outage.probes_in_flight > 0 {
            return;
        }
        if !outage.answered {
            self.needs_pump = true;
            outage.confirmed = true;
            outage.next_probe = now + outage.pause;
            outage.pause = (outage.pause * 2).min(PROBE_PAUSE.1);
            return;
        }
        let confirmed = outage.confirmed || boost.trouble.out_of_patience;
        boost.trouble.outage = None;
        boost.trouble.out_of_patience = false;
        if confirmed {
            // What failed meanwhile says nothing of the blocks.
            boost.retry_bad();
        }
        boost.drain.stir();
        self.needs_pump = true;
        self.retry_waiting = true;
        self.unpark();
    }

    /// Whether what is on the caching volume is not to be asked for now.
    pub(super) fn is_out(&self) -> bool {
        self.boost.as_ref().is_some_and(|boost| boost.trouble.is_out())
    }

    /// A part of a read waits for what cannot be read now; it counts as a part of its request until then.
    pub(super) fn park(&mut self, request: RequestId, bytes: Range<u64>) {
        if planted(Bug::FailingReadsFail) {
            return self.fail_request(request, ReplyError::Io);
        }
        self.add_part(request);
        if let Some(boost) = self.boost.as_mut() {
            boost.trouble.parked.push((request, bytes));
        }
    }

    /// Tries the reads that wait again.
    fn unpark(&mut self) {
        let parked = self.boost.as_mut().map(|boost| std::mem::take(&mut boost.trouble.parked));
        for (id, bytes) in parked.into_iter().flatten() {
            match planted(Bug::ParkedReadsFail) {
                true => self.finish_part(id, Err(IoFailure::Io)),
                false => self.read_again(id, bytes),
            }
        }
    }

    fn read_again(&mut self, id: RequestId, bytes: Range<u64>) {
        if let Some(request) = self.requests.get(&id).map(|active| active.request) {
            self.read_range(&request, bytes);
        }
        self.finish_part(id, Ok(()));
    }

    /// The old content of a block of which a change has a part cannot be read: the change waits, as those that come now.
    pub(super) fn strand_merge(&mut self, merge: Merge) {
        if let Some(boost) = self.boost.as_mut() {
            boost.trouble.stranded_merges.push(merge);
        }
    }

    /// A flush of the cache has ended that a request waits for. Once one has failed, no later one tells anything.
    pub(super) fn cache_flushed_for(&mut self, request: RequestId, result: Result<(), IoFailure>) {
        match self.boost.as_mut().filter(|_| self.stage == EngineStage::Failing) {
            Some(boost) => boost.trouble.stalled_flushes.push(request),
            None => self.finish_part(request, result),
        }
    }

    pub(super) fn strand_queue(&mut self) {
        let Some(boost) = self.boost.as_mut() else { return };
        boost.queued_blocks = 0;
        let queue = std::mem::take(&mut boost.queue);
        boost.space.reserved -= queue.iter().map(|part| part.reserved).sum::<u64>();
        boost.space.tombstones_reserved -= queue.iter().map(|part| part.tombstones).sum::<u64>();
        queue.into_iter().for_each(|part| self.strand(part));
    }

    /// A part that the log did not take goes to the backing volume: at once where no record covers it, else when it is
    /// certain that no record will be replayed.
    pub(super) fn strand(&mut self, part: Part) {
        let Some(boost) = self.boost.as_mut() else { return };
        let blocks = part.block..part.block + u64::from(part.blocks);
        if boost.index.overlapping(blocks).any(|extent| extent.state.replayable()) {
            boost.trouble.stranded.push(part);
        } else {
            self.rescue(part);
        }
    }

    fn rescue(&mut self, part: Part) {
        let (offset, length) = (part.block * BLOCK64, u64::from(part.blocks) * BLOCK64);
        if let Some(boost) = self.boost.as_mut() {
            let Boost { index, space, .. } = boost;
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
        let transfers = part.source.is_some() && !planted(Bug::RescueStaysInFlight);
        self.backing.ended(self.now, if transfers { length } else { 0 });
        self.backing.wrote_for_application(false);
        let bytes = part.block * BLOCK64..part.block * BLOCK64 + length;
        if result.is_ok() {
            self.heal(part.request, &bytes);
        }
        self.release_scratch(part.scratch);
        self.finish_part(part.request, result);
    }

    pub(super) fn failing_deadline(&self) -> Option<Instant> {
        let boost = self.boost.as_ref().filter(|_| self.stage == EngineStage::Failing)?;
        let next = match &boost.trouble.outage {
            None => boost.trouble.retry_at,
            Some(outage) => {
                let probe = Some(outage.next_probe).filter(|_| !outage.gone && outage.probes_in_flight == 0);
                let patience = outage.since + self.patience();
                Some(probe.map_or(patience, |probe| probe.min(patience))).filter(|_| !boost.trouble.out_of_patience)
            }
        };
        next.filter(|at| *at > self.now)
    }

    /// How long an outage is waited for.
    fn patience(&self) -> Duration {
        if planted(Bug::PatienceIgnored) { Duration::ZERO } else { self.config.outage_patience }
    }

    /// When everything that can be read is drained: try the rest again, or let the cache go.
    pub(super) fn pump_failing(&mut self) {
        let now = self.now;
        let patience = self.patience();
        self.close_failing_log();
        let Some(boost) = self.boost.as_mut() else { return };
        let dirty = boost.space.dirty > 0;
        if let Some(outage) = boost.trouble.outage.as_mut().filter(|_| dirty && !boost.trouble.out_of_patience) {
            // It may be back since the last probe: one more at the end.
            let at_end = now >= outage.since + patience;
            let last = at_end && !outage.last_probe && !outage.gone && !planted(Bug::NoLastProbe);
            if outage.probes_in_flight > 0 {
                return;
            }
            if last || !at_end && now >= outage.next_probe && !outage.gone {
                outage.last_probe |= at_end;
                return self.probe();
            }
            if !at_end {
                return;
            }
            boost.trouble.out_of_patience = true;
            boost.drain.stir();
        }
        let busy = !boost.drain.is_idle()
            || boost.batches_in_flight > 0
            || boost.merges_in_flight > 0
            || !boost.queue.is_empty();
        if busy || self.heals_in_flight() {
            return;
        }
        let Some(boost) = self.boost.as_mut() else { return };
        if boost.trouble.out_of_patience && boost.space.dirty > boost.space.bad {
            // Zeroes need no reading.
            let unread = |extent: &Extent| extent.state == ExtentState::Dirty && extent.kind == Kind::Data;
            let dirty: Vec<Extent> = boost.index.iter().filter(unread).collect();
            dirty.iter().for_each(|extent| boost.mark_bad(extent));
        }
        if boost.space.dirty > boost.space.bad {
            return;
        }
        if boost.space.bad > 0 && boost.trouble.retries == RETRIES {
            let bad = boost.ranges(|extent| extent.state == ExtentState::Bad);
            if bad.iter().any(|range| !boost.trouble.retried.contains(&range)) {
                // It failed only during the retries of the rest: it is due as many.
                boost.trouble.retries = 0;
            }
        }
        if boost.space.bad > 0
            && !boost.trouble.out_of_patience
            && boost.trouble.retries < RETRIES
            && !planted(Bug::NoRetries)
        {
            match boost.trouble.retry_at {
                None => boost.trouble.retry_at = Some(now + RETRY_AFTER),
                Some(at) if now >= at => {
                    boost.trouble.retry_at = None;
                    if boost.trouble.retries == 0 {
                        let bad = boost.ranges(|extent| extent.state == ExtentState::Bad);
                        bad.iter().for_each(|range| boost.trouble.retried.insert(range));
                    }
                    boost.trouble.retries += 1;
                    boost.retry_bad();
                    self.needs_pump = true;
                }
                Some(_) => {}
            }
            return;
        }
        let Some(boost) = self.boost.as_mut() else { return };
        if let Some(outage) = boost.trouble.outage.as_ref().filter(|_| dirty) {
            // The backing volume may have failed for long meanwhile: the caching volume may be back.
            if outage.probes_in_flight > 0 {
                return;
            }
            if !outage.gone && now >= outage.next_probe && !planted(Bug::NoLastProbe) {
                return self.probe();
            }
        }
        self.step = Step::DropFlush;
        self.enter_step();
    }

    /// Has the superblock say that no record follows those that were written: what cannot be read behind them is none.
    fn close_failing_log(&mut self) {
        let Some(boost) = self.boost.as_mut() else { return };
        // Of a log that was not read whole, nobody knows the end.
        let known = boost.trouble.only.is_none() && boost.trouble.unknown.is_none();
        let alone = boost.superblock_written.is_some() || planted(Bug::TwoSuperblocksAtOnce);
        if known && !boost.trouble.closed && boost.batches_in_flight == 0 && alone {
            boost.trouble.closed = true;
            self.close_log();
        }
    }

    /// Whether changes of lost ranges are under way: they heal what is about to be recorded as lost.
    fn heals_in_flight(&self) -> bool {
        let Some(loss) = &self.loss else { return false };
        self.locks.iter().any(|(start, end)| loss.overlaps(&(start * BLOCK64..end * BLOCK64)))
    }

    /// Whether the ranges that stay lost are being recorded: nothing heals meanwhile.
    pub(super) fn is_recording_loss(&self) -> bool {
        matches!(self.step, Step::DropFlush | Step::DropOwner | Step::DropReads)
            || matches!(&self.step, Step::Retry { step, .. } if **step == Step::DropOwner)
    }

    /// Bytes of the device that stay lost if the caching volume is released now.
    fn lost_after_drop(&self) -> RangeSet {
        let Some(boost) = &self.boost else { return RangeSet::default() };
        if planted(Bug::AllLostWithOneBlock) && boost.space.bad > 0 {
            return boost.index.iter().map(|extent| extent.block * BLOCK64..extent.end() * BLOCK64).collect();
        }
        let bad = boost.ranges(|extent| extent.state == ExtentState::Bad);
        let unknown = boost.trouble.unknown.as_ref();
        let Some((only, loss)) = boost.trouble.only.as_ref().zip(self.loss.as_ref()) else {
            let Some(unknown) = unknown else { return bad };
            let mut lost: RangeSet = std::iter::once(0..self.config.size).collect();
            unknown.newer.iter().for_each(|range| _ = lost.remove(&range));
            bad.iter().for_each(|range| lost.insert(range));
            return lost;
        };
        // Of what was wanted all is back but what could not be read. While records may be missing that holds only for what
        // is newer than they are.
        let mut back = only.clone();
        bad.iter().filter(|_| !planted(Bug::RestoreForgetsRanges)).for_each(|range| _ = back.remove(&range));
        if let Some(unknown) = unknown {
            back = back.intersection(&unknown.newer);
        }
        let mut lost = loss.ranges().clone();
        back.iter().for_each(|range| _ = lost.remove(&range));
        lost
    }

    pub(super) fn owner_after_drop(&self) -> Owner {
        let Some(boost) = &self.boost else { return Owner::Backing };
        let ranges = self.lost_after_drop();
        if ranges.is_empty() {
            return Owner::Backing;
        }
        let ranges = ranges.iter().map(|range| (range.start, range.end - range.start)).collect();
        Owner::Lost { epoch: boost.attach.epoch, ranges }
    }

    /// The owner record says what became of the cache: forget it, and let what waited go on.
    pub(super) fn drop_cache(&mut self) {
        let ranges = self.lost_after_drop();
        let before = self.loss.take();
        let untold = before.as_ref().is_none_or(|loss| loss.untold);
        let answered = before.map(Loss::into_waiting).unwrap_or_default();
        let Some(boost) = self.boost.take() else {
            self.end_boost();
            self.events.push_back(Event::CacheDropped);
            return;
        };
        let lost_bytes = ranges.total();
        self.fail_lost_changes(&boost, &ranges);
        self.end_boost();
        if lost_bytes > 0 {
            self.stage = EngineStage::Lost;
            let mut loss = Loss::new(boost.attach.epoch, ranges, boost.superblock.void);
            loss.untold = untold;
            self.loss = Some(loss);
            self.events.push_back(Event::CacheLost { lost_bytes });
        } else {
            self.events.push_back(Event::CacheDropped);
        }
        // The record that was just written holds everything that they healed.
        answered.into_iter().for_each(|request| self.reply(request));
        for part in boost.trouble.stranded {
            self.rescue(part);
        }
        for merge in boost.trouble.stranded_merges {
            self.change_after_drop(merge);
        }
        for (request, bytes) in boost.trouble.parked {
            self.read_again(request, bytes);
        }
        // Of a volume that is read back, no flush depends.
        let flushes_fail = lost_bytes > 0 && boost.trouble.only.is_none() && !planted(Bug::WaitingFlushesSucceed);
        if flushes_fail {
            self.fail_waiting_flushes();
        }
        for request in boost.trouble.stalled_flushes {
            // A forced change vouches for itself alone, and fails above if it is lost.
            let is_flush = self.requests.get(&request).is_some_and(|active| !is_change(active.request.operation));
            self.finish_part(request, if flushes_fail && is_flush { Err(IoFailure::Io) } else { Ok(()) });
        }
    }

    /// Changes of which a part is lost with the log, while others have not ended, fail.
    fn fail_lost_changes(&mut self, boost: &Boost, lost: &RangeSet) {
        if boost.trouble.only.is_some() {
            return;
        }
        let changes =
            self.requests.values().map(|active| active.request).filter(|request| is_change(request.operation));
        let mut failed = Vec::new();
        for request in changes {
            let bytes = request.offset..request.offset + request.length;
            let pieces = lost.pieces(&bytes).into_iter().filter(|(_, lost)| *lost);
            let mut gone: RangeSet = pieces.map(|(piece, _)| piece).collect();
            for part in boost.trouble.stranded.iter().filter(|part| part.request == request.id) {
                gone.remove(&(part.block * BLOCK64..(part.block + u64::from(part.blocks)) * BLOCK64));
            }
            for merge in boost.trouble.stranded_merges.iter().filter(|merge| merge.request() == request.id) {
                gone.remove(merge.bytes());
            }
            if !gone.is_empty() {
                failed.push(request.id);
            }
        }
        failed.into_iter().for_each(|id| self.fail_request(id, ReplyError::Io));
    }

    /// Flushes that came while the cache was failing cover writes that are lost with it.
    fn fail_waiting_flushes(&mut self) {
        let (flushes, others) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|request: &Request| request.operation == surgetank_model::Operation::Flush);
        self.waiting = others;
        let flushes: std::collections::VecDeque<Request> = flushes;
        for flush in flushes {
            self.effects.push_back(Effect::Reply { request: flush.id, result: Err(ReplyError::Io) });
        }
    }
}

impl Boost {
    /// Bytes of the device of extents that `of` accepts.
    fn ranges(&self, of: impl Fn(&Extent) -> bool) -> RangeSet {
        let accepted = self.index.iter().filter(|extent| of(extent));
        accepted.map(|extent| extent.block * BLOCK64..extent.end() * BLOCK64).collect()
    }

    fn retry_bad(&mut self) {
        for extent in self.index.iter().filter(|extent| extent.state == ExtentState::Bad).collect::<Vec<_>>() {
            let dirty = Extent { state: ExtentState::Dirty, ..extent };
            self.index.replace(extent.block..extent.end(), Some(dirty), |_| ());
        }
        self.space.bad = 0;
        self.drain.stir();
    }
}
