//! Samples that are left out change nothing.

use surgetank_cache::ReadFill;
use surgetank_model::Bandwidth;
use surgetank_model::random::Random;
use surgetank_model::volume_type::Credits as BurstCredits;
use surgetank_planner::cost::Tariff;
use surgetank_planner::scenario::Latencies;
use surgetank_policy::budget::Budget;
use surgetank_policy::{Config, Preset};

use super::*;
use crate::setup::{Application, Caching, Volume};
use crate::{RunReport, run_machines};

/// What is drawn at random.
struct Chance(Random);

impl Chance {
    fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.below(high - low + 1)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.0.below(count) == 0
    }

    /// Mostly on the sampling grid, so that what coincides with samples is seen as well.
    fn time(&mut self, low_s: u64, high_s: u64) -> Duration {
        let seconds = Duration::from_secs(self.between(low_s, high_s));
        if self.one_in(3) { seconds + Duration::from_millis(self.between(1, 999)) } else { seconds }
    }

    fn phases(&mut self) -> Vec<AppPhase> {
        let mib = |mib: u64| Bytes::new(mib << 20);
        if self.one_in(4) {
            let every = self.time(1, 40);
            let count = self.between(5, 60) as u32;
            let mut arrivals: Vec<AppPhase> = (0..count)
                .filter_map(|number| {
                    let (read, written) = (self.between(0, 200), self.between(0, 2000));
                    let arrives = !self.one_in(3);
                    arrives.then(|| AppPhase::Arrive { at: every * number, read: mib(read), written: mib(written) })
                })
                .collect();
            arrivals.push(AppPhase::Finish);
            return arrivals;
        }
        let (compute, written) = (self.time(20, 700), mib(self.between(200, 5000)));
        let mut phases = Vec::new();
        for _ in 0..self.between(1, 5) {
            let irregular = self.one_in(4);
            phases.push(AppPhase::Write(if irregular { mib(self.between(1, 9000)) } else { written }));
            if self.one_in(4) {
                phases.push(AppPhase::Read(mib(self.between(1, 3000))));
            }
            phases.push(AppPhase::Compute(if self.one_in(5) { self.time(1, 2000) } else { compute }));
        }
        phases
    }

    fn credits(&mut self, backing: u64) -> Option<BurstCredits> {
        let operations = self.one_in(2);
        let per_s = |mib_s: u64| if operations { mib_s } else { mib_s << 20 };
        self.one_in(4).then(|| BurstCredits {
            unit: if operations { CreditUnit::Operations } else { CreditUnit::Bytes },
            baseline_per_s: per_s(self.between(1, backing * 3 / 2)),
            burst_per_s: per_s(backing * 2),
            bucket: per_s(self.between(1, 20_000)),
        })
    }

    fn budget(&mut self) -> Budget {
        match self.between(0, 7) {
            0 => Budget { agbs_per_hour: Some(self.between(10_000, 800_000) as f64), ..Budget::default() },
            1 => Budget { usd_per_day: Some(self.between(1, 100) as f64 / 2000.0), ..Budget::default() },
            _ => Budget::default(),
        }
    }

    fn policy(&mut self, backing: Bandwidth, caching: Bandwidth) -> Config {
        let preset = if self.one_in(3) { Preset::PAPER } else { Preset::ADAPTIVE };
        let mut policy = Config::new(preset, backing, Bytes::from_gib(50), caching);
        policy.caching_usd_per_gib_hour = Some(0.02);
        policy.budget = self.budget();
        policy.initial_size = Bytes::from_gib(self.between(1, 8));
        policy.utilization_threshold = self.between(5, 110) as f64 / 100.0;
        policy.inactivity_delay = if self.one_in(12) { Duration::ZERO } else { self.time(2, 60) };
        if self.one_in(3) {
            policy.boost_interval_min = self.time(0, 400);
        }
        policy
    }

    fn setup(&mut self, seed: u64) -> Setup {
        let (backing, caching) = (self.between(5, 150), self.between(20, 400));
        let limits = |mib_s| Limits { bandwidth: Some(Bandwidth::from_mib_s(mib_s)), iops: None };
        let tariff = |mib_s| Tariff::new(Bandwidth::from_mib_s(mib_s), None, None);
        Setup {
            vms: self.between(1, 3) as u32,
            application: Application {
                phases: self.phases(),
                initial_phases: 0,
                request: Bytes::new(1 << 20),
                depth: self.between(1, 32) as u32,
            },
            backing: Volume {
                size: Bytes::from_gib(50),
                limits: limits(backing),
                credits: self.credits(backing),
                tariff: tariff(backing),
            },
            caching: Caching { limits: limits(caching), tariff: tariff(caching), read_fill: ReadFill::Never },
            policy: self.policy(Bandwidth::from_mib_s(backing), Bandwidth::from_mib_s(caching)),
            sampling: if self.one_in(3) { self.time(1, 5) } else { Duration::from_secs(1) },
            provider: Latencies {
                create: self.time(0, 20),
                attach: self.time(0, 60),
                detach: self.time(0, 10),
                delete: self.time(0, 5),
                jitter: if self.one_in(3) { 0.7 } else { 0.0 },
                faults: if self.one_in(3) { 0.3 } else { 0.0 },
            },
            seed,
        }
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
        let setup = Chance(Random::from_seed(seed)).setup(seed);
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
