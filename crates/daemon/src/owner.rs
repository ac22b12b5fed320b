//! Where the newest data of a device is: the owner record in the state directory and the tag on the caching volume.
//!
//! The order is what makes them safe. Before anything is dirty: tag, then record. Once nothing is: record, then tag.
//! So a volume without the tag holds nothing, and a record that says `Backing` is always right.
//!
//! A record of a loss lists what was lost when it was written; [`crate::healed`] says what was healed since. It may be
//! long: its ranges are in memory only while it is read or written.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, unbounded};
use serde::{Deserialize, Serialize};
use surgetank_cache::{EffectId, Epoch, Owner};
use surgetank_provider::{Provider, VolumeId, tag};

use crate::crash::crash_point;
use crate::files;
use crate::healed::{self, Id, Journal, Pair};
use crate::patient::Patient;
use crate::shard::{Command, ShardHandle};

/// The file's name in the device's state directory.
const FILE: &str = "owner.json";
/// Version 1 had no journal beside a loss. Other records are as they were, and say so.
const VERSION: u32 = 2;
const VERSION_WITHOUT_JOURNAL: u32 = 1;
/// Says that a flush has failed and that no application has been told so. In the device's state directory.
const FLUSH_FAILED: &str = "flush-failed.json";

/// An owner record with the volume that it speaks of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerRecord {
    /// Where the newest data is.
    pub owner: Owner,
    /// The caching volume of `Cache` and `Lost`, or of the attachment that has ended.
    pub volume: Option<VolumeId>,
    /// With `Backing`: the attachment that has ended last. Nothing on it counts any more.
    pub ended: Option<Epoch>,
}

/// As it is written.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    version: u32,
    owner: Kind,
    /// Of `Cache` and `Lost`; of `Backing` the one that has ended. Older builds leave it out there, and pass over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    epoch: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    volume: Option<VolumeId>,
    /// The journal of what was healed since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    journal: Option<String>,
    /// Offset and length in bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lost_ranges: Vec<Pair>,
}

/// A loss as it is written, range by range.
#[derive(Serialize)]
struct LossWritten<'a, R> {
    version: u32,
    owner: Kind,
    epoch: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    volume: Option<&'a VolumeId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    journal: Option<String>,
    lost_ranges: R,
}

/// Ranges that are made while they are written.
struct Ranges<F>(F);

impl<F: Fn() -> I, I: Iterator<Item = Pair>> Serialize for Ranges<F> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Backing,
    Cache,
    Lost,
}

impl OwnerRecord {
    /// The record as its file holds it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (owner, epoch) = match &self.owner {
            Owner::Backing => (Kind::Backing, self.ended.map(|epoch| epoch.to_string())),
            Owner::Cache { epoch } => (Kind::Cache, Some(epoch.to_string())),
            Owner::Lost { epoch, ranges } => {
                let written = loss(*epoch, self.volume.as_ref(), None, || ranges.iter().copied());
                return serde_json::to_vec(&written).expect("a record of strings and numbers is always JSON");
            }
        };
        let version = VERSION_WITHOUT_JOURNAL;
        let volume = self.volume.clone();
        let written = Written { version, owner, epoch, volume, journal: None, lost_ranges: Vec::new() };
        serde_json::to_vec_pretty(&written).expect("a record of strings and numbers is always JSON")
    }

    /// Reads what a file holds.
    ///
    /// # Errors
    /// Why it is no record that can be read, as the end of a sentence.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        Self::decode_with_journal(bytes).map(|(record, _)| record)
    }

    fn decode_with_journal(bytes: &[u8]) -> Result<(Self, Option<Id>), String> {
        files::version(bytes, VERSION)?;
        Self::of(serde_json::from_slice(bytes).map_err(|error| format!("is damaged: {error}"))?)
    }

    fn of(written: Written) -> Result<(Self, Option<Id>), String> {
        let not_an_epoch = "is damaged: its epoch is not 32 hex digits";
        let epoch = written.epoch.as_deref().map(|text| parse_epoch(text).ok_or(not_an_epoch));
        let epoch = epoch.transpose()?;
        let ended = epoch.filter(|_| written.owner == Kind::Backing);
        let owner = match (written.owner, epoch) {
            (Kind::Backing, _) => Owner::Backing,
            (Kind::Cache, Some(epoch)) => Owner::Cache { epoch },
            (Kind::Lost, Some(epoch)) => Owner::Lost { epoch, ranges: written.lost_ranges },
            (Kind::Cache | Kind::Lost, None) => return Err("is damaged: its epoch is missing".to_owned()),
        };
        let not_a_journal = "is damaged: its journal is not 32 hex digits";
        let journal = written.journal.map(|text| parse_epoch(&text).map(|name| Id(name.0)).ok_or(not_a_journal));
        Ok((Self { owner, volume: written.volume, ended }, journal.transpose()?))
    }

    /// The record after the data of this one was given up, or is on the backing volume.
    #[must_use]
    pub fn ended(self) -> Self {
        let ended = match self.owner {
            Owner::Backing => self.ended,
            Owner::Cache { epoch } | Owner::Lost { epoch, .. } => Some(epoch),
        };
        Self { owner: Owner::Backing, volume: self.volume, ended }
    }

    /// Whether this attachment of this volume has ended: whatever is on it may be deleted.
    #[must_use]
    pub fn has_ended(&self, volume: &VolumeId, epoch: Epoch) -> bool {
        self.owner == Owner::Backing && self.volume.as_ref() == Some(volume) && self.ended == Some(epoch)
    }

    /// Without the ranges of a loss.
    fn in_short(&self) -> Self {
        let owner = match self.owner {
            Owner::Lost { epoch, .. } => Owner::Lost { epoch, ranges: Vec::new() },
            ref owner => owner.clone(),
        };
        Self { owner, volume: self.volume.clone(), ended: self.ended }
    }
}

fn loss<F: Fn() -> I, I: Iterator<Item = Pair>>(
    epoch: Epoch,
    volume: Option<&VolumeId>,
    journal: Option<Id>,
    ranges: F,
) -> LossWritten<'_, Ranges<F>> {
    let journal = journal.map(|Id(name)| Epoch(name).to_string());
    LossWritten {
        version: VERSION,
        owner: Kind::Lost,
        epoch: epoch.to_string(),
        volume,
        journal,
        lost_ranges: Ranges(ranges),
    }
}

/// Reads an epoch as it is written: 32 hex digits.
#[must_use]
pub fn parse_epoch(text: &str) -> Option<Epoch> {
    let mut epoch = Epoch::default();
    // `from_str_radix` would take a sign as well.
    if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    for (index, byte) in epoch.0.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * index..2 * index + 2], 16).ok()?;
    }
    Some(epoch)
}

/// The owner record of one device on disk.
#[derive(Debug)]
pub struct OwnerStore {
    directory: PathBuf,
    path: PathBuf,
    record: OwnerRecord,
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
            journal: None,
            uncertain: false,
        };
        let Some(bytes) = files::read(&store.path)? else { return Ok(store) };
        let length = bytes.len() as u64;
        let (record, journal) = OwnerRecord::decode_with_journal(&bytes).map_err(|why| store.damaged(&why))?;
        drop(bytes);
        files::make_durable(&store.path)?;
        store.record = record;
        if let (Owner::Lost { ranges, .. }, Some(id)) = (&mut store.record.owner, journal) {
            let (journal, healed) = Journal::open(directory, id, length)?;
            if !healed.is_empty() {
                *ranges = healed::without(ranges, &healed::joined(healed)).collect();
            }
            store.journal = Some(journal);
        }
        Ok(store)
    }

    fn damaged(&self, why: &str) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, format!("the owner record {} {why}", self.path.display()))
    }

    /// The record. The ranges of a loss are in it from `open` on until [`OwnerStore::forget_ranges`], or until anything is
    /// written.
    #[must_use]
    pub fn record(&self) -> &OwnerRecord {
        &self.record
    }

    /// Who wanted to know what is lost knows it.
    pub fn forget_ranges(&mut self) {
        self.record = self.record.in_short();
        if matches!(self.record.owner, Owner::Lost { .. }) {
            give_memory_back();
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
            Owner::Backing | Owner::Cache { .. } => files::write_atomically(&self.path, &record.encode()).map(|()| {
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
        let length = files::replace(&self.path, |file| Ok(serde_json::to_writer(file, &written)?))?;
        Ok(Journal::new(&self.directory, id, length))
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
        let refused = |why| io::Error::new(io::ErrorKind::InvalidData, format!("{} {why}", path.display()));
        files::version(&bytes, 1).map(|_| true).map_err(refused)
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
        files::write_atomically(&self.path, &self.record.encode())?;
        self.uncertain = false;
        Ok(())
    }

    /// Writes the record of a loss anew, less what the journal and `healed` say. Where it is in doubt what the file holds,
    /// either is right: nothing takes the place of a loss but what is left of it, and that nothing is lost any more.
    fn write_anew(&mut self, healed: &[Pair]) -> io::Result<()> {
        let written = serde_json::from_reader(BufReader::new(File::open(&self.path)?))?;
        let (record, id) = OwnerRecord::of(written).map_err(|why| self.damaged(&why))?;
        let Owner::Lost { epoch, ranges } = &record.owner else {
            files::write_atomically(&self.path, &record.encode())?;
            Journal::remove(&self.directory);
            (self.record, self.journal, self.uncertain) = (record, None, false);
            return Ok(());
        };
        let mut before = match (id, &mut self.journal) {
            (Some(id), Some(journal)) if journal.is(id) => journal.load()?,
            (Some(id), _) => Journal::open(&self.directory, id, 0)?.1,
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
        give_memory_back();
        Ok(())
    }
}

/// Reading a long record leaves holes in the heap that are longer than all that stays.
fn give_memory_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: it touches nothing but what the allocator has free, under its own locks.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// What a shard has to have on record.
#[derive(Debug)]
pub enum Entry {
    /// Where the newest data is. Answered.
    Owner {
        /// The engine's effect.
        effect: EffectId,
        /// Who has it.
        owner: Owner,
    },
    /// What was healed of a loss. Answered.
    Healed {
        /// The engine's effect.
        effect: EffectId,
        /// Which loss.
        epoch: Epoch,
        /// What is not lost any more.
        ranges: Vec<Pair>,
    },
    /// Whether an application is still to be told that a flush has failed. Not answered.
    FlushFailure {
        /// It is.
        owed: bool,
    },
}

enum Job {
    Persist(Entry),
    Volume(Option<VolumeId>),
    Settle { answer: Sender<io::Result<OwnerRecord>> },
    Stop,
}

/// The thread that persists a device's owner for its shard.
pub struct Keeper {
    jobs: Sender<Job>,
    thread: JoinHandle<()>,
}

/// Talks to a [`Keeper`]. Clones talk to the same one.
#[derive(Clone)]
pub struct KeeperHandle(Sender<Job>);

impl Keeper {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system has no threads left.
    pub fn start(name: &str, mut store: OwnerStore, provider: Option<Patient>, shard: ShardHandle) -> io::Result<Self> {
        let (jobs, received) = unbounded();
        store.forget_ranges();
        let OwnerRecord { volume, ended: epoch, .. } = store.record().clone().ended();
        let mut keeping = Keeping { device: name.to_owned(), store, provider, volume, epoch };
        let thread = std::thread::Builder::new().name(format!("owner-{name}")).spawn(move || {
            while let Ok(job) = received.recv() {
                match job {
                    Job::Persist(entry) => {
                        if let Some((effect, durable)) = keeping.keep(entry) {
                            // A shard that has ended may have left more to be kept.
                            let _ = shard.send(Command::Persisted { effect, durable });
                        }
                    }
                    Job::Volume(volume) => keeping.volume = volume,
                    Job::Settle { answer } => {
                        let settled = keeping.store.settle().map(|()| keeping.store.record().clone());
                        // Nobody waits any more when the device stops.
                        let _ = answer.send(settled);
                    }
                    Job::Stop => return,
                }
            }
        })?;
        Ok(Self { jobs, thread })
    }

    /// Talks to it.
    #[must_use]
    pub fn handle(&self) -> KeeperHandle {
        KeeperHandle(self.jobs.clone())
    }

    /// Ends the thread after what it was asked before.
    pub fn stop(self) {
        let _ = self.jobs.send(Job::Stop);
        if self.thread.join().is_err() {
            tracing::error!("a device's owner thread panicked");
        }
    }
}

impl KeeperHandle {
    /// Persists something for the engine; the shard is told. A keeper that has ended answers nothing: the shard is
    /// ending as well.
    pub fn persist(&self, entry: Entry) {
        let _ = self.0.send(Job::Persist(entry));
    }

    /// Which volume the next owner records speak of.
    pub fn set_volume(&self, volume: Option<VolumeId>) {
        let _ = self.0.send(Job::Volume(volume));
    }

    /// Makes sure that the file holds the record, and answers the record, without the ranges of a loss.
    ///
    /// # Errors
    /// Whatever the file system answers.
    pub fn settle(&self) -> io::Result<OwnerRecord> {
        let (answer, answered) = crossbeam_channel::bounded(1);
        let ended = |_| io::Error::other("the owner thread has ended");
        self.0.send(Job::Settle { answer }).map_err(|_| ended(()))?;
        answered.recv().map_err(|_| ended(()))?
    }
}

struct Keeping {
    device: String,
    store: OwnerStore,
    provider: Option<Patient>,
    volume: Option<VolumeId>,
    /// The attachment that the engine spoke of last.
    epoch: Option<Epoch>,
}

impl Keeping {
    /// Keeps an entry. Which effect that answers, and whether it is durable.
    fn keep(&mut self, entry: Entry) -> Option<(EffectId, bool)> {
        match entry {
            Entry::Owner { effect, owner } => Some((effect, self.persist(owner))),
            Entry::Healed { effect, epoch, ranges } => {
                crash_point("healed", "before");
                let result = self.store.record_healed(epoch, &ranges);
                crash_point("healed", "after");
                if let Err(error) = &result {
                    tracing::error!(device = self.device, %error, "cannot record what is not lost any more");
                }
                Some((effect, result.is_ok()))
            }
            Entry::FlushFailure { owed } => {
                if let Err(error) = self.store.keep_flush_failure(owed) {
                    tracing::error!(device = self.device, owed, %error, "cannot keep that a flush has failed");
                }
                None
            }
        }
    }

    fn persist(&mut self, owner: Owner) -> bool {
        if let Owner::Cache { epoch } | Owner::Lost { epoch, .. } = &owner {
            self.epoch = Some(*epoch);
        }
        crash_point("owner", "before");
        let result = match &owner {
            Owner::Cache { epoch } => self.tag(Some(*epoch)).and_then(|()| self.write(owner)),
            Owner::Lost { .. } => self.write(owner),
            Owner::Backing => self.write(owner).inspect(|()| {
                crash_point("owner-untag", "before");
                // A tag that stays does no harm: the record says that this attachment has ended.
                if let Err(error) = self.tag(None) {
                    tracing::warn!(device = self.device, error, "cannot remove the dirty tag from the caching volume");
                }
            }),
        };
        crash_point("owner", "after");
        if let Err(error) = &result {
            tracing::error!(device = self.device, error, "cannot persist where the newest data is");
        }
        result.is_ok()
    }

    fn write(&mut self, owner: Owner) -> Result<(), String> {
        let ended = self.epoch.filter(|_| owner == Owner::Backing);
        let record = OwnerRecord { owner, volume: self.volume.clone(), ended };
        self.store.persist(record).map_err(|error| error.to_string())
    }

    fn tag(&self, epoch: Option<Epoch>) -> Result<(), String> {
        let (Some(provider), Some(volume)) = (&self.provider, &self.volume) else {
            return Err("the caching volume has no name to tag".to_owned());
        };
        let value = epoch.map(|epoch| epoch.to_string());
        provider.set_tag(volume, tag::DIRTY_EPOCH, value.as_deref()).map(|_| ()).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn any_owner() -> impl Strategy<Value = Owner> {
        let epoch = any::<[u8; 16]>().prop_map(Epoch);
        let ranges = prop::collection::vec((any::<u64>(), any::<u64>()), 0..4);
        prop_oneof![
            Just(Owner::Backing),
            epoch.clone().prop_map(|epoch| Owner::Cache { epoch }),
            (epoch, ranges).prop_map(|(epoch, ranges)| Owner::Lost { epoch, ranges }),
        ]
    }

    proptest! {
        #[test]
        fn records_are_read_back(
            owner in any_owner(),
            volume in prop::option::of("[a-z0-9-]{1,12}"),
            ended in prop::option::of(any::<[u8; 16]>()),
        ) {
            let ended = ended.map(Epoch).filter(|_| owner == Owner::Backing);
            let record = OwnerRecord { owner, volume: volume.map(VolumeId), ended };
            prop_assert_eq!(OwnerRecord::decode(&record.encode()).unwrap(), record);
        }

        #[test]
        fn damage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64), text in "[a-zé0-9]{0,40}") {
            let _ = OwnerRecord::decode(&bytes);
            let _ = parse_epoch(&text);
        }
    }

    #[test]
    fn a_record_names_the_attachment_that_has_ended() {
        let (epoch, other, volume) = (Epoch([7; 16]), Epoch([8; 16]), VolumeId("a".to_owned()));
        let lost = Owner::Lost { epoch, ranges: vec![(0, 4096)] };
        for owner in [Owner::Cache { epoch }, lost] {
            let record = OwnerRecord { owner, volume: Some(volume.clone()), ended: None };
            assert!(!record.has_ended(&volume, epoch), "its data counts");
            let ended = record.ended();
            assert!(ended.has_ended(&volume, epoch));
            assert!(!ended.has_ended(&volume, other) && !ended.has_ended(&VolumeId("b".to_owned()), epoch));
            assert_eq!(ended.clone().ended(), ended);
        }
    }

    #[test]
    fn what_builds_wrote_that_did_not_name_it_is_read() {
        let record = OwnerRecord::decode(b"{\"version\": 1, \"owner\": \"backing\"}").unwrap();
        assert_eq!(record, OwnerRecord::default());
        // They refuse fields that they do not know, so there is no new one.
        let ended =
            OwnerRecord { owner: Owner::Backing, volume: Some(VolumeId("a".into())), ended: Some(Epoch([7; 16])) };
        let written: serde_json::Map<_, _> = serde_json::from_slice(&ended.encode()).unwrap();
        let known = ["version", "owner", "epoch", "volume", "lost_ranges"];
        assert!(written.keys().all(|key| known.contains(&key.as_str())), "{written:?}");
    }

    #[test]
    fn a_damaged_record_is_refused_and_a_missing_one_is_backing() {
        let directory = tempfile::tempdir().unwrap();
        assert_eq!(OwnerStore::open(directory.path()).unwrap().record(), &OwnerRecord::default());
        std::fs::write(directory.path().join(FILE), "{").unwrap();
        assert!(OwnerStore::open(directory.path()).unwrap_err().to_string().contains("is damaged"));
        std::fs::write(directory.path().join(FILE), "{\"version\": 3, \"owner\": \"nowhere\"}").unwrap();
        assert!(OwnerStore::open(directory.path()).unwrap_err().to_string().contains("by a newer surgetank"));
    }

    #[test]
    fn a_loss_that_an_older_build_wrote_is_read_and_ours_is_refused_by_it() {
        let directory = tempfile::tempdir().unwrap();
        let epoch = Epoch([1; 16]);
        let old = format!(
            "{{\"version\": 1, \"owner\": \"lost\", \"epoch\": \"{epoch}\", \"lost_ranges\": [[0, 4096], [8192, 4096]]}}"
        );
        std::fs::write(directory.path().join(FILE), old).unwrap();
        let mut store = OwnerStore::open(directory.path()).unwrap();
        assert_eq!(lost(&store), [(0, 4096), (8192, 4096)]);
        store.record_healed(epoch, &[(0, 4096)]).unwrap();
        assert_eq!(lost(&OwnerStore::open(directory.path()).unwrap()), [(8192, 4096)]);
        // It would take what was healed for lost.
        let version = || files::version(&std::fs::read(directory.path().join(FILE)).unwrap(), 1);
        assert!(version().unwrap_err().contains("by a newer surgetank"));
        // Other records are as they always were.
        store.persist(OwnerRecord::default()).unwrap();
        assert_eq!(version(), Ok(1));
    }

    /// A healing costs what it says, whatever is lost; and a long journal ends in a new record, as long as that is.
    #[test]
    fn a_healing_costs_its_own_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let length = |name: &str| std::fs::metadata(directory.path().join(name)).map_or(0, |file| file.len());
        let epoch = Epoch([1; 16]);
        let ranges: Vec<Pair> = (0..20_000).map(|number| (number * 8192, 4096)).collect();
        let mut store = OwnerStore::open(directory.path()).unwrap();
        store
            .persist(OwnerRecord { owner: Owner::Lost { epoch, ranges: ranges.clone() }, volume: None, ended: None })
            .unwrap();
        assert_eq!(lost(&store), [], "nobody keeps them in memory");
        let record = length(FILE);
        let mut journal = 0;
        for (number, range) in ranges.iter().enumerate().take(100) {
            store.record_healed(epoch, &[*range]).unwrap();
            let now = length("healed.journal");
            assert_eq!(now - journal, if number == 0 { 64 } else { 32 }, "{number}");
            journal = now;
        }
        assert_eq!(length(FILE), record, "the record itself is not written");
        // A journal of a mebibyte, at last, costs one record, which is shorter.
        let many: Vec<Pair> = ranges[100..2000].iter().copied().cycle().take(70_000).collect();
        store.record_healed(epoch, &many).unwrap();
        assert_eq!(length(FILE), record);
        store.record_healed(epoch, &[ranges[2000]]).unwrap();
        assert!(length(FILE) < record);
        store.record_healed(epoch, &[ranges[2001]]).unwrap();
        assert_eq!(length("healed.journal"), 64);
        assert_eq!(lost(&OwnerStore::open(directory.path()).unwrap()), &ranges[2002..]);
    }

    #[test]
    fn a_failed_flush_is_left_to_the_next_one() {
        let directory = tempfile::tempdir().unwrap();
        let store = OwnerStore::open(directory.path()).unwrap();
        assert!(!store.owes_flush_failure().unwrap());
        for owed in [true, true, false, false, true] {
            store.keep_flush_failure(owed).unwrap();
            assert_eq!(OwnerStore::open(directory.path()).unwrap().owes_flush_failure().unwrap(), owed);
        }
        std::fs::write(directory.path().join(FLUSH_FAILED), "{\"version\": 2}").unwrap();
        assert!(store.owes_flush_failure().unwrap_err().to_string().contains("by a newer surgetank"));
    }

    /// All files of a directory, by name.
    type Files = BTreeMap<String, Vec<u8>>;

    fn files_of(directory: &Path) -> Files {
        let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
        entries.map(|entry| (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())).collect()
    }

    fn put(directory: &Path, files: &Files) {
        for entry in std::fs::read_dir(directory).unwrap() {
            std::fs::remove_file(entry.unwrap().path()).unwrap();
        }
        files.iter().for_each(|(name, bytes)| std::fs::write(directory.join(name), bytes).unwrap());
    }

    /// What a crash may leave of a change: a file that grew ends anywhere, with what never arrived as zeroes or cut off;
    /// one that was replaced is the old or the new one; the record before the journal, and a half-made file beside them.
    fn crashes(before: &Files, after: &Files, cut: prop::sample::Index) -> Vec<Files> {
        let mut states = vec![before.clone(), after.clone()];
        let (record, journal) = (FILE.to_owned(), "healed.journal".to_owned());
        if let (Some(old), Some(new)) = (before.get(&journal), after.get(&journal))
            && new.starts_with(old)
        {
            let end = old.len() + cut.index(new.len() - old.len() + 1);
            let torn = new[..end].to_vec();
            let zeroes = [&torn[..], &vec![0; new.len() - end]].concat();
            states.extend([torn, zeroes].map(|bytes| {
                let mut state = before.clone();
                state.insert(journal.clone(), bytes);
                state
            }));
        }
        let mut early = before.clone();
        early.extend(after.get(&record).map(|bytes| (record.clone(), bytes.clone())));
        states.push(early);
        for (name, bytes) in after {
            let mut half = before.clone();
            half.insert(format!("{name}.new"), bytes[..cut.index(bytes.len() + 1)].to_vec());
            states.push(half);
        }
        states
    }

    #[derive(Clone, Debug)]
    enum Change {
        Heal(Vec<Pair>),
        /// The state directory cannot be written meanwhile.
        Fail(Vec<Pair>),
        Anew,
        Reopen,
        LoseOther(Vec<Pair>),
    }

    fn any_change() -> impl Strategy<Value = Change> {
        let ranges = || prop::collection::vec((0..64_u64, 1..8_u64), 1..5);
        prop_oneof![
            6 => ranges().prop_map(Change::Heal),
            1 => ranges().prop_map(Change::Fail),
            1 => Just(Change::Anew),
            1 => Just(Change::Reopen),
            1 => ranges().prop_map(Change::LoseOther),
        ]
    }

    fn numbers(ranges: &[Pair]) -> BTreeSet<u64> {
        ranges.iter().flat_map(|&(offset, length)| offset..offset + length).collect()
    }

    fn lost(store: &OwnerStore) -> Vec<Pair> {
        match &store.record().owner {
            Owner::Lost { ranges, .. } => ranges.clone(),
            owner => panic!("{owner:?}"),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

        /// Whenever a crash comes, at any byte of anything written: what was acknowledged as healed is, and nothing is but
        /// that and what was just being recorded.
        #[test]
        fn what_was_healed_stays_healed_over_any_crash(
            changes in prop::collection::vec((any_change(), any::<prop::sample::Index>()), 1..10),
        ) {
            let directory = tempfile::tempdir().unwrap();
            let scratch = tempfile::tempdir().unwrap();
            let state = directory.path().join("device");
            std::fs::create_dir(&state).unwrap();
            let epoch = Epoch([1; 16]);
            let all = vec![(0, 70)];
            let mut store = OwnerStore::open(&state).unwrap();
            store.persist(OwnerRecord { owner: Owner::Lost { epoch, ranges: all.clone() }, volume: None, ended: None }).unwrap();
            // What must be lost, and what may be on record as healed though nobody was told so.
            let (mut left, mut perhaps) = (numbers(&all), BTreeSet::new());
            for (change, cut) in changes {
                let (before, must) = (files_of(&state), left.clone());
                match &change {
                    Change::Heal(ranges) => {
                        store.record_healed(epoch, ranges).unwrap();
                        left = &left - &numbers(ranges);
                    }
                    Change::Fail(ranges) => {
                        let aside = directory.path().join("aside");
                        std::fs::rename(&state, &aside).unwrap();
                        // An open journal is still written.
                        match store.record_healed(epoch, ranges) {
                            Ok(()) => left = &left - &numbers(ranges),
                            Err(_) => perhaps.extend(numbers(ranges)),
                        }
                        std::fs::rename(&aside, &state).unwrap();
                    }
                    Change::Anew => {
                        store.uncertain = true;
                        store.settle().unwrap();
                    }
                    Change::Reopen => store = OwnerStore::open(&state).unwrap(),
                    Change::LoseOther(ranges) => {
                        let ranges = healed::joined(ranges.clone());
                        (left, perhaps) = (numbers(&ranges), BTreeSet::new());
                        store.persist(OwnerRecord { owner: Owner::Lost { epoch, ranges }, volume: None, ended: None }).unwrap();
                    }
                }
                let after = files_of(&state);
                for crash in crashes(&before, &after, cut) {
                    put(scratch.path(), &crash);
                    let found = numbers(&lost(&OwnerStore::open(scratch.path()).unwrap()));
                    if matches!(change, Change::LoseOther(_)) {
                        prop_assert!(found == left || found.is_subset(&must), "neither loss: {:?}", found);
                        continue;
                    }
                    let too_few = &(&left - &perhaps) - &found;
                    prop_assert!(too_few.is_empty(), "healed without a word: {:?} after {:?}", too_few, change);
                    prop_assert!(found.is_subset(&must), "lost again: {:?} after {:?}", &found - &must, change);
                }
                let now = numbers(&lost(&OwnerStore::open(&state).unwrap()));
                prop_assert!(now.is_subset(&left), "lost again: {:?} after {:?}", &now - &left, change);
            }
        }
    }

    #[test]
    fn a_failed_write_leaves_the_record_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("device");
        std::fs::create_dir(&state).unwrap();
        let mut store = OwnerStore::open(&state).unwrap();
        std::fs::remove_dir(&state).unwrap();
        let record = OwnerRecord { owner: Owner::Cache { epoch: Epoch([1; 16]) }, ..OwnerRecord::default() };
        assert!(store.persist(record.clone()).is_err());
        assert_eq!(store.record(), &OwnerRecord::default());
        assert!(store.settle().is_err(), "the file is still in doubt");
        std::fs::create_dir(&state).unwrap();
        store.settle().unwrap();
        store.persist(record.clone()).unwrap();
        assert_eq!(OwnerStore::open(&state).unwrap().record(), &record);
    }
}
