//! All shares in whole grains, tried one after the other.

use surgetank_allocation::{Description, solve};
use surgetank_model::Bytes;
use surgetank_model::random::Random;

use super::{GRAIN, SMALL, description, ensure, naive, problem, with_absolute_bounds};

/// Costs of the best shares in whole grains: without SLOs, and with them if any meet them.
struct Best {
    unbound: f64,
    bound: Option<f64>,
}

struct Search<'a> {
    description: &'a Description,
    /// Costs by application and shares in grains; infinite where an SLO does not hold.
    costs: Vec<Vec<Vec<(f64, bool)>>>,
    reach: Vec<Vec<String>>,
    best: Best,
}

fn best(description: &Description) -> Best {
    let total = |servers: &[surgetank_allocation::Server]| servers.iter().map(|server| server.cache.get()).sum::<u64>();
    let second_max = total(&description.level2) / GRAIN.get();
    let costs = (0..description.applications.len()).map(|of| {
        let application = &description.applications[of];
        let first_max = naive::cache(&description.level1, &application.level1) / GRAIN.get();
        let fair_ms = naive::fair_latency_ms(description, of);
        let target_ms = naive::bound_ms(description, of) * (1.0 - application.margin);
        let at = |first: u64, second: u64| {
            let [first, second] = [first, second].map(|grains| (grains * GRAIN.get()) as f64);
            let latency_ms = naive::latency_ms(description, of, first, second, true);
            (latency_ms / fair_ms, latency_ms <= target_ms)
        };
        (0..=first_max).map(|first| (0..=second_max).map(|second| at(first, second)).collect()).collect()
    });
    let mut search = Search {
        description,
        costs: costs.collect(),
        reach: description.applications.iter().map(|application| application.level2.clone()).collect(),
        best: Best { unbound: f64::INFINITY, bound: None },
    };
    search.firsts(&mut Vec::new());
    search.best
}

impl Search<'_> {
    fn firsts(&mut self, chosen: &mut Vec<u64>) {
        let of = chosen.len();
        let Some(application) = self.description.applications.get(of) else {
            return self.seconds(chosen, &mut Vec::new(), 0.0, true);
        };
        let others = self.description.applications.iter().enumerate().filter(|(_, other)| other.level1 == application.level1);
        let (before, behind): (Vec<_>, Vec<_>) = others.partition(|(other, _)| *other < of);
        let used: u64 = before.iter().map(|(other, _)| chosen[*other]).sum();
        let left = naive::cache(&self.description.level1, &application.level1) / GRAIN.get() - used;
        // More never harms, so the last one takes all that is left.
        let least = if behind.len() == 1 { left } else { 0 };
        for first in least..=left {
            chosen.push(first);
            self.firsts(chosen);
            chosen.pop();
        }
    }

    fn seconds(&mut self, firsts: &[u64], chosen: &mut Vec<u64>, cost: f64, is_met: bool) {
        let of = chosen.len();
        if of == firsts.len() {
            self.best.unbound = self.best.unbound.min(cost);
            if is_met {
                self.best.bound = Some(self.best.bound.unwrap_or(f64::INFINITY).min(cost));
            }
            return;
        }
        let most = self.costs[of][0].len() as u64;
        let mut fitting: Vec<u64> = Vec::new();
        for second in 0..most {
            chosen.push(second);
            let wants: Vec<u64> = chosen.iter().map(|grains| grains * GRAIN.get()).collect();
            let fits = naive::has_place(&self.description.level2, &self.reach[..=of], &wants);
            chosen.pop();
            if !fits {
                break;
            }
            fitting.push(second);
        }
        if of + 1 == firsts.len() {
            fitting.drain(..fitting.len() - 1);
        }
        for second in fitting {
            let (more, holds) = self.costs[of][firsts[of] as usize][second as usize];
            chosen.push(second);
            self.seconds(firsts, chosen, cost + more, is_met && holds);
            chosen.pop();
        }
    }
}

/// What the search found, and whether no SLO was in the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Unbound,
    Bound,
    Infeasible,
}

/// The best plan costs no more than any shares in whole grains; and as much, if no SLO is in the way, for then points of curves
/// are where the optimum is.
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
    let is_unbound = best.bound.is_some_and(|bound| bound <= best.unbound);
    ensure(!is_unbound || cost >= best.unbound * 0.999, || format!("it costs {cost}, less than {}", best.unbound))?;
    Ok(if is_unbound { Kind::Unbound } else { Kind::Bound })
}

pub fn run(seed: u64) -> Result<(), String> {
    compare(seed).map(drop)
}

/// So that a problem can be printed.
pub fn sizes(description: &Description) -> Vec<Bytes> {
    description.level1.iter().chain(&description.level2).map(|server| server.cache).collect()
}
