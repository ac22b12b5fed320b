//! What `pool calibrate` measures, and pools that `provision` has planned.

use std::fs;
use std::process::Stdio;

use serde_json::Value;

use crate::place::{Place, Started, binary, done, refused, run, signal, until};

/// In one directory, by its name alone, and in that for temporary files, both of them empty.
fn calibrate(place: &Place, more: &[&str]) -> std::process::Command {
    fs::create_dir(place.at("tmp")).unwrap();
    let mut command = binary();
    command.args(["pool", "calibrate", "--target", "target", "--ssd-directory", "target"]).args(more);
    command.current_dir(place.at("target").parent().unwrap()).env("TMPDIR", place.at("tmp"));
    command
}

fn is_empty(place: &Place) -> bool {
    ["target", "tmp"].iter().all(|name| fs::read_dir(place.at(name)).unwrap().next().is_none())
}

const PRICES: &str = "[[candidate]]\nmemory = \"128 MiB\"\nssd = \"256 MiB\"\n\
                      [price]\nmemory_gib_usd = 5\nssd_gib_usd = 1\n";

#[test]
fn what_is_measured_plans_a_pool_that_comes_up() {
    let place = Place::new();
    let flags = ["--benefactors", "2", "--memory", "64 MiB", "--mode", "centre-wide", "--json"];
    let output = calibrate(&place, &flags).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    for rate in ["ingest_mib_s", "ssd_write_mib_s", "drain_mib_s"] {
        assert!(answer[rate].as_f64().unwrap() > 0.1, "{answer}");
    }
    let benefactors: Vec<u64> =
        answer["runs"].as_array().unwrap().iter().map(|run| run["benefactors"].as_u64().unwrap()).collect();
    assert_eq!((benefactors, &answer["mode"]), (vec![1, 2], &"centre-wide".into()));
    assert!(is_empty(&place), "nothing is left");
    // Less than two nodes take in, whatever this machine does; what their links cost here is another matter.
    let sections = answer["sections"].as_str().unwrap();
    let sections: String =
        sections.lines().filter(|line| !line.starts_with("link_divisor")).map(|line| format!("{line}\n")).collect();
    let target = "[target]\nthroughput = \"1 KiB/s\"\ndataset = \"1 GiB\"\ncopies = 2";
    fs::write(place.at("pool.toml"), format!("{}\n{PRICES}", sections.replace("[target]", target))).unwrap();
    fs::write(place.at("plan.json"), done(&["provision", &place.text("pool.toml"), "--json"])).unwrap();
    let (plan, directory) = (place.text("plan.json"), place.text("pool"));
    let (pool, line) =
        Started::new(&["pool", "up", "--plan", &plan, "--listen", "127.0.0.1:0", "--directory", &directory]);
    assert!(line.contains("2 benefactors lend 128 MiB and 256 MiB of SSD each"), "{line}");
    let (address, key) = (line.split_once(": ").unwrap().0, place.text("pool/key"));
    let status =
        || -> Value { serde_json::from_str(&done(&["pool", "status", address, "--token", &key, "--json"])).unwrap() };
    until("both lend", || status()["benefactors"].as_array().unwrap().len() == 2);
    let status = status();
    // Memory is three equal buffers.
    let lends = &status["benefactors"][1];
    assert!((lends["memory_gib"].as_f64().unwrap() - 0.125).abs() < 1e-6 && lends["class"] == "ms", "{lends}");
    // A node of the plan, in a process of its own.
    let managers = address.strip_prefix("pool://").unwrap();
    let ssd = place.text("ssd");
    let benefactor =
        ["pool", "benefactor", "--managers", managers, "--listen", "127.0.0.1:0", "--domain", "9", "--key", &key];
    let (_one, line) = Started::new(&[&benefactor[..], &["--plan", &plan, "--ssd-directory", &ssd]].concat());
    assert!(line.contains("lends 128 MiB and 256 MiB of SSD"), "{line}");
    let (code, told) = refused(&[&benefactor[..], &["--plan", &plan]].concat());
    assert!(code == 2 && told.contains("its nodes lend SSD, and nothing says where: add --ssd-directory"), "{told}");
    drop(pool);
}

#[test]
fn runs_of_real_nodes_say_what_links_cost() {
    let place = Place::new();
    // 1.1 GiB/s a node, less 0.02 GiB/s for each other one.
    let runs = ["--run", "1=1.1 GiB/s", "--run", "4 = 4.16 GiB/s", "--run", "16=12.8 GiB/s"];
    let flags = ["pool", "calibrate", "--target", &place.text("target"), "--benefactors", "1", "--memory", "32 MiB"];
    let told = done(&[&flags[..], &runs[..]].concat());
    for part in ["# 16 nodes: 13107.2 MiB/s\n", "link_divisor = 50\n", "ingest = \"1126.4 MiB/s\"\n", "drain = \""] {
        assert!(told.contains(part), "{part}\n{told}");
    }
    assert!(!told.contains("ssd_write"), "{told}");
    for run in ["4", "0=1 GiB/s", "x=1 GiB/s", "4=7", "4=0 GiB/s"] {
        let (code, told) = refused(&[&flags[..], &["--run", run]].concat());
        assert!(code == 2 && told.contains("--run"), "{told}");
    }
}

#[test]
fn a_measurement_that_is_interrupted_leaves_nothing() {
    let place = Place::new();
    let mut command = calibrate(&place, &["--benefactors", "64", "--memory", "32 MiB"]);
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    until("it writes", || {
        let own = fs::read_dir(place.at("target")).unwrap().flatten();
        own.flat_map(|own| fs::read_dir(own.path()).into_iter().flatten()).next().is_some()
    });
    signal(&child, rustix::process::Signal::INT);
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && told.contains("interrupted: what was written is removed"), "{told}");
    assert!(is_empty(&place), "nothing is left");
}

#[test]
fn plans_and_measurements_that_cannot_be_are_refused_in_one_sentence() {
    let place = Place::new();
    let (plan, directory) = (place.text("plan.json"), place.text("pool"));
    let up = |document: &str| {
        fs::write(&plan, document).unwrap();
        refused(&["pool", "up", "--plan", &plan, "--listen", "127.0.0.1:0", "--directory", &directory])
    };
    for (document, said) in [
        ("{", "is no plan: EOF while parsing"),
        ("{\"best\": null}", "is no plan: it has no best nodes, since its target is infeasible"),
        ("{\"best\": {\"nodes\": 0, \"memory_gib\": 1, \"ssd_gib\": 0}}", "no pool has 0 nodes"),
        ("{\"best\": {\"nodes\": 2, \"memory_gib\": -1, \"ssd_gib\": 0}}", "no node has -1 GiB"),
        (
            "{\"best\": {\"nodes\": 65, \"memory_gib\": 1, \"ssd_gib\": 0}}",
            "it has 65 nodes, and this command runs at most 64",
        ),
        ("{\"best\": {\"nodes\": 2, \"memory_gib\": 0, \"ssd_gib\": 1}}", "its nodes lend SSD alone"),
        (
            "{\"redundancy\": \"parity 40+1\", \"best\": {\"nodes\": 41, \"memory_gib\": 1, \"ssd_gib\": 0}}",
            "no mount has its parity 40+1: parity is d+p, with 1 to 32 data chunks",
        ),
        (
            "{\"redundancy\": \"9 copies\", \"best\": {\"nodes\": 12, \"memory_gib\": 1, \"ssd_gib\": 0}}",
            "no mount has its 9 copies: a chunk has 1 to 8; plan with fewer, or with parity",
        ),
    ] {
        let (code, told) = up(document);
        assert!(code == 2 && told.contains(said), "{document}: {told}");
    }
    let (code, told) = refused(&["pool", "up", "--plan", &plan, "--memory", "1 GiB"]);
    assert!(code == 2 && told.contains("cannot be used with"), "{told}");
    let target = place.text("target");
    for (flags, said) in [
        (&["--memory", "1 MiB"][..], "--memory 1 MiB is too little to measure with: lend at least 32 MiB"),
        (&["--within", "1 ms"], "--within 1 ms is too short to measure"),
        (&["--ssd-directory", "/nonexistent"], "No such file or directory"),
        (&["--memory", "900 TiB"], "more than this machine has"),
    ] {
        let output = run(&[&["pool", "calibrate", "--target", &target][..], flags].concat());
        let told = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && told.contains(said), "{flags:?}: {told}");
    }
    assert!(fs::read_dir(&target).unwrap().next().is_none(), "nothing is left");
}
