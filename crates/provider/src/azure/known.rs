//! What this process knows of disks: which changes it has asked for, and what it was told a moment ago.

use super::disk::{Disk, Seen};
use crate::VolumeState;
use crate::cloud::known;

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
}

/// A change that was asked for.
#[derive(Clone, Debug)]
pub struct Pending {
    /// What it does.
    pub doing: Doing,
    /// Where its end is told; `None`: it waits until the machine can be changed, and nothing was sent.
    pub operation: Option<String>,
    /// The disk before it.
    pub disk: Disk,
}

impl Pending {
    /// Whether it is the same.
    #[must_use]
    pub fn is(&self, other: &Self) -> bool {
        self.doing == other.doing && self.operation == other.operation
    }

    /// Whether it is a change of the machine that was sent.
    #[must_use]
    pub const fn changes_machine(&self) -> bool {
        matches!(self.doing, Doing::Attach | Doing::Detach) && self.operation.is_some()
    }
}

/// What is known of all disks.
pub type Known = known::Known<Pending, Seen>;
