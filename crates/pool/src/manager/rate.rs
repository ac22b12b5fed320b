//! How fast this manager's drains are.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use surgetank_pool_core::id::Inode;
use tokio::time::Instant;

/// The time over which the rate is measured.
const WINDOW: Duration = Duration::from_secs(10);

/// Bytes that reached targets lately. Those of attempts that failed do not count.
#[derive(Default)]
pub(super) struct Rate(Mutex<State>);

#[derive(Default)]
struct State {
    lately: VecDeque<(Instant, Inode, u64)>,
    /// Files whose last attempt failed: what is written of them counts once an attempt succeeds.
    failing: BTreeSet<Inode>,
    /// All bytes, and attempts that failed, since the manager began.
    totals: (u64, u64),
}

impl Rate {
    /// So many bytes of a file are at a target now.
    pub(super) fn drained(&self, inode: Inode, bytes: u64) {
        let mut state = self.state();
        state.forget(Instant::now());
        state.lately.push_back((Instant::now(), inode, bytes));
        state.totals.0 += bytes;
    }

    /// An attempt that began then failed.
    pub(super) fn failed(&self, inode: Inode, since: Instant) {
        let mut state = self.state();
        state.lately.retain(|(at, of, _)| *of != inode || *at < since);
        state.failing.insert(inode);
        state.totals.1 += 1;
    }

    /// An attempt succeeded, or there will be no further one.
    pub(super) fn ended(&self, inode: Inode) {
        self.state().failing.remove(&inode);
    }

    /// Bytes a second, over the last seconds.
    pub(super) fn bytes_s(&self) -> u64 {
        let mut state = self.state();
        state.forget(Instant::now());
        let counts = state.lately.iter().filter(|(_, inode, _)| !state.failing.contains(inode));
        counts.map(|(.., bytes)| bytes).sum::<u64>() / WINDOW.as_secs()
    }

    /// All bytes, also of attempts that failed later; and how many attempts failed.
    #[cfg(feature = "metrics")]
    pub(super) fn totals(&self) -> (u64, u64) {
        self.state().totals
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn forget(&mut self, now: Instant) {
        while self.lately.front().is_some_and(|(at, ..)| now.duration_since(*at) > WINDOW) {
            self.lately.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_fail_do_not_count() {
        let (rate, begun) = (Rate::default(), Instant::now());
        rate.drained(Inode(1), 1000);
        rate.drained(Inode(2), 500);
        assert_eq!(rate.bytes_s(), 150);
        rate.failed(Inode(1), begun);
        assert_eq!(rate.bytes_s(), 50);
        rate.drained(Inode(1), 1000);
        assert_eq!(rate.bytes_s(), 50, "it may fail again");
        rate.ended(Inode(1));
        assert_eq!(rate.bytes_s(), 150);
    }
}
