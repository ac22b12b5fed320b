//! Carries out the controller's steps: one caching volume from its creation to its deletion.
//!
//! Every step is written down before it is carried out and may be begun again after a crash at any point: asking for
//! what is so already is harmless. Nothing here waits: a step is polled until it has ended.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use surgetank_cache::format::{LogState, Superblock};
use surgetank_cache::{Attach, Epoch, Event, Mode, Owner, ReadFill, Stage as EngineStage};
use surgetank_device::Volume;
use surgetank_model::{Bytes, Instant};
use surgetank_policy::{Outcome, Refusal, Step, StepId};
use surgetank_provider::{CreateVolume, Provider, ProviderError, Tags, VolumeDescription, VolumeId, VolumeState, tag};

use crate::clock::{Clock, unix_s};
use crate::config::CachingConfig;
use crate::crash::crash_point;
use crate::journal::{Journal, Rental, Stage};
use crate::opening::{self, Decorator, Purpose};
use crate::owner::{KeeperHandle, parse_epoch};
use crate::shard::{Command, Sample, ShardGone, ShardHandle};
use crate::shared::Shared;

/// The tag that carries the client token of a volume, so that one whose name was never learned can be found.
pub const TAG_TOKEN: &str = "surgetank:token";

/// First and longest pause between two looks at a change under way.
const POLL: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

/// How far a step has come.
#[derive(Debug)]
enum Progress {
    /// Look again later.
    Wait,
    /// It has ended.
    Ended(Outcome),
}

const DONE: Progress = Progress::Ended(Outcome::Done);

/// What is being carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Task {
    Step(StepId, Step),
    /// Reading a volume back after a crash; not a step of the controller.
    Recover(Epoch),
}

#[derive(Debug)]
struct Running {
    task: Task,
    deadline: Option<Instant>,
    next_poll: Instant,
    pause: Duration,
    /// The engine was asked, and its event is awaited.
    asked: bool,
}

/// Why the engine holds nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LetGo {
    /// It released the volume: CLEAN is on it.
    Released,
    /// The volume failed and nothing was lost, or the loss was accepted: CLEAN may not be on it.
    Dropped,
}

/// What a lifecycle works with.
pub struct Tools {
    /// The device's name.
    pub device: String,
    /// The state directory's random name, for tags.
    pub owner_id: String,
    /// Who rents volumes out.
    pub provider: Arc<dyn Provider>,
    /// What to rent.
    pub caching: CachingConfig,
    /// Split burst writes over both volumes.
    pub split: bool,
    /// When read misses fill the cache.
    pub read_fill: ReadFill,
    /// The device's shard.
    pub shard: ShardHandle,
    /// Who persists the owner.
    pub keeper: KeeperHandle,
    /// The device's clock.
    pub clock: Clock,
    /// Decorates volumes, in tests.
    pub decorator: Option<Decorator>,
    /// What other threads may know.
    pub shared: Arc<Shared>,
}

/// How a task ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Ended {
    /// A step of the controller.
    Step(StepId, Outcome),
    /// The recovery.
    Recovery(Outcome),
}

/// The caching volume of one device and the step that is being carried out on it.
pub struct Lifecycle {
    tools: Tools,
    journal: Journal,
    running: Option<Running>,
    ended: VecDeque<Ended>,
    /// Opened by `Attach`, for `Adopt`.
    opened: Option<Box<dyn Volume>>,
    let_go: Option<LetGo>,
    /// Bytes lost with the caching volume, while that stands.
    lost_bytes: Option<u64>,
}

impl Lifecycle {
    /// Takes over what the journal says.
    #[must_use]
    pub fn new(tools: Tools, journal: Journal) -> Self {
        let lifecycle = Self {
            tools,
            journal,
            running: None,
            ended: VecDeque::new(),
            opened: None,
            let_go: None,
            lost_bytes: None,
        };
        lifecycle.publish();
        lifecycle
    }

    /// What is rented.
    #[must_use]
    pub fn rental(&self) -> Option<&Rental> {
        self.journal.state().rental.as_ref()
    }

    /// The journal, to keep what the controller learned.
    pub fn journal(&mut self) -> &mut Journal {
        &mut self.journal
    }

    /// Bytes lost with the caching volume.
    #[must_use]
    pub fn lost_bytes(&self) -> Option<u64> {
        self.lost_bytes
    }

    /// When [`Lifecycle::poll`] should be called.
    #[must_use]
    pub fn next_poll(&self) -> Option<Instant> {
        if !self.ended.is_empty() {
            return Some(Instant::ZERO);
        }
        self.running.as_ref().map(|running| running.next_poll)
    }

    /// Begins a step; `timeout` is how long it may take.
    pub fn begin(&mut self, now: Instant, id: StepId, step: Step, timeout: Option<Duration>) {
        tracing::info!(device = self.tools.device, ?step, "step");
        match step {
            Step::Absorb => self.at_once(id, Mode::Absorb),
            Step::Drain => self.at_once(id, Mode::Drain),
            step => self.run(now, Task::Step(id, step), timeout),
        }
    }

    /// Begins to read a volume back after a crash. It may take as long as it takes: requests wait for it.
    pub fn begin_recovery(&mut self, now: Instant, epoch: Epoch) {
        self.run(now, Task::Recover(epoch), None);
    }

    fn run(&mut self, now: Instant, task: Task, timeout: Option<Duration>) {
        let deadline = timeout.map(|timeout| now + timeout);
        self.running = Some(Running { task, deadline, next_poll: now, pause: POLL.0, asked: false });
    }

    fn at_once(&mut self, id: StepId, mode: Mode) {
        let name = if mode == Mode::Absorb { "absorb" } else { "drain" };
        crash_point(name, "before");
        let outcome = match self.tools.shard.send(Command::SetMode(mode)) {
            Ok(()) => Outcome::Done,
            Err(gone) => Outcome::Refused(Refusal::Permanent(gone.to_string())),
        };
        crash_point(name, "after");
        self.ended.push_back(Ended::Step(id, outcome));
    }

    /// Takes an event of the engine.
    pub fn event(&mut self, now: Instant, event: &Event) {
        match event {
            Event::Released => self.let_go = Some(LetGo::Released),
            Event::CacheDropped => {
                self.let_go = Some(LetGo::Dropped);
                self.lost_bytes = None;
            }
            Event::CacheLost { lost_bytes } => self.lost_bytes = Some(*lost_bytes),
            Event::Adopted
            | Event::AdoptFailed
            | Event::Recovered { .. }
            | Event::RecoverFailed { .. }
            | Event::ReleaseCancelled
            | Event::CacheFailing => {}
        }
        let Some(running) = &mut self.running else { return };
        running.next_poll = now;
        running.pause = POLL.0;
        let asked = running.asked;
        let progress = match (&running.task, event) {
            (Task::Step(_, Step::Adopt), Event::Adopted) if asked => self.adopted(),
            (Task::Step(_, Step::Adopt), Event::AdoptFailed) if asked => self.adopt_failed(),
            (Task::Step(_, Step::Release), Event::ReleaseCancelled) if asked => Ok(Progress::Ended(Outcome::Cancelled)),
            (Task::Recover(_), Event::Recovered { .. }) if asked => self.recovered(),
            (Task::Recover(_), Event::RecoverFailed { reason }) if asked => {
                self.close_cache().and_then(|()| Err(Refusal::Transient((*reason).to_owned())))
            }
            _ => return,
        };
        self.settle(progress);
    }

    /// Goes on with what is being carried out, and answers what has ended.
    pub fn poll(&mut self, now: Instant) -> Option<Ended> {
        if let Some(running) = &mut self.running
            && running.next_poll <= now
        {
            running.next_poll = now + running.pause;
            running.pause = (running.pause * 2).min(POLL.1);
            let (task, overdue) = (running.task.clone(), running.deadline.is_some_and(|deadline| deadline <= now));
            let progress = match &task {
                Task::Step(_, Step::Create { size }) => self.create(*size),
                Task::Step(_, Step::Attach) => self.attach(),
                Task::Step(_, Step::Adopt) => self.adopt(),
                Task::Step(_, Step::Release) => self.release(),
                Task::Step(_, Step::Detach) => self.detach(),
                Task::Step(_, Step::Delete) => self.delete(),
                Task::Step(_, Step::Absorb | Step::Drain) => Ok(DONE),
                Task::Recover(epoch) => self.recover(*epoch),
            };
            match progress {
                Ok(Progress::Wait) if overdue => self.settle(Err(Refusal::Timeout)),
                progress => self.settle(progress),
            }
        }
        self.ended.pop_front()
    }

    /// Ends the task, if it has ended.
    fn settle(&mut self, progress: Result<Progress, Refusal>) {
        let outcome = match progress {
            Ok(Progress::Wait) => return,
            Ok(Progress::Ended(outcome)) => outcome,
            Err(refusal) => Outcome::Refused(refusal),
        };
        let Some(running) = self.running.take() else { return };
        if outcome != Outcome::Done {
            tracing::warn!(device = self.tools.device, task = ?running.task, ?outcome, "not done");
        }
        self.ended.push_back(match running.task {
            Task::Step(id, _) => Ended::Step(id, outcome),
            Task::Recover(_) => Ended::Recovery(outcome),
        });
        self.publish();
    }

    /// Lets other threads know what is rented.
    fn publish(&self) {
        let rental = self.rental();
        let volume = rental.and_then(|rental| rental.volume.clone());
        self.tools.shared.set_rental(volume, rental.is_some());
    }

    /// Changes the rental in the journal, durably.
    fn note(&mut self, change: impl FnOnce(&mut Rental)) -> Result<(), Refusal> {
        let written = self.journal.update(|state| {
            if let Some(rental) = &mut state.rental {
                change(rental);
            }
        });
        self.publish();
        written.map_err(journal_refusal)
    }

    fn volume(&self) -> Option<VolumeId> {
        self.rental().and_then(|rental| rental.volume.clone())
    }

    fn stage(&self) -> Option<Stage> {
        self.rental().map(|rental| rental.stage)
    }

    fn describe(&self, id: &VolumeId) -> Result<Option<VolumeDescription>, Refusal> {
        match self.tools.provider.describe(id) {
            Ok(description) => Ok(Some(description)),
            Err(ProviderError::NotFound(_)) => Ok(None),
            Err(error) => Err(refusal(error)),
        }
    }

    fn create(&mut self, size: Bytes) -> Result<Progress, Refusal> {
        if self.rental().is_none() {
            let rental = Rental {
                token: random_name(),
                volume_type: self.tools.caching.volume_type.clone(),
                size,
                started_unix_s: unix_s(),
                stage: Stage::Creating,
                volume: None,
                epoch: None,
                disposable: true,
            };
            self.journal.update(|state| state.rental = Some(rental)).map_err(journal_refusal)?;
            self.let_go = None;
            self.publish();
        }
        let Some(id) = self.volume() else { return self.call_create(size) };
        match self.describe(&id)? {
            Some(description) if description.state == VolumeState::Creating => Ok(Progress::Wait),
            Some(_) => self.note(|rental| rental.stage = Stage::Created).map(|()| DONE),
            None => Err(Refusal::Transient("the volume vanished while it was created".to_owned())),
        }
    }

    fn call_create(&mut self, size: Bytes) -> Result<Progress, Refusal> {
        let Some(rental) = self.rental() else { return Ok(Progress::Wait) };
        let tags = Tags::from([
            (tag::OWNER.to_owned(), self.tools.owner_id.clone()),
            (tag::DEVICE.to_owned(), self.tools.device.clone()),
            (TAG_TOKEN.to_owned(), rental.token.clone()),
        ]);
        let (token, volume_type) = (rental.token.clone(), rental.volume_type.clone());
        crash_point("create", "before");
        let (description, _) =
            self.tools.provider.create(&CreateVolume { token, volume_type, size, tags }).map_err(refusal)?;
        crash_point("create", "after");
        self.note(|rental| rental.volume = Some(description.id))?;
        crash_point("created", "after");
        Ok(Progress::Wait)
    }

    fn attach(&mut self) -> Result<Progress, Refusal> {
        let (description, size) = match self.bring_in(Stage::Attaching)? {
            Some(found) => found,
            None => return Ok(Progress::Wait),
        };
        if self.opened.is_none() {
            self.opened = Some(self.open(&description, size)?);
        }
        self.note(|rental| rental.stage = Stage::Attached)?;
        Ok(DONE)
    }

    /// Attaches the volume and waits until it is there; `intent` is what the journal says meanwhile.
    fn bring_in(&mut self, intent: Stage) -> Result<Option<(VolumeDescription, Bytes)>, Refusal> {
        let vanished = || Refusal::Transient("the caching volume vanished".to_owned());
        let id = self.volume().ok_or_else(vanished)?;
        if self.stage() != Some(intent) {
            self.note(|rental| rental.stage = intent)?;
        }
        let description = self.describe(&id)?.ok_or_else(vanished)?;
        match description.state {
            VolumeState::Attached => {
                let size = self.rental().map_or(description.size, |rental| rental.size);
                Ok(Some((description, size)))
            }
            VolumeState::Available => {
                crash_point("attach", "before");
                self.tools.provider.attach(&id).map_err(refusal)?;
                crash_point("attach", "after");
                self.hurry();
                Ok(None)
            }
            VolumeState::Creating | VolumeState::Attaching | VolumeState::Detaching => Ok(None),
            VolumeState::Deleting => Err(vanished()),
        }
    }

    /// Something was just asked of the provider: look soon.
    fn hurry(&mut self) {
        if let Some(running) = &mut self.running {
            running.pause = POLL.0;
            running.next_poll = self.tools.clock.now();
        }
    }

    fn open(&self, description: &VolumeDescription, size: Bytes) -> Result<Box<dyn Volume>, Refusal> {
        let mut volume = opening::caching(description, size).map_err(Refusal::Transient)?;
        if let Some(decorate) = &self.tools.decorator {
            volume = decorate(Purpose::Caching, volume);
        }
        let caching = &self.tools.caching;
        Ok(if caching.throttle { opening::throttled(volume, caching.limits, self.tools.clock) } else { volume })
    }

    fn adopt(&mut self) -> Result<Progress, Refusal> {
        if self.running.as_ref().is_some_and(|running| running.asked) {
            return Ok(Progress::Wait);
        }
        let lost = || Refusal::Transient("the caching volume was closed meanwhile".to_owned());
        let volume = self.opened.take().ok_or_else(lost)?;
        let epoch = Epoch(rand::random());
        self.note(|rental| {
            rental.stage = Stage::Adopting;
            rental.epoch = Some(epoch.to_string());
            rental.disposable = false;
        })?;
        self.tools.keeper.set_volume(self.volume());
        self.let_go = None;
        let attach = self.engine_attach(epoch, &*volume);
        crash_point("adopt", "before");
        self.asked(true);
        match self.tools.shard.ask(|answer| Command::Adopt { volume, attach, answer }).map_err(gone)? {
            Ok(()) => Ok(Progress::Wait),
            Err(rejected) => {
                self.unused()?;
                Err(Refusal::Permanent(rejected.to_string()))
            }
        }
    }

    fn engine_attach(&self, epoch: Epoch, volume: &dyn Volume) -> Attach {
        Attach {
            epoch,
            cache_size: volume.size(),
            cache_limits: self.tools.caching.limits,
            split: self.tools.split,
            read_fill: self.tools.read_fill,
        }
    }

    fn asked(&mut self, asked: bool) {
        if let Some(running) = &mut self.running {
            running.asked = asked;
        }
    }

    fn adopted(&mut self) -> Result<Progress, Refusal> {
        crash_point("adopt", "after");
        // The engine uses it whatever the journal says; the owner record is what counts after a crash.
        if let Err(refusal) = self.note(|rental| rental.stage = Stage::Adopted) {
            tracing::warn!(device = self.tools.device, ?refusal, "the journal cannot be written");
        }
        crash_point("adopted", "after");
        Ok(DONE)
    }

    fn adopt_failed(&mut self) -> Result<Progress, Refusal> {
        self.close_cache()?;
        self.unused()?;
        Err(Refusal::Transient("the caching volume could not be formatted".to_owned()))
    }

    /// The engine does not use the volume after all.
    fn unused(&mut self) -> Result<(), Refusal> {
        self.owner_is_backing()?;
        self.note(|rental| {
            rental.stage = Stage::Attached;
            rental.disposable = true;
        })
    }

    /// Makes sure that the owner record says so, durably.
    fn owner_is_backing(&self) -> Result<(), Refusal> {
        let unsettled = |error| Refusal::Transient(format!("the owner record cannot be written: {error}"));
        let record = self.tools.keeper.settle().map_err(unsettled)?;
        if record.owner == Owner::Backing {
            return Ok(());
        }
        Err(Refusal::Transient("the owner record still names the caching volume".to_owned()))
    }

    fn sample(&self) -> Result<Sample, Refusal> {
        self.tools.shard.ask(|answer| Command::Sample { answer }).map_err(gone)
    }

    fn release(&mut self) -> Result<Progress, Refusal> {
        if self.lost_bytes.is_some() {
            // Nothing is detached before the user accepts the loss, or overwrites what was lost.
            return Ok(Progress::Wait);
        }
        if self.let_go.is_some() {
            return self.released();
        }
        if self.running.as_ref().is_some_and(|running| running.asked) {
            return Ok(Progress::Wait);
        }
        crash_point("release", "before");
        self.asked(true);
        match self.tools.shard.ask(|answer| Command::Release { answer }).map_err(gone)? {
            Ok(()) => Ok(Progress::Wait),
            Err(rejected) => {
                self.asked(false);
                let stage = self.sample()?.status.stage;
                if stage != EngineStage::PassThrough {
                    return Err(Refusal::Transient(rejected.to_string()));
                }
                // It let go by itself, and the event came before this step or before a restart.
                self.let_go = Some(LetGo::Dropped);
                self.released()
            }
        }
    }

    /// The engine has let go: close the volume, prove that nothing on it counts, and write that down.
    fn released(&mut self) -> Result<Progress, Refusal> {
        crash_point("release", "after");
        self.close_cache()?;
        self.owner_is_backing()?;
        if self.let_go == Some(LetGo::Released) {
            self.prove_clean()?;
        }
        crash_point("clean", "before");
        self.note(|rental| {
            rental.stage = Stage::Released;
            rental.disposable = true;
        })?;
        crash_point("clean", "after");
        Ok(DONE)
    }

    fn close_cache(&mut self) -> Result<(), Refusal> {
        self.opened = None;
        self.tools.shard.ask(|answer| Command::CloseCache { answer }).map_err(gone)
    }

    /// Reads CLEAN from the medium.
    fn prove_clean(&mut self) -> Result<(), Refusal> {
        let Some(id) = self.volume() else { return Ok(()) };
        let Some(description) = self.describe(&id)? else { return Ok(()) };
        let superblock = opening::superblock(&description, self.tools.clock).map_err(Refusal::Transient)?;
        match superblock {
            Some(Superblock { state: LogState::Clean, epoch, .. }) if Some(epoch) == self.epoch() => Ok(()),
            _ => {
                Err(Refusal::Transient(format!("the caching volume {} does not read as clean after its release", id.0)))
            }
        }
    }

    fn epoch(&self) -> Option<Epoch> {
        self.rental().and_then(|rental| parse_epoch(rental.epoch.as_deref()?))
    }

    /// After a restart: proves that nothing on the volume counts, before it is let go. `false`: look again later.
    fn prove_disposable(&mut self) -> Result<bool, Refusal> {
        let Some(rental) = self.rental() else { return Ok(true) };
        if rental.disposable {
            return Ok(true);
        }
        // The owner record is durable before anything is acknowledged from a cache, and cleared after CLEAN is durable.
        self.owner_is_backing()?;
        let formatting = rental.stage == Stage::Adopting;
        let Some(id) = self.volume() else { return Ok(true) };
        if self.describe(&id)?.is_some() && !formatting {
            let Some((description, _)) = self.bring_in_for_proof()? else { return Ok(false) };
            let tagged = description.tags.contains_key(tag::DIRTY_EPOCH);
            let superblock = opening::superblock(&description, self.tools.clock).map_err(Refusal::Transient)?;
            let active = superblock.is_some_and(|superblock| superblock.state == LogState::Active);
            if active && tagged {
                return Err(Refusal::Permanent(format!(
                    "the caching volume {} reads as in use, although nothing should be on it: look at it with `surgetank inspect`",
                    id.0
                )));
            }
        }
        self.note(|rental| rental.disposable = true)?;
        Ok(true)
    }

    /// Attaches without forgetting how far the rental is.
    fn bring_in_for_proof(&mut self) -> Result<Option<(VolumeDescription, Bytes)>, Refusal> {
        let stage = self.stage().unwrap_or(Stage::Adopted);
        self.bring_in(stage)
    }

    fn detach(&mut self) -> Result<Progress, Refusal> {
        if self.opened.is_some() {
            self.close_cache()?;
        }
        if !self.prove_disposable()? {
            return Ok(Progress::Wait);
        }
        let Some(id) = self.volume() else { return Ok(DONE) };
        if self.stage() != Some(Stage::Detaching) {
            self.note(|rental| rental.stage = Stage::Detaching)?;
        }
        let Some(description) = self.describe(&id)? else { return Ok(DONE) };
        match description.state {
            VolumeState::Attached | VolumeState::Attaching => {
                crash_point("detach", "before");
                self.tools.provider.detach(&id).map_err(refusal)?;
                crash_point("detach", "after");
                self.hurry();
                Ok(Progress::Wait)
            }
            VolumeState::Detaching => Ok(Progress::Wait),
            VolumeState::Creating | VolumeState::Available | VolumeState::Deleting => Ok(DONE),
        }
    }

    fn delete(&mut self) -> Result<Progress, Refusal> {
        if self.rental().is_none() {
            return Ok(DONE);
        }
        if self.volume().is_none() && !self.find_by_token()? {
            return self.forget();
        }
        if !self.prove_disposable()? {
            return Ok(Progress::Wait);
        }
        self.owner_is_backing()?;
        let Some(id) = self.volume() else { return self.forget() };
        let Some(description) = self.describe(&id)? else { return self.gone_or_twin() };
        match description.state {
            VolumeState::Attached | VolumeState::Attaching => self.detach().map(|_| Progress::Wait),
            VolumeState::Detaching => Ok(Progress::Wait),
            VolumeState::Deleting => self.gone_or_twin(),
            VolumeState::Creating | VolumeState::Available => {
                self.note(|rental| rental.stage = Stage::Deleting)?;
                crash_point("delete", "before");
                self.tools.provider.delete(&id).map_err(refusal)?;
                crash_point("delete", "after");
                self.hurry();
                Ok(Progress::Wait)
            }
        }
    }

    /// Learns the name of a volume that was created while nobody was there to be told. `false`: there is none.
    fn find_by_token(&mut self) -> Result<bool, Refusal> {
        let Some(token) = self.rental().map(|rental| rental.token.clone()) else { return Ok(false) };
        let listed = self.tools.provider.list(TAG_TOKEN, &token).map_err(refusal)?;
        let Some(found) = listed.into_iter().find(|volume| volume.state != VolumeState::Deleting) else {
            return Ok(false);
        };
        self.note(|rental| rental.volume = Some(found.id))?;
        Ok(true)
    }

    /// The volume is gone. A create that was repeated on the way may have left another of the same token.
    fn gone_or_twin(&mut self) -> Result<Progress, Refusal> {
        if self.find_by_token()? { Ok(Progress::Wait) } else { self.forget() }
    }

    fn forget(&mut self) -> Result<Progress, Refusal> {
        self.tools.keeper.set_volume(None);
        crash_point("forget", "before");
        self.journal.update(|state| state.rental = None).map_err(journal_refusal)?;
        crash_point("forget", "after");
        Ok(DONE)
    }

    fn recover(&mut self, epoch: Epoch) -> Result<Progress, Refusal> {
        if self.running.as_ref().is_some_and(|running| running.asked) {
            return Ok(Progress::Wait);
        }
        let Some((description, size)) = self.bring_in(Stage::Adopted)? else { return Ok(Progress::Wait) };
        let volume = self.open(&description, size)?;
        let attach = self.engine_attach(epoch, &*volume);
        self.tools.keeper.set_volume(Some(description.id));
        self.asked(true);
        crash_point("recover", "before");
        match self.tools.shard.ask(|answer| Command::Recover { volume, attach, answer }).map_err(gone)? {
            Ok(()) => Ok(Progress::Wait),
            Err(rejected) => Err(Refusal::Transient(rejected.to_string())),
        }
    }

    fn recovered(&mut self) -> Result<Progress, Refusal> {
        crash_point("recover", "after");
        Ok(DONE)
    }

    /// Data is lost since the last run: the volume stays until the user has decided.
    pub fn resume_lost(&mut self, lost_bytes: u64) {
        self.lost_bytes = Some(lost_bytes);
    }

    /// The data on the volume was given up before it could be read back. Answers the volume's size, if it is rented.
    pub fn give_up(&mut self) -> Option<Bytes> {
        self.running = None;
        self.let_go = Some(LetGo::Dropped);
        self.lost_bytes = None;
        if let Err(refusal) = self.note(|rental| rental.disposable = true) {
            tracing::warn!(device = self.tools.device, ?refusal, "the journal cannot be written");
        }
        self.rental().map(|rental| rental.size)
    }

    /// Puts a rental that the journal had lost back into it.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn take_over(&mut self, rental: Rental) -> std::io::Result<()> {
        let written = self.journal.update(|state| state.rental = Some(rental));
        self.publish();
        written
    }
}

/// 128 random bits as text, for tokens and owner names.
#[must_use]
pub fn random_name() -> String {
    Epoch(rand::random()).to_string()
}

fn gone(gone: ShardGone) -> Refusal {
    Refusal::Permanent(gone.to_string())
}

fn journal_refusal(error: std::io::Error) -> Refusal {
    Refusal::Transient(format!("the state directory cannot be written: {error}"))
}

/// What a provider's error means to the controller.
fn refusal(error: ProviderError) -> Refusal {
    match error {
        ProviderError::Quota(_) => Refusal::Quota,
        ProviderError::Capacity(_) => Refusal::Capacity,
        ProviderError::AttachLimit(_) => Refusal::AttachLimit,
        ProviderError::Invalid(text) => Refusal::Permanent(text),
        error @ (ProviderError::NotFound(_) | ProviderError::Conflict { .. } | ProviderError::Transient(_)) => {
            Refusal::Transient(error.to_string())
        }
    }
}
