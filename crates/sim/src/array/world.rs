//! One run of an array in virtual time.

mod start;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use surgetank_array::assembly::Place;
use surgetank_array::effect::{ReplyError, Target};
use surgetank_array::{ArrayId, Config, Engine, Event, Join, MemberId, Options, Plan, Regions, create};
use surgetank_model::random::Random;
use surgetank_model::{Bandwidth, EventQueue, Instant, Operation, Request, RequestId};

use super::memory::{Executed, Memory};
pub use super::report::{Failure, Report};
use super::scenario::{Crash, Scenario};
use crate::content::SECTOR;
use crate::disk::{Disk, Faults, IoId, Latency};
use crate::oracle::{Moment, Oracle, Version};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SimEvent {
    Effect(Target, IoId),
    Done(Target, IoId),
    Submit,
    Tick,
}

#[derive(Clone, Copy, Debug)]
enum Expect {
    Read(Moment),
    Write(Version),
    Flush(Moment),
}

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    request: Request,
    expect: Expect,
}

/// Where the run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The application works.
    Work,
    /// No volume fails any more; what was begun ends.
    Settle,
    /// Everything is read back after a last power cut.
    Verify,
    Done,
}

/// Wrong answers and broken contracts, before they know where they happened.
type Step<T = ()> = Result<T, String>;

const ARRAY: ArrayId = ArrayId([0xa7; 16]);
/// A run with more events than this has stopped getting anywhere.
const EVENTS_MAX: u64 = 60_000;
/// Bytes of the reads that check the whole array.
const SWEEP: u64 = 32 << 10;
/// After an I/O of a volume that counts has failed, so long its requests may fail: it is opened again after a second.
const EXCUSED_FOR: Duration = Duration::from_secs(5);

struct World<'a> {
    scenario: &'a Scenario,
    random: Random,
    now: Instant,
    queue: EventQueue<SimEvent>,
    tick_at: Option<Instant>,
    engine: Engine,
    memory: Memory,
    disks: BTreeMap<Target, Disk>,
    /// Volumes that the engine knows.
    attached: BTreeSet<Target>,
    /// Volumes that it has released.
    shelf: BTreeSet<Target>,
    /// Joining members, as the world knows from what it has attached and been told.
    joining: BTreeMap<Target, u32>,
    next_target: u32,
    oracle: Oracle,
    size: u64,
    outstanding: Vec<Outstanding>,
    next_request: u64,
    sent: u32,
    /// Read back these bytes (offset) before new work.
    sweep: Option<u64>,
    replacements: VecDeque<(u32, u32)>,
    crashes: VecDeque<Crash>,
    events_to_crash: Option<u32>,
    phase: Phase,
    final_flush: Option<RequestId>,
    /// When a volume that counts last failed an I/O.
    failed_at: Option<Instant>,
    /// A flush has failed, and no flush of the application has been told.
    flush_untold: bool,
    report: Report,
}

/// Runs a scenario to its end, with all its crashes, and checks every answer.
///
/// # Errors
/// The first broken promise.
pub fn run(scenario: &Scenario) -> Result<Report, Box<Failure>> {
    let mut world = World::new(scenario);
    let result = world.run();
    match result {
        Ok(()) => Ok(world.report),
        Err(what) => Err(Box::new(Failure {
            seed: scenario.seed,
            event: world.report.events,
            at: world.now,
            what,
            scenario: format!("{scenario:?}"),
            status: format!("{:?}; attached {:?}; joining {:?}", world.engine.status(), world.attached, world.joining),
        })),
    }
}

fn member_of(target: Target) -> MemberId {
    let mut name = [0; 16];
    name[..4].copy_from_slice(&(target.0 + 1).to_le_bytes());
    MemberId(name)
}

fn config(scenario: &Scenario) -> Config {
    let copy_rate = (scenario.copy_rate > 0).then(|| Bandwidth::new(scenario.copy_rate));
    let checkpoint_regions = 1 + (scenario.seed % 4) as u32;
    Config { copy_rate, copies_in_flight_max: 1 + (scenario.seed % 3) as u32, checkpoint_regions }
}

impl<'a> World<'a> {
    fn new(scenario: &'a Scenario) -> Self {
        let random = Random::from_seed(scenario.seed ^ 0x00c0_ffee);
        let targets: Vec<Target> = (0..scenario.members).map(Target).collect();
        let volumes: Vec<_> = targets.iter().map(|t| (*t, member_of(*t), scenario.member_sizes.0)).collect();
        let (chunk, region) = scenario.division;
        let options =
            Options { array: ARRAY, logical_block: scenario.logical_block, chunk, region, regions: Regions::Blank };
        let creation = create(&options, &volumes).expect("a scenario has members of one size");
        let mut disks = BTreeMap::new();
        for target in &targets {
            let seed = scenario.seed ^ u64::from(target.0) << 40;
            disks.insert(*target, Disk::new(scenario.member_sizes.0, Latency::default(), seed));
        }
        for (target, offset, bytes) in creation.bitmaps.iter().chain(&creation.superblocks) {
            if let Some(disk) = disks.get_mut(target) {
                disk.prefill(*offset, bytes);
            }
        }
        let size = creation.geometry.size();
        let place =
            |target: &Target| Place { target: *target, member: member_of(*target), slot: target.0, sequence: 2 };
        let plan = Plan {
            array: ARRAY,
            geometry: creation.geometry,
            generation: 1,
            active: targets.iter().map(place).collect(),
            joining: Vec::new(),
            superseded: Vec::new(),
            unknown: Vec::new(),
        };
        let mut world = Self {
            scenario,
            random,
            now: Instant::ZERO,
            queue: EventQueue::default(),
            tick_at: None,
            engine: Engine::new(config(scenario), Instant::ZERO, &plan),
            memory: Memory::default(),
            disks,
            attached: targets.iter().copied().collect(),
            shelf: BTreeSet::new(),
            joining: BTreeMap::new(),
            next_target: scenario.members,
            oracle: Oracle::new(scenario.seed, (size / SECTOR as u64) as u32, false),
            size,
            outstanding: Vec::new(),
            next_request: 0,
            sent: 0,
            sweep: None,
            replacements: scenario.replacements.iter().copied().collect(),
            crashes: scenario.crashes.iter().copied().collect(),
            events_to_crash: None,
            phase: Phase::Work,
            final_flush: None,
            failed_at: None,
            flush_untold: false,
            report: Report::default(),
        };
        world.arm();
        world.set_faults();
        world
    }

    fn arm(&mut self) {
        self.events_to_crash = self.crashes.front().map(|crash| crash.after_events);
    }

    fn run(&mut self) -> Step {
        self.queue.push(self.now, SimEvent::Submit);
        self.pump()?;
        while self.phase != Phase::Done {
            while self.events_to_crash == Some(0) {
                let crash = self.crashes.pop_front().ok_or("a crash is due that is not planned")?;
                self.crash(crash.power)?;
                self.arm();
            }
            let Some((at, event)) = self.queue.pop() else { return Err("nothing happens any more".into()) };
            self.now = at;
            self.report.events += 1;
            if self.report.events > EVENTS_MAX {
                return Err("the run gets nowhere".into());
            }
            if let Some(left) = &mut self.events_to_crash {
                *left -= 1;
            }
            self.step(event)?;
            self.pump()?;
        }
        Ok(())
    }

    fn step(&mut self, event: SimEvent) -> Step {
        match event {
            SimEvent::Effect(target, io) => {
                if let Some(disk) = self.disks.get_mut(&target) {
                    disk.take_effect(io);
                }
            }
            SimEvent::Done(target, io) => {
                let disk = self.disks.get_mut(&target).ok_or("an I/O ends on a volume that is not there")?;
                let finished = disk.finish(io);
                if finished.result.is_err() {
                    self.report.faults += 1;
                    if !self.joining.contains_key(&target) {
                        self.failed_at = Some(self.now);
                        self.flush_untold |= finished.flush;
                    }
                }
                let (effect, outcome) = self.memory.finish(&finished)?;
                self.engine.complete(self.now, effect, outcome);
            }
            SimEvent::Submit => self.submit()?,
            SimEvent::Tick => {
                self.tick_at = None;
                self.engine.tick(self.now);
            }
        }
        Ok(())
    }

    /// Carries out what the engine asks for.
    fn pump(&mut self) -> Step {
        // Before the effects: a member that has become active fails no more than others.
        while let Some(event) = self.engine.next_event() {
            self.note(event)?;
        }
        while let Some(effect) = self.engine.next_effect() {
            match self.memory.execute(effect)? {
                Executed::AtOnce => {}
                Executed::Submit { target, tag, io } => {
                    if !self.attached.contains(&target) {
                        return Err(format!("an effect uses {target:?}, which is not attached"));
                    }
                    let disk = self.disks.get_mut(&target).ok_or("an attached volume is not there")?;
                    let ticket = disk.submit(self.now, tag, io).map_err(|misfit| misfit.0)?;
                    let ticket = ticket.ok_or("no volume is stuck here")?;
                    self.queue.push(ticket.effect_at, SimEvent::Effect(target, ticket.io));
                    self.queue.push(ticket.done_at, SimEvent::Done(target, ticket.io));
                }
                Executed::Reply { request, result, buffer } => self.reply(request, result, &buffer)?,
            }
        }
        #[cfg(debug_assertions)]
        self.engine.check()?;
        if let Some(deadline) = self.engine.next_deadline() {
            let at = deadline.max(self.now + Duration::from_micros(1));
            if self.tick_at.is_none_or(|tick| at < tick) {
                self.tick_at = Some(at);
                self.queue.push(at, SimEvent::Tick);
            }
        }
        self.advance()
    }

    fn note(&mut self, event: Event) -> Step {
        match event {
            Event::Replaced { by, .. } => {
                self.report.replaced += 1;
                self.joining.remove(&by);
                self.set_faults();
            }
            Event::Dropped { .. } => self.report.dropped += 1,
            Event::Released(target) => {
                if self.disks.get(&target).is_some_and(|disk| disk.in_flight() > 0) {
                    return Err(format!("{target:?} is released while I/Os are in flight on it"));
                }
                self.queue.push(self.now, SimEvent::Submit);
                self.attached.remove(&target);
                self.joining.remove(&target);
                self.shelf.insert(target);
            }
            Event::Grown { size } => {
                self.report.grown += 1;
                self.grown(size);
            }
        }
        Ok(())
    }

    fn grown(&mut self, size: u64) {
        if size > self.size {
            self.oracle.grow((size / SECTOR as u64) as u32);
            self.size = size;
        }
    }

    /// Faults of the volumes by what they are now.
    fn set_faults(&mut self) {
        let works = self.phase == Phase::Work;
        for (target, disk) in &mut self.disks {
            let joins = self.joining.contains_key(target);
            let pick = |pair: (f64, f64)| if joins { pair.0 } else { pair.1 };
            let faults = Faults {
                error_probability: pick(self.scenario.errors),
                flush_error_probability: pick(self.scenario.flush_errors),
                forgetful: true,
                fail_after: self.scenario.vanishes_after.filter(|_| joins),
                ..Faults::default()
            };
            disk.set_faults(if works { faults } else { Faults::default() });
        }
    }

    /// What there is to do besides I/O.
    fn advance(&mut self) -> Step {
        if !self.engine.status().opened || self.phase == Phase::Done {
            return Ok(());
        }
        if self.sweep.is_none()
            && let Some(&(after, slot)) = self.replacements.front()
            && (after <= self.sent || self.phase == Phase::Settle)
        {
            self.replace(slot);
        }
        let idle = self.outstanding.is_empty() && self.sweep.is_none();
        match self.phase {
            Phase::Work if idle && self.sent >= self.scenario.requests => {
                self.phase = Phase::Settle;
                self.set_faults();
                self.queue.push(self.now + EXCUSED_FOR, SimEvent::Submit);
            }
            Phase::Work | Phase::Settle | Phase::Verify | Phase::Done => {}
        }
        Ok(())
    }

    /// Nothing is being replaced and nothing in flight: the array grows if it can. Whether it does.
    fn grow(&mut self) -> bool {
        let active = self.engine.status().slots;
        let size_of = |target: &Target| self.disks.get(target).map_or(0, Disk::size);
        let sizes: Vec<(Target, u64)> = active.iter().map(|slot| (slot.active, size_of(&slot.active))).collect();
        self.engine.grow(self.now, &sizes).is_ok()
    }

    fn replace(&mut self, slot: u32) {
        let target = Target(self.next_target);
        let size = self.scenario.member_sizes.1;
        let join = Join { target, member: member_of(target), size };
        if self.engine.replace(self.now, slot, join).is_err() {
            return;
        }
        self.engine.set_hurried(slot, self.scenario.hurried);
        self.next_target += 1;
        self.replacements.pop_front();
        let seed = self.scenario.seed ^ u64::from(target.0) << 40;
        self.disks.insert(target, Disk::new(size, Latency::default(), seed));
        self.attached.insert(target);
        self.joining.insert(target, slot);
        self.set_faults();
        // Its first effects are carried out by the next event.
        self.queue.push(self.now, SimEvent::Tick);
    }

    /// The application asks for something.
    fn submit(&mut self) -> Step {
        match self.phase {
            _ if self.sweep.is_some() => self.sweep_next(),
            Phase::Work => {
                while self.outstanding.len() < self.scenario.depth as usize && self.sent < self.scenario.requests {
                    self.sent += 1;
                    let request = self.draw();
                    self.send(request);
                }
            }
            Phase::Settle if self.outstanding.is_empty() && self.joining.is_empty() && self.final_flush.is_none() => {
                if self.grow() {
                    self.queue.push(self.now + Duration::from_secs(1), SimEvent::Submit);
                    return Ok(());
                }
                let request = Request { id: self.name(), operation: Operation::Flush, offset: 0, length: 0 };
                self.final_flush = Some(request.id);
                self.send(request);
            }
            Phase::Settle | Phase::Verify | Phase::Done => {}
        }
        Ok(())
    }

    fn name(&mut self) -> RequestId {
        self.next_request += 1;
        RequestId(self.next_request)
    }

    fn draw(&mut self) -> Request {
        let id = self.name();
        let unit = u64::from(self.scenario.logical_block);
        let fua = self.random.below(8) == 0;
        let operation = match self.random.below(100) {
            0..52 => Operation::Write { fua },
            52..76 => Operation::Read,
            76..84 => Operation::Flush,
            84..94 => Operation::Discard,
            _ => Operation::WriteZeroes { fua },
        };
        if operation == Operation::Flush {
            return Request { id, operation, offset: 0, length: 0 };
        }
        // Half of it goes to the same few blocks.
        let span = if self.random.below(2) == 0 { self.size } else { (self.size / 4).next_multiple_of(unit) };
        let most = if self.random.below(4) == 0 { 64 << 10 } else { 8 << 10 };
        let whole = operation == Operation::Discard && self.random.below(2) == 0;
        let stripe = u64::from(self.scenario.division.1) * u64::from(self.scenario.members);
        let (offset, length) = if whole && stripe <= self.size {
            (self.random.below(self.size / stripe) * stripe, stripe)
        } else {
            let offset = self.random.below(span / unit) * unit;
            (offset, (1 + self.random.below(most / unit)) * unit)
        };
        Request { id, operation, offset, length: length.min(self.size - offset) }
    }

    fn send(&mut self, request: Request) {
        let (first, count) = ((request.offset / SECTOR as u64) as u32, (request.length / SECTOR as u64) as u32);
        let mut buffer = Vec::new();
        let expect = match request.operation {
            Operation::Read => {
                buffer.resize(request.length as usize, 0x5a);
                Expect::Read(self.oracle.begin_read())
            }
            Operation::Flush => Expect::Flush(self.oracle.begin_flush()),
            Operation::Write { .. } => {
                let version = self.oracle.begin_write(first, count, false);
                buffer.resize(request.length as usize, 0);
                self.oracle.fill(version, first, &mut buffer);
                Expect::Write(version)
            }
            Operation::Discard | Operation::WriteZeroes { .. } => {
                Expect::Write(self.oracle.begin_write(first, count, true))
            }
        };
        self.outstanding.push(Outstanding { request, expect });
        self.memory.add_request(request.id, buffer);
        self.engine.submit(self.now, request);
    }

    fn sweep_next(&mut self) {
        let Some(offset) = self.sweep.filter(|_| self.outstanding.is_empty()) else { return };
        if offset >= self.size {
            self.sweep = None;
            if self.phase == Phase::Verify {
                self.phase = Phase::Done;
            }
            self.queue.push(self.now, SimEvent::Submit);
            return;
        }
        self.sweep = Some(offset + SWEEP);
        let request =
            Request { id: self.name(), operation: Operation::Read, offset, length: SWEEP.min(self.size - offset) };
        self.send(request);
    }

    /// Whether a request may fail now: a volume that counts has failed lately.
    fn is_excused(&self) -> bool {
        let may_fail = self.scenario.errors.1 > 0.0 || self.scenario.flush_errors.1 > 0.0;
        may_fail && self.failed_at.is_some_and(|at| self.now.since(at) < EXCUSED_FOR)
    }

    fn reply(&mut self, id: RequestId, result: Result<(), ReplyError>, buffer: &[u8]) -> Step {
        let index = self.outstanding.iter().position(|outstanding| outstanding.request.id == id);
        let index = index.ok_or_else(|| format!("{id:?} is answered but not outstanding"))?;
        let Outstanding { request, expect } = self.outstanding.swap_remove(index);
        self.report.requests += 1;
        if let Err(error) = result {
            self.report.errors += 1;
            let untold = request.operation == Operation::Flush && self.flush_untold;
            if self.final_flush == Some(id) {
                self.queue.push(self.now + Duration::from_millis(200), SimEvent::Submit);
            }
            if !self.is_excused() && !untold {
                return Err(format!("{request:?} failed with {error:?}, but no member that counts has failed"));
            }
        }
        match expect {
            Expect::Read(moment) if result.is_ok() => {
                let first = (request.offset / SECTOR as u64) as u32;
                self.oracle.end_read(moment, first, buffer).map_err(|wrong| wrong.0)?;
            }
            Expect::Read(moment) => self.oracle.drop_read(moment),
            Expect::Write(version) => {
                let fua =
                    matches!(request.operation, Operation::Write { fua: true } | Operation::WriteZeroes { fua: true });
                self.oracle.end_write(version, result.is_ok(), fua);
            }
            Expect::Flush(moment) if result.is_ok() => self.oracle.end_flush(moment).map_err(|wrong| wrong.0)?,
            Expect::Flush(_) => {
                self.flush_untold = false;
                self.oracle.fail_flush();
            }
        }
        if self.final_flush == Some(id) {
            self.final_flush = None;
            if result.is_ok() && self.phase == Phase::Settle && self.replacements.is_empty() {
                self.phase = Phase::Verify;
                return self.crash(true);
            }
            return Ok(());
        }
        let think = Duration::from_micros(self.random.below(300));
        self.queue.push(self.now + think, SimEvent::Submit);
        Ok(())
    }
}
