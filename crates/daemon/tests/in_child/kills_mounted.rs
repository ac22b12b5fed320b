//! The daemon is killed again and again under a mounted ext4 on its block device. After each kill the file system is
//! unmounted, the daemon started, the journal replayed: every file that was synced is there, and e2fsck finds nothing.

use std::process::{Command, Stdio};
use std::time::Instant;

use crate::common::Machine;
use crate::common::child::Running;
use crate::common::files::Writer;
use crate::common::mounted::{self, Mounted};
use crate::common::rounds::{self, Histogram, Seen};
use surgetank_model::random::Random;

const SIZE: u64 = 96 << 20;
const WRITERS: u64 = 3;

/// Starts, replays the journal, checks, lets everybody work and kills.
fn round(machine: &Machine, writers: &mut [Writer], random: &mut Random, number: usize, moments: &mut Histogram) {
    let mut running = Running::start(machine, None);
    assert!(!running.dead(), "the daemon does not start again: {}", machine.log());
    let device = mounted::device(&running);
    let mount = machine.path("mnt");
    let mut file_system = Mounted::mount(&device, &mount);
    writers.iter_mut().for_each(|writer| writer.check(&mount));
    if number.is_multiple_of(2) {
        file_system.unmount();
        mounted::check_ext4(&device);
        file_system = Mounted::mount(&device, &mount);
    }
    let seen = Seen::default();
    let moment = std::thread::scope(|scope| {
        for writer in writers.iter_mut() {
            let (mount, seen) = (&mount, &seen);
            // It ends with an error, of one kind or another.
            scope.spawn(move || drop(writer.work(mount, seen)));
        }
        let moment = rounds::kill_at(machine, &running, &seen, random, rounds::aim(number));
        // The threads that wait for the device go on only when the process is gone.
        mounted::see_it_die(machine, &mut running);
        moment
    });
    moments.add(moment);
    file_system.abandon();
}

#[test]
#[expect(clippy::print_stderr, reason = "the counts are what the test is for")]
fn kills_under_a_mounted_file_system_keep_everything_that_was_synced() {
    if let Err(why) = mounted::possible() {
        eprintln!("skipped: {why}");
        return;
    }
    let machine = Machine::new();
    let backing = machine.backing("backing", SIZE);
    rounds::configure(&machine, &backing, "adaptive", "32 MiB", "fuse");
    let made = Command::new("mkfs.ext4").args(["-q", "-b", "4096"]).arg(&backing).stdout(Stdio::null()).status();
    assert!(made.unwrap().success());
    let mut random = Random::from_seed(21);
    let mut writers: Vec<Writer> = (0..WRITERS).map(Writer::new).collect();
    let (mut moments, kills, began) = (Histogram::default(), rounds::kills(30), Instant::now());
    for number in 0..kills {
        round(&machine, &mut writers, &mut random, number, &mut moments);
    }
    let running = Running::start(&machine, None);
    let mount = machine.path("mnt");
    let file_system = Mounted::mount(&mounted::device(&running), &mount);
    writers.iter_mut().for_each(|writer| writer.check(&mount));
    file_system.unmount();
    rounds::deletes_everything(&machine, &running);
    running.stop();
    mounted::check_ext4(&backing);
    let (synced, checked) = writers.iter().fold((0, 0), |sum, writer| (sum.0 + writer.synced, sum.1 + writer.checked));
    eprintln!(
        "ext4: survived {kills}/{kills} kills in {:.0?}; at the kill: {moments}; {synced} marks made, {checked} checked",
        began.elapsed()
    );
    moments.are_telling();
    assert!(synced > kills as u64, "hardly anything was written");
}
