//! What holds of an engine between two events, once all its effects are taken. Debug builds alone have it: the crash
//! simulation checks it after every event.
//!
//! Everything that the engine counts is counted again from what is in flight, and every stage of the life cycle has the steps
//! and the state that it may have. Whoever waits has something to wait for.

use surgetank_model::{Operation, RequestId};

use super::failure::Trouble;
use super::lifecycle::Step;
use super::port::Waiter;
use super::records::Recorder;
use super::recovery::Wanted;
use super::requests::{covered, is_change};
use super::{Boost, Engine, EngineStage, Pending};
use crate::effect::Target;
use crate::format::{BLOCK, RECORDS_IN_FLIGHT_MAX};

const BLOCK64: u64 = BLOCK as u64;

/// How much is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Depth {
    /// What is in flight.
    InFlight,
    /// The sums over the index, too.
    Index,
}

/// What does not hold.
type Check = Result<(), String>;

pub(crate) fn equal<T: PartialEq + std::fmt::Debug>(what: &str, kept: T, counted: T) -> Check {
    if kept == counted { Ok(()) } else { Err(format!("{what}: {kept:?} kept, {counted:?} counted")) }
}

pub(crate) fn holds(what: &str, does: bool) -> Check {
    if does { Ok(()) } else { Err(format!("this does not hold: {what}")) }
}

/// A multiset of numbers by a sum of their hashes: two that differ look equal once in 2⁶⁴.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bag(u64);

impl Bag {
    pub fn add(&mut self, number: u64, times: u64) {
        // The finalizer of SplitMix64.
        let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.0 = self.0.wrapping_add((mixed ^ mixed >> 31).wrapping_mul(times));
    }
}

/// Transfers in flight on a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    pub effects: u32,
    pub bytes: u64,
    pub flushes: u32,
}

impl Load {
    fn add(&mut self, bytes: u64) {
        self.effects += 1;
        self.bytes += bytes;
    }
}

/// What is in flight, counted.
#[derive(Default)]
struct Tally {
    backing: Load,
    cache: Load,
    direct_bytes: u64,
    /// Requests, once for each of their parts.
    parts: Bag,
    /// Segments, once for each read of them.
    pins: Bag,
    /// Segments, once for each write to them.
    appends: Bag,
    /// Sequences of records.
    sequences: Bag,
    records: u32,
    merges: u32,
    /// Blocks promised to merges.
    reserved: u64,
    fills: usize,
    /// Jobs of the drain, once for each read and for each write of theirs.
    job_reads: Bag,
    job_writes: Bag,
    step_writes: u32,
    superblocks: u32,
    lists: u32,
    growths: u32,
    tables: u32,
    indexes: u32,
    probes: u32,
    recovery: u32,
    recovery_indexes: usize,
    step_owners: u32,
    loss_owners: u32,
}

impl Engine {
    /// Whether what the engine keeps agrees with itself. Call it when [`Engine::next_effect`] has none.
    ///
    /// # Errors
    /// The first thing that does not hold.
    pub fn check(&self, depth: Depth) -> Result<(), String> {
        let tally = self.tally();
        self.check_stage()?;
        self.check_step(&tally)?;
        self.check_requests(&tally)?;
        self.backing.check("in flight on the backing volume", tally.backing)?;
        self.cache.check("in flight on the caching volume", tally.cache)?;
        equal("bytes of changes in flight on the backing volume", self.direct_bytes, tally.direct_bytes)?;
        self.check_records(&tally)?;
        let Some(boost) = &self.boost else {
            holds("without a cache nothing is read of a log", tally.pins == Bag::default())?;
            return holds("without a cache nothing is appended to a log", tally.appends == Bag::default());
        };
        boost.check(&tally, self.stage)?;
        boost.reclaim.check(tally.tables, [&self.backing, &self.cache], self.stage == EngineStage::Failing)?;
        boost.checkpoint.check(tally.lists, tally.indexes, &self.cache)?;
        boost.check_growth(tally.growths, &self.cache, self.stage)?;
        match depth {
            Depth::InFlight => Ok(()),
            Depth::Index => boost.space.check_sums(&boost.index),
        }
    }

    /// The stage, the step, and what there is of a cache, a recovery and a loss fit together.
    fn check_stage(&self) -> Check {
        let (step, again) = match &self.step {
            Step::Retry { step, .. } => (&**step, true),
            step => (step, false),
        };
        let retried =
            matches!(step, Step::None | Step::AdoptUndo | Step::ReleaseOwner | Step::DropOwner | Step::AcceptLoss);
        let recovers = matches!(
            step,
            Step::RecoverRead | Step::RecoverFlush { .. } | Step::RecoverRepair { .. } | Step::RecoverRepairFlush(_)
        );
        let (boost, recovery, loss) = (self.boost.is_some(), self.recovery.as_ref(), self.loss.is_some());
        let restoring = recovery.map(|recovery| recovery.restoring);
        let waits = recovers && recovery.is_some()
            || recovery.is_none() && (matches!(step, Step::AcceptLoss) || matches!(step, Step::None) && !again);
        let legal = match self.stage {
            EngineStage::PassThrough => *step == Step::None && !again && !boost && recovery.is_none() && !loss,
            EngineStage::Adopting => {
                let adopts =
                    matches!(step, Step::AdoptFormat { .. } | Step::AdoptFlush | Step::AdoptOwner | Step::AdoptUndo);
                adopts && boost && recovery.is_none() && !loss
            }
            EngineStage::Recovering => waits && restoring != Some(true) && !boost && !loss,
            EngineStage::Absorb | EngineStage::Drain => {
                let stops = matches!(step, Step::StopSettle | Step::StopFlush | Step::StopMark | Step::StopMarkFlush);
                (stops || *step == Step::None) && boost && recovery.is_none() && !loss
            }
            EngineStage::Releasing => {
                let releases = match step {
                    Step::ReleaseFlush | Step::ReleaseMark => boost,
                    Step::ReleaseMarkFlush | Step::ReleaseOwner | Step::ReleaseReads => true,
                    // Of a log that was found CLEAN.
                    Step::DropOwner | Step::DropReads => !boost,
                    _ => false,
                };
                releases && recovery.is_none() && !loss
            }
            EngineStage::Failing => {
                let drops = matches!(step, Step::None | Step::DropFlush | Step::DropOwner | Step::DropReads);
                drops && boost && recovery.is_none() && self.is_restoring() == loss
            }
            EngineStage::Lost => waits && restoring != Some(false) && !boost && loss,
        };
        if legal && (!again || retried) {
            return Ok(());
        }
        Err(format!(
            "stage {:?} does not go with step {:?}, cache {boost}, restoring {restoring:?}, loss {loss}",
            self.stage, self.step
        ))
    }

    /// The step waits for something that will end.
    fn check_step(&self, tally: &Tally) -> Check {
        let flushes = [&self.backing, &self.cache]
            .map(|port| u32::from(port.flushes.is_awaited_by(Waiter::Lifecycle(self.step_serial))));
        let waits = match &self.step {
            Step::None | Step::Retry { .. } => true,
            Step::AdoptFormat { left, .. } | Step::RecoverRepair { left, .. } => {
                *left > 0 && *left == tally.step_writes
            }
            Step::AdoptFlush
            | Step::ReleaseMarkFlush
            | Step::RecoverRepairFlush(_)
            | Step::StopFlush
            | Step::StopMarkFlush => flushes[1] > 0,
            Step::ReleaseFlush | Step::DropFlush => flushes[0] > 0,
            Step::RecoverFlush { left, .. } => *left > 0 && u32::from(*left) == flushes[0] + flushes[1],
            Step::AdoptOwner | Step::AdoptUndo | Step::ReleaseOwner | Step::DropOwner | Step::AcceptLoss => {
                let recorder = Recorder::Step(self.step_serial);
                tally.step_owners > 0 || self.owners.iter().any(|(waiting, _)| *waiting == recorder)
            }
            Step::ReleaseMark => tally.superblocks > 0,
            Step::StopMark => tally.superblocks > 0 || self.is_listing(),
            Step::StopSettle => tally.records > 0,
            Step::RecoverRead => tally.recovery > 0,
            Step::ReleaseReads | Step::DropReads => tally.cache.effects + tally.cache.flushes > 0,
        };
        if waits { Ok(()) } else { Err(format!("step {:?} waits for nothing", self.step)) }
    }

    /// Requests count their parts, and changes hold the locks.
    fn check_requests(&self, tally: &Tally) -> Check {
        let (mut parts, mut locks, mut changes, mut tells) = (Bag::default(), Bag::default(), 0, 0);
        for (id, active) in &self.requests {
            parts.add(id.0, u64::from(active.parts));
            tells += u32::from(active.tells);
            if is_change(active.request.operation) {
                let blocks = covered(&active.request);
                locks.add(blocks.start << 32 ^ blocks.end, 1);
                changes += 1;
            }
        }
        if parts != tally.parts {
            return Err(format!("the parts of requests are not what is in flight of them: {:?}", self.requests));
        }
        equal("flushes that tell of one that failed", self.telling_flush_failure, tells)?;
        let (mut held, mut end) = (Bag::default(), 0);
        for (&start, &next) in &self.locks {
            if start < end {
                return Err(format!("blocks {start}..{next} are locked twice"));
            }
            end = next;
            held.add(start << 32 ^ next, 1);
        }
        equal("locks", self.locks.len(), changes)?;
        holds("what is locked is what changes in flight cover", held == locks)?;
        let ended = self.requests.values().filter(|active| active.parts == 0).count();
        let answers = self.loss.as_ref().map_or(Ok(0), |loss| loss.check().map(Iterator::count))?;
        equal("requests that wait for the record of a loss", answers, ended)
    }

    /// One record is written at a time, and who waits for one has asked for it.
    fn check_records(&self, tally: &Tally) -> Check {
        let in_flight = tally.step_owners + tally.loss_owners;
        holds("records that wait have one before them", self.owner_in_flight || self.owners.is_empty())?;
        holds("one record is written at a time", in_flight <= 1)?;
        equal("whether a record is being written", self.owner_in_flight, in_flight == 1)?;
        let queued = self.owners.iter().filter(|(recorder, _)| *recorder == Recorder::Loss).count() as u32;
        let recording = self.loss.as_ref().is_some_and(super::Loss::is_recording);
        holds("what is healed is recorded once", !recording || tally.loss_owners + queued == 1)?;
        let superblocks = tally.superblocks + tally.lists;
        holds("one superblock is written at a time", superblocks <= 1)?;
        let unsettled = self.boost.as_ref().is_some_and(|boost| boost.superblock_written.is_none());
        equal("whether a superblock is being written", unsettled, superblocks == 1)?;
        let (all, indexes) =
            self.recovery.as_ref().map_or((0, 0), |recovery| (recovery.in_flight, recovery.indexes_in_flight));
        equal("reads of a recovery", all, tally.recovery)?;
        equal("reads of indexes", indexes, tally.recovery_indexes)
    }

    fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        let segment =
            |location: u32| u64::from(self.boost.as_ref().map_or(0, |boost| boost.space.segment_of(location)));
        let is_filled = |fill: &u64| self.boost.as_ref().is_some_and(|boost| boost.fills.contains_key(fill));
        for pending in self.pending.iter() {
            match pending {
                Pending::Direct { request, length, change, fill, .. } => {
                    let operation = self.requests.get(request).map(|active| active.request.operation);
                    let transfers = matches!(operation, Some(Operation::Read | Operation::Write { .. }));
                    let bytes = if transfers { *length } else { 0 };
                    tally.backing.add(bytes);
                    tally.direct_bytes += if *change { bytes } else { 0 };
                    tally.fills += usize::from(fill.as_ref().is_some_and(is_filled));
                    tally.parts.add(request.0, 1);
                }
                Pending::Rescue { part } => {
                    tally.backing.add(part.source.map_or(0, |source| u64::from(source.length)));
                    tally.parts.add(part.request.0, 1);
                }
                Pending::Hit { request, location, into, .. } => {
                    tally.cache.add(u64::from(into.length));
                    tally.pins.add(segment(*location), 1);
                    tally.parts.add(request.0, 1);
                }
                Pending::Bounce { request, location, .. } => {
                    tally.cache.add(BLOCK64);
                    tally.pins.add(segment(*location), 1);
                    tally.parts.add(request.0, 1);
                }
                Pending::Merge(merge) => {
                    tally.merges += 1;
                    tally.reserved += merge.reserved;
                    tally.parts.add(merge.request().0, 1);
                    if merge.second_try {
                        tally.backing.add(BLOCK64);
                    } else {
                        tally.cache.add(BLOCK64);
                        tally.pins.add(segment(merge.location), 1);
                    }
                }
                Pending::Append(batch) => {
                    tally.records += 1;
                    tally.cache.add(batch.bytes);
                    tally.appends.add(u64::from(batch.segment), 1);
                    tally.sequences.add(batch.sequence, 1);
                    batch.parts.iter().for_each(|part| tally.parts.add(part.request.0, 1));
                }
                Pending::Install { fill, segment, blocks, .. } => {
                    tally.cache.add(u64::from(blocks + 1) * BLOCK64);
                    tally.appends.add(u64::from(*segment), 1);
                    tally.fills += usize::from(is_filled(fill));
                }
                Pending::DrainRead { job, extent } => {
                    tally.job_reads.add(u64::from(*job), 1);
                    let extent = self.boost.as_ref().and_then(|boost| boost.drain.extent(*job, *extent));
                    tally.cache.add(extent.map_or(0, |extent| u64::from(extent.blocks) * BLOCK64));
                    tally.pins.add(extent.map_or(u64::MAX, |extent| segment(extent.location)), 1);
                }
                Pending::DrainWrite { job, transferred } => {
                    tally.job_writes.add(u64::from(*job), 1);
                    tally.backing.add(*transferred);
                }
                Pending::Flush(Target::Backing) => tally.backing.flushes += 1,
                Pending::Flush(Target::Cache) => tally.cache.flushes += 1,
                Pending::StepWrite(serial) => {
                    tally.step_writes += u32::from(*serial == self.step_serial);
                    tally.cache.add(0);
                }
                Pending::StepSuperblock(_) => {
                    tally.superblocks += 1;
                    tally.cache.add(0);
                }
                Pending::Recovery(wanted) | Pending::Parse(wanted) => {
                    tally.recovery += 1;
                    tally.recovery_indexes += usize::from(matches!(wanted, Wanted::Indexes { .. }));
                }
                Pending::Probe { .. } => {
                    tally.probes += 1;
                    tally.cache.add(BLOCK64);
                }
                Pending::ReclaimTable => {
                    tally.tables += 1;
                    tally.cache.add(0);
                }
                Pending::Index(segment) => {
                    tally.indexes += 1;
                    tally.appends.add(u64::from(*segment), 1);
                    tally.cache.add(0);
                }
                Pending::List => {
                    tally.lists += 1;
                    tally.cache.add(0);
                }
                Pending::Growth => {
                    tally.growths += 1;
                    tally.cache.add(0);
                }
                Pending::Owner(Recorder::Step(_)) => tally.step_owners += 1,
                Pending::Owner(Recorder::Loss) => tally.loss_owners += 1,
            }
        }
        for waiter in [&self.backing, &self.cache].into_iter().flat_map(|port: &super::Port| port.flushes.waiters()) {
            if let Waiter::Request(request) = waiter {
                tally.parts.add(request.0, 1);
            }
        }
        if let Some(boost) = &self.boost {
            boost.queue.iter().for_each(|part| tally.parts.add(part.request.0, 1));
            boost.trouble.requests().for_each(|request| tally.parts.add(request.0, 1));
            boost.drain.extents().for_each(|extent| tally.pins.add(segment(extent.location), 1));
        }
        tally
    }
}

impl Boost {
    fn check(&self, tally: &Tally, stage: EngineStage) -> Check {
        equal("records in flight", self.batches_in_flight, tally.records)?;
        holds("no more records are in flight than a recovery looks for", tally.records <= RECORDS_IN_FLIGHT_MAX)?;
        equal("merges in flight", self.merges_in_flight, tally.merges)?;
        equal("copies on their way", self.fills.len(), tally.fills)?;
        let (mut blocks, mut reserved, mut tombstones) = (0, tally.reserved, 0);
        for part in &self.queue {
            blocks += u64::from(part.data_blocks());
            reserved += part.reserved;
            tombstones += part.tombstones;
        }
        equal("blocks that wait for a record", self.queued_blocks, blocks)?;
        equal("blocks promised", self.space.reserved, reserved)?;
        equal("extents without data promised", self.space.tombstones_reserved, tombstones)?;
        self.drain.check(tally.job_reads, tally.job_writes)?;
        let (pins, appends) = self.space.check()?;
        if pins != tally.pins || appends != tally.appends {
            let kept = self.space.segments.iter().map(|segment| (segment.pins, segment.appends)).collect::<Vec<_>>();
            return Err(format!("what is in flight does not read and write segments as often as they count: {kept:?}"));
        }
        // Those that failed stay, so that what follows never counts as durable.
        let mut sequences = Bag::default();
        self.appending.iter().for_each(|sequence| sequences.add(*sequence, 1));
        holds("records in flight have their sequences", stage == EngineStage::Failing || sequences == tally.sequences)?;
        let settled = self.settled();
        let durable = self.durable.max(self.flushing).max(self.checkpoint.flushed);
        holds("what is durable was written", durable <= settled && settled < self.next_sequence)?;
        holds("a cache that absorbs is not to be released", stage != EngineStage::Absorb || !self.release_wanted)?;
        self.trouble.check(tally.probes, stage == EngineStage::Failing)
    }
}

impl Trouble {
    /// Requests, once for each part that waits here.
    fn requests(&self) -> impl Iterator<Item = RequestId> + '_ {
        let changes = self.stranded.iter().map(|part| part.request);
        let merges = self.stranded_merges.iter().map(|merge| merge.request());
        let reads = self.parked.iter().map(|(request, _)| *request);
        changes.chain(merges).chain(reads).chain(self.stalled_flushes.iter().copied())
    }

    fn check(&self, probes: u32, failing: bool) -> Check {
        equal("probes in flight", self.outage.as_ref().map_or(0, |outage| outage.probes_in_flight), probes)?;
        let none = self.requests().next().is_none() && !self.is_out() && self.unknown.is_none() && self.only.is_none();
        holds("only a cache that fails has something wait for what becomes of it", failing || none)
    }
}
