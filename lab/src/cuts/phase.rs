//! The phases of a boost in which the power is cut.

use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Where the power is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum BoostPhase {
    /// While the caching volume is rented, formatted, adopted.
    Attach,
    /// While writes go to it.
    Absorb,
    /// While they are copied back.
    Drain,
    /// Once nothing is dirty, while it is deleted.
    Detach,
}

impl BoostPhase {
    /// All, in the order of a boost.
    pub const ALL: [Self; 4] = [Self::Attach, Self::Absorb, Self::Drain, Self::Detach];

    /// The longest from the moment that the guest enters it to the cut.
    pub fn longest(self) -> Duration {
        Duration::from_millis(match self {
            Self::Attach => 1500,
            Self::Absorb => 6000,
            Self::Drain => 2500,
            Self::Detach => 1200,
        })
    }
}
