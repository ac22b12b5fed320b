//! The runs are tested: every planted bug is found within as many as the models' tests have.

#[allow(dead_code, reason = "the counts are for the other test")]
#[path = "support/pool/mod.rs"]
mod pool;
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};

use surgetank_pool_core::planted::{Bug, plant};

/// A kind of run.
type Run = fn(u64) -> Result<(), String>;

const RUNS: &[(&str, Run, u64)] = &[
    ("placement", support::placement::run, 2000),
    ("holdings", support::holdings::run, 800),
    ("parity", support::parity::run, 800),
    ("buffers", support::buffers::run, 300),
    ("scrub", support::scrub::run, 30),
    ("segments", support::segments::run, 400),
    ("compaction", support::compaction::run, 800),
    ("membership", support::membership::run, 200),
    ("repair", support::repair::run, 400),
    ("leaving", support::leaving::run, 400),
    ("metadata", support::metadata::run, 2000),
    ("links", support::links::run, 400),
    ("quota", support::quota::run, 2000),
    ("edges of quotas", support::quota::edges::run, 200),
    ("publishing", support::publishing::run, 4000),
    ("locked bytes", support::locks::owners, 500),
    ("locks", support::locks::run, 400),
    ("written", support::written::run, 1000),
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

/// Runs that find a bug which a search finds late: they are tried first. Each is one that the search would come to.
const KNOWN: &[(Bug, &str, u64)] = &[
    (Bug::RewriterUnseen, "metadata", 255),
    (Bug::OldVersionTaken, "metadata", 291),
    (Bug::AttemptForgotten, "metadata", 255),
    (Bug::OldVersionDrains, "metadata", 318),
    (Bug::DraftOfAnotherRemoved, "metadata", 243),
    (Bug::MoveIgnored, "union", 155),
    (Bug::DraftChangedWhileItWaits, "metadata", 53),
    (Bug::GrantForgotten, "quota", 252),
    (Bug::ReservedForAnother, "quota", 1274),
    (Bug::UnpublishedReplaced, "pool", 355),
    (Bug::LateAnswerCounts, "pool", 41),
    (Bug::LateSealCounts, "pool", 25),
];

/// In the first turn of a kind one in so many of its runs is tried before the next kind has its turn; turns double.
const TURNS: u64 = 64;

/// The first run that fails with the bug awake: its kind, its seed, how it fails.
fn search(bug: Bug) -> Option<(&'static str, u64, String)> {
    let try_runs = |(name, run, seeds): (&'static str, Run, std::ops::Range<u64>)| {
        seeds.into_iter().find_map(|seed| Some((name, seed, shows(bug, run, seed)?)))
    };
    let of_bug = KNOWN.iter().filter(|(of, ..)| *of == bug);
    let known = of_bug.filter_map(|(_, kind, seed)| {
        let (name, run, _) = RUNS.iter().find(|(name, _, runs)| name == kind && seed < runs)?;
        Some((*name, *run, *seed..seed + 1))
    });
    let turns = (0..=TURNS.ilog2()).flat_map(|turn| {
        let part = move |runs: u64, turn: u32| (runs << turn).div_ceil(TURNS);
        RUNS.iter().map(move |(name, run, runs)| {
            let tried = if turn == 0 { 0 } else { part(*runs, turn - 1) };
            (*name, *run, tried..part(*runs, turn))
        })
    });
    known.chain(turns).find_map(try_runs)
}

#[test]
#[allow(clippy::print_stdout, reason = "where each bug shows is the result")]
fn every_planted_bug_is_found() {
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        match search(*bug) {
            Some((name, seed, what)) => {
                println!("{bug:?}: {name} {seed}: {}", what.chars().take(160).collect::<String>());
            }
            None => missed.push(bug),
        }
    }
    assert!(missed.is_empty(), "not found: {missed:?}");
}

#[test]
fn a_creation_that_does_not_compare_what_its_manager_knew_is_found_by_histories() {
    let of_names = |what: &String| what.starts_with("names: ");
    let found = (0..400).find_map(|seed| shows(Bug::KnownNotCompared, pool::run, seed).filter(of_names));
    assert!(found.is_some(), "no history of names shows it");
}
