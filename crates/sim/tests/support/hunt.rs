//! Looks for every planted bug of a crate, and prints where each one shows.

use std::fmt::{Debug, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use surgetank_sim::{Family, run};

/// Where and how a bug shows.
pub struct Found {
    pub family: &'static str,
    pub seed: u64,
    /// Runs until then.
    pub runs: u64,
    pub what: String,
}

/// How the run of this family and seed fails with the bug awake that `plant` wakes, if it does not fail without.
pub fn shows<B: Copy>(bug: B, plant: fn(Option<B>), family: Family, seed: u64) -> Option<String> {
    let scenario = family.scenario(seed);
    plant(Some(bug));
    let failed = match catch_unwind(AssertUnwindSafe(|| run(&scenario))) {
        Ok(Ok(_)) => None,
        Ok(Err(failure)) => Some(failure.what),
        Err(_) => Some("an assertion fails".to_owned()),
    };
    plant(None);
    let what = failed?;
    let sound = catch_unwind(AssertUnwindSafe(|| run(&scenario))).is_ok_and(|run| run.is_ok());
    sound.then_some(what)
}

/// Searches for all of them, on all processors.
#[allow(clippy::print_stdout, reason = "the table is the result")]
pub fn all_are_found<B: Copy + Debug + PartialEq + Sync + Send>(all: &[B], search: impl Fn(B) -> Option<Found> + Sync) {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    // A planted bug may end in a panic; that is an answer here, not news.
    std::panic::set_hook(Box::new(|_| ()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(&bug) = all.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = search(bug);
                    results.lock().expect("no thread panics with it").push((bug, found));
                }
            });
        }
    });
    let _ = std::panic::take_hook();
    let mut results = results.into_inner().expect("no thread panics with it");
    results.sort_by_key(|(bug, _)| all.iter().position(|other| other == bug));
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
