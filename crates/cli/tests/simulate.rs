//! `surgetank simulate`: its answers, its sweeps, and what it says to mistakes.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const SCENARIO: &str = r#"
[app]
vms = 4
compute = "600 s"
checkpoints = 2
checkpoint_size = "2 GiB"
initial_dump = "1 GiB"

[backing]
size = "20 GiB"
bandwidth = "33 MiB/s"

[caching]
bandwidth = "128 MiB/s"

[policy]
name = "adaptive"

[provider]
create_s = 2
attach_s = 2
"#;

fn simulate(file: &Path, flags: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_surgetank")).arg("simulate").arg(file).args(flags).output().unwrap()
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn scenario(directory: &Path, text: &str) -> std::path::PathBuf {
    let file = directory.join("scenario.toml");
    fs::write(&file, text).unwrap();
    file
}

#[test]
fn the_answer_has_the_demos_shape_and_the_arithmetic_is_right() {
    let directory = tempfile::tempdir().unwrap();
    let file = scenario(directory.path(), SCENARIO);
    let out = directory.path().join("out");
    let found = json(&simulate(&file, &["--json", "--out", &out.display().to_string()]));
    let of = |mode: &str, field: &str| found["modes"][mode][field].as_f64().unwrap();
    for (mode, mib_s) in [("static_slow", 33.0), ("static_fast", 128.0)] {
        let expected = 600.0 + 4096.0 / mib_s;
        assert!((of(mode, "completion_s") / expected - 1.0).abs() < 0.001, "{mode}");
        let wall = expected + 1024.0 / mib_s;
        assert!((of(mode, "cost_agbs") / (20.0 * mib_s * wall) - 1.0).abs() < 0.001, "{mode}");
        assert!((of(mode, "write_mib_s") / mib_s - 1.0).abs() < 0.01, "{mode}");
    }
    assert!(of("elastic", "completion_s") < of("static_slow", "completion_s"));
    assert!(!found["modes"]["elastic"]["boosts"].as_array().unwrap().is_empty());
    assert!(found["modes"]["elastic"]["boosts"][0]["attach_s"].as_f64().unwrap() > 3.9);
    assert_eq!(found["verified"], Value::Null);
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("elastic") && !page.contains("NaN"));
    let kept: Value = serde_json::from_str(&fs::read_to_string(out.join("report.json")).unwrap()).unwrap();
    assert!(kept["modes"]["elastic"]["activity"].as_array().unwrap().len() > 100);
}

#[test]
fn a_sweep_answers_for_each_value_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let file = scenario(directory.path(), SCENARIO);
    let csv = directory.path().join("sweep.csv");
    let flags = ["--sweep", "caching.checkpoint_cache=1..4GiB", "--sweep", "policy.name=paper,adaptive", "--json"];
    let found = json(&simulate(&file, &[&flags[..], &["--csv", &csv.display().to_string()]].concat()));
    let runs = found["sweep"].as_array().unwrap();
    assert_eq!(runs.len(), 8);
    assert_eq!(runs[7]["settings"]["caching.checkpoint_cache"], "4 GiB");
    let completion = |run: &Value| run["modes"]["elastic"]["completion_s"].as_f64().unwrap();
    // The papers' controller; ours may not pre-attach a large cache.
    let times: Vec<f64> = runs.iter().step_by(2).map(completion).collect();
    assert!(times.windows(2).all(|pair| pair[1] <= pair[0] + 1e-6), "a larger cache is never slower: {times:?}");
    let table = fs::read_to_string(csv).unwrap();
    assert_eq!(table.lines().count(), 9);
    assert!(table.starts_with("caching.checkpoint_cache,policy.name,static_slow_completion_s"));
}

#[test]
fn a_trace_is_replayed() {
    let directory = tempfile::tempdir().unwrap();
    // MSR: time in 100 ns, host, disk, type, offset, size, latency. A burst of 1 GiB in a second, and one 5 min later.
    let mut trace = String::new();
    for burst in [0u64, 300] {
        for number in 0..1024u64 {
            let time = 128_166_372_000_000_000 + burst * 10_000_000 + number * 9_000;
            trace += &format!("{time},host,0,Write,{},1048576,1000\n", number << 20);
        }
    }
    fs::write(directory.path().join("trace.csv"), trace).unwrap();
    let app = SCENARIO.find("[backing]").unwrap();
    let text = format!("trace = \"trace.csv\"\n{}", &SCENARIO[app..]);
    let file = scenario(directory.path(), &text);
    let found = json(&simulate(&file, &["--json"]));
    let completion = |mode: &str| found["modes"][mode]["completion_s"].as_f64().unwrap();
    assert!((completion("static_slow") - (300.0 + 1024.0 / 33.0)).abs() < 1.5, "{found}");
    assert!((completion("static_fast") - (300.0 + 1024.0 / 128.0)).abs() < 1.5, "{found}");
    assert!(completion("elastic") < completion("static_slow"), "{found}");
}

#[test]
fn the_jobs_of_a_log_are_replayed() {
    let directory = tempfile::tempdir().unwrap();
    // Two jobs of 8 processors, an hour and ten minutes from the start on, and one that is too large.
    let rest = "-1 -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1";
    let log = format!("; MaxProcs: 64\n1 0 0 3600 8 {rest}\n2 0 0 600 8 {rest}\n3 0 0 600 64 {rest}\n4 0 0\n");
    fs::write(directory.path().join("log.swf"), &log).unwrap();
    let app = SCENARIO.find("[backing]").unwrap();
    let jobs = "[jobs]\nlog = \"log.swf\"\ninterval = \"30 min\"\nmemory = \"128 MiB\"\nprocessors_max = 8\n";
    let file = scenario(directory.path(), &format!("{jobs}{}", &SCENARIO[app..]));
    let output = simulate(&file, &["--json"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("log.swf:5: a job has 3 fields") && said.contains("was left out (1 of 5)"), "{said}");
    let strict = simulate(&file, &["--strict"]);
    assert_eq!(strict.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&strict.stderr).contains("log.swf:5: a job has 3 fields"));
    assert_eq!(simulate(&file, &["--format", "csv"]).status.code(), Some(2));
    let found = json(&output);
    let completion = |mode: &str| found["modes"][mode]["completion_s"].as_f64().unwrap();
    // The first checkpoint comes at 600 s, the last of 1 GiB at 3600 s.
    assert!((completion("static_slow") - (3600.0 + 1024.0 / 33.0)).abs() < 1.5, "{found}");
    assert!((completion("static_fast") - (3600.0 + 1024.0 / 128.0)).abs() < 1.5, "{found}");

    // Where some jobs lack memory in the log, it is said how many; where all do, what to write.
    let known = log.replacen("3600 8 -1 -1", "3600 8 -1 131072", 1);
    fs::write(directory.path().join("part.swf"), known).unwrap();
    let text = format!("[jobs]\nlog = \"part.swf\"\n{}", &SCENARIO[app..]);
    let output = simulate(&scenario(directory.path(), &text), &["--json"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("2 of 3 jobs have no memory in the log"), "{said}");

    for (wrong, place) in [
        ("interval = \"0 s\"", "scenario.toml:3:12: interval is zero"),
        ("interval = \"1 h\"\nprocessors_max = 0", "scenario.toml:4:18: processors_max is below 1"),
        ("interval = \"1 h\"", "log.swf"),
        ("memory = \"64 TiB\"", "shorten the load, or take volumes that keep up with it"),
    ] {
        let text = format!("[jobs]\nlog = \"log.swf\"\n{wrong}\n{}", &SCENARIO[app..]);
        let output = simulate(&scenario(directory.path(), &text), &[]);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let expected = if place == "log.swf" { "write memory" } else { place };
        assert!(output.status.code() == Some(2) && said.contains(expected), "{wrong}: {said}");
    }
}

/// A log whose jobs write in bursts ten minutes apart, over 29 days.
fn long_log(directory: &Path) -> std::path::PathBuf {
    let job = |number: u64| {
        let (start, processors) = (number * 600, 8 + number % 7);
        format!("{number} {start} 0 30 {processors} -1 -1 -1 -1 -1 1 -1 -1 -1 -1 -1 -1 -1\n")
    };
    fs::write(directory.join("long.swf"), (0..4176).map(job).collect::<String>()).unwrap();
    let app = SCENARIO.find("[backing]").unwrap();
    let jobs = "[jobs]\nlog = \"long.swf\"\nmemory = \"64 MiB\"\n";
    scenario(directory, &format!("{jobs}{}", &SCENARIO[app..]))
}

#[test]
fn a_month_of_jobs_fits_on_a_page_and_says_what_its_bursts_waited() {
    let directory = tempfile::tempdir().unwrap();
    let file = long_log(directory.path());
    let out = directory.path().join("out");
    let flags = ["--model", "fluid", "--policy", "paper", "--set", "policy.inactivity_delay=5 s"];
    let output = simulate(&file, &[&flags[..], &["--out", &out.display().to_string()]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.lines().count() < 45 && text.contains("in vain") && text.contains("28 d 23 h"), "{text}");
    assert!(text.contains("mean wait") && text.contains("A burst waits") && text.contains("on static-slow"), "{text}");
    for name in ["report.html", "report.json"] {
        let size = fs::metadata(out.join(name)).unwrap().len();
        assert!(size < 2 << 20, "{name} has {size} bytes");
    }
    let kept: Value = serde_json::from_str(&fs::read_to_string(out.join("report.json")).unwrap()).unwrap();
    let elastic = &kept["modes"]["elastic"];
    assert!(elastic["boost_summary"]["count"].as_u64().unwrap() > 1000, "{}", elastic["boost_summary"]);
    let waits = |mode: &str| kept["modes"][mode]["bursts"]["waited_mean_s"].as_f64().unwrap();
    assert!(waits("static_slow") > waits("static_fast"), "{} {}", waits("static_slow"), waits("static_fast"));
    assert_eq!(kept["modes"]["static_slow"]["bursts"]["count"], 4176);
}

#[test]
fn a_replay_on_a_volume_that_is_never_busy_gains_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let line = |second: u64| format!("{second},W,0,65536\n");
    let trace = format!("time_s,op,offset_bytes,length_bytes\n{}oops\n", (0..300).map(line).collect::<String>());
    fs::write(directory.path().join("idle.csv"), trace).unwrap();
    let app = SCENARIO.find("[backing]").unwrap();
    let file = scenario(directory.path(), &format!("trace = \"idle.csv\"\n{}", &SCENARIO[app..]));
    let output = simulate(&file, &[]);
    let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success() && text.contains("Nothing is gained: static-slow alone is as fast."),
        "{text}{said}"
    );
    assert!(said.contains("idle.csv:302: ") && said.contains("(1 of 302)"), "{said}");
    assert_eq!(simulate(&file, &["--strict"]).status.code(), Some(2));
    let said = String::from_utf8_lossy(&simulate(&file, &["--format", "msr"]).stderr).into_owned();
    assert!(said.contains("idle.csv:1:"), "{said}");
    // Flags about a trace where there is none.
    let application = scenario(directory.path(), SCENARIO);
    let said = String::from_utf8_lossy(&simulate(&application, &["--strict"]).stderr).into_owned();
    assert!(said.contains("--strict is about a trace"), "{said}");
}

#[test]
fn hindsight_is_below_every_mode_and_its_plan_is_near_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = scenario(directory.path(), SCENARIO);
    let out = directory.path().join("out");
    let out = out.display().to_string();
    for value in ["0", "6600", "inf"] {
        let found = json(&simulate(&file, &["--hindsight", "--value-of-time", value, "--json", "--out", &out]));
        let hindsight = &found["hindsight"];
        let bound = hindsight["bound"].as_f64().unwrap();
        let objective = |place: &str| hindsight.pointer(place).and_then(Value::as_f64).unwrap();
        let elastic = objective("/modes/elastic/objective");
        assert!(bound > 0.0 && bound <= elastic, "{value}: {hindsight}");
        assert!(
            objective("/plan/objective") >= bound && objective("/plan/regret_ratio") < 0.05,
            "{value}: {hindsight}"
        );
        assert!((objective("/modes/elastic/regret_ratio") - (elastic / bound - 1.0)).abs() < 1e-9, "{value}");
        assert_eq!(hindsight["value_of_time_per_s"].is_null(), value == "inf");
    }
    let page = fs::read_to_string(directory.path().join("out/report.html")).unwrap();
    assert!(page.contains("In hindsight"));
    let said = simulate(&file, &["--hindsight"]);
    assert!(String::from_utf8_lossy(&said.stdout).contains("no controller is below"));
}

#[test]
fn hindsight_in_money_needs_prices() {
    let directory = tempfile::tempdir().unwrap();
    let file = scenario(directory.path(), SCENARIO);
    let said = simulate(&file, &["--hindsight", "--value-of-time", "3 USD/h"]);
    let error = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.code() == Some(2) && error.contains("usd_per_gib_month"), "{error}");
    let prices = ["--set", "backing.usd_per_gib_month=0.04", "--set", "caching.usd_per_gib_month=0.125"];
    let flags: Vec<&str> = ["--hindsight", "--value-of-time", "3 USD/h", "--json"].into_iter().chain(prices).collect();
    assert_eq!(json(&simulate(&file, &flags))["hindsight"]["currency"], "USD");
    for wrong in ["-1", "fast", "3 USD"] {
        assert_eq!(simulate(&file, &["--hindsight", "--value-of-time", wrong]).status.code(), Some(2), "{wrong}");
    }
}

/// A caching GiB costs a thousand times what one of the backing volume does: by AGBs a boost pays, by bills none ever does.
#[test]
fn a_value_of_time_in_money_lets_the_controller_judge_boosts_by_bills() {
    let directory = tempfile::tempdir().unwrap();
    let prices = SCENARIO.replace("bandwidth = \"33 MiB/s\"", "bandwidth = \"33 MiB/s\"\nusd_per_gib_month = 0.73");
    let prices = prices.replace("bandwidth = \"128 MiB/s\"", "bandwidth = \"128 MiB/s\"\nusd_per_gib_month = 730.0");
    let file = scenario(directory.path(), &prices);
    let boosts = |flags: &[&str]| {
        let found = json(&simulate(&file, &[&["--model", "fluid", "--json"], flags].concat()));
        (found["modes"]["elastic"]["boosts"].as_array().unwrap().len(), found["parameters"]["policy"].to_string())
    };
    // 20 GiB for 0.73 USD a month are 0.02 USD an hour.
    let by_agbs = boosts(&["--hindsight"]);
    assert!(by_agbs.0 > 0 && !by_agbs.1.contains("prices"), "{by_agbs:?}");
    let by_bills = boosts(&["--hindsight", "--value-of-time", "0.02 USD/h"]);
    assert!(by_bills.0 == 0 && by_bills.1.contains("prices"), "{by_bills:?}");
    let by_the_file = boosts(&["--set", "policy.value_of_time=0.04 USD/h"]);
    assert_eq!(
        (by_the_file.0, &by_the_file.1),
        (0, &by_bills.1),
        "an application that waits keeps its volume for longer"
    );
    let dear = boosts(&["--set", "policy.value_of_time=1000 USD/h"]);
    assert!(dear.0 > 0, "{dear:?}");
    // What the file says goes before the flag.
    let both = boosts(&["--set", "policy.value_of_time=0", "--hindsight", "--value-of-time", "1000 USD/h"]);
    assert_eq!(both.0, 0, "{both:?}");
    let unknown = scenario(directory.path(), SCENARIO);
    let said = simulate(&unknown, &["--set", "policy.value_of_time=3 USD/h"]);
    let error = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.code() == Some(2) && error.contains("policy.value_of_time is money"), "{error}");
}

/// What a configuration of the daemon and a scenario say in common makes the same controller.
#[test]
fn the_simulated_controller_is_the_one_that_the_daemon_runs() {
    let policies = [
        "name = \"adaptive\"",
        "name = \"adaptive\"\nvalue_of_time = 7000",
        "name = \"adaptive\"\nvalue_of_time = \"3 USD/h\"\nbudget.usd_per_hour = 0.5",
        "name = \"paper\"\nutilization_threshold = 0.5\ninactivity_delay = \"12 s\"\nsize_grain = \"2 GiB\"\nretry_first = \"3 s\"",
    ];
    for policy in policies {
        let served = format!(
            "[provider.local]\ndirectory = \"/tmp/volumes\"\n[device.data]\nbacking = \"/dev/vdb\"\nbacking_usd_per_gib_month = 0.04\n\
             backing_limits.bandwidth = \"33 MiB/s\"\n[device.data.caching]\nprovider = \"local\"\nbandwidth = \"128 MiB/s\"\n\
             initial_size = \"4 GiB\"\nusd_per_gib_month = 0.125\nmin_size = \"1 MiB\"\nmax_size = \"20 GiB\"\n[device.data.policy]\n{policy}"
        );
        let config = surgetank_daemon::Config::from_text(Path::new("served.toml"), &served).unwrap();
        let device = &config.devices["data"];
        let served = device.controller(device.caching.as_ref().unwrap(), surgetank_model::Bytes::from_gib(20), 5);
        let simulated = format!(
            "seed = 5\n[app]\nvms = 1\ncompute = \"60 s\"\ncheckpoints = 1\ncheckpoint_size = \"2 GiB\"\n[backing]\nsize = \"20 GiB\"\n\
             bandwidth = \"33 MiB/s\"\nusd_per_gib_month = 0.04\n[caching]\nbandwidth = \"128 MiB/s\"\nusd_per_gib_month = 0.125\n\
             initial_cache = \"4 GiB\"\n[policy]\n{policy}"
        );
        let source = surgetank_model::toml_error::Source { file: "simulated.toml".into(), text: simulated };
        let scenario =
            surgetank_planner::scenario::Scenario::parse(&source, &surgetank_model::Catalog::builtin()).unwrap();
        let simulated = surgetank_whatif::Setup::of(&scenario, None).policy;
        assert_eq!(simulated, served, "{policy}");
    }
}

#[test]
fn mistakes_get_one_sentence_and_leave_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let good = scenario(directory.path(), SCENARIO);
    let wrong = directory.path().join("wrong.toml");
    fs::write(&wrong, SCENARIO.replace("\"33 MiB/s\"", "33")).unwrap();
    let empty = directory.path().join("empty.csv");
    fs::write(&empty, "").unwrap();
    let no_bytes = directory.path().join("trace.toml");
    let app = SCENARIO.find("[backing]").unwrap();
    fs::write(&no_bytes, format!("trace = \"empty.csv\"\n{}", &SCENARIO[app..])).unwrap();
    let out = directory.path().join("out");
    let out_text = out.display().to_string();
    let cases: [(&Path, &[&str], &str); 8] = [
        (&directory.path().join("missing.toml"), &[], "missing.toml"),
        (&wrong, &[], "wrong.toml:11:"),
        (&no_bytes, &[], "empty.csv"),
        (&good, &["--sweep", "caching.checkpoint_cache=2..64GiB"], "with caching.checkpoint_cache"),
        (&good, &["--sweep", "caching.chekpoint_cache=2..4GiB"], "chekpoint_cache"),
        (&good, &["--sweep", "app=1..2"], "app"),
        (&good, &["--sweep", "app.vms=1..99999999"], "steps"),
        (&good, &["--set", "policy.sampling=0 s"], "sampling"),
    ];
    for (file, flags, expected) in cases {
        let output = simulate(file, &[flags, &["--out", &out_text]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{flags:?}: {said}");
        assert!(said.contains(expected), "{flags:?}: {said}");
        assert!(!said.contains("panicked"), "{said}");
        assert!(output.stdout.is_empty() && !out.exists(), "{flags:?}");
    }
}

const ARRAY: &str = "[array]\nvolume_type = \"aws/gp2\"\nmembers = 10\nmember_size = \"10 GiB\"\nrotate = \"staggered\"\n\
    copy_rate = \"80 MiB/s\"\n[workload]\ndemand = \"30000 IOPS\"\nrequest = \"4 KiB\"\nwrite_share = 0.5\nduration = \"80 min\"\n\
    used = \"80 GiB\"\n";

#[test]
fn an_array_is_compared_with_one_volume_and_with_its_rotation() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("array.toml");
    fs::write(&file, ARRAY).unwrap();
    let out = directory.path().join("report");
    let run = simulate(&file, &["--json", "--out", out.to_str().unwrap()]);
    assert_eq!(run.status.code(), Some(0), "{run:?}");
    let found = json(&run);
    let of = |mode: &str, field: &str| {
        found["modes"][mode][field].as_f64().unwrap_or_else(|| panic!("{mode} {field}: {found}"))
    };
    for mode in ["single", "array", "rotated"] {
        assert!(of(mode, "mean_iops") > 0.0 && of(mode, "mean_mib_s") > 0.0 && of(mode, "usd_month") >= 10.0);
    }
    assert!(of("rotated", "rotations") >= 10.0 && of("rotated", "least_iops") > 26_000.0);
    assert!((0.0..0.1).contains(&of("rotated", "overhead_ratio")));
    let instead = found["instead"].as_str().unwrap();
    assert!(instead.contains("gp3") && instead.contains("rotation does not pay"), "{instead}");
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("credits, %") && page.contains("rotated"), "{page}");
    let text = simulate(&file, &[]);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(text.contains("rotated") && text.contains("gp3"), "{text}");
}

#[test]
fn arrays_that_make_no_sense_are_refused_in_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("array.toml");
    for (from, to, expected) in [
        (
            "members = 10",
            "members = 28",
            "array.toml:1:1: the array has 28 members, and a machine of aws takes 27 volumes",
        ),
        ("aws/gp2", "aws/gp22", "there is no volume type \"aws/gp22\": did you mean \"aws/gp2\"?"),
        ("staggered", "sometimes", "\"sometimes\" is no way to rotate: write \"staggered\", \"all\" or \"never\""),
        ("80 GiB", "200 GiB", "used is 200 GiB, more than the 100 GiB that there are"),
        ("30000 IOPS", "30000", "has no unit"),
        ("write_share = 0.5", "write_share = 1.5", "write_share must be from 0 to 1"),
        (
            "[workload]",
            "[backing]\nvolume_type = \"st1\"\nsize = \"2 TiB\"\n[workload]",
            "is the volume below a [read_cache]",
        ),
        ("[array]", "[read_cache]", "[read_cache] caches no volume: add [backing]"),
        ("80 min", "0 s", "duration is 0 ns: write a time from 1 s to 31 d"),
    ] {
        fs::write(&file, ARRAY.replacen(from, to, 1)).unwrap();
        let run = simulate(&file, &[]);
        let said = String::from_utf8(run.stderr).unwrap();
        assert!(run.status.code() == Some(2) && said.contains(expected) && said.lines().count() == 1, "{to}: {said}");
    }
    // What cannot keep up is told, and simulated nevertheless.
    fs::write(&file, ARRAY.replace("80 MiB/s", "20 MiB/s")).unwrap();
    let run = simulate(&file, &["--json"]);
    let said = String::from_utf8(run.stderr).unwrap();
    assert!(run.status.code() == Some(0) && said.contains("raise copy_rate"), "{said}");
    fs::write(&file, ARRAY).unwrap();
    let run = simulate(&file, &["--hindsight"]);
    assert!(
        run.status.code() == Some(2)
            && String::from_utf8(run.stderr).unwrap().contains("--hindsight is about an elastic")
    );
}
