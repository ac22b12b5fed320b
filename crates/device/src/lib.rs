//! Moves bytes: volumes (io_uring, memory), their throttle and fault decorators, and the fronts that export an
//! elastic device (fuse + loop, nbd).

pub mod buffer;
pub mod front;
pub mod poller;
pub mod spin;
pub mod volume;

pub use buffer::{Buffer, BufferPool, BufferSlice};
pub use front::{Front, Submission, Token};
pub use poller::{Poller, Waker};
pub use spin::Spin;
pub use volume::{Completion, Failure, Operation, Volume, VolumeIo};
pub use volume::{Fault, Faults, FileVolume, MemoryVolume, OpenError, Options, Throttle};
