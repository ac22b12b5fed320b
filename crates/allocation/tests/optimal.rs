//! The best plan is the best one: against all shares there are, and against the program as it is on paper.

mod support;

use support::exhaustive::{Kind, compare};
use support::{Extent, all, optimum};

#[test]
fn no_shares_are_better_than_the_plan() {
    let kinds: Vec<Kind> =
        (0..500).map(|seed| compare(seed).unwrap_or_else(|error| panic!("seed {seed}: {error}"))).collect();
    let count = |kind: Kind| kinds.iter().filter(|one| **one == kind).count();
    let counts = [Kind::Unbound, Kind::Bound, Kind::Infeasible].map(count);
    println!("no SLO in the way, one in the way, infeasible: {counts:?}");
    assert!(counts.iter().all(|count| *count >= 20), "{counts:?}");
}

#[test]
fn the_plan_is_that_of_the_whole_program() {
    all(300, optimum::run);
}

#[test]
fn many_applications_of_any_connectivity_have_the_plan_of_the_whole_program() {
    let large = Extent { applications: 40, first: 6, second: 12, grains: 400 };
    for seed in 0..20 {
        optimum::compare(1000 + seed, large).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    }
}
