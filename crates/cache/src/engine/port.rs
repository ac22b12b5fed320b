//! What the engine keeps for each of its two volumes: flush coalescing, queue length and measured rate.

use std::time::Duration;

use smallvec::SmallVec;
use surgetank_model::{Instant, Limits, RequestId};

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
    /// Writes completed so far; what a flush must cover.
    completed: u64,
    /// The last of them that was an application's own.
    application: u64,
    /// Writes known to be durable.
    durable: u64,
    /// What the flush in flight covers.
    flushing: Option<u64>,
    waiters: Vec<(u64, Waiter)>,
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
        Self {
            completed: 1,
            application: 1,
            durable: 0,
            flushing: None,
            waiters: Vec::new(),
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

    /// A write has completed. Unless it was `durable` by itself (forced unit access), the next flush must cover it.
    pub fn wrote(&mut self, durable: bool) {
        let all_durable = durable && (self.is_durable() || planted(Bug::ForcedWriteCoversAll));
        self.completed += 1;
        if all_durable {
            self.durable = self.completed;
        }
    }

    /// The same of an application's write: the application counts on its next flush.
    pub fn wrote_for_application(&mut self, durable: bool) {
        self.wrote(durable);
        self.application = self.completed;
    }

    /// Writes completed so far: the number of the last one.
    pub fn written(&self) -> u64 {
        self.completed
    }

    /// The last write that is durable with all before it.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// Whether an application counts on a flush that has not succeeded yet.
    pub fn owes_application(&self) -> bool {
        self.application > self.durable
    }

    /// Whether a flush is in flight.
    pub fn is_flushing(&self) -> bool {
        self.flushing.is_some()
    }

    /// Whether every completed write is durable.
    pub fn is_durable(&self) -> bool {
        self.durable >= self.completed
    }

    /// Whether this one waits for a flush.
    pub fn awaits(&self, waiter: Waiter) -> bool {
        self.waiters.iter().any(|(_, waiting)| *waiting == waiter)
    }

    /// Whether a request of these waits for a flush.
    pub fn is_awaited_by(&self, of: impl Fn(RequestId) -> bool) -> bool {
        self.waiters.iter().any(|(_, waiter)| matches!(waiter, Waiter::Request(request) if of(*request)))
    }

    /// Asks for everything completed so far to become durable. `Ready`: it is. `Issue`: the caller emits a flush.
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
    /// those who came later. A flush that failed may have made the volume forget what it covered, and a later one that
    /// succeeds would hide that: nobody waits on.
    pub fn flushed(&mut self, success: bool) -> (SmallVec<[Waiter; 4]>, bool) {
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
        (done, again)
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

/// What became of a request for durability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushRequest {
    /// It is durable already.
    Ready,
    /// A flush in flight, or the one after it, will cover it.
    Wait,
    /// The caller emits a flush.
    Issue,
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
    use super::{Port, Waiter};

    impl Port {
        /// Who waits for a flush.
        pub fn waiters(&self) -> impl Iterator<Item = Waiter> + '_ {
            self.waiters.iter().map(|(_, waiter)| *waiter)
        }

        /// Whether this much is in flight, and whoever waits for a flush waits for one that is.
        pub fn check(&self, name: &str, counted: Load) -> Result<(), String> {
            let flushes = u32::from(self.flushing.is_some());
            let kept = Load { effects: self.effects_in_flight, bytes: self.bytes_in_flight, flushes };
            equal(name, kept, counted)?;
            let written = self.durable.max(self.application).max(self.flushing.unwrap_or(0));
            holds("what is durable was written", written <= self.completed)?;
            let covered = self.waiters.iter().all(|(needed, _)| *needed <= self.completed);
            holds(
                "whoever waits for a flush waits for one in flight",
                covered && (flushes > 0 || self.waiters.is_empty()),
            )
        }
    }
}
