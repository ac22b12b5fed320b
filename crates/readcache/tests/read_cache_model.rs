//! The engine against a vector: whatever members do, a read returns what the backing volume has.

mod support;

use support::run;

/// Runs, and steps of each.
const RUNS: u64 = 400;
const STEPS: usize = 1500;

#[test]
fn reads_see_every_answered_write_and_every_request_is_answered_once() {
    let mut member_reads = 0;
    for seed in 0..RUNS {
        match run(seed, STEPS, true) {
            Ok(reads) => member_reads += reads,
            Err(what) => panic!("seed {seed}: {what}"),
        }
    }
    assert!(member_reads > 20 * RUNS, "the cache is hardly used: {member_reads}");
}
