//! A descriptor that one side makes readable and the other clears.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use crate::event::EventFd;
use crate::waking::Raised;

/// Wakes the thread that polls its descriptor. Raising a raised wake costs no system call.
#[derive(Debug)]
pub(crate) struct Wake {
    event: EventFd,
    raised: Raised,
}

impl Wake {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { event: EventFd::new()?, raised: Raised::new() })
    }

    /// Makes the descriptor readable. Everything the caller did before is seen by who calls `clear`.
    pub(crate) fn raise(&self) {
        self.raised.raise(&self.event);
    }

    /// Makes the descriptor silent; call before looking for work.
    pub(crate) fn clear(&self) {
        self.raised.clear(&self.event);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}
