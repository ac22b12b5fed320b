//! The front of a device whose requests the kernel serves by itself.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::{Front, Submission, Token};
use crate::buffer::Buffer;
use crate::event::EventFd;

/// A front that receives nothing.
#[derive(Debug)]
pub struct IdleFront(EventFd);

impl IdleFront {
    /// For a device that is not served now.
    ///
    /// # Errors
    /// The system has no descriptors left.
    pub fn new() -> io::Result<Self> {
        Ok(Self(EventFd::new()?))
    }
}

impl Front for IdleFront {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    fn receive(&mut self, _budget: usize, _sink: &mut Vec<Submission>) {}

    fn reply(&mut self, _token: Token, _result: Result<(), i32>, _buffer: Option<Buffer>) {}

    fn flush(&mut self) {}

    fn address(&self) -> String {
        String::new()
    }

    fn set_size(&mut self, _size: u64) {}
}
