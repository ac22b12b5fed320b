//! The engine: requests and completions in, effects out.

mod append;
mod change;
#[cfg(debug_assertions)]
pub mod check;
mod checkpoint;
mod drain;
mod failure;
mod flush_pattern;
mod growth;
mod lifecycle;
mod loss;
mod path;
mod port;
mod read;
mod reclaim;
mod records;
mod recovery;
mod requests;
mod slab;
mod status;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use surgetank_model::{FlushEnd, FlushRequest, Instant, Limits, Observation, ReadFill, Request, RequestId};

use self::append::{Batch, Part};
use self::change::Merge;
use self::checkpoint::Checkpoint;
use self::drain::Drain;
use self::failure::Trouble;
use self::flush_pattern::FlushPattern;
use self::growth::Growth;
use self::lifecycle::Step;
use self::loss::Loss;
use self::port::{Port, Waiter};
use self::read::Fill;
use self::reclaim::Reclaim;
use self::records::{Note, Recorder};
use self::recovery::{Recovery, Wanted};
use self::requests::{Active, Counters};
use self::slab::Slab;
pub use self::status::{Event, Status};
use crate::effect::{Effect, EffectId, IoFailure, Outcome, Rejected, ScratchId, Slice, Target};
use crate::format::{BLOCK, Epoch, Place, Superblock};
use crate::index::Index;
use crate::planted::{Bug, planted};
use crate::ranges::RangeSet;
use crate::space::Space;

/// What the engine must know of the elastic device.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes of the device and its backing volume; a multiple of `logical_block`.
    pub size: u64,
    /// Logical block size, 512 or 4096 bytes.
    pub logical_block: u32,
    /// Nominal limits of the backing volume; split and drain start from them and measure.
    pub backing_limits: Limits,
    /// How long a caching volume of which nothing can be read is waited for, before who needs what is on it is answered
    /// an error. Nothing is discarded then: see [`Owner::Lost`].
    pub outage_patience: Duration,
}

/// A caching volume to adopt or to recover.
#[derive(Clone, Debug)]
pub struct Attach {
    /// Fresh and random for `adopt`; the persisted owner's for `recover`.
    pub epoch: Epoch,
    /// Bytes of the caching volume.
    pub cache_size: u64,
    /// Nominal limits of the caching volume.
    pub cache_limits: Limits,
    /// Send the share of burst writes that finishes sooner there straight to the backing volume.
    pub split: bool,
    /// Whether reads install data in the cache.
    pub read_fill: ReadFill,
    /// Whether the log has room for indexes, as [`Geometry::wants_indexes`](crate::format::Geometry::wants_indexes) says.
    pub indexes: bool,
}

/// What the controller wants of an adopted cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheMode {
    /// Application first; the drain takes spare backing bandwidth.
    Absorb,
    /// The drain has priority; new writes go to the backing volume except over dirty ranges.
    Drain,
    /// The same, and changes over what is dirty wait, so that none prolongs it.
    Finish,
}

/// Where the engine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineStage {
    /// No caching volume.
    PassThrough,
    /// A caching volume is being formatted; requests pass through.
    Adopting,
    /// A caching volume is being read after a crash; requests wait.
    Recovering,
    /// Absorbing.
    Absorb,
    /// Draining.
    Drain,
    /// Being released: CLEAN is being made durable.
    Releasing,
    /// The caching volume fails: no new appends, what can be read is drained.
    Failing,
    /// The caching volume is not in use, but `Status::lost_bytes` of the device have their newest data on it alone: they
    /// answer EIO until they are overwritten or [`Engine::restore`]d (may be 0 while the loss record is being cleared).
    Lost,
}

/// An adopted caching volume and what is on it.
#[derive(Debug)]
struct Boost {
    attach: Attach,
    superblock: Superblock,
    /// Sequence of the newest version of each page of the segment table.
    table_sequences: Vec<u64>,
    /// The newest record.
    last_record: Option<Place>,
    /// The newest record that has been written.
    last_appended: Option<Place>,
    /// Sequences of records and copies in flight.
    appending: BTreeSet<u64>,
    /// Records up to this sequence are durable.
    durable: u64,
    /// What `durable` becomes when the flush in flight succeeds.
    flushing: u64,
    /// A record that never arrived whole, or may never become durable, is in the log: `durable` must not pass it, or it would be
    /// taken for damage.
    durable_frozen: bool,
    /// The write of the caching volume that was the newest superblock; beyond all if it failed; `None` while it is in flight.
    superblock_written: Option<u64>,
    index: Index,
    space: Space,
    next_sequence: u64,
    /// Parts of requests that wait for a record.
    queue: VecDeque<Part>,
    queued_blocks: u64,
    batches_in_flight: u32,
    merges_in_flight: u32,
    fills: BTreeMap<u64, Fill>,
    /// Ranges that missed lately, hashed: for [`ReadFill::SecondHit`].
    missed: Vec<u64>,
    drain: Drain,
    reclaim: Reclaim,
    checkpoint: Checkpoint,
    growth: Growth,
    /// A write waits until something is reclaimed.
    space_wanted: bool,
    release_wanted: bool,
    trouble: Trouble,
    evicted_bytes: u64,
    drained_bytes: u64,
    split_bytes: u64,
    hit_bytes: u64,
}

/// What an effect in flight is for.
#[derive(Debug)]
enum Pending {
    /// A transfer between a request's buffer and the backing volume, or a discard or write-zeroes there.
    Direct {
        request: RequestId,
        offset: u64,
        length: u64,
        change: bool,
        fill: Option<u64>,
    },
    /// A part of a request that goes to the backing volume after the cache failed.
    Rescue {
        part: Part,
    },
    /// A read of the log into a request's buffer.
    Hit {
        request: RequestId,
        location: u32,
        blocks: u32,
        block: u64,
        into: Slice,
    },
    /// A read of one block of the log of which the request wants a part.
    Bounce {
        request: RequestId,
        location: u32,
        block: u64,
        scratch: ScratchId,
        skip: u32,
        into: Slice,
    },
    /// The old content of a block of which a request changes a part.
    Merge(Merge),
    Append(Batch),
    /// Copies of a read, being installed.
    Install {
        fill: u64,
        segment: u32,
        scratch: ScratchId,
        blocks: u32,
    },
    DrainRead {
        job: u32,
        extent: u32,
    },
    DrainWrite {
        job: u32,
        transferred: u64,
    },
    Flush(Target),
    /// A write of the caching volume for the step of the life cycle with this serial.
    StepWrite(u64),
    /// The same of a superblock.
    StepSuperblock(u64),
    /// A read of a recovery, and what it is read as.
    Recovery(Wanted),
    Parse(Wanted),
    /// A read that shows whether the caching volume answers.
    Probe {
        scratch: ScratchId,
        /// Of a block that is dirty.
        wanted: bool,
    },
    ReclaimTable,
    Growth,
    /// The index of this segment.
    Index(u32),
    /// The superblock that names segments for records.
    List,
    /// The owner record is being persisted.
    Owner(Recorder),
}

/// The elastic block cache of one device. See the crate and `docs/ARCHITECTURE.md`.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    now: Instant,
    stage: EngineStage,
    step: Step,
    /// Grows with every step, so that late answers are known as such.
    step_serial: u64,
    requests: BTreeMap<RequestId, Active>,
    /// Block ranges of changes in flight, start → end: disjoint.
    locks: BTreeMap<u64, u64>,
    waiting: VecDeque<Request>,
    retry_waiting: bool,
    pending: Slab<Pending>,
    next_scratch: u32,
    /// Unique over boosts: a read may outlive the boost in which its fill began.
    next_fill: u64,
    effects: VecDeque<Effect>,
    events: VecDeque<Event>,
    backing: Port,
    cache: Port,
    /// The backing volume failed to flush what an application wrote, and no flush of its own has been told so yet.
    unreported_flush_failure: bool,
    /// Flushes of the application that will be told so.
    telling_flush_failure: u32,
    /// A flush that no application asked for.
    own_flush: Option<RequestId>,
    /// The backing volume may have been written since, and no request has come here yet.
    unseen_writes: bool,
    /// Bytes of changes in flight on the backing volume.
    direct_bytes: u64,
    boost: Option<Boost>,
    recovery: Option<Recovery>,
    /// Recoveries in a row that found a part of the log unreadable.
    recovery_attempts: u32,
    /// A flush of the caching volume failed: what it was to make durable may never become that.
    cache_forgot: bool,
    /// Since when no recovery succeeds.
    unrecovered_since: Option<Instant>,
    /// No record is begun any more.
    stopping: bool,
    loss: Option<Loss>,
    /// Owner records to persist, one after the other: the last one must be the one that stays.
    owners: VecDeque<(Recorder, Note)>,
    owner_in_flight: bool,
    counters: Counters,
    flush_pattern: FlushPattern,
    last_activity: Instant,
    /// Something happened since the last pump.
    needs_pump: bool,
}

impl Engine {
    /// A device without a caching volume; its owner record is `Backing`.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let now = Instant::ZERO;
        Self {
            now,
            stage: EngineStage::PassThrough,
            step: Step::None,
            step_serial: 0,
            requests: BTreeMap::new(),
            locks: BTreeMap::new(),
            waiting: VecDeque::new(),
            retry_waiting: false,
            pending: Slab::default(),
            next_scratch: 0,
            next_fill: 0,
            effects: VecDeque::new(),
            events: VecDeque::new(),
            backing: Port::new(now, config.backing_limits),
            cache: Port::new(now, Limits::NONE),
            unreported_flush_failure: false,
            telling_flush_failure: 0,
            own_flush: None,
            unseen_writes: false,
            direct_bytes: 0,
            boost: None,
            recovery: None,
            recovery_attempts: 0,
            cache_forgot: false,
            unrecovered_since: None,
            stopping: false,
            loss: None,
            owners: VecDeque::new(),
            owner_in_flight: false,
            counters: Counters::default(),
            flush_pattern: FlushPattern::default(),
            last_activity: now,
            needs_pump: false,
            config,
        }
    }

    /// A device whose owner record is `Lost`: the ranges (offset, length in bytes) answer EIO until overwritten.
    #[must_use]
    pub fn with_lost(config: Config, epoch: Epoch, ranges: &[(u64, u64)]) -> Self {
        let ranges = RangeSet::from_pairs(ranges);
        let mut engine = Self::new(config);
        engine.stage = EngineStage::Lost;
        engine.loss = Some(Loss::new(epoch, ranges, Vec::new()));
        engine
    }

    /// A device whose owner record is `Cache`: requests wait until `recover` succeeds.
    #[must_use]
    pub fn awaiting_recovery(config: Config) -> Self {
        let mut engine = Self::new(config);
        engine.stage = EngineStage::Recovering;
        engine
    }

    /// Time has passed until `now`.
    pub(super) fn pass_to(&mut self, now: Instant) {
        self.counters.busy = self.busy_until(now);
        self.now = self.now.max(now);
    }

    /// Time until `now` in which there was a request of the application.
    fn busy_until(&self, now: Instant) -> Duration {
        let waits = !self.requests.is_empty() || !self.waiting.is_empty();
        self.counters.busy + if waits { now.since(self.now) } else { Duration::ZERO }
    }

    /// Takes the outcome of an effect.
    pub fn complete(&mut self, now: Instant, effect: EffectId, outcome: Outcome) {
        self.pass_to(now);
        self.needs_pump = true;
        let Some(pending) = self.pending.take(effect) else { return };
        let result = match &outcome {
            Outcome::Failed(failure) => Err(*failure),
            _ => Ok(()),
        };
        match pending {
            Pending::Direct { request, offset, length, change, fill } => {
                self.direct_done(request, offset..offset + length, change, fill, result);
            }
            Pending::Rescue { part } => self.rescue_done(&part, result),
            Pending::Hit { request, location, blocks, block, into } => {
                self.hit_done(request, location, blocks, block, into, result);
            }
            Pending::Bounce { request, location, block, scratch, skip, into } => {
                self.bounce_done(request, location, block, scratch, skip, into, result);
            }
            Pending::Merge(merge) => self.merge_read(merge, result),
            Pending::Append(batch) => self.append_done(batch, outcome),
            Pending::Install { fill, segment, scratch, blocks } => {
                self.install_done(fill, segment, scratch, blocks, outcome);
            }
            Pending::DrainRead { job, extent } => self.drain_read(job, extent, result),
            Pending::DrainWrite { job, transferred } => self.drain_written(job, transferred, result),
            Pending::Flush(target) => self.flush_done(target, result),
            Pending::StepWrite(serial) => {
                self.cache.ended(self.now, 0);
                self.cache.wrote(false);
                self.step_done(serial, outcome);
            }
            Pending::StepSuperblock(serial) => {
                self.superblock_written(result);
                self.step_done(serial, outcome);
            }
            Pending::Recovery(wanted) => self.recovery_read(wanted, result),
            Pending::Parse(wanted) => self.recovery_parsed(&wanted, outcome),
            Pending::Probe { scratch, wanted } => self.probed(scratch, wanted, result),
            Pending::ReclaimTable => self.reclaim_table_written(result),
            Pending::Index(segment) => self.index_written(segment, result),
            Pending::List => self.list_written(result),
            Pending::Growth => self.growth_written(result),
            Pending::Owner(recorder) => {
                self.owner_in_flight = false;
                match recorder {
                    Recorder::Step(serial) => self.step_done(serial, outcome),
                    Recorder::Loss => self.loss_persisted(result),
                }
                self.next_owner();
            }
        }
    }

    /// Lets time pass; call at `next_deadline`.
    pub fn tick(&mut self, now: Instant) {
        self.pass_to(now);
        self.needs_pump = true;
    }

    /// The next thing to do, in order.
    pub fn next_effect(&mut self) -> Option<Effect> {
        // Work is gathered while the driver hands in what arrived together, so that one record commits it all.
        while self.effects.is_empty() && self.needs_pump {
            self.needs_pump = false;
            self.pump();
        }
        self.effects.pop_front()
    }

    /// The next thing to tell the controller's driver.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When `tick` must be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let control = [self.reclaim_deadline(), self.lifecycle_deadline(), self.recovery_deadline()];
        let data = [self.drain_deadline(), self.loss_deadline()];
        control.into_iter().chain(data).flatten().min()
    }

    fn pump(&mut self) {
        self.retry_waiting();
        self.pump_append();
        self.pump_drain();
        self.pump_reclaim();
        self.pump_checkpoint();
        self.pump_lifecycle();
        self.pump_recovery();
        self.pump_loss();
    }

    /// Names a scratch buffer of `length` bytes and has it allocated.
    fn allocate(&mut self, length: u32) -> ScratchId {
        let scratch = ScratchId(self.next_scratch);
        self.next_scratch = self.next_scratch.wrapping_add(1);
        self.effects.push_back(Effect::Allocate { scratch, length });
        scratch
    }

    fn release_scratch(&mut self, scratch: Option<ScratchId>) {
        self.effects.extend(scratch.map(|scratch| Effect::Release { scratch }));
    }

    fn port(&mut self, target: Target) -> &mut Port {
        match target {
            Target::Backing => &mut self.backing,
            Target::Cache => &mut self.cache,
        }
    }

    /// Makes what is completed on a volume durable; `Ready` at once if it is.
    fn flush_target(&mut self, target: Target, waiter: Waiter) -> FlushRequest {
        let request = self.port(target).flushes.request(waiter);
        if request == FlushRequest::Issue {
            self.emit_flush(target);
        }
        request
    }

    fn emit_flush(&mut self, target: Target) {
        if let Some(boost) = self.boost.as_mut().filter(|_| target == Target::Cache) {
            boost.flushing = boost.settled();
        }
        let id = self.pending.insert(Pending::Flush(target));
        self.effects.push_back(Effect::Flush { id, target });
    }

    fn flush_done(&mut self, target: Target, result: Result<(), IoFailure>) {
        let ignored = target == Target::Cache && planted(Bug::CacheFlushFailureIgnored);
        let result = if ignored { Ok(()) } else { result };
        if let Some(boost) = self.boost.as_mut().filter(|_| target == Target::Cache && result.is_ok()) {
            boost.now_durable(boost.flushing);
            boost.checkpoint.flushed = boost.flushing;
        }
        let FlushEnd { done: waiters, again } = self.port(target).flushes.ended(result.is_ok());
        if again {
            self.emit_flush(target);
        }
        match target {
            Target::Cache if result.is_err() => {
                // What it was to make durable may go with the power, whatever a later flush says.
                let forgot = result != Err(IoFailure::Gone) && !planted(Bug::FailedCacheFlushForgotten);
                self.cache_forgot |= forgot;
                self.boost.iter_mut().for_each(|boost| boost.durable_frozen |= forgot);
                self.cache_failing();
            }
            Target::Backing if result.is_err() => self.backing_flush_failed(),
            Target::Cache | Target::Backing => {}
        }
        if target == Target::Backing && result.is_err() {
            self.healing_forgotten();
            self.note_forgotten(&waiters);
        }
        for waiter in waiters {
            match waiter {
                Waiter::Request(request) if target == Target::Cache => self.cache_flushed_for(request, result),
                Waiter::Request(request) => self.finish_part(request, result),
                Waiter::Reclaim => self.reclaim_flushed(target, result),
                Waiter::Checkpoint => self.needs_pump = true,
                Waiter::List => self.list_flushed(result),
                Waiter::Growth => self.growth_flushed(result),
                Waiter::Lifecycle(serial) => self.step_flushed(serial, result),
            }
        }
    }

    /// A snapshot for people and tests.
    #[must_use]
    pub fn status(&self) -> Status {
        let observation = self.observation(self.now);
        let boost = self.boost.as_ref();
        Status {
            stage: self.stage,
            dirty_bytes: observation.dirty_bytes,
            cache_bytes: observation.cache_bytes,
            used_bytes: boost.map_or(0, |boost| boost.space.used_bytes()),
            high_water_bytes: observation.high_water_bytes,
            evicted_bytes: observation.evicted_bytes,
            drained_bytes: boost.map_or(0, |boost| boost.drained_bytes),
            split_bytes: boost.map_or(0, |boost| boost.split_bytes),
            hit_bytes: boost.map_or(0, |boost| boost.hit_bytes),
            lost_bytes: self.loss.as_ref().map_or(0, Loss::total),
            lost_ranges: self.loss.as_ref().map_or(0, Loss::count),
            requests_in_flight: self.requests.len() + self.waiting.len(),
        }
    }

    /// What the controller is told each sampling interval.
    #[must_use]
    pub fn observation(&self, now: Instant) -> Observation {
        let boost = self.boost.as_ref();
        let lost = self.loss.as_ref().map_or(0, Loss::total);
        Observation {
            read_bytes: self.counters.read_bytes,
            written_bytes: self.counters.written_bytes,
            requests: self.counters.requests,
            busy: self.busy_until(now),
            dirty_bytes: boost.map_or(0, |boost| (boost.space.dirty + boost.queued_blocks) * u64::from(BLOCK)) + lost,
            high_water_bytes: boost
                .map_or(0, |boost| u64::from(boost.space.high_water) * u64::from(boost.space.geometry.segment_size)),
            evicted_bytes: boost.map_or(0, |boost| boost.evicted_bytes),
            drained_bytes: boost.map_or(0, |boost| boost.drained_bytes),
            cache_bytes: boost.map_or(0, |boost| boost.space.usable_bytes()),
            cache_failed: matches!(self.stage, EngineStage::Failing | EngineStage::Lost),
        }
    }

    /// Bytes of memory that the index and the segment table take.
    #[must_use]
    pub fn index_memory_bytes(&self) -> usize {
        self.boost.as_ref().map_or(0, |boost| boost.index.memory_bytes() + boost.space.memory_bytes())
    }

    /// The backing volume has grown to `size` bytes.
    ///
    /// # Errors
    /// If `size` is smaller than before or misaligned.
    pub fn grow(&mut self, size: u64) -> Result<(), Rejected> {
        if size < self.config.size || !size.is_multiple_of(u64::from(self.config.logical_block)) {
            return Err(Rejected(format!(
                "the device cannot go from {} to {size} bytes: it only grows",
                self.config.size
            )));
        }
        self.config.size = size;
        Ok(())
    }
}
