//! For tests: a rental in the middle of its life.

use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_model::volume::VolumeId;

use crate::record::{RentalRecord, RentalStage, Slot};
use crate::rental::{Config, Rental};

/// A volume of 1 GiB, "a", so far.
pub fn rented(stage: RentalStage, disposable: bool) -> Rental {
    let config = Config {
        device: "data".to_owned(),
        owner_id: "us".to_owned(),
        volume_type: "fast".to_owned(),
        outage_patience: Duration::from_secs(60),
        longest_pause: Duration::from_secs(60),
        volumes_leave: false,
    };
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
    };
    Rental::new(config, Slot::CACHE, Some(record))
}
