//! When a caching volume grows while it is in use, in a world without chance.

mod rig;

use surgetank_model::Bytes;
use surgetank_model::volume::GROWTHS_MAX;
use surgetank_policy::{Config, Learned, Refusal, ResumeAt, StepOutcome};

use rig::{CACHING_MIB_S, Rig};

/// A controller that expects bursts of 4 GiB, and a volume of 8 GiB at most.
fn growing(grows: bool) -> Rig {
    let learned = Learned { bursts: vec![Bytes::from_gib(4); 6], ..Learned::default() };
    let change = |config: &mut Config| {
        (config.grows, config.size_max) = (grows, Bytes::from_gib(8));
    };
    Rig::new(2, change, learned)
}

#[test]
fn a_volume_that_fills_up_grows_while_that_pays_and_within_its_limits() {
    let mut fixed = growing(false);
    fixed.burst(24 << 10);
    assert_eq!(fixed.sizes.len(), 1, "{:?}", fixed.sizes);
    let mut rig = growing(true);
    rig.burst(24 << 10);
    assert!(rig.sizes.len() > 1 && rig.sizes.is_sorted(), "{:?}", rig.sizes);
    assert_eq!(rig.sizes.last(), Some(&Bytes::from_gib(8)), "{:?}", rig.sizes);
    let why = rig.controller.why_grown().unwrap();
    assert!(why.starts_with("grows the caching volume from ") && why.contains(" GiB: the burst has written "), "{why}");
    assert!(rig.now < fixed.now, "{} and {}", rig.now, fixed.now);
    assert_eq!(rig.controller.status().cache_size, Some(Bytes::from_gib(8)));
    rig.calm(900);
    let record = rig.records().pop().unwrap();
    assert!(record.size == Bytes::from_gib(8) && record.mean_size < record.size, "{record:?}");
    let rented = record.ended.since(record.started);
    let cost = record.mean_size.as_gib() * CACHING_MIB_S as f64 * rented.as_secs_f64();
    assert_eq!(
        record.sizes.iter().map(|(size, _)| *size).collect::<Vec<_>>(),
        rig.sizes,
        "each size that was asked for"
    );
    assert_eq!(record.held().map(|(_, held)| held).sum::<std::time::Duration>(), rented);
    let each = record.held().map(|(size, held)| size.as_gib() * CACHING_MIB_S as f64 * held.as_secs_f64()).sum::<f64>();
    assert!((each - cost).abs() < 2.0, "{record:?}");
    assert!((record.observed.cost_agbs as f64 - cost).abs() < 2.0, "{record:?}");
}

#[test]
fn a_volume_grows_no_more_often_than_its_log_has_parts() {
    let (small, learned) = (Bytes::from_mib(16), Learned::default());
    let change = |config: &mut Config| {
        (config.grows, config.grain, config.size_min) = (true, small, small);
        (config.initial_size, config.size_max) = (small, Bytes::from_gib(16 << 10));
        config.value_of_time *= 1000.0;
    };
    let mut rig = Rig::new(2, change, learned);
    rig.burst(400 << 10);
    let growths = rig.sizes.windows(2).take_while(|pair| pair[0] < pair[1]).count();
    assert_eq!(growths, GROWTHS_MAX, "{:?}", rig.sizes);
}

#[test]
fn a_volume_does_not_grow_where_time_is_worth_less_than_its_rent() {
    let mut rig = growing(true);
    rig.burst(2 << 10);
    let sizes = rig.sizes.len();
    assert_eq!(sizes, 1);
    let mut poor = Rig::new(
        2,
        |config| (config.grows, config.value_of_time) = (true, 0.01),
        Learned { bursts: vec![Bytes::from_gib(4); 6], ..Learned::default() },
    );
    // Somebody wants it all the same.
    poor.controller.hint_boost(poor.now).unwrap();
    poor.take_steps();
    poor.calm(3);
    poor.burst(24 << 10);
    assert_eq!(poor.sizes.len(), 1, "{:?}", poor.sizes);
}

#[test]
fn a_growth_that_is_refused_is_not_billed_and_is_tried_again_later() {
    let mut rig = growing(true);
    rig.growth = StepOutcome::Refused(Refusal::Quota);
    rig.burst(9 << 10);
    let asked = rig.sizes.len() - 1;
    assert!((1..16).contains(&asked), "{asked} growths are asked for in {}", rig.now);
    assert_eq!(rig.controller.status().cache_size, Some(rig.sizes[0]));
    let reason = rig.controller.status().backing_off.unwrap();
    assert!(reason.contains("growing the caching volume was refused: the provider's quota is used up"), "{reason}");
    // Nobody knows whether it has grown: it is billed as if it had.
    let mut rig = growing(true);
    rig.growth = StepOutcome::Refused(Refusal::Timeout);
    rig.burst(9 << 10);
    assert_eq!(rig.controller.status().cache_size, rig.sizes.last().copied());
}

#[test]
fn a_growth_of_which_nobody_knows_is_asked_for_again_in_the_same_boost() {
    let mut rig = growing(true);
    rig.growth = StepOutcome::Refused(Refusal::Timeout);
    rig.burst(9 << 10);
    let (first, grown) = (rig.sizes[0], rig.sizes[1]);
    assert!(rig.sizes.len() > 2 && rig.sizes[1..].iter().all(|size| *size == grown), "{:?}", rig.sizes);
    assert_eq!(rig.observation.cache_bytes, first.get());
    let why = rig.controller.why_grown().unwrap();
    assert!(why.starts_with("asks again for the caching volume to grow to "), "{why}");
    assert!(rig.controller.status().backing_off.is_some());
    rig.growth = StepOutcome::Done;
    rig.burst(12 << 10);
    assert!(rig.observation.cache_bytes >= grown.get(), "{:?}", rig.sizes);
    assert_eq!(rig.controller.status().backing_off, None);
}

#[test]
fn after_a_crash_what_the_volume_may_have_grown_by_is_asked_for_when_it_absorbs_again() {
    for grows in [true, false] {
        let mut rig = growing(grows);
        let size = Bytes::from_gib(6);
        rig.controller.resume(rig.now, ResumeAt::Adopted { size });
        (rig.observation.cache_bytes, rig.observation.dirty_bytes) =
            (Bytes::from_gib(4).get(), Bytes::from_gib(2).get());
        rig.take_steps();
        rig.calm(2);
        rig.burst(1 << 10);
        assert!(rig.absorbs());
        assert_eq!(rig.sizes, if grows { vec![size] } else { Vec::new() });
        assert_eq!(rig.observation.cache_bytes, if grows { size.get() } else { Bytes::from_gib(4).get() });
    }
}
