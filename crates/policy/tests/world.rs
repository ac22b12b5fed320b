//! The controller against a small world with random traffic and random answers of the provider.
//!
//! The world keeps what really exists (a volume, attached or not, adopted or not) and checks every step against it; a
//! time-out may hide that a step was done, or will be done later.

use std::collections::BTreeMap;
use std::time::Duration;

use proptest::prelude::*;
use surgetank_model::cost::{Account, Rental};
use surgetank_model::random::Random;
use surgetank_model::units::MIB;
use surgetank_model::volume_type::Billing;
use surgetank_model::{Bandwidth, Bytes, Instant, Observation};
use surgetank_policy::budget::Budget;
use surgetank_policy::{Config, Controller, Learned, Name, Outcome, Phase, Refusal, Status, Step, StepId};

const BACKING_MIB_S: u64 = 30;
const CACHING_MIB_S: u64 = 120;

/// What happens, second by second.
#[derive(Clone, Debug)]
struct Plan {
    seed: u64,
    /// Demand in MiB/s and seconds it lasts.
    traffic: Vec<(u64, u64)>,
    /// Chance that a step is not simply done.
    faults: f64,
    /// Chance per second that a user asks for something.
    hints: f64,
    adaptive: bool,
    interval_s: u64,
    budget_agbs_hour: Option<f64>,
}

impl Plan {
    fn forecasts(&self) -> bool {
        self.adaptive && self.seed.is_multiple_of(4)
    }
}

/// What really exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Real {
    volume: Option<u64>,
    attached: bool,
    adopted: bool,
    draining: bool,
    failed: bool,
}

struct World {
    plan: Plan,
    random: Random,
    now: Instant,
    controller: Controller,
    real: Real,
    observation: Observation,
    outstanding: Vec<(Instant, StepId, Step)>,
    /// A step that was answered with a time-out and is carried out later.
    late: Option<(Instant, Step)>,
    steps: Vec<(Instant, Step)>,
    boosts: Vec<Instant>,
    /// Created and not yet deleted, as far as the controller can know.
    owed: bool,
    spent: Vec<f64>,
    /// What is billed: from the wish for a volume until its deletion is known.
    billed: Account,
    /// What the provider charges: from the making of a volume until its deletion.
    charged: Account,
    /// How often each step was answered how.
    answers: BTreeMap<(&'static str, &'static str), u64>,
    hot_before: bool,
    hinted: bool,
}

impl World {
    fn new(plan: Plan) -> Self {
        let name = if plan.adaptive { Name::Adaptive } else { Name::Paper };
        let mut config = Config::new(
            name,
            Bandwidth::from_mib_s(BACKING_MIB_S),
            Bytes::from_gib(4),
            Bandwidth::from_mib_s(CACHING_MIB_S),
        );
        config.initial_size = Bytes::from_mib(1024);
        config.size_min = Bytes::from_mib(64);
        config.grain = Bytes::from_mib(64);
        config.inactivity_delay = Duration::from_secs(5);
        config.boost_interval_min = Duration::from_secs(plan.interval_s);
        config.budget = Budget { agbs_per_hour: plan.budget_agbs_hour, ..Budget::default() };
        config.forecast = plan.forecasts();
        config.seed = plan.seed;
        config.validate().unwrap();
        Self {
            random: Random::from_seed(plan.seed ^ 0x5eed),
            now: Instant::ZERO,
            controller: Controller::new(Instant::ZERO, config, Learned::default()),
            real: Real::default(),
            observation: Observation::default(),
            outstanding: Vec::new(),
            late: None,
            steps: Vec::new(),
            boosts: Vec::new(),
            owed: false,
            spent: Vec::new(),
            billed: Account::default(),
            charged: Account::default(),
            answers: BTreeMap::new(),
            hot_before: false,
            hinted: false,
            plan,
        }
    }

    /// One second of traffic of `demand` MiB/s.
    fn second(&mut self, demand: u64, faults: f64) {
        self.now += Duration::from_secs(1);
        self.traffic(demand, faults);
        self.answer(faults);
        self.controller.observe(self.now, self.observation);
        // The drain does not count: only what the application moved.
        self.hot_before = demand.min(if self.real.adopted { CACHING_MIB_S } else { BACKING_MIB_S }) as f64
            > 0.30 * BACKING_MIB_S as f64;
        if self.plan.hints > 0.0 && self.random.chance(self.plan.hints) {
            match self.random.below(3) {
                0 => self.hinted |= self.controller.hint_boost(self.now).is_ok(),
                1 => self.controller.hint_drain(self.now),
                _ => self.controller.hint_detach(self.now),
            }
        }
        while let Some(at) = self.controller.next_deadline().filter(|at| *at <= self.now) {
            self.controller.tick(self.now);
            self.take_steps();
            assert!(self.controller.next_deadline() != Some(at), "a deadline that never passes");
        }
        self.take_steps();
        let gib = self.real.volume.map_or(0.0, |mib| mib as f64 / 1024.0);
        self.spent.push(gib * CACHING_MIB_S as f64);
    }

    fn traffic(&mut self, demand: u64, faults: f64) {
        let observation = &mut self.observation;
        let Real { volume: Some(size), adopted: true, draining, failed, .. } = self.real else {
            observation.written_bytes += demand.min(BACKING_MIB_S) * MIB;
            return;
        };
        let drained = observation.dirty_bytes.min(BACKING_MIB_S * MIB);
        observation.dirty_bytes -= drained;
        if draining || failed {
            observation.written_bytes += demand.min(BACKING_MIB_S) * MIB;
        } else {
            let wanted = demand.min(CACHING_MIB_S) * MIB;
            let absorbed = wanted.min(size * MIB - observation.dirty_bytes);
            observation.dirty_bytes += absorbed;
            observation.evicted_bytes += wanted - absorbed;
            observation.written_bytes += wanted;
            observation.high_water_bytes = observation.high_water_bytes.max(observation.dirty_bytes);
        }
        if self.random.chance(faults / 50.0) {
            self.real.failed = true;
            observation.cache_failed = true;
        }
    }

    fn take_steps(&mut self) {
        while let Some((id, step)) = self.controller.next_step() {
            self.check(&step);
            if let Step::Create { size } = step {
                self.billed.add(rental(size, self.now));
            }
            self.steps.push((self.now, step.clone()));
            let at_once = matches!(step, Step::Absorb | Step::Drain);
            let delay = if at_once { 0 } else { self.random.below(4) };
            self.outstanding.push((self.now + Duration::from_secs(delay), id, step));
        }
    }

    /// The order of steps, and that nothing is done to what may hold data.
    fn check(&mut self, step: &Step) {
        match self.outstanding.as_slice() {
            [] => {}
            [(_, _, Step::Release)] => assert_eq!(*step, Step::Absorb, "only Absorb overtakes a Release"),
            others => panic!("{step:?} while {others:?} is outstanding"),
        }
        match step {
            Step::Create { size } => {
                assert!(!self.owed, "the last volume was not deleted");
                let wanted = self.hot_before || std::mem::take(&mut self.hinted) || self.plan.forecasts();
                assert!(wanted, "a boost below the threshold");
                let interval = Duration::from_secs(self.plan.interval_s);
                let early = self.boosts.last().is_some_and(|last| self.now.since(*last) < interval);
                assert!(!early || self.plan.hints > 0.0, "boosts too close");
                assert!(
                    size.get().is_multiple_of(64 * MIB) && *size <= Bytes::from_gib(4) && *size >= Bytes::from_mib(64)
                );
                self.owed = true;
            }
            Step::Detach | Step::Delete => {
                assert!(!self.real.adopted, "{step:?} of a volume that the engine holds");
                assert!(self.owed);
            }
            Step::Attach | Step::Adopt | Step::Absorb | Step::Drain | Step::Release => assert!(self.owed),
        }
    }

    fn answer(&mut self, faults: f64) {
        if let Some((_, step)) = self.late.take_if(|(at, _)| *at <= self.now) {
            self.carry_out(&step);
        }
        while let Some(index) = self.outstanding.iter().position(|(at, ..)| *at <= self.now) {
            let (_, id, step) = self.outstanding.remove(index);
            let outcome = self.outcome(&step, faults);
            if step == Step::Delete && outcome == Outcome::Done {
                self.owed = false;
                self.billed.end("caching", self.now);
            }
            *self.answers.entry((name(&step), answer(&outcome))).or_default() += 1;
            if matches!(step, Step::Create { .. }) && outcome == Outcome::Done {
                self.boosts.push(self.steps.iter().rev().find(|(_, other)| *other == step).unwrap().0);
            }
            self.controller.complete(self.now, id, outcome);
            self.take_steps();
        }
    }

    fn outcome(&mut self, step: &Step, faults: f64) -> Outcome {
        if *step == Step::Release && self.real.adopted && !self.real.failed {
            if !self.real.draining {
                return Outcome::Cancelled;
            }
            self.observation.dirty_bytes = 0;
        }
        if !self.random.chance(faults) {
            self.late = None; // asked again, or made void by what follows
            self.carry_out(step);
            return Outcome::Done;
        }
        let engine = matches!(step, Step::Absorb | Step::Drain | Step::Release);
        match self.random.below(if engine { 2 } else { 6 }) {
            0 => Outcome::Refused(Refusal::Transient("a fault".to_owned())),
            1 => {
                match self.random.below(3) {
                    0 => self.carry_out(step),
                    1 if !engine => {
                        self.late = Some((self.now + Duration::from_secs(self.random.below(5)), step.clone()))
                    }
                    _ => {}
                }
                Outcome::Refused(Refusal::Timeout)
            }
            2 => Outcome::Refused(Refusal::Quota),
            3 => Outcome::Refused(Refusal::Capacity),
            4 => Outcome::Refused(Refusal::AttachLimit),
            _ => Outcome::Refused(Refusal::Permanent("no permission".to_owned())),
        }
    }

    /// Steps are idempotent, and void where what they need is gone.
    fn carry_out(&mut self, step: &Step) {
        match step {
            Step::Create { size } => {
                if self.real.volume.is_none() {
                    self.charged.add(rental(*size, self.now));
                }
                self.real.volume = Some(size.get() / MIB);
            }
            Step::Attach => self.real.attached = self.real.volume.is_some(),
            Step::Adopt if self.real.attached && !self.real.adopted => {
                self.real = Real { adopted: true, draining: false, ..self.real };
                self.observation.high_water_bytes = 0;
                self.observation.evicted_bytes = 0;
                self.observation.cache_bytes = self.real.volume.unwrap() * MIB;
            }
            Step::Adopt => {}
            Step::Absorb => self.real.draining = false,
            Step::Drain => self.real.draining = true,
            Step::Release => {
                self.real = Real { adopted: false, draining: false, failed: false, ..self.real };
                self.observation =
                    Observation { dirty_bytes: 0, cache_bytes: 0, cache_failed: false, ..self.observation };
            }
            Step::Detach => self.real.attached = false,
            Step::Delete => {
                self.real = Real::default();
                self.charged.end("caching", self.now);
            }
        }
    }

    fn run(mut self) -> Self {
        for (demand, seconds) in self.plan.traffic.clone() {
            for _ in 0..seconds {
                self.second(demand, self.plan.faults);
            }
        }
        self
    }

    /// No more faults and no more traffic: everything ends, nothing is rented.
    fn settle(mut self) -> Self {
        self.plan.hints = 0.0;
        // Longer than the longest wait, which only a failed release has: 30 min.
        for _ in 0..4000 {
            self.second(0, 0.0);
        }
        assert_eq!(self.controller.phase(), Phase::Idle, "{:?}", self.controller.status());
        assert_eq!((self.real, self.owed, self.outstanding.len()), (Real::default(), false, 0));
        let open = |account: &Account| account.rentals().iter().any(|rental| rental.until.is_none());
        assert!(!open(&self.billed) && !open(&self.charged), "a bill that does not end");
        let (billed, charged) = (self.billed.total(self.now).agbs, self.charged.total(self.now).agbs);
        assert!(billed >= charged, "{billed} AGBs billed of {charged} charged");
        self
    }

    fn most_in_an_hour(&self) -> f64 {
        let mut most: f64 = 0.0;
        let mut sum = 0.0;
        for (second, spent) in self.spent.iter().enumerate() {
            sum += spent;
            if second >= 3600 {
                sum -= self.spent[second - 3600];
            }
            most = most.max(sum);
        }
        most
    }
}

fn rental(size: Bytes, from: Instant) -> Rental {
    let bandwidth = Bandwidth::from_mib_s(CACHING_MIB_S);
    let billing = Billing::default();
    Rental { volume: "caching".to_owned(), size, bandwidth, usd_per_hour: None, billing, from, until: None }
}

fn name(step: &Step) -> &'static str {
    match step {
        Step::Create { .. } => "create",
        Step::Attach => "attach",
        Step::Adopt => "adopt",
        Step::Absorb => "absorb",
        Step::Drain => "drain",
        Step::Release => "release",
        Step::Detach => "detach",
        Step::Delete => "delete",
    }
}

fn answer(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "done",
        Outcome::Cancelled => "cancelled",
        Outcome::Refused(Refusal::Transient(_)) => "failed",
        Outcome::Refused(Refusal::Timeout) => "timed out",
        Outcome::Refused(Refusal::Quota) => "quota",
        Outcome::Refused(Refusal::Capacity) => "capacity",
        Outcome::Refused(Refusal::AttachLimit) => "attach limit",
        Outcome::Refused(Refusal::Permanent(_)) => "permanent",
    }
}

fn plans(faults: impl Strategy<Value = f64>, hints: impl Strategy<Value = f64>) -> impl Strategy<Value = Plan> {
    let demand = prop_oneof![3 => Just(0u64), 1 => 0u64..9, 3 => 10u64..200];
    let traffic = prop::collection::vec((demand, 1u64..60), 1..30);
    let budget = prop_oneof![Just(None), (20_000.0..200_000.0f64).prop_map(Some)];
    (any::<u64>(), traffic, faults, hints, any::<bool>(), prop_oneof![Just(0u64), 1u64..120], budget).prop_map(
        |(seed, traffic, faults, hints, adaptive, interval_s, budget_agbs_hour)| Plan {
            seed,
            traffic,
            faults,
            hints,
            adaptive,
            interval_s,
            budget_agbs_hour,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any answers: order, one step at a time, nothing left behind.
    #[test]
    fn nothing_is_left_behind(plan in plans(0.0..0.9f64, prop_oneof![Just(0.0), 0.0..0.2f64])) {
        World::new(plan).run().settle();
    }

    /// A provider within the reserve: the budget holds over every hour.
    #[test]
    fn the_budget_holds(plan in plans(Just(0.0), prop_oneof![Just(0.0), 0.0..0.2f64])) {
        let budget = plan.budget_agbs_hour;
        let world = World::new(plan).run().settle();
        if let Some(budget) = budget {
            prop_assert!(world.most_in_an_hour() <= budget, "{} of {budget}", world.most_in_an_hour());
        }
    }

    #[test]
    fn the_same_events_give_the_same_steps(plan in plans(0.0..0.9f64, 0.0..0.2f64)) {
        let (one, other) = (World::new(plan.clone()).run(), World::new(plan).run());
        prop_assert_eq!(one.steps, other.steps);
        prop_assert_eq!(one.controller.status(), other.controller.status());
    }

    #[test]
    fn without_faults_a_long_burst_is_boosted(demand in 10u64..200, seed in any::<u64>(), adaptive in any::<bool>()) {
        let plan = Plan { seed, traffic: vec![(0, 5), (demand, 30)], faults: 0.0, hints: 0.0, adaptive, interval_s: 0, budget_agbs_hour: None };
        let world = World::new(plan).run();
        prop_assert_eq!(world.controller.phase(), Phase::Boost);
        let names: Vec<_> = world.steps.iter().map(|(_, step)| step.clone()).collect();
        prop_assert_eq!(names, [Step::Create { size: Bytes::from_gib(1) }, Step::Attach, Step::Adopt]);
        prop_assert_eq!(world.settle().controller.status().boosts, 1);
    }
}

/// A thousand lives of volumes that were made, in virtual time, with the table of what was answered how.
#[test]
#[allow(clippy::print_stdout, reason = "the table is the result")]
fn a_thousand_lives_leave_nothing_and_their_bills_end() {
    let (mut lives, mut answers) = (0, BTreeMap::new());
    for seed in 0.. {
        let traffic = (0..12).map(|burst| if burst % 2 == 0 { (100, 20 + seed % 30) } else { (0, 15) }).collect();
        let faults = 0.1 + 0.05 * (seed % 10) as f64;
        let adaptive = seed % 2 == 0;
        let plan = Plan { seed, traffic, faults, hints: 0.05, adaptive, interval_s: 0, budget_agbs_hour: None };
        let world = World::new(plan).run().settle();
        lives += world.charged.rentals().len();
        for (key, count) in world.answers {
            *answers.entry(key).or_insert(0) += count;
        }
        if lives >= 1000 {
            break;
        }
    }
    println!("{lives} volumes made and given back");
    for ((step, answer), count) in answers {
        println!("{step:8} {answer:13} {count:>6}");
    }
}

fn status_of(world: &World) -> Status {
    world.controller.status()
}

#[test]
fn a_new_burst_cancels_the_drain() {
    let plan = Plan {
        seed: 1,
        traffic: vec![(0, 5), (100, 20), (0, 8), (100, 10)],
        faults: 0.0,
        hints: 0.0,
        adaptive: false,
        interval_s: 0,
        budget_agbs_hour: None,
    };
    let world = World::new(plan).run();
    let tail: Vec<_> = world.steps.iter().skip(3).map(|(_, step)| step.clone()).collect();
    assert_eq!(tail, [Step::Drain, Step::Absorb]);
    assert_eq!(status_of(&world).phase, Phase::Boost);
    world.settle();
}

#[test]
fn a_permanent_refusal_waits_long_and_says_why() {
    let mut world = World::new(Plan {
        seed: 1,
        traffic: vec![],
        faults: 0.0,
        hints: 0.0,
        adaptive: true,
        interval_s: 0,
        budget_agbs_hour: None,
    });
    world.second(0, 0.0);
    for _ in 0..600 {
        world.second(100, 0.0);
        if let [(_, id, Step::Create { .. })] = world.outstanding[..] {
            world.outstanding.clear();
            let refusal = Refusal::Permanent("the type \"fats\" does not exist".to_owned());
            world.controller.complete(world.now, id, Outcome::Refused(refusal));
            world.take_steps();
        }
    }
    let creates = world.steps.iter().filter(|(_, step)| matches!(step, Step::Create { .. })).count();
    assert_eq!(creates, 1);
    assert!(status_of(&world).backing_off.is_some_and(|why| why.contains("fats")));
    assert!(status_of(&world).retry_in.is_some());
    assert_eq!(status_of(&world).phase, Phase::Idle);
}
