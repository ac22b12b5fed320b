//! The controller against a small world with random traffic and random answers of the provider.

mod support;

use std::collections::BTreeMap;
use std::panic::{catch_unwind, set_hook, take_hook};

use proptest::prelude::*;
use surgetank_model::Bytes;
use surgetank_model::random::Random;
use surgetank_policy::planted::{Bug, plant};
use surgetank_policy::{BoostRecord, Phase, Refusal, Status, Step, StepOutcome};

use support::{Plan, World};

fn plans(faults: impl Strategy<Value = f64>, hints: impl Strategy<Value = f64>) -> impl Strategy<Value = Plan> {
    let demand = prop_oneof![3 => Just(0u64), 1 => 0u64..9, 3 => 10u64..200];
    let traffic = prop::collection::vec((demand, 1u64..60), 1..30);
    let rewrites = prop::collection::vec(prop_oneof![1 => Just(0.0), 1 => 0.0..1.0f64, 3 => 1.0..=8.0f64], 30);
    let budget = || prop_oneof![Just(None), (20_000.0..200_000.0f64).prop_map(Some)];
    let who = (any::<bool>(), prop_oneof![Just(0u64), 1u64..120], 0.8..=1.0f64, prop_oneof![Just(0.0), 0.0..0.1f64]);
    (any::<u64>(), traffic, rewrites, faults, hints, who, budget(), budget()).prop_map(
        |(
            seed,
            traffic,
            rewrites,
            faults,
            hints,
            (adaptive, interval_s, pace, announcements),
            budget_agbs_hour,
            budget_agbs_day,
        )| {
            Plan {
                seed,
                traffic,
                rewrites,
                pace,
                faults,
                hints,
                announcements,
                adaptive,
                interval_s,
                budget_agbs_hour,
                budget_agbs_day,
                ..Plan::default()
            }
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

    /// Whatever is rewritten and whatever the provider refuses, within the reserve: the budgets hold at every moment.
    #[test]
    fn the_budget_holds(
        plan in plans(prop_oneof![Just(0.0), 0.0..0.6f64], prop_oneof![Just(0.0), 0.0..0.2f64]),
    ) {
        let world = World::new(Plan { provider_faults: true, ..plan }).run().settle();
        prop_assert_eq!(world.overspent(), None);
    }

    #[test]
    fn the_same_events_give_the_same_steps(plan in plans(0.0..0.9f64, 0.0..0.2f64)) {
        let (one, other) = (World::new(plan.clone()).run(), World::new(plan).run());
        prop_assert_eq!(one.steps, other.steps);
        prop_assert_eq!(one.controller.status(), other.controller.status());
    }

    #[test]
    fn without_faults_a_long_burst_is_boosted(demand in 10u64..200, seed in any::<u64>(), adaptive in any::<bool>()) {
        // Less than 30 MiB/s the backing volume serves in time, which is no burst for `adaptive`.
        let demand = if adaptive { demand.max(30) } else { demand };
        let plan = Plan { seed, traffic: vec![(0, 5), (demand, 30)], adaptive, ..Plan::default() };
        let world = World::new(plan).run();
        prop_assert_eq!(world.controller.phase(), Phase::Boost);
        // It may grow then.
        let steps = world.steps.iter().map(|(_, step)| step).filter(|step| !matches!(step, Step::Grow { .. }));
        let steps: Vec<_> = steps.collect();
        let begun = matches!(steps[..], [Step::Create { .. }, Step::Attach, Step::Adopt]);
        prop_assert!(begun && (adaptive || *steps[0] == Step::Create { size: Bytes::from_gib(1) }), "{steps:?}");
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
        let plan = Plan { seed, traffic, faults, hints: 0.05, adaptive, ..Plan::default() };
        let world = World::new(plan).run().settle();
        lives += world.charged.rentals().len();
        for (key, count) in world.answers {
            *answers.entry(key).or_insert(0) += count;
        }
        if lives >= 1000 {
            break;
        }
    }
    println!("{lives} volumes made and deleted");
    for ((step, answer), count) in answers {
        println!("{step:8} {answer:13} {count:>6}");
    }
}

/// A plan by its number: bursts under an hourly budget, rewritten at `rewrites` to one.
fn campaign(seed: u64, rewrites: f64, faulty: bool) -> Plan {
    let mut random = Random::from_seed(seed);
    let stretch = |random: &mut Random| {
        let demand = match random.below(7) {
            0..=2 => 0,
            3 => random.below(9),
            _ => 10 + random.below(190),
        };
        (demand, 1 + random.below(59))
    };
    Plan {
        seed,
        traffic: (0..12).map(|_| stretch(&mut random)).collect(),
        rewrites: vec![rewrites; 12],
        pace: 0.8 + 0.2 * random.unit(),
        faults: if faulty { 0.4 * random.unit() } else { 0.0 },
        provider_faults: true,
        adaptive: random.below(2) == 0,
        budget_agbs_hour: Some(20_000.0 + 180_000.0 * random.unit()),
        hints: if random.below(2) == 0 { 0.02 } else { 0.0 },
        ..Plan::default()
    }
}

/// A plan by its number: bursts that pay or do not, of all sizes, one without an end, and caches that do not help.
fn market(seed: u64) -> Plan {
    let mut random = Random::from_seed(seed);
    let stretch = |random: &mut Random| match random.below(8) {
        0..=2 => (0, 20 + random.below(200)),
        3 => (random.below(29), 1 + random.below(200)),
        4 => (30 + random.below(30), 1 + random.below(10)),
        _ => (30 + random.below(170), 1 + random.below(80)),
    };
    let mut traffic: Vec<_> = (0..24).map(|_| stretch(&mut random)).collect();
    if random.below(4) == 0 {
        traffic.push((60 + random.below(100), 1500));
    }
    Plan {
        seed: seed * 4 + 1,
        traffic,
        adaptive: true,
        value_of_time: 1.0 + 4.0 * random.unit(),
        useless: random.below(3) == 0,
        ..Plan::default()
    }
}

/// A plan by its number: bursts that are longer than the one before, and a provider that often does not say what became of a
/// growth.
fn growing(seed: u64) -> Plan {
    let bursts = (0..6).flat_map(|burst| [(0, 40), (100 + 10 * (seed % 8), 20 + 15 * burst + seed % 40)]);
    Plan {
        seed: 3 * seed + 1,
        traffic: bursts.collect(),
        faults: 0.1 * (1 + seed % 5) as f64,
        provider_faults: true,
        adaptive: true,
        ..Plan::default()
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "the counts are the result")]
fn a_growth_that_is_left_half_done_is_asked_for_again_before_long() {
    let mut answers = BTreeMap::new();
    for seed in 0..200 {
        let world = World::new(growing(seed)).run().settle();
        for ((step, answer), count) in world.answers {
            *answers.entry(answer).or_insert(0) += if step == "grow" { count } else { 0 };
        }
    }
    println!("growths: {answers:?}");
    let unknown = answers["timed out"] + answers["failed"];
    assert!(answers["done"] > 100 && unknown > 50, "{answers:?}");
}

/// The first plan of the campaign that exceeds its budget, or in which something of the controller does not hold, and how many
/// went well before.
fn first_broken() -> Option<(u64, String)> {
    let plans = (0..650).flat_map(|seed| {
        [(0.0, false), (0.5, true), (1.0, false), (2.0, true), (4.0, false), (8.0, true)]
            .map(|(rewrites, faulty)| campaign(seed, rewrites, faulty))
    });
    let announced = |seed| Plan { announcements: 0.02, hints: 0.02, ..campaign(seed, 0.0, seed % 2 == 0) };
    let plans = plans.chain((0..200).map(market)).chain((0..200).map(announced)).chain((0..200).map(growing));
    let broken = |plan: Plan| {
        let world = World::new(plan).run().settle();
        // A provider that fails makes boosts in vain.
        let vain = if world.plan.budget_agbs_hour.is_none() && world.plan.faults > 0.0 { None } else { world.vain() };
        world.overspent().or(vain)
    };
    let runs = plans.map(|plan| match catch_unwind(|| broken(plan)) {
        Ok(overspent) => overspent,
        Err(panic) => Some(panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic".to_owned())),
    });
    runs.zip(1..).find_map(|(broken, number)| Some((number, broken?)))
}

#[test]
#[allow(clippy::print_stdout, reason = "the table is the result")]
fn boosts_in_vain_have_a_bounded_cost() {
    let (mut boosts, mut vain) = (0, 0);
    for seed in 0..400 {
        let world = World::new(market(seed)).run().settle();
        assert_eq!(world.vain(), None, "seed {seed}");
        boosts += world.records.len();
        let value = world.controller.config().value_of_time;
        let paid =
            |record: &&BoostRecord| value * record.observed.saved.0.as_secs_f64() >= record.observed.cost_agbs as f64;
        vain += world.records.iter().filter(|record| !paid(record)).count();
    }
    println!("{boosts} boosts, {vain} in vain");
    // Volumes that grow make boosts that pay fewer and longer.
    assert!(boosts > 400 && vain < boosts * 11 / 20, "{boosts} boosts, {vain} in vain");
}

/// The tests are tested: what exceeds a budget is seen, and what does not hold of a controller.
#[test]
#[allow(clippy::print_stdout, reason = "the table is the result")]
fn planted_bugs_are_found() {
    assert_eq!(first_broken(), None);
    // A bug may show by a panic.
    let hook = take_hook();
    set_hook(Box::new(|_| ()));
    let mut found = Vec::new();
    for &bug in Bug::ALL {
        plant(Some(bug));
        found.push((bug, first_broken()));
    }
    plant(None);
    set_hook(hook);
    for (bug, found) in found {
        let (runs, what) = found.unwrap_or_else(|| panic!("{bug:?} is not found"));
        let what: String = what.chars().take(110).collect();
        println!("{bug:?}: {what}, after {runs} runs");
    }
}

/// How often the budget would be exceeded if rewriting prolonged drains, and what letting changes wait costs.
#[test]
#[allow(clippy::print_stdout, reason = "the table is the result")]
fn rewriting_at_any_ratio_keeps_the_budget() {
    for (rewrites, faulty) in
        [(0.0, true), (0.5, true), (1.0, false), (2.0, false), (4.0, false), (8.0, false), (8.0, true)]
    {
        let (mut broken, mut most, mut boosts, mut waited_s) = (0, 0.0f64, 0, 0);
        for seed in 0..400 {
            let plan = campaign(seed, rewrites, faulty);
            let limit = plan.budget_agbs_hour.unwrap();
            let world = World::new(plan).run().settle();
            broken += u32::from(world.overspent().is_some());
            most = most.max(world.most_within(3600) / limit);
            boosts += world.charged.rentals().len();
            waited_s += world.waited_s;
        }
        println!(
            "{rewrites} rewritten to drained, faults {faulty}: {broken} of 400 exceed, at most {:.0} %, {boosts} boosts, changes waited {waited_s} s",
            most * 100.0
        );
        assert_eq!(broken, 0, "{rewrites} rewritten to drained");
    }
}

fn status_of(world: &World) -> Status {
    world.controller.status()
}

#[test]
fn a_new_burst_cancels_the_drain() {
    let plan = Plan { traffic: vec![(0, 5), (100, 20), (0, 8), (100, 10)], ..Plan::default() };
    let world = World::new(plan).run();
    let tail: Vec<_> = world.steps.iter().skip(3).map(|(_, step)| step.clone()).collect();
    assert_eq!(tail, [Step::Drain, Step::Absorb]);
    assert_eq!(status_of(&world).phase, Phase::Boost);
    world.settle();
}

#[test]
fn a_permanent_refusal_waits_long_and_says_why() {
    let mut world = World::new(Plan { adaptive: true, ..Plan::default() });
    world.second(0, 0.0);
    for _ in 0..600 {
        world.second(100, 0.0);
        if let [(_, id, Step::Create { .. })] = world.outstanding[..] {
            world.outstanding.clear();
            let refusal = Refusal::Permanent("the type \"fats\" does not exist".to_owned());
            world.controller.complete(world.now, id, StepOutcome::Refused(refusal));
            world.take_steps();
        }
    }
    let creates = world.steps.iter().filter(|(_, step)| matches!(step, Step::Create { .. })).count();
    assert_eq!(creates, 1);
    assert!(status_of(&world).backing_off.is_some_and(|why| why.contains("fats")));
    assert!(status_of(&world).retry_in.is_some());
    assert_eq!(status_of(&world).phase, Phase::Idle);
}
