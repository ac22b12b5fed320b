//! How often a change that is under way is looked at: whoever waits for it asks far more often than a cloud likes.
//!
//! Pauses grow with the time that a change has taken, as one that has taken long takes longer yet. The kernel tells of disks that come
//! and go: what a volume waits for that is being attached may have happened then, and it is looked at at once.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::clock::whole_ms;
use crate::{VolumeDescription, VolumeId, VolumeState};

/// The pause before the first look at what is being made, attached or detached, and deleted: most are done by then.
const CREATING: Duration = Duration::from_millis(1500);
const MOVING: Duration = Duration::from_secs(3);
const DELETING: Duration = Duration::from_secs(5);
/// The longest one, far shorter than clouds lag: a volume counts as seen as long as it is told again.
const LONGEST: Duration = Duration::from_secs(6);
/// The shortest pause between looks after a disk came or went. A cloud says a moment later than the kernel that a volume is attached, and
/// the kernel tells of disks that are nobody's.
const AFTER_DISK: Duration = Duration::from_millis(200);
/// A disk that came so shortly before an attach was known to be on the way may be the one: clouds answer late that they begin.
const JUST_BEFORE: Duration = Duration::from_secs(2);

/// When a state on the way was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Told {
    state: VolumeState,
    /// First and last.
    first_ms: u64,
    last_ms: u64,
    /// When the kernel told of a disk last, while it was told.
    disk_ms: Option<u64>,
}

impl Told {
    /// The same is told now, or something else than before.
    #[must_use]
    pub fn again(before: Option<Self>, state: VolumeState, now_ms: u64) -> Self {
        match before.filter(|before| before.state == state && before.last_ms <= now_ms) {
            Some(before) => Self { last_ms: now_ms, ..before },
            None => Self { state, first_ms: now_ms, last_ms: now_ms, disk_ms: None },
        }
    }

    /// Whether it is this state, told last at this time.
    #[must_use]
    pub fn is_of(&self, state: VolumeState, last_ms: u64) -> bool {
        (self.state, self.last_ms) == (state, last_ms)
    }

    /// A disk came or went.
    pub fn disk_changed(&mut self, now_ms: u64) {
        if self.state == VolumeState::Attaching {
            self.disk_ms = Some(now_ms);
        }
    }

    /// The same, if it is told for the first time, after a disk came or went at this time.
    #[must_use]
    pub fn after_disk(mut self, disk_ms: Option<u64>) -> Self {
        let age_ms = disk_ms.and_then(|disk_ms| self.first_ms.checked_sub(disk_ms));
        if self.first_ms == self.last_ms && age_ms.is_some_and(|age_ms| age_ms < whole_ms(JUST_BEFORE)) {
            self.disk_changed(self.last_ms);
            // It is asked for at once.
            self.last_ms = self.last_ms.saturating_sub(whole_ms(AFTER_DISK));
        }
        self
    }

    /// The pause before the first look at a change; `None`: whatever a caller may rely on is asked for.
    const fn first_pause(self) -> Option<Duration> {
        match self.state {
            VolumeState::Creating => Some(CREATING),
            VolumeState::Attaching | VolumeState::Detaching => Some(MOVING),
            VolumeState::Deleting => Some(DELETING),
            VolumeState::Available | VolumeState::Attached | VolumeState::Failed => None,
        }
    }

    /// Whether it is told again without asking. A clock that has stepped backwards has the cloud asked.
    #[must_use]
    pub fn serves(&self, now_ms: u64) -> bool {
        let Some(first) = self.first_pause() else { return false };
        let taken_ms = |since_ms: u64| self.last_ms.saturating_sub(since_ms);
        let pause_ms = whole_ms(first).max(taken_ms(self.first_ms) / 2).min(whole_ms(LONGEST));
        let after_disk_ms = self.disk_ms.map_or(pause_ms, |at_ms| whole_ms(AFTER_DISK).max(taken_ms(at_ms) / 2));
        let is_recent = |age_ms: u64| age_ms < pause_ms.min(after_disk_ms);
        now_ms.checked_sub(self.last_ms).is_some_and(is_recent)
    }
}

/// What was told of volumes a moment ago, and when the kernel told of a disk last.
#[derive(Debug, Default)]
struct State {
    volumes: BTreeMap<VolumeId, (Told, VolumeDescription)>,
    disk_ms: Option<u64>,
}

/// What was told of volumes a moment ago.
#[derive(Debug, Default)]
pub struct Looks(Mutex<State>);

impl Looks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is told again without asking. Only states on the way are.
    pub fn recent(&self, id: &VolumeId, now_ms: u64) -> Option<VolumeDescription> {
        let looks = self.state();
        looks.volumes.get(id).filter(|(told, _)| told.serves(now_ms)).map(|(_, volume)| volume.clone())
    }

    /// Keeps what was told.
    pub fn keep(&self, volume: &VolumeDescription, now_ms: u64) {
        let mut looks = self.state();
        let before = looks.volumes.remove(&volume.id).map(|(told, _)| told);
        // Nobody waits for the others any more.
        looks
            .volumes
            .retain(|_, (told, _)| now_ms.checked_sub(told.last_ms).is_some_and(|age_ms| age_ms < whole_ms(LONGEST)));
        let told = Told::again(before, volume.state, now_ms).after_disk(looks.disk_ms);
        if told.first_pause().is_some() {
            looks.volumes.insert(volume.id.clone(), (told, volume.clone()));
        }
    }

    /// Something else than what was told may hold.
    pub fn forget(&self, id: &VolumeId) {
        self.state().volumes.remove(id);
    }

    /// A disk of this machine came or went.
    pub fn disk_changed(&self, now_ms: u64) {
        let mut looks = self.state();
        looks.disk_ms = Some(now_ms);
        looks.volumes.values_mut().for_each(|(told, _)| told.disk_changed(now_ms));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// When a change is looked at that was told at 0 and goes on for so long, if somebody asks at each millisecond.
    fn looks(state: VolumeState, until_ms: u64, disk_ms: Option<u64>) -> Vec<u64> {
        let (mut told, mut looks) = (Told::again(None, state, 0), Vec::new());
        for now_ms in 0..=until_ms {
            if disk_ms == Some(now_ms) {
                told.disk_changed(now_ms);
            }
            if !told.serves(now_ms) {
                looks.push(now_ms);
                told = Told::again(Some(told), state, now_ms);
            }
        }
        looks
    }

    #[test]
    fn pauses_between_looks_grow_with_the_time_that_a_change_takes() {
        assert_eq!(looks(VolumeState::Creating, 9000, None), [1500, 3000, 4500, 6750]);
        assert_eq!(looks(VolumeState::Attaching, 30_000, None), [3000, 6000, 9000, 13_500, 19_500, 25_500]);
        assert_eq!(looks(VolumeState::Detaching, 9000, None), [3000, 6000, 9000]);
        assert_eq!(looks(VolumeState::Deleting, 16_000, None), [5000, 10_000, 15_000]);
        assert_eq!(looks(VolumeState::Attached, 2, None), [0, 1, 2]);
    }

    #[test]
    fn what_is_being_attached_is_looked_at_when_a_disk_comes_and_soon_again() {
        assert_eq!(looks(VolumeState::Attaching, 6000, Some(2000)), [2000, 2200, 2400, 2600, 2900, 3350, 4025, 5037]);
        assert_eq!(looks(VolumeState::Detaching, 2999, Some(2000)), [0; 0], "nobody waits for that");
        let first_look = |disk_ms| {
            let told = Told::again(None, VolumeState::Attaching, 9000).after_disk(disk_ms);
            (9000..).find(|now_ms| !told.serves(*now_ms)).unwrap()
        };
        assert_eq!(
            [None, Some(7000), Some(7001), Some(9000), Some(9001)].map(first_look),
            [12_000, 12_000, 9000, 9000, 12_000]
        );
    }

    #[test]
    fn a_clock_that_has_stepped_backwards_and_another_state_begin_anew() {
        let told = Told::again(None, VolumeState::Creating, 1000);
        assert!(told.serves(1000) && !told.serves(999));
        let told = Told::again(Some(told), VolumeState::Creating, 500);
        assert_eq!((told.first_ms, told.serves(1999), told.serves(2000)), (500, true, false));
        let told = Told::again(Some(told), VolumeState::Attaching, 2000);
        assert_eq!((told.first_ms, told.serves(4999), told.serves(5000)), (2000, true, false));
    }
}
