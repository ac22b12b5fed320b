//! One run in virtual time: the engine, its driver and volumes, an application, a controller, crashes and restarts.

mod application;
pub(crate) mod cloud;
mod control;
mod faults;
mod finish;
mod growing;
mod health;
mod judge;
pub(crate) mod lagging;
mod lost;
mod mapped;
mod record;
mod renting;
mod report;
mod restart;
mod stop;

use std::collections::VecDeque;
use std::time::Duration;

#[cfg(debug_assertions)]
use surgetank_cache::engine::check::Depth;
use surgetank_cache::format::Parse;
use surgetank_cache::{Config, Effect, EffectId, Engine, EngineStage, Epoch, Owner, Status, Target};
use surgetank_model::random::Random;
use surgetank_model::{Bandwidth, EventQueue, Instant, Iops, Limits, Request, RequestId};
use surgetank_rental::AskId;

use crate::books::Books;
use crate::content::SECTOR;
use crate::disk::{Disk, IoId, Latency, Ticket};
use crate::driver::{Broken, Disks, Driver, Executed};
use crate::oracle::{Moment, Oracle, Version};
use crate::scenario::{Crash, CrashScenario, Trigger};
use crate::trace::Trace;
use crate::workload::Workload;
use crate::world::faults::Outages;
use crate::world::finish::Finish;
use crate::world::health::Health;
use crate::world::mapped::Mapped;
use crate::world::record::Entry;
use crate::world::renting::Renting;
pub use crate::world::report::Report;
use crate::world::stop::Stopping;

/// A broken promise.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("seed {seed}, event {event}, {at}: {what}\n  scenario: {scenario}\n  status: {status}")]
pub struct Failure {
    /// Seed of the run.
    pub seed: u64,
    /// Event at which it showed.
    pub event: u64,
    /// Virtual time.
    pub at: Instant,
    /// What is wrong.
    pub what: String,
    /// The scenario's values, for reproducing it from code.
    pub scenario: String,
    /// The engine's own view.
    pub status: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SimEvent {
    Effect(Target, IoId),
    Done(Target, IoId),
    Recorded,
    Submit,
    Control,
    Recover,
    Unstick(Target),
    /// An outage or a latent error may be over.
    OutageEnds,
    /// The application tries again what failed.
    Settle,
    /// The daemon opens a lost caching volume again.
    Restore,
    /// The controller looks at the device.
    Observe,
    /// The provider answers a call.
    Called((AskId, usize)),
    /// Something else that a rental asked has been done.
    Answered,
    /// The rental wants to be called.
    Tick,
    /// The kernel tells of a disk.
    DiskChanged,
    /// The tag of the caching volume is set or removed.
    Tag,
    /// The provider carries out what nobody waits for any more.
    Late,
    /// The daemon looks for volumes that nobody knows of.
    Sweep,
    /// It deletes them.
    Swept,
    /// A copy of this machine starts.
    Copied,
    /// A switch of the map goes on.
    Switch,
    /// The code that decides on the map wants to be called.
    MapTick,
    /// After a power cut somebody maps the device, or nobody does.
    Boot,
    /// The daemon starts again.
    Start,
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
    at: Instant,
    /// A fault has touched what it asks for: it may fail.
    excused: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WorldPhase {
    /// The application works.
    Work,
    /// It has ended; the cache is released, everything is read back.
    Settle,
    /// All is read back.
    Done,
}

/// Wrong answers and broken contracts, before they know where they happened.
type Step<T = ()> = Result<T, String>;

fn say(broken: Broken) -> String {
    broken.0
}

struct World<'a> {
    scenario: &'a CrashScenario,
    /// Bytes of the device now.
    size: u64,
    growths: VecDeque<(u32, u32)>,
    growing: growing::Growing,
    /// Bytes of the caching volume that is attached, or was last.
    cache_size: u64,
    renting: Option<Renting>,
    mapped: Option<Mapped>,
    random: Random,
    now: Instant,
    queue: EventQueue<SimEvent>,
    engine: Engine,
    driver: Driver,
    disks: Disks,
    /// A caching volume that was detached: it may come back with its old content.
    spare: Option<Disk>,
    epoch: Epoch,
    owner: Owner,
    recording: VecDeque<(EffectId, Entry)>,
    oracle: Oracle,
    books: Books,
    outages: Outages,
    health: Health,
    stopping: Stopping,
    /// A lost caching volume that may come back.
    kept: Option<Disk>,
    /// The engine reads it again.
    restoring: bool,
    /// Attempts to recover that failed since the start.
    recover_failures: u32,
    /// When the first of them failed.
    recover_failed: Option<Instant>,
    /// Those that failed although all that is wrong is that nobody can tell what the log holds.
    unknown_recoveries: u32,
    /// When the last one began.
    recover_began: Instant,
    workload: Workload,
    outstanding: Vec<Outstanding>,
    next_request: u64,
    left: u32,
    /// Read back these bytes (offset) before new work, to check everything after a restart.
    sweep: Option<u64>,
    waiting_for_reply: bool,
    release_wanted: bool,
    finish: Option<Finish>,
    recovering: bool,
    /// The flush after the last write, and whether it succeeded.
    final_flush: Option<RequestId>,
    flushed: bool,
    /// The application tries again what failed not before this.
    settle_at: Instant,
    swept: bool,
    phase: WorldPhase,
    crashes: VecDeque<Crash>,
    /// Events since the trigger of the next crash; `None`: the trigger has not come.
    events_to_crash: Option<u32>,
    idle_ticks: u32,
    /// I/O errors go on.
    faulty: bool,
    /// The attached caching volume is gone.
    vanished: bool,
    vanishes_left: u32,
    /// The oracle knows of a loss that is not accepted.
    lost: bool,
    /// Something was lost, and no flush from this request on has failed since.
    loss_untold: Option<u64>,
    /// The loss is being accepted.
    accepting: bool,
    /// Everything was overwritten after a loss, by writes that no fault can fail.
    healed: bool,
    /// I/Os have been stuck.
    was_stuck: bool,
    /// A flush of the caching volume failed and forgot, and the process that knew of it crashed.
    deceived: bool,
    /// A bit of the caching volume has flipped.
    rotten: bool,
    /// Flushes of the application that may report a failed flush of the backing volume that came before: one, and one for
    /// each change that was in flight.
    unreported_failures: usize,
    sampled: Option<Status>,
    trace: Trace,
    report: Report,
}

/// Runs a scenario to its end, with all its crashes, and checks every answer.
///
/// # Errors
/// The first broken promise.
pub fn run(scenario: &CrashScenario) -> Result<Report, Box<Failure>> {
    let mut world = World::new(scenario);
    let result = world.run();
    world.report.trace = world.trace.value();
    match result {
        Ok(()) => Ok(world.report),
        Err(what) => Err(Box::new(Failure {
            seed: scenario.seed,
            event: world.report.events,
            at: world.now,
            what,
            scenario: format!("{scenario:?}"),
            status: format!(
                "{:?}; {}; {}",
                world.engine.status(),
                world.renting.as_ref().map_or_else(String::new, Renting::summary),
                world.mapped.as_ref().map_or_else(String::new, Mapped::summary)
            ),
        })),
    }
}

/// A run that takes longer has stopped getting anywhere.
const EVENTS_PER_REQUEST_MAX: u64 = 2_000;
/// Events after which the provider's faults stop, where no others say when.
const PROVIDER_FAULTS_END: u32 = 2000;
/// Ticks at one moment without any other event.
const IDLE_TICKS_MAX: u32 = 1000;
/// Bytes of the reads that check the whole device.
const SWEEP: u64 = 64 << 10;

impl<'a> World<'a> {
    fn new(scenario: &'a CrashScenario) -> Self {
        let mut random = Random::from_seed(scenario.seed);
        let size = scenario.size();
        let sectors = (size / SECTOR as u64) as u32;
        let oracle = Oracle::new(scenario.seed, sectors, scenario.filled);
        let mut backing = Disk::new(size, backing_latency(scenario), random.next_u64());
        if scenario.filled {
            let mut bytes = vec![0; size as usize];
            oracle.fill(0, 0, &mut bytes);
            backing.prefill(0, &bytes);
        }
        let mut world = Self {
            scenario,
            size,
            growths: scenario.growths.iter().copied().collect(),
            growing: growing::Growing::new(scenario),
            cache_size: scenario.cache_size,
            renting: scenario.provider_faults.map(|faults| Renting::new(scenario, size, faults)),
            mapped: scenario.mapped.map(|_| Mapped::new()),
            now: Instant::ZERO,
            queue: EventQueue::default(),
            engine: Engine::new(config(scenario, size)),
            driver: Driver::default(),
            disks: Disks { backing, cache: None },
            spare: None,
            epoch: Epoch::default(),
            owner: Owner::Backing,
            recording: VecDeque::new(),
            oracle,
            books: Books::default(),
            outages: Outages::new(scenario),
            health: Health::default(),
            stopping: Stopping::No,
            kept: None,
            restoring: false,
            recover_failures: 0,
            recover_failed: None,
            unknown_recoveries: 0,
            recover_began: Instant::ZERO,
            workload: Workload::new(scenario),
            outstanding: Vec::new(),
            next_request: 1,
            left: scenario.requests,
            sweep: None,
            waiting_for_reply: false,
            release_wanted: false,
            finish: None,
            recovering: false,
            final_flush: None,
            flushed: false,
            settle_at: Instant::ZERO,
            swept: false,
            phase: WorldPhase::Work,
            crashes: scenario.crashes.iter().copied().collect(),
            events_to_crash: None,
            idle_ticks: 0,
            faulty: scenario.trouble.is_some() || scenario.provider_faults.is_some(),
            vanished: false,
            vanishes_left: 2,
            lost: false,
            loss_untold: None,
            accepting: false,
            healed: false,
            was_stuck: false,
            deceived: false,
            rotten: false,
            unreported_failures: 0,
            sampled: None,
            trace: Trace::default(),
            report: Report::default(),
            random,
        };
        world.arm();
        world.apply_trouble();
        world.schedule(Duration::ZERO, SimEvent::Submit);
        world.schedule_first_control();
        if world.rents() {
            world.schedule(Duration::ZERO, SimEvent::Observe);
            world.schedule(Duration::ZERO, SimEvent::Sweep);
        }
        world
    }

    fn run(&mut self) -> Step {
        self.pump()?;
        let most = u64::from(self.scenario.requests + 100) * EVENTS_PER_REQUEST_MAX;
        while self.phase != WorldPhase::Done {
            if let Some(&crash) = self.crashes.front()
                && self.events_to_crash.is_some_and(|events| events >= crash.after_events)
            {
                self.crashes.pop_front();
                self.crash(crash.kind)?;
                continue;
            }
            if self.phase == WorldPhase::Settle && self.settle()? {
                continue;
            }
            if !self.step()? {
                return Err(format!("nothing is left to happen, but {:?} wait", self.outstanding));
            }
            if self.report.events > most {
                return Err("the run does not come to an end".into());
            }
        }
        self.check_volumes()
    }

    fn schedule(&mut self, after: Duration, event: SimEvent) {
        self.schedule_at(self.now + after, event);
    }

    fn schedule_at(&mut self, at: Instant, event: SimEvent) {
        self.queue.push(at, event);
    }

    /// The first control action comes soon, so that boosts are long where control actions are rare.
    fn schedule_first_control(&mut self) {
        if self.scenario.boosts.is_some() {
            let after = Duration::from_micros(self.random.below(3_000));
            self.schedule(after, SimEvent::Control);
        }
    }

    fn schedule_control(&mut self) {
        if let Some(longest) = self.scenario.boosts {
            // Nothing goes on for minutes.
            let longest = if self.outages.is_any_passing() { longest.max(Duration::from_secs(2)) } else { longest };
            let after = Duration::from_nanos(self.random.below(longest.as_nanos() as u64));
            self.schedule(after, SimEvent::Control);
        }
    }

    /// Handles the next event. False if there is none.
    fn step(&mut self) -> Step<bool> {
        let next = self.queue.next_at();
        if let Some(deadline) = self.engine.next_deadline()
            && next.is_none_or(|next| deadline <= next)
        {
            self.idle_ticks = if deadline > self.now { 0 } else { self.idle_ticks + 1 };
            if self.idle_ticks > IDLE_TICKS_MAX {
                return Err("the engine asks to be called at once, over and over".into());
            }
            self.now = self.now.max(deadline);
            self.engine.tick(self.now);
            self.trace.add(self.now.as_nanoseconds());
        } else {
            let Some((at, event)) = self.queue.pop() else { return Ok(false) };
            self.idle_ticks = 0;
            self.now = self.now.max(at);
            self.trace.add(self.now.as_nanoseconds());
            self.handle(event)?;
        }
        self.report.events += 1;
        self.events_to_crash = self.events_to_crash.map(|events| events + 1);
        if self.faulty
            && self.report.events
                > u64::from(self.scenario.trouble.map_or(PROVIDER_FAULTS_END, |trouble| trouble.until_event))
        {
            self.faulty = false;
            self.apply_trouble();
            self.disturb();
        }
        self.strike()?;
        self.stop()?;
        self.pump()?;
        self.steer_map()?;
        #[cfg(debug_assertions)]
        self.engine.check(if self.report.events.is_multiple_of(16) { Depth::Index } else { Depth::InFlight })?;
        self.check_finish()?;
        self.check_status()?;
        Ok(true)
    }

    fn handle(&mut self, event: SimEvent) -> Step {
        match event {
            SimEvent::Effect(target, io) => self.disks.get(target).map_err(say)?.take_effect(io),
            SimEvent::Done(target, io) => {
                let disk = self.disks.get(target).map_err(say)?;
                let finished = disk.finish(io);
                if Self::is_straight(&finished) {
                    return self.straight_done(finished);
                }
                let any_flush_failed = finished.flush && finished.result.is_err();
                let flush_failed = any_flush_failed && target == Target::Backing;
                let (effect, outcome) = self.driver.finish(finished, disk).map_err(say)?;
                let touched = self.books.end(self.now, effect, &outcome, Some(target), self.disks.cache.as_ref());
                self.touch(&touched);
                if let Some(request) = self.books.read_in_vain() {
                    return Err(format!("{request:?} has the caching volume read over and over, and it fails"));
                }
                self.report.forgotten += u32::from(any_flush_failed && self.forgets(target));
                if flush_failed {
                    let changes = self.outstanding.iter().filter(|request| matches!(request.expect, Expect::Write(_)));
                    self.unreported_failures += 1 + changes.count();
                }
                self.engine.complete(self.now, effect, outcome);
            }
            SimEvent::Recorded => self.recorded()?,
            SimEvent::Submit => self.submit_next()?,
            SimEvent::Control => self.control()?,
            SimEvent::Recover if self.rents() => self.recover_rental()?,
            SimEvent::Recover => self.recover()?,
            SimEvent::Unstick(target) => self.unstick(target),
            SimEvent::Settle => {}
            SimEvent::OutageEnds => self.end_outages(),
            SimEvent::Restore => self.restore()?,
            SimEvent::Observe => self.observe()?,
            SimEvent::Called(id) => self.called(id)?,
            SimEvent::Answered => self.answered()?,
            SimEvent::Tick => self.tick_rental()?,
            SimEvent::Tag => self.tag()?,
            SimEvent::DiskChanged => self.tell_rental_of_disks()?,
            SimEvent::Late => self.late()?,
            SimEvent::Sweep => self.sweep()?,
            SimEvent::Swept => self.swept()?,
            SimEvent::Copied => self.run_copies()?,
            SimEvent::Switch => self.switch()?,
            SimEvent::MapTick => self.tick_map(),
            SimEvent::Boot => self.boot(),
            SimEvent::Start => self.start_mapped()?,
        }
        Ok(())
    }

    /// Executes what the engine wants and hears what it says.
    fn pump(&mut self) -> Step {
        loop {
            while let Some(effect) = self.engine.next_effect() {
                self.trace.effect(&effect);
                self.watch(&effect);
                self.books.begin(&effect)?;
                match self.driver.execute(self.now, effect, &mut self.disks).map_err(say)? {
                    Executed::AtOnce => {}
                    Executed::Answered(id, outcome) => self.engine.complete(self.now, id, outcome),
                    Executed::Started(target, ticket) => {
                        if let Some(Ticket { io, effect_at, done_at }) = ticket {
                            if effect_at < done_at {
                                self.schedule_at(effect_at, SimEvent::Effect(target, io));
                            }
                            self.schedule_at(done_at, SimEvent::Done(target, io));
                        }
                    }
                    Executed::PersistOwner { id, owner } if self.rents() => self.write_owner(id, owner)?,
                    Executed::PersistOwner { id, owner } => self.record(id, Entry::Owner(owner))?,
                    Executed::RecordHealed { id, epoch, ranges } => {
                        self.record(id, Entry::Healed { epoch, ranges })?;
                    }
                    Executed::Reply { request, result, buffer } => self.reply(request, result, buffer)?,
                }
            }
            let Some(event) = self.engine.next_event() else { return Ok(()) };
            self.hear(event)?;
        }
    }

    /// Whether this effect starts the count to the next crash.
    fn watch(&mut self, effect: &Effect) {
        let reads_indexes = matches!(effect, Effect::Parse { what, .. } if matches!(**what, Parse::Indexes { .. }));
        self.report.indexes_read += u32::from(reads_indexes);
        let Some(crash) = self.crashes.front().filter(|_| self.events_to_crash.is_none()) else { return };
        let triggers = match crash.trigger {
            Trigger::Start => true,
            Trigger::TableWrite => matches!(effect, Effect::WriteTable { .. }),
            Trigger::SuperblockWrite => matches!(effect, Effect::WriteSuperblock { .. }),
            Trigger::OwnerWrite => matches!(effect, Effect::PersistOwner { .. } | Effect::RecordHealed { .. }),
            Trigger::Outage
            | Trigger::Failing
            | Trigger::Lost
            | Trigger::Switch
            | Trigger::Growth
            | Trigger::CacheGrowth => false,
        };
        self.events_to_crash = triggers.then_some(0);
    }

    /// The same of what is no effect.
    fn triggers(&mut self, trigger: Trigger) {
        if self.events_to_crash.is_none() && self.crashes.front().is_some_and(|crash| crash.trigger == trigger) {
            self.events_to_crash = Some(0);
        }
    }

    /// The count to the next crash starts again.
    fn arm(&mut self) {
        let at_once = self.crashes.front().is_some_and(|crash| crash.trigger == Trigger::Start);
        self.events_to_crash = at_once.then_some(0);
    }

    fn check_status(&mut self) -> Step {
        if !self.report.events.is_multiple_of(16) {
            return Ok(());
        }
        let status = self.engine.status();
        if status.requests_in_flight != self.in_engine() {
            return Err(format!("{} requests are outstanding, but the status disagrees", self.in_engine()));
        }
        if status.stage == EngineStage::PassThrough && (status.dirty_bytes > 0 || status.lost_bytes > 0) {
            return Err("a device without a cache has dirty or lost bytes".into());
        }
        self.check_lost_bytes(&status)?;
        self.check_health(&status)?;
        self.sample(&status);
        if status.high_water_bytes < status.used_bytes {
            return Err("the high-water mark is below what is in use".into());
        }
        Ok(())
    }

    /// Adds what the engine's counters have gained; they restart with every boost.
    fn sample(&mut self, status: &Status) {
        let before = self.sampled.replace(status.clone());
        let gained = |counter: fn(&Status) -> u64| {
            let (now, before) = (counter(status), before.as_ref().map_or(0, counter));
            if now < before { now } else { now - before }
        };
        self.report.drained_bytes += gained(|status| status.drained_bytes);
        self.report.split_bytes += gained(|status| status.split_bytes);
        self.report.hit_bytes += gained(|status| status.hit_bytes);
        self.report.evicted_bytes += gained(|status| status.evicted_bytes);
    }
}

fn backing_latency(scenario: &CrashScenario) -> Latency {
    Latency { max: scenario.backing_latency_max, outliers: scenario.backing_outliers, ..Latency::default() }
}

fn config(scenario: &CrashScenario, size: u64) -> Config {
    Config {
        size,
        logical_block: scenario.logical_block,
        backing_limits: Limits { bandwidth: Some(Bandwidth::from_mib_s(33)), iops: Some(Iops::new(3000)) },
        outage_patience: scenario.patience,
    }
}
