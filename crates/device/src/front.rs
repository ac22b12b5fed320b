//! The front interface: how an elastic device is exported (fuse + loop, nbd; ublk has its place here).

use std::os::fd::BorrowedFd;

use crate::buffer::Buffer;

/// Names a submission within its front, from `receive` to `reply`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

/// A request that a front received.
#[derive(Debug)]
pub struct Submission {
    /// Comes back in `reply`.
    pub token: Token,
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

    /// Hands over what has arrived, at most about `budget` requests at a time.
    fn receive(&mut self, budget: usize, sink: &mut Vec<Submission>);

    /// Answers a submission: `Ok`, or an errno (positive). `buffer` is the submission's own, filled by a read.
    fn reply(&mut self, token: Token, result: Result<(), i32>, buffer: Option<Buffer>);

    /// Sends what `reply` has gathered.
    fn flush(&mut self);

    /// What the user opens: `/dev/loop3`, `nbd+unix:///?socket=/run/surgetank/data.sock`.
    fn address(&self) -> String;
}
