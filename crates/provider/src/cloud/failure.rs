//! Why a call of a cloud was not carried out.

use crate::ProviderError;

/// What a cloud means when it refuses a call.
pub trait Meaning {
    /// The status; 0: there is none.
    fn status(&self) -> u16;

    /// Of what concerns no volume, or one that is not there yet.
    fn general(&self) -> ProviderError;
}

/// Why a call was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure<R> {
    /// The cloud says why.
    Refused(R),
    /// Nobody knows, or nothing was sent.
    Other(ProviderError),
}

impl<R> From<ProviderError> for Failure<R> {
    fn from(error: ProviderError) -> Self {
        Self::Other(error)
    }
}

impl<R> Failure<R> {
    /// As callers of a provider are told; `refused`: what a refusal means.
    pub fn told(self, refused: impl FnOnce(&R) -> ProviderError) -> ProviderError {
        match self {
            Self::Refused(refusal) => refused(&refusal),
            Self::Other(error) => error,
        }
    }
}

impl<R: Meaning> Failure<R> {
    /// Of a call that concerns no volume.
    pub fn general(self) -> ProviderError {
        self.told(R::general)
    }

    /// Whether it may have been carried out nevertheless.
    pub fn is_in_doubt(&self) -> bool {
        match self {
            Self::Refused(refusal) => refusal.status() >= 500,
            Self::Other(error) => matches!(error, ProviderError::Transient(_)),
        }
    }
}

/// What a look at a volume makes of an error; `None`: there is no such volume.
///
/// # Errors
/// Any other one. Whoever only looks conflicts with nobody.
pub fn unless_absent<T>(error: ProviderError) -> Result<Option<T>, ProviderError> {
    match error {
        ProviderError::NotFound(_) => Ok(None),
        ProviderError::Conflict { reason, .. } => Err(ProviderError::Transient(reason)),
        error => Err(error),
    }
}

/// What a change of a volume makes of an error that does not clearly say that the volume is absent. `is_404_of_it`: the status is 404, and the volume is
/// named: a gateway says so, or somebody's words are copied.
pub fn unless_of_gateway(error: ProviderError, is_404_of_it: bool) -> ProviderError {
    match error {
        ProviderError::Invalid(text) if is_404_of_it => ProviderError::Transient(text),
        error => error,
    }
}
