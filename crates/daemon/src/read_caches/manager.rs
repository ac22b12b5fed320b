//! The thread of one read cache: it tells the life cycle of its volumes what has happened, and carries out what that asks.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use surgetank_device::volume::read_cache::{Answer as Adding, Member, ReadCacheHandle};
use surgetank_device::volume::throttle::CreditMeter;
use surgetank_model::{Instant, Lag, Limits};
use surgetank_policy::backoff::Backoff;
use surgetank_provider::Provider;
use surgetank_readcache::effect::IoFailure;
use surgetank_readcache::{Event as EngineEvent, MemberId, Status};
use surgetank_rental::read_cache::{self, Answer, Ask, Event, Level, ReadCache};
use surgetank_rental::rental::Notice;
use surgetank_rental::{Answer as Answered, Ask as Asked, AskId, RentalRecord, Slot, VolumeAsk, ask};

use super::store::Store;
use super::{Message, status};
use crate::arrays::Context;
use crate::config::ReadCacheConfig;
use crate::crash::crash_point;
use crate::members::{self, Done, Known};
use crate::opening::{self, Opened, Opener, Purpose};
use crate::shared::Shared;

/// How often the cache is asked what has happened: while volumes are given to it, and otherwise.
const LOOK: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How long a volume may take to be created, and to be attached.
const TIMEOUTS: (Duration, Duration) = (Duration::from_secs(300), Duration::from_secs(120));
/// How long the cache may take to say how it stands.
const STATUS_TIMEOUT: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Manager {
    device: String,
    level: Level,
    /// What the configuration asks for; `None`: nothing any more.
    pub wanted: Option<ReadCacheConfig>,
    /// What is configured is rented once the volumes of another provider, which are on record, are gone.
    waits: Option<Arc<dyn Provider>>,
    /// From whom the volumes are rented that are on record, and its name.
    pub provider: (String, Arc<dyn Provider>),
    context: Arc<Context>,
    store: Store,
    shared: Arc<Shared>,
    pub life: ReadCache,
    done: (Sender<Done>, Receiver<Done>),
    /// Members that the cache has released, and that are closed.
    closed: (Sender<Slot>, Receiver<Slot>),
    /// Volumes that are open and not given to the cache, by the ask that opened them.
    open: BTreeMap<Slot, (AskId, Opened)>,
    /// The credits of volumes that this daemon holds to them.
    pub meters: BTreeMap<Slot, CreditMeter>,
    /// The volumes that the cache was given.
    members: BTreeMap<MemberId, Slot>,
    next_member: u32,
    /// The cache of the device, while it is served.
    handle: Option<ReadCacheHandle>,
    /// Volumes that were given to the cache, which has not said whether it takes them.
    adding: Vec<(AskId, Adding)>,
}

/// What a manager begins with.
pub(super) struct Start {
    /// The device, and which one of its read caches.
    pub device: String,
    pub level: Level,
    /// What the configuration asks for, and from whom.
    pub wanted: Option<(ReadCacheConfig, Arc<dyn Provider>)>,
    /// What is on record.
    pub records: Vec<RentalRecord>,
    /// From whom that is rented, and its name.
    pub rented_from: (String, Arc<dyn Provider>),
    /// What the sweep must know.
    pub shared: Arc<Shared>,
}

impl Manager {
    pub fn new(start: Start, context: Arc<Context>) -> Self {
        let Start { device, level, wanted, records, rented_from, shared } = start;
        let same = wanted.as_ref().is_some_and(|(config, _)| config.provider == rented_from.0);
        let (wanted, of_wanted) = wanted.unzip();
        let life = life((&device, level), wanted.as_ref().filter(|_| same), &context, rented_from.1.lag(), records);
        let manager = Self {
            waits: of_wanted.filter(|_| !same),
            store: Store::new(&context.state_directory, &device, level),
            device,
            level,
            wanted,
            provider: rented_from,
            context,
            shared,
            life,
            done: crossbeam_channel::unbounded(),
            closed: crossbeam_channel::unbounded(),
            open: BTreeMap::new(),
            meters: BTreeMap::new(),
            members: BTreeMap::new(),
            next_member: 0,
            handle: None,
            adding: Vec::new(),
        };
        manager.publish();
        manager
    }

    pub fn now(&self) -> Instant {
        self.context.clock.now()
    }

    /// Runs until nobody is left who could ask.
    pub fn run(mut self, inbox: &Receiver<Message>) {
        crate::planted::plant();
        let (done, closed) = (self.done.1.clone(), self.closed.1.clone());
        loop {
            self.go_on();
            let wait = self.context.clock.until(Some(self.next_wake()));
            let timeout = wait.map_or_else(crossbeam_channel::never, crossbeam_channel::after);
            crossbeam_channel::select_biased! {
                recv(inbox) -> message => match message {
                    Ok(message) => self.message(message),
                    Err(_) => break,
                },
                recv(done) -> done => if let Ok(done) = done {
                    self.done(done);
                },
                recv(closed) -> place => if let Ok(place) = place {
                    let now = self.now();
                    self.life.event(now, Event::Released(place));
                },
                recv(timeout) -> _ => {
                    let now = self.now();
                    self.life.tick(now);
                }
            }
        }
    }

    fn next_wake(&self) -> Instant {
        let look = self.handle.is_some().then(|| self.now() + if self.adding.is_empty() { LOOK.1 } else { LOOK.0 });
        [look, self.life.next_deadline()].into_iter().flatten().min().unwrap_or(self.now() + LOOK.1 * 60)
    }

    fn message(&mut self, message: Message) {
        let now = self.now();
        match message {
            Message::Serve(handle) => {
                self.forget_cache();
                self.handle = Some(handle);
                self.life.serve(now);
            }
            Message::Closed => {
                self.forget_cache();
                self.life.closed(now);
            }
            Message::Status(reply) => {
                // Whoever asked may have gone.
                let _ = reply.send(status::of(self).map(Box::new));
            }
            Message::DiskChanged => self.life.disk_changed(now),
        }
    }

    fn forget_cache(&mut self) {
        self.handle = None;
        self.members.clear();
        self.adding.clear();
    }

    /// How the cache stands now, if a device is served over it.
    pub fn engine_status(&self) -> Option<Status> {
        let handle = self.handle.as_ref()?;
        // If it does not answer, as it stood before.
        let _ = handle.look().wait(STATUS_TIMEOUT);
        Some(handle.status())
    }

    /// Carries out what is asked, and tells what has happened.
    fn go_on(&mut self) {
        self.look();
        while let Some((id, ask)) = self.life.next_ask() {
            if let Some(answer) = self.answer(id, ask) {
                let now = self.now();
                self.life.complete(now, id, answer);
            }
            self.publish();
        }
        while let Some(notice) = self.life.next_notice() {
            let device = &self.device;
            match notice {
                Notice::NotDone(what) => tracing::debug!(device, what, "not done"),
                Notice::Warning(what) => tracing::warn!(device, "{what}"),
                Notice::Error(what) => tracing::error!(device, "{what}"),
                Notice::Passed(what) => tracing::info!(device, "{what}"),
            }
        }
        if self.life.is_empty()
            && let Some(provider) = self.waits.take()
        {
            self.begin_anew(provider);
        }
        self.publish();
    }

    /// Nothing is rented from the former provider any more.
    fn begin_anew(&mut self, provider: Arc<dyn Provider>) {
        let Some(wanted) = &self.wanted else { return };
        self.provider = (wanted.provider.to_owned(), provider);
        self.life = life((&self.device, self.level), Some(wanted), &self.context, self.provider.1.lag(), Vec::new());
        if self.handle.is_some() {
            let now = self.now();
            self.life.serve(now);
            self.go_on();
        }
    }

    /// Lets the sweep know what is rented.
    fn publish(&self) {
        let (volumes, nameless) = self.life.volumes();
        self.shared.set_rentals(volumes, nameless);
    }

    /// What the cache has done.
    fn look(&mut self) {
        let Some(handle) = self.handle.clone() else { return };
        let now = self.now();
        let mut answered = Vec::new();
        self.adding.retain(|(id, adding)| match adding.wait(Duration::ZERO) {
            None => true,
            Some(result) => {
                answered.push((*id, result.map_err(|refusal| refusal.to_string())));
                false
            }
        });
        for (id, result) in answered {
            crash_point("read-cache-add", "after");
            self.life.complete(now, id, Answer::Added(result));
        }
        for event in handle.take_events() {
            let EngineEvent::Failed { member, failure } = event else { continue };
            let Some(place) = self.members.get(&member).copied() else { continue };
            let name = self.name(place);
            let why = match failure {
                IoFailure::Gone => format!("{name} has gone or does not answer"),
                _ => format!("{name} answers errors"),
            };
            self.life.event(now, Event::Failed { place, why });
        }
        for member in handle.take_released() {
            let place = self.members.remove(&member.id);
            let closed = self.closed.0.clone();
            // It may have I/Os in flight that do not end: closing it waits for them for a while.
            let close = move || {
                drop(member);
                // The daemon may have ended.
                if let Some(place) = place {
                    let _ = closed.send(place);
                }
            };
            if let Err(error) = std::thread::Builder::new().name("closing".into()).spawn(close) {
                tracing::warn!(device = self.device, %error, "a thread cannot be started");
                place.into_iter().for_each(|place| self.life.event(now, Event::Released(place)));
            }
        }
    }

    fn name(&self, place: Slot) -> String {
        let volume = self.life.record(place).and_then(|record| record.volume.clone());
        volume.map_or_else(|| "a volume without a name".to_owned(), |id| format!("volume {}", id.0))
    }

    /// The answer, unless it comes later.
    fn answer(&mut self, id: AskId, ask: Ask) -> Option<Answer> {
        match ask {
            Ask::Rental(ask) => self.rental(id, ask).map(Answer::Rental),
            Ask::Add(place) => self.add(id, place).map(Answer::Added),
        }
    }

    fn rental(&mut self, id: AskId, ask: Asked) -> Option<Answered> {
        Some(match ask {
            Asked::Persist(record) => {
                crash_point("read-cache-persist", "before");
                let written = self.store.write(&self.provider.0, id.slot, record.as_ref());
                crash_point("read-cache-persist", "after");
                Answered::Persisted(written.map_err(|error| error.to_string()))
            }
            Asked::Draw => Answered::Drawn { random: rand::random(), unix_ms: crate::clock::unix_ms() },
            Asked::Provider(call) => return members::call(&self.provider.1, &self.done.0, id, call),
            Asked::Volume(VolumeAsk::Identities) => Answered::Identities(self.context.disks.identities().ok()),
            Asked::Volume(VolumeAsk::Open { description, size, opening }) => {
                self.open.remove(&id.slot);
                let opener = (self.opener(), self.provider.1.home());
                let asked = (description, size, opening);
                return members::open(opener, &self.done.0, id, asked, Known::BySerial);
            }
            Asked::Volume(VolumeAsk::Close(opened)) => {
                self.open.retain(|_, (by, _)| *by != opened);
                Answered::Closed
            }
            Asked::Engine(_) => {
                self.open.remove(&id.slot);
                Answered::Began(Ok(()))
            }
            ask => Answered::Began(Err(format!("a read cache does not do this: {ask:?}"))),
        })
    }

    /// Opens volumes without limits: see `throttled`.
    fn opener(&self) -> Opener {
        let (disks, clock) = (self.context.disks.clone(), self.context.clock);
        let decorator = self.context.decorator.clone().map(|decorate| {
            let decorate: opening::Decorator = Arc::new(move |_, volume| decorate(Purpose::ReadCache, volume));
            decorate
        });
        Opener { disks, clock, decorator, throttle: Limits::NONE }
    }

    /// Takes what another thread has done.
    fn done(&mut self, done: Done) {
        let (id, answer) = match done {
            Done::Answer(id, answer) => (id, answer),
            Done::Opened(id, Ok(Some(opened))) => {
                let opened = self.throttled(id.slot, opened);
                self.open.insert(id.slot, (id, opened));
                (id, Answered::Opened(Ok(ask::Opened::Open)))
            }
            Done::Opened(id, Ok(None)) => (id, Answered::Opened(Ok(ask::Opened::Absent))),
            Done::Opened(id, Err(refused)) => (id, Answered::Opened(refused)),
        };
        let now = self.now();
        self.life.complete(now, id, Answer::Rental(answer));
    }

    /// Holds a volume to what its type has.
    fn throttled(&mut self, place: Slot, opened: Opened) -> Opened {
        let Some(config) = self.wanted.as_ref().filter(|config| config.throttle) else { return opened };
        let credits: Vec<_> = config.credits.iter().map(Into::into).collect();
        let (volume, meter) = opening::on_credits(opened.volume, config.limits, &credits, self.context.clock);
        self.meters.insert(place, meter);
        Opened { volume, ..opened }
    }

    /// Gives the cache the open volume in a place. The answer, unless it comes later.
    fn add(&mut self, id: AskId, place: Slot) -> Option<Result<(), String>> {
        crash_point("read-cache-add", "before");
        let name = self.name(place);
        let Some((_, opened)) = self.open.remove(&place) else { return Some(Err(format!("{name} is not open"))) };
        let Some(handle) = &self.handle else { return Some(Err("the device has ended".to_owned())) };
        let member = MemberId(self.next_member);
        self.next_member += 1;
        self.members.insert(member, place);
        self.adding.push((id, handle.add(Member { id: member, name, volume: opened.volume })));
        None
    }
}

/// The life cycle, from what is on record.
fn life(
    (device, level): (&str, Level),
    wanted: Option<&ReadCacheConfig>,
    context: &Context,
    lag: Lag,
    records: Vec<RentalRecord>,
) -> ReadCache {
    let config = read_cache::Config {
        device: device.to_owned(),
        level,
        owner_id: context.owner_id.clone(),
        volume_type: wanted.map(|wanted| wanted.volume_type.clone()).unwrap_or_default(),
        members: wanted.map_or(0, |wanted| wanted.members),
        member_size: wanted.map_or(surgetank_model::Bytes::ZERO, |wanted| wanted.member_size),
        timeouts: TIMEOUTS,
        backoff: Backoff::default(),
        lag,
        seed: rand::random(),
    };
    ReadCache::new(config, context.clock.now(), records)
}
