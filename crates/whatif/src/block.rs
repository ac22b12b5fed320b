//! One machine, request by request: the production engine over modelled volumes, with buffers that hold no data.

use std::collections::HashMap;
use std::time::Duration;

use surgetank_cache::format::Geometry;
use surgetank_cache::io::{Action, Content, Io};
use surgetank_cache::{Attach, BufferId, Config, EffectId, Engine, Epoch, Event, IoFailure, Outcome, Rejected, Target};
use surgetank_model::{EventQueue, Instant, Operation, Request, RequestId};
use surgetank_rental::{Answer, Command};

use crate::bursts::Watch;
use crate::control::{Control, sampled, unexpected};
use crate::lateness::Lateness;
use crate::setup::{AppPhase, Setup, Stuck};
use crate::volume::{Server, Traffic};
use crate::{Machine, Mode, Share, within_longest};

/// Bytes of a page: sizes of volumes are multiples of it.
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
    lateness: Lateness,
    /// Bytes that were submitted.
    submitted: u64,
    control: Option<Box<Control>>,
    work: Work,
    in_flight: u32,
    /// Bytes of each.
    lengths: HashMap<RequestId, u64>,
    bytes_in_flight: u64,
    bursts: Watch,
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
                outage_patience: crate::OUTAGE_TIMEOUT,
            }),
            backing: Server::new(Instant::ZERO, disk.limits, disk.credits.as_ref()),
            cache: None,
            traffic: Traffic::default(),
            lateness: Lateness::default(),
            submitted: 0,
            control: (mode == Mode::Elastic).then(|| Box::new(Control::new(setup, vm))),
            work: Work::default(),
            in_flight: 0,
            lengths: HashMap::new(),
            bytes_in_flight: 0,
            bursts: Watch::new(&setup.application, setup.policy.inactivity_delay),
            requests: 0,
            write_at: 0,
            read_at: 0,
            events: 0,
            at_this_moment: 0,
            failed: None,
        };
        if machine.control.is_some() {
            machine.queue.push(Instant::ZERO, What::Sample);
        }
        machine
    }

    /// Handles the next event that comes no later than `until`. False if there is none.
    fn step(&mut self, until: Instant) -> Result<bool, Stuck> {
        let of_engine = self.engine.next_deadline();
        let of_control = self.control.as_deref().and_then(Control::next_deadline);
        let next = [of_engine, of_control, self.queue.next_at()].into_iter().flatten().min();
        let Some(next) = next.filter(|next| *next <= until) else { return Ok(false) };
        self.at_this_moment = if next > self.now { 0 } else { self.at_this_moment + 1 };
        if self.at_this_moment > STALLED {
            let now = self.now;
            return Err(Stuck(format!(
                "the simulated device does not get beyond {now}: simulate it with --model fluid"
            )));
        }
        within_longest(next)?;
        self.now = self.now.max(next);
        self.events += 1;
        if of_engine == Some(next) {
            self.engine.tick(self.now);
        } else if of_control == Some(next) {
            let now = self.now;
            self.control(|control| control.tick(now));
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
                let (now, observation) = (self.now, self.engine.observation(self.now));
                self.control(|control| control.observe(now, observation));
                self.queue.push(self.now + self.setup.sampling, What::Sample);
            }
        }
    }

    /// Has the controller and the rental take something, and the engine what they ask of it then.
    fn control(&mut self, what: impl FnOnce(&mut Control)) {
        let Some(mut control) = self.control.take() else { return };
        what(&mut control);
        while let Some((id, command)) = control.next_command(self.now) {
            let answer = self.command(&command, control.size());
            control.answer(self.now, id, answer);
        }
        self.control = Some(control);
    }

    fn command(&mut self, command: &Command, size: u64) -> Answer {
        let now = self.now;
        let began = |began: Result<(), Rejected>| Answer::Began(began.map_err(|rejected| rejected.to_string()));
        match *command {
            Command::Mode(mode) => {
                self.engine.set_mode(now, mode);
                Answer::Began(Ok(()))
            }
            Command::Adopt(epoch) => {
                self.cache = Some(Server::new(now, self.setup.caching.limits, None));
                began(self.engine.adopt(now, self.attach(epoch, size)))
            }
            Command::Grow(size) => {
                let grows = self.engine.grow_cache(now, size.get());
                Answer::Grows(grows.map(|()| true).map_err(|rejected| rejected.to_string()))
            }
            Command::Release => began(self.engine.release(now)),
            Command::Close => {
                self.cache = None;
                Answer::Began(Ok(()))
            }
            Command::Sample => sampled(self.engine.status().stage),
            Command::Recover(_) | Command::Restore(_) | Command::Gone | Command::Returned => unexpected(command),
        }
    }

    fn attach(&self, epoch: Epoch, size: u64) -> Attach {
        Attach {
            epoch,
            cache_size: size,
            cache_limits: self.setup.caching.limits,
            split: self.split,
            read_fill: self.setup.caching.read_fill,
            indexes: Geometry::wants_indexes(size),
        }
    }

    /// Carries out what the engine wants until it wants nothing, and lets the application go on.
    fn pump(&mut self) {
        loop {
            if let Some(effect) = self.engine.next_effect() {
                self.execute(Action::from(effect));
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
            Event::Adopted
            | Event::AdoptFailed
            | Event::CacheGrown { .. }
            | Event::CacheGrowFailed
            | Event::Released
            | Event::CacheDropped
            | Event::ReleaseCancelled => {
                self.control(|control| control.event(now, event));
            }
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

    fn execute(&mut self, action: Action) {
        match action {
            Action::Io(io) => self.start(io),
            Action::Parse { id, .. } => {
                // There is nothing to read back: buffers hold no data.
                self.queue.push(self.now, What::Effect(id, Outcome::Failed(IoFailure::Unsupported)));
            }
            Action::Allocate { .. } | Action::Release { .. } | Action::Copy { .. } | Action::Zero { .. } => {}
            Action::PersistOwner { id, owner } => {
                if let Some(control) = &mut self.control {
                    control.set_owner(owner);
                }
                self.queue.push(self.now + PERSIST, What::Effect(id, Outcome::Done));
            }
            Action::RecordHealed { id, .. } => self.queue.push(self.now + PERSIST, What::Effect(id, Outcome::Done)),
            Action::Reply { request, result } => {
                self.in_flight -= 1;
                self.note_done();
                self.bytes_in_flight -= self.lengths.remove(&request).unwrap_or_default();
                let left = self.work.read + self.work.written + self.bytes_in_flight;
                self.bursts.progress(self.now, self.now, left as f64);
                if let Err(error) = result {
                    self.failed = Some(Stuck(format!("a simulated request failed at {}: {error:?}", self.now)));
                }
            }
        }
    }

    /// A request is done: those in flight are the ones that were submitted last, or about.
    fn note_done(&mut self) {
        if !self.lateness.is_done() {
            let in_flight = u64::from(self.in_flight) * self.setup.application.request.get();
            let all = self.in_flight == 0 && self.work.read == 0 && self.work.written == 0;
            self.lateness.reach(self.now, self.submitted.saturating_sub(in_flight) as f64, all);
        }
    }

    fn start(&mut self, io: Io) {
        let (now, bytes) = (self.now, io.length);
        let served = match (io.operation, io.target) {
            (Operation::Flush, _) => Ok(now),
            // Of a discard, the volume moves nothing.
            (Operation::Discard, _) => Ok(self.backing.serve(now, 0)),
            (_, Target::Backing) => Ok(self.backing.serve(now, bytes)),
            (_, Target::Cache) => self.cache.as_mut().map(|cache| cache.serve(now, bytes)).ok_or(IoFailure::Gone),
        };
        let at = *served.as_ref().unwrap_or(&now);
        let drains = io.memory.iter().any(|slice| matches!(slice.buffer, BufferId::Scratch(_)));
        match (io.operation, io.target) {
            (Operation::Flush | Operation::Discard, _) => {}
            (operation, Target::Backing) => {
                if drains && matches!(operation, Operation::Write { .. }) {
                    self.traffic.drain.add(now, bytes as f64);
                }
                self.traffic.backing.add(at, bytes as f64);
            }
            (_, Target::Cache) => {
                if matches!(io.content, Content::Record(_)) {
                    self.traffic.caching.add(now, bytes as f64);
                }
            }
        }
        let outcome = match (served, io.content) {
            (Ok(_), Content::Record(mut summary)) => {
                let blocks = summary.data_blocks() as usize;
                summary.checksums.resize(blocks, 0);
                Outcome::Appended(summary)
            }
            (Ok(_), _) => Outcome::Done,
            (Err(failure), _) => Outcome::Failed(failure),
        };
        self.queue.push(at, What::Effect(io.id, outcome));
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
        self.submitted += length;
        self.traffic.application.add(self.now, length as f64);
        *cursor = if *cursor + length >= size { 0 } else { *cursor + length };
        self.request(operation, offset, length);
        true
    }

    fn request(&mut self, operation: Operation, offset: u64, length: u64) {
        self.requests += 1;
        self.in_flight += 1;
        let id = RequestId(self.requests);
        self.lengths.insert(id, length);
        self.bytes_in_flight += length;
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

impl Machine for Block<'_> {
    fn run(&mut self, phase: AppPhase) -> Result<Instant, Stuck> {
        match phase {
            AppPhase::Compute(time) => self.advance(self.now + time)?,
            AppPhase::Write(bytes) => {
                // A file system begins a file at a page. Neighbouring requests that share one would wait for each other.
                self.write_at = self.write_at.next_multiple_of(PAGE) % whole_pages(self.setup.backing.size.get());
                self.read_at = self.write_at;
                self.work.written += bytes.get();
                self.work_off()?;
                self.request(Operation::Flush, 0, 0);
                self.work_off()?;
            }
            AppPhase::Read(bytes) => {
                self.work.read += bytes.get();
                self.work_off()?;
            }
            AppPhase::Arrive { at, read, written } => {
                self.advance(Instant::ZERO + at)?;
                self.work.read += read.get();
                self.work.written += written.get();
                self.lateness.arrive(self.now, read.get() as f64 + written.get() as f64);
                self.bursts.ask(read.get().saturating_add(written.get()));
                self.pump();
            }
            AppPhase::Finish => {
                self.work_off()?;
            }
        }
        Ok(self.now)
    }

    fn advance(&mut self, to: Instant) -> Result<(), Stuck> {
        while self.step(to)? {}
        within_longest(to)?;
        if to > self.now {
            self.now = to;
            // What a volume serves at once would otherwise add up over all of a long trace.
            self.at_this_moment = 0;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), Stuck> {
        while self.control.as_ref().is_some_and(|control| !control.is_settled()) {
            if !self.step(Instant::FAR)? {
                return Err(Stuck(format!("a caching volume is never deleted after {}", self.now)));
            }
        }
        Ok(())
    }

    fn finish(self) -> Share {
        Share {
            boosts: self.control.map(|control| control.into_boosts()).unwrap_or_default(),
            busy: self.engine.observation(self.now).busy,
            bursts: self.bursts.into_served(),
            traffic: self.traffic,
            late: self.lateness.late(),
            events: self.events,
        }
    }
}
