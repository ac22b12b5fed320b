//! How often a change that is under way is looked at: whoever waits for it asks far more often than a cloud likes.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::whole_ms;
use crate::{VolumeDescription, VolumeId, VolumeState};

/// The same change is asked for no more often than this: creating and attaching take seconds.
const EVERY: Duration = Duration::from_secs(1);

/// What was told of volumes a moment ago.
#[derive(Debug, Default)]
pub struct Looks(Mutex<BTreeMap<VolumeId, (u64, VolumeDescription)>>);

impl Looks {
    /// What is told again without asking. Only states on the way are: whatever a caller may rely on is asked for.
    pub fn recent(&self, id: &VolumeId, now_ms: u64) -> Option<VolumeDescription> {
        let looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        looks.get(id).filter(|(at_ms, _)| is_recent(*at_ms, now_ms)).map(|(_, volume)| volume.clone())
    }

    /// Keeps what was told.
    pub fn keep(&self, volume: &VolumeDescription, now_ms: u64) {
        let mut looks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        looks.retain(|_, (at_ms, _)| is_recent(*at_ms, now_ms));
        let is_on_the_way = matches!(
            volume.state,
            VolumeState::Creating | VolumeState::Attaching | VolumeState::Detaching | VolumeState::Deleting
        );
        if is_on_the_way {
            looks.insert(volume.id.clone(), (now_ms, volume.clone()));
        } else {
            looks.remove(&volume.id);
        }
    }

    /// Something else than what was told may hold.
    pub fn forget(&self, id: &VolumeId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(id);
    }
}

/// A clock that has stepped backwards makes nothing recent.
fn is_recent(at_ms: u64, now_ms: u64) -> bool {
    now_ms.checked_sub(at_ms).is_some_and(|age_ms| age_ms < whole_ms(EVERY))
}
