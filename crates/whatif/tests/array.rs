//! Arrays in virtual time: against the closed form, against the promises of the rotation, at the paper's settings.

use proptest::prelude::*;
use surgetank_model::toml_error::Source;
use surgetank_model::{Bandwidth, Bytes, Catalog, Iops};
use surgetank_planner::rotation::{Member, rotation};
use surgetank_planner::scenario::ArrayScenario;
use surgetank_whatif::array::{ArrayMode, ArrayReport, run};

fn parse(text: &str) -> ArrayScenario {
    let source = Source { file: "array.toml".into(), text: text.to_owned() };
    ArrayScenario::parse(&source, &Catalog::builtin()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn report(text: &str, mode: ArrayMode) -> ArrayReport {
    run(&parse(text), mode).unwrap()
}

/// Ten gp2 volumes of so many GiB.
fn gp2(gib: u64, rotate: &str, copy_rate: &str, workload: &str) -> String {
    format!(
        "[array]\nvolume_type = \"aws/gp2\"\nmembers = 10\nmember_size = \"{gib} GiB\"\nrotate = \"{rotate}\"\n\
         copy_rate = \"{copy_rate}\"\ncopy_io_size = \"256 KiB\"\n[workload]\nrequest = \"4 KiB\"\n{workload}\n"
    )
}

/// On the paper's machine, in the window of its Figure 3.
const SATURATED: &str = "demand = \"30000 IOPS\"\nwrite_share = 0.5\nduration = \"80 min\"\n[machine]\niops = \"40000 IOPS\"\n\
    bandwidth = \"1187.5 MB/s\"";

#[test]
fn small_volumes_give_twenty_times_the_iops_for_the_same_money() {
    let text = gp2(50, "never", "60 MiB/s", "demand = \"30000 IOPS\"\nduration = \"20 min\"");
    let (single, array) = (report(&text, ArrayMode::Single), report(&text, ArrayMode::Array));
    assert!((array.mean_iops - 30_000.0).abs() < 1e-6 && (single.sustained_iops - 1500.0).abs() < 1e-6);
    // The one volume has credits as well, of which the paper says nothing.
    assert!((single.mean_iops - 3000.0).abs() < 1e-6);
    assert_eq!(single.usd_month, array.usd_month);
    assert!((array.usd_month.unwrap() - 50.0).abs() < 1e-9);
}

#[test]
fn without_rotation_credits_end() {
    let text = gp2(10, "never", "60 MiB/s", SATURATED);
    let found = report(&text, ArrayMode::Array);
    assert!((found.least_iops - 1000.0).abs() < 1.0 && found.rotations == 0);
    let expected = (30_000.0 * 5_400_000.0 / 2900.0 + 1000.0 * (4800.0 - 5_400_000.0 / 2900.0)) / 4800.0;
    assert!((found.mean_iops / expected - 1.0).abs() < 0.005, "{} {expected}", found.mean_iops);
}

#[test]
fn one_extra_member_holds_nine_tenths_of_the_whole_for_less_than_all() {
    let all = report(&gp2(10, "all", "47.4 MiB/s", SATURATED), ArrayMode::Rotated);
    assert!((all.overhead_ratio - 0.10).abs() <= 0.01, "{}", all.overhead_ratio);
    let staggered = report(&gp2(10, "staggered", "80 MiB/s", SATURATED), ArrayMode::Rotated);
    assert!(staggered.least_iops >= 0.9 * 30_000.0 && staggered.mean_iops >= 0.99 * 30_000.0, "{staggered:?}");
    assert!(staggered.usd_month <= all.usd_month && staggered.extra_most == 1 && all.extra_most == 10);
    let large = report(&gp2(30, "all", "42.7 MiB/s", SATURATED), ArrayMode::Rotated);
    assert!((0.35..=0.42).contains(&large.overhead_ratio), "{}", large.overhead_ratio);
}

#[test]
fn azure_is_billed_by_the_hour_and_its_two_buckets_count() {
    let text = "[array]\nvolume_type = \"azure/premium-ssd\"\nmembers = 8\nmember_size = \"8 GiB\"\nrotate = \"staggered\"\n\
        copy_rate = \"120 MiB/s\"\n[workload]\ndemand = \"28000 IOPS\"\nrequest = \"4 KiB\"\nduration = \"6 h\"\n";
    let found = report(text, ArrayMode::Rotated);
    assert!(found.rotations > 20 && found.mean_iops > 0.97 * 28_000.0, "{found:?}");
    // Each member lives for half an hour and is billed for a whole one.
    let plain = report(text, ArrayMode::Array).usd_month.unwrap();
    assert!(found.usd_month.unwrap() > plain * 1.5, "{:?} {plain}", found.usd_month);
    // Large requests spend the other bucket.
    let large = text.replace("4 KiB", "256 KiB").replace("28000 IOPS", "1200 MiB/s").replace("120 MiB/s", "60 MiB/s");
    let found = report(&large, ArrayMode::Rotated);
    assert!(found.rotations > 10 && found.mean_mib_s > 900.0, "{} {}", found.rotations, found.mean_mib_s);
}

#[test]
fn a_provider_that_refuses_and_dawdles_costs_throughput_and_no_member() {
    let workload = "demand = \"25000 IOPS\"\nduration = \"4 h\"";
    let text = format!(
        "{}[provider]\ncreate_s = 5\nattach_s = 5\njitter = 2\nfaults = 0.3\n",
        gp2(10, "staggered", "100 MiB/s", workload)
    );
    let found = report(&text, ArrayMode::Rotated);
    assert!(found.refusals > 5 && found.extra_most == 1 && found.mean_iops > 0.97 * 25_000.0, "{found:?}");
}

/// Where credits end before a successor has the slot, late is better than never, and a copy that is left without credits goes on:
/// whether volumes take longer to come than credits last (31 min), or copies do.
#[test]
fn an_array_whose_credits_end_amid_replacements_recovers() {
    for seed in 0..12 {
        for (create_s, copy_rate) in [(2400, "100 MiB/s"), (5, "4 MiB/s")] {
            let workload = "demand = \"25000 IOPS\"\nwrite_share = 0.3\nduration = \"8 h\"";
            let provider = format!("[provider]\ncreate_s = {create_s}\nattach_s = 5\njitter = 0.3\n");
            let text = format!("seed = {seed}\n{}{provider}", gp2(10, "all", copy_rate, workload));
            let (rotated, plain) = (report(&text, ArrayMode::Rotated), report(&text, ArrayMode::Array));
            let (found, without) = (rotated.mean_iops, plain.mean_iops);
            assert!(
                rotated.rotations >= 30 && found > 3.5 * without,
                "{seed}: {found} and {without}, {}",
                rotated.rotations
            );
            // Of the last half as well: it is fast again and again.
            let late: Vec<f64> = rotated.moments.iter().skip(450).map(|moment| moment.iops).collect();
            assert!(late.iter().filter(|iops| **iops > 20_000.0).count() > late.len() / 4, "{seed}: {late:?}");
        }
    }
}

/// A cache over st1 without its own credits.
fn cache(rotate: &str, write_share: f64) -> String {
    format!(
        "[read_cache]\nvolume_type = \"aws/gp2\"\nmembers = 10\nmember_size = \"10 GiB\"\nrotate = \"{rotate}\"\nio_size = \"80 KiB\"\n\
         [backing]\nvolume_type = \"aws/st1\"\nsize = \"2 TiB\"\ncredits = \"empty\"\n[workload]\ndemand = \"4000 MiB/s\"\n\
         request = \"1 MiB\"\nwrite_share = {write_share:?}\nduration = \"200 min\"\nused = \"200 GiB\"\nzipf = 1.2\n\
         [machine]\niops = \"40000 IOPS\"\nbandwidth = \"1187.5 MB/s\"\n"
    )
}

#[test]
fn a_read_cache_of_small_members_is_the_papers() {
    let text = cache("staggered", 0.0);
    let [backing, single, array] =
        [ArrayMode::Backing, ArrayMode::SingleCache, ArrayMode::ArrayCache].map(|mode| report(&text, mode));
    assert!((backing.mean_mib_s - 80.0).abs() < 1.0, "{}", backing.mean_mib_s);
    assert!((single.mean_mib_s / 56.0 - 1.0).abs() < 0.1, "{}", single.mean_mib_s);
    assert!((array.mean_mib_s / 1047.0 - 1.0).abs() < 0.1, "{}", array.mean_mib_s);
    assert!(array.rotations >= 10 && array.extra_most == 1, "{array:?}");
    let extra = array.usd_month.unwrap() / single.usd_month.unwrap() - 1.0;
    assert!(extra < 0.052, "{extra}");
}

/// A file that somebody has damaged.
fn damaged(text: &str, edits: &[(usize, u8, String)]) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for (at, how, with) in edits {
        let at = at % lines.len().max(1);
        match how {
            0 => _ = (lines.len() > 1).then(|| lines.remove(at)),
            1 => lines.push(lines[at].clone()),
            2 => lines.insert(at, with.clone()),
            3 => lines[at] = lines[at].chars().rev().collect(),
            // Another value.
            _ => {
                let key = lines[at].split('=').next().unwrap_or_default().to_owned();
                lines[at] = format!("{key}= {with}");
            }
        }
    }
    lines.join("\n")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever a file says, it is refused in one sentence, or simulated.
    #[test]
    fn no_file_panics(
        cached in any::<bool>(),
        edits in prop::collection::vec(
            (any::<usize>(), 0u8..9, prop_oneof![
                Just("\"1 B\"".to_owned()), Just("\"16 TiB\"".to_owned()), Just("\"1 IOPS\"".to_owned()), Just("0".to_owned()),
                Just("1".to_owned()), Just("-1".to_owned()), Just("1000".to_owned()), Just("1e308".to_owned()), Just("nan".to_owned()),
                Just("\"1 TiB/s\"".to_owned()), Just("\"10 min\"".to_owned()), Just("\"all\"".to_owned()), Just("10.0".to_owned()),
                Just("\"azure/premium-ssd\"".to_owned()), Just("\"gp3\"".to_owned()), Just("\"openstack/cinder-qos\"".to_owned()),
                "\\PC{0,12}",
            ]),
            0..5,
        ),
    ) {
        let text = if cached { cache("staggered", 0.1) } else { gp2(10, "all", "47 MiB/s", SATURATED) };
        let source = Source { file: "array.toml".into(), text: damaged(&text, &edits) };
        match ArrayScenario::parse(&source, &Catalog::builtin()) {
            Err(error) => prop_assert!(!error.to_string().contains('\n') && error.message.len() > 10, "{error}"),
            Ok(mut scenario) => {
                scenario.workload.duration = scenario.workload.duration.min(std::time::Duration::from_secs(120));
                for mode in ArrayMode::of(&scenario.role) {
                    let Some(found) = run(&scenario, mode) else { continue };
                    prop_assert!(found.mean_iops.is_finite() && found.mean_iops >= 0.0 && found.overhead_ratio > -1e-9, "{found:?}");
                }
                let _ = surgetank_whatif::array::troubles(&scenario);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// The simulated share of time with two volumes is that of the closed form, where no limit but the credits binds: copied
    /// regions take their writes on both members, half of them on average, and requests leave room for the copy.
    #[test]
    fn the_overhead_is_that_of_the_closed_form(
        gib in 2u64..30, rate in 40u64..110, demand in 800u64..2300, write_share in 0.0f64..1.0,
    ) {
        let copy_s = gib as f64 * 1024.0 / rate as f64;
        prop_assume!(copy_s < 400.0);
        let text = gp2(gib, "staggered", &format!("{rate} MiB/s"), "");
        let workload = format!(
            "demand = \"{demand} IOPS\"\nwrite_share = {write_share:?}\nduration = \"4 d\"\n[provider]\ncreate_s = 0\nattach_s = 0\n\
             detach_s = 0"
        );
        let text = text.replace("members = 10", "members = 1") + &workload;
        let found = report(&text, ArrayMode::Rotated);
        let catalog = Catalog::builtin();
        let member = Member {
            size: Bytes::from_gib(gib),
            copy_rate: Bandwidth::from_mib_s(rate),
            copy_io_size: Bytes::new(256 << 10),
            demand: Iops::new(demand),
            write_share: write_share / 2.0,
        };
        let closed = rotation(&catalog, catalog.find("aws", "gp2").unwrap(), &member).unwrap();
        let closed = closed.overhead_ratio.unwrap();
        // The policy begins a little early, for its margins.
        prop_assert!(found.overhead_ratio > 0.93 * closed - 0.002, "{} {closed}", found.overhead_ratio);
        prop_assert!(found.overhead_ratio < 1.30 * closed + 0.002, "{} {closed}", found.overhead_ratio);
        prop_assert!(found.least_iops > 0.999 * demand as f64, "{}", found.least_iops);
    }

    /// Staggered members: one more volume at most, and all that is asked for is served, where copies are fast enough.
    #[test]
    fn one_extra_member_serves_all_that_is_asked_for(
        members in 2u64..14, share in 0.2f64..0.7, per_member in 500u64..2500, write_share in 0.0f64..1.0, seed in 0u64..1000,
    ) {
        let used_gib = ((1862.0 * share / members as f64 - 15.0) * 100.0 / 1024.0).clamp(1.0, 10.0);
        let text = gp2(10, "staggered", "100 MiB/s", "").replace("members = 10", &format!("members = {members}"));
        let text = format!(
            "seed = {seed}\n{text}demand = \"{} IOPS\"\nwrite_share = {write_share:?}\nduration = \"6 h\"\nused = \"{:.1} GiB\"\n\
             [provider]\njitter = 0.5\n",
            per_member * members, used_gib * members as f64
        );
        let found = report(&text, ArrayMode::Rotated);
        prop_assert!(found.extra_most <= 1);
        prop_assert!(found.least_iops > 0.999 * (per_member * members) as f64, "{found:?}");
        prop_assert!(found.copied_gib <= used_gib * (found.rotations + 1) as f64 * 1.001);
    }
}
