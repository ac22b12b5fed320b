//! Opens volumes: backing volumes as configured, caching volumes as the provider attached them, and reads what is on
//! them.
//!
//! - `place`: where a volume is found;
//! - `pool`: a volume that lies in a staging pool;
//! - `stripe`: a caching volume that is a stripe over several volumes;
//! - `looking`: what is on caching volumes that nobody uses.

mod looking;
mod place;
mod pool;
mod stripe;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::FileType;
use smallvec::{SmallVec, smallvec};
use surgetank_array::Geometry;
use surgetank_cache::Epoch;
use surgetank_device::discovery::Disks;
use surgetank_device::volume::throttle::{CreditMeter, Credits};
use surgetank_device::volume::{Holder, OpenError, Operation, Options};
use surgetank_device::{Buffer, FileVolume, MemoryVolume, Poller, Throttle, Volume, VolumeIo};
use surgetank_model::{Bytes, Limits};
use surgetank_provider::{DiskIdentity, VolumeDescription, VolumeId};
use surgetank_rental::{self as rental, Obstacle};

use crate::arrays::Arrays;
use crate::clock::Clock;
use crate::config::{Backing, DeviceConfig};
use looking::Log;

pub use looking::Looking;
pub use place::Place;

/// Decorates volumes as they are opened: fault injection in tests.
pub type Decorator = Arc<dyn Fn(Purpose, Box<dyn Volume>) -> Box<dyn Volume> + Send + Sync>;

/// What a volume is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It is a backing volume.
    Backing,
    /// It is a caching volume.
    Caching,
    /// It is a member of a read cache.
    ReadCache,
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

/// Opens the backing volume of a device; `exclusive`, unless somebody of ours holds it already. `arrays` opens an array.
///
/// # Errors
/// One sentence with the remedy.
pub fn backing(
    config: &DeviceConfig,
    clock: Clock,
    exclusive: bool,
    arrays: &Arrays,
) -> Result<Box<dyn Volume>, String> {
    let volume: Box<dyn Volume> = match &config.backing {
        Backing::Memory(size) => {
            let volume = MemoryVolume::new(size.get(), 512);
            Box::new(volume.map_err(|error| format!("a backing volume of {size} in memory cannot be made: {error}"))?)
        }
        Backing::Array(name) => arrays.open(name)?,
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

/// Holds a volume to limits and to burst credits, which can be read while it is used.
#[must_use]
pub fn on_credits(
    volume: Box<dyn Volume>,
    limits: Limits,
    credits: &[Credits],
    clock: Clock,
) -> (Box<dyn Volume>, CreditMeter) {
    if credits.is_empty() {
        return (throttled(volume, limits, clock), CreditMeter::default());
    }
    let now = clock.now();
    let mut volume = Throttle::new(volume, limits, now);
    let meter = volume.set_credits(credits, now);
    (Box::new(volume), meter)
}

/// Which disk or file something is, or which several are: a disk's number, or a file's file system and inode. The number of a
/// disk that was pulled is not given to another one before the disk is closed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity(SmallVec<[(u64, u64); 1]>);

impl Identity {
    /// What is at a path, if anything is.
    #[must_use]
    pub fn at(path: &Path) -> Option<Self> {
        rustix::fs::stat(path).ok().as_ref().map(Self::of)
    }

    /// Whether it is a file: who has it open can use it although it has no name any more.
    #[must_use]
    pub fn is_file(&self) -> bool {
        self.0.iter().all(|(_, inode)| *inode != 0)
    }

    fn of(status: &rustix::fs::Stat) -> Self {
        Self(smallvec![match FileType::from_raw_mode(status.st_mode) {
            FileType::BlockDevice => (status.st_rdev, 0),
            _ => (status.st_dev, status.st_ino),
        }])
    }

    fn of_all(identities: impl IntoIterator<Item = Self>) -> Self {
        Self(identities.into_iter().flat_map(|identity| identity.0).collect())
    }
}

/// One of the provider's volumes that was opened.
struct Found {
    volume: Box<dyn Volume>,
    /// What people call it.
    name: String,
    identity: Identity,
}

impl Found {
    fn of(volume: FileVolume) -> Result<Self, String> {
        let (name, identity) = (volume.path().display().to_string(), Identity::of(&status_of(&volume)?));
        Ok(Self { volume: Box::new(volume), name, identity })
    }
}

fn status_of(volume: &FileVolume) -> Result<rustix::fs::Stat, String> {
    rustix::fs::fstat(volume).map_err(|error| format!("{} cannot be looked at: {error}", volume.path().display()))
}

/// The sizes of the provider's volumes that a volume of this size consists of. Those of a stripe may be larger than it needs, if
/// some have grown and others not.
#[must_use]
pub fn sizes(description: &VolumeDescription, size: Bytes) -> Vec<Bytes> {
    match rental::stripe::is_stripe(&description.id) {
        true => description.members.iter().map(|member| member.size).collect(),
        false => vec![size],
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
    /// How it is divided, if it is a stripe.
    pub geometry: Option<Geometry>,
}

/// What is on a volume that was just rented.
pub enum Fresh {
    /// Nothing.
    Blank(Opened),
    /// Something, so it is somebody's. It is closed, and nothing was written.
    Used,
}

/// Opens caching volumes for the engine.
#[derive(Clone)]
pub struct Opener {
    /// The disks of this machine.
    pub disks: Disks,
    /// The daemon's clock.
    pub clock: Clock,
    /// Decorates volumes, in tests.
    pub decorator: Option<Decorator>,
    /// What each volume of the provider is held to.
    pub throttle: Limits,
}

impl Opener {
    /// Opens an attached caching volume for the engine alone, after making sure that it is the one that was asked for; `sizes` are
    /// those of the provider's volumes. `None`: a disk has not appeared on this machine yet.
    ///
    /// # Errors
    /// One sentence: what is wrong with it.
    pub fn caching(&self, place: &Place, sizes: &[Bytes]) -> Result<Option<Opened>, Obstacle> {
        let volumes = place.open(sizes, &self.disks, Options::default(), Before::Unused)?;
        volumes.map(|volumes| self.opened(volumes, place, |_| Ok(()))).transpose()
    }

    /// As [`Opener::caching`], for a volume on which a log may be: a disk without a serial may be another one that has the name or the
    /// number of ours, so it must bear the attachment's `epoch`.
    ///
    /// # Errors
    /// One sentence: what is wrong with it.
    pub fn caching_used(
        &self,
        place: &Place,
        sizes: &[Bytes],
        epoch: Option<Epoch>,
    ) -> Result<Option<Opened>, Obstacle> {
        let volumes = place.open(sizes, &self.disks, Options::default(), Before::Unused)?;
        let is_ours = |log: &mut Log<'_>| {
            let Some(disk) = place.without_a_serial() else { return Ok(()) };
            match log.superblock(self.clock) {
                Ok(Some(superblock)) if epoch == Some(superblock.epoch) => Ok(()),
                Ok(_) => Err(not_ours(disk)),
                Err(error) => Err(format!("the disk with {disk} cannot be read: {error}").into()),
            }
        };
        volumes.map(|volumes| self.opened(volumes, place, is_ours)).transpose()
    }

    /// As [`Opener::caching`], for a volume that was just rented: the first and the last MiB of each of the provider's volumes must
    /// hold nothing but zeroes. They become a stripe if there are several.
    ///
    /// # Errors
    /// One sentence: what is wrong with it.
    pub fn caching_fresh(&self, place: &Place, sizes: &[Bytes]) -> Result<Option<Fresh>, Obstacle> {
        let Some(mut volumes) = place.open(sizes, &self.disks, Options::default(), Before::Unused)? else {
            return Ok(None);
        };
        let mut blank = 0;
        for Found { volume, name, .. } in &mut volumes {
            let length = volume.size();
            let read = |offset, length| read(&mut **volume, offset, length, self.clock);
            let is_blank = ends_are_blank(length, read);
            let is_blank = is_blank.map_err(|error| format!("{name} cannot be read: {error}"))?;
            blank += usize::from(is_blank);
        }
        let identity = identity(&volumes);
        let (all, none) = (blank == volumes.len(), blank == 0);
        let opened = match place {
            Place::Stripe(_) if all => Some(self.serve(self.format(volumes)?, place, identity)?),
            // What was made a stripe before, and not used since, is none that somebody else uses.
            Place::Stripe(_) if none => match self.blank_stripe(volumes) {
                Some(stripe) => Some(self.serve(stripe, place, identity)?),
                None => None,
            },
            Place::Stripe(_) => None,
            Place::Disk(_) | Place::File { .. } | Place::Pool { .. } if all => {
                Some(self.opened(volumes, place, |_| Ok(()))?)
            }
            Place::Disk(_) | Place::File { .. } | Place::Pool { .. } => None,
        };
        Ok(Some(opened.map_or(Fresh::Used, Fresh::Blank)))
    }

    /// As [`Opener::caching`], for a volume that was in use: it must be readable, and bear the attachment's epoch as far as it
    /// bears any.
    ///
    /// # Errors
    /// One sentence: what is wrong with it.
    pub fn caching_again(
        &self,
        place: &Place,
        id: &VolumeId,
        sizes: &[Bytes],
        epoch: Epoch,
    ) -> Result<Option<Opened>, Obstacle> {
        let volumes = place.open(sizes, &self.disks, Options::default(), Before::Ours)?;
        let VolumeId(id) = id;
        let bears_epoch = |log: &mut Log<'_>| match log.superblock(self.clock) {
            Ok(Some(superblock)) if superblock.epoch != epoch => {
                Err(format!("the volume {id} has been used for something else meanwhile").into())
            }
            Ok(None) if let Some(disk) = place.without_a_serial() => {
                Err(format!("the disk with {disk} does not bear the epoch of the volume {id}, so it may be another")
                    .into())
            }
            Ok(_) => Ok(()),
            Err(error) => Err(format!("the volume {id} cannot be read: {error}").into()),
        };
        volumes.map(|volumes| self.opened(volumes, place, bears_epoch)).transpose()
    }

    /// What the engine is given, once `check` has seen what is on it.
    fn opened(
        &self,
        volumes: Vec<Found>,
        place: &Place,
        check: impl FnOnce(&mut Log<'_>) -> Result<(), Obstacle>,
    ) -> Result<Opened, Obstacle> {
        let identity = identity(&volumes);
        if matches!(place, Place::Stripe(_)) {
            let mut stripe = self.assemble(volumes)?;
            check(&mut Log::Stripe(&mut stripe))?;
            return self.serve(stripe, place, identity);
        }
        let found = volumes.into_iter().next().ok_or_else(|| "there is no volume".to_owned())?;
        let mut volume = self.dressed(found.volume);
        check(&mut Log::One(&mut *volume))?;
        Ok(Opened { volume, place: place.clone(), identity, geometry: None })
    }

    /// A volume of the provider, decorated and held to its limits.
    fn dressed(&self, volume: Box<dyn Volume>) -> Box<dyn Volume> {
        throttled(decorated(volume, self.decorator.as_ref()), self.throttle, self.clock)
    }
}

/// A disk without a serial does not show that it is the one that is in use.
fn not_ours(disk: &DiskIdentity) -> Obstacle {
    format!(
        "the disk with {disk} does not bear the epoch of the volume, so it may be another: nothing was written to it"
    )
    .into()
}

/// What was opened.
fn identity(volumes: &[Found]) -> Identity {
    Identity::of_all(volumes.iter().map(|found| found.identity.clone()))
}

/// Whether both ends of a volume of this size read as zeroes.
fn ends_are_blank(size: u64, mut read: impl FnMut(u64, usize) -> io::Result<Vec<u8>>) -> io::Result<bool> {
    let length = size.min(PROBE);
    for offset in [0, size - length] {
        if read(offset, length as usize)?.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn decorated(volume: Box<dyn Volume>, decorator: Option<&Decorator>) -> Box<dyn Volume> {
    match decorator {
        Some(decorate) => decorate(Purpose::Caching, volume),
        None => volume,
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
