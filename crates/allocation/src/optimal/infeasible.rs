//! What would make a problem feasible that is not.

use surgetank_model::Bytes;

use super::build::{Built, Goal, Request};
use super::choose::chosen;
use crate::baselines;
use crate::lp::{Failure, Solution};
use crate::plan::{Added, Fallback, Infeasible, Level, Plan, Relaxed, duration_of};
use crate::planted::{Bug, planted};
use crate::problem::{Estimate, Problem, Slo};

/// What is named is a little more than what it takes, so that it suffices in floating point as well.
const SPARE: f64 = 1e-6;

/// The fair share, with what would have to change for a better answer.
pub(super) fn explain(problem: &Problem) -> Plan {
    let infeasible = if problem.applications.iter().all(|member| member.estimate == Estimate::Split) {
        let relaxed = asked(problem, Goal::Relax).map(|(built, solution)| relaxed(problem, &built, &solution));
        let relaxed = relaxed.ok().filter(|relaxed| !relaxed.is_empty());
        Infeasible { relaxed: relaxed.unwrap_or_else(|| relaxed_to_fair(problem)), added: added(problem) }
    } else {
        // By their hulls programs promise more than curves hold. The fair share is judged by curves.
        Infeasible { relaxed: relaxed_to_fair(problem), added: None }
    };
    baselines::fallback(problem, Fallback::Infeasible(infeasible))
}

/// A program of which whole segments keep what it says.
fn asked(problem: &Problem, goal: Goal) -> Result<(Built, Solution), Failure> {
    let (first, second) = super::free(problem);
    chosen(&Request { problem, goal, first: &first, second: &second, former: None, is_reserved: true })
}

fn half() -> f64 {
    if planted(Bug::ShortfallHalved) { 0.5 } else { 1.0 }
}

/// The SLOs of those that are above their targets: all that are so by more than rounding, or else the one that is most.
fn relaxed(problem: &Problem, built: &Built, solution: &Solution) -> Vec<Relaxed> {
    let above: Vec<f64> =
        built.columns.iter().map(|columns| columns.above.map_or(0.0, |above| solution.values[above])).collect();
    let most = above.iter().copied().fold(0.0, f64::max);
    let named = above.iter().enumerate().filter(|(_, above)| **above > SPARE.min(most * 0.999));
    let one = |(index, above): (usize, &f64)| {
        let member = &problem.applications[index];
        relaxed_slo(problem, index, problem.target_ms(index) + above * half() * member.fair_latency_ms)
    };
    named.map(one).collect()
}

/// The SLOs that the fair share breaks, and those that it meets: it suffices that it is the answer then.
fn relaxed_to_fair(problem: &Problem) -> Vec<Relaxed> {
    let plan = baselines::fair_share(problem);
    let broken = plan.shares.iter().enumerate().filter(|(index, share)| share.latency_ms > problem.target_ms(*index));
    broken.map(|(index, share)| relaxed_slo(problem, index, share.latency_ms)).collect()
}

/// The SLO of which the target is this latency.
fn relaxed_slo(problem: &Problem, index: usize, target_ms: f64) -> Relaxed {
    let member = &problem.applications[index];
    let bound_ms = target_ms / (1.0 - member.margin) * (1.0 + SPARE);
    let feasible = match member.slo {
        Slo::AboveFair(_) => Slo::AboveFair(bound_ms / member.fair_latency_ms - 1.0),
        Slo::Latency(_) => Slo::Latency(duration_of(bound_ms)),
    };
    Relaxed { application: member.name.clone(), slo: member.slo, feasible }
}

/// The least cache with which the problem is feasible. With the servers the fair share grows, and with it what applications are
/// promised that have bounds above it, so that this is tried.
fn added(problem: &Problem) -> Option<Vec<Added>> {
    let (built, solution) = asked(problem, Goal::Enlarge).ok()?;
    let columns = built.added_first.iter().chain(&built.added_second);
    let first = problem.level1.iter().map(|server| (Level::First, server));
    let servers = first.chain(problem.level2.iter().map(|server| (Level::Second, server)));
    let mut added = Vec::new();
    for ((level, server), column) in servers.zip(columns) {
        let parts = solution.values[*column] * half();
        if parts <= SPARE {
            continue;
        }
        let bytes = parts * (1.0 + SPARE) * server.cache.get() as f64 + problem.segment as f64;
        if bytes >= crate::problem::CACHE_MAX.get() as f64 {
            return None;
        }
        added.push(Added { level, server: server.name.clone(), cache: Bytes::new(bytes.ceil() as u64) });
    }
    let suffices = || problem.enlarged(&added).is_some_and(|problem| super::is_feasible(&problem));
    (!added.is_empty() && (planted(Bug::ShortfallHalved) || suffices())).then_some(added)
}
