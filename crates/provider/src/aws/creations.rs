//! Creations that may come to nothing: EC2 accepts an encrypted volume, finds that it may not use the key, and takes the volume back
//! without a word. That looks like a description that lags behind, and only the token tells the two apart.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::ec2::Query;
use crate::clock::whole_ms;
use crate::{VolumeDescription, VolumeId, VolumeState};

/// A new volume that is not described is asked for by its token no more often than this: most of them show sooner.
const EVERY: Duration = Duration::from_secs(5);

/// The calls that have made volumes which are not known to have been made yet, and when their tokens were used last.
#[derive(Debug, Default)]
pub struct Creations(Mutex<BTreeMap<String, (Query, u64)>>);

impl Creations {
    fn all(&self) -> MutexGuard<'_, BTreeMap<String, (Query, u64)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// EC2 has accepted a volume.
    pub fn begins(&self, id: &VolumeId, query: &Query, now_ms: u64) {
        self.all().insert(id.0.clone(), (query.clone(), now_ms));
    }

    /// It is described.
    pub fn told(&self, volume: &VolumeDescription) {
        if volume.state != VolumeState::Creating {
            self.ends(&volume.id);
        }
    }

    /// What becomes of it is of no interest any more, or known.
    pub fn ends(&self, id: &VolumeId) {
        self.all().remove(&id.0);
    }

    /// It is not described: the call to repeat, if it is time to.
    pub fn to_repeat(&self, id: &VolumeId, now_ms: u64) -> Option<Query> {
        let mut all = self.all();
        let (query, at_ms) = all.get_mut(&id.0)?;
        // A clock that has stepped backwards makes it wait anew.
        let is_time = now_ms.checked_sub(*at_ms).is_none_or(|age_ms| age_ms >= whole_ms(EVERY));
        is_time.then(|| {
            *at_ms = now_ms;
            query.clone()
        })
    }
}
