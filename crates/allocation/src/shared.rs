//! What applications have of a cache that they share as one LRU list.
//!
//! A block stays in it for as long as it takes all of them together to bring in as much as the cache holds. In that time an
//! application that misses m(x) of r accesses per second with x bytes brings in x, where dx/dt = r·m(x) (the higher-order
//! theory of locality, XDLB13): larger rates and larger miss ratios take more of it.

use crate::curve::{MissCurve, interpolate};
use crate::planted::{Bug, planted};
use crate::problem::{Hierarchy, Problem};

/// What an application has brought in after some time.
#[derive(Clone, Debug)]
pub(crate) struct Footprint {
    points: Vec<(f64, f64)>,
    /// When it has as much as at each point.
    times: Vec<f64>,
    rate: f64,
}

/// Caches in which blocks stay for longer than this many seconds hold everything.
const FOREVER: f64 = 1e18;

impl Footprint {
    pub fn of(curve: &MissCurve, accesses_per_s: f64) -> Self {
        let rate = if planted(Bug::RatesIgnored) { 1.0 } else { accesses_per_s };
        let points = curve.points().to_vec();
        let mut times = vec![0.0];
        for pair in points.windows(2) {
            let ((from, high), (to, low)) = (pair[0], pair[1]);
            // ∫ dx ÷ (r·m(x)) where m is linear.
            let time = if high == low { (to - from) / high } else { (to - from) / (high - low) * (high / low).ln() };
            times.push(times[times.len() - 1] + time / rate);
        }
        Self { points, times, rate }
    }

    /// The miss ratio at a size.
    pub fn misses(&self, size: f64) -> f64 {
        interpolate(&self.points, size)
    }

    /// The last point of the curve.
    pub fn end(&self) -> f64 {
        self.points.last().map_or(0.0, |(size, _)| *size)
    }

    /// Bytes after so many seconds.
    fn after(&self, seconds: f64) -> f64 {
        let behind = self.times.partition_point(|time| *time <= seconds).max(1);
        let ((from, high), passed) = (self.points[behind - 1], seconds - self.times[behind - 1]);
        match self.points.get(behind) {
            Some((to, low)) => {
                let slope = (low - high) / (to - from);
                let brought = if slope == 0.0 {
                    high * self.rate * passed
                } else {
                    high * (slope * self.rate * passed).exp_m1() / slope
                };
                (from + brought).min(*to)
            }
            None => from + high * self.rate * passed,
        }
    }

    /// Seconds until it has these bytes.
    fn until(&self, size: f64) -> f64 {
        let behind = self.points.partition_point(|(at, _)| *at <= size).max(1);
        let ((from, high), more) = (self.points[behind - 1], size - self.points[behind - 1].0);
        let slope = self.points.get(behind).map_or(0.0, |(to, low)| (low - high) / (to - from));
        let time = if slope == 0.0 { more / high } else { (slope * more / high).ln_1p() / slope };
        let time = self.times[behind - 1] + if more > 0.0 { time / self.rate } else { 0.0 };
        time.min(FOREVER)
    }
}

/// Enough to halve the logarithm of any time until floating point ends it.
const BISECTIONS: usize = 100;

/// The time in which `brought` reaches `capacity`.
fn residence(capacity: f64, brought: impl Fn(f64) -> f64) -> f64 {
    if brought(FOREVER) <= capacity {
        return FOREVER;
    }
    let (mut early, mut late) = (1e-18, FOREVER);
    for _ in 0..BISECTIONS {
        let middle = f64::sqrt(early * late);
        if brought(middle) <= capacity { early = middle } else { late = middle }
    }
    early
}

/// What each application has of its shared first-level server, in bytes.
pub(crate) fn share_first(problem: &Problem, footprints: &[Footprint]) -> Vec<f64> {
    let mut shares = vec![0.0; footprints.len()];
    for (server, users) in problem.users().iter().enumerate() {
        let together = |time: f64| users.iter().map(|user| footprints[*user].after(time)).sum();
        let time = residence(problem.level1[server].cache.get() as f64, together);
        for user in users {
            shares[*user] = footprints[*user].after(time).min(problem.level1[server].cache.get() as f64);
        }
    }
    shares
}

/// What each application has of shared second-level servers, in bytes, and which part of its accesses misses both levels, when
/// it has this much of the first level. An application's blocks are spread evenly over its servers.
pub(crate) fn share_second(
    problem: &Problem,
    footprints: &[Footprint],
    firsts: &[f64],
) -> (Vec<Vec<(usize, f64)>>, Vec<f64>) {
    let is_exclusive = problem.hierarchy == Hierarchy::Exclusive;
    // An exclusive level takes what the first one evicts; an inclusive one has seen all that the first one was given.
    let begins: Vec<f64> = footprints
        .iter()
        .zip(firsts)
        .map(|(footprint, first)| if is_exclusive { footprint.until(*first) } else { 0.0 })
        .collect();
    let reached = |index: usize| problem.applications[index].level2.len() as f64;
    let brought = |index: usize, time: f64| {
        let before = if is_exclusive { firsts[index] } else { 0.0 };
        (footprints[index].after(begins[index] + time) - before).max(0.0) / reached(index)
    };
    let mut seconds = vec![Vec::new(); footprints.len()];
    // Without a second level the disk sees what level 1 misses.
    let mut behind_both: Vec<f64> = (0..footprints.len())
        .map(|index| if reached(index) > 0.0 { 0.0 } else { footprints[index].misses(firsts[index]) })
        .collect();
    for (server, of) in problem.level2.iter().enumerate() {
        let users: Vec<usize> = (0..footprints.len())
            .filter(|index| problem.applications[*index].level2.binary_search(&server).is_ok())
            .collect();
        let capacity = of.cache.get() as f64;
        let time = residence(capacity, |time| users.iter().map(|user| brought(*user, time)).sum());
        for user in users {
            seconds[user].push((server, brought(user, time).min(capacity)));
            let misses = footprints[user].misses(footprints[user].after(begins[user] + time));
            behind_both[user] += misses.min(footprints[user].misses(firsts[user])) / reached(user);
        }
    }
    (seconds, behind_both)
}
