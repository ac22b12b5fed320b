//! How much is asked of a device, from counters, and for how long that has been little.

use std::time::Duration;

use surgetank_model::{Bandwidth, Instant, Observation};

use crate::planted::{Bug, planted};

/// Share of an interval in which requests must be in the device for its backing volume to be saturated. Below 1, since a
/// closed loop has moments between two requests.
const SATURATED: f64 = 0.9;
/// Less than this share of what the backing volume moves when it is saturated, it can serve in time without a cache.
const SERVED_IN_TIME: f64 = 0.9;
/// Reads of more than this share of it come from the cache.
const BY_THE_CACHE: f64 = 1.2;
/// A drain leaves more than this share of the backing volume to an application that has many requests in flight.
const LEFT_BY_A_DRAIN: f64 = 0.75;
/// A rate that was measured for less time says little.
const MEASURED_MIN: Duration = Duration::from_secs(2);
/// A backing volume moves between these shares of its reserved bandwidth (credits, small requests).
const RATE_SHARES: [f64; 2] = [0.3, 4.0];

/// What makes a sample hot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Demand {
    /// The papers': throughput above the threshold.
    Throughput,
    /// The backing volume serves alone: it is saturated, by writes above the threshold.
    Waiting,
    /// The same while a cache is drained. Requests that wait for the drain's alone are no burst, so much must be moved, too.
    Draining,
    /// A cache absorbs: more is moved than the backing volume could, by writes above the threshold or by reads that hit.
    Absorbed,
}

/// One sampling interval.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Interval {
    /// `None` before the second sample.
    pub from: Option<Instant>,
    pub length: Duration,
    /// Bytes read and written.
    pub moved: u64,
    pub written: u64,
    /// Time in which there were requests.
    pub busy: Duration,
}

impl Interval {
    /// Requests have been in the device for nearly all of it.
    pub fn is_saturated(&self) -> bool {
        self.busy.as_secs_f64() > SATURATED * self.length.as_secs_f64()
    }

    /// What a volume of `rate` bytes a second takes for what was moved.
    pub fn time_at(&self, rate: f64) -> Duration {
        Duration::try_from_secs_f64(self.moved as f64 / rate.max(1.0)).unwrap_or(Duration::MAX)
    }
}

/// Measures the application's traffic on one elastic device; the drain's does not count.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    /// When the last observation was made, and what it said.
    last: Option<(Instant, Observation)>,
    /// The last sampling interval.
    pub interval: Interval,
    /// Throughput over the last interval ÷ the backing volume's bandwidth.
    pub utilization: f64,
    /// In the last interval there was more than the threshold allows.
    pub hot: bool,
    /// Since when there has been less.
    calm_since: Option<Instant>,
    /// Since when there has been less than the threshold of use.
    unused_since: Option<Instant>,
    /// How far the last interval was from being judged otherwise, in bytes.
    margin: f64,
    /// Bytes moved, and the time that they took, since the backing volume began to be saturated.
    saturated: (u64, Duration),
    /// What it moves when it is saturated; `None`: not known.
    rate: Option<f64>,
}

impl Meter {
    pub fn new(now: Instant) -> Self {
        Self {
            last: None,
            interval: Interval::default(),
            utilization: 0.0,
            hot: false,
            calm_since: Some(now),
            unused_since: Some(now),
            margin: 0.0,
            saturated: (0, Duration::ZERO),
            rate: None,
        }
    }

    pub fn observe(
        &mut self,
        now: Instant,
        observation: &Observation,
        backing: Bandwidth,
        threshold: f64,
        demand: Demand,
    ) {
        let Some((before, was)) = self.last else {
            self.last = Some((now, *observation));
            return;
        };
        let length = now.since(before);
        if length.is_zero() {
            return;
        }
        self.last = Some((now, *observation));
        let written = observation.written_bytes.saturating_sub(was.written_bytes);
        let moved = written.saturating_add(observation.read_bytes.saturating_sub(was.read_bytes));
        let busy = observation.busy.saturating_sub(was.busy);
        self.interval = Interval { from: Some(before), length, moved, written, busy };
        self.utilization = moved as f64 / length.as_secs_f64() / backing.get() as f64;
        self.judge(backing, threshold, demand);
        let since = self.unused_since.unwrap_or(before);
        self.unused_since = (self.utilization <= threshold).then_some(since);
        if self.hot {
            self.calm_since = None;
        } else if demand != Demand::Throughput || self.utilization < threshold {
            // The whole interval was calm on average, so calm began with it.
            self.calm_since.get_or_insert(before);
        } else {
            self.calm_since = None;
        }
        self.measure(demand);
    }

    /// Whether the last interval was hot, and how clearly.
    fn judge(&mut self, backing: Bandwidth, threshold: f64, demand: Demand) {
        let seconds = self.interval.length.as_secs_f64();
        let above = |bytes: u64, rate: f64| bytes as f64 - rate * seconds;
        let limit = threshold * backing.get() as f64;
        let rate = self.backing_rate(backing);
        // In bytes, as the others: what the backing volume moves in the time.
        let busy = (self.interval.busy.as_secs_f64() - SATURATED * seconds) * backing.get() as f64;
        let busy = if planted(Bug::LoadIsBurst) { f64::INFINITY } else { busy };
        let written = above(self.interval.written, limit);
        let conditions: &[f64] = match demand {
            Demand::Throughput => &[above(self.interval.moved, limit)],
            Demand::Waiting => &[written, busy],
            Demand::Draining => &[written, busy, above(self.interval.moved, LEFT_BY_A_DRAIN * rate)],
            Demand::Absorbed if written > 0.0 => &[written, above(self.interval.moved, SERVED_IN_TIME * rate)],
            // The cache has what is read.
            Demand::Absorbed => &[above(self.interval.moved, BY_THE_CACHE * rate)],
        };
        self.hot = conditions.iter().all(|above| *above > 0.0);
        self.margin = conditions.iter().map(|above| above.abs()).fold(f64::INFINITY, f64::min);
    }

    fn measure(&mut self, demand: Demand) {
        if demand != Demand::Waiting || !self.hot {
            self.saturated = (0, Duration::ZERO);
            return;
        }
        self.saturated.0 += self.interval.moved;
        self.saturated.1 += self.interval.busy;
        if self.saturated.1 >= MEASURED_MIN {
            self.rate = Some(self.saturated.0 as f64 / self.saturated.1.as_secs_f64());
        }
    }

    /// Bytes a second that the backing volume moves when it is saturated.
    pub fn backing_rate(&self, backing: Bandwidth) -> f64 {
        let reserved = backing.get() as f64;
        self.rate.map_or(reserved, |rate| rate.clamp(RATE_SHARES[0] * reserved, RATE_SHARES[1] * reserved))
    }

    /// Throughput is above the threshold.
    pub fn is_used(&self) -> bool {
        self.unused_since.is_none()
    }

    /// Until when it was; `None`: it still is.
    pub fn used_until(&self) -> Option<Instant> {
        self.unused_since
    }

    /// How long it has been calm.
    pub fn calm_for(&self, now: Instant) -> Duration {
        self.calm_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// When it will have been calm for so long; `None`: it is not calm.
    pub fn calm_after(&self, delay: Duration) -> Option<Instant> {
        self.calm_since.map(|since| since + delay)
    }

    /// Further from being judged otherwise than what counters of whole bytes hide in an interval.
    pub fn is_clear(&self) -> bool {
        self.margin > 2.0
    }

    /// A boost was asked for or has just begun: count the calm from here.
    pub fn restart_calm(&mut self, now: Instant) {
        if self.calm_since.is_some() {
            self.calm_since = Some(now);
        }
    }
}
