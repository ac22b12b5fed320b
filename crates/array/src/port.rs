//! What is in flight on one member, and which of its writes are durable.

use surgetank_model::{FlushEnd, Flushes, RequestId};

/// Who waits for a flush of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waiter {
    /// A part of an application's flush.
    Request(RequestId),
    /// A page of the member's bitmap was written.
    Page(u32),
    /// The member's superblock was written.
    Superblock,
    /// The copy to this slot's joining member records what it has done.
    Checkpoint(u32),
}

/// One member as the engine sees it.
#[derive(Debug, Default)]
pub(crate) struct Port {
    pub flushes: Flushes<Waiter>,
    /// Flushes that failed. A write during which the number has grown may have been forgotten.
    pub failures: u64,
    pub effects_in_flight: u32,
    pub bytes_in_flight: u64,
}

impl Port {
    /// A transfer starts.
    pub fn started(&mut self, bytes: u64) {
        self.effects_in_flight += 1;
        self.bytes_in_flight += bytes;
    }

    /// It has ended.
    pub fn ended(&mut self, bytes: u64) {
        self.effects_in_flight -= 1;
        self.bytes_in_flight -= bytes;
    }

    /// The flush in flight has ended.
    pub fn flushed(&mut self, success: bool) -> FlushEnd<Waiter> {
        self.failures += u64::from(!success);
        self.flushes.ended(success)
    }
}
