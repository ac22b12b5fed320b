//! One machine in flows: the production controller over levels and rates instead of an engine and requests.
//!
//! What flows where follows the engine: without a cache everything goes to the backing volume; a cache that absorbs takes
//! writes at its own rate (with split, at both volumes' rates) until it is full, and drains only while the application
//! leaves the volumes alone; a full cache takes writes as fast as the backing volume takes what makes room; a drain has
//! the backing volume to itself but for what the application writes meanwhile. The tests hold it to within 2 % of
//! [`block`](crate::block) on completion and cost.
//!
//! Flows last for stretches; within one, levels follow from its start and not from what happened meanwhile. So samples in
//! which the controller decides nothing ([`Steps::steady`]) are left out, and not a bit of the outcome changes.

mod script;
mod steps;

use std::time::Duration;

use surgetank_cache::format::Geometry;
use surgetank_model::volume_type::CreditUnit;
use surgetank_model::{Bytes, Instant, Limits, Observation};
use surgetank_policy::StepId;

pub use self::script::{Script, Scripted};
use self::steps::{Change, Steps};
use crate::bursts::Watch;
use crate::lateness::Lateness;
use crate::setup::{AppPhase, Setup, Stuck};
use crate::volume::Traffic;
use crate::{Machine, Mode, Share, within_longest};

/// Writes of the engine's drain that share the backing volume with the application's.
const DRAIN_DEPTH: f64 = 4.0;
/// What the application's writes have of the backing volume while a drain is to be finished.
const FINISH_SHARE: f64 = 0.2;
/// Less is nothing: what rounding leaves.
const NOTHING: f64 = 1.0;
/// Steps at one moment after which time does not pass any more.
const STALLED: u32 = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FluidStage {
    PassThrough,
    Absorb,
    Drain,
    /// Draining, and what the application writes has no more than [`FINISH_SHARE`] of the backing volume.
    Finish,
    Release,
}

/// A volume's rate: constant, or with burst credits one of two.
#[derive(Clone, Copy, Debug)]
struct Rate {
    /// Bytes per second.
    burst: f64,
    credits: Option<Credits>,
}

#[derive(Clone, Copy, Debug)]
struct Credits {
    level: f64,
    capacity: f64,
    /// Credits per second.
    earned: f64,
    /// Credits a byte costs.
    per_byte: f64,
}

impl Rate {
    fn new(limits: Limits, request: f64) -> Self {
        let bandwidth = limits.bandwidth.map_or(f64::MAX, |bandwidth| bandwidth.get() as f64);
        let iops = limits.iops.map_or(f64::MAX, |iops| iops.get() as f64 * request);
        Self { burst: bandwidth.min(iops), credits: None }
    }

    fn now(&self) -> f64 {
        match self.credits {
            Some(credits) if credits.level < NOTHING => self.burst.min(credits.earned / credits.per_byte),
            _ => self.burst,
        }
    }

    /// Seconds at this use until the rate changes.
    fn steady_for(&self, used: f64) -> f64 {
        let Some(credits) = self.credits else { return f64::INFINITY };
        let spent = used * credits.per_byte - credits.earned;
        if spent > 0.0 && credits.level >= NOTHING { credits.level / spent } else { f64::INFINITY }
    }

    fn spend(&mut self, used: f64, seconds: f64) {
        if let Some(credits) = &mut self.credits {
            let gained = (credits.earned - used * credits.per_byte) * seconds;
            credits.level = (credits.level + gained).clamp(0.0, credits.capacity);
        }
    }
}

/// Bytes per second from and to where.
#[derive(Clone, Copy, Debug, Default)]
struct Flows {
    /// The application's progress.
    application: f64,
    /// Growth of what is dirty; negative while it shrinks.
    dirty: f64,
    /// What a larger cache would have taken.
    evicted: f64,
    backing: f64,
}

/// What is left to do, what was done, and what is where, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Levels {
    read_left: f64,
    write_left: f64,
    read: f64,
    written: f64,
    /// Seconds in which there was something to do.
    busy: f64,
    capacity: f64,
    dirty: f64,
    high_water: f64,
    evicted: f64,
    drained: f64,
}

impl Levels {
    fn is_busy(&self) -> bool {
        self.write_left > 0.0 || self.read_left > 0.0
    }

    fn is_full(&self) -> bool {
        self.dirty >= self.capacity - NOTHING
    }

    fn after(mut self, flows: &Flows, seconds: f64) -> Self {
        let moved = flows.application * seconds;
        if self.is_busy() {
            self.busy += seconds;
        }
        if self.write_left > 0.0 {
            self.written += moved.min(self.write_left);
            self.write_left = settle(self.write_left - moved);
        } else if self.read_left > 0.0 {
            self.read += moved.min(self.read_left);
            self.read_left = settle(self.read_left - moved);
        }
        self.drained += (-flows.dirty * seconds).clamp(0.0, self.dirty);
        self.dirty = settle((self.dirty + flows.dirty * seconds).min(self.capacity));
        self.high_water = self.high_water.max(self.dirty);
        self.evicted += flows.evicted * seconds;
        self
    }

    /// Seconds until one of them comes to its end.
    fn steady_for(&self, flows: &Flows) -> f64 {
        let mut seconds = f64::INFINITY;
        let left = if self.write_left > 0.0 { self.write_left } else { self.read_left };
        if flows.application > 0.0 && left > 0.0 {
            seconds = left / flows.application;
        }
        if flows.dirty > 0.0 {
            seconds = seconds.min((self.capacity - self.dirty).max(0.0) / flows.dirty);
        } else if flows.dirty < 0.0 {
            seconds = seconds.min(self.dirty / -flows.dirty);
        }
        seconds
    }
}

/// Flows that last.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    flows: Flows,
    until: Instant,
}

/// How far [`Fluid::go`] goes at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    /// To the moment that it is told.
    Time,
    /// Until the application has nothing left to do.
    Done,
    /// To the first sample at which nothing is rented, nor will be.
    Settled,
}

/// See the module.
#[derive(Debug)]
pub struct Fluid<'a> {
    setup: &'a Setup,
    split: bool,
    now: Instant,
    stage: FluidStage,
    disk: Rate,
    cache: Rate,
    controller: Option<Steps>,
    /// In place of a controller.
    script: Script,
    /// At most a step and an absorb that overtakes it.
    steps: Vec<(Instant, StepId)>,
    /// Nanoseconds between samples.
    sampling: u64,
    last_sample: Option<Instant>,
    next_sample: Instant,
    /// Samples since flows may have changed.
    samples: u32,
    skips_samples: bool,
    /// As of `since`.
    levels: Levels,
    since: Instant,
    /// From `since` on; `None` until it is asked for.
    stretch: Option<Stretch>,
    traffic: Traffic,
    lateness: Lateness,
    bursts: Watch,
    events: u64,
}

impl<'a> Fluid<'a> {
    /// Machine `vm` at rest.
    #[must_use]
    pub fn new(setup: &'a Setup, mode: Mode, vm: u32) -> Self {
        let disk = setup.disk(mode);
        let request = setup.application.request.get() as f64;
        let mut rate = Rate::new(disk.limits, request);
        rate.credits = disk.credits.map(|credits| Credits {
            level: credits.bucket as f64,
            capacity: credits.bucket as f64,
            earned: credits.baseline_per_s as f64,
            per_byte: match credits.unit {
                CreditUnit::Operations => 1.0 / request,
                CreditUnit::Bytes => 1.0,
            },
        });
        Self {
            setup,
            split: setup.policy.split,
            now: Instant::ZERO,
            stage: FluidStage::PassThrough,
            disk: rate,
            cache: Rate::new(setup.caching.limits, request),
            controller: (mode == Mode::Elastic).then(|| Steps::new(setup, vm)),
            script: Script::default(),
            steps: Vec::new(),
            sampling: setup.sampling.as_nanos().max(1) as u64,
            last_sample: None,
            next_sample: Instant::ZERO,
            samples: 0,
            skips_samples: true,
            levels: Levels::default(),
            since: Instant::ZERO,
            stretch: None,
            traffic: Traffic::default(),
            lateness: Lateness::default(),
            bursts: Watch::new(&setup.application, setup.policy.inactivity_delay),
            events: 0,
        }
    }

    fn flows(&self) -> Flows {
        let (backing, caching) = (self.disk.now(), self.cache.now());
        let to_backing = Flows { application: backing, backing, ..Flows::default() };
        match self.stage {
            FluidStage::PassThrough if self.levels.is_busy() => to_backing,
            FluidStage::PassThrough => Flows::default(),
            FluidStage::Absorb if self.levels.write_left > 0.0 && self.levels.is_full() => {
                Flows { evicted: backing, ..to_backing }
            }
            FluidStage::Absorb if self.levels.write_left > 0.0 => {
                let direct = if self.split { backing } else { 0.0 };
                Flows { application: caching + direct, dirty: caching, evicted: 0.0, backing: direct }
            }
            // What was written last is read first, and is in the cache as far as it is dirty.
            FluidStage::Absorb if self.levels.read_left > 0.0 && self.levels.dirty >= self.levels.read_left => {
                Flows { application: caching, ..Flows::default() }
            }
            FluidStage::Absorb if self.levels.read_left > 0.0 && self.levels.dirty > 0.0 => {
                let missed = (self.levels.read_left - self.levels.dirty) / backing;
                let seconds = missed.max(self.levels.dirty / caching);
                let application = (self.levels.read_left / seconds).min(caching.max(backing));
                Flows { application, backing: missed / seconds * backing, ..Flows::default() }
            }
            FluidStage::Absorb if self.levels.read_left > 0.0 => to_backing,
            FluidStage::Absorb | FluidStage::Drain | FluidStage::Finish | FluidStage::Release => {
                self.drain_flows(backing.min(caching))
            }
        }
    }

    fn drain_flows(&self, rate: f64) -> Flows {
        let depth = f64::from(self.setup.application.depth);
        let share = match self.stage {
            _ if !self.levels.is_busy() => 0.0,
            FluidStage::Finish => (depth / (depth + DRAIN_DEPTH)).min(FINISH_SHARE),
            _ => depth / (depth + DRAIN_DEPTH),
        };
        let drained = if self.levels.dirty > 0.0 { rate * (1.0 - share) } else { 0.0 };
        let application = if self.levels.is_busy() { rate - drained } else { 0.0 };
        Flows { application, dirty: -drained, evicted: 0.0, backing: application + drained }
    }

    /// Goes on until `to`, or the goal before.
    fn go(&mut self, to: Instant, goal: Goal) -> Result<(), Stuck> {
        let mut at_this_moment = 0;
        loop {
            if self.stretch.is_some_and(|stretch| stretch.until <= self.now) {
                self.end_stretch();
            }
            self.take_due()?;
            self.follow_script();
            if self.now >= to || self.has_reached(goal) {
                return Ok(());
            }
            let mut next = self.next_event(to);
            if goal == Goal::Settled && self.is_settled() {
                // The next sample says so, and nothing else is to come that would end a stretch.
                next = next.min(self.next_sample).max(self.now);
            }
            at_this_moment = if next > self.now { 0 } else { at_this_moment + 1 };
            if at_this_moment > STALLED {
                let now = self.now;
                return Err(Stuck(format!(
                    "the simulated device does not get beyond {now}: simulate it with --model block"
                )));
            }
            within_longest(next)?;
            self.now = next;
        }
    }

    fn has_reached(&self, goal: Goal) -> bool {
        match goal {
            Goal::Time => false,
            Goal::Done => !self.levels.is_busy(),
            Goal::Settled => {
                let sampled = self.controller.is_none() || self.last_sample == Some(self.now);
                sampled && self.is_settled()
            }
        }
    }

    fn is_settled(&self) -> bool {
        self.script.is_done() && self.controller.as_ref().is_none_or(Steps::is_settled)
    }

    /// Before anything is changed that flows depend on.
    fn end_stretch(&mut self) {
        if let Some(Stretch { flows, .. }) = self.stretch.take() {
            let seconds = self.now.since(self.since).as_secs_f64();
            self.traffic.application.flow(self.since, self.now, flows.application);
            self.traffic.backing.flow(self.since, self.now, flows.backing);
            self.traffic.caching.flow(self.since, self.now, flows.dirty);
            self.traffic.drain.flow(self.since, self.now, -flows.dirty);
            self.levels = self.levels.after(&flows, seconds);
            self.bursts.progress(self.since, self.now, self.levels.read_left + self.levels.write_left);
            self.disk.spend(flows.backing, seconds);
            self.lateness.flow(self.since, self.now, flows.application * seconds, !self.levels.is_busy());
        }
        self.since = self.now;
        self.samples = 0;
    }

    fn begin_stretch(&mut self) -> Stretch {
        self.since = self.now;
        let flows = self.flows();
        let mut seconds = self.levels.steady_for(&flows).min(self.disk.steady_for(flows.backing));
        if self.stage == FluidStage::Absorb
            && self.levels.write_left <= 0.0
            && self.levels.read_left > self.levels.dirty
        {
            // What is left of the read is then in the cache.
            seconds = seconds.min((self.levels.read_left - self.levels.dirty) / flows.application);
        }
        let lasting = (seconds < 1e9).then(|| Duration::from_nanos((seconds * 1e9).ceil() as u64));
        let stretch = Stretch { flows, until: lasting.map_or(Instant::FAR, |lasting| self.now + lasting) };
        self.stretch = Some(stretch);
        stretch
    }

    fn next_event(&mut self, to: Instant) -> Instant {
        let stretch = self.stretch.unwrap_or_else(|| self.begin_stretch());
        let mut next = self.steps.iter().fold(to.min(stretch.until), |next, (at, _)| next.min(*at));
        next = self.script.next_at(self.now).map_or(next, |at| next.min(at));
        if let Some(controller) = &self.controller {
            next = controller.next_deadline().map_or(next, |deadline| next.min(deadline));
            next = next.min(self.sample_before(controller, &stretch, next));
        }
        next.max(self.now)
    }

    /// The next sample that is taken, if nothing else happens before `change`.
    fn sample_before(&self, controller: &Steps, stretch: &Stretch, change: Instant) -> Instant {
        let (next, change, sampling) = (self.next_sample, change.as_nanoseconds(), self.sampling);
        if !self.skips_samples || self.samples == 0 || change <= next.as_nanoseconds().saturating_add(sampling) {
            return next;
        }
        let Some(steady) = controller.steady() else { return next };
        let change = change.min(steady.until.as_nanoseconds());
        // The last sample was about this stretch alone, or it makes no difference.
        let is_typical = self.samples > 1 || (stretch.flows.application == 0.0 && !steady.counts_interval);
        if !is_typical || change == Instant::FAR.as_nanoseconds() {
            return next;
        }
        let last = if steady.counts_interval {
            (change.saturating_sub(1) / sampling).saturating_sub(1) * sampling
        } else {
            change / sampling * sampling
        };
        next.max(Instant::from_nanoseconds(last))
    }

    /// Handles what is due now.
    fn take_due(&mut self) -> Result<(), Stuck> {
        if self.controller.is_none() {
            return Ok(());
        }
        let now = self.now;
        while let Some(index) = self.steps.iter().position(|(at, _)| *at <= now) {
            let (_, id) = self.steps.swap_remove(index);
            self.events += 1;
            if let Some(change) = self.controller.as_mut().and_then(|controller| controller.due(now, id)) {
                self.carry_out(change);
            }
            self.take_steps();
        }
        if self.stage == FluidStage::Release && self.levels.dirty <= 0.0 {
            self.end_stretch();
            self.stage = FluidStage::PassThrough;
            self.levels.capacity = 0.0;
            self.tell(|controller| controller.released(now, false));
        }
        if self.controller.as_ref().and_then(Steps::next_deadline).is_some_and(|deadline| deadline <= now) {
            self.tell(|controller| controller.tick(now));
        }
        if self.next_sample <= now {
            self.events += 1;
            let observation = self.observation();
            self.tell(|controller| controller.observe(now, observation));
            self.last_sample = Some(now);
            self.samples += 1;
            self.next_sample = Instant::from_nanoseconds((now.as_nanoseconds() / self.sampling + 1) * self.sampling);
            return self.take_due();
        }
        Ok(())
    }

    fn observation(&self) -> Observation {
        let levels = match &self.stretch {
            Some(Stretch { flows, .. }) => self.levels.after(flows, self.now.since(self.since).as_secs_f64()),
            None => self.levels,
        };
        Observation {
            read_bytes: levels.read as u64,
            written_bytes: levels.written as u64,
            requests: ((levels.read + levels.written) / self.setup.application.request.get() as f64) as u64,
            busy: Duration::from_secs_f64(levels.busy),
            dirty_bytes: levels.dirty as u64,
            high_water_bytes: levels.high_water as u64,
            evicted_bytes: levels.evicted as u64,
            drained_bytes: levels.drained as u64,
            cache_bytes: levels.capacity as u64,
            cache_failed: false,
        }
    }

    fn tell(&mut self, what: impl FnOnce(&mut Steps)) {
        if let Some(controller) = &mut self.controller {
            what(controller);
        }
        self.take_steps();
    }

    fn take_steps(&mut self) {
        while let Some((id, time)) = self.controller.as_mut().and_then(Steps::next_step) {
            self.steps.push((self.now + time, id));
        }
    }

    /// The application asks for this.
    fn ask(&mut self, read: Bytes, written: Bytes) {
        self.end_stretch();
        self.bursts.ask(read.get().saturating_add(written.get()));
        self.levels.read_left += read.get() as f64;
        self.levels.write_left += written.get() as f64;
    }

    /// Takes a caching volume into use, if it has room for anything.
    fn adopt(&mut self, size: Bytes) -> bool {
        let capacity = capacity(size);
        if capacity > 0.0 {
            self.stage = FluidStage::Absorb;
            self.levels = Levels { capacity, dirty: 0.0, high_water: 0.0, evicted: 0.0, drained: 0.0, ..self.levels };
        }
        capacity > 0.0
    }

    fn carry_out(&mut self, change: Change) {
        let now = self.now;
        self.end_stretch();
        match change {
            Change::Adopt(size) => {
                let success = self.adopt(size);
                self.tell(|controller| controller.adopted(now, success));
            }
            Change::Grow(size) => self.levels.capacity = self.levels.capacity.max(capacity(size)),
            Change::Absorb => {
                let releasing = self.stage == FluidStage::Release;
                if self.stage != FluidStage::PassThrough {
                    self.stage = FluidStage::Absorb;
                }
                if releasing {
                    self.tell(|controller| controller.released(now, true));
                }
            }
            Change::Drain if matches!(self.stage, FluidStage::Absorb | FluidStage::Finish) => {
                self.stage = FluidStage::Drain
            }
            Change::Finish if matches!(self.stage, FluidStage::Absorb | FluidStage::Drain) => {
                self.stage = FluidStage::Finish
            }
            Change::Drain | Change::Finish => {}
            Change::Release => self.stage = FluidStage::Release,
        }
    }
}

fn settle(level: f64) -> f64 {
    if level < NOTHING { 0.0 } else { level }
}

/// Bytes of long writes that a caching volume of this size takes.
fn capacity(size: Bytes) -> f64 {
    Geometry::of_volume(size.get()).map_or(0.0, |geometry| geometry.capacity() as f64)
}

impl Machine for Fluid<'_> {
    fn run(&mut self, phase: AppPhase) -> Result<Instant, Stuck> {
        match phase {
            AppPhase::Compute(time) => self.go(self.now + time, Goal::Time)?,
            AppPhase::Write(bytes) => {
                self.ask(Bytes::ZERO, bytes);
                self.go(Instant::FAR, Goal::Done)?;
            }
            AppPhase::Read(bytes) => {
                self.ask(bytes, Bytes::ZERO);
                self.go(Instant::FAR, Goal::Done)?;
            }
            AppPhase::Arrive { at, read, written } => {
                self.go(Instant::ZERO + at, Goal::Time)?;
                self.ask(read, written);
                self.lateness.arrive(self.now, read.get() as f64 + written.get() as f64);
            }
            AppPhase::Finish => self.go(Instant::FAR, Goal::Done)?,
        }
        Ok(self.now)
    }

    fn advance(&mut self, to: Instant) -> Result<(), Stuck> {
        self.go(to, Goal::Time)
    }

    fn settle(&mut self) -> Result<(), Stuck> {
        const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
        if !self.is_settled() {
            self.go(self.now + LONGEST, Goal::Settled)?;
        }
        if self.is_settled() { Ok(()) } else { Err(Stuck("a caching volume is never deleted".to_owned())) }
    }

    fn finish(mut self) -> Share {
        self.end_stretch();
        Share {
            busy: Duration::from_secs_f64(self.levels.busy),
            boosts: self.controller.map_or(self.script.into_boosts(), Steps::into_boosts),
            bursts: self.bursts.into_served(),
            traffic: self.traffic,
            late: self.lateness.late(),
            events: self.events,
        }
    }
}

#[cfg(test)]
mod tests;
