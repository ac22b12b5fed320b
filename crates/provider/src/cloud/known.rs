//! What a client knows of volumes whose changes a cloud accepts before it carries them out: which of them were asked for, and what was
//! told a moment ago.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::looks::Told;
use crate::VolumeState;
use crate::clock::whole_ms;

/// For so long a look serves for the change that follows from it.
const RECENT: Duration = Duration::from_millis(1500);

/// What is known of a volume: the change that was asked for last, until it has ended, and what was told, and when.
#[derive(Clone, Debug)]
pub struct Entry<P, S> {
    /// The change.
    pub pending: Option<P>,
    /// What was told, after its time.
    pub told: Option<(u64, S)>,
    /// How long the state was told that was told last.
    shown: Option<Told>,
}

impl<P, S> Default for Entry<P, S> {
    fn default() -> Self {
        Self { pending: None, told: None, shown: None }
    }
}

#[derive(Debug)]
struct State<P, S> {
    volumes: BTreeMap<String, Entry<P, S>>,
    changes: u64,
    /// When the kernel told of a disk last.
    disk_ms: Option<u64>,
}

/// What is known of all volumes, by name: changes (`P`), and how they were seen (`S`).
#[derive(Debug)]
pub struct Known<P, S>(Mutex<State<P, S>>);

impl<P, S> Default for Known<P, S> {
    fn default() -> Self {
        Self(Mutex::new(State { volumes: BTreeMap::new(), changes: 0, disk_ms: None }))
    }
}

impl<P: Clone, S: Clone> Known<P, S> {
    fn state(&self) -> MutexGuard<'_, State<P, S>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many changes there were: what is read before a change is not kept after it.
    pub fn changes(&self) -> u64 {
        self.state().changes
    }

    /// The change of a volume that is on the way, as far as this process knows; the outer `None`: it knows nothing of the volume.
    pub fn pending(&self, name: &str) -> Option<Option<P>> {
        self.state().volumes.get(name).map(|entry| entry.pending.clone())
    }

    /// A change was asked for. Whether that is news: `is_same` tells whether the former one is the same.
    pub fn begins(&self, name: &str, pending: P, told: S, now_ms: u64, is_same: impl Fn(&P) -> bool) -> bool {
        let mut state = self.state();
        state.changes += 1;
        let entry = state.volumes.entry(name.to_owned()).or_default();
        if entry.pending.as_ref().is_some_and(is_same) {
            return false;
        }
        *entry = Entry { pending: Some(pending), told: Some((now_ms, told)), shown: None };
        true
    }

    /// What is told of a volume on the way without asking.
    pub fn shown(&self, name: &str, now_ms: u64, state: impl Fn(&S) -> VolumeState) -> Option<S> {
        let mut all = self.state();
        let disk_ms = all.disk_ms;
        let Entry { told, shown, .. } = all.volumes.get_mut(name)?;
        let (at_ms, told) = told.as_ref()?;
        // As it was told since the last time that somebody asked here.
        let known = shown.filter(|shown| shown.is_of(state(told), *at_ms));
        let known = known.unwrap_or_else(|| Told::again(*shown, state(told), *at_ms).after_disk(disk_ms));
        *shown = Some(known);
        known.serves(now_ms).then(|| told.clone())
    }

    /// A disk of this machine came or went.
    pub fn disk_changed(&self, now_ms: u64) {
        let mut state = self.state();
        state.disk_ms = Some(now_ms);
        state
            .volumes
            .values_mut()
            .filter_map(|entry| entry.shown.as_mut())
            .for_each(|shown| shown.disk_changed(now_ms));
    }

    /// A change that another process has begun, or whose answer was lost, as a look has found it that began after so many changes.
    pub fn found(&self, name: &str, pending: P, changes: u64) {
        let mut state = self.state();
        if state.changes == changes {
            state.volumes.entry(name.to_owned()).or_default().pending = Some(pending);
        }
    }

    /// A change has ended, unless another one counts.
    pub fn ends(&self, name: &str, is_it: impl Fn(&P) -> bool) {
        let mut state = self.state();
        if let Some(entry) = state.volumes.get_mut(name)
            && entry.pending.as_ref().is_some_and(is_it)
        {
            *entry = Entry::default();
        }
    }

    /// A volume was told to be so, by a look that began after so many changes.
    pub fn told(&self, name: &str, told: S, now_ms: u64, changes: u64) {
        let mut state = self.state();
        if state.changes == changes {
            state.volumes.entry(name.to_owned()).or_default().told = Some((now_ms, told));
        }
    }

    /// What was told a moment ago. A clock that has stepped backwards makes nothing recent.
    pub fn recent(&self, name: &str, now_ms: u64) -> Option<S> {
        let state = self.state();
        let (at_ms, told) = state.volumes.get(name)?.told.as_ref()?;
        let is_recent = now_ms.checked_sub(*at_ms).is_some_and(|age_ms| age_ms < whole_ms(RECENT));
        is_recent.then(|| told.clone())
    }

    /// What a change follows from: what was told a moment ago (`true`) if that serves, or else what `look` finds.
    pub fn recent_or<E>(
        &self,
        name: &str,
        now_ms: u64,
        serves: impl FnOnce(&S) -> bool,
        look: impl FnOnce() -> Result<Option<S>, E>,
    ) -> Result<(Option<S>, bool), E> {
        match self.recent(name, now_ms).filter(serves) {
            Some(told) => Ok((Some(told), true)),
            None => Ok((look()?, false)),
        }
    }

    /// What does not say where it is has changed, as its tags have.
    pub fn alters(&self, name: &str, alter: impl FnOnce(&mut Entry<P, S>)) {
        let mut state = self.state();
        state.changes += 1;
        if let Some(entry) = state.volumes.get_mut(name) {
            alter(entry);
        }
    }

    /// Something else is so than was told, and no change was accepted. A request that may arrive yet may do so all the same.
    pub fn is_stale(&self, name: &str) {
        let mut state = self.state();
        if let Some(entry) = state.volumes.get_mut(name) {
            entry.told = None;
        }
    }

    /// Nothing is known any more.
    pub fn forget(&self, name: &str) {
        let mut state = self.state();
        state.changes += 1;
        state.volumes.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_before_a_change_is_not_kept_after_it() {
        let known: Known<&str, u32> = Known::default();
        let changes = known.changes();
        known.told("a", 1, 1000, changes);
        assert_eq!([1000, 2499, 2500, 999].map(|now_ms| known.recent("a", now_ms)), [Some(1), Some(1), None, None]);
        assert_eq!((known.pending("a"), known.pending("b")), (Some(None), None));
        assert!(known.begins("a", "x", 2, 1000, |_| false) && !known.begins("a", "x", 3, 1000, |there| *there == "x"));
        known.told("a", 4, 1000, changes);
        known.found("a", "y", changes);
        assert_eq!((known.recent("a", 1000), known.pending("a")), (Some(2), Some(Some("x"))));
        known.ends("a", |there| *there == "y");
        assert_eq!(known.pending("a"), Some(Some("x")));
        known.ends("a", |there| *there == "x");
        assert_eq!((known.recent("a", 1000), known.pending("a")), (None, Some(None)));
    }
}
