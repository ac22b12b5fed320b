//! One caching volume from before its creation until it is certain that it is gone.
//!
//! A step is carried out by *walks*. A walk runs the step's function from its beginning: it asks one thing after the other,
//! stops at the first one that has not been answered, and runs anew when the answer has come. What was answered in this walk
//! is not asked twice. A walk ends when the step has ended or waits for a change; the next one begins without knowledge. So a
//! step may be begun again after a crash at any point, and each ask is such a point.

mod counting;
mod growing;
mod outage;
mod renting;
mod returning;
mod sighting;
mod walk;

use std::collections::VecDeque;
use std::time::Duration;

use surgetank_cache::{CacheMode, Epoch, Event};
use surgetank_model::volume::{DiskIdentity, Tags, VolumeId};
use surgetank_model::{Bytes, Instant, Lag};
use surgetank_policy::{Refusal, Step, StepId, StepOutcome};

use self::{outage::Outage, renting::refused, sighting::Names, sighting::Sighting};
use crate::ask::{Answer, Ask, AskId, Call, Command, Opened, VolumeAsk};
use crate::record::{RentalRecord, Slot};

/// First and longest pause between two looks at a change under way.
const POLL: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(500));

/// What a rental is told at start.
#[derive(Clone, Debug)]
pub struct Config {
    /// The device's name.
    pub device: String,
    /// The state directory's random name, for tags.
    pub owner_id: String,
    /// The provider's name of the type to rent.
    pub volume_type: String,
    /// How long requests wait for a volume that cannot be read.
    pub outage_patience: Duration,
    /// The longest pause between two tries of anything.
    pub longest_pause: Duration,
    /// Whether a volume in use may leave this machine, so that it is looked for.
    pub volumes_leave: bool,
    /// For how long the provider may not know a volume that is there.
    pub lag: Lag,
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// A step of the controller.
    Step(StepId, StepOutcome),
    /// The recovery.
    Recovery(StepOutcome),
}

/// What operators should know, for the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// A task was not carried out.
    NotDone(String),
    /// Something is wrong, and goes on all the same.
    Warning(String),
    /// Something is wrong that risks data.
    Error(String),
    /// What was wrong has passed.
    Passed(String),
}

/// What is being carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Task {
    Step(StepId, Step),
    /// Reading a volume back after a crash; not a step of the controller.
    Recover(Epoch),
    /// From now on what is on the volume counts, or does not any more; not a step of the controller either.
    Count(StepId, bool),
    /// From now on something is on the volume that never counts; not a step of the controller either.
    Use(StepId),
}

/// What the engine said of the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Nothing,
    Done,
    Failed(&'static str),
    Cancelled,
}

#[derive(Clone, Debug)]
struct Running {
    task: Task,
    deadline: Option<Instant>,
    next_walk: Instant,
    pause: Duration,
    /// The engine was told, and its event is awaited.
    told: bool,
    said: Said,
}

/// Why the engine holds nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Release {
    /// It released the volume: CLEAN is on it.
    Clean,
    /// The volume failed and nothing was lost, or the loss was accepted: CLEAN may not be on it.
    Dropped,
}

/// What is not deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Kept {
    why: String,
    /// The attachment in the volume's tag.
    tag: Option<String>,
}

/// Why a walk does not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Pause {
    /// An answer is awaited.
    Asked,
    /// A change is under way: look again later.
    Wait,
    /// The same, and it has only just begun.
    WaitBriefly,
    /// The engine tells when it is time to go on.
    EngineWorks,
    /// It cannot be done.
    Refused(Refusal),
}

type Walked<T = ()> = Result<T, Pause>;

/// What one of the two walks has learned, with the time at which each answer came, and what it waits for.
#[derive(Clone, Debug, Default)]
struct Walk {
    known: Vec<(Ask, Answer, Instant)>,
    awaited: Option<(AskId, Ask)>,
    /// It wants to call the provider or to write the record, and another call or write is under way.
    queued: bool,
}

impl Walk {
    fn is_under_way(&self) -> bool {
        self.awaited.is_some() || self.queued
    }
}

/// Who walks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lane {
    /// The task.
    Task,
    /// The look after a volume in trouble.
    Outage,
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Rental {
    config: Config,
    slot: Slot,
    /// Tags of a volume that is created, beside those of every rental.
    tags: Tags,
    now: Instant,
    record: Option<RentalRecord>,
    running: Option<Running>,
    task_walk: Walk,
    outage_walk: Walk,
    lane: Lane,
    asks: VecDeque<(AskId, Ask)>,
    next_ask: u64,
    /// The call of the provider that is under way, wanted or not.
    call: Option<(AskId, Call)>,
    /// The record that is being written, wanted or not.
    writing: Option<(AskId, Option<RentalRecord>)>,
    ended: VecDeque<Ended>,
    notices: VecDeque<Notice>,
    /// The driver has a volume open that the engine was not given.
    open: bool,
    /// A step wants the requests of the device to come to the engine, and none has said since that they need not.
    service: bool,
    released: Option<Release>,
    /// A growth that was asked for before the present step may happen yet.
    may_grow: bool,
    /// The provider has begun the growth that the present step asked for.
    growth_begun: bool,
    /// Bytes lost with the caching volume, while that stands.
    lost_bytes: Option<u64>,
    outage: Outage,
    /// What else is known of the token's volumes.
    names: Names,
    /// What the provider has said of whether the volume is there.
    sighting: Option<Sighting>,
    /// Why the volume is not deleted, while that cannot be proved to be harmless.
    kept: Option<Kept>,
    /// Who had the volume open when it was last tried, and what to do.
    held: Option<String>,
    /// The tag of which the volume itself has proved that nothing counts.
    proved: Option<String>,
    /// The volume that is attached, while its disk has not appeared.
    missing_disk: Option<VolumeId>,
    /// The disks that were here before the volume was attached for the first time. Not written down: after a crash in between, its
    /// own disk may be among them.
    disks_before: Option<(VolumeId, Option<Vec<DiskIdentity>>)>,
}

impl Rental {
    /// Goes on from the record that is durable.
    #[must_use]
    pub fn new(config: Config, slot: Slot, record: Option<RentalRecord>) -> Self {
        Self {
            config,
            slot,
            tags: Tags::new(),
            now: Instant::ZERO,
            record,
            running: None,
            task_walk: Walk::default(),
            outage_walk: Walk::default(),
            lane: Lane::Task,
            asks: VecDeque::new(),
            next_ask: 0,
            call: None,
            writing: None,
            ended: VecDeque::new(),
            notices: VecDeque::new(),
            open: false,
            service: false,
            released: None,
            may_grow: false,
            growth_begun: false,
            lost_bytes: None,
            outage: Outage::default(),
            names: Names::default(),
            sighting: None,
            kept: None,
            held: None,
            proved: None,
            missing_disk: None,
            disks_before: None,
        }
    }

    /// Where the device has it.
    pub(crate) fn slot(&self) -> Slot {
        self.slot
    }

    /// What is rented, as far as that is durable.
    #[must_use]
    pub fn record(&self) -> Option<&RentalRecord> {
        self.record.as_ref()
    }

    /// Nothing is rented, and nothing under way.
    #[must_use]
    pub fn is_free(&self) -> bool {
        let is_busy = self.running.is_some() || self.call.is_some() || self.writing.is_some();
        self.record.is_none() && !is_busy && self.ended.is_empty()
    }

    /// Whether the engine has the volume, or had it and waits for it.
    #[cfg(debug_assertions)]
    pub(crate) fn is_used_by_engine(&self) -> bool {
        self.next_look().is_some()
    }

    /// Bytes lost with the caching volume.
    #[must_use]
    pub fn lost_bytes(&self) -> Option<u64> {
        self.lost_bytes
    }

    /// The volume that is not deleted, and why: it cannot be proved that nothing on it counts.
    #[must_use]
    pub fn kept(&self) -> Option<(VolumeId, &str)> {
        Some((self.volume()?, &self.kept.as_ref()?.why))
    }

    /// Which other program had the volume open when it was last tried, and what to do. What is on it can be read then, so
    /// nobody may discard it.
    #[must_use]
    pub fn held(&self) -> Option<(VolumeId, &str)> {
        Some((self.volume()?, self.held.as_deref()?))
    }

    /// Begins a step; `timeout` is how long it may take.
    pub fn begin(&mut self, now: Instant, id: StepId, step: Step, timeout: Option<Duration>) {
        self.now = self.now.max(now);
        self.note_service(&step);
        self.may_grow = self.record.as_ref().is_some_and(|record| record.growing_to.is_some());
        self.growth_begun = false;
        match step {
            Step::Absorb => self.set_mode(id, CacheMode::Absorb),
            Step::Drain => self.set_mode(id, CacheMode::Drain),
            Step::Finish => self.set_mode(id, CacheMode::Finish),
            step => self.run(Task::Step(id, step), timeout),
        }
        self.advance();
    }

    /// Begins to read a volume back after a crash. It may take as long as it takes: requests wait for it.
    pub fn begin_recovery(&mut self, now: Instant, epoch: Epoch) {
        self.now = self.now.max(now);
        self.service = true;
        self.run(Task::Recover(epoch), None);
        self.advance();
    }

    fn run(&mut self, task: Task, timeout: Option<Duration>) {
        self.missing_disk = None;
        self.task_walk = Walk::default();
        let deadline = timeout.map(|timeout| self.now + timeout);
        let (next_walk, pause) = (self.now, POLL.0);
        self.running = Some(Running { task, deadline, next_walk, pause, told: false, said: Said::Nothing });
    }

    /// The engine changes its mode at once, also while it releases the volume.
    fn set_mode(&mut self, id: StepId, mode: CacheMode) {
        self.emit(Ask::Engine(Command::Mode(mode)));
        self.ended.push_back(Ended::Step(id, StepOutcome::Done));
    }

    /// Takes an event of the engine.
    pub fn event(&mut self, now: Instant, event: &Event) {
        self.now = self.now.max(now);
        self.follow(event);
        self.service &= !matches!(event, Event::Released | Event::CacheDropped);
        match event {
            Event::Released => self.released = Some(Release::Clean),
            Event::CacheDropped => {
                self.released = Some(Release::Dropped);
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
            | Event::CacheGrown { .. }
            | Event::CacheGrowFailed
            | Event::Stopped => {}
        }
        if let Some(running) = &mut self.running {
            running.next_walk = self.now;
            running.pause = POLL.0;
            let said = match (&running.task, event) {
                (Task::Step(_, Step::Adopt), Event::Adopted) => Said::Done,
                (Task::Step(_, Step::Adopt), Event::AdoptFailed) => Said::Failed(""),
                (Task::Step(_, Step::Grow { .. }), event) => Self::said_of_growth(event),
                (Task::Step(_, Step::Release), Event::ReleaseCancelled) => Said::Cancelled,
                (Task::Recover(_), Event::Recovered { .. }) => Said::Done,
                (Task::Recover(_), Event::RecoverFailed { reason }) => Said::Failed(reason),
                _ => Said::Nothing,
            };
            if running.told && said != Said::Nothing {
                running.said = said;
            }
        }
        self.advance();
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.advance();
    }

    /// When [`Rental::tick`] should be called.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Instant> {
        let running = self.running.as_ref();
        let task = running.map(|running| match self.is_walking() {
            // Only the step's time can run out.
            true => running.deadline.filter(|_| self.waits_for_provider()),
            false => Some(running.next_walk).filter(|next| *next != Instant::FAR),
        });
        let outage = self.next_look().filter(|_| !self.is_walking());
        [task.flatten(), outage].into_iter().flatten().min()
    }

    /// What is to be done next.
    pub fn next_ask(&mut self) -> Option<(AskId, Ask)> {
        self.asks.pop_front()
    }

    /// What has ended.
    pub fn next_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }

    /// What operators should know.
    pub fn next_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Takes the answer to an ask. One that nobody waits for any more changes nothing.
    pub fn complete(&mut self, now: Instant, id: AskId, answer: Answer) {
        self.now = self.now.max(now);
        self.call.take_if(|(call, _)| *call == id);
        if let Some((_, record)) = self.writing.take_if(|(writing, _)| *writing == id)
            && answer == Answer::Persisted(Ok(()))
        {
            self.recorded(record);
        }
        let mut wanted = false;
        for walk in [&mut self.task_walk, &mut self.outage_walk] {
            if walk.awaited.as_ref().is_some_and(|(awaited, _)| *awaited == id)
                && let Some((_, ask)) = walk.awaited.take()
            {
                walk.known.push((ask, answer.clone(), self.now));
                wanted = true;
            }
        }
        if !wanted && !self.outage_answered(id, &answer) && answer == Answer::Opened(Ok(Opened::Open)) {
            self.emit(Ask::Volume(VolumeAsk::Close(id)));
        }
        self.advance();
    }

    /// Walks as far as the answers and the time allow.
    fn advance(&mut self) {
        loop {
            let before = (self.next_ask, self.ended.len(), self.running.is_some());
            // One walk at a time; the look after a volume in trouble begins when it is due.
            if self.outage_walk.is_under_way() || !self.task_walk.is_under_way() {
                self.walk_outage();
            }
            if !self.outage_walk.is_under_way() {
                self.walk_task();
            }
            self.time_out();
            if before == (self.next_ask, self.ended.len(), self.running.is_some()) {
                return;
            }
        }
    }

    fn is_walking(&self) -> bool {
        self.task_walk.is_under_way() || self.outage_walk.is_under_way()
    }

    /// A provider that does not answer in time says nothing of the step.
    fn time_out(&mut self) {
        let overdue = self.running.as_ref().and_then(|running| running.deadline).is_some_and(|at| at <= self.now);
        if overdue && self.waits_for_provider() {
            self.settle(StepOutcome::Refused(self.overdue()));
        }
    }

    /// Whether the task goes on when the provider has answered.
    fn waits_for_provider(&self) -> bool {
        let waits = |walk: &Walk| walk.queued || matches!(walk.awaited, Some((_, Ask::Provider(_))));
        self.call.is_some() && (waits(&self.task_walk) || !self.task_walk.is_under_way() && waits(&self.outage_walk))
    }

    fn walk_task(&mut self) {
        let Some(running) = &self.running else { return };
        if self.task_walk.awaited.is_some() || !self.task_walk.is_under_way() && running.next_walk > self.now {
            return;
        }
        self.lane = Lane::Task;
        self.task_walk.queued = false;
        let (overdue, longest) = (running.deadline.is_some_and(|at| at <= self.now), self.longest_poll());
        let walked = match (running.task.clone(), running.said) {
            (Task::Step(_, Step::Create { size }), _) => self.create(size),
            (Task::Step(_, Step::Attach), _) => self.attach(),
            (Task::Step(_, Step::Adopt), Said::Done) => self.adopted(),
            (Task::Step(_, Step::Adopt), Said::Failed(_)) => self.adopt_failed(),
            (Task::Step(_, Step::Adopt), _) => self.adopt(),
            (Task::Step(_, Step::Grow { .. }), Said::Done) => Ok(StepOutcome::Done),
            (Task::Step(_, Step::Grow { .. }), Said::Failed(why)) => Err(growing::not_used(why.to_owned())),
            (Task::Step(_, Step::Grow { size }), _) => self.grow(size),
            (Task::Step(_, Step::Release), Said::Cancelled) => Ok(StepOutcome::Cancelled),
            (Task::Step(_, Step::Release), _) => self.release(),
            (Task::Step(_, Step::Detach), _) => self.detach(),
            (Task::Step(_, Step::Delete), _) => self.delete(),
            (Task::Step(_, Step::Absorb | Step::Drain | Step::Finish), _) => Ok(StepOutcome::Done),
            (Task::Count(_, true), _) => self.count(),
            (Task::Count(_, false), _) => self.retire(),
            (Task::Use(_), _) => self.note_use(),
            (Task::Recover(_), Said::Done) => Ok(StepOutcome::Done),
            (Task::Recover(_), Said::Failed(reason)) => self.recover_failed(reason),
            (Task::Recover(epoch), _) => self.recover(epoch),
        };
        match walked {
            Ok(outcome) => self.settle(outcome),
            Err(Pause::Asked) => {}
            Err(Pause::Wait | Pause::WaitBriefly | Pause::EngineWorks) if overdue => {
                self.settle(StepOutcome::Refused(self.overdue()));
            }
            Err(Pause::Refused(refusal)) => self.settle(StepOutcome::Refused(refusal)),
            Err(Pause::EngineWorks) => {
                self.task_walk = Walk::default();
                if let Some(running) = &mut self.running {
                    running.next_walk = running.deadline.unwrap_or(Instant::FAR);
                }
            }
            Err(pause @ (Pause::Wait | Pause::WaitBriefly)) => {
                self.task_walk = Walk::default();
                let Some(running) = &mut self.running else { return };
                if pause == Pause::WaitBriefly {
                    running.pause = POLL.0;
                }
                running.next_walk = self.now + running.pause;
                // Slow growth: a change is noticed late by at most a quarter of the time that it took.
                running.pause = (running.pause * 5 / 4).min(longest);
            }
        }
    }

    /// What took too long.
    fn overdue(&self) -> Refusal {
        let Some(VolumeId(volume)) = self.missing_disk.clone() else { return Refusal::Timeout };
        Refusal::Transient(format!(
            "the provider has attached the volume {volume}, but no disk with its serial has appeared on this machine: \
             does the guest's kernel know PCI hot-plug?"
        ))
    }

    /// The task has ended. A call of the provider that is under way goes on, and nothing overtakes it.
    fn settle(&mut self, outcome: StepOutcome) {
        let Some(running) = self.running.take() else { return };
        self.task_walk = Walk::default();
        if outcome != StepOutcome::Done {
            self.notices.push_back(Notice::NotDone(format!("{:?}: {outcome:?}", running.task)));
        }
        self.ended.push_back(match running.task {
            Task::Step(id, _) | Task::Count(id, _) | Task::Use(id) => Ended::Step(id, outcome),
            Task::Recover(_) => Ended::Recovery(outcome),
        });
    }

    /// A disk came or went: what is waited for may be there. `news`: what is where the volume in trouble was, has changed.
    pub fn disk_changed(&mut self, now: Instant, news: bool) {
        self.now = self.now.max(now);
        self.look_again(news);
        if let Some(running) = &mut self.running {
            running.pause = POLL.0;
            running.next_walk = self.now;
        }
        self.advance();
    }

    /// Data is lost since the last run: the volume stays until the user has decided, and is tried again.
    pub fn resume_lost(&mut self, now: Instant, lost_bytes: u64) {
        self.now = self.now.max(now);
        self.lost_bytes = Some(lost_bytes);
        self.outage.lost_before(self.now);
    }

    /// The data on the volume was discarded before it could be read back. Answers the volume's size, if it is rented.
    pub fn discard_data(&mut self) -> Option<Bytes> {
        self.running = None;
        self.task_walk = Walk::default();
        self.end_outage();
        self.service = false;
        self.released = Some(Release::Dropped);
        self.lost_bytes = None;
        self.record.as_ref().map(RentalRecord::size_at_most)
    }

    /// What must hold between any two calls.
    ///
    /// # Panics
    /// If it does not.
    #[cfg(debug_assertions)]
    pub fn check(&self) {
        let walks = [&self.task_walk, &self.outage_walk];
        assert!(walks.iter().filter(|walk| walk.is_under_way()).count() <= 1, "one walk at a time: {walks:?}");
        assert!(self.running.is_some() || !self.task_walk.is_under_way(), "a walk without a task");
        for walk in walks {
            if let Some((id, Ask::Provider(call))) = &walk.awaited {
                assert_eq!(self.call.as_ref(), Some(&(*id, call.clone())), "the call under way is known");
            }
            let busy = self.call.is_some() || self.writing.is_some();
            assert!(!walk.queued || busy, "a walk waits for nothing");
        }
        if let Some(record) = &self.record {
            assert_eq!(record.slot, self.slot, "the record is that of its slot");
            let adopted = record.epoch.is_some();
            assert!(record.volume.is_some() || !adopted, "what has no name was never adopted: {record:?}");
            assert!(!record.token.is_empty() || record.volume.is_some(), "it can be found: {record:?}");
        }
        assert!(self.kept.is_none() || self.record.is_some(), "nothing is kept when nothing is rented");
        self.outage.check();
    }
}

fn mixed_up(answer: &Answer) -> Pause {
    Pause::Refused(Refusal::Permanent(format!("the driver answered another question: {answer:?}")))
}
