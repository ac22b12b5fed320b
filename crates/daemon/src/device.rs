//! One elastic device, put together: volumes, engine, export, and its three threads.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Sender, unbounded};
use surgetank_cache::{Engine, Epoch, Event, Owner};
use surgetank_device::Volume;
use surgetank_device::discovery::Disks;
use surgetank_model::units::Span;
use surgetank_model::volume_type::BilledTime;
use surgetank_model::{Bandwidth, Bytes, Instant};
use surgetank_policy::budget::PastRental;
use surgetank_policy::fair::Windows;
use surgetank_policy::{Controller, ResumeAt};
use surgetank_provider::{Provider, VolumeId};
use surgetank_rental::mapping::{self, Map};
use surgetank_rental::read_cache::Level;
use surgetank_rental::resume::{self, Lookup, Resume};
use surgetank_rental::{OwnerRecord, RentalRecord, Slot};

use crate::absence;
use crate::accounting::{Accounts, Price, Totals};
use crate::arrays::Arrays;
use crate::clock::{Clock, unix_ms};
use crate::config::{Config, DeviceConfig};
use crate::exports::dm::Mapped;
use crate::exports::{self, Export, Opening};
use crate::files;
use crate::history::History;
use crate::identity::Identity;
use crate::journal::{Journal, JournalState, LastRun, Unbooked};
use crate::lifecycle::{Lifecycle, Tools};
use crate::losses;
use crate::opening::{self, Decorator, Looking, Purpose};
use crate::outlook;
use crate::owner::{OwnerStore, OwnerThread};
use crate::providers::Providers;
use crate::read_caches::{ReadCaches, Served};
use crate::reconciler::{Answer, Ask, Message, Parts, Reconciler};
use crate::shard::{self, Overhead, Shard};
use crate::shared::Shared;
use crate::switching::Switching;
use crate::timed::TimedProvider;

/// How long the provider may take to say whether the volume with the newest data is there.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(10);
/// How long one waits who has nothing else to do: at the start, and for the tags of a dirty volume.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// What all devices of a daemon share.
#[derive(Clone)]
pub struct Common {
    /// The state directory's random name.
    pub owner_id: String,
    /// Who rents volumes out, if anybody does.
    pub providers: Providers,
    /// The arrays.
    pub arrays: Arrays,
    /// The read caches.
    pub read_caches: ReadCaches,
    /// The daemon's clock.
    pub clock: Clock,
    /// The disks of this machine.
    pub disks: Disks,
    /// Decorates volumes, in tests.
    pub decorator: Option<Decorator>,
}

impl Common {
    /// With what volumes are looked at that nobody uses.
    pub fn looking(&self) -> Looking<'_> {
        Looking { disks: &self.disks, clock: self.clock, decorator: self.decorator.as_ref() }
    }
}

/// A running device.
pub struct Device {
    name: String,
    inbox: Sender<Message>,
    shard: Shard,
    owner_thread: OwnerThread,
    reconciler: JoinHandle<()>,
    shared: Arc<Shared>,
    export: Arc<dyn Export>,
    read_caches: Vec<Served>,
    /// Waits for an export that comes up when its data are back.
    coming_up: Option<JoinHandle<()>>,
}

/// For how long a device is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// Until a daemon is started, whenever that is.
    Started,
    /// Until the new binary has taken over, which is at once: dirty data stay where they are.
    Upgraded,
}

/// Asks a device's reconciler. Clones ask the same one.
#[derive(Clone)]
pub struct Asker(Sender<Message>);

impl Asker {
    /// Asks and waits for the answer.
    ///
    /// # Errors
    /// One sentence: why not.
    pub fn ask(&self, ask: Ask) -> Result<Answer, String> {
        let (answer, answered) = crossbeam_channel::bounded(1);
        let gone = || "the device has been stopped".to_owned();
        self.0.send(Message::Ask(ask, answer)).map_err(|_| gone())?;
        answered.recv().map_err(|_| gone())?
    }

    /// Says that a disk came or went.
    pub fn disk_changed(&self) {
        // A device that has ended waits for none.
        let _ = self.0.send(Message::DiskChanged);
    }
}

/// What starting a device goes through.
struct Starting<'a> {
    name: &'a str,
    config: &'a DeviceConfig,
    whole: &'a Config,
    common: &'a Common,
    shared: Arc<Shared>,
}

impl Device {
    /// Starts a device: from its records, wherever the last run ended.
    ///
    /// # Errors
    /// One sentence with the remedy: why it cannot be served.
    pub fn start(name: &str, config: &Config, common: &Common) -> Result<Self, String> {
        let missing = || format!("there is no device \"{name}\" in this configuration");
        let device = config.devices.get(name).ok_or_else(missing)?;
        let directory = config.state_directory.join(name);
        let io = |error: std::io::Error| error.to_string();
        files::make_directory(&directory)
            .map_err(|error| format!("the state directory {} cannot be made: {error}", directory.display()))?;
        let store = OwnerStore::open(&directory).map_err(io)?;
        let journal = Journal::open(&directory).map_err(io)?;
        let starting = Starting { name, config: device, whole: config, common, shared: Arc::default() };
        let resume = starting.resume(&journal, store.record())?;
        if store.record().owner == Owner::Backing {
            let providers = common.providers.with_timeout(ANSWER_TIMEOUT);
            losses::refuse_unrecorded(&providers, &common.looking(), name, &store, &journal)?;
        }
        starting.assemble(resume, store, journal)
    }

    /// Where it is exported; empty until it is.
    #[must_use]
    pub fn address(&self) -> String {
        self.shared.address()
    }

    /// To ask it.
    #[must_use]
    pub fn asker(&self) -> Asker {
        Asker(self.inbox.clone())
    }

    /// How it is exported.
    #[must_use]
    pub fn export(&self) -> &Arc<dyn Export> {
        &self.export
    }

    /// What the sweep must know of it.
    #[must_use]
    pub fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Whether requests are in flight: it takes a while to stop.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.shard.sample().is_ok_and(|sample| sample.status.requests_in_flight > 0)
    }

    /// Stops it: drained first if so configured and for good, else with its dirty data on the caching volume, as the owner
    /// record says.
    pub fn stop(self, until: Until) {
        let asker = self.asker();
        if let Err(error) = asker.ask(Ask::Stop { keep: until == Until::Upgraded }) {
            tracing::warn!(device = self.name, error, "stopping without asking");
        }
        self.export.close(&self.name, until);
        drop(self.read_caches);
        // The shard tells the owner thread and the reconciler until it ends, so it ends first. The reconciler asks the owner thread
        // until it ends, so that ends last.
        self.shard.stop();
        if self.coming_up.is_some_and(|coming_up| coming_up.join().is_err()) {
            tracing::error!(device = self.name, "the thread that waited for the export panicked");
        }
        drop(asker);
        drop(self.inbox);
        if self.reconciler.join().is_err() {
            tracing::error!(device = self.name, "the reconciler panicked");
        }
        self.owner_thread.stop();
        tracing::info!(device = self.name, "stopped");
    }
}

impl Starting<'_> {
    /// Decides from the records how to go on.
    fn resume(&self, journal: &Journal, owner: &OwnerRecord) -> Result<Resume, String> {
        let rental = journal.state().rental.as_ref();
        let lookup = self.look_up(rental, owner)?;
        match resume::decide(self.name, rental, owner, &lookup) {
            Resume::Refuse { reason } => Err(reason),
            resume if resume != Resume::Idle && self.config.caching.is_none() => Err(format!(
                "device {} still has a caching volume, but its caching section is gone from the configuration: put \
                     it back until the volume is drained",
                self.name
            )),
            resume => Ok(resume),
        }
    }

    /// What the device's provider says of the volume that the records name. If another provider has it, that is an error:
    /// the configuration names the wrong one.
    fn look_up(&self, rental: Option<&RentalRecord>, owner: &OwnerRecord) -> Result<Lookup, String> {
        let id = owner.volume.as_ref().or_else(|| rental.and_then(|rental| rental.volume.as_ref()));
        let Some(id) = id else { return Ok(Lookup::Unnamed) };
        // Of one on which nothing counts nothing depends, and it is not known because it was deleted, as a rule.
        let waits = owner.owner != Owner::Backing;
        let found = self.common.providers.of(self.config).map_or(Lookup::Missing, |own| self.ask_for(id, &own, waits));
        if found == Lookup::Missing
            && let Some((name, _)) =
                self.common.providers.with_timeout(ANSWER_TIMEOUT).iter().find(|(_, other)| other.describe(id).is_ok())
        {
            return Err(format!(
                "device {} still has the caching volume {}, rented from \"{name}\": write provider = \"{name}\" in its caching \
                 section until the volume is drained",
                self.name, id.0
            ));
        }
        Ok(found)
    }

    /// `waits`: until it is certain that a volume is missing.
    fn ask_for(&self, id: &VolumeId, provider: &Arc<dyn Provider>, waits: bool) -> Lookup {
        let provider = TimedProvider::new(provider.clone(), ANSWER_TIMEOUT);
        let until = self.common.clock.now() + LOOKUP_TIMEOUT;
        loop {
            let looked = match waits {
                true => absence::look(&provider, id, self.common.clock),
                false => absence::look_once(&provider, id),
            };
            match looked {
                Ok(Some(description)) => return Lookup::Found(description),
                Ok(None) => return Lookup::Missing,
                Err(error) if self.common.clock.now() >= until => return Lookup::Unknown(error.to_string()),
                Err(error) => {
                    let left = (self.common.clock.now() + error.pause(Duration::from_millis(100))).min(until);
                    std::thread::sleep(left.since(self.common.clock.now()));
                }
            }
        }
    }

    fn assemble(self, resume: Resume, mut store: OwnerStore, mut journal: Journal) -> Result<Device, String> {
        let io = |error: std::io::Error| format!("device {} cannot start: {error}", self.name);
        let clock = self.common.clock;
        let owes_flush_failure = store.owes_flush_failure().map_err(io)?;
        let mapped = self.map(store.record(), owes_flush_failure)?;
        if mapped.is_some() && store.is_missing() {
            // Who maps the device at the next boot goes by it.
            store.persist(OwnerRecord::default()).map_err(io)?;
        }
        let mut backing = opening::backing(self.config, clock, mapped.is_none(), &self.common.arrays)?;
        if let Some(decorate) = &self.common.decorator {
            backing = decorate(Purpose::Backing, backing);
        }
        let (backing, read_caches) = self.common.read_caches.over(self.name, backing)?;
        let size = Bytes::new(backing.size());
        self.begin_journal(&mut journal, store.record(), size)?;
        let mut engine = self.engine(&resume, &*backing);
        if owes_flush_failure {
            tracing::warn!(
                device = self.name,
                "the backing volume did not flush before: the application's next flush fails"
            );
            engine.owe_flush_failure();
        }
        let (name, logical_block) = (self.name.to_owned(), backing.logical_block());
        let opened = exports::open(Opening {
            export: surgetank_device::front::Export { name, size: backing.size(), logical_block },
            config: self.config,
            run_directory: &self.whole.run_directory,
            owner: &self.common.owner_id,
            mapped: mapped.clone(),
        })?;
        let (shard_handle, commands) = Shard::channel().map_err(io)?;
        let (inbox, messages) = unbounded();
        let provider = self.common.providers.of(self.config);
        let provider = provider.map(|provider| TimedProvider::new(provider, ANSWER_TIMEOUT));
        let owner_thread = OwnerThread::start(self.name, store, provider, shard_handle.clone()).map_err(io)?;
        let totals = journal.state().totals;
        let parts = Parts {
            name: self.name.to_owned(),
            export: opened.kind,
            shared: self.shared.clone(),
            sampling: self.config.policy.sampling,
            on_stop: self.config.on_stop,
            clock,
            shard: shard_handle.clone(),
            owner_thread: owner_thread.handle(),
            accounts: self.accounts(clock.now(), totals, size),
            history: History::of(&self.whole.state_directory.join(self.name)),
            boosting: None,
            switching: mapped.map(|(mapped, map)| Switching::new(self.name, mapped, map, shard_handle.clone())),
            last_run: journal.state().last_run,
            recover: epoch_to_recover(&resume),
            read_caches: read_caches.iter().map(|served| served.handle.clone()).collect(),
            share: self.common.read_caches.boosts(self.name),
            inbox: messages,
        };
        let later = matches!(resume, Resume::Recover { .. }) && opened.export.comes_up_when_answered();
        let parts = self.boosting(parts, resume, journal, size)?;
        let export = opened.export;
        let read_cache = read_caches.iter().find(|served| served.level == Level::First);
        let backing = (backing, Overhead::of(read_cache.map(|served| served.handle.clone())));
        let shard_parts = self.shard_parts(engine, opened.front, export.clone(), backing, &inbox, &owner_thread);
        let shard = Shard::start(shard_handle, commands, shard_parts).map_err(io)?;
        let reconciler = start_reconciler(parts).map_err(io)?;
        let (name, shared) = (self.name.to_owned(), self.shared.clone());
        let mut device =
            Device { name, inbox, shard, owner_thread, reconciler, shared, export, read_caches, coming_up: None };
        if later {
            // At the caching volume's rate: other devices need not wait for that.
            let (name, export, shared) = (device.name.clone(), device.export.clone(), device.shared.clone());
            let coming_up = std::thread::Builder::new().name("export".into()).spawn(move || {
                if let Err(error) = come_up(&name, &*export, &shared) {
                    tracing::error!(device = name, error, "not served");
                    shared.set_trouble(error);
                }
            });
            device.coming_up = Some(coming_up.map_err(io)?);
            return Ok(device);
        }
        device.export.answers();
        match come_up(&device.name, &*device.export, &device.shared) {
            Ok(()) => Ok(device),
            Err(error) => {
                device.stop(Until::Started);
                Err(error)
            }
        }
    }

    /// The device as the kernel maps it, if it is to, and the map to begin with. From then on the backing volume is held.
    fn map(&self, owner: &OwnerRecord, owes_flush_failure: bool) -> Result<Option<(Arc<Mapped>, Map)>, String> {
        let found = exports::look(self.name, self.config, &self.whole.run_directory, &self.common.owner_id)?;
        let Some(mapped) = found else { return Ok(None) };
        let map = mapping::at_start(self.name, owner, owes_flush_failure, mapped.found())?;
        mapped.begin(map)?;
        Ok(Some((Arc::new(mapped), map)))
    }

    fn engine(&self, resume: &Resume, backing: &dyn Volume) -> Engine {
        let config = surgetank_cache::Config {
            size: backing.size(),
            logical_block: backing.logical_block(),
            backing_limits: self.config.backing_limits,
            outage_patience: self.config.caching.as_ref().map_or(Duration::ZERO, |caching| caching.outage_patience),
        };
        match resume {
            Resume::Recover { .. } => Engine::awaiting_recovery(config),
            Resume::Lost { epoch, ranges, .. } => Engine::with_lost(config, *epoch, ranges),
            Resume::Idle | Resume::Delete { .. } | Resume::Refuse { .. } => Engine::new(config),
        }
    }

    fn shard_parts(
        &self,
        engine: Engine,
        front: Box<dyn surgetank_device::Front>,
        export: Arc<dyn Export>,
        (backing, overhead): (Box<dyn Volume>, Overhead),
        inbox: &Sender<Message>,
        owner_thread: &OwnerThread,
    ) -> shard::Parts {
        let (events, keeping) = (inbox.clone(), owner_thread.handle());
        shard::Parts {
            name: self.name.to_owned(),
            engine,
            front,
            backing,
            overhead,
            windows: Windows::new(self.config.backing_limits, self.config.backing_throttle),
            clock: self.common.clock,
            events: Box::new(move |event| {
                if !matches!(event, Event::RecoverFailed { .. }) {
                    export.answers();
                }
                // The reconciler outlives the shard.
                let _ = events.send(Message::Event(event));
            }),
            record: Box::new(move |entry| keeping.persist(entry)),
        }
    }

    /// Checks that the records speak of this backing volume, and books the time since they were last right.
    fn begin_journal(&self, journal: &mut Journal, owner: &OwnerRecord, size: Bytes) -> Result<(), String> {
        let found = Identity::of(&self.config.backing, size.get())?;
        if owner.owner != Owner::Backing
            && let Some(served) = &journal.state().backing
        {
            served.admits(&found, self.name)?;
        }
        let now = unix_ms();
        let written = journal.update(|state| {
            let rented = unbilled(state, now);
            state.rental_cost = self.rental_cost(state, now);
            state.totals = self.totals(state.saved_unix_ms, state.totals, now, size, &rented);
            let saved = if state.saved_unix_ms == 0 { now } else { state.saved_unix_ms };
            state.learned = std::mem::take(&mut state.learned).aged(Duration::from_millis(now.saturating_sub(saved)));
            state.learned.rentals.extend(rented);
            state.unbooked.clear();
            state.backing = Some(found);
            state.saved_unix_ms = now;
        });
        written.map_err(|error| self.no_journal(&error))
    }

    fn no_journal(&self, error: &std::io::Error) -> String {
        let directory = self.whole.state_directory.join(self.name);
        let (name, directory) = (self.name, directory.display());
        format!(
            "the journal of device {name} in {directory} cannot be written: {error}; make room there, or make it writable"
        )
    }

    /// What everything has cost until now: both volumes stayed rented while the daemon was away.
    fn totals(&self, saved: u64, before: Totals, now: u64, size: Bytes, rented: &[PastRental]) -> Totals {
        let (away, before) = match saved {
            0 => (Duration::ZERO, Totals { agbs: 0.0, usd: Some(0.0) }),
            saved => (Duration::from_millis(now.saturating_sub(saved)), before),
        };
        let price = self.caching_price();
        let caching = rented.iter().filter_map(|rental| Some((price?, rental.size, rental.lasted.0)));
        std::iter::once((self.backing_price(), size, away)).chain(caching).fold(before, |sum, (price, size, time)| {
            let usd = price.usd_per_hour(size).map(|usd| usd * time.as_secs_f64() / 3600.0);
            Totals {
                agbs: sum.agbs + surgetank_model::cost::agbs(size, price.bandwidth, time),
                usd: sum.usd.zip(usd).map(|(before, usd)| before + usd),
            }
        })
    }

    /// What the volume in the engine's slot has cost until now, as it is billed: each size that it had, for its time.
    fn rental_cost(&self, state: &JournalState, now: u64) -> Option<Totals> {
        let (started, price) = (state.rental_in(Slot::CACHE)?.started_unix_ms, self.caching_price()?);
        let mut until_now = state.clone();
        until_now.forget_rental(Slot::CACHE, now);
        let of_it = until_now.unbooked.iter().filter(|part| part.from_unix_ms >= started);
        Some(of_it.fold(state.rental_cost.unwrap_or(Totals::ZERO), |sum, part| {
            let time = Duration::from_millis(part.until_unix_ms.saturating_sub(part.from_unix_ms));
            let usd = price.usd_per_hour(part.size).map(|usd| usd * time.as_secs_f64() / 3600.0);
            sum.plus(Totals { agbs: surgetank_model::cost::agbs(part.size, price.bandwidth, time), usd })
        }))
    }

    fn backing_price(&self) -> Price {
        Price {
            bandwidth: self.config.backing_limits.bandwidth.unwrap_or(Bandwidth::from_mib_s(1)),
            usd_per_gib_month: self.config.backing_usd_per_gib_month,
            billed_time: BilledTime::default(),
        }
    }

    fn caching_price(&self) -> Option<Price> {
        self.config.caching.as_ref().map(|caching| Price {
            bandwidth: caching.limits.bandwidth.unwrap_or(Bandwidth::from_mib_s(1)),
            usd_per_gib_month: caching.usd_per_gib_month,
            billed_time: caching.billed_time,
        })
    }

    fn accounts(&self, now: Instant, before: Totals, size: Bytes) -> Accounts {
        Accounts::new(now, before, self.backing_price(), size, self.caching_price())
    }

    /// Adds the controller and the caching volume, where the last run left them.
    fn boosting(&self, mut parts: Parts, resume: Resume, mut journal: Journal, size: Bytes) -> Result<Parts, String> {
        let (Some(provider), Some(caching)) = (self.common.providers.of(self.config), &self.config.caching) else {
            return Ok(parts);
        };
        for remark in outlook::remarks(self.whole, self.config, caching, size) {
            tracing::info!(device = self.name, "{remark}");
        }
        let now = self.common.clock.now();
        let config = self.config.controller(caching, size, rand::random());
        let config = surgetank_policy::Config { grows: provider.grows(), ..config };
        config.validate().map_err(|why| format!("device {}: {why}", self.name))?;
        let tools = Tools {
            device: self.name.to_owned(),
            owner_id: self.common.owner_id.clone(),
            provider: provider.clone(),
            caching: caching.clone(),
            split: config.split,
            read_fill: config.preset.how.read_fill,
            shard: parts.shard.clone(),
            is_mapped: parts.switching.is_some(),
            owner_thread: parts.owner_thread.clone(),
            clock: self.common.clock,
            disks: self.common.disks.clone(),
            decorator: self.common.decorator.clone(),
            longest_pause: self.config.policy.retry.1,
            shared: self.shared.clone(),
        };
        let known = match &resume {
            Resume::Recover { rental, .. } => Some(rental.clone()),
            Resume::Lost { rental, .. } => rental.as_deref().cloned(),
            Resume::Idle | Resume::Delete { .. } | Resume::Refuse { .. } => None,
        };
        let written = journal.update(|state| {
            // The owner record has the last word on what is rented.
            known.into_iter().for_each(|record| state.set_rental(record, unix_ms()));
            state.last_run = LastRun::Running;
        });
        written.map_err(|error| self.no_journal(&error))?;
        let mut controller = Controller::new(now, config, journal.state().learned.clone());
        let mut lifecycle = Lifecycle::new(tools, journal);
        let cost = lifecycle.journal().state().rental_cost;
        if let Some(record) = lifecycle.rental().record() {
            let lasted = match record.started_unix_ms {
                0 => Duration::ZERO,
                started => Duration::from_millis(unix_ms().saturating_sub(started)),
            };
            parts.accounts.take_over(now, record.size_at_most(), (cost.unwrap_or(Totals::ZERO), lasted));
        }
        match resume {
            Resume::Idle | Resume::Refuse { .. } | Resume::Recover { .. } => {}
            Resume::Delete { at } => controller.resume(now, at),
            Resume::Lost { ranges, rental: Some(rental), .. } => {
                lifecycle.resume_lost(now, ranges.iter().map(|(_, length)| length).sum());
                controller.resume(now, ResumeAt::Adopted { size: rental.size_at_most() });
            }
            Resume::Lost { rental: None, .. } => {}
        }
        parts.boosting = Some((controller, lifecycle));
        Ok(parts)
    }
}

fn epoch_to_recover(resume: &Resume) -> Option<Epoch> {
    match resume {
        Resume::Recover { epoch, .. } => Some(*epoch),
        _ => None,
    }
}

/// Waits until an export is up, and says where.
fn come_up(name: &str, export: &dyn Export, shared: &Shared) -> Result<(), String> {
    let address = export.address()?;
    tracing::info!(device = name, "served at {address}");
    shared.set_address(&address);
    Ok(())
}

fn start_reconciler(parts: Parts) -> std::io::Result<JoinHandle<()>> {
    let name = format!("control-{}", parts.name);
    std::thread::Builder::new().name(name).spawn(move || Reconciler::new(parts).run())
}

/// What was rented since the accounts were last right: by the dead daemon, and since then.
fn unbilled(state: &JournalState, now: u64) -> Vec<PastRental> {
    let mut until_now = state.clone();
    let rented: Vec<_> = state.rentals().map(|rental| rental.slot).collect();
    rented.into_iter().for_each(|slot| until_now.forget_rental(slot, now));
    let past = |rental: &Unbooked| {
        let ago = |unix_ms| Duration::from_millis(now.saturating_sub(unix_ms));
        let (started, ended) = (ago(rental.from_unix_ms), ago(rental.until_unix_ms));
        let (started_ago, lasted) = (Span(started), Span(started.saturating_sub(ended)));
        PastRental { started_ago, lasted, size: rental.size, goes_on: false, was_vain: false }
    };
    until_now.unbooked.iter().map(past).filter(|rental| !rental.lasted.0.is_zero()).collect()
}
