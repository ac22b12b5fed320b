//! Online curves against caches, and what they promise for any accesses.

#[path = "support/steps.rs"]
mod steps;
mod support;

use proptest::prelude::*;
use steps::{Step, holds, step};
use surgetank_mrc::{Access, Curve, ExactLru, Online, OnlineCurve, Rate};

#[test]
fn a_write_renews_what_is_cached_and_brings_in_nothing_and_a_discard_removes() {
    holds("writes and discards");
}

#[test]
fn a_distance_is_the_longest_stretch_between_two_reads() {
    holds("stretches");
}

#[test]
fn the_rate_falls_with_what_is_read_and_rises_again_when_that_was_long_ago() {
    holds("sampling");
}

#[test]
fn a_change_shows_by_the_weight_of_the_intervals_since_and_the_weight_of_all_is_bounded() {
    holds("ageing");
}

#[test]
fn mixes_are_within_a_fiftieth_of_caches_of_each_size() {
    holds("mixes");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn a_curve_is_one_whatever_happens(
        steps in prop::collection::vec(step(), 0..800),
        keys_max in prop::sample::select(vec![0, 1, 2, 10, usize::MAX]),
        share in prop::sample::select(vec![1.0, 0.5, 1e-30]),
        kept in prop::sample::select(vec![0.0, 0.5, 1.0, -3.0, 7.0, f64::NAN]),
        renewed_after in prop::sample::select(vec![0, 1, 5]),
        change_max in prop::sample::select(vec![0.0, 0.1, 1.0, f64::NAN]),
    ) {
        let mut curve = OnlineCurve::new(Online { rate: Rate::new(share).unwrap(), keys_max, kept, renewed_after, change_max });
        let sizes = [0, 1, 2, 5, 20, 60, 1000, 1 << 40, u64::MAX];
        for step in steps {
            match step {
                Step::One(access, block) => curve.observe(access, block),
                Step::Range(access, from, length) => curve.observe_range(access, from..from.saturating_add(length)),
                Step::Interval => curve.end_interval(),
            }
            let ratios = support::cache::said(&curve, &sizes);
            prop_assert_eq!(ratios[0], 1.0);
            prop_assert!(ratios.iter().all(|ratio| (0.0..=1.0).contains(ratio)), "{:?}", ratios);
            prop_assert!(ratios.is_sorted_by(|smaller, larger| smaller >= larger), "{:?}", ratios);
            prop_assert!(curve.sampled() <= curve.reads());
        }
    }

    #[test]
    fn of_reads_that_are_all_sampled_it_is_the_exact_curve(
        keys in prop::collection::vec(prop_oneof![0u64..200, any::<u64>()], 1..1500),
    ) {
        let sizes: Vec<u64> = (1..500).collect();
        let (mut exact, mut online) = (ExactLru::new(), OnlineCurve::default());
        exact.feed(&keys);
        online.feed(&keys);
        prop_assert_eq!(online.requests(), keys.len() as u64);
        prop_assert_eq!(online.distinct(), exact.distinct());
        for (exact, online) in exact.points(&sizes).iter().zip(online.points(&sizes)) {
            prop_assert!((exact.miss_ratio - online.miss_ratio).abs() < 1e-12, "{:?} {:?}", exact, online);
        }
    }
}

#[test]
fn the_same_accesses_make_the_same_curve_whoever_else_is_observed() {
    let curve = |others: u64| {
        let (mut curve, mut other) = (OnlineCurve::default(), OnlineCurve::default());
        for block in 0..40_000u64 {
            curve.observe(Access::Read, block * block % 30_011);
            other.observe_range(Access::Read, 0..others);
        }
        curve.points(&[1, 10, 100, 1000, 10_000])
    };
    assert_eq!(curve(0), curve(3));
}

#[test]
fn where_nothing_was_read_no_size_hits() {
    let mut curve = OnlineCurve::default();
    curve.observe_range(Access::Write, 0..100);
    curve.observe_range(Access::Discard, 0..10_000);
    curve.end_interval();
    let points = curve.points(&[0, 1, 1000]);
    assert!(points.iter().all(|point| point.miss_ratio == 1.0 && point.hits == 0 && point.requests == 0), "{points:?}");
    assert_eq!(curve.distinct(), Some(0));
}

/// One interval of reads of so many blocks in turn, after many reads of a few.
fn after_a_change(change_max: f64, reads: u64) -> f64 {
    let mut curve = OnlineCurve::new(Online { change_max, ..Online::default() });
    for read in 0..40_000u64 {
        curve.observe(Access::Read, read % 100);
    }
    curve.end_interval();
    for read in 0..reads {
        curve.observe(Access::Read, 1000 + read % 1000);
    }
    curve.points(&[500])[0].miss_ratio
}

#[test]
fn what_was_before_another_mix_does_not_count_if_that_is_asked_for() {
    assert!(after_a_change(1.0, 4000) < 0.2);
    assert_eq!(after_a_change(0.1, 4000), 1.0);
    // So few reads may be chance.
    assert!(after_a_change(0.1, 300) < 0.05);
}
