//! The runs are tested: every planted bug is found within as many as the models' tests have.

#[allow(dead_code, reason = "the counts are for the other test")]
#[path = "support/pool/mod.rs"]
mod pool;
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};

use surgetank_pool_core::planted::{Bug, plant};

/// A kind of run.
type Run = fn(u64) -> Result<(), String>;

const RUNS: [(&str, Run, u64); 13] = [
    ("placement", support::placement::run, 2000),
    ("holdings", support::holdings::run, 800),
    ("buffers", support::buffers::run, 300),
    ("scrub", support::scrub::run, 30),
    ("segments", support::segments::run, 400),
    ("membership", support::membership::run, 200),
    ("metadata", support::metadata::run, 2000),
    ("links", support::links::run, 400),
    ("locked bytes", support::locks::owners, 500),
    ("locks", support::locks::run, 400),
    ("draining", support::draining::run, 400),
    ("union", support::union::run, 1500),
    ("pool", pool::run, 4000),
];

/// How a run fails with the bug awake.
fn shows(bug: Bug, run: Run, seed: u64) -> Option<String> {
    plant(Some(bug));
    let failed = catch_unwind(AssertUnwindSafe(|| run(seed).err()));
    plant(None);
    failed.unwrap_or_else(|_| Some("an assertion fails".to_owned()))
}

#[test]
#[allow(clippy::print_stdout, reason = "where each bug shows is the result")]
fn every_planted_bug_is_found() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        let find = |(name, run, runs): &(&'static str, Run, u64)| {
            (0..*runs).find_map(|seed| Some((*name, seed, shows(*bug, *run, seed)?)))
        };
        match RUNS.iter().find_map(find) {
            Some((name, seed, what)) => {
                println!("{bug:?}: {name} {seed}: {}", what.chars().take(160).collect::<String>());
            }
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
