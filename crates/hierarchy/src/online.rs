//! What an application would miss at each size, as far as can be seen while it runs.

use surgetank_allocation::{CurveError, MissCurve};
use surgetank_model::Bytes;
use surgetank_mrc::{Curve, Point, Rate, SampledLru};

use crate::planted::{Bug, planted};

/// A miss-ratio curve of the last intervals.
#[derive(Debug)]
pub struct OnlineCurve {
    sampled: SampledLru,
    sizes: Vec<u64>,
    /// Hits at each size and requests, since the beginning, when the last interval ended.
    before: (Vec<u64>, u64),
    /// Hits at each size and requests of the past, older intervals for less.
    aged: (Vec<f64>, f64),
}

/// Distances are kept for as long as keys are; what is forgotten are counts. After an interval what was counted before counts for this much.
const KEPT: f64 = 0.8;
/// Points of a curve.
const POINTS: u64 = 256;

impl OnlineCurve {
    /// For caches up to so many blocks.
    #[must_use]
    pub fn new(rate: Rate, blocks_max: u64) -> Self {
        // Closer together where there are few.
        let at = |step: u64| {
            let part = step as f64 / POINTS as f64;
            ((blocks_max as f64) * part * (0.3 + 0.7 * part)).round() as u64
        };
        let mut sizes: Vec<u64> = (1..=POINTS).map(at).filter(|size| *size > 0).collect();
        sizes.dedup();
        let zero = vec![0; sizes.len()];
        let aged = (vec![0.0; sizes.len()], 0.0);
        Self { sampled: SampledLru::fixed_rate(rate), sizes, before: (zero, 0), aged }
    }

    /// The next accesses.
    pub fn feed(&mut self, keys: &[u64]) {
        self.sampled.feed(keys);
    }

    /// An interval has ended.
    pub fn age(&mut self) {
        let kept = if planted(Bug::NoAgeing) { 1.0 } else { KEPT };
        let points = self.sampled.points(&self.sizes);
        for (index, point) in points.iter().enumerate() {
            // The adjustment of sampled counts may take hits away again.
            let hits = point.hits as f64 - self.before.0[index] as f64;
            self.aged.0[index] = self.aged.0[index] * kept + hits;
            self.before.0[index] = point.hits;
        }
        let requests = self.sampled.requests();
        self.aged.1 = self.aged.1 * kept + (requests - self.before.1) as f64;
        self.before.1 = requests;
    }

    /// The curve, in blocks of so many bytes. None without accesses.
    ///
    /// # Errors
    /// Never: sizes ascend.
    pub fn curve(&self, block: u64) -> Result<Option<MissCurve>, CurveError> {
        if self.aged.1 <= 0.0 {
            return Ok(None);
        }
        let point = |(size, hits): (&u64, &f64)| Point {
            size_blocks: *size,
            hits: 0,
            requests: 0,
            miss_ratio: 1.0 - (hits / self.aged.1).clamp(0.0, 1.0),
        };
        let points: Vec<Point> = self.sizes.iter().zip(&self.aged.0).map(point).collect();
        MissCurve::from_measured(&points, Bytes::new(block)).map(Some)
    }

    /// From how many sampled accesses it is.
    #[must_use]
    pub fn sampled(&self) -> u64 {
        (self.aged.1 * self.sampled.rate().share()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_follows_what_an_application_does_now() {
        let mut online = OnlineCurve::new(Rate::ALL, 4000);
        let round = |online: &mut OnlineCurve, blocks: u64| {
            let keys: Vec<u64> = (0..9000).map(|at| at % blocks).collect();
            online.feed(&keys);
            online.age();
        };
        (0..3).for_each(|_| round(&mut online, 3000));
        let at = |online: &OnlineCurve, size: f64| online.curve(1).unwrap().unwrap().at(size);
        assert!(at(&online, 2900.0) > 0.99 && at(&online, 3100.0) < 0.15);
        (0..20).for_each(|_| round(&mut online, 500));
        assert!(at(&online, 600.0) < 0.02, "{}", at(&online, 600.0));
    }

    #[test]
    fn without_accesses_there_is_no_curve() {
        assert_eq!(OnlineCurve::new(Rate::ALL, 10).curve(4096), Ok(None));
    }
}
