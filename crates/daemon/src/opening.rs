//! Opens volumes: backing volumes as configured, caching volumes as the provider attached them, and reads what is on
//! them.

use std::io;
use std::os::fd::AsFd;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::FileType;
use rustix::io::Errno;
use surgetank_cache::Epoch;
use surgetank_cache::format::{self, BLOCK, LogState, Superblock};
use surgetank_device::discovery::Disks;
use surgetank_device::volume::{Holder, OpenError, Operation, Options, look_beneath};
use surgetank_device::{Buffer, FileVolume, MemoryVolume, Poller, Throttle, Volume, VolumeIo};
use surgetank_model::{Bytes, Limits};
use surgetank_provider::{VolumeDescription, VolumeId};
use surgetank_rental::{Label, Obstacle};

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
const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
/// How long volumes may be held after the process that held them was last seen: until its I/O in flight has ended.
const LINGER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a read may take.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// How much of either end of a volume must be blank when it was just rented, in bytes: where file systems, partition tables,
/// RAIDs and our own logs begin or end.
const PROBE: u64 = 1 << 20;

/// Opens the backing volume of a device; `exclusive`, unless somebody of ours holds it already.
///
/// # Errors
/// One sentence with the remedy.
pub fn backing(config: &DeviceConfig, clock: Clock, exclusive: bool) -> Result<Box<dyn Volume>, String> {
    let volume: Box<dyn Volume> = match &config.backing {
        Backing::Memory(size) => {
            let volume = MemoryVolume::new(size.get(), 512);
            Box::new(volume.map_err(|error| format!("a backing volume of {size} in memory cannot be made: {error}"))?)
        }
        Backing::Path(path) => {
            let options = Options { exclusive, ..Options::default() };
            let volume = open_patiently(|| FileVolume::open(path, options));
            let volume = volume.map_err(|error| error.to_string())?;
            for note in volume.notes() {
                tracing::info!("{note}");
            }
            Box::new(volume)
        }
    };
    Ok(if config.backing_throttle { throttled(volume, config.backing_limits, clock) } else { volume })
}

/// Opens a volume that a killed process may still hold for a moment.
fn open_patiently(open: impl Fn() -> Result<FileVolume, OpenError>) -> Result<FileVolume, OpenError> {
    let begun = std::time::Instant::now();
    loop {
        let patience = |holder| if holder == Holder::Unseen { LINGER_TIMEOUT } else { LOCK_TIMEOUT };
        match open() {
            // A dying holder releases it by itself; a living one is named in the end.
            Err(OpenError::InUse { holder, .. }) if begun.elapsed() < patience(holder) => {
                std::thread::sleep(Duration::from_millis(20));
            }
            opened => return opened,
        }
    }
}

/// Whose a caching volume is that is opened.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// Nobody's of this process.
    Unused,
    /// This process had it in use: I/O of ours that does not end may still hold it.
    Ours,
}

impl Before {
    /// What it means that the volume cannot be opened. Who is not seen may be in another container.
    fn obstacle(self, error: &OpenError) -> Obstacle {
        match (error, self) {
            (OpenError::InUse { holder: Holder::Another, .. }, _)
            | (OpenError::InUse { holder: Holder::Unseen, .. }, Self::Unused) => Obstacle::Held(error.to_string()),
            _ => Obstacle::Failed(error.to_string()),
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity(u64, u64);

impl Identity {
    /// What is at a path, if anything is.
    #[must_use]
    pub fn at(path: &Path) -> Option<Self> {
        rustix::fs::stat(path).ok().as_ref().map(Self::of)
    }

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

/// Where to look for a caching volume. A provider never chooses a path: it names a disk's serial, or a file beneath a
/// directory that its configuration has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The disk that shows this serial.
    Disk {
        /// The serial.
        serial: String,
    },
    /// A file of this machine.
    File {
        /// Beneath what.
        directory: PathBuf,
        /// Its name there, without links and without `..`.
        name: PathBuf,
    },
}

impl Place {
    /// Where an attached volume is, by what its provider says of it; `files` are where its files may lie.
    ///
    /// # Errors
    /// One sentence with the remedy: it is no place that a volume can have.
    pub fn of(description: &VolumeDescription, files: Option<&Path>) -> Result<Self, String> {
        let id = &description.id.0;
        match (&description.serial, &description.device) {
            (Some(serial), _) => Ok(Self::Disk { serial: serial.clone() }),
            (None, None) => Err(format!("the volume {id} is attached, but the provider does not say where")),
            (None, Some(device)) => match files {
                Some(directory) => match name_beneath(directory, device) {
                    Some(name) => Ok(Self::File { directory: directory.to_owned(), name }),
                    None => Err(format!(
                        "the provider says that the volume {id} is the file {device:?}, which is not beneath {}, where its \
                         files may lie: fix the service, or files = \"…\" of [provider.host]",
                        directory.display()
                    )),
                },
                None => Err(format!(
                    "the provider says that the volume {id} is at {device:?} and names no serial of a disk: let the service \
                     say the serial, or if it rents out files of this machine add files = \"/their/directory\" to \
                     [provider.host]"
                )),
            },
        }
    }

    /// Which disk or file is there now; `None`: none.
    ///
    /// # Errors
    /// It cannot be told.
    pub fn look(&self, disks: &Disks) -> Result<Option<Identity>, String> {
        let status = match self {
            Self::Disk { serial } => match disks.find(serial).map_err(|error| error.to_string())? {
                Some(path) => rustix::fs::stat(&path).map_err(io::Error::from),
                None => return Ok(None),
            },
            Self::File { directory, name } => {
                look_beneath(directory, name).and_then(|found| Ok(rustix::fs::fstat(&found)?))
            }
        };
        match status {
            Ok(status) => Ok(Some(Identity::of(&status))),
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NOENT | Errno::NOTDIR | Errno::NXIO | Errno::NODEV) => Ok(None),
                _ => Err(error.to_string()),
            },
        }
    }

    /// Opens what is there, and makes sure of what was opened, not of what was found: the name of a disk may be another
    /// disk's a moment later. `None`: the disk is not there (yet).
    fn open(
        &self,
        size: Bytes,
        disks: &Disks,
        options: Options,
        before: Before,
    ) -> Result<Option<FileVolume>, Obstacle> {
        match self {
            Self::Disk { serial } => {
                let Some(path) = disks.find(serial).map_err(|error| error.to_string())? else { return Ok(None) };
                let volume =
                    open_patiently(|| FileVolume::open(&path, options)).map_err(|error| before.obstacle(&error))?;
                disks.verify(volume.as_fd(), serial, size.get()).map_err(|error| error.to_string())?;
                Ok(Some(volume))
            }
            Self::File { directory, name } => {
                let volume = open_patiently(|| FileVolume::open_beneath(directory, name, options));
                let volume = volume.map_err(|error| before.obstacle(&error))?;
                let (path, bytes) = (volume.path().display(), status_of(&volume)?.st_size);
                if u64::try_from(bytes) != Ok(size.get()) {
                    let why = format!("{path} has {bytes} bytes instead of the {} that were rented", size.get());
                    return Err(why.into());
                }
                Ok(Some(volume))
            }
        }
    }
}

/// What `path` is called beneath `directory`, if it is there by its words alone.
fn name_beneath(directory: &Path, path: &Path) -> Option<PathBuf> {
    let name = path.strip_prefix(directory).ok()?;
    let plain = name.components().all(|component| matches!(component, Component::Normal(_)));
    (plain && !name.as_os_str().is_empty()).then(|| name.to_owned())
}

fn status_of(volume: &FileVolume) -> Result<rustix::fs::Stat, String> {
    rustix::fs::fstat(volume).map_err(|error| format!("{} cannot be looked at: {error}", volume.path().display()))
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

/// Opens an attached caching volume of this size for the engine alone, after making sure that it is the one that was
/// asked for. `None`: its disk has not appeared on this machine yet.
///
/// # Errors
/// One sentence: what is wrong with it.
pub fn caching(
    place: &Place,
    size: Bytes,
    disks: &Disks,
    decorator: Option<&Decorator>,
) -> Result<Option<Opened>, Obstacle> {
    open_as(place, size, disks, decorator, Before::Unused)
}

fn open_as(
    place: &Place,
    size: Bytes,
    disks: &Disks,
    decorator: Option<&Decorator>,
    before: Before,
) -> Result<Option<Opened>, Obstacle> {
    let volume = place.open(size, disks, Options::default(), before)?;
    volume.map(|volume| opened(volume, place, decorator)).transpose()
}

/// What is on a volume that was just rented.
pub enum Fresh {
    /// Nothing.
    Blank(Opened),
    /// Something, so it is somebody's. It is closed, and nothing was written.
    Used,
}

/// As [`caching`], for a volume that was just rented: the first and the last MiB of it must hold nothing but zeroes.
///
/// # Errors
/// One sentence: what is wrong with it.
pub fn caching_fresh(
    place: &Place,
    size: Bytes,
    disks: &Disks,
    decorator: Option<&Decorator>,
    clock: Clock,
) -> Result<Option<Fresh>, Obstacle> {
    let Some(mut volume) = place.open(size, disks, Options::default(), Before::Unused)? else { return Ok(None) };
    let length = volume.size().min(PROBE);
    for offset in [0, volume.size() - length] {
        let bytes = read(&mut volume, offset, length as usize, clock);
        let bytes = bytes.map_err(|error| format!("{} cannot be read: {error}", volume.path().display()))?;
        if bytes.iter().any(|byte| *byte != 0) {
            return Ok(Some(Fresh::Used));
        }
    }
    opened(volume, place, decorator).map(|opened| Some(Fresh::Blank(opened)))
}

fn opened(volume: FileVolume, place: &Place, decorator: Option<&Decorator>) -> Result<Opened, Obstacle> {
    let identity = Identity::of(&status_of(&volume)?);
    Ok(Opened { volume: decorated(volume, decorator), place: place.clone(), identity })
}

fn decorated(volume: FileVolume, decorator: Option<&Decorator>) -> Box<dyn Volume> {
    let volume: Box<dyn Volume> = Box::new(volume);
    match decorator {
        Some(decorate) => decorate(Purpose::Caching, volume),
        None => volume,
    }
}

/// As [`caching`], for a volume that was in use: it must be readable, and bear the attachment's epoch as far as it bears
/// any.
///
/// # Errors
/// One sentence: what is wrong with it.
pub fn caching_again(
    place: &Place,
    id: &VolumeId,
    size: Bytes,
    epoch: Epoch,
    disks: &Disks,
    decorator: Option<&Decorator>,
    clock: Clock,
) -> Result<Option<Opened>, Obstacle> {
    let Some(mut opened) = open_as(place, size, disks, decorator, Before::Ours)? else { return Ok(None) };
    let VolumeId(id) = id;
    match read_superblock(&mut *opened.volume, clock) {
        Ok(Some(superblock)) if superblock.epoch != epoch => {
            Err(format!("the volume {id} has been used for something else meanwhile").into())
        }
        Ok(_) => Ok(Some(opened)),
        Err(error) => Err(format!("the volume {id} cannot be read: {error}").into()),
    }
}

/// With what caching volumes are looked at that nobody uses.
pub struct Looking<'a> {
    /// The disks of this machine.
    pub disks: &'a Disks,
    /// The daemon's clock.
    pub clock: Clock,
    /// Decorates volumes, in tests.
    pub decorator: Option<&'a Decorator>,
}

impl Looking<'_> {
    /// Reads the superblock of an attached volume, from the medium. `files` is where volumes lie that are files.
    ///
    /// # Errors
    /// One sentence: it is not there, or cannot be opened or read.
    pub fn superblock(
        &self,
        description: &VolumeDescription,
        files: Option<&Path>,
    ) -> Result<Option<Superblock>, Obstacle> {
        let (mut volume, path) = self.open(description, files)?;
        Ok(read_superblock(&mut *volume, self.clock).map_err(|error| format!("{path} cannot be read: {error}"))?)
    }

    /// Reads what an attached volume says of its log, from the medium. `None`: it has no superblock.
    ///
    /// # Errors
    /// As [`Looking::superblock`].
    pub fn label(&self, description: &VolumeDescription, files: Option<&Path>) -> Result<Option<Label>, Obstacle> {
        let (mut volume, path) = self.open(description, files)?;
        let unreadable = |error: io::Error| format!("{path} cannot be read: {error}");
        let found = read_superblock(&mut *volume, self.clock).map_err(unreadable)?;
        let Some(superblock) = found else { return Ok(None) };
        let (epoch, clean) = (superblock.epoch, superblock.state == LogState::Clean);
        let mut written = false;
        for offset in superblock.segment_offsets() {
            let head = read(&mut *volume, offset, BLOCK as usize, self.clock).map_err(unreadable)?;
            written |= superblock.has_written(&head);
            if written || clean {
                break;
            }
        }
        Ok(Some(Label { epoch, clean, written }))
    }

    fn open(
        &self,
        description: &VolumeDescription,
        files: Option<&Path>,
    ) -> Result<(Box<dyn Volume>, String), Obstacle> {
        let options = Options { read_only: true, ..Options::default() };
        let absent = || format!("the disk of the volume {} is not on this machine", description.id.0);
        let place = Place::of(description, files)?;
        let volume = place.open(description.size, self.disks, options, Before::Unused)?.ok_or_else(absent)?;
        let path = volume.path().display().to_string();
        Ok((decorated(volume, self.decorator), path))
    }
}

/// Reads both superblocks apart: one that cannot be read says nothing of the other.
fn read_superblock(volume: &mut dyn Volume, clock: Clock) -> io::Result<Option<Superblock>> {
    let block = BLOCK as usize;
    let mut area = vec![0; 2 * block];
    let mut failed = None;
    for (slot, bytes) in area.chunks_mut(block).enumerate() {
        match read(volume, (slot * block) as u64, block, clock) {
            Ok(there) => bytes.copy_from_slice(&there),
            Err(error) => failed = Some(error),
        }
    }
    match (format::choose_superblock(&area), failed) {
        (None, Some(error)) => Err(error),
        (superblock, _) => Ok(superblock),
    }
}

/// Reads a range, of whole blocks.
fn read(volume: &mut dyn Volume, offset: u64, length: usize, clock: Clock) -> io::Result<Vec<u8>> {
    let buffer = Buffer::zeroed(length);
    let memory = [buffer.slice(0, length)].into_iter().collect();
    let io = VolumeIo { token: 0, operation: Operation::Read, offset, length: length as u64, memory };
    transfer(volume, io, clock)?;
    // SAFETY: the only I/O on this buffer has ended.
    Ok(unsafe { buffer.bytes() }.to_vec())
}

/// Carries out one I/O and waits for it.
fn transfer(volume: &mut dyn Volume, io: VolumeIo, clock: Clock) -> io::Result<()> {
    let poller = Poller::new()?;
    let watched = volume.descriptor().map(|descriptor| poller.add(descriptor, 0)).transpose()?.is_some();
    let until = clock.now() + READ_TIMEOUT;
    volume.submit(clock.now(), io);
    let (mut completions, mut keys) = (Vec::new(), Vec::new());
    while clock.now() < until {
        volume.poll(clock.now(), &mut completions);
        if let Some(completion) = completions.pop() {
            return completion.result.map_err(io::Error::other);
        }
        let deadline = volume.next_deadline().map_or(until, |deadline| deadline.min(until));
        let wait = if watched { clock.until(Some(deadline)) } else { Some(Duration::from_millis(1)) };
        poller.wait(wait, &mut keys)?;
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "no answer"))
}
