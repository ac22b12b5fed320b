//! The wall clock and the monotonic clock, read here and nowhere else in the daemon's decisions.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use surgetank_model::Instant;

/// The monotonic clock that the pure crates' [`Instant`]s count from. Copies agree.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: std::time::Instant,
}

impl Clock {
    /// A clock whose origin is this moment.
    #[must_use]
    pub fn start() -> Self {
        Self { origin: std::time::Instant::now() }
    }

    /// Now.
    #[must_use]
    pub fn now(self) -> Instant {
        Instant::ZERO + self.origin.elapsed()
    }

    /// How long to wait for `deadline`; `None` stays `None`.
    #[must_use]
    pub fn until(self, deadline: Option<Instant>) -> Option<Duration> {
        deadline.map(|deadline| deadline.since(self.now()))
    }
}

/// Milliseconds since 1970, for records that outlive the daemon.
#[must_use]
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
