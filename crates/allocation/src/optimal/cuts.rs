//! Which sets of applications want more of the second level than they reach.

use std::collections::BTreeSet;

use surgetank_model::Bytes;

use super::build::{Built, network};
use crate::lp::{Failure, Row, Solution};
use crate::placement::Network;
use crate::planted::{Bug, planted};
use crate::problem::Problem;

/// A row counts as met up to this, in parts of the servers that it is about: solvers are not more exact.
const SLACK: f64 = 1e-7;

/// Sets of which the program knows from the start: those who reach the same servers, or some of them.
const SETS_MAX: usize = 64;

/// Flows are in whole numbers: all servers together have this many grains, so that a grain is far below what solvers resolve.
const GRAINS: f64 = (1_u64 << 50) as f64;

impl Built {
    /// Solves the program such that all second-level shares have a place.
    pub fn minimise(&mut self, problem: &Problem) -> Result<Solution, Failure> {
        let mut program = std::mem::take(&mut self.program);
        let solution = if problem.level2.is_empty() {
            program.minimise(&mut |_| Vec::new())
        } else {
            let has: Vec<Bytes> = (problem.second_segments().iter())
                .map(|segments| Bytes::new(segments.get() * problem.segment))
                .collect();
            let servers = network(problem, &has);
            program.rows.extend(first_sets(&servers).iter().map(|set| self.row(&servers, set)));
            program.minimise(&mut |values| self.overdrawn(&servers, values))
        };
        self.program = program;
        solution
    }

    /// The rows that these values break.
    fn overdrawn(&self, servers: &Network<'_>, values: &[f64]) -> Vec<Row> {
        if planted(Bug::CutsIgnored) {
            return Vec::new();
        }
        let enlarged: Vec<f64> = (0..servers.has.len())
            .map(|server| {
                let parts = self.added_second.get(server).map_or(1.0, |added| 1.0 + values[*added]);
                servers.has[server].get() as f64 * parts
            })
            .collect();
        let grains = GRAINS / enlarged.iter().sum::<f64>();
        let in_grains = |bytes: f64| Bytes::new((bytes * grains) as u64);
        let has: Vec<Bytes> = enlarged.into_iter().map(in_grains).collect();
        let wants: Vec<Bytes> = self.shares(values).into_iter().map(|(_, second)| in_grains(second)).collect();
        let Some((_, cut)) = (Network { has: &has, reach: servers.reach.clone() }).unplaced(&wants) else {
            return Vec::new();
        };
        let mut rows = Vec::new();
        for set in connected(servers, &cut.applications) {
            let row = self.row(servers, &set);
            let drawn: f64 = row.terms.iter().map(|(column, factor)| values[*column] * factor).sum();
            if drawn > row.limit + SLACK {
                rows.push(row);
            }
        }
        rows
    }

    /// A set of applications has at most what the servers have that it reaches: in parts of these.
    fn row(&self, servers: &Network<'_>, set: &[usize]) -> Row {
        let reached = servers.reached_by(set);
        let has = |server: usize| servers.has[server].get() as f64;
        let all: f64 = reached.iter().map(|server| has(*server)).sum();
        let reserved: f64 = set.iter().map(|application| self.columns[*application].reserved.1).sum();
        let added = reached.iter().filter_map(|server| Some((*self.added_second.get(*server)?, -has(*server) / all)));
        let share = |application: &usize| {
            let columns = &self.columns[*application];
            (columns.second, columns.second_unit / all)
        };
        let terms = set.iter().map(share).chain(added).collect();
        Row { terms, exact: false, limit: (1.0 - reserved / all).max(0.0) }
    }
}

/// For each set of servers that some application reaches: who reaches no others. And everybody.
fn first_sets(servers: &Network<'_>) -> Vec<Vec<usize>> {
    let everybody: Vec<usize> = (0..servers.reach.len()).collect();
    let mut sets = BTreeSet::from([everybody.clone()]);
    if !planted(Bug::CutsIgnored) {
        // Who reaches none takes nothing.
        let reaches: BTreeSet<&[usize]> = servers.reach.iter().copied().filter(|reach| !reach.is_empty()).collect();
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
    parts.into_iter().filter(|(reach, _)| !reach.is_empty()).map(|(_, applications)| applications).collect()
}
