//! The quick demo on this machine, whole. Needs root, FUSE and loop devices, and takes about a minute.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Why the demo cannot run here with a file system.
fn obstacle() -> Option<&'static str> {
    let opens = |path: &str| std::fs::File::options().read(true).write(true).open(path).is_ok();
    if !rustix::process::geteuid().is_root() {
        Some("not root")
    } else if !opens("/dev/fuse") {
        Some("no /dev/fuse")
    } else if !opens("/dev/loop-control") {
        Some("no loop devices")
    } else {
        None
    }
}

#[test]
fn the_quick_demo_verifies_every_byte_and_leaves_nothing() {
    if let Some(why) = obstacle() {
        let _ = writeln!(std::io::stdout(), "the demo is not tested here: {why}");
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (out, work) = (directory.path().join("out"), directory.path().join("work"));
    std::fs::create_dir(&work).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_surgetank"))
        .args(["demo", "--quick", "--json", "--out"])
        .arg(&out)
        .env("TMPDIR", &work)
        .env_remove("SURGETANK_LOG")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["verified"], true);
    for mode in ["static_slow", "static_fast", "elastic"] {
        assert!(found["modes"][mode]["completion_s"].as_f64().unwrap() > 0.0, "{mode}");
    }
    assert!(!found["modes"]["elastic"]["boosts"].as_array().unwrap().is_empty());
    assert!(std::fs::read_to_string(out.join("report.html")).unwrap().contains("<svg"));
    assert_eq!(std::fs::read_dir(&work).unwrap().count(), 0, "{said}");
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(work.to_str().unwrap()), "{mounts}");
}

#[test]
fn a_demo_that_cannot_run_leaves_no_directory() {
    let directory = tempfile::tempdir().unwrap();
    let (out, work) = (directory.path().join("out"), directory.path().join("file"));
    std::fs::write(&work, "").unwrap();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_surgetank"));
    let output = demo.args(["demo", "--quick", "--out"]).arg(&out).env("TMPDIR", &work).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!out.exists());
    // What was there stays.
    std::fs::create_dir(&out).unwrap();
    let mut demo = Command::new(env!("CARGO_BIN_EXE_surgetank"));
    demo.args(["demo", "--quick", "--out"]).arg(&out).env("TMPDIR", &work).output().unwrap();
    assert!(out.is_dir());
}
