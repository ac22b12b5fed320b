//! What is on caching volumes that nobody uses.

use std::io;

use surgetank_cache::format::{self, BLOCK, LogState, Superblock};
use surgetank_device::Volume;
use surgetank_device::discovery::Disks;
use surgetank_device::volume::Options;
use surgetank_provider::{Home, VolumeDescription, tag};
use surgetank_rental::owner::parse_epoch;
use surgetank_rental::{Label, Obstacle};

use super::stripe::Stripe;
use super::{Before, Decorator, Place, decorated, not_ours, read};
use crate::clock::Clock;

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
    /// Reads the superblock of an attached volume, from the medium. `home` is where its provider's volumes are found.
    ///
    /// # Errors
    /// One sentence: it is not there, or cannot be opened or read.
    pub fn superblock(&self, description: &VolumeDescription, home: &Home) -> Result<Option<Superblock>, Obstacle> {
        let (mut volume, path, _) = self.open(description, home)?;
        Ok(volume.log().superblock(self.clock).map_err(|error| format!("{path} cannot be read: {error}"))?)
    }

    /// Reads what an attached volume says of its log, from the medium. `None`: it has no superblock.
    ///
    /// # Errors
    /// As [`Looking::superblock`].
    pub fn label(&self, description: &VolumeDescription, home: &Home) -> Result<Option<Label>, Obstacle> {
        let (mut volume, path, place) = self.open(description, home)?;
        let unreadable = |error: io::Error| format!("{path} cannot be read: {error}");
        let mut log = volume.log();
        let found = log.superblock(self.clock).map_err(unreadable)?;
        // The tag is set after the superblock is durable: a disk that does not bear its epoch is not the volume's.
        let tagged = description.tags.get(tag::DIRTY_EPOCH).and_then(|tagged| parse_epoch(tagged));
        let bears = found.as_ref().map(|superblock| superblock.epoch);
        if let Some(disk) = place.without_a_serial()
            && tagged.is_some_and(|tagged| bears != Some(tagged))
        {
            return Err(not_ours(disk));
        }
        let Some(superblock) = found else { return Ok(None) };
        let (epoch, clean) = (superblock.epoch, superblock.state == LogState::Clean);
        let mut written = false;
        for offset in superblock.segment_offsets() {
            let head = log.read(offset, BLOCK as usize, self.clock).map_err(unreadable)?;
            written |= superblock.has_written(&head);
            if written || clean {
                break;
            }
        }
        Ok(Some(Label { epoch, clean, written }))
    }

    /// With what people call it, and where it is.
    fn open(&self, description: &VolumeDescription, home: &Home) -> Result<(Opened, String, Place), Obstacle> {
        let options = Options { read_only: true, ..Options::default() };
        let absent = || format!("the disk of the volume {} is not on this machine", description.id.0);
        let place = Place::of(description, home)?;
        let sizes = super::sizes(description, description.size);
        let volumes = place.open(&sizes, self.disks, options, Before::Unused)?.ok_or_else(absent)?;
        if let Place::Stripe(_) = place {
            let volumes = volumes.into_iter().map(|found| (found.name, decorated(found.volume, self.decorator)));
            let stripe = Stripe::assemble(volumes.collect(), self.clock)?;
            return Ok((Opened::Stripe(stripe), description.id.0.clone(), place));
        }
        let mut volumes = volumes.into_iter();
        let found = volumes.next().ok_or_else(absent)?;
        Ok((Opened::One(decorated(found.volume, self.decorator)), found.name, place))
    }
}

/// A volume that is looked at.
enum Opened {
    One(Box<dyn Volume>),
    Stripe(Stripe),
}

impl Opened {
    fn log(&mut self) -> Log<'_> {
        match self {
            Self::One(volume) => Log::One(&mut **volume),
            Self::Stripe(stripe) => Log::Stripe(stripe),
        }
    }
}

/// What a log is read from.
pub(super) enum Log<'a> {
    One(&'a mut dyn Volume),
    Stripe(&'a mut Stripe),
}

impl Log<'_> {
    fn read(&mut self, offset: u64, length: usize, clock: Clock) -> io::Result<Vec<u8>> {
        match self {
            Self::One(volume) => read(*volume, offset, length, clock),
            Self::Stripe(stripe) => stripe.read(offset, length, clock),
        }
    }

    /// Reads both superblocks apart: one that cannot be read says nothing of the other.
    pub(super) fn superblock(&mut self, clock: Clock) -> io::Result<Option<Superblock>> {
        let block = BLOCK as usize;
        let mut area = vec![0; 2 * block];
        let mut failed = None;
        for (slot, bytes) in area.chunks_mut(block).enumerate() {
            match self.read((slot * block) as u64, block, clock) {
                Ok(there) => bytes.copy_from_slice(&there),
                Err(error) => failed = Some(error),
            }
        }
        match (format::choose_superblock(&area), failed) {
            (None, Some(error)) => Err(error),
            (superblock, _) => Ok(superblock),
        }
    }
}
