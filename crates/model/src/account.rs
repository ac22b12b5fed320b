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

/// Whether a machine is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Machine {
    /// It runs, or is stopped and can be started again.
    Exists,
    /// It was deleted, and does not come back.
    Gone,
}
