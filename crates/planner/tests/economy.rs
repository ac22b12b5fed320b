//! What a month of bursts costs: the bars of the design, and that nothing counts which is not in time.

use std::time::Duration;

use proptest::prelude::*;
use surgetank_model::units::MIB;
use surgetank_model::{Bytes, Catalog, Iops};
use surgetank_planner::economy::{Economy, Kind, Load, Way, compare};

const HOUR: Duration = Duration::from_secs(3600);

/// 10 GiB every hour at 1,000 MiB/s, on 2 TiB.
fn hourly() -> Load {
    Load {
        capacity: Bytes::from_gib(2048),
        burst: Bytes::from_gib(10),
        request: Bytes::new(MIB),
        within: Duration::from_millis(10_240),
        every: HOUR,
        bursts_month: 730,
        between: None,
    }
}

fn ways(found: &Economy) -> impl Iterator<Item = &Way> {
    found.fixed.iter().chain(&found.in_place).chain(&found.elastic).chain(&found.reactive)
}

fn volumes(way: &Way) -> u32 {
    way.caching.as_ref().map_or(0, |caching| caching.volumes)
}

#[test]
fn hourly_checkpoints_on_aws_cost_less_than_three_tenths_over_a_cold_disk() {
    let found = compare(&Catalog::builtin(), "aws", &hourly());
    let fixed = found.fixed.as_ref().unwrap();
    assert_eq!(fixed.what, "8 × 256 GiB gp3");
    assert!((fixed.usd_month - 163.84).abs() < 0.01, "{fixed:?}");
    let cold = found.elastic.iter().find(|way| way.volume_type == "sc1").unwrap();
    assert!(cold.burst_s <= 10.24 + 1e-9 && cold.what.contains("gp3") && volumes(cold) > 1, "{cold:?}");
    assert!(cold.usd_month <= 0.30 * fixed.usd_month, "{cold:?} {fixed:?}");
    // Also if nobody announces the bursts: a few more caching volumes make up for the seconds that attaching them takes.
    let reactive = found.reactive.as_ref().unwrap();
    assert!(reactive.usd_month <= 0.30 * fixed.usd_month && reactive.burst_s <= 10.24 + 1e-9, "{reactive:?}");
    assert!(volumes(reactive) > volumes(cold) && volumes(reactive) <= 26);
}

#[test]
fn an_elastic_device_loses_where_the_backing_volume_must_be_fast_anyway() {
    let database =
        Load { between: Some(Iops::new(3000)), burst: Bytes::from_gib(4), within: Duration::from_secs(30), ..hourly() };
    let found = compare(&Catalog::builtin(), "aws", &database);
    assert!(found.ratio().unwrap() > 0.95, "{found:?}");
    assert!(found.elastic.iter().all(|way| way.volume_type != "sc1" && way.volume_type != "st1"), "{found:?}");
}

#[test]
fn credits_count_only_if_every_pause_earns_them_back() {
    // 16 TiB of st1 have 500 MiB/s for as long as credits last: for an hour's 10 GiB always, for a burst without a pause not.
    let large = Load { capacity: Bytes::from_gib(16_384), within: Duration::from_secs(25), ..hourly() };
    let aws = |load: &Load| compare(&Catalog::builtin(), "aws", load).fixed.unwrap();
    assert!(aws(&large).what.contains("sc1") || aws(&large).what.contains("st1"), "{:?}", aws(&large));
    // A burst that leaves a pause of 100 s in an hour: what is on credits has all of it as its baseline.
    let hard = Load { burst: Bytes::from_gib(2000), within: Duration::from_secs(3500), ..large };
    let fixed = aws(&hard);
    let (what, _) = fixed.what.split_once(" GiB ").unwrap();
    let (count, size) = what.split_once(" × ").unwrap_or(("1", what));
    let known = Catalog::builtin().find("aws", &fixed.volume_type).unwrap().clone();
    let credits = known.all_credits_at(Bytes::from_gib(size.parse().unwrap()));
    let earned = credits.iter().map(|credits| credits.baseline_per_s * 3600 * count.parse::<u64>().unwrap());
    assert!(earned.min().unwrap() >= hard.burst.get(), "{fixed:?}");
}

#[test]
fn a_provider_without_prices_has_no_ways() {
    assert_eq!(compare(&Catalog::builtin(), "openstack", &hourly()), Economy::default());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_way_is_in_time_within_the_limits_and_its_parts_add_up(
        gib in 20u64..16_000, burst in 1u64..200, within in 5u64..600, pause in 10u64..40_000, between in prop::option::of(1u64..4000),
        provider in prop::sample::select(vec!["aws", "gcp", "azure"]),
    ) {
        let load = Load {
            capacity: Bytes::from_gib(gib),
            burst: Bytes::from_gib(burst.min(gib / 2)),
            request: Bytes::new(256 << 10),
            within: Duration::from_secs(within),
            every: Duration::from_secs(within + pause),
            bursts_month: (730 * 3600 / (within + pause)) as u32,
            between: between.map(Iops::new),
        };
        let catalog = Catalog::builtin();
        let found = compare(&catalog, provider, &load);
        for way in ways(&found) {
            prop_assert!(way.burst_s <= within as f64 * (1.0 + 1e-6), "{way:?}");
            prop_assert!(way.usd_month >= way.transactions_usd + way.bursts_usd - 1e-9, "{way:?}");
            let most = catalog.provider(provider).unwrap().attachments.as_ref().unwrap().most;
            prop_assert!(volumes(way) < most, "{way:?}");
        }
        for pair in found.elastic.windows(2) {
            prop_assert!(pair[0].usd_month <= pair[1].usd_month);
        }
        // Who announces pays no more, and has a choice at least where the other has.
        if let Some(reactive) = &found.reactive {
            prop_assert!(found.elastic.iter().any(|way| way.volume_type == reactive.volume_type && way.kind == Kind::Announced));
        }
        // A longer wait costs no more, without a device or with one.
        let easier = Load { within: load.within * 2, every: load.every + load.within, ..load.clone() };
        let easier = compare(&catalog, provider, &Load { bursts_month: load.bursts_month.min((730 * 3600 / easier.every.as_secs()) as u32), ..easier });
        if let Some(fixed) = &found.fixed {
            prop_assert!(easier.fixed.as_ref().is_some_and(|easier| easier.usd_month <= fixed.usd_month + 1e-6), "{fixed:?} {easier:?}");
        }
    }
}
