//! Boosts share what the machine has for read caches: these become smaller before a caching volume is rented, and there is never more on disk than
//! the budget.

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use crate::common::failing::faults_on;
use crate::common::{Ends, MIB, Machine, connect, drain, eventually, fill, find, insist, pattern, status};
use surgetank_daemon::opening::Purpose;
use surgetank_daemon::read_caches::status::ShareStatus;
use surgetank_daemon::{Config, Daemon, DevicePhase, Request};
use surgetank_device::Faults;
use surgetank_device::volume::fault::{Effect, Kinds, Rule};

/// Of each device, and what is read of it again and again: most of what its cache may have.
const SIZE: u64 = 64 * MIB;
const HOT: u64 = 20 * MIB;
/// What the machine has for all.
const BUDGET: u64 = 48 * MIB;
const BOOST: u64 = 24 * MIB;
const BLOCK: u64 = 64 << 10;

/// Boosts begin when somebody asks for one: nobody uses the backing volumes as much as they are said to give.
fn config(machine: &Machine, boosts: &str) -> Config {
    let root = machine.directory.path().display();
    let mut text = format!(
        "state_directory = \"{root}/state\"\nrun_directory = \"{root}/run\"\n\
         [allocation]\ncache = \"48 MiB\"\ninterval = \"1 s\"\n{boosts}\n\
         [provider.local]\ndirectory = \"{root}/volumes\"\n\
         [provider.local.types.tiny]\nbandwidth = \"400 MiB/s\"\npreallocate = false\n\
         [provider.local.types.whole]\nbandwidth = \"400 MiB/s\"\n"
    );
    for name in ["a", "b"] {
        let file = std::fs::File::create(machine.path(name)).unwrap();
        for at in (0..SIZE).step_by(MIB as usize) {
            file.write_all_at(&pattern(at / MIB, 1, MIB as usize), at).unwrap();
        }
        text += &format!(
            "[device.{name}]\nbacking = \"{root}/{name}\"\nexport = \"nbd\"\nbacking_limits = {{ bandwidth = \"100 GiB/s\" }}\n\
             [device.{name}.read_cache]\nvolume_type = \"tiny\"\nmembers = 1\nmember_size = \"56 MiB\"\nthrottle = false\ntimeout = \"60 s\"\n\
             [device.{name}.caching]\nvolume_type = \"whole\"\ninitial_size = \"24 MiB\"\nthrottle = false\n\
             [device.{name}.policy]\nname = \"paper\"\nutilization_threshold = 1.0\nsampling = \"20 ms\"\ninactivity_delay = \"30 s\"\nsize_grain = \"1 MiB\"\nretry_first = \"100 ms\"\n\
             retry_longest = \"200 ms\"\n"
        );
    }
    Config::from_text(Path::new("test.toml"), &text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn share(daemon: &Daemon, device: &str) -> ShareStatus {
    status(daemon, device).read_cache.and_then(|cache| cache.share).unwrap_or_default()
}

fn mib(gib: f64) -> u64 {
    (gib * 1024.0).round() as u64
}

/// Reads a part of a device in turn until it is over, so that its cache takes that in.
fn read(machine: &Machine, device: &str, over: &AtomicBool) {
    let mut nbd = connect(machine, device);
    for at in (0..HOT).step_by(BLOCK as usize).cycle() {
        if over.load(Ordering::Relaxed) {
            return;
        }
        let (block, from) = (at / MIB, (at % MIB) as usize);
        let bytes = nbd.read(at, BLOCK as usize).unwrap();
        let [first, second] =
            [1, 2].map(|version| pattern(block, version, MIB as usize)[from..][..BLOCK as usize].to_vec());
        // A write that is under way may be there in part: each sector is old or new.
        let mut sectors = bytes.chunks(512).zip(first.chunks(512)).zip(second.chunks(512));
        let known = |((read, first), second)| read == first || (device == "a" && read == second);
        assert!(sectors.all(known), "{device} reads something else at {at}");
    }
}

/// Looks at what is on disk until it is over.
fn measure(machine: &Machine, over: &AtomicBool) -> u64 {
    let mut most = 0;
    while !over.load(Ordering::Relaxed) {
        most = most.max(machine.on_disk());
        std::thread::sleep(Duration::from_millis(1));
    }
    most
}

/// A daemon with boosts that share. Its caches cannot become smaller while their discards are stuck.
struct World {
    machine: Machine,
    faults: Faults,
    daemon: Daemon,
}

impl World {
    fn start() -> Self {
        let (machine, faults) = (Machine::new(), Faults::new(1).unwrap());
        let overrides = faults_on(Purpose::ReadCache, &faults);
        let daemon = Daemon::start_with(config(&machine, "boosts = true"), overrides).unwrap();
        Self { machine, faults, daemon }
    }

    /// Has both devices read until it is over, and waits until their caches have more than they may have beside a boost.
    fn fill_caches<'scope, 'env>(
        &'env self,
        scope: &'scope Scope<'scope, 'env>,
        over: &'env AtomicBool,
    ) -> [ScopedJoinHandle<'scope, ()>; 2] {
        let readers = ["a", "b"].map(|device| scope.spawn(move || read(&self.machine, device, over)));
        eventually("the caches have more than they may have beside a boost", || {
            self.machine.on_disk() > BUDGET - BOOST + 8 * MIB
        });
        readers
    }
}

#[test]
fn a_boost_rents_when_read_caches_have_become_smaller_and_they_have_its_room_again() {
    let world = World::start();
    let World { machine, faults, daemon } = &world;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Ends(&over);
        let readers = world.fill_caches(scope, &over);
        let measured = scope.spawn(|| measure(machine, &over));
        // The caches cannot become smaller, and so long nothing is rented.
        let stuck = faults.add(Rule::always(Kinds::Zeroing, Effect::Stuck));
        insist(daemon, &Request::boost("a"));
        eventually("they are to become smaller", || faults.stuck() > 0);
        for _ in 0..50 {
            std::thread::sleep(Duration::from_millis(5));
            let a = status(daemon, "a");
            assert_eq!((a.phase, machine.rented()), (DevicePhase::Attaching, 2));
            assert!(a.reason.is_some_and(|why| why.contains("waits until the read caches")));
        }
        faults.remove(stuck);
        faults.release();
        eventually("the boost", || status(daemon, "a").phase == DevicePhase::Boost);
        // They are asked one after the other, and may change meanwhile.
        let (mut a, mut b) = (ShareStatus::default(), ShareStatus::default());
        eventually("shares stand still for a moment", || {
            (a, b) = (share(daemon, "a"), share(daemon, "b"));
            share(daemon, "a").size_gib == a.size_gib
        });
        assert!(mib(a.size_gib) + mib(b.size_gib) <= (BUDGET - BOOST) / MIB, "{a:?} {b:?}");
        assert_eq!((mib(a.fair_gib), mib(a.boosts_gib)), (12, 24));
        // What is left beside both and the least shares is too small for another one.
        let why = daemon.handle(Request::boost("b")).unwrap_err();
        assert!(
            why.contains("the budget of 48 MiB that read caches and boosts share") && why.contains("leave 16 MiB"),
            "{why}"
        );
        let mut nbd = connect(machine, "a");
        fill(&mut nbd, 16, 2);
        find(&mut nbd, 16, 2);
        drain(daemon, "a");
        eventually("the caches have all of it again", || {
            mib(share(daemon, "a").size_gib) + mib(share(daemon, "b").size_gib) == BUDGET / MIB
        });
        find(&mut nbd, 16, 2);
        insist(daemon, &Request::boost("b"));
        eventually("another boost", || status(daemon, "b").phase == DevicePhase::Boost);
        drain(daemon, "b");
        assert!(!readers.iter().any(ScopedJoinHandle::is_finished), "a reader has ended");
        over.store(true, Ordering::Relaxed);
        let most = measured.join().unwrap();
        assert!(most <= BUDGET, "{most} bytes were on disk");
    });
    world.daemon.stop();
}

#[test]
fn what_a_boost_has_rented_counts_after_a_restart_and_without_the_setting_nothing_does() {
    let machine = Machine::new();
    let daemon = Daemon::start(config(&machine, "boosts = true")).unwrap();
    insist(&daemon, &Request::boost("a"));
    eventually("the boost", || status(&daemon, "a").phase == DevicePhase::Boost);
    let mut nbd = connect(&machine, "a");
    fill(&mut nbd, 8, 2);
    nbd.flush().unwrap();
    // Dirty data stays on the caching volume.
    daemon.stop();
    let daemon = Daemon::start(config(&machine, "boosts = true")).unwrap();
    let b = share(&daemon, "b");
    assert_eq!((mib(b.size_gib), mib(b.boosts_gib)), (12, 24));
    drain(&daemon, "a");
    let mut nbd = connect(&machine, "a");
    find(&mut nbd, 8, 2);
    eventually("the caches have its room", || mib(share(&daemon, "b").size_gib) == 24);
    daemon.stop();
    let daemon = Daemon::start(config(&machine, "")).unwrap();
    for device in ["a", "b"] {
        insist(&daemon, &Request::boost(device));
        eventually("the boost", || status(&daemon, device).phase == DevicePhase::Boost);
    }
    assert_eq!((mib(share(&daemon, "a").size_gib), mib(share(&daemon, "a").boosts_gib)), (24, 0));
    ["a", "b"].iter().for_each(|device| drain(&daemon, device));
    daemon.stop();
}

/// Nothing was asked of the provider.
#[test]
fn a_boost_that_waits_for_room_is_called_off_by_a_drain_and_keeps_no_room() {
    let world = World::start();
    let World { machine, faults, daemon } = &world;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = Ends(&over);
        world.fill_caches(scope, &over);
        let stuck = faults.add(Rule::always(Kinds::Zeroing, Effect::Stuck));
        insist(daemon, &Request::boost("a"));
        eventually("it waits", || {
            status(daemon, "a").reason.is_some_and(|why| why.contains("waits until the read caches"))
        });
        drain(daemon, "a");
        assert_eq!((mib(share(daemon, "b").boosts_gib), machine.rented()), (0, 2));
        faults.remove(stuck);
        faults.release();
        insist(daemon, &Request::boost("a"));
        eventually("the boost", || status(daemon, "a").phase == DevicePhase::Boost);
        drain(daemon, "a");
    });
    world.daemon.stop();
}
