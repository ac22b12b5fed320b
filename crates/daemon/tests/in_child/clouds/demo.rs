//! The demonstration in the guest: a burst on an ext4 of a device that the daemon serves over ublk. A volume of the cloud is rented, the
//! burst goes to both volumes, is drained, the volume is deleted, and every byte is read back.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lab::Disk;
use surgetank_daemon::DevicePhase;
use surgetank_model::{Bandwidth, Bytes};

use super::{configure, disks, nothing_is_left};
use crate::common::child::Running;
use crate::common::mounted::{self, Mounted};
use crate::common::{Ends, Machine, eventually, pattern, rounds, within};

/// Of the device.
const SIZE: Bytes = Bytes::from_mib(96);
/// What a file of the burst has.
const FILE_BYTES: usize = 2 << 20;
/// So many are written while the boost absorbs.
const FILES_IN_BOOST: usize = 8;
/// More do not fit.
const FILES_MAX: usize = 40;

/// The slow volume: a burst of all files would take 20 s.
pub fn backing() -> Disk {
    Disk::new("backing", SIZE).throttled(Bandwidth::from_mib_s(4))
}

/// What was written to a disk of this guest, in bytes.
fn written(disk: &str) -> u64 {
    let stat = fs::read_to_string(format!("/sys/block/{disk}/stat")).unwrap();
    stat.split_whitespace().nth(6).unwrap().parse::<u64>().unwrap() * 512
}

fn file(mount: &Path, number: usize) -> (PathBuf, Vec<u8>) {
    (mount.join(number.to_string()), pattern(number as u64, 9, FILE_BYTES))
}

/// Writes files, each with a flush, until enough were written while a boost absorbs. Answers how many.
fn burst(running: &Running, mount: &Path, own: &BTreeSet<String>) -> usize {
    let backing = own.first().unwrap();
    let (mut before, mut in_boost, mut files) = (None, 0, 0);
    let both = || [backing, disks().difference(own).next().unwrap()].map(|disk| written(disk));
    while in_boost < FILES_IN_BOOST {
        assert!(files < FILES_MAX, "no boost has absorbed enough: {:?}", running.client.status());
        let (path, bytes) = file(mount, files);
        let absorbs = running.phase() == Some(DevicePhase::Boost);
        if absorbs && before.is_none() {
            before = Some(both());
        }
        let mut file = File::create(path).unwrap();
        file.write_all(&bytes).unwrap();
        file.sync_all().unwrap();
        files += 1;
        in_boost += usize::from(absorbs);
    }
    let (now, before) = (both(), before.unwrap());
    let [slow, fast] = [now[0] - before[0], now[1] - before[1]];
    eprintln!(
        "{files} files of {FILE_BYTES} bytes; in the boost {slow} bytes to the backing volume, {fast} to the caching volume"
    );
    assert!(slow > 0 && fast > 0, "the burst goes to both volumes");
    files
}

/// The file system has no error, and every file every byte.
fn check(device: &Path, mount: &Path, files: usize) {
    mounted::check_ext4(device);
    let file_system = Mounted::mount(device, mount);
    for number in 0..files {
        let (path, bytes) = file(mount, number);
        assert!(fs::read(path).unwrap() == bytes, "file {number} reads differently");
    }
    file_system.unmount();
}

/// Looks for disks until it is over: for how long each was there before the daemon had it, as its journal says.
fn watch(machine: &Machine, own: &BTreeSet<String>, over: &AtomicBool) -> Vec<Duration> {
    let (mut found, mut since) = (Vec::new(), None);
    while !over.load(Ordering::Relaxed) {
        let (now, is_there) = (Instant::now(), disks() != *own);
        match since {
            None if is_there => since = Some((now, false)),
            Some((at, false)) => {
                let journal = rounds::json(&machine.path("state/data/journal.json"));
                if matches!(journal["rental"]["stage"].as_str(), Some("attached" | "adopting" | "adopted")) {
                    found.push(now - at);
                    since = Some((at, true));
                }
            }
            Some(_) if !is_there => since = None,
            None | Some(_) => {}
        }
        std::thread::sleep(Duration::from_millis(3));
    }
    found
}

fn demonstrated(machine: &Machine, own: &BTreeSet<String>) {
    let mut running = Running::start(machine, None);
    assert!(!running.dead(), "the daemon does not start: {}", machine.log());
    let (mut served, mount) = (PathBuf::new(), machine.path("mnt"));
    eventually("the device is served", || {
        served = mounted::device(&running);
        served.starts_with("/dev/")
    });
    let device = served.to_str().unwrap();
    assert!(device.starts_with("/dev/ublkb"), "{device}");
    mounted::must("mkfs.ext4", &["-q", "-N", "256", "-E", "lazy_itable_init=0,lazy_journal_init=0", device]);
    let file_system = Mounted::mount(&served, &mount);
    let files = burst(&running, &mount, own);
    // A detach takes 12 s, an absence is believed after 60 s, and other tests have the processors.
    within(Duration::from_secs(300), "it is drained, and the volume is returned", || {
        let status = running.client.status().unwrap().devices.remove(0);
        status.phase == DevicePhase::Idle && status.caching.is_none()
    });
    eventually("the disk is gone", || disks() == *own);
    file_system.unmount();
    check(&served, &mount, files);
    nothing_is_left(&running);
    assert_eq!(running.client.status().unwrap().devices[0].boosts, 1);
    running.stop();
    // What is on the backing volume needs no daemon.
    check(Path::new("/dev/lab/backing"), &mount, files);
}

#[test]
#[ignore = "runs in a guest"]
fn guest_demonstration() {
    assert!(Path::new("/lab").exists(), "this is no guest");
    let machine = Machine::new();
    // It boosts by itself, and once.
    let policy = "name = \"adaptive\"\nvalue_of_time = 1e9\nsampling = \"250 ms\"\ninactivity_delay = \"2 s\"\nboost_interval = \"1 h\"";
    configure(&machine, "ublk", "4 MiB/s", "8 MiB/s", policy);
    let (own, over) = (disks(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watching = scope.spawn(|| watch(&machine, &own, &over));
        {
            let _over = Ends(&over);
            demonstrated(&machine, &own);
        }
        let found = watching.join().unwrap();
        assert_eq!(found.len(), 1, "one disk came: {found:?}");
        eprintln!("the daemon had the disk {:.3} s after the kernel showed it", found[0].as_secs_f64());
    });
}
