//! The same seed gives the same run, bit for bit; another seed another one.

mod support;

use surgetank_sim::{CrashScenario, Family};

use support::check;

#[test]
fn same_seed_same_run() {
    let mut traces = Vec::new();
    let mapped = (1..=10).map(|seed| Family::Mapped.scenario(seed));
    for scenario in (1..=40).map(|seed| CrashScenario::short(seed).with_random_crashes(3, 400)).chain(mapped) {
        let seed = scenario.seed;
        let first = check(&scenario, "cargo test -p surgetank-sim --test determinism");
        let second = check(&scenario, "cargo test -p surgetank-sim --test determinism");
        assert_eq!(first, second, "seed {seed} ran in two ways");
        traces.push(first.trace);
    }
    let count = traces.len();
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), count, "two seeds gave the same run");
}
