//! Why a trace cannot be read: one sentence each.

/// See the variants.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// The trace itself, or what was asked of it, is not right: the remedy is with whoever made it.
    #[error("{0}")]
    Invalid(String),
    /// It could not be read.
    #[error("{0}")]
    Failed(String),
}
