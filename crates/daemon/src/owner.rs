//! Where the newest data of a device is: the owner record in the state directory and the tag on the caching volume.
//!
//! The order is what makes them safe. Before anything is dirty: tag, then record. Once nothing is: record, then tag.
//! So a volume without the tag holds nothing, and a record that says `Backing` is always right.

use std::io;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, unbounded};
use serde::{Deserialize, Serialize};
use surgetank_cache::{EffectId, Epoch, Owner};
use surgetank_provider::{Provider, VolumeId, tag};

use crate::crash::crash_point;
use crate::files;
use crate::patient::Patient;
use crate::shard::{Command, ShardHandle};

/// The file's name in the device's state directory.
const FILE: &str = "owner.json";
const VERSION: u32 = 1;

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
    /// Offset and length in bytes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    lost_ranges: Vec<(u64, u64)>,
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
        let (owner, epoch, lost_ranges) = match &self.owner {
            Owner::Backing => (Kind::Backing, self.ended.map(|epoch| epoch.to_string()), Vec::new()),
            Owner::Cache { epoch } => (Kind::Cache, Some(epoch.to_string()), Vec::new()),
            Owner::Lost { epoch, ranges } => (Kind::Lost, Some(epoch.to_string()), ranges.clone()),
        };
        let written = Written { version: VERSION, owner, epoch, volume: self.volume.clone(), lost_ranges };
        serde_json::to_vec_pretty(&written).expect("a record of strings and numbers is always JSON")
    }

    /// Reads what a file holds.
    ///
    /// # Errors
    /// Why it is no record that can be read, as the end of a sentence.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        files::version(bytes, VERSION)?;
        let written: Written = serde_json::from_slice(bytes).map_err(|error| format!("is damaged: {error}"))?;
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
        Ok(Self { owner, volume: written.volume, ended })
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
    path: PathBuf,
    record: OwnerRecord,
    /// A write failed half-way: the file may hold that record instead of ours.
    uncertain: bool,
}

impl OwnerStore {
    /// Reads the record in a device's state directory. A device without one was never boosted.
    ///
    /// # Errors
    /// If the file cannot be read or makes no sense: serving the device would then risk stale data.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let path = directory.join(FILE);
        let record = match files::read(&path)? {
            None => OwnerRecord::default(),
            Some(bytes) => OwnerRecord::decode(&bytes).map_err(|why| {
                io::Error::new(io::ErrorKind::InvalidData, format!("the owner record {} {why}", path.display()))
            })?,
        };
        Ok(Self { path, record, uncertain: false })
    }

    /// The record.
    #[must_use]
    pub fn record(&self) -> &OwnerRecord {
        &self.record
    }

    /// Replaces the record, durably.
    ///
    /// # Errors
    /// Whatever the file system answers; the record is then as before (see [`OwnerStore::settle`]).
    pub fn persist(&mut self, record: OwnerRecord) -> io::Result<()> {
        match files::write_atomically(&self.path, &record.encode()) {
            Ok(()) => {
                self.record = record;
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

    /// Makes sure that the file holds the record.
    ///
    /// # Errors
    /// Whatever the file system answers.
    pub fn settle(&mut self) -> io::Result<()> {
        if self.uncertain {
            files::write_atomically(&self.path, &self.record.encode())?;
            self.uncertain = false;
        }
        Ok(())
    }
}

enum Job {
    Persist { effect: EffectId, owner: Owner },
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
    pub fn start(name: &str, store: OwnerStore, provider: Option<Patient>, shard: ShardHandle) -> io::Result<Self> {
        let (jobs, received) = unbounded();
        let OwnerRecord { volume, ended: epoch, .. } = store.record().clone().ended();
        let mut keeping = Keeping { device: name.to_owned(), store, provider, volume, epoch };
        let thread = std::thread::Builder::new().name(format!("owner-{name}")).spawn(move || {
            while let Ok(job) = received.recv() {
                match job {
                    Job::Persist { effect, owner } => {
                        let durable = keeping.persist(owner);
                        if shard.send(Command::Persisted { effect, durable }).is_err() {
                            return;
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
    /// Persists an owner for the engine; the shard is told. A keeper that has ended answers nothing: the shard is
    /// ending as well.
    pub fn persist(&self, effect: EffectId, owner: Owner) {
        let _ = self.0.send(Job::Persist { effect, owner });
    }

    /// Which volume the next owner records speak of.
    pub fn set_volume(&self, volume: Option<VolumeId>) {
        let _ = self.0.send(Job::Volume(volume));
    }

    /// Makes sure that the file holds the record, and answers the record.
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
        std::fs::write(directory.path().join(FILE), "{\"version\": 2, \"owner\": \"nowhere\"}").unwrap();
        assert!(OwnerStore::open(directory.path()).unwrap_err().to_string().contains("by a newer surgetank"));
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
