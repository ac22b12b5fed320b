//! The volume interface: what every backing and caching volume answers to, real or decorated.
//!
//! A driver submits any number of I/Os, calls `poll` once so that they start, and calls it again whenever the
//! descriptor is readable or the deadline has come.

pub mod array;
mod beneath;
pub mod exclusive;
pub mod fault;
mod member;
pub mod memory;
mod pieces;
pub mod pool;
pub mod read_cache;
mod remote;
mod request;
pub mod throttle;
pub mod uring;

use std::os::fd::BorrowedFd;

use smallvec::SmallVec;
use surgetank_model::Instant;
pub use surgetank_model::Operation;
use surgetank_model::effect::IoFailure;

use crate::buffer::BufferSlice;

pub use array::{ArrayHandle, ArrayVolume};
pub use beneath::look_beneath;
pub use exclusive::{Holder, OpenError};
pub use fault::{Fault, Faults};
pub use memory::MemoryVolume;
pub use pool::{NotOpened, PoolFile, PoolVolume};
pub use read_cache::{ReadCacheHandle, ReadCacheVolume};
pub use throttle::Throttle;
pub use uring::{FileVolume, Options};

/// Ranges of memory in order. Few of them, as most I/Os have, need no allocation.
pub type Memory = SmallVec<[BufferSlice; 4]>;

/// One I/O: an operation as a request has it, on a volume. `memory` is gathered or scattered in order; its lengths add up to `length` for reads and writes and it is
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
    pub memory: Memory,
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
    /// ENODEV, ENXIO, ENOMEDIUM, ESHUTDOWN, or a disk without a size: the volume was unplugged.
    #[error("the volume is gone")]
    Gone,
}

/// What it is to an engine.
impl From<Failure> for IoFailure {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Io => Self::Io,
            Failure::NoSpace => Self::NoSpace,
            Failure::Unsupported => Self::Unsupported,
            Failure::Gone => Self::Gone,
        }
    }
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

    /// Starts what is waiting and passes on what has ended.
    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>);

    /// Whether `poll` has something to pass on, as far as that can be told without the kernel.
    fn has_ended(&mut self) -> bool {
        false
    }

    /// Asks the volume how large it is now (it may have been grown) and takes that as its size. In bytes.
    ///
    /// # Errors
    /// As for an I/O.
    fn resize_check(&mut self) -> Result<u64, Failure> {
        Ok(self.size())
    }

    /// When `poll` should be called even if the descriptor stays silent (a throttle or a delay ends).
    fn next_deadline(&self) -> Option<Instant>;

    /// Readable when `poll` has something to pass on. `None`: `poll` right after `submit` is enough.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

impl<V: Volume + ?Sized> Volume for Box<V> {
    fn size(&self) -> u64 {
        (**self).size()
    }

    fn logical_block(&self) -> u32 {
        (**self).logical_block()
    }

    fn submit(&mut self, now: Instant, io: VolumeIo) {
        (**self).submit(now, io);
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        (**self).poll(now, completions);
    }

    fn has_ended(&mut self) -> bool {
        (**self).has_ended()
    }

    fn resize_check(&mut self) -> Result<u64, Failure> {
        (**self).resize_check()
    }

    fn next_deadline(&self) -> Option<Instant> {
        (**self).next_deadline()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        (**self).descriptor()
    }
}

impl VolumeIo {
    /// Whether a volume of this size and logical block can do it: `Err` names the completion's failure.
    fn check(&self, size: u64, logical_block: u32) -> Result<(), Failure> {
        let block = u64::from(logical_block);
        let inside = self.offset.checked_add(self.length).is_some_and(|end| end <= size);
        // A power of two: a division would be a good part of what a small I/O in memory costs.
        let aligned = (self.offset | self.length) & (block - 1) == 0;
        let transfers = matches!(self.operation, Operation::Read | Operation::Write { .. });
        let memory = self.memory.iter().map(|slice| slice.len() as u64).sum::<u64>();
        if inside && aligned && memory == if transfers { self.length } else { 0 } {
            return Ok(());
        }
        tracing::error!(offset = self.offset, length = self.length, memory, size, "an I/O that the volume cannot do");
        Err(Failure::Io)
    }
}
