//! The thread that owns one device: requests and completions in, the engine's effects out, no locks.
//!
//! Everything that may block (the state directory, the provider) happens on other threads and comes back as a
//! [`Command`].

mod command;
mod growth;
mod intake;
mod overhead;
mod stopping;

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, unbounded};
use surgetank_cache::io::Action;
use surgetank_cache::{Effect, EffectId, Engine, EngineStage, Event, IoFailure, Outcome, Rejected, ReplyError, Status};
use surgetank_device::front::reclaim;
use surgetank_device::{Front, Poller, Spin, Submission, Volume, Waker};
use surgetank_model::{ClientId, Instant, Limits, Observation, Request};
use surgetank_policy::fair::{Piece, Windows};

use crate::buffers::{Buffers, Origin};
use crate::clock::Clock;
use crate::effects::{Moved, Volumes};
use crate::owner::Entry;
use intake::{Intake, RequestAnswer};
use stopping::Stopping;

pub use command::Command;
pub use overhead::Overhead;

/// Requests taken from the front at a time.
const RECEIVE_BUDGET: usize = 128;
/// Rounds of effects before the front and the commands are looked at again: a drain between two memory volumes would
/// otherwise run to its end in one go.
const ROUNDS_MAX: usize = 32;

const KEY_WAKER: u64 = 0;
const KEY_FRONT: u64 = 1;
const KEY_BACKING: u64 = 2;
const KEY_CACHE: u64 = 3;

/// A snapshot of a shard.
#[derive(Clone, Debug)]
pub struct Sample {
    /// When it was taken.
    pub now: Instant,
    /// For the controller.
    pub observation: Observation,
    /// For people.
    pub status: Status,
    /// What the backing volume has moved.
    pub backing: Moved,
    /// What all caching volumes have moved.
    pub cache: Moved,
    /// The device's size in bytes.
    pub size_bytes: u64,
    /// The caching volume answered that it was unplugged.
    pub cache_gone: bool,
    /// The engine only passes requests on.
    pub is_transparent: bool,
    /// What [`ShardHandle::changes`] was.
    changes: u64,
}

/// Sends commands to a shard. Clones talk to the same one.
#[derive(Clone)]
pub struct ShardHandle {
    commands: Sender<Command>,
    waker: Waker,
    changes: Arc<AtomicU64>,
}

/// The shard's thread is gone (it failed or has been stopped).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the device's thread has ended")]
pub struct ShardGone;

impl ShardHandle {
    /// Sends a command.
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn send(&self, command: Command) -> Result<(), ShardGone> {
        self.commands.send(command).map_err(|_| ShardGone)?;
        self.waker.wake();
        Ok(())
    }

    /// Takes a sample; without waking the shard if nothing has happened there since `last` was taken.
    ///
    /// # Errors
    /// If the thread has ended, and something is to be asked.
    pub fn sample(&self, now: Instant, last: Option<Sample>) -> Result<Sample, ShardGone> {
        match last {
            Some(last) if last.changes == self.changes.load(Ordering::Acquire) => Ok(Sample { now, ..last }),
            _ => self.ask(|answer| Command::Sample { answer }),
        }
    }

    /// Sends a command and waits for its answer.
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn ask<T>(&self, command: impl FnOnce(Sender<T>) -> Command) -> Result<T, ShardGone> {
        let (answer, answered) = crossbeam_channel::bounded(1);
        self.send(command(answer))?;
        answered.recv().map_err(|_| ShardGone)
    }
}

/// What a shard is made of.
pub struct Parts {
    /// The device's name, for threads and logs.
    pub name: String,
    /// The engine, in the state that the owner record asks for.
    pub engine: Engine,
    /// The export.
    pub front: Box<dyn Front>,
    /// The backing volume.
    pub backing: Box<dyn Volume>,
    /// Tells its read cache what reads take beyond it.
    pub overhead: Overhead,
    /// How much the backing volume is given at a time.
    pub windows: Windows,
    /// The clock that all of the device's threads share.
    pub clock: Clock,
    /// Takes the engine's events.
    pub events: Box<dyn Fn(Event) + Send>,
    /// Takes what must be on record; what is to be answered is by [`Command::Persisted`].
    pub record: Box<dyn Fn(Entry) + Send>,
}

/// A running shard.
pub struct Shard {
    handle: ShardHandle,
    thread: JoinHandle<()>,
}

impl Shard {
    /// A channel to a shard that is about to start, so that its parts may refer to it.
    ///
    /// # Errors
    /// If the system has no descriptors left.
    pub fn channel() -> io::Result<(ShardHandle, Receiver<Command>)> {
        let (commands, receiver) = unbounded();
        Ok((ShardHandle { commands, waker: Waker::new()?, changes: Arc::default() }, receiver))
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// If the system has no threads or descriptors left.
    pub fn start(handle: ShardHandle, commands: Receiver<Command>, parts: Parts) -> io::Result<Self> {
        let name = format!("shard-{}", parts.name);
        let mut running = Running::new(handle.clone(), commands, parts)?;
        let thread = std::thread::Builder::new().name(name).spawn(move || {
            // Memory reclaim may wait for this device, so this thread must not wait for memory reclaim.
            if let Err(error) = reclaim::mark_io_flusher() {
                tracing::debug!(%error, "not marked as serving a block device");
            }
            crate::planted::plant();
            #[cfg(feature = "planted-engine-bugs")]
            surgetank_cache::planted::plant(
                std::env::var("SURGETANK_PLANT").ok().and_then(|name| surgetank_cache::planted::Bug::named(&name)),
            );
            crate::planted::plant();
            running.run();
        })?;
        Ok(Self { handle, thread })
    }

    /// A sample of now.
    ///
    /// # Errors
    /// If the thread has ended.
    pub fn sample(&self) -> Result<Sample, ShardGone> {
        self.handle.ask(|answer| Command::Sample { answer })
    }

    /// Answers what is in flight, flushes both volumes and ends the thread. What is dirty stays on the caching volume
    /// under its owner record.
    pub fn stop(self) {
        // A thread that has ended already is as stopped as it can be.
        let _ = self.handle.send(Command::Stop);
        if self.thread.join().is_err() {
            tracing::error!("a device's thread panicked");
        }
    }
}

struct Running {
    name: String,
    engine: Engine,
    front: Box<dyn Front>,
    intake: Intake,
    overhead: Overhead,
    /// How much the backing volume is given at a time; a caching volume takes what comes.
    windows: Windows,
    volumes: Volumes,
    buffers: Buffers,
    clock: Clock,
    events: Box<dyn Fn(Event) + Send>,
    record: Box<dyn Fn(Entry) + Send>,
    /// The record says that a flush has failed and that no application has been told so.
    owes_flush_failure: bool,
    commands: Receiver<Command>,
    waker: Waker,
    /// Counts what may have changed a sample.
    changes: Arc<AtomicU64>,
    poller: Poller,
    spin: Spin,
    cache_descriptor: Option<RawFd>,
    stopping: Stopping,
    ended: bool,
    submissions: Vec<Submission>,
    left: Vec<ClientId>,
    outcomes: Vec<(EffectId, Outcome)>,
    closing: Vec<Sender<()>>,
}

impl Drop for Running {
    /// Whoever samples a shard that has ended, or panicked, asks and learns it.
    fn drop(&mut self) {
        self.changed();
    }
}

impl Running {
    fn new(handle: ShardHandle, commands: Receiver<Command>, parts: Parts) -> io::Result<Self> {
        let poller = Poller::new()?;
        poller.add(handle.waker.as_fd(), KEY_WAKER)?;
        poller.add(parts.front.descriptor(), KEY_FRONT)?;
        if let Some(descriptor) = parts.backing.descriptor() {
            poller.add(descriptor, KEY_BACKING)?;
        }
        Ok(Self {
            name: parts.name,
            owes_flush_failure: parts.engine.owes_flush_failure(),
            engine: parts.engine,
            front: parts.front,
            intake: Intake::new(parts.windows),
            overhead: parts.overhead,
            windows: parts.windows,
            volumes: Volumes::new(parts.backing),
            buffers: Buffers::default(),
            clock: parts.clock,
            events: parts.events,
            record: parts.record,
            commands,
            waker: handle.waker,
            changes: handle.changes,
            poller,
            spin: Spin::default(),
            cache_descriptor: None,
            stopping: Stopping::No,
            ended: false,
            submissions: Vec::with_capacity(RECEIVE_BUDGET),
            left: Vec::new(),
            outcomes: Vec::new(),
            closing: Vec::new(),
        })
    }

    fn run(&mut self) {
        let mut keys = vec![KEY_FRONT];
        while !self.ended {
            let now = self.clock.now();
            if self.stopping == Stopping::No && (keys.contains(&KEY_FRONT) || self.front.has_arrived()) {
                self.receive(now);
            }
            self.take_commands(now);
            if self.engine.next_deadline().is_some_and(|deadline| deadline <= now) {
                self.changed();
                self.engine.tick(now);
            }
            let quiet = self.work();
            self.front.flush();
            self.overhead.sent(quiet, || self.clock.now());
            self.keep_flush_failure();
            self.tell_events();
            self.close_when_idle();
            self.stop_when_idle();
            if self.ended || self.front.is_broken() {
                break;
            }
            if let Err(error) = self.wait(quiet, &mut keys) {
                tracing::error!(device = self.name, %error, "cannot wait for input/output: the device stops");
                break;
            }
        }
        self.finish();
    }

    fn receive(&mut self, now: Instant) {
        let mut submissions = std::mem::take(&mut self.submissions);
        self.front.receive(RECEIVE_BUDGET, &mut submissions);
        if !submissions.is_empty() {
            self.changed();
        }
        let reads = overhead::reads(&submissions);
        for submission in submissions.drain(..) {
            self.intake.submit(now, submission);
        }
        self.overhead.received(reads, now, || self.clock.now());
        self.submissions = submissions;
        self.front.take_left(&mut self.left);
        for client in std::mem::take(&mut self.left) {
            for answer in self.intake.leave(client) {
                self.answer(answer);
            }
        }
    }

    /// Gives the engine as much as it is to have at a time.
    fn feed(&mut self, now: Instant) {
        while let Some((Piece { request, operation, offset, length, serial, .. }, memory)) = self.intake.next(now) {
            let id = self.buffers.insert(Origin::Client { request, serial }, memory);
            self.engine.submit(now, Request { id, operation, offset, length });
        }
    }

    fn answer(&mut self, RequestAnswer { token, result, buffer, .. }: RequestAnswer) {
        self.front.reply(token, result.map_err(errno), buffer);
    }

    /// Carries out effects and takes completions until nothing happens at once any more. False: there is more.
    fn work(&mut self) -> bool {
        for _ in 0..ROUNDS_MAX {
            let now = self.clock.now();
            loop {
                // An answer may have made room for more.
                self.feed(now);
                let Some(effect) = self.engine.next_effect() else { break };
                self.execute(now, effect);
            }
            self.overhead.polls(now);
            self.volumes.poll(now, &mut self.outcomes);
            if self.outcomes.is_empty() {
                return true;
            }
            self.changed();
            let mut outcomes = std::mem::take(&mut self.outcomes);
            for (effect, outcome) in outcomes.drain(..) {
                self.engine.complete(now, effect, outcome);
            }
            self.outcomes = outcomes;
        }
        false
    }

    fn execute(&mut self, now: Instant, effect: Effect) {
        match Action::from(effect) {
            Action::Io(io) => self.volumes.start(now, io, &self.buffers),
            Action::Parse { id, from, meaning } => self.volumes.look(id, from, meaning, &self.buffers),
            Action::Reply { request, result } => self.reply(request, result),
            Action::Allocate { scratch, length } => self.buffers.allocate(scratch, length),
            Action::Release { scratch } => self.buffers.release(scratch),
            Action::Copy { from, to } => match (self.buffers.slice(from), self.buffers.slice(to)) {
                (Some(from), Some(to)) => to.copy_from(&from),
                _ => tracing::error!(?from, ?to, "the engine copied between memory that does not exist"),
            },
            Action::Zero { to } => match self.buffers.slice(to) {
                Some(to) => to.zero(),
                None => tracing::error!(?to, "the engine zeroed memory that does not exist"),
            },
            Action::PersistOwner { id, owner } => (self.record)(Entry::Owner { effect: id, owner }),
            Action::RecordHealed { id, epoch, ranges } => {
                (self.record)(Entry::Healed { effect: id, epoch, ranges });
            }
        }
    }

    fn reply(&mut self, request: surgetank_model::RequestId, result: Result<(), ReplyError>) {
        match self.buffers.remove(request) {
            Some(Origin::Client { request, serial }) => {
                if let Some(answer) = self.intake.ended(request, serial, result) {
                    self.overhead.answered(answer.is_read);
                    self.answer(answer);
                }
            }
            Some(Origin::Shutdown) => {
                if let Err(error) = result {
                    tracing::warn!(device = self.name, ?error, "the last flush failed");
                }
                self.close_log();
            }
            None => tracing::error!(?request, "the engine answered a request that is not in flight"),
        }
    }

    fn take_commands(&mut self, now: Instant) {
        while let Ok(command) = self.commands.try_recv() {
            if !matches!(command, Command::Sample { .. } | Command::LostRanges { .. }) {
                self.changed();
            }
            self.command(now, command);
        }
    }

    fn command(&mut self, now: Instant, command: Command) {
        match command {
            Command::Adopt { volume, attach, answer } => {
                let result = self.engine.adopt(now, attach);
                self.begun(volume, result, &answer);
            }
            Command::Recover { volume, attach, answer } => {
                let result = self.engine.recover(now, attach);
                self.begun(volume, result, &answer);
            }
            Command::Restore { volume, attach, answer } => {
                let result = self.engine.restore(now, attach);
                self.begun(volume, result, &answer);
            }
            Command::RecoveryUnavailable => self.engine.recovery_unavailable(now),
            Command::SetMode(mode) => self.engine.set_mode(now, mode),
            Command::Release { answer } => {
                let _ = answer.send(self.engine.release(now));
            }
            Command::GrowCache { size, answer } => {
                let _ = answer.send(self.grow_cache(now, size));
            }
            Command::CloseCache { answer } => self.closing.push(answer),
            Command::CacheGone { answer } => {
                self.engine.cache_gone(now);
                self.closing.push(answer);
            }
            Command::CacheReturned { volume, answer } => {
                let _ = answer.send(self.returned(now, volume));
            }
            Command::AcceptLoss { answer } => {
                let _ = answer.send(self.engine.accept_loss(now));
            }
            Command::Grow { answer } => {
                let _ = answer.send(self.grow());
            }
            Command::LostRanges { most, answer } => {
                let _ = answer.send(self.engine.lost_ranges(most));
            }
            Command::Sample { answer } => {
                let _ = answer.send(self.sample(now));
            }
            Command::Persisted { effect, durable } => {
                let outcome = if durable { Outcome::Done } else { Outcome::Failed(IoFailure::Io) };
                self.engine.complete(now, effect, outcome);
            }
            Command::SetFront { front, answer } => {
                let _ = answer.send(self.set_front(now, front).map_err(|error| error.to_string()));
            }
            Command::EnterPath { answer } => {
                self.engine.enter_path(now);
                let _ = answer.send(());
            }
            Command::IsTransparent { answer } => {
                let _ = answer.send(self.engine.is_transparent());
            }
            Command::Stop => {
                if self.stopping == Stopping::No {
                    self.stopping = Stopping::Answering { since: now };
                }
            }
        }
    }

    /// Takes a volume into use and watches its descriptor.
    fn attach(&mut self, volume: Box<dyn Volume>) {
        self.detach();
        self.cache_descriptor = None;
        if let Some(descriptor) = volume.descriptor() {
            match self.poller.add(descriptor, KEY_CACHE) {
                Ok(()) => self.cache_descriptor = Some(descriptor.as_raw_fd()),
                Err(error) => tracing::error!(device = self.name, %error, "cannot watch the caching volume"),
            }
        }
        self.volumes.attach(volume);
        self.intake.set_windows(Windows::new(Limits::NONE, false));
    }

    /// Takes the volume into use that the engine has accepted; it has asked nothing of it yet. One that it has not
    /// accepted is closed, and what is in use stays.
    fn begun(&mut self, volume: Box<dyn Volume>, result: Result<(), Rejected>, answer: &Sender<Result<(), Rejected>>) {
        if result.is_ok() {
            self.attach(volume);
        }
        let _ = answer.send(result);
    }

    /// Puts the volume that is here again under the engine. False: the engine does not wait for it any more.
    fn returned(&mut self, now: Instant, volume: Box<dyn Volume>) -> bool {
        if matches!(self.engine.status().stage, EngineStage::PassThrough | EngineStage::Lost) {
            return false;
        }
        self.detach();
        // What was in flight on the former one has ended before the engine hears of the new one.
        let mut outcomes = std::mem::take(&mut self.outcomes);
        self.volumes.take_ended(&mut outcomes);
        for (effect, outcome) in outcomes.drain(..) {
            self.engine.complete(now, effect, outcome);
        }
        self.outcomes = outcomes;
        for answer in self.closing.drain(..) {
            let _ = answer.send(());
        }
        self.attach(volume);
        self.engine.cache_returned(now);
        true
    }

    fn detach(&mut self) {
        if self.cache_descriptor.take().is_some()
            && let Some(descriptor) = self.volumes.cache().and_then(Volume::descriptor)
            && let Err(error) = self.poller.remove(descriptor)
        {
            tracing::warn!(device = self.name, %error, "cannot stop watching the caching volume");
        }
        self.volumes.detach();
        self.intake.set_windows(self.windows);
    }

    fn set_front(&mut self, now: Instant, front: Box<dyn Front>) -> io::Result<()> {
        self.poller.remove(self.front.descriptor())?;
        self.front = front;
        self.poller.add(self.front.descriptor(), KEY_FRONT)?;
        // A front asks for its first requests when it is asked for them.
        self.receive(now);
        Ok(())
    }

    fn sample(&mut self, now: Instant) -> Sample {
        let (backing, cache) = self.volumes.moved();
        let size_bytes = self.volumes.backing().size();
        let (observation, status) = (self.engine.observation(now), self.engine.status());
        let (cache_gone, changes) = (self.volumes.cache_gone(), self.changes.load(Ordering::Relaxed));
        let is_transparent = self.engine.is_transparent();
        Sample { now, observation, status, backing, cache, size_bytes, cache_gone, is_transparent, changes }
    }

    /// A sample taken from now on differs. Nobody else counts.
    fn changed(&self) {
        self.changes.store(self.changes.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    fn tell_events(&mut self) {
        while let Some(event) = self.engine.next_event() {
            self.changed();
            tracing::debug!(device = self.name, ?event, "engine");
            self.ended |= event == Event::Stopped;
            (self.events)(event);
        }
    }

    /// Closes a caching volume that was released, once nothing is in flight on it.
    fn close_when_idle(&mut self) {
        if self.closing.is_empty() || self.volumes.cache_in_flight() > 0 {
            return;
        }
        self.detach();
        for answer in self.closing.drain(..) {
            let _ = answer.send(());
        }
    }

    fn wait(&mut self, quiet: bool, keys: &mut Vec<u64>) -> io::Result<()> {
        let stopping = self.stop_deadline();
        keys.clear();
        let deadlines =
            [self.engine.next_deadline(), self.volumes.next_deadline(), self.intake.next_deadline(), stopping];
        let (front, volumes) = (&mut self.front, &mut self.volumes);
        let serving = self.stopping == Stopping::No;
        let mut arrived = || volumes.have_ended() || (serving && front.has_arrived());
        if quiet && arrived() {
            return Ok(());
        }
        self.waker.sleep();
        let timeout = if quiet && self.commands.is_empty() {
            self.clock.until(deadlines.into_iter().flatten().min())
        } else {
            Some(Duration::ZERO)
        };
        let result = self.poller.wait_eagerly(&mut self.spin, timeout, keys, arrived);
        self.waker.awake(keys.contains(&KEY_WAKER));
        result
    }
}

/// The errno that the front reports.
const fn errno(error: ReplyError) -> i32 {
    match error {
        ReplyError::Io => libc::EIO,
        ReplyError::NoSpace => libc::ENOSPC,
        ReplyError::Invalid => libc::EINVAL,
        ReplyError::Unsupported => libc::EOPNOTSUPP,
        ReplyError::Stopping => libc::ESHUTDOWN,
    }
}
