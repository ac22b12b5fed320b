//! Lower convex hulls of miss-ratio curves, and how a cache reaches them.
//!
//! A cache of a size between two points of the hull misses what the hull says if its share is split in two, each part
//! behaving like a cache at one of these points (Talus, BS15): a part of the accesses goes to each.

use crate::curve::{MissCurve, interpolate};
use crate::planted::{Bug, planted};

/// The largest convex curve that is nowhere above the miss-ratio curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Hull {
    points: Vec<(f64, f64)>,
}

/// How a share is split to miss what the hull says: accesses are assigned to the parts by a hash of their block.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Split {
    /// Bytes of the part that behaves like the smaller cache.
    pub small: f64,
    /// Bytes of the other part.
    pub large: f64,
    /// Which part of the accesses goes to the smaller one, from 0 to 1.
    pub accesses: f64,
}

impl Hull {
    /// Of a curve.
    #[must_use]
    pub fn of(curve: &MissCurve) -> Self {
        let mut points: Vec<(f64, f64)> = Vec::new();
        for &point in curve.points() {
            while let [.., before, last] = points[..]
                && !planted(Bug::HullNotConvex)
                && is_above(before, last, point)
            {
                points.pop();
            }
            points.push(point);
        }
        // Beyond the size at which the least miss ratio is reached more cache is useless.
        let least = points.last().map_or(1.0, |(_, ratio)| *ratio);
        let end = points.iter().position(|(_, ratio)| *ratio <= least).unwrap_or(0);
        points.truncate(end + 1);
        Self { points }
    }

    /// The miss ratio at this size, in bytes.
    #[must_use]
    pub fn at(&self, size: f64) -> f64 {
        interpolate(&self.points, size)
    }

    /// Sizes in bytes, and miss ratios: slopes are negative and rise towards 0.
    #[must_use]
    pub fn points(&self) -> &[(f64, f64)] {
        &self.points
    }

    /// The split with which a cache of this size, in bytes, is on the hull. None where the curve itself is: at a point, and
    /// beyond the last one.
    #[must_use]
    pub fn split(&self, size: f64) -> Option<Split> {
        let behind = self.points.partition_point(|(at, _)| *at <= size);
        let ((from, _), (to, _)) = (*self.points.get(behind.checked_sub(1)?)?, *self.points.get(behind)?);
        let accesses = (to - size) / (to - from);
        (size > from).then_some(Split { small: accesses * from, large: (1.0 - accesses) * to, accesses })
    }
}

/// Whether the middle point is on or above the line between the others.
fn is_above(before: (f64, f64), middle: (f64, f64), after: (f64, f64)) -> bool {
    (middle.1 - before.1) * (after.0 - before.0) >= (after.1 - before.1) * (middle.0 - before.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use surgetank_model::Bytes;

    fn hull(points: &[(u64, f64)]) -> (MissCurve, Hull) {
        let points: Vec<_> = points.iter().map(|(size, ratio)| (Bytes::new(*size), *ratio)).collect();
        let curve = MissCurve::new(&points).unwrap();
        let hull = Hull::of(&curve);
        (curve, hull)
    }

    #[test]
    fn a_cliff_has_a_hull_without_it() {
        let (_, hull) = hull(&[(0, 1.0), (100, 1.0), (101, 0.0), (300, 0.0)]);
        assert_eq!(hull.points(), [(0.0, 1.0), (101.0, 0.0)]);
    }

    #[test]
    fn a_split_share_reaches_the_hull() {
        let (curve, hull) = hull(&[(0, 1.0), (60, 0.9), (100, 0.3), (150, 0.3), (200, 0.1)]);
        for size in 0..=200 {
            let size = f64::from(size);
            let misses = match hull.split(size) {
                None => curve.at(size),
                // A part that gets the share ρ of the accesses and the size ρ × s behaves like a cache of size s.
                Some(split) => {
                    let large = 1.0 - split.accesses;
                    assert!((split.small + split.large - size).abs() < 1e-9);
                    split.accesses * curve.at(split.small / split.accesses) + large * curve.at(split.large / large)
                }
            };
            assert!((misses - hull.at(size)).abs() < 1e-9, "{size}: {misses}");
        }
    }
}
