//! Opens volumes: backing volumes as configured, caching volumes as the provider attached them, and reads what is on
//! them.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::FileType;
use rustix::io::Errno;
use surgetank_cache::Epoch;
use surgetank_cache::format::{self, BLOCK, Superblock};
use surgetank_device::discovery::Disks;
use surgetank_device::volume::{OpenError, Operation, Options};
use surgetank_device::{Buffer, FileVolume, MemoryVolume, Poller, Throttle, Volume, VolumeIo};
use surgetank_model::{Bytes, Limits};
use surgetank_provider::VolumeDescription;

use crate::clock::Clock;
use crate::config::{Backing, DeviceConfig};

/// Decorates volumes as they are opened: fault injection in tests.
pub type Decorator = Arc<dyn Fn(Purpose, Box<dyn Volume>) -> Box<dyn Volume> + Send + Sync>;

/// What a volume is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It is a backing volume.
    Backing,
    /// It is a caching volume.
    Caching,
}

/// How long a process that is being killed may still be seen to hold its volumes.
const LOCK_PATIENCE: Duration = Duration::from_secs(3);
/// How long volumes may be held after the process that held them was last seen: until its I/O in flight has ended.
const LINGER_PATIENCE: Duration = Duration::from_secs(30);
/// How long reading two blocks may take.
const READ_PATIENCE: Duration = Duration::from_secs(30);

/// Opens the backing volume of a device.
///
/// # Errors
/// One sentence with the mend.
pub fn backing(config: &DeviceConfig, clock: Clock) -> Result<Box<dyn Volume>, String> {
    let volume: Box<dyn Volume> = match &config.backing {
        Backing::Memory(size) => {
            let volume = MemoryVolume::new(size.get(), 512);
            Box::new(volume.map_err(|error| format!("a backing volume of {size} in memory cannot be made: {error}"))?)
        }
        Backing::Path(path) => {
            let volume = open_patiently(path, Options::default())?;
            for note in volume.notes() {
                tracing::info!("{note}");
            }
            Box::new(volume)
        }
    };
    Ok(if config.backing_throttle { throttled(volume, config.backing_limits, clock) } else { volume })
}

/// Opens a volume that a killed process may still hold for a moment.
fn open_patiently(path: &Path, options: Options) -> Result<FileVolume, String> {
    let begun = std::time::Instant::now();
    loop {
        let patience = |lingers| if lingers { LINGER_PATIENCE } else { LOCK_PATIENCE };
        match FileVolume::open(path, options) {
            Ok(volume) => return Ok(volume),
            // A dying holder lets go by itself; a living one is named in the end.
            Err(OpenError::InUse { lingers, .. }) if begun.elapsed() < patience(lingers) => {
                std::thread::sleep(Duration::from_millis(20));
            }
            Err(error) => return Err(error.to_string()),
        }
    }
}

/// Holds a volume to limits.
#[must_use]
pub fn throttled(volume: Box<dyn Volume>, limits: Limits, clock: Clock) -> Box<dyn Volume> {
    if limits == Limits::NONE { volume } else { Box::new(Throttle::new(volume, limits, clock.now())) }
}

/// Which disk or file something is: a disk's number, or a file's file system and inode. The number of a disk that was
/// pulled is not given to another one before the disk is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(u64, u64);

impl Identity {
    /// Whether it is a file: who has it open can use it although it has no name any more.
    #[must_use]
    pub fn is_file(self) -> bool {
        self.1 != 0
    }

    fn of(status: &rustix::fs::Stat) -> Self {
        match FileType::from_raw_mode(status.st_mode) {
            FileType::BlockDevice => Self(status.st_rdev, 0),
            _ => Self(status.st_dev, status.st_ino),
        }
    }
}

/// Where to look for a caching volume.
#[derive(Clone, Debug)]
pub struct Place {
    serial: Option<String>,
    path: Option<PathBuf>,
}

impl Place {
    /// Where an attached volume is.
    #[must_use]
    pub fn of(description: &VolumeDescription) -> Self {
        Self { serial: description.serial.clone(), path: description.device.clone() }
    }

    /// Which disk or file is there now; `None`: none.
    ///
    /// # Errors
    /// It cannot be told.
    pub fn look(&self, disks: &Disks) -> Result<Option<Identity>, String> {
        let path = match &self.serial {
            Some(serial) => disks.find(serial).map_err(|error| error.to_string())?,
            None => self.path.clone(),
        };
        let Some(path) = path else { return Ok(None) };
        match rustix::fs::stat(&path) {
            Ok(status) => Ok(Some(Identity::of(&status))),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NXIO | Errno::NODEV) => Ok(None),
            Err(error) => Err(error.to_string()),
        }
    }
}

/// A caching volume that was opened.
pub struct Opened {
    /// The volume.
    pub volume: Box<dyn Volume>,
    /// Where it was found.
    pub place: Place,
    /// What was found there.
    pub identity: Identity,
}

/// Opens an attached caching volume for the engine alone, after making sure that it is the one that was asked for.
/// `None`: its disk has not appeared on this machine yet.
///
/// # Errors
/// One sentence: what is wrong with it.
pub fn caching(
    description: &VolumeDescription,
    size: Bytes,
    disks: &Disks,
    decorator: Option<&Decorator>,
) -> Result<Option<Opened>, String> {
    let Some(volume) = open_attached(description, disks, Options::default())? else { return Ok(None) };
    if volume.size() < size.get() {
        let path = volume.path().display();
        return Err(format!("{path} has {} bytes instead of the {size} that were rented", volume.size()));
    }
    let status = rustix::fs::fstat(&volume)
        .map_err(|error| format!("{} cannot be looked at: {error}", volume.path().display()))?;
    let mut volume: Box<dyn Volume> = Box::new(volume);
    if let Some(decorate) = decorator {
        volume = decorate(Purpose::Caching, volume);
    }
    Ok(Some(Opened { volume, place: Place::of(description), identity: Identity::of(&status) }))
}

/// As [`caching`], for a volume that was in use: it must be readable, and bear the attachment's epoch as far as it bears
/// any.
///
/// # Errors
/// One sentence: what is wrong with it.
pub fn caching_again(
    description: &VolumeDescription,
    size: Bytes,
    epoch: Epoch,
    disks: &Disks,
    decorator: Option<&Decorator>,
    clock: Clock,
) -> Result<Option<Opened>, String> {
    let Some(mut opened) = caching(description, size, disks, decorator)? else { return Ok(None) };
    let id = &description.id.0;
    match read_superblock(&mut *opened.volume, clock) {
        Ok(Some(superblock)) if superblock.epoch != epoch => {
            Err(format!("the volume {id} has been used for something else meanwhile"))
        }
        Ok(_) => Ok(Some(opened)),
        Err(error) => Err(format!("the volume {id} cannot be read: {error}")),
    }
}

/// Opens an attached volume where this machine has it. What was opened is checked, not what was found: the name of a
/// disk may be another disk's a moment later.
fn open_attached(
    description: &VolumeDescription,
    disks: &Disks,
    options: Options,
) -> Result<Option<FileVolume>, String> {
    let Some(path) = place_of(description, disks)? else { return Ok(None) };
    // Files have a place of our own, where a link was planted.
    let options = Options { no_links: description.serial.is_none() && !path.starts_with("/dev/disk"), ..options };
    let volume = open_patiently(&path, options)?;
    if let Some(serial) = &description.serial {
        disks.verify(volume.as_fd(), serial, description.size.get()).map_err(|error| error.to_string())?;
    }
    Ok(Some(volume))
}

/// Where a volume is attached: at its disk's serial, or else where its provider says.
fn place_of(description: &VolumeDescription, disks: &Disks) -> Result<Option<PathBuf>, String> {
    if let Some(serial) = &description.serial {
        return disks.find(serial).map_err(|error| error.to_string());
    }
    let missing = || format!("the volume {} is attached, but the provider does not say where", description.id.0);
    description.device.clone().map(Some).ok_or_else(missing)
}

/// Reads the superblock of an attached caching volume that nobody uses, from the medium.
///
/// # Errors
/// One sentence: it is not there, or cannot be opened or read.
pub fn superblock(
    description: &VolumeDescription,
    disks: &Disks,
    clock: Clock,
    decorator: Option<&Decorator>,
) -> Result<Option<Superblock>, String> {
    let options = Options { read_only: true, ..Options::default() };
    let absent = || format!("the disk of the volume {} is not on this machine", description.id.0);
    let volume = open_attached(description, disks, options)?.ok_or_else(absent)?;
    let path = volume.path().display().to_string();
    let mut volume: Box<dyn Volume> = Box::new(volume);
    if let Some(decorate) = decorator {
        volume = decorate(Purpose::Caching, volume);
    }
    read_superblock(&mut *volume, clock).map_err(|error| format!("{path} cannot be read: {error}"))
}

/// Reads both superblocks apart: one that cannot be read says nothing of the other.
fn read_superblock(volume: &mut dyn Volume, clock: Clock) -> io::Result<Option<Superblock>> {
    let block = BLOCK as usize;
    let mut area = vec![0; 2 * block];
    let mut failed = None;
    for (slot, bytes) in area.chunks_mut(block).enumerate() {
        let buffer = Buffer::zeroed(block);
        let memory = [buffer.slice(0, block)].into_iter().collect();
        let (offset, length) = ((slot * block) as u64, block as u64);
        match transfer(volume, VolumeIo { token: 0, operation: Operation::Read, offset, length, memory }, clock) {
            // SAFETY: the only I/O on this buffer has ended.
            Ok(()) => bytes.copy_from_slice(unsafe { buffer.bytes() }),
            Err(error) => failed = Some(error),
        }
    }
    match (format::choose_superblock(&area), failed) {
        (None, Some(error)) => Err(error),
        (superblock, _) => Ok(superblock),
    }
}

/// Carries out one I/O and waits for it.
fn transfer(volume: &mut dyn Volume, io: VolumeIo, clock: Clock) -> io::Result<()> {
    let poller = Poller::new()?;
    let watched = volume.descriptor().map(|descriptor| poller.add(descriptor, 0)).transpose()?.is_some();
    let give_up = clock.now() + READ_PATIENCE;
    volume.submit(clock.now(), io);
    let (mut completions, mut keys) = (Vec::new(), Vec::new());
    while clock.now() < give_up {
        volume.poll(clock.now(), &mut completions);
        if let Some(completion) = completions.pop() {
            return completion.result.map_err(io::Error::other);
        }
        let deadline = volume.next_deadline().map_or(give_up, |deadline| deadline.min(give_up));
        let wait = if watched { clock.until(Some(deadline)) } else { Some(Duration::from_millis(1)) };
        poller.wait(wait, &mut keys)?;
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"))
}
