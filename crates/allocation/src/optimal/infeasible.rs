//! What would make a problem feasible that is not.

use std::time::Duration;

use surgetank_model::Bytes;

use super::build::{Built, Goal};
use super::chosen;
use crate::baselines;
use crate::lp::{Failure, Solution};
use crate::plan::{Added, Fallback, Infeasible, Level, Plan, Relaxed};
use crate::planted::{Bug, planted};
use crate::problem::{Problem, Slo};

/// What is named is a little more than what it takes, so that it suffices in floating point as well.
const SPARE: f64 = 1e-6;

/// The fair share, with what would have to change for a better answer.
pub(super) fn explain(problem: &Problem) -> Plan {
    let free = vec![None; problem.applications.len()];
    let fallback = match chosen(problem, Goal::Relax, &free, &free) {
        Ok((built, solution)) => {
            let added =
                chosen(problem, Goal::Enlarge, &free, &free).map(|(built, solution)| added(problem, &built, &solution));
            // With the servers the fair share grows, and with it what applications are promised that have bounds above it.
            let suffices = |added: &Vec<Added>| chosen(&problem.enlarged(added), Goal::Speed, &free, &free).is_ok();
            let added = added.ok().filter(|added| suffices(added) || planted(Bug::ShortfallHalved));
            Fallback::Infeasible(Infeasible { relaxed: relaxed(problem, &built, &solution), added })
        }
        Err(Failure::Solver(message)) => Fallback::Solver(message),
        Err(Failure::Infeasible) => Fallback::Solver("its SLOs cannot be relaxed".to_owned()),
    };
    baselines::fallback(problem, fallback)
}

fn half() -> f64 {
    if planted(Bug::ShortfallHalved) { 0.5 } else { 1.0 }
}

fn relaxed(problem: &Problem, built: &Built, solution: &Solution) -> Vec<Relaxed> {
    let one = |(index, columns): (usize, &super::build::Columns)| {
        let member = &problem.applications[index];
        let above = columns.above.map_or(0.0, |above| solution.values[above]) * half();
        let needed_ms = problem.target_ms(index) + above * member.fair_latency_ms;
        let bound_ms = needed_ms / (1.0 - member.margin) * (1.0 + SPARE);
        let feasible = match member.slo {
            Slo::AboveFair(_) => Slo::AboveFair(bound_ms / member.fair_latency_ms - 1.0),
            Slo::Latency(_) => Slo::Latency(Duration::from_secs_f64(bound_ms / 1e3)),
        };
        (above > SPARE).then(|| Relaxed { application: member.name.clone(), slo: member.slo, feasible })
    };
    built.columns.iter().enumerate().filter_map(one).collect()
}

fn added(problem: &Problem, built: &Built, solution: &Solution) -> Vec<Added> {
    let columns = built.added_first.iter().chain(&built.added_second);
    let first = problem.level1.iter().map(|server| (Level::First, server));
    let servers = first.chain(problem.level2.iter().map(|server| (Level::Second, server)));
    let needed = servers.zip(columns).map(|((level, server), column)| {
        let units = solution.values[*column] * half();
        let cache = Bytes::new((units * (1.0 + SPARE) * built.unit).ceil() as u64);
        Added { level, server: server.name.clone(), cache }
    });
    needed.filter(|added| added.cache.get() as f64 > SPARE * built.unit).collect()
}
