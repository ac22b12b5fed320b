//! One machine in flows: the production controller over levels and rates instead of an engine and requests.
//!
//! What flows where follows the engine: without a cache everything goes to the backing volume; a cache that absorbs takes
//! writes at its own rate (with split, at both volumes' rates) until it is full, and drains only while the application
//! leaves the volumes alone; a full cache takes writes as fast as the backing volume takes what makes room; a drain has
//! the backing volume to itself but for what the application writes meanwhile. The tests hold it to within 2 % of
//! [`block`](super::block) on completion and cost.

use std::time::Duration;

use surgetank_cache::format::Geometry;
use surgetank_model::volume_type::CreditUnit;
use surgetank_model::{Bytes, Instant, Limits, Observation};
use surgetank_policy::StepId;

use super::pilot::{Deed, Pilot};
use super::setup::{Mode, Phase, Setup, Stuck};
use super::volume::Traffic;
use super::{Machine, Share};

/// Writes of the engine's drain that share the backing volume with the application's.
const DRAIN_DEPTH: f64 = 4.0;
/// Less is nothing: what rounding leaves.
const NOTHING: f64 = 1.0;
/// Share of a log that records take for themselves: a summary of a block before at most 256 blocks.
const LOG_OVERHEAD: f64 = 1.0 / 257.0;
/// Segments that a full cache keeps for changes of what is dirty.
const RESERVE_SEGMENTS: u64 = 2;
/// Steps at one moment after which time does not pass any more.
const STALLED: u32 = 100_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    PassThrough,
    Absorb,
    Drain,
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

/// See the module.
#[derive(Debug)]
pub struct Fluid<'a> {
    setup: &'a Setup,
    split: bool,
    now: Instant,
    stage: Stage,
    disk: Rate,
    cache: Rate,
    pilot: Option<Pilot>,
    /// At most a step and an absorb that overtakes it.
    steps: Vec<(Instant, StepId)>,
    next_sample: Instant,
    read_left: f64,
    write_left: f64,
    read: f64,
    written: f64,
    capacity: f64,
    dirty: f64,
    high_water: f64,
    evicted: f64,
    traffic: Traffic,
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
            stage: Stage::PassThrough,
            disk: rate,
            cache: Rate::new(setup.caching.limits, request),
            pilot: (mode == Mode::Elastic).then(|| Pilot::new(setup, vm)),
            steps: Vec::new(),
            next_sample: Instant::ZERO,
            read_left: 0.0,
            write_left: 0.0,
            read: 0.0,
            written: 0.0,
            capacity: 0.0,
            dirty: 0.0,
            high_water: 0.0,
            evicted: 0.0,
            traffic: Traffic::default(),
            events: 0,
        }
    }

    fn is_busy(&self) -> bool {
        self.write_left > 0.0 || self.read_left > 0.0
    }

    fn is_full(&self) -> bool {
        self.dirty >= self.capacity - NOTHING
    }

    fn flows(&self) -> Flows {
        let (backing, caching) = (self.disk.now(), self.cache.now());
        let to_backing = Flows { application: backing, backing, ..Flows::default() };
        match self.stage {
            Stage::PassThrough if self.is_busy() => to_backing,
            Stage::PassThrough => Flows::default(),
            Stage::Absorb if self.write_left > 0.0 && self.is_full() => Flows { evicted: backing, ..to_backing },
            Stage::Absorb if self.write_left > 0.0 => {
                let direct = if self.split { backing } else { 0.0 };
                Flows { application: caching + direct, dirty: caching, evicted: 0.0, backing: direct }
            }
            // What was written last is read first, and is in the cache as far as it is dirty.
            Stage::Absorb if self.read_left > 0.0 && self.dirty >= self.read_left => {
                Flows { application: caching, ..Flows::default() }
            }
            Stage::Absorb if self.read_left > 0.0 => to_backing,
            Stage::Absorb | Stage::Drain | Stage::Release => self.drain_flows(backing.min(caching)),
        }
    }

    fn drain_flows(&self, rate: f64) -> Flows {
        let depth = f64::from(self.setup.application.depth);
        let share = if self.is_busy() { depth / (depth + DRAIN_DEPTH) } else { 0.0 };
        let drained = if self.dirty > 0.0 { rate * (1.0 - share) } else { 0.0 };
        let application = if self.is_busy() { rate - drained } else { 0.0 };
        Flows { application, dirty: -drained, evicted: 0.0, backing: application + drained }
    }

    /// Goes on until `to`, or until the application has nothing left to do if `work` says so.
    fn go(&mut self, to: Instant, work: bool) -> Result<(), Stuck> {
        let mut at_this_moment = 0;
        loop {
            self.take_due()?;
            if (work && !self.is_busy()) || self.now >= to {
                return Ok(());
            }
            let before = self.now;
            let flows = self.flows();
            let next = self.next_event(&flows, to);
            self.flow(&flows, next);
            at_this_moment = if self.now > before { 0 } else { at_this_moment + 1 };
            if at_this_moment > STALLED {
                return Err(Stuck(format!("the simulated device does not get beyond {}", self.now)));
            }
        }
    }

    fn next_event(&self, flows: &Flows, to: Instant) -> Instant {
        let left = if self.write_left > 0.0 { self.write_left } else { self.read_left };
        let mut seconds = self.disk.steady_for(flows.backing);
        if flows.application > 0.0 && left > 0.0 {
            seconds = seconds.min(left / flows.application);
        }
        if flows.dirty > 0.0 {
            seconds = seconds.min((self.capacity - self.dirty).max(0.0) / flows.dirty);
        } else if flows.dirty < 0.0 {
            seconds = seconds.min(self.dirty / -flows.dirty);
        }
        let flowing = (seconds < 1e9).then(|| self.now + Duration::from_nanos((seconds * 1e9).ceil() as u64));
        let step = self.steps.iter().map(|(at, _)| *at).min();
        let (sample, retry) = match &self.pilot {
            Some(pilot) => (Some(self.sample_at(pilot, to)), pilot.next_deadline()),
            None => (None, None),
        };
        [flowing, step, sample, retry].into_iter().flatten().fold(to, Instant::min).max(self.now)
    }

    /// The next sample. Those of a calm device that is not boosted change nothing, but for the last before it wakes up.
    fn sample_at(&self, pilot: &Pilot, to: Instant) -> Instant {
        let Some(until) = pilot.sleeps_until().map(|until| until.min(to)) else { return self.next_sample };
        if self.is_busy() || until == Instant::FAR {
            return self.next_sample;
        }
        let sampling = self.setup.sampling.as_nanos().max(1) as u64;
        let last = Instant::from_nanoseconds(until.as_nanoseconds() / sampling * sampling);
        self.next_sample.max(last)
    }

    fn flow(&mut self, flows: &Flows, to: Instant) {
        let seconds = to.since(self.now).as_secs_f64();
        self.traffic.application.flow(self.now, to, flows.application);
        self.traffic.backing.flow(self.now, to, flows.backing);
        self.traffic.caching.flow(self.now, to, flows.dirty);
        self.traffic.drain.flow(self.now, to, -flows.dirty);
        let moved = flows.application * seconds;
        if self.write_left > 0.0 {
            self.written += moved.min(self.write_left);
            self.write_left = settle(self.write_left - moved);
        } else if self.read_left > 0.0 {
            self.read += moved.min(self.read_left);
            self.read_left = settle(self.read_left - moved);
        }
        self.dirty = settle((self.dirty + flows.dirty * seconds).min(self.capacity));
        self.high_water = self.high_water.max(self.dirty);
        self.evicted += flows.evicted * seconds;
        self.disk.spend(flows.backing, seconds);
        self.now = to;
    }

    /// Handles what is due now.
    fn take_due(&mut self) -> Result<(), Stuck> {
        if self.pilot.is_none() {
            return Ok(());
        }
        let now = self.now;
        while let Some(index) = self.steps.iter().position(|(at, _)| *at <= now) {
            let (_, id) = self.steps.swap_remove(index);
            self.events += 1;
            if let Some(deed) = self.pilot.as_mut().and_then(|pilot| pilot.due(now, id)) {
                self.carry_out(deed);
            }
            self.take_steps();
        }
        if self.stage == Stage::Release && self.dirty <= 0.0 {
            self.stage = Stage::PassThrough;
            self.capacity = 0.0;
            self.tell(|pilot| pilot.released(now, false));
        }
        if self.pilot.as_ref().and_then(Pilot::next_deadline).is_some_and(|deadline| deadline <= now) {
            self.tell(|pilot| pilot.tick(now));
        }
        if self.next_sample <= now {
            self.events += 1;
            let observation = self.observation();
            self.tell(|pilot| pilot.observe(now, observation));
            let sampling = self.setup.sampling.as_nanos().max(1) as u64;
            self.next_sample = Instant::from_nanoseconds((now.as_nanoseconds() / sampling + 1) * sampling);
            return self.take_due();
        }
        Ok(())
    }

    fn observation(&self) -> Observation {
        Observation {
            read_bytes: self.read as u64,
            written_bytes: self.written as u64,
            requests: ((self.read + self.written) / self.setup.application.request.get() as f64) as u64,
            dirty_bytes: self.dirty as u64,
            high_water_bytes: self.high_water as u64,
            evicted_bytes: self.evicted as u64,
            cache_bytes: self.capacity as u64,
            cache_failed: false,
        }
    }

    fn tell(&mut self, what: impl FnOnce(&mut Pilot)) {
        if let Some(pilot) = &mut self.pilot {
            what(pilot);
        }
        self.take_steps();
    }

    fn take_steps(&mut self) {
        while let Some((id, time)) = self.pilot.as_mut().and_then(Pilot::next_step) {
            self.steps.push((self.now + time, id));
        }
    }

    fn carry_out(&mut self, deed: Deed) {
        let now = self.now;
        match deed {
            Deed::Adopt(size) => {
                let capacity = capacity(size);
                if capacity > 0.0 {
                    self.stage = Stage::Absorb;
                    self.capacity = capacity;
                    (self.dirty, self.high_water, self.evicted) = (0.0, 0.0, 0.0);
                }
                self.tell(|pilot| pilot.adopted(now, capacity > 0.0));
            }
            Deed::Absorb => {
                let releasing = self.stage == Stage::Release;
                if self.stage != Stage::PassThrough {
                    self.stage = Stage::Absorb;
                }
                if releasing {
                    self.tell(|pilot| pilot.released(now, true));
                }
            }
            Deed::Drain if self.stage == Stage::Absorb => self.stage = Stage::Drain,
            Deed::Drain => {}
            Deed::Release => self.stage = Stage::Release,
        }
    }
}

fn settle(level: f64) -> f64 {
    if level < NOTHING { 0.0 } else { level }
}

/// Bytes of long writes that a caching volume of this size takes.
fn capacity(size: Bytes) -> f64 {
    Geometry::of_volume(size.get()).map_or(0.0, |geometry| {
        let segments = u64::from(geometry.segments).saturating_sub(RESERVE_SEGMENTS);
        (segments * u64::from(geometry.segment_size)) as f64 * (1.0 - LOG_OVERHEAD)
    })
}

impl Machine for Fluid<'_> {
    fn run(&mut self, phase: Phase) -> Result<Instant, Stuck> {
        match phase {
            Phase::Compute(time) => self.go(self.now + time, false)?,
            Phase::Write(bytes) => {
                self.write_left += bytes.get() as f64;
                self.go(Instant::FAR, true)?;
            }
            Phase::Read(bytes) => {
                self.read_left += bytes.get() as f64;
                self.go(Instant::FAR, true)?;
            }
            Phase::Arrive { at, read, written } => {
                self.go(Instant::ZERO + at, false)?;
                self.read_left += read.get() as f64;
                self.write_left += written.get() as f64;
            }
            Phase::Finish => self.go(Instant::FAR, true)?,
        }
        Ok(self.now)
    }

    fn advance(&mut self, to: Instant) -> Result<(), Stuck> {
        self.go(to, false)
    }

    fn settle(&mut self) -> Result<(), Stuck> {
        const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
        let end = self.now + LONGEST;
        while self.pilot.as_ref().is_some_and(|pilot| !pilot.is_settled()) {
            if self.now >= end {
                return Err(Stuck("a caching volume is never let go".to_owned()));
            }
            self.go(self.next_sample, false)?;
        }
        Ok(())
    }

    fn finish(self) -> Share {
        Share {
            boosts: self.pilot.map(Pilot::into_boosts).unwrap_or_default(),
            traffic: self.traffic,
            events: self.events,
        }
    }
}
