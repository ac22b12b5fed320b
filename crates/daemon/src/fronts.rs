//! Opens and closes the export of a device, the best that the machine offers.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use surgetank_device::Front;
use surgetank_device::front::nbd::{Credentials, Limits, NbdConfig, NbdFront};
use surgetank_device::front::{
    self, FuseConfig, FuseFront, FuseHandle, UblkConfig, UblkFront, UblkHandle, reclaim, ublk,
};

use crate::config::{Config, DeviceConfig, Export};
use crate::link::Link;
use crate::places;

/// How long the kernel may take to set the loop device up.
const SET_UP_PATIENCE: Duration = Duration::from_secs(60);
/// How long the daemon waits for the users of a device to let go of it when it stops.
const CLOSE_PATIENCE: Duration = Duration::from_secs(20);

/// An open export.
pub struct Opened {
    /// For the shard.
    pub front: Box<dyn Front>,
    /// `ublk`, `fuse` or `nbd`.
    pub kind: &'static str,
    /// To bring it up and down while the shard serves it.
    pub control: Control,
}

/// Brings an export up and down while the shard serves it.
#[derive(Clone)]
pub enum Control {
    /// It is up from the start, at this address, and goes down with its front. What it has for TLS, if anything.
    Nbd(String, Option<Credentials>),
    /// The kernel asks for data while the loop device comes and goes.
    Fuse(FuseHandle, Link),
    /// The kernel asks for data while the ublk device comes and goes.
    Ublk(UblkHandle, Link),
}

/// What an export needs to know of the daemon.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    /// Where links and sockets are made.
    pub run_directory: &'a Path,
    /// The state directory's random name.
    pub owner: &'a str,
}

/// Lets an export's clients follow a device that has grown.
pub enum Grower {
    /// A loop device.
    Fuse(FuseHandle),
    /// A ublk device.
    Ublk(UblkHandle),
}

impl Grower {
    /// The device has `size` bytes.
    ///
    /// # Errors
    /// One sentence with the mend.
    pub fn grown(&self, size: u64) -> Result<(), String> {
        match self {
            Self::Fuse(handle) => handle.grown(),
            Self::Ublk(handle) => handle.grown(size),
        }
        .map_err(|error| error.to_string())
    }
}

/// Opens an export of `size` bytes.
///
/// # Errors
/// One sentence with the mend.
pub fn open(
    name: &str,
    config: &DeviceConfig,
    place: Place<'_>,
    size: u64,
    logical_block: u32,
) -> Result<Opened, String> {
    let export = front::Export { name: name.to_owned(), size, logical_block };
    match config.export {
        Export::Nbd => nbd(export, config),
        Export::Fuse => fuse(export, place),
        Export::Ublk => ublk(export, place),
        Export::Auto => best(export, config, place),
    }
}

/// The first export that this machine and these rights allow: ublk, fuse, NBD. A ublk device that an earlier daemon
/// left is never passed over: somebody may have it mounted.
fn best(export: front::Export, config: &DeviceConfig, place: Place<'_>) -> Result<Opened, String> {
    let why = match ublk::possible() {
        Ok(()) => return ublk(export, place),
        Err(why) => why,
    };
    tracing::info!(device = export.name, %why, "no ublk here");
    match fuse_is_possible().and_then(|()| fuse(export.clone(), place)) {
        Ok(opened) => Ok(opened),
        Err(why) => {
            tracing::info!(device = export.name, why, "no loop device here: exporting over NBD");
            nbd(export, config)
        }
    }
}

/// The name under which the kernel keeps a device for the next daemon: FNV-1a of the state directory's random name and
/// the device's own.
fn identity(owner: &str, device: &str) -> u64 {
    let bytes = owner.bytes().chain([0]).chain(device.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)).max(1)
}

/// Whether this process may make loop devices and FUSE mounts, found out without making one.
fn fuse_is_possible() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("a loop device needs root".to_owned());
    }
    for path in ["/dev/fuse", "/dev/loop-control"] {
        OpenOptions::new().read(true).write(true).open(path).map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(())
}

fn nbd(export: front::Export, config: &DeviceConfig) -> Result<Opened, String> {
    config.socket.parent().map_or(Ok(()), places::make)?;
    let (name, tcp) = (export.name.clone(), config.nbd_tcp.as_ref());
    let tls = config.certificates().map(Credentials::load).transpose().map_err(|error| error.to_string())?;
    let credentials = tls.clone();
    let front = NbdFront::open(NbdConfig {
        export,
        unix: Some(config.socket.clone()),
        tcp: tcp.map(|tcp| tcp.listen),
        tls,
        limits: Limits::default(),
    })
    .map_err(|error| error.to_string())?;
    match front.tcp_address() {
        Some(address) if credentials.is_some() => tracing::info!(device = name, %address, "listening for NBD over TLS"),
        Some(address) => tracing::warn!(device = name, %address, "every user of this machine may open this device"),
        None => {}
    }
    let address = front.address();
    Ok(Opened { front: Box::new(front), kind: "nbd", control: Control::Nbd(address, credentials) })
}

/// Whether the certificates of all devices can be used as they are now.
///
/// # Errors
/// One sentence with the mend.
pub fn check_certificates(config: &Config) -> Result<(), String> {
    let directories = config.devices.values().filter_map(DeviceConfig::certificates);
    let mut loaded = directories.map(Credentials::load);
    loaded.try_for_each(|loaded| loaded.map(drop)).map_err(|error| error.to_string())
}

/// Our pages may be needed to write other pages back.
fn lock_memory() {
    // Without the right to lock it works as well, unless memory is short.
    if let Err(error) = reclaim::lock_memory() {
        tracing::debug!(%error, "memory is not locked");
    }
}

fn ublk(export: front::Export, place: Place<'_>) -> Result<Opened, String> {
    places::make(place.run_directory)?;
    lock_memory();
    let link = Link::new(place.run_directory, &export.name);
    let config = UblkConfig { identity: identity(place.owner, &export.name), export };
    let front = UblkFront::start(&config).map_err(|error| error.to_string())?;
    let control = Control::Ublk(front.handle(), link);
    Ok(Opened { front: Box::new(front), kind: "ublk", control })
}

fn fuse(export: front::Export, place: Place<'_>) -> Result<Opened, String> {
    let run_directory = place.run_directory;
    places::make(run_directory)?;
    lock_memory();
    let config = FuseConfig { export, run_directory: run_directory.to_owned(), session_threads: 1 };
    let link = Link::new(run_directory, &config.export.name);
    let front = FuseFront::start(&config).map_err(|error| error.to_string())?;
    let control = Control::Fuse(front.handle(), link);
    Ok(Opened { front: Box::new(front), kind: "fuse", control })
}

impl Control {
    /// Whether it comes up only when its requests are answered.
    #[must_use]
    pub fn comes_up_when_answered(&self) -> bool {
        matches!(self, Self::Ublk(..))
    }

    /// Requests are answered from now on.
    pub fn answers(&self) {
        match self {
            // Their clients wait for the answers to their requests.
            Self::Nbd(..) | Self::Fuse(..) => {}
            Self::Ublk(handle, _) => handle.bring_up(),
        }
    }

    /// Waits until the export is up, and says where. The front is served meanwhile; a ublk device comes up when its
    /// requests are answered, and not before.
    ///
    /// # Errors
    /// One sentence with the mend.
    pub fn address(&self) -> Result<String, String> {
        let (device, link) = match self {
            Self::Nbd(address, _) => return Ok(address.clone()),
            Self::Fuse(handle, link) => (handle.wait_ready(SET_UP_PATIENCE), link),
            Self::Ublk(handle, link) => (handle.wait_ready(), link),
        };
        let device = device.map_err(|error| error.to_string())?;
        if let Err(error) = link.point_to(&device) {
            tracing::warn!(device = %device.display(), ?link, %error, "no link to the device");
        }
        Ok(device.display().to_string())
    }

    /// What lets the export's clients follow a device that has grown, if they need to be told.
    #[must_use]
    pub fn grower(&self) -> Option<Grower> {
        match self {
            Self::Nbd(..) => None,
            Self::Fuse(handle, _) => Some(Grower::Fuse(handle.clone())),
            Self::Ublk(handle, _) => Some(Grower::Ublk(handle.clone())),
        }
    }

    /// Takes up the certificates that are in their directory now, for the connections that come. False: it has none.
    ///
    /// # Errors
    /// One sentence with the mend; those that it has stay in use.
    pub fn reload_certificates(&self) -> Result<bool, String> {
        match self {
            Self::Nbd(_, Some(credentials)) => credentials.reload().map(|()| true).map_err(|error| error.to_string()),
            Self::Nbd(..) | Self::Fuse(..) | Self::Ublk(..) => Ok(false),
        }
    }

    /// Whether taking the export down now disturbs nobody. NBD clients connect again, and a ublk device waits for the
    /// next daemon.
    ///
    /// # Errors
    /// Who uses it.
    pub fn unused(&self) -> Result<(), String> {
        match self {
            Self::Nbd(..) | Self::Ublk(..) => Ok(()),
            Self::Fuse(handle, _) => handle.unused().map_err(|error| error.to_string()),
        }
    }

    /// Takes the export down while the front is served. A loop device that is in use is waited for; then what the file
    /// systems have not written yet is written, and the device ends under them. A ublk device that is in use stays: its
    /// input/output waits for the next daemon.
    pub fn close(&self, device: &str) {
        match self {
            Self::Nbd(..) => {}
            Self::Ublk(handle, link) => match handle.close() {
                Ok(()) => link.remove(),
                Err(error) => tracing::warn!(device, %error, "the device waits for the next daemon"),
            },
            Self::Fuse(handle, link) => {
                link.remove();
                close_fuse(handle, device);
            }
        }
    }
}

fn close_fuse(handle: &FuseHandle, device: &str) {
    let give_up = Instant::now() + CLOSE_PATIENCE;
    let mut told = false;
    while let Err(error) = handle.close() {
        if !told {
            tracing::warn!(device, %error, "waiting for the users of the device");
            told = true;
        }
        if Instant::now() >= give_up {
            tracing::error!(device, %error, "the device ends while it is in use");
            if let Ok(path) = handle.wait_ready(Duration::ZERO) {
                write_back(&path);
            }
            return;
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Lets the file systems on a block device write what they have not written yet, in a process of its own: it can be
/// killed when it waits for too long.
fn write_back(device: &Path) {
    let Ok(number) = rustix::fs::stat(device).map(|stat| stat.st_rdev) else { return };
    let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    // Fields: mount, parent, device, root, mount point, ... (proc_pid_mountinfo(5)).
    let place = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>())
        .find(|fields| fields.get(2) == Some(&number.as_str()));
    let mut sync = Command::new("sync");
    // Where it is mounted may not be visible from here: in another mount namespace. Then all file systems write.
    if let Some(place) = place.and_then(|fields| fields.get(4).copied()) {
        sync.arg("-f").arg(place);
    }
    let Ok(mut sync) = sync.spawn() else { return };
    let give_up = Instant::now() + CLOSE_PATIENCE;
    while matches!(sync.try_wait(), Ok(None)) {
        if Instant::now() >= give_up {
            // It is waited for by nobody: it may not end before the device does.
            let _ = sync.kill();
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
