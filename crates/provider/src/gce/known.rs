//! What this process knows of disks: which operations it has begun, and what it was told a moment ago.
//!
//! Compute Engine accepts a change before it is carried out, and a disk shows the change when it has been. So the states on the way
//! come from operations. Those of this process are known by name; of a disk of which nothing is known, as after a restart or after
//! an answer that was lost, the list of operations has to tell.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::compute::{Doing, Which};
use super::disk::Disk;
use super::labels::Labels;
use crate::VolumeState;
use crate::clock::whole_ms;

/// What is on the way is asked for no more often than this, as attaching takes 1 to 4 s; and for so long a look serves for the
/// change that follows from it.
const EVERY: Duration = Duration::from_millis(1500);

/// A change that was accepted.
#[derive(Clone, Debug)]
pub struct Pending {
    /// The operation's name.
    pub operation: String,
    /// What it does.
    pub doing: Doing,
    /// The disk before it; `None`: another process has begun it.
    pub disk: Option<Disk>,
}

/// What is known of a disk: the change that was accepted last, until it has ended, and what was told, and when.
#[derive(Clone, Debug, Default)]
struct Entry {
    pending: Option<Pending>,
    told: Option<(u64, Disk, VolumeState)>,
}

#[derive(Debug, Default)]
struct State {
    disks: BTreeMap<String, Entry>,
    /// Requests for a change of which nobody knows whether they have arrived.
    doubts: BTreeMap<String, (Doing, Which)>,
    changes: u64,
}

/// What is known of all disks.
#[derive(Debug, Default)]
pub struct Known(Mutex<State>);

impl Known {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many changes there were: what is read before a change is not kept after it.
    pub fn changes(&self) -> u64 {
        self.state().changes
    }

    /// The change of a disk that is on the way, as far as this process knows; the outer `None`: it knows nothing of the disk.
    pub fn pending(&self, disk: &str) -> Option<Option<Pending>> {
        self.state().disks.get(disk).map(|entry| entry.pending.clone())
    }

    /// A change was accepted. Whether that is news: a request that is repeated begins no other operation.
    pub fn begins(&self, pending: Pending, disk: &Disk, under_way: VolumeState, now_ms: u64) -> bool {
        let mut state = self.state();
        state.changes += 1;
        state.doubts.remove(&disk.name);
        let former = state.disks.get(&disk.name).and_then(|entry| entry.pending.as_ref());
        if former.is_some_and(|former| former.operation == pending.operation) {
            return false;
        }
        let told = Some((now_ms, disk.clone(), under_way));
        state.disks.insert(disk.name.clone(), Entry { pending: Some(pending), told });
        true
    }

    /// A change that another process has begun, or whose answer was lost, as a look has found it that began after so many changes.
    pub fn found(&self, disk: &str, pending: &Pending, changes: u64) {
        let mut state = self.state();
        if state.doubts.get(disk).is_some_and(|(doubted, _)| *doubted == pending.doing) {
            state.doubts.remove(disk);
        }
        if state.changes == changes {
            state.disks.entry(disk.to_owned()).or_default().pending = Some(pending.clone());
        }
    }

    /// An operation has ended, or another one counts.
    pub fn ends(&self, disk: &str, operation: &str) {
        let mut state = self.state();
        if let Some(entry) = state.disks.get_mut(disk)
            && entry.pending.as_ref().is_some_and(|pending| pending.operation == operation)
        {
            *entry = Entry::default();
        }
    }

    /// A disk was told to be so, by a look that began after so many changes.
    pub fn told(&self, disk: &Disk, told: VolumeState, now_ms: u64, changes: u64) {
        let mut state = self.state();
        if state.changes == changes {
            state.disks.entry(disk.name.clone()).or_default().told = Some((now_ms, disk.clone(), told));
        }
    }

    /// What was told a moment ago. A clock that has stepped backwards makes nothing recent.
    pub fn recent(&self, disk: &str, now_ms: u64) -> Option<(Disk, VolumeState)> {
        let state = self.state();
        let (at_ms, disk, told) = state.disks.get(disk)?.told.as_ref()?;
        let is_recent = now_ms.checked_sub(*at_ms).is_some_and(|age_ms| age_ms < whole_ms(EVERY));
        is_recent.then(|| (disk.clone(), *told))
    }

    /// Its labels are these now. The fingerprint is not known.
    pub fn relabelled(&self, disk: &str, labels: &Labels) {
        let mut state = self.state();
        state.changes += 1;
        let Some(entry) = state.disks.get_mut(disk) else { return };
        let before = entry.pending.as_mut().and_then(|pending| pending.disk.as_mut());
        for disk in before.into_iter().chain(entry.told.as_mut().map(|(_, disk, _)| disk)) {
            disk.labels.clone_from(labels);
            disk.fingerprint = None;
        }
    }

    /// Something else is so than was told, and no change was accepted. A request that may arrive yet may do so all the same.
    pub fn is_stale(&self, disk: &str) {
        let mut state = self.state();
        if let Some(entry) = state.disks.get_mut(disk) {
            entry.told = None;
        }
    }

    /// Nothing is known any more but which request may arrive yet.
    pub fn forget(&self, disk: &str) {
        let mut state = self.state();
        state.changes += 1;
        state.disks.remove(disk);
    }

    /// Nothing is known any more, and no request for a change can arrive: the disk is gone, or the last one has ended.
    pub fn settles(&self, disk: &str) {
        self.forget(disk);
        self.state().doubts.remove(disk);
    }

    /// Nobody knows whether this request for a change has arrived, which is repeated as the same one.
    pub fn doubts(&self, disk: &str, doing: Doing, which: Which) {
        self.state().doubts.insert(disk.to_owned(), (doing, which));
    }

    /// Which request for this change may arrive yet: asked for again as the same one, it is carried out once.
    pub fn doubted(&self, disk: &str, doing: Doing) -> Option<Which> {
        self.state().doubts.get(disk).filter(|(doubted, _)| *doubted == doing).map(|(_, which)| *which)
    }
}
