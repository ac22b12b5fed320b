//! A block device of the kernel's ublk driver. It comes up when its requests are answered, and waits for the next daemon if
//! it is in use when this one ends.

use std::sync::Arc;

use surgetank_device::front::{UblkConfig, UblkFront, UblkHandle, ublk};

use super::{Export, Opened, Opening, identity, linked, lock_memory};
use crate::device::Until;
use crate::link::Link;
use crate::places;

struct Ublk(UblkHandle, Link);

pub(super) fn possible() -> Result<(), String> {
    ublk::possible().map_err(|why| why.to_string())
}

pub(super) fn open(Opening { export, run_directory, owner, .. }: Opening<'_>) -> Result<Opened, String> {
    places::make(run_directory)?;
    lock_memory();
    let link = Link::new(run_directory, &export.name);
    let identity = identity(owner, &export.name);
    let config = UblkConfig { identity, export, write_cache: true, discards: true, partitions: true };
    let front = UblkFront::start(&config).map_err(|error| error.to_string())?;
    let export = Arc::new(Ublk(front.handle(), link));
    Ok(Opened { front: Box::new(front), kind: "ublk", export })
}

impl Export for Ublk {
    fn comes_up_when_answered(&self) -> bool {
        true
    }

    fn answers(&self) {
        self.0.bring_up();
    }

    fn address(&self) -> Result<String, String> {
        self.0.wait_ready().map(|device| linked(&self.1, &device)).map_err(|error| error.to_string())
    }

    fn grown(&self, size: u64) -> Result<(), String> {
        self.0.grown(size).map_err(|error| error.to_string())
    }

    fn close(&self, device: &str, until: Until) {
        match (self.0.close(), until) {
            (Ok(()), _) => self.1.remove(),
            // As it is meant to be.
            (Err(error), Until::Upgraded) => tracing::debug!(device, %error, "the device waits for the new binary"),
            (Err(error), Until::Started) => {
                tracing::warn!(device, %error, "the device is in use, and its requests wait until a daemon is started");
            }
        }
    }
}
