//! No controller is below the bound, and the plan is near it.

use surgetank_cache::ReadFill;
use surgetank_model::units::Span;
use surgetank_model::volume_type::Billing;
use surgetank_model::{Bandwidth, Bytes, Catalog};
use surgetank_planner::cost::Tariff;
use surgetank_planner::scenario::Latencies;
use surgetank_policy::{Config, Preset};

use super::*;
use crate::chance::{Chance, limits};
use crate::setup::{Application, Caching, Volume};

fn trace(chance: &mut Chance) -> Vec<AppPhase> {
    let every = if chance.one_in(2) { Duration::from_secs(1) } else { chance.time(1, 40) };
    let count = chance.between(5, 200) as u32;
    let (reads, quiet) = (chance.one_in(2), chance.between(1, 20));
    let mut phases = Vec::new();
    let mut level = Bytes::ZERO;
    for number in 0..count {
        if number == 0 || chance.one_in(8) {
            level = if chance.one_in(quiet) { chance.mib(16, 3000) } else { Bytes::ZERO };
        }
        let read = if reads && chance.one_in(3) { chance.mib(16, 400) } else { Bytes::ZERO };
        if level.get() + read.get() > 0 {
            phases.push(AppPhase::Arrive { at: every * number, read, written: level });
        }
    }
    phases.push(AppPhase::Finish);
    phases
}

fn phases(chance: &mut Chance) -> Vec<AppPhase> {
    let (compute, written) = (chance.time(5, 500), chance.mib(64, 8000));
    let mut phases = Vec::new();
    if chance.one_in(2) {
        phases.push(AppPhase::Compute(chance.time(1, 300)));
    }
    for _ in 0..chance.between(1, 8) {
        phases.push(AppPhase::Write(if chance.one_in(3) { chance.mib(16, 12_000) } else { written }));
        if chance.one_in(6) {
            phases.push(AppPhase::Read(chance.mib(16, 4000)));
        }
        if !chance.one_in(10) {
            phases.push(AppPhase::Compute(if chance.one_in(4) { chance.time(1, 1500) } else { compute }));
        }
    }
    phases
}

fn policy(chance: &mut Chance, backing: Bandwidth, caching: Bandwidth) -> Config {
    let preset = Preset::ALL[chance.between(0, Preset::ALL.len() as u64 - 1) as usize];
    let mut policy = Config::new(preset, backing, Bytes::from_gib(50), caching);
    policy.initial_size = Bytes::from_gib(chance.between(1, 12));
    policy.grain = if chance.one_in(3) { Bytes::new(256 << 20) } else { Bytes::from_gib(1) };
    policy.size_max = Bytes::from_gib(chance.between(2, 20));
    policy.utilization_threshold = chance.between(5, 110) as f64 / 100.0;
    policy.inactivity_delay = chance.time(2, 60);
    policy
}

fn setup(chance: &mut Chance, seed: u64) -> Setup {
    let (backing, caching) = (chance.between(5, 150), chance.between(20, 400));
    let phases = if chance.one_in(2) { trace(chance) } else { phases(chance) };
    let priced = |mib_s, minimum_s: u64| {
        let mut volume_type = Catalog::builtin().find("aws", "gp3").cloned().unwrap();
        volume_type.billing = Billing { minimum: Span(Duration::from_secs(minimum_s)), ..volume_type.billing };
        Tariff::new(Bandwidth::from_mib_s(mib_s), Some(&volume_type), None)
    };
    let sampling = if chance.one_in(3) { chance.time(1, 5) } else { Duration::from_secs(1) };
    let varies = chance.one_in(3);
    Setup {
        vms: chance.between(1, 3) as u32,
        application: Application {
            phases,
            initial_phases: 0,
            request: Bytes::new(1 << 20),
            depth: chance.between(1, 32) as u32,
        },
        backing: Volume {
            size: Bytes::from_gib(50),
            limits: limits(backing),
            credits: chance.credits(5, backing),
            tariff: priced(backing, 0),
        },
        caching: Caching {
            limits: limits(caching),
            alone: limits(caching),
            tariff: priced(caching, [0, 60, 600][chance.between(0, 2) as usize]),
            read_fill: ReadFill::Never,
        },
        policy: policy(chance, Bandwidth::from_mib_s(backing), Bandwidth::from_mib_s(caching)),
        sampling,
        provider: Latencies {
            create: chance.time(0, 10),
            attach: chance.time(0, 30),
            detach: chance.time(0, 10),
            delete: chance.time(0, 3),
            // The volumes of hindsight have one size each.
            grow: None,
            jitter: if varies { 0.5 } else { 0.0 },
            faults: if varies { 0.2 } else { 0.0 },
        },
        seed,
    }
}

/// From the cheapest to the fastest run.
fn objective(chance: &mut Chance, setup: &Setup) -> Objective {
    let currency = if chance.one_in(3) { Currency::Usd } else { Currency::Agbs };
    let per_s = setup.backing.tariff.per_second(setup.backing.size);
    let per_s = if currency == Currency::Usd { per_s.usd.unwrap() } else { per_s.agbs };
    let value_of_time = match chance.between(0, 5) {
        0 => 0.0,
        1 => f64::INFINITY,
        _ => per_s * chance.between(1, 200) as f64 / 10.0,
    };
    Objective { currency, value_of_time }
}

/// A run beside the optimum.
struct Case {
    seed: u64,
    setup: Setup,
    objective: Objective,
    fidelity: Fidelity,
}

impl Case {
    fn of(seed: u64) -> Self {
        let mut chance = Chance::of(seed);
        let mut setup = setup(&mut chance, seed);
        let objective = objective(&mut chance, &setup);
        let is_small = setup.bytes() < 6 << 30;
        let fidelity = if is_small && chance.one_in(3) { Fidelity::Block } else { Fidelity::Fluid };
        if fidelity == Fidelity::Block {
            // So that it stays short.
            setup.vms = 1;
        }
        Self { seed, setup, objective, fidelity }
    }

    /// How far the controller is above the bound, relative to it.
    fn margin(&self, bound: f64) -> f64 {
        let run = crate::run(&self.setup, Mode::Elastic, self.fidelity).unwrap();
        let objective = self.objective.of(&run).unwrap();
        (objective - bound) / bound.abs().max(1e-9)
    }
}

const CASES: u64 = 1000;
/// What rounding to nanoseconds and bytes may add up to.
const ROUNDING: f64 = 1e-6;

#[test]
#[allow(clippy::print_stdout, reason = "what came out, for those who look")]
fn no_controller_is_below_the_bound() {
    let (mut blocks, mut traces, mut boosted) = (0, 0, 0);
    let mut above: Vec<f64> = Vec::new();
    for seed in 0..CASES {
        let case = Case::of(seed);
        let found = hindsight(&case.setup, &case.objective, case.fidelity).unwrap();
        let margin = case.margin(found.bound);
        assert!(
            margin >= -ROUNDING,
            "seed {seed}: a controller is {} % below {} ({:?})\n{:#?}",
            -margin * 100.0,
            found.bound,
            case.objective,
            case.setup
        );
        let gap = (found.objective - found.bound) / found.bound.max(1e-9);
        assert!(gap >= -ROUNDING, "seed {seed}: the plan is {gap} below the bound {}\n{case:?}", found.bound);
        if case.objective.value_of_time.is_finite() {
            above.push(gap);
        }
        blocks += u32::from(case.fidelity == Fidelity::Block);
        traces += u32::from(matches!(case.setup.application.phases.last(), Some(AppPhase::Finish)));
        boosted += u32::from(!found.plan.boosts.is_empty());
    }
    above.sort_by(f64::total_cmp);
    let at = |share: f64| above[((above.len() - 1) as f64 * share) as usize] * 100.0;
    println!(
        "{blocks} in blocks, {traces} traces, {boosted} plans boost; plans are above the bound by {:.3} % (median), {:.2} % \
         (nine in ten), {:.1} % (worst)",
        at(0.5),
        at(0.9),
        at(1.0)
    );
    assert!(blocks > 50 && traces > 300 && boosted > 200, "{blocks} {traces} {boosted}");
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "seed {}: {:?} {:?} {:#?}", self.seed, self.objective, self.fidelity, self.setup)
    }
}

/// Each makes the bound too high in its own way, and some controller, or the plan, is then below it.
#[test]
#[allow(clippy::print_stdout, reason = "what came out, for those who look")]
fn planted_bugs_are_found() {
    type Bug = (&'static str, fn(&mut Problem));
    let bugs: [Bug; 6] = [
        ("a slower backing volume", |problem| problem.backing.rate *= 0.99),
        ("a slower caching volume", |problem| problem.caching.rate *= 0.9),
        ("a dearer caching volume", |problem| problem.sizes.iter_mut().for_each(|size| size.per_s *= 1.5)),
        ("less room", |problem| problem.sizes.iter_mut().for_each(|size| size.capacity *= 0.8)),
        ("a slower provider", |problem| problem.before += 60.0),
        ("no caching volume", |problem| problem.sizes.clear()),
    ];
    for (name, plant) in bugs {
        let found = (0..CASES).find(|&seed| {
            let case = Case::of(seed);
            if !case.objective.value_of_time.is_finite() || case.fidelity == Fidelity::Block {
                return false;
            }
            let mut problem = Problem::new(&case.setup, &case.objective, case.fidelity, 0.0).unwrap();
            plant(&mut problem);
            let (bound, _) = optimum(&case.setup, &problem).unwrap();
            let plan = hindsight(&case.setup, &case.objective, case.fidelity).unwrap().objective;
            plan < bound * (1.0 - ROUNDING) || case.margin(bound) < -ROUNDING
        });
        println!("{name}: {found:?}");
        assert!(found.is_some(), "{name} is not found");
    }
}
