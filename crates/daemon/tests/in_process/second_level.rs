//! A device with two read caches: the first on local files, the second beneath it in a staging pool, of which this process runs a whole one.

use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::common::{MIB, Machine, Nbd, TIMEOUT, connect, eventually, pattern, status};
use surgetank_daemon::read_caches::status::ReadCacheStatus;
use surgetank_daemon::{Config, Daemon};
use surgetank_model::Bytes;
use surgetank_model::random::Random;
use surgetank_pool::local::{self, Local};

const SIZE: u64 = 48 * MIB;
/// Read again and again: more than the first level has, and less than the second one.
const HOT: u64 = 24 * MIB;
const BLOCK: u64 = 64 << 10;
const LEVEL2: &str = "[device.data.read_cache.level2]\nprovider = \"pool\"\nmembers = 2\nmember_size = \"24 MiB\"\ntimeout = \"500 ms\"\n";

struct World {
    machine: Machine,
    pool: Local,
}

impl World {
    fn new() -> Self {
        let machine = Machine::new();
        let config = local::Config::of_memory(machine.path("pool"), "127.0.0.1:0", 2, Bytes::from_mib(96));
        let pool = Local::start(&config).unwrap();
        pool.wait_joined(2, TIMEOUT).unwrap();
        std::fs::create_dir(machine.path("target")).unwrap();
        let file = std::fs::File::create(machine.path("backing")).unwrap();
        for at in (0..SIZE).step_by(BLOCK as usize) {
            file.write_all_at(&pattern(at, 1, BLOCK as usize), at).unwrap();
        }
        Self { machine, pool }
    }

    fn config(&self, sections: &str) -> Config {
        let root = self.machine.path("").display().to_string();
        let text = format!(
            "state_directory = \"{root}state\"\nrun_directory = \"{root}run\"\n[provider.local]\ndirectory = \"{root}volumes\"\n\
             [provider.pool]\naddress = \"pool://{}\"\ntoken_file = \"{root}pool/key\"\ntarget = \"{root}target\"\n\
             [device.data]\nbacking = \"{root}backing\"\nexport = \"nbd\"\nbacking_limits.bandwidth = \"33 MiB/s\"\n{sections}",
            self.pool.address()
        );
        Config::from_text(Path::new("test.toml"), &text).unwrap_or_else(|error| panic!("{error}\n{text}"))
    }

    /// What this machine's daemon has rented in the pool.
    fn rented(&self) -> usize {
        self.machine.rented_in_pool(self.pool.address())
    }
}

/// A client that knows every block of the device.
struct Client {
    nbd: Nbd,
    versions: Vec<u64>,
    random: Random,
}

impl Client {
    /// Reads what is hot, and now and then writes some of it.
    fn goes_through(&mut self) {
        for block in 0..HOT / BLOCK {
            let (at, version) = (block * BLOCK, &mut self.versions[block as usize]);
            if self.random.chance(0.05) {
                *version += 1;
                self.nbd.write(at, &pattern(at, *version, BLOCK as usize)).unwrap();
            }
            let found = self.nbd.read(at, BLOCK as usize).unwrap();
            assert!(found == pattern(at, *version, BLOCK as usize), "something else is at {at}");
        }
    }
}

fn levels(daemon: &Daemon) -> (ReadCacheStatus, ReadCacheStatus) {
    let first = status(daemon, "data").read_cache.unwrap();
    let second = first.level2.as_deref().cloned().unwrap();
    (first, second)
}

#[test]
fn a_second_level_in_a_pool_answers_what_the_first_does_not_have_and_nobody_misses_it_when_it_is_gone() {
    let world = World::new();
    let first = "[device.data.read_cache]\nprovider = \"local\"\nmembers = 1\nmember_size = \"8 MiB\"\n";
    let daemon = Daemon::start(world.config(&format!("{first}{LEVEL2}"))).unwrap();
    let versions = vec![1; (SIZE / BLOCK) as usize];
    let mut client = Client { nbd: connect(&world.machine, "data"), versions, random: Random::from_seed(5) };
    eventually("both levels have their members", || {
        let (first, second) = levels(&daemon);
        (first.serving, second.serving) == (1, 2)
    });
    assert_eq!(world.rented(), 2);
    eventually("the second level answers", || {
        client.goes_through();
        let (first, second) = levels(&daemon);
        second.hit_gib * 1024.0 > 8.0 && first.size_gib < second.size_gib
    });
    let (first_level, second) = levels(&daemon);
    assert_eq!((&*first_level.provider, &*second.provider), ("local", "pool"));
    // Half of the pool, then all of it.
    assert!(world.pool.kill_benefactor(0));
    client.goes_through();
    assert!(world.pool.kill_benefactor(1));
    client.goes_through();
    client.goes_through();
    daemon.stop();
    let bytes = std::fs::read(world.machine.path("backing")).unwrap();
    for (block, version) in client.versions.iter().enumerate() {
        let at = block as u64 * BLOCK;
        assert!(bytes[at as usize..][..BLOCK as usize] == pattern(at, *version, BLOCK as usize), "{at}");
    }
}

#[test]
fn a_second_level_is_taken_up_after_a_restart_and_deleted_when_its_section_is_gone() {
    let world = World::new();
    let first = "[device.data.read_cache]\nprovider = \"local\"\nmembers = 1\nmember_size = \"8 MiB\"\n";
    for sections in [format!("{first}{LEVEL2}"), format!("{first}{LEVEL2}")] {
        let daemon = Daemon::start(world.config(&sections)).unwrap();
        eventually("its members serve", || levels(&daemon).1.serving == 2);
        assert_eq!(world.rented(), 2, "the same ones");
        daemon.stop();
    }
    let daemon = Daemon::start(world.config(first)).unwrap();
    eventually("nothing is rented in the pool", || world.rented() == 0);
    eventually("and nothing is told of it", || status(&daemon, "data").read_cache.unwrap().level2.is_none());
    daemon.stop();
}
