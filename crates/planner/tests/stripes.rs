//! Caching volumes in stripes: what they cost, which the planner takes, and what each mistake is answered with.

use std::time::Duration;

use proptest::prelude::*;
use surgetank_model::toml_error::Source;
use surgetank_model::{Bandwidth, Bytes, Catalog};
use surgetank_planner::cost::Tariff;
use surgetank_planner::predict::Predictor;
use surgetank_planner::recommend::{Candidate, Constraints, Recommendation, recommend};
use surgetank_planner::scenario::Scenario;

fn load(text: &str) -> Result<Scenario, String> {
    let source = Source { file: "s.toml".into(), text: text.into() };
    Scenario::parse(&source, &Catalog::builtin()).map_err(|error| error.to_string())
}

/// The papers' CM1 on a provider's backing volume, with these caching volumes.
fn cm1(backing: &str, caching: &str) -> String {
    format!(
        "[app]\nvms = 32\ncompute = \"1100 s\"\ncheckpoints = 3\ncheckpoint_size = \"4 GiB\"\ninitial_dump = \"5 GiB\"\n\
         [backing]\nsize = \"50 GiB\"\nbandwidth = \"33 MiB/s\"\nvolume_type = \"{backing}\"\n[caching]\n{caching}\n\
         [provider]\ncreate_s = 1.5\nattach_s = 2.5\ndetach_s = 2.5\n"
    )
}

fn recommended(text: &str, deadline_s: Option<f64>) -> Recommendation {
    let scenario = load(text).unwrap();
    let deadline = deadline_s.map(Duration::from_secs_f64);
    recommend(&Predictor::new(&scenario).unwrap(), &Constraints { deadline, budget: None }).unwrap()
}

fn usd(found: &Candidate) -> f64 {
    found.cost_total_usd.unwrap()
}

#[test]
fn for_the_papers_cm1_on_aws_a_stripe_costs_less_than_any_single_volume() {
    let found = recommended(&cm1("aws/gp3", "volumes = \"auto\""), None);
    assert!(found.volumes.unwrap() > 1 && found.volume_type.as_deref() == Some("aws/gp3"), "{found:?}");
    let singles: Vec<&Candidate> = found.considered.iter().filter(|one| one.volumes == 1).collect();
    assert!(singles.len() >= 3, "gp3, io1 and io2 at least: {singles:?}");
    for single in singles {
        assert!(found.cost_total_usd.unwrap() < usd(single), "{single:?}");
    }
    // As fast as a single volume at any of its prices, and cheaper than the one that is.
    let fastest = found.considered.iter().map(|one| one.completion_s).fold(f64::INFINITY, f64::min);
    let wanted = recommended(&cm1("aws/gp3", "volumes = \"auto\""), Some(fastest + 1.0));
    assert!(
        wanted
            .considered
            .iter()
            .filter(|one| one.volumes == 1)
            .all(|one| !one.feasible || usd(one) > wanted.cost_total_usd.unwrap())
    );
}

#[test]
fn predictions_and_simulations_take_what_was_chosen() {
    let scenario = load(&cm1("aws/gp3", "volumes = \"auto\"")).unwrap();
    let found = recommended(&cm1("aws/gp3", "volumes = \"auto\""), None);
    let striping = &scenario.caching.striping;
    assert_eq!(Some(striping.volumes), found.volumes);
    assert_eq!(scenario.caching.volume_type.as_ref().map(surgetank_model::VolumeType::key), found.volume_type);
    let cache = striping.auto.as_ref().unwrap().cache;
    let predicted = Predictor::new(&scenario).unwrap().predict(cache);
    assert_eq!(Some(predicted.elastic.completion_s), found.completion_s);
    assert_eq!(predicted.elastic.cost_total_usd, found.cost_total_usd);
}

#[test]
fn the_members_of_a_stripe_are_rented_and_billed_one_by_one() {
    let catalog = Catalog::builtin();
    let gp3 = catalog.find("aws", "gp3").unwrap();
    let mib_s = Bandwidth::from_mib_s;
    let stripe = Tariff::striped(8, mib_s(125), Some(gp3), None);
    // A gibibyte is the smallest, and a minute the shortest.
    assert_eq!(stripe.rented(Bytes::from_gib(4)), Bytes::from_gib(8));
    let short = stripe.cost(Bytes::from_gib(4), 5.0);
    assert!((short.usd.unwrap() - 8.0 * 0.08 / 730.0 / 60.0).abs() < 1e-12, "{short:?}");
    assert!((short.agbs - 8.0 * 125.0 * 5.0).abs() < 1e-9, "each its own size times its own bandwidth: {short:?}");
    // What is not included is bought for each.
    let bought = Tariff::striped(8, mib_s(225), Some(gp3), None);
    let more =
        bought.cost(Bytes::from_gib(8), 3600.0).usd.unwrap() - stripe.cost(Bytes::from_gib(8), 3600.0).usd.unwrap();
    assert!((more - 8.0 * 100.0 * 0.04 / 730.0).abs() < 1e-12);
    let one = Tariff::new(mib_s(125), Some(gp3), None);
    assert_eq!(one.rented(Bytes::new(5)), Bytes::new(5));
}

#[test]
fn a_static_fast_volume_is_as_many_and_as_fast() {
    let scenario = load(
        "[app]\nvms = 1\ncompute = \"10 s\"\ncheckpoints = 1\ncheckpoint_size = \"10 GiB\"\n[backing]\nsize = \"2 TiB\"\n\
         bandwidth = \"24 MiB/s\"\nvolume_type = \"aws/sc1\"\n[caching]\nvolumes = 8\nvolume_type = \"aws/gp3\"\n",
    )
    .unwrap();
    assert_eq!(scenario.caching.bandwidth, Bandwidth::from_mib_s(1000));
    let fast = Predictor::new(&scenario).unwrap().static_fast();
    assert!((fast.completion_s - 20.24).abs() < 1e-9, "{fast:?}");
    // 8 × 256 GiB at 0.08 a month, for a minute at least.
    assert!((fast.cost_usd.unwrap() - 163.84 / 730.0 / 60.0).abs() < 1e-9, "{fast:?}");
}

#[test]
fn the_machine_caps_what_a_stripe_gives() {
    let with = |machine: &str, volumes: &str| load(&format!("{}{machine}", cm1("aws/gp3", volumes)));
    let sixteen = "volumes = 16\nvolume_type = \"aws/gp3\"";
    let scenario = with("[machine]\nbandwidth = \"1000 MiB/s\"\n", sixteen).unwrap();
    assert_eq!(scenario.caching.bandwidth, Bandwidth::from_mib_s(967), "the backing volume has the rest");
    assert_eq!(scenario.caching.striping.alone, Bandwidth::from_mib_s(1000));
    assert!(scenario.warnings()[0].contains("which 8 of the 16 caching volumes give"), "{:?}", scenario.warnings());
    let chosen = with("[machine]\nbandwidth = \"500 MiB/s\"\n", "volumes = \"auto\"").unwrap();
    assert!(chosen.caching.bandwidth <= Bandwidth::from_mib_s(467), "{:?}", chosen.caching);
    assert!(chosen.warnings().is_empty(), "{:?}", chosen.warnings());
    let few = with("[machine]\nattachments = 3\n", "volumes = \"auto\"").unwrap();
    assert!(few.caching.striping.volumes <= 2, "{:?}", few.caching.striping);
}

#[test]
fn every_mistake_has_a_place_and_a_remedy() {
    let gp3 = "volume_type = \"aws/gp3\"";
    let caching = |lines: &str| cm1("aws/gp3", lines);
    for (text, expected) in [
        (caching(&format!("{gp3}\nvolumes = 0")), "s.toml:13:11: volumes is 0: write over how many caching volumes"),
        (caching(&format!("{gp3}\nvolumes = -4")), ":13:11: volumes is -4"),
        (caching(&format!("{gp3}\nvolumes = 2.5")), ":13:11: 2.5 is no number of caching volumes"),
        (caching(&format!("{gp3}\nvolumes = \"many\"")), "write a whole number, such as 8, or \"auto\""),
        (
            caching(&format!("{gp3}\nvolumes = 40")),
            "volumes is 40, and beside its backing volume the machine takes 26 more: lower it, or write what your machine takes as \
             attachments in [machine]",
        ),
        (
            caching("volumes = 4\nvolume_type = \"gcp/pd-ssd\""),
            "all gcp/pd-ssd volumes of a machine together give no more than one, so a stripe of 4 has no point",
        ),
        (
            caching("volumes = 4\nvolume_type = \"openstack/cinder-qos\""),
            ":13:15: what volumes of openstack/cinder-qos give is unknown: write bandwidth",
        ),
        (
            caching(&format!("{gp3}\nvolumes = 4\nbandwidth = \"5 GiB/s\"")),
            ":14:13: bandwidth is 5 GiB/s, which no volume of aws/gp3 gives: with volumes it is what each of them has",
        ),
        (
            caching(&format!("{gp3}\nvolumes = \"auto\"\nbandwidth = \"128 MiB/s\"")),
            ":14:13: bandwidth is of one kind of volume, and volumes = \"auto\" leaves the kind to the planner",
        ),
        (caching("volumes = \"auto\"\nusd_per_gib_month = 0.1"), "usd_per_gib_month is of one kind of volume"),
        (caching("volumes = 4"), "the setting \"bandwidth\" is missing here: add it"),
        (
            caching("volumes = \"auto\"\nvolume_type = \"azure/standard-ssd\""),
            "weighs money, and azure/standard-ssd has not both known limits and a price without transactions",
        ),
        (
            caching("volumes = \"auto\"").replace("volume_type = \"aws/gp3\"\n", ""),
            "chooses from a provider's types, and no provider is named",
        ),
        (
            caching("volumes = \"auto\"")
                .replace("volume_type = \"aws/gp3\"\n[", "[")
                .replace("\"auto\"", "\"auto\"\nvolume_type = \"aws/gp3\""),
            "the backing volume's price is unknown: add volume_type or usd_per_gib_month to [backing]",
        ),
        (
            format!("{}[machine]\nbandwidth = \"20 MiB/s\"\n", caching(&format!("{gp3}\nvolumes = 2"))),
            "the machine moves 20 MiB/s, which the backing volume takes up alone with 33 MiB/s",
        ),
        (
            format!("{}[machine]\nattachments = 1\n", caching(&format!("{gp3}\nvolumes = 2"))),
            "attachments is 1: write a whole number from 2 to 1024",
        ),
        (
            format!(
                "{}[[calibration]]\ndataset = \"4 GiB\"\ncache = \"6 GiB\"\nthroughput = \"30 MiB/s\"\nattached = \"180 s\"\n",
                caching("volumes = \"auto\"")
            ),
            "calibration points are of one: write the number of volumes that was measured",
        ),
    ] {
        let message = load(&text).expect_err(&text);
        assert!(message.starts_with("s.toml:") && message.contains(expected), "{message}\n expected {expected}");
        assert!(!message.contains('\n'), "{message}");
    }
    let trace = "trace = \"t.csv\"\n[backing]\nsize = \"50 GiB\"\nbandwidth = \"33 MiB/s\"\nvolume_type = \"aws/gp3\"\n\
         [caching]\nvolumes = \"auto\"\n";
    assert!(
        load(trace).unwrap_err().contains("chooses for the bursts of [app], and the file has none: write a number")
    );
}

#[test]
fn a_file_without_stripes_means_what_it_meant() {
    let plain = load(&cm1("aws/gp3", "bandwidth = \"128 MiB/s\"")).unwrap();
    let one = load(&cm1("aws/gp3", "bandwidth = \"128 MiB/s\"\nvolumes = 1")).unwrap();
    assert_eq!(plain, one);
    assert_eq!((plain.caching.striping.volumes, plain.caching.bandwidth), (1, Bandwidth::from_mib_s(128)));
}

fn application(checkpoints: u32, gib: u64, backing: u64, machine: Option<u64>, caching: &str) -> String {
    let machine = machine.map_or(String::new(), |mib_s| format!("[machine]\nbandwidth = \"{mib_s} MiB/s\"\n"));
    format!(
        "[app]\nvms = 2\ncompute = \"3000 s\"\ncheckpoints = {checkpoints}\ncheckpoint_size = \"{gib} GiB\"\n[backing]\n\
         size = \"200 GiB\"\nbandwidth = \"{backing} MiB/s\"\nusd_per_gib_month = 0.03\n{machine}[caching]\n{caching}\n\
         [provider]\ncreate_s = 2\nattach_s = 3\ndetach_s = 3\n"
    )
}

const TYPES: [&str; 4] = ["aws/gp3", "gcp/hyperdisk-balanced", "azure/premium-ssd-v2", "aws/io2"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn auto_is_never_dearer_than_a_fixed_count_and_keeps_every_limit(
        checkpoints in 1u32..20, gib in 1u64..12, backing in 10u64..120, machine in prop::option::of(150u64..3000),
        fixed in 1u32..20, kind in 0usize..TYPES.len(), deadline in prop::option::of(0.0f64..1.0),
    ) {
        let kind = TYPES[kind];
        let auto = application(checkpoints, gib, backing, machine, &format!("volumes = \"auto\"\nvolume_type = \"{kind}\""));
        let given = application(checkpoints, gib, backing, machine, &format!("volumes = {fixed}\nvolume_type = \"{kind}\""));
        // From what no cache keeps to what needs none.
        let slow = f64::from(checkpoints) * gib as f64 * 1024.0 / backing as f64;
        let deadline = deadline.map(|share| 3000.0 + share * slow);
        let (auto, given) = (recommended(&auto, deadline), recommended(&given, deadline));
        for one in &auto.considered {
            prop_assert!(one.volumes <= 126);
            let most = machine.map_or(f64::INFINITY, |most| (most - backing) as f64);
            prop_assert!(one.caching_mib_s <= most + 1e-6, "{one:?}");
            prop_assert_eq!(one.feasible, deadline.is_none_or(|deadline| one.completion_s <= deadline));
        }
        if let Some(usd) = given.cost_total_usd {
            let chosen = auto.cost_total_usd;
            prop_assert!(chosen.is_some_and(|chosen| chosen <= usd * (1.0 + 1e-12)), "{chosen:?} {usd}");
        }
    }

    #[test]
    fn a_tighter_deadline_costs_no_less(gib in 1u64..12, backing in 10u64..120, shares in prop::collection::vec(0.0f64..1.0, 2)) {
        let slow = 5.0 * gib as f64 * 1024.0 / backing as f64;
        let text = application(5, gib, backing, None, "volumes = \"auto\"\nvolume_type = \"aws/gp3\"");
        let at = |share: f64| recommended(&text, Some(3000.0 + share * slow)).cost_total_usd;
        let (tight, loose) = (at(shares[0].min(shares[1])), at(shares[0].max(shares[1])));
        if let Some(tight) = tight {
            prop_assert!(loose.is_some_and(|loose| loose <= tight));
        }
    }

    #[test]
    fn money_grows_with_volumes_size_and_time(volumes in 1u32..27, gib in 1u64..100, seconds in 0.0f64..1e5, kind in 0usize..TYPES.len()) {
        let catalog = Catalog::builtin();
        let (provider, name) = TYPES[kind].split_once('/').unwrap();
        let known = catalog.find(provider, name).unwrap();
        let cost = |volumes, gib, seconds| {
            Tariff::striped(volumes, Bandwidth::from_mib_s(140), Some(known), None).cost(Bytes::from_gib(gib), seconds).usd.unwrap()
        };
        let here = cost(volumes, gib, seconds);
        prop_assert!(cost(volumes, gib + 1, seconds) >= here - 1e-12);
        // Rounded up for each, so three volumes may cost more than four, but never less than one.
        prop_assert!(here >= cost(1, gib, seconds) - 1e-12);
        prop_assert!(cost(volumes, gib, seconds + 10.0) >= here - 1e-12);
    }
}
