//! Scenario files: what the documented one means, and what each mistake is answered with.

use std::path::Path;
use std::time::Duration;

use surgetank_model::toml_error::Source;
use surgetank_model::{Bandwidth, Bytes, Catalog};
use surgetank_planner::scenario::{CalibrationPoint, Latencies, Scenario};
use surgetank_policy::Preset;

const CM1: &str = r#"[app]
vms = 32
compute = "1100 s"             # I·It, without any checkpoint
checkpoints = 3                # K
checkpoint_size = "4 GiB"      # Sc, per VM
initial_dump = "5 GiB"         # Si, optional

[backing]
size = "50 GiB"
bandwidth = "33 MiB/s"

[caching]
bandwidth = "128 MiB/s"
checkpoint_cache = "6 GiB"     # M(Sc)
initial_cache = "10 GiB"       # M(Si)

[[calibration]]
dataset = "4 GiB"
cache = "6 GiB"
throughput = "92 MiB/s"        # B
attached = "180 s"             # D
"#;

fn load(text: &str) -> Result<Scenario, String> {
    let source = Source { file: "dir/s.toml".into(), text: text.into() };
    Scenario::parse(&source, &Catalog::builtin()).map_err(|error| error.to_string())
}

#[test]
fn the_documented_file_is_read() {
    let scenario = load(CM1).unwrap();
    let app = scenario.app().unwrap();
    assert_eq!((app.vms, app.checkpoints, app.compute), (32, 3, Duration::from_secs(1100)));
    assert_eq!((app.checkpoint_size, app.initial_dump), (Bytes::from_gib(4), Bytes::from_gib(5)));
    assert_eq!((scenario.backing.size, scenario.backing.bandwidth), (Bytes::from_gib(50), Bandwidth::from_mib_s(33)));
    assert_eq!(scenario.caching.checkpoint_cache, Some(Bytes::from_gib(6)));
    assert_eq!(scenario.caching.initial_cache, Some(Bytes::from_gib(10)));
    let point = CalibrationPoint {
        dataset: Bytes::from_gib(4),
        cache: Bytes::from_gib(6),
        throughput: Bandwidth::from_mib_s(92),
        attached: Duration::from_secs(180),
    };
    assert_eq!(scenario.calibration, [point]);
    assert_eq!((scenario.policy, scenario.trace, scenario.seed), (None, None, 0));
    assert_eq!(scenario.provider, Latencies::default());
}

#[test]
fn what_only_the_simulator_needs_is_read() {
    let text = format!(
        "interval = \"300 s\"\nseed = 7\n{CM1}\n[policy]\nname = \"adaptive\"\n\
         [provider]\ncreate_s = 12\nattach_s = 2.5\ndetach_s = \"800 ms\"\n"
    );
    let scenario = load(&text).unwrap();
    assert_eq!(scenario.seed, 7);
    assert_eq!(scenario.compute_phases(), (Duration::from_secs(300), Duration::from_secs(200)));
    assert_eq!(scenario.policy.unwrap().preset, Preset::ADAPTIVE);
    let ms = Duration::from_millis;
    let expected =
        Latencies { create: ms(12_000), attach: ms(2500), detach: ms(800), delete: ms(0), ..Latencies::default() };
    assert_eq!(scenario.provider, expected);
    // The same settings where others look for them.
    let in_app = load(&CM1.replace("[backing]", "interval = \"5 min\"\nseed = 1\n[backing]")).unwrap();
    assert_eq!((in_app.interval, in_app.seed), (Some(Duration::from_secs(300)), 1));
}

#[test]
fn a_policy_that_is_not_named_is_adaptive() {
    assert_eq!(load(CM1).unwrap().controller().preset, Preset::ADAPTIVE);
    let sampled = load(&format!("{CM1}[policy]\nsampling = \"5 s\"\n")).unwrap().controller();
    assert_eq!((sampled.preset, sampled.sampling), (Preset::ADAPTIVE, Duration::from_secs(5)));
    assert_eq!(load(&format!("{CM1}[policy]\nname = \"paper\"\n")).unwrap().controller().preset, Preset::PAPER);
}

#[test]
fn one_thing_runs() {
    let in_app = load(&CM1.replace("[backing]", "trace = \"t.csv\"\n[backing]")).unwrap_err();
    assert!(in_app.contains(":1:1: the file has [app] as well as a trace"), "{in_app}");
    let both = load(&format!("trace = \"t.csv\"\n{CM1}")).unwrap_err();
    assert!(both.contains(":2:1: the file has [app] as well as a trace"), "{both}");
    let jobs = load(&format!("{CM1}[jobs]\nlog = \"l.swf\"\n")).unwrap_err();
    assert!(jobs.contains("the file has [app] as well as [jobs]"), "{jobs}");
    let (_, without_app) = CM1.split_at(CM1.find("[backing]").unwrap());
    let interval = load(&format!("trace = \"t.csv\"\ninterval = \"5 min\"\n{without_app}")).unwrap_err();
    assert!(interval.contains(":2:12: interval is the compute time between checkpoints"), "{interval}");
}

#[test]
fn a_caching_volume_slower_than_the_backing_volume_is_warned_of() {
    assert!(load(CM1).unwrap().warnings().is_empty());
    let without_points = CM1.split("[[calibration]]").next().unwrap();
    let slow = load(&without_points.replace("128 MiB/s", "16 MiB/s")).unwrap().warnings();
    assert!(
        slow[0].contains("the caching volumes (16 MiB/s) are slower than the backing volume (33 MiB/s)"),
        "{slow:?}"
    );
}

#[test]
fn compute_is_spread_evenly_unless_an_interval_is_given() {
    let scenario = load(CM1).unwrap();
    let (phase, rest) = scenario.compute_phases();
    assert!((phase.as_secs_f64() - 1100.0 / 3.0).abs() < 1e-6 && rest.is_zero());
    let none = load(&CM1.replace("checkpoints = 3 ", "checkpoints = 0 ")).unwrap();
    assert_eq!(none.compute_phases(), (Duration::ZERO, Duration::from_secs(1100)));
}

#[test]
fn a_trace_may_stand_for_the_application() {
    let (_, without_app) = CM1.split_at(CM1.find("[backing]").unwrap());
    let scenario = load(&format!("trace = \"/t/x.csv\"\n{without_app}")).unwrap();
    assert_eq!(scenario.trace.as_deref(), Some(Path::new("/t/x.csv")));
    assert!(scenario.app().unwrap_err().contains("no [app]"));
    assert!(load(without_app).unwrap_err().contains("nothing runs: add [app]"));
}

#[test]
fn volume_types_are_those_of_the_catalog() {
    let with = |line: &str| load(&CM1.replace("[caching]\n", &format!("[caching]\n{line}\n")));
    let scenario = with("volume_type = \"aws/gp3\"").unwrap();
    assert_eq!(scenario.caching.volume_type.unwrap().key(), "aws/gp3");
    assert_eq!(with("volume_type = \"gp3\"").unwrap().caching.volume_type.unwrap().key(), "aws/gp3");
    let message = with("volume_type = \"aws/gp33\"").unwrap_err();
    assert_eq!(message, "dir/s.toml:13:15: there is no volume type \"aws/gp33\": did you mean \"aws/gp3\"?");
    assert!(with("volume_type = \"quantum-foam-drive\"").unwrap_err().contains("known are local/slow, "));
}

#[test]
fn every_mistake_has_a_place_and_a_remedy() {
    let huge = "throughput = \"92 MiB/s\"";
    for (from, to, expected) in [
        // Units missing.
        ("\"33 MiB/s\"", "33", ":10:13: 33 has no unit: write a rate such as \"33 MiB/s\""),
        ("\"4 GiB\"      #", "\"4\" #", ":5:19: \"4\" has no unit"),
        ("\"1100 s\"", "1100.5", ":3:11: 1100.5 has no unit"),
        ("\"6 GiB\"     #", "nan #", ":14:20: NaN has no unit"),
        // Negative, NaN, zero.
        ("vms = 32", "vms = -3", ":2:7: vms is -3: write a whole number from 1 to 1000000"),
        ("vms = 32", "vms = 0", ":2:7: vms is 0"),
        ("vms = 32", "vms = 3.5", ":2:7: found the number 3.5, expected a whole number"),
        ("vms = 32", "vms = \"32\"", ":2:7: found the text \"32\", expected a whole number"),
        ("\"1100 s\"", "\"-5 s\"", ":3:11: \"-5 s\" is negative"),
        ("\"1100 s\"", "\"nan s\"", ":3:11: \"nan s\" is not a time"),
        ("\"50 GiB\"", "\"0 GiB\"", ":9:8: size is zero"),
        ("\"128 MiB/s\"", "\"0 MiB/s\"", ":13:13: \"0 MiB/s\" is zero"),
        ("[backing]", "[provider]\nattach_s = nan\n[backing]", ":9:12: attach_s must be from 0 to 86400 s"),
        ("[backing]", "[provider]\nattach_s = -1\n[backing]", ":9:12: attach_s must be"),
        ("[backing]", "[provider]\nattach_s = \"5\"\n[backing]", ":9:12: \"5\" has no unit"),
        ("[backing]", "[provider]\nattach_s = true\n[backing]", ":9:12: true is no time"),
        ("[caching]", "usd_per_gib_month = nan\n[caching]", ":12:21: usd_per_gib_month must be"),
        ("[caching]", "usd_per_gib_month = -0.1\n[caching]", ":12:21: usd_per_gib_month must be"),
        ("[backing]", "seed = -1\n[backing]", ":8:8: seed is negative"),
        // Absurd.
        ("vms = 32", "vms = 3200000000", ":2:7: vms is 3200000000"),
        ("\"1100 s\"", "\"9999999 d\"", ":3:11: \"9999999 d\" is too large"),
        ("\"1100 s\"", "\"40000 d\"", ":3:11: compute is 960000 h, more than a hundred years"),
        ("\"50 GiB\"", "\"9000 TiB\"", ":9:8: size is 9000 TiB, more than any volume has"),
        ("\"128 MiB/s\"", "\"9000 GiB/s\"", ":13:13: bandwidth is 9000 GiB/s, more than any volume has"),
        ("\"50 GiB\"", "\"5e1 GiB\"", ":9:8: \"5e1 GiB\" has the unknown unit"),
        (
            huge,
            "throughput = \"920 MiB/s\"",
            ":20:14: throughput is 920 MiB/s, but both volumes together have 161 MiB/s",
        ),
        // Contradictions.
        (
            "\"6 GiB\"     #",
            "\"60 GiB\" #",
            ":14:20: checkpoint_cache is 60 GiB, larger than the backing volume of 50 GiB",
        ),
        ("\"10 GiB\"", "\"51 GiB\"", ":15:17: initial_cache is 51 GiB, larger than the backing volume"),
        ("\"5 GiB\"", "\"51 GiB\"", ":6:16: initial_dump is 51 GiB, larger than the backing volume"),
        (
            "[backing]",
            "interval = \"400 s\"\n[backing]",
            ":8:12: 3 checkpoints every 400 s need more than the compute time",
        ),
        ("[backing]", "interval = \"0 s\"\n[backing]", ":8:12: interval is zero"),
        ("[backing]", "trace = \"disk.csv\"\n[backing]", ":1:1: the file has [app] as well as a trace"),
        (
            "size = \"50 GiB\"",
            "size = \"50 GiB\"\nvolume_type = \"aws/gp22\"",
            ":10:15: there is no volume type \"aws/gp22\": did you mean \"aws/gp2\"?",
        ),
        // Names.
        ("compute = ", "compte = ", ":3:1: unknown setting \"compte\": did you mean \"compute\"?"),
        ("[caching]", "[cacing]", ":12:2: unknown setting \"cacing\": did you mean \"caching\"?"),
        ("bandwidth = \"33 MiB/s\"", "", "the setting \"bandwidth\" is missing here: add it"),
        ("[[calibration]]", "[calibration]", "expected a list of sections, [[in double brackets]]"),
        ("[backing]", "[policy]\nname = \"papr\"\n[backing]", "did you mean \"paper\""),
        ("[app]", "[app", ":1:5: "),
    ] {
        assert!(CM1.contains(from), "{from}");
        let message = load(&CM1.replacen(from, to, 1)).expect_err(to);
        assert!(message.starts_with("dir/s.toml:"), "{message}");
        assert!(message.contains(expected), "{message}\n expected {expected}");
        assert!(!message.contains('\n'), "{message}");
    }
}

#[test]
fn a_setting_in_two_places_is_an_error() {
    let text = format!("seed = 1\n{}", CM1.replace("[backing]", "seed = 1\n[backing]"));
    assert!(load(&text).unwrap_err().contains(":9:8: seed stands at the top of the file already"));
}
