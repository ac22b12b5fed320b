//! What an account of a cloud has of rented volumes, whichever machine has rented them.

use crate::volume::VolumeDescription;

/// A volume of an account, with what says whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccountVolume {
    /// What is said of it to any machine.
    pub volume: VolumeDescription,
    /// The machine on which it was rented; `None`: its tags do not say, as those of older releases.
    pub machine: Option<String>,
    /// The machine that has it attached, or may have; `None`: none has.
    pub attached_to: Option<String>,
    /// When it was made, in milliseconds since 1970-01-01 UTC; `None`: the provider does not say.
    pub created_ms: Option<u64>,
}

/// Who has the name of a machine now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Named {
    /// No machine.
    Nobody,
    /// A machine that was made then, in milliseconds since 1970-01-01 UTC, where names are used again; `None`: the one that has always had it,
    /// as far as is known.
    Machine {
        /// When.
        since_ms: Option<u64>,
    },
}

impl Named {
    /// What that says of the machine on which a volume was rented. One that was made after the volume is another one, unless it has the
    /// volume attached: then it has taken over what the former one had.
    #[must_use]
    pub fn renter(self, of: &AccountVolume) -> Machine {
        match (self, of.created_ms) {
            (Self::Nobody, _) => Machine::Gone,
            (Self::Machine { since_ms: Some(since_ms) }, Some(created_ms))
                if since_ms > created_ms && of.attached_to.is_none() =>
            {
                Machine::Gone
            }
            (Self::Machine { .. }, _) => Machine::Exists,
        }
    }
}

/// Whether a machine is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Machine {
    /// It runs, or is stopped and can be started again.
    Exists,
    /// It was deleted, and does not come back.
    Gone,
}
