//! What all ways to a curve have in common.

/// One size of a cache and what it would do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Size of the cache, in blocks.
    pub size_blocks: u64,
    /// Requests whose block is in the cache; an estimate if sampled.
    pub hits: u64,
    /// All requests.
    pub requests: u64,
    /// Misses ÷ requests; 0 without requests.
    pub miss_ratio: f64,
}

impl Point {
    /// From a count of hits.
    #[must_use]
    pub fn exact(size_blocks: u64, hits: u64, requests: u64) -> Self {
        let miss_ratio = if requests == 0 { 0.0 } else { (requests - hits) as f64 / requests as f64 };
        Self { size_blocks, hits, requests, miss_ratio }
    }

    /// From an estimate of the hits, which chance may have put outside of what is possible.
    #[must_use]
    pub fn estimated(size_blocks: u64, hits: f64, requests: u64) -> Self {
        let hits = hits.clamp(0.0, requests as f64);
        let miss_ratio = if requests == 0 { 0.0 } else { (requests as f64 - hits) / requests as f64 };
        Self { size_blocks, hits: hits.round() as u64, requests, miss_ratio }
    }
}

/// A curve that grows as the keys of a trace come in.
pub trait Curve {
    /// The next keys, in order.
    fn feed(&mut self, keys: &[u64]);

    /// Keys so far.
    fn requests(&self) -> u64;

    /// Different keys so far, estimated if sampled; `None` where nobody counts them.
    fn distinct(&self) -> Option<u64>;

    /// The curve at these sizes, in their order. Simulations answer only at sizes that they were made with, and leave
    /// out the others.
    fn points(&self, sizes: &[u64]) -> Vec<Point>;
}

/// About `count` sizes from 1 to `largest` for a curve that nobody gave sizes for: equal steps of the logarithm, ends
/// included, ascending, without repetition. None without a largest size.
#[must_use]
pub fn spread_sizes(largest: u64, count: u32) -> Vec<u64> {
    if largest == 0 {
        return Vec::new();
    }
    let steps = count.max(2) - 1;
    let size = |step: u32| ((largest as f64).powf(f64::from(step) / f64::from(steps)).round() as u64).clamp(1, largest);
    let mut sizes: Vec<u64> = (0..=steps).map(size).collect();
    // Powers of large numbers are not exact.
    sizes.push(largest);
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_spread_between_one_and_the_largest() {
        assert_eq!(spread_sizes(0, 10), []);
        assert_eq!(spread_sizes(1, 10), [1]);
        assert_eq!(spread_sizes(5, 10), [1, 2, 3, 4, 5]);
        assert_eq!(spread_sizes(1000, 4), [1, 10, 100, 1000]);
        let sizes = spread_sizes(u64::MAX, 64);
        assert_eq!((sizes.first(), sizes.last()), (Some(&1), Some(&u64::MAX)));
        assert!(sizes.is_sorted());
    }

    #[test]
    fn points_stay_within_what_is_possible() {
        assert_eq!(Point::exact(1, 0, 0).miss_ratio, 0.0);
        assert_eq!(Point::estimated(1, -3.0, 10), Point::exact(1, 0, 10));
        assert_eq!(Point::estimated(1, 12.0, 10), Point::exact(1, 10, 10));
    }
}
