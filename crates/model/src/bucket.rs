//! The one token-bucket model: what the throttle decorator enforces is what the simulator and the planner compute.

use std::time::Duration;

use crate::time::Instant;
use crate::units::{Bandwidth, Iops};

/// Rate limits of a volume. `None` means not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes per second, reads and writes together.
    pub bandwidth: Option<Bandwidth>,
    /// Operations per second, reads and writes together.
    pub iops: Option<Iops>,
}

impl Limits {
    /// No limit at all.
    pub const NONE: Self = Self { bandwidth: None, iops: None };

    /// The time that a volume with these limits is busy with one operation of `bytes`.
    #[must_use]
    pub fn service_time(&self, bytes: u64) -> Duration {
        let by_bandwidth = self.bandwidth.map_or(Duration::ZERO, |bandwidth| bandwidth.time_for(bytes));
        let by_iops = self.iops.map_or(Duration::ZERO, |iops| iops.time_for(1));
        by_bandwidth.max(by_iops)
    }
}

/// A bucket of tokens (bytes, operations or credits) that refills at a constant rate up to its capacity.
///
/// Kept in token-nanoseconds, so it is exact: no drift however often it is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenBucket {
    rate_per_s: u64,
    /// Level × 10⁹; may go below zero when an operation larger than the capacity was admitted.
    level_nanotokens: i128,
    capacity_nanotokens: i128,
    updated: Instant,
}

const NANO: i128 = 1_000_000_000;

impl TokenBucket {
    /// A bucket that is full at `now`. `rate_per_s` and `capacity` are at least 1: without capacity no token would
    /// ever be there.
    #[must_use]
    pub fn full(now: Instant, rate_per_s: u64, capacity: u64) -> Self {
        let capacity_nanotokens = i128::from(capacity.max(1)) * NANO;
        Self { rate_per_s: rate_per_s.max(1), level_nanotokens: capacity_nanotokens, capacity_nanotokens, updated: now }
    }

    fn refill(&mut self, now: Instant) {
        let elapsed = i128::from(now.as_nanoseconds().saturating_sub(self.updated.as_nanoseconds()));
        let refilled = self.level_nanotokens.saturating_add(elapsed.saturating_mul(i128::from(self.rate_per_s)));
        self.level_nanotokens = refilled.min(self.capacity_nanotokens);
        self.updated = self.updated.max(now);
    }

    /// Takes `tokens` if the level is positive (the level may go negative, so that operations larger than the
    /// capacity pass and pay afterwards); else says when to ask again.
    ///
    /// # Errors
    /// The instant at which the level is positive again.
    pub fn take(&mut self, now: Instant, tokens: u64) -> Result<(), Instant> {
        self.refill(now);
        if self.level_nanotokens > 0 || tokens == 0 {
            self.level_nanotokens -= i128::from(tokens) * NANO;
            return Ok(());
        }
        Err(self.positive_at())
    }

    /// When the level is positive again (`updated` if it is already).
    fn positive_at(&self) -> Instant {
        if self.level_nanotokens > 0 {
            return self.updated;
        }
        let rate = i128::from(self.rate_per_s);
        let wait = (1 - self.level_nanotokens + rate - 1) / rate;
        self.updated + Duration::from_nanos(u64::try_from(wait).unwrap_or(u64::MAX))
    }

    /// Whole tokens available at `now`; 0 while the bucket is in debt.
    pub fn available(&mut self, now: Instant) -> u64 {
        self.refill(now);
        u64::try_from(self.level_nanotokens.max(0) / NANO).unwrap_or(u64::MAX)
    }
}
