//! The plan of the least Σ latency ÷ fair latency at which every SLO holds.

mod build;
mod choose;
mod cuts;
mod exchange;
mod infeasible;
mod round;
mod terms;

use crate::baselines;
use crate::lp::Failure;
use crate::plan::{Change, Fallback, Plan, change};
use crate::planted::{Bug, planted};
use crate::problem::{Amount, Estimate, Problem};
use crate::verify::{meets_targets, verify};

pub(crate) use build::{Goal, Range};
use build::{MARGIN_MAX, MARGIN_WEIGHT, Request};
use choose::chosen;
use round::{exchanged, rounded};

/// Measured violations in a row after which nobody trusts the models.
const VIOLATIONS_MAX: u32 = 2;

/// A plan that is better by less than this an application keeps what is.
const TIE: f64 = 1e-6;

/// A plan in whole segments that costs more than the program says, by more than this an application, is not the only one that
/// is tried.
const ROUNDING_COST: f64 = 1e-6;

/// Plans both levels for this problem. The previous plan counts where the problem bounds changes, and stays if none is
/// better. Every plan keeps what [`verify`] checks.
///
/// If no plan meets all SLOs the answer is the fair share, with the reason as its basis.
#[must_use]
pub fn solve(problem: &Problem, previous: Option<&Plan>) -> Plan {
    let former = previous.map(|plan| plan.amounts(problem));
    let plan = kept_promises(problem, former.as_deref(), planned(problem, former.as_deref()));
    let amounts: Vec<Amount> = plan.amounts(problem).into_iter().map(Option::unwrap_or_default).collect();
    let change = change(problem, former.as_deref(), &amounts);
    Plan { change: if planted(Bug::ChangeUnsaid) { Change::Within } else { change }, ..plan }
}

/// This plan, or, if it breaks a promise, the first that breaks none: the previous one, the fair share by the same promises, and
/// the fair share that says what is wrong.
fn kept_promises(problem: &Problem, former: Option<&[Option<Amount>]>, plan: Plan) -> Plan {
    let Err(broken) = verify(problem, &plan) else { return plan };
    let others = [former.and_then(complete), Some(fair(problem))];
    let others = others.into_iter().flatten().map(|amounts| Plan::planned(problem, &amounts));
    let kept = others.into_iter().find(|other| verify(problem, other).is_ok());
    kept.unwrap_or_else(|| baselines::fallback(problem, Fallback::Solver(broken.to_string())))
}

/// Whether a problem has a plan that meets all SLOs, without what would help if it has none.
fn is_feasible(problem: &Problem) -> bool {
    found(problem, None).is_ok()
}

fn fair(problem: &Problem) -> Vec<Amount> {
    problem.applications.iter().map(|member| member.fair.clone()).collect()
}

/// The amounts, if every application has one.
fn complete(former: &[Option<Amount>]) -> Option<Vec<Amount>> {
    former.iter().cloned().collect()
}

fn planned(problem: &Problem, former: Option<&[Option<Amount>]>) -> Plan {
    let violated = problem.applications.iter().find(|member| member.violations >= VIOLATIONS_MAX);
    if let Some(member) = violated.filter(|_| !planted(Bug::ViolationsIgnored)) {
        let (application, times) = (member.name.clone(), member.violations);
        return baselines::fallback(problem, Fallback::Violated { application, times });
    }
    match found(problem, former.filter(|_| !planted(Bug::PreviousIgnored))) {
        Ok(plan) => plan,
        Err(Failure::Solver(message)) => baselines::fallback(problem, Fallback::Solver(message)),
        Err(Failure::Infeasible) => infeasible::explain(problem),
    }
}

/// The best plan that meets all SLOs: within the change that the problem allows, or else any.
fn found(problem: &Problem, former: Option<&[Option<Amount>]>) -> Result<Plan, Failure> {
    let bound = problem.change_max.zip(former).filter(|_| !planted(Bug::ChangeUnbounded));
    let bounded = bound.map(|(change_max, former)| (true, ranges(problem, former, change_max)));
    let mut failure = None;
    for (is_bounded, (first, second)) in bounded.into_iter().chain([(false, free(problem))]) {
        let request =
            Request { problem, goal: Goal::Speed, first: &first, second: &second, former, is_reserved: false };
        let mut candidates = Vec::new();
        failure = tried(&request, is_bounded, &mut candidates).err().or(failure);
        // What the solver says is not all there is: the fair share meets every bound that is above it.
        candidates.push(fair(problem));
        if is_bounded {
            candidates.retain(|amounts| change(problem, former, amounts) == Change::Within);
        }
        let plans = candidates.into_iter().filter(|amounts| meets_targets(problem, amounts));
        let plans = plans.map(|amounts| Plan::planned(problem, &amounts));
        let best = plans.min_by(|a, b| score(problem, a).total_cmp(&score(problem, b)));
        let kept = former.and_then(|former| kept(problem, former, best.as_ref(), is_bounded));
        if let Some(plan) = kept.or(best) {
            return Ok(plan);
        }
    }
    Err(failure.unwrap_or(Failure::Infeasible))
}

/// Adds the shares of programs to the candidates: of the program as it is, and if in whole segments these break an SLO or cost more
/// than the program says, of the one that reserves what rounding takes.
fn tried(request: &Request<'_>, is_bounded: bool, candidates: &mut Vec<Vec<Amount>>) -> Result<(), Failure> {
    let problem = request.problem;
    let (built, solution) = match chosen(request) {
        Ok(found) => found,
        Err(failure) => {
            // By its line a program knows an application with a queue as slower than it is.
            if !is_bounded && problem.applications.iter().any(|member| member.queue.is_some()) {
                candidates.extend(exchanged(request));
            }
            return Err(failure);
        }
    };
    let is_moved = problem.applications.iter().any(|member| member.estimate == Estimate::Whole);
    candidates.push(rounded(request, &built, &solution, false));
    if is_moved {
        candidates.push(rounded(request, &built, &solution, true));
    }
    let most = built.constant + solution.cost + ROUNDING_COST * problem.applications.len() as f64;
    let is_as_said = |amounts: &Vec<Amount>| {
        meets_targets(problem, amounts) && score(problem, &Plan::planned(problem, amounts)) <= most
    };
    if candidates.iter().any(is_as_said) {
        return Ok(());
    }
    if !is_bounded {
        candidates.extend(exchanged(request));
    }
    let reserved = Request { is_reserved: true, ..*request };
    if let Ok((built, solution)) = chosen(&reserved) {
        candidates.push(rounded(&reserved, &built, &solution, false));
        if is_moved {
            candidates.push(rounded(&reserved, &built, &solution, true));
        }
    }
    Ok(())
}

/// The best amounts with shares within these ranges, without SLOs.
pub(crate) fn fastest(
    problem: &Problem,
    first: &[Option<Range>],
    second: &[Option<Range>],
) -> Result<Vec<Amount>, Failure> {
    let request = Request { problem, goal: Goal::SpeedWithoutSlos, first, second, former: None, is_reserved: false };
    let (built, solution) = chosen(&request)?;
    Ok(rounded(&request, &built, &solution, false))
}

/// Ranges of both levels, by application.
type Ranges = (Vec<Option<Range>>, Vec<Option<Range>>);

/// What shares may be: anything up to what caches can have, and no less than fair shares for applications that keep those.
fn free(problem: &Problem) -> Ranges {
    let of = |index: usize| {
        let member = &problem.applications[index];
        let is_kept = problem.keeps_fair(index) && !planted(Bug::UnknownShrinks);
        let all = [problem.first_cache(member.level1), problem.reachable(index)].map(|all| all.get() as f64);
        let fair = [member.fair.level1, member.fair.second()].map(|fair| fair.get() as f64);
        let range = |level: usize| {
            let most = member.most.map(|most| most[level].get() as f64).filter(|most| *most < all[level]);
            let low = if is_kept { fair[level] } else { 0.0 };
            (is_kept || most.is_some()).then(|| (low, most.unwrap_or(all[level]).max(low)))
        };
        (range(0), range(1))
    };
    (0..problem.applications.len()).map(of).unzip()
}

/// What shares may become when each changes by at most a part of what its application can reach of the level.
fn ranges(problem: &Problem, former: &[Option<Amount>], change_max: f64) -> Ranges {
    let range = |amount: surgetank_model::Bytes, of: surgetank_model::Bytes| {
        let (amount, of) = (amount.get() as f64, of.get() as f64);
        // A server may have become smaller than the share.
        let (low, high) = ((amount - change_max * of).clamp(0.0, of), (amount + change_max * of).clamp(0.0, of));
        (low, high)
    };
    let first = |(amount, member): (&Option<Amount>, &crate::problem::Member)| {
        amount.as_ref().map(|amount| range(amount.level1, problem.first_cache(member.level1)))
    };
    let second = |(index, amount): (usize, &Option<Amount>)| {
        amount.as_ref().map(|amount| range(amount.second(), problem.reachable(index)))
    };
    let both = |bounded: Option<Range>, free: Option<Range>| match (bounded, free) {
        (Some((low, high)), Some((least, most))) => {
            let high = high.min(most.max(low));
            Some((low.max(least).min(high), high))
        }
        (bounded, free) => bounded.or(free),
    };
    let (free_first, free_second) = free(problem);
    let first = former.iter().zip(&problem.applications).map(first).zip(free_first);
    let second = former.iter().enumerate().map(second).zip(free_second);
    (first.map(|(one, other)| both(one, other)).collect(), second.map(|(one, other)| both(one, other)).collect())
}

/// The former shares as a plan, if they still meet everything and the best ones are not better. Where changes are bounded each
/// step is small, and so is what it has to gain.
fn kept(problem: &Problem, former: &[Option<Amount>], best: Option<&Plan>, is_bounded: bool) -> Option<Plan> {
    let amounts = complete(former)?;
    let plan = Plan::planned(problem, &amounts);
    let change_max = problem.change_max.filter(|_| is_bounded).unwrap_or(1.0);
    let tie = TIE * amounts.len() as f64 * change_max;
    let is_good = best.is_none_or(|best| score(problem, &plan) <= score(problem, best) + tie);
    let holds = meets_targets(problem, &amounts) || planted(Bug::BrokenPlanKept);
    (holds && (is_good || planted(Bug::WorsePlanKept))).then_some(plan)
}

/// What the program minimises.
fn score(problem: &Problem, plan: &Plan) -> f64 {
    let margin = |(index, share): (usize, &crate::plan::Share)| {
        (problem.target_ms(index) - share.latency_ms) / share.fair_latency_ms
    };
    let least = plan.shares.iter().enumerate().map(margin).fold(MARGIN_MAX, f64::min);
    plan.shares.len() as f64 / plan.fair_speedup - MARGIN_WEIGHT * least
}
