//! Moves bytes: volumes (io_uring, memory), their throttle and fault decorators, and the fronts that export an
//! elastic device (fuse + loop, nbd).

pub mod buffer;
pub mod discovery;
mod event;
pub mod front;
mod holders;
pub mod mapper;
pub mod mountinfo;
pub mod poller;
pub mod seldom;
pub mod spin;
pub mod volume;
mod waking;

/// Where `waking` takes its atomics from; its model checker has others.
mod atomic {
    pub(crate) use std::sync::atomic::{AtomicBool, Ordering, fence};
}

pub use buffer::{Buffer, BufferPool, BufferSlice};
pub use front::{Front, Submission, Token};
pub use poller::{Poller, Waker};
pub use spin::Spin;
pub use volume::{Completion, Failure, Operation, Volume, VolumeIo};
pub use volume::{Fault, Faults, FileVolume, MemoryVolume, OpenError, Options, Throttle};
