//! The planner's commands as scripts meet them: fields, exit statuses, sentences.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const CM1: &str = r#"[app]
vms = 32
compute = "1100 s"
checkpoints = 3
checkpoint_size = "4 GiB"
initial_dump = "5 GiB"
[backing]
size = "50 GiB"
bandwidth = "33 MiB/s"
[caching]
bandwidth = "128 MiB/s"
checkpoint_cache = "6 GiB"
initial_cache = "10 GiB"
[[calibration]]
dataset = "4 GiB"
cache = "6 GiB"
throughput = "92 MiB/s"
attached = "180 s"
"#;

fn surgetank(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_surgetank"));
    command.args(arguments).env_remove("SURGETANK_LOG").stdin(Stdio::null());
    command.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[track_caller]
fn json(arguments: &[&str]) -> Value {
    let output = surgetank(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The command fails with this status and one sentence.
#[track_caller]
fn refused(arguments: &[&str], status: i32) -> String {
    let output = surgetank(arguments);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {}", text(&output.stderr));
    let said = text(&output.stderr);
    assert!(said.starts_with("surgetank: ") && said.trim_end().lines().count() == 1, "{arguments:?}: {said}");
    said
}

struct File(tempfile::TempDir, PathBuf);

impl File {
    fn new(content: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s.toml");
        std::fs::write(&path, content).unwrap();
        Self(directory, path)
    }

    fn path(&self) -> &str {
        self.1.to_str().unwrap()
    }

    fn directory(&self) -> &Path {
        self.0.path()
    }
}

#[track_caller]
fn near(value: &Value, expected: f64) {
    let found = value.as_f64().unwrap_or_else(|| panic!("{value} is no number"));
    assert!((found - expected).abs() <= expected.abs() * 1e-9, "{found} is not {expected}");
}

#[test]
fn predict_answers_with_the_contracts_fields() {
    let file = File::new(CM1);
    let found = json(&["predict", file.path()]);
    assert_eq!(found["model"], "calibrated");
    near(&found["static_slow"]["completion_s"], 1100.0 + 3.0 * 4096.0 / 33.0);
    near(&found["static_slow"]["billed_s"], 1100.0 + (3.0 * 4096.0 + 5120.0) / 33.0);
    near(&found["static_slow"]["cost_agbs"], 1650.0 * (1100.0 + (3.0 * 4096.0 + 5120.0) / 33.0));
    near(&found["static_fast"]["cost_total_agbs"], 32.0 * 6400.0 * 1236.0);
    near(&found["elastic"]["completion_s"], 1100.0 + 3.0 * 4096.0 / 92.0);
    // The initial dump is not among the points: the fluid model answers for it, and that is said.
    let billed_s = 1100.0 + 3.0 * 4096.0 / 92.0 + 5120.0 / 161.0;
    near(&found["elastic"]["cost_agbs"], 1650.0 * billed_s + 1280.0 * 5120.0 / 33.0 + 3.0 * 768.0 * 180.0);
    let notes = found["notes"].to_string();
    assert!(notes.contains("5 GiB with a cache of 10 GiB lies outside the calibration points"), "{notes}");
    assert_eq!(found["elastic"]["cost_usd"], Value::Null);
    let people = surgetank(&["predict", file.path()]);
    for word in ["static-slow", "static-fast", "elastic", "1233.6 s", "unknown"] {
        assert!(text(&people.stdout).contains(word), "{word} in {}", text(&people.stdout));
    }
    let fluid = File::new(CM1.split("[[calibration]]").next().unwrap());
    let found = json(&["predict", fluid.path()]);
    assert_eq!(found["model"], "fluid");
    near(&found["elastic"]["completion_s"], 1100.0 + 3.0 * 4096.0 / 161.0);
}

#[test]
fn recommend_keeps_the_deadline_or_exits_with_three() {
    let points =
        "[[calibration]]\ndataset = \"4 GiB\"\ncache = \"4 GiB\"\nthroughput = \"70 MiB/s\"\nattached = \"150 s\"\n";
    let file = File::new(&format!("{CM1}{points}"));
    let found = json(&["recommend", file.path()]);
    assert_eq!(found["checkpoint_cache_gib"], 4.0);
    assert_eq!(found["considered"].as_array().unwrap().len(), 2);
    for field in ["checkpoint_cache_gib", "completion_s", "cost_agbs", "feasible"] {
        assert!(!found["considered"][0][field].is_null(), "{field}");
    }
    assert_eq!(json(&["recommend", file.path(), "--deadline", "1240 s"])["checkpoint_cache_gib"], 6.0);
    let said = refused(&["recommend", file.path(), "--deadline", "1200 s"], 3);
    assert!(said.contains("the nearest is 6 GiB with 1233.6 s; static-fast keeps it"), "{said}");
    let said = refused(&["recommend", file.path(), "--deadline", "1000 s"], 3);
    assert!(said.contains("below the compute time"), "{said}");
    let said = refused(&["recommend", file.path(), "--budget", "1 AGBs"], 3);
    assert!(said.contains("the cheapest is 4 GiB"), "{said}");
    let output = surgetank(&["recommend", file.path(), "--deadline", "1 s", "--json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &document["checkpoint_cache_gib"]), (Some(3), &Value::Null));
}

#[test]
fn prices_are_the_designs_anchors() {
    let found = json(&["price", "--capacity", "500 GiB", "--iops", "30000 IOPS", "--provider", "aws"]);
    let options = found["options"].as_array().unwrap();
    let of = |name: &str| options.iter().find(|option| option["volume_type"] == name).unwrap();
    near(&of("io2")["usd_month"], 2012.50);
    for (name, usd, sustained) in [("gp3", 40.0, true), ("gp2", 50.0, false)] {
        let option = options.iter().find(|option| option["volume_type"] == name && option["volumes"] == 10).unwrap();
        near(&option["usd_month"], usd);
        assert_eq!((&option["sustained"], &option["size_gib"]), (&Value::Bool(sustained), &Value::from(50.0)));
    }
    assert!(of("gp3")["note"].as_str().unwrap().contains("ends the game of 10 × 50 GiB gp2"));
    for field in ["provider", "iops", "throughput_mib_s", "note"] {
        assert!(!options[0][field].is_null(), "{field}");
    }
    let said = refused(&["price", "--capacity", "1 GiB", "--iops", "900000000 IOPS"], 3);
    assert!(said.contains("ask for less IOPS"), "{said}");
    let said = refused(&["price", "--capacity", "1 GiB", "--provider", "awss"], 2);
    assert!(said.contains("did you mean \"aws\"?"), "{said}");
    let cheap = File::new("schema = 1\n[price.\"aws/gp3\"]\ngib_month_usd = 0.01\n");
    let found = json(&["price", "--capacity", "100 GiB", "--provider", "aws", "--catalog", cheap.path()]);
    near(&found["options"][0]["usd_month"], 1.0);
}

#[test]
fn closed_forms_answer() {
    let burst =
        ["model", "burst", "--dataset", "4 GiB", "--backing-bandwidth", "33 MiB/s", "--caching-bandwidth", "128 MiB/s"];
    let found = json(&[&burst[..], &["--cache", "2 GiB", "--cache", "4 GiB", "--backing-size", "50 GiB"]].concat());
    near(&found["points"][0]["absorb_s"], 2048.0 / 33.0);
    near(&found["points"][1]["absorb_s"], 4096.0 / 161.0);
    near(&found["points"][1]["occupied_s"], 4096.0 / 33.0);
    near(&found["points"][1]["cost_agbs"], 1650.0 * 4096.0 / 161.0 + 512.0 * 4096.0 / 33.0);
    near(&found["break_even_dataset_gib"], 12.890_625);
    assert_eq!((&found["worth_it"], &found["best_cache_gib"]), (&Value::Bool(true), &Value::from(4.0)));
    let found = json(&[&burst[..], &["--cache", "4 GiB", "--mode", "writeback"]].concat());
    near(&found["points"][0]["absorb_s"], 32.0);
    let sizing = |cache: &str, high: &str, evicted: &str| {
        json(&["model", "sizing", "--cache", cache, "--high-water", high, "--evicted", evicted])["next_cache_gib"]
            .clone()
    };
    assert_eq!(sizing("10 GiB", "3.2 GiB", "0 GiB"), 4.0);
    assert_eq!(sizing("4 GiB", "4 GiB", "1.5 GiB"), 6.0);
    let found = json(&[
        "model",
        "credits",
        "--type",
        "gp2",
        "--size",
        "100 GiB",
        "--demand",
        "2000 IOPS for 1500 s",
        "--demand",
        "3000 IOPS for 2000 s",
    ]);
    near(&found["segments"][0]["served_iops"], 2000.0);
    near(&found["segments"][0]["credits_end"], 2_850_000.0);
    assert_eq!(found["segments"][0]["exhausted_after_s"], Value::Null);
    near(&found["segments"][1]["exhausted_after_s"], 2_850_000.0 / 2700.0);
    let found = json(&[
        "model",
        "rotation",
        "--type",
        "gp2",
        "--size",
        "10 GiB",
        "--copy-rate",
        "64 MiB/s",
        "--copy-io-size",
        "256 KiB",
        "--demand",
        "2500 IOPS",
        "--write-share",
        "0.5",
    ]);
    near(&found["copy_s"], 160.0);
    near(&found["start_at_credits"], 160.0 * 2656.0);
    assert!(found["worth_it"] == false && found["reason"].as_str().unwrap().contains("gp3"));
    let found = json(&["model", "interval", "--checkpoint", "4 GiB", "--throughput", "128 MiB/s", "--mtbf", "24 h"]);
    near(&found["interval_s"], (2.0f64 * 32.0 * 86_400.0).sqrt());
}

#[test]
fn mistakes_are_one_sentence_with_their_place() {
    for (from, to, expected) in [
        ("\"33 MiB/s\"", "33", ":9:13: 33 has no unit"),
        ("\"1100 s\"", "\"-1 s\"", ":3:11: \"-1 s\" is negative"),
        ("\"6 GiB\"", "\"60 GiB\"", ":12:20: checkpoint_cache is 60 GiB, larger than the backing volume"),
        ("compute", "compte", "did you mean \"compute\"?"),
    ] {
        let file = File::new(&CM1.replacen(from, to, 1));
        for command in ["predict", "recommend"] {
            let said = refused(&[command, file.path()], 2);
            assert!(said.contains(expected), "{said}");
        }
    }
    let file = File::new(&CM1.replace("checkpoint_cache = \"6 GiB\"\n", ""));
    assert!(refused(&["predict", file.path()], 2).contains("\"checkpoint_cache\" is missing"));
    assert!(refused(&["predict", "/nonexistent.toml"], 2).contains("cannot be read"));
    for arguments in [
        &["price", "--capacity", "500"][..],
        &["price", "--capacity", "-5 GiB"],
        &["model", "burst", "--dataset", "nan GiB"],
        &["recommend", file.path(), "--deadline", "5"],
        &["model", "credits", "--type", "gp2", "--size", "1 GiB", "--demand", "5 IOPS"],
    ] {
        assert_eq!(surgetank(arguments).status.code(), Some(2), "{arguments:?}");
    }
    let said = refused(&["model", "credits", "--type", "gp22", "--size", "1 GiB", "--demand", "5 IOPS for 1 s"], 2);
    assert!(said.contains("did you mean \"gp2\"?"), "{said}");
}

/// A configuration with small, slow volumes below a directory.
fn served(directory: &Path) -> PathBuf {
    let backing = directory.join("backing.img");
    std::fs::File::create(&backing).unwrap().set_len(64 << 20).unwrap();
    let config = directory.join("surgetank.toml");
    let place = directory.display();
    let written = format!(
        "state_directory = \"{place}/state\"\nrun_directory = \"{place}/run\"\n[provider.local]\ndirectory = \"{place}/volumes\"\n\
         [device.d]\nbacking = \"{place}/backing.img\"\nexport = \"nbd\"\nthrottle = true\n\
         backing_limits = {{ bandwidth = \"16 MiB/s\" }}\n[device.d.caching]\nbandwidth = \"48 MiB/s\"\n\
         initial_size = \"16 MiB\"\nmin_size = \"4 MiB\"\nmax_size = \"32 MiB\"\n[device.d.policy]\nname = \"adaptive\"\n\
         sampling = \"50 ms\"\ninactivity_delay = \"200 ms\"\nsize_grain = \"4 MiB\"\n"
    );
    std::fs::write(&config, written).unwrap();
    config
}

/// The caching volumes that are still at the provider.
fn volumes_left(directory: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(directory.join("volumes/volumes")) else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| name.ends_with(".img")).collect()
}

#[test]
fn calibrate_measures_and_predict_reads() {
    let directory = tempfile::tempdir().unwrap();
    let (config, out) = (served(directory.path()), directory.path().join("points.toml"));
    let (config, out) = (config.to_str().unwrap(), out.to_str().unwrap());
    let measure =
        ["calibrate", "--config", config, "--out", out, "--dataset", "16 MiB", "--cache", "8 MiB", "--cache", "16 MiB"];
    let found = json(&[&measure[..], &["--repeats", "1"]].concat());
    assert_eq!((&found["measured"], found["points"].as_array().unwrap().len()), (&Value::from(2), 2));
    for point in found["points"].as_array().unwrap() {
        let throughput = point["throughput_mib_s"].as_f64().unwrap();
        assert!(throughput > 1.0 && throughput < 80.0 && point["attached_s"].as_f64().unwrap() > 0.1, "{point}");
    }
    assert_eq!(volumes_left(directory.path()), Vec::<String>::new());
    // What is measured is not measured again.
    let again = json(&[&measure[..], &["--repeats", "2"]].concat());
    assert_eq!((&again["measured"], again["points"].as_array().unwrap().len()), (&Value::from(2), 4));
    let scenario = File::new(
        "[app]\nvms = 1\ncompute = \"10 s\"\ncheckpoints = 2\ncheckpoint_size = \"16 MiB\"\n\
         [backing]\nsize = \"64 MiB\"\nbandwidth = \"16 MiB/s\"\n[caching]\nbandwidth = \"48 MiB/s\"\ncheckpoint_cache = \"12 MiB\"\n",
    );
    let predicted = json(&["predict", scenario.path(), "--calibration", out]);
    assert_eq!(predicted["model"], "calibrated");
    assert!(predicted["elastic"]["completion_low_s"].as_f64() <= predicted["elastic"]["completion_s"].as_f64());
    let other = File::new(&std::fs::read_to_string(scenario.path()).unwrap().replace("48 MiB/s", "50 MiB/s"));
    assert!(refused(&["predict", other.path(), "--calibration", out], 2).contains("was measured on volumes of"));
}

#[test]
fn calibrate_writes_over_nobodys_data() {
    let directory = tempfile::tempdir().unwrap();
    let (config, out) = (served(directory.path()), directory.path().join("points.toml"));
    let backing = std::fs::File::options().write(true).open(directory.path().join("backing.img")).unwrap();
    backing.write_all_at(&[7; 4096], 8192).unwrap();
    let arguments =
        ["calibrate", "--config", config.to_str().unwrap(), "--out", out.to_str().unwrap(), "--dataset", "1 MiB"];
    let said = refused(&arguments, 2);
    assert!(said.contains("has data on it") && said.contains("--overwrite"), "{said}");
    assert!(!out.exists());
    let bad = [&arguments[..5], &["--dataset", "999 GiB"]].concat();
    assert!(refused(&bad, 2).contains("a dataset of 999 GiB cannot be written"));
}

/// Starts a calibration that would take a minute, and waits until it has rented a volume.
fn started(directory: &Path) -> std::process::Child {
    let config = served(directory);
    let mut child = Command::new(env!("CARGO_BIN_EXE_surgetank"))
        .args(["calibrate", "--dataset", "48 MiB", "--cache", "16 MiB", "--repeats", "20", "--config"])
        .arg(config)
        .arg("--out")
        .arg(directory.join("points.toml"))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while volumes_left(directory).is_empty() {
        assert!(child.try_wait().unwrap().is_none(), "it ended early");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child
}

/// The processes that this one has started.
fn children(pid: u32) -> Vec<i32> {
    let listed = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    listed.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn signal(pid: i32, signal: i32) {
    // SAFETY: a system call without memory; the process is one that this test has started.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

#[test]
fn a_calibration_that_is_interrupted_or_killed_leaves_no_volume() {
    for (victim, sent, status) in
        [("itself", libc::SIGINT, Some(130)), ("its worker", libc::SIGKILL, Some(1)), ("itself", libc::SIGKILL, None)]
    {
        let directory = tempfile::tempdir().unwrap();
        let mut child = started(directory.path());
        let workers = children(child.id());
        assert_eq!(workers.len(), 1, "one process measures");
        signal(if victim == "itself" { child.id() as i32 } else { workers[0] }, sent);
        assert_eq!(child.wait().unwrap().code(), status, "{victim} got {sent}");
        // A worker whose parent was killed deletes before it ends.
        while Path::new(&format!("/proc/{}/fd", workers[0])).exists() && !children_gone(workers[0]) {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        assert_eq!(volumes_left(directory.path()), Vec::<String>::new(), "{victim} got {sent}");
    }
}

/// Whether a process has ended, reaped or not.
fn children_gone(pid: i32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

/// Three bursts of 2 GiB in 16 MiB requests, two minutes apart, with hardly anything between.
fn trace(directory: &Path) -> PathBuf {
    let mut lines = "time_s,op,offset_bytes,length_bytes\n".to_owned();
    for burst in 0..3u64 {
        for request in 0..128u64 {
            let time = 60.0 + burst as f64 * 120.0 + request as f64 * 0.08;
            lines += &format!("{time:.3},W,{},{}\n", (burst * 128 + request) << 24, 1 << 24);
        }
    }
    lines += "400.0,R,0,4096\n";
    let path = directory.join("load.csv");
    std::fs::write(&path, lines).unwrap();
    path
}

#[test]
fn recommend_compares_the_options_for_a_trace() {
    let directory = tempfile::tempdir().unwrap();
    let trace = trace(directory.path());
    let page = directory.path().join("page");
    let (trace, out) = (trace.to_str().unwrap(), page.to_str().unwrap());
    let found = json(&["recommend", "--trace", trace, "--provider", "gcp", "--out", out]);
    assert_eq!((&found["application"]["bursts"], found["bursts"].as_array().unwrap().len()), (&Value::from(3), 3));
    near(&found["application"]["burst_gib"], 2.0);
    assert!(found["choice"]["cost_usd"].as_f64().unwrap() > 0.0);
    let considered = found["considered"].as_array().unwrap();
    assert!(considered.iter().any(|choice| choice["kind"] == "elastic"));
    assert!(found["pareto"].as_array().unwrap().iter().all(|choice| choice["pareto"] == true));
    let html = std::fs::read_to_string(page.join("recommend.html")).unwrap();
    for outside in ["src=", "href=", "url(", "@import", "<script"] {
        assert!(!html.contains(outside), "{outside}");
    }
    assert_eq!(html.matches("<svg").count(), 2);
    let said = refused(&["recommend", "--trace", trace, "--deadline", "1 s"], 3);
    assert!(said.contains("the fastest is"), "{said}");
    assert!(refused(&["recommend", "--trace", trace, "--budget", "5 AGBs"], 2).contains("in USD"));
    let none = directory.path().join("none");
    let empty = File::new("");
    let arguments = ["recommend", "--trace", empty.path(), "--out", none.to_str().unwrap()];
    assert!(refused(&arguments, 2).contains("is empty"));
    assert!(!none.exists());
    assert_eq!(empty.directory().read_dir().unwrap().count(), 1);
    let said = refused(&["recommend"], 2);
    assert!(said.contains("recommend --trace load.csv"), "{said}");
    assert!(refused(&["recommend", File::new(CM1).path(), "--strict"], 2).contains("--strict is about a trace"));
}

#[test]
fn the_capacity_of_a_trace_is_the_sum_over_its_disks() {
    let directory = tempfile::tempdir().unwrap();
    let trace = directory.path().join("three.csv");
    let lines =
        "time_s,op,offset_bytes,length_bytes,disk\n0,W,0,3221225472,a\n1,W,0,3221225472,b\n2,W,0,3221225472,c\nx\n";
    std::fs::write(&trace, format!("{lines}60,W,0,1048576000,c\n100,W,0,4096,c\n")).unwrap();
    let output = surgetank(&["recommend", "--trace", trace.to_str().unwrap(), "--json"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    near(&found["application"]["capacity_gib"], 9.0);
    let said = text(&output.stderr);
    assert!(said.contains("three.csv:5: ") && said.contains("(1 of 7)"), "{said}");
    assert_eq!(found["broken"], 1);
    assert!(found["warnings"][0].as_str().unwrap().contains("three.csv:5:"), "{found}");
    let small = json(&["recommend", "--trace", trace.to_str().unwrap(), "--capacity", "8 GiB"]);
    assert!(
        small["warnings"][1].as_str().unwrap().contains("it touches 9 GiB, and the volume is to hold 8 GiB"),
        "{small}"
    );
    let file = ["recommend", "--trace", trace.to_str().unwrap(), "--out", trace.to_str().unwrap()];
    assert!(refused(&file, 2).contains("three.csv is no directory: name one"));
    // Reports of rates say nothing of addresses.
    let report = "Linux 6.1 (h)\n\n10:00:00\nDevice r/s rkB/s w/s wkB/s\nsda 1 1 1 1\n\n10:00:10\nsda 0 0 90 90000\n\n10:10:10\nsda 0 0 0 0\n";
    let io = directory.path().join("io.txt");
    std::fs::write(&io, report).unwrap();
    let arguments = ["recommend", "--trace", io.to_str().unwrap()];
    assert!(refused(&arguments, 2).contains("--capacity \"500 GiB\""));
    let found = json(&[&arguments[..], &["--capacity", "100 GiB"]].concat());
    near(&found["application"]["recorded_s"], 610.0);
    near(&found["application"]["largest_burst_gib"], 900_000.0 / 1_048_576.0);
}

#[test]
fn what_can_hardly_be_meant_is_told() {
    let slow = File::new(&CM1.split("[[calibration]]").next().unwrap().replace("128 MiB/s", "16 MiB/s"));
    let output = surgetank(&["predict", slow.path()]);
    let said = text(&output.stderr);
    assert!(output.status.success() && said.contains("slower than the backing volume"), "{said}");
    let sizing = ["model", "sizing", "--cache", "4 GiB", "--high-water", "5 GiB", "--evicted", "0 GiB"];
    assert!(refused(&sizing, 2).contains("--high-water is 5 GiB, above the cache of 4 GiB"));
    let interval = ["model", "interval", "--checkpoint", "4 GiB", "--throughput", "32 MiB/s", "--mtbf"];
    assert!(refused(&[&interval[..], &["100 s"]].concat(), 3).contains("a checkpoint takes 128.0 s"));
    let output = surgetank(&[&interval[..], &["150 s"]].concat());
    assert!(
        output.status.success() && text(&output.stderr).contains("longer than the MTBF"),
        "{}",
        text(&output.stderr)
    );
    let burst =
        ["model", "burst", "--dataset", "4 GiB", "--backing-bandwidth", "33 MiB/s", "--caching-bandwidth", "128 MiB/s"];
    let found = json(&[&burst[..], &["--cache", "50 GiB"]].concat());
    assert_eq!((&found["worth_it"], &found["any_worth_it"]), (&Value::Bool(false), &Value::Bool(true)));
    let people = text(&surgetank(&[&burst[..], &["--cache", "50 GiB"]].concat()).stdout);
    assert!(people.contains("the cheapest of the caches that were given, 50 GiB, does not pay"), "{people}");
}

#[test]
fn files_that_are_no_text_and_very_long_values_get_one_short_sentence() {
    let binary = File::new("");
    std::fs::write(&binary.1, [b'a', b'\n', 0xff, 0xfe, 0]).unwrap();
    assert!(refused(&["predict", binary.path()], 2).contains("s.toml:2:1: it is no text in UTF-8"));
    let long = File::new(&CM1.replace("1100 s", &"A".repeat(2 << 20)));
    let said = refused(&["predict", long.path()], 2);
    assert!(said.len() < 2000 && said.contains("s.toml:3:11: "), "{} bytes", said.len());
    let twice = File::new(&CM1.replace("vms = 32", "vms = 32\nvms = 31"));
    assert!(
        refused(&["predict", twice.path()], 2).contains("s.toml:3:1: the setting \"vms\" stands here a second time")
    );
    let flag = format!("--capacity={}", "9".repeat(1 << 16));
    assert!(refused(&["price", &flag], 2).len() < 2000);
}
