//! How often a change that is under way is looked at: whoever waits for it asks far more often than a cloud likes.
//!
//! Pauses grow with the time that a change has taken, as one that has taken long takes longer yet. The kernel tells of disks that come
//! and go: what a volume waits for that is being attached may have happened then, and it is looked at at once.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
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

    /// Whether it is told again without asking. A clock that has stepped backwards has the cloud asked.
    #[must_use]
    pub fn serves(&self, now_ms: u64) -> bool {
        let first = match self.state {
            VolumeState::Creating => CREATING,
            VolumeState::Attaching | VolumeState::Detaching => MOVING,
            VolumeState::Deleting => DELETING,
            // Whatever a caller may rely on is asked for.
            VolumeState::Available | VolumeState::Attached | VolumeState::Failed => return false,
        };
        let taken_ms = |since_ms: u64| self.last_ms.saturating_sub(since_ms);
        let pause_ms = whole_ms(first).max(taken_ms(self.first_ms) / 2).min(whole_ms(LONGEST));
        let after_disk_ms = self.disk_ms.map_or(pause_ms, |at_ms| whole_ms(AFTER_DISK).max(taken_ms(at_ms)));
        let is_recent = |age_ms: u64| age_ms < pause_ms.min(after_disk_ms);
        now_ms.checked_sub(self.last_ms).is_some_and(is_recent)
    }
}

/// What was told of volumes a moment ago.
#[derive(Debug, Default)]
pub struct Looks(Mutex<BTreeMap<VolumeId, (Told, VolumeDescription)>>);

impl Looks {
    /// What is told again without asking. Only states on the way are.
    pub fn recent(&self, id: &VolumeId, now_ms: u64) -> Option<VolumeDescription> {
        let looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        looks.get(id).filter(|(told, _)| told.serves(now_ms)).map(|(_, volume)| volume.clone())
    }

    /// Keeps what was told.
    pub fn keep(&self, volume: &VolumeDescription, now_ms: u64) {
        let mut looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = looks.remove(&volume.id).map(|(told, _)| told);
        // Nobody waits for the others any more.
        looks.retain(|_, (told, _)| now_ms.checked_sub(told.last_ms).is_some_and(|age_ms| age_ms < whole_ms(LONGEST)));
        let told = Told::again(before, volume.state, now_ms);
        if told.serves(now_ms) {
            looks.insert(volume.id.clone(), (told, volume.clone()));
        }
    }

    /// Something else than what was told may hold.
    pub fn forget(&self, id: &VolumeId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }

    /// A disk of this machine came or went.
    pub fn disk_changed(&self, now_ms: u64) {
        let mut looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        looks.values_mut().for_each(|(told, _)| told.disk_changed(now_ms));
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
        assert_eq!(looks(VolumeState::Attaching, 6000, Some(2000)), [2000, 2200, 2400, 2800, 3600, 5200]);
        assert_eq!(looks(VolumeState::Detaching, 2999, Some(2000)), [0; 0], "nobody waits for that");
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
