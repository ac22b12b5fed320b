//! What all formats have in common.

use surgetank_model::{Bytes, Instant};

/// What a request does, as far as the trace tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// The format does not say.
    Unknown,
}

/// One request of a trace. What a format does not tell is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// When, since the trace's own origin.
    pub time: Instant,
    /// Number of the disk or file, in order of appearance, in traces of several.
    pub volume: u32,
    /// First byte on the volume; in formats of keys (`plain`, `oracleGeneral`) the key.
    pub address: u64,
    /// At most [`Request::LENGTH_MAX`].
    pub length: Bytes,
    /// What it does.
    pub operation: Access,
}

impl Request {
    /// A longer request is taken for a broken line.
    pub const LENGTH_MAX: Bytes = Bytes::new(u32::MAX as u64);
}
