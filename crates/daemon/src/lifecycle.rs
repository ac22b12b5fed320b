//! Carries out what a rental asks: provider calls, the journal, the disks of this machine, the device's engine.
//!
//! What may take long runs on threads of its own, and its answer comes through a channel.

pub(crate) mod calls;
pub(crate) mod volumes;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use surgetank_array::Geometry;
use surgetank_cache::format::Geometry as LogGeometry;
use surgetank_cache::{Attach, Epoch, Event, ReadFill};
use surgetank_device::Volume;
use surgetank_device::discovery::Disks;
use surgetank_model::{Bytes, Instant};
use surgetank_policy::{Step, StepId};
use surgetank_provider::{Provider, ProviderError};
use surgetank_rental::{
    Answer, Ask, AskId, Call, Command, Ended, Notice, Obstacle, Presence, Rental, RentalRecord, RentalStage, Rentals,
    Slot,
};

use crate::clock::{Clock, unix_ms};
use crate::config::CachingConfig;
use crate::crash::crash_point;
use crate::journal::Journal;
use crate::opening::{Decorator, Identity, Opened, Place};
use crate::owner::OwnerThreadHandle;
use crate::shard::{self, ShardHandle};
use crate::shared::Shared;

/// How long one waits at once for the shard to close a volume, and how often it is looked at after that.
const CLOSING: Duration = Duration::from_millis(50);
const CLOSING_POLL: Duration = Duration::from_millis(5);

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
    /// The kernel maps the device, and requests come to the shard only if it is asked to send them.
    pub is_mapped: bool,
    /// Who persists the owner.
    pub owner_thread: OwnerThreadHandle,
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

/// What a thread of its own has done.
pub enum Done {
    /// A call of the provider.
    Called(AskId, Answer),
    /// A volume was opened again. `None`: it is not here.
    Opened(AskId, Result<Option<Opened>, Obstacle>),
}

/// The rented volumes of one device.
pub struct Lifecycle {
    tools: Tools,
    journal: Journal,
    rentals: Rentals,
    done: (Sender<Done>, Receiver<Done>),
    /// Open for the engine or in another slot, by the ask that opened it.
    open: BTreeMap<Slot, (AskId, Opened)>,
    /// Where the volume that the engine uses or has lost is or was, and what was there when last looked at.
    place: Option<Place>,
    seen: Option<Identity>,
    /// How it is divided, if it is a stripe.
    geometry: Option<Geometry>,
    /// The engine has it.
    in_use: bool,
    /// The shard is closing a volume.
    closing: Vec<(AskId, Receiver<()>)>,
    /// Asks that wait until requests come to the shard.
    serving: Vec<AskId>,
    /// The last step, but for changes of the mode.
    step: Option<Step>,
}

impl Lifecycle {
    /// Takes over what the journal says.
    #[must_use]
    pub fn new(tools: Tools, journal: Journal) -> Self {
        let config = surgetank_rental::Config {
            device: tools.device.clone(),
            owner_id: tools.owner_id.clone(),
            volume_type: tools.caching.volume_type.clone(),
            outage_patience: tools.caching.outage_patience,
            longest_pause: tools.longest_pause,
            volumes_leave: true,
            lag: tools.provider.lag(),
        };
        let rentals = Rentals::new(config, journal.state().rentals());
        let lifecycle = Self {
            tools,
            journal,
            rentals,
            done: crossbeam_channel::unbounded(),
            open: BTreeMap::new(),
            place: None,
            seen: None,
            geometry: None,
            in_use: false,
            closing: Vec::new(),
            serving: Vec::new(),
            step: None,
        };
        lifecycle.publish();
        lifecycle
    }

    /// What is decided of the volume.
    #[must_use]
    pub fn rental(&self) -> &Rental {
        self.rentals.cache()
    }

    /// What is rented, or may be, until that is certainly over.
    #[must_use]
    pub fn rented(&self) -> Bytes {
        self.journal.state().rented()
    }

    /// Over how many volumes the next caching volume is striped.
    #[must_use]
    pub fn volumes(&self) -> u32 {
        self.tools.caching.volumes
    }

    /// The journal, to keep what the controller learned.
    pub fn journal(&mut self) -> &mut Journal {
        &mut self.journal
    }

    /// Where answers of other threads arrive, for [`Lifecycle::done`].
    #[must_use]
    pub fn answers(&self) -> Receiver<Done> {
        self.done.1.clone()
    }

    /// When [`Lifecycle::poll`] should be called.
    #[must_use]
    pub fn next_poll(&self) -> Option<Instant> {
        let closing = (!self.closing.is_empty()).then(|| self.tools.clock.now() + CLOSING_POLL);
        [closing, self.rentals.next_deadline()].into_iter().flatten().min()
    }

    /// Begins a step; `timeout` is how long it may take.
    pub fn begin(&mut self, now: Instant, id: StepId, step: Step, timeout: Option<Duration>) {
        tracing::debug!(device = self.tools.device, ?step, "step");
        if !matches!(step, Step::Absorb | Step::Drain | Step::Finish) {
            self.step = Some(step.clone());
        }
        self.rentals.begin(now, Slot::CACHE, id, step, timeout);
        self.carry_out();
    }

    /// Begins to read a volume back after a crash.
    pub fn begin_recovery(&mut self, now: Instant, epoch: Epoch) {
        self.rentals.cache_mut().begin_recovery(now, epoch);
        self.carry_out();
    }

    /// Takes an event of the engine.
    pub fn event(&mut self, now: Instant, event: &Event) {
        match event {
            Event::Adopted => crash_point("adopt", "after"),
            Event::CacheGrown { .. } => crash_point("log-growth", "after"),
            Event::Recovered { .. } => crash_point("recover", "after"),
            Event::CacheLost { .. } => crash_point("lost", "before"),
            Event::CacheDropped => crash_point("dropped", "before"),
            _ => {}
        }
        self.rentals.event(now, event);
        if matches!(event, Event::CacheLost { .. }) {
            crash_point("lost", "after");
        }
        self.carry_out();
    }

    /// Takes what another thread has done.
    pub fn done(&mut self, done: Done) {
        let (id, answer) = match done {
            Done::Called(id, answer) => (id, answer),
            Done::Opened(id, opened) => (id, self.opened(id, opened)),
        };
        self.rentals.complete(self.tools.clock.now(), id, answer);
        self.carry_out();
    }

    /// Goes on with what is being carried out, and answers what has ended.
    pub fn poll(&mut self, now: Instant) -> Option<Ended> {
        let closed: Vec<AskId> =
            self.closing.extract_if(.., |(_, closed)| !is_pending(closed)).map(|(id, _)| id).collect();
        for id in closed {
            self.rentals.complete(now, id, Answer::Began(Ok(())));
        }
        self.rentals.tick(now);
        self.carry_out();
        // Volumes in other slots are discarded, which ends nothing that anybody waits for.
        self.rentals.next_ended().map(|(_, ended)| ended)
    }

    /// Whether somebody waits for [`Lifecycle::served`].
    #[must_use]
    pub fn waits_for_service(&self) -> bool {
        !self.serving.is_empty()
    }

    /// Requests come to the shard now, or will not and why.
    pub fn served(&mut self, now: Instant, result: &Result<(), String>) {
        for id in std::mem::take(&mut self.serving) {
            self.rentals.complete(now, id, Answer::Served(result.clone()));
        }
        self.carry_out();
    }

    /// A disk came or went.
    pub fn disk_changed(&mut self) {
        let there = self.place.as_ref().filter(|_| !self.in_use).map(|place| place.look(&self.tools.disks));
        let news = match there {
            Some(Ok(there)) => std::mem::replace(&mut self.seen, there.clone()) != there && there.is_some(),
            _ => false,
        };
        self.rentals.disk_changed(self.tools.clock.now(), news);
        self.carry_out();
    }

    /// A user wants the volume tried now. False: there is none in trouble.
    pub fn try_now(&mut self, now: Instant) -> bool {
        let tried = self.rentals.cache_mut().try_now(now);
        self.carry_out();
        tried
    }

    /// Looks whether the volume in use is one that nobody could open again: what is on it has to be drained before it is
    /// closed.
    #[must_use]
    pub fn must_not_close(&self) -> bool {
        self.rentals.cache().is_nameless() || self.look() == Presence::Nameless
    }

    /// Data is lost since the last run: the volume stays until the user has decided, and is tried again.
    pub fn resume_lost(&mut self, now: Instant, lost_bytes: u64) {
        self.rentals.cache_mut().resume_lost(now, lost_bytes);
    }

    /// The data on the volume was discarded before it could be read back. Answers the volume's size, if it is rented.
    pub fn discard_data(&mut self) -> Option<Bytes> {
        self.rentals.cache_mut().discard_data()
    }

    /// The user discards whatever is on the volume that is kept for want of a proof.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn discard_proof(&mut self) -> Result<(), String> {
        let Some(record) = self.rentals.cache().without_proof() else { return Ok(()) };
        crash_point("discard-proof", "before");
        let written = self.journal.update(|state| state.set_rental(record.clone(), unix_ms()));
        written.map_err(|error| format!("that cannot be recorded ({error}): try again"))?;
        self.rentals.cache_mut().proof_discarded(record);
        crash_point("discard-proof", "after");
        Ok(())
    }

    /// Lets other threads know what is rented.
    fn publish(&self) {
        let (volumes, nameless) = self.rentals.volumes();
        self.tools.shared.set_rentals(volumes, nameless);
    }

    /// Carries out what the rental asks.
    fn carry_out(&mut self) {
        while let Some((id, ask)) = self.rentals.next_ask() {
            if let Some(answer) = self.answer(id, ask) {
                self.rentals.complete(self.tools.clock.now(), id, answer);
                self.publish();
            }
        }
        let device = &self.tools.device;
        while let Some(notice) = self.rentals.next_notice() {
            match notice {
                // The controller, or who reads a volume back, says what follows from it.
                Notice::NotDone(what) => tracing::debug!(device, what, "not done"),
                Notice::Warning(what) => tracing::warn!(device, "{what}"),
                Notice::Error(what) => tracing::error!(device, "{what}"),
                Notice::Passed(what) => tracing::info!(device, "{what}"),
            }
        }
        self.publish();
    }

    /// The answer, unless it comes later.
    fn answer(&mut self, id: AskId, ask: Ask) -> Option<Answer> {
        Some(match ask {
            Ask::Persist(record) => Answer::Persisted(self.persist(id.slot, record)),
            Ask::Draw => Answer::Drawn { random: rand::random(), unix_ms: unix_ms() },
            Ask::Owner => Answer::Owner(self.tools.owner_thread.settle().map_err(|error| error.to_string())),
            Ask::Provider(call) => return self.call(id, call),
            Ask::Volume(ask) => return self.ask_volume(id, ask),
            Ask::Engine(command) => return self.command(id, command),
            Ask::Serve if self.tools.is_mapped => {
                self.serving.push(id);
                return None;
            }
            Ask::Serve => Answer::Served(Ok(())),
        })
    }

    fn persist(&mut self, slot: Slot, record: Option<RentalRecord>) -> Result<(), String> {
        let before = self.journal.state().rental_in(slot);
        let named = record.as_ref().is_some_and(|record| record.volume.is_some());
        let created = named && before.is_some_and(|before| before.volume.is_none());
        let stage = record.as_ref().map(|record| record.stage);
        let adopted =
            stage == Some(RentalStage::Adopted) && before.is_some_and(|before| before.stage == RentalStage::Adopting);
        let point = match stage {
            None => Some("forget"),
            Some(RentalStage::Released) => Some("clean"),
            Some(_) => None,
        };
        point.inspect(|point| crash_point(point, "before"));
        let forgotten = record.is_none();
        if forgotten && slot == Slot::CACHE {
            self.tools.owner_thread.set_volume(None);
        }
        let written = self.journal.update(|state| match record {
            Some(record) => state.set_rental(record, unix_ms()),
            None => state.forget_rental(slot, unix_ms()),
        });
        written.map_err(|error| error.to_string())?;
        let after = point.or(created.then_some("created")).or(adopted.then_some("adopted"));
        after.inspect(|point| crash_point(point, "after"));
        Ok(())
    }

    /// Calls the provider, on a thread of its own.
    fn call(&self, id: AskId, call: Call) -> Option<Answer> {
        let (provider, done, asked) = (self.tools.provider.clone(), self.done.0.clone(), call.clone());
        let calling = move || {
            let answer = catch_unwind(AssertUnwindSafe(|| calls::make(&*provider, &call)));
            let died = || ProviderError::Transient("the provider's call ended without an answer".to_owned());
            // The device may have ended.
            let _ = done.send(Done::Called(id, answer.unwrap_or_else(|_| call.failed(died()))));
        };
        let spawned = std::thread::Builder::new().name("provider".into()).spawn(calling);
        let refused = |error| ProviderError::Transient(format!("a thread cannot be started: {error}"));
        spawned.err().map(|error| asked.failed(refused(error)))
    }

    fn command(&mut self, id: AskId, command: Command) -> Option<Answer> {
        let point = match command {
            Command::Mode(surgetank_cache::CacheMode::Absorb) => Some("absorb"),
            Command::Mode(surgetank_cache::CacheMode::Drain) => Some("drain"),
            Command::Mode(surgetank_cache::CacheMode::Finish) => Some("finish"),
            Command::Adopt(_) => Some("adopt"),
            Command::Grow(_) => Some("log-growth"),
            Command::Recover(_) => Some("recover"),
            Command::Restore(_) => Some("restore"),
            Command::Release => Some("release"),
            Command::Gone => Some("gone"),
            Command::Returned => Some("returned"),
            Command::Close | Command::Sample => None,
        };
        point.inspect(|point| crash_point(point, "before"));
        let told = match command {
            Command::Mode(mode) => self.tools.shard.send(shard::Command::SetMode(mode)).map(|()| Some(began())),
            Command::Adopt(epoch) => {
                self.use_open(epoch, |volume, attach, answer| shard::Command::Adopt { volume, attach, answer })
            }
            Command::Recover(epoch) => {
                self.use_open(epoch, |volume, attach, answer| shard::Command::Recover { volume, attach, answer })
            }
            Command::Restore(epoch) => {
                self.use_open(epoch, |volume, attach, answer| shard::Command::Restore { volume, attach, answer })
            }
            Command::Grow(size) => {
                let size = self.usable(size);
                let asked = self.tools.shard.ask(|answer| shard::Command::GrowCache { size, answer });
                asked.map(|grows| Some(Answer::Grows(grows)))
            }
            Command::Returned => self.returned().map(Some),
            Command::Release => {
                let asked = self.tools.shard.ask(|answer| shard::Command::Release { answer });
                asked.map(|began| Some(Answer::Began(began.map_err(|rejected| rejected.to_string()))))
            }
            Command::Close => {
                if self.step == Some(Step::Release) {
                    crash_point("release", "after");
                }
                self.open.remove(&id.slot);
                if id.slot != Slot::CACHE {
                    return Some(began());
                }
                self.close(id, |answer| shard::Command::CloseCache { answer })
            }
            Command::Gone => {
                self.seen = None;
                self.close(id, |answer| shard::Command::CacheGone { answer })
            }
            Command::Sample => {
                let asked = self.tools.shard.ask(|answer| shard::Command::Sample { answer });
                asked.map(|sample| Some(Answer::Sampled { stage: sample.status.stage, unplugged: sample.cache_gone }))
            }
        };
        match told {
            Ok(answer) => {
                let done = matches!(answer, None | Some(Answer::Began(Ok(()))));
                let after =
                    matches!(command, Command::Mode(_) | Command::Gone | Command::Returned | Command::Restore(_));
                point.filter(|_| done && after).inspect(|point| crash_point(point, "after"));
                answer
            }
            Err(gone) => Some(Answer::EngineEnded(gone.to_string())),
        }
    }

    /// Gives the engine the volume that is open.
    fn use_open(
        &mut self,
        epoch: Epoch,
        command: impl FnOnce(Box<dyn Volume>, Attach, Sender<Result<(), surgetank_cache::Rejected>>) -> shard::Command,
    ) -> Result<Option<Answer>, shard::ShardGone> {
        let Some((_, Opened { volume, place, identity, geometry })) = self.open.remove(&Slot::CACHE) else {
            return Ok(Some(Answer::Began(Err("the caching volume is not open".to_owned()))));
        };
        let Tools { caching, split, read_fill, owner_thread, .. } = &self.tools;
        let attach = Attach {
            epoch,
            cache_size: volume.size(),
            cache_limits: caching.all_limits(),
            split: *split,
            read_fill: *read_fill,
            indexes: LogGeometry::wants_indexes(volume.size()),
        };
        owner_thread.set_volume(self.rentals.cache().record().and_then(|record| record.volume.clone()));
        let began = self.tools.shard.ask(|answer| command(volume, attach, answer))?;
        if began.is_ok() {
            self.used(place, identity, geometry);
        }
        Ok(Some(Answer::Began(began.map_err(|rejected| rejected.to_string()))))
    }

    fn returned(&mut self) -> Result<Answer, shard::ShardGone> {
        let not_open = || Answer::Began(Err("the caching volume is not open".to_owned()));
        let Some((_, Opened { volume, place, identity, geometry })) = self.open.remove(&Slot::CACHE) else {
            return Ok(not_open());
        };
        if !self.tools.shard.ask(|answer| shard::Command::CacheReturned { volume, answer })? {
            return Ok(Answer::Began(Err("the engine does not wait for it any more".to_owned())));
        }
        self.used(place, identity, geometry);
        Ok(began())
    }

    fn used(&mut self, place: Place, identity: Identity, geometry: Option<Geometry>) {
        (self.place, self.seen, self.in_use) = (Some(place), Some(identity), true);
        self.geometry = geometry;
    }

    /// How large the volume in use is once the provider's volumes together have this size: members of a stripe hold some of their
    /// own.
    fn usable(&self, size: Bytes) -> u64 {
        self.geometry.map_or(size.get(), |geometry| {
            geometry.with_member_size(size.get() / u64::from(geometry.members.max(1))).size()
        })
    }

    /// Has the shard close its volume. What is in flight on one that fails may keep it from that for long.
    fn close(
        &mut self,
        id: AskId,
        command: impl FnOnce(Sender<()>) -> shard::Command,
    ) -> Result<Option<Answer>, shard::ShardGone> {
        self.in_use = false;
        let (answer, closed) = crossbeam_channel::bounded(1);
        self.tools.shard.send(command(answer))?;
        match closed.recv_timeout(CLOSING) {
            Err(crossbeam_channel::RecvTimeoutError::Timeout) => {
                self.closing.push((id, closed));
                Ok(None)
            }
            // A shard that has ended has closed it.
            Ok(()) | Err(crossbeam_channel::RecvTimeoutError::Disconnected) => Ok(Some(began())),
        }
    }
}

fn began() -> Answer {
    Answer::Began(Ok(()))
}

fn is_pending(closed: &Receiver<()>) -> bool {
    closed.try_recv() == Err(crossbeam_channel::TryRecvError::Empty)
}
