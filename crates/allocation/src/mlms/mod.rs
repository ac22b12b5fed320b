//! The paper's algorithm (PSKP10, 3), to compare with, repaired where it is odd.
//!
//! In each interval: fit every application's latency surface to what was measured; take the shares that meet its SLO; drop
//! combinations that no servers have room for; hand out what is left in proportion to gains; keep the combination of the best
//! fair speedup; place second-level shares on servers.
//!
//! What differs from the paper: the fair share is that of each server; bounds are (1 + slo) × the fair latency; surfaces
//! never rise; combinations are those that fit under the connectivity there is, and a beam of them, for all of them are
//! exponentially many; placement minimises the largest share of a server that one application has.

mod combinations;
mod fit;
mod surface;

use std::collections::{BTreeMap, VecDeque};

use surgetank_model::Bytes;

pub use surface::{FitError, SAMPLES_MIN, Sample, Surface};

use crate::baselines;
use crate::optimal;
use crate::placement::Place;
use crate::plan::{Basis, Fallback, Plan, Relaxed, amounts_of, change, duration_of, fair_speedup};
use crate::problem::{Amount, Estimate, Model, Problem, Slo};
use combinations::Search;

/// What was measured of each application.
#[derive(Clone, Debug, Default)]
pub struct Mlms {
    samples: BTreeMap<String, VecDeque<Sample>>,
}

/// Older samples are forgotten: applications change.
const SAMPLES_MAX: usize = 64;

/// Shares at which the first samples are taken, one after the other: more than a surface has coefficients.
pub const BOOTSTRAP_SAMPLES: usize = SAMPLES_MIN + 2;

/// By how much bootstrap moves shares of both levels from the fair share, in the order in which it tries them. Neighbours
/// are a step apart in it, so that what one has less another has more. No six in a row are on one line or conic section.
const BOOTSTRAP: [(f64, f64); BOOTSTRAP_SAMPLES] =
    [(1.0, 1.0), (1.6, 0.6), (0.4, 1.4), (1.0, 0.3), (0.5, 0.5), (1.5, 1.5), (0.3, 1.0), (1.7, 0.9)];

impl Mlms {
    /// Records what an application's accesses took in an interval. What is no latency is left out.
    pub fn observe(&mut self, application: &str, sample: Sample) {
        if !(sample.latency_ms > 0.0 && sample.latency_ms.is_finite()) {
            return;
        }
        let samples = self.samples.entry(application.to_owned()).or_default();
        if samples.len() == SAMPLES_MAX {
            samples.pop_front();
        }
        samples.push_back(sample);
    }

    /// Shares for the intervals before there are enough samples, by the number of the interval.
    #[must_use]
    pub fn bootstrap(problem: &Problem, interval: usize) -> Plan {
        let factor = |index: usize| BOOTSTRAP[(index + interval) % BOOTSTRAP.len()];
        let (mut first, mut second) = (vec![0.0; problem.level1.len()], vec![0.0; problem.level2.len()]);
        for (index, member) in problem.applications.iter().enumerate() {
            first[member.level1] += factor(index).0;
            for server in &member.level2 {
                second[*server] += factor(index).1;
            }
        }
        // An application that is alone gets what its factor says of the server, others their part of all factors.
        let part = |factor: f64, of: Bytes, all: f64, largest: f64| {
            Bytes::new((of.get() as f64 * factor / all.max(largest)).floor() as u64)
        };
        let amounts: Vec<Amount> = problem
            .applications
            .iter()
            .enumerate()
            .map(|(index, member)| Amount {
                level1: part(factor(index).0, problem.level1[member.level1].cache, first[member.level1], LARGEST.0),
                level2: member
                    .level2
                    .iter()
                    .map(|server| {
                        (*server, part(factor(index).1, problem.level2[*server].cache, second[*server], LARGEST.1))
                    })
                    .collect(),
            })
            .collect();
        Plan::of(problem, &amounts, Basis::Baseline, Estimate::Whole)
    }

    /// The plan for the next interval. Its latencies are those of the fitted surfaces; its changes are not bounded.
    #[must_use]
    pub fn solve(&self, problem: &Problem, previous: Option<&Plan>) -> Plan {
        let former = previous.map(|plan| plan.amounts(problem));
        let plan = self.planned(problem, former.as_deref());
        let amounts: Vec<Amount> = plan.amounts(problem).into_iter().map(Option::unwrap_or_default).collect();
        Plan { change: change(problem, former.as_deref(), &amounts), ..plan }
    }

    fn planned(&self, problem: &Problem, former: Option<&[Option<Amount>]>) -> Plan {
        let Some(surfaces) = self.surfaces(problem) else {
            return baselines::fallback(problem, Fallback::Bootstrap);
        };
        let search = Search::new(problem, &surfaces);
        if let Some(infeasible) = search.infeasible() {
            return baselines::fallback(problem, Fallback::Infeasible(infeasible));
        }
        let Some((firsts, seconds)) = search.best() else {
            return baselines::fallback(problem, Fallback::NoCombination);
        };
        let place = |amount: &Option<Amount>| amount.clone().unwrap_or_default().level2;
        let former: Option<Vec<Place>> = former.map(|former| former.iter().map(place).collect());
        let amounts = amounts_of(&firsts, search.place(&seconds, former.as_deref()));
        let latency = |index: usize| search.latency_ms(index, firsts[index], amounts[index].second());
        let mut plan = Plan::with_latencies(problem, &amounts, (0..amounts.len()).map(latency), Basis::Mlms);
        for (index, share) in plan.shares.iter_mut().enumerate() {
            (share.fair_latency_ms, share.bound_ms) = (search.fair_ms(index), search.bound_ms(index));
            share.slo_met = share.latency_ms <= share.bound_ms * (1.0 + crate::plan::TOLERANCE);
        }
        plan.fair_speedup = fair_speedup(&plan.shares);
        plan
    }

    /// One an application, or none if one of them has too few samples.
    fn surfaces(&self, problem: &Problem) -> Option<Vec<Surface>> {
        let surface = |(index, member): (usize, &crate::problem::Member)| {
            let samples: Vec<Sample> = self.samples.get(&member.name)?.iter().copied().collect();
            let extent = (problem.level1[member.level1].cache, problem.reachable(index));
            Surface::fit_above(&samples, extent, member.latencies_ms[0]).ok()
        };
        problem.applications.iter().enumerate().map(surface).collect()
    }
}

/// Intervals after which the plans of a problem that does not change hardly do.
const SETTLED: usize = 10;

/// What the algorithm arrives at where every access takes what the problem's curves say: after its bootstrap and some
/// intervals, in each of which it measures what its last plan does. Latencies are those of its surfaces.
#[must_use]
pub fn settled(problem: &Problem) -> Plan {
    let mut mlms = Mlms::default();
    let mut plan = Mlms::bootstrap(problem, 0);
    for interval in 0..BOOTSTRAP.len() + SETTLED {
        for (share, measured) in plan.shares.iter().zip(Gap::judged(problem, &plan).shares) {
            let second = Bytes::new(share.level2.values().map(|bytes| bytes.get()).sum());
            let sample = Sample { first: share.level1, second, latency_ms: measured.latency_ms };
            mlms.observe(&share.application, sample);
        }
        let is_bootstrap = interval + 1 < BOOTSTRAP.len();
        plan = if is_bootstrap { Mlms::bootstrap(problem, interval + 1) } else { mlms.solve(problem, Some(&plan)) };
    }
    plan
}

/// The largest factors of [`BOOTSTRAP`].
const LARGEST: (f64, f64) = (1.7, 1.5);

/// What a plan would do if the problem's curves are right, beside the best plan. By the curves each share is one cache, by their
/// hulls it is split; the paper's algorithm knows no splits, the optimum counts on them.
#[derive(Clone, Debug, PartialEq)]
pub struct Gap {
    /// Of the plan, by the curves.
    pub fair_speedup: f64,
    /// Of the plan, by the hulls.
    pub split_fair_speedup: f64,
    /// Of the best plan, by each application's own estimate.
    pub best_fair_speedup: f64,
    /// Of the best plan's shares, by the curves.
    pub best_whole_fair_speedup: f64,
    /// The applications whose SLOs the plan would break, by the curves.
    pub broken: Vec<String>,
}

impl Gap {
    /// Between this plan and the optimum.
    #[must_use]
    pub fn of(problem: &Problem, plan: &Plan) -> Self {
        let best = optimal::solve(problem, None);
        let judged = Self::judged(problem, plan);
        let broken = judged.shares.iter().filter(|share| !share.slo_met).map(|share| share.application.clone());
        Self {
            fair_speedup: judged.fair_speedup,
            split_fair_speedup: judged_by(problem, plan, Estimate::Split).fair_speedup,
            best_fair_speedup: best.fair_speedup,
            best_whole_fair_speedup: Self::judged(problem, &best).fair_speedup,
            broken: broken.collect(),
        }
    }

    /// The plan's shares with the latencies that they have by the problem's curves.
    #[must_use]
    pub fn judged(problem: &Problem, plan: &Plan) -> Plan {
        judged_by(problem, plan, Estimate::Whole)
    }
}

fn judged_by(problem: &Problem, plan: &Plan, estimate: Estimate) -> Plan {
    let amounts: Vec<Amount> = plan.amounts(problem).into_iter().map(Option::unwrap_or_default).collect();
    Plan::of(problem, &amounts, Basis::Baseline, estimate)
}

impl std::fmt::Display for Gap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let missed = |speedup: f64, of: f64| 100.0 * (1.0 - speedup / of);
        write!(
            f,
            "fair speedup {:.4} by the curves and {:.4} by the hulls, the optimum has {:.4} and {:.4}: {:.2} % and {:.2} % less, {} SLOs broken",
            self.fair_speedup,
            self.split_fair_speedup,
            self.best_whole_fair_speedup,
            self.best_fair_speedup,
            missed(self.fair_speedup, self.best_whole_fair_speedup),
            missed(self.split_fair_speedup, self.best_fair_speedup),
            self.broken.len()
        )
    }
}

/// What an application of a problem is told that cannot be served.
fn relaxed(problem: &Problem, application: usize, best_ms: f64, fair_ms: f64) -> Relaxed {
    let member = &problem.applications[application];
    let feasible = match member.slo {
        Slo::AboveFair(_) => Slo::AboveFair((best_ms / fair_ms - 1.0).max(0.0)),
        Slo::Latency(_) => Slo::Latency(duration_of(best_ms)),
    };
    Relaxed { application: member.name.clone(), slo: member.slo, feasible }
}

/// The model that samples of an application make: for problems of which nobody has curves.
///
/// # Errors
/// If they make no surface.
pub fn model(samples: &[Sample], extent: (Bytes, Bytes)) -> Result<Model, FitError> {
    Surface::fit(samples, extent).map(Model::Surface)
}
