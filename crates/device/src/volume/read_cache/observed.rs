//! What a read cache shows to whoever decides how large it may be.

use std::time::Duration;

use surgetank_model::{Instant, RequestId};
use surgetank_readcache::Status;

/// How long some I/Os took, since the device is served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// I/Os that have ended.
    pub count: u64,
    /// How long all of them took together.
    pub total: Duration,
}

impl Times {
    pub(super) fn add(&mut self, taken: Duration) {
        self.count += 1;
        self.total += taken;
    }

    /// Those that ended after the others had.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self { count: self.count.saturating_sub(earlier.count), total: self.total.saturating_sub(earlier.total) }
    }

    /// How long one took on average; `None` if none has ended.
    #[must_use]
    pub fn mean(self) -> Option<Duration> {
        (self.count > 0).then(|| self.total.div_f64(self.count as f64))
    }
}

/// How a read cache stands, and how long what it does takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observation {
    /// The engine.
    pub status: Status,
    /// Reads, from submission to answer.
    pub reads: Times,
    /// Reads of members for them: what a hit waits for.
    pub member_reads: Times,
    /// Reads of the backing volume for them: what a miss waits for.
    pub backing_reads: Times,
}

/// When the reads that are not answered began.
#[derive(Debug, Default)]
pub(super) struct Began {
    /// By the place of the request, which is the low half of its number.
    at: Vec<Option<Instant>>,
}

impl Began {
    pub fn begin(&mut self, request: RequestId, now: Instant) {
        let place = request.0 as u32 as usize;
        if self.at.len() <= place {
            self.at.resize(place + 1, None);
        }
        self.at[place].get_or_insert(now);
    }

    /// How long it took, if it is a read.
    pub fn end(&mut self, request: RequestId, now: Instant) -> Option<Duration> {
        self.at.get_mut(request.0 as u32 as usize)?.take().map(|began| now.since(began))
    }
}
