//! Caches that share a budget never have more than it, however slowly they shrink.

mod support;

#[test]
fn nobody_ever_has_more_than_the_budget() {
    for seed in 0..2000 {
        support::ledger::run(seed).unwrap_or_else(|what| panic!("seed {seed}: {what}"));
    }
}
