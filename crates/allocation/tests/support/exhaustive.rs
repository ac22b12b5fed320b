//! All shares in whole grains, tried one after the other.

use surgetank_allocation::{Basis, Description, Estimate, solve};
use surgetank_model::random::Random;

use super::exact::{Question, exact};
use super::{GRAIN, SMALL, description, ensure, naive, problem, with_absolute_bounds};

/// Costs of the best shares in whole grains: without SLOs, and with them if any meet them.
struct Best {
    unbound: f64,
    bound: Option<f64>,
}

/// Costs of one application by its shares in grains, and whether its SLO holds.
type Costs = Vec<Vec<(f64, bool)>>;

fn costs(description: &Description, of: usize) -> Costs {
    let application = &description.applications[of];
    let first_max = naive::cache(&description.level1, &application.level1) / GRAIN.get();
    let second_max = description.level2.iter().map(|server| server.cache.get()).sum::<u64>() / GRAIN.get();
    let fair_ms = naive::fair_latency_ms(description, of);
    let target_ms = naive::bound_ms(description, of) * (1.0 - application.margin);
    let at = |first: u64, second: u64| {
        let [first, second] = [first, second].map(|grains| (grains * GRAIN.get()) as f64);
        let latency_ms = naive::latency_ms(description, of, first, second, application.estimate == Estimate::Split);
        (latency_ms / fair_ms, latency_ms <= target_ms)
    };
    (0..=first_max).map(|first| (0..=second_max).map(|second| at(first, second)).collect()).collect()
}

/// All first-level shares that fit and leave nothing: more never harms.
fn firsts(description: &Description, chosen: &[u64], all: &mut Vec<Vec<u64>>) {
    let of = chosen.len();
    let Some(application) = description.applications.get(of) else {
        return all.push(chosen.to_vec());
    };
    let uses = |other: &usize| description.applications[*other].level1 == application.level1;
    let used: u64 = (0..of).filter(uses).map(|other| chosen[other]).sum();
    let left = naive::cache(&description.level1, &application.level1) / GRAIN.get() - used;
    let is_last = !(of + 1..description.applications.len()).any(|other| uses(&other));
    for first in if is_last { left } else { 0 }..=left {
        firsts(description, &[chosen, &[first]].concat(), all);
    }
}

/// All second-level shares that have a place and leave nothing.
fn seconds(description: &Description, reach: &[Vec<String>], chosen: &[u64], all: &mut Vec<Vec<u64>>) {
    if chosen.len() == reach.len() {
        return all.push(chosen.to_vec());
    }
    let fits = |shares: &Vec<u64>| {
        let wants: Vec<u64> = shares.iter().map(|grains| grains * GRAIN.get()).collect();
        naive::has_place(&description.level2, &reach[..wants.len()], &wants)
    };
    let fitting: Vec<Vec<u64>> = (0..).map(|second| [chosen, &[second]].concat()).take_while(fits).collect();
    let is_last = chosen.len() + 1 == reach.len();
    for shares in &fitting[if is_last { fitting.len() - 1 } else { 0 }..] {
        seconds(description, reach, shares, all);
    }
}

fn best(description: &Description) -> Best {
    let costs: Vec<Costs> = (0..description.applications.len()).map(|of| costs(description, of)).collect();
    let reach: Vec<Vec<String>> =
        description.applications.iter().map(|application| application.level2.clone()).collect();
    let (mut all_firsts, mut all_seconds) = (Vec::new(), Vec::new());
    firsts(description, &[], &mut all_firsts);
    seconds(description, &reach, &[], &mut all_seconds);
    let mut best = Best { unbound: f64::INFINITY, bound: None };
    for firsts in &all_firsts {
        for seconds in &all_seconds {
            let (mut cost, mut is_met) = (0.0, true);
            for (costs, (first, second)) in costs.iter().zip(firsts.iter().zip(seconds)) {
                let (more, holds) = costs[*first as usize][*second as usize];
                cost += more;
                is_met &= holds;
            }
            best.unbound = best.unbound.min(cost);
            if is_met {
                best.bound = Some(best.bound.unwrap_or(f64::INFINITY).min(cost));
            }
        }
    }
    best
}

/// What the search found, and whether no SLO was in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Unbound,
    Bound,
    Infeasible,
}

/// The best plan costs no more than any shares in whole grains; and as much, if no SLO is in the way, for then points of curves
/// are where the optimum is. Where an SLO is in the way the optimum lies between grains, and the program on paper says what it
/// costs: the plan costs as much in both cases.
pub fn compare(seed: u64) -> Result<Kind, String> {
    let random = &mut Random::from_seed(seed);
    let mut description = description(random, SMALL);
    if random.chance(0.2) {
        description = with_absolute_bounds(description, 0.8 + 0.4 * random.unit());
    }
    let plan = solve(&problem(&description)?, None);
    naive::check(&description, &plan)?;
    let best = best(&description);
    let cost = plan.shares.len() as f64 / plan.fair_speedup;
    if plan.infeasible().is_some() {
        return match best.bound {
            None => Ok(Kind::Infeasible),
            Some(found) => Err(format!("it is said to be infeasible, and {found} was found")),
        };
    }
    ensure(plan.basis == surgetank_allocation::Basis::Optimal, || format!("it is {:?}", plan.basis))?;
    if let Some(found) = best.bound {
        ensure(cost <= found * (1.0 + 1e-4), || format!("it costs {cost}, and {found} was found"))?;
    }
    let least = exact(&description, Question::Cost).ok_or("a plan was found where there is none")?;
    ensure((cost - least).abs() <= 1e-4 * least, || format!("it costs {cost}, and the least is {least}"))?;
    let is_consistent = best.bound.is_none_or(|found| least <= found * (1.0 + 1e-6));
    ensure(is_consistent, || format!("{:?} was found, less than the least: {least}", best.bound))?;
    let is_unbound = best.bound.is_some_and(|bound| bound <= best.unbound);
    ensure(!is_unbound || cost >= best.unbound * 0.999, || format!("it costs {cost}, less than {}", best.unbound))?;
    Ok(if is_unbound { Kind::Unbound } else { Kind::Bound })
}

/// A problem has a plan if, and only if, the program on paper has a solution. Where that depends on rounding both will do.
pub fn decide(seed: u64) -> Result<(), String> {
    let random = &mut Random::from_seed(seed);
    let mut description = description(random, SMALL);
    if random.chance(0.5) {
        description = with_absolute_bounds(description, 0.7 + 0.4 * random.unit());
    }
    let plan = solve(&problem(&description)?, None);
    naive::check(&description, &plan)?;
    let is_feasible = match (exact(&description, Question::Within(1.0 - 3e-6)), plan.infeasible()) {
        (Some(_), None) => return Ok(()),
        (Some(_), Some(infeasible)) => return Err(format!("it is feasible, and said not to be: {infeasible}")),
        (None, _) => exact(&description, Question::Within(1.0 + 3e-6)).is_some(),
    };
    let is_decided = plan.infeasible().is_some() || is_feasible;
    ensure(is_decided, || "it is not feasible, and has a plan".to_owned())
}

/// What a plan in whole segments costs, and what the best one costs, or none if no shares in whole segments meet all SLOs. The
/// segment is a grain, so that all shares can be tried, by curves or by hulls.
pub fn in_segments(seed: u64, estimate: Estimate) -> Result<Option<(f64, f64)>, String> {
    let random = &mut Random::from_seed(seed);
    let mut description = description(random, SMALL);
    description.segment = GRAIN;
    for application in &mut description.applications {
        application.estimate = estimate;
    }
    if random.chance(0.3) {
        description = with_absolute_bounds(description, 0.85 + 0.3 * random.unit());
    }
    let plan = solve(&problem(&description)?, None);
    naive::check(&description, &plan)?;
    let best = best(&description);
    let cost = plan.shares.len() as f64 / plan.fair_speedup;
    match (plan.basis == Basis::Optimal, best.bound) {
        (true, Some(least)) => {
            ensure(cost >= least * (1.0 - 1e-6), || format!("it costs {cost}, less than the least: {least}"))?;
            Ok(Some((cost, least)))
        }
        (true, None) => Err("a plan was found where there is none".to_owned()),
        (false, Some(least)) => Ok(Some((f64::INFINITY, least))),
        (false, None) => Ok(None),
    }
}

pub fn few_segments(seed: u64) -> Result<(), String> {
    in_segments(seed, Estimate::Whole).map(drop)
}

pub fn run(seed: u64) -> Result<(), String> {
    compare(seed).map(drop)
}
