//! A device whose caching volumes lie in a staging pool, of which this process runs a whole one.

use std::ops::Range;
use std::path::Path;

use crate::common::child::Running;
use crate::common::{MIB, Machine, TIMEOUT, boost, connect, drain, eventually, fill, find, insist, status};
use surgetank_daemon::{Config, Daemon, DevicePhase, Request};
use surgetank_model::Bytes;
use surgetank_pool::client::{self, PoolClient};
use surgetank_pool::local::{self, Local};

/// Steps of a boost at which a daemon is killed.
const POINTS: &[&str] = &[
    "create:after",
    "attach:after",
    "owner:before",
    "adopt:after",
    "clean:before",
    "detach:after",
    "delete:before",
    "delete:after",
];

struct World {
    machine: Machine,
    pool: Local,
    /// Chunks that it has room for when nothing is in it.
    room: u64,
}

impl World {
    fn new(benefactors: u32, memory_mib: u64) -> Self {
        let machine = Machine::new();
        let at = machine.path("pool");
        let config = local::Config::of_memory(at, "127.0.0.1:0", benefactors, Bytes::from_mib(memory_mib));
        let pool = Local::start(&config).unwrap();
        pool.wait_joined(benefactors as usize, TIMEOUT).unwrap();
        std::fs::create_dir(machine.path("target")).unwrap();
        let backing = machine.backing("backing", 64 * MIB);
        let root = machine.path("").display().to_string();
        let text = format!(
            "state_directory = \"{root}state\"\nrun_directory = \"{root}run\"\n\
             [provider.pool]\naddress = \"pool://{}\"\ntoken_file = \"{root}pool/key\"\ntarget = \"{root}target\"\n\
             [device.data]\nbacking = \"{}\"\nexport = \"nbd\"\n\
             [device.data.backing_limits]\nbandwidth = \"33 MiB/s\"\n\
             [device.data.caching]\nprovider = \"pool\"\nbandwidth = \"128 MiB/s\"\ninitial_size = \"32 MiB\"\n\
             [device.data.policy]\nsampling = \"20 ms\"\ninactivity_delay = \"30 s\"\nsize_grain = \"1 MiB\"\n\
             retry_first = \"100 ms\"\nretry_longest = \"200 ms\"\n",
            pool.address(),
            backing.display()
        );
        std::fs::write(machine.path("config.toml"), text).unwrap();
        let mut world = Self { machine, pool, room: 0 };
        world.room = world.free();
        world
    }

    fn config(&self) -> Config {
        Config::load(Path::new(&self.machine.path("config.toml"))).unwrap()
    }

    fn free(&self) -> u64 {
        let config = client::Config::new(vec![self.pool.address().to_owned()], self.pool.access().clone(), "");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let status = runtime.block_on(PoolClient::ask_status(&config)).unwrap();
        status.benefactors.iter().map(|(_, credits)| credits).sum()
    }

    /// What this machine's daemon has rented.
    fn rented(&self) -> usize {
        self.machine.rented_in_pool(self.pool.address())
    }

    /// The daemon has drained what a killed one left.
    fn is_recovered_by(&self, daemon: &Daemon) {
        eventually("idle", || status(daemon, "data").phase == DevicePhase::Idle);
    }

    /// The backing volume has what [`fill`] wrote.
    fn backing_has(&self, blocks: Range<u64>, version: u64) {
        let bytes = std::fs::read(self.machine.path("backing")).unwrap();
        for block in blocks {
            let found = &bytes[(block * MIB) as usize..][..MIB as usize];
            assert!(found == crate::common::pattern(block, version, MIB as usize), "{block}");
        }
    }

    /// Nothing is rented, no benefactor has anything, and the target has nothing of a volume.
    fn is_empty_again(&self, room: u64) {
        assert_eq!(self.rented(), 0);
        eventually("all room is free again", || self.free() == room);
        let left = || std::fs::read_dir(self.machine.path("target/volumes")).map_or(0, Iterator::count);
        eventually("the target has no volume", || left() == 0);
    }
}

#[test]
fn a_burst_is_absorbed_by_the_pool_and_drained_and_all_room_is_free_again() {
    let world = World::new(2, 96);
    let daemon = Daemon::start(world.config()).unwrap();
    boost(&daemon, "data");
    assert_eq!(world.rented(), 1);
    let mut nbd = connect(&world.machine, "data");
    fill(&mut nbd, 16, 1);
    nbd.flush().unwrap();
    // Benefactors tell of their room now and then.
    eventually("the bytes are in the pool, twice", || world.free() + 2 * 16 <= world.room);
    find(&mut nbd, 16, 1);
    drain(&daemon, "data");
    daemon.stop();
    world.backing_has(0..16, 1);
    world.is_empty_again(world.room);
}

#[test]
fn a_benefactor_that_dies_in_a_burst_loses_nothing_of_it() {
    let world = World::new(3, 96);
    let daemon = Daemon::start(world.config()).unwrap();
    boost(&daemon, "data");
    let mut nbd = connect(&world.machine, "data");
    fill(&mut nbd, 8, 1);
    nbd.flush().unwrap();
    assert!(world.pool.kill_benefactor(0));
    for block in 8..16 {
        nbd.write(block * MIB, &crate::common::pattern(block, 1, MIB as usize)).unwrap();
    }
    nbd.flush().unwrap();
    find(&mut nbd, 16, 1);
    drain(&daemon, "data");
    daemon.stop();
    world.backing_has(0..16, 1);
    world.is_empty_again(world.room / 3 * 2);
}

#[test]
fn a_daemon_that_is_killed_in_a_burst_finds_all_that_was_flushed_and_leaves_nothing_in_the_pool() {
    let world = World::new(2, 96);
    let mut running = Running::start(&world.machine, None);
    running.client.ask(&Request::boost("data")).unwrap();
    eventually("boost", || running.phase() == Some(DevicePhase::Boost));
    let mut nbd = running.nbd().unwrap();
    fill(&mut nbd, 12, 1);
    nbd.flush().unwrap();
    fill(&mut nbd, 4, 2);
    nbd.flush().unwrap();
    running.kill();
    assert_eq!(world.rented(), 1);
    let daemon = Daemon::start(world.config()).unwrap();
    world.is_recovered_by(&daemon);
    daemon.stop();
    world.backing_has(0..4, 2);
    world.backing_has(4..12, 1);
    world.is_empty_again(world.room);
}

#[test]
fn a_daemon_that_is_killed_at_a_step_of_a_boost_loses_nothing_and_leaves_nothing_in_the_pool() {
    let world = World::new(2, 96);
    for (version, point) in (1..).zip(POINTS) {
        let mut running = Running::start(&world.machine, Some(point));
        eventually("boost", || {
            let _ = running.client.ask(&Request::boost("data"));
            running.phase() == Some(DevicePhase::Boost) || running.dead()
        });
        let written = !running.dead();
        if written {
            let mut nbd = running.nbd().unwrap();
            fill(&mut nbd, 4, version);
            nbd.flush().unwrap();
            let _ = running.client.ask(&Request::Drain { device: "data".into() });
            eventually(point, || running.dead());
        }
        assert!(running.was_killed(), "{point}: the daemon ended otherwise: {}", world.machine.log());
        let daemon = Daemon::start(world.config()).unwrap();
        world.is_recovered_by(&daemon);
        eventually("nothing is rented", || daemon.handle(Request::Gc).is_ok() && world.rented() == 0);
        daemon.stop();
        if written {
            world.backing_has(0..4, version);
        }
    }
    world.is_empty_again(world.room);
}

#[test]
fn a_pool_without_room_refuses_the_boost_and_the_device_goes_on() {
    let world = World::new(2, 24);
    let daemon = Daemon::start(world.config()).unwrap();
    insist(&daemon, &Request::boost("data"));
    eventually("the refusal is told", || status(&daemon, "data").reason.is_some_and(|why| why.contains("no capacity")));
    let mut nbd = connect(&world.machine, "data");
    fill(&mut nbd, 2, 1);
    find(&mut nbd, 2, 1);
    assert_eq!(world.rented(), 0);
    daemon.stop();
}
