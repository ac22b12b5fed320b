//! The quick demo of arrays on this machine, whole, and what is left when it is interrupted or fails. Needs root, FUSE and loop
//! devices for its file systems; without them it runs over NBD.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A place for a demo: its report and its work directory.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        std::fs::create_dir(directory.path().join("work")).unwrap();
        Self { directory }
    }

    fn work(&self) -> PathBuf {
        self.directory.path().join("work")
    }

    fn out(&self) -> PathBuf {
        self.directory.path().join("out")
    }

    fn demo(&self, arguments: &[&str]) -> Command {
        let mut demo = Command::new(env!("CARGO_BIN_EXE_surgetank"));
        demo.args(["demo", "--array"]).args(arguments).arg("--out").arg(self.out());
        demo.env("TMPDIR", self.work()).env_remove("SURGETANK_LOG").stdin(Stdio::null());
        demo
    }

    /// No file, mount, loop device or process of a demo is left.
    fn assert_nothing_is_left(&self) {
        let work = self.work();
        assert_eq!(std::fs::read_dir(&work).unwrap().count(), 0);
        let name = work.to_str().unwrap();
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(!mounts.contains(name), "{mounts}");
        for entry in std::fs::read_dir("/sys/block").unwrap().flatten() {
            let file = std::fs::read_to_string(entry.path().join("loop/backing_file")).unwrap_or_default();
            assert!(!file.contains(name), "{}: {file}", entry.path().display());
        }
        for process in processes() {
            let arguments = std::fs::read(process.join("cmdline")).unwrap_or_default();
            let arguments = String::from_utf8_lossy(&arguments).into_owned();
            assert!(!(arguments.contains("demo-writer") && arguments.contains(name)), "{arguments}");
        }
    }
}

fn processes() -> impl Iterator<Item = PathBuf> {
    let is_number = |path: &PathBuf| path.file_name().is_some_and(|name| name.to_string_lossy().parse::<u32>().is_ok());
    std::fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path()).filter(is_number)
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn the_quick_demo_of_arrays_verifies_every_byte_after_rotations_and_leaves_nothing() {
    let place = Place::new();
    let output = place.demo(&["--quick", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(found["verified"], true);
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
    assert!(std::fs::read_to_string(place.out().join("report.html")).unwrap().contains("<svg"));
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
    let arguments = |process: PathBuf| std::fs::read(process.join("cmdline")).unwrap_or_default();
    processes().map(arguments).any(|arguments| {
        let arguments = String::from_utf8_lossy(&arguments).into_owned();
        arguments.contains("write_share") && arguments.contains(work.to_str().unwrap())
    })
}

#[test]
fn an_interrupted_demo_of_arrays_leaves_nothing() {
    let place = Place::new();
    let mut demo = place.demo(&["--quick"]);
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

/// A small file system of its own over a directory; `None`: only root can have one.
struct Small(PathBuf);

impl Small {
    fn over(directory: PathBuf) -> Option<Self> {
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("tmpfs", &directory, "tmpfs", flags, c"size=64m").ok()?;
        Some(Self(directory))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_disk_that_is_full_is_told_in_one_sentence() {
    let place = Place::new();
    let Some(small) = Small::over(place.work()) else { return };
    let output = place.demo(&["--quick"]).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let sentence = said(&output);
    assert!(sentence.contains("the demo needs") && sentence.contains("free some"), "{sentence}");
    assert_eq!(sentence.lines().count(), 1, "{sentence}");
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
        let output = place.demo(arguments).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(reason), "{arguments:?}: {}", said(&output));
        assert_eq!(said(&output).lines().count(), 1, "{}", said(&output));
        assert!(output.stdout.is_empty() && !place.out().exists());
    }
}
