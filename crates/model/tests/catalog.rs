//! The built-in catalog: readable, consistent, and with the prices that the papers and vendors state.

use surgetank_model::units::{Bandwidth, Bytes, Iops};
use surgetank_model::volume_type::Provision;
use surgetank_model::{Catalog, VolumeType};

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
    assert_eq!(catalog.iter().count(), 10);
    for volume_type in catalog.iter() {
        let key = volume_type.key();
        let (min, max) = (volume_type.size.min, volume_type.size.max);
        assert!(!volume_type.source.is_empty() && !volume_type.confidence.is_empty(), "{key}");
        let price = volume_type.price.as_ref().unwrap_or_else(|| panic!("{key} has no price"));
        assert!(price.gib_month_usd > 0.0 && !price.source.is_empty() && price.as_of.is_some(), "{key}");
        for size in [min, max] {
            assert_eq!(volume_type.check(size, &Provision::default()), Ok(()), "{key}");
            let (limits, sustained) =
                (volume_type.limits_at(size), volume_type.sustained_with(size, &Provision::default()));
            assert!(limits.bandwidth.is_some() && sustained.bandwidth <= limits.bandwidth, "{key}");
            assert!(volume_type.price_per_hour(size).is_some_and(|usd| usd > 0.0), "{key}");
        }
        assert_eq!(volume_type.size.fit(Bytes::new(max.get() + 1)), None, "{key}");
        assert_eq!(volume_type.size.fit(Bytes::new(1)), Some(min), "{key}");
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
    assert!(check("aws/gp2", 100, bought(Some(4000), None)).is_err());
    assert!(check("aws/st1", 100, bought(None, None)).is_err());
    assert!(find(&catalog, "aws/gp2").check(Bytes::from_mib(1500), &Provision::default()).is_err());
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
