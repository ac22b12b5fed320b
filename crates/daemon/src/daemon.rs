//! The daemon: all devices of a configuration, the sweep and the control socket.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::{Value, json};
use surgetank_device::discovery::{Disks, Watch};
use surgetank_model::Bytes;
use surgetank_policy::BurstHint;
use surgetank_provider::Provider;

use crate::arrays::{self, Arrays};
use crate::clock::Clock;
use crate::config::Config;
use crate::control::{Bound, Request, Server};
use crate::device::{Asker, Common, Device, Until};
use crate::ground::Tables;
use crate::history::HistoryReport;
use crate::losses::{self, Named};
use crate::opening::{Decorator, Looking};
use crate::places;
use crate::providers::Providers;
use crate::read_caches::ReadCaches;
use crate::reconciler::{Answer, Ask};
use crate::shared::Shared;
use crate::starting;
use crate::state_directory;
use crate::status::{DevicePhase, DeviceReport, DeviceStatus, StatusReport};
use crate::sweep::{Sweeper, Swept};

/// How long a sweep waits for one answer of the provider: a stop waits for the sweep.
const SWEEP_TIMEOUT: Duration = Duration::from_secs(5);

/// Why a daemon did not start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// The configuration asks for what cannot be (exit status 2).
    #[error("{0}")]
    Invalid(String),
    /// The machine is not in the state for it (exit status 1).
    #[error("{0}")]
    Failed(String),
}

/// What tests and the demo may put in place of the real thing.
#[derive(Clone, Default)]
pub struct Overrides {
    /// Instead of each provider that the configuration has.
    pub provider: Option<Arc<dyn Provider>>,
    /// Around every volume, below its throttle (caching volumes) or above it (backing volumes).
    pub decorator: Option<Decorator>,
    /// Instead of the disks of this machine.
    pub disks: Option<Disks>,
}

/// A running daemon. Dropping it stops it.
pub struct Daemon {
    inner: Arc<Inner>,
    control: Option<Server>,
    sweeping: Option<JoinHandle<()>>,
    watch: Option<Watch>,
    stops_until: Until,
    _lock: File,
}

enum Slot {
    Running(Device),
    /// It could not be started: one sentence.
    Refused(String),
}

struct Inner {
    config: Config,
    common: Common,
    devices: Mutex<BTreeMap<String, Slot>>,
    sweeper: Mutex<Sweeper>,
    warnings: Mutex<Vec<String>>,
    /// Whether the daemon was asked to stop over the control socket, and whether it is stopping.
    flags: Mutex<Flags>,
    changed: Condvar,
}

#[derive(Clone, Copy, Debug, Default)]
struct Flags {
    stop_requested: bool,
    nudged: bool,
    stopping: bool,
}

/// A daemon as other threads see it, also while it stops.
#[derive(Clone)]
pub struct WeakDaemon(std::sync::Weak<Inner>);

impl WeakDaemon {
    /// The status of all devices, unless the daemon has ended.
    #[must_use]
    pub fn status(&self) -> Option<StatusReport> {
        self.0.upgrade().map(|inner| inner.status())
    }

    /// Ends a [`Daemon::wait_stop`], or the next one.
    pub fn nudge(&self) {
        if let Some(inner) = self.0.upgrade() {
            guard(&inner.flags).nudged = true;
            inner.changed.notify_all();
        }
    }
}

fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Daemon {
    /// Starts all devices of a configuration. A device that cannot be started is listed as degraded with the reason;
    /// if none can, that is an error.
    ///
    /// # Errors
    /// One sentence with the remedy.
    pub fn start(config: Config) -> Result<Self, StartError> {
        Self::start_with(config, Overrides::default())
    }

    /// As [`Daemon::start`], with other parts.
    ///
    /// # Errors
    /// As [`Daemon::start`].
    pub fn start_with(config: Config, overrides: Overrides) -> Result<Self, StartError> {
        refuse_own_ground(&config)?;
        places::check_all(&config).map_err(StartError::Failed)?;
        let lock = state_directory::lock(&config.state_directory).map_err(StartError::Failed)?;
        let owner_id = state_directory::owner_id(&config.state_directory).map_err(|error| {
            StartError::Failed(format!("{} cannot be used: {error}", config.state_directory.display()))
        })?;
        losses::refuse_forgotten(&config.state_directory, |name| config.devices.contains_key(name))
            .map_err(StartError::Failed)?;
        // Before anything is opened or rented: another daemon may have these sockets and devices.
        let bound = Bound::new(&config.control_socket).map_err(StartError::Failed)?;
        let providers = Providers::open(&config, overrides.provider.as_ref()).map_err(StartError::Failed)?;
        let (clock, disks, decorator) = (Clock::start(), overrides.disks.unwrap_or_default(), overrides.decorator);
        let context = arrays::Context {
            state_directory: config.state_directory.clone(),
            owner_id: owner_id.clone(),
            clock,
            disks: disks.clone(),
            decorator: decorator.clone(),
        };
        let read_caches = ReadCaches::start(&config, &providers, &context);
        let arrays = Arrays::start(&config, &providers, context);
        let common = Common { owner_id: owner_id.clone(), providers, arrays, read_caches, clock, disks, decorator };
        let started = starting::start_all(&config, &common).into_iter();
        let devices: BTreeMap<_, _> =
            started.map(|(name, device)| (name, device.map_or_else(Slot::Refused, Slot::Running))).collect();
        let shared = devices.iter().map(|(name, slot)| (name.clone(), slot.shared()));
        let shared = shared.chain(common.arrays.shared()).chain(common.read_caches.shared()).collect();
        refuse_if_none(&devices)?;
        let sweeper = Mutex::new(Sweeper {
            owner_id,
            providers: common.providers.with_timeout(SWEEP_TIMEOUT),
            clock: common.clock,
            disks: common.disks.clone(),
            decorator: common.decorator.clone(),
            state_directory: config.state_directory.clone(),
            devices: shared,
        });
        let inner = Arc::new(Inner {
            config,
            common,
            devices: Mutex::new(devices),
            sweeper,
            warnings: Mutex::default(),
            flags: Mutex::default(),
            changed: Condvar::new(),
        });
        inner.sweep();
        let handling = inner.clone();
        let control = bound.serve(Arc::new(move |request| handling.handle(request)));
        let stops_until = Until::Started;
        let mut daemon = Self { inner, control: None, sweeping: None, watch: None, stops_until, _lock: lock };
        daemon.control = Some(control.map_err(StartError::Failed)?);
        daemon.sweeping = Some(start_sweeping(&daemon.inner)?);
        daemon.watch = start_watch(&daemon.inner);
        Ok(daemon)
    }

    /// The control socket.
    #[must_use]
    pub fn control_socket(&self) -> &Path {
        &self.inner.config.control_socket
    }

    /// The status of all devices.
    #[must_use]
    pub fn status(&self) -> StatusReport {
        self.inner.status()
    }

    /// Everything for a report on one device.
    ///
    /// # Errors
    /// One sentence: there is no such device, or it does not answer.
    pub fn report(&self, device: &str) -> Result<DeviceReport, String> {
        match self.inner.asker(device)?.ask(Ask::Report)? {
            Answer::Report(report) => Ok(*report),
            _ => Err("the device answered something else".to_owned()),
        }
    }

    /// Where a device is exported.
    ///
    /// # Errors
    /// One sentence: there is no such device, or it is not served and why.
    pub fn address(&self, device: &str) -> Result<String, String> {
        self.inner.with_device(device, |running| running.address())
    }

    /// Answers a request as the control socket does.
    ///
    /// # Errors
    /// One sentence.
    pub fn handle(&self, request: Request) -> Result<Value, String> {
        self.inner.handle(request)
    }

    /// Waits until the daemon is asked to stop over its control socket, at most `timeout`. True: it was.
    #[must_use]
    pub fn wait_stop(&self, timeout: Duration) -> bool {
        let flags = guard(&self.inner.flags);
        let waiting = |flags: &mut Flags| !flags.stop_requested && !flags.nudged;
        let waited = self.inner.changed.wait_timeout_while(flags, timeout, waiting);
        let mut flags = waited.unwrap_or_else(PoisonError::into_inner).0;
        flags.nudged = false;
        flags.stop_requested
    }

    /// The daemon for other threads.
    #[must_use]
    pub fn downgrade(&self) -> WeakDaemon {
        WeakDaemon(Arc::downgrade(&self.inner))
    }

    /// Stops: nothing new is received, what is in flight is answered, everything is flushed; dirty data stays on
    /// caching volumes or is drained, as configured.
    pub fn stop(self) {
        drop(self);
    }

    /// Takes up new certificates, keys, authorities and lists of revoked certificates. Connections that exist go on.
    /// Answers which devices have them.
    ///
    /// # Errors
    /// One sentence for each device whose files do not do; it goes on with those that it has.
    pub fn reload(&self) -> Result<Vec<String>, String> {
        self.inner.reload()
    }

    /// Whether every export can be taken down and put up again without harm: NBD clients connect again, but a block
    /// device that is mounted would end under its file system.
    ///
    /// # Errors
    /// One sentence: which device is in use, and by whom.
    pub fn may_upgrade(&self) -> Result<(), String> {
        let devices = guard(&self.inner.devices);
        devices.values().try_for_each(|slot| match slot {
            Slot::Running(device) => device.export().unused(),
            Slot::Refused(_) => Ok(()),
        })
    }

    /// Stops so that another daemon goes on at once: dirty data stays on caching volumes, whatever is configured.
    pub fn stop_for_upgrade(mut self) {
        self.stops_until = Until::Upgraded;
        drop(self);
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.watch = None;
        guard(&self.inner.flags).stopping = true;
        self.inner.changed.notify_all();
        // Status is answered until the devices have drained, which may take its time.
        let ask = Ask::Stop { keep: self.stops_until == Until::Upgraded };
        // A device that has ended already has nothing to keep.
        starting::at_once("stop", self.inner.running(), |asker| drop(asker.ask(ask)));
        self.control = None;
        if let Some(sweeping) = self.sweeping.take() {
            let _ = sweeping.join();
        }
        let slots = std::mem::take(&mut *guard(&self.inner.devices)).into_values();
        let devices = slots.filter_map(|slot| match slot {
            Slot::Running(device) => Some(device),
            Slot::Refused(_) => None,
        });
        // One may have to answer much that is in flight, or wait for its users: it holds up no other. For an upgrade the others
        // are served until then, because none comes back before all have stopped.
        let upgrade = self.stops_until == Until::Upgraded;
        let (first, then): (Vec<_>, Vec<_>) = devices.partition(|device| !upgrade || device.is_busy());
        for devices in [first, then] {
            starting::at_once("stop", devices, |device| device.stop(self.stops_until));
        }
    }
}

impl Slot {
    fn shared(&self) -> Arc<Shared> {
        match self {
            Self::Running(device) => device.shared().clone(),
            Self::Refused(_) => {
                // Whatever carries this device's name may be its own.
                let shared = Shared::default();
                shared.set_rentals(Vec::new(), true);
                Arc::new(shared)
            }
        }
    }
}

/// A daemon without a single device serves nobody.
fn refuse_if_none(devices: &BTreeMap<String, Slot>) -> Result<(), StartError> {
    let reasons = devices.values().filter_map(|slot| match slot {
        Slot::Running(_) => None,
        Slot::Refused(reason) => Some(reason.as_str()),
    });
    let reasons: Vec<_> = reasons.collect();
    if reasons.len() < devices.len() { Ok(()) } else { Err(StartError::Failed(reasons.join("; "))) }
}

fn start_sweeping(inner: &Arc<Inner>) -> Result<JoinHandle<()>, StartError> {
    let inner = inner.clone();
    let interval = inner.config.sweep_interval;
    let sweeping = move || {
        loop {
            let flags = guard(&inner.flags);
            let waited = inner.changed.wait_timeout_while(flags, interval, |flags| !flags.stopping);
            if waited.unwrap_or_else(PoisonError::into_inner).0.stopping {
                return;
            }
            inner.sweep();
        }
    };
    let spawned = std::thread::Builder::new().name("sweep".into()).spawn(sweeping);
    spawned.map_err(|error| StartError::Failed(format!("a thread cannot be started: {error}")))
}

/// Has the devices look for their disks when the kernel tells of one. Without that they look now and then.
fn start_watch(inner: &Arc<Inner>) -> Option<Watch> {
    inner.config.providers.values().find(|provider| provider.directory().is_none())?;
    let inner = inner.clone();
    let watch = Watch::start(move || {
        // Before the devices ask.
        inner.common.providers.iter().for_each(|(_, provider)| provider.disk_changed());
        inner.running().iter().for_each(Asker::disk_changed);
        inner.common.arrays.disk_changed();
        inner.common.read_caches.disk_changed();
    });
    watch
        .inspect_err(
            |error| tracing::warn!(%error, "the kernel tells nothing of disks: they are looked for now and then"),
        )
        .ok()
}

impl Inner {
    fn sweep(&self) -> Swept {
        let swept = guard(&self.sweeper).sweep();
        guard(&self.warnings).clone_from(&swept.warnings);
        swept
    }

    fn running(&self) -> Vec<Asker> {
        let devices = guard(&self.devices);
        let running = devices.values().filter_map(|slot| match slot {
            Slot::Running(device) => Some(device.asker()),
            Slot::Refused(_) => None,
        });
        running.collect()
    }

    fn with_device<T>(&self, name: &str, look: impl FnOnce(&Device) -> T) -> Result<T, String> {
        let devices = guard(&self.devices);
        match devices.get(name) {
            Some(Slot::Running(device)) => Ok(look(device)),
            Some(Slot::Refused(reason)) => Err(reason.clone()),
            None => {
                let known: Vec<&str> = devices.keys().map(String::as_str).collect();
                Err(format!("there is no device \"{name}\": this daemon has {}", known.join(", ")))
            }
        }
    }

    fn asker(&self, name: &str) -> Result<Asker, String> {
        self.with_device(name, Device::asker)
    }

    fn status(&self) -> StatusReport {
        // Askers first: a device that is slow to answer must not hold the list.
        let slots: Vec<(String, Result<Asker, String>)> = guard(&self.devices)
            .iter()
            .map(|(name, slot)| {
                let asker = match slot {
                    Slot::Running(device) => Ok(device.asker()),
                    Slot::Refused(reason) => Err(reason.clone()),
                };
                (name.clone(), asker)
            })
            .collect();
        let devices = slots.into_iter().map(|(name, asker)| {
            let answer = asker.and_then(|asker| asker.ask(Ask::Status));
            let status = match answer {
                Ok(Answer::Status(status)) => *status,
                Ok(_) => self.not_served(&name, "the device answered something else".to_owned()),
                Err(reason) => self.not_served(&name, reason),
            };
            DeviceStatus { read_cache: self.common.read_caches.status(&name), ..status }
        });
        StatusReport { devices: devices.collect(), warnings: guard(&self.warnings).clone() }
    }

    fn not_served(&self, name: &str, reason: String) -> DeviceStatus {
        let export = self.config.devices.get(name).and_then(|device| device.export).map_or("auto", |kind| kind.name);
        DeviceStatus {
            name: name.to_owned(),
            export: export.to_owned(),
            address: String::new(),
            map: None,
            size_gib: 0.0,
            phase: DevicePhase::Degraded,
            reason: Some(reason),
            retry_s: None,
            announced_s: None,
            throughput_mib_s: 0.0,
            utilization: 0.0,
            caching: None,
            read_cache: None,
            boosts: 0,
            next_cache_gib: None,
            cost_agbs: 0.0,
            cost_usd: None,
            lost_ranges: Vec::new(),
            lost_range_count: 0,
            lost_bytes: 0,
        }
    }

    fn reload(&self) -> Result<Vec<String>, String> {
        let (mut reloaded, mut reasons) = (Vec::new(), Vec::new());
        // Under the lock, so that of two reloads at once the later one counts.
        for (name, slot) in guard(&self.devices).iter() {
            match slot {
                Slot::Running(device) => match device.export().reload_certificates() {
                    Ok(true) => {
                        tracing::info!(device = name, "the certificates were read again");
                        reloaded.push(name.clone());
                    }
                    Ok(false) => {}
                    Err(reason) => {
                        reasons.push(format!("device {name} goes on with the certificates it has: {reason}"))
                    }
                },
                Slot::Refused(reason) if self.config.devices[name].certificates().is_some() => {
                    reasons.push(format!("device {name} is not served ({reason}): restart the daemon"));
                }
                Slot::Refused(_) => {}
            }
        }
        reasons.iter().for_each(|reason| tracing::error!("{reason}"));
        if reasons.is_empty() { Ok(reloaded) } else { Err(reasons.join("; ")) }
    }

    fn handle(&self, request: Request) -> Result<Value, String> {
        let of_device = |device: &str, ask| {
            let answer = self.asker(device)?.ask(ask)?;
            match answer {
                Answer::Size(size) => Ok(json!({ "size_bytes": size })),
                _ => Ok(json!({})),
            }
        };
        let value = |value: serde_json::Result<Value>| value.map_err(|error| error.to_string());
        match request {
            Request::Status => value(serde_json::to_value(self.status())),
            Request::Gc => value(serde_json::to_value(self.sweep())),
            Request::History { last } => {
                let names = self.config.devices.keys();
                value(serde_json::to_value(HistoryReport::of(&self.config.state_directory, names, last)?))
            }
            Request::Boost { device, burst_bytes, starts_in_ms } => {
                let starts_in = Duration::from_millis(starts_in_ms.unwrap_or_default());
                let hint = BurstHint { size: burst_bytes.map(Bytes::new), starts_in };
                of_device(&device, Ask::Boost(hint))
            }
            Request::Drain { device } => of_device(&device, Ask::Drain),
            Request::Resize { device } => {
                let size = of_device(&device, Ask::Resize)?;
                let export = self.with_device(&device, |running| running.export().clone())?;
                export.grown(size["size_bytes"].as_u64().unwrap_or(0)).map(|()| size)
            }
            Request::Detach { device, accept_loss } => {
                if accept_loss && matches!(guard(&self.devices).get(&device), Some(Slot::Refused(_))) {
                    return self.start_without_lost_data(&device);
                }
                of_device(&device, Ask::Detach { accept_loss })
            }
            Request::ArrayStatus { name } => value(serde_json::to_value(self.common.arrays.status(name.as_deref())?)),
            Request::ArrayCreate { name } => {
                self.common.arrays.create(&name)?;
                Ok(self.start_over_array(&name, Vec::new()))
            }
            Request::ArrayAssemble { name, id } => {
                let remarks = self.common.arrays.assemble(&name, id.as_deref())?;
                Ok(self.start_over_array(&name, remarks))
            }
            Request::ArrayRotate { name, slot } => Ok(json!({ "replacing": self.common.arrays.rotate(&name, slot)? })),
            Request::ArrayDelete { name } => {
                arrays::offline::refuse_dirty(&self.config, &name)?;
                self.common.arrays.delete(&name)?;
                Ok(json!({ "deleted": name }))
            }
            Request::Reload => Ok(json!({ "reloaded": self.reload()? })),
            Request::Stop => {
                guard(&self.flags).stop_requested = true;
                self.changed.notify_all();
                Ok(json!({}))
            }
        }
    }

    /// A device that was refused for want of its array may be started now. Answers what came of it.
    fn start_over_array(&self, array: &str, mut remarks: Vec<String>) -> Value {
        if let Some(name) = self.common.arrays.device_over(array) {
            let mut devices = guard(&self.devices);
            if matches!(devices.get(name), Some(Slot::Refused(_))) {
                match Device::start(name, &self.config, &self.common) {
                    Ok(device) => {
                        guard(&self.sweeper).devices.insert(name.to_owned(), device.shared().clone());
                        devices.insert(name.to_owned(), Slot::Running(device));
                    }
                    Err(why) => {
                        remarks.push(format!("the device {name} over it is not served: {why}"));
                        devices.insert(name.to_owned(), Slot::Refused(why));
                    }
                }
            }
        }
        json!({ "remarks": remarks })
    }

    /// A device was refused because its newest data is missing, and the user discards that.
    fn start_without_lost_data(&self, name: &str) -> Result<Value, String> {
        let (directory, providers) = (self.config.state_directory.join(name), &self.common.providers);
        let named = Named::look(&directory, providers, self.common.clock)?;
        let mut devices = guard(&self.devices);
        if !matches!(devices.get(name), Some(Slot::Refused(_))) {
            return Err(format!("device {name} is served meanwhile: ask again"));
        }
        losses::discard_data(&directory, name, providers, &self.common.looking(), &named)?;
        let device = Device::start(name, &self.config, &self.common)?;
        guard(&self.sweeper).devices.insert(name.to_owned(), device.shared().clone());
        devices.insert(name.to_owned(), Slot::Running(device));
        Ok(json!({}))
    }
}

/// Discards what is on the missing caching volume of a device of a daemon that does not run.
///
/// # Errors
/// One sentence: a daemon runs, nothing is lost, or the state directory cannot be used.
pub fn accept_loss_offline(config: &Config, device: &str) -> Result<(), String> {
    if !config.devices.contains_key(device) {
        return Err(format!("there is no device \"{device}\" in this configuration"));
    }
    refuse_own_ground(config).map_err(|error| error.to_string())?;
    let _lock = state_directory::lock(&config.state_directory)?;
    let looking = Looking { disks: &Disks::default(), clock: Clock::start(), decorator: None };
    let (directory, providers) = (config.state_directory.join(device), Providers::open(config, None)?);
    let named = Named::look(&directory, &providers, looking.clock)?;
    losses::discard_data(&directory, device, &providers, &looking, &named)
}

/// Refuses directories of ours on a device that outlived its last daemon, before anything in them is looked at.
pub(crate) fn refuse_own_ground(config: &Config) -> Result<(), StartError> {
    let tables = Tables::read();
    let volumes = config
        .providers
        .iter()
        .filter_map(|(name, provider)| Some((format!("the directory of the {name} provider"), provider.directory()?)));
    for (what, directory) in std::iter::once(("the state directory".into(), &*config.state_directory)).chain(volumes) {
        tables
            .refuse_own(&what, directory, &config.run_directory, config.devices.keys())
            .map_err(StartError::Invalid)?;
    }
    Ok(())
}
