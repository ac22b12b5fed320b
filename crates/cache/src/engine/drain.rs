//! The drain: dirty extents in order of the device, gathered into long writes of the backing volume.

use std::ops::Range;
use std::time::Duration;

use surgetank_model::Instant;

use super::{Boost, Engine, EngineStage, Pending};
use crate::effect::{BufferId, Effect, IoFailure, ScratchId, Slice, Target};
use crate::format::BLOCK;
use crate::index::{Extent, ExtentState, Kind};
use crate::planted::{Bug, planted};

const BLOCK64: u64 = BLOCK as u64;

/// Blocks of one write of the drain, at most: 1 MiB.
const JOB_BLOCKS: u64 = 256;
/// What the drain has in flight, at most: enough to keep the backing volume busy, also with scattered blocks, and little
/// enough that a request does not wait long.
const JOBS_MAX: usize = 32;
const BLOCKS_IN_FLIGHT_MAX: u64 = 4 * JOB_BLOCKS;
/// While absorbing, the drain may use the volumes when the application has left them alone for this long: longer than the
/// gaps in a burst of writers that compute or sync between their writes.
const IDLE: Duration = Duration::from_millis(50);
const BACKOFF_MIN: Duration = Duration::from_millis(500);
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// One write of the drain.
#[derive(Debug)]
struct DrainJob {
    blocks: Range<u64>,
    /// What the index held when the job was made; the mapping counts as drained only where it still holds that.
    extents: Vec<Extent>,
    failed: Vec<bool>,
    reads_left: u32,
    writes_left: u32,
    write_failed: Option<IoFailure>,
    /// Where its bytes pass through; ranges that are zeroed or discarded have none.
    scratch: Option<ScratchId>,
    makes_room: bool,
    /// A flush of the backing volume failed meanwhile, and may have made it forget the write.
    forgotten: bool,
}

/// The state of the drain.
#[derive(Debug)]
pub(super) struct Drain {
    /// Block of the device at which the next job is looked for.
    cursor: u64,
    jobs: Vec<Option<DrainJob>>,
    /// A search of all segments up to this order found nothing, and nothing in them became dirty since.
    settled: Option<u64>,
    /// Nothing prolongs it (`CacheMode::Finish`): changes over what is not drained and freed wait until it is, segment by segment
    /// from the oldest on, and writes elsewhere leave it four fifths of the backing volume. While the backing volume
    /// refuses its writes they do not, since waiting would not end.
    pub(super) finishing: bool,
    blocked_until: Option<Instant>,
    backoff: Duration,
}

impl Default for Drain {
    fn default() -> Self {
        Self { cursor: 0, jobs: Vec::new(), settled: None, finishing: false, blocked_until: None, backoff: BACKOFF_MIN }
    }
}

impl Drain {
    /// Whether the backing volume refused a write lately.
    pub(super) fn is_blocked(&self, now: Instant) -> bool {
        self.blocked_until.is_some_and(|until| now < until)
    }

    /// Whether nothing is in flight.
    pub(super) fn is_idle(&self) -> bool {
        self.jobs.iter().all(Option::is_none)
    }

    /// Something may have become dirty.
    pub(super) fn stir(&mut self) {
        self.settled = None;
    }

    /// Something became dirty in a segment of this order.
    pub(super) fn stir_from(&mut self, order: u64) {
        self.settled = self.settled.filter(|settled| *settled < order);
    }

    /// Whether another job of the longest may start beside `jobs_max - 1` others.
    fn has_room(&self, jobs_max: usize) -> bool {
        let in_flight = self.jobs.iter().flatten();
        let blocks = in_flight.clone().filter(|job| job.scratch.is_some()).map(|job| job.blocks.end - job.blocks.start);
        in_flight.count() < jobs_max && blocks.sum::<u64>() + JOB_BLOCKS <= BLOCKS_IN_FLIGHT_MAX
    }

    /// Bytes on their way to the backing volume.
    pub(super) fn bytes_in_flight(&self) -> u64 {
        let jobs = self.jobs.iter().flatten().filter(|job| job.scratch.is_some());
        jobs.map(|job| (job.blocks.end - job.blocks.start) * BLOCK64).sum()
    }

    fn overlaps(&self, blocks: &Range<u64>) -> bool {
        self.jobs.iter().flatten().any(|job| job.blocks.start < blocks.end && blocks.start < job.blocks.end)
    }
}

impl Engine {
    /// Jobs of the drain that may be in flight now.
    fn drain_depth(&self) -> usize {
        let Some(boost) = &self.boost else { return 0 };
        if boost.drain.is_blocked(self.now) || boost.space.dirty == boost.space.bad {
            return 0;
        }
        match self.stage {
            EngineStage::Drain | EngineStage::Failing => JOBS_MAX,
            EngineStage::Absorb if boost.space_wanted || self.is_quiet() => JOBS_MAX,
            EngineStage::Absorb | EngineStage::PassThrough | EngineStage::Adopting | EngineStage::Recovering => 0,
            EngineStage::Releasing | EngineStage::Lost => 0,
        }
    }

    fn is_quiet(&self) -> bool {
        self.requests.is_empty() && self.now >= self.last_activity + IDLE
    }

    pub(super) fn drain_deadline(&self) -> Option<Instant> {
        let boost = self.boost.as_ref().filter(|boost| boost.space.dirty > boost.space.bad)?;
        if let Some(until) = boost.drain.blocked_until.filter(|until| *until > self.now) {
            return Some(until);
        }
        let waits =
            self.stage == EngineStage::Absorb && self.requests.is_empty() && boost.drain.settled != Some(u64::MAX);
        let quiet_at = self.last_activity + IDLE;
        (waits && boost.drain.is_idle() && quiet_at > self.now).then_some(quiet_at)
    }

    pub(super) fn pump_drain(&mut self) {
        let depth = self.drain_depth();
        while self.boost.as_ref().is_some_and(|boost| boost.drain.has_room(depth)) {
            if !self.start_job() {
                return;
            }
        }
    }

    fn start_job(&mut self) -> bool {
        // Whoever waits for a segment to be freed waits for the oldest first.
        let oldest_first = self.is_finishing() && !self.waiting.is_empty();
        let Some(boost) = self.boost.as_mut() else { return false };
        let makes_room = self.stage == EngineStage::Absorb && boost.space_wanted;
        let Some(extents) = boost.next_dirty_run(makes_room, oldest_first) else { return false };
        let (Some(first), Some(last)) = (extents.first(), extents.last()) else { return false };
        let blocks = first.block..last.end();
        boost.drain.cursor = blocks.end;
        let kind = first.kind;
        // Until the job ends its segments must not be used again: a newer version of a block at the very same place
        // would be taken for the one that was copied.
        extents.iter().for_each(|extent| boost.space.pin(extent.location));
        let failed = vec![false; extents.len()];
        let slot = boost.drain.jobs.iter().position(Option::is_none).unwrap_or_else(|| {
            boost.drain.jobs.push(None);
            boost.drain.jobs.len() - 1
        });
        let reads_left = if kind == Kind::Data { extents.len() as u32 } else { 0 };
        let job = DrainJob {
            blocks: blocks.clone(),
            extents,
            failed,
            reads_left,
            writes_left: 0,
            write_failed: None,
            scratch: None,
            makes_room,
            forgotten: false,
        };
        boost.drain.jobs[slot] = Some(job);
        match kind {
            Kind::Data => self.read_job(slot as u32),
            Kind::Zeroes | Kind::Discarded => self.zero_job(slot as u32, &blocks, kind),
        }
        true
    }

    fn read_job(&mut self, slot: u32) {
        let Some(job) = self.boost.as_ref().and_then(|boost| boost.drain.jobs[slot as usize].as_ref()) else { return };
        let (extents, start) = (job.extents.clone(), job.blocks.start);
        let scratch = self.allocate((job.blocks.end - start) as u32 * BLOCK);
        for (number, extent) in extents.iter().enumerate() {
            let Some(boost) = self.boost.as_mut() else { return };
            if let Some(job) = boost.drain.jobs[slot as usize].as_mut() {
                job.scratch = Some(scratch);
            }
            boost.space.pin(extent.location);
            let offset = boost.space.offset(extent.location);
            let checksums = boost.space.checksums(extent.location, extent.blocks);
            let checksums = checksums.filter(|_| !planted(Bug::RotDrained));
            let into = Slice {
                buffer: BufferId::Scratch(scratch),
                offset: (extent.block - start) as u32 * BLOCK,
                length: extent.blocks * BLOCK,
            };
            let id = self.pending.insert(Pending::DrainRead { job: slot, extent: number as u32 });
            self.cache.started(self.now, u64::from(into.length));
            self.effects.push_back(Effect::Read { id, target: Target::Cache, offset, into, checksums });
        }
    }

    fn zero_job(&mut self, slot: u32, blocks: &Range<u64>, kind: Kind) {
        for piece in self.wanted_pieces(slot, blocks.start * BLOCK64..blocks.end * BLOCK64) {
            let id = self.pending.insert(Pending::DrainWrite { job: slot, transferred: 0 });
            self.backing.started(self.now, 0);
            let (offset, length) = (piece.start, piece.end - piece.start);
            self.effects.push_back(match kind {
                Kind::Discarded => Effect::Discard { id, offset, length },
                Kind::Zeroes | Kind::Data => Effect::WriteZeroes { id, offset, length, fua: false },
            });
        }
    }

    /// A part of a job has been read and verified, or not.
    pub(super) fn drain_read(&mut self, slot: u32, number: u32, result: Result<(), IoFailure>) {
        let job = self.boost.as_mut().and_then(|boost| boost.drain.jobs[slot as usize].as_mut());
        let Some(job) = job else { return };
        let extent = job.extents[number as usize];
        job.failed[number as usize] = result.is_err();
        job.reads_left -= 1;
        let all_read = job.reads_left == 0;
        self.log_read_ended(extent.location, u64::from(extent.blocks) * BLOCK64);
        if let Err(failure) = result {
            self.cache_read_failed(failure);
        }
        if all_read {
            self.write_job(slot);
        }
    }

    fn write_job(&mut self, slot: u32) {
        let Some(boost) = self.boost.as_mut() else { return };
        let Some(job) = boost.drain.jobs[slot as usize].as_ref() else { return };
        if job.failed.contains(&true) {
            // What could be read is found again by the next search.
            let failed: Vec<Extent> =
                job.extents.iter().zip(&job.failed).filter(|(_, failed)| **failed).map(|(extent, _)| *extent).collect();
            failed.iter().for_each(|extent| boost.mark_bad(extent));
            boost.drain.stir();
            self.end_job(slot);
            return;
        }
        let bytes = job.blocks.start * BLOCK64..job.blocks.end * BLOCK64;
        let Some(scratch) = job.scratch else { return };
        let start = bytes.start;
        for piece in self.wanted_pieces(slot, bytes) {
            let length = piece.end - piece.start;
            let offset = (piece.start - start) as u32;
            let from = Slice { buffer: BufferId::Scratch(scratch), offset, length: length as u32 };
            let id = self.pending.insert(Pending::DrainWrite { job: slot, transferred: length });
            self.backing.started(self.now, length);
            let from = smallvec::smallvec![from];
            self.effects.push_back(Effect::Write {
                id,
                target: Target::Backing,
                offset: piece.start,
                from,
                fua: false,
            });
        }
    }

    /// The bytes of a job that are to reach the backing volume: of a volume that is read back, what has been overwritten
    /// since is not.
    fn wanted_pieces(&mut self, slot: u32, bytes: Range<u64>) -> Vec<Range<u64>> {
        let Some(boost) = self.boost.as_mut() else { return Vec::new() };
        let pieces = match &boost.trouble.only {
            None => vec![bytes],
            Some(only) => {
                only.pieces(&bytes).into_iter().filter_map(|(piece, wanted)| wanted.then_some(piece)).collect()
            }
        };
        if let Some(job) = boost.drain.jobs[slot as usize].as_mut() {
            job.writes_left = pieces.len() as u32;
        }
        pieces
    }

    /// A write of a job has ended.
    pub(super) fn drain_written(&mut self, slot: u32, transferred: u64, result: Result<(), IoFailure>) {
        self.backing.ended(self.now, transferred);
        let Some(boost) = self.boost.as_mut() else { return };
        let Some(job) = boost.drain.jobs[slot as usize].as_mut() else { return };
        job.writes_left -= 1;
        job.write_failed = job.write_failed.or(result.err());
        if job.writes_left > 0 {
            return;
        }
        let result = job.write_failed.take().map_or(Ok(()), Err);
        let bytes = (job.blocks.end - job.blocks.start) * BLOCK64;
        let (extents, makes_room, forgotten) = (job.extents.clone(), job.makes_room, job.forgotten);
        let discards = extents.first().is_some_and(|extent| extent.kind == Kind::Discarded);
        if discards && result == Err(IoFailure::Unsupported) {
            let blocks = job.blocks.clone();
            return self.zero_job(slot, &blocks, Kind::Zeroes);
        }
        match result.or(if planted(Bug::FailedWritesDrained) { Ok(()) } else { result }) {
            Ok(()) if forgotten => {}
            Ok(()) => {
                boost.drain.backoff = BACKOFF_MIN;
                boost.drain.blocked_until = None;
                boost.drained_bytes += bytes;
                if makes_room {
                    boost.evicted_bytes += bytes;
                }
                extents.iter().for_each(|extent| boost.mark_clean(extent));
                boost.reclaim.worth_a_look = true;
            }
            Err(_) => {
                boost.drain.blocked_until = Some(self.now + boost.drain.backoff);
                boost.drain.backoff = (boost.drain.backoff * 2).min(BACKOFF_MAX);
                self.retry_waiting = true;
            }
        }
        boost.drain.stir();
        self.backing.wrote(false);
        self.end_job(slot);
    }

    fn end_job(&mut self, slot: u32) {
        let Some(boost) = self.boost.as_mut() else { return };
        let Some(job) = boost.drain.jobs[slot as usize].take() else { return };
        if !(job.failed.contains(&true) && planted(Bug::FailedJobKeepsPins)) {
            job.extents.iter().for_each(|extent| boost.space.unpin(extent.location));
        }
        self.release_scratch(job.scratch);
    }
}

impl Boost {
    /// The next dirty extents that follow each other on the device, as many as one write takes.
    fn next_dirty_run(&mut self, makes_room: bool, oldest_first: bool) -> Option<Vec<Extent>> {
        let youngest = match (makes_room, oldest_first) {
            (true, _) => self.space.oldest_orders(|_| true),
            // What is drained and not freed yet must not hold up the rest.
            (false, true) => self.space.oldest_orders(|segment| segment.dirty > 0),
            (false, false) => u64::MAX,
        };
        if self.drain.settled.is_some_and(|settled| youngest <= settled) {
            return None;
        }
        let Self { index, space, drain, .. } = self;
        let out = self.trouble.is_out();
        let wanted = |extent: &Extent| {
            // What reads as zeroes is drained whether the log can be read or not.
            let readable = !out || extent.kind != Kind::Data;
            extent.state == ExtentState::Dirty
                && readable
                && space.segments[space.segment_of(extent.location) as usize].order <= youngest
                && !drain.overlaps(&(extent.block..extent.end()))
        };
        let from_start = || index.find(0, wanted);
        let Some(first) = index.find(drain.cursor, wanted).or_else(from_start) else {
            drain.settled = Some(youngest);
            return None;
        };
        let longest = match first.kind {
            // What failed is tried again block by block: one unreadable block must not take its neighbours with it.
            Kind::Data if self.trouble.retries > 0 && !planted(Bug::NeighboursLost) => 1,
            Kind::Data => JOB_BLOCKS,
            Kind::Zeroes | Kind::Discarded => u64::MAX / BLOCK64,
        };
        let end = first.block.saturating_add(longest);
        let mut run: Vec<Extent> = Vec::new();
        for extent in index.overlapping(first.block..end) {
            let follows = run.last().is_none_or(|last| last.end() == extent.block && last.kind == extent.kind);
            if !follows || !wanted(&extent) {
                break;
            }
            run.push(extent);
        }
        Some(run)
    }

    /// The dirty parts of the index that still map to what a job copied.
    fn still_mapped(&self, copied: &Extent) -> Vec<Extent> {
        let same = |extent: &Extent| {
            extent.kind == copied.kind
                && extent.state.dirty()
                && (extent.location == copied.clip(&(extent.block..extent.end())).location
                    || planted(Bug::CleanWithoutVersionCheck))
        };
        self.index.overlapping(copied.block..copied.end()).filter(same).collect()
    }

    /// The backing volume failed to flush and may have forgotten what was drained to it: as far as the log still has it,
    /// it is dirty again, and what is being drained now stays dirty.
    pub(super) fn mark_drained_dirty(&mut self) {
        // What is only being read has not been written yet.
        self.drain.jobs.iter_mut().flatten().for_each(|job| job.forgotten |= job.writes_left > 0);
        self.reclaim.abandon();
        let Self { index, space, reclaim, trouble, .. } = self;
        let forgotten = |extent: &Extent| {
            let segment = space.segment_of(extent.location);
            extent.state == ExtentState::Clean
                && !reclaim.freeing().contains(&segment)
                && !trouble.freeing.contains(&segment)
        };
        let clean: Vec<Extent> = index.iter().filter(forgotten).collect();
        for extent in clean {
            let dirty = Extent { state: ExtentState::Dirty, ..extent };
            self.index.replace(extent.block..extent.end(), Some(dirty), |_| ());
            self.space.undrained(&dirty);
        }
        self.drain.stir();
    }

    fn mark_clean(&mut self, copied: &Extent) {
        for extent in self.still_mapped(copied) {
            if extent.state == ExtentState::Bad {
                // The volume vanished after this part had been read.
                self.space.bad -= u64::from(extent.blocks);
            }
            self.index.replace(
                extent.block..extent.end(),
                Some(Extent { state: ExtentState::Clean, ..extent }),
                |_| (),
            );
            self.space.drained(&extent);
        }
    }

    pub(super) fn mark_bad(&mut self, unreadable: &Extent) {
        for extent in self.still_mapped(unreadable).into_iter().filter(|extent| extent.state == ExtentState::Dirty) {
            self.index.replace(extent.block..extent.end(), Some(Extent { state: ExtentState::Bad, ..extent }), |_| ());
            self.space.bad += u64::from(extent.blocks);
        }
    }
}

#[cfg(debug_assertions)]
mod check {
    use super::super::check::{Bag, holds};
    use super::Drain;
    use crate::index::Extent;

    impl Drain {
        /// What a job drains: all extents, or one of them.
        pub fn extents(&self) -> impl Iterator<Item = &Extent> {
            self.jobs.iter().flatten().flat_map(|job| &job.extents)
        }

        pub fn extent(&self, job: u32, number: u32) -> Option<&Extent> {
            self.jobs.get(job as usize)?.as_ref()?.extents.get(number as usize)
        }

        /// Whether jobs have these reads and writes in flight, and each has one.
        pub fn check(&self, reads: Bag, writes: Bag) -> Result<(), String> {
            let (mut reads_left, mut writes_left) = (Bag::default(), Bag::default());
            for (slot, job) in (0..).zip(&self.jobs) {
                let Some(job) = job else { continue };
                reads_left.add(slot, u64::from(job.reads_left));
                writes_left.add(slot, u64::from(job.writes_left));
                holds("a job of the drain either reads or writes", (job.reads_left > 0) != (job.writes_left > 0))?;
            }
            holds("jobs of the drain count their reads and writes", (reads_left, writes_left) == (reads, writes))
        }
    }
}
