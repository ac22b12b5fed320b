//! Volumes that are image files on a host, hot-plugged into a running guest through QEMU's machine protocol.
//!
//! What should be is in our records, what is is in QEMU: every call compares them for the volumes that are, or may be,
//! plugged in. So it does not matter when this process, the guest or QEMU itself ended:
//!
//! - *attach*: the record says `Attaching`, the parts are made, the record says `Attached`. Whoever finds `Attaching` or
//!   `Attached` without a disk in QEMU removes the other parts, and the volume is available again: its maker died, or
//!   QEMU was started anew.
//! - *detach*: the record says `Detaching`, the guest is asked to release it, and once the disk is gone the other parts are
//!   removed and the volume is available. A guest that does not release it is asked again, and again.
//! - A volume that is available, and so may be deleted, has no parts in QEMU.

mod config;
mod guest;
mod qmp;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::clock::{Clock, SystemClock};
use crate::files::catalog::FileType;
use crate::files::record::{ID_BYTES, Record};
use crate::files::store::Locked;
use crate::files::{FileProvider, Machine};
use crate::table::{ProviderConfig, TypeLimits};
use crate::{DiskIdentity, Provider, ProviderError, VolumeId, VolumeState};

pub use config::QemuConfig;
use guest::{Guest, Image};
pub use qmp::{Qmp, QmpError};

/// A guest that does not release it is asked again after this long, in milliseconds. QEMU refuses a second request for a
/// while, and a guest takes one within 5 s for a change of mind (PCI Express: a second press of the attention button).
const ASK_AGAIN_MS: u64 = 6000;

/// The longest serial of a virtio disk, in bytes (VIRTIO 1.2, 5.2.6): ours are the volumes' ids.
const SERIAL_BYTES_MAX: usize = 20;
const _: () = assert!(ID_BYTES <= SERIAL_BYTES_MAX);

/// The provider of a guest's volumes.
pub type QemuProvider = FileProvider<Plugged>;

/// A guest that volumes are plugged into.
#[derive(Debug)]
pub struct Plugged {
    config: QemuConfig,
}

impl ProviderConfig for QemuConfig {
    fn check(&self) -> Result<(), String> {
        let on_credits =
            |volume_type: &FileType| volume_type.iops_credits.is_some() || volume_type.bandwidth_credits.is_some();
        match self.types.iter().find(|(_, volume_type)| on_credits(volume_type)) {
            Some((name, _)) => Err(format!(
                "the type \"{name}\" has burst credits, to which QEMU does not hold its volumes: remove them, or rent it \
                 from the provider local"
            )),
            None => Ok(()),
        }
    }

    fn directory(&self) -> Option<&Path> {
        Some(&self.directory)
    }

    fn type_limits(&self, volume_type: &str) -> Result<TypeLimits, ProviderError> {
        Ok(self.settings().catalog.volume_type(volume_type)?.limits())
    }

    /// The guest need not run yet.
    fn open(&self, _: Option<&Path>) -> Result<Arc<dyn Provider>, ProviderError> {
        Ok(Arc::new(QemuProvider::open(self.clone(), Arc::new(SystemClock))?))
    }
}

impl QemuProvider {
    /// Opens the directory and clears up what dead processes left half done.
    ///
    /// # Errors
    /// `Invalid` if the directory cannot be used, `Transient` if it cannot be read now. That QEMU does not answer is
    /// no error yet: it is one to whoever asks for a volume that may be plugged in.
    pub fn open(config: QemuConfig, clock: Arc<dyn Clock>) -> Result<Self, ProviderError> {
        Self::open_with(config.settings(), clock, Plugged { config })
    }

    /// Names of all parts of volumes that QEMU has now, sorted, whoever made them: nothing if no volume is plugged in.
    ///
    /// # Errors
    /// `Transient` if QEMU does not answer.
    pub fn parts(&self) -> Result<Vec<String>, ProviderError> {
        Ok(self.machine().look()?.ours()?)
    }
}

impl Plugged {
    fn look(&self) -> Result<Guest, QmpError> {
        Guest::look(Qmp::connect(&self.config.qmp, self.config.patience.0)?)
    }

    /// Brings one record to the present. True: it changed.
    fn settle_one(guest: &mut Guest, now_ms: u64, record: &mut Record) -> Result<bool, QmpError> {
        let before = record.state;
        if guest.has(&record.id) {
            match before {
                VolumeState::Attaching => record.enter(VolumeState::Attached, now_ms, 0),
                VolumeState::Detaching if record.is_due(now_ms) => {
                    tracing::warn!(volume = record.id.0, "the guest has not released its disk: it is asked again");
                    guest.unplug(&record.id)?;
                    record.enter(VolumeState::Detaching, now_ms, ASK_AGAIN_MS);
                    return Ok(true);
                }
                _ => {}
            }
        } else if guest.clear(&record.id)? {
            if before == VolumeState::Attached {
                tracing::warn!(volume = record.id.0, "QEMU has no disk of this volume any more: it is not attached");
            }
            record.enter(VolumeState::Available, now_ms, 0);
        }
        Ok(record.state != before)
    }

    fn plug(&self, guest: &mut Guest, locked: &Locked<'_>, record: &Record) -> Result<(), ProviderError> {
        let path = locked.image_path(&record.id);
        let catalog = self.config.settings().catalog;
        let image =
            Image { path: &path, limits: catalog.volume_type(&record.volume_type)?, direct: self.config.direct };
        guest.plug(&record.id, image, &self.config.ports)
    }
}

impl Machine for Plugged {
    const ATTACHES_FILES: bool = false;

    fn grow_latency_ms(&self) -> Option<u64> {
        None
    }

    fn settle(&self, now_ms: u64, records: &mut [Record], changed: &mut Vec<VolumeId>) -> Result<(), ProviderError> {
        let mut plugged = records.iter_mut().filter(|record| record.takes_a_slot()).peekable();
        if plugged.peek().is_none() {
            return Ok(());
        }
        let mut guest = self.look()?;
        for record in plugged {
            if Self::settle_one(&mut guest, now_ms, record)? {
                changed.push(record.id.clone());
            }
        }
        Ok(())
    }

    fn attach(&self, now_ms: u64, locked: &Locked<'_>, record: &mut Record) -> Result<(), ProviderError> {
        let mut guest = self.look()?;
        record.enter(VolumeState::Attaching, now_ms, 0);
        locked.rewrite_record(record)?;
        let plugged = self.plug(&mut guest, locked, record);
        if plugged.is_ok() {
            record.enter(VolumeState::Attached, now_ms, 0);
            return locked.rewrite_record(record);
        }
        // What cannot be taken back now is taken back by whoever looks next.
        if matches!(guest.clear(&record.id), Ok(true)) {
            record.enter(VolumeState::Available, now_ms, 0);
            locked.rewrite_record(record)?;
        }
        plugged
    }

    fn detach(&self, now_ms: u64, locked: &Locked<'_>, record: &mut Record) -> Result<(), ProviderError> {
        record.enter(VolumeState::Detaching, now_ms, ASK_AGAIN_MS);
        locked.rewrite_record(record)?;
        let mut guest = self.look()?;
        guest.unplug(&record.id)?;
        if Self::settle_one(&mut guest, now_ms, record)? {
            locked.rewrite_record(record)?;
        }
        Ok(())
    }

    fn place(&self, id: &VolumeId, _: PathBuf) -> (PathBuf, Option<DiskIdentity>) {
        // Where udev in the guest puts it; without udev its serial finds it.
        (PathBuf::from(format!("/dev/disk/by-id/virtio-{}", id.0)), Some(DiskIdentity::Serial(id.0.clone())))
    }
}
