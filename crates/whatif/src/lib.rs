//! What a run would take and cost, in virtual time: the production controller over modelled volumes and a modelled
//! provider.
//!
//! - [`setup`]: what is simulated — an application on virtual machines, volumes, the provider's latencies;
//!   [`scenario`]: the same from the planner's file;
//! - [`volume`]: a volume held to its limits by the model's own token buckets;
//! - [`block`]: one machine request by request, with the production engine over buffers without data;
//!   [`control`]: its production controller and rental code, and the modelled provider that they rent from;
//! - [`fluid`]: the same machine in flows instead of requests: for sweeps; tests hold it to `block`;
//! - [`bursts`]: when a replayed load's bursts are served;
//! - [`report`]: what came out, [`lateness`] of a trace's replay;
//! - [`array`]: arrays of burstable volumes, rotated;
//! - [`staging`]: checkpoints into a staging pool, of one application and of all jobs of a log;
//! - [`hindsight`]: what the best controller could have made of it, had it known what comes.
//!
//! Machines of a bulk-synchronous application meet at the end of each phase and share nothing else, so each is run on
//! its own from one meeting to the next.

pub mod array;
pub mod block;
pub mod bursts;
#[cfg(test)]
mod chance;
pub mod control;
pub mod fluid;
pub mod hindsight;
pub mod lateness;
pub mod report;
pub mod scenario;
pub mod setup;
pub mod staging;
pub mod volume;

use std::time::Duration;

use surgetank_model::Instant;
use surgetank_model::cost::Cost;
pub use surgetank_planner::Mode;
pub use surgetank_planner::scenario::Latencies;

pub use bursts::Burst;
pub use report::{Boost, PhaseTime, RunReport};
pub use setup::{AppPhase, Application, Caching, Fidelity, Setup, Stuck, Volume};

/// How long requests would wait for a caching volume that cannot be read; none fails here.
const OUTAGE_TIMEOUT: Duration = Duration::from_secs(300);

/// The longest run that is simulated: what moves is kept for every five seconds of it, in all some 440 MB for a load without pauses.
const LONGEST: Duration = Duration::from_secs(800 * 24 * 3600);

/// Refuses to go on to `next` if the run would take too long.
fn within_longest(next: Instant) -> Result<(), Stuck> {
    if next <= Instant::ZERO + LONGEST {
        return Ok(());
    }
    Err(Stuck("the run takes longer than 800 days, the longest that is simulated: shorten the load, or take volumes that keep up with it".to_owned()))
}

/// A machine of the application: it works through the phases and lets time pass in between.
trait Machine {
    /// Works through a phase from now on, and says when it is done.
    ///
    /// # Errors
    /// Why it cannot be done.
    fn run(&mut self, phase: AppPhase) -> Result<Instant, Stuck>;

    /// Lets time pass until `to`: the others are not there yet.
    ///
    /// # Errors
    /// Why time does not pass.
    fn advance(&mut self, to: Instant) -> Result<(), Stuck>;

    /// Lets time pass until nothing is rented any more, nor will be: a controller that expects another burst waits in vain.
    ///
    /// # Errors
    /// Why that does not happen.
    fn settle(&mut self) -> Result<(), Stuck>;

    /// What it did.
    fn finish(self) -> Share;
}

/// What one machine did.
#[derive(Debug, Default)]
struct Share {
    boosts: Vec<Boost>,
    bursts: Vec<Burst>,
    traffic: volume::Traffic,
    busy: Duration,
    /// For how long arrivals of a trace were late.
    late: Duration,
    events: u64,
}

/// Simulates a run.
///
/// # Errors
/// What does not come to an end, in one sentence.
pub fn run(setup: &Setup, mode: Mode, fidelity: Fidelity) -> Result<RunReport, Stuck> {
    run_shown(setup, mode, fidelity, |_| ())
}

/// The same; `shown` is told how many of the application's phases are done.
///
/// # Errors
/// As [`run`].
pub fn run_shown(setup: &Setup, mode: Mode, fidelity: Fidelity, shown: impl FnMut(usize)) -> Result<RunReport, Stuck> {
    let machines = setup.machines();
    match fidelity {
        Fidelity::Block => {
            run_machines(setup, mode, (0..machines).map(|vm| block::Block::new(setup, mode, vm)), |_, _, _| (), shown)
        }
        Fidelity::Fluid => {
            run_machines(setup, mode, (0..machines).map(|vm| fluid::Fluid::new(setup, mode, vm)), |_, _, _| (), shown)
        }
    }
}

/// `tell` a machine something before each phase, whose number it gets, and before it settles; `shown` is told how many phases are
/// done.
fn run_machines<M: Machine>(
    setup: &Setup,
    mode: Mode,
    machines: impl Iterator<Item = M>,
    tell: impl Fn(&mut M, usize, Instant),
    mut shown: impl FnMut(usize),
) -> Result<RunReport, Stuck> {
    let mut machines: Vec<M> = machines.collect();
    let mut now = Instant::ZERO;
    let mut phases = Vec::with_capacity(setup.application.phases.len());
    for (number, &phase) in setup.application.phases.iter().enumerate() {
        let mut end = now;
        for machine in &mut machines {
            tell(machine, number, now);
            end = end.max(machine.run(phase)?);
        }
        for machine in &mut machines {
            machine.advance(end)?;
        }
        phases.push(PhaseTime { phase, from: now, until: end });
        shown(phases.len());
        now = end;
    }
    for machine in &mut machines {
        tell(machine, phases.len(), now);
        machine.settle()?;
    }
    let shares: Vec<Share> = machines.into_iter().map(Machine::finish).collect();
    Ok(outcome(setup, mode, phases, now, shares))
}

fn outcome(setup: &Setup, mode: Mode, phases: Vec<PhaseTime>, end: Instant, mut shares: Vec<Share>) -> RunReport {
    let disk = setup.disk(mode);
    let costs = shares.iter().map(|share| {
        let rented = disk.tariff.cost(disk.size, end.as_seconds());
        share
            .boosts
            .iter()
            .fold(rented, |sum, boost| sum.plus(setup.caching.tariff.cost_of_sizes(boost.held(boost.ended))))
    });
    let sum = costs.fold(Cost::ZERO, Cost::plus);
    let times = |factor: f64| Cost { agbs: sum.agbs * factor, usd: sum.usd.map(|usd| usd * factor) };
    let simulated = shares.len().max(1) as f64;
    let (cost, cost_total) = (times(1.0 / simulated), times(f64::from(setup.vms) / simulated));
    let events = shares.iter().map(|share| share.events).sum();
    let late = shares.iter().map(|share| share.late).sum::<Duration>().div_f64(simulated);
    let first = if shares.is_empty() { Share::default() } else { shares.swap_remove(0) };
    let counted_from = match setup.application.initial_phases {
        0 => Instant::ZERO,
        initial => phases.get(initial - 1).map_or(Instant::ZERO, |phase| phase.until),
    };
    RunReport {
        mode,
        counted_from,
        end,
        phases,
        late,
        cost,
        cost_total,
        boosts: first.boosts,
        bursts: first.bursts,
        traffic: first.traffic,
        busy: first.busy,
        simulated_vms: setup.machines(),
        events,
    }
}
