//! A modelled volume.

use std::time::Duration;

use surgetank_model::volume_type::{CreditUnit, Credits};
use surgetank_model::{Instant, Limits, TokenBucket};

/// Unused rate that a volume saves up: the throttle decorator's, so that the demo and its simulation are alike.
pub(crate) const BURST: Duration = Duration::from_millis(25);
/// Length of an interval of [`Activity`]: the papers measure I/O activity at this granularity.
pub const INTERVAL: Duration = Duration::from_secs(5);

/// Intervals of an hour, which is what [`Activity`] keeps together.
const HOUR: usize = 720;

/// Bytes moved in each interval of five seconds. Hours in which nothing moves take no memory: a night's burst is short, and a run of
/// years is mostly pauses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Activity {
    /// Of each hour its intervals, or none.
    hours: Vec<Box<[f64]>>,
    /// Intervals until the last in which something moved.
    length: usize,
}

impl Activity {
    /// The bytes of an interval.
    fn interval(&mut self, interval: usize) -> Option<&mut f64> {
        self.length = self.length.max(interval + 1);
        let hour = interval / HOUR;
        if hour >= self.hours.len() {
            self.hours.resize(hour + 1, Box::default());
        }
        let hour = self.hours.get_mut(hour)?;
        if hour.is_empty() {
            *hour = vec![0.0; HOUR].into();
        }
        hour.get_mut(interval % HOUR)
    }

    /// `bytes` were moved at `at`.
    pub fn add(&mut self, at: Instant, bytes: f64) {
        let interval = (at.as_nanoseconds() / INTERVAL.as_nanos() as u64) as usize;
        if let Some(sum) = self.interval(interval) {
            *sum += bytes;
        }
    }

    /// `bytes_per_s` flowed from `from` to `to`.
    pub fn flow(&mut self, from: Instant, to: Instant, bytes_per_s: f64) {
        if bytes_per_s <= 0.0 || to <= from {
            return;
        }
        let length = INTERVAL.as_nanos() as u64;
        let (first, last) = (from.as_nanoseconds() / length, (to.as_nanoseconds() - 1) / length);
        let whole = bytes_per_s * INTERVAL.as_secs_f64();
        for interval in first..=last {
            let Some(bytes) = self.interval(interval as usize) else { return };
            *bytes += if interval > first && interval < last {
                whole
            } else {
                let start = Instant::from_nanoseconds(interval * length).max(from);
                let end = Instant::from_nanoseconds((interval + 1) * length).min(to);
                bytes_per_s * end.since(start).as_secs_f64()
            };
        }
    }

    /// MiB/s in each interval, from the start of the run.
    pub fn mib_s(&self) -> impl Iterator<Item = f64> + '_ {
        let all =
            self.hours.iter().flat_map(|hour| (0..HOUR).map(|interval| hour.get(interval).copied().unwrap_or(0.0)));
        all.take(self.length).map(|bytes| bytes / INTERVAL.as_secs_f64() / 1_048_576.0)
    }

    /// Bytes moved in all.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.hours.iter().flatten().sum()
    }
}

/// What moved where over time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Traffic {
    /// The application's requests.
    pub application: Activity,
    /// Writes to caching volumes.
    pub caching: Activity,
    /// Reads and writes of the disk, the drain's included.
    pub backing: Activity,
    /// The drain's writes of the disk.
    pub drain: Activity,
}

/// A volume that starts I/Os in order of submission, no faster than its limits and credits allow.
#[derive(Clone, Debug)]
pub struct Server {
    bandwidth: Option<TokenBucket>,
    iops: Option<TokenBucket>,
    credits: Option<(CreditUnit, TokenBucket)>,
    /// No I/O starts before the one before it.
    last_start: Instant,
}

impl Server {
    /// A volume at rest.
    #[must_use]
    pub fn new(now: Instant, limits: Limits, credits: Option<&Credits>) -> Self {
        let bucket = |rate: u64| {
            let burst = u128::from(rate) * BURST.as_nanos() / 1_000_000_000;
            TokenBucket::full(now, rate, u64::try_from(burst).unwrap_or(u64::MAX))
        };
        Self {
            bandwidth: limits.bandwidth.map(|bandwidth| bucket(bandwidth.get())),
            iops: limits.iops.map(|iops| bucket(iops.get())),
            credits: credits.map(|credits| (credits.unit, credits.bucket(now))),
            last_start: now,
        }
    }

    /// When an I/O of `bytes` that is submitted now is done.
    pub fn serve(&mut self, now: Instant, bytes: u64) -> Instant {
        let mut start = now.max(self.last_start);
        let credits = self.credits.as_mut().map(|(unit, bucket)| match unit {
            CreditUnit::Operations => (bucket, 1),
            CreditUnit::Bytes => (bucket, bytes),
        });
        let bandwidth = self.bandwidth.as_mut().map(|bucket| (bucket, bytes));
        let iops = self.iops.as_mut().map(|bucket| (bucket, 1));
        for (bucket, tokens) in [bandwidth, iops, credits].into_iter().flatten() {
            while let Err(positive) = bucket.take(start, tokens) {
                start = positive;
            }
        }
        self.last_start = start;
        start
    }
}
