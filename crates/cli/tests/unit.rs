//! The systemd unit: how little it leaves the service, and that every export works with that.

#![allow(clippy::print_stderr, reason = "tests say what they skip")]

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use lab::service::Provisioning;
use lab::{Disk, Interrupt, Lab, Plan, Unavailable};
use surgetank_model::{Bandwidth, Bytes};

/// What `systemd-analyze security` may say at most, in tenths.
const EXPOSURE_MAX: &str = "26";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn unit() -> PathBuf {
    root().join("packaging/systemd/surgetank.service")
}

#[test]
fn the_unit_leaves_the_service_little() {
    leaves_little(&unit(), EXPOSURE_MAX);
}

#[test]
fn the_units_of_a_pool_leave_its_parts_little_and_give_their_commands_what_they_take() {
    let parts = [
        ("manager", "27", &["$STORE", "$METRICS"][..]),
        ("benefactor", "25", &["$SSD", "$SCRUB", "$LEAVING", "$METRICS"]),
    ];
    for (part, exposure_max, takes) in parts {
        let unit = root().join(format!("packaging/systemd/surgetank-pool-{part}.service"));
        leaves_little(&unit, exposure_max);
        let text = std::fs::read_to_string(&unit).unwrap().replace("\\\n", " ");
        let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/surgetank ")).unwrap();
        assert!(takes.iter().all(|name| line.split_whitespace().any(|word| word == *name)), "{line}");
        let set = [
            ("${MEMORY}", "16_GiB"),
            ("${MANAGERS}", "127.0.0.1:1"),
            ("${DOMAIN}", "rack1"),
            // One on which it cannot listen: the flags are read before.
            ("${LISTEN}", "nowhere"),
        ];
        let all = [
            ("$SSD", "--ssd 200GiB --ssd-directory /nvme/pool"),
            ("$SCRUB", "--scrub 12h --scrub-rate 20MiB/s"),
            ("$LEAVING", "--leaving"),
            ("$STORE", "--store etcd://127.0.0.1:1/scratch"),
            ("$METRICS", "--metrics 127.0.0.1:0"),
        ];
        for optional in [all, all.map(|(name, _)| (name, ""))] {
            let variables = set.iter().chain(&optional);
            let arguments = variables.fold(line.to_owned(), |line, (name, value)| line.replace(name, value));
            assert!(!arguments.contains('$'), "{arguments}");
            let arguments = arguments.split_whitespace().map(|word| word.replace('_', " "));
            let output = Command::new(env!("CARGO_BIN_EXE_surgetank")).args(arguments).output().unwrap();
            let told = String::from_utf8(output.stderr).unwrap();
            assert!(told.contains("`nowhere` is no address"), "{told}");
        }
    }
}

fn leaves_little(unit: &Path, exposure_max: &str) {
    let mut analyze = Command::new("systemd-analyze");
    analyze.args(["security", "--no-pager", "--offline=true", "--threshold", exposure_max]).arg(unit);
    let answer = match analyze.output() {
        Ok(answer) => answer,
        Err(error) => return eprintln!("skipped: systemd-analyze cannot be run here: {error}"),
    };
    let (table, complaint) = (String::from_utf8_lossy(&answer.stdout), String::from_utf8_lossy(&answer.stderr));
    if complaint.contains("unrecognized option") {
        return eprintln!("skipped: this systemd-analyze is older than systemd 250");
    }
    let exposed: Vec<&str> = table.lines().filter(|line| line.starts_with('✗') || line.starts_with('→')).collect();
    assert!(answer.status.success(), "{}\n{complaint}", exposed.join("\n"));
}

#[test]
fn every_export_works_under_the_unit() {
    let lab = match Lab::that_boots() {
        Ok(lab) => lab,
        Err(Unavailable(reason)) => return eprintln!("skipped: no guest can be booted here: {reason}"),
    };
    for program in ["/lib/systemd/systemd", "/usr/bin/qemu-io", "/usr/sbin/mkfs.ext4"] {
        if !Path::new(program).exists() {
            return eprintln!("skipped: {program} is not installed");
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let (results, qmp) = (directory.path().join("results"), directory.path().join("qmp"));
    std::fs::create_dir(&results).unwrap();
    let fast = Bandwidth::from_mib_s(128);
    let service = Provisioning::start(&qmp, &directory.path().join("volumes"), &results.join("token"), fast).unwrap();
    let scripts = root().join("crates/cli/tests/unit");
    let script = format!(
        "export LAB_SERVICE={}; exec sh {}/guest.sh {} {} {1}",
        service.url,
        scripts.display(),
        env!("CARGO_BIN_EXE_surgetank"),
        unit().display()
    );
    let mut plan = Plan {
        ports: 8,
        results: Some(results),
        qmp: Some(qmp),
        timeout: Duration::from_secs(600),
        ..Plan::new("unit", script)
    };
    for export in ["ublk", "fuse", "nbd"] {
        plan = plan.disk(Disk::new(export, Bytes::from_mib(64)));
    }
    let mut guest = plan.boot(&lab, &Interrupt::default()).unwrap();
    let outcome = guest.wait(&Interrupt::default()).unwrap();
    let systemd = std::fs::read_to_string(guest.results().join("systemd")).unwrap_or_default();
    let inside = std::fs::read_to_string(guest.results().join("inside")).unwrap_or_default();
    assert!(outcome.passed(), "{}\n{}\n{systemd}\n{inside}", outcome.describe(), guest.stderr());
}
