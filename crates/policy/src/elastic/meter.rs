//! Utilization from counters, and for how long it has been low.

use std::time::Duration;

use surgetank_model::{Bandwidth, Instant, Observation};

/// Measures the application's traffic on one elastic device; the drain's does not count.
#[derive(Clone, Debug)]
pub(super) struct Meter {
    /// When the last observation was made, and the bytes moved until then.
    last: Option<(Instant, u64)>,
    /// Start of the last sampling interval; `None` before the second sample.
    pub sampled_from: Option<Instant>,
    /// Length of the last sampling interval.
    pub interval: Duration,
    /// Throughput over the last interval ÷ the backing volume's bandwidth.
    pub utilization: f64,
    /// Utilization was above the threshold in the last interval.
    pub hot: bool,
    /// Since when utilization has been below the threshold.
    calm_since: Option<Instant>,
}

impl Meter {
    pub fn new(now: Instant) -> Self {
        Self {
            last: None,
            sampled_from: None,
            interval: Duration::ZERO,
            utilization: 0.0,
            hot: false,
            calm_since: Some(now),
        }
    }

    pub fn observe(&mut self, now: Instant, observation: &Observation, backing: Bandwidth, threshold: f64) {
        let moved = observation.read_bytes.saturating_add(observation.written_bytes);
        let Some((before, moved_before)) = self.last else {
            self.last = Some((now, moved));
            return;
        };
        let interval = now.since(before);
        if interval.is_zero() {
            return;
        }
        self.last = Some((now, moved));
        self.sampled_from = Some(before);
        self.interval = interval;
        let bytes_per_s = moved.saturating_sub(moved_before) as f64 / interval.as_secs_f64();
        self.utilization = bytes_per_s / backing.get() as f64;
        self.hot = self.utilization > threshold;
        if self.utilization < threshold {
            // The whole interval was calm on average, so calm began with it.
            self.calm_since.get_or_insert(before);
        } else {
            self.calm_since = None;
        }
    }

    /// How long utilization has been below the threshold.
    pub fn calm_for(&self, now: Instant) -> Duration {
        self.calm_since.map_or(Duration::ZERO, |since| now.since(since))
    }

    /// When utilization will have been below the threshold for so long; `None`: it is not below.
    pub fn calm_after(&self, delay: Duration) -> Option<Instant> {
        self.calm_since.map(|since| since + delay)
    }

    /// Further from the threshold than what a counter of whole bytes hides in an interval.
    pub fn is_clear_of(&self, threshold: f64, backing: Bandwidth) -> bool {
        let bytes_per_s = (self.utilization - threshold).abs() * backing.get() as f64;
        bytes_per_s * self.interval.as_secs_f64() > 2.0
    }

    /// A boost was asked for or has just begun: count the calm from here.
    pub fn restart_calm(&mut self, now: Instant) {
        if self.calm_since.is_some() {
            self.calm_since = Some(now);
        }
    }
}
