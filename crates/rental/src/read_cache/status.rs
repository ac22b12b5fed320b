//! What people may know of a read cache's volumes.

use surgetank_model::volume::VolumeId;
use surgetank_model::{Bytes, Instant};

use super::{Doing, ReadCache};
use crate::record::Slot;

/// What a volume is to the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Rented, and not used yet.
    Coming,
    /// In use.
    Serving,
    /// On its way to deletion.
    Leaving,
}

/// A volume of the cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeStatus {
    /// Its place.
    pub place: Slot,
    /// The provider's name, once known.
    pub volume: Option<VolumeId>,
    /// Its size.
    pub size: Bytes,
    /// Milliseconds since 1970 at which its creation was asked for.
    pub started_unix_ms: u64,
    /// What it is to the cache.
    pub part: Part,
}

/// How the volumes of a read cache stand.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// The volumes, by place.
    pub volumes: Vec<VolumeStatus>,
    /// Why one is missing.
    pub trouble: Option<String>,
    /// When the next one is tried again.
    pub retry: Option<Instant>,
}

impl ReadCache {
    /// How they stand.
    #[must_use]
    pub fn status(&self) -> Status {
        let volumes = self.places.iter().filter_map(|(place, doing)| {
            let record = self.record(*place)?;
            let part = match doing {
                Doing::Known | Doing::Creating | Doing::Attaching | Doing::Noting | Doing::Ready | Doing::Asked => {
                    Part::Coming
                }
                Doing::Serving(_) => Part::Serving,
                Doing::Leaving | Doing::Discarding => Part::Leaving,
            };
            Some(VolumeStatus {
                place: *place,
                volume: record.volume.clone(),
                size: record.size,
                started_unix_ms: record.started_unix_ms,
                part,
            })
        });
        let retries = self.troubles.keys().filter_map(|place| self.attempts.get(place)).map(|attempts| attempts.next);
        Status {
            volumes: volumes.collect(),
            trouble: self.troubles.values().next().cloned(),
            retry: retries.filter(|next| *next > self.now).min(),
        }
    }
}
