//! What an application's latency is made of, as a program takes it: pieces of cache, each of which lowers it linearly.

use crate::curve::interpolate;
use crate::problem::{Hierarchy, Member, Model, Problem};

/// So many bytes, which lower the latency by so much if all of them are there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Piece {
    pub width: f64,
    pub drop_ms: f64,
}

/// Latency = constant − what the pieces of level 1, level 2 and of both together lower it by. Pieces get narrower gains, so a
/// program that minimises takes them in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Terms {
    pub constant_ms: f64,
    pub first: Vec<Piece>,
    pub second: Vec<Piece>,
    pub both: Vec<Piece>,
    /// What the pieces of level 1 lower the latency by on top of it where level 2 has nothing.
    pub alone: Vec<Piece>,
}

/// Where an inclusive hierarchy's application has its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// Level 2 holds what level 1 does: the disk sees what level 2 misses.
    Behind,
    /// The solver chooses between that and level 1 alone: the disk sees what it misses, and a share of level 2 is useless.
    Either,
}

/// What each level can hold of an application at most, in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reach {
    pub first: f64,
    pub second: f64,
}

impl Member {
    /// Beyond this an application has no use for cache.
    pub(super) fn useful(&self) -> Reach {
        match (&self.model, &self.hull) {
            (Model::Surface(surface), _) => {
                let (first, second) = surface.extent();
                Reach { first, second }
            }
            (_, hull) => {
                let end = hull.as_ref().and_then(|hull| hull.points().last()).map_or(0.0, |(size, _)| *size);
                Reach { first: end, second: end }
            }
        }
    }
}

/// A surface is as many chords as this.
const CHORDS: u32 = 24;

/// Pieces narrower than this part of what can be reached are joined: programs have a resolution.
const NARROWEST: f64 = 1e-6;

pub(super) fn terms(problem: &Problem, application: usize, mode: Mode, reach: Reach) -> Terms {
    let member = &problem.applications[application];
    let [level1, level2, disk] = problem.latencies_ms;
    let both = reach.first + reach.second;
    match (&member.model, &member.hull) {
        (Model::Surface(surface), _) => {
            let (constant_ms, [first, second, together]) = surface.parts();
            let chords = |part: &dyn Fn(f64) -> f64, end: f64| {
                let points: Vec<(f64, f64)> =
                    (0..=CHORDS).map(|at| end * f64::from(at) / f64::from(CHORDS)).map(|at| (at, part(at))).collect();
                pieces(&points, end, 1.0)
            };
            let (first, second, both) =
                (chords(&first, reach.first), chords(&second, reach.second), chords(&together, both));
            Terms { constant_ms, first, second, both, alone: Vec::new() }
        }
        (Model::Curve(_), Some(hull)) => {
            let points = hull.points();
            let constant_ms = level1 + (disk - level1) * interpolate(points, 0.0);
            let first = |latency: f64| pieces(points, reach.first, latency);
            match (problem.hierarchy, mode) {
                (Hierarchy::Exclusive, _) => Terms {
                    constant_ms,
                    first: first(level2 - level1),
                    both: pieces(points, both, disk - level2),
                    ..Terms::default()
                },
                (Hierarchy::Inclusive, _) => Terms {
                    constant_ms,
                    first: first(level2 - level1),
                    second: pieces(points, reach.second, disk - level2),
                    both: Vec::new(),
                    alone: if mode == Mode::Either { first(disk - level2) } else { Vec::new() },
                },
            }
        }
        (Model::Curve(_), None) => Terms::default(),
    }
}

/// The pieces between points up to `end`, of a curve that is worth `factor` a unit of what it falls by.
fn pieces(points: &[(f64, f64)], end: f64, factor: f64) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let Some(mut from) = points.first().copied() else { return pieces };
    for (index, &(at, value)) in points.iter().enumerate().skip(1) {
        let is_last = at >= end || index + 1 == points.len();
        if at - from.0 < NARROWEST * end && !is_last {
            continue;
        }
        let to = if at > end { (end, interpolate(points, end)) } else { (at, value) };
        let (width, drop_ms) = (to.0 - from.0, factor * (from.1 - to.1));
        if width > 0.0 && drop_ms > 0.0 {
            pieces.push(Piece { width, drop_ms });
        } else if width > 0.0 {
            // Nothing is gained from here on.
            break;
        }
        from = to;
        if is_last {
            break;
        }
    }
    pieces
}
