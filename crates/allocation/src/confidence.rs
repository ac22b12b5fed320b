//! How much of a bound stays free because a curve is an estimate.

use crate::problem::Latencies;

/// The margin, as a part of `bound_ms`, that an average latency needs which follows from `sampled` accesses: with a
/// probability that `deviations` says (1.64: 95 %, 2.33: 99 %) the latency is not above the estimate by more.
///
/// An access takes between the latency of level 1 and that of the disk, so the deviation of one is at most half of their
/// difference, that of the average of n by √n less. Without samples nothing is known, and the margin is the largest that a
/// problem takes.
#[must_use]
pub fn margin(sampled: u64, latencies: Latencies, bound_ms: f64, deviations: f64) -> f64 {
    let range_ms = (latencies.disk.saturating_sub(latencies.level1)).as_secs_f64() * 1e3;
    let margin = deviations * range_ms / 2.0 / (sampled as f64).sqrt() / bound_ms;
    if margin.is_finite() { margin.clamp(0.0, LARGEST) } else { LARGEST }
}

/// Below 1: a bound of which nothing is left cannot be held.
const LARGEST: f64 = 0.99;

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_margin_shrinks_with_the_square_root_of_the_sample() {
        let [level1, level2, disk] = [100, 1000, 10_100].map(Duration::from_micros);
        let latencies = Latencies { level1, level2, disk };
        assert!((margin(10_000, latencies, 5.0, 2.0) - 0.02).abs() < 1e-12);
        assert!((margin(40_000, latencies, 5.0, 2.0) - 0.01).abs() < 1e-12);
        assert_eq!(margin(0, latencies, 5.0, 2.0), LARGEST);
        assert_eq!(margin(1, latencies, 0.0, 2.0), LARGEST);
    }
}
