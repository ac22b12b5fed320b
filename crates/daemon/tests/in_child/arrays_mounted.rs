//! The daemon is killed again and again in the middle of the copies of an array's members, under a mounted ext4 on the device over
//! that array. After each kill the file system is unmounted, the daemon started, the journal replayed: every file that was synced is
//! there, e2fsck finds nothing, and the rotation goes on.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::arrays::{self, MEMBERS, asked, copies_so_far, is_calm, rotate};
use crate::common::child::Running;
use crate::common::files::Writer;
use crate::common::mounted::{self, Mounted};
use crate::common::rounds::{self, Seen};
use crate::common::{MIB, Machine, eventually, pattern};
use surgetank_model::random::Random;

/// Of the daemon's own: it wakes one of its bugs.
const PLANT: &str = "SURGETANK_PLANT";
const WRITERS: u64 = 3;
/// What lies there and is never written again: only copies move it.
const COLD: usize = 30 << 20;
/// What the test of planted bugs looks for in what a failed run says.
const FINDINGS: [&str; 4] = ["cold bytes are lost", "are not Mark", "e2fsck", "mount [\"/dev/loop"];
/// Whether a kill meets a bug is a matter of luck: on a busy machine one campaign of six met none.
const CAMPAIGNS: usize = 6;

fn configured() -> Machine {
    let machine = Machine::new();
    let root = machine.directory.path().display();
    let text = format!(
        "state_directory = \"{root}/state\"\nrun_directory = \"{root}/run\"\nsweep_interval = \"1 s\"\n\
         [provider.local]\ndirectory = \"{root}/volumes\"\n\
         [provider.local.types.tiny]\nbandwidth = \"400 MiB/s\"\npreallocate = false\n\
         [array.scratch]\nvolume_type = \"tiny\"\nmembers = {MEMBERS}\nmember_size = \"24 MiB\"\ncopy_rate = \"32 MiB/s\"\n\
         [device.data]\nbacking = \"array:scratch\"\nexport = \"fuse\"\n"
    );
    std::fs::write(machine.path("config.toml"), text).unwrap();
    machine
}

/// A mounted file system with what was written to it, over all kills.
struct Bench {
    machine: Machine,
    random: Random,
    writers: Vec<Writer>,
    /// Bytes that were read back, cold ones.
    cold_checked: usize,
}

impl Bench {
    fn new() -> Self {
        let machine = configured();
        arrays::create(&machine);
        let running = Running::start(&machine, None);
        let device = mounted::device(&running);
        let made = Command::new("mkfs.ext4").args(["-q", "-b", "4096"]).arg(&device).stdout(Stdio::null()).status();
        assert!(made.unwrap().success());
        let file_system = Mounted::mount(&device, &machine.path("mnt"));
        let mut cold = File::create(machine.path("mnt/cold")).unwrap();
        cold.write_all(&pattern(0, 1, COLD)).unwrap();
        cold.sync_all().unwrap();
        drop(cold);
        file_system.unmount();
        running.stop();
        Self {
            machine,
            random: Random::from_seed(23),
            writers: (0..WRITERS).map(Writer::new).collect(),
            cold_checked: 0,
        }
    }

    /// Everything that was synced is there. The file system was just mounted, so all of it comes from the device.
    fn check(&mut self, mount: &Path) {
        self.writers.iter_mut().for_each(|writer| writer.check(mount));
        let mut cold = Vec::new();
        File::open(mount.join("cold")).unwrap().read_to_end(&mut cold).unwrap();
        let lost = pattern(0, 1, COLD).iter().zip(&cold).filter(|(expected, found)| expected != found).count();
        assert!(cold.len() == COLD && lost == 0, "{lost} cold bytes are lost");
        self.cold_checked += COLD;
    }

    /// Mounts, which replays the journal, and checks files; also unmounted, every other time.
    fn mounted(&mut self, running: &Running, thoroughly: bool) -> Mounted {
        let (device, mount) = (mounted::device(running), self.machine.path("mnt"));
        let mut file_system = Mounted::mount(&device, &mount);
        self.check(&mount);
        if thoroughly {
            file_system.unmount();
            mounted::check_ext4(&device);
            file_system = Mounted::mount(&device, &mount);
        }
        file_system
    }

    fn start(&self) -> Running {
        let mut running = Running::start(&self.machine, None);
        assert!(!running.dead(), "the daemon does not start again: {}", self.machine.log());
        running
    }

    /// Starts, checks, lets everybody write while a member is replaced, and kills; whether that was in the middle of the copy.
    fn round(&mut self, number: usize) -> bool {
        let mut running = self.start();
        let file_system = self.mounted(&running, number.is_multiple_of(2));
        let (seen, mount) = (Seen::default(), self.machine.path("mnt"));
        let copying = std::thread::scope(|scope| {
            for writer in &mut self.writers {
                let (mount, seen) = (&mount, &seen);
                // It ends with an error, of one kind or another.
                scope.spawn(move || drop(writer.work(mount, seen)));
            }
            running.client.ask(&rotate(Some(number as u32 % MEMBERS as u32))).unwrap();
            let copying = copies_so_far(&running.client, self.random.unit() * 0.8);
            std::thread::sleep(Duration::from_millis(self.random.below(40)));
            let copying = copying && asked(&running.client).is_some_and(|status| !is_calm(&status));
            rounds::kill(&running, &seen);
            // The threads that wait for the device go on only when the process is gone.
            mounted::see_it_die(&self.machine, &mut running);
            copying
        });
        file_system.abandon();
        copying
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "the counts are what the test is for")]
fn kills_in_copies_under_a_mounted_file_system_keep_everything_that_was_synced() {
    if let Err(why) = mounted::possible() {
        eprintln!("skipped: {why}");
        return;
    }
    let (began, kills) = (Instant::now(), rounds::kills(8));
    let mut bench = Bench::new();
    let in_copies = (0..kills).filter(|number| bench.round(*number)).count();
    let running = bench.start();
    let file_system = bench.mounted(&running, true);
    eventually("all that was asked for is done", || is_calm(&asked(&running.client).unwrap()));
    file_system.unmount();
    bench.mounted(&running, true).unmount();
    assert_eq!(bench.machine.rented(), MEMBERS, "volumes are left");
    running.stop();
    arrays::delete(&bench.machine);
    let (synced, checked) =
        bench.writers.iter().fold((0, 0), |sum, writer| (sum.0 + writer.synced, sum.1 + writer.checked));
    eprintln!(
        "ext4 over an array: survived {kills} kills, {in_copies} of them in the middle of a copy, in {:.0?}; \
         {synced} marks made, {checked} checked, and {} MiB of cold bytes",
        began.elapsed(),
        bench.cold_checked as u64 / MIB
    );
    assert!(in_copies * 2 >= kills, "too few kills in copies: {in_copies} of {kills}");
    assert!(synced > kills as u64, "hardly anything was written");
}

/// The test above fails with each of these bugs in the daemon, by what it finds on the file system.
#[test]
#[expect(clippy::print_stderr, reason = "what was found is what the test is for")]
fn planted_bugs_of_copies_are_found_under_a_mounted_file_system() {
    if let Err(why) = mounted::possible() {
        eprintln!("skipped: {why}");
        return;
    }
    for bug in ["JoiningCounts", "WriteBehindCursor"] {
        eprintln!(
            "{bug}: {}",
            (0..CAMPAIGNS).find_map(|_| found(bug)).unwrap_or_else(|| panic!("{bug} was not found"))
        );
    }
}

/// What a campaign of kills finds with this bug, if it meets the bug.
fn found(bug: &str) -> Option<String> {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--nocapture"]);
    command.arg("arrays_mounted::kills_in_copies_under_a_mounted_file_system_keep_everything_that_was_synced");
    let ended = command.env(PLANT, bug).env("SURGETANK_KILLS", "24").stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    let finding = said.lines().find(|line| FINDINGS.iter().any(|finding| line.contains(finding)));
    assert!(ended.status.success() || finding.is_some(), "{bug} was found otherwise: {said}");
    finding.map(str::to_owned)
}
