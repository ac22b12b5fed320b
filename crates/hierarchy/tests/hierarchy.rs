//! Caches, ratios and cases, beside models that are simple.

mod support;

use support::{caches, cases, ratios};
use surgetank_hierarchy::Scheme;

fn all(seeds: u64, run: fn(u64) -> Result<(), String>) {
    for seed in 0..seeds {
        run(seed).unwrap_or_else(|failure| panic!("seed {seed}: {failure}"));
    }
}

#[test]
fn every_answer_is_that_of_simple_lists_whatever_is_resized() {
    all(60, caches::lists);
}

#[test]
fn no_block_is_at_both_levels_of_an_exclusive_hierarchy_and_shares_hold_what_was_used_last() {
    all(30, caches::servers);
}

#[test]
fn a_partition_misses_what_the_exact_curve_says() {
    all(40, ratios::exact);
    all(20, ratios::policies);
}

#[test]
fn a_share_on_several_servers_is_as_good_as_on_one() {
    all(8, ratios::spread);
}

#[test]
fn a_split_share_reaches_the_hull() {
    all(3, ratios::split);
}

#[test]
fn disks_have_queues() {
    all(5, ratios::disk);
}

#[test]
fn the_optimal_scheme_holds_slos_and_gains_on_the_fair_share() {
    all(3, cases::run);
}

#[test]
fn the_papers_algorithm_samples_shares_that_stay_and_follows_its_plans_step_by_step() {
    all(5, cases::steps);
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let case = cases::case(7);
    for scheme in Scheme::ALL {
        assert_eq!(case.run(scheme), case.run(scheme), "{}", scheme.name());
    }
}

#[test]
fn a_case_that_makes_no_sense_is_refused() {
    let case = || cases::case(1);
    let mut cases = vec![case(), case(), case(), case()];
    cases[0].slos.pop();
    cases[1].interval_s = 0.0;
    cases[2].layout.reach[0].level2.clear();
    cases[3].sampled = 0.0;
    for case in cases {
        assert!(case.run(Scheme::Optimal).is_err(), "{case:?}");
    }
}
