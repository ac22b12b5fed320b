//! What the best controller could have made of a run, had it known what comes: the offline optimum.
//!
//! The objective is J = cost + value of time × delay ([`Objective`]); the delay is the time lost against a backing volume
//! that is infinitely fast ([`RunReport::delay`]). [`hindsight`] answers two numbers. The *bound* is what no controller of
//! this device is below: dynamic programming over the fluid model ([`phases`] for an application, [`arrivals`] for a trace),
//! which rounds towards the optimistic side wherever it rounds. The *plan* is how to come near it: it is simulated, with the
//! latencies of the provider, so it can be done; how far it is above the bound is how far the bound may be too low.
//!
//! Both know one caching volume at a time, of one of the sizes that the controller may rent, of the same size from its
//! creation to its deletion; what the provider takes to create, attach, detach and delete, without jitter, is billed; a
//! shortest billed time is charged partly up front, whichever part bounds best. Machines are alike: what they wait for each
//! other, and faults, only cost more.
//!
//! What the bound leaves out, and is lower for: burst credits are full at the start of each phase or period; of a group of
//! more than 40 sizes the cheapest costs and the largest absorbs; reads of what was written may all hit the cache. What it
//! takes for granted: nothing that is dirty is overwritten, so a block run that rewrites its device while the cache holds
//! nearly all of it may be better.

mod arrivals;
mod phases;
mod problem;

use std::time::Duration;

use surgetank_model::Instant;
use surgetank_model::cost::Cost;
use surgetank_planner::Mode;

use self::arrivals::{Arrival, Arrivals, Held};
use self::phases::{Phases, Planned, Work};
use self::problem::Problem;
use crate::fluid::{Fluid, Script, Scripted};
use crate::report::RunReport;
use crate::run_machines;
use crate::setup::{AppPhase, Fidelity, Setup, Stuck};

/// Shares of a shortest billed time that are charged up front.
const SHARES: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 1.0];

/// What costs are counted in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Currency {
    /// Adjusted GB-seconds.
    Agbs,
    /// USD.
    Usd,
}

/// What is minimised: cost + value of time × delay.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Objective {
    /// Of the cost.
    pub currency: Currency,
    /// Of a second of delay: 0, the cheapest run; infinite, the fastest.
    pub value_of_time: f64,
}

impl Objective {
    /// The cost in the objective's currency; `None`: a price is unknown.
    #[must_use]
    pub fn cost(&self, cost: &Cost) -> Option<f64> {
        match self.currency {
            Currency::Agbs => Some(cost.agbs),
            Currency::Usd => cost.usd,
        }
    }

    /// What a run comes to, for one machine. If time has no price, its delay in seconds: no cost weighs anything beside it.
    #[must_use]
    pub fn of(&self, run: &RunReport) -> Option<f64> {
        let delay_s = run.delay().as_secs_f64();
        let cost = self.cost(&run.cost)?;
        Some(if self.value_of_time.is_finite() { cost + self.value_of_time * delay_s } else { delay_s })
    }
}

/// The optimum.
#[derive(Clone, Debug)]
pub struct Hindsight {
    /// No controller is below it: one machine's cost + value of time × delay, or delay in seconds if time has no price.
    pub bound: f64,
    /// The objective of the plan.
    pub objective: f64,
    /// The plan's run, in flows.
    pub plan: RunReport,
}

/// The best that could be made of a run. `fidelity` is that of the runs that are compared with it.
///
/// # Errors
/// What has no optimum, in one sentence.
pub fn hindsight(setup: &Setup, objective: &Objective, fidelity: Fidelity) -> Result<Hindsight, Stuck> {
    let shares = if Problem::has_minimum(setup, objective) { SHARES.as_slice() } else { &SHARES[..1] };
    let mut found: Option<Hindsight> = None;
    let unknown = || Stuck("a price is unknown: name a volume_type or usd_per_gib_month, or count in AGBs".to_owned());
    for &charged in shares {
        let problem = Problem::new(setup, objective, fidelity, charged).ok_or_else(unknown)?;
        let (least, plans) = optimum(setup, &problem)?;
        let bound = if objective.value_of_time.is_finite() { least } else { fastest(setup, &problem, least) };
        for plan in plans {
            let plan = simulate(setup, &problem, &plan)?;
            let value = objective.of(&plan).ok_or_else(unknown)?;
            let key = |value: f64, plan: &RunReport| (value, objective.cost(&plan.cost).unwrap_or(f64::INFINITY));
            found = Some(match found {
                Some(best) if key(best.objective, &best.plan) <= key(value, &plan) => {
                    Hindsight { bound: best.bound.max(bound), ..best }
                }
                best => Hindsight { bound: best.map_or(bound, |best| best.bound.max(bound)), objective: value, plan },
            });
        }
    }
    found.ok_or_else(unknown)
}

/// The delay of the fastest run, whose cost is at least that of the backing volume.
fn fastest(setup: &Setup, problem: &Problem, least: f64) -> f64 {
    let compute = setup.application.phases.iter().map(|phase| match phase {
        AppPhase::Compute(time) => time.as_secs_f64(),
        _ => 0.0,
    });
    let last = setup.application.phases.iter().rev().find_map(|phase| match phase {
        AppPhase::Arrive { at, .. } => Some(at.as_secs_f64()),
        _ => None,
    });
    let dearest = problem.sizes.last().map_or(0.0, |size| size.per_s + size.fee);
    let apart = compute.sum::<f64>() + last.unwrap_or(0.0);
    let waited = |least: f64| ((least - problem.per_s * apart) / (problem.per_s + problem.value)).max(0.0);
    // What the plan holds weighs too, however little: no more than its dearest volume from start to end.
    let held = (apart + waited(least) + problem.before + problem.after) * dearest * 2.0;
    waited(least - held)
}

/// A plan of either kind.
enum Plan {
    Phases(Vec<Work>, Vec<Planned>),
    /// Volumes come at the start of their cells, or at the end.
    Arrivals(Vec<Held>, bool),
}

/// The least cost, and plans that may come near it.
fn optimum(setup: &Setup, problem: &Problem) -> Result<(f64, Vec<Plan>), Stuck> {
    let phases = &setup.application.phases;
    if phases.iter().any(|phase| matches!(phase, AppPhase::Arrive { .. })) {
        let mut arrivals = Vec::new();
        for phase in phases {
            match *phase {
                AppPhase::Arrive { at, read, written } => {
                    let (read, written) = (read.get() as f64, written.get() as f64);
                    arrivals.push(Arrival { at: at.as_secs_f64(), read, written });
                }
                AppPhase::Finish => {}
                AppPhase::Compute(_) | AppPhase::Write(_) | AppPhase::Read(_) => {
                    return Err(Stuck("an application and a trace in one run have no optimum here".to_owned()));
                }
            }
        }
        let (least, held) = Arrivals::optimum(problem, &arrivals);
        let plans = [Plan::Arrivals(held.clone(), false), Plan::Arrivals(held, true), Plan::Arrivals(Vec::new(), true)];
        return Ok((least, plans.into()));
    }
    let (started, works) = works(phases);
    let (least, planned) = Phases::new(problem, &works).optimum(started);
    let plans = [Plan::Phases(works.clone(), planned), Plan::Phases(works, Vec::new())];
    Ok((least, plans.into()))
}

/// The compute time before the first I/O phase, and the I/O phases with what is between them.
fn works(phases: &[AppPhase]) -> (f64, Vec<Work>) {
    let mut started = 0.0;
    let mut works: Vec<Work> = Vec::new();
    for (number, phase) in phases.iter().enumerate() {
        let work = |reads, bytes: u64| Work { phase: number, reads, bytes: bytes as f64, gap: 0.0 };
        match *phase {
            AppPhase::Compute(time) => match works.last_mut() {
                Some(work) => work.gap += time.as_secs_f64(),
                None => started += time.as_secs_f64(),
            },
            AppPhase::Write(bytes) if bytes.get() > 0 => works.push(work(false, bytes.get())),
            AppPhase::Read(bytes) if bytes.get() > 0 => works.push(work(true, bytes.get())),
            AppPhase::Write(_) | AppPhase::Read(_) | AppPhase::Arrive { .. } | AppPhase::Finish => {}
        }
    }
    (started, works)
}

/// The run under a plan, in flows.
fn simulate(setup: &Setup, problem: &Problem, plan: &Plan) -> Result<RunReport, Stuck> {
    let provider = setup.provider;
    // The plan splits, whatever the controller does.
    let mut setup = setup.clone();
    setup.policy.split = true;
    setup.provider.jitter = 0.0;
    setup.provider.faults = 0.0;
    let mut script = Script::new(provider.create + provider.attach, provider.detach + provider.delete);
    let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
    match plan {
        Plan::Arrivals(held, late) => {
            for held in held {
                let from = Instant::ZERO + seconds(if *late { held.from.1 } else { held.from.0 });
                let until = Some(Instant::ZERO + seconds(held.until));
                script.plan(Scripted { size: problem.sizes[held.size].bytes, from, until });
            }
            let machine = Fluid::new(&setup, Mode::Elastic, 0).scripted(script);
            run_machines(&setup, Mode::Elastic, [machine].into_iter(), |_, _, _| (), |_| ())
        }
        Plan::Phases(works, planned) => {
            let machine = Fluid::new(&setup, Mode::Elastic, 0).scripted(script);
            let tell = |machine: &mut Fluid<'_>, number: usize, now: Instant| {
                for _ in planned.iter().filter(|planned| works[planned.last].phase + 1 == number) {
                    machine.script().end(now);
                }
                for planned in planned.iter().filter(|planned| works[planned.first].phase == number) {
                    let (size, from) = (problem.sizes[planned.size].bytes, now + seconds(planned.offset));
                    machine.script().plan(Scripted { size, from, until: None });
                }
            };
            run_machines(&setup, Mode::Elastic, [machine].into_iter(), tell, |_| ())
        }
    }
}

#[cfg(test)]
mod tests;
