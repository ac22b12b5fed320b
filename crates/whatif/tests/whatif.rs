//! The what-if simulation: the papers' applications, and the fluid model against the block world.

#![allow(clippy::print_stdout, reason = "what came out, for those who look")]

use std::time::Duration;

use surgetank_cache::ReadFill;
use surgetank_model::random::Random;
use surgetank_model::{Bandwidth, Bytes, Limits};
use surgetank_planner::cost::Tariff;
use surgetank_policy::{Config, Preset};
use surgetank_whatif::{
    AppPhase, Application, Boost, Caching, Fidelity, Latencies, Mode, RunReport, Setup, Volume, run,
};

fn limits(mib_s: u64) -> Limits {
    Limits { bandwidth: Some(Bandwidth::from_mib_s(mib_s)), iops: None }
}

/// The papers' platform (journal, IV-A): 50 GB at 33 MB/s, caches of 128 MB/s, first 10 GB.
fn setup(preset: Preset, phases: Vec<AppPhase>, initial_phases: usize) -> Setup {
    let (backing, caching) = (Bandwidth::from_mib_s(33), Bandwidth::from_mib_s(128));
    Setup {
        vms: 32,
        application: Application { phases, initial_phases, request: Bytes::new(1 << 20), depth: 32 },
        backing: Volume {
            size: Bytes::from_gib(50),
            limits: limits(33),
            credits: None,
            tariff: Tariff::new(backing, None, None),
        },
        caching: Caching {
            limits: limits(128),
            alone: limits(128),
            tariff: Tariff::new(caching, None, None),
            read_fill: ReadFill::Never,
        },
        policy: Config::new(preset, backing, Bytes::from_gib(50), caching),
        sampling: Duration::from_secs(5),
        provider: Latencies {
            create: Duration::from_secs(4),
            attach: Duration::from_secs(4),
            detach: Duration::from_secs(2),
            delete: Duration::from_secs(1),
            ..Latencies::default()
        },
        seed: 1,
    }
}

fn checkpoints(compute_s: u64, initial_gib: u64, checkpoint_gib: u64, count: u32) -> Vec<AppPhase> {
    let mut phases = vec![AppPhase::Write(Bytes::from_gib(initial_gib))];
    for _ in 0..count {
        phases.push(AppPhase::Compute(Duration::from_secs(compute_s) / count));
        phases.push(AppPhase::Write(Bytes::from_gib(checkpoint_gib)));
    }
    phases
}

fn close(one: f64, other: f64, tolerance: f64) -> bool {
    (one - other).abs() <= tolerance * one.abs().max(other.abs())
}

fn say(outcome: &RunReport) -> String {
    let sizes: Vec<f64> = outcome.boosts.iter().map(|boost| boost.size.as_gib()).collect();
    format!(
        "{} {:.1} s, {:.0} AGBs, caches {sizes:?}, {} events",
        outcome.mode.name(),
        outcome.completion().as_secs_f64(),
        outcome.cost.agbs,
        outcome.events
    )
}

#[test]
fn cm1_static() {
    let setup = setup(Preset::PAPER, checkpoints(1100, 5, 4, 3), 1);
    for (mode, completion, agbs) in [
        (Mode::StaticSlow, 1100.0 + 3.0 * 4096.0 / 33.0, 50.0 * 33.0),
        (Mode::StaticFast, 1100.0 + 3.0 * 4096.0 / 128.0, 50.0 * 128.0),
    ] {
        for fidelity in [Fidelity::Block, Fidelity::Fluid] {
            let outcome = run(&setup, mode, fidelity).unwrap();
            println!("{fidelity:?}: {}", say(&outcome));
            assert!(close(outcome.completion().as_secs_f64(), completion, 0.001), "{}", say(&outcome));
            assert!(close(outcome.cost.agbs, agbs * outcome.wall().as_secs_f64(), 1e-9), "{}", say(&outcome));
            assert_eq!(outcome.boosts, []);
        }
    }
}

/// Completion of the papers' `adaptive` (Tables I and II), whose attach and detection times they do not print: those here
/// follow from the throughput that their tables imply.
#[test]
fn the_papers_controller_takes_what_they_measured() {
    for (phases, completion_s) in [(checkpoints(1100, 5, 4, 3), 1231.0), (checkpoints(1380, 4, 3, 3), 1476.0)] {
        let setup = setup(Preset::PAPER, phases, 1);
        for fidelity in [Fidelity::Block, Fidelity::Fluid] {
            let fast = run(&setup, Mode::StaticFast, fidelity).unwrap();
            let elastic = run(&setup, Mode::Elastic, fidelity).unwrap();
            println!("{fidelity:?}: {}", say(&elastic));
            assert!(close(elastic.completion().as_secs_f64(), completion_s, 0.03), "{}", say(&elastic));
            let saved = 1.0 - elastic.cost.agbs / fast.cost.agbs;
            assert!((0.65..0.75).contains(&saved), "{saved}");
            assert_eq!(elastic.boosts.len(), 4);
            assert_eq!(elastic.boosts[0].size, Bytes::from_gib(10));
            assert!(elastic.boosts[3].size < Bytes::from_gib(6), "{}", say(&elastic));
        }
    }
}

/// Ours beats what it is paid to be compared with: a fast volume of the backing volume's size, at a third of its cost.
#[test]
fn ours_is_faster_than_static_fast_and_cheaper_than_static_slow() {
    for phases in [checkpoints(1100, 5, 4, 3), checkpoints(1380, 4, 3, 3)] {
        let mut setup = setup(Preset::ADAPTIVE, phases, 1);
        setup.sampling = Duration::from_secs(1);
        setup.policy.initial_size = Bytes::from_gib(4);
        for fidelity in [Fidelity::Block, Fidelity::Fluid] {
            let [slow, fast, elastic] = Mode::ALL.map(|mode| run(&setup, mode, fidelity).unwrap());
            println!("{fidelity:?}: {}", say(&elastic));
            assert!(elastic.completion() <= fast.completion(), "{}\n{}", say(&elastic), say(&fast));
            assert!(elastic.cost.agbs <= 0.30 * fast.cost.agbs, "{}\n{}", say(&elastic), say(&fast));
            assert!(elastic.cost.agbs < slow.cost.agbs, "{}\n{}", say(&elastic), say(&slow));
        }
    }
}

/// Bytes that are no multiple of anything are written all the same, on a volume whose size is none either.
/// A burst that is far larger than those before it: in both models a volume that grows takes much more of it.
#[test]
fn a_volume_that_grows_takes_more_of_a_large_burst() {
    let phases = [2, 2, 2, 16].map(Bytes::from_gib).map(AppPhase::Write);
    let phases = phases.into_iter().flat_map(|write| [AppPhase::Compute(Duration::from_secs(400)), write]).collect();
    let mut setup = setup(Preset::ADAPTIVE, phases, 0);
    setup.vms = 1;
    setup.policy.initial_size = Bytes::from_gib(2);
    // A second is worth ten times what the backing volume costs in it.
    setup.policy.value_of_time *= 5.0;
    let both =
        |setup: &Setup| [Fidelity::Block, Fidelity::Fluid].map(|fidelity| run(setup, Mode::Elastic, fidelity).unwrap());
    let fixed = both(&setup);
    setup.provider.grow = Some(Duration::from_secs(5));
    let grown = both(&setup);
    for (fixed, grown) in fixed.iter().zip(&grown) {
        let (fixed_s, grown_s) = (fixed.completion().as_secs_f64(), grown.completion().as_secs_f64());
        assert!(grown_s < 0.95 * fixed_s, "{}\n{}", say(fixed), say(grown));
        let grew = |boost: &&Boost| boost.sizes.len() > 1;
        assert!(grown.boosts.iter().any(|boost| grew(&boost)) && !fixed.boosts.iter().any(|boost| grew(&boost)));
    }
    let [block, fluid] = &grown;
    assert!(
        close(block.completion().as_secs_f64(), fluid.completion().as_secs_f64(), 0.03),
        "{}\n{}",
        say(block),
        say(fluid)
    );
    assert!(close(block.cost.agbs, fluid.cost.agbs, 0.06), "{}\n{}", say(block), say(fluid));
}

#[test]
fn odd_sizes_run() {
    let mut setup =
        setup(Preset::ADAPTIVE, vec![AppPhase::Write(Bytes::new(1_234_567_891)), AppPhase::Read(Bytes::new(777))], 0);
    setup.backing.size = Bytes::new(1_000_000_007);
    for mode in Mode::ALL {
        let expected = 1_234_567_891.0 / f64::from(1 << 20) / if mode == Mode::StaticFast { 128.0 } else { 33.0 };
        let wall = run(&setup, mode, Fidelity::Block).unwrap().wall().as_secs_f64();
        assert!(wall <= expected * 1.01 && (mode == Mode::Elastic || close(wall, expected, 0.01)), "{wall} {expected}");
    }
}

/// Machines that differ wait for the slowest; what the provider refuses is tried again, and everything is deleted.
#[test]
fn a_slow_and_faulty_provider_costs_time_and_leaks_nothing() {
    let alike = setup(Preset::PAPER, checkpoints(300, 2, 2, 2), 1);
    let mut trouble = alike.clone();
    trouble.vms = 8;
    trouble.provider.jitter = 1.0;
    trouble.provider.faults = 0.3;
    for fidelity in [Fidelity::Block, Fidelity::Fluid] {
        let [alike, trouble] = [&alike, &trouble].map(|setup| run(setup, Mode::Elastic, fidelity).unwrap());
        assert_eq!((alike.simulated_vms, trouble.simulated_vms), (1, 8));
        assert!(trouble.completion() > alike.completion(), "{}\n{}", say(&alike), say(&trouble));
        for boost in trouble.boosts {
            assert!(boost.ended > boost.started);
        }
    }
}

/// As in the daemon: a provider that takes longer than a step may take is as good as none.
#[test]
fn a_provider_that_is_slower_than_the_timeouts_gives_no_boost() {
    let alike = setup(Preset::PAPER, checkpoints(300, 2, 2, 2), 1);
    for late in [|setup: &mut Setup| setup.provider.create, |setup: &mut Setup| setup.provider.attach] {
        let mut slow = alike.clone();
        let took = late(&mut slow);
        slow.policy.create_timeout = took / 2;
        slow.policy.attach_timeout = took / 2;
        for fidelity in [Fidelity::Block, Fidelity::Fluid] {
            let [usual, slow] = [&alike, &slow].map(|setup| run(setup, Mode::Elastic, fidelity).unwrap());
            assert!(usual.boosts.iter().any(|boost| boost.absorb.is_some()), "{}", say(&usual));
            assert!(slow.boosts.iter().all(|boost| boost.absorb.is_none()), "{}", say(&slow));
        }
    }
}

/// What moves is kept for every five seconds, and memory is finite.
#[test]
fn a_run_that_takes_too_long_is_refused() {
    let mut slow = setup(Preset::PAPER, checkpoints(300, 2, 2, 2), 1);
    slow.backing.limits = Limits { bandwidth: Some(Bandwidth::new(10)), iops: None };
    let long = setup(Preset::PAPER, vec![AppPhase::Compute(Duration::from_secs(1 << 40))], 0);
    for (setup, mode) in [(&slow, Mode::StaticSlow), (&long, Mode::StaticFast), (&long, Mode::Elastic)] {
        for fidelity in [Fidelity::Block, Fidelity::Fluid] {
            let refused = run(setup, mode, fidelity).unwrap_err().to_string();
            assert!(refused.contains("longer than 800 days"), "{mode:?}, {fidelity:?}: {refused}");
        }
    }
}

/// A forecast of the next night is waited for once, in vain: then the run is over, a day after the last burst and not a year.
#[test]
fn a_burst_each_night_is_simulated_for_as_many_nights_as_one_likes() {
    for (preset, nights) in
        [Preset::PAPER, Preset::ADAPTIVE].into_iter().flat_map(|preset| [(preset, 50), (preset, 500)])
    {
        let mut phases = Vec::new();
        for _ in 0..nights {
            phases.extend([AppPhase::Compute(Duration::from_secs(86_000)), AppPhase::Write(Bytes::from_gib(20))]);
        }
        let mut setup = setup(preset, phases, 0);
        setup.vms = 1;
        setup.policy.value_of_time *= 10.0;
        let found = run(&setup, Mode::Elastic, Fidelity::Fluid).unwrap_or_else(|stuck| panic!("{nights}: {stuck}"));
        println!("{nights} nights: {} {} boosts", say(&found), found.boosts.len());
        // 20 GiB take 640 s at the backing volume's rate.
        let slow = run(&setup, Mode::StaticSlow, Fidelity::Fluid).unwrap();
        let (boosted, alone) = (found.completion(), slow.completion());
        assert!(boosted < alone && found.boosts.len() >= nights - 2, "{nights}: {}; {alone:?}", say(&found));
        let last = found.boosts.last().unwrap().ended.since(found.end);
        assert!(last < Duration::from_secs(2 * 86_400), "{last:?} after the last burst");
        assert!((found.traffic.application.total() / (nights as f64 * 20.0 * 1073741824.0) - 1.0).abs() < 1e-6);
        assert!(found.events < nights as u64 * 2000, "{nights}: {} events", found.events);
    }
}

/// Bytes that arrive at these seconds.
fn arrivals(at: impl Iterator<Item = (u64, Bytes)>) -> Vec<AppPhase> {
    let arrive = |(at, written)| AppPhase::Arrive { at: Duration::from_secs(at), read: Bytes::ZERO, written };
    at.map(arrive).chain([AppPhase::Finish]).collect()
}

#[test]
fn a_trace_of_very_many_small_bursts_is_run_to_its_end() {
    // Each is served at once: no time passes between the events of one, and there are more than a million in all.
    let mut setup = setup(Preset::PAPER, arrivals((0..140_000).map(|number| (number * 3, Bytes::from_mib(8)))), 0);
    setup.backing.limits = limits(2048);
    let found = run(&setup, Mode::StaticSlow, Fidelity::Block).unwrap();
    assert!(found.events > 1_000_000 && found.end.as_seconds() >= 419_997.0, "{}", say(&found));
}

#[test]
fn bursts_of_a_replay_last_as_long_as_their_volume_needs() {
    let load =
        || arrivals([(0, Bytes::from_gib(1)), (10, Bytes::from_gib(1)), (1000, Bytes::from_mib(330))].into_iter());
    let setup = setup(Preset::PAPER, load(), 0);
    for fidelity in [Fidelity::Block, Fidelity::Fluid] {
        // The fast volume is done with the first arrival before the second comes.
        let expected =
            [(Mode::StaticSlow, 2048.0 / 33.0, 330.0 / 33.0), (Mode::StaticFast, 10.0 + 1024.0 / 128.0, 330.0 / 128.0)];
        for (mode, first_s, second_s) in expected {
            let found = run(&setup, mode, fidelity).unwrap().bursts;
            assert_eq!(found.len(), 2, "two arrivals are one burst");
            let lengths: Vec<f64> = found.iter().map(|burst| burst.length().as_secs_f64()).collect();
            assert!(close(lengths[0], first_s, 0.01) && close(lengths[1], second_s, 0.02), "{lengths:?}");
            assert!(close(found[0].waited().as_secs_f64(), lengths[0] - 10.0, 0.001), "{found:?}");
        }
    }
    let waited = |mode| run(&setup, mode, Fidelity::Fluid).unwrap().bursts[0].waited();
    assert!(waited(Mode::Elastic) < waited(Mode::StaticSlow) && waited(Mode::Elastic) > waited(Mode::StaticFast));
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let mut setup = setup(Preset::ADAPTIVE, checkpoints(300, 2, 2, 2), 1);
    setup.vms = 3;
    setup.provider.jitter = 0.5;
    setup.provider.faults = 0.2;
    for fidelity in [Fidelity::Block, Fidelity::Fluid] {
        let [one, again] = [(); 2].map(|()| format!("{:?}", run(&setup, Mode::Elastic, fidelity).unwrap()));
        assert_eq!(one, again);
        let other = Setup { seed: 2, ..setup.clone() };
        assert_ne!(one, format!("{:?}", run(&other, Mode::Elastic, fidelity).unwrap()));
    }
}

/// A run of chance: volumes, application, provider and controller.
fn any_setup(seed: u64) -> Setup {
    let mut random = Random::from_seed(seed);
    let mut between = |low: u64, high: u64| low + random.below(high - low + 1);
    let preset = if between(0, 1) == 0 { Preset::PAPER } else { Preset::ADAPTIVE };
    let count = between(1, 3) as u32;
    let phases = checkpoints(between(60, 600) * u64::from(count), between(1, 4), between(1, 4), count);
    let mut setup = setup(preset, phases, 1);
    let (backing, caching) = (between(20, 120), between(80, 400));
    setup.backing.limits = limits(backing);
    setup.caching.limits = limits(caching);
    setup.policy.backing_bandwidth = Bandwidth::from_mib_s(backing);
    setup.policy.caching_bandwidth = Bandwidth::from_mib_s(caching);
    setup.policy.initial_size = Bytes::from_gib(between(1, 8));
    // Time is worth so much that few decisions are close: the edges between them are no matter of the models.
    setup.policy.value_of_time *= 100.0;
    setup.policy.inactivity_delay = Duration::from_secs(between(5, 60));
    setup.sampling = Duration::from_secs(between(1, 5));
    setup.provider.attach = Duration::from_millis(between(500, 30_000));
    setup
}

/// Where both worlds' controllers decide alike, they are within 2 %. A controller on the edge between two decisions (a size
/// just at a step of the grain, a burst just when a volume is released, a boost that hardly pays) may fall to either side: that
/// is seldom, and makes little difference.
#[test]
fn the_fluid_model_agrees_with_the_block_world() {
    const RUNS: u64 = 120;
    let (mut furthest, mut on_edge) = ((0.0f64, 0.0f64), 0);
    for seed in 0..RUNS {
        let setup = any_setup(seed);
        for mode in Mode::ALL {
            let [block, fluid] =
                [Fidelity::Block, Fidelity::Fluid].map(|fidelity| run(&setup, mode, fidelity).unwrap());
            let sizes = |outcome: &RunReport| outcome.boosts.iter().map(|boost| boost.size).collect::<Vec<_>>();
            let apart = |one: f64, other: f64| (one / other - 1.0).abs();
            let time = apart(fluid.completion().as_secs_f64(), block.completion().as_secs_f64());
            let cost = apart(fluid.cost.agbs, block.cost.agbs);
            let runs = format!("seed {seed}: {time:.4}, {cost:.4}\n block {}\n fluid {}", say(&block), say(&fluid));
            if sizes(&block) == sizes(&fluid) {
                assert!(time <= 0.02 && cost <= 0.02, "{runs}");
                furthest = (furthest.0.max(time), furthest.1.max(cost));
            } else {
                println!("on the edge, {runs}");
                assert!(time <= 0.06 && cost <= 0.12, "{runs}");
                on_edge += 1;
            }
        }
    }
    println!("furthest apart: completion {:.4}, cost {:.4}; {on_edge} on the edge", furthest.0, furthest.1);
    assert!(on_edge <= RUNS / 6, "{on_edge} of {RUNS} runs on the edge");
}
