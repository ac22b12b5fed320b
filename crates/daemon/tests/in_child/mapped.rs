//! The export by the device mapper in a guest, whose kernel has it: this very program runs there, at its ignored tests.
//!
//! While a device is calm, the kernel alone serves it. In a boost the daemon does, and who uses the device notices neither a
//! switch nor the death of a daemon.

use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::common::block::Block;
use crate::common::child::Running;
use crate::common::guest;
use crate::common::mapped::{self, CALM, MAPPED, SLOW, calm, config, map, start};
use crate::common::mounted::{self, Mounted};
use crate::common::rounds::{self, Histogram, Seen};
use crate::common::writers::{Counts, Writer};
use crate::common::{Ends, Machine, eventually};
use lab::Disk;
use surgetank_daemon::boot::{self, BootMap};
use surgetank_daemon::{DevicePhase, Request};
use surgetank_model::random::Random;

const MIB: u64 = 1 << 20;

fn in_a_guest(test: &str, backing: &str) {
    guest::run(&format!("mapped::{test}"), [backing.parse::<Disk>().unwrap()]);
}

#[test]
fn a_calm_device_is_served_by_the_kernel_alone() {
    in_a_guest("guest_calm_and_boost", "slow=64MiB");
}

#[test]
fn a_device_is_mapped_at_boot_unless_its_newest_data_are_elsewhere() {
    in_a_guest("guest_boot", "slow=64MiB");
}

#[test]
#[ignore = "takes minutes where QEMU emulates; `make lab` runs it"]
fn kills_and_switches_are_hidden_from_who_uses_a_mapped_device() {
    in_a_guest("guest_kills_under_writers", "slow=16MiB,64MiB/s");
}

#[test]
#[ignore = "takes minutes where QEMU emulates; `make lab` runs it"]
fn a_crash_at_any_step_of_a_switch_is_hidden_too() {
    in_a_guest("guest_crashes_in_switches", "slow=16MiB,64MiB/s");
}

#[test]
#[ignore = "takes minutes where QEMU emulates; `make lab` runs it"]
fn many_writers_notice_no_switch() {
    in_a_guest("guest_switches_under_writers", "slow=64MiB,33MiB/s");
}

/// A machine whose device the kernel maps, over a backing volume of this bandwidth as far as the daemon knows.
fn machine(cache: &str, bandwidth: &str) -> Machine {
    let machine = Machine::new();
    mapped::configure(&machine, cache, bandwidth);
    machine
}

/// What the kernel maps the device to, as `dmsetup` shows it.
fn target() -> PathBuf {
    let table = mounted::must("dmsetup", &["table", "data"]);
    let number = table.split_whitespace().nth(3).unwrap().to_owned();
    let link = std::fs::canonicalize(format!("/sys/dev/block/{number}")).unwrap();
    Path::new("/dev").join(link.file_name().unwrap())
}

fn slow() -> PathBuf {
    std::fs::canonicalize(SLOW).unwrap()
}

fn served_devices() -> usize {
    std::fs::read_dir("/sys/class/ublk-char").map_or(0, Iterator::count)
}

fn boost(running: &Running) {
    eventually("a boost", || {
        let _ = running.client.ask(&Request::boost("data"));
        running.phase() == Some(DevicePhase::Boost)
    });
    assert_eq!(map(running), "served");
}

/// What the engine has been asked, in requests.
fn is_untouched(machine: &Machine) {
    assert_eq!(target(), slow(), "{}", machine.log());
    assert_eq!(served_devices(), 0, "no device of ours is left that could be asked: {}", machine.log());
}

#[test]
#[ignore = "runs in a guest"]
fn guest_calm_and_boost() {
    let machine = machine("16 MiB", CALM);
    let running = start(&machine);
    let export = running.client.status().unwrap().devices[0].export.clone();
    assert_eq!((export.as_str(), map(&running).as_str()), ("dm", "straight"));
    is_untouched(&machine);
    let taken = std::fs::OpenOptions::new().read(true).custom_flags(libc::O_EXCL).open(slow());
    assert!(taken.is_err(), "nobody else may have the backing volume");

    let mut writers: Vec<_> = Writer::several(2, 64 * MIB, 5).into_iter().map(Writer::without_discards).collect();
    let mut block = Block::open(Path::new(MAPPED)).unwrap();
    for round in 0..2 {
        let mut step = |what: &str| {
            for writer in &mut writers {
                (0..40)
                    .for_each(|_| writer.step(&mut block).unwrap_or_else(|error| panic!("{what}, {round}: {error:?}")));
                writer.check(&mut block).unwrap();
            }
        };
        step("calm");
        is_untouched(&machine);
        boost(&running);
        assert_eq!(served_devices(), 1);
        assert!(target().to_str().unwrap().starts_with("/dev/ublkb"), "{:?}", target());
        // A daemon that is killed while the kernel looks for partitions would never end.
        let looked = target().file_name().map(|name| Path::new("/sys/class/block").join(name).join("partscan"));
        assert_eq!(std::fs::read_to_string(looked.unwrap()).unwrap().trim(), "0");
        step("boost");
        calm(&machine, &running);
        eventually("our own device is gone", || served_devices() == 0);
    }
    is_untouched(&machine);
    // What went straight is counted: the reports show it, and a burst is seen.
    let (read, written) = activity(&running);
    assert!(read > 0 && written > 0, "{read} and {written} bytes");

    // A calm device outlives its daemon, dead or stopped, and the next one finds it.
    let mut running = running;
    running.kill();
    for writer in &mut writers {
        (0..50).for_each(|_| writer.step(&mut block).unwrap());
    }
    start(&machine).stop();
    for writer in &mut writers {
        (0..50).for_each(|_| writer.step(&mut block).unwrap());
        writer.check(&mut block).unwrap();
    }
    let error = boot::unmap(&config(&machine), "data").unwrap_err();
    assert!(error.contains("in use"), "{error}");
    drop(block);
    boot::unmap(&config(&machine), "data").unwrap();
    assert!(!Path::new(MAPPED).exists());
    writers.iter_mut().for_each(|writer| writer.check_file(&slow()));
    eprintln!("calm, boosted, calm again, twice: nothing of ours is in the way");
}

/// Bytes that the application has read and written, by the report's activity.
fn activity(running: &Running) -> (u64, u64) {
    let status = running.client.status().unwrap();
    assert_eq!(status.devices.len(), 1);
    let number = std::fs::read_to_string("/sys/class/block/dm-0/stat").unwrap();
    let field = |index: usize| number.split_whitespace().nth(index).unwrap().parse::<u64>().unwrap() * 512;
    (field(2), field(6))
}

#[test]
#[ignore = "runs in a guest"]
fn guest_boot() {
    let machine = machine("16 MiB", CALM);
    let at_boot = || boot::map(&config(&machine), &[]).unwrap().remove(0).1;
    // Never served: nobody knows yet where its newest data are.
    assert!(matches!(at_boot(), BootMap::LeftToDaemon(_)));
    mounted::must("mkfs.ext4", &["-q", SLOW]);
    let running = start(&machine);
    let unique_name = mounted::must("dmsetup", &["info", "--columns", "--noheadings", "-o", "uuid", "data"]);
    assert!(boot::map(&config(&machine), &[]).unwrap_err().contains("another surgetank daemon"));
    running.stop();
    assert!(!Path::new(MAPPED).exists(), "nobody uses it, and it stays");

    // Clean: mapped before any daemon, used, and found by the daemon that comes later.
    assert_eq!(at_boot(), BootMap::Straight);
    assert_eq!(at_boot(), BootMap::AlreadyMapped);
    let mount = machine.path("mnt");
    let file_system = Mounted::mount(Path::new(MAPPED), &mount);
    std::fs::write(mount.join("early"), "before the daemon").unwrap();
    let running = start(&machine);
    boost(&running);
    std::fs::write(mount.join("late"), vec![7; 4 << 20]).unwrap();
    file_system.unmount();

    // Stopped in a boost, the device is gone with the daemon: the newest data are on the caching volume.
    running.stop();
    assert!(!Path::new(MAPPED).exists(), "{}", machine.log());
    assert_eq!((served_devices(), machine.rented()), (0, 1));
    assert!(matches!(at_boot(), BootMap::LeftToDaemon(_)));
    let error = boot::unmap(&config(&machine), "data").unwrap_err();
    assert!(error.contains("does not exist"), "{error}");

    // Somebody maps it nevertheless: the daemon does not serve what may be stale, and says so.
    let sectors = mounted::must("blockdev", &["--getsz", SLOW]);
    let table = format!("0 {} linear {SLOW} 0", sectors.trim());
    let create = |unique: &[&str]| {
        mounted::must("dmsetup", &[&["create", "--noudevsync", "data", "--table", &table], unique].concat());
    };
    let refused = |machine: &Machine| {
        let daemon = surgetank_daemon::Daemon::start(config(machine));
        daemon.map(surgetank_daemon::Daemon::stop).unwrap_err().to_string()
    };
    create(&[]);
    let error = refused(&machine);
    assert!(error.contains("is not ours"), "{error}");
    mounted::must("dmsetup", &["remove", "--noudevsync", "data"]);
    create(&["--uuid", unique_name.trim()]);
    let error = refused(&machine);
    assert!(error.contains("mapped straight to its backing volume although"), "{error}");
    mounted::must("dmsetup", &["remove", "--noudevsync", "data"]);

    let running = start(&machine);
    let file_system = Mounted::mount(Path::new(MAPPED), &mount);
    assert_eq!(std::fs::read(mount.join("late")).unwrap(), vec![7; 4 << 20]);
    assert_eq!(std::fs::read_to_string(mount.join("early")).unwrap(), "before the daemon");
    calm(&machine, &running);
    file_system.unmount();
    mounted::check_ext4(Path::new(MAPPED));
    running.stop();
    assert!(!Path::new(MAPPED).exists(), "nobody uses it, and it stays");
    mounted::check_ext4(&slow());
    eprintln!("boot: mapped where that is right, and nowhere else");
}

#[test]
#[ignore = "runs in a guest"]
fn guest_kills_under_writers() {
    let machine = machine("24 MiB", "\"64 MiB/s\"");
    let mut running = start(&machine);
    let mut writers: Vec<_> = Writer::several(3, 16 * MIB, 41).into_iter().map(Writer::without_discards).collect();
    let (mut moments, mut random, over) = (Histogram::default(), Random::from_seed(41), AtomicBool::new(false));
    let (kills, began, seen) = (rounds::kills(5), Instant::now(), AtomicUsize::new(0));
    let mut maps = [0; 2];
    std::thread::scope(|scope| {
        for writer in &mut writers {
            let (over, seen) = (&over, &seen);
            scope.spawn(move || {
                let mut block = Block::open(Path::new(MAPPED)).unwrap();
                while !over.load(Ordering::Relaxed) {
                    writer.step(&mut block).unwrap();
                    std::thread::sleep(guest::PAUSE);
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _over = Ends(&over);
        for number in 0..kills {
            moments.add(rounds::kill_at(&machine, &running, &Seen::default(), &mut random, rounds::aim(number)));
            assert!(running.was_killed(), "{}", machine.log());
            maps[usize::from(target() != slow())] += 1;
            running = start(&machine);
        }
    });
    let (mut block, mut counts) = (Block::open(Path::new(MAPPED)).unwrap(), Counts::default());
    for writer in &mut writers {
        writer.check(&mut block).unwrap();
        counts.add(&writer.counts);
    }
    calm(&machine, &running);
    drop(block);
    running.stop();
    assert!(!Path::new(MAPPED).exists(), "nobody uses it, and it stays");
    writers.iter_mut().for_each(|writer| writer.check_file(&slow()));
    assert_eq!(served_devices(), 0);
    eprintln!(
        "dm: {kills}/{kills} kills hidden in {:.0?}, {} with the map straight and {} served; at the kill: {moments}; {} writes, \
         {} MiB checked",
        began.elapsed(),
        maps[0],
        maps[1],
        counts.writes,
        counts.checked_bytes >> 20
    );
}

/// Every step of a switch, and where the kernel sends requests when the daemon has died there.
const STEPS: [(&str, &str); 9] = [
    ("switch-in:before", "straight"),
    ("switch-in:up", "straight"),
    ("switch-in:loaded", "straight"),
    ("switch-in:after", "served"),
    ("switch-out:before", "served"),
    ("switch-out:loaded", "served"),
    ("switch-out:suspended", "served"),
    ("switch-out:after", "straight"),
    ("switch-out:ended", "straight"),
];

#[test]
#[ignore = "runs in a guest"]
fn guest_crashes_in_switches() {
    let machine = machine("24 MiB", CALM);
    let mut writers: Vec<_> = Writer::several(3, 16 * MIB, 43).into_iter().map(Writer::without_discards).collect();
    let running = start(&machine);
    let blocks: Vec<Block> = writers.iter().map(|_| Block::open(Path::new(MAPPED)).unwrap()).collect();
    running.stop();
    let (over, began, crashes) = (AtomicBool::new(false), Instant::now(), rounds::kills(STEPS.len()));
    let done: Vec<AtomicUsize> = writers.iter().map(|_| AtomicUsize::new(0)).collect();
    std::thread::scope(|scope| {
        for ((writer, done), mut block) in writers.iter_mut().zip(&done).zip(blocks) {
            let over = &over;
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    writer.step(&mut block).unwrap();
                    std::thread::sleep(guest::PAUSE);
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let _over = Ends(&over);
        let writers_go_on = |what: &str| {
            let before: Vec<usize> = done.iter().map(|done| done.load(Ordering::Relaxed)).collect();
            eventually(what, || {
                done.iter().zip(&before).all(|(done, before)| done.load(Ordering::Relaxed) > before + 1)
            });
        };
        for (step, left) in STEPS.iter().cycle().take(crashes) {
            let mut running = Running::start(&machine, Some(step));
            eventually(step, || {
                let ask = if running.phase() == Some(DevicePhase::Boost) {
                    Request::Drain { device: "data".into() }
                } else {
                    Request::boost("data")
                };
                let _ = running.client.ask(&ask);
                running.dead()
            });
            assert!(running.was_killed(), "{step}: {}", machine.log());
            let map = if target() == slow() { "straight" } else { "served" };
            assert_eq!(map, *left, "{step}");
            // Nobody waits for a daemon that has died where the kernel serves alone.
            if map == "straight" {
                writers_go_on(step);
            }
            let running = start(&machine);
            calm(&machine, &running);
            eventually("our own device is gone", || served_devices() == 0);
            writers_go_on("after the next daemon's start");
            running.stop();
        }
    });
    let mut block = Block::open(Path::new(MAPPED)).unwrap();
    writers.iter_mut().for_each(|writer| writer.check(&mut block).unwrap());
    drop(block);
    boot::unmap(&config(&machine), "data").unwrap();
    writers.iter_mut().for_each(|writer| writer.check_file(&slow()));
    eprintln!("dm: {crashes} crashes in switches hidden in {:.0?}", began.elapsed());
}

/// Boosts come and go under 32 writers, each of which knows what every sector of its own must read. How long the longest
/// request took is printed, and judged by whoever runs this on an idle machine.
#[test]
#[ignore = "runs in a guest"]
fn guest_switches_under_writers() {
    let machine = machine("16 MiB", CALM);
    let running = start(&machine);
    let mut writers: Vec<_> = Writer::several(32, 64 * MIB, 47).into_iter().map(Writer::without_discards).collect();
    let (over, began, switches) = (AtomicBool::new(false), Instant::now(), rounds::kills(4).next_multiple_of(2));
    let longest = AtomicU64::new(0);
    let calm_longest = std::thread::scope(|scope| {
        for writer in &mut writers {
            let (over, longest) = (&over, &longest);
            scope.spawn(move || {
                let mut block = Block::open(Path::new(MAPPED)).unwrap();
                while !over.load(Ordering::Relaxed) {
                    let began = Instant::now();
                    writer.step(&mut block).unwrap();
                    std::thread::sleep(guest::PAUSE);
                    longest.fetch_max(began.elapsed().as_micros() as u64, Ordering::Relaxed);
                }
            });
        }
        let _over = Ends(&over);
        // Of this thread alone: who asks for the boosts does not wait for the writers.
        let _ = rustix::process::setpriority_process(None, -20);
        // Without a switch, for comparison.
        std::thread::sleep(Duration::from_secs(5));
        let calm_longest = longest.swap(0, Ordering::Relaxed);
        for number in 0..switches / 2 {
            if number % 10 == 0 {
                boost(&running);
            } else {
                // Called off as soon as the daemon serves: nothing needs to be drained.
                eventually("the daemon serves", || {
                    let _ = running.client.ask(&Request::boost("data"));
                    map(&running) == "served"
                });
            }
            calm(&machine, &running);
        }
        calm_longest
    });
    let mut block = Block::open(Path::new(MAPPED)).unwrap();
    writers.iter_mut().for_each(|writer| writer.check(&mut block).unwrap());
    let checked: u64 = writers.iter().map(|writer| writer.counts.checked_bytes).sum();
    drop(block);
    running.stop();
    assert!(!Path::new(MAPPED).exists(), "nobody uses it, and it stays");
    assert_eq!((served_devices(), machine.rented()), (0, 0));
    writers.iter_mut().for_each(|writer| writer.check_file(&slow()));
    eprintln!(
        "dm: {switches} switches under 32 writers in {:.0?}, no wrong byte in {} MiB read; longest request {:.0} ms without a \
         switch, {:.0} ms with them",
        began.elapsed(),
        checked >> 20,
        calm_longest as f64 / 1e3,
        longest.into_inner() as f64 / 1e3
    );
}
