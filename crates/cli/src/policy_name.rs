//! The name of a policy as a flag has it.

use clap::ValueEnum;

/// Controllers of the elastic mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PolicyName {
    /// The papers' controller
    Paper,
    /// The same with split and forecasts
    Adaptive,
}

impl PolicyName {
    /// As files have it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Adaptive => "adaptive",
        }
    }
}
