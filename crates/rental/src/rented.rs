//! For tests: a rental in the middle of its life.

use std::time::Duration;

use surgetank_model::volume::{Tags, VolumeDescription, VolumeId, VolumeState};
use surgetank_model::{Bytes, Instant};

use crate::ask::{Answer, Ask};
use crate::record::{RentalRecord, RentalStage, Slot};
use crate::rental::{Config, Rental};

/// What it is told at start.
pub fn config() -> Config {
    Config {
        device: "data".to_owned(),
        owner_id: "us".to_owned(),
        volume_type: "fast".to_owned(),
        outage_patience: Duration::from_secs(60),
        longest_pause: Duration::from_secs(60),
        volumes_leave: false,
        lag: surgetank_model::Lag::NONE,
    }
}

/// A volume of 1 GiB, "a", so far.
pub fn rented(stage: RentalStage, disposable: bool) -> Rental {
    let record = RentalRecord {
        slot: Slot::CACHE,
        token: "t".to_owned(),
        volume_type: "fast".to_owned(),
        size: Bytes::from_gib(1),
        growing_to: None,
        started_unix_ms: 0,
        stage,
        volume: Some(VolumeId("a".to_owned())),
        epoch: None,
        disposable,
        discarded: None,
        missing: None,
    };
    Rental::new(config(), Slot::CACHE, Some(record))
}

/// What the provider says of it.
pub fn described(state: VolumeState, tags: Tags) -> VolumeDescription {
    let (id, volume_type, size) = (VolumeId("a".to_owned()), "fast".to_owned(), Bytes::from_gib(1));
    VolumeDescription { id, state, volume_type, size, tags, device: None, disk: None, members: Vec::new() }
}

/// Answers the next ask, which it returns.
pub fn answers(rental: &mut Rental, answer: Answer) -> Ask {
    let (id, ask) = rental.next_ask().expect("it asks");
    rental.complete(Instant::ZERO, id, answer);
    ask
}
