//! What this process knows of disks: which changes it has asked for, and what it was told a moment ago.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::disk::{Disk, Seen};
use crate::clock::whole_ms;
use crate::{Tags, VolumeState};

/// What is on the way is asked for no more often than this, as a change of a machine takes 10 s and more; and for so long a look serves
/// for the change that follows from it.
const EVERY: Duration = Duration::from_millis(1500);

/// A change of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    Create,
    Attach,
    Detach,
    Delete,
    Grow,
}

impl Doing {
    /// The state of a disk until it is carried out; `None`: any.
    #[must_use]
    pub const fn under_way(self) -> Option<VolumeState> {
        match self {
            Self::Create => Some(VolumeState::Creating),
            Self::Attach => Some(VolumeState::Attaching),
            Self::Detach => Some(VolumeState::Detaching),
            Self::Delete => Some(VolumeState::Deleting),
            Self::Grow => None,
        }
    }
}

/// A change that was asked for.
#[derive(Clone, Debug)]
pub struct Pending {
    /// What it does.
    pub doing: Doing,
    /// Where its end is told; `None`: it waits until the machine can be changed, and nothing was sent.
    pub operation: Option<String>,
    /// The disk before it.
    pub disk: Disk,
    /// Tells it from others.
    number: u64,
}

/// What is known of a disk: the change that was asked for last, until it has ended, and what was told, and when.
#[derive(Clone, Debug, Default)]
struct Entry {
    pending: Option<Pending>,
    told: Option<(u64, Seen)>,
}

#[derive(Debug, Default)]
struct State {
    disks: BTreeMap<String, Entry>,
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

    /// The change of a disk that is on the way, as far as this process knows.
    pub fn pending(&self, disk: &str) -> Option<Pending> {
        self.state().disks.get(disk)?.pending.clone()
    }

    /// Whether this process has begun a change of the machine whose end it has not seen.
    pub fn changes_machine(&self) -> bool {
        let state = self.state();
        let mut pending = state.disks.values().filter_map(|entry| entry.pending.as_ref());
        pending.any(|pending| matches!(pending.doing, Doing::Attach | Doing::Detach) && pending.operation.is_some())
    }

    /// A change was accepted, or waits for its turn (`operation` is `None`).
    pub fn begins(&self, doing: Doing, operation: Option<String>, disk: &Disk, under_way: VolumeState, now_ms: u64) {
        let mut state = self.state();
        state.changes += 1;
        let pending = Some(Pending { doing, operation, disk: disk.clone(), number: state.changes });
        let told = Some((now_ms, Seen::under_way(disk.clone(), under_way)));
        state.disks.insert(disk.name.clone(), Entry { pending, told });
    }

    /// A change has ended, unless another one counts by now.
    pub fn ends(&self, disk: &str, pending: &Pending) {
        let mut state = self.state();
        let is_it = |there: &Pending| there.number == pending.number;
        if state.disks.get(disk).and_then(|entry| entry.pending.as_ref()).is_some_and(is_it) {
            state.disks.remove(disk);
        }
    }

    /// A disk was seen so, by a look that began after so many changes.
    pub fn told(&self, seen: &Seen, now_ms: u64, changes: u64) {
        let mut state = self.state();
        if state.changes == changes {
            state.disks.entry(seen.disk.name.clone()).or_default().told = Some((now_ms, seen.clone()));
        }
    }

    /// What was told a moment ago. A clock that has stepped backwards makes nothing recent.
    pub fn recent(&self, disk: &str, now_ms: u64) -> Option<Seen> {
        let state = self.state();
        let (at_ms, seen) = state.disks.get(disk)?.told.as_ref()?;
        let is_recent = now_ms.checked_sub(*at_ms).is_some_and(|age_ms| age_ms < whole_ms(EVERY));
        is_recent.then(|| seen.clone())
    }

    /// Its tags are these now.
    pub fn retagged(&self, disk: &str, tags: &Tags) {
        let mut state = self.state();
        state.changes += 1;
        let Some(entry) = state.disks.get_mut(disk) else { return };
        let before = entry.pending.as_mut().map(|pending| &mut pending.disk);
        for disk in before.into_iter().chain(entry.told.as_mut().map(|(_, seen)| &mut seen.disk)) {
            disk.tags.clone_from(tags);
        }
    }

    /// Something else is so than was told, and no change was accepted.
    pub fn is_stale(&self, disk: &str) {
        let mut state = self.state();
        if let Some(entry) = state.disks.get_mut(disk) {
            entry.told = None;
        }
    }

    /// Nothing is known any more.
    pub fn forget(&self, disk: &str) {
        let mut state = self.state();
        state.changes += 1;
        state.disks.remove(disk);
    }
}
