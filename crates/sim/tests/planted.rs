//! The tests are tested: every planted bug is found by the campaigns of `tests/crash.rs`, within their seeds.
//!
//! `cargo test -p surgetank-sim --features planted-bugs --test planted` prints which family finds which bug, and at
//! which seed.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use surgetank_cache::planted::{Bug, plant};
use surgetank_sim::{Family, run};

#[path = "support/once_failed.rs"]
mod once_failed;
#[path = "support/scenes.rs"]
mod scenes;

/// How many seeds of each family the search for a bug takes; at most what `tests/crash.rs` runs of it.
const SEARCH: [(Family, u64); 20] = [
    (Family::Short, 12_000),
    (Family::Superseding, 4500),
    (Family::Overwrites, 4000),
    (Family::EveryEvent, 62_000),
    (Family::Long, 200),
    (Family::Errors, 4000),
    (Family::ForgetfulFlushes, 3000),
    (Family::BadRanges, 3000),
    (Family::Growth, 3000),
    (Family::Rot, 3000),
    (Family::Losses, 3000),
    (Family::Latent, 3000),
    (Family::CacheFlushes, 3000),
    (Family::Outages, 3000),
    (Family::Stops, 3000),
    (Family::Owners, 3000),
    (Family::Stuck, 2500),
    (Family::ProviderOutages, 3000),
    (Family::FailedAppends, 3000),
    (Family::TableCopies, 3000),
];

/// Seeds tried of each family before the next one has its turn; doubles every round.
const FIRST_TURN: u64 = 250;

/// Where and how a bug shows.
struct Found {
    family: &'static str,
    seed: u64,
    runs: u64,
    what: String,
}

/// The first run that fails with the bug awake.
fn search(bug: Bug) -> Option<Found> {
    plant(Some(bug));
    let mut runs = 0;
    let mut finds = |family: Family, seed: u64| {
        runs += 1;
        let what = match catch_unwind(AssertUnwindSafe(|| run(&family.scenario(seed)))) {
            Ok(Ok(_)) => return None,
            Ok(Err(failure)) => failure.what,
            Err(_) => "an assertion of the engine fails".to_owned(),
        };
        // A run that fails without the bug, too, says nothing of it.
        plant(None);
        let sound = catch_unwind(AssertUnwindSafe(|| run(&family.scenario(seed)))).is_ok_and(|run| run.is_ok());
        plant(Some(bug));
        sound.then_some(Found { family: family.name(), seed, runs, what })
    };
    let scene = scenes::SCENES.iter().find(|(of, _)| *of == bug).and_then(|(_, scene)| scene().err());
    if let Some(what) = scene {
        plant(None);
        return Some(Found { family: "a scene", seed: 0, runs: 0, what: what.to_owned() });
    }
    let mut found = once_failed::RUNS.iter().find_map(|&(family, seed)| finds(family, seed));
    let (mut from, mut to) = (1, FIRST_TURN);
    let most = SEARCH.iter().map(|&(_, count)| count).max().unwrap_or(0);
    while found.is_none() && from <= most {
        found = SEARCH.iter().find_map(|&(family, count)| (from..=to.min(count)).find_map(|seed| finds(family, seed)));
        (from, to) = (to + 1, to * 2);
    }
    plant(None);
    found
}

#[test]
#[allow(clippy::print_stdout, reason = "the table is the result")]
fn every_planted_bug_is_found() {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    // A planted bug may make the engine panic; that is an answer here, not news.
    std::panic::set_hook(Box::new(|_| ()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(&bug) = Bug::ALL.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = search(bug);
                    results.lock().expect("no thread panics with it").push((bug, found));
                }
            });
        }
    });
    let _ = std::panic::take_hook();
    let mut results = results.into_inner().expect("no thread panics with it");
    results.sort_by_key(|(bug, _)| Bug::ALL.iter().position(|other| other == bug));
    let mut table =
        String::from("| planted bug | runs until found | family | seed | how it shows |\n|---|---:|---|---:|---|\n");
    for (bug, found) in &results {
        let row = match found {
            Some(Found { family, seed, runs, what }) => {
                let what: String = what.chars().take(110).collect();
                format!("| {bug:?} | {runs} | {family} | {seed} | {what} |")
            }
            None => format!("| {bug:?} | not found | | | |"),
        };
        writeln!(table, "{row}").expect("a string takes it");
    }
    println!("{table}");
    let missed: Vec<_> = results.iter().filter(|(_, found)| found.is_none()).map(|(bug, _)| bug).collect();
    assert!(missed.is_empty(), "the crash tests do not find {missed:?}");
}

/// Without a bug awake, the same build is sound.
#[test]
fn asleep_the_bugs_do_no_harm() {
    for (bug, scene) in scenes::SCENES {
        assert_eq!(scene(), Ok(()), "{bug:?}");
    }
    for seed in 1..=300 {
        assert!(run(&Family::Short.scenario(seed)).is_ok(), "seed {seed}");
    }
}
