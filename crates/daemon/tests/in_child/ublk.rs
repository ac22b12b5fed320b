//! The ublk export in a guest, whose kernel has the driver: this very program runs there, at its ignored tests.
//!
//! A device of ublk outlives its daemon. So in these tests no request ever fails and no file system is ever unmounted,
//! however often the daemon is killed or replaced under it.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Instant;

use crate::common::block::Block;
use crate::common::child::Running;
use crate::common::guest;
use crate::common::mounted::{self, Mounted};
use crate::common::rounds::{self, Histogram, Seen};
use crate::common::writers::{Counts, Writer};
use crate::common::{Ends, Machine, eventually, pattern};
use surgetank_daemon::{DevicePhase, Request};
use surgetank_model::random::Random;

const MIB: u64 = 1 << 20;

/// Runs one of the ignored tests in a guest.
fn in_a_guest(test: &str) {
    guest::run(&format!("ublk::{test}"), []);
}

#[test]
fn a_ublk_device_is_what_it_says() {
    in_a_guest("guest_geometry_contents_and_size");
}

#[test]
#[ignore = "takes minutes where QEMU emulates; `make lab` runs it"]
fn a_device_comes_up_when_its_cache_has_been_read_back() {
    in_a_guest("guest_a_cache_that_takes_long_to_read_back");
}

#[test]
fn kills_are_hidden_from_who_uses_a_ublk_device() {
    in_a_guest("guest_kills_under_writers");
}

#[test]
#[ignore = "takes minutes where QEMU emulates; `make lab` runs it"]
fn a_mounted_file_system_outlives_kills_and_restarts_under_load() {
    in_a_guest("guest_kills_and_restarts_under_a_file_system");
}

/// A machine whose device is exported over ublk, through boosts that take long enough to be hit.
fn machine(bytes: u64, cache: &str) -> (Machine, PathBuf) {
    let machine = Machine::new();
    let backing = machine.backing("backing", bytes);
    rounds::configure(&machine, &backing, "adaptive", cache, "ublk");
    (machine, backing)
}

fn start(machine: &Machine) -> Running {
    let mut running = Running::start(machine, None);
    assert!(!running.dead(), "the daemon does not start: {}", machine.log());
    running
}

/// The block device, once it is there.
fn device(running: &Running) -> PathBuf {
    let mut found = PathBuf::new();
    eventually("the device is served", || {
        found = mounted::device(running);
        found.starts_with("/dev/")
    });
    found
}

fn setting(device: &Path, name: &str) -> String {
    let name = format!("/sys/block/{}/{name}", device.file_name().unwrap().to_str().unwrap());
    std::fs::read_to_string(&name).unwrap_or_else(|error| panic!("{name}: {error}")).trim().to_owned()
}

fn devices() -> usize {
    std::fs::read_dir("/sys/class/ublk-char").map_or(0, Iterator::count)
}

#[test]
#[ignore = "runs in a guest"]
fn guest_geometry_contents_and_size() {
    let (machine, backing) = machine(64 * MIB, "16 MiB");
    let running = start(&machine);
    let served = device(&running);
    let expected = [
        ("size", "131072"),
        ("queue/logical_block_size", "512"),
        ("queue/physical_block_size", "4096"),
        ("queue/minimum_io_size", "4096"),
        ("queue/discard_granularity", "4096"),
        ("queue/write_cache", "write back"),
        ("queue/fua", "1"),
        ("ro", "0"),
    ];
    for (name, value) in expected {
        assert_eq!(setting(&served, name), value, "{name}");
    }
    assert!(setting(&served, "queue/write_zeroes_max_bytes").parse::<u64>().unwrap() >= MIB);
    assert_eq!(std::fs::read_link(machine.path("run/data")).unwrap(), served);

    // Reads, writes, FUA, flushes, discards and zeroes of any number of sectors, against a model of every sector.
    let mut writers = Writer::several(2, 64 * MIB, 5);
    let mut block = Block::open(&served).unwrap();
    running.client.ask(&Request::boost("data")).unwrap();
    for writer in &mut writers {
        (0..400).for_each(|_| writer.step(&mut block).unwrap());
    }
    writers.iter_mut().for_each(|writer| writer.check(&mut block).unwrap());
    let file = format!("--filename={}", served.display());
    let verified = [
        "--name=v",
        &file,
        "--rw=randwrite",
        "--bsrange=512-192k",
        "--blockalign=512",
        "--direct=1",
        "--ioengine=libaio",
        "--iodepth=16",
        "--size=16M",
        "--verify=crc32c",
        "--verify_backlog=32",
        "--verify_fatal=1",
    ];
    mounted::must("fio", &verified);

    // Growing: the kernel of the guest cannot do it under a user, and says so; the next start does.
    std::fs::OpenOptions::new().write(true).open(&backing).unwrap().set_len(80 * MIB).unwrap();
    rounds::deletes_everything(&machine, &running);
    let grown = running.client.ask(&Request::Resize { device: "data".into() });
    if let Err(error) = &grown {
        assert!(error.to_string().contains("Linux 6.16 can"), "{error}");
        assert_eq!(setting(&served, "size"), "131072");
    }
    drop(block);
    running.stop();
    assert_eq!(devices(), 0, "a stop leaves nothing behind");
    let running = start(&machine);
    assert_eq!(setting(&device(&running), "size"), (80 * MIB / 512).to_string());
    running.stop();
    eprintln!("geometry, contents and size: as they should be");
}

/// Starts a daemon that reads its caching volume back for minutes.
fn start_slowly(machine: &Machine) -> Running {
    let config = std::fs::read_to_string(machine.path("config.toml")).unwrap();
    let slow = config.replace("\"8 GiB/s\"", "\"256 KiB/s\"");
    let slow = slow.replace("[device.data.caching]\nthrottle = false", "[device.data.caching]\nthrottle = true");
    assert_ne!(slow, config);
    std::fs::write(machine.path("config.toml"), slow).unwrap();
    let running = start(machine);
    std::fs::write(machine.path("config.toml"), config).unwrap();
    eventually("it reads the cache back", || running.phase() == Some(DevicePhase::Attaching));
    assert_eq!(mounted::device(&running), Path::new(""), "nothing is answered yet: {}", machine.log());
    running
}

/// The kernel waits for the device's data with locks held, and for seconds only. So nothing may ask for them before
/// they are back, and a stop must not either.
#[test]
#[ignore = "runs in a guest"]
fn guest_a_cache_that_takes_long_to_read_back() {
    let (machine, backing) = machine(64 * MIB, "16 MiB");
    let mut writers = Writer::several(1, 16 * MIB, 11);
    let mut write = |running: &Running| {
        let served = device(running);
        let mut block = Block::open(&served).unwrap();
        writers[0].check(&mut block).unwrap();
        eventually("a boost", || {
            let _ = running.client.ask(&Request::boost("data"));
            running.phase() == Some(DevicePhase::Boost)
        });
        (0..40).for_each(|_| writers[0].step(&mut block).unwrap());
        served
    };
    let stopped = |running: Running| {
        running.stop();
        assert!(!machine.log().contains("is read back"), "it waited for the cache: {}", machine.log());
    };

    // The device is there already: whoever uses it waits, and the next daemon finds it.
    let mut running = start(&machine);
    let served = write(&running);
    running.kill();
    stopped(start_slowly(&machine));
    start_slowly(&machine).kill();
    assert_eq!(devices(), 1, "the device waits");
    let running = start(&machine);
    assert_eq!(write(&running), served, "the same device: {}", machine.log());

    // A stop in a boost takes a device away that nobody uses, and its data stay on the caching volume.
    running.stop();
    assert_eq!((devices(), machine.rented()), (0, 1));
    stopped(start_slowly(&machine));
    start_slowly(&machine).kill();
    let running = start(&machine);
    write(&running);
    rounds::deletes_everything(&machine, &running);
    running.stop();
    assert_eq!(devices(), 0);
    writers[0].check_file(&backing);
    eprintln!("a cache that takes long to read back: waited for by nobody");
}

#[test]
#[ignore = "runs in a guest"]
fn guest_kills_under_writers() {
    let (machine, backing) = machine(16 * MIB, "24 MiB");
    // Somebody else's device, which nothing of this may touch.
    let (other, _) = self::machine(MIB, "16 MiB");
    let other_daemon = start(&other);
    let its_device = device(&other_daemon);
    let mut running = start(&machine);
    let served = device(&running);
    let mut writers = Writer::several(3, 16 * MIB, 41);
    let (mut moments, mut random, over) = (Histogram::default(), Random::from_seed(41), AtomicBool::new(false));
    let (kills, began) = (rounds::kills(5), Instant::now());
    std::thread::scope(|scope| {
        for writer in &mut writers {
            let (served, over) = (&served, &over);
            scope.spawn(move || {
                let mut block = Block::open(served).unwrap();
                while !over.load(Ordering::Relaxed) {
                    writer.step(&mut block).unwrap();
                    std::thread::sleep(guest::PAUSE);
                }
            });
        }
        let _over = Ends(&over);
        for number in 0..kills {
            moments.add(rounds::kill_at(&machine, &running, &Seen::default(), &mut random, rounds::aim(number)));
            assert!(running.was_killed(), "{}", machine.log());
            running = start(&machine);
            assert_eq!(device(&running), served, "the same device: {}", machine.log());
        }
    });
    let (mut block, mut counts) = (Block::open(&served).unwrap(), Counts::default());
    for writer in &mut writers {
        writer.check(&mut block).unwrap();
        counts.add(&writer.counts);
    }
    drop(block);
    rounds::deletes_everything(&machine, &running);
    running.stop();
    writers.iter_mut().for_each(|writer| writer.check_file(&backing));
    assert_eq!((device(&other_daemon), devices()), (its_device, 1));
    other_daemon.stop();
    assert_eq!(devices(), 0);
    eprintln!(
        "ublk: {kills}/{kills} kills hidden in {:.0?}; at the kill: {moments}; {} writes, {} MiB checked",
        began.elapsed(),
        counts.writes,
        counts.checked_bytes >> 20
    );
    if kills >= 20 {
        moments.are_telling();
    }
}

/// What works on a file system until it is over: fio, which verifies what it wrote, and files through the page cache,
/// with more pages dirty at once than the device has requests.
fn load<'scope>(
    scope: &'scope Scope<'scope, '_>,
    mount: &'scope Path,
    over: &'scope AtomicBool,
    rounds: &'scope [AtomicU64; 2],
) -> [ScopedJoinHandle<'scope, ()>; 2] {
    let directory = format!("--directory={}", mount.display());
    let verified = scope.spawn(move || {
        while !over.load(Ordering::Relaxed) {
            mounted::must(
                "fio",
                &[
                    "--name=v",
                    &directory,
                    "--rw=randwrite",
                    "--bsrange=4k-64k",
                    "--direct=1",
                    "--ioengine=libaio",
                    "--iodepth=16",
                    "--size=6M",
                    "--verify=crc32c",
                    "--verify_backlog=64",
                    "--verify_fatal=1",
                    "--randrepeat=0",
                    "--fallocate=none",
                ],
            );
            rounds[0].fetch_add(1, Ordering::Relaxed);
        }
    });
    let cached = scope.spawn(move || {
        while !over.load(Ordering::Relaxed) {
            let version = rounds[1].fetch_add(1, Ordering::Relaxed);
            let path = mount.join((version % 2).to_string());
            let bytes = pattern(version, 1, 12 << 20);
            std::fs::write(&path, &bytes).unwrap();
            let file = File::open(&path).unwrap();
            file.sync_all().unwrap();
            // What is clean may go, so that it is read back from the device.
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
            let mut found = Vec::new();
            (&file).read_to_end(&mut found).unwrap();
            assert!(found == bytes, "version {version} reads differently");
        }
    });
    [verified, cached]
}

#[test]
#[ignore = "runs in a guest"]
fn guest_kills_and_restarts_under_a_file_system() {
    let (machine, backing) = machine(96 * MIB, "32 MiB");
    mounted::must("mkfs.ext4", &["-q", "-b", "4096", backing.to_str().unwrap()]);
    let running = start(&machine);
    let (served, mount) = (device(&running), machine.path("mnt"));
    let file_system = Mounted::mount(&served, &mount);
    let (mut moments, mut random, over) = (Histogram::default(), Random::from_seed(43), AtomicBool::new(false));
    let (kills, rounds_done, began) = (rounds::kills(4), [AtomicU64::new(0), AtomicU64::new(0)], Instant::now());
    let restarts = kills.div_ceil(4);
    let running = std::thread::scope(|scope| {
        let mut running = running;
        let threads = load(scope, &mount, &over, &rounds_done);
        let _over = Ends(&over);
        for number in 0..kills {
            moments.add(rounds::kill_at(&machine, &running, &Seen::default(), &mut random, rounds::aim(number)));
            assert!(running.was_killed(), "{}", machine.log());
            running = start(&machine);
            assert_eq!(device(&running), served, "the same device: {}", machine.log());
        }
        // A stop, as for an upgrade, leaves a device that is in use to the next daemon.
        for _ in 0..restarts {
            running.stop();
            running = start(&machine);
            assert_eq!(device(&running), served, "the same device: {}", machine.log());
        }
        // Both have done something since.
        let before: Vec<u64> = rounds_done.iter().map(|done| done.load(Ordering::Relaxed)).collect();
        eventually("the load goes on", || {
            threads.iter().any(ScopedJoinHandle::is_finished)
                || rounds_done.iter().zip(&before).all(|(done, before)| done.load(Ordering::Relaxed) > *before)
        });
        running
    });
    file_system.unmount();
    mounted::check_ext4(&served);
    rounds::deletes_everything(&machine, &running);
    running.stop();
    assert_eq!(devices(), 0);
    mounted::check_ext4(&backing);
    let done = rounds_done.map(AtomicU64::into_inner);
    eprintln!(
        "ublk, ext4: {kills} kills, {restarts} restarts hidden in {:.0?}; at the kill: {moments}; \
         {} runs of fio verified, {} files",
        began.elapsed(),
        done[0],
        done[1]
    );
}
