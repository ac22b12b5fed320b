//! Rents, attaches, detaches and deletes volumes: one trait, one contract test-suite, several providers.

pub mod account;
pub mod aws;
pub mod azure;
pub mod clock;
mod cloud;
#[cfg(feature = "contract")]
pub mod contract;
#[cfg(feature = "contract")]
pub mod fakes;
pub mod faulty;
mod files;
pub mod gce;
pub mod host;
pub mod local;
pub mod openstack;
pub mod pool;
pub mod qemu;
pub mod service;
pub mod table;

pub use account::Account;
pub use aws::{AwsConfig, AwsProvider};
pub use azure::{AzureConfig, AzureProvider};
pub use clock::{Clock, ManualClock, SystemClock};
pub use faulty::{Fault, FaultRates, Faulty, Observer, Verb};
pub use gce::{GceConfig, GceProvider};
pub use host::{HostConfig, HostProvider};
pub use local::{IopsCredits, LocalConfig, LocalProvider, LocalType};
pub use openstack::{OpenStackConfig, OpenStackProvider};
pub use pool::{PoolConfig, PoolProvider};
pub use qemu::{QemuConfig, QemuProvider};
pub use table::ProviderConfig;

use std::path::PathBuf;
use std::sync::Arc;

use surgetank_model::Bytes;
pub use surgetank_model::Lag;
pub use surgetank_model::account::{AccountVolume, Machine, Named};
pub use surgetank_model::volume::{
    Change, CreateVolume, DiskIdentity, ProviderError, Tags, Transition, VolumeDescription, VolumeId, VolumeState,
    decide_growth, tag,
};

/// Where the attached volumes of a provider are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Home {
    /// All of them are disks of this machine, with identities.
    Disks,
    /// Those without the identity of a disk are files of this machine, beneath this directory.
    Files(PathBuf),
    /// They are files of a staging pool.
    Pool(Arc<PoolConfig>),
}

impl From<Option<PathBuf>> for Home {
    fn from(files: Option<PathBuf>) -> Self {
        files.map_or(Self::Disks, Self::Files)
    }
}

/// A provider of volumes. Calls may block for a network round trip but not until the change is carried out.
/// Every verb is idempotent: asked again, it answers `Identity`.
pub trait Provider: Send + Sync {
    /// Where attached volumes are found. The configuration says so, never whoever answers the calls.
    fn home(&self) -> Home;

    /// Whether creations with one token make one volume even at the same time, and tell one caller that it is [`Change::Changed`].
    ///
    /// Otherwise each of them may make one, or nobody may be told who made it. Then whoever drew the token keeps the volume
    /// that it has put on record, and what else carries the token as [`tag::TOKEN`] is an orphan. As soon as a volume of a token is
    /// listed, a creation with it makes no other one.
    ///
    /// Whoever decorates a provider forwards it, so there is no default.
    fn create_is_exclusive(&self) -> bool;

    /// Rents a volume.
    ///
    /// # Errors
    /// See [`ProviderError`].
    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError>;

    /// Asks for a change of a volume's state. [`Transition::decide`] says what it does in which state, and that to delete a
    /// volume that is gone is `Identity`. A deletion may answer that of a volume that is there as well, as long as [`Provider::lag`]
    /// allows: only `Changed` says that it is accepted.
    ///
    /// # Errors
    /// See [`ProviderError`].
    fn change_state(&self, id: &VolumeId, transition: Transition) -> Result<Change, ProviderError>;

    /// Whether it can grow volumes in place, while they are attached.
    fn grows(&self) -> bool {
        false
    }

    /// Asks for a volume to become as large as `size`, wherever it is attached; it keeps its data, and never becomes smaller.
    /// It is carried out when `describe` tells a size of at least that. [`decide_growth`] says what it does in which state.
    ///
    /// # Errors
    /// `Invalid` if the provider cannot, or has no volumes of that size; `Quota` or `Capacity`; else see [`ProviderError`].
    /// The volume is then as large as it was, unless the error is `Transient`: it may grow after all.
    fn grow(&self, _id: &VolumeId, _size: Bytes) -> Result<Change, ProviderError> {
        Err(ProviderError::Invalid("this provider cannot grow a volume in place".to_owned()))
    }

    /// For how long [`Provider::describe`] may answer `NotFound` although the volume is there. What that means, whoever asks decides.
    ///
    /// Whoever decorates a provider forwards it, so there is no default.
    fn lag(&self) -> Lag;

    /// Describes a volume.
    ///
    /// # Errors
    /// `NotFound` only if there is no such volume, as far as [`Provider::lag`] allows that to be known; else as [`ProviderError`]
    /// says.
    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError>;

    /// A disk of this machine came or went, as its kernel tells: what was told of changes on the way may be so no more. Whoever decorates a
    /// provider that asks nobody for a while forwards it.
    fn disk_changed(&self) {}

    /// All volumes that carry this tag with this value: all of them, or an error. It may lag behind: leave out what is new, and show
    /// what is gone, or was different. So it finds volumes, and proves nothing of them.
    ///
    /// # Errors
    /// See [`ProviderError`].
    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError>;

    /// Sets a tag (`Some`) or removes it (`None`).
    ///
    /// # Errors
    /// See [`ProviderError`].
    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError>;

    /// Attaches a volume to this machine.
    ///
    /// # Errors
    /// As [`Provider::change_state`].
    fn attach(&self, id: &VolumeId) -> Result<Change, ProviderError> {
        self.change_state(id, Transition::Attach)
    }

    /// Detaches a volume from this machine.
    ///
    /// # Errors
    /// As [`Provider::change_state`].
    fn detach(&self, id: &VolumeId) -> Result<Change, ProviderError> {
        self.change_state(id, Transition::Detach)
    }

    /// Deletes a volume: the bill stops.
    ///
    /// # Errors
    /// As [`Provider::change_state`].
    fn delete(&self, id: &VolumeId) -> Result<Change, ProviderError> {
        self.change_state(id, Transition::Delete)
    }
}
