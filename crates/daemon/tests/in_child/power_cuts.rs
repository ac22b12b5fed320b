//! Power cuts at the steps of a boost over the device mapper: from the switch to the daemon to the one back.
//!
//! A guest's disks forget a part of what was not flushed when its power is cut. The next guest boots over what is left: the map
//! rule runs as at a boot, and everything that was acknowledged after a flush must be read, through the map that it made and
//! on the backing volume after a drain. The host knows what that is; the guests' programs do not.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::child::Running;
use crate::common::mapped::{self, CALM, MAPPED, SLOW};
use crate::common::{Ends, Machine, eventually, guest, mounted};
use lab::power_cut::{self, Acks, BLOCK, Fault, LossyDisk, Lost, Server, Stretch, acks};
use lab::{Disk, Guest, Interrupt, Lab, Media, Plan, messages};
use serde::{Deserialize, Serialize};
use surgetank_daemon::boot::{self, BootMap};
use surgetank_daemon::{DevicePhase, Request};
use surgetank_model::Bytes;
use surgetank_model::random::Random;
use surgetank_rental::planted;

/// A step at which the power is cut, and whether the next boot maps the device straight: its newest data are on the backing
/// volume then. The first few are in `make test`.
const STEPS: [(&str, bool); 19] = [
    ("drain:before", false),
    ("switch-out:suspended", true),
    ("switch-in:loaded", true),
    ("switch-in:before", true),
    ("switch-in:up", true),
    ("switch-in:after", true),
    ("create:after", true),
    ("attach:after", true),
    ("adopt:before", true),
    ("owner:before", true),
    ("owner:after", false),
    ("adopt:after", false),
    ("drain:after", false),
    ("release:before", false),
    ("owner:before:2", false),
    ("owner:after:2", true),
    ("switch-out:loaded", true),
    ("switch-out:after", true),
    ("switch-out:ended", true),
];

const WRITERS: u64 = 4;
const STRETCH_BLOCKS: u64 = 8192;
/// Operations of one life are numbered from a multiple of this: no life begins so many.
const OPERATIONS: u64 = 1 << 24;
/// Far more than a guest takes to boot, to judge and to come to its step.
const TIMEOUT: Duration = Duration::from_secs(240);

const LIFE: &str = "life";
const VERDICT: &str = "verdict";
const STOPPED: &str = "stopped";
/// Where a guest has its machine.
const STATE: &str = "/run/state";

/// What a guest is to do.
#[derive(Serialize, Deserialize)]
struct Life {
    /// The disks are new.
    first: bool,
    /// Where the power will be cut; `None`: nowhere.
    step: Option<String>,
    /// What was written and must be there.
    stretches: Vec<Stretch>,
    /// The first operation that no life before has begun.
    ends: u64,
}

/// What it found.
#[derive(Default, Serialize, Deserialize)]
struct Verdict {
    /// The map rule mapped the device straight.
    straight: bool,
    /// What would have been wrong if it had mapped straight what it left to the daemon.
    found_out: usize,
    /// Through that map, or the daemon that it was left to.
    device: Vec<Fault>,
    /// On the backing volume, after a drain.
    backing: Vec<Fault>,
    /// What must be there from now on.
    stretches: Vec<Stretch>,
}

#[test]
#[ignore = "takes minutes where QEMU emulates; `make lab` runs it"]
fn a_power_cut_at_any_step_of_a_switch_loses_nothing() {
    let Some(lab) = guest::lab() else { return };
    let (mut host, began) = (Host::new(lab), Instant::now());
    let cuts = std::env::var("SURGETANK_CUTS").ok().and_then(|text| text.parse().ok()).unwrap_or(2);
    let (mut straight, mut must_be_found, mut found_out) = (0, 0, 0);
    let mut before: Option<&(&str, bool)> = None;
    let steps = STEPS.iter().cycle().take(cuts).map(Some).chain([None]);
    for (number, next) in steps.enumerate() {
        let what = before.map_or_else(|| "the first boot".to_owned(), |(step, _)| format!("cut {number}, at {step}"));
        let (guest, verdict) = host.verdict(next.map(|(step, _)| *step));
        assert_eq!((&verdict.device, &verdict.backing), (&Vec::new(), &Vec::new()), "{what}");
        assert_eq!(verdict.straight, before.is_none_or(|(_, straight)| *straight), "the map after {what}");
        straight += usize::from(verdict.straight && before.is_some());
        found_out += verdict.found_out;
        host.stretches = verdict.stretches;
        if next.is_some() {
            host.cut(guest);
            must_be_found += host.must_be_found();
        }
        before = next;
    }
    assert!(straight == cuts || found_out > 0, "a map rule that is wrong is not found out");
    let Lost { pending_bytes, lost_bytes } = host.lost;
    eprintln!(
        "dm: {cuts} power cuts at {} steps in {:.0?}: the next boot mapped straight after {straight}, and left {} to the daemon; of \
         {} MiB that were not flushed the disks lost {} MiB; of {} MiB that were nothing was lost",
        cuts.min(STEPS.len()),
        began.elapsed(),
        cuts - straight,
        pending_bytes >> 20,
        lost_bytes >> 20,
        must_be_found >> 20
    );
}

/// The disks of a guest, and what must be on them.
struct Host {
    lab: Lab,
    interrupt: Interrupt,
    disks: Vec<(&'static str, Bytes, Server<LossyDisk>)>,
    /// Dropped after the disks, whose sockets are in it.
    directory: tempfile::TempDir,
    stretches: Vec<Stretch>,
    lives: u64,
    random: Random,
    lost: Lost,
}

impl Host {
    fn new(lab: Lab) -> Self {
        let directory = lab.directory().unwrap();
        let disk = |(name, mib)| {
            let size = Bytes::from_mib(mib);
            (name, size, LossyDisk::serve(directory.path(), name, size).unwrap())
        };
        let disks = [("slow", (WRITERS * STRETCH_BLOCKS * BLOCK as u64) >> 20), ("state", 128)].map(disk).into();
        let stretches = (0..WRITERS).map(|index| Stretch::new(7 + index, index * STRETCH_BLOCKS, STRETCH_BLOCKS));
        let stretches = stretches.collect();
        let (lost, random) = (Lost::default(), Random::from_seed(47));
        let interrupt = Interrupt::default();
        Self { lab, interrupt, disks, directory, stretches, lives: 0, random, lost }
    }

    /// Boots, and waits until the guest has judged what the last cut left.
    fn verdict(&self, step: Option<&str>) -> (Guest, Verdict) {
        let share = self.directory.path().join("share");
        std::fs::create_dir_all(&share).unwrap();
        for old in [VERDICT, STOPPED] {
            let _ = std::fs::remove_file(share.join(old));
        }
        let life = Life {
            first: self.lives == 0,
            step: step.map(str::to_owned),
            stretches: self.stretches.clone(),
            ends: self.lives * OPERATIONS + 1,
        };
        messages::tell(&share, LIFE, &life).unwrap();
        let disk = |(name, size, server): &(&str, Bytes, Server<LossyDisk>)| Disk {
            media: Media::Nbd(server.socket().to_owned()),
            ..Disk::new(name, *size)
        };
        let plan = Plan {
            disks: self.disks.iter().map(disk).collect(),
            results: Some(share),
            timeout: TIMEOUT,
            ..Plan::new("cut", guest::become_test("power_cuts::guest_life"))
        };
        let mut guest = plan.boot(&self.lab, &self.interrupt).unwrap();
        let verdict = self.wait(&mut guest, VERDICT);
        if step.is_none() {
            guest.wait(&self.interrupt).unwrap();
        }
        (guest, verdict)
    }

    fn wait<T: for<'a> Deserialize<'a>>(&self, guest: &mut Guest, message: &str) -> T {
        let heard = messages::wait(&self.interrupt, guest, message, TIMEOUT, || Ok(()));
        heard.unwrap_or_else(|error| panic!("{error:#}\n{}", guest.stderr()))
    }

    /// Cuts the power once the daemon stands still at its step. Of what was not flushed each disk keeps from all to nothing.
    fn cut(&mut self, mut guest: Guest) {
        let _step: String = self.wait(&mut guest, STOPPED);
        guest.cut_power();
        drop(guest);
        self.lives += 1;
        acks::take(&self.directory.path().join("share"), &mut self.stretches);
        let kept = [0.0, 0.1, 0.5, 0.9, 1.0][self.random.below(5) as usize];
        for (_, _, disk) in &self.disks {
            let Lost { pending_bytes, lost_bytes } = disk.medium().cut(&mut self.random, kept).unwrap();
            self.lost.pending_bytes += pending_bytes;
            self.lost.lost_bytes += lost_bytes;
        }
    }

    /// Bytes that were flushed.
    fn must_be_found(&self) -> u64 {
        let blocks = self.stretches.iter().flat_map(|stretch| &stretch.least).filter(|least| **least > 0);
        (blocks.count() * BLOCK) as u64
    }
}

#[test]
#[ignore = "runs in a guest"]
fn guest_life() {
    let life: Life = messages::host_told(LIFE).unwrap().unwrap();
    let machine = machine(life.first);
    let verdict = judge(&machine, &life);
    messages::tell_host(VERDICT, &verdict).unwrap();
    if let Some(step) = life.step.filter(|_| verdict.device.is_empty() && verdict.backing.is_empty()) {
        run_into(&machine, &step, &verdict.stretches, life.ends);
    }
}

/// The machine as the cut has left it, on a file system that is repaired first, as a boot does it.
fn machine(first: bool) -> Machine {
    let disk = "/dev/lab/state";
    if first {
        mounted::must("mkfs.ext4", &["-q", disk]);
    } else {
        power_cut::repair_ext4(&std::fs::canonicalize(disk).unwrap(), "-y").unwrap();
    }
    std::fs::create_dir_all(STATE).unwrap();
    mounted::must("mount", &[disk, STATE]);
    let machine = Machine::lasting(&Path::new(STATE).join("machine"));
    if first {
        mapped::configure(&machine, "24 MiB", CALM);
        // Who was never served is left to the daemon.
        mapped::start(&machine).stop();
    }
    machine
}

fn judge(machine: &Machine, life: &Life) -> Verdict {
    let mut verdict = Verdict { stretches: life.stretches.clone(), ..Verdict::default() };
    let map = || boot::map(&mapped::config(machine), &[]).unwrap().remove(0).1;
    let judge = |device, stretches: &mut _| power_cut::judge(Path::new(device), 0, stretches, life.ends).unwrap();
    verdict.straight = match map() {
        BootMap::Straight => true,
        BootMap::LeftToDaemon(_) => false,
        other => panic!("{other:?}"),
    };
    if !verdict.straight {
        // The judge is judged: a rule that does not look at the owner record must be found out.
        planted::plant(Some(planted::Bug::StraightAtBoot));
        assert_eq!(map(), BootMap::Straight);
        planted::plant(None);
        verdict.found_out = judge(MAPPED, &mut life.stretches.clone()).len();
        boot::unmap(&mapped::config(machine), "data").unwrap();
    }
    let left_to = (!verdict.straight).then(|| mapped::start(machine));
    verdict.device = judge(MAPPED, &mut verdict.stretches);
    if !verdict.device.is_empty() {
        return verdict;
    }
    let running = left_to.unwrap_or_else(|| mapped::start(machine));
    mapped::calm(machine, &running);
    running.stop();
    verdict.backing = judge(SLOW, &mut verdict.stretches);
    verdict
}

/// Boosts and drains under writers, until the daemon stands still at the step; then waits for the power cut.
fn run_into(machine: &Machine, step: &str, stretches: &[Stretch], from: u64) {
    let running = Running::start_and_stop(machine, step);
    let (over, flushes) = (AtomicBool::new(false), stretches.iter().map(|_| AtomicUsize::new(0)).collect::<Vec<_>>());
    std::thread::scope(|scope| {
        for (index, (stretch, flushes)) in stretches.iter().zip(&flushes).enumerate() {
            let over = &over;
            scope.spawn(move || {
                let (mut acks, mut next) = (Acks::in_guest().unwrap(), from);
                let written = power_cut::write(Path::new(MAPPED), stretch, &mut next, over, |number| {
                    flushes.fetch_add(1, Ordering::Relaxed);
                    acks.flushed(index, number)
                });
                written.unwrap();
            });
        }
        let _over = Ends(&over);
        scope.spawn(|| conduct(&running, &flushes, &over));
        eventually(step, || running.has_stopped());
        messages::tell_host(STOPPED, &step).unwrap();
        std::thread::sleep(TIMEOUT);
    });
}

/// People who boost and drain, so that something is flushed in either state.
fn conduct(running: &Running, flushes: &[AtomicUsize], over: &AtomicBool) {
    let wait_for_flushes = || {
        let before: Vec<usize> = flushes.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let flushed = || flushes.iter().zip(&before).all(|(count, before)| count.load(Ordering::Relaxed) > *before);
        while !flushed() && !over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let insist = |request: &Request, phase: DevicePhase| {
        while running.phase() != Some(phase) && !over.load(Ordering::Relaxed) {
            let _ = running.client.ask(request);
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    while !over.load(Ordering::Relaxed) {
        wait_for_flushes();
        insist(&Request::boost("data"), DevicePhase::Boost);
        wait_for_flushes();
        insist(&Request::Drain { device: "data".into() }, DevicePhase::Idle);
    }
}
