//! What holds of every plan.

mod support;

use proptest::prelude::*;
use support::all;

#[test]
fn plans_keep_their_promises() {
    all(200, support::promises::run);
}

#[test]
fn plans_keep_their_promises_at_any_scale() {
    all(1500, support::scales::run);
}

#[test]
fn the_papers_algorithm_keeps_within_servers_bounds_and_the_optimum() {
    all(60, support::paper::run);
}

#[test]
fn shared_caches_are_divided_as_they_fill() {
    all(100, support::curves::run);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_seed_keeps_them(seed in any::<u64>()) {
        prop_assert_eq!(support::promises::run(seed), Ok(()));
    }
}
