//! One machine, request by request: the production engine over modelled volumes, with buffers that hold no data.

use std::time::Duration;

use surgetank_cache::format::Geometry;
use surgetank_cache::{
    Attach, BufferId, Config, Effect, EffectId, Engine, Epoch, Event, IoFailure, Mode as CacheMode, Outcome, Slice,
    Target,
};
use surgetank_model::{EventQueue, Instant, Operation, Request, RequestId};
use surgetank_policy::StepId;

use crate::pilot::{Deed, Pilot};
use crate::setup::{Phase, Setup, Stuck};
use crate::volume::{Server, Traffic};
use crate::{Machine, Mode, Share};

/// Bytes of a summary, a superblock or a page of the segment table.
const PAGE: u64 = 4096;
/// Time to make an owner record durable.
const PERSIST: Duration = Duration::from_millis(5);
/// Events at one moment after which time does not pass any more.
const STALLED: u32 = 1_000_000;

/// What happens.
#[derive(Debug)]
enum What {
    Effect(EffectId, Outcome),
    Sample,
    Step(StepId),
}

/// The I/O that a phase still has to do.
#[derive(Clone, Copy, Debug, Default)]
struct Work {
    read: u64,
    written: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Block<'a> {
    setup: &'a Setup,
    split: bool,
    now: Instant,
    queue: EventQueue<What>,
    engine: Engine,
    backing: Server,
    cache: Option<Server>,
    traffic: Traffic,
    pilot: Option<Pilot>,
    epochs: u64,
    work: Work,
    in_flight: u32,
    requests: u64,
    /// Where the next write and the next read go.
    write_at: u64,
    read_at: u64,
    events: u64,
    at_this_moment: u32,
    failed: Option<Stuck>,
}

impl<'a> Block<'a> {
    /// Machine `vm` at rest.
    #[must_use]
    pub fn new(setup: &'a Setup, mode: Mode, vm: u32) -> Self {
        let disk = setup.disk(mode);
        let mut machine = Self {
            setup,
            split: setup.policy.split,
            now: Instant::ZERO,
            queue: EventQueue::default(),
            engine: Engine::new(Config {
                size: whole_pages(disk.size.get()),
                logical_block: 512,
                backing_limits: disk.limits,
                outage_patience: std::time::Duration::from_secs(300),
            }),
            backing: Server::new(Instant::ZERO, disk.limits, disk.credits.as_ref()),
            cache: None,
            traffic: Traffic::default(),
            pilot: (mode == Mode::Elastic).then(|| Pilot::new(setup, vm)),
            epochs: u64::from(vm) << 32,
            work: Work::default(),
            in_flight: 0,
            requests: 0,
            write_at: 0,
            read_at: 0,
            events: 0,
            at_this_moment: 0,
            failed: None,
        };
        if machine.pilot.is_some() {
            machine.queue.push(Instant::ZERO, What::Sample);
        }
        machine
    }

    /// Handles the next event that comes no later than `until`. False if there is none.
    fn step(&mut self, until: Instant) -> Result<bool, Stuck> {
        let deadline = self.engine.next_deadline();
        let retry = self.pilot.as_ref().and_then(Pilot::next_deadline);
        let next = [deadline, retry, self.queue.next_at()].into_iter().flatten().min();
        let Some(next) = next.filter(|next| *next <= until) else { return Ok(false) };
        self.at_this_moment = if next > self.now { 0 } else { self.at_this_moment + 1 };
        if self.at_this_moment > STALLED {
            return Err(Stuck(format!("the simulated device does not get beyond {}", self.now)));
        }
        self.now = self.now.max(next);
        self.events += 1;
        if deadline == Some(next) {
            self.engine.tick(self.now);
        } else if retry == Some(next) {
            let now = self.now;
            self.tell(|pilot| pilot.tick(now));
        } else if let Some((_, what)) = self.queue.pop() {
            self.handle(what);
        }
        self.pump();
        self.failed.clone().map_or(Ok(true), Err)
    }

    fn handle(&mut self, what: What) {
        match what {
            What::Effect(id, outcome) => self.engine.complete(self.now, id, outcome),
            What::Sample => {
                if let Some(pilot) = &mut self.pilot {
                    pilot.observe(self.now, self.engine.observation());
                }
                self.queue.push(self.now + self.setup.sampling, What::Sample);
            }
            What::Step(id) => {
                let deed = self.pilot.as_mut().and_then(|pilot| pilot.due(self.now, id));
                if let Some(deed) = deed {
                    self.carry_out(deed);
                }
            }
        }
        self.take_steps();
    }

    fn take_steps(&mut self) {
        while let Some((id, time)) = self.pilot.as_mut().and_then(Pilot::next_step) {
            self.queue.push(self.now + time, What::Step(id));
        }
    }

    fn carry_out(&mut self, deed: Deed) {
        let now = self.now;
        match deed {
            Deed::Adopt(size) => {
                self.epochs += 1;
                let mut epoch = Epoch::default();
                epoch.0[..8].copy_from_slice(&self.epochs.to_le_bytes());
                let attach = Attach {
                    epoch,
                    cache_size: size.get(),
                    cache_limits: self.setup.caching.limits,
                    split: self.split,
                    read_fill: self.setup.caching.read_fill,
                    indexes: Geometry::wants_indexes(size.get()),
                };
                self.cache = Some(Server::new(now, self.setup.caching.limits, None));
                if self.engine.adopt(now, attach).is_err() {
                    self.let_go();
                    self.tell(|pilot| pilot.adopted(now, false));
                }
            }
            Deed::Absorb => self.engine.set_mode(now, CacheMode::Absorb),
            Deed::Drain => self.engine.set_mode(now, CacheMode::Drain),
            Deed::Finish => self.engine.set_mode(now, CacheMode::Finish),
            Deed::Release => {
                if self.engine.release(now).is_err() {
                    self.tell(|pilot| pilot.released(now, false));
                }
            }
        }
    }

    fn tell(&mut self, what: impl FnOnce(&mut Pilot)) {
        if let Some(pilot) = &mut self.pilot {
            what(pilot);
        }
        self.take_steps();
    }

    /// The caching volume is not used any more.
    fn let_go(&mut self) {
        self.cache = None;
    }

    /// Carries out what the engine wants until it wants nothing, and lets the application go on.
    fn pump(&mut self) {
        loop {
            if let Some(effect) = self.engine.next_effect() {
                self.execute(effect);
            } else if let Some(event) = self.engine.next_event() {
                self.hear(&event);
            } else if !self.submit() {
                return;
            }
        }
    }

    fn hear(&mut self, event: &Event) {
        let now = self.now;
        match event {
            Event::Adopted => self.tell(|pilot| pilot.adopted(now, true)),
            Event::AdoptFailed => {
                self.let_go();
                self.tell(|pilot| pilot.adopted(now, false));
            }
            Event::Released | Event::CacheDropped => {
                self.let_go();
                self.tell(|pilot| pilot.released(now, false));
            }
            Event::ReleaseCancelled => self.tell(|pilot| pilot.released(now, true)),
            Event::Recovered { .. }
            | Event::RecoverFailed { .. }
            | Event::CacheFailing
            | Event::CacheLost { .. }
            | Event::RestoreFailed { .. }
            | Event::Stopped => {
                self.failed = Some(Stuck(format!("a simulated volume failed at {}: {event:?}", self.now)));
            }
        }
    }

    fn execute(&mut self, effect: Effect) {
        let (id, target, bytes, outcome) = match effect {
            Effect::Allocate { .. } | Effect::Release { .. } | Effect::Copy { .. } | Effect::Zero { .. } => return,
            Effect::Reply { result, .. } => {
                self.in_flight -= 1;
                if let Err(error) = result {
                    self.failed = Some(Stuck(format!("a simulated request failed at {}: {error:?}", self.now)));
                }
                return;
            }
            Effect::PersistOwner { id, .. } | Effect::RecordHealed { id, .. } => {
                self.queue.push(self.now + PERSIST, What::Effect(id, Outcome::Done));
                return;
            }
            Effect::Flush { id, .. } => {
                self.queue.push(self.now, What::Effect(id, Outcome::Done));
                return;
            }
            Effect::Read { id, target, into, .. } => (id, target, u64::from(into.length), Outcome::Done),
            Effect::Write { id, target, from, .. } => {
                let bytes = length(&from);
                if from.iter().any(|slice| matches!(slice.buffer, BufferId::Scratch(_))) {
                    self.traffic.drain.add(self.now, bytes as f64);
                }
                (id, target, bytes, Outcome::Done)
            }
            Effect::Append { id, mut summary, data, .. } => {
                let blocks = summary.data_blocks() as usize;
                summary.checksums.resize(blocks, 0);
                let bytes = PAGE + length(&data);
                self.traffic.caching.add(self.now, bytes as f64);
                (id, Target::Cache, bytes, Outcome::Appended(summary))
            }
            Effect::WriteSuperblock { id, .. } | Effect::WriteTable { id, .. } => {
                (id, Target::Cache, PAGE, Outcome::Done)
            }
            Effect::WriteIndex { id, bytes, .. } => (id, Target::Cache, bytes.len() as u64, Outcome::Done),
            Effect::Discard { id, .. } => (id, Target::Backing, 0, Outcome::Done),
            Effect::WriteZeroes { id, length, .. } => (id, Target::Backing, length, Outcome::Done),
            Effect::Parse { id, .. } => (id, Target::Cache, 0, Outcome::Failed(IoFailure::Unsupported)),
        };
        let server = match target {
            Target::Backing => Some(&mut self.backing),
            Target::Cache => self.cache.as_mut(),
        };
        let (at, outcome) = match server {
            Some(server) => {
                let at = server.serve(self.now, bytes);
                if target == Target::Backing {
                    self.traffic.backing.add(at, bytes as f64);
                }
                (at, outcome)
            }
            None => (self.now, Outcome::Failed(IoFailure::Gone)),
        };
        self.queue.push(at, What::Effect(id, outcome));
    }

    /// Submits the application's next request, if one may be in flight.
    fn submit(&mut self) -> bool {
        if self.in_flight >= self.setup.application.depth {
            return false;
        }
        let size = whole_pages(self.setup.backing.size.get());
        let (operation, left, cursor) = if self.work.written > 0 {
            (Operation::Write { fua: false }, &mut self.work.written, &mut self.write_at)
        } else if self.work.read > 0 {
            (Operation::Read, &mut self.work.read, &mut self.read_at)
        } else {
            return false;
        };
        let wanted = self.setup.application.request.get().min(*left).next_multiple_of(512);
        let length = wanted.min(size - *cursor);
        let offset = *cursor;
        *left = left.saturating_sub(length);
        self.traffic.application.add(self.now, length as f64);
        *cursor = if *cursor + length >= size { 0 } else { *cursor + length };
        self.request(operation, offset, length);
        true
    }

    fn request(&mut self, operation: Operation, offset: u64, length: u64) {
        self.requests += 1;
        self.in_flight += 1;
        let id = RequestId(self.requests);
        self.engine.submit(self.now, Request { id, operation, offset, length });
    }

    /// Goes on until the work is done.
    fn work_off(&mut self) -> Result<Instant, Stuck> {
        self.pump();
        while self.in_flight > 0 || self.work.read > 0 || self.work.written > 0 {
            if !self.step(Instant::FAR)? {
                return Err(Stuck(format!("the simulated device stopped answering at {}", self.now)));
            }
        }
        Ok(self.now)
    }
}

fn whole_pages(bytes: u64) -> u64 {
    bytes / PAGE * PAGE
}

fn length(slices: &[Slice]) -> u64 {
    slices.iter().map(|slice| u64::from(slice.length)).sum()
}

impl Machine for Block<'_> {
    fn run(&mut self, phase: Phase) -> Result<Instant, Stuck> {
        match phase {
            Phase::Compute(time) => self.advance(self.now + time)?,
            Phase::Write(bytes) => {
                self.read_at = self.write_at;
                self.work.written += bytes.get();
                self.work_off()?;
                self.request(Operation::Flush, 0, 0);
                self.work_off()?;
            }
            Phase::Read(bytes) => {
                self.work.read += bytes.get();
                self.work_off()?;
            }
            Phase::Arrive { at, read, written } => {
                self.advance(Instant::ZERO + at)?;
                self.work.read += read.get();
                self.work.written += written.get();
                self.pump();
            }
            Phase::Finish => {
                self.work_off()?;
            }
        }
        Ok(self.now)
    }

    fn advance(&mut self, to: Instant) -> Result<(), Stuck> {
        while self.step(to)? {}
        self.now = self.now.max(to);
        Ok(())
    }

    fn settle(&mut self) -> Result<(), Stuck> {
        while self.pilot.as_ref().is_some_and(|pilot| !pilot.is_settled()) {
            if !self.step(Instant::FAR)? {
                return Err(Stuck(format!("a caching volume is never let go after {}", self.now)));
            }
        }
        self.let_go();
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
