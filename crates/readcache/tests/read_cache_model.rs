//! The engine against a vector: whatever members do and however large the cache may be, a read returns what the backing volume has,
//! also after a crash.

mod support;

use support::{Done, TROUBLES, run};

/// Runs, and steps of each.
const RUNS: u64 = 400;
const STEPS: usize = 1500;
/// Runs in which the cache is resized and the process crashes.
const CRASHING_RUNS: u64 = 1500;

#[test]
fn reads_see_every_answered_write_and_every_request_is_answered_once() {
    let mut member_reads = 0;
    for seed in 0..RUNS {
        match run(seed, seed as usize % TROUBLES.len(), STEPS, true) {
            Ok(done) => member_reads += done.member_reads,
            Err(what) => panic!("seed {seed}: {what}"),
        }
    }
    assert!(member_reads > 20 * RUNS, "the cache is hardly used: {member_reads}");
}

#[test]
fn no_crash_amid_resizes_loses_anything() {
    let mut total = Done::default();
    for seed in 0..CRASHING_RUNS {
        // The last two crash. The engine's own checks take most of the time.
        match run(seed, TROUBLES.len() - 1 - seed as usize % 2, STEPS, seed % 10 < 2) {
            Ok(done) => total += done,
            Err(what) => panic!("seed {seed}: {what}"),
        }
    }
    let enough = total.crashes >= 20_000 && total.crashes_while_shrinking > 3_000 && total.shrunk > 3_000;
    assert!(enough && total.member_reads > 10 * CRASHING_RUNS, "too little was done: {total:?}");
}
