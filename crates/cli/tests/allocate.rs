//! `surgetank allocate` as scripts and people meet it.

mod files;

use std::fs;
use std::path::Path;

use serde_json::Value;

use files::{Place, number};

/// The contract's file, with a second application.
const FILE: &str = r#"slo = 0.05
latency = { level1 = "0.1 ms", level2 = "1 ms", disk = "10 ms" }
hierarchy = "exclusive"
[[server.level1]]
name = "io1"
cache = "100 MiB"
[[server.level2]]
name = "st1"
cache = "200 MiB"
[[app]]
name = "A"
level1 = "io1"
level2 = ["st1"]
slo = 0.05
mrc = [["0 MiB", 1.0], ["100 MiB", 0.4], ["200 MiB", 0.2], ["400 MiB", 0.2]]
[[app]]
name = "B"
level1 = "io1"
level2 = ["st1"]
mrc = [["0 MiB", 1.0], ["50 MiB", 0.9], ["300 MiB", 0.8]]
"#;

const DEMANDS: &str = r#"demands_only = true
[[server.level2]]
name = "st1"
cache = "1 GiB"
[[server.level2]]
name = "st2"
cache = "1 GiB"
[[app]]
name = "A"
level2 = ["st1"]
demand = "0.75 GiB"
[[app]]
name = "B"
level2 = ["st1", "st2"]
demand = "1.2 GiB"
"#;

/// What the applications of an answer have of a level together.
fn shared(answer: &Value, level: &str) -> f64 {
    let of = |app: &Value| match &app[level] {
        Value::Object(parts) => parts.values().map(number).sum(),
        one => number(one),
    };
    answer["apps"].as_array().unwrap().iter().map(of).sum()
}

#[test]
fn the_answer_has_the_contracts_names() {
    let place = Place::new("allocate", FILE);
    let answer = place.json(&[]);
    assert_eq!((&answer["feasible"], &answer["infeasible"]), (&Value::Bool(true), &Value::Null));
    assert!(number(&answer["fair_speedup"]) > 1.0, "{answer}");
    for (app, name) in answer["apps"].as_array().unwrap().iter().zip(["A", "B"]) {
        assert_eq!((&app["name"], &app["slo_met"]), (&Value::from(name), &Value::Bool(true)));
        assert!(number(&app["latency_ms"]) <= 1.05 * number(&app["fair_latency_ms"]) * (1.0 + 1e-6), "{app}");
        for server in app["level2_mib"].as_object().unwrap().keys() {
            assert_eq!(server, "st1");
        }
    }
    assert!(shared(&answer, "level1_mib") <= 100.0 && shared(&answer, "level2_mib") <= 200.0, "{answer}");
    // 0.1 + 0.9·m(50) + 9·m(50 + 100) ms with m(50) = 0.7 and m(150) = 0.3.
    assert!((number(&answer["apps"][0]["fair_latency_ms"]) - 3.43).abs() < 1e-9, "{answer}");
    let ratios = answer["apps"]
        .as_array()
        .unwrap()
        .iter()
        .map(|app| number(&app["latency_ms"]) / number(&app["fair_latency_ms"]));
    assert!((2.0 / ratios.sum::<f64>() - number(&answer["fair_speedup"])).abs() < 1e-9, "{answer}");
}

#[test]
fn every_scheme_is_shown_beside_the_best_and_can_be_asked_for() {
    let place = Place::new("allocate", FILE);
    let answer = place.json(&[]);
    let names: Vec<&str> =
        answer["schemes"].as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        ["optimal", "mlms", "fair-share", "independent", "uncontrolled", "first-level-only", "second-level-only"]
    );
    assert!((0.0..0.5).contains(&number(&answer["mlms_below_optimum"])), "{answer}");
    for (index, name) in names.iter().enumerate() {
        let output = place.run(&["--scheme", name, "--json"]);
        let one: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (&one["scheme"], &one["fair_speedup"]),
            (&Value::from(*name), &answer["schemes"][index]["fair_speedup"])
        );
        let keeps = answer["schemes"][index]["slo_broken"].as_array().unwrap().is_empty();
        assert_eq!(output.status.code(), Some(if keeps { 0 } else { 3 }), "{one}");
    }
    let fair = place.json(&["--scheme", "fair-share"]);
    assert_eq!((number(&fair["fair_speedup"]), number(&fair["apps"][0]["level1_mib"])), (1.0, 50.0));
}

#[test]
fn people_get_shares_and_how_far_mlms_is_from_the_optimum() {
    let place = Place::new("allocate", FILE);
    let output = place.run(&[]);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in
        ["application", "of io1", "of st1", "Fair speedup", "below the optimum", "second-level-only", "mlms, the paper"]
    {
        assert!(text.contains(part), "{part} in {text}");
    }
    assert!(output.stderr.is_empty());
}

#[test]
fn a_plan_is_kept_and_changes_are_bounded() {
    let place = Place::new("allocate", FILE);
    let first = place.run(&["--json"]).stdout;
    place.write("now.json", &first);
    assert_eq!(place.run(&["--json", "--previous", "now.json"]).stdout, first, "byte for byte");
    // From the fair share the best shares are farther away than a twentieth of each level.
    place.write("now.json", place.run(&["--json", "--scheme", "fair-share"]).stdout);
    place.write("a.toml", format!("change_max = 0.05\n{FILE}"));
    let next = place.json(&["--previous", "now.json"]);
    for app in next["apps"].as_array().unwrap() {
        assert!((number(&app["level1_mib"]) - 50.0).abs() <= 5.0 + 1e-3, "{app}");
        assert!((number(&app["level2_mib"]["st1"]) - 100.0).abs() <= 10.0 + 1e-3, "{app}");
    }
    assert_eq!(next["change_exceeded"], Value::Bool(false));
    for (text, part) in [
        ("{}", "missing field `apps`"),
        ("no", "is no plan"),
        ("{\"apps\": [{\"name\": \"A\", \"level1_mib\": -1, \"level2_mib\": {}}]}", "a share is at least 0"),
        ("{\"apps\": [{\"name\": \"A\", \"level1_mib\": 1e300, \"level2_mib\": {}}]}", "its shares are more than"),
        (
            "{\"apps\": [{\"name\": \"A\", \"level1_mib\": 1, \"level2_mib\": {}}, {\"name\": \"A\", \"level1_mib\": 1, \"level2_mib\": {}}]}",
            "it has two shares of A",
        ),
    ] {
        place.write("now.json", text);
        let said = place.refused(&["--previous", "now.json"], 2);
        assert!(said.contains(part) && said.contains("surgetank allocate --json wrote"), "{said}");
    }
}

#[test]
fn what_is_infeasible_is_named_with_what_would_suffice() {
    // A bound above the fair share grows with the cache that is added: B has a latency, so that cache is a remedy.
    let strict = FILE.replacen("slo = 0.05\nmrc", "slo = \"2.1 ms\"\nmrc", 1).replace("\"B\"", "\"B\"\nslo = \"9 ms\"");
    let place = Place::new("allocate", &strict);
    let said = place.refused(&[], 3);
    let sentence = "surgetank: a.toml: no shares meet all SLOs: application A cannot have 2.100000 ms, but 2.2";
    assert!(said.starts_with(sentence) && said.contains("; or add ") && said.contains("MiB more at io1"), "{said}");
    let output = place.run(&["--json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &answer["feasible"]), (Some(3), &Value::Bool(false)));
    // The shares that it names in its stead are the fair ones.
    assert_eq!((number(&answer["fair_speedup"]), number(&answer["apps"][0]["level1_mib"])), (1.0, 50.0));
    // Either remedy suffices: another SLO, ...
    let relaxed = &answer["infeasible"]["relaxed"];
    assert_eq!(relaxed[0]["name"], "A");
    assert_eq!((relaxed.as_array().unwrap().len(), &relaxed[0]["slo_ms"]), (1, &Value::from(2.1)));
    let feasible_ns = (number(&relaxed[0]["feasible_slo_ms"]) * 1e6).ceil();
    let file = strict.replace("\"2.1 ms\"", &format!("\"{feasible_ns} ns\""));
    place.write("a.toml", &file);
    assert_eq!(place.json(&[])["feasible"], Value::Bool(true), "{file}");
    // ... or more cache.
    let mut file = strict;
    for added in answer["infeasible"]["added"].as_array().unwrap() {
        let (name, mib) = (added["name"].as_str().unwrap(), if added["level"] == "level1" { 100.0 } else { 200.0 });
        let more = (mib + number(&added["add_mib"])).ceil();
        file = file.replace(
            &format!("name = \"{name}\"\ncache = \"{mib} MiB\""),
            &format!("name = \"{name}\"\ncache = \"{more} MiB\""),
        );
    }
    place.write("a.toml", &file);
    assert_eq!(place.json(&[])["feasible"], Value::Bool(true), "{file}");
}

#[test]
fn a_scheme_that_breaks_an_slo_says_whose() {
    // B asks much more often, so that it takes most of what is shared.
    let file = FILE.replace("[[app]]\nname = \"B\"", "[[app]]\nname = \"B\"\naccesses_per_s = 1000");
    let place = Place::new("allocate", &file);
    let said = place.refused(&["--scheme", "uncontrolled"], 3);
    assert!(said.contains("the scheme uncontrolled breaks the SLO of A: --scheme optimal"), "{said}");
}

#[test]
fn demands_have_a_place_or_it_is_said_whose_have_none() {
    let place = Place::new("allocate", DEMANDS);
    let answer = place.json(&[]);
    assert_eq!(answer["feasible"], Value::Bool(true));
    let (a, b) = (&answer["apps"][0]["level2_mib"], &answer["apps"][1]["level2_mib"]);
    assert_eq!(number(&a["st1"]), 768.0);
    assert!((number(&b["st1"]) + number(&b["st2"]) - 1228.8).abs() < 1e-3, "{answer}");
    assert!(number(&b["st1"]) <= 256.0 && number(&b["st2"]) <= 1024.0, "{answer}");
    let text = String::from_utf8(place.run(&[]).stdout).unwrap();
    assert!(text.contains("768 MiB of st1") && text.contains("1.2 GiB"), "{text}");
    place.write("a.toml", DEMANDS.replace("0.75 GiB", "1.5 GiB"));
    let said = place.refused(&[], 3);
    let sentence = "a.toml: A, B want 2764.8 MiB together, and the servers that they reach have 2048.0 MiB: st1, st2; lower the \
                    demand of A to 1024.0 MiB or add 512.0 MiB at st1, and lower the demand of B to 1024.0 MiB or add 204.8 MiB \
                    at st1 or st2";
    assert_eq!(said.trim_end(), format!("surgetank: {sentence}"));
    let answer: Value = serde_json::from_slice(&place.run(&["--json"]).stdout).unwrap();
    assert_eq!((&answer["feasible"], &answer["unplaced"][0]["name"]), (&Value::Bool(false), &Value::from("A")));
    for (flags, part) in
        [(&["--scheme", "mlms"][..], "--scheme"), (&["--page", "x.html"], "--page"), (&["--trace", "A=t"], "--trace")]
    {
        let said = place.refused(flags, 2);
        assert!(said.contains(part) && said.contains("demands_only"), "{said}");
    }
}

#[test]
fn every_mistake_is_one_sentence_with_its_place() {
    let place = Place::new("allocate", "");
    let mistakes: &[(&str, &str, &str)] = &[
        // What is replaced, with what, and what is said.
        ("slo = 0.05\nlatency", "segment = \"0 MiB\"\nslo = 0.05\nlatency", ":1:11: the segment is 0 B"),
        (
            "slo = 0.05\nlatency",
            "segment = \"60 MiB\"\nslo = 0.05\nlatency",
            ":5:1: io1 has 100 MiB for 2 applications, and an equal share is below a segment of 60 MiB",
        ),
        ("[\"200 MiB\", 0.2]", "[\"200 MiB\", 0.5]", ":15:42: application A: its miss ratio rises to 0.5 at 200 MiB"),
        ("[\"200 MiB\", 0.2]", "[\"100 MiB\", 0.2]", ":15:42: application A: its curve has 100 MiB behind 100 MiB"),
        (
            "[\"200 MiB\", 0.2]",
            "[\"200 MiB\", nan]",
            "its miss ratio at 200 MiB is NaN: a miss ratio is between 0 and 1",
        ),
        ("[\"200 MiB\", 0.2]", "[200, 0.2]", "200 has no unit"),
        ("[\"200 MiB\", 0.2]", "[\"200\", 0.2]", "\"200\" has no unit"),
        ("[\"200 MiB\", 0.2]", "[\"200 MiB\"]", "a point of a curve is a size and the miss ratio"),
        ("[\"200 MiB\", 0.2]", "\"200 MiB\"", "a point of a curve is a size and the miss ratio"),
        ("slo = 0.05\nmrc", "slo = 0\nmrc", ":14:7: application A has the SLO 0: it is how far above the fair share"),
        ("slo = 0.05\nmrc", "slo = -0.5\nmrc", ":14:7: application A has the SLO -0.5:"),
        ("slo = 0.05\nmrc", "slo = nan\nmrc", ":14:7: application A has the SLO NaN:"),
        ("slo = 0.05\nmrc", "slo = 1e9\nmrc", ":14:7: application A has the SLO 1000000000:"),
        ("slo = 0.05\nmrc", "slo = \"2 h\"\nmrc", ":14:7: application A has an SLO of 7200s: it is 3600s at most"),
        ("slo = 0.05\nmrc", "slo = \"0 ms\"\nmrc", ":14:7: application A has an SLO of 0 s"),
        ("slo = 0.05\nmrc", "slo = \"-2 ms\"\nmrc", "is negative"),
        ("slo = 0.05\nmrc", "slo = \"0.05\"\nmrc", "has no unit"),
        ("slo = 0.05\nmrc", "slo = true\nmrc", "true is no SLO: write how far above the fair share"),
        ("slo = 0.05\nlatency", "latency", "application B has no SLO: add slo = 0.05"),
        ("slo = 0.05\nlatency", "slo = inf\nlatency", ":1:7: application B has the SLO inf:"),
        (
            "slo = 0.05\nmrc",
            "accesses_per_s = 0\nmrc",
            ":14:18: application A has 0 accesses per second: leave out applications without accesses",
        ),
        ("slo = 0.05\nmrc", "accesses_per_s = nan\nmrc", "application A has NaN accesses per second"),
        (
            "slo = 0.05\nmrc",
            "margin = 1.0\nmrc",
            ":14:10: application A has the margin 1: it is at least 0, and below 1",
        ),
        ("slo = 0.05\nlatency", "margin = nan\nslo = 0.05\nlatency", ":1:10: application A has the margin NaN"),
        (
            "slo = 0.05\nlatency",
            "change_max = 0\nslo = 0.05\nlatency",
            ":1:14: the change per interval is 0: it is above 0, and 1 at most",
        ),
        (
            "level2 = [\"st1\"]\nslo",
            "level2 = []\nslo",
            ":13:10: application A reaches no second-level server: name at least one",
        ),
        ("level2 = [\"st1\"]\nslo", "slo", ":10:1: application A reaches no second-level server: name at least one"),
        (
            "level2 = [\"st1\"]\nslo",
            "level2 = [\"st9\"]\nslo",
            ":13:10: application A uses the second-level server st9, which is not there",
        ),
        (
            "level2 = [\"st1\"]\nslo",
            "level2 = [\"st1\", \"st1\"]\nslo",
            "application A names a second-level server twice",
        ),
        (
            "level1 = \"io1\"\nlevel2 = [\"st1\"]\nslo",
            "level1 = \"st1\"\nlevel2 = [\"st1\"]\nslo",
            "application A uses the first-level server st1, which is not there",
        ),
        (
            "level1 = \"io1\"\nlevel2 = [\"st1\"]\nslo",
            "level2 = [\"st1\"]\nslo",
            "application A uses no first-level server: add level1",
        ),
        ("name = \"B\"", "name = \"A\"", ":17:8: two applications are named A: give each its own name"),
        ("name = \"B\"", "name = \"\"", ":17:8: an application has no name"),
        (
            "[[server.level2]]",
            "[[server.level1]]\nname = \"io1\"\ncache = \"1 MiB\"\n[[server.level2]]",
            ":7:1: two first-level servers are named io1",
        ),
        (
            "[[server.level2]]\nname = \"st1\"\ncache = \"200 MiB\"\n",
            "",
            "application A uses the second-level server st1, which is not there",
        ),
        (
            "[[server.level1]]\nname = \"io1\"\ncache = \"100 MiB\"\n",
            "",
            "there is no first-level server: name at least one",
        ),
        ("cache = \"200 MiB\"", "cache = \"0 MiB\"", "the second-level server st1 has no cache: leave it out"),
        ("cache = \"200 MiB\"", "cache = 200", "200 has no unit"),
        ("cache = \"200 MiB\"", "cache = \"2000000 TiB\"", "the second-level servers have more than"),
        (
            "level2 = \"1 ms\"",
            "level2 = \"20 ms\"",
            ":2:11: the latencies are 100µs in level 1, 20ms in level 2 and 10ms on disk: each level is slower",
        ),
        ("level1 = \"0.1 ms\"", "level1 = \"0 ms\"", ":2:11: the latency of level 1 is 0"),
        ("disk = \"10 ms\"", "disk = \"10\"", "\"10\" has no unit"),
        (
            "disk = \"10 ms\"",
            "disk = \"10 d\"",
            ":2:11: a latency is 240 h, more than any access takes: check the unit",
        ),
        (
            "latency = { level1 = \"0.1 ms\", level2 = \"1 ms\", disk = \"10 ms\" }\n",
            "",
            "the file has no latencies: add latency",
        ),
        (
            "hierarchy = \"exclusive\"",
            "hierarchy = \"inclusiv\"",
            ":3:13: unknown value \"inclusiv\": did you mean \"inclusive\"?",
        ),
        (
            "hierarchy = \"exclusive\"",
            "hirarchy = \"exclusive\"",
            ":3:1: unknown setting \"hirarchy\": did you mean \"hierarchy\"?",
        ),
        ("name = \"B\"", "name = \"B\"\nmcr = []", "unknown setting \"mcr\": did you mean \"mrc\"?"),
        (
            "name = \"B\"",
            "name = \"B\"\ndemand = \"1 MiB\"",
            ":18:10: application B has a demand, which counts with demands_only = true alone",
        ),
        (
            "mrc = [[\"0 MiB\", 1.0], [\"50 MiB\", 0.9], [\"300 MiB\", 0.8]]\n",
            "",
            ":16:1: application B has no miss-ratio curve: add mrc",
        ),
        (
            "mrc = [[\"0 MiB\", 1.0], [\"50 MiB\", 0.9], [\"300 MiB\", 0.8]]\n",
            "mrc = []",
            "application B: its miss-ratio curve has no points",
        ),
        ("slo = 0.05\nlatency", "slo = 0.05\nslo = 0.05\nlatency", "the setting \"slo\" stands here a second time"),
    ];
    for (from, to, said) in mistakes {
        assert_eq!(FILE.matches(from).count(), 1, "{from}");
        place.write("a.toml", FILE.replace(from, to));
        let sentence = place.refused(&[], 2);
        assert!(sentence.starts_with("surgetank: a.toml") && sentence.contains(said), "{to}\n{sentence}\n{said}");
    }
    place.write("a.toml", &FILE[..FILE.find("[[app]]").unwrap()]);
    assert!(place.refused(&[], 2).contains("there is no application: name at least one"));
    for (from, to, said) in [
        ("demand = \"1.2 GiB\"\n", "", ":12:1: application B has no demand: with demands_only = true add it"),
        ("demand = \"1.2 GiB\"", "demand = 5", "5 has no unit"),
        ("demand = \"1.2 GiB\"", "demand = \"0 GiB\"", ":15:10: application B demands nothing: leave it out"),
        ("demand = \"1.2 GiB\"", "demand = \"2000000 TiB\"", "the applications want more than"),
        ("name = \"B\"", "name = \"A\"", "two applications are named A"),
        ("name = \"st2\"", "name = \"st1\"", ":5:1: two second-level servers are named st1"),
        (
            "level2 = [\"st1\"]",
            "level2 = [\"st9\"]",
            ":10:10: application A uses the second-level server st9, which is not there",
        ),
    ] {
        assert_eq!(DEMANDS.matches(from).count(), 1, "{from}");
        place.write("a.toml", DEMANDS.replace(from, to));
        let sentence = place.refused(&[], 2);
        assert!(sentence.starts_with("surgetank: a.toml") && sentence.contains(said), "{to}\n{sentence}\n{said}");
    }
}

/// Blocks that are read in turn, again and again, as an MSR trace: a cache that has room for all of them misses each once, a
/// smaller one always.
fn loop_trace(blocks: u64, rounds: u64) -> String {
    let line = |access: u64| format!("{},h,0,Read,{},4096,0\n", access * 100_000, access % blocks * 4096);
    (0..blocks * rounds).map(line).collect()
}

#[test]
fn curves_come_from_traces() {
    let place =
        Place::new("allocate", &FILE.replace("mrc = [[\"0 MiB\", 1.0], [\"50 MiB\", 0.9], [\"300 MiB\", 0.8]]\n", ""));
    place.write("loop.csv", loop_trace(512, 20));
    // 2 MiB, read 20 times: the curve falls from 1 to 0.05 where everything fits, and the hull is a line to there.
    let answer = place.json(&["--trace", "B=loop.csv"]);
    let b = &answer["apps"][1];
    let has = number(&b["level1_mib"]) + shared(&serde_json::json!({ "apps": [b] }), "level2_mib");
    assert!(has >= 2.0 - 1e-3 && number(&b["latency_ms"]) < 0.61, "{b}");
    // A trace counts more than what the file says.
    let both = place.json(&["--trace", "B=loop.csv", "--trace", "A=loop.csv"]);
    assert!(number(&both["apps"][0]["latency_ms"]) < 0.61, "{both}");
    // Blocks of another size take more or less of a cache.
    let larger = place.json(&["--trace", "B=loop.csv", "--block-size", "1 MiB"]);
    assert!(number(&larger["apps"][1]["fair_latency_ms"]) < 0.2, "{larger}");
    place.write("keys.txt", (0..5000).map(|key| format!("{}\n", key % 100)).collect::<String>());
    let keys = place.json(&["--trace", "B=keys.txt", "--block-size", "1 MiB", "--sample", "0.5"]);
    assert!(number(&keys["apps"][1]["latency_ms"]) < 9.0, "{keys}");
    place.write("none.csv", "");
    place.write("idle.csv", "time_s,op,offset_bytes,length_bytes\n");
    for (flags, status, part) in [
        (&["--trace", "C=loop.csv"][..], 2, "the file has no application C: did you mean"),
        (&["--trace", "loop.csv"], 2, "--trace A=trace.csv"),
        (&["--trace", "B=none.csv"], 2, "is empty"),
        (&["--trace", "B=idle.csv"], 2, "no reads or writes"),
        (&["--trace", "B=no.csv"], 2, "cannot read no.csv"),
        (&["--trace", "B=loop.csv", "--trace", "B=loop.csv"], 2, "names the application B twice"),
        (&["--trace", "B=loop.csv", "--sample", "0"], 2, "above 0 and at most 1"),
        (&["--trace", "B=loop.csv", "--block-size", "0 B"], 2, "--block-size is at least one byte"),
        (&["--sample", "0.1"], 2, "--trace"),
        (&["--strict"], 2, "--strict is about a trace, and there is none"),
        (&[], 2, "application B has no miss-ratio curve"),
    ] {
        let said = place.refused(flags, status);
        assert!(said.contains(part), "{flags:?}: {said}");
    }
}

#[test]
fn a_page_shows_margins_shares_and_curves() {
    let place = Place::new("allocate", &FILE.replace("\"B\"", "\"<b>\""));
    let output = place.run(&["--page", "shares.html"]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let page = fs::read_to_string(place.path().join("shares.html")).unwrap();
    for part in ["SLO margins", "Curves, hulls and shares", "Every scheme", "mlms below the optimum", "&lt;b&gt;"] {
        assert!(page.contains(part), "{part}");
    }
    assert!(!page.contains("<b>B") && !page.contains("NaN") && page.matches("<svg").count() == 5);
    assert!(place.refused(&["--page", "shares.png"], 2).contains("let its name end in .html"));
    let said = place.refused(&["--previous", "shares.html", "--page", "./shares.html"], 2);
    assert!(said.contains("./shares.html is read, and would be written over: name another"), "{said}");
    // What is infeasible has a page as well, which says so.
    place.write("a.toml", FILE.replacen("slo = 0.05\nmrc", "slo = \"1 ms\"\nmrc", 1));
    place.refused(&["--page", "shares.html"], 3);
    let page = fs::read_to_string(place.path().join("shares.html")).unwrap();
    assert!(page.contains("There are no such shares") && page.contains("cannot have 1.000000 ms"));
    let names: Vec<_> = fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "nothing partial is left: {names:?}");
}

#[test]
fn an_inclusive_hierarchy_is_one_word() {
    let exclusive = Place::new("allocate", FILE).json(&[]);
    let inclusive = Place::new("allocate", &FILE.replace("\"exclusive\"", "\"inclusive\"")).json(&[]);
    assert_eq!(
        (&exclusive["hierarchy"], &inclusive["hierarchy"]),
        (&Value::from("exclusive"), &Value::from("inclusive"))
    );
    // 0.1 + 0.9·m(50) + 9·m(100) ms: what the first level holds is in the second one, too.
    assert!((number(&inclusive["apps"][0]["fair_latency_ms"]) - 4.33).abs() < 1e-9, "{inclusive}");
}

#[test]
fn the_example_is_feasible() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/caches.toml");
    let place = Place::new("allocate", &fs::read_to_string(example).unwrap());
    let answer = place.json(&[]);
    assert!(number(&answer["fair_speedup"]) > 1.05, "{answer}");
}
