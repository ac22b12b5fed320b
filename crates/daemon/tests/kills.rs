//! The daemon is killed again and again in every phase of a boost, under writers that know every sector: everything
//! acknowledged is there after each restart, no volume is left behind, and the bill is right.

mod common;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use common::child::{self, Running};
use common::rounds::{self, Histogram, Moment, Seen};
use common::writers::{Counts, Writer};
use common::{Machine, Nbd, PATIENCE};
use surgetank_model::random::Random;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 16 * MIB;
const WRITERS: u64 = 6;

/// Not a test by itself: the daemon that the others kill.
#[test]
fn daemon_in_a_child() {
    child::serve_if_asked();
}

/// Starts, lets everybody work and kills. Answers the moment at which that was.
fn round(machine: &Machine, writers: &mut [Writer], random: &mut Random, aim: Option<Moment>) -> Moment {
    let mut running = Running::start(machine, None);
    assert!(!running.dead(), "the daemon does not start again: {}", machine.log());
    let socket = running.socket.clone();
    let seen = Seen::default();
    let moment = std::thread::scope(|scope| {
        for writer in writers.iter_mut() {
            scope.spawn(|| write_until_killed(writer, &socket, &seen));
        }
        rounds::kill_at(machine, &running, &seen, random, aim)
    });
    assert!(running.was_killed(), "the daemon ended otherwise: {}", machine.log());
    moment
}

fn write_until_killed(writer: &mut Writer, socket: &Path, seen: &Seen) {
    let mut nbd = loop {
        match Nbd::connect(socket) {
            Ok(nbd) => break nbd,
            Err(_) if seen.over() => return,
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    if writer.check(&mut nbd).is_ok() {
        writer.work(&mut nbd);
    }
}

fn machine(policy: &str, cache: &str) -> (Machine, PathBuf) {
    let machine = Machine::new();
    let backing = machine.backing("backing", SIZE);
    rounds::configure(&machine, &backing, policy, cache, "nbd");
    (machine, backing)
}

/// After all kills: everything is there, also in the backing volume alone, and nothing is rented.
fn ends_well(machine: &Machine, backing: &Path, writers: &mut [Writer]) {
    let mut running = Running::start(machine, None);
    let mut nbd = running.nbd().unwrap_or_else(|| panic!("the daemon does not start again: {}", machine.log()));
    for writer in writers.iter_mut() {
        writer.check(&mut nbd).unwrap();
    }
    rounds::gives_everything_back(machine, &running);
    running.stop();
    for writer in writers {
        writer.check_file(backing);
    }
}

#[expect(clippy::print_stderr, reason = "the counts are what the test is for")]
fn kill_under_load(policy: &str, cache: &str, seed: u64) {
    let mut random = Random::from_seed(seed);
    let (machine, backing) = machine(policy, cache);
    let mut writers = Writer::several(WRITERS, SIZE, seed);
    let mut moments = Histogram::default();
    let kills = rounds::kills(70);
    let began = Instant::now();
    for round_number in 0..kills {
        let aim = rounds::aim(round_number);
        moments.add(round(&machine, &mut writers, &mut random, aim));
    }
    ends_well(&machine, &backing, &mut writers);
    let mut counts = Counts::default();
    writers.iter().for_each(|writer| counts.add(&writer.counts));
    eprintln!(
        "{policy}: survived {kills}/{kills} kills in {:.0?}; at the kill: {moments}; {} writes, {} flushes, {} zeroed, {} reads \
         ({} MiB checked); {} requests in flight at a kill, {} sectors of them had arrived",
        began.elapsed(),
        counts.writes,
        counts.flushes,
        counts.zeroed,
        counts.reads,
        counts.checked_bytes >> 20,
        counts.in_flight,
        counts.arrived,
    );
    moments.are_telling();
    assert!(began.elapsed() < PATIENCE * 60, "and it ends");
}

#[test]
fn kills_under_load_lose_nothing_with_a_cache_as_large_as_the_device() {
    kill_under_load("adaptive", "24 MiB", 11);
}

#[test]
fn kills_under_load_lose_nothing_with_a_cache_that_is_always_full() {
    kill_under_load("paper", "6 MiB", 12);
}
