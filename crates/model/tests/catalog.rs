//! The built-in catalog: readable, consistent, and with the prices that the papers and vendors state.

use surgetank_model::toml_error::Source;
use surgetank_model::units::{Bandwidth, Bytes, Iops};
use surgetank_model::volume_type::{Offer, Provision, Supply};
use surgetank_model::{Catalog, Limits, VolumeType};

fn find<'a>(catalog: &'a Catalog, key: &str) -> &'a VolumeType {
    let (provider, name) = key.split_once('/').unwrap();
    catalog.find(provider, name).unwrap_or_else(|| panic!("no {key}"))
}

fn bought(iops: Option<u64>, mib_s: Option<u64>) -> Provision {
    Provision { iops: iops.map(Iops::new), bandwidth: mib_s.map(Bandwidth::from_mib_s) }
}

#[test]
fn every_type_is_complete() {
    let catalog = Catalog::builtin();
    assert_eq!(catalog.iter().count(), 21);
    for volume_type in catalog.iter() {
        let key = volume_type.key();
        let (min, max) = (volume_type.size.min, volume_type.size.max);
        assert!(!volume_type.source.is_empty() && !volume_type.confidence.is_empty(), "{key}");
        assert_eq!(volume_type.size.fit(Bytes::new(max.get() + 1)), None, "{key}");
        assert_eq!(volume_type.size.fit(Bytes::new(1)), Some(min), "{key}");
        if !volume_type.limits_are_known() {
            assert_eq!((volume_type.price_per_hour(min), key.as_str()), (None, "openstack/cinder-qos"));
            continue;
        }
        let price = volume_type.price.as_ref().unwrap_or_else(|| panic!("{key} has no price"));
        assert!(price.is_sound() && price.sizes_ascend() && !price.source.is_empty() && price.as_of.is_some(), "{key}");
        for size in [min, max] {
            assert_eq!(volume_type.check(size, &Provision::default()), Ok(()), "{key}");
            let (limits, sustained) =
                (volume_type.limits_at(size), volume_type.sustained_with(size, &Provision::default()));
            assert!(limits.bandwidth.is_some() && sustained.bandwidth <= limits.bandwidth, "{key}");
            assert!(volume_type.price_per_hour(size).is_some_and(|usd| usd > 0.0), "{key}");
        }
    }
    for provider in ["aws", "gcp", "azure", "openstack"] {
        assert!(catalog.provider(provider).is_some_and(|known| known.modification.is_some()), "{provider}");
    }
}

#[test]
fn the_local_types_are_the_papers_with_a_real_price() {
    let catalog = Catalog::builtin();
    for (local, mib_s, real) in [("local/slow", 33, "gcp/pd-standard"), ("local/fast", 128, "gcp/pd-ssd")] {
        let volume_type = find(&catalog, local);
        assert_eq!(volume_type.limits_at(Bytes::from_gib(1)).bandwidth, Some(Bandwidth::from_mib_s(mib_s)));
        assert_eq!(volume_type.price_of.as_deref(), Some(real));
        assert_eq!(volume_type.price, find(&catalog, real).price);
    }
}

#[test]
fn prices_of_known_configurations() {
    let catalog = Catalog::builtin();
    let month = |key, gib, bought| find(&catalog, key).price_per_month(Bytes::from_gib(gib), &bought).unwrap();
    let near = |one: f64, other: f64| assert!((one - other).abs() < 1e-9, "{one} is not {other}");
    near(month("aws/io2", 500, bought(Some(30_000), None)), 2012.50);
    near(month("aws/gp2", 500, bought(None, None)), 50.0);
    near(month("aws/gp3", 500, bought(None, None)), 40.0);
    near(month("aws/gp3", 100, bought(Some(4000), Some(225))), 8.0 + 5.0 + 4.0);
    near(month("aws/io1", 600, bought(Some(30_000), None)), 2025.0);
    near(month("azure/premium-ssd", 500, bought(None, None)), 73.22);
    near(
        month(
            "azure/ultra",
            2048,
            Provision { iops: Some(Iops::new(4000)), bandwidth: Some(Bandwidth::new(20_000_000)) },
        ),
        245.186_56 + 198.56 + 6.9934,
    );
    // Azure bills what an Ultra Disk is as the next of its sizes, and a Premium SSD as its tier; of Premium SSD v2 there are all.
    let bought_of_ultra = Provision { iops: Some(Iops::new(100)), bandwidth: Some(Bandwidth::new(1_000_000)) };
    for (gib, billed) in [(4, 4), (5, 8), (9, 16), (200, 256), (512, 512), (513, 1024), (1025, 2048), (65_536, 65_536)]
    {
        near(month("azure/ultra", gib, bought_of_ultra), 0.119_72 * f64::from(billed) + 4.964 + 0.349_67);
    }
    near(month("azure/premium-ssd", 513, bought(None, None)), 135.17);
    near(month("azure/premium-ssd-v2", 9, bought(None, None)), 0.729);
    near(month("gcp/hyperdisk-extreme", 100, bought(Some(20_000), None)), 12.5 + 640.0);
    near(month("gcp/pd-extreme", 500, bought(Some(5000), None)), 62.5 + 325.0);
    near(month("gcp/hyperdisk-throughput", 2048, bought(None, Some(100))), 10.24 + 25.0);
    near(month("aws/io2", 1000, bought(Some(70_000), None)), 125.0 + 2080.0 + 1456.0 + 191.1);
    let hour = find(&catalog, "gcp/pd-ssd").price_per_hour(Bytes::from_gib(10)).unwrap();
    near(hour, 1.7 / 730.0);
}

#[test]
fn limits_forbid_what_cannot_be_rented() {
    let catalog = Catalog::builtin();
    let check = |key, gib, bought| find(&catalog, key).check(Bytes::from_gib(gib), &bought);
    assert!(check("aws/gp3", 160, bought(Some(80_000), None)).is_ok());
    assert!(check("aws/gp3", 159, bought(Some(80_000), None)).is_err());
    assert!(check("aws/gp3", 1, bought(Some(3000), Some(750))).is_ok());
    assert!(check("aws/gp3", 1, bought(Some(3000), Some(751))).is_err());
    assert!(check("aws/io2", 500, bought(Some(30_000), None)).is_ok());
    assert!(check("aws/io2", 20, bought(Some(30_000), None)).is_err());
    assert!(check("aws/io1", 500, bought(Some(30_000), None)).is_err());
    assert!(check("aws/io1", 600, bought(Some(30_000), None)).is_ok());
    assert!(check("gcp/hyperdisk-extreme", 2000, bought(Some(3999), None)).is_err());
    assert!(check("gcp/hyperdisk-throughput", 2048, bought(None, Some(181))).is_err());
    assert!(check("gcp/hyperdisk-throughput", 2048, bought(Some(100), None)).is_err());
    assert!(check("gcp/hyperdisk-balanced", 400, bought(Some(150_000), Some(400))).is_err());
    assert!(check("azure/premium-ssd", 40_000, bought(None, None)).is_err());
    assert!(check("aws/gp2", 100, bought(Some(4000), None)).is_err());
    assert!(check("aws/st1", 100, bought(None, None)).is_err());
    assert!(find(&catalog, "aws/gp2").check(Bytes::from_mib(1500), &Provision::default()).is_err());
}

#[test]
fn bandwidth_follows_as_vendors_say() {
    let catalog = Catalog::builtin();
    let mib_s = |key, gib, iops| {
        let limits = find(&catalog, key).limits_with(Bytes::from_gib(gib), &bought(Some(iops), None));
        limits.bandwidth.unwrap().as_mib_s()
    };
    assert_eq!(mib_s("aws/io1", 600, 1000), 250.0);
    assert_eq!(mib_s("aws/io1", 1300, 32_000), 500.0);
    assert_eq!(mib_s("aws/io1", 1300, 64_000), 1000.0);
    assert!((mib_s("aws/io2", 100, 10_000) - 2560.0).abs() < 0.01);
    assert_eq!(mib_s("gcp/hyperdisk-extreme", 100, 20_000), 5000.0);
    let throughput = find(&catalog, "gcp/hyperdisk-throughput");
    let limits = throughput.limits_with(Bytes::from_gib(4096), &bought(None, Some(200)));
    assert_eq!(limits.iops, Some(Iops::new(800)));
}

#[test]
fn tiers_are_rounded_up_to_and_have_two_buckets() {
    let catalog = Catalog::builtin();
    let premium = find(&catalog, "azure/premium-ssd");
    let size = Bytes::from_gib(100);
    assert_eq!(premium.tier_name(size), Some("P10"));
    let mb_s = |rate: u64| Some(Bandwidth::new(rate * 1_000_000));
    let limits = premium.limits_at(size);
    assert_eq!((limits.bandwidth, limits.iops), (mb_s(170), Some(Iops::new(3500))));
    let sustained = premium.sustained_with(size, &Provision::default());
    assert_eq!((sustained.bandwidth, sustained.iops), (mb_s(100), Some(Iops::new(500))));
    let credits = premium.all_credits_at(size);
    assert_eq!(credits.iter().map(|credits| credits.bucket).collect::<Vec<_>>(), [5_400_000, 126_000_000_000]);
    for credits in credits {
        assert_eq!(credits.burst_time().unwrap().as_secs(), 1800);
    }
    // The guide: refilled within a day at every tier.
    for tier in [4, 8, 16, 32, 64, 128, 256, 512] {
        let credits = premium.all_credits_at(Bytes::from_gib(tier));
        assert!(credits.iter().all(|credits| credits.refill_time().as_secs() < 86_400));
    }
    assert!(premium.all_credits_at(Bytes::from_gib(1024)).is_empty());
}

#[test]
fn disks_are_read_once_in_the_time_that_aws_says() {
    // Hours to read a whole volume from a full bucket, AWS's table (hdd-vols).
    let catalog = Catalog::builtin();
    for (key, table) in [
        ("aws/st1", [(1, 1.17), (3, 1.75), (5, 2.91), (12, 6.99), (16, 9.32)]),
        ("aws/sc1", [(1, 3.64), (3, 3.64), (5, 5.83), (12, 13.98), (16, 18.64)]),
    ] {
        for (tib, hours) in table {
            let size = Bytes::from_gib(1024 * tib);
            let volume_type = find(&catalog, key);
            let credits = volume_type.credits_at(size);
            let burst = volume_type.limits_at(size).bandwidth.unwrap().get() as f64;
            let baseline = volume_type.sustained_with(size, &Provision::default()).bandwidth.unwrap().get() as f64;
            let on_credits =
                credits.and_then(|credits| credits.burst_time()).map_or(f64::MAX, |time| time.as_secs_f64());
            let at_burst = (size.get() as f64 / burst).min(on_credits);
            let seconds = at_burst + (size.get() as f64 - at_burst * burst) / baseline;
            assert!((seconds / 3600.0 / hours - 1.0).abs() < 0.01, "{key} {tib} TiB: {} h", seconds / 3600.0);
        }
    }
}

#[test]
fn the_smallest_volume_that_does_is_offered() {
    let catalog = Catalog::builtin();
    let need = |iops: Option<u64>, mib_s: Option<u64>| Limits {
        bandwidth: mib_s.map(Bandwidth::from_mib_s),
        iops: iops.map(Iops::new),
    };
    let offer = |key, gib, need: Limits, supply| find(&catalog, key).offer(Bytes::from_gib(gib), &need, supply);
    let sustained = |key, gib, iops, mib_s| offer(key, gib, need(iops, mib_s), Supply::Sustained);
    let gib = |offer: Option<Offer>| offer.map(|offer| offer.size.as_gib());
    assert_eq!(gib(sustained("aws/io1", 500, Some(30_000), None)), Some(600.0));
    assert_eq!(gib(sustained("aws/io2", 500, Some(30_000), None)), Some(500.0));
    assert_eq!(gib(sustained("aws/gp2", 50, Some(3000), None)), Some(1000.0));
    assert_eq!(gib(offer("aws/gp2", 50, need(Some(3000), None), Supply::OnCredits)), Some(50.0));
    assert_eq!(gib(sustained("aws/gp2", 50, Some(16_001), None)), None);
    assert_eq!(gib(sustained("gcp/pd-ssd", 10, None, Some(128))), Some(267.0));
    assert_eq!(gib(sustained("azure/premium-ssd", 10, Some(2300), None)), Some(257.0));
    assert_eq!(gib(sustained("gcp/hyperdisk-throughput", 100, Some(4000), None)), Some(11_378.0));
    assert_eq!(gib(sustained("gcp/hyperdisk-extreme", 60_000, Some(200), None)), Some(60_000.0));
    assert_eq!(gib(sustained("openstack/cinder-qos", 10, Some(1), None)), None);
    let gp3 = sustained("aws/gp3", 100, Some(4000), Some(1200)).unwrap();
    assert_eq!(gp3.bought, bought(Some(4800), Some(1200)));
}

#[test]
fn no_smaller_volume_would_have_done() {
    // Against every size of the type: the halving finds the same as looking at each.
    let catalog = Catalog::builtin();
    for volume_type in catalog.iter().filter(|known| known.provider != "local" && known.limits_are_known()) {
        for (iops, mib_s) in [(500, 30), (3000, 100), (9000, 500), (70_000, 900)] {
            let need = Limits { bandwidth: Some(Bandwidth::from_mib_s(mib_s)), iops: Some(Iops::new(iops)) };
            for supply in [Supply::Sustained, Supply::OnCredits] {
                let Some(offer) = volume_type.offer(Bytes::from_gib(7), &need, supply) else { continue };
                let enough = |limits: Limits| limits.bandwidth >= need.bandwidth && limits.iops >= need.iops;
                assert!(enough(offer.gives), "{}", volume_type.key());
                assert_eq!(volume_type.check(offer.size, &offer.bought), Ok(()));
                let less = Bytes::new(offer.size.get() - volume_type.size.step.get());
                if less >= volume_type.size.fit(Bytes::from_gib(7)).unwrap() {
                    let gives = match supply {
                        Supply::Sustained => volume_type.sustained_with(less, &offer.bought),
                        Supply::OnCredits => volume_type.limits_with(less, &offer.bought),
                    };
                    let allowed = volume_type.check(less, &offer.bought).is_ok();
                    assert!(!(allowed && enough(gives)), "{} of {less} would do", volume_type.key());
                }
            }
        }
    }
}

#[test]
fn a_file_is_laid_over_the_catalog() {
    let over = |text: &str| {
        let source = Source { file: "c.toml".into(), text: text.into() };
        Catalog::builtin().with_file(&source).map_err(|error| error.to_string())
    };
    let cheap = over("schema = 1\n[price.\"aws/gp3\"]\ngib_month_usd = 0.01\n").unwrap();
    assert_eq!(find(&cheap, "aws/gp3").price_per_month(Bytes::from_gib(500), &Provision::default()), Some(5.0));
    assert_eq!(cheap.iter().count(), 21);
    let own = "schema = 1\n[[volume_type]]\nprovider = 'openstack'\nname = 'cinder-qos'\nsize = { min = '1 GiB', max = '2 TiB', step = '1 GiB' }\nperformance = { model = 'fixed', iops = '2000 IOPS' }\nprice = { gib_month_usd = 0.05 }\n";
    let own = over(own).unwrap();
    assert_eq!(own.iter().count(), 21);
    assert!(find(&own, "openstack/cinder-qos").limits_are_known());
    for (text, expected) in [
        ("schema = 1\n[price.\"aws/gp33\"]\n", "c.toml:2:8: there is no volume type aws/gp33"),
        ("schema = 1\n[price.\"aws/gp3\"]\ngib_month_usd = nan\n", "c.toml:2:8: a price of aws/gp3 is no number"),
        ("schema = 1\n[price.\"aws/gp3\"]\ngib_month_usd = -1.0\n", "c.toml:2:8: a price of aws/gp3 is no number"),
        (
            "schema = 1\n[price.\"azure/ultra\"]\nbilled_sizes = ['8 GiB', '4 GiB']\n",
            "c.toml:2:8: billed_sizes of azure/ultra are zero or do not ascend",
        ),
        ("schema = 1\n[price.\"azure/ultra\"]\nbilled_sizes = ['4 GiB', '4 GiB']\n", "write each size once"),
        ("schema = 1\n[price.\"azure/ultra\"]\nbilled_sizes = ['0 B', '4 GiB']\n", "are zero or do not ascend"),
        ("schema = 1\n[price.\"aws/gp3\"]\ngib_month_us = 1.0\n", "did you mean \"gib_month_usd\""),
        ("schema = 3\n", "c.toml: the catalog has schema 3"),
        ("schema = \n", "c.toml:1:"),
    ] {
        let message = over(text).unwrap_err();
        assert!(message.contains(expected) && !message.contains('\n'), "{message}\n expected {expected}");
    }
}

#[test]
fn an_unknown_price_is_none() {
    let text = "schema = 1\n[[volume_type]]\nprovider = 'x'\nname = 'y'\nsize = { min = '1 GiB', max = '2 GiB', step = '1 GiB' }\nperformance = { model = 'fixed', bandwidth = '1 MiB/s' }\n";
    let catalog = Catalog::parse(text).unwrap();
    assert_eq!(find(&catalog, "x/y").price_per_hour(Bytes::from_gib(1)), None);
    assert!(Catalog::parse(&format!("{text}price_of = 'x/z'\n")).unwrap_err().to_string().contains("x/z"));
    assert!(Catalog::parse(&format!("{text}pice = 1\n")).unwrap_err().to_string().contains("line 7"));
    assert!(Catalog::parse("schema = 2\n").is_err());
}
