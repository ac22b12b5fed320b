//! Guests as a whole: one that does well, and every way in which one does not.
//!
//! Where no guest can be booted each test says so and counts as passed by cargo; the line begins with "skipped".
#![allow(clippy::print_stderr, reason = "tests say what they skip")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use lab::{Disk, Interrupt, Lab, Outcome, Plan, Unavailable};
use surgetank_model::{Bandwidth, Bytes};

fn lab() -> Option<Lab> {
    match Lab::that_boots() {
        Ok(lab) => Some(lab),
        Err(Unavailable(reason)) => {
            eprintln!("skipped: no guest can be booted here: {reason}");
            None
        }
    }
}

/// A guest that takes little of the machine.
fn small(name: &str, script: &str) -> Plan {
    Plan { memory: Bytes::from_mib(512), ..Plan::new(name, script) }
}

fn run(lab: &Lab, plan: &Plan) -> Outcome {
    plan.boot(lab, &Interrupt::default()).unwrap().wait(&Interrupt::default()).unwrap()
}

/// Processes whose command line names this file or directory of a guest's: their numbers and command lines.
fn processes_of(directory: &Path) -> Vec<(String, String)> {
    let wanted = directory.to_string_lossy().into_owned();
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let commands = entries.filter_map(|entry| {
        let command = std::fs::read(entry.path().join("cmdline")).ok()?;
        Some((entry.file_name().to_string_lossy().into_owned(), String::from_utf8_lossy(&command).into_owned()))
    });
    commands.filter(|(_, command)| command.contains(&wanted)).collect()
}

#[test]
fn a_script_runs_and_its_results_come_back() {
    let Some(lab) = lab() else { return };
    let disk = Disk::new("slow", Bytes::from_mib(64)).throttled(Bandwidth::from_mib_s(33));
    let script = "echo said; echo complained >&2; echo kept >/lab/kept; touch /etc/lab-was-here
        cat /sys/class/block/$(basename $(readlink /dev/lab/slow))/serial
        blockdev --getsize64 /dev/lab/slow; exit 3";
    let mut guest = small("results", script).disk(disk).boot(&lab, &Interrupt::default()).unwrap();
    let outcome = guest.wait(&Interrupt::default()).unwrap();
    assert_eq!((outcome.status, &outcome.trouble), (Some(3), &None), "{}", guest.stderr());
    assert_eq!(guest.stdout(), "said\nslow67108864\n");
    assert_eq!(guest.stderr(), "complained\n");
    assert_eq!(std::fs::read_to_string(guest.results().join("kept")).unwrap(), "kept\n");
    assert!(!Path::new("/etc/lab-was-here").exists(), "a guest has changed the host");
    let directory = guest.results().parent().unwrap().to_owned();
    drop(guest);
    assert!(!directory.exists());
    assert_eq!(processes_of(&directory), Vec::new());
}

#[test]
fn a_guest_that_goes_wrong_is_told_and_put_away() {
    let Some(lab) = lab() else { return };
    let hangs = Plan { kernel_arguments: "rdinit=/bin/nothing".to_owned(), ..small("no-init", "true") };
    let outcome = run(&lab, &hangs);
    assert!(!outcome.passed() && outcome.boot_s.is_none());
    assert!(outcome.describe().contains("before the script began"), "{}", outcome.describe());

    let slow = Plan { boot_timeout: Duration::from_millis(300), ..small("slow-boot", "true") };
    let outcome = run(&lab, &slow);
    assert!(outcome.describe().contains("did not boot within 0.3 s"), "{}", outcome.describe());

    let endless = Plan { timeout: Duration::from_secs(1), ..small("endless", "sleep 1000") };
    let outcome = run(&lab, &endless);
    assert!(outcome.describe().contains("did not end within 1 s"), "{}", outcome.describe());

    let refused =
        small("twice", "true").disk(Disk::new("a", Bytes::from_mib(1))).disk(Disk::new("a", Bytes::from_mib(1)));
    let outcome = run(&lab, &refused);
    assert!(outcome.describe().starts_with("QEMU ended before the script began"), "{}", outcome.describe());
}

#[test]
fn a_guest_that_dies_as_it_boots_is_booted_once_more() {
    let Some(lab) = lab() else { return };
    let results = tempfile::tempdir().unwrap();
    let plan = Plan { results: Some(results.path().to_owned()), ..small("dies", "echo alive") };
    let console = results.path().join("console.log");
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            let until = Instant::now() + Duration::from_secs(60);
            while processes_of(&console).is_empty() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
            let [(first, _)] = &processes_of(&console)[..] else { panic!("no QEMU, or two") };
            assert!(Command::new("kill").args(["-9", first]).status().unwrap().success());
        });
        run(&lab, &plan)
    });
    assert!(outcome.passed(), "{}", outcome.describe());
    assert_eq!(std::fs::read_to_string(results.path().join("stdout")).unwrap(), "alive\n");
}

/// A file system in a file, mounted in a directory for temporary files whose name needs care.
struct MountedFile {
    image: std::path::PathBuf,
    place: std::path::PathBuf,
    _directory: tempfile::TempDir,
}

impl MountedFile {
    fn new() -> Self {
        let directory = tempfile::Builder::new().prefix("a b").tempdir().unwrap();
        let (image, place) = (directory.path().join("image"), directory.path().join("mnt"));
        std::fs::File::create(&image).unwrap().set_len(8 << 20).unwrap();
        std::fs::create_dir(&place).unwrap();
        assert!(Command::new("mkfs.ext4").arg("-q").arg(&image).status().unwrap().success());
        assert!(Command::new("mount").args(["-o", "loop"]).args([&image, &place]).status().unwrap().success());
        Self { image, place, _directory: directory }
    }

    /// Unmounts it, and sees that nobody has it then: the loop device is free.
    fn unmount(self) {
        assert!(Command::new("umount").arg(&self.place).status().unwrap().success());
        let until = Instant::now() + Duration::from_secs(60);
        let loops = || Command::new("losetup").arg("-j").arg(&self.image).output().unwrap().stdout;
        while !loops().is_empty() {
            assert!(Instant::now() < until, "somebody still has what was unmounted");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn an_interrupt_ends_a_guest_and_leaves_nothing() {
    let Some(lab) = lab() else { return };
    let mounted = MountedFile::new();
    let interrupt = Interrupt::default();
    let mut guest = small("interrupted", "sleep 1000").boot(&lab, &interrupt).unwrap();
    mounted.unmount();
    let directory = guest.results().parent().unwrap().to_owned();
    assert_ne!(processes_of(&directory), Vec::new());
    interrupt.raise();
    assert!(guest.wait(&interrupt).unwrap_err().to_string().contains("interrupted"));
    drop(guest);
    assert!(!directory.exists());
    assert_eq!(processes_of(&directory), Vec::new());
}
