//! The tests are tested: every planted bug of the rental code is found by the campaigns of `tests/crash.rs` that rent, within
//! their seeds.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use surgetank_rental::planted::{Bug, plant};
use surgetank_sim::{Family, run};

/// Seeds of each family that the search for a bug takes; at most what `tests/crash.rs` runs of it.
const SEEDS: u64 = 3000;

/// The first run that fails with the bug awake: of which family and seed, and how.
fn search(bug: Bug) -> Option<(&'static str, u64, String)> {
    (1..=SEEDS).flat_map(|seed| [(Family::Provider, seed), (Family::ProviderOutages, seed)]).find_map(
        |(family, seed)| {
            let scenario = family.scenario(seed);
            plant(Some(bug));
            let failed = match catch_unwind(AssertUnwindSafe(|| run(&scenario))) {
                Ok(Ok(_)) => None,
                Ok(Err(failure)) => Some(failure.what),
                Err(_) => Some("an assertion fails".to_owned()),
            };
            plant(None);
            let what = failed?;
            // A run that fails without the bug, too, says nothing of it.
            let sound = catch_unwind(AssertUnwindSafe(|| run(&scenario))).is_ok_and(|run| run.is_ok());
            sound.then_some((family.name(), seed, what))
        },
    )
}

#[test]
#[allow(clippy::print_stdout, reason = "the table is the result")]
fn every_planted_bug_of_the_rental_code_is_found() {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    // A planted bug may end in a panic; that is an answer here, not news.
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
    let mut table = String::from("| planted bug | family | seed | how it shows |\n|---|---|---:|---|\n");
    for (bug, found) in &results {
        let row = match found {
            Some((family, seed, what)) => {
                let what: String = what.chars().take(110).collect();
                format!("| {bug:?} | {family} | {seed} | {what} |")
            }
            None => format!("| {bug:?} | not found | | |"),
        };
        writeln!(table, "{row}").expect("a string takes it");
    }
    println!("{table}");
    let missed: Vec<_> = results.iter().filter(|(_, found)| found.is_none()).map(|(bug, _)| bug).collect();
    assert!(missed.is_empty(), "the crash tests do not find {missed:?}");
}
