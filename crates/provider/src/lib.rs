//! Rents, attaches, detaches and deletes volumes: one trait, one contract test-suite, several providers.

pub mod clock;
#[cfg(feature = "contract")]
pub mod contract;
pub mod faulty;
mod files;
pub mod local;
pub mod qemu;
pub mod recording;
pub mod remote;
pub mod sweep;

pub use clock::{Clock, ManualClock, SystemClock};
pub use faulty::{Fault, FaultRates, Faulty, Observer, Verb};
pub use local::{LocalConfig, LocalProvider, LocalType};
pub use qemu::{QemuConfig, QemuProvider};
pub use recording::{Call, Recording};
pub use remote::{RemoteConfig, RemoteProvider};

use std::collections::BTreeMap;
use std::path::PathBuf;

use surgetank_model::Bytes;

/// A provider's name of a volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct VolumeId(pub String);

/// Tags of a volume. Ours all begin with `surgetank:` (see [`tag`]).
pub type Tags = BTreeMap<String, String>;

/// The tag keys that surgetank puts on every volume it rents.
pub mod tag {
    /// Which daemon rented it (the state directory's random id).
    pub const OWNER: &str = "surgetank:owner";
    /// Which elastic device it serves.
    pub const DEVICE: &str = "surgetank:device";
    /// The epoch of the attachment whose data may be dirty on it; absent: none.
    pub const DIRTY_EPOCH: &str = "surgetank:dirty-epoch";
}

/// What to rent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CreateVolume {
    /// Client token: creating twice with the same token gives the same volume, as long as that volume exists.
    /// Whether a token may be used again after its volume was deleted is the provider's affair: draw a fresh one
    /// for every rental.
    pub token: String,
    /// The provider's name of the type.
    pub volume_type: String,
    /// Size.
    pub size: Bytes,
    /// Tags to set from the start.
    pub tags: Tags,
}

/// Where a volume is in its life. Clouds answer calls before they are carried out; poll `describe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum VolumeState {
    /// Being made.
    Creating,
    /// Made, not attached.
    Available,
    /// Being attached.
    Attaching,
    /// Attached: `device` says where.
    Attached,
    /// Being detached.
    Detaching,
    /// Being deleted (still listed by some providers).
    Deleting,
}

/// What a provider says of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeDescription {
    /// Its name.
    pub id: VolumeId,
    /// Where it is in its life.
    pub state: VolumeState,
    /// Its type.
    pub volume_type: String,
    /// Its size.
    pub size: Bytes,
    /// Its tags.
    pub tags: Tags,
    /// When attached: where it is in this machine. Of a disk this is for people, since its serial is what it is found by;
    /// of a file it counts only beneath [`Provider::files`].
    pub device: Option<PathBuf>,
    /// When attached as a disk: what the disk's serial must read.
    pub serial: Option<String>,
}

/// Whether an idempotent verb changed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It did.
    Changed,
    /// It was so already.
    Identity,
}

/// Why a provider did not do something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// No volume of that name.
    #[error("no volume {0:?}")]
    NotFound(VolumeId),
    /// The quota is used up.
    #[error("quota exceeded: {0}")]
    Quota(String),
    /// No capacity of this type now.
    #[error("insufficient capacity: {0}")]
    Capacity(String),
    /// No free attachment slot on this machine.
    #[error("attachment limit reached: {0}")]
    AttachLimit(String),
    /// The volume is in a state that does not allow it (delete while attached, attach elsewhere).
    #[error("volume {id:?} is {state:?}: {reason}")]
    Conflict {
        /// Which volume.
        id: VolumeId,
        /// Its state.
        state: VolumeState,
        /// Why that does not go.
        reason: String,
    },
    /// Will not pass by itself: unknown type, size out of limits, no permission.
    #[error("{0}")]
    Invalid(String),
    /// May pass: I/O error, timeout, throttling.
    #[error("{0}")]
    Transient(String),
}

/// A provider of volumes. Calls may block for a network round trip but not until the change is carried out.
/// Every verb is idempotent: asked again, it answers `Identity`.
pub trait Provider: Send + Sync {
    /// The directory beneath which volumes without a serial lie, which are files of this machine. `None`: all of its
    /// volumes are disks. The configuration says so, never whoever answers the calls.
    fn files(&self) -> Option<PathBuf>;

    /// Rents a volume.
    ///
    /// # Errors
    /// See [`ProviderError`].
    fn create(&self, request: &CreateVolume) -> Result<(VolumeDescription, Change), ProviderError>;

    /// Attaches a volume to this machine.
    ///
    /// # Errors
    /// See [`ProviderError`].
    fn attach(&self, id: &VolumeId) -> Result<Change, ProviderError>;

    /// Detaches a volume from this machine.
    ///
    /// # Errors
    /// See [`ProviderError`].
    fn detach(&self, id: &VolumeId) -> Result<Change, ProviderError>;

    /// Deletes a volume: the bill stops. Deleting one that is gone is `Identity`.
    ///
    /// # Errors
    /// See [`ProviderError`].
    fn delete(&self, id: &VolumeId) -> Result<Change, ProviderError>;

    /// Describes a volume.
    ///
    /// # Errors
    /// `NotFound` only if it is known that there is no such volume; else as [`ProviderError`] says.
    fn describe(&self, id: &VolumeId) -> Result<VolumeDescription, ProviderError>;

    /// All volumes that carry this tag with this value: all of them, or an error.
    ///
    /// # Errors
    /// See [`ProviderError`].
    fn list(&self, key: &str, value: &str) -> Result<Vec<VolumeDescription>, ProviderError>;

    /// Sets a tag (`Some`) or removes it (`None`).
    ///
    /// # Errors
    /// See [`ProviderError`].
    fn set_tag(&self, id: &VolumeId, key: &str, value: Option<&str>) -> Result<Change, ProviderError>;
}
