//! What an application's latency is made of, as a program takes it: pieces of cache, each of which lowers it linearly.

use crate::curve::interpolate;
use crate::problem::{Amount, Hierarchy, Member, Model, Problem};

/// So many bytes, which lower the latency by so much if all of them are there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Piece {
    pub width: f64,
    pub drop_ms: f64,
}

/// Latency = constant − what the pieces of level 1, level 2 and of both together lower it by. Later pieces gain less a byte,
/// so a program that minimises takes them in order.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces {
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
    /// Level 1 alone counts: the disk sees what it misses, and a share of level 2 is useless.
    Alone,
    /// The solver chooses between both by a whole number.
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
        let (first, second) = match (&self.model, &self.hull) {
            (Model::Surface(surface), _) => surface.extent(),
            (_, hull) => {
                let end = hull.as_ref().and_then(|hull| hull.points().last()).map_or(0.0, |(size, _)| *size);
                (end, end)
            }
        };
        Reach { first, second: if self.level2.is_empty() { 0.0 } else { second } }
    }
}

/// A part of a surface is as many chords as this, and some more that end at known shares.
const CHORDS: u32 = 48;

/// Pieces narrower than this part of what can be reached are widened: programs have a resolution, which is
/// [`RESOLUTION`](super::build::RESOLUTION).
const NARROWEST: f64 = 1e-6;

/// The pieces of an application. Chords of surfaces end at `known` shares, so that these cost in the program what they cost.
pub(super) fn pieces_of(problem: &Problem, application: usize, mode: Mode, reach: Reach, known: &[Amount]) -> Pieces {
    let member = &problem.applications[application];
    let [level1, level2, disk] = member.latencies_ms;
    // A queue bends the line between no misses and all: programs have the line, and what they find is judged by the queue.
    let disk = member.queue.map_or(disk, |queue| disk.max(queue.latency_ms(1.0)));
    let both = reach.first + reach.second;
    match (&member.model, &member.hull) {
        (Model::Surface(surface), _) => {
            let (constant_ms, [first, second, together]) = surface.parts();
            let extent = surface.extent();
            let known = |share: &dyn Fn(&Amount) -> u64| known.iter().map(|amount| share(amount) as f64).collect();
            Pieces {
                constant_ms,
                first: chords(&first, reach.first.min(extent.0), known(&|amount| amount.level1.get())),
                second: chords(&second, reach.second.min(extent.1), known(&|amount| amount.second().get())),
                both: chords(
                    &together,
                    both.min(extent.0 + extent.1),
                    known(&|amount| amount.level1.get().saturating_add(amount.second().get())),
                ),
                alone: Vec::new(),
            }
        }
        (Model::Curve(_), Some(hull)) => {
            let points = hull.points();
            let constant_ms = level1 + (disk - level1) * interpolate(points, 0.0);
            let first = |latency: f64| pieces(points, reach.first, latency);
            match (problem.hierarchy, mode) {
                (Hierarchy::Exclusive, _) => Pieces {
                    constant_ms,
                    first: first(level2 - level1),
                    both: pieces(points, both, disk - level2),
                    ..Pieces::default()
                },
                (Hierarchy::Inclusive, Mode::Alone) => {
                    Pieces { constant_ms, first: first(disk - level1), ..Pieces::default() }
                }
                (Hierarchy::Inclusive, Mode::Behind | Mode::Either) => Pieces {
                    constant_ms,
                    first: first(level2 - level1),
                    second: pieces(points, reach.second, disk - level2),
                    both: Vec::new(),
                    alone: if mode == Mode::Either { first(disk - level2) } else { Vec::new() },
                },
            }
        }
        (Model::Curve(_), None) => Pieces::default(),
    }
}

/// The chords up to `end` of what falls ever more slowly: between even steps and known sizes.
fn chords(part: &dyn Fn(f64) -> f64, end: f64, known: Vec<f64>) -> Vec<Piece> {
    let mut sizes: Vec<f64> = (0..=CHORDS).map(|step| end * f64::from(step) / f64::from(CHORDS)).collect();
    sizes.extend(known.into_iter().filter(|size| *size < end));
    sizes.sort_by(f64::total_cmp);
    sizes.dedup();
    let points: Vec<(f64, f64)> = sizes.into_iter().map(|size| (size, part(size))).collect();
    pieces(&points, end, 1.0)
}

/// The pieces between points up to `end`, of a convex curve that is worth `factor` a unit of what it falls by. A piece that would
/// be too narrow ends further on, where the curve is: what is between is above the curve, and nothing else is.
fn pieces(points: &[(f64, f64)], end: f64, factor: f64) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let Some(mut from) = points.first().copied() else { return pieces };
    let mut behind = &points[1..];
    while let [to, rest @ ..] = behind
        && from.0 < end
    {
        let narrowest = from.0 + NARROWEST * end;
        let at = to.0.max(narrowest).min(end);
        let to = if at == to.0 { *to } else { (at, interpolate(points, at)) };
        let (width, drop_ms) = (to.0 - from.0, factor * (from.1 - to.1));
        behind = rest;
        if width > 0.0 {
            if drop_ms <= 0.0 {
                // Nothing is gained from here on.
                break;
            }
            pieces.push(Piece { width, drop_ms });
            from = to;
        }
        behind = &behind[behind.partition_point(|(size, _)| *size <= from.0)..];
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_narrow_piece_does_not_swallow_the_wide_one_behind_it() {
        let points = [(0.0, 1.0), (1.0, 0.1), (1e9, 0.0)];
        let pieces = pieces(&points, 1e9, 1.0);
        assert_eq!(pieces.len(), 2);
        assert_eq!(pieces[0].width, 1e3);
        assert!(pieces[0].drop_ms > 0.89 && pieces[0].drop_ms < 0.91, "{pieces:?}");
        assert!((pieces.iter().map(|piece| piece.drop_ms).sum::<f64>() - 1.0).abs() < 1e-12);
    }
}
