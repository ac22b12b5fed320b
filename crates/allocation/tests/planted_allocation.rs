//! The runs are tested: every planted bug is found within as many as the tests have.
#![cfg(feature = "planted-bugs")]
#![expect(clippy::print_stdout, reason = "which run finds which bug")]

mod support;

use surgetank_allocation::planted::{Bug, plant, shows};
use surgetank_allocation::{solve, verify};
use surgetank_model::random::Random;

type Run = fn(u64) -> Result<(), String>;

const RUNS: &[(&str, Run, u64)] = &[
    ("few segments", support::exhaustive::few_segments, 40),
    ("any scale", support::scales::run, 20),
    ("placement", support::placement::run, 2000),
    ("shared caches", support::curves::run, 100),
    ("promises", support::promises::run, 200),
    ("the whole program", support::optimum::run, 300),
    ("the paper's algorithm", support::paper::run, 60),
    ("the ledger", support::ledger::run, 100),
    ("all shares", support::exhaustive::run, 500),
];

/// Whatever is wrong with how plans are found, those that break a promise are not answers.
#[test]
fn a_plan_that_breaks_a_promise_is_no_answer() {
    let bugs =
        [Bug::CapacityPerApplication, Bug::CutsIgnored, Bug::BrokenPlanKept, Bug::WorsePlanKept, Bug::HullNotConvex];
    for seed in 0..200 {
        let random = &mut Random::from_seed(seed);
        let [former, now] = [0, 1].map(|_| support::description(random, support::MEDIUM));
        let former = solve(&support::problem(&former).expect("it is valid"), None);
        for bug in bugs {
            plant(Some(bug));
            let problem = support::problem(&now).expect("it is valid");
            let plans = [None, Some(&former)].map(|previous| solve(&problem, previous));
            plant(None);
            for plan in plans {
                assert_eq!(verify(&problem, &plan), Ok(()), "seed {seed}, {bug:?}");
            }
        }
    }
}

#[test]
fn every_planted_bug_is_found() {
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        // A few of each kind first: most bugs are found by one of them.
        let few = RUNS.iter().map(|(name, run, _)| (*name, *run, 0..10));
        let rest = RUNS.iter().map(|(name, run, count)| (*name, *run, 10..*count));
        let found = few.chain(rest).find_map(|(name, run, mut seeds)| {
            seeds.find_map(|seed| shows(*bug, || run(seed)).map(|how| (name, seed, how)))
        });
        match found {
            Some((name, seed, how)) => println!("{bug:?}: {name}, seed {seed}: {how}"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
