//! The daemon is killed again and again in every phase of a boost, under writers that know every sector: everything
//! acknowledged is there after each restart, no volume is left behind, and the bill is right.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::common::child::Running;
use crate::common::rounds::{self, Histogram, Moment, Seen};
use crate::common::writers::{Counts, Writer};
use crate::common::{Machine, TIMEOUT};
use surgetank_model::random::Random;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 16 * MIB;
const WRITERS: u64 = 6;

/// Starts, lets everybody work and kills. Answers the moment at which that was.
fn round(machine: &Machine, writers: &mut [Writer], random: &mut Random, aim: Option<Moment>) -> Moment {
    let mut running = Running::start(machine, None);
    assert!(!running.dead(), "the daemon does not start again: {}", machine.log());
    let socket = running.socket.clone();
    let seen = Seen::default();
    let moment = std::thread::scope(|scope| {
        for writer in writers.iter_mut() {
            scope.spawn(|| writer.serve_itself(&socket, || seen.over()));
        }
        rounds::kill_at(machine, &running, &seen, random, aim)
    });
    assert!(running.was_killed(), "the daemon ended otherwise: {}", machine.log());
    moment
}

/// For how long volumes were there, whoever ran meanwhile.
struct Rented {
    ended: Arc<AtomicBool>,
    thread: JoinHandle<f64>,
}

impl Rented {
    fn watch(machine: &Machine) -> Self {
        let (directory, ended) = (machine.path("volumes"), Arc::new(AtomicBool::new(false)));
        let over = ended.clone();
        let thread = std::thread::spawn(move || {
            let (mut sum, mut last) = (0.0, Instant::now());
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
                let volumes = crate::common::images(&directory).len();
                sum += volumes as f64 * last.elapsed().as_secs_f64();
                last = Instant::now();
            }
            sum
        });
        Self { ended, thread }
    }

    fn seconds(self) -> f64 {
        self.ended.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

fn machine(policy: &str, cache: &str) -> (Machine, PathBuf) {
    let machine = Machine::new();
    let backing = machine.backing("backing", SIZE);
    rounds::configure(&machine, &backing, policy, cache, "nbd");
    (machine, backing)
}

/// After all kills: everything is there, also in the backing volume alone, and nothing is rented. Answers the bill, and what the
/// history says of it.
fn ends_well(machine: &Machine, backing: &Path, writers: &mut [Writer]) -> (f64, f64) {
    let mut running = Running::start(machine, None);
    let mut nbd = running.nbd().unwrap_or_else(|| panic!("the daemon does not start again: {}", machine.log()));
    for writer in writers.iter_mut() {
        writer.check(&mut nbd).unwrap();
    }
    rounds::deletes_everything(machine, &running);
    let billed_agbs = running.client.status().unwrap().devices[0].cost_agbs;
    let history = running.client.history(usize::MAX).unwrap();
    let told_agbs = history.devices[0].boosts.iter().filter_map(|boost| boost.cost_agbs).sum();
    running.stop();
    for writer in writers {
        writer.check_file(backing);
    }
    (billed_agbs, told_agbs)
}

#[expect(clippy::print_stderr, reason = "the counts are what the test is for")]
fn kill_under_load(policy: &str, cache_mib: u32, seed: u64) {
    let mut random = Random::from_seed(seed);
    let (machine, backing) = machine(policy, &format!("{cache_mib} MiB"));
    let mut writers = Writer::several(WRITERS, SIZE, seed);
    let mut moments = Histogram::default();
    let kills = rounds::kills(70);
    let began = Instant::now();
    let rented = Rented::watch(&machine);
    for round_number in 0..kills {
        let aim = rounds::aim(round_number);
        moments.add(round(&machine, &mut writers, &mut random, aim));
    }
    let (billed_agbs, told_agbs) = ends_well(&machine, &backing, &mut writers);
    let rented_s = rented.seconds();
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
    // What was billed for the backing volume is known; caching volumes cost over a hundred times as much.
    let backing_agbs = 16.0 / 1024.0 * 64.0 * began.elapsed().as_secs_f64();
    let caching_agbs = f64::from(cache_mib) / 1024.0 * 8192.0 * rented_s;
    let share = (billed_agbs - backing_agbs) / caching_agbs;
    eprintln!("{policy}: {rented_s:.1} s rented, billed {:.1} %", share * 100.0);
    // Asking for a volume and hearing that it is gone is billed as well; a rental lost or booked twice is far off.
    assert!((0.8..1.5).contains(&share), "the bill is wrong: {billed_agbs} AGBs, {rented_s} s rented");
    // A crash just before the end of a boost takes that boost from the history.
    let told = told_agbs / (billed_agbs - backing_agbs);
    eprintln!("{policy}: the history has {:.1} % of the bill", told * 100.0);
    assert!((0.7..1.05).contains(&told), "boosts of several runs are told with the cost of all: {told_agbs} AGBs");
    assert!(began.elapsed() < TIMEOUT * 60, "and it ends");
}

#[test]
fn kills_under_load_lose_nothing_with_a_cache_as_large_as_the_device() {
    kill_under_load("adaptive", 24, 11);
}

#[test]
fn kills_under_load_lose_nothing_with_a_cache_that_is_always_full() {
    kill_under_load("paper", 6, 12);
}
