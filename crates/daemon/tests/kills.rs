//! The daemon is killed again and again in every phase of a boost, under writers that know every sector: everything
//! acknowledged is there after each restart, no volume is left behind, and the bill is right.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::child::{self, Running};
use common::writers::{Counts, Writer};
use common::{Machine, Nbd, PATIENCE, Shape, eventually};
use serde_json::Value;
use surgetank_daemon::{Client, Phase, Request};
use surgetank_model::random::Random;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 16 * MIB;
const WRITERS: u64 = 6;
/// How long a kill waits for the moment it is meant for.
const AIM_PATIENCE: Duration = Duration::from_secs(3);

/// Not a test by itself: the daemon that the others kill.
#[test]
fn daemon_in_a_child() {
    child::serve_if_asked();
}

/// Where a device is, seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    Idle,
    Attach,
    Adopt,
    Recover,
    Absorb,
    Drain,
    /// A drain or a release has just been called off.
    Cancel,
    Release,
    Detach,
    Delete,
}

const MOMENTS: [Moment; 10] = [
    Moment::Idle,
    Moment::Attach,
    Moment::Adopt,
    Moment::Recover,
    Moment::Absorb,
    Moment::Drain,
    Moment::Cancel,
    Moment::Release,
    Moment::Detach,
    Moment::Delete,
];

/// What the threads of a round tell each other.
#[derive(Default)]
struct Seen {
    phase: Mutex<Option<Phase>>,
    cancelled: Mutex<Option<Instant>>,
    over: AtomicBool,
}

impl Seen {
    fn over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn moment(&self, machine: &Machine) -> Moment {
        let journal = json(&machine.path("state/data/journal.json"));
        let phase = *self.phase.lock().unwrap();
        match journal["rental"]["stage"].as_str() {
            None => Moment::Idle,
            Some("creating" | "created" | "attaching" | "attached") => Moment::Attach,
            Some("adopting") => Moment::Adopt,
            Some("released" | "detaching") => Moment::Detach,
            Some("deleting") => Moment::Delete,
            Some("adopted") => {
                let cancelled = *self.cancelled.lock().unwrap();
                match phase {
                    None | Some(Phase::Attaching) => Moment::Recover,
                    _ if cancelled.is_some_and(|at| at.elapsed() < Duration::from_millis(40)) => Moment::Cancel,
                    Some(Phase::Drain) => Moment::Drain,
                    Some(Phase::Detaching) => Moment::Release,
                    Some(Phase::Idle | Phase::Boost | Phase::Degraded) => Moment::Absorb,
                }
            }
            Some(other) => panic!("the journal says {other}"),
        }
    }
}

/// A state file; they are replaced whole, so there is always a whole one.
fn json(path: &Path) -> Value {
    std::fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok()).unwrap_or_default()
}

/// Looks at the device all the time.
fn watch(client: &Client, seen: &Seen) {
    while !seen.over() {
        let Ok(status) = client.status() else { return };
        *seen.phase.lock().unwrap() = Some(status.devices[0].phase);
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Boosts, drains, detaches and changes its mind, until the daemon has died.
fn conduct(client: &Client, seen: &Seen, random: &mut Random) {
    let device = || "data".to_owned();
    let rest = |random: &mut Random, most: u64| std::thread::sleep(Duration::from_millis(random.below(most)));
    while !seen.over() {
        // Refused while the caching volume is read back.
        let _ = client.ask(&Request::Boost { device: device() });
        rest(random, 300);
        let end = if random.chance(0.5) {
            Request::Drain { device: device() }
        } else {
            Request::Detach { device: device(), accept_loss: false }
        };
        let _ = client.ask(&end);
        rest(random, 120);
        if random.chance(0.5) {
            let ending = matches!(*seen.phase.lock().unwrap(), Some(Phase::Drain | Phase::Detaching));
            if client.ask(&Request::Boost { device: device() }).is_ok() && ending {
                *seen.cancelled.lock().unwrap() = Some(Instant::now());
            }
            rest(random, 120);
        } else {
            rest(random, 400);
        }
    }
}

/// Waits for the moment, if there is one, and a little longer.
fn wait_for(aim: Option<Moment>, machine: &Machine, seen: &Seen, random: &mut Random) {
    let give_up = Instant::now() + AIM_PATIENCE;
    match aim {
        None => std::thread::sleep(Duration::from_millis(random.below(700))),
        Some(aim) => {
            while seen.moment(machine) != aim && Instant::now() < give_up {
                std::thread::sleep(Duration::from_micros(300));
            }
            std::thread::sleep(Duration::from_micros(random.below(12_000)));
        }
    }
}

/// Starts, lets everybody work and kills. Answers the moment at which that was.
fn round(machine: &Machine, writers: &mut [Writer], random: &mut Random, aim: Option<Moment>) -> Moment {
    let mut running = Running::start(machine, None);
    assert!(!running.dead(), "the daemon does not start again: {}", log(machine));
    let (seen, socket) = (Seen::default(), running.socket.clone());
    let moment = std::thread::scope(|scope| {
        for writer in writers.iter_mut() {
            let (socket, seen) = (&socket, &seen);
            scope.spawn(move || {
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
            });
        }
        let (client, mut conducting) = (running.client.clone(), Random::from_seed(random.next_u64()));
        scope.spawn(|| watch(&running.client, &seen));
        let seen = &seen;
        scope.spawn(move || conduct(&client, seen, &mut conducting));
        wait_for(aim, machine, seen, random);
        let moment = seen.moment(machine);
        // SAFETY: signals our own child, which is not waited for yet.
        unsafe { libc::kill(running.child.id() as i32, libc::SIGKILL) };
        seen.over.store(true, Ordering::Relaxed);
        moment
    });
    assert!(running.was_killed(), "the daemon ended otherwise: {}", log(machine));
    moment
}

fn log(machine: &Machine) -> String {
    std::fs::read_to_string(machine.path("log")).unwrap_or_default()
}

fn machine(policy: &str, cache: &str) -> (Machine, PathBuf) {
    let machine = Machine::new();
    let backing = machine.backing("backing", SIZE);
    let mut shape = Shape {
        provider: "create_latency = \"20 ms\"\nattach_latency = \"40 ms\"\ndetach_latency = \"30 ms\"\n\
                   delete_latency = \"20 ms\""
            .to_owned(),
        device: "throttle = true".to_owned(),
        caching: format!("initial_size = \"{cache}\"\nmax_size = \"{cache}\"\nbandwidth = \"8 GiB/s\""),
        ..Shape::default()
    };
    shape.policy += &format!("\nname = \"{policy}\"\nboost_interval = \"1 ms\"");
    let text = machine.config_text(&[("data", backing.to_str().unwrap())], &shape);
    std::fs::write(machine.path("config.toml"), text.replace("\"33 MiB/s\"", "\"64 MiB/s\"")).unwrap();
    (machine, backing)
}

/// After all kills: everything is there, also in the backing volume alone, and nothing is rented.
fn ends_well(machine: &Machine, backing: &Path, writers: &mut [Writer]) {
    let mut running = Running::start(machine, None);
    let mut nbd = running.nbd().unwrap_or_else(|| panic!("the daemon does not start again: {}", log(machine)));
    for writer in writers.iter_mut() {
        writer.check(&mut nbd).unwrap();
    }
    eventually("idle", || {
        // Refused while the volume is being read back.
        let _ = running.client.ask(&Request::Drain { device: "data".into() });
        running.phase() == Some(Phase::Idle)
    });
    assert_eq!(machine.rented(), 0, "a volume was left behind");
    eventually("no record is left behind", || {
        // A deletion takes its time; the provider looks when it is asked.
        let swept = running.client.gc().unwrap();
        assert_eq!(swept.deleted, [] as [String; 0], "a volume that nobody owned");
        machine.records().is_empty()
    });
    running.stop();
    for writer in writers {
        writer.check_file(backing);
    }
}

/// How many kills: `SURGETANK_KILLS` asks for more than the usual number.
fn kills(usual: usize) -> usize {
    std::env::var("SURGETANK_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}

#[expect(clippy::print_stderr, reason = "the counts are what the test is for")]
fn kill_under_load(policy: &str, cache: &str, seed: u64) {
    let mut random = Random::from_seed(seed);
    let (machine, backing) = machine(policy, cache);
    let mut writers = Writer::several(WRITERS, SIZE, seed);
    let mut moments = BTreeMap::<Moment, usize>::new();
    let kills = kills(70);
    let began = Instant::now();
    for round_number in 0..kills {
        // Every third at any time, the others aimed at one moment after the other.
        let aim = (round_number % 3 > 0).then(|| MOMENTS[round_number % MOMENTS.len()]);
        *moments.entry(round(&machine, &mut writers, &mut random, aim)).or_default() += 1;
    }
    ends_well(&machine, &backing, &mut writers);
    let mut counts = Counts::default();
    writers.iter().for_each(|writer| counts.add(&writer.counts));
    let histogram: Vec<String> = moments.iter().map(|(moment, count)| format!("{moment:?} {count}")).collect();
    eprintln!(
        "{policy}: survived {kills}/{kills} kills in {:.0?}; at the kill: {}; {} writes, {} flushes, {} zeroed, {} reads \
         ({} MiB checked); {} requests in flight at a kill, {} sectors of them had arrived",
        began.elapsed(),
        histogram.join(", "),
        counts.writes,
        counts.flushes,
        counts.zeroed,
        counts.reads,
        counts.checked_bytes >> 20,
        counts.in_flight,
        counts.arrived,
    );
    let boosted: usize = moments.iter().filter(|(moment, _)| **moment != Moment::Idle).map(|(_, count)| count).sum();
    assert!(boosted * 2 > kills, "most kills must fall into boosts: {moments:?}");
    let kinds = [Moment::Attach, Moment::Absorb, Moment::Drain, Moment::Detach];
    assert!(kills < 60 || kinds.iter().all(|kind| moments.contains_key(kind)), "a phase was never hit: {moments:?}");
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
