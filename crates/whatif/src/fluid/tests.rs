//! Samples that are left out change nothing.

use surgetank_cache::ReadFill;
use surgetank_model::Bandwidth;
use surgetank_planner::cost::Tariff;
use surgetank_planner::scenario::Latencies;
use surgetank_policy::budget::Budget;
use surgetank_policy::{Config, Preset};

use super::*;
use crate::chance::{Chance, limits};
use crate::setup::{Application, Caching, Volume};
use crate::{RunReport, run_machines};

fn phases(chance: &mut Chance) -> Vec<AppPhase> {
    let mib = |mib: u64| Bytes::new(mib << 20);
    if chance.one_in(4) {
        let every = chance.time(1, 40);
        let count = chance.between(5, 60) as u32;
        let mut arrivals: Vec<AppPhase> = (0..count)
            .filter_map(|number| {
                let (read, written) = (chance.between(0, 200), chance.between(0, 2000));
                let arrives = !chance.one_in(3);
                arrives.then(|| AppPhase::Arrive { at: every * number, read: mib(read), written: mib(written) })
            })
            .collect();
        arrivals.push(AppPhase::Finish);
        return arrivals;
    }
    let (compute, written) = (chance.time(20, 700), mib(chance.between(200, 5000)));
    let mut phases = Vec::new();
    for _ in 0..chance.between(1, 5) {
        let irregular = chance.one_in(4);
        phases.push(AppPhase::Write(if irregular { mib(chance.between(1, 9000)) } else { written }));
        if chance.one_in(4) {
            phases.push(AppPhase::Read(mib(chance.between(1, 3000))));
        }
        phases.push(AppPhase::Compute(if chance.one_in(5) { chance.time(1, 2000) } else { compute }));
    }
    phases
}

fn budget(chance: &mut Chance) -> Budget {
    match chance.between(0, 7) {
        0 => Budget { agbs_per_hour: Some(chance.between(10_000, 800_000) as f64), ..Budget::default() },
        1 => Budget { usd_per_day: Some(chance.between(1, 100) as f64 / 2000.0), ..Budget::default() },
        _ => Budget::default(),
    }
}

fn policy(chance: &mut Chance, backing: Bandwidth, caching: Bandwidth) -> Config {
    let preset = if chance.one_in(3) { Preset::PAPER } else { Preset::ADAPTIVE };
    let mut policy = Config::new(preset, backing, Bytes::from_gib(50), caching);
    policy.caching_usd_per_gib_hour = Some(0.02);
    policy.budget = budget(chance);
    policy.initial_size = Bytes::from_gib(chance.between(1, 8));
    policy.utilization_threshold = chance.between(5, 110) as f64 / 100.0;
    policy.inactivity_delay = if chance.one_in(12) { Duration::ZERO } else { chance.time(2, 60) };
    if chance.one_in(3) {
        policy.boost_interval_min = chance.time(0, 400);
    }
    policy
}

fn setup(chance: &mut Chance, seed: u64) -> Setup {
    let (backing, caching) = (chance.between(5, 150), chance.between(20, 400));
    let tariff = |mib_s| Tariff::new(Bandwidth::from_mib_s(mib_s), None, None);
    Setup {
        vms: chance.between(1, 3) as u32,
        application: Application {
            phases: phases(chance),
            initial_phases: 0,
            request: Bytes::new(1 << 20),
            depth: chance.between(1, 32) as u32,
        },
        backing: Volume {
            size: Bytes::from_gib(50),
            limits: limits(backing),
            credits: chance.credits(4, backing),
            tariff: tariff(backing),
        },
        caching: Caching {
            limits: limits(caching),
            alone: limits(caching),
            tariff: tariff(caching),
            read_fill: ReadFill::Never,
        },
        policy: policy(chance, Bandwidth::from_mib_s(backing), Bandwidth::from_mib_s(caching)),
        sampling: if chance.one_in(3) { chance.time(1, 5) } else { Duration::from_secs(1) },
        provider: Latencies {
            create: chance.time(0, 20),
            attach: chance.time(0, 60),
            detach: chance.time(0, 10),
            delete: chance.time(0, 5),
            grow: seed.is_multiple_of(3).then(|| Duration::from_secs(seed % 30)),
            jitter: if chance.one_in(3) { 0.7 } else { 0.0 },
            faults: if chance.one_in(3) { 0.3 } else { 0.0 },
        },
        seed,
    }
}

fn run(setup: &Setup, skips_samples: bool) -> RunReport {
    let machines = (0..setup.machines()).map(|vm| Fluid { skips_samples, ..Fluid::new(setup, Mode::Elastic, vm) });
    run_machines(setup, Mode::Elastic, machines, |_, _, _| (), |_| ()).unwrap()
}

/// To the last bit: completion, boosts, cost and traffic.
#[test]
fn samples_that_are_left_out_change_nothing() {
    const SETUPS: u64 = 1000;
    let (mut boosts, mut taken, mut of) = (0, 0, 0);
    for seed in 0..SETUPS {
        let setup = setup(&mut Chance::of(seed), seed);
        let (some, all) = (run(&setup, true), run(&setup, false));
        boosts += all.boosts.len();
        taken += some.events;
        of += all.events;
        assert!(some.events <= all.events, "seed {seed}: {} of {}", some.events, all.events);
        let told = |outcome: RunReport| format!("{:#?}", RunReport { events: 0, ..outcome });
        let (some, all) = (told(some), told(all));
        let differs = some.lines().zip(all.lines()).find(|(some, all)| some != all);
        assert!(some == all, "seed {seed}: {differs:?}\n{setup:#?}");
    }
    assert!(boosts as u64 > 2 * SETUPS && taken < of / 2, "{boosts} boosts, {taken} of {of} events");
}
