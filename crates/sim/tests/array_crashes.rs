//! No crash of an array loses what was promised, whatever member is being replaced, and whatever fails.
//! Together at least 50,000 crashes.

#[path = "support/cores.rs"]
mod cores;

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use surgetank_sim::array::scenario::EVENTS;
use surgetank_sim::array::{Family, Report, Scenario, run};

use cores::{over_all_cores, seeds};

/// Runs one scenario; `again` names the command that reproduces a failure, also a panic of the engine.
fn check(scenario: &Scenario, again: &str) -> Report {
    match catch_unwind(AssertUnwindSafe(|| run(scenario))) {
        Ok(Ok(report)) => report,
        Ok(Err(failure)) => panic!("{failure}\n  reproduce: {again}"),
        Err(_) => panic!("the engine panicked\n  scenario: {scenario:?}\n  reproduce: {again}"),
    }
}

fn campaign(test: &str, family: Family, first: u64, count: u64) -> Report {
    let seeds = seeds(first, count);
    let total = over_all_cores(seeds.clone(), |seed| {
        let again = format!("SURGETANK_SEED={seed} cargo test -p surgetank-sim --test array_crashes -- --exact {test}");
        check(&family.scenario(seed), &again)
    });
    let (name, runs, crashes) = (family.name(), seeds.end - seeds.start, total.crashes());
    let line = format!("{name}: {runs} runs, {crashes} crashes, {} faults, 0 violations; {total:?}\n", total.faults);
    // Not captured: the counts are a result.
    std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
    total
}

#[test]
fn crashes_of_an_array_whose_members_are_replaced() {
    let report = campaign("crashes_of_an_array_whose_members_are_replaced", Family::Rotations, 1, 4000);
    assert_eq!(report.errors, 0, "a request failed without a fault");
    assert!(report.replaced > 3000 && report.resumed > 1000 && report.grown > 100, "too little was done: {report:?}");
    assert!(report.crashes_in_copies > 3000 && report.crashes_in_opening > 300, "too few crashes: {report:?}");
}

#[test]
fn a_crash_at_every_event_of_a_replacement() {
    const RUNS: u64 = 10;
    for run in 0..RUNS {
        let scenario = Scenario { crashes: Vec::new(), ..Family::EveryEvent.scenario(run * 2 * EVENTS) };
        let report = check(&scenario, "cargo test -p surgetank-sim --test array_crashes");
        assert!(report.events <= EVENTS, "run {run} has {} events: crash at all of them", report.events);
        assert_eq!((report.replaced, report.dropped), (1, 0));
    }
    let report = campaign("a_crash_at_every_event_of_a_replacement", Family::EveryEvent, 0, RUNS * 2 * EVENTS);
    assert!(report.superseded > 20 && report.resumed > 1000, "too little was done: {report:?}");
}

/// The application notices nothing of a joining member that fails.
#[test]
fn joining_members_that_fail_forget_or_vanish() {
    let report = campaign("joining_members_that_fail_forget_or_vanish", Family::Joining, 1, 3000);
    assert_eq!(report.errors, 0, "a request failed although no member that counts did");
    assert!(report.faults > 3000 && report.dropped > 500 && report.replaced > 500, "too little was done: {report:?}");
}

#[test]
fn crashes_of_an_array_whose_members_fail() {
    let report = campaign("crashes_of_an_array_whose_members_fail", Family::Faults, 1, 3000);
    assert!(report.faults > 3000 && report.errors > 500 && report.replaced > 500, "too little was done: {report:?}");
}

/// Neither a replaced member nor a copy that is not complete is ever taken for the one that is missing.
#[test]
fn starts_without_a_member_and_with_replaced_ones() {
    let report = campaign("starts_without_a_member_and_with_replaced_ones", Family::Withheld, 1, 3000);
    assert_eq!(report.errors, 0, "a request failed without a fault");
    assert!(report.refused > 1000 && report.withheld_starts > report.refused + 300, "too little was done: {report:?}");
}

/// The same seed gives the same run.
#[test]
fn runs_of_arrays_are_deterministic() {
    for family in Family::ALL {
        let scenario = family.scenario(77);
        assert_eq!(run(&scenario), run(&scenario), "{}", family.name());
    }
}
