//! What this process knows of disks: which changes it has asked for, and what it was told a moment ago.

use std::time::Duration;

use super::arm::Operation;
use super::disk::{Disk, Seen};
use crate::clock::whole_ms;
use crate::cloud::known;
use crate::{Change, Transition, VolumeId, VolumeState};

/// For how long a change goes on of which nobody tells, and which neither the disk nor the machine shows; and for how long nothing else
/// is asked about one of which its operation says that it goes on.
const HIDDEN_FOR: Duration = Duration::from_secs(180);

/// A change of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    Create,
    Attach,
    Detach,
    Delete,
    Grow,
}

impl Doing {
    /// The state of a disk until it is carried out; `None`: any.
    #[must_use]
    pub const fn under_way(self) -> Option<VolumeState> {
        match self {
            Self::Create => Some(VolumeState::Creating),
            Self::Attach => Some(VolumeState::Attaching),
            Self::Detach => Some(VolumeState::Detaching),
            Self::Delete => Some(VolumeState::Deleting),
            Self::Grow => None,
        }
    }

    /// What it does to a disk that is there.
    const fn transition(self) -> Option<Transition> {
        match self {
            Self::Attach => Some(Transition::Attach),
            Self::Detach => Some(Transition::Detach),
            Self::Delete => Some(Transition::Delete),
            Self::Create | Self::Grow => None,
        }
    }
}

/// A change that was asked for.
#[derive(Clone, Debug)]
pub struct Pending {
    /// What it does.
    pub doing: Doing,
    /// Where its end is told; `None`: it waits until the machine can be changed, and nothing was sent, unless that is in doubt.
    pub operation: Option<Operation>,
    /// Whether it may have been sent although it waits.
    pub is_in_doubt: bool,
    /// The disk before it.
    pub disk: Disk,
    /// The unit at which it is attached.
    pub unit: Option<u32>,
    /// When it was asked for.
    pub begun_ms: u64,
}

impl Pending {
    /// Whether it is the same.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.doing == other.doing && self.operation == other.operation
    }

    /// Whether it is an attach that waits for its turn.
    #[must_use]
    pub fn is_attach_that_waits(&self) -> bool {
        self.doing == Doing::Attach && self.operation.is_none()
    }

    /// Whether it may have only just begun, so that nothing shows it.
    #[must_use]
    pub fn is_new(&self, now_ms: u64) -> bool {
        now_ms.checked_sub(self.begun_ms).is_some_and(|age_ms| age_ms < whole_ms(HIDDEN_FOR))
    }

    /// Whether a disk (`None`: there is none) shows it, on the way or carried out, or something else for which it does not matter.
    #[must_use]
    pub fn is_shown(&self, seen: Option<&Seen>) -> bool {
        match (self.doing.transition(), seen) {
            (None, None) => self.doing == Doing::Grow,
            (None, Some(seen)) => self.doing == Doing::Create || seen.disk.is_changing || self.is_larger(seen),
            (Some(_), None) => true,
            (Some(transition), Some(seen)) => self.decides(transition, seen) != Ok(Change::Changed),
        }
    }

    /// Whether a disk (`None`: there is none) shows that it was carried out.
    #[must_use]
    pub fn is_done(&self, seen: Option<&Seen>) -> bool {
        use VolumeState::{Attached, Available, Creating, Failed};
        match (self.doing, seen) {
            (Doing::Delete, seen) => seen.is_none(),
            (_, None) => false,
            (Doing::Create, Some(seen)) => !matches!(seen.state, Creating | Failed),
            (Doing::Attach, Some(seen)) => seen.state == Attached && seen.unit.is_some(),
            (Doing::Detach, Some(seen)) => seen.state == Available,
            (Doing::Grow, Some(seen)) => self.is_larger(seen),
        }
    }

    fn is_larger(&self, seen: &Seen) -> bool {
        seen.disk.gib > self.disk.gib
    }

    fn decides(&self, transition: Transition, seen: &Seen) -> Result<Change, crate::ProviderError> {
        transition.decide(&VolumeId(self.disk.name.clone()), Some(seen.state))
    }
}

/// What is known of all disks.
pub type Known = known::Known<Pending, Seen>;
