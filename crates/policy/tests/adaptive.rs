//! When `adaptive` boosts, how big, and when it stops doing so, in a world without chance.

mod rig;

use std::time::Duration;

use surgetank_model::{Bandwidth, Bytes, InPlace};
use surgetank_policy::{BurstHint, Cause, Config, Learned, Phase};

use rig::{BACKING_MIB_S, CACHING_MIB_S, Rig};

fn usual(create_s: u64) -> Rig {
    Rig::new(create_s, |_| {}, Learned::default())
}

#[test]
fn a_learned_size_that_the_provider_has_no_room_for_gives_way_to_one_that_it_had() {
    let mut rig = usual(2);
    rig.room = Bytes::from_gib(5);
    for _ in 0..6 {
        rig.burst(16 << 10);
        rig.calm(900);
    }
    assert!(rig.controller.status().next_size > rig.room, "what was learned stays");
    assert!(rig.sizes.len() >= 6 && rig.sizes.iter().all(|size| *size <= rig.room), "{:?}", rig.sizes);
}

#[test]
fn what_boosts_cost_more_than_they_saved_holds_up_the_next_until_time_has_paid_it_off() {
    let burst_mib = 8 << 10;
    let owing = |debt_agbs| {
        Rig::new(2, |_| {}, Learned { bursts: vec![Bytes::from_mib(burst_mib); 6], debt_agbs, ..Learned::default() })
    };
    let mut free = owing(0);
    free.burst(burst_mib);
    assert_eq!(free.sizes.len(), 1);
    // More than four times what the burst can save.
    let most = free.value_of_time() * (burst_mib / BACKING_MIB_S) as f64;
    let mut rig = owing((5.0 * most) as u64);
    (0..60).for_each(|_| rig.second(0, BACKING_MIB_S, 1.0));
    let reason = rig.controller.status().backing_off.unwrap();
    assert!(reason.starts_with("the last boosts cost more than they saved: "), "{reason}");
    rig.burst(burst_mib - 60 * BACKING_MIB_S);
    assert!(rig.sizes.is_empty(), "{:?}", rig.sizes);
    rig.calm(250_000);
    rig.burst(burst_mib);
    assert_eq!(rig.sizes.len(), 1, "time has paid it off");
}

#[test]
fn what_a_boost_cost_more_than_it_saved_is_owed() {
    // The burst ends before the volume is there.
    let learned = Learned { bursts: vec![Bytes::from_gib(4); 6], ..Learned::default() };
    let mut rig = Rig::new(20, |_| {}, learned);
    rig.burst(600);
    let record = std::iter::repeat_with(|| {
        rig.calm(1);
        rig.controller.next_record()
    })
    .take(900)
    .find_map(|record| record)
    .unwrap();
    assert!(record.observed.cost_agbs > 0 && record.observed.saved.0.is_zero(), "{record:?}");
    let (debt, cost) = (rig.controller.learned().debt_agbs as f64, record.observed.cost_agbs as f64);
    assert!(debt > 0.9 * cost && debt <= cost, "{debt} of {cost} AGBs are owed");
}

#[test]
fn an_attach_takes_as_long_as_all_its_tries() {
    let lead = |failing| {
        let mut rig = usual(8);
        rig.failing = failing;
        rig.burst(4000);
        rig.controller.learned().lead.unwrap().0.as_secs_f64()
    };
    assert!((lead(0) - 8.0).abs() < 1.5, "{}", lead(0));
    assert!(lead(2) > 8.0 + 3.0 - 1.0, "{}", lead(2));
}

#[test]
fn a_load_that_the_backing_volume_serves_is_no_burst() {
    let mut rig = usual(8);
    for _ in 0..3600 {
        rig.second(0, 29, 0.88);
    }
    assert_eq!(rig.sizes, []);
}

#[test]
fn reads_that_no_cache_has_are_no_burst() {
    let mut rig = usual(8);
    for _ in 0..3600 {
        rig.second(30, 3, 1.0);
    }
    assert_eq!(rig.sizes, []);
}

#[test]
fn a_burst_that_pays_is_boosted_and_tells_what_it_saves() {
    let mut rig = usual(8);
    rig.second(0, 33, 1.0);
    assert_eq!(rig.controller.cause(), Some(Cause::Saturation { written: Bytes::from_mib(33) }));
    let why = rig.controller.why().unwrap().to_owned();
    assert!(
        why.starts_with("the backing volume is saturated, and a burst has written 33 MiB; it is expected to"),
        "{why}"
    );
    rig.burst(4000);
    rig.calm(300);
    let records = rig.records();
    let [record] = &records[..] else { panic!("one boost: {:?}", rig.sizes) };
    let (predicted, saved) = (record.predicted.unwrap().saved.0.as_secs_f64(), record.observed.saved.0.as_secs_f64());
    // The first guess is as large as the cache, and says nothing of the 8 s until it is there.
    assert!(saved > 80.0 && saved < predicted && predicted < 140.0, "{saved} {predicted}");
    assert!(record.observed.cost_agbs as f64 <= saved * rig.value_of_time(), "{record:?}");
    // The next is expected as it was.
    rig.burst(200);
    let expected = rig.controller.why().unwrap();
    assert!(expected.contains("it is expected to save 8"), "{expected}");
}

#[test]
fn a_boost_that_is_dearer_than_raising_the_volume_in_place_says_so() {
    let in_place = |mib_s| InPlace {
        bandwidth: Bandwidth::from_mib_s(mib_s),
        usd_per_hour: 0.0,
        least: Duration::from_secs(6 * 3600),
    };
    for (mib_s, is_as_fast) in [(161, true), (66, false)] {
        let change = |config: &mut Config| {
            (config.caching_usd_per_gib_hour, config.in_place) = (Some(0.001), Some(in_place(mib_s)));
        };
        let mut rig = Rig::new(8, change, Learned::default());
        rig.second(0, 33, 1.0);
        let why = rig.controller.why().unwrap();
        let raised = format!("raising the backing volume in place to {mib_s} MiB/s costs 0.0000 USD");
        assert!(why.contains("doing nothing costs") && why.contains(&raised), "{why}");
        assert_eq!(why.ends_with("which is cheaper"), is_as_fast, "{why}");
    }
}

#[test]
fn bursts_that_end_before_a_cache_is_there_are_not_boosted_for_long() {
    let mut rig = usual(60);
    for burst in 0..60 {
        rig.burst(330 + burst % 7);
        rig.calm(60 + 13 * (burst * burst % 11));
    }
    assert!(rig.sizes.len() <= 2, "{:?}", rig.sizes);
}

#[test]
fn boosts_begin_again_when_bursts_grow() {
    let mut rig = usual(60);
    for burst in 0..20 {
        rig.burst(330);
        rig.calm(60 + 13 * (burst * burst % 11));
    }
    let before = rig.sizes.len();
    for burst in 0..3 {
        rig.burst(9000);
        rig.calm(400 + 50 * burst);
    }
    assert!(rig.sizes.len() >= before + 3, "{:?}", rig.sizes);
    let saved: f64 = rig.records().iter().map(|record| record.observed.saved.0.as_secs_f64()).sum();
    assert!(saved > 200.0, "{saved}");
}

#[test]
fn regular_bursts_find_the_cache_although_it_takes_a_minute() {
    let mut rig = usual(60);
    let in_time = (0..20).filter(|_| {
        rig.calm(300);
        rig.burst(1024)
    });
    let in_time = in_time.count();
    assert!(in_time >= 16, "{in_time} of 20, {:?}", rig.sizes);
}

#[test]
fn nothing_is_rented_while_more_is_to_come_than_pays() {
    let mut rig = usual(8);
    for _ in 0..2 {
        rig.burst(40_000);
        rig.calm(3000);
    }
    let before = rig.sizes.len();
    // S* is 25.8 GiB at the default value of time: the rest of a burst pays for a cache, all of it does not.
    rig.burst(12_000);
    assert_eq!(rig.sizes.len(), before);
    rig.burst(16_000);
    assert_eq!(rig.sizes.len(), before + 1);
}

#[test]
fn a_burst_without_an_end_is_not_waited_for() {
    let mut rig = usual(8);
    rig.burst(200_000);
    assert_eq!((rig.controller.phase(), rig.sizes.len()), (Phase::Idle, 1));
}

#[test]
fn an_empty_cache_is_returned_early_when_no_burst_is_near() {
    let mut rig = usual(2);
    for _ in 0..6 {
        rig.burst(1000);
        rig.calm(400);
    }
    let held = rig.records().last().map(|record| record.ended.since(record.released.unwrap_or(record.ended)));
    assert_eq!(held, Some(Duration::ZERO));
    // 800 MiB take 25 s to drain; the inactivity delay would have been 30 s of calm.
    rig.burst(1000);
    rig.calm(29);
    assert_eq!(rig.controller.phase(), Phase::Idle);
}

#[test]
fn nobody_pays_for_time_that_is_worth_nothing() {
    let mut rig = Rig::new(8, |config| config.value_of_time = 0.0, Learned::default());
    for _ in 0..5 {
        rig.burst(5000);
        rig.calm(400);
    }
    assert_eq!(rig.sizes, []);
}

#[test]
fn a_request_is_followed_whatever_is_expected() {
    let mut rig = Rig::new(1, |config| config.value_of_time = 0.0, Learned::default());
    rig.controller.hint_boost(rig.now).unwrap();
    rig.take_steps();
    rig.burst(500);
    assert!(rig.absorbs());
    rig.calm(60);
    let records = rig.records();
    let [record] = &records[..] else { panic!("one boost") };
    assert_eq!(record.predicted, None);
}

#[test]
fn what_a_boost_costs_is_told_in_agbs_whatever_it_is_judged_by() {
    for cheaper in [1.0, 4.0] {
        let mut rig = Rig::new(1, |config| config.caching_rent /= cheaper, Learned::default());
        announce(&mut rig, 4, 0);
        rig.burst(4 << 10);
        rig.calm(300);
        let records = rig.records();
        let [record] = &records[..] else { panic!("one boost") };
        let each =
            record.held().map(|(size, held)| size.as_gib() * CACHING_MIB_S as f64 * held.as_secs_f64()).sum::<f64>();
        assert!((record.observed.cost_agbs as f64 - each).abs() < 2.0, "judged by a {cheaper}th: {record:?}");
        let predicted = record.predicted.unwrap().cost_agbs as f64;
        assert!((predicted / each - 1.0).abs() < 0.5, "judged by a {cheaper}th: {record:?}");
    }
}

fn announce(rig: &mut Rig, gib: u64, starts_in_s: u64) {
    let hint = BurstHint { size: Some(Bytes::from_gib(gib)), starts_in: Duration::from_secs(starts_in_s) };
    rig.controller.hint_burst(rig.now, hint).unwrap();
    rig.take_steps();
}

#[test]
fn an_announced_burst_finds_a_cache_of_its_size_rented_no_earlier_than_need_be() {
    let mut rig = usual(8);
    // How long it takes is not known yet: at once.
    announce(&mut rig, 8, 60);
    assert_eq!(rig.sizes.len(), 1);
    rig.calm(60);
    assert!(rig.burst(8 << 10), "kept until the burst comes, which is later than the inactivity delay");
    rig.calm(600);
    // 8 GiB × 128 ÷ (33 + 128), and what the log needs.
    assert_eq!(rig.sizes, [Bytes::from_gib(7)]);
    let records = rig.records();
    let [record] = &records[..] else { panic!("one boost") };
    let predicted = record.predicted.unwrap();
    let (expected, saved) = (predicted.saved.0.as_secs_f64(), record.observed.saved.0.as_secs_f64());
    assert!((expected - saved).abs() < 0.1 * expected, "{expected} s were expected, and {saved} s saved");

    announce(&mut rig, 2, 60);
    rig.calm(45);
    assert_eq!(rig.sizes.len(), 1, "attaching takes 8 s");
    rig.calm(15);
    assert!(rig.burst(2 << 10));
    assert_eq!(rig.sizes[1], Bytes::from_gib(2));
}

#[test]
fn a_burst_announced_long_before_rents_nothing_until_it_may_be_needed() {
    let mut rig = usual(8);
    let config = rig.controller.config();
    let longest = config.create_timeout + config.attach_timeout;
    announce(&mut rig, 8, 3600);
    let announced = rig.controller.status().announced_in.unwrap().0;
    assert!(announced + longest + Duration::from_secs(1) >= Duration::from_secs(3600), "{announced:?}");
    rig.calm(announced.as_secs() - 1);
    assert_eq!(
        rig.sizes.len(),
        0,
        "attaching has taken no time yet, and takes no longer than the provider is waited for"
    );
    rig.calm(3600 - announced.as_secs() + 1);
    assert_eq!(rig.controller.status().announced_in, None);
    assert!(rig.burst(8 << 10));
    assert_eq!(rig.sizes, [Bytes::from_gib(7)]);
}

#[test]
fn no_back_off_holds_up_an_announced_burst() {
    let mut rig = usual(8);
    rig.room = Bytes::ZERO;
    // Refused again and again, until the next try is minutes away.
    for _ in 0..8 {
        rig.controller.hint_boost(rig.now).unwrap();
        rig.take_steps();
    }
    assert!(rig.controller.status().retry_in.unwrap().0 > Duration::from_secs(60));
    rig.room = Bytes::from_gib(50);
    announce(&mut rig, 4, 20);
    rig.calm(20);
    assert!(rig.burst(4 << 10));
}

#[test]
fn of_two_announcements_the_last_one_counts() {
    let mut rig = usual(8);
    announce(&mut rig, 8, 3000);
    announce(&mut rig, 2, 2000);
    rig.calm(2000);
    assert!(rig.burst(2 << 10));
    rig.calm(2000);
    assert_eq!(rig.sizes, [Bytes::from_gib(2)], "the first one is forgotten");
}

#[test]
fn an_announced_burst_that_does_not_come_costs_no_more_than_its_wait() {
    let mut rig = usual(8);
    announce(&mut rig, 4, 20);
    rig.calm(200);
    assert_eq!(rig.controller.phase(), Phase::Idle);
    let records = rig.records();
    let [record] = &records[..] else { panic!("one boost") };
    let most = Duration::from_secs(20) + rig.controller.config().inactivity_delay + Duration::from_secs(3);
    assert!(record.ended.since(record.started) <= most, "{record:?}");
    // Taken back before it is time.
    announce(&mut rig, 4, 600);
    rig.calm(60);
    rig.controller.hint_drain(rig.now);
    rig.calm(1000);
    assert_eq!(rig.sizes.len(), 1);
}

#[test]
fn a_burst_that_is_announced_while_the_last_volume_leaves_is_not_forgotten() {
    let mut rig = usual(8);
    announce(&mut rig, 4, 20);
    rig.calm(200);
    announce(&mut rig, 4, 100);
    // Another boost is in the way.
    rig.controller.hint_boost(rig.now).unwrap();
    rig.take_steps();
    rig.calm(100);
    assert!(rig.burst(4 << 10));
}

#[test]
fn what_was_learned_is_known_over_a_restart() {
    let mut rig = usual(8);
    for _ in 0..5 {
        rig.burst(3000);
        rig.calm(300);
    }
    let learned = rig.controller.learned();
    let mut again = Rig::new(8, |_| {}, learned.clone());
    assert_eq!(again.controller.learned(), learned);
    // After one burst, the next is expected.
    again.burst(3000);
    again.calm(300);
    assert!(again.burst(3000));
}

/// What a daemon of today has written.
#[test]
fn an_older_state_is_read() {
    let older =
        "next_size = \"4 GiB\"\nboosts = 7\n[[rentals]]\nstarted_ago = \"1 h\"\nlasted = \"5 min\"\nsize = \"4 GiB\"\n";
    let learned: Learned = toml::from_str(older).unwrap();
    assert_eq!((learned.boosts, learned.lead, learned.bursts.len()), (7, None, 0));
    let mut rig = Rig::new(8, |config| config.initial_size = Bytes::from_gib(1), learned);
    rig.second(0, 33, 1.0);
    assert_eq!(rig.sizes, [Bytes::from_gib(4)]);
    let newer = rig.controller.learned();
    let written = toml::to_string(&newer).unwrap();
    assert_eq!(toml::from_str::<Learned>(&written).unwrap(), newer);
}
