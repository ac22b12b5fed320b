//! How a command ends when it does not end well: one sentence for people and an exit status for scripts.

use std::fmt;

/// Why a command stops. The text is one sentence: what, why, how to fix.
#[derive(Debug)]
pub enum Failure {
    /// It failed while running (exit status 1).
    Failed(String),
    /// Invalid use or input (exit status 2).
    Invalid(String),
    /// Valid input without a feasible answer (exit status 3): the nearest one is named, or what is left for a person.
    Infeasible(String),
    /// The user interrupted it and everything was put away (exit status 130, as shells count SIGINT).
    Interrupted(String),
    /// Another process of ours has said why; its exit status.
    Told(u8),
    /// Whoever read our output went away; there is nobody left to tell (exit status 0).
    NoReader,
}

impl Failure {
    /// The process's exit status.
    #[must_use]
    pub fn status(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Invalid(_) => 2,
            Self::Infeasible(_) => 3,
            Self::Interrupted(_) => 130,
            Self::Told(status) => *status,
            Self::NoReader => 0,
        }
    }

    /// Failed while running, with the reason.
    pub fn failed(reason: impl fmt::Display) -> Self {
        Self::Failed(reason.to_string())
    }

    /// Invalid use or input, with the reason.
    pub fn invalid(reason: impl fmt::Display) -> Self {
        Self::Invalid(reason.to_string())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(text) | Self::Invalid(text) | Self::Infeasible(text) | Self::Interrupted(text) => {
                f.write_str(text)
            }
            Self::Told(status) => write!(f, "another process ended with status {status}"),
            Self::NoReader => f.write_str("the reader of the output went away"),
        }
    }
}

impl std::error::Error for Failure {}

/// Adds what was being done to a low-level error.
pub trait Doing<T> {
    /// `doing` is a phrase that reads well before a colon: "cannot mount /dev/loop3 on /tmp/x".
    ///
    /// # Errors
    /// The original error, as a failure with the phrase in front.
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, Failure>;
}

impl<T, E: fmt::Display> Doing<T> for Result<T, E> {
    fn doing(self, doing: impl FnOnce() -> String) -> Result<T, Failure> {
        self.map_err(|error| Failure::Failed(format!("{}: {error}", doing())))
    }
}
