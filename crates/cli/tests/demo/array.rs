//! The quick demo of arrays, and what is left when it is interrupted or fails.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::place::{Place, Small, processes, said};

#[test]
fn the_quick_demo_of_arrays_verifies_every_byte_after_rotations_and_leaves_nothing() {
    let place = Place::new();
    let found = place.found(&["--array", "--quick"]);
    let number =
        |mode: &str, field: &str| found["modes"][mode][field].as_f64().unwrap_or_else(|| panic!("{mode} {field}"));
    for mode in ["single", "array", "rotated"] {
        assert!(number(mode, "mean_iops") > 0.0 && number(mode, "usd_month") > 0.0, "{mode}");
    }
    // Several rotations, and what they are for: the credits of ten volumes carry more than those of one, and new ones more still.
    assert!(number("rotated", "rotations") >= 5.0, "{found}");
    assert!(number("rotated", "copied_gib") > 0.0 && number("rotated", "overhead_ratio") > 0.0, "{found}");
    assert!(number("array", "mean_iops") > number("single", "mean_iops"), "{found}");
    assert!(number("rotated", "mean_iops") > number("array", "mean_iops"), "{found}");
    assert!(number("rotated", "usd_month") > number("array", "usd_month"), "{found}");
    assert!(place.page().contains("<svg"));
    let scenario = place.out().join("scenario.toml");
    let simulated =
        Command::new(env!("CARGO_BIN_EXE_surgetank")).args(["simulate", "--json"]).arg(scenario).output().unwrap();
    assert_eq!(simulated.status.code(), Some(0), "{}", said(&simulated));
    place.assert_nothing_is_left();
}

/// Waits until something is so, or the process has ended.
fn wait_until(child: &mut std::process::Child, is_so: impl Fn() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(child.try_wait().unwrap().is_none(), "the demo ended by itself");
        assert!(begin.elapsed() < Duration::from_secs(120), "it never was so");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process of the load makes requests in this place.
fn is_loaded(work: &Path) -> bool {
    processes().any(|arguments| arguments.contains("write_share") && arguments.contains(work.to_str().unwrap()))
}

#[test]
fn an_interrupted_demo_of_arrays_leaves_nothing() {
    let place = Place::new();
    let mut demo = place.demo(&["--array", "--quick"]);
    let mut child = demo.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let work = place.work();
    wait_until(&mut child, || is_loaded(&work));
    // Some seconds into the run members are being replaced.
    std::thread::sleep(Duration::from_secs(4));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.signal(), None);
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    assert!(said(&output).contains("everything is unmounted, released and removed"), "{}", said(&output));
    assert!(!place.out().exists(), "a report of half a run");
    place.assert_nothing_is_left();
}

#[test]
fn a_disk_that_is_full_is_told_in_one_sentence() {
    let place = Place::new();
    let Some(small) = Small::over(&place.work()) else { return };
    let output = place.demo(&["--array", "--quick"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    // What a run that was killed had left on this machine is put away by whichever demo comes next.
    let said = said(&output);
    let sentences: Vec<&str> = said.lines().filter(|line| !line.starts_with("surgetank: put away ")).collect();
    let [sentence] = sentences[..] else { panic!("{said}") };
    assert!(sentence.contains("the demo needs") && sentence.contains("free some"), "{sentence}");
    assert!(!place.out().exists());
    assert_eq!(std::fs::read_dir(place.work()).unwrap().count(), 0);
    drop(small);
    place.assert_nothing_is_left();
}

#[test]
fn flags_that_do_not_go_together_are_told_in_one_sentence() {
    let place = Place::new();
    for (arguments, reason) in [
        (&["--policy", "paper"][..], "'--array' cannot be used with '--policy"),
        (&["--pool"], "--pool"),
        (&["--quick", "--members", "3"], "--members"),
    ] {
        let output = place.demo(&[&["--array"], arguments].concat()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(reason), "{arguments:?}: {}", said(&output));
        assert_eq!(said(&output).lines().count(), 1, "{}", said(&output));
        assert!(output.stdout.is_empty() && !place.out().exists());
    }
}
