//! Volumes as providers rent them out: their names, states and tags, and why a call was not carried out.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use crate::Bytes;

/// A provider's name of a volume.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct VolumeId(pub String);

/// Tags of a volume. Ours all begin with `surgetank:` (see [`tag`]).
pub type Tags = BTreeMap<String, String>;

/// The tag keys that surgetank puts on every volume it rents.
pub mod tag {
    /// Which daemon rented it (the state directory's random id).
    pub const OWNER: &str = "surgetank:owner";
    /// The client token that it was created with, so that one whose name was never learned can be found.
    pub const TOKEN: &str = "surgetank:token";
    /// Marks every volume of ours in an account, with the value `true`: policies allow a role to touch no others.
    pub const MANAGED: &str = "surgetank:managed";
    /// The machine on which it was rented, so that it is known which volumes have none any more.
    pub const HOST: &str = "surgetank:host";
    /// Which elastic device it serves.
    pub const DEVICE: &str = "surgetank:device";
    /// The epoch of the attachment whose data may be dirty on it; absent: none.
    pub const DIRTY_EPOCH: &str = "surgetank:dirty-epoch";
    /// Of which stripe it is a member: the stripe's token, its place, and how many there are.
    pub const STRIPE: &str = "surgetank:stripe";
    /// The array of which it is, or is to be, a member: 32 hex digits.
    pub const ARRAY: &str = "surgetank:array";
    /// For which slot of the array it was rented.
    pub const SLOT: &str = "surgetank:slot";
}

/// How often a caching volume can grow while it is attached: the superblocks of its log have room for so many parts.
pub const GROWTHS_MAX: usize = 8;

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
    /// It could not be made, or it has broken, and it is attached nowhere: it can only be deleted. EC2's `error`, GCE's `FAILED`,
    /// Cinder's `error` and `error_*`, Azure's provisioning state `Failed`. Azure and Cinder also say so of a volume of which a
    /// change failed: while it is attached to a machine, it is [`Attached`](Self::Attached), so that it is detached first.
    Failed,
}

/// By what an attached disk is told from all others of its machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DiskIdentity {
    /// What its serial reads.
    Serial(String),
    /// The name that the hypervisor shows, where all of its disks have one serial, or none.
    Name(String),
    /// The number of the logical unit as which it was attached, where it shows nothing else.
    Lun(u32),
}

impl std::fmt::Display for DiskIdentity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Serial(serial) => write!(f, "the serial {serial:?}"),
            Self::Name(name) => write!(f, "the name {name:?}"),
            Self::Lun(lun) => write!(f, "the logical unit {lun}"),
        }
    }
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
    /// When attached: where it is in this machine. Of a disk this is for people, since its identity is what it is found by;
    /// of a file it counts only beneath the directory that the configuration names.
    pub device: Option<PathBuf>,
    /// When attached as a disk: by what it is found.
    pub disk: Option<DiskIdentity>,
    /// If it is a stripe: the volumes of the provider that are there of it, in their order. They say where they are, it does
    /// not.
    pub members: Vec<Self>,
}

impl VolumeDescription {
    /// Whether it says where the volume is in this machine, or where all that is there of a stripe is.
    #[must_use]
    pub fn is_located(&self) -> bool {
        match &*self.members {
            [] => self.device.is_some(),
            members => members.iter().all(Self::is_located),
        }
    }
}

/// A change of state that is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transition {
    /// Attaches the volume to this machine.
    Attach,
    /// Detaches it from this machine.
    Detach,
    /// Deletes it: the bill stops.
    Delete,
}

impl Transition {
    /// What it does to a volume in this state, with every provider; `None`: there is no such volume. `Identity`: nothing is
    /// left to do.
    ///
    /// # Errors
    /// `NotFound`, or `Conflict` in a state that does not allow it.
    pub fn decide(self, id: &VolumeId, state: Option<VolumeState>) -> Result<Change, ProviderError> {
        use VolumeState::{Attached, Attaching, Available, Creating, Deleting, Detaching, Failed};

        let Some(state) = state else {
            return if self == Self::Delete { Ok(Change::Identity) } else { Err(ProviderError::NotFound(id.clone())) };
        };
        let reason = match (self, state) {
            (Self::Attach, Available)
            | (Self::Detach, Attaching | Attached)
            | (Self::Delete, Creating | Available | Failed) => {
                return Ok(Change::Changed);
            }
            (Self::Attach, Attaching | Attached)
            | (Self::Detach, Creating | Available | Detaching | Deleting | Failed)
            | (Self::Delete, Deleting) => return Ok(Change::Identity),
            (Self::Attach, Creating) => "wait until it is available",
            (Self::Attach, Detaching) => "wait until it is detached",
            (Self::Attach, Deleting) => "it is being deleted",
            (Self::Attach, Failed) => "the provider says that it has failed: delete it",
            (Self::Delete, Attaching | Attached | Detaching) => "detach it and wait until it is available",
        };
        Err(ProviderError::Conflict { id: id.clone(), state, reason: reason.to_owned() })
    }

    /// The state until it is carried out.
    #[must_use]
    pub const fn under_way(self) -> VolumeState {
        match self {
            Self::Attach => VolumeState::Attaching,
            Self::Detach => VolumeState::Detaching,
            Self::Delete => VolumeState::Deleting,
        }
    }
}

/// What growing a volume in this state and of this size to `size` does, with every provider; `None`: there is no such volume.
/// `Identity`: it is so large already. Nothing shrinks.
///
/// # Errors
/// `NotFound`, or `Conflict` in a state that does not allow it.
pub fn decide_growth(
    id: &VolumeId,
    volume: Option<(VolumeState, Bytes)>,
    size: Bytes,
) -> Result<Change, ProviderError> {
    use VolumeState::{Attached, Attaching, Available, Creating, Deleting, Detaching, Failed};

    let Some((state, present)) = volume else { return Err(ProviderError::NotFound(id.clone())) };
    let reason = match state {
        Available | Attached | Attaching | Detaching => {
            return Ok(if size > present { Change::Changed } else { Change::Identity });
        }
        Creating => "wait until it is available",
        Deleting => "it is being deleted",
        Failed => "the provider says that it has failed",
    };
    Err(ProviderError::Conflict { id: id.clone(), state, reason: reason.to_owned() })
}

/// Whether an idempotent verb changed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// It did.
    Changed,
    /// It was so already.
    Identity,
}

/// The least wait after the provider has had too many requests.
const THROTTLED_MIN: Duration = Duration::from_secs(1);

/// How long to wait after the provider has had too many requests and has said when to ask again, if it did: `own` at least.
#[must_use]
pub fn throttled(own: Duration, after: Option<Duration>) -> Duration {
    own.max(after.unwrap_or_default()).max(THROTTLED_MIN)
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
    /// The provider has had too many requests, and has not carried this one out.
    #[error("too many requests: {text}")]
    Throttled {
        /// When it wants to be asked again; `None`: it did not say.
        after: Option<Duration>,
        /// What it said.
        text: String,
    },
    /// May pass: I/O error, timeout.
    #[error("{0}")]
    Transient(String),
}

impl ProviderError {
    /// How long to wait before the provider is asked again: `own`, unless it has had too many requests and wants longer.
    #[must_use]
    pub fn pause(&self, own: Duration) -> Duration {
        match self {
            Self::Throttled { after, .. } => throttled(own, *after),
            _ => own,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_of_state_that_is_under_way_is_not_begun_again_and_what_is_gone_is_deleted() {
        let id = VolumeId("vol-1".to_owned());
        for transition in [Transition::Attach, Transition::Detach, Transition::Delete] {
            assert_eq!(transition.decide(&id, Some(transition.under_way())), Ok(Change::Identity));
            let gone = transition.decide(&id, None);
            match transition {
                Transition::Delete => assert_eq!(gone, Ok(Change::Identity)),
                _ => assert_eq!(gone, Err(ProviderError::NotFound(id.clone()))),
            }
        }
        let attached = Transition::Delete.decide(&id, Some(VolumeState::Attached));
        assert!(matches!(attached, Err(ProviderError::Conflict { state: VolumeState::Attached, .. })), "{attached:?}");
    }

    #[test]
    fn a_failed_volume_can_only_be_deleted() {
        let id = VolumeId("vol-1".to_owned());
        let failed = Some(VolumeState::Failed);
        let is_conflict = |answer: &Result<Change, ProviderError>| matches!(answer, Err(ProviderError::Conflict { state: VolumeState::Failed, reason, .. }) if !reason.is_empty());
        let attached = Transition::Attach.decide(&id, failed);
        assert!(is_conflict(&attached), "{attached:?}");
        assert_eq!(Transition::Detach.decide(&id, failed), Ok(Change::Identity), "it is attached nowhere");
        assert_eq!(Transition::Delete.decide(&id, failed), Ok(Change::Changed));
        for size in [1, 2] {
            let grown = decide_growth(&id, Some((VolumeState::Failed, Bytes::from_gib(1))), Bytes::from_gib(size));
            assert!(is_conflict(&grown), "{grown:?}");
        }
    }
}
