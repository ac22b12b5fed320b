//! How long benefactors take to answer.

use std::collections::VecDeque;
use std::time::Duration;

/// Answers that count.
const KEPT: usize = 64;
/// Fewer answers say nothing of what is usual.
const LEAST: usize = 5;

/// The latest answers of all benefactors of a writer.
#[derive(Debug, Default)]
pub(super) struct Latency {
    took: VecDeque<Duration>,
}

impl Latency {
    pub(super) fn answered(&mut self, after: Duration) {
        if self.took.len() == KEPT {
            self.took.pop_front();
        }
        self.took.push_back(after);
    }

    /// What half of them took at most; `None`: there were too few.
    pub(super) fn median(&self) -> Option<Duration> {
        if self.took.len() < LEAST {
            return None;
        }
        let mut sorted: Vec<Duration> = self.took.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
    }
}
