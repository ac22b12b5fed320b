//! Carries out the controller's steps: one caching volume from its creation to its deletion.
//!
//! Every step is written down before it is carried out and may be begun again after a crash at any point: asking for
//! what is so already is harmless. Nothing here waits: a step is polled until it has ended.

mod giving_back;
mod outage;
mod renting;

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use surgetank_cache::{Epoch, Event, Mode, Owner, ReadFill};
use surgetank_device::discovery::Disks;
use surgetank_model::{Bytes, Instant};
use surgetank_policy::{Outcome, Refusal, Step, StepId};
use surgetank_provider::{Provider, ProviderError, VolumeDescription, VolumeId};

use self::outage::Outage;
use crate::clock::Clock;
use crate::config::CachingConfig;
use crate::crash::crash_point;
use crate::journal::{Journal, Rental, Stage};
use crate::opening::{Decorator, Opened};
use crate::owner::{KeeperHandle, OwnerRecord, parse_epoch};
use crate::patient::Patient;
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
    pub provider: Patient,
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
    /// The disks of this machine.
    pub disks: Disks,
    /// Decorates volumes, in tests.
    pub decorator: Option<Decorator>,
    /// The longest pause between two tries of anything.
    pub longest_pause: Duration,
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
    opened: Option<Opened>,
    let_go: Option<LetGo>,
    /// Bytes lost with the caching volume, while that stands.
    lost_bytes: Option<u64>,
    outage: Outage,
    /// Why the volume is not given back, while that cannot be proved to be harmless.
    kept: Option<String>,
    /// The volume that is attached, while its disk has not appeared.
    missing_disk: Option<VolumeId>,
    /// What was here before the volume.
    disks_before: Option<DisksBefore>,
}

/// The serials of the disks that were in this machine before a volume was attached for the first time. Not written down:
/// after a crash in between, its own disk may be among them.
#[derive(Debug)]
struct DisksBefore {
    volume: VolumeId,
    serials: Vec<String>,
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
            outage: Outage::default(),
            kept: None,
            missing_disk: None,
            disks_before: None,
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
        let step = self.running.as_ref().map(|running| running.next_poll);
        [step, self.next_look()].into_iter().flatten().min()
    }

    /// Begins a step; `timeout` is how long it may take.
    pub fn begin(&mut self, now: Instant, id: StepId, step: Step, timeout: Option<Duration>) {
        tracing::info!(device = self.tools.device, ?step, "step");
        match step {
            Step::Absorb => self.at_once(id, Mode::Absorb),
            Step::Drain => self.at_once(id, Mode::Drain),
            Step::Finish => self.at_once(id, Mode::Finish),
            step => self.run(now, Task::Step(id, step), timeout),
        }
    }

    /// Begins to read a volume back after a crash. It may take as long as it takes: requests wait for it.
    pub fn begin_recovery(&mut self, now: Instant, epoch: Epoch) {
        self.run(now, Task::Recover(epoch), None);
    }

    fn run(&mut self, now: Instant, task: Task, timeout: Option<Duration>) {
        self.missing_disk = None;
        let deadline = timeout.map(|timeout| now + timeout);
        self.running = Some(Running { task, deadline, next_poll: now, pause: POLL.0, asked: false });
    }

    fn at_once(&mut self, id: StepId, mode: Mode) {
        let name = match mode {
            Mode::Absorb => "absorb",
            Mode::Drain => "drain",
            Mode::Finish => "finish",
        };
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
        self.follow(now, event);
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
            | Event::RestoreFailed { .. }
            | Event::ReleaseCancelled
            | Event::CacheFailing
            | Event::Stopped => {}
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
        self.look(now);
        if let Some(running) = &mut self.running
            && running.next_poll <= now
        {
            running.next_poll = now + running.pause;
            // Slow growth: a change is noticed late by at most a quarter of the time that it took.
            running.pause = (running.pause * 5 / 4).min(POLL.1);
            let (task, overdue) = (running.task.clone(), running.deadline.is_some_and(|deadline| deadline <= now));
            let progress = match &task {
                Task::Step(_, Step::Create { size }) => self.create(*size),
                Task::Step(_, Step::Attach) => self.attach(),
                Task::Step(_, Step::Adopt) => self.adopt(),
                Task::Step(_, Step::Release) => self.release(),
                Task::Step(_, Step::Detach) => self.detach(),
                Task::Step(_, Step::Delete) => self.delete(),
                Task::Step(_, Step::Absorb | Step::Drain | Step::Finish) => Ok(DONE),
                Task::Recover(epoch) => self.recover(*epoch),
            };
            match progress {
                Ok(Progress::Wait) if overdue => self.settle(Err(self.overdue())),
                // The provider has not answered yet, which says nothing of the step.
                Err(_) if self.tools.provider.is_waiting() && !overdue => {}
                Err(_) if self.tools.provider.is_waiting() => self.settle(Err(Refusal::Timeout)),
                progress => self.settle(progress),
            }
        }
        self.ended.pop_front()
    }

    /// What took too long.
    fn overdue(&self) -> Refusal {
        let Some(VolumeId(volume)) = self.missing_disk.clone() else { return Refusal::Timeout };
        Refusal::Transient(format!(
            "the provider has attached the volume {volume}, but no disk with its serial has appeared on this machine: \
             does the guest's kernel know PCI hot-plug?"
        ))
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

    /// Where volumes may lie that are files.
    fn files(&self) -> Option<PathBuf> {
        self.tools.provider.files()
    }

    fn describe(&self, id: &VolumeId) -> Result<Option<VolumeDescription>, Refusal> {
        match self.tools.provider.describe(id) {
            Ok(description) => Ok(Some(description)),
            Err(ProviderError::NotFound(_)) => Ok(None),
            Err(error) => Err(refusal(error)),
        }
    }

    /// A disk came or went: what is waited for may be there.
    pub fn disk_changed(&mut self) {
        self.look_again();
        self.hurry();
    }

    /// Something was just asked of the provider: look soon.
    fn hurry(&mut self) {
        if let Some(running) = &mut self.running {
            running.pause = POLL.0;
            running.next_poll = self.tools.clock.now();
        }
    }

    fn asked(&mut self, asked: bool) {
        if let Some(running) = &mut self.running {
            running.asked = asked;
        }
    }

    /// The owner record, as it is durable.
    fn owner_record(&self) -> Result<OwnerRecord, Refusal> {
        let unsettled = |error| Refusal::Transient(format!("the owner record cannot be written: {error}"));
        self.tools.keeper.settle().map_err(unsettled)
    }

    /// Makes sure that the owner record says so, durably.
    fn owner_is_backing(&self) -> Result<(), Refusal> {
        if self.owner_record()?.owner == Owner::Backing {
            return Ok(());
        }
        Err(Refusal::Transient("the owner record still names the caching volume".to_owned()))
    }

    fn sample(&self) -> Result<Sample, Refusal> {
        self.tools.shard.ask(|answer| Command::Sample { answer }).map_err(gone)
    }

    fn close_cache(&mut self) -> Result<(), Refusal> {
        self.opened = None;
        self.outage.unused();
        self.tools.shard.ask(|answer| Command::CloseCache { answer }).map_err(gone)
    }

    fn epoch(&self) -> Option<Epoch> {
        self.rental().and_then(|rental| parse_epoch(rental.epoch.as_deref()?))
    }

    /// The volume that is not given back, and why: it cannot be proved that nothing on it counts.
    #[must_use]
    pub fn kept(&self) -> Option<(VolumeId, &str)> {
        Some((self.volume()?, self.kept.as_deref()?))
    }

    /// The user gives up whatever is on the volume that is kept for want of a proof.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn give_up_proof(&mut self) -> Result<(), String> {
        let written = self.note(|rental| rental.disposable = true);
        written.map_err(|refusal| format!("that cannot be recorded ({refusal:?}): try again"))?;
        self.kept = None;
        Ok(())
    }

    /// Data is lost since the last run: the volume stays until the user has decided, and is tried again.
    pub fn resume_lost(&mut self, now: Instant, lost_bytes: u64) {
        self.lost_bytes = Some(lost_bytes);
        self.outage.lost_before(now);
    }

    /// The data on the volume was given up before it could be read back. Answers the volume's size, if it is rented.
    pub fn give_up(&mut self) -> Option<Bytes> {
        self.running = None;
        self.outage.over();
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
