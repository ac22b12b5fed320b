//! The runs are tested: every planted bug is found within as many as the tests have.
#![cfg(feature = "planted-bugs")]
#![expect(clippy::print_stdout, reason = "which run finds which bug")]

mod support;

use support::RUNS;
use surgetank_mrc::planted::{Bug, shows};

#[test]
fn every_planted_bug_is_found() {
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        let found = RUNS.iter().find_map(|(name, run, seeds)| {
            (0..*seeds).find_map(|seed| shows(*bug, || run(seed)).map(|how| (name, seed, how)))
        });
        match found {
            Some((name, seed, how)) => println!("{bug:?}: {name}, seed {seed}: {how:.200}"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
