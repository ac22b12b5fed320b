//! Interpolation, recommendation, prices and closed forms against their properties and the design's anchors.

use std::time::Duration;

use proptest::prelude::*;
use surgetank_model::toml_error::Source;
use surgetank_model::volume_type::{Offer, Provision, Supply};
use surgetank_model::{Bandwidth, Bytes, Catalog, Instant, Iops, Limits, VolumeType};
use surgetank_planner::calibration::Calibration;
use surgetank_planner::cost::Tariff;
use surgetank_planner::credits::{Demand, Segment, serve};
use surgetank_planner::fluid::{Absorb, Pipes};
use surgetank_planner::interval::{Checkpointing, ElasticDevice, interval};
use surgetank_planner::predict::Predictor;
use surgetank_planner::price::{Need, PriceOption, options};
use surgetank_planner::recommend::{Budget, Constraints, recommend};
use surgetank_planner::rotation::{Member, rotation};
use surgetank_planner::scenario::{CalibrationPoint, Scenario};

fn point(dataset: u64, cache: u64, mib_s: u64, attached: u64) -> CalibrationPoint {
    CalibrationPoint {
        dataset: Bytes::from_gib(dataset),
        cache: Bytes::from_gib(cache),
        throughput: Bandwidth::from_mib_s(mib_s),
        attached: Duration::from_secs(attached),
    }
}

fn known(key: &str) -> VolumeType {
    let (provider, name) = key.split_once('/').unwrap();
    Catalog::builtin().find(provider, name).unwrap().clone()
}

#[test]
fn points_answer_themselves_and_repeats_have_a_spread() {
    let calibration = Calibration::new(&[point(4, 6, 80, 170), point(4, 6, 100, 190), point(4, 6, 92, 180)]);
    let found = calibration.at(Bytes::from_gib(4), Bytes::from_gib(6)).unwrap();
    assert!((found.write_s.median - 4096.0 / 92.0).abs() < 1e-9 && found.repeats == 3);
    assert!((found.write_s.low - 40.96).abs() < 1e-9 && (found.write_s.high - 51.2).abs() < 1e-9);
    assert_eq!((found.attached_s.low, found.attached_s.median, found.attached_s.high), (170.0, 180.0, 190.0));
}

#[test]
fn nothing_is_extrapolated() {
    let points: Vec<_> = [3, 9].iter().flat_map(|x| [2, 12].map(|m| point(*x, m, 60 + 4 * m, 100 + 20 * x))).collect();
    let calibration = Calibration::new(&points);
    for (dataset, cache) in [(2, 6), (10, 6), (4, 1), (4, 13)] {
        let why = calibration.at(Bytes::from_gib(dataset), Bytes::from_gib(cache)).unwrap_err().why;
        assert!(
            why.contains("outside the calibration points (datasets 3 GiB to 9 GiB, caches 2 GiB to 12 GiB)"),
            "{why}"
        );
    }
    assert!(calibration.at(Bytes::from_gib(4), Bytes::from_gib(7)).is_ok());
    assert!(Calibration::default().at(Bytes::from_gib(4), Bytes::from_gib(7)).is_err());
}

proptest! {
    #[test]
    fn between_points_is_between_their_values(
        grid in prop::collection::vec((1u64..12, 1u64..16, 20u64..160, 10u64..400), 1..24),
        dataset in 1u64..12_000, cache in 1u64..16_000,
    ) {
        let points: Vec<_> = grid.iter().map(|(x, m, b, d)| point(*x, *m, *b, *d)).collect();
        let calibration = Calibration::new(&points);
        let Ok(found) = calibration.at(Bytes::from_mib(dataset), Bytes::from_mib(cache)) else { return Ok(()) };
        let times = points.iter().map(|point| point.dataset.as_mib() / point.throughput.as_mib_s());
        let (least, most) = times.fold((f64::MAX, 0.0f64), |(least, most), time| (least.min(time), most.max(time)));
        prop_assert!(found.write_s.median >= least - 1e-9 && found.write_s.median <= most + 1e-9);
        prop_assert!(found.write_s.low <= found.write_s.median && found.write_s.median <= found.write_s.high);
    }

    #[test]
    fn monotone_points_give_a_monotone_curve(steps in prop::collection::vec(0u64..30, 2..8), at in prop::collection::vec(0u64..10_000, 2)) {
        // Throughput that grows with the cache stays so in between, and the fluid model's own points are met exactly.
        let mut mib_s = 20;
        let points: Vec<_> = steps.iter().zip(1..).map(|(step, cache)| { mib_s += step; point(4, cache, mib_s, 100) }).collect();
        let calibration = Calibration::new(&points);
        let span = Bytes::from_gib(steps.len() as u64 - 1).get();
        let cache = |share: u64| Bytes::new(Bytes::from_gib(1).get() + span / 10_000 * share);
        let time = |share| calibration.at(Bytes::from_gib(4), cache(share)).unwrap().write_s.median;
        let (low, high) = (at[0].min(at[1]), at[0].max(at[1]));
        prop_assert!(time(low) >= time(high) - 1e-9);
    }

    #[test]
    fn the_closed_form_of_credits_is_the_token_bucket(
        gib in 1u64..1200, demands in prop::collection::vec((1u64..5000, 1u64..4000), 1..5),
    ) {
        // The throttle's bucket, a second at a time: what is asked for within the cap is taken whole while tokens last.
        let gp2 = known("aws/gp2");
        let size = Bytes::from_gib(gib);
        let asked: Vec<_> = demands.iter().map(|(iops, s)| Demand { iops: Some(Iops::new(*iops)), bandwidth: None, lasts: Duration::from_secs(*s) }).collect();
        let found = serve(&gp2, size, &asked).unwrap();
        let Some(credits) = gp2.credits_at(size) else {
            prop_assert!(found.iter().all(|segment| segment.credits_end.is_none()));
            return Ok(());
        };
        let mut bucket = credits.bucket(Instant::ZERO);
        let mut second = 0;
        for (demand, segment) in asked.iter().zip(found) {
            let rate = demand.iops.unwrap().get().min(credits.burst_per_s.max(credits.baseline_per_s));
            let mut served = 0;
            for _ in 0..demand.lasts.as_secs() {
                second += 1;
                let tokens = bucket.available(Instant::from_nanoseconds(second * 1_000_000_000)).min(rate);
                bucket.take(Instant::from_nanoseconds(second * 1_000_000_000), tokens).ok();
                served += tokens;
            }
            let average = served as f64 / demand.lasts.as_secs_f64();
            // A second of the burst rate is the grain of this oracle.
            let grain = credits.burst_per_s as f64 / demand.lasts.as_secs_f64();
            prop_assert!((average - segment.served_iops.unwrap()).abs() <= grain + 1e-6, "{average} {segment:?}");
            let left = bucket.available(Instant::from_nanoseconds(second * 1_000_000_000)) as f64;
            prop_assert!((left - segment.credits_end.unwrap()).abs() <= 2.0 * credits.burst_per_s as f64, "{left} {segment:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nothing_that_a_type_forbids_is_listed(gib in 1u64..40_000, iops in prop::option::of(1u64..300_000), mib_s in prop::option::of(1u64..9000)) {
        let catalog = Catalog::builtin();
        let limits = Limits { bandwidth: mib_s.map(Bandwidth::from_mib_s), iops: iops.map(Iops::new) };
        let found = options(&catalog, &Need { capacity: Bytes::from_gib(gib), limits }, None);
        for option in &found {
            let known = known(&format!("{}/{}", option.provider, option.volume_type));
            let size = Bytes::from_gib(option.size_gib as u64);
            prop_assert_eq!(known.size.fit(size), Some(size));
            prop_assert!(option.size_gib * f64::from(option.volumes) >= gib as f64);
            prop_assert!(iops.is_none_or(|need| option.iops.is_none_or(|iops| iops >= need)));
            prop_assert!(mib_s.is_none_or(|need| option.throughput_mib_s.is_none_or(|rate| rate >= need as f64 - 1e-6)));
            let most = catalog.provider(&option.provider).and_then(|known| known.attachments.as_ref()).map_or(16, |known| known.most);
            prop_assert!(option.volumes >= 1 && option.volumes <= most);
            prop_assert!(option.usd_month.is_none_or(|usd| usd > 0.0));
            if option.sustained && iops.is_some() {
                let each = Limits { bandwidth: None, iops: iops.map(|iops| Iops::new(iops.div_ceil(u64::from(option.volumes)))) };
                prop_assert!(known.offer(size, &each, Supply::Sustained).is_some_and(|offer| offer.size == size), "{option:?}");
            }
        }
        let rank = |option: &PriceOption| {
            (option.usd_month.is_none(), !option.sustained, option.transactions_10k_usd.is_some())
        };
        for pair in found.windows(2) {
            prop_assert!(rank(&pair[0]) < rank(&pair[1]) || rank(&pair[0]) == rank(&pair[1]) && pair[0].usd_month <= pair[1].usd_month);
        }
    }
}

#[test]
fn the_anchors_of_five_hundred_gib_at_thirty_thousand_iops() {
    let need =
        Need { capacity: Bytes::from_gib(500), limits: Limits { bandwidth: None, iops: Some(Iops::new(30_000)) } };
    let found = options(&Catalog::builtin(), &need, Some("aws"));
    let of = |name: &str, sustained: bool| -> Vec<&PriceOption> {
        found.iter().filter(|option| option.volume_type == name && option.sustained == sustained).collect()
    };
    let figures =
        |option: &PriceOption| (option.volumes, option.size_gib, (option.usd_month.unwrap() * 100.0).round() / 100.0);
    assert_eq!(of("io2", true).iter().map(|one| figures(one)).collect::<Vec<_>>(), [(1, 500.0, 2012.50)]);
    // io1 has 50 IOPS for each GiB: 500 GiB stop at 25,000.
    assert_eq!(of("io1", true).iter().map(|one| figures(one)).collect::<Vec<_>>(), [(1, 600.0, 2025.0)]);
    assert_eq!(figures(of("gp3", true)[0]), (10, 50.0, 40.0));
    assert_eq!(figures(of("gp3", true)[1]), (1, 500.0, 175.0));
    assert_eq!(figures(of("gp2", false)[0]), (10, 50.0, 50.0));
    assert!(
        of("gp2", false)[0].note.contains("full credits last 1894 s, then 150 IOPS"),
        "{}",
        of("gp2", false)[0].note
    );
    assert_eq!(figures(of("gp2", true)[0]), (2, 5000.0, 1000.0));
    assert!(
        found[0].volume_type == "gp3" && found[0].note.contains("ends the game of 10 × 50 GiB gp2 at $50.00"),
        "{}",
        found[0].note
    );
    assert!(found[0].note.contains("4 changes in any 24 hours"));
    assert!(of("st1", true).is_empty() && of("st1", false).is_empty());
    assert_eq!(found[0].price_as_of.as_deref(), Some("2026-09-30"));
}

#[test]
fn options_without_a_known_price_come_last_and_are_not_free() {
    let need = Need { capacity: Bytes::from_gib(100), limits: Limits::NONE };
    let found = options(&Catalog::builtin(), &need, None);
    let last = found.last().unwrap();
    assert_eq!((last.provider.as_str(), last.usd_month), ("openstack", None));
    assert!(last.note.contains("its price is unknown"));
    assert!(found.iter().all(|option| option.provider != "local"));
    // Without rates to reach, arrays pay only where tiers round up: 7 × 16 GiB cost less than one disk of 128.
    assert!(found.iter().all(|option| option.volumes == 1 || option.provider == "azure"));
}

#[test]
fn credits_of_the_design() {
    let segments = |key: &str, gib, demands: &[&str]| {
        let demands: Vec<Demand> = demands.iter().map(|text| text.parse().unwrap()).collect();
        serve(&known(key), Bytes::from_gib(gib), &demands)
    };
    let first = |key, gib, demand| segments(key, gib, &[demand]).unwrap().remove(0);
    for (gib, seconds) in [(10, 1862.0), (100, 2000.0), (500, 3600.0)] {
        let found = first("aws/gp2", gib, "3000 IOPS for 2 h");
        assert!((found.exhausted_after_s.unwrap() - seconds).abs() < 0.1, "{found:?}");
        assert_eq!(found.credits_end, Some(0.0));
    }
    let found = first("aws/gp2", 100, "2000 IOPS for 1500 s");
    assert_eq!(
        (found.served_iops, found.credits_end, found.exhausted_after_s),
        (Some(2000.0), Some(2_850_000.0), None)
    );
    let found = segments("aws/gp2", 100, &["3000 IOPS for 2500 s", "100 IOPS for 1000 s"]).unwrap();
    assert!((found[0].served_iops.unwrap() - 2460.0).abs() < 1e-9);
    assert_eq!(found[1].credits_end, Some(200_000.0));
    // st1: 1 TiB of credit a TiB, 250 MiB/s, refilled at 40.
    let found = first("aws/st1", 1024, "250 MiB/s for 2 h");
    assert!((found.exhausted_after_s.unwrap() - 1_048_576.0 / 210.0).abs() < 1e-6);
    // Azure: two buckets, apart.
    let found = first("azure/premium-ssd", 100, "3500 IOPS, 10 MiB/s for 1 h");
    assert!((found.exhausted_after_s.unwrap() - 1800.0).abs() < 1e-6);
    assert!(found.credits_end_mib.unwrap() > 120_000.0 && found.served_mib_s == Some(10.0));
    assert_eq!(first("aws/gp3", 100, "5000 IOPS for 1 h"), Segment { served_iops: Some(3000.0), ..Segment::default() });
    for (key, gib, demand, expected) in [
        ("aws/st1", 1024, "100 IOPS for 1 s", "counts bytes"),
        ("aws/st1", 10, "100 MiB/s for 1 s", "has no volume of 10 GiB"),
        ("openstack/cinder-qos", 10, "100 MiB/s for 1 s", "its operator's"),
    ] {
        assert!(segments(key, gib, &[demand]).unwrap_err().contains(expected));
    }
    for bad in [
        "2000 IOPS",
        "2000 for 5 s",
        "2000 IOPS for 5",
        "2000 IOPS for 0 s",
        "5 IOPS, 6 IOPS for 1 s",
        "-5 IOPS for 1 s",
    ] {
        assert!(bad.parse::<Demand>().is_err(), "{bad}");
    }
}

#[test]
fn rotation_follows_the_formula_and_is_honest_about_gp3() {
    let catalog = Catalog::builtin();
    let member = |gib, demand| Member {
        size: Bytes::from_gib(gib),
        copy_rate: Bandwidth::from_mib_s(64),
        copy_io_size: Bytes::new(256 << 10),
        demand: Iops::new(demand),
        write_share: 0.5,
    };
    let found = rotation(&catalog, &known("aws/gp2"), &member(10, 2500)).unwrap();
    // c = 160 s, ρ = 256, b = 100: s = (5.4e6 − 160·(512 + 3750 − 200))/2400.
    let alone_s = (5_400_000.0 - 160.0 * (512.0 + 3750.0 - 200.0)) / 2400.0;
    assert!((found.copy_s - 160.0).abs() < 1e-9 && (found.cycle_s.unwrap() - alone_s - 160.0).abs() < 1e-9);
    assert!((found.overhead_ratio.unwrap() - 160.0 / (alone_s + 160.0)).abs() < 1e-12);
    assert!((found.start_at_credits - 160.0 * (256.0 + 2500.0 - 100.0)).abs() < 1e-9);
    assert!(!found.worth_it && found.reason.contains("gp3 of 10 GiB sustains 2500 IOPS for $0.80"), "{}", found.reason);
    let idle = rotation(&catalog, &known("aws/gp2"), &member(10, 100)).unwrap();
    assert!(idle.cycle_s.is_none() && idle.reason.contains("never run out"));
    let large = rotation(&catalog, &known("aws/gp2"), &member(900, 3000)).unwrap();
    assert!(large.cycle_s.is_none() && large.reason.contains("takes more credits"), "{}", large.reason);
    assert!(rotation(&catalog, &known("aws/gp3"), &member(10, 3000)).unwrap_err().contains("no operation credits"));
    // Without gp3 and its kind it pays: the game as it was.
    let text = include_str!("../../model/src/catalog.toml");
    let only_gp2 = Catalog::parse(&text.replace("name = \"gp3\"", "name = \"gp3\"\nlimits_per_machine = true").replace(
        "iops = { min = \"3000 IOPS\", max = \"80000 IOPS\", included = \"3000 IOPS\", floor = \"3000 IOPS\", per_gib_max = 500.0 }\nbandwidth = { min = \"125 MiB/s\"",
        "iops = { min = \"100 IOPS\", max = \"200 IOPS\" }\nbandwidth = { min = \"125 MiB/s\"",
    ))
    .unwrap();
    let then = rotation(&only_gp2, &known("aws/gp2"), &member(10, 2500)).unwrap();
    assert!(then.worth_it, "{}", then.reason);
}

#[test]
fn young_with_elastic_bandwidth() {
    let plain = Checkpointing {
        checkpoint: Bytes::from_gib(4),
        throughput: Bandwidth::from_mib_s(128),
        mtbf: Duration::from_secs(86_400),
        elastic: None,
    };
    assert!((interval(&plain).interval_s - (2.0f64 * 32.0 * 86_400.0).sqrt()).abs() < 1e-9);
    let pipes = Pipes { backing: Bandwidth::from_mib_s(33), caching: Bandwidth::from_mib_s(128) };
    let device =
        ElasticDevice { pipes, backing_size: Bytes::from_gib(50), cache: Bytes::from_gib(4), absorb: Absorb::Split };
    let elastic = Checkpointing { elastic: Some(device), ..plain };
    let found = interval(&elastic);
    assert!(found.cost_interval_s.unwrap() > found.interval_s);
    let often = interval(&Checkpointing { mtbf: Duration::from_secs(10), ..elastic });
    assert!((often.interval_s - 4096.0 / 33.0).abs() < 1e-9, "the drain must finish");
}

fn calibrated() -> Scenario {
    let mut text = "[app]\nvms = 32\ncompute = \"1100 s\"\ncheckpoints = 3\ncheckpoint_size = \"4 GiB\"\n\
         [backing]\nsize = \"50 GiB\"\nbandwidth = \"33 MiB/s\"\nusd_per_gib_month = 0.04\n\
         [caching]\nbandwidth = \"128 MiB/s\"\nusd_per_gib_month = 0.17\n"
        .to_owned();
    for (cache, mib_s, attached) in [(2, 50, 150), (4, 72, 150), (6, 92, 160), (8, 95, 160), (10, 96, 165)] {
        text += &format!(
            "[[calibration]]\ndataset = \"4 GiB\"\ncache = \"{cache} GiB\"\nthroughput = \"{mib_s} MiB/s\"\nattached = \"{attached} s\"\n"
        );
    }
    Scenario::parse(&Source { file: "s.toml".into(), text }, &Catalog::builtin()).unwrap()
}

#[test]
fn the_cheapest_that_keeps_the_deadline_is_recommended() {
    let scenario = calibrated();
    let predictor = Predictor::new(&scenario).unwrap();
    let with = |constraints| recommend(&predictor, &constraints).unwrap();
    let deadline = |s| Constraints { deadline: Some(Duration::from_secs(s)), budget: None };
    let free = with(Constraints::default());
    assert_eq!((free.model, free.considered.len()), ("calibrated", 5));
    let cheapest = free.considered.iter().map(|one| one.cost_agbs).fold(f64::MAX, f64::min);
    assert_eq!(free.cost_agbs, Some(cheapest));
    assert_eq!(with(deadline(1240)).checkpoint_cache_gib, Some(6.0));
    assert_eq!(with(deadline(1230)).checkpoint_cache_gib, Some(8.0));
    for tighter in [1300, 1260, 1240, 1232, 1229] {
        let found = with(deadline(tighter));
        assert!(found.considered.iter().all(|one| one.feasible == (one.completion_s <= tighter as f64)));
        assert!(found.completion_s.unwrap() <= tighter as f64);
    }
    let none = with(deadline(1220));
    assert_eq!((none.checkpoint_cache_gib, none.considered.iter().any(|one| one.feasible)), (None, false));
    let sentence = none.infeasible.unwrap();
    assert!(sentence.contains("the nearest is 10 GiB with 1228.0 s; static-fast keeps it with 1196.0 s"), "{sentence}");
    assert!(with(deadline(1000)).infeasible.unwrap().contains("below the compute time of 1100 s"));
}

#[test]
fn budgets_buy_time() {
    let scenario = calibrated();
    let predictor = Predictor::new(&scenario).unwrap();
    let with = |text: &str| recommend(&predictor, &Constraints { deadline: None, budget: Some(text.parse().unwrap()) });
    assert_eq!(with("999999999 AGBs").unwrap().checkpoint_cache_gib, Some(10.0));
    let tight = with("1 AGBs").unwrap();
    assert!(tight.infeasible.unwrap().contains("no cache size keeps the budget of 1 AGBs: the cheapest is "));
    assert!(with("100 USD").unwrap().checkpoint_cache_gib.is_some());
    for (bad, expected) in
        [("5", "has no unit"), ("-5 USD", "not above zero"), ("nan AGBs", "no budget"), ("5 EUR", "unknown unit")]
    {
        assert!(bad.parse::<Budget>().unwrap_err().contains(expected), "{bad}");
    }
    assert_eq!("$5".parse::<Budget>(), Ok(Budget::Usd(5.0)));
}

#[test]
fn money_is_billed_as_the_type_says() {
    let gp3 = known("aws/gp3");
    let month: Option<Offer> = gp3.offer(Bytes::from_gib(10), &Limits::NONE, Supply::Sustained);
    assert_eq!(month.map(|offer| offer.bought), Some(Provision::default()));
    let tariff = surgetank_planner::cost::Tariff::new(Bandwidth::from_mib_s(225), Some(&gp3), None);
    // 0.8 for 10 GiB and 4 for 100 MiB/s above what is included, for the minimum of a minute.
    let cost = tariff.cost(Bytes::from_gib(10), 5.0);
    assert!((cost.usd.unwrap() - 4.8 / 730.0 / 60.0).abs() < 1e-12 && (cost.agbs - 11_250.0).abs() < 1e-9);
    let unknown = surgetank_planner::cost::Tariff::new(Bandwidth::from_mib_s(1), None, None);
    assert_eq!(unknown.cost(Bytes::from_gib(1), 1.0).usd, None);
    assert!(tariff.source().unwrap().contains("2026-09-30, secondary"));
}

#[test]
fn what_bills_transactions_has_no_price_that_leaves_them_out() {
    let catalog = Catalog::builtin();
    let known = catalog.find("azure", "standard-ssd").unwrap();
    let tariff = Tariff::new(Bandwidth::from_mib_s(50), Some(known), None);
    let cost = tariff.cost(Bytes::from_gib(100), 3600.0);
    assert_eq!(cost.usd, None);
    assert!(tariff.source().unwrap().contains("$0.002 for 10,000 transactions come on top"));
    // A price that the user gives is the user's.
    assert!(
        Tariff::new(Bandwidth::from_mib_s(50), Some(known), Some(0.1)).cost(Bytes::from_gib(100), 3600.0).usd.is_some()
    );
    let need = Need { capacity: Bytes::from_gib(500), limits: Limits::NONE };
    let found = options(&catalog, &need, Some("azure"));
    let with = found.iter().position(|option| option.transactions_10k_usd.is_some()).unwrap();
    assert!(found[..with].iter().all(|option| option.sustained && option.usd_month.is_some()), "they win over none");
    assert!(with > 0);
}
