//! What the engine keeps for each of its two volumes: flushes, queue length and measured rate.

use std::time::Duration;

use surgetank_model::{FlushRequest, Flushes, Instant, Limits, RequestId};

use crate::planted::{Bug, planted};

/// Who waits for a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiter {
    /// A request.
    Request(RequestId),
    /// The reclaim cycle.
    Reclaim,
    /// Indexes that can be written only of what is durable.
    Checkpoint,
    /// The superblock that names segments for records.
    List,
    /// The part by which the volume grows.
    Growth,
    /// The step of the life cycle with this serial.
    Lifecycle(u64),
}

/// One volume as the engine sees it.
#[derive(Clone, Debug)]
pub struct Port {
    pub flushes: Flushes<Waiter>,
    /// The last write that was an application's own.
    application: u64,
    /// Bytes in flight.
    pub bytes_in_flight: u64,
    /// Effects in flight.
    pub effects_in_flight: u32,
    limits: Limits,
    rate: RateMeter,
}

impl Port {
    /// A volume with these nominal limits. Nothing is known to be durable, also nothing of the process before this one.
    pub fn new(now: Instant, limits: Limits) -> Self {
        let flushes = Flushes::after_another_process();
        Self {
            application: flushes.written(),
            flushes,
            bytes_in_flight: 0,
            effects_in_flight: 0,
            limits,
            rate: RateMeter { since: now, bytes: 0, bytes_per_s: None },
        }
    }

    /// A transfer starts.
    pub fn started(&mut self, now: Instant, bytes: u64) {
        if self.bytes_in_flight < RateMeter::BUSY_BYTES {
            self.rate.restart(now);
        }
        self.bytes_in_flight += bytes;
        self.effects_in_flight += 1;
    }

    /// A transfer has ended.
    pub fn ended(&mut self, now: Instant, bytes: u64) {
        if self.bytes_in_flight >= RateMeter::BUSY_BYTES {
            self.rate.add(now, bytes);
        }
        self.bytes_in_flight -= bytes;
        self.effects_in_flight -= 1;
    }

    /// A write has completed, which was durable by itself (forced unit access) or is not yet.
    pub fn wrote(&mut self, is_durable: bool) {
        self.flushes.wrote(is_durable);
        let covers_all = is_durable && !self.flushes.is_flushing() && planted(Bug::ForcedWriteCoversAll);
        if covers_all && self.flushes.request(Waiter::Reclaim) == FlushRequest::Issue {
            self.flushes.ended(true);
        }
    }

    /// The same of an application's write: the application counts on its next flush.
    pub fn wrote_for_application(&mut self, is_durable: bool) {
        self.wrote(is_durable);
        self.application = self.flushes.written();
    }

    /// Whether an application counts on a flush that has not succeeded yet.
    pub fn owes_application(&self) -> bool {
        self.application > self.flushes.durable()
    }

    /// Whether a request of these waits for a flush.
    pub fn is_awaited_by(&self, of: impl Fn(RequestId) -> bool) -> bool {
        self.flushes.waiters().any(|waiter| matches!(waiter, Waiter::Request(request) if of(request)))
    }

    /// Bytes in flight that keep the volume busy whatever its latency: a tenth of a second's, within bounds.
    pub fn queue_bytes_max(&self) -> u64 {
        const LEAST: u64 = 4 << 20;
        const MOST: u64 = 32 << 20;
        self.limits.bandwidth.map_or(MOST, |bandwidth| (bandwidth.get() / 10).clamp(LEAST, MOST))
    }

    /// When a transfer of `bytes` that starts now would end: the queue before it, then itself.
    pub fn estimate(&self, queued: u64, bytes: u64) -> Duration {
        let queue = self.bytes_in_flight + queued + bytes;
        let nominal = self.limits.bandwidth.map(surgetank_model::Bandwidth::get);
        let rate = match (nominal, self.rate.bytes_per_s) {
            (Some(nominal), Some(measured)) => nominal.min(measured),
            (Some(rate), None) | (None, Some(rate)) => rate,
            (None, None) => return Duration::ZERO,
        };
        surgetank_model::Bandwidth::new(rate).time_for(queue)
    }
}

/// Measures what a volume really gives, while it has enough to do.
#[derive(Clone, Debug)]
struct RateMeter {
    since: Instant,
    bytes: u64,
    bytes_per_s: Option<u64>,
}

impl RateMeter {
    /// With less than this in flight a volume shows its latency, not its rate.
    const BUSY_BYTES: u64 = 1 << 20;
    const WINDOW: Duration = Duration::from_millis(500);

    fn restart(&mut self, now: Instant) {
        self.since = now;
        self.bytes = 0;
    }

    fn add(&mut self, now: Instant, bytes: u64) {
        self.bytes += bytes;
        let elapsed = now.since(self.since);
        if elapsed >= Self::WINDOW {
            let sample = u128::from(self.bytes) * 1_000_000_000 / elapsed.as_nanos().max(1);
            let sample = u64::try_from(sample).unwrap_or(u64::MAX);
            self.bytes_per_s = Some(self.bytes_per_s.map_or(sample, |rate| rate / 4 * 3 + sample / 4).max(1));
            self.restart(now);
        }
    }
}

#[cfg(debug_assertions)]
mod check {
    use super::super::check::{Load, equal, holds};
    use super::Port;

    impl Port {
        /// Whether this much is in flight, and whoever waits for a flush waits for one that is.
        pub fn check(&self, name: &str, counted: Load) -> Result<(), String> {
            let flushes = u32::from(self.flushes.is_flushing());
            let kept = Load { effects: self.effects_in_flight, bytes: self.bytes_in_flight, flushes };
            equal(name, kept, counted)?;
            holds("an application's write was written", self.application <= self.flushes.written())?;
            self.flushes.check().map_err(str::to_owned)
        }
    }
}
