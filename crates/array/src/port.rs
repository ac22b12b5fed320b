//! What is in flight on one member, and which of its writes are durable.

use smallvec::SmallVec;
use surgetank_model::RequestId;

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

/// What became of a request for durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FlushRequest {
    /// It is durable already.
    Ready,
    /// A flush in flight, or the one after it, will cover it.
    Wait,
    /// The caller emits a flush.
    Issue,
}

/// The writes of one member, counted in the order of their completion.
#[derive(Debug, Default)]
pub(crate) struct Port {
    completed: u64,
    durable: u64,
    /// Writes that the flush in flight covers.
    flushing: Option<u64>,
    waiters: Vec<(u64, Waiter)>,
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

    /// A write has completed. Unless it was `durable` by itself (forced unit access), the next flush must cover it.
    pub fn wrote(&mut self, durable: bool) {
        let all_durable = durable && self.is_durable();
        self.completed += 1;
        if all_durable {
            self.durable = self.completed;
        }
    }

    /// Writes completed so far: the number of the last one.
    pub fn written(&self) -> u64 {
        self.completed
    }

    /// The last write that is durable with all before it.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Whether every completed write is durable.
    pub fn is_durable(&self) -> bool {
        self.durable >= self.completed
    }

    /// Asks for everything completed so far to become durable. `Issue`: the caller emits a flush.
    pub fn request_flush(&mut self, waiter: Waiter) -> FlushRequest {
        if self.is_durable() {
            return FlushRequest::Ready;
        }
        self.waiters.push((self.completed, waiter));
        if self.flushing.is_some() {
            return FlushRequest::Wait;
        }
        self.flushing = Some(self.completed);
        FlushRequest::Issue
    }

    /// The flush in flight has ended. Returns who need not wait any more, and whether the caller emits another flush for
    /// those who came later. A flush that failed may have made the member forget what it covered, and a later one that
    /// succeeds would hide that: nobody waits on.
    pub fn flushed(&mut self, success: bool) -> (SmallVec<[Waiter; 4]>, bool) {
        let covered = self.flushing.take().unwrap_or(0);
        if success {
            self.durable = self.durable.max(covered);
        } else {
            self.failures += 1;
        }
        let mut done = SmallVec::new();
        self.waiters.retain(|(needed, waiter)| {
            let later = *needed > covered && success;
            if !later {
                done.push(*waiter);
            }
            later
        });
        let again = !self.waiters.is_empty();
        if again {
            self.flushing = Some(self.completed);
        }
        (done, again)
    }

    /// Who waits for a flush.
    #[cfg(debug_assertions)]
    pub fn waiters(&self) -> impl Iterator<Item = Waiter> + '_ {
        self.waiters.iter().map(|(_, waiter)| *waiter)
    }

    /// Whether a flush is in flight.
    pub fn is_flushing(&self) -> bool {
        self.flushing.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_covers_what_was_written_before_it_and_its_failure_ends_all_waiting() {
        let mut port = Port::default();
        assert_eq!(port.request_flush(Waiter::Superblock), FlushRequest::Ready);
        port.wrote(false);
        assert_eq!(port.request_flush(Waiter::Page(1)), FlushRequest::Issue);
        port.wrote(false);
        assert_eq!(port.request_flush(Waiter::Superblock), FlushRequest::Wait);
        let (done, again) = port.flushed(true);
        assert_eq!((done.as_slice(), again), (&[Waiter::Page(1)][..], true));
        assert!(!port.is_durable() && port.is_flushing());
        let (done, again) = port.flushed(false);
        assert_eq!((done.as_slice(), again, port.failures), (&[Waiter::Superblock][..], false, 1));
        assert!(!port.is_durable() && !port.is_flushing());
    }
}
