//! The thread that keeps on record what a shard has to have there.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use crossbeam_channel::{Sender, unbounded};
use surgetank_cache::{EffectId, Epoch, Owner};
use surgetank_provider::{Provider, VolumeId, tag};
use surgetank_rental::{OwnerRecord, OwnerWrite, OwnerWriter};

use super::OwnerStore;
use crate::crash::crash_point;
use crate::healed::Pair;
use crate::shard::{Command, ShardHandle};
use crate::timed::TimedProvider;

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

enum OwnerTask {
    Persist(Entry),
    Volume(Option<VolumeId>),
    Settle { answer: Sender<io::Result<OwnerRecord>> },
    Stop,
}

/// The thread that persists a device's owner for its shard.
pub struct OwnerThread {
    handle: OwnerThreadHandle,
    thread: JoinHandle<()>,
}

/// Talks to a [`OwnerThread`]. Clones talk to the same one.
#[derive(Clone)]
pub struct OwnerThreadHandle {
    jobs: Sender<OwnerTask>,
    trouble: Trouble,
}

/// Why it could not be persisted that a boost has ended; for people.
type Trouble = Arc<Mutex<Option<String>>>;

impl OwnerThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system has no threads left.
    pub fn start(
        name: &str,
        mut store: OwnerStore,
        provider: Option<TimedProvider>,
        shard: ShardHandle,
    ) -> io::Result<Self> {
        let (jobs, received) = unbounded();
        store.forget_ranges();
        let writer = OwnerWriter::new(store.record());
        let trouble = Trouble::default();
        let mut keeping = Keeping { device: name.to_owned(), store, provider, writer, trouble: trouble.clone() };
        let thread = std::thread::Builder::new().name(format!("owner-{name}")).spawn(move || {
            while let Ok(job) = received.recv() {
                match job {
                    OwnerTask::Persist(entry) => {
                        if let Some((effect, durable)) = keeping.keep(entry) {
                            // A shard that has ended may have left more to be kept.
                            let _ = shard.send(Command::Persisted { effect, durable });
                        }
                    }
                    OwnerTask::Volume(volume) => keeping.writer.set_volume(volume),
                    OwnerTask::Settle { answer } => {
                        let settled = keeping.store.settle().map(|()| keeping.store.record().clone());
                        // Nobody waits any more when the device stops.
                        let _ = answer.send(settled);
                    }
                    OwnerTask::Stop => return,
                }
            }
        })?;
        Ok(Self { handle: OwnerThreadHandle { jobs, trouble }, thread })
    }

    /// Talks to it.
    #[must_use]
    pub fn handle(&self) -> OwnerThreadHandle {
        self.handle.clone()
    }

    /// Ends the thread after what it was asked before.
    pub fn stop(self) {
        let _ = self.handle.jobs.send(OwnerTask::Stop);
        if self.thread.join().is_err() {
            tracing::error!("a device's owner thread panicked");
        }
    }
}

impl OwnerThreadHandle {
    /// Persists something for the engine; the shard is told. An owner thread that has ended answers nothing: the shard is
    /// ending as well.
    pub fn persist(&self, entry: Entry) {
        let _ = self.jobs.send(OwnerTask::Persist(entry));
    }

    /// Which volume the next owner records speak of.
    pub fn set_volume(&self, volume: Option<VolumeId>) {
        let _ = self.jobs.send(OwnerTask::Volume(volume));
    }

    /// Why it could not be persisted that a boost has ended, if so: it is tried again.
    #[must_use]
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes sure that the file holds the record, and answers the record, without the ranges of a loss.
    ///
    /// # Errors
    /// Whatever the file system answers.
    pub fn settle(&self) -> io::Result<OwnerRecord> {
        let (answer, answered) = crossbeam_channel::bounded(1);
        let ended = |_| io::Error::other("the owner thread has ended");
        self.jobs.send(OwnerTask::Settle { answer }).map_err(|_| ended(()))?;
        answered.recv().map_err(|_| ended(()))?
    }
}

struct Keeping {
    device: String,
    store: OwnerStore,
    provider: Option<TimedProvider>,
    writer: OwnerWriter,
    trouble: Trouble,
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
        crash_point("owner", "before");
        let ends = owner == Owner::Backing;
        let mut next = self.writer.begin(owner);
        let result = loop {
            let written = match next {
                OwnerWrite::Done(result) => break result,
                OwnerWrite::Record(record) => self.store.persist(record).map_err(|error| error.to_string()),
                OwnerWrite::Tag { volume, epoch } => self.tag(&volume, epoch),
            };
            next = self.writer.written(written);
        };
        crash_point("owner", "after");
        if let Err(error) = &result {
            tracing::error!(device = self.device, error, "cannot persist where the newest data is");
        }
        // A boost that cannot begin says so itself.
        let trouble = result.as_ref().err().filter(|_| ends).map(|error| {
            format!("the boost does not end before the record that the backing volume has all data is written: {error}")
        });
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        result.is_ok()
    }

    fn tag(&self, volume: &VolumeId, epoch: Option<Epoch>) -> Result<(), String> {
        if epoch.is_none() {
            crash_point("owner-untag", "before");
        }
        let no_provider = || "there is no provider to tag the caching volume".to_owned();
        let provider = self.provider.as_ref().ok_or_else(no_provider)?;
        let value = epoch.map(|epoch| epoch.to_string());
        let tagged = provider.set_tag(volume, tag::DIRTY_EPOCH, value.as_deref()).map(|_| ());
        if let Err(error) = &tagged
            && epoch.is_none()
        {
            tracing::warn!(device = self.device, %error, "cannot remove the dirty tag from the caching volume");
        }
        tagged.map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::Shard;

    #[test]
    fn a_boost_whose_end_cannot_be_recorded_says_so_until_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let state = directory.path().join("device");
        std::fs::create_dir(&state).unwrap();
        let (shard, commands) = Shard::channel().unwrap();
        let thread = OwnerThread::start("told", OwnerStore::open(&state).unwrap(), None, shard).unwrap();
        let handle = thread.handle();
        let persist = |id| {
            handle.persist(Entry::Owner { effect: EffectId(id), owner: Owner::Backing });
            let Command::Persisted { durable, .. } = commands.recv().unwrap() else { panic!("another command") };
            durable
        };
        std::fs::remove_dir_all(&state).unwrap();
        assert!(!persist(1));
        let trouble = handle.trouble().unwrap();
        assert!(trouble.starts_with("the boost does not end before "), "{trouble}");
        std::fs::create_dir(&state).unwrap();
        assert!(persist(2));
        assert_eq!(handle.trouble(), None);
        thread.stop();
    }
}
