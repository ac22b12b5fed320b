//! Whatever the provider does and wherever the process dies: no member of an array that counts is deleted, and no volume is left.

#[path = "support/cores.rs"]
mod cores;

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use surgetank_sim::members::{ASKS, Family, Report, Scenario, run};

use cores::{over_all_cores, seeds};

/// Runs one scenario; `again` names the command that reproduces a failure, also a panic of the life cycle.
fn check(scenario: &Scenario, again: &str) -> Report {
    match catch_unwind(AssertUnwindSafe(|| run(scenario))) {
        Ok(Ok(report)) => report,
        Ok(Err(failure)) => panic!("{failure}\n  reproduce: {again}"),
        Err(_) => panic!("the life cycle panicked\n  scenario: {scenario:?}\n  reproduce: {again}"),
    }
}

fn campaign(test: &str, family: Family, first: u64, count: u64) -> Report {
    let seeds = seeds(first, count);
    let total = over_all_cores(seeds.clone(), |seed| {
        let again = format!("SURGETANK_SEED={seed} cargo test -p surgetank-sim --test members -- --exact {test}");
        check(&family.scenario(seed), &again)
    });
    let (name, runs) = (family.name(), seeds.end - seeds.start);
    let line = format!("{name}: {runs} runs, {} crashes, 0 violations; {total:?}\n", total.crashes);
    // Not captured: the counts are a result.
    std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
    total
}

#[test]
fn crashes_of_the_life_of_members_over_a_provider_that_lies() {
    let report = campaign("crashes_of_the_life_of_members_over_a_provider_that_lies", Family::Members, 1, 3000);
    assert!(report.replaced > 3000 && report.undone > 100, "too little was done: {report:?}");
    assert!(report.faults > 10_000 && report.crashes_in_replacements > 500, "too little went wrong: {report:?}");
    assert!(report.resumed > 50 && report.swept > 50, "too little was taken up: {report:?}");
    assert!(report.throttled > 1000 && report.failed_volumes > 500, "the provider is too kind: {report:?}");
    assert!(
        report.unknown > 5000 && report.stale > 10_000 && report.twins > 1000,
        "it makes and tells everything once and at once: {report:?}"
    );
}

#[test]
fn a_crash_at_every_ask_of_the_life_of_members() {
    const RUNS: u64 = 12;
    for run in 0..RUNS {
        let scenario = Scenario { crashes: Vec::new(), ..Family::EveryAsk.scenario(run * ASKS) };
        let report = check(&scenario, "cargo test -p surgetank-sim --test members");
        assert!(report.asks <= ASKS, "run {run} has {} asks: crash at all of them", report.asks);
        assert_eq!(report.replaced, 1);
    }
    campaign("a_crash_at_every_ask_of_the_life_of_members", Family::EveryAsk, 0, RUNS * ASKS);
}

/// The same seed gives the same run.
#[test]
fn runs_of_members_are_deterministic() {
    for family in Family::ALL {
        let scenario = family.scenario(77);
        assert_eq!(run(&scenario), run(&scenario), "{}", family.name());
    }
}
