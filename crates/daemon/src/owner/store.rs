//! The owner record of a device on disk, with the journal of what was healed of a loss, and that a flush has failed.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use surgetank_cache::{Epoch, Owner};
use surgetank_provider::VolumeId;

use surgetank_rental::OwnerRecord;

use super::record::{self, encode, loss};
use crate::crash::crash_point;
use crate::files::{self, Unreadable};
use crate::healed::{self, Id, Journal, Named, Pair};

/// The file's name in the device's state directory.
const FILE: &str = "owner.json";
/// Says that a flush has failed and that no application has been told so. In the device's state directory.
const FLUSH_FAILED: &str = "flush-failed.json";

/// The owner record of one device on disk.
#[derive(Debug)]
pub struct OwnerStore {
    directory: PathBuf,
    path: PathBuf,
    record: OwnerRecord,
    /// There was no file when it was opened.
    missing: bool,
    /// Of a loss, unless its record has none.
    journal: Option<Journal>,
    /// A write failed half-way: the file may hold that record instead of ours, or the journal an entry that it lacks.
    uncertain: bool,
}

impl OwnerStore {
    /// Reads the record in a device's state directory. A device without one was never boosted.
    ///
    /// # Errors
    /// If the file cannot be read or makes no sense: serving the device would then risk stale data.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let path = directory.join(FILE);
        let mut store = Self {
            directory: directory.to_owned(),
            path,
            record: OwnerRecord::default(),
            missing: false,
            journal: None,
            uncertain: false,
        };
        let Some(bytes) = files::read(&store.path)? else {
            store.missing = true;
            return Ok(store);
        };
        let length = bytes.len() as u64;
        let (record, named) = record::decode_with_journal(&bytes).map_err(|why| store.refused(&why))?;
        drop(bytes);
        files::make_durable(&store.path)?;
        store.record = record;
        if let (Owner::Lost { ranges, .. }, Some(named)) = (&mut store.record.owner, named) {
            let (journal, healed) = Journal::open(directory, named, length)?;
            if !healed.is_empty() {
                *ranges = healed::without(ranges, &healed::joined(healed)).collect();
            }
            store.journal = Some(journal);
        }
        Ok(store)
    }

    fn refused(&self, why: &Unreadable) -> io::Error {
        why.of("the owner record", &self.path)
    }

    /// The record. The ranges of a loss are in it from `open` on until [`OwnerStore::forget_ranges`], or until anything is
    /// written.
    #[must_use]
    pub fn record(&self) -> &OwnerRecord {
        &self.record
    }

    /// Whether there was no record: the device was never boosted, or the record was removed.
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.missing
    }

    /// Who wanted to know what is lost knows it.
    pub fn forget_ranges(&mut self) {
        self.record = self.record.in_short();
        if matches!(self.record.owner, Owner::Lost { .. }) {
            return_memory();
        }
    }

    /// Replaces the record, durably.
    ///
    /// # Errors
    /// Whatever the file system answers; the record is then as before (see [`OwnerStore::settle`]).
    pub fn persist(&mut self, record: OwnerRecord) -> io::Result<()> {
        let written = match &record.owner {
            Owner::Lost { epoch, ranges } => self
                .write_loss(*epoch, record.volume.as_ref(), || ranges.iter().copied())
                .map(|journal| self.journal = Some(journal)),
            Owner::Backing | Owner::Cache { .. } => files::write_atomically(&self.path, &encode(&record)).map(|()| {
                self.journal = None;
                Journal::remove(&self.directory);
            }),
        };
        match written {
            Ok(()) => {
                self.record = record.in_short();
                self.uncertain = false;
                Ok(())
            }
            Err(error) => {
                self.uncertain = true;
                // Usually this fails as well; then it is tried again before anything relies on the file.
                let _ = self.settle();
                Err(error)
            }
        }
    }

    /// Writes a loss with a new journal, which it answers.
    fn write_loss<I: Iterator<Item = Pair>>(
        &self,
        epoch: Epoch,
        volume: Option<&VolumeId>,
        ranges: impl Fn() -> I,
    ) -> io::Result<Journal> {
        let id = Id(rand::random());
        let written = loss(epoch, volume, Some(id), ranges);
        Journal::begin(&self.directory, id)?;
        let length = files::replace(&self.path, |file| Ok(serde_json::to_writer(file, &written)?))?;
        Journal::forget_others(&self.directory, Some(id));
        Ok(Journal::new(&self.directory, Named { id, is_there: true }, length))
    }

    /// Says of ranges that they are not lost any more, durably.
    ///
    /// # Errors
    /// Whatever the file system answers; any of them may then count as lost or not. Or if the record is of no such loss.
    pub fn record_healed(&mut self, epoch: Epoch, ranges: &[Pair]) -> io::Result<()> {
        match self.record.owner {
            Owner::Lost { epoch: of, .. } if of == epoch => {}
            // An earlier write that seemed to fail said so.
            Owner::Backing => return Ok(()),
            _ => return Err(io::Error::other("the owner record speaks of no such loss")),
        }
        if ranges.is_empty() {
            return Ok(());
        }
        if !self.uncertain
            && let Some(journal) = self.journal.as_mut().filter(|journal| !journal.has_ended())
        {
            match journal.append(ranges) {
                Ok(()) => return Ok(()),
                Err(error) => tracing::warn!(%error, "the record of what was healed is written anew"),
            }
        }
        self.uncertain = true;
        self.write_anew(ranges)
    }

    /// Whether a daemon before this one left it to us to tell an application that a flush has failed.
    ///
    /// # Errors
    /// If the file cannot be read, or a newer surgetank wrote it.
    pub fn owes_flush_failure(&self) -> io::Result<bool> {
        let path = self.directory.join(FLUSH_FAILED);
        let Some(bytes) = files::read(&path)? else { return Ok(false) };
        files::version(&bytes, 1).map(|_| true).map_err(|why| why.of("the note of a failed flush", &path))
    }

    /// Leaves that to the next one, or not any more.
    ///
    /// # Errors
    /// Whatever the file system answers.
    pub fn keep_flush_failure(&self, owed: bool) -> io::Result<()> {
        let path = self.directory.join(FLUSH_FAILED);
        if owed { files::write_atomically(&path, b"{\"version\": 1}\n") } else { files::remove(&path) }
    }

    /// Makes sure that the file holds the record.
    ///
    /// # Errors
    /// Whatever the file system answers.
    pub fn settle(&mut self) -> io::Result<()> {
        if !self.uncertain {
            return Ok(());
        }
        if matches!(self.record.owner, Owner::Lost { .. }) {
            return self.write_anew(&[]);
        }
        files::write_atomically(&self.path, &encode(&self.record))?;
        self.uncertain = false;
        Ok(())
    }

    /// Writes the record of a loss anew, less what the journal and `healed` say. Where it is in doubt what the file holds,
    /// either is right: nothing takes the place of a loss but what is left of it, and that nothing is lost any more.
    fn write_anew(&mut self, healed: &[Pair]) -> io::Result<()> {
        let written = serde_json::from_reader(BufReader::new(File::open(&self.path)?))?;
        let (record, named) = record::of(written).map_err(|why| self.refused(&why.into()))?;
        let Owner::Lost { epoch, ranges } = &record.owner else {
            files::write_atomically(&self.path, &encode(&record))?;
            Journal::remove(&self.directory);
            (self.record, self.journal, self.uncertain) = (record, None, false);
            return Ok(());
        };
        let mut before = match (named, &mut self.journal) {
            (Some(named), Some(journal)) if journal.is(named.id) => journal.load()?,
            (Some(named), _) => Journal::open(&self.directory, named, 0)?.1,
            (None, _) => Vec::new(),
        };
        before.extend(healed);
        let healed = healed::joined(before);
        crash_point("healed-anew", "before");
        self.uncertain = true;
        let journal = self.write_loss(*epoch, record.volume.as_ref(), || healed::without(ranges, &healed))?;
        crash_point("healed-anew", "after");
        (self.record, self.journal, self.uncertain) = (record.in_short(), Some(journal), false);
        drop((record, healed));
        return_memory();
        Ok(())
    }
}

/// Reading a long record leaves holes in the heap that are longer than all that stays.
fn return_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches nothing but what the allocator has free, under its own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}
