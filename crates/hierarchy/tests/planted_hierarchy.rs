//! The runs are tested: every planted bug is found within as many as the tests have.
#![cfg(feature = "planted-bugs")]
#![expect(clippy::print_stdout, reason = "which run finds which bug")]

mod support;

use support::{caches, cases, ratios};
use surgetank_hierarchy::planted::{Bug, shows};

type Run = fn(u64) -> Result<(), String>;

const RUNS: &[(&str, Run, u64)] = &[
    ("lists", caches::lists, 60),
    ("servers", caches::servers, 30),
    ("the exact curve", ratios::exact, 40),
    ("several servers", ratios::spread, 8),
    ("split shares", ratios::split, 3),
    ("disks", ratios::disk, 5),
    ("steps", cases::steps, 5),
    ("cases", cases::run, 3),
];

#[test]
fn every_planted_bug_is_found() {
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        let found = RUNS.iter().find_map(|(name, run, count)| {
            (0..*count).find_map(|seed| shows(*bug, || run(seed)).map(|how| (name, seed, how)))
        });
        match found {
            Some((name, seed, how)) => println!("{bug:?}: {name}, seed {seed}: {how}"),
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}
