//! A descriptor that one side makes readable and the other clears.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{EventfdFlags, eventfd};

/// Wakes the thread that polls its descriptor. Raising a raised wake costs no system call.
#[derive(Debug)]
pub(crate) struct Wake {
    descriptor: OwnedFd,
    raised: AtomicBool,
}

impl Wake {
    pub(crate) fn new() -> io::Result<Self> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { descriptor, raised: AtomicBool::new(false) })
    }

    /// Makes the descriptor readable. Everything the caller did before is seen by who calls `clear`.
    pub(crate) fn raise(&self) {
        if !self.raised.swap(true, Ordering::AcqRel) {
            // The counter cannot overflow: it is written only after it was cleared.
            let _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
        }
    }

    /// Makes the descriptor silent; call before looking for work.
    pub(crate) fn clear(&self) {
        // The counter first: a raise after the store writes it anew, and one before it left its work to be seen. A
        // raise caught between its swap and its write wakes once for nothing.
        let mut counter = [0u8; 8];
        let _ = rustix::io::read(&self.descriptor, &mut counter[..]);
        self.raised.swap(false, Ordering::AcqRel);
    }
}

impl AsFd for Wake {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
