//! A problem as one linear program over both levels and all servers.
//!
//! Convex curves are sums of pieces, each a column between 0 and 1, so that the program has few rows: one a first-level
//! server, and one or two an application. Where second-level shares lie is left out: a set of applications has at most what
//! the servers have that it reaches, and only those sets are rows that the solver would otherwise overdraw (`cuts`).

use surgetank_model::Bytes;

use super::terms::{Mode, Piece, Reach, Terms, terms};
use crate::lp::{Column, Program};
use crate::placement::Network;
use crate::planted::{Bug, planted};
use crate::problem::Problem;

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

/// What weighs a margin of a whole fair latency as if it was speed: it decides between equals, and no more.
pub(super) const MARGIN_WEIGHT: f64 = 1e-5;

/// No margin counts beyond this many fair latencies.
pub(super) const MARGIN_MAX: f64 = 4.0;

/// A program and where in it what is.
pub(super) struct Built {
    pub program: Program,
    pub columns: Vec<Columns>,
    /// Bytes a unit of its columns.
    pub unit: f64,
    /// What is added to second-level servers, if that is asked.
    pub added_second: Vec<usize>,
    /// The same of first-level servers.
    pub added_first: Vec<usize>,
}

/// An application's columns.
pub(super) struct Columns {
    /// Its first-level share is the sum of these, each with its width in units.
    pub first: Vec<(usize, f64)>,
    /// Its second-level share, in units.
    pub second: usize,
    /// What it is above its target, if that is asked.
    pub above: Option<usize>,
}

/// What is built.
pub(super) struct Plot<'a> {
    pub problem: &'a Problem,
    pub goal: Goal,
    /// By application; none: free.
    pub first: &'a [Option<Range>],
    pub second: &'a [Option<Range>],
    pub modes: &'a [Mode],
}

impl Built {
    pub fn new(plot: &Plot<'_>) -> Self {
        let problem = plot.problem;
        let sum =
            |servers: &[crate::problem::Server]| servers.iter().map(|server| server.cache.get() as f64).sum::<f64>();
        let together = sum(&problem.level1) + sum(&problem.level2);
        let mut built = Self {
            program: Program::default(),
            columns: Vec::new(),
            unit: together / problem.applications.len() as f64,
            added_second: Vec::new(),
            added_first: Vec::new(),
        };
        let margin = match plot.goal {
            Goal::Speed => Some(built.program.column(-MARGIN_WEIGHT, MARGIN_MAX)),
            _ => None,
        };
        if plot.goal == Goal::Enlarge {
            built.added_first = problem.level1.iter().map(|_| built.program.column(1.0, f64::INFINITY)).collect();
            built.added_second = problem.level2.iter().map(|_| built.program.column(1.0, f64::INFINITY)).collect();
        }
        for application in 0..problem.applications.len() {
            built.add(plot, application, margin);
        }
        built.bound_first_level(problem);
        built
    }

    fn add(&mut self, plot: &Plot<'_>, application: usize, margin: Option<usize>) {
        let problem = plot.problem;
        let member = &problem.applications[application];
        let mode = plot.modes[application];
        let reach = match plot.goal {
            Goal::Enlarge => member.useful(),
            _ => Reach {
                first: problem.level1[member.level1].cache.get() as f64,
                second: problem.reachable(application).get() as f64,
            },
        };
        let terms = terms(problem, application, mode, reach);
        let costs = if matches!(plot.goal, Goal::Speed | Goal::SpeedWithoutSlos) { 1.0 } else { 0.0 };
        let fair = member.fair_latency_ms;
        let mut lowers = Vec::new();
        let mut add = |program: &mut Program, pieces: &[Piece], unit: f64| {
            let mut widths = Vec::new();
            for piece in pieces {
                let column = program.column(-costs * piece.drop_ms / fair, 1.0);
                lowers.push((column, -piece.drop_ms / fair));
                widths.push((column, piece.width / unit));
            }
            widths
        };
        let mut first = add(&mut self.program, &terms.first, self.unit);
        let second = add(&mut self.program, &terms.second, self.unit);
        let both = add(&mut self.program, &terms.both, self.unit);
        let alone = add(&mut self.program, &terms.alone, self.unit);
        let least_first = plot.first[application].map_or(0.0, |(low, _)| low);
        if needs_more_first(&terms, reach, least_first) {
            // Its first level is worth nothing more on its own, and adds to both, or cannot be less at once.
            first.push((self.program.column(0.0, reach.first / self.unit), 1.0));
        }
        let y = self.program.column(0.0, reach.second / self.unit);
        if !alone.is_empty() {
            let chosen = self.choose(&first, &second, &alone);
            // What is useless is as little as it may be.
            let least = plot.second[application].map_or(0.0, |(low, _)| low) / self.unit;
            let most = reach.second / self.unit;
            self.program.at_most(vec![(y, 1.0), (chosen, most - least)], most);
        }
        if !second.is_empty() {
            self.program.at_most(second.into_iter().chain([(y, -1.0)]).collect(), 0.0);
        }
        if !both.is_empty() {
            let of_first = first.iter().map(|(column, width)| (*column, -width));
            self.program.at_most(both.into_iter().chain(of_first).chain([(y, -1.0)]).collect(), 0.0);
        }
        self.limit(&first, plot.first[application]);
        self.limit(&[(y, 1.0)], plot.second[application]);
        let above = (plot.goal == Goal::Relax).then(|| self.program.column(1.0, f64::INFINITY));
        if plot.goal != Goal::SpeedWithoutSlos {
            lowers.extend(above.map(|above| (above, -1.0)));
            lowers.extend(margin.map(|margin| (margin, 1.0)));
            self.program.at_most(lowers, (problem.target_ms(application) - terms.constant_ms) / fair);
        }
        self.columns.push(Columns { first, second: y, above });
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

    fn limit(&mut self, share: &[(usize, f64)], range: Option<Range>) {
        let Some((low, high)) = range else { return };
        if low >= high {
            self.program.exactly(share.to_vec(), high / self.unit);
        } else {
            self.program.at_most(share.to_vec(), high / self.unit);
            if low > 0.0 {
                let negative = share.iter().map(|(column, width)| (*column, -width)).collect();
                self.program.at_most(negative, -low / self.unit);
            }
        }
    }

    fn bound_first_level(&mut self, problem: &Problem) {
        for (server, users) in problem.users().into_iter().enumerate() {
            let added = self.added_first.get(server).map(|added| (*added, -1.0));
            let limit = problem.level1[server].cache.get() as f64 / self.unit;
            let shares = |user: &usize| self.columns[*user].first.clone();
            if planted(Bug::CapacityPerApplication) {
                for user in &users {
                    self.program.at_most(shares(user).into_iter().chain(added).collect(), limit);
                }
            } else if !users.is_empty() {
                self.program.at_most(users.iter().flat_map(shares).chain(added).collect(), limit);
            }
        }
    }

    /// Applications' second-level shares at these values, in whole bytes.
    pub fn second_at(&self, values: &[f64]) -> Vec<Bytes> {
        self.columns.iter().map(|columns| bytes(values[columns.second] * self.unit)).collect()
    }

    /// Applications' first-level shares at these values, in whole bytes.
    pub fn first_at(&self, values: &[f64]) -> Vec<Bytes> {
        let share =
            |columns: &Columns| columns.first.iter().map(|(column, width)| values[*column] * width).sum::<f64>();
        self.columns.iter().map(|columns| bytes(share(columns) * self.unit)).collect()
    }
}

/// Rounded to whole bytes.
pub(super) fn bytes(value: f64) -> Bytes {
    Bytes::new(value.max(0.0).round() as u64)
}

/// Which servers applications reach, for flows.
pub(super) fn network<'a>(problem: &'a Problem, has: &'a [Bytes]) -> Network<'a> {
    Network { has, reach: problem.applications.iter().map(|member| &*member.level2).collect() }
}

fn needs_more_first(terms: &Terms, reach: Reach, least: f64) -> bool {
    let width = |pieces: &[Piece]| pieces.iter().map(|piece| piece.width).sum::<f64>();
    let needed = width(&terms.both).min(reach.first).max(least);
    width(&terms.first) < needed * (1.0 - 1e-9)
}
