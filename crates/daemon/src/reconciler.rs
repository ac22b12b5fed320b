//! The thread that runs a device's controller: it shows it the device each sampling interval, carries out its steps
//! and answers what people ask.

mod answers;
mod asks;
mod boost_log;
mod room;

use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use surgetank_cache::{Epoch, Event};
use surgetank_device::volume::ReadCacheHandle;
use surgetank_model::units::Span;
use surgetank_model::{Bytes, Instant};
use surgetank_policy::backoff::throttled;
use surgetank_policy::{BurstHint, Controller, Learned, Refusal, ResumeAt, StepOutcome};
use surgetank_rental::{Ended, RentalRecord};

use crate::accounting::Accounts;
use crate::clock::{Clock, unix_ms};
use crate::config::OnStop;
use crate::history::History;
use crate::journal::LastRun;
use crate::lifecycle::Lifecycle;
use crate::owner::OwnerThreadHandle;
use crate::read_caches::BoostShare;
use crate::shard::{Command, Sample, ShardHandle};
use crate::shared::Shared;
use crate::status::{DeviceReport, DeviceStatus};
use crate::switching::Switching;

use boost_log::BoostLog;
use room::Room;

/// How long a failed recovery waits for the next try.
const RECOVERY_RETRY: Duration = Duration::from_secs(3);

/// What a reconciler is told.
pub enum Message {
    /// By the engine.
    Event(Event),
    /// By the kernel: a disk came or went.
    DiskChanged,
    /// By people.
    Ask(Ask, Sender<Result<Answer, String>>),
}

/// What people ask of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Its status.
    Status,
    /// Everything for a report.
    Report,
    /// Boost for a burst.
    Boost(BurstHint),
    /// End the boost.
    Drain,
    /// End the boost and delete the caching volume without waiting.
    Detach {
        /// Discard data that is lost.
        accept_loss: bool,
    },
    /// The backing volume has grown.
    Resize,
    /// Stop: answered when the device may be stopped (drained, if so configured).
    Stop {
        /// Keep dirty data on the caching volume, whatever is configured.
        keep: bool,
    },
}

/// What they are answered.
#[derive(Clone, Debug)]
pub enum Answer {
    /// It is done, or under way: `status` tells.
    Done,
    /// The device's size in bytes.
    Size(u64),
    /// The status.
    Status(Box<DeviceStatus>),
    /// The report.
    Report(Box<DeviceReport>),
}

/// How far a recovery is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recovery {
    None,
    Running(Epoch),
    Waiting(Epoch, Instant),
}

/// What a reconciler is made of.
pub struct Parts {
    /// The device's name.
    pub name: String,
    /// `fuse` or `nbd`.
    pub export: &'static str,
    /// What other threads may know, the address among it.
    pub shared: Arc<Shared>,
    /// How often the controller looks.
    pub sampling: Duration,
    /// What happens to dirty data when the daemon stops.
    pub on_stop: OnStop,
    /// The device's clock.
    pub clock: Clock,
    /// The device's shard.
    pub shard: ShardHandle,
    /// Who persists the owner.
    pub owner_thread: OwnerThreadHandle,
    /// The accounts.
    pub accounts: Accounts,
    /// What is kept of its boosts.
    pub history: History,
    /// Controller and caching volume; `None`: the device only passes through.
    pub boosting: Option<(Controller, Lifecycle)>,
    /// For a device that the kernel maps.
    pub switching: Option<Switching>,
    /// How the last run ended.
    pub last_run: LastRun,
    /// An attachment to read back before anything else.
    pub recover: Option<Epoch>,
    /// The read caches over the backing volume.
    pub read_caches: Vec<ReadCacheHandle>,
    /// What its boosts have of what read caches and boosts share, if they take part.
    pub share: Option<BoostShare>,
    /// What the reconciler is told.
    pub inbox: Receiver<Message>,
}

/// The thread's state.
pub struct Reconciler {
    parts: Parts,
    recovery: Recovery,
    next_sample: Instant,
    last: Option<Sample>,
    /// Answers to `Stop` that wait for the drain.
    stopping: Vec<Sender<Result<Answer, String>>>,
    /// `Stop` was asked: no boost begins any more.
    ending: bool,
    /// The bytes read and written when it was: what moves after that is no burst.
    frozen: Option<(u64, u64)>,
    /// Bytes read that the read cache did not have.
    beyond_cache: u64,
    /// The same when the controller was last shown the device.
    moved: Option<(u64, u64)>,
    reason: Option<String>,
    room: Option<Room>,
    log: BoostLog,
}

impl Reconciler {
    /// Ready to run.
    #[must_use]
    pub fn new(mut parts: Parts) -> Self {
        let recovery = parts.recover.map_or(Recovery::None, |epoch| Recovery::Waiting(epoch, Instant::ZERO));
        let next_sample = parts.clock.now();
        let rented = parts.boosting.as_ref().map_or(Bytes::ZERO, |(_, lifecycle)| lifecycle.rented());
        let room = parts.share.take().map(|share| Room::new(share, rented));
        Self {
            parts,
            recovery,
            next_sample,
            last: None,
            stopping: Vec::new(),
            ending: false,
            frozen: None,
            beyond_cache: 0,
            moved: None,
            reason: None,
            room,
            log: BoostLog::default(),
        }
    }

    /// Runs until everybody who could tell it something is gone.
    pub fn run(mut self) {
        crate::planted::plant();
        if self.recovery != Recovery::None {
            let what = boost_log::reading_back(self.parts.last_run);
            tracing::info!(device = self.parts.name, "{what}; requests wait");
        }
        let inbox = self.parts.inbox.clone();
        let answers = self.lifecycle().map_or_else(crossbeam_channel::never, |lifecycle| lifecycle.answers());
        let switched = self.parts.switching.as_ref().map_or_else(crossbeam_channel::never, Switching::answers);
        loop {
            let wait = self.parts.clock.until(Some(self.next_wake()));
            let timeout = wait.map_or_else(crossbeam_channel::never, crossbeam_channel::after);
            crossbeam_channel::select_biased! {
                recv(inbox) -> message => match message {
                    Ok(message) => self.message(message),
                    Err(_) => break,
                },
                recv(answers) -> done => if let (Ok(done), Some(lifecycle)) = (done, self.lifecycle()) {
                    lifecycle.done(done);
                },
                recv(switched) -> done => if let (Ok(done), Some(switching)) = (done, &mut self.parts.switching) {
                    switching.done(self.parts.clock.now(), done);
                    // What the engine answered for until now is seen before the next switch is decided.
                    self.sample();
                },
                recv(timeout) -> _ => {}
            }
            self.advance();
        }
        // One that was never read back is still what the run before left.
        let unread = self.recovery != Recovery::None;
        self.keep(self.parts.clock.now(), if unread { self.parts.last_run } else { LastRun::Stopped });
    }

    fn next_wake(&self) -> Instant {
        let boosting = self.parts.boosting.as_ref();
        let recovery = match self.recovery {
            Recovery::Waiting(_, at) => Some(at),
            _ => None,
        };
        let others = [
            recovery,
            self.parts.switching.as_ref().and_then(Switching::next_deadline),
            boosting.and_then(|(_, lifecycle)| lifecycle.next_poll()),
            self.room.as_ref().and_then(|room| room.next_poll(self.parts.clock.now())),
            boosting
                .filter(|_| self.recovery == Recovery::None && !self.held())
                .and_then(|(controller, _)| controller.next_deadline()),
        ];
        others.into_iter().flatten().fold(self.next_sample, Instant::min)
    }

    fn advance(&mut self) {
        let now = self.parts.clock.now();
        if self.next_sample <= now {
            // Late samples are not made up for: the controller takes intervals as they are.
            self.next_sample = (self.next_sample + self.parts.sampling).max(now);
            self.sample();
        }
        self.start_recovery(now);
        self.step(now);
        if self.switch(now) {
            self.step(now);
        }
        self.answer_stop();
    }

    /// Has the kernel map the device as it must be now. True: whoever waited for that goes on.
    fn switch(&mut self, now: Instant) -> bool {
        let Some(switching) = &mut self.parts.switching else { return false };
        let rental = self.parts.boosting.as_ref().is_some_and(|(_, lifecycle)| lifecycle.rental().wants_service());
        let Some(sample) = &self.last else { return false };
        switching.update(now, rental, sample.is_transparent);
        match (switching.service(), &mut self.parts.boosting) {
            (Some(service), Some((_, lifecycle))) if lifecycle.waits_for_service() => {
                lifecycle.served(now, &service);
                true
            }
            _ => false,
        }
    }

    /// Looks at the device and shows it to the controller.
    fn sample(&mut self) {
        let Ok(sample) = self.parts.shard.sample(self.parts.clock.now(), self.last.clone()) else { return };
        let mut seen = sample.clone();
        if let Some(switching) = &mut self.parts.switching {
            switching.complete(&mut seen);
        }
        self.parts.accounts.observe(&seen);
        self.log.observe(&seen);
        let mut observation = seen.observation;
        observation.read_bytes = self.read_beyond_cache(observation.read_bytes);
        self.moved = Some((observation.read_bytes, observation.written_bytes));
        if let Some(frozen) = self.frozen {
            (observation.read_bytes, observation.written_bytes) = frozen;
        }
        if self.recovery == Recovery::None
            && let Some((controller, _)) = &mut self.parts.boosting
        {
            controller.set_headroom(self.room.as_ref().map(Room::headroom));
            controller.observe(sample.now, observation);
            self.drain_nameless(sample.now);
        }
        self.last = Some(sample);
    }

    /// Of what the application has read, what the read caches did not have: the rest is no burden for the backing volume, and no
    /// reason for a boost.
    fn read_beyond_cache(&mut self, read_bytes: u64) -> u64 {
        if self.parts.read_caches.is_empty() {
            return read_bytes;
        }
        // What is being read may count here before it counts as a hit.
        let hits = self.parts.read_caches.iter().map(ReadCacheHandle::hit_bytes).fold(0, u64::saturating_add);
        self.beyond_cache = self.beyond_cache.max(read_bytes.saturating_sub(hits));
        self.beyond_cache
    }

    /// A caching volume whose file was removed is drained while it is open.
    fn drain_nameless(&mut self, now: Instant) {
        if let Some((controller, lifecycle)) = &mut self.parts.boosting
            && lifecycle.rental().is_nameless()
            && controller.phase() == surgetank_policy::Phase::Boost
        {
            self.log.ends_because("somebody removed the file of the caching volume");
            controller.hint_detach(now);
        }
    }

    fn start_recovery(&mut self, now: Instant) {
        if let Recovery::Waiting(epoch, at) = self.recovery
            && at <= now
            && let Some((_, lifecycle)) = &mut self.parts.boosting
        {
            lifecycle.begin_recovery(now, epoch);
            self.recovery = Recovery::Running(epoch);
        }
    }

    /// Carries out steps until nothing more happens at once.
    fn step(&mut self, now: Instant) {
        loop {
            self.tell(now);
            let held = self.held();
            let Some((controller, lifecycle)) = &mut self.parts.boosting else { return };
            if self.recovery == Recovery::None && !held {
                if controller.next_deadline().is_some_and(|deadline| deadline <= now) {
                    controller.tick(now);
                }
                while let Some((id, step, until)) = room::next_step(&mut self.room, now, controller) {
                    if let surgetank_policy::Step::Create { size } = step {
                        self.parts.accounts.rent(now, size);
                    }
                    if let (surgetank_policy::Step::Grow { size }, Some(why)) = (&step, controller.why_grown()) {
                        tracing::info!(device = self.parts.name, "{why}");
                        self.parts.accounts.resize(now, *size);
                    }
                    lifecycle.begin(now, id, step, until.map(|until| until.since(now)));
                }
            }
            match lifecycle.poll(now) {
                None => break,
                Some(Ended::Step(id, outcome)) => {
                    self.room.iter_mut().for_each(|room| room.ended(id));
                    let refused = matches!(outcome, StepOutcome::Refused(_));
                    controller.complete(now, id, outcome);
                    if refused {
                        self.tell_refusal();
                    }
                    self.account(now);
                }
                Some(Ended::Recovery(outcome)) => self.recovery_ended(now, &outcome),
            }
        }
        if let (Some(room), Some((_, lifecycle))) = (&mut self.room, &self.parts.boosting) {
            room.rents(lifecycle.rented());
        }
        self.tell(now);
    }

    /// Books what has ended, and keeps what was learned with it.
    fn account(&mut self, now: Instant) {
        let Some((controller, lifecycle)) = &mut self.parts.boosting else { return };
        // A growth that was refused is not billed.
        if let Some(size) = controller.status().cache_size {
            self.parts.accounts.resize(now, size);
        }
        let mut ended = None;
        while let Some(record) = controller.next_record() {
            let cost = self.parts.accounts.boost_cost(&record);
            let rented = record.ended.since(record.started);
            let over_runs = self.parts.accounts.over_runs(now).map(|(cost, rented)| (Some(cost), rented));
            let in_all = over_runs.filter(|_| cost.is_some()).unwrap_or((cost, rented));
            if let Err(error) = self.parts.history.add(&self.log.past(&record, in_all, unix_ms())) {
                tracing::warn!(device = self.parts.name, %error, "the history lacks a boost");
            }
            let text = self.log.ended(&record, cost, controller.status().next_size);
            tracing::info!(device = self.parts.name, "{text}");
            self.parts.accounts.boosted(&record);
            ended = Some(record.was_there);
        }
        if let Some(was_there) = ended.filter(|_| lifecycle.rental().record().is_none()) {
            self.parts.accounts.end_rental(now, was_there);
            self.keep(now, LastRun::Running);
        }
    }

    /// Persists what was learned and what everything cost.
    fn keep(&mut self, now: Instant, last_run: LastRun) {
        let (totals, rental_cost) = (self.parts.accounts.totals(now), self.parts.accounts.rental_cost(now));
        if let Some((controller, lifecycle)) = &mut self.parts.boosting {
            let learned = controller.learned();
            let written = lifecycle.journal().update(|state| {
                // A boost that came into use too late for the controller is counted there alone.
                let boosts = learned.boosts.max(state.learned.boosts);
                state.learned = Learned { boosts, ..learned };
                state.last_run = last_run;
                (state.totals, state.rental_cost) = (totals, rental_cost);
                state.unbooked.clear();
                state.saved_unix_ms = unix_ms();
            });
            if let Err(error) = written {
                tracing::warn!(device = self.parts.name, %error, "cannot keep what was learned");
            }
        }
    }

    fn recovery_ended(&mut self, now: Instant, outcome: &StepOutcome) {
        let Recovery::Running(epoch) = self.recovery else { return };
        let Some((controller, lifecycle)) = &mut self.parts.boosting else { return };
        if *outcome == StepOutcome::Done {
            let size = lifecycle.rental().record().map_or_else(Default::default, RentalRecord::size_at_most);
            controller.resume(now, ResumeAt::Adopted { size });
            self.recovery = Recovery::None;
            self.reason = None;
            self.note_recovery(false);
            return;
        }
        let pause = match outcome {
            StepOutcome::Refused(refusal) => throttled(RECOVERY_RETRY, refusal, controller.config().backoff.cap),
            _ => RECOVERY_RETRY,
        };
        let why = match outcome {
            StepOutcome::Refused(
                Refusal::Transient(text)
                | Refusal::Permanent(text)
                | Refusal::Failed(text)
                | Refusal::NoRoom(text)
                | Refusal::Throttled { text, .. },
            ) => text.clone(),
            other => format!("{other:?}"),
        };
        let patience = Span(lifecycle.rental().patience());
        let held = lifecycle.rental().held().is_some();
        let before = self.reason.take();
        let reason = if held {
            format!(
                "its newest data is on a caching volume that another program has open ({why}); it is tried again, and requests \
                 wait for that for up to {patience}, after which they fail; nothing of it is lost, and it cannot be discarded"
            )
        } else {
            format!(
                "its newest data is on a caching volume that cannot be read back ({why}); it is tried again, and requests wait \
                 for that for up to {patience}, after which they fail: repair the volume, or discard its data with `surgetank \
                 detach {} --accept-loss`",
                self.parts.name
            )
        };
        if before.as_ref() != Some(&reason) {
            tracing::warn!(device = self.parts.name, "{reason}");
        }
        self.reason = Some(reason);
        self.recovery = Recovery::Waiting(epoch, now + pause);
        // A shard that has ended serves no requests.
        let _ = self.parts.shard.send(Command::RecoveryUnavailable);
        self.note_recovery(!held);
    }

    /// What was found out about the volume must be known when the user discards it with the daemon stopped.
    fn note_recovery(&mut self, failed: bool) {
        let Some((_, lifecycle)) = &mut self.parts.boosting else { return };
        if lifecycle.journal().state().recovery_failed == failed {
            return;
        }
        if let Err(error) = lifecycle.journal().update(|state| state.recovery_failed = failed) {
            tracing::warn!(device = self.parts.name, %error, "the journal cannot be written");
        }
    }

    fn message(&mut self, message: Message) {
        let now = self.parts.clock.now();
        match message {
            Message::Event(event) => self.event(now, &event),
            Message::DiskChanged => {
                if let Some((_, lifecycle)) = &mut self.parts.boosting {
                    lifecycle.disk_changed();
                }
            }
            Message::Ask(Ask::Stop { keep }, answer) => self.stop(now, keep, answer),
            Message::Ask(ask, answer) => {
                let result = self.ask(now, ask);
                // Whoever asked may have gone.
                let _ = answer.send(result);
            }
        }
    }

    fn event(&mut self, now: Instant, event: &Event) {
        self.tell_event(event);
        if let Some((_, lifecycle)) = &mut self.parts.boosting {
            lifecycle.event(now, event);
        }
        if *event == Event::CacheDropped && self.recovery != Recovery::None {
            self.recovery_discarded(now);
        }
    }

    /// The user discarded the data on a volume that could not be read back: the volume itself is deleted.
    fn recovery_discarded(&mut self, now: Instant) {
        self.recovery = Recovery::None;
        self.reason = None;
        self.note_recovery(false);
        let Some((controller, lifecycle)) = &mut self.parts.boosting else { return };
        if let Some(size) = lifecycle.discard_data() {
            controller.resume(now, ResumeAt::Attached { size });
        }
    }

    fn lifecycle(&mut self) -> Option<&mut Lifecycle> {
        self.parts.boosting.as_mut().map(|(_, lifecycle)| lifecycle)
    }

    /// Bytes that answer EIO, also while they are being read back.
    fn lost_bytes(&self) -> u64 {
        let engine = self.last.as_ref().map_or(0, |sample| sample.status.lost_bytes);
        let restoring = self.parts.boosting.as_ref().filter(|(_, lifecycle)| lifecycle.rental().is_restoring());
        engine.max(restoring.and_then(|(_, lifecycle)| lifecycle.rental().lost_bytes()).unwrap_or(0))
    }

    /// Whether the controller may do nothing more: the device stops, and what is rented stays or is gone.
    fn held(&self) -> bool {
        let rented = self.parts.boosting.as_ref().is_some_and(|(_, lifecycle)| lifecycle.rental().record().is_some());
        self.ending && (self.parts.on_stop == OnStop::Keep || !rented)
    }

    fn stop(&mut self, now: Instant, keep: bool, answer: Sender<Result<Answer, String>>) {
        if keep {
            self.parts.on_stop = OnStop::Keep;
        }
        if self.lifecycle().is_some_and(|lifecycle| lifecycle.must_not_close()) {
            tracing::warn!(
                device = self.parts.name,
                "draining before the device stops: the caching volume could not be opened again afterwards"
            );
            self.parts.on_stop = OnStop::Drain;
        }
        if self.parts.on_stop == OnStop::Drain {
            self.sample();
        }
        if self.parts.on_stop == OnStop::Drain
            && let Ok(controller) = self.boostable()
        {
            controller.hint_detach(now);
            self.log.ends_because("the daemon stops");
        }
        self.ending = true;
        self.frozen = self.frozen.or(self.moved);
        self.stopping.push(answer);
    }

    /// Answers `Stop`: at once if dirty data may stay, else when nothing is rented any more.
    fn answer_stop(&mut self) {
        if self.stopping.is_empty() {
            return;
        }
        let draining = self.parts.on_stop == OnStop::Drain
            && self.recovery == Recovery::None
            && self.parts.boosting.as_ref().is_some_and(|(_, lifecycle)| {
                lifecycle.rental().record().is_some() && lifecycle.rental().lost_bytes().is_none()
            });
        if !draining {
            self.tell_stop();
            for answer in self.stopping.drain(..) {
                let _ = answer.send(Ok(Answer::Done));
            }
        }
    }
}
