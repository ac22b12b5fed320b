//! The front interface: how an elastic device is exported (ublk, fuse + loop, nbd).
//!
//! Everything of a front runs on the thread that owns the device, without blocking; only what the kernel forces to
//! be a thread of its own (a fuse session, the set-up of a loop device) is one.

use std::os::fd::BorrowedFd;

use surgetank_model::ClientId;

use crate::buffer::Buffer;

pub mod fuse;
mod idle;
pub mod nbd;
pub mod reclaim;
pub mod ublk;
mod users;
mod wake;

pub use fuse::{FuseConfig, FuseFront, FuseHandle};
pub use idle::IdleFront;
pub use nbd::{NbdConfig, NbdFront};
pub use ublk::{UblkConfig, UblkFront, UblkHandle};

/// Names a submission within its front, from `receive` to `reply`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// The client of a front that has one: the kernel.
pub const KERNEL: ClientId = ClientId(0);

/// A request that a front received.
#[derive(Debug)]
pub struct Submission {
    /// Comes back in `reply`.
    pub token: Token,
    /// Who asks: others' requests get their turn between this client's.
    pub client: ClientId,
    /// What to do.
    pub operation: surgetank_model::Operation,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// The data of a write, or room for those of a read (`length` bytes); `None` for the others.
    pub buffer: Option<Buffer>,
}

/// An export, driven by the thread that owns its device. Nothing here blocks.
pub trait Front: Send {
    /// Readable when `receive` has something.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// Passes on what has arrived, at most about `budget` requests at a time.
    fn receive(&mut self, budget: usize, sink: &mut Vec<Submission>);

    /// The clients that have left since this was last asked: nobody waits for what they had asked for.
    fn take_left(&mut self, _left: &mut Vec<ClientId>) {}

    /// Whether `receive` has something, as far as that can be told without the kernel.
    fn has_arrived(&mut self) -> bool {
        false
    }

    /// Answers a submission: `Ok`, or an errno (positive). `buffer` is the submission's own, filled by a read; the
    /// buffer of a write may come back too or be dropped.
    fn reply(&mut self, token: Token, result: Result<(), i32>, buffer: Option<Buffer>);

    /// Sends what `reply` has gathered.
    fn flush(&mut self);

    /// Whether it can be served no more: nobody answers what it has passed on.
    fn is_broken(&self) -> bool {
        false
    }

    /// What the user opens: `/dev/loop3`, `nbd+unix:///?socket=/run/surgetank/data.sock`.
    fn address(&self) -> String;

    /// The device has grown to `size` bytes, a multiple of its logical block. NBD clients see it when they connect
    /// anew, the loop device after [`FuseHandle::grown`], the ublk device after [`UblkHandle::grown`].
    fn set_size(&mut self, size: u64);
}

/// What is exported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// The device's name; letters, digits, `-`, `_` and `.`.
    pub name: String,
    /// Bytes; a multiple of `logical_block`.
    pub size: u64,
    /// The smallest I/O, in bytes: 512 or 4096.
    pub logical_block: u32,
}

impl Export {
    /// Whether a range lies in the device and starts and ends at logical blocks.
    ///
    /// # Errors
    /// EINVAL for a range that is empty or not aligned, ENOSPC for one that leaves the device.
    pub fn check(&self, offset: u64, length: u64) -> Result<(), i32> {
        let block = u64::from(self.logical_block.max(1));
        if length == 0 || !offset.is_multiple_of(block) || !length.is_multiple_of(block) {
            return Err(libc::EINVAL);
        }
        match offset.checked_add(length) {
            Some(end) if end <= self.size => Ok(()),
            _ => Err(libc::ENOSPC),
        }
    }
}

/// Why an export could not be opened or closed. One sentence with the remedy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct FrontError(pub String);

impl FrontError {
    fn new(what: &str, error: impl std::fmt::Display, remedy: &str) -> Self {
        Self(format!("{what}: {error}; {remedy}"))
    }
}
