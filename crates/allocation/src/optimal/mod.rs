//! The plan of the least Σ latency ÷ fair latency at which every SLO holds.

mod build;
mod cuts;
mod infeasible;
mod terms;

use surgetank_model::Bytes;

use crate::baselines;
use crate::lp::{Failure, Solution};
use crate::placement::Place;
use crate::plan::{Basis, Change, Fallback, Plan, TOLERANCE, amounts_of, overcommitted, verify};
use crate::planted::{Bug, planted};
use crate::problem::{Amount, Estimate, Hierarchy, Problem};

use build::{Built, MARGIN_MAX, MARGIN_WEIGHT, Plot, network};
pub(crate) use build::{Goal, Range};
use terms::Mode;

/// Measured violations in a row after which nobody trusts the models.
const VIOLATIONS_MAX: u32 = 2;

/// A plan that is better by less than this part keeps what is.
const TIE: f64 = 1e-6;

/// Up to so many applications of an inclusive hierarchy the solver chooses for each where its blocks are; beyond it does for
/// those alone for which the first solution leaves it open.
const CHOICES_MAX: usize = 8;

/// Plans both levels for this problem. The previous plan counts where the problem bounds changes, and stays if none is
/// better. Every plan keeps what [`verify`] checks.
///
/// If no plan meets all SLOs the answer is the fair share, with the reason as its basis.
#[must_use]
pub fn solve(problem: &Problem, previous: Option<&Plan>) -> Plan {
    let violated = problem.applications.iter().find(|member| member.violations >= VIOLATIONS_MAX);
    if let Some(member) = violated.filter(|_| !planted(Bug::ViolationsIgnored)) {
        let (application, times) = (member.name.clone(), member.violations);
        return baselines::fallback(problem, Fallback::Violated { application, times });
    }
    let former = previous.map(|plan| plan.amounts(problem)).filter(|_| !planted(Bug::PreviousIgnored));
    let plan = match amounts(problem, former.as_deref()) {
        Ok((amounts, change)) => {
            let best = Plan { change, ..Plan::of(problem, &amounts, Basis::Optimal, Estimate::Split) };
            former.and_then(|former| kept(problem, &former, &best)).unwrap_or(best)
        }
        Err(Failure::Infeasible) => infeasible::explain(problem),
        Err(Failure::Solver(message)) => baselines::fallback(problem, Fallback::Solver(message)),
    };
    debug_assert_eq!(verify(problem, &plan), Ok(()));
    plan
}

/// The best amounts within the change that the problem allows, or without if there are none.
fn amounts(problem: &Problem, former: Option<&[Option<Amount>]>) -> Result<(Vec<Amount>, Change), Failure> {
    if let (Some(change_max), Some(former)) = (problem.change_max, former)
        && !planted(Bug::ChangeUnbounded)
    {
        let (first, second) = ranges(problem, former, change_max);
        match best(problem, Goal::Speed, &first, &second, Some(former)) {
            Err(Failure::Infeasible) => {}
            found => return Ok((found?, Change::Within)),
        }
    }
    let free = vec![None; problem.applications.len()];
    let amounts = best(problem, Goal::Speed, &free, &free, former)?;
    let change = if problem.change_max.is_some() && former.is_some() { Change::Exceeded } else { Change::Within };
    Ok((amounts, change))
}

/// The best amounts with shares within these ranges.
pub(crate) fn best(
    problem: &Problem,
    goal: Goal,
    first: &[Option<Range>],
    second: &[Option<Range>],
    former: Option<&[Option<Amount>]>,
) -> Result<Vec<Amount>, Failure> {
    let (built, solution) = chosen(problem, goal, first, second)?;
    let mut firsts = built.first_at(&solution.values);
    clip(problem, &mut firsts);
    let seconds = built.second_at(&solution.values);
    let has: Vec<Bytes> = problem.level2.iter().map(|server| server.cache).collect();
    let former: Option<Vec<Place>> =
        former.map(|former| former.iter().map(|amount| amount.clone().unwrap_or_default().level2).collect());
    Ok(amounts_of(&firsts, network(problem, &has).place_most(&seconds, former.as_deref())))
}

/// The solution, with the better choice for each application of an inclusive hierarchy.
fn chosen(
    problem: &Problem,
    goal: Goal,
    first: &[Option<Range>],
    second: &[Option<Range>],
) -> Result<(Built, Solution), Failure> {
    let solve = |modes: &[Mode]| {
        let mut built = Built::new(&Plot { problem, goal, first, second, modes });
        let solution = built.minimise(problem)?;
        Ok((built, solution))
    };
    let behind = vec![Mode::Behind; problem.applications.len()];
    let answer = solve(&behind);
    if problem.hierarchy == Hierarchy::Exclusive || planted(Bug::FirstLevelAloneIgnored) {
        return answer;
    }
    let is_open: Vec<bool> = match &answer {
        Ok((built, solution)) if problem.applications.len() > CHOICES_MAX => {
            let (firsts, seconds) = (built.first_at(&solution.values), built.second_at(&solution.values));
            firsts.iter().zip(&seconds).map(|(first, second)| second < first).collect()
        }
        // Without a solution everything is open.
        _ => vec![true; problem.applications.len()],
    };
    if !is_open.contains(&true) {
        return answer;
    }
    let modes: Vec<Mode> = is_open.iter().map(|open| if *open { Mode::Either } else { Mode::Behind }).collect();
    match (solve(&modes), answer) {
        (Ok(chosen), Ok(behind)) => Ok(if chosen.1.cost < behind.1.cost { chosen } else { behind }),
        (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
        (Err(_), Err(failure)) => Err(failure),
    }
}

/// Takes what rounding put on top of a server from the largest shares.
fn clip(problem: &Problem, firsts: &mut [Bytes]) {
    if planted(Bug::CapacityPerApplication) {
        return;
    }
    for (server, users) in problem.users().into_iter().enumerate() {
        let shared: u64 = users.iter().map(|user| firsts[*user].get()).sum();
        let mut over = shared.saturating_sub(problem.level1[server].cache.get());
        while let Some(largest) = users.iter().copied().max_by_key(|user| firsts[*user]).filter(|_| over > 0) {
            let taken = over.min(firsts[largest].get());
            firsts[largest] = Bytes::new(firsts[largest].get() - taken);
            over -= taken;
        }
    }
}

/// What shares may become when each changes by at most a part of what its application can reach of the level.
fn ranges(problem: &Problem, former: &[Option<Amount>], change_max: f64) -> (Vec<Option<Range>>, Vec<Option<Range>>) {
    let range = |amount: Bytes, of: Bytes| {
        let (amount, change) = (amount.get() as f64, change_max * of.get() as f64);
        ((amount - change).max(0.0), (amount + change).min(of.get() as f64))
    };
    let first = |(amount, member): (&Option<Amount>, &crate::problem::Member)| {
        amount.as_ref().map(|amount| range(amount.level1, problem.level1[member.level1].cache))
    };
    let second = |(index, amount): (usize, &Option<Amount>)| {
        amount.as_ref().map(|amount| range(amount.second(), problem.reachable(index)))
    };
    (former.iter().zip(&problem.applications).map(first).collect(), former.iter().enumerate().map(second).collect())
}

/// The former shares as a plan, if they still meet everything and the best ones are not better.
fn kept(problem: &Problem, former: &[Option<Amount>], best: &Plan) -> Option<Plan> {
    let amounts: Vec<Amount> = former.iter().cloned().collect::<Option<_>>()?;
    let plan = Plan::of(problem, &amounts, Basis::Optimal, Estimate::Split);
    let within = |(index, share): (usize, &crate::plan::Share)| {
        share.latency_ms <= problem.target_ms(index) * (1.0 + TOLERANCE) || planted(Bug::BrokenPlanKept)
    };
    let is_good = score(problem, &plan) <= score(problem, best) + TIE * amounts.len() as f64;
    let holds = overcommitted(problem, &amounts).is_none() && plan.shares.iter().enumerate().all(within);
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
