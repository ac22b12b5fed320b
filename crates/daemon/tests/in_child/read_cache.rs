//! Devices with a read cache: what is read twice comes from it, every byte is right under writers, boosts and drains, and whatever
//! becomes of its members, no request fails, nothing is lost and no volume is left.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::common::child::Running;
use crate::common::rounds::{Over, Seen};
use crate::common::writers::{Requests, Writer};
use crate::common::{MIB, Machine, Nbd, boost, connect, drain, eventually, fill, find, status};
use surgetank_daemon::opening::{Decorator, Purpose};
use surgetank_daemon::read_caches::status::ReadCacheStatus;
use surgetank_daemon::{Config, Daemon, DevicePhase, DeviceStatus, Overrides, Request};
use surgetank_device::volume::fault::{Effect, Kinds, Rule};
use surgetank_device::{Failure, Fault, Faults};
use surgetank_provider::local::LocalProvider;
use surgetank_provider::{Provider, SystemClock, Transition, VolumeId};

const MEMBERS: usize = 3;
/// Of the backing volume, and of what is read again and again.
const SIZE: u64 = 64 * MIB;
const HOT: u64 = 8;

const READ_CACHE: &str = "[device.data.read_cache]\nvolume_type = \"tiny\"\nmembers = 3\nmember_size = \"16 MiB\"\n";
const CACHING: &str = "[device.data.caching]\ninitial_size = \"32 MiB\"\nthrottle = false\n\
                       [device.data.policy]\nsampling = \"20 ms\"\nsize_grain = \"1 MiB\"\ninactivity_delay = \"30 s\"\nutilization_threshold = 1.0\n";

/// Writes the configuration of a machine: `data` with these sections, and another device that has neither. Its backing volume is never
/// busy, so that boosts begin on request alone.
fn configure(machine: &Machine, provider: &str, sections: &str) {
    let root = machine.directory.path().display();
    for (name, size) in [("backing", SIZE), ("other", MIB)] {
        if !machine.path(name).exists() {
            machine.backing(name, size);
        }
    }
    let text = format!(
        "state_directory = \"{root}/state\"\nrun_directory = \"{root}/run\"\nsweep_interval = \"1 s\"\n\
         [provider.local]\ndirectory = \"{root}/volumes\"\n{provider}\n\
         [provider.local.types.tiny]\nbandwidth = \"400 MiB/s\"\npreallocate = false\n\
         [provider.local.types.fast]\nbandwidth = \"400 MiB/s\"\npreallocate = false\n\
         [device.other]\nbacking = \"{root}/other\"\nexport = \"nbd\"\nbacking_limits.bandwidth = \"33 MiB/s\"\n\
         [device.data]\nbacking = \"{root}/backing\"\nexport = \"nbd\"\nbacking_limits.bandwidth = \"16000 MiB/s\"\n{sections}"
    );
    std::fs::write(machine.path("config.toml"), text).unwrap();
}

fn configured(provider: &str, sections: &str) -> Machine {
    let machine = Machine::new();
    configure(&machine, provider, sections);
    machine
}

fn config(machine: &Machine) -> Config {
    Config::load(&machine.path("config.toml")).unwrap_or_else(|error| panic!("{error}"))
}

fn start(machine: &Machine) -> Daemon {
    Daemon::start(config(machine)).unwrap()
}

fn of_device(device: DeviceStatus) -> ReadCacheStatus {
    device.read_cache.unwrap_or_default()
}

fn read_cache(daemon: &Daemon) -> ReadCacheStatus {
    of_device(status(daemon, "data"))
}

fn asked(running: &Running) -> Option<ReadCacheStatus> {
    let report = running.client.status().ok()?;
    report.devices.into_iter().find(|device| device.name == "data").map(of_device)
}

fn serves(status: &ReadCacheStatus, members: usize) -> bool {
    status.serving as usize == members && status.volumes.len() == members
}

fn all_serve(daemon: &Daemon) {
    eventually("all members serve", || serves(&read_cache(daemon), MEMBERS));
}

fn names(status: &ReadCacheStatus) -> BTreeSet<String> {
    status.volumes.iter().filter_map(|volume| volume.volume.clone()).collect()
}

fn mib(gib: f64) -> f64 {
    gib * 1024.0
}

/// The section goes, and with it everything that was rented for it.
fn remove(machine: &Machine) {
    configure(machine, "", "");
    let daemon = start(machine);
    eventually("nothing is left", || machine.rented() == 0 && machine.records().is_empty());
    eventually("nothing is told of it", || status(&daemon, "data").read_cache.is_none());
    daemon.stop();
    assert!(!machine.path("state/read-cache:data").exists(), "a record is left");
}

/// Faults of the members: those of each volume that is opened, in their order.
#[derive(Clone, Default)]
struct OfMembers(Arc<Mutex<Vec<Faults>>>);

impl OfMembers {
    fn overrides(&self) -> Overrides {
        let opened = self.0.clone();
        let decorator: Decorator = Arc::new(move |purpose, volume| {
            if purpose != Purpose::ReadCache {
                return volume;
            }
            let mut opened = opened.lock().unwrap();
            let faults = Faults::new(opened.len() as u64).unwrap();
            opened.push(faults.clone());
            Box::new(Fault::new(volume, faults).unwrap())
        });
        Overrides { decorator: Some(decorator), ..Overrides::default() }
    }

    fn each(&self) -> Vec<Faults> {
        self.0.lock().unwrap().clone()
    }
}

/// A device of which whole blocks are read, as file systems do: those are what a read cache has.
struct Blocks(Nbd);

impl Requests for Blocks {
    fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let (start, end) = (offset / 4096 * 4096, (offset + length as u64).next_multiple_of(4096));
        let bytes = self.0.read(start, (end - start) as usize)?;
        Ok(bytes[(offset - start) as usize..][..length].to_vec())
    }
    fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }
    fn write_fua(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_fua(offset, data)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
    fn trim(&mut self, offset: u64, length: u32) -> io::Result<()> {
        self.0.trim(offset, length)
    }
    fn write_zeroes(&mut self, offset: u64, length: u32) -> io::Result<()> {
        self.0.write_zeroes(offset, length)
    }
}

/// Checks everything, then writes and reads, until the daemon dies or it is over.
fn work(writer: &mut Writer, socket: &Path, seen: &Seen) {
    let Ok(nbd) = crate::common::nbd(socket) else { return };
    let mut device = Blocks(nbd);
    let mut alive = writer.check(&mut device).is_ok();
    while alive && !seen.over() {
        alive = writer.step(&mut device).is_ok();
    }
}

#[test]
fn what_is_read_again_comes_from_the_cache_and_is_what_was_written() {
    let machine = configured("", READ_CACHE);
    let daemon = start(&machine);
    let mut nbd = connect(&machine, "data");
    // Whether or not a member is there.
    fill(&mut nbd, HOT, 1);
    find(&mut nbd, HOT, 1);
    all_serve(&daemon);
    find(&mut nbd, HOT, 1);
    let before = read_cache(&daemon);
    find(&mut nbd, HOT, 1);
    let after = read_cache(&daemon);
    assert_eq!(mib(after.hit_gib - before.hit_gib), HOT as f64, "{after:?}");
    assert_eq!(after.missed_gib, before.missed_gib, "{after:?}");
    assert!(mib(after.cached_gib) >= HOT as f64 && after.hit_ratio.is_some_and(|ratio| ratio > 0.0), "{after:?}");
    // What is written takes the place of what was cached.
    fill(&mut nbd, HOT / 2, 2);
    find(&mut nbd, HOT / 2, 2);
    nbd.trim(MIB, MIB as u32).unwrap();
    assert!(nbd.read(MIB, MIB as usize).unwrap().iter().all(|byte| *byte == 0));
    assert!(read_cache(&daemon).missed_gib > after.missed_gib, "a discarded range is not cached");
    drop(nbd);
    daemon.stop();
    assert_eq!(machine.rented(), MEMBERS, "they stay while the daemon is away");
    remove(&machine);
}

/// The volumes are rented for long: a restart takes them up again, empty.
#[test]
fn volumes_are_taken_up_again_and_those_too_many_are_deleted() {
    let machine = configured("", READ_CACHE);
    let daemon = start(&machine);
    all_serve(&daemon);
    let first = names(&read_cache(&daemon));
    fill(&mut connect(&machine, "data"), HOT, 1);
    daemon.stop();
    let daemon = start(&machine);
    all_serve(&daemon);
    assert_eq!(names(&read_cache(&daemon)), first);
    let mut nbd = connect(&machine, "data");
    find(&mut nbd, HOT, 1);
    find(&mut nbd, HOT, 1);
    drop(nbd);
    daemon.stop();
    configure(&machine, "", &READ_CACHE.replace("= 3", "= 2"));
    let daemon = start(&machine);
    eventually("one is deleted", || serves(&read_cache(&daemon), 2) && machine.rented() == 2);
    assert!(names(&read_cache(&daemon)).is_subset(&first));
    daemon.stop();
    configure(&machine, "", &READ_CACHE.replace("tiny", "fast"));
    let daemon = start(&machine);
    eventually("all are others", || serves(&read_cache(&daemon), MEMBERS) && machine.rented() == MEMBERS);
    assert!(names(&read_cache(&daemon)).is_disjoint(&first));
    find(&mut connect(&machine, "data"), HOT, 1);
    daemon.stop();
    remove(&machine);
}

#[test]
fn the_volumes_of_a_device_that_is_gone_are_deleted() {
    let machine = configured("", READ_CACHE);
    let daemon = start(&machine);
    all_serve(&daemon);
    daemon.stop();
    let text = std::fs::read_to_string(machine.path("config.toml")).unwrap();
    let without = text.split("[device.data]").next().unwrap();
    let daemon = Daemon::start(Config::from_text(Path::new("c.toml"), without).unwrap()).unwrap();
    eventually("nothing is left", || {
        machine.rented() == 0 && machine.records().is_empty() && !machine.path("state/read-cache:data").exists()
    });
    daemon.stop();
}

#[test]
fn every_byte_is_right_under_writers_whose_members_fail_vanish_and_come() {
    let machine = configured("", READ_CACHE);
    let faults = OfMembers::default();
    let daemon = Daemon::start_with(config(&machine), faults.overrides()).unwrap();
    all_serve(&daemon);
    let mut writers = Writer::several(4, HOT * MIB, 11);
    let (socket, seen) = (machine.path("run/data.sock"), Seen::default());
    let mut reader = connect(&machine, "data");
    std::thread::scope(|scope| {
        for writer in &mut writers {
            scope.spawn(|| work(writer, &socket, &seen));
        }
        let _over = Over(&seen);
        let mut read = |more: f64| {
            let before = read_cache(&daemon);
            eventually("the cache is used", || {
                (0..HOT * 16).for_each(|chunk| drop(reader.read(chunk << 16, 1 << 16).unwrap()));
                mib(read_cache(&daemon).hit_gib - before.hit_gib) > more
            });
        };
        read(0.5);
        let [first, second, third] = &faults.each()[..] else { panic!("three members are open") };
        for effect in [Effect::Fail(Failure::Io), Effect::FailAfter(Failure::Io), Effect::Short] {
            first.add(Rule { chance: 0.05, ..Rule::always(Kinds::Any, effect) });
        }
        read(0.5);
        let before = names(&read_cache(&daemon));
        second.vanish();
        third.add(Rule::always(Kinds::Any, Effect::Fail(Failure::Io)));
        eventually("two are replaced", || {
            let status = read_cache(&daemon);
            serves(&status, MEMBERS) && names(&status).intersection(&before).count() <= 1
        });
        read(0.5);
    });
    let mut device = Blocks(reader);
    for _ in 0..2 {
        writers.iter_mut().for_each(|writer| writer.check(&mut device).unwrap());
    }
    eventually("no volume too much is left", || machine.rented() == MEMBERS);
    drop(device);
    daemon.stop();
    writers.iter_mut().for_each(|writer| writer.check_file(&machine.path("backing")));
    remove(&machine);
}

#[test]
fn a_member_that_hangs_holds_up_no_read_for_long_and_is_replaced() {
    let machine = configured("", &format!("{READ_CACHE}timeout = \"200 ms\"\n"));
    let faults = OfMembers::default();
    let daemon = Daemon::start_with(config(&machine), faults.overrides()).unwrap();
    all_serve(&daemon);
    let before = names(&read_cache(&daemon));
    let mut nbd = connect(&machine, "data");
    fill(&mut nbd, HOT, 3);
    find(&mut nbd, HOT, 3);
    eventually("all of it is cached", || {
        let hits = read_cache(&daemon).hit_gib;
        find(&mut nbd, HOT, 3);
        mib(read_cache(&daemon).hit_gib - hits) >= HOT as f64
    });
    for faults in faults.each() {
        faults.add(Rule::always(Kinds::Any, Effect::Stuck));
    }
    find(&mut nbd, HOT, 3);
    assert!(read_cache(&daemon).failed_reads > 0);
    // The answers come after all, when the memory is somebody else's by now.
    fill(&mut nbd, HOT, 4);
    faults.each().iter().for_each(Faults::clear);
    faults.each().iter().for_each(Faults::release);
    find(&mut nbd, HOT, 4);
    eventually("those that hung are replaced", || {
        find(&mut nbd, HOT, 4);
        let status = read_cache(&daemon);
        serves(&status, MEMBERS) && !names(&status).is_superset(&before)
    });
    daemon.stop();
    remove(&machine);
}

/// A boost and a read cache on one device: what a drain writes passes the cache.
#[test]
fn a_boost_over_a_read_cache_leaves_nothing_stale() {
    let machine = configured("", &format!("{READ_CACHE}{CACHING}"));
    let daemon = start(&machine);
    all_serve(&daemon);
    let mut nbd = connect(&machine, "data");
    fill(&mut nbd, HOT, 1);
    find(&mut nbd, HOT, 1);
    for version in 2..5 {
        boost(&daemon, "data");
        assert_eq!(machine.rented(), MEMBERS + 1);
        fill(&mut nbd, HOT / 2, version);
        find(&mut nbd, HOT / 2, version);
        // Overwritten and read while it is drained.
        daemon.handle(Request::Drain { device: "data".into() }).unwrap();
        nbd.write(0, &crate::common::pattern(0, version, MIB as usize)).unwrap();
        find(&mut nbd, HOT / 2, version);
        drain(&daemon, "data");
        find(&mut nbd, HOT / 2, version);
        let hits = read_cache(&daemon).hit_gib;
        find(&mut nbd, HOT / 2, version);
        assert!(read_cache(&daemon).hit_gib > hits, "what was drained is read from the cache");
        assert_eq!(machine.rented(), MEMBERS);
    }
    drop(nbd);
    daemon.stop();
    let bytes = std::fs::read(machine.path("backing")).unwrap();
    for block in 0..HOT {
        let version = if block < HOT / 2 { 4 } else { 1 };
        let at = (block * MIB) as usize;
        assert!(bytes[at..at + MIB as usize] == crate::common::pattern(block, version, MIB as usize), "{block}");
    }
    remove(&machine);
}

/// The test above is tested: a write that leaves what is cached as it was is found.
#[test]
fn a_write_that_passes_the_cache_by_is_found() {
    let machine = configured("", READ_CACHE);
    let mut running = Running::start_planted(&machine, "StaleAfterWrite");
    eventually("all members serve", || asked(&running).is_some_and(|status| serves(&status, MEMBERS)));
    let mut nbd = running.nbd().unwrap();
    fill(&mut nbd, HOT, 1);
    (0..2).for_each(|_| find(&mut nbd, HOT, 1));
    fill(&mut nbd, HOT, 2);
    let found = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| find(&mut nbd, HOT, 2)));
    assert!(found.is_err(), "nobody notices that old data are read");
}

/// Hits are no burden for the backing volume, so they are no reason for a boost.
#[test]
fn what_comes_from_the_cache_does_not_count_as_utilization() {
    let machine = configured("", &format!("{READ_CACHE}{CACHING}"));
    let daemon = start(&machine);
    all_serve(&daemon);
    let mut nbd = connect(&machine, "data");
    fill(&mut nbd, HOT, 1);
    (0..2).for_each(|_| find(&mut nbd, HOT, 1));
    eventually("the device is busy, and its backing volume is not", || {
        find(&mut nbd, HOT, 1);
        let status = status(&daemon, "data");
        status.throughput_mib_s > 0.0 && status.utilization == 0.0
    });
    // One that is not cached counts.
    eventually("the backing volume is busy", || {
        nbd.read((HOT + 1) * MIB, 512).unwrap();
        status(&daemon, "data").utilization > 0.0
    });
    daemon.stop();
    remove(&machine);
}

#[test]
fn a_quota_that_is_used_up_is_told_and_disturbs_nobody() {
    let machine = configured("quota_volumes = 2", READ_CACHE);
    let daemon = start(&machine);
    let mut nbd = connect(&machine, "data");
    fill(&mut nbd, HOT, 1);
    eventually("two serve, and the quota is told", || {
        let status = read_cache(&daemon);
        status.serving == 2
            && status.reason.is_some_and(|why| why.contains("quota is used up"))
            && status.retry_s.is_some()
    });
    (0..2).for_each(|_| find(&mut nbd, HOT, 1));
    assert!(read_cache(&daemon).hit_gib > 0.0);
    assert_eq!(machine.rented(), 2);
    drop(nbd);
    daemon.stop();
    remove(&machine);
}

#[test]
fn volumes_that_are_deleted_behind_its_back_fail_nothing_and_are_replaced_by_the_next_start() {
    let machine = configured("", READ_CACHE);
    let provider =
        Arc::new(LocalProvider::open(crate::common::local(&config(&machine)), Arc::new(SystemClock)).unwrap());
    let overrides = Overrides { provider: Some(provider.clone()), ..Overrides::default() };
    let daemon = Daemon::start_with(config(&machine), overrides).unwrap();
    all_serve(&daemon);
    let before = names(&read_cache(&daemon));
    let mut nbd = connect(&machine, "data");
    fill(&mut nbd, HOT, 1);
    find(&mut nbd, HOT, 1);
    for id in before.iter().cloned().map(VolumeId) {
        for transition in [Transition::Detach, Transition::Delete] {
            eventually("it is done", || provider.change_state(&id, transition).is_ok());
        }
    }
    eventually("they are gone", || machine.rented() == 0);
    find(&mut nbd, HOT, 1);
    fill(&mut nbd, HOT, 2);
    find(&mut nbd, HOT, 2);
    drop(nbd);
    daemon.stop();
    let daemon = start(&machine);
    let mut nbd = connect(&machine, "data");
    find(&mut nbd, HOT, 2);
    all_serve(&daemon);
    assert!(names(&read_cache(&daemon)).is_disjoint(&before));
    find(&mut nbd, HOT, 2);
    drop(nbd);
    daemon.stop();
    remove(&machine);
}

#[test]
fn a_kill_at_any_step_of_the_renting_leaves_nothing_and_loses_nothing() {
    let calls = ["create", "attach", "read-cache-add"].into_iter().flat_map(|step| {
        ["before", "after"].into_iter().flat_map(move |when| [1, 3].map(|passed| format!("{step}:{when}:{passed}")))
    });
    let persists = (1..=15).step_by(2).map(|passed| format!("read-cache-persist:before:{passed}"));
    for point in calls.chain(persists) {
        let machine = configured("", READ_CACHE);
        let mut running = Running::start(&machine, Some(&point));
        eventually("the step is passed", || running.dead());
        assert!(running.was_killed(), "{point}: {}", machine.log());
        let mut running = Running::start(&machine, None);
        let mut nbd = running.nbd().unwrap();
        fill(&mut nbd, 2, 1);
        eventually(&format!("{point}: all serve"), || {
            asked(&running).is_some_and(|status| serves(&status, MEMBERS)) && machine.rented() == MEMBERS
        });
        (0..2).for_each(|_| find(&mut nbd, 2, 1));
        drop(nbd);
        running.stop();
        remove(&machine);
    }
}

#[test]
fn a_kill_at_any_step_of_the_end_leaves_nothing() {
    for point in ["detach:before", "detach:after:2", "delete:before:3", "delete:after", "delete:after:3"] {
        let machine = configured("", READ_CACHE);
        let daemon = start(&machine);
        all_serve(&daemon);
        daemon.stop();
        configure(&machine, "", "");
        let mut running = Running::start(&machine, Some(point));
        eventually("the step is passed", || running.dead());
        assert!(running.was_killed(), "{point}: {}", machine.log());
        remove(&machine);
    }
}

#[test]
fn kills_under_writers_and_boosts_lose_no_byte_and_leave_no_volume() {
    let machine = configured("", &format!("{READ_CACHE}{CACHING}"));
    let mut writers = Writer::several(4, HOT * MIB, 5);
    let mut hits = 0.0;
    for round in 0..6 {
        let mut running = Running::start(&machine, None);
        assert!(running.nbd().is_some(), "{}", machine.log());
        let (socket, seen) = (running.socket.clone(), Seen::default());
        std::thread::scope(|scope| {
            for writer in &mut writers {
                scope.spawn(|| work(writer, &socket, &seen));
            }
            let _over = Over(&seen);
            if round > 0 {
                // Refused while the last caching volume is read back.
                let _ = running.client.ask(&Request::boost("data"));
            }
            eventually("the members serve", || asked(&running).is_some_and(|status| serves(&status, MEMBERS)));
            let mut reader = running.nbd().unwrap();
            (0..2 * HOT).for_each(|block| drop(reader.read(block % HOT * MIB, MIB as usize).unwrap()));
            let _ = running.client.ask(&Request::boost("data"));
            std::thread::sleep(Duration::from_millis(100));
            if round % 2 == 1 {
                let _ = running.client.ask(&Request::Drain { device: "data".into() });
            }
            std::thread::sleep(Duration::from_millis(50 * round));
            hits += asked(&running).map_or(0.0, |status| status.hit_gib);
            running.kill();
        });
    }
    assert!(hits > 0.0, "the cache was used");
    let daemon = start(&machine);
    let mut device = Blocks(connect(&machine, "data"));
    writers.iter_mut().for_each(|writer| writer.check(&mut device).unwrap());
    all_serve(&daemon);
    eventually("it is drained, and the caching volume is deleted", || {
        // Refused while it is read back.
        let _ = daemon.handle(Request::Drain { device: "data".into() });
        status(&daemon, "data").phase == DevicePhase::Idle && machine.rented() == MEMBERS
    });
    writers.iter_mut().for_each(|writer| writer.check(&mut device).unwrap());
    drop(device);
    daemon.stop();
    writers.iter_mut().for_each(|writer| writer.check_file(&machine.path("backing")));
    remove(&machine);
}
