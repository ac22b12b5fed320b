//! The daemon is killed without warning at every step of a boost's life cycle, and at random moments, and started
//! again: everything acknowledged is read back, no volume is left behind.
//!
//! The daemon runs in a child process: this test program itself, at its test `daemon_in_a_child`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::child::Running;
use crate::common::{Machine, Nbd, Shape, eventually, pattern};
use surgetank_daemon::{DevicePhase, Request};
use surgetank_model::random::Random;

const BLOCK: usize = 64 << 10;
const BLOCKS: u64 = 128;

/// Every point that a boost passes, in about this order. The second numbers are for points that are passed twice.
const POINTS: &[&str] = &[
    "create:before",
    "create:after",
    "created:after",
    "attach:before",
    "attach:after",
    "adopt:before",
    "owner:before",
    "owner:after",
    "adopt:after",
    "adopted:after",
    "drain:before",
    "drain:after",
    "release:before",
    "owner:before:2",
    "owner-untag:before",
    "owner:after:2",
    "release:after",
    "clean:before",
    "clean:after",
    "detach:before",
    "detach:after",
    "delete:before",
    "delete:after",
    "forget:before",
    "forget:after",
];

/// Points that a daemon passes which finds a dirty caching volume at its start.
const POINTS_OF_RECOVERY: &[&str] = &[
    "recover:before",
    "recover:after",
    "drain:after",
    "release:before",
    "owner:before",
    "owner-untag:before",
    "owner:after",
    "release:after",
    "clean:before",
    "clean:after",
    "detach:before",
    "detach:after",
    "delete:before",
    "delete:after",
    "forget:before",
    "forget:after",
];

/// Bytes that a write which a kill interrupts leaves old or new as a whole.
const SECTOR: usize = 512;

/// What the device must hold.
#[derive(Default)]
struct Oracle {
    /// By block.
    acknowledged: BTreeMap<u64, Vec<u8>>,
    /// Sent and not answered when the daemon died: each sector may be old or new.
    uncertain: Option<(u64, Vec<u8>)>,
    version: u64,
}

impl Oracle {
    /// Writes a block; false if the daemon died meanwhile.
    fn write(&mut self, nbd: &mut Nbd, block: u64) -> bool {
        self.version += 1;
        let offset = block * BLOCK as u64;
        let bytes = pattern(offset, self.version, BLOCK);
        if nbd.write(offset, &bytes).is_err() {
            self.uncertain = Some((block, bytes));
            return false;
        }
        self.acknowledged.insert(block, bytes);
        true
    }

    fn expects(&self, block: u64, bytes: &[u8]) -> bool {
        let old = self.acknowledged.get(&block);
        let new = self.uncertain.as_ref().filter(|(uncertain, _)| *uncertain == block).map(|(_, new)| new);
        bytes.chunks(SECTOR).enumerate().all(|(sector, bytes)| {
            let at = sector * SECTOR..(sector + 1) * SECTOR;
            let is_old = old.map_or_else(|| bytes.iter().all(|byte| *byte == 0), |old| bytes == &old[at.clone()]);
            is_old || new.is_some_and(|new| bytes == &new[at])
        })
    }

    /// Checks everything through the device; what is read of an uncertain block is certain from then on.
    fn check(&mut self, nbd: &mut Nbd, context: &str) {
        for block in 0..BLOCKS {
            let bytes = nbd.read(block * BLOCK as u64, BLOCK).unwrap_or_else(|error| panic!("{context}: {error}"));
            assert!(self.expects(block, &bytes), "{context}: block {block} is not what was acknowledged");
            if self.uncertain.as_ref().is_some_and(|(uncertain, _)| *uncertain == block) {
                self.acknowledged.insert(block, bytes);
            }
        }
        self.uncertain = None;
    }

    fn check_file(&self, path: &Path, context: &str) {
        let bytes = std::fs::read(path).unwrap();
        for (block, bytes) in bytes.chunks(BLOCK).enumerate().take(BLOCKS as usize) {
            assert!(self.expects(block as u64, bytes), "{context}: block {block} of the backing volume is wrong");
        }
    }
}

fn machine(policy: &str, volumes: u32) -> (Machine, PathBuf) {
    let machine = Machine::new();
    let backing = machine.backing("backing", 32 << 20);
    let mut shape = Shape { device: "throttle = true".to_owned(), ..Shape::default() };
    shape.policy += &format!("\nname = \"{policy}\"");
    shape.caching += &format!("\nvolumes = {volumes}");
    let text = machine.config_text(&[("data", backing.to_str().unwrap())], &shape);
    std::fs::write(machine.path("config.toml"), text).unwrap();
    (machine, backing)
}

/// A whole boost with writes before, during and after it, until it is over or the daemon has died. True: it died.
fn boost(running: &mut Running, oracle: &mut Oracle, random: &mut Random) -> bool {
    let Some(mut nbd) = running.nbd() else { return true };
    let mut write = |oracle: &mut Oracle, nbd: &mut Nbd| oracle.write(nbd, random.below(BLOCKS));
    for _ in 0..4 {
        if !write(oracle, &mut nbd) {
            return true;
        }
    }
    if running.client.ask(&Request::boost("data")).is_err() {
        return true;
    }
    eventually("boost", || running.phase() == Some(DevicePhase::Boost) || running.dead());
    for round in 0..40 {
        if !write(oracle, &mut nbd) || (round % 8 == 7 && nbd.flush().is_err()) {
            return true;
        }
    }
    if running.client.ask(&Request::Drain { device: "data".into() }).is_err() {
        return true;
    }
    for _ in 0..4 {
        if !write(oracle, &mut nbd) {
            return true;
        }
    }
    eventually("idle", || {
        // The last writes may have been taken for a new burst.
        let _ = running.client.ask(&Request::Drain { device: "data".into() });
        running.phase() == Some(DevicePhase::Idle) || running.dead()
    });
    running.dead()
}

fn start_again(machine: &Machine, context: &str) -> (Running, Nbd) {
    let mut running = Running::start(machine, None);
    let nbd = running.nbd().unwrap_or_else(|| {
        let log = std::fs::read_to_string(machine.path("log")).unwrap();
        panic!("{context}: the daemon does not start again: {log}")
    });
    (running, nbd)
}

/// Starts the daemon again: everything is there, the volume is deleted, the backing volume alone holds it all.
fn recovers(machine: &Machine, backing: &Path, oracle: &mut Oracle, context: &str) {
    let (running, mut nbd) = start_again(machine, context);
    oracle.check(&mut nbd, context);
    eventually(&format!("{context}: idle"), || {
        // Refused while the volume is being read back.
        let _ = running.client.ask(&Request::Drain { device: "data".into() });
        running.phase() == Some(DevicePhase::Idle)
    });
    assert_eq!(machine.rented(), 0, "{context}: a volume was left behind");
    oracle.check(&mut nbd, context);
    running.stop();
    oracle.check_file(backing, context);
}

/// Between the calls on the members of a stripe, in the order in which a boost makes them.
const POINTS_OF_MEMBERS: &[&str] = &[
    "member:after:1",
    "member:after:3",
    "member:after:7",
    "member:after:10",
    "member:after:15",
    "member:after:19",
    "member:after:23",
    "member:after:29",
    "member:after:34",
    "member:after:39",
    "member:after:42",
];

fn kill_at_every_step(volumes: u32, points: &[&str]) {
    for point in points {
        let (machine, backing) = machine("adaptive", volumes);
        let (mut oracle, mut random) = (Oracle::default(), Random::from_seed(1));
        let mut running = Running::start(&machine, Some(point));
        assert!(boost(&mut running, &mut oracle, &mut random), "{point} was not passed");
        assert!(running.was_killed(), "{point}: the daemon ended otherwise");
        recovers(&machine, &backing, &mut oracle, point);
    }
}

#[test]
fn a_kill_at_every_step_loses_nothing_and_leaves_nothing() {
    kill_at_every_step(1, POINTS);
}

#[test]
fn a_kill_at_every_step_of_a_striped_boost_loses_nothing_and_leaves_nothing() {
    kill_at_every_step(4, POINTS);
    kill_at_every_step(4, POINTS_OF_MEMBERS);
}

#[test]
fn a_second_kill_while_recovering_changes_nothing() {
    for point in POINTS_OF_RECOVERY {
        let (machine, backing) = machine("paper", 1);
        let (mut oracle, mut random) = (Oracle::default(), Random::from_seed(2));
        let mut running = Running::start(&machine, Some("drain:before"));
        assert!(boost(&mut running, &mut oracle, &mut random));
        assert!(running.was_killed());
        let mut again = Running::start(&machine, Some(point));
        eventually(&format!("{point} is passed"), || again.dead());
        let log = || std::fs::read_to_string(machine.path("log")).unwrap();
        assert!(again.was_killed(), "{point}: the daemon ended otherwise: {}", log());
        recovers(&machine, &backing, &mut oracle, point);
    }
}

/// Kills one daemon after the other; `SURGETANK_KILLS` asks for more than the usual number.
fn kill_at_random(policy: &str, volumes: u32, seed: u64) {
    let kills = std::env::var("SURGETANK_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(10);
    let mut random = Random::from_seed(seed);
    let (machine, backing) = machine(policy, volumes);
    let mut oracle = Oracle::default();
    for round in 0..kills {
        let context = format!("{policy} {seed}, round {round}");
        let (mut running, mut nbd) = start_again(&machine, &context);
        oracle.check(&mut nbd, &context);
        let killer = {
            let (pid, delay) = (running.child.id(), Duration::from_millis(random.below(900)));
            std::thread::spawn(move || {
                std::thread::sleep(delay);
                // SAFETY: signals our own child, which is waited for only after this thread has ended.
                unsafe { libc::kill(pid as i32, libc::SIGKILL) };
            })
        };
        while !boost(&mut running, &mut oracle, &mut random) {}
        killer.join().unwrap();
        let log = || std::fs::read_to_string(machine.path("log")).unwrap();
        assert!(running.was_killed(), "{context}: the daemon ended otherwise: {}", log());
    }
    recovers(&machine, &backing, &mut oracle, &format!("{policy} {seed}, at the end"));
}

#[test]
fn kills_at_random_moments_lose_nothing_and_leave_nothing() {
    kill_at_random("paper", 1, 3);
    kill_at_random("adaptive", 1, 4);
    kill_at_random("adaptive", 4, 5);
}
