//! Miss-ratio curves in bytes.

use surgetank_model::Bytes;
use surgetank_mrc::Point;

/// What a cache of each size misses: from size 0 on, never rising, linear between points, constant beyond the last one.
#[derive(Clone, Debug, PartialEq)]
pub struct MissCurve {
    points: Vec<(f64, f64)>,
}

/// Why points make no curve. Whoever knows the application's name puts it in front.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CurveError {
    /// There are none.
    #[error("its miss-ratio curve has no points: give at least one size with its miss ratio")]
    Empty,
    /// A ratio that is none.
    #[error("its miss ratio at {size} is {ratio}: a miss ratio is between 0 and 1")]
    Ratio {
        /// The size at which the ratio is wrong.
        size: Bytes,
        /// The wrong ratio.
        ratio: f64,
    },
    /// Sizes must ascend.
    #[error("its curve has {size} behind {before}: sizes ascend, each occurs once")]
    Order {
        /// The size that does not ascend.
        size: Bytes,
        /// The size of the point in front of it.
        before: Bytes,
    },
    /// More cache cannot miss more.
    #[error(
        "its miss ratio rises to {ratio} at {size}: a larger cache misses no more than a smaller one, so measure for longer or smooth the curve"
    )]
    Rises {
        /// The size at which the curve rises.
        size: Bytes,
        /// The ratio there.
        ratio: f64,
    },
}

impl MissCurve {
    /// From sizes and miss ratios. Without a point at size 0 the curve begins there with 1: no cache, no hits.
    ///
    /// # Errors
    /// If they make no curve.
    pub fn new(points: &[(Bytes, f64)]) -> Result<Self, CurveError> {
        let Some(&(first, _)) = points.first() else {
            return Err(CurveError::Empty);
        };
        if let Some(&(size, ratio)) = points.iter().find(|(_, ratio)| !(0.0..=1.0).contains(ratio)) {
            return Err(CurveError::Ratio { size, ratio });
        }
        for pair in points.windows(2) {
            let ((before, former), (size, ratio)) = (pair[0], pair[1]);
            if size <= before {
                return Err(CurveError::Order { size, before });
            }
            if ratio > former {
                return Err(CurveError::Rises { size, ratio });
            }
        }
        let at_zero = (first > Bytes::ZERO).then_some((0.0, 1.0));
        let points =
            at_zero.into_iter().chain(points.iter().map(|(size, ratio)| (size.get() as f64, *ratio))).collect();
        Ok(Self { points })
    }

    /// What it says up to this size: a cache that can be no larger misses no less.
    #[must_use]
    pub fn up_to(&self, size: Bytes) -> Self {
        let size = size.get() as f64;
        let mut points: Vec<(f64, f64)> = self.points.iter().copied().filter(|(at, _)| *at < size).collect();
        points.push((size, interpolate(&self.points, size)));
        Self { points }
    }

    /// That of a cache which needs so many times the size for the same misses; the factor is above 0.
    pub(crate) fn stretched(&self, factor: f64) -> Self {
        Self { points: self.points.iter().map(|(size, ratio)| (size * factor, *ratio)).collect() }
    }

    /// The same with other ratios, which `of` makes of these; a larger one of a larger one, and between 0 and 1.
    pub(crate) fn mapped(&self, of: impl Fn(f64) -> f64) -> Self {
        Self { points: self.points.iter().map(|(size, ratio)| (*size, of(*ratio).clamp(0.0, 1.0))).collect() }
    }

    /// From a measured curve, whose estimates may rise by chance: each point has the least miss ratio up to its size.
    ///
    /// # Errors
    /// If there are no points, or their sizes do not ascend.
    pub fn from_measured(points: &[Point], block: Bytes) -> Result<Self, CurveError> {
        let mut least = 1.0_f64;
        let points: Vec<(Bytes, f64)> = points
            .iter()
            .map(|point| {
                least = least.min(point.miss_ratio);
                (Bytes::new(point.size_blocks.saturating_mul(block.get())), least)
            })
            .collect();
        Self::new(&points)
    }

    /// The miss ratio of a cache of this size, in bytes.
    #[must_use]
    pub fn at(&self, size: f64) -> f64 {
        interpolate(&self.points, size)
    }

    /// Sizes in bytes, and miss ratios.
    #[must_use]
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }
}

/// The value at `size` of what is linear between points and constant beyond the last one.
pub(crate) fn interpolate(points: &[(f64, f64)], size: f64) -> f64 {
    let behind = points.partition_point(|(at, _)| *at <= size);
    match (behind.checked_sub(1).map(|before| points[before]), points.get(behind)) {
        (Some((from, high)), Some((to, low))) => high + (low - high) * (size - from) / (to - from),
        (Some((_, last)), None) => last,
        (None, first) => first.map_or(1.0, |(_, value)| *value),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(u64, f64)]) -> Result<MissCurve, CurveError> {
        MissCurve::new(&points.iter().map(|(size, ratio)| (Bytes::new(*size), *ratio)).collect::<Vec<_>>())
    }

    #[test]
    fn a_curve_is_linear_between_its_points() {
        let curve = curve(&[(100, 0.4), (200, 0.2)]).unwrap();
        for (size, ratio) in [(0.0, 1.0), (50.0, 0.7), (100.0, 0.4), (150.0, 0.3), (200.0, 0.2), (1e9, 0.2)] {
            assert!((curve.at(size) - ratio).abs() < 1e-12, "{size}");
        }
    }

    #[test]
    fn points_that_make_no_curve_are_refused_with_the_reason() {
        for (points, part) in [
            (&[][..], "no points"),
            (&[(0, 1.5)], "between 0 and 1"),
            (&[(0, f64::NAN)], "between 0 and 1"),
            (&[(0, 1.0), (0, 0.5)], "sizes ascend"),
            (&[(0, 1.0), (4, 0.5), (8, 0.6)], "rises to 0.6 at 8 B"),
        ] {
            let error = curve(points).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_measured_curve_does_not_rise() {
        let point = |size_blocks, miss_ratio| Point { size_blocks, hits: 0, requests: 0, miss_ratio };
        let curve = MissCurve::from_measured(&[point(1, 0.5), point(2, 0.6), point(4, 0.1)], Bytes::new(4096)).unwrap();
        assert_eq!(curve.points()[1..], [(4096.0, 0.5), (8192.0, 0.5), (16384.0, 0.1)]);
    }
}
