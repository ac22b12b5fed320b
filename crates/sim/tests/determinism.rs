//! The same seed gives the same run, bit for bit; another seed another one.

mod support;

use surgetank_sim::Scenario;

use support::{check, seeds};

#[test]
fn same_seed_same_run() {
    let mut traces = Vec::new();
    for seed in seeds(40) {
        let scenario = Scenario::short(seed).with_random_crashes(3, 400);
        let first = check("same_seed_same_run", "determinism", &scenario);
        let second = check("same_seed_same_run", "determinism", &scenario);
        assert_eq!(first, second, "seed {seed} ran in two ways");
        traces.push(first.trace);
    }
    let count = traces.len();
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), count, "two seeds gave the same run");
}
