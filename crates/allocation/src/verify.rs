//! What every plan promises, checked.

use crate::plan::{Basis, Change, Fallback, Plan, Share, TOLERANCE, change, fair_speedup, overcommitted};
use crate::problem::{Amount, Estimate, Problem, Slo};

/// Which promise a plan breaks: one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(String);

type Kept = Result<(), Broken>;

fn broken(message: impl Into<String>) -> Kept {
    Err(Broken(message.into()))
}

/// Whether two numbers are the same but for rounding. What is no number equals nothing.
fn is_near(said: f64, is: f64) -> bool {
    (said - is).abs() <= is.abs() * TOLERANCE
}

/// Checks what every plan promises: a share for each application of servers that it reaches, no server overcommitted,
/// latencies, bounds and fair speedup that follow from the shares, and every SLO with its margin, unless the plan is the
/// fair share or a baseline.
///
/// A plan of the paper's algorithm has latencies of its own surfaces, and one of shared caches those of no partition: of
/// these it checks what does not depend on them.
///
/// # Errors
/// The first promise that is broken.
pub fn verify(problem: &Problem, plan: &Plan) -> Result<(), Broken> {
    if !plan.shares.iter().map(|share| &*share.application).eq(problem.applications()) {
        return broken("the plan's applications are not those of the problem");
    }
    let Some(amounts) = plan.amounts(problem).into_iter().collect::<Option<Vec<Amount>>>() else {
        return broken("an application has a share of a server that it does not reach");
    };
    overcommitted(problem, &amounts).map_or(Ok(()), |server| broken(format!("{server} is overcommitted")))?;
    for (index, (share, amount)) in plan.shares.iter().zip(&amounts).enumerate() {
        whole_segments(problem, &plan.basis, share, amount)?;
        latencies(problem, &plan.basis, index, share, amount)?;
    }
    if !is_near(plan.fair_speedup, fair_speedup(&plan.shares)) {
        return broken("the fair speedup does not follow from the latencies");
    }
    Ok(())
}

fn is_whole(problem: &Problem, amount: &Amount) -> bool {
    let second = amount.level2.iter().map(|(_, bytes)| *bytes);
    second.chain([amount.level1]).all(|bytes| bytes.get().is_multiple_of(problem.segment))
}

/// Shares are whole segments where something depends on it: plans that are to be enforced.
fn whole_segments(problem: &Problem, basis: &Basis, share: &Share, amount: &Amount) -> Kept {
    if is_whole(problem, amount) || !matches!(basis, Basis::Optimal | Basis::FairShare(_)) {
        return Ok(());
    }
    broken(format!("{}'s shares are no whole segments of {} B", share.application, problem.segment))
}

fn latencies(problem: &Problem, basis: &Basis, index: usize, share: &Share, amount: &Amount) -> Kept {
    let (name, member) = (&share.application, &problem.applications[index]);
    let (first, second) = (amount.level1.get() as f64, amount.second().get() as f64);
    let expected_ms = match basis {
        Basis::Optimal => problem.planned_ms(index, first, second),
        Basis::FairShare(_) => problem.latency_ms(index, first, second, Estimate::Whole),
        Basis::Mlms | Basis::Baseline => share.latency_ms,
    };
    let (fair_ms, bound_ms) = match (basis, member.slo) {
        (Basis::Mlms, Slo::AboveFair(slo)) => (share.fair_latency_ms, (1.0 + slo) * share.fair_latency_ms),
        (Basis::Mlms, Slo::Latency(_)) => (share.fair_latency_ms, problem.bound_ms(index)),
        _ => (member.fair_latency_ms, problem.bound_ms(index)),
    };
    if !(share.latency_ms > 0.0 && is_near(share.latency_ms, expected_ms)) {
        return broken(format!("{name} is said to take {} ms, and would take {expected_ms} ms", share.latency_ms));
    }
    if !(share.fair_latency_ms > 0.0 && is_near(share.fair_latency_ms, fair_ms)) {
        return broken(format!("{name}'s latency with its fair share is {fair_ms} ms, not {}", share.fair_latency_ms));
    }
    if !is_near(share.bound_ms, bound_ms) {
        return broken(format!("{name}'s bound is {bound_ms} ms, not {}", share.bound_ms));
    }
    if share.slo_met != (share.latency_ms <= share.bound_ms * (1.0 + TOLERANCE)) {
        return broken(format!("whether {name} is within its bound is wrong"));
    }
    let target_ms = match basis {
        Basis::Optimal => problem.target_ms(index),
        Basis::Mlms => bound_ms,
        Basis::FairShare(_) if *amount != member.fair => return broken(format!("{name} does not have its fair share")),
        Basis::FairShare(_) | Basis::Baseline => return Ok(()),
    };
    if *basis == Basis::Optimal && !has_what_it_keeps(problem, index, amount) {
        return broken(format!("{name} has less than its fair share, and too little is known of it for that"));
    }
    if share.latency_ms <= target_ms * (1.0 + TOLERANCE) {
        return Ok(());
    }
    broken(format!("{name} takes {} ms, and may take {target_ms} ms", share.latency_ms))
}

/// Whether an application that keeps its fair share of both levels has that.
fn has_what_it_keeps(problem: &Problem, index: usize, amount: &Amount) -> bool {
    let fair = &problem.applications[index].fair;
    !problem.keeps_fair(index) || amount.level1 >= fair.level1 && amount.second() >= fair.second()
}

/// Whether these shares are whole segments that fit and meet all targets, by what a plan counts on.
pub(crate) fn meets_targets(problem: &Problem, amounts: &[Amount]) -> bool {
    let meets = |(index, amount): (usize, &Amount)| {
        let latency_ms = problem.planned_ms(index, amount.level1.get() as f64, amount.second().get() as f64);
        has_what_it_keeps(problem, index, amount) && latency_ms <= problem.target_ms(index) * (1.0 + TOLERANCE)
    };
    amounts.iter().all(|amount| is_whole(problem, amount))
        && overcommitted(problem, amounts).is_none()
        && amounts.iter().enumerate().all(meets)
}

/// Checks that no application's share of a level has changed by more than the problem allows, or that the plan says so and has
/// a reason: the previous plan does not meet all targets either, or the scheme does not bound changes.
///
/// # Errors
/// Saying what is wrong.
pub fn verify_change(problem: &Problem, previous: &Plan, plan: &Plan) -> Result<(), Broken> {
    let former = previous.amounts(problem);
    let Some(now) = plan.amounts(problem).into_iter().collect::<Option<Vec<Amount>>>() else {
        return broken("an application has a share of a server that it does not reach");
    };
    let is = change(problem, Some(&former), &now);
    if plan.change != is {
        return broken(format!("the change is said to be {:?}, and is {is:?}", plan.change));
    }
    let is_bounded = matches!(plan.basis, Basis::Optimal | Basis::FairShare(Fallback::Infeasible(_)));
    let before = former.into_iter().collect::<Option<Vec<Amount>>>();
    if is == Change::Exceeded && is_bounded && before.is_some_and(|before| meets_targets(problem, &before)) {
        return broken("shares change by more than the problem allows, and the previous ones meet all SLOs");
    }
    Ok(())
}
