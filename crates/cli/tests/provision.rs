//! `surgetank provision` as scripts and people meet it.

mod files;

use std::fs;
use std::path::Path;

use serde_json::Value;

use files::{Place, number};

/// The contract's file, with a second candidate.
const FILE: &str = r#"[target]
throughput = "15 GiB/s"
mode = "in-job"
link_divisor = 100
[[candidate]]
memory = "2 GiB"
ssd = "4 GiB"
throughput = "0.8 GiB/s"
[[candidate]]
memory = "8 GiB"
throughput = "1 GiB/s"
[price]
memory_gib_usd = 5.0
ssd_gib_usd = 1.0
"#;

/// Everything that a file can have.
const MODELLED: &str = r#"[target]
dataset = "450 GB"
time = "15 s"
mode = "centre-wide"
link_divisor = 20000.5
copies = 2
nodes_max = 1000
[node]
ingest = "172.7 MB/s"
ssd_write = "175 MB/s"
drain = "92 MB/s"
[[candidate]]
memory = "1 GiB"
ssd = "1 GiB"
[grid]
memory = ["0 B", "512 MiB", "4 GiB"]
ssd = ["0 B", "2 GiB"]
[price]
memory_gib_usd = 20
ssd_gib_usd = 12
node_usd = 0.5
"#;

/// What is in a place.
fn names(place: &Place) -> Vec<String> {
    let names = fs::read_dir(place.path()).unwrap();
    let mut names: Vec<String> = names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn the_answer_has_the_contracts_names() {
    let answer = Place::new("provision", FILE).json(&[]);
    let best = &answer["best"];
    // 29 × (0.8 − 0.28) = 15.08 GiB/s for 29 × (2 × 5 + 4 × 1) USD.
    assert_eq!((&best["nodes"], &best["memory_gib"], &best["ssd_gib"]), (&29.into(), &2.0.into(), &4.0.into()));
    assert!((number(&best["throughput_gib_s"]) - 15.08).abs() < 1e-6, "{best}");
    assert!((number(&best["cost_usd"]) - 406.0).abs() < 1e-9, "{best}");
    assert_eq!((number(&best["memory_total_gib"]), number(&best["ssd_total_gib"])), (58.0, 116.0));
    // ((1.01) − √(1.01² − 0.6)) ÷ 0.02 = 18.09.
    let other = &answer["considered"][1];
    assert_eq!((&other["nodes"], &other["feasible"], &other["verdict"]), (&19.into(), &true.into(), &"dearer".into()));
    assert!((number(&other["cost_usd"]) - 760.0).abs() < 1e-9 && (number(&other["more_usd"]) - 354.0).abs() < 1e-9);
    assert_eq!((&answer["considered"][0]["verdict"], &answer["infeasible"]), (&"best".into(), &Value::Null));
    assert_eq!((&answer["mode"], number(&answer["target_gib_s"])), (&"in-job".into(), 15.0));
    assert_eq!(answer["considered"].as_array().unwrap().len(), 2);
}

#[test]
fn people_see_the_nodes_the_candidates_and_what_longer_checkpoints_cost() {
    let place = Place::new("provision", FILE);
    let text = String::from_utf8(place.run(&[]).stdout).unwrap();
    for part in [
        "29 nodes with 2 GiB of memory and 4 GiB of SSD each take in 15.080 GiB/s for $406.00.",
        "costs $354.00 more",
        "the best",
        "+100 %",
        "add copies = 2 to [target]",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    place.write("a.toml", MODELLED);
    let text = String::from_utf8(place.run(&[]).stdout).unwrap();
    assert!(text.contains("30.0 s") && !text.contains("copies = 2") && !text.contains("NaN"), "{text}");
}

#[test]
fn the_curve_of_cost_against_time_never_rises() {
    for file in [FILE, MODELLED] {
        let answer = Place::new("provision", file).json(&[]);
        let curve = answer["trade_off"].as_array().unwrap();
        let costs: Vec<f64> = curve.iter().map(|point| number(&point["cost_usd"])).collect();
        assert!(costs.is_sorted_by(|shorter, longer| longer <= shorter) && costs[14] < costs[0] / 1.5, "{costs:?}");
        assert_eq!(
            (&curve[0]["nodes"], &curve[0]["cost_usd"]),
            (&answer["best"]["nodes"], &answer["best"]["cost_usd"])
        );
        assert!((number(&curve[14]["saved"]) - (1.0 - costs[14] / costs[0])).abs() < 1e-12);
        if file == MODELLED {
            assert!((number(&curve[5]["time_s"]) - 16.5).abs() < 1e-6, "{}", curve[5]);
        }
    }
}

#[test]
fn what_is_infeasible_names_the_nearest_target_that_is_not() {
    let place = Place::new("provision", &FILE.replace("15 GiB/s", "100 GiB/s"));
    let said = place.refused(&[], 3);
    // (1 + 0.01)² ÷ 0.04 is 25.5025; 50 nodes and 51 take in 50 × (1 − 0.49).
    assert!(
        said.contains("a.toml: no number of nodes takes in 100.000 GiB/s") && said.contains("\"25.5 GiB/s\""),
        "{said}"
    );
    let output = place.run(&["--json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &answer["best"]), (Some(3), &Value::Null));
    assert_eq!(number(&answer["infeasible"]["throughput_gib_s"]), 25.5);
    assert_eq!(
        (&answer["considered"][0]["verdict"], &answer["considered"][0]["nodes"]),
        (&"too-slow".into(), &Value::Null)
    );
    place.write("a.toml", FILE.replace("15 GiB/s", "25.5 GiB/s"));
    assert_eq!(place.json(&[])["best"]["nodes"], 50);
    // Fewer nodes than the copies need are none.
    place.write("a.toml", FILE.replace("link_divisor = 100", "nodes_max = 2\ncopies = 3"));
    assert!(
        place.refused(&[], 3).contains("no number of nodes up to nodes_max, 2, takes in anything: allow more nodes")
    );
}

#[test]
fn a_page_draws_cost_against_time() {
    let place = Place::new("provision", MODELLED);
    let output = place.run(&["--page", "cost.html"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let page = fs::read_to_string(place.path().join("cost.html")).unwrap();
    for part in ["Cost against time", "Candidates", "candidates suffice", "20000.5", "2 copies"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("NaN") && page.matches("<svg").count() == 2);
    // What is infeasible has a page as well, which says so.
    place.write("a.toml", MODELLED.replace("15 s", "1 ms"));
    place.refused(&["--page", "cost.html"], 3);
    assert!(fs::read_to_string(place.path().join("cost.html")).unwrap().contains("No nodes suffice"));
    assert!(place.refused(&["--page", "cost.png"], 2).contains("let its name end in .html"));
    assert!(place.refused(&["--page", "./a.html"], 3).contains("no number of nodes"));
    fs::rename(place.path().join("a.toml"), place.path().join("b.html")).unwrap();
    fs::hard_link(place.path().join("b.html"), place.path().join("a.toml")).unwrap();
    std::os::unix::fs::symlink("a.toml", place.path().join("c.html")).unwrap();
    assert!(place.refused(&["--page", "c.html"], 2).contains("is read, and would be written over: name another"));
    assert_eq!(names(&place), ["a.html", "a.toml", "b.html", "c.html", "cost.html"], "nothing partial is left");
}

#[test]
fn every_mistake_is_one_sentence_with_its_place() {
    let place = Place::new("provision", FILE);
    let long = format!("memory = [{}]", "\"1 GiB\",".repeat(2100));
    let many = format!("ssd = [{}]", "\"1 GiB\",".repeat(2100));
    let mistakes: [(&str, &str, &str, &str); 36] = [
        (
            FILE,
            "memory_gib_usd = 5.0\n",
            "",
            ":5:1: the candidate has memory without a price: add memory_gib_usd to [price]",
        ),
        (FILE, "ssd_gib_usd = 1.0\n", "", ":5:1: the candidate has ssd without a price: add ssd_gib_usd to [price]"),
        (FILE, "ssd_gib_usd = 1.0", "ssd_gib_usd = -1.0", ":14:15: a price is a number from 0 to 1000000 USD"),
        (FILE, "ssd_gib_usd = 1.0", "ssd_gib_usd = nan", ":14:15: a price is a number from 0"),
        (FILE, "ssd_gib_usd = 1.0", "ssd_gib_usd = 2e6", ":14:15: a price is a number from 0"),
        (FILE, "memory = \"8 GiB\"", "memory = \"-8 GiB\"", ":10:10: \"-8 GiB\" is negative: a size is at least zero"),
        (
            FILE,
            "memory = \"8 GiB\"",
            "memory = \"0 GiB\"",
            ":9:1: the candidate lends nothing: add memory = \"2 GiB\" or ssd",
        ),
        (FILE, "memory = \"8 GiB\"", "memory = 8", ":10:10: 8 has no unit: write a size such as"),
        (
            FILE,
            "memory = \"8 GiB\"",
            "memory = \"8000 TiB\"",
            ":9:1: the candidate has more than 1 PiB of memory or SSD",
        ),
        (FILE, "memory = \"8 GiB\"", "ram = \"8 GiB\"", ":10:1: unknown setting \"ram\""),
        (FILE, "throughput = \"1 GiB/s\"\n", "", ":9:1: the candidate has no throughput: measure it, or add [node]"),
        (FILE, "throughput = \"1 GiB/s\"", "throughput = \"0 GiB/s\"", ":11:14: \"0 GiB/s\" is zero"),
        (
            FILE,
            "throughput = \"1 GiB/s\"",
            "throughput = \"2000 TiB/s\"",
            ":11:14: the throughput of a candidate is above 1 PiB/s",
        ),
        (FILE, "throughput = \"15 GiB/s\"", "throughput = \"2000 TiB/s\"", ":2:14: the target is above 1 PiB/s"),
        (
            FILE,
            "throughput = \"15 GiB/s\"\n",
            "",
            ":1:1: the target has no throughput: add throughput = \"15 GiB/s\", or dataset and time",
        ),
        (FILE, "throughput = \"15 GiB/s\"\n", "time = \"5 min\"\n", ":2:8: the target has a time and no dataset"),
        (FILE, "mode = \"in-job\"", "mode = \"in-jab\"", ":3:8: unknown value \"in-jab\": did you mean \"in-job\"?"),
        (FILE, "link_divisor = 100", "link_divisor = 0", ":4:16: link_divisor is a number from 0.001 to 10⁹"),
        (FILE, "link_divisor = 100", "link_divisor = -5", ":4:16: link_divisor is a number from 0.001 to 10⁹"),
        (FILE, "link_divisor = 100", "link_divisor = inf", ":4:16: link_divisor is a number from 0.001 to 10⁹"),
        (FILE, "link_divisor = 100", "copies = 0", ":4:10: copies is a number from 1 to 64"),
        (
            FILE,
            "link_divisor = 100",
            "copies = 2\nparity = \"4+1\"",
            ":5:10: the target has copies and parity: remove one",
        ),
        (FILE, "link_divisor = 100", "parity = \"4-1\"", ":4:10: parity is \"d+p\", each from 1 to 64"),
        (FILE, "link_divisor = 100", "parity = \"0+1\"", ":4:10: parity is \"d+p\", each from 1 to 64"),
        (FILE, "link_divisor = 100", "nodes_max = 0", ":4:13: nodes_max is a number of nodes from 1 to 10000000"),
        (MODELLED, "dataset = \"450 GB\"", "dataset = \"0 GB\"", ":2:11: the dataset is 0 B"),
        (MODELLED, "dataset = \"450 GB\"", "dataset = \"9000000 TB\"", ":2:11: the dataset is above 1 EiB"),
        (MODELLED, "time = \"15 s\"", "time = \"0 s\"", ":3:8: the time is zero"),
        (
            MODELLED,
            "time = \"15 s\"",
            "time = \"15 s\"\nthroughput = \"1 GiB/s\"",
            ":3:8: the target has a throughput and a time",
        ),
        (
            MODELLED,
            "dataset = \"450 GB\"\ntime = \"15 s\"",
            "throughput = \"1 GiB/s\"",
            ":11:1: the throughput of the candidate is modelled from [node]",
        ),
        (
            MODELLED,
            "ssd_write = \"175 MB/s\"\n",
            "",
            ":11:1: the throughput of the candidate is modelled from [node], which does not say how fast its SSD is",
        ),
        (MODELLED, "drain = \"92 MB/s\"\n", "", ":8:1: the setting \"drain\" is missing here: add it"),
        (MODELLED, "drain = \"92 MB/s\"", "drain = \"2000 TiB/s\"", ":11:9: the rate of a node is above 1 PiB/s"),
        (
            MODELLED,
            "memory = [\"0 B\", \"512 MiB\", \"4 GiB\"]\nssd = [\"0 B\", \"2 GiB\"]",
            "LARGE",
            ":15:1: the grid has more than 4194304 candidates",
        ),
        (MODELLED, "memory = [\"0 B\", \"512 MiB\", \"4 GiB\"]", "memory = [3]", ":16:11: 3 has no unit"),
        (
            FILE,
            "[target]",
            "[target]\nthroughput = \"1 GiB/s\"",
            ":3:1: the setting \"throughput\" stands here a second time",
        ),
    ];
    for (file, from, to, said) in mistakes {
        assert_eq!(file.matches(from).count(), 1, "{from}");
        let to = if to == "LARGE" { format!("{long}\n{many}") } else { to.to_owned() };
        place.write("a.toml", file.replace(from, &to));
        let sentence = place.refused(&[], 2);
        let place_and_reason = format!("surgetank: a.toml{said}");
        assert!(sentence.starts_with(&place_and_reason), "{to}\n{sentence}\n{place_and_reason}");
    }
    for (text, said) in [
        ("", "a.toml: the file has no target: add [target] with throughput"),
        ("[target]\nthroughput = \"1 GiB/s\"\n", "a.toml: there is no candidate: add [[candidate]]"),
        ("[target]\nthroughput = \"1 GiB/s\"\n[grid]\nmemory = []\nssd = []\n", "there is no candidate"),
        ("[target\n", "a.toml:1:"),
    ] {
        place.write("a.toml", text);
        assert!(place.refused(&[], 2).contains(said), "{text}");
    }
    assert_eq!(names(&place), ["a.toml"], "nothing is left");
}

#[test]
fn the_example_is_feasible() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/pool.toml");
    let answer = Place::new("provision", &fs::read_to_string(example).unwrap()).json(&[]);
    // Nodes with SSD beside little memory are the cheapest.
    let best = &answer["best"];
    assert!(
        number(&best["ssd_gib"]) > 0.0 && number(&best["throughput_gib_s"]) >= number(&answer["target_gib_s"]),
        "{best}"
    );
    let without: Vec<f64> = answer["considered"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|one| one["ssd_gib"] == 0.0 && one["feasible"] == true)
        .map(|one| number(&one["cost_usd"]))
        .collect();
    assert!(without.iter().all(|cost| *cost > number(&best["cost_usd"])), "{without:?}");
}

#[test]
fn the_example_of_the_help_is_feasible() {
    let place = Place::new("provision", FILE);
    let help = String::from_utf8(place.run(&["--help"]).stdout).unwrap();
    let lines = help.lines().skip_while(|line| *line != "A file:").skip(1).take_while(|line| line.starts_with("  "));
    place.write("a.toml", lines.collect::<Vec<_>>().join("\n"));
    let ran = place.run(&[]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}
