//! The quick demo of a staging pool on this machine, whole. Needs root, FUSE and loop devices.

#![allow(clippy::print_stdout, reason = "tests say what they skip")]

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;

#[test]
fn a_checkpoint_through_the_pool_loses_nothing_and_leaves_nothing() {
    let devices = ["/dev/fuse", "/dev/loop-control"];
    if !rustix::process::geteuid().is_root() || !devices.iter().all(|device| Path::new(device).exists()) {
        println!("skipped: needs root, /dev/fuse and /dev/loop-control");
        return;
    }
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let (work, out) = (directory.path().join("work"), directory.path().join("out"));
    std::fs::create_dir(&work).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_surgetank"))
        .args(["demo", "--pool", "--quick", "--json", "--seed", "7", "--out"])
        .arg(&out)
        .env("TMPDIR", &work)
        .env_remove("SURGETANK_LOG")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&found["verified"], &found["lost_bytes"]), (&true.into(), &0.into()));
    assert_eq!(found["killed"], 1, "the benefactor was killed while the writers wrote");
    for field in ["checkpoint_s", "mib_s"] {
        assert!(found["modes"]["direct"][field].as_f64().unwrap() > 0.0);
        assert!(found["modes"]["pool"][field].as_f64().unwrap() > 0.0);
    }
    assert!(found["modes"]["pool"]["drain_s"].as_f64().unwrap() > 0.0);
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("every byte was read back and matched"));
    assert_eq!(std::fs::read_dir(&work).unwrap().count(), 0);
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(work.to_str().unwrap()), "{mounts}");
}
