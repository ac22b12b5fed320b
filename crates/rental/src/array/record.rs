//! What is durable about an array and its volumes: who they are, what they were rented for, what was asked for.
//!
//! The members themselves say which of them count. The record says which volumes there are, so that none is forgotten, and which
//! of them must be there before the array is served.

use serde::{Deserialize, Serialize};
use surgetank_model::volume::VolumeId;

use crate::record::{RentalRecord, Slot};

/// How far an array is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// Its volumes are being rented and formatted; after a crash they are deleted.
    #[default]
    Creating,
    /// It may be served.
    Made,
    /// Its volumes are being deleted.
    Deleting,
}

/// A member that is to be replaced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wanted {
    /// Its slot.
    pub slot: u32,
    /// Its volume: once the slot has another one, nothing is left to do.
    pub instead_of: VolumeId,
}

/// A replaced member that is kept for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Where it is among the volumes.
    pub place: Slot,
    /// Until when, in milliseconds since 1970.
    pub until_unix_ms: u64,
}

/// What is durable beside the volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// The array's name on its members: 32 hex digits.
    pub array: String,
    /// How far it is.
    pub stage: Stage,
    /// Where the member of each slot is among the volumes.
    #[serde(default)]
    pub members: Vec<Slot>,
    /// Members that are to be replaced.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub wanted: Vec<Wanted>,
    /// Replaced members that are kept for a while.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub held: Vec<Held>,
}

/// An array from before its creation until after its deletion.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrayRecord {
    /// What is known of the array.
    pub facts: Facts,
    /// Its volumes, those that are being rented or deleted among them. Their slots are places, not those of the stripe.
    #[serde(default)]
    pub volumes: Vec<RentalRecord>,
}

impl ArrayRecord {
    /// The volume in a place.
    #[must_use]
    pub fn volume(&self, place: Slot) -> Option<&RentalRecord> {
        self.volumes.iter().find(|volume| volume.slot == place)
    }

    /// Whether it can be believed.
    ///
    /// # Errors
    /// What contradicts what.
    pub fn check(&self) -> Result<(), String> {
        let mut places: Vec<Slot> = self.volumes.iter().map(|volume| volume.slot).collect();
        places.sort_unstable();
        places.dedup();
        if places.len() < self.volumes.len() || places.contains(&Slot::CACHE) {
            return Err("is damaged: two of its volumes are in one place".to_owned());
        }
        if self.facts.stage == Stage::Made && self.facts.members.iter().any(|place| !places.contains(place)) {
            return Err("is damaged: it names a member that is none of its volumes".to_owned());
        }
        Ok(())
    }
}
