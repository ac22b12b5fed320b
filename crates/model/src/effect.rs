//! What the engines and their drivers call things: effects, memory, failures. Each engine has its own effects.

use crate::RequestId;

/// Names an effect that its engine's `complete` answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EffectId(pub u64);

/// Names a buffer that the engine asked the driver to allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ScratchId(pub u32);

/// Whose memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BufferId {
    /// The buffer of a read or write request, from submission to reply.
    Request(RequestId),
    /// A buffer between `Allocate` and `Release`.
    Scratch(ScratchId),
}

/// A range of a buffer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    /// Whose memory.
    pub buffer: BufferId,
    /// First byte in the buffer.
    pub offset: u32,
    /// Bytes.
    pub length: u32,
}

/// Why an effect failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IoFailure {
    /// The volume answered an I/O error.
    Io,
    /// The volume has no space (a thin file on a full disk).
    NoSpace,
    /// The volume does not support the operation.
    Unsupported,
    /// A checksum did not match.
    Corrupt,
    /// The volume is gone.
    Gone,
}

/// Why a request failed, as the front reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplyError {
    /// EIO.
    Io,
    /// ENOSPC.
    NoSpace,
    /// EINVAL: misaligned, too long or beyond the end.
    Invalid,
    /// EOPNOTSUPP.
    Unsupported,
    /// ESHUTDOWN: the device is stopping.
    Stopping,
}

/// Why a call does not fit an engine's stage or its volumes. One sentence for people.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Rejected(pub String);
