//! Schemes to compare with. Their plans have [`Basis::Baseline`] and promise nothing.

use surgetank_model::Bytes;

use crate::optimal::{Range, fastest};
use crate::plan::{Basis, Fallback, Plan};
use crate::problem::{Amount, Estimate, Model, Problem};
use crate::shared::{Footprint, share_first, share_second};

/// An equal split of each server among those who use it.
#[must_use]
pub fn fair_share(problem: &Problem) -> Plan {
    of_fair(problem, Basis::Baseline)
}

/// The fair share as an answer, with the reason why there is no better one.
pub(crate) fn fallback(problem: &Problem, fallback: Fallback) -> Plan {
    of_fair(problem, Basis::FairShare(fallback))
}

fn of_fair(problem: &Problem, basis: Basis) -> Plan {
    let amounts: Vec<Amount> = problem.applications.iter().map(|member| member.fair.clone()).collect();
    Plan::of(problem, &amounts, basis, Estimate::Whole)
}

/// Each application as if it was alone: a bound on what any scheme can do. Servers are overcommitted.
#[must_use]
pub fn independent(problem: &Problem) -> Plan {
    let alone = problem.applications.iter().map(|member| Amount {
        level1: problem.level1[member.level1].cache,
        level2: member.level2.iter().map(|server| (*server, problem.level2[*server].cache)).collect(),
    });
    Plan::of(problem, &alone.collect::<Vec<_>>(), Basis::Baseline, Estimate::Whole)
}

/// An application whose latency is a surface says nothing of how it behaves in a shared cache.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("application {0} has no miss-ratio curve: what it does in a shared cache cannot be said")]
pub struct NoCurve(pub String);

/// Nobody has a share of his own: each server's cache is one LRU list.
///
/// # Errors
/// If an application has no curve.
pub fn uncontrolled(problem: &Problem) -> Result<Plan, NoCurve> {
    let footprints = footprints(problem)?;
    let firsts = share_first(problem, &footprints);
    Ok(with_shared_second(problem, &footprints, &firsts))
}

/// The first level is divided by miss-ratio curves, as if there was no second one, which is one LRU list a server.
///
/// # Errors
/// If an application has no curve.
pub fn first_level_only(problem: &Problem) -> Result<Plan, NoCurve> {
    let footprints = footprints(problem)?;
    let free: Vec<Option<Range>> = vec![None; footprints.len()];
    let nothing = vec![Some((0.0, 0.0)); footprints.len()];
    let Ok(amounts) = fastest(problem, &free, &nothing) else {
        return Ok(fair_share(problem));
    };
    let firsts: Vec<f64> = amounts.iter().map(|amount| amount.level1.get() as f64).collect();
    Ok(with_shared_second(problem, &footprints, &firsts))
}

/// The first level is one LRU list a server; the second one is divided by miss-ratio curves.
///
/// # Errors
/// If an application has no curve.
pub fn second_level_only(problem: &Problem) -> Result<Plan, NoCurve> {
    let footprints = footprints(problem)?;
    let firsts = share_first(problem, &footprints);
    let fixed = |(first, footprint): (&f64, &Footprint)| {
        let useful = first.floor().min(footprint.end());
        Some((useful, useful))
    };
    let ranges: Vec<Option<Range>> = firsts.iter().zip(&footprints).map(fixed).collect();
    let free = vec![None; firsts.len()];
    let Ok(mut amounts) = fastest(problem, &ranges, &free) else {
        return Ok(fair_share(problem));
    };
    for (amount, first) in amounts.iter_mut().zip(&firsts) {
        amount.level1 = Bytes::new(*first as u64);
    }
    Ok(Plan::of(problem, &amounts, Basis::Baseline, Estimate::Whole))
}

fn footprints(problem: &Problem) -> Result<Vec<Footprint>, NoCurve> {
    let of = |member: &crate::problem::Member| match &member.model {
        Model::Curve(curve) => Ok(Footprint::of(curve, member.accesses_per_s)),
        Model::Surface(_) => Err(NoCurve(member.name.clone())),
    };
    problem.applications.iter().map(of).collect()
}

fn with_shared_second(problem: &Problem, footprints: &[Footprint], firsts: &[f64]) -> Plan {
    let (seconds, behind_both) = share_second(problem, footprints, firsts);
    let amounts: Vec<Amount> = firsts
        .iter()
        .zip(seconds)
        .map(|(first, second)| Amount {
            level1: Bytes::new(*first as u64),
            level2: second.into_iter().map(|(server, bytes)| (server, Bytes::new(bytes as u64))).collect(),
        })
        .collect();
    let latency = |index: usize| {
        let [level1, level2, disk] = problem.applications[index].latencies_ms;
        level1 + (level2 - level1) * footprints[index].misses(firsts[index]) + (disk - level2) * behind_both[index]
    };
    Plan::with_latencies(problem, &amounts, (0..amounts.len()).map(latency), Basis::Baseline)
}
