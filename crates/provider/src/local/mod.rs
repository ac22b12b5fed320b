//! Volumes that are files in a directory of this machine: for trying things out, tests, demonstrations, and machines
//! whose fast disk is local. It behaves like a cloud: calls are answered before they are carried out, and quotas,
//! limits and latencies are real.
//!
//! Several providers, in one process or many, may use one directory at once.

mod config;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use surgetank_model::Bytes;
use surgetank_model::volume_type::Credits;

use crate::clock::{Clock, SystemClock, whole_ms};
use crate::faulty::Faulty;
use crate::files::record::Record;
use crate::files::store::{self, Locked};
use crate::files::{FileProvider, Machine};
use crate::table::{ProviderConfig, TypeLimits};
use crate::{DiskIdentity, Provider, ProviderError, VolumeId, VolumeState};

pub use crate::files::Repair;
pub use crate::files::catalog::{FileType as LocalType, IopsCredits, SIZE_GRAIN};
pub use config::LocalConfig;

/// The local provider.
pub type LocalProvider = FileProvider<SimulatedMachine>;

/// This machine, as if its volumes had to be plugged in: an attached volume is its file, after a while.
#[derive(Clone, Copy, Debug)]
pub struct SimulatedMachine {
    attach_latency_ms: u64,
    detach_latency_ms: u64,
    grow_latency_ms: Option<u64>,
}

impl ProviderConfig for LocalConfig {
    fn check(&self) -> Result<(), String> {
        let bytes = self.directory.as_os_str().as_encoded_bytes();
        if bytes.is_empty() || bytes.contains(&0) {
            return Err(
                "directory is no path: write that of a directory of a fast disk, or leave it out for the default"
                    .to_owned(),
            );
        }
        self.types.iter().try_for_each(|(name, volume_type)| volume_type.check(name))
    }

    fn directory(&self) -> Option<&Path> {
        Some(&self.directory)
    }

    fn type_limits(&self, volume_type: &str) -> Result<TypeLimits, ProviderError> {
        // A file has no limits of its own.
        Ok(TypeLimits { throttle: true, ..self.settings().catalog.volume_type(volume_type)?.limits() })
    }

    fn credits(&self, volume_type: &str, size: Bytes) -> Result<Vec<Credits>, ProviderError> {
        Ok(self.settings().catalog.volume_type(volume_type)?.credits_at(size))
    }

    fn would_open(&self) -> Result<(), ProviderError> {
        store::would_open(&self.directory)
    }

    fn rents_nothing(&self) -> Option<String> {
        let limits = [("quota_volumes", self.quota_volumes), ("attach_limit", self.attach_limit)];
        let (key, _) = limits.into_iter().find(|(_, limit)| *limit == Some(0))?;
        Some(format!("{key} of [provider.local] is 0"))
    }

    fn has_no_room_for(&self, size: Bytes) -> Option<String> {
        if let Some(quota) = self.quota_bytes.filter(|quota| *quota < size) {
            return Some(format!("quota_bytes of [provider.local] is {quota}"));
        }
        let capacity = store::capacity(&self.directory).filter(|capacity| *capacity < size)?;
        let (directory, mib) = (self.directory.display(), capacity.get() >> 20);
        Some(format!("the file system of {directory} holds {mib} MiB all in all"))
    }

    fn volumes_max(&self) -> Option<u32> {
        [self.quota_volumes, self.attach_limit].into_iter().flatten().min()
    }

    /// With faults if the configuration has some.
    fn open(&self, _: Option<&Path>) -> Result<Arc<dyn Provider>, ProviderError> {
        let clock: Arc<dyn Clock> = Arc::new(SystemClock);
        let local = LocalProvider::open(self.clone(), Arc::clone(&clock))?;
        Ok(match self.faults.clone() {
            Some(rates) => Arc::new(Faulty::new(local, clock).with_rates(rates)),
            None => Arc::new(local),
        })
    }
}

impl LocalProvider {
    /// Opens the directory, makes it if it is missing, and clears up what dead processes left half done. The directory
    /// in which it lies is not made: it may be the mount point of a disk that is not mounted.
    ///
    /// # Errors
    /// `Invalid` if the directory cannot be used, `Transient` if it cannot be read now. A record that cannot be read is
    /// no error yet: it is one to whoever asks for its volume, for a list, or for a new volume.
    pub fn open(config: LocalConfig, clock: Arc<dyn Clock>) -> Result<Self, ProviderError> {
        let machine = SimulatedMachine {
            attach_latency_ms: whole_ms(config.attach_latency.0),
            detach_latency_ms: whole_ms(config.detach_latency.0),
            grow_latency_ms: config.grows.then(|| whole_ms(config.grow_latency.0)),
        };
        Self::open_with(config.settings(), clock, machine)
    }
}

impl SimulatedMachine {
    fn enter(
        now_ms: u64,
        latency_ms: u64,
        state: VolumeState,
        locked: &Locked<'_>,
        record: &mut Record,
    ) -> Result<(), ProviderError> {
        record.enter(state, now_ms, latency_ms);
        record.advance(now_ms);
        locked.rewrite_record(record)
    }
}

impl Machine for SimulatedMachine {
    const ATTACHES_FILES: bool = true;

    fn grow_latency_ms(&self) -> Option<u64> {
        self.grow_latency_ms
    }

    fn settle(&self, now_ms: u64, records: &mut [Record], changed: &mut Vec<VolumeId>) -> Result<(), ProviderError> {
        let settled = records.iter_mut().filter(|record| record.takes_a_slot());
        changed.extend(settled.filter_map(|record| record.advance(now_ms).then(|| record.id.clone())));
        Ok(())
    }

    fn attach(&self, now_ms: u64, locked: &Locked<'_>, record: &mut Record) -> Result<(), ProviderError> {
        Self::enter(now_ms, self.attach_latency_ms, VolumeState::Attaching, locked, record)
    }

    fn detach(&self, now_ms: u64, locked: &Locked<'_>, record: &mut Record) -> Result<(), ProviderError> {
        Self::enter(now_ms, self.detach_latency_ms, VolumeState::Detaching, locked, record)
    }

    fn place(&self, _: &VolumeId, image: PathBuf) -> (PathBuf, Option<DiskIdentity>) {
        (image, None)
    }
}
