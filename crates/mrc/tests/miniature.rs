//! Curves by miniature simulation against whole caches, and what they promise for any accesses.

#![expect(clippy::print_stdout, reason = "how large errors are is a result")]

#[path = "support/steps.rs"]
mod steps;
mod support;

use proptest::prelude::*;
use steps::{Step, holds, step};
use support::miniature::{mean_error, observed, said, whole};
use surgetank_model::random::Random;
use surgetank_mrc::{Access, Curve, ExactLru, MiniatureCurve, Miniatures, Policy, Simulation};

#[test]
fn miniatures_are_within_a_fiftieth_of_whole_caches() {
    holds("miniatures");
}

#[test]
fn in_miniatures_a_write_keeps_what_is_cached_and_a_discard_removes() {
    holds("changes in miniatures");
}

#[test]
fn a_block_that_is_read_often_counts_whether_it_is_sampled_or_not() {
    holds("adjustment of miniatures");
}

#[test]
fn reads_of_miniatures_lose_weight_and_another_mix_takes_it_all() {
    holds("ageing of miniatures");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn of_blocks_that_are_all_sampled_they_are_the_whole_caches(
        keys in prop::collection::vec(prop_oneof![0u64..300, any::<u64>()], 1..1500),
        largest in 1u64..400,
    ) {
        let mut curve = MiniatureCurve::new(Miniatures::up_to(largest));
        keys.iter().for_each(|key| curve.observe(Access::Read, *key));
        let (sizes, said) = said(&curve);
        prop_assert_eq!(sizes.last(), Some(&largest));
        let mut simulation = Simulation::new(Policy::ReadCache, &sizes);
        simulation.feed(&keys);
        let mut least = 1.0_f64;
        for (exact, said) in simulation.points(&sizes).iter().zip(said) {
            least = least.min(exact.miss_ratio);
            prop_assert!((least - said).abs() < 1e-12, "{:?} {}", exact, said);
        }
    }

    #[test]
    fn a_curve_of_miniatures_is_one_whatever_happens(
        steps in prop::collection::vec(step(), 0..600),
        largest in prop::sample::select(vec![0, 1, 50, 1000, 1 << 40, u64::MAX]),
        blocks_max in prop::sample::select(vec![0, 1, 100, u64::MAX]),
        segment_blocks in prop::sample::select(vec![0, 1, 8, 256]),
        kept in prop::sample::select(vec![0.0, 0.5, 1.0, -3.0, 7.0, f64::NAN]),
        change_max in prop::sample::select(vec![0.0, 0.1, 1.0, f64::NAN]),
    ) {
        let mut curve = MiniatureCurve::new(Miniatures { largest, segment_blocks, blocks_max, kept, change_max });
        for step in steps {
            match step {
                Step::One(access, block) => curve.observe(access, block),
                Step::Range(access, from, length) => curve.observe_range(access, from..from.saturating_add(length)),
                Step::Interval => curve.end_interval(),
            }
        }
        let (sizes, ratios) = said(&curve);
        prop_assert!(sizes.is_sorted_by(|smaller, larger| smaller < larger), "{:?}", sizes);
        prop_assert!(ratios.iter().all(|ratio| (0.0..=1.0).contains(ratio)), "{:?}", ratios);
        prop_assert!(ratios.is_sorted_by(|smaller, larger| smaller >= larger), "{:?}", ratios);
        prop_assert!(curve.sampled() <= curve.reads());
    }
}

#[test]
fn a_hot_spot_beside_reads_of_what_is_read_once_fits_at_little_more_than_its_size() {
    let (hot, largest) = (20_000, 64_000u64);
    let mut random = Random::from_seed(5);
    let blocks: Vec<u64> = (0..1_000_000)
        .map(|_| if random.chance(0.8) { random.below(hot) } else { (1 << 20) + random.below(1 << 31) })
        .collect();
    let reads: Vec<(Access, u64)> = blocks.iter().map(|block| (Access::Read, *block)).collect();
    let curve = observed(Miniatures::up_to(largest), &reads);
    let mut lru = ExactLru::new();
    lru.feed(&blocks);
    let point = curve.points().into_iter().find(|point| point.size_blocks >= hot * 6 / 5).unwrap();
    let of_lru = lru.points(&[point.size_blocks])[0].miss_ratio;
    let (error, what) = mean_error(&reads, largest);
    println!("{} blocks: {} misses, LRU {of_lru}; mean error {error}: {what}", point.size_blocks, point.miss_ratio);
    // A fifth of the reads, and the hot spot once, always miss.
    assert!(point.miss_ratio < 0.26, "{point:?}");
    assert!(of_lru > point.miss_ratio + 0.08, "{of_lru}");
    assert!(error < 0.01, "{error}: {what}");
}

#[test]
fn what_segments_keep_a_small_cache_from_is_in_its_miniature() {
    let (largest, segment) = (1 << 15, 256);
    let mut random = Random::from_seed(6);
    let reads: Vec<(Access, u64)> = (0..400_000).map(|_| (Access::Read, random.below(1 << 15))).collect();
    let coarse = observed(Miniatures { segment_blocks: segment, ..Miniatures::up_to(largest) }, &reads);
    let (sizes, said) = said(&coarse);
    let exact = whole(&reads, &sizes);
    // Of one segment nothing is cached, and of two hardly anything; of many little is lost.
    assert!(said[0] > 0.99 && said[1] > exact[1], "{said:.3?} {exact:.3?}");
    assert!((said.last().unwrap() - exact.last().unwrap()).abs() < 0.03, "{said:.3?} {exact:.3?}");
}

#[test]
fn small_sizes_of_a_sample_are_left_out_and_where_nothing_was_read_no_size_hits() {
    let mut curve = MiniatureCurve::new(Miniatures { blocks_max: 1024, ..Miniatures::up_to(1 << 20) });
    curve.observe_range(Access::Write, 0..100);
    curve.observe_range(Access::Discard, 0..u64::MAX);
    curve.end_interval();
    let points = curve.points();
    assert!(points.iter().all(|point| point.miss_ratio == 1.0 && point.hits == 0 && point.requests == 0), "{points:?}");
    // A miniature of 64 blocks.
    assert_eq!(points.first().map(|point| point.size_blocks), Some(1 << 16));
    assert_eq!(MiniatureCurve::new(Miniatures::up_to(1 << 30)).points()[0].size_blocks, 1 << 23);
    assert_eq!(MiniatureCurve::new(Miniatures::up_to(300)).points()[0].size_blocks, 2);
}
