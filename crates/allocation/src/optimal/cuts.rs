//! Which sets of applications want more of the second level than they reach.

use std::collections::BTreeSet;

use surgetank_model::Bytes;

use super::build::{Built, network};
use crate::lp::{Failure, Row, Solution};
use crate::placement::Network;
use crate::planted::{Bug, planted};
use crate::problem::Problem;

/// What applications may want too much, in units: what rounding does.
const SLACK: f64 = 1e-7;

/// Sets of which the program knows from the start: those who reach the same servers, or some of them.
const SETS_MAX: usize = 64;

impl Built {
    /// Solves the program such that all second-level shares have a place.
    pub fn minimise(&mut self, problem: &Problem) -> Result<Solution, Failure> {
        let has: Vec<Bytes> = problem.level2.iter().map(|server| server.cache).collect();
        let servers = network(problem, &has);
        for set in first_sets(&servers) {
            let row = self.row(&servers, &set);
            self.program.rows.push(row);
        }
        let mut program = std::mem::take(&mut self.program);
        let solution = program.minimise(&mut |values| self.overdrawn(&servers, values));
        self.program = program;
        solution
    }

    /// The rows that these values break.
    fn overdrawn(&self, servers: &Network<'_>, values: &[f64]) -> Vec<Row> {
        if planted(Bug::CutsIgnored) {
            return Vec::new();
        }
        let enlarged: Vec<Bytes> = (0..servers.has.len())
            .map(|server| {
                let added = self.added_second.get(server).map_or(0.0, |added| values[*added] * self.unit);
                Bytes::new(servers.has[server].get() + added.round() as u64)
            })
            .collect();
        let wants = self.second_at(values);
        let Some((_, cut)) = (Network { has: &enlarged, reach: servers.reach.clone() }).unplaced(&wants) else {
            return Vec::new();
        };
        let mut rows = Vec::new();
        for set in connected(servers, &cut.applications) {
            let row = self.row(servers, &set);
            let drawn: f64 = row.terms.iter().map(|(column, factor)| values[*column] * factor).sum();
            if drawn > row.limit + SLACK * (1.0 + row.limit) {
                rows.push(row);
            }
        }
        rows
    }

    fn row(&self, servers: &Network<'_>, set: &[usize]) -> Row {
        let reached = servers.reached_by(set);
        let limit = reached.iter().map(|server| servers.has[*server].get() as f64).sum::<f64>() / self.unit;
        let added = reached.iter().filter_map(|server| self.added_second.get(*server)).map(|added| (*added, -1.0));
        let terms = set.iter().map(|application| (self.columns[*application].second, 1.0)).chain(added).collect();
        Row { terms, exact: false, limit }
    }
}

/// For each set of servers that some application reaches: who reaches no others. And everybody.
fn first_sets(servers: &Network<'_>) -> Vec<Vec<usize>> {
    let everybody: Vec<usize> = (0..servers.reach.len()).collect();
    let mut sets = BTreeSet::from([everybody.clone()]);
    if !planted(Bug::CutsIgnored) {
        let reaches: BTreeSet<&[usize]> = servers.reach.iter().copied().collect();
        for reach in reaches.into_iter().take(SETS_MAX) {
            let inside = |i: &usize| servers.reach[*i].iter().all(|server| reach.binary_search(server).is_ok());
            sets.insert(everybody.iter().copied().filter(inside).collect());
        }
    }
    sets.into_iter().collect()
}

/// The parts of a set that share no server.
fn connected(servers: &Network<'_>, set: &[usize]) -> Vec<Vec<usize>> {
    let mut parts: Vec<(BTreeSet<usize>, Vec<usize>)> = Vec::new();
    for &application in set {
        let mut joined = (servers.reach[application].iter().copied().collect::<BTreeSet<usize>>(), vec![application]);
        let (touched, others) = parts.into_iter().partition(|(reach, _)| !reach.is_disjoint(&joined.0));
        parts = others;
        for (reach, applications) in Vec::<(BTreeSet<usize>, Vec<usize>)>::from_iter(touched) {
            joined.0.extend(reach);
            joined.1.extend(applications);
        }
        parts.push(joined);
    }
    parts.into_iter().map(|(_, applications)| applications).collect()
}
