//! Flushes of one volume, shared by all who wait for one, and which of its writes are durable.
//!
//! A flush covers the writes that had completed when it was issued. While one is in flight, whoever wants another waits for the one
//! after it.

use smallvec::SmallVec;

/// What became of a request for durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushRequest {
    /// It is durable already.
    Ready,
    /// A flush in flight, or the one after it, will cover it.
    Wait,
    /// The caller issues a flush.
    Issue,
}

/// What the end of a flush means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushEnd<W> {
    /// Who need not wait any more.
    pub done: SmallVec<[W; 4]>,
    /// Whether the caller issues another flush, for those who came later.
    pub again: bool,
}

/// The writes of one volume, counted in the order of their completion, and who waits (`W`) until they are durable.
#[derive(Clone, Debug)]
pub struct Flushes<W> {
    completed: u64,
    durable: u64,
    /// Writes that the flush in flight covers.
    flushing: Option<u64>,
    /// Each with the writes that are to be durable.
    waiters: Vec<(u64, W)>,
}

impl<W> Default for Flushes<W> {
    /// Nothing was written.
    fn default() -> Self {
        Self { completed: 0, durable: 0, flushing: None, waiters: Vec::new() }
    }
}

impl<W: Copy> Flushes<W> {
    /// A volume that another process may have written to: nothing of it is known to be durable.
    #[must_use]
    pub fn after_another_process() -> Self {
        Self { completed: 1, ..Self::default() }
    }

    /// A write has completed. Unless it was durable by itself (forced unit access), the next flush must cover it. That it was says
    /// nothing of those before it.
    pub fn wrote(&mut self, is_durable: bool) {
        let all_durable = is_durable && self.is_durable();
        self.completed += 1;
        if all_durable {
            self.durable = self.completed;
        }
    }

    /// Writes completed so far: the number of the last one.
    #[must_use]
    pub const fn written(&self) -> u64 {
        self.completed
    }

    /// The last write that is durable with all before it.
    #[must_use]
    pub const fn durable(&self) -> u64 {
        self.durable
    }

    /// Whether every completed write is durable.
    #[must_use]
    pub const fn is_durable(&self) -> bool {
        self.durable >= self.completed
    }

    /// Whether a flush is in flight.
    #[must_use]
    pub const fn is_flushing(&self) -> bool {
        self.flushing.is_some()
    }

    /// Asks for everything completed so far to become durable.
    pub fn request(&mut self, waiter: W) -> FlushRequest {
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

    /// The flush in flight has ended. One that failed may have made the volume forget what it covered, and a later one that succeeds
    /// would hide that: nobody waits on.
    pub fn ended(&mut self, success: bool) -> FlushEnd<W> {
        let covered = self.flushing.take().unwrap_or(0);
        if success {
            self.durable = self.durable.max(covered);
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
        FlushEnd { done, again }
    }

    /// Who waits.
    pub fn waiters(&self) -> impl Iterator<Item = W> + '_ {
        self.waiters.iter().map(|(_, waiter)| *waiter)
    }

    /// Whether this one waits.
    pub fn is_awaited_by(&self, waiter: W) -> bool
    where
        W: PartialEq,
    {
        self.waiters().any(|waiting| waiting == waiter)
    }

    /// What must be so at any time, for the checks of those who keep one.
    ///
    /// # Errors
    /// What is not so.
    pub fn check(&self) -> Result<(), &'static str> {
        let written = self.durable.max(self.flushing.unwrap_or(0)) <= self.completed;
        let covered = self.waiters.iter().all(|(needed, _)| *needed <= self.completed);
        match (written, covered && (self.flushing.is_some() || self.waiters.is_empty())) {
            (false, _) => Err("what is durable was written"),
            (_, false) => Err("whoever waits for a flush waits for one in flight"),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_covers_what_was_written_before_it_and_its_failure_ends_all_waiting() {
        let mut flushes = Flushes::default();
        assert_eq!(flushes.request('a'), FlushRequest::Ready);
        flushes.wrote(false);
        assert_eq!(flushes.request('b'), FlushRequest::Issue);
        flushes.wrote(false);
        assert_eq!(flushes.request('c'), FlushRequest::Wait);
        assert_eq!(flushes.ended(true), FlushEnd { done: smallvec::smallvec!['b'], again: true });
        assert!(!flushes.is_durable() && flushes.is_flushing());
        flushes.wrote(false);
        assert_eq!(flushes.request('d'), FlushRequest::Wait);
        assert_eq!(flushes.ended(false), FlushEnd { done: smallvec::smallvec!['c', 'd'], again: false });
        assert!(!flushes.is_durable() && !flushes.is_flushing());
        assert_eq!(flushes.check(), Ok(()));
    }

    #[test]
    fn a_write_that_was_forced_says_nothing_of_those_before_it() {
        let mut flushes = Flushes::<()>::default();
        flushes.wrote(true);
        assert!(flushes.is_durable());
        flushes.wrote(false);
        flushes.wrote(true);
        assert_eq!((flushes.durable(), flushes.written()), (1, 3));
        assert!(!Flushes::<()>::after_another_process().is_durable());
    }
}
