//! The volume interface: what every backing and caching volume answers to, real or decorated.

use std::os::fd::BorrowedFd;

use surgetank_model::Instant;

use crate::buffer::BufferSlice;

/// What an I/O does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Fill the memory from the volume.
    Read,
    /// Write the memory to the volume.
    Write {
        /// Durable before the completion.
        fua: bool,
    },
    /// Make every write completed before this durable.
    Flush,
    /// Give the range back; it reads as zeroes afterwards.
    Discard,
    /// The range reads as zeroes afterwards.
    WriteZeroes {
        /// Durable before the completion.
        fua: bool,
    },
}

/// One I/O. `memory` is gathered or scattered in order; its lengths add up to `length` for reads and writes and it is
/// empty for the others.
#[derive(Debug)]
pub struct VolumeIo {
    /// Comes back in the completion; unique among the I/Os in flight on one volume.
    pub token: u64,
    /// What to do.
    pub operation: Operation,
    /// First byte on the volume; a multiple of the logical block size.
    pub offset: u64,
    /// Bytes; a multiple of the logical block size; 0 for a flush.
    pub length: u64,
    /// Where the bytes are.
    pub memory: Vec<BufferSlice>,
}

/// Why an I/O failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// EIO and everything not listed below.
    #[error("input/output error")]
    Io,
    /// ENOSPC, EDQUOT.
    #[error("no space left on the volume")]
    NoSpace,
    /// EOPNOTSUPP.
    #[error("the volume does not support this operation")]
    Unsupported,
    /// ENODEV, ENXIO, ESHUTDOWN: the volume was unplugged.
    #[error("the volume is gone")]
    Gone,
}

/// How an I/O ended.
#[derive(Debug)]
pub struct Completion {
    /// The I/O's token.
    pub token: u64,
    /// Whether it succeeded, wholly (short transfers are continued or failed by the volume).
    pub result: Result<(), Failure>,
}

/// A volume, owned and driven by one thread. Nothing here blocks.
pub trait Volume: Send {
    /// Bytes.
    fn size(&self) -> u64;

    /// The smallest I/O, in bytes (512 or 4096).
    fn logical_block(&self) -> u32;

    /// Takes an I/O. It may start at once or with the next `poll`.
    fn submit(&mut self, now: Instant, io: VolumeIo);

    /// Starts what is waiting and hands over what has ended.
    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>);

    /// When `poll` should be called even if the descriptor stays silent (a throttle or a delay ends).
    fn next_deadline(&self) -> Option<Instant>;

    /// Readable when `poll` has something to hand over. `None`: `poll` right after `submit` is enough.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}
