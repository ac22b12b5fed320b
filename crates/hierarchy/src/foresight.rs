//! The exact curves of the interval that comes, for a scheme to compare with: what no plan can know that sees the past alone.

use std::iter::Peekable;

use surgetank_allocation::{CurveError, MissCurve};
use surgetank_model::Bytes;
use surgetank_mrc::{Curve, ExactLru, Point};

use crate::case::Case;
use crate::load::Load;
use crate::place::BLOCKS_MAX;

/// A case's accesses, one interval ahead of the system.
#[derive(Debug)]
pub(crate) struct Foresight {
    load: Peekable<Load>,
    interval_ms: f64,
    /// How many have been looked at.
    intervals: usize,
    applications: Vec<Seen>,
}

/// What one application has accessed up to the end of the last interval that was looked at.
#[derive(Debug, Default)]
struct Seen {
    curve: ExactLru,
    requests: u64,
    /// Hits at each size.
    hits: Vec<u64>,
}

impl Foresight {
    pub fn new(case: &Case) -> Self {
        let applications = case.sources.iter().map(|_| Seen::default()).collect();
        let load = Load::new(&case.sources, case.seed).peekable();
        Self { load, interval_ms: case.interval_s * 1e3, intervals: 0, applications }
    }

    /// The curves of one more interval, with points at these sizes in blocks, by application. The first one is that of the first interval.
    pub fn next(&mut self, sizes: &[Vec<u64>], block: Bytes) -> Result<Vec<MissCurve>, CurveError> {
        self.intervals += 1;
        let until_ms = self.intervals as f64 * self.interval_ms;
        let mut blocks: Vec<Vec<u64>> = vec![Vec::new(); self.applications.len()];
        while let Some(access) = self.load.next_if(|access| access.at_ms < until_ms) {
            blocks[access.application].push(access.block % BLOCKS_MAX);
        }
        let all = self.applications.iter_mut().zip(&blocks).zip(sizes);
        all.map(|((seen, blocks), sizes)| seen.interval(blocks, sizes, block)).collect()
    }
}

impl Seen {
    fn interval(&mut self, blocks: &[u64], sizes: &[u64], block: Bytes) -> Result<MissCurve, CurveError> {
        self.curve.feed(blocks);
        let points = self.curve.points(sizes);
        self.hits.resize(points.len(), 0);
        let requests = self.curve.requests() - std::mem::replace(&mut self.requests, self.curve.requests());
        let of_interval = |(point, before): (&Point, &mut u64)| {
            let hits = point.hits - std::mem::replace(before, point.hits);
            let miss_ratio = if requests == 0 { 1.0 } else { (requests - hits) as f64 / requests as f64 };
            Point { hits, requests, miss_ratio, ..*point }
        };
        let points: Vec<Point> = points.iter().zip(&mut self.hits).map(of_interval).collect();
        MissCurve::from_measured(&points, block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_is_that_of_its_interval_after_all_that_was_accessed_before() {
        let (mut seen, sizes, block) = (Seen::default(), [1, 2, 3], Bytes::new(1));
        let mut misses = |blocks: &[u64]| {
            let curve = seen.interval(blocks, &sizes, block).unwrap();
            sizes.map(|size| (curve.at(size as f64) * blocks.len() as f64).round())
        };
        assert_eq!(misses(&[1, 2, 3]), [3.0, 3.0, 3.0]);
        assert_eq!(misses(&[1, 2, 3, 3]), [3.0, 3.0, 0.0], "a loop, and one again");
        assert_eq!(misses(&[2, 2]), [1.0, 0.0, 0.0]);
    }
}
