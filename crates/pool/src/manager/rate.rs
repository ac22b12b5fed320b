//! How fast this manager's drains are.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The time over which the rate is measured.
const WINDOW: Duration = Duration::from_secs(10);

/// Bytes that reached targets lately.
#[derive(Default)]
pub(super) struct Rate(Mutex<VecDeque<(Instant, u64)>>);

impl Rate {
    /// So many bytes are at a target now.
    pub(super) fn drained(&self, bytes: u64) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push_back((Instant::now(), bytes));
    }

    /// Bytes a second, over the last seconds.
    pub(super) fn bytes_s(&self) -> u64 {
        let mut lately = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while lately.front().is_some_and(|(at, _)| at.elapsed() > WINDOW) {
            lately.pop_front();
        }
        lately.iter().map(|(_, bytes)| bytes).sum::<u64>() / WINDOW.as_secs()
    }
}
