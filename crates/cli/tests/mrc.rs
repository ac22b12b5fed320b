//! `surgetank mrc` as scripts and people meet it.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn mrc(directory: &Path, arguments: &[&str], stdin: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_surgetank"));
    command.arg("mrc").args(arguments).current_dir(directory);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that does not read it may be gone already.
    let _ = child.stdin.take().unwrap().write_all(stdin);
    child.wait_with_output().unwrap()
}

fn json(directory: &Path, arguments: &[&str]) -> Value {
    let output = mrc(directory, &[arguments, &["--json"]].concat(), b"");
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn hits(answer: &Value) -> Vec<(u64, u64)> {
    let points = answer["points"].as_array().unwrap();
    points.iter().map(|p| (p["size_blocks"].as_u64().unwrap(), p["hits"].as_u64().unwrap())).collect()
}

#[track_caller]
fn refused(directory: &Path, arguments: &[&str], status: i32) -> String {
    let output = mrc(directory, arguments, b"");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert!(said.starts_with("surgetank: ") && said.trim_end().lines().count() == 1, "{arguments:?}: {said}");
    said
}

#[test]
fn a_curve_is_answered_at_the_sizes_in_their_order() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.txt"), "a b c a b c\nd a\n").unwrap();
    let answer = json(directory.path(), &["a.txt", "--sizes", "3,1,2,4,0", "--policy", "lru"]);
    assert_eq!(hits(&answer), [(3, 3), (1, 0), (2, 0), (4, 4), (0, 0)]);
    let point = &answer["points"][0];
    assert_eq!((point["requests"].as_u64(), point["miss_ratio"].as_f64()), (Some(8), Some(0.625)));
    for policy in ["fifo", "FIFO", "lrfu", "s3-fifo", "s3fifo", "sieve"] {
        let answer = json(directory.path(), &["a.txt", "--sizes", "4", "--policy", policy]);
        assert_eq!(hits(&answer), [(4, 4)], "{policy}");
    }
    // One block of the read cache is the free one that evictions need.
    let answer = json(directory.path(), &["a.txt", "--sizes", "4,5", "--policy", "read-cache"]);
    assert_eq!(hits(&answer), [(4, 3), (5, 4)]);
    // All sizes at once: the sizes are chosen, and everything fits at last.
    for policy in ["lru", "sieve"] {
        let answer = json(directory.path(), &["a.txt", "--policy", policy]);
        assert_eq!(hits(&answer).last(), Some(&(4, 4)), "{policy}");
    }
    let sampled = json(directory.path(), &["a.txt", "--sizes", "3,4", "--sample", "1"]);
    assert_eq!(hits(&sampled), [(3, 3), (4, 4)]);
    let bounded = json(directory.path(), &["a.txt", "--sizes", "3,4", "--sample-keys", "100"]);
    assert_eq!(hits(&bounded), [(3, 3), (4, 4)]);
}

#[test]
fn requests_are_split_or_left_out_where_asked() {
    let directory = tempfile::tempdir().unwrap();
    let msr = "1,h,0,Read,0,8192,0\n2,h,0,Write,4096,4096,0\n3,h,0,Read,0,8192,0\n4,h,1,Read,0,8192,0\n";
    fs::write(directory.path().join("a.csv"), msr).unwrap();
    let answer = json(directory.path(), &["a.csv", "--sizes", "10"]);
    assert_eq!((hits(&answer), answer["format"].as_str()), (vec![(10, 1)], Some("msr")));
    let answer = json(directory.path(), &["a.csv", "--sizes", "10", "--block-size", "4 KiB"]);
    assert_eq!((hits(&answer), answer["requests"].as_u64()), (vec![(10, 3)], Some(7)));
    let answer = json(directory.path(), &["a.csv", "--sizes", "10", "--only", "writes"]);
    assert_eq!(answer["requests"].as_u64(), Some(1));
}

#[test]
fn people_get_a_table_and_a_picture() {
    let directory = tempfile::tempdir().unwrap();
    let keys: String = (0..400u64).map(|index| format!("{}\n", index * index % 97)).collect();
    let output = mrc(directory.path(), &["-", "--format", "plain", "--out", "curve.html"], keys.as_bytes());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("miss ratio") && text.contains('█') && text.contains("different blocks"), "{text}");
    let page = fs::read_to_string(directory.path().join("curve.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("Miss ratio over cache size"));
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing partial is left");
}

#[test]
fn broken_lines_are_counted_or_stop_it() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("a.txt"), "1\n2\nx\n1\n").unwrap();
    let output = mrc(directory.path(), &["a.txt", "--sizes", "2", "--json"], b"");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((answer["broken_lines"].as_u64(), hits(&answer)), (Some(1), vec![(2, 1)]));
    let warning = String::from_utf8(output.stderr).unwrap();
    assert!(warning.contains("a.txt:3: the key \"x\" is not a number"), "{warning}");
    let said = refused(directory.path(), &["a.txt", "--strict"], 2);
    assert!(said.contains("a.txt:3:"), "{said}");
}

#[test]
fn wrong_input_is_status_2_with_one_sentence() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("empty.txt"), "").unwrap();
    fs::write(directory.path().join("a.txt"), "1 2 1\n").unwrap();
    fs::write(directory.path().join("zeros"), [0; 64]).unwrap();
    for (arguments, expected) in [
        (&["empty.txt"][..], "is empty"),
        (&["none.txt"], "cannot read none.txt"),
        (&["."], "directory"),
        (&["zeros"], "--format"),
        (&["a.txt", "--sample", "0"], "above 0 and at most 1"),
        (&["a.txt", "--sample", "NaN"], "above 0 and at most 1"),
        (&["a.txt", "--policy", "lrfu", "--lambda", "2"], "--lambda"),
        (&["a.txt", "--policy", "sieve", "--sample-keys", "5"], "lru alone"),
        (&["a.txt", "--block-size", "4 KiB"], "leave out --block-size"),
        (&["a.txt", "--only", "reads"], "no request"),
        (&["a.txt", "--out", "curve.png"], ".svg or .html"),
        (&["-", "--policy", "sieve"], "--sizes"),
    ] {
        let said = refused(directory.path(), arguments, 2);
        assert!(said.contains(expected), "{arguments:?}: {said}");
    }
    for arguments in
        [&["a.txt", "--sizes", "1,x"][..], &["a.txt", "--policy", "best"], &["a.txt", "--format", "pcap"], &[]]
    {
        assert_eq!(mrc(directory.path(), arguments, b"").status.code(), Some(2), "{arguments:?}");
    }
    let failed = refused(directory.path(), &["a.txt", "--out", "no/such/curve.svg"], 1);
    assert!(failed.contains("cannot write no/such/curve.svg"), "{failed}");
}
