//! Lower convex hulls of miss-ratio curves, and how a cache reaches them.
//!
//! A cache of a size between two points of the hull misses what the hull says if its share is split in two, each part
//! behaving like a cache at one of these points (Talus, BS15): a part of the accesses goes to each.

use crate::curve::{MissCurve, interpolate};
use crate::planted::{Bug, planted};
use crate::problem::Hierarchy;

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

/// A part of an application's accesses, and its own sizes of both levels, in bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Class {
    /// Which part of the accesses it has, from 0 to 1.
    pub accesses: f64,
    /// Of the application's first-level share.
    pub first: f64,
    /// Of its second-level share.
    pub second: f64,
}

impl Hull {
    /// The hull of a curve.
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

    /// The classes of accesses with which shares of both levels, in bytes, are on the hull at once: level 1 misses what the hull
    /// says of `first`, and both together what it says of their sum, or of the larger one if level 2 holds what level 1 does.
    /// Accesses are assigned to classes by a hash of their block.
    ///
    /// Each level is split at its own part of the accesses. Below the smaller part both are small, above the larger one both are
    /// large; in between one is. So three classes are enough.
    #[must_use]
    pub fn joint_split(&self, first: f64, second: f64, hierarchy: Hierarchy) -> Vec<Class> {
        let (one, other) = match hierarchy {
            Hierarchy::Exclusive => (self.sizes(first), self.sizes(first + second)),
            Hierarchy::Inclusive => (self.sizes(first), self.sizes(second)),
        };
        let mut ends = [one.accesses, other.accesses, 1.0];
        ends.sort_by(f64::total_cmp);
        let (mut from, mut classes) = (0.0, Vec::new());
        for end in ends {
            let accesses = end - from;
            if accesses > 0.0 {
                let middle = from + accesses / 2.0;
                let first = accesses * one.at(middle);
                let second = match hierarchy {
                    Hierarchy::Exclusive => accesses * other.at(middle) - first,
                    Hierarchy::Inclusive => accesses * other.at(middle),
                };
                classes.push(Class { accesses, first, second: second.max(0.0) });
                from = end;
            }
        }
        classes
    }

    /// The two sizes between which a cache of this size is, and the part of the accesses that the smaller one has.
    fn sizes(&self, size: f64) -> Sizes {
        let behind = self.points.partition_point(|(at, _)| *at <= size);
        let before = behind.checked_sub(1).map(|before| self.points[before].0);
        match (before, self.points.get(behind)) {
            (Some(from), Some((to, _))) => Sizes { small: from, large: *to, accesses: (to - size) / (to - from) },
            // Beyond the hull a larger cache misses no less.
            _ => Sizes { small: size, large: size, accesses: 1.0 },
        }
    }
}

struct Sizes {
    small: f64,
    large: f64,
    accesses: f64,
}

impl Sizes {
    /// The size of the cache that the accesses at this part of them see.
    fn at(&self, part: f64) -> f64 {
        if part < self.accesses { self.small } else { self.large }
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
    fn shares_of_both_levels_reach_the_hull_at_once() {
        let (curve, hull) = hull(&[(0, 0.9), (60, 0.9), (100, 0.3), (150, 0.3), (200, 0.1)]);
        for hierarchy in [Hierarchy::Exclusive, Hierarchy::Inclusive] {
            for (first, second) in (0..=210).step_by(7).flat_map(|x| (0..=220).step_by(11).map(move |y| (x, y))) {
                let (first, second) = (f64::from(first), f64::from(second));
                let classes = hull.joint_split(first, second, hierarchy);
                assert!(classes.len() <= 3);
                let sum = |of: &dyn Fn(&Class) -> f64| classes.iter().map(of).sum::<f64>();
                assert!((sum(&|class| class.accesses) - 1.0).abs() < 1e-9);
                assert!((sum(&|class| class.first) - first).abs() < 1e-9, "{first}, {second}: {classes:?}");
                assert!((sum(&|class| class.second) - second).abs() < 1e-9, "{first}, {second}: {classes:?}");
                let misses = |size: &dyn Fn(&Class) -> f64| {
                    sum(&|class| class.accesses * curve.at(size(class) / class.accesses))
                };
                let behind = match hierarchy {
                    Hierarchy::Exclusive => misses(&|class| class.first + class.second),
                    Hierarchy::Inclusive => misses(&|class| class.first.max(class.second)),
                };
                let all = if hierarchy == Hierarchy::Exclusive { first + second } else { first.max(second) };
                assert!((misses(&|class| class.first) - hull.at(first)).abs() < 1e-9, "{first}: {classes:?}");
                assert!((behind - hull.at(all)).abs() < 1e-9, "{first}, {second}: {classes:?}");
            }
        }
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
