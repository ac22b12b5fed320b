//! `reproduce-sim --pool`: the paper on a staging pool, and job logs of one's own.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

fn lab(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command.args(["reproduce-sim", "--pool", "--out", "out"]).args(arguments).current_dir(directory).output().unwrap()
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn answer(directory: &Path) -> Value {
    serde_json::from_slice(&fs::read(directory.join("out/staging.json")).unwrap()).unwrap()
}

/// Jobs of 16 processors that run for 90 minutes, one an hour.
fn swf(jobs: u32, memory_kb: &str) -> String {
    let line = |job: u32| format!("{job} {} 0 5400 16 -1 {memory_kb} 16 7200 -1 1 -1 -1 -1 -1 -1 -1 -1\n", job * 3600);
    (1..=jobs).map(line).collect()
}

#[test]
fn a_job_log_without_memory_is_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("log.swf"), swf(3, "-1")).unwrap();
    fs::write(directory.path().join("long.swf"), swf(1, "-1").replace(" 5400 ", " 1e15 ")).unwrap();
    let output = lab(directory.path(), &["--log", "log.swf"]);
    assert!(!output.status.success() && !directory.path().join("out").exists());
    let said = said(&output);
    assert!(
        said.contains("log.swf: the log does not say how much memory any of its 3 jobs used: add --memory"),
        "{said}"
    );
    // Nothing but the announcement and the sentence.
    assert_eq!(said.lines().filter(|line| !line.trim().is_empty()).count(), 1, "{said}");
    for (arguments, expected) in [
        (&["--log", "no.swf"][..], "cannot read"),
        (&["--log", "log.swf", "--memory", "2"], "unit"),
        (&["--log", "log.swf", "--memory", "9000000 TiB"], "log.swf: its largest job would write"),
        (&["--log", "long.swf", "--memory", "2 GiB"], "long.swf: the jobs would write more than 100000000 checkpoints"),
        (&["--log", "log.swf", "--memory", "2 GiB", "--node-processors", "0"], "--node-processors"),
        (&["--memory", "2 GiB"], "--log"),
        (&["--data", "nowhere"], "there are no job logs"),
    ] {
        let output = lab(directory.path(), arguments);
        let said = self::said(&output);
        assert!(
            !output.status.success() && said.contains(expected) && !said.contains("panicked"),
            "{arguments:?}: {said}"
        );
    }
}

#[test]
fn a_job_log_of_ones_own_is_simulated() {
    let directory = tempfile::tempdir().unwrap();
    let table = "Job_name Submit Runtime Nodes Comment Perc\n1 0 5400 16 1 90\n2 3600 5400 16 1 90\n";
    fs::write(directory.path().join("table.txt"), table).unwrap();
    fs::write(directory.path().join("log.swf"), swf(2, "2097152")).unwrap();
    let mut answers = Vec::new();
    for arguments in [&["--log", "table.txt", "--memory", "2 GiB"][..], &["--log", "log.swf"]] {
        let output = lab(directory.path(), arguments);
        assert!(output.status.success(), "{}", said(&output));
        let answer = answer(directory.path());
        let pools = answer["pools"].as_array().unwrap();
        assert_eq!(pools.len(), 3, "{answer}");
        // Each job writes after an hour and at its end.
        assert!(pools.iter().all(|pool| pool["checkpoints"] == 4 && pool["in_time"] == 1.0), "{answer}");
        assert_eq!((&answer["logs"][0]["jobs"], &answer["logs"][0]["nodes_most"]), (&Value::from(2), &Value::from(16)));
        answers.push((answer["logs"][0]["dataset_most_tb"].clone(), pools[2]["cost_usd"].clone()));
    }
    assert_eq!(answers[0], answers[1], "the same jobs, however they are written");
    // A log that knows the memory of some: the others are left out, which is said.
    fs::write(directory.path().join("log.swf"), format!("{}{}", swf(2, "2097152"), swf(1, "-1"))).unwrap();
    let output = lab(directory.path(), &["--log", "log.swf"]);
    assert!(output.status.success() && said(&output).contains("1 of 3 jobs have no memory"), "{}", said(&output));
    assert_eq!(answer(directory.path())["logs"][0]["jobs"], 2);
}

#[test]
fn every_figure_has_the_papers_values_beside_ours() {
    let directory = tempfile::tempdir().unwrap();
    let jobs = directory.path().join("data/jobs");
    fs::create_dir_all(&jobs).unwrap();
    let header = "Job_name Submit Runtime Nodes Comment Perc\n";
    let sizes = [64_u32, 64, 512, 512, 512, 1024, 2048, 4096, 8192, 16_384, 32_768];
    let job = |(index, nodes): (usize, &u32)| format!("{index} {} {} {nodes} 1 1\n", 500 * index, 600 + 900 * index);
    let intrepid: String = sizes.iter().enumerate().map(job).collect();
    let alea = "0 100 20 7200 4 1 1024 4 7200 8589934592 1 62 1 1 -1 1 1 1 {7,7,7,7} q_1d 1:ppn=4\n";
    for (name, text) in [
        ("alcf-intrepid-2009-3000.txt.xz", format!("{header}{intrepid}")),
        ("alcf-theta-2018-3000.txt.xz", format!("{header}1 0 4000 128 1 1\n")),
        ("cea-curie-2012-sample.swf.xz", swf(5, "-1")),
        ("wagap-2013.swf.xz", alea.to_owned()),
    ] {
        fs::write(jobs.join(name), text).unwrap();
    }
    let output = lab(directory.path(), &["--data", "data"]);
    // Its status tells that every bar is met, also that no curve of cost against time rises.
    assert!(output.status.success(), "{}", said(&output));
    let answer = answer(directory.path());
    let figures = answer["figures"].as_array().unwrap();
    let numbers: Vec<&str> = figures.iter().map(|figure| figure["number"].as_str().unwrap()).collect();
    assert_eq!(numbers, ["3", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14"]);
    let text = fs::read_to_string(directory.path().join("out/staging.md")).unwrap();
    assert!(numbers.iter().all(|number| text.contains(&format!("## Figure {number}: "))), "{text}");
    let page = fs::read_to_string(directory.path().join("out/staging.html")).unwrap();
    assert_eq!(page.matches("<svg").count(), numbers.len(), "a picture for each figure");
    for log in answer["logs"].as_array().unwrap() {
        let pools: Vec<&Value> =
            answer["pools"].as_array().unwrap().iter().filter(|pool| pool["log"] == log["log"]).collect();
        assert!(pools.len() >= 3, "{log}");
        assert!(pools.iter().all(|pool| pool["checkpoints"] == pools[0]["checkpoints"]), "{pools:?}");
    }
    let crowd = &answer["crowd"];
    assert_eq!((&crowd["benefactors"], &crowd["processes"]), (&Value::from(3000), &Value::from(100_000)));
}
