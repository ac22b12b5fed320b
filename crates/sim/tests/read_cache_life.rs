//! Whatever the provider does, the members do, and wherever the process dies: each place of a read cache has one volume in the end,
//! none is taken for another, and none is left.

#[path = "support/cores.rs"]
mod cores;

use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};

use surgetank_sim::read_cache::{Report, Scenario, run};

use cores::{over_all_cores, seeds};

fn check(scenario: &Scenario, test: &str) -> Report {
    let again = format!(
        "SURGETANK_SEED={} cargo test -p surgetank-sim --test read_cache_life -- --exact {test}",
        scenario.seed
    );
    match catch_unwind(AssertUnwindSafe(|| run(scenario))) {
        Ok(Ok(report)) => report,
        Ok(Err(failure)) => panic!("{failure}\n  reproduce: {again}"),
        Err(_) => panic!("the life cycle panicked\n  scenario: {scenario:?}\n  reproduce: {again}"),
    }
}

#[test]
fn crashes_of_the_life_of_a_read_caches_volumes() {
    let test = "crashes_of_the_life_of_a_read_caches_volumes";
    let seeds = seeds(1, 3000);
    let runs = seeds.end - seeds.start;
    let total = over_all_cores(seeds, |seed| check(&Scenario::of(seed), test));
    let line = format!("read-cache: {runs} runs, 0 violations; {total:?}\n");
    // Not captured: the counts are a result.
    std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
    if runs > 1 {
        assert!(total.crashes > runs && total.faults > runs && total.failed > runs, "too little went wrong: {total:?}");
        assert!(total.adopted > 500 && total.swept > 50, "too little was taken up: {total:?}");
        assert!(total.throttled > 1000 && total.failed_volumes > 500, "the provider is too kind: {total:?}");
        assert!(
            total.unknown > 10_000 && total.stale > 10_000 && total.twins > 2000,
            "it makes and tells everything once and at once: {total:?}"
        );
    }
}

/// A crash at every ask of runs without faults.
#[test]
fn a_crash_at_every_ask_of_a_read_caches_volumes() {
    for run in 0..4 {
        let members = (1 + run % 3) as u32;
        let scenario = |crashes| Scenario {
            seed: run,
            members: (members, members),
            crashes,
            faults: 0.0,
            cloud_faults: 0.0,
            lags: 0.0,
            troubles: false,
        };
        let asks = check(&scenario(Vec::new()), "a_crash_at_every_ask_of_a_read_caches_volumes").asks;
        for ask in 0..asks {
            check(&scenario(vec![ask]), "a_crash_at_every_ask_of_a_read_caches_volumes");
        }
    }
}

/// The same seed gives the same run.
#[test]
fn runs_of_a_read_caches_volumes_are_deterministic() {
    for seed in 70..80 {
        assert_eq!(run(&Scenario::of(seed)), run(&Scenario::of(seed)));
    }
}
