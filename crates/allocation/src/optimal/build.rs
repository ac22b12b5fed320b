//! A problem as one linear program over both levels and all servers.
//!
//! Convex curves are sums of pieces, each a column between 0 and 1, so that the program has few rows: one a first-level
//! server, and one or two an application. Where second-level shares lie is left out: a set of applications has at most what
//! the servers have that it reaches, and only those sets are rows that the solver would otherwise overdraw (`cuts`).
//!
//! A solver takes what is below 10⁻⁷ for nothing, and servers may differ by more than that. So each row is in parts of the servers
//! that it is about, and each second-level column in parts of what its application reaches.

use surgetank_model::Bytes;

use super::terms::{Mode, Piece, Pieces, Reach, pieces_of};
use crate::lp::{Column, Program};
use crate::placement::Network;
use crate::planted::{Bug, planted};
use crate::problem::{Amount, Problem};

/// What is minimised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// Σ latency ÷ fair latency, every SLO held; among equals the plan of the larger least margin.
    Speed,
    /// The same without SLOs.
    SpeedWithoutSlos,
    /// The sum of what applications are above their targets, in fair latencies.
    Relax,
    /// Cache that servers need more, every SLO held.
    Enlarge,
}

/// Shares between which an application's share lies, in bytes.
pub(crate) type Range = (f64, f64);

/// The least margin of all applications, in fair latencies, counts this much beside Σ latency ÷ fair latency: it decides between
/// plans of equal speed, and no more.
pub(super) const MARGIN_WEIGHT: f64 = 1e-5;

/// No margin counts beyond this many fair latencies.
pub(super) const MARGIN_MAX: f64 = 4.0;

/// What solvers may be wrong by, as a part of a server: three times the 10⁻⁷ up to which microlp takes a row as met.
pub(super) const RESOLUTION: f64 = 3e-7;

/// A program, and which of its columns are what.
pub(super) struct Built {
    pub program: Program,
    pub columns: Vec<Columns>,
    /// What the costs of all columns are subtracted from.
    pub constant: f64,
    /// By second-level server: the column of what is added to it, in parts of it, if that is asked.
    pub added_second: Vec<usize>,
    /// The same of first-level servers.
    pub added_first: Vec<usize>,
}

/// An application's columns.
pub(super) struct Columns {
    /// Its first-level share is the sum of these, each with its width in bytes.
    pub first: Vec<(usize, f64)>,
    /// Its second-level share.
    pub second: usize,
    /// Bytes that a second-level share of 1 is.
    pub second_unit: f64,
    /// What it is above its target, if that is asked.
    pub above: Option<usize>,
    /// Bytes of both levels that it has beside these columns.
    pub reserved: (f64, f64),
}

/// Which program is built.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    pub problem: &'a Problem,
    pub goal: Goal,
    /// By application; none: free.
    pub first: &'a [Option<Range>],
    pub second: &'a [Option<Range>],
    /// By application, if there was a plan.
    pub former: Option<&'a [Option<Amount>]>,
    /// Whether each application has a segment of both levels beside its columns, and at least what solvers may be wrong by: its
    /// share in whole segments is then never less than the program says.
    pub is_reserved: bool,
}

impl Built {
    pub fn new(request: &Request<'_>, modes: &[Mode]) -> Self {
        let problem = request.problem;
        let mut built = Self {
            program: Program::default(),
            columns: Vec::new(),
            constant: 0.0,
            added_second: Vec::new(),
            added_first: Vec::new(),
        };
        let margin = match request.goal {
            Goal::Speed => Some(built.program.column(-MARGIN_WEIGHT, MARGIN_MAX)),
            _ => None,
        };
        if request.goal == Goal::Enlarge {
            let servers = problem.level1.iter().chain(&problem.level2);
            let most = servers.map(|server| server.cache.get() as f64).fold(1.0, f64::max);
            let mut column =
                |server: &crate::problem::Server| built.program.column(server.cache.get() as f64 / most, f64::INFINITY);
            built.added_first = problem.level1.iter().map(&mut column).collect();
            built.added_second = problem.level2.iter().map(&mut column).collect();
        }
        let users = problem.users();
        for (application, mode) in modes.iter().enumerate() {
            let of_server = users[problem.applications[application].level1].len() as u64;
            built.add(request, (application, *mode), of_server, margin);
        }
        built.bound_first_level(problem, &users);
        built
    }

    fn add(&mut self, request: &Request<'_>, (application, mode): (usize, Mode), users: u64, margin: Option<usize>) {
        let problem = request.problem;
        let member = &problem.applications[application];
        let cache = problem.first_cache(member.level1).get() as f64;
        let (all, useful) = (problem.reachable(application).get() as f64, member.useful());
        let reach = match request.goal {
            // What is reserved is added to what is useful.
            Goal::Enlarge => Reach { first: useful.first + cache, second: useful.second + all },
            _ => Reach { first: cache, second: all },
        };
        let reserved = if request.is_reserved { reserved(problem, users, cache, all) } else { (0.0, 0.0) };
        let known: Vec<Amount> = [Some(&member.fair), request.former.and_then(|former| former[application].as_ref())]
            .into_iter()
            .flatten()
            .cloned()
            .collect();
        let pieces = pieces_of(problem, application, mode, reach, &known);
        let costs = if matches!(request.goal, Goal::Speed | Goal::SpeedWithoutSlos) { 1.0 } else { 0.0 };
        let fair = member.fair_latency_ms;
        self.constant += costs * pieces.constant_ms / fair;
        let mut lowers = Vec::new();
        let mut add = |program: &mut Program, pieces: &[Piece]| {
            let mut widths = Vec::new();
            for piece in pieces {
                let column = program.column(-costs * piece.drop_ms / fair, 1.0);
                lowers.push((column, -piece.drop_ms / fair));
                widths.push((column, piece.width));
            }
            widths
        };
        let mut first = add(&mut self.program, &pieces.first);
        let second = add(&mut self.program, &pieces.second);
        let both = add(&mut self.program, &pieces.both);
        let alone = add(&mut self.program, &pieces.alone);
        let lessened =
            |range: Option<Range>, by: f64| range.map(|(low, high)| ((low - by).max(0.0), (high - by).max(0.0)));
        let ranges =
            (lessened(request.first[application], reserved.0), lessened(request.second[application], reserved.1));
        if needs_more_first(&pieces, reach, ranges.0.map_or(0.0, |(low, _)| low)) {
            // More of its first level is worth nothing on its own, but adds to both levels together, or must be there.
            first.push((self.program.column(0.0, 1.0), reach.first));
        }
        let unit = reach.second.max(1.0);
        let y = self.program.column(0.0, if reach.second > 0.0 { 1.0 } else { 0.0 });
        if !alone.is_empty() {
            let chosen = self.choose(&first, &second, &alone);
            // What is useless is as little as it may be.
            let least = ranges.1.map_or(0.0, |(low, _)| low) / unit;
            self.program.at_most(vec![(y, 1.0), (chosen, 1.0 - least)], 1.0);
        }
        let in_parts = |widths: &[(usize, f64)], of: f64| -> Vec<(usize, f64)> {
            widths.iter().map(|(column, width)| (*column, width / of)).collect()
        };
        if !second.is_empty() {
            self.program.at_most(in_parts(&second, unit).into_iter().chain([(y, -1.0)]).collect(), 0.0);
        }
        if !both.is_empty() {
            let all = reach.first + reach.second;
            let terms = in_parts(&both, all).into_iter().chain(in_parts(&first, -all)).chain([(y, -unit / all)]);
            self.program.at_most(terms.collect(), 0.0);
        }
        self.limit(&in_parts(&first, cache), ranges.0, cache);
        self.limit(&[(y, 1.0)], ranges.1, unit);
        let above = (request.goal == Goal::Relax).then(|| self.program.column(1.0, f64::INFINITY));
        if request.goal != Goal::SpeedWithoutSlos {
            lowers.extend(above.map(|above| (above, -1.0)));
            lowers.extend(margin.map(|margin| (margin, 1.0)));
            self.promise(lowers, problem.target_ms(application), pieces.constant_ms, fair);
        }
        self.columns.push(Columns { first, second: y, second_unit: unit, above, reserved });
    }

    /// The latency is at most the target. `lowers` are in fair latencies; the row is in parts of the target if that is less.
    fn promise(&mut self, lowers: Vec<(usize, f64)>, target_ms: f64, constant_ms: f64, fair: f64) {
        let limit = (target_ms - constant_ms) / fair;
        if limit < MARGIN_MAX {
            let scale = (fair / target_ms).max(1.0);
            let terms = lowers.into_iter().map(|(column, factor)| (column, factor * scale)).collect();
            self.program.at_most(terms, limit * scale);
        }
    }

    /// Of an inclusive hierarchy: the disk sees what level 2 misses, or, if this column is 1, what level 1 misses.
    fn choose(&mut self, first: &[(usize, f64)], second: &[(usize, f64)], alone: &[(usize, f64)]) -> usize {
        self.program.columns.push(Column { cost: 0.0, low: 0.0, high: 1.0, whole: true });
        let chosen = self.program.columns.len() - 1;
        for ((counts, _), (piece, _)) in alone.iter().zip(first) {
            self.program.at_most(vec![(*counts, 1.0), (*piece, -1.0)], 0.0);
            self.program.at_most(vec![(*counts, 1.0), (chosen, -1.0)], 0.0);
        }
        for (piece, _) in second {
            self.program.at_most(vec![(*piece, 1.0), (chosen, 1.0)], 1.0);
        }
        chosen
    }

    /// A share, in parts of `unit` bytes, lies within a range.
    fn limit(&mut self, share: &[(usize, f64)], range: Option<Range>, unit: f64) {
        let Some((low, high)) = range else { return };
        if low >= high {
            self.program.exactly(share.to_vec(), high / unit);
        } else {
            self.program.at_most(share.to_vec(), high / unit);
            if low > 0.0 {
                let negative = share.iter().map(|(column, width)| (*column, -width)).collect();
                self.program.at_most(negative, -low / unit);
            }
        }
    }

    fn bound_first_level(&mut self, problem: &Problem, users: &[Vec<usize>]) {
        for (server, users) in users.iter().enumerate() {
            let added = self.added_first.get(server).map(|added| (*added, -1.0));
            let cache = problem.first_cache(server).get() as f64;
            let reserved: f64 = users.iter().map(|user| self.columns[*user].reserved.0).sum();
            let limit = (1.0 - reserved / cache).max(0.0);
            let shares = |user: &usize| {
                let of = self.columns[*user].first.iter().map(|(column, width)| (*column, width / cache));
                of.collect::<Vec<_>>()
            };
            if planted(Bug::CapacityPerApplication) {
                for user in users {
                    self.program.at_most(shares(user).into_iter().chain(added).collect(), limit);
                }
            } else if !users.is_empty() {
                self.program.at_most(users.iter().flat_map(shares).chain(added).collect(), limit);
            }
        }
    }

    /// Applications' shares of both levels at these values, in bytes.
    pub fn shares(&self, values: &[f64]) -> Vec<(f64, f64)> {
        let share = |columns: &Columns| {
            let first = columns.first.iter().map(|(column, width)| values[*column] * width).sum::<f64>();
            (first.max(0.0) + columns.reserved.0, self.second(columns, values).max(0.0) + columns.reserved.1)
        };
        self.columns.iter().map(share).collect()
    }

    fn second(&self, columns: &Columns, values: &[f64]) -> f64 {
        values[columns.second] * columns.second_unit
    }
}

/// What an application of so many users of a server has beside its columns, of both levels: never more than its fair share of the
/// first one.
fn reserved(problem: &Problem, users: u64, cache: f64, reachable: f64) -> (f64, f64) {
    let segment = problem.segment as f64;
    let first = segment.max(RESOLUTION * cache).min(cache / users.max(1) as f64);
    (first, if reachable > 0.0 { segment.max(RESOLUTION * reachable) } else { 0.0 })
}

/// Which servers applications reach, for flows.
pub(super) fn network<'a>(problem: &'a Problem, has: &'a [Bytes]) -> Network<'a> {
    Network { has, reach: problem.applications.iter().map(|member| &*member.level2).collect() }
}

fn needs_more_first(pieces: &Pieces, reach: Reach, least: f64) -> bool {
    let width = |pieces: &[Piece]| pieces.iter().map(|piece| piece.width).sum::<f64>();
    let needed = width(&pieces.both).min(reach.first).max(least);
    width(&pieces.first) < needed * (1.0 - 1e-9)
}
