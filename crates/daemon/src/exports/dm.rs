//! A device that the kernel's device mapper maps: straight to the backing volume while it is calm, to a ublk device of ours
//! while the daemon has to answer. Who has it open notices no switch.
//!
//! Decided in [`surgetank_rental::mapping`]; done here. A switch waits for requests in flight, so it runs on a thread of its own.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use surgetank_device::Front;
use surgetank_device::front::{self, IdleFront, UblkConfig, UblkFront, UblkHandle, ublk};
use surgetank_device::mapper::{Limits, MappedDevice, Mapper, Table};
use surgetank_device::volume::exclusive::refuse_used;
use surgetank_rental::mapping::{Found, Map};

use super::{Export, Opened, Opening, linked, lock_memory};
use crate::config::{Backing, DeviceConfig};
use crate::crash::crash_point;
use crate::device::Until;
use crate::kernel_statistics::{KernelCounters, KernelStatistics};
use crate::link::Link;
use crate::places;
use crate::shard::{Command, ShardHandle};
use crate::systemd::{UNIQUE_NAME, serving_link};

const DIRECTORY: &str = "/dev/mapper";
/// How long the daemon's own device is closed in vain: udev looks at every device that comes.
const CLOSE_PAUSE: Duration = Duration::from_millis(20);
const CLOSE_TRIES: u32 = 50;

/// A device that the kernel maps.
pub struct Mapped {
    name: String,
    identity: u64,
    mapper: Mapper,
    backing: PathBuf,
    backing_number: (u32, u32),
    /// What users see of the backing volume.
    limits: Limits,
    found: Option<Found>,
    link: Link,
    /// udev leaves alone what this leads to: it holds what the mapped device holds.
    serving: Link,
    /// The device as the kernel has it, once there is one.
    device: OnceLock<MappedDevice>,
    /// What the kernel counts of it.
    counters: OnceLock<KernelCounters>,
    /// Held while it is switched.
    inner: Mutex<Inner>,
}

/// What changes with a switch.
#[derive(Default)]
struct Inner {
    size: u64,
    /// The daemon's own device, while there is one.
    served: Option<UblkHandle>,
    /// Holds the backing volume while the kernel does not map it.
    claim: Option<File>,
    /// The daemon ends: nothing is switched any more.
    closed: bool,
}

/// The disk of a device that the kernel may map.
///
/// # Errors
/// Why it may not. One sentence.
fn disk(config: &DeviceConfig) -> Result<(PathBuf, (u32, u32)), String> {
    let Backing::Path(path) = &config.backing else {
        let what = if matches!(config.backing, Backing::Array(_)) { "an array" } else { "a backing volume in memory" };
        return Err(format!("{what} is no disk that the kernel could map"));
    };
    if config.backing_throttle {
        return Err("with backing_throttle the daemon has to see every request".to_owned());
    }
    if config.read_cache.is_some() {
        return Err("with a read cache the daemon has to see every request".to_owned());
    }
    let status = fs::metadata(path).map_err(|error| format!("{} cannot be looked at: {error}", path.display()))?;
    if !status.file_type().is_block_device() {
        return Err(format!("{} is a file, and the kernel maps disks alone", path.display()));
    }
    let number = status.rdev();
    Ok((path.clone(), (rustix::fs::major(number), rustix::fs::minor(number))))
}

/// Whether the kernel maps a device of this name that a daemon of ours made.
#[must_use]
pub fn is_ours(name: &str) -> bool {
    let found = Mapper::open().and_then(|mapper| mapper.find(name));
    found.is_ok_and(|found| found.is_some_and(|device| device.unique_name.starts_with(UNIQUE_NAME)))
}

/// For `auto`: whether this machine and these rights allow it, and no device of an earlier daemon waits for requests to be
/// answered: somebody may have it mounted.
///
/// # Errors
/// Why not.
pub(super) fn possible(name: &str, owner: &str) -> Result<(), String> {
    match ublk::left_behind(super::identity(owner, name)).map_err(|why| why.to_string())? {
        None => Ok(()),
        Some(_) => Err("a ublk device of an earlier daemon is there".to_owned()),
    }
}

fn limits(path: &Path, number: (u32, u32)) -> Result<Limits, String> {
    let limits =
        Limits::of(number).map_err(|error| format!("the kernel does not describe {}: {error}", path.display()))?;
    if limits.is_special {
        return Err(format!("{} has zones or keeps checksums of its own, which only itself can serve", path.display()));
    }
    Ok(limits)
}

impl Mapped {
    /// Looks at the device of this name, and changes nothing yet.
    ///
    /// # Errors
    /// One sentence with the remedy: it cannot be mapped, or somebody else's device has the name.
    pub fn look(name: &str, config: &DeviceConfig, run_directory: &Path, owner: &str) -> Result<Self, String> {
        let (backing, backing_number) = disk(config)?;
        let mapper = Mapper::open().map_err(|why| why.to_string())?;
        let identity = super::identity(owner, name);
        let device = mapper.find(name).map_err(|why| why.to_string())?;
        let foreign = || {
            format!(
                "{DIRECTORY}/{name} exists and is not ours: remove it (dmsetup remove {name}), or give the device another name"
            )
        };
        let found = match &device {
            None => None,
            Some(device) if device.unique_name != unique_name(identity) => return Err(foreign()),
            Some(device) => {
                let to = device.table.ok_or_else(foreign)?.device;
                let served = ublk::left_behind(identity).map_err(|why| why.to_string())?;
                let map = match () {
                    () if to == backing_number => Map::Straight,
                    () if Some(to) == served => Map::Served,
                    () => {
                        return Err(format!(
                            "{DIRECTORY}/{name} maps the device {}:{}, and its backing volume is {} ({}:{}): unmount it and \
                             remove it (dmsetup remove {name})",
                            to.0,
                            to.1,
                            backing.display(),
                            backing_number.0,
                            backing_number.1
                        ));
                    }
                };
                Some(Found { map, suspended: device.is_suspended })
            }
        };
        let limits = limits(&backing, backing_number)?;
        Ok(Self {
            name: name.to_owned(),
            identity,
            mapper,
            backing,
            backing_number,
            limits,
            found,
            link: Link::new(run_directory, name),
            serving: Link::new(run_directory, &serving_link(name)),
            device: device.map(OnceLock::from).unwrap_or_default(),
            counters: OnceLock::new(),
            inner: Mutex::default(),
        })
    }

    /// The device as the kernel had it.
    #[must_use]
    pub fn found(&self) -> Option<&Found> {
        self.found.as_ref()
    }

    /// Makes what is there fit the map to begin with, and holds the backing volume, so that nobody else takes it. A device
    /// that is to be served comes later, when there is something to map to.
    ///
    /// # Errors
    /// One sentence with the remedy: somebody else uses the backing volume.
    pub fn begin(&self, map: Map) -> Result<(), String> {
        let mut inner = self.lock();
        let text = |why: surgetank_device::mapper::MapperError| why.to_string();
        if let Some(found) = &self.found {
            // What an earlier daemon had loaded and not switched to is not to count.
            self.mapper.clear(&self.name).map_err(text)?;
            if found.suspended {
                self.mapper.resume(&self.name).map_err(text)?;
            }
        } else {
            refuse_used(&self.backing).map_err(|why| why.to_string())?;
        }
        if map == Map::Straight
            && let Err(error) = ublk::delete_left_behind(self.identity)
        {
            // The next switch takes it over.
            tracing::warn!(device = self.name, %error, "what a killed daemon left stays until the next boost");
        }
        match map {
            Map::Served => inner.claim = Some(self.claim()?),
            Map::Straight if self.found.is_none() => {
                let table = Table { size: self.disk_size()?, device: self.backing_number };
                self.create(table)?;
            }
            Map::Straight => {}
        }
        Ok(())
    }

    fn create(&self, table: Table) -> Result<(), String> {
        let made = self.mapper.create(&self.name, &unique_name(self.identity), table).map_err(|why| why.to_string())?;
        // Nobody else makes it.
        let _ = self.device.set(made);
        Ok(())
    }

    /// Makes the device known by the names that users have for it; its path.
    ///
    /// # Errors
    /// There is none yet, or the run directory cannot be made.
    pub fn announce(&self) -> Result<String, String> {
        let Some(node) = self.device.get().map(MappedDevice::node) else {
            return Err("the device is not mapped: start the daemon again".to_owned());
        };
        linked(&self.link, &node);
        Ok(format!("{DIRECTORY}/{}", self.name))
    }

    /// The bytes that the kernel maps of the disk.
    fn disk_size(&self) -> Result<u64, String> {
        let (major, minor) = self.backing_number;
        let read = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/size"));
        let sectors = read.ok().and_then(|text| text.trim().parse::<u64>().ok());
        let block = u64::from(self.limits.logical_block);
        sectors
            .map(|sectors| sectors * 512 / block * block)
            .ok_or_else(|| format!("the kernel does not tell the size of {}", self.backing.display()))
    }

    /// Holds the backing volume.
    fn claim(&self) -> Result<File, String> {
        let opened = OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(&self.backing);
        opened.map_err(|error| match refuse_used(&self.backing) {
            Err(used) => used.to_string(),
            Ok(()) => format!("{} cannot be held ({error}): stop who uses it", self.backing.display()),
        })
    }

    /// Switches, and waits for it. The shard has to be served meanwhile. A switch to the backing volume is called off at the last
    /// moment if it is not `wanted` any more.
    ///
    /// # Errors
    /// Why not. The old map stays, and requests pass.
    pub fn switch(&self, to: Map, shard: &ShardHandle, wanted: &AtomicBool) -> Result<(), String> {
        let mut inner = self.lock();
        if inner.closed {
            return Err("the daemon stops".to_owned());
        }
        match to {
            Map::Served => self.switch_in(&mut inner, shard).inspect_err(|_| {
                // What was loaded may hold our own device. There may be nothing loaded.
                let _ = self.mapper.clear(&self.name);
                self.end_service(&mut inner, shard);
            }),
            Map::Straight => self.switch_out(&mut inner, shard, wanted),
        }
    }

    fn switch_in(&self, inner: &mut Inner, shard: &ShardHandle) -> Result<(), String> {
        let gone = |_| "the device's thread has ended".to_owned();
        let text = |why: surgetank_device::mapper::MapperError| why.to_string();
        crash_point("switch-in", "before");
        if inner.served.is_none() {
            let front = self.front(inner.size)?;
            let handle = front.handle();
            shard.ask(|answer| Command::SetFront { front: Box::new(front), answer }).map_err(gone)??;
            inner.served = Some(handle);
        }
        let Some(handle) = &inner.served else { return Err("there is no device to map to".to_owned()) };
        handle.bring_up();
        let device = handle.number().map_err(|why| why.to_string())?;
        crash_point("switch-in", "up");
        self.check_limits(device)?;
        // From the first request that comes this way on, the engine knows that it has not seen all of them.
        shard.ask(|answer| Command::EnterPath { answer }).map_err(gone)?;
        self.mapper.load(&self.name, Table { size: inner.size, device }).map_err(text)?;
        crash_point("switch-in", "loaded");
        self.mapper.resume(&self.name).map_err(text)?;
        crash_point("switch-in", "after");
        self.hold(inner);
        Ok(())
    }

    fn hold(&self, inner: &mut Inner) {
        inner.claim = self.claim().inspect_err(|why| tracing::warn!(device = self.name, "{why}")).ok();
    }

    fn switch_out(&self, inner: &mut Inner, shard: &ShardHandle, wanted: &AtomicBool) -> Result<(), String> {
        let text = |why: surgetank_device::mapper::MapperError| why.to_string();
        crash_point("switch-out", "before");
        inner.claim = None;
        let table = Table { size: inner.size, device: self.backing_number };
        if let Err(why) = self.mapper.load(&self.name, table) {
            self.hold(inner);
            return Err(text(why));
        }
        crash_point("switch-out", "loaded");
        let suspended = self.mapper.suspend(&self.name).map_err(text);
        crash_point("switch-out", "suspended");
        // Nothing is in flight now, so nothing can change what the engine says.
        let transparent = suspended.and_then(|()| {
            let asked = shard.ask(|answer| Command::IsTransparent { answer });
            asked.map_err(|_| "the device's thread has ended".to_owned())
        });
        let transparent = transparent.map(|transparent| transparent && wanted.load(Ordering::Acquire));
        if transparent != Ok(true) {
            self.mapper.clear(&self.name).map_err(text)?;
            self.mapper.resume(&self.name).map_err(text)?;
            self.hold(inner);
            return Err(transparent.err().unwrap_or_else(|| "the daemon still has to answer for something".to_owned()));
        }
        if let Err(why) = self.mapper.resume(&self.name) {
            self.hold(inner);
            return Err(text(why));
        }
        crash_point("switch-out", "after");
        self.end_service(inner, shard);
        crash_point("switch-out", "ended");
        Ok(())
    }

    /// Nothing maps to our own device any more: it ends. If somebody looks at it just now, it stays, and serves the next boost.
    fn end_service(&self, inner: &mut Inner, shard: &ShardHandle) {
        let Some(handle) = &inner.served else { return };
        let closed = (0..CLOSE_TRIES).any(|_| {
            let closed = handle.close();
            closed.is_err().then(|| std::thread::sleep(CLOSE_PAUSE));
            closed.is_ok()
        });
        if !closed {
            tracing::debug!(device = self.name, "the served device is in use, and stays");
            return;
        }
        match IdleFront::new() {
            // A thread that has ended has no front to change.
            Ok(front) => _ = shard.ask(|answer| Command::SetFront { front: Box::new(front), answer }),
            Err(error) => tracing::warn!(device = self.name, %error, "the ended device is still watched"),
        }
        self.serving.remove();
        inner.served = None;
    }

    fn front(&self, size: u64) -> Result<UblkFront, String> {
        let export = front::Export { name: self.name.clone(), size, logical_block: self.limits.logical_block };
        let Limits { write_cache, discards, .. } = self.limits;
        // Partitions are the mapped device's.
        let config = UblkConfig { export, identity: self.identity, write_cache, discards, partitions: false };
        let front = UblkFront::start(&config).map_err(|why| why.to_string())?;
        // Before the device comes up, and udev looks at it.
        if let Err(error) = self.serving.point_to(&front.handle().path()) {
            tracing::warn!(device = self.name, %error, "udev is not told what the served device is");
        }
        Ok(front)
    }

    /// Who has the device open must not notice a switch.
    fn check_limits(&self, served: (u32, u32)) -> Result<(), String> {
        let ours =
            Limits::of(served).map_err(|error| format!("the kernel does not describe the served device: {error}"))?;
        self.limits.check(&ours).map_err(|differences| {
            format!(
                "{} and the device that stands in for it differ ({differences}): export with ublk, fuse or nbd",
                self.backing.display()
            )
        })
    }

    /// Takes the device away.
    ///
    /// # Errors
    /// One sentence with the remedy: somebody uses it.
    pub fn remove(&self) -> Result<(), String> {
        self.mapper.remove(&self.name).map_err(|why| why.to_string())
    }

    /// What the kernel has counted of the device's requests since it was made; `None` while there is no device.
    #[must_use]
    pub fn statistics(&self) -> Option<KernelStatistics> {
        let device = self.device.get()?;
        if self.counters.get().is_none() {
            let _ = self.counters.set(KernelCounters::open(device.number).ok()?);
        }
        self.counters.get()?.read()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn unique_name(identity: u64) -> String {
    format!("{UNIQUE_NAME}{identity:016x}")
}

pub(super) fn open(Opening { export, run_directory, mapped, .. }: Opening<'_>) -> Result<Opened, String> {
    let Some((mapped, map)) = mapped else {
        return Err("the device was not looked at before it was opened".to_owned());
    };
    places::make(run_directory)?;
    lock_memory();
    mapped.lock().size = export.size;
    let (front, first): (Box<dyn Front>, _) = match map {
        Map::Straight => (Box::new(IdleFront::new().map_err(|error| error.to_string())?), None),
        Map::Served => {
            let front = mapped.front(export.size)?;
            let handle = front.handle();
            mapped.lock().served = Some(handle.clone());
            (Box::new(front), Some(handle))
        }
    };
    Ok(Opened { front, kind: super::MAPPED, export: Arc::new(Dm { mapped, first }) })
}

struct Dm {
    mapped: Arc<Mapped>,
    /// The device that is served from the start, if the map begins so. The shard asks for it, which may wait for no switch.
    first: Option<UblkHandle>,
}

impl Export for Dm {
    fn comes_up_when_answered(&self) -> bool {
        self.first.is_some()
    }

    fn answers(&self) {
        if let Some(handle) = &self.first {
            handle.bring_up();
        }
    }

    fn address(&self) -> Result<String, String> {
        let mapped = &*self.mapped;
        if let Some(handle) = &self.first {
            let served = handle.number().map_err(|why| why.to_string())?;
            mapped.check_limits(served)?;
            if mapped.device.get().is_none() {
                mapped.create(Table { size: mapped.lock().size, device: served })?;
            }
        }
        mapped.announce()
    }

    fn grown(&self, size: u64) -> Result<(), String> {
        let mapped = &*self.mapped;
        let mut inner = mapped.lock();
        let is_straight = inner.claim.is_none();
        let device = match &inner.served {
            Some(handle) if !is_straight => {
                handle.grown(size).map_err(|why| why.to_string())?;
                handle.number().map_err(|why| why.to_string())?
            }
            _ => mapped.backing_number,
        };
        let switched = mapped.mapper.load(&mapped.name, Table { size, device });
        switched.and_then(|()| mapped.mapper.resume(&mapped.name)).map_err(|why| why.to_string())?;
        inner.size = size;
        Ok(())
    }

    /// A device in use stays: one that goes straight needs nobody, one that is served waits for the next daemon.
    fn close(&self, device: &str, until: Until) {
        let mapped = &*self.mapped;
        let mut inner = mapped.lock();
        inner.closed = true;
        let is_straight = inner.served.is_none() || inner.claim.is_none();
        if !is_straight || until == Until::Started {
            let found = mapped.mapper.find(&mapped.name);
            let removed = found.and_then(|found| found.map_or(Ok(()), |_| mapped.mapper.remove(&mapped.name)));
            match (removed, until) {
                (Ok(()), _) => mapped.link.remove(),
                (Err(why), _) if is_straight => tracing::info!(device, %why, "the device goes on without a daemon"),
                (Err(error), Until::Upgraded) => {
                    return tracing::debug!(device, %error, "the device waits for the new binary");
                }
                (Err(error), Until::Started) => {
                    return tracing::warn!(device, %error, "the device waits for the next daemon");
                }
            }
        }
        match inner.served.as_ref().map_or(Ok(()), UblkHandle::close) {
            Ok(()) => mapped.serving.remove(),
            Err(error) => tracing::warn!(device, %error, "the device waits for the next daemon"),
        }
    }
}
