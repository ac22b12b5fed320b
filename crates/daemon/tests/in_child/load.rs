//! Other people's tools verify what they wrote, while boosts come, are called off and go: fio over NBD and on the block
//! device, fsx on the block device and on ext4 and XFS, stress-ng on the file systems, which are checked afterwards.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::common::child::Running;
use crate::common::mounted::{self, Mounted};
use crate::common::rounds::{self, Seen};
use crate::common::{MIB, Machine, eventually, pattern};
use surgetank_model::random::Random;

/// Boosts that a load must have seen, and how often it is run for that.
const BOOSTS_MIN: u64 = 3;
const LOADS_MAX: usize = 10;

/// A machine with one device whose caching volume holds less than a load writes.
fn machine(bytes: u64, export: &str, policy: &str) -> (Machine, PathBuf) {
    let machine = Machine::new();
    let backing = machine.backing("backing", bytes);
    rounds::configure(&machine, &backing, policy, "24 MiB", export);
    (machine, backing)
}

/// Seeds and sizes of the loads follow from this: `SURGETANK_LOADS` asks for so many times as much.
fn times() -> u64 {
    std::env::var("SURGETANK_LOADS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// Runs a load while boosts come and go, again if there were too few of them, and says how many there were.
#[expect(clippy::print_stderr, reason = "what ran is what the test is for")]
fn amid_boosts(name: &str, running: &Running, load: impl Fn()) {
    let (seen, began) = (Seen::default(), Instant::now());
    let boosts = || running.client.status().unwrap().devices[0].boosts;
    let before = boosts();
    let mut random = Random::from_seed(name.len() as u64);
    std::thread::scope(|scope| {
        scope.spawn(|| rounds::watch(&running.client, &seen));
        scope.spawn(|| rounds::conduct(&running.client, &seen, &mut random));
        // The others end also if the load panics.
        let over = rounds::Over(&seen);
        for _ in 0..LOADS_MAX {
            load();
            if boosts() >= before + BOOSTS_MIN {
                break;
            }
            // A load that goes up and down calls off what ends a boost. Without load every boost ends, and another can begin.
            eventually("a boost has ended", || seen.idle());
        }
        drop(over);
    });
    let boosts = boosts() - before;
    eprintln!(
        "{name}: {:.0?} amid {boosts} boosts, {} called off",
        began.elapsed(),
        seen.calls_off.load(Ordering::Relaxed)
    );
    assert!(boosts >= BOOSTS_MIN, "{name}: boosts should have come and gone");
}

/// A tool that must end well, and by itself.
#[track_caller]
fn tool(arguments: &[&str]) -> String {
    mounted::must("timeout", &[&["--kill-after=10", "300"], arguments].concat())
}

/// Overlapping writes of 512 bytes to 128 KiB anywhere, read back while more are under way and again at the end.
fn fio(target: &[&str], more: &[&str]) {
    let loops = format!("--loops={}", 12 * times());
    let load = [
        "fio",
        "--name=load",
        "--rw=randwrite",
        "--size=24m",
        "--bsrange=512-128k",
        "--blockalign=512",
        "--iodepth=16",
        "--verify=crc32c",
        "--verify_backlog=200",
        "--verify_fatal=1",
        "--verify_state_save=0",
        "--fsync=64",
        "--randseed=7",
        &loops,
    ];
    let said = tool(&[&load, target, more].concat());
    assert!(said.contains("err= 0"), "{said}");
}

#[test]
fn fio_verifies_over_nbd_while_boosts_come_and_go() {
    for policy in ["adaptive", "paper"] {
        let (machine, _) = machine(24 * MIB, "nbd", policy);
        let running = Running::start(&machine, None);
        let uri = format!("--uri=nbd+unix:///?socket={}", running.socket.display());
        amid_boosts(&format!("fio over nbd, {policy}"), &running, || fio(&["--ioengine=nbd", &uri], &[]));
        rounds::deletes_everything(&machine, &running);
        running.stop();
    }
}

#[test]
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn fio_and_fsx_verify_on_the_block_device_while_boosts_come_and_go() {
    if let Err(why) = mounted::possible() {
        eprintln!("skipped: {why}");
        return;
    }
    let (machine, _) = machine(24 * MIB, "fuse", "adaptive");
    let running = Running::start(&machine, None);
    let device = mounted::device(&running);
    let file = format!("--filename={}", device.display());
    amid_boosts("fio, direct", &running, || fio(&[&file], &["--ioengine=libaio", "--direct=1"]));
    // Through the page cache sizes and places need no alignment.
    amid_boosts("fio, buffered and unaligned", &running, || fio(&[&file], &["--ioengine=psync", "--bs_unaligned=1"]));
    match fsx_binary() {
        Ok(fsx) => amid_boosts("fsx on the block device", &running, || {
            let configuration = "blockmode = true\nopsize = { min = 512, max = 65536, align = 512 }\n\
                                 weights = { truncate = 0, mapread = 5, mapwrite = 5, fsync = 1, punch_hole = 3 }\n";
            exercise(&machine, &fsx, configuration, &device, 6000 * times(), 1);
        }),
        Err(why) => eprintln!("skipped fsx: {why}"),
    }
    rounds::deletes_everything(&machine, &running);
    running.stop();
}

/// Where `scripts/setup` puts it.
fn fsx_binary() -> Result<PathBuf, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/bin/fsx");
    let missing = |error| format!("{}: {error}: run `scripts/setup test`", path.display());
    path.canonicalize().map_err(missing)
}

fn exercise(machine: &Machine, fsx: &Path, configuration: &str, target: &Path, operations: u64, seed: u64) {
    let file = machine.path(&format!("fsx-{seed}.toml"));
    std::fs::write(&file, configuration).unwrap();
    let (operations, seed) = (operations.to_string(), seed.to_string());
    let artifacts = machine.directory.path().to_str().unwrap();
    let options = ["-q", "-f", file.to_str().unwrap(), "-P", artifacts, "-N", &operations, "-S", &seed];
    tool(&[&[fsx.to_str().unwrap()], &options[..], &[target.to_str().unwrap()]].concat());
}

/// Everything below a directory, with what is in it.
fn contents(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap().map(Result::unwrap) {
        let (path, kind) = (entry.path(), entry.file_type().unwrap());
        if kind.is_dir() {
            found.extend(contents(&path));
        } else if kind.is_file() {
            found.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    found
}

/// fsx three times over, then stress-ng, on a file system on the block device. What the page cache held is on the
/// device afterwards, and a check finds nothing. stress-ng leaves no file behind: one of our own is always there.
#[expect(clippy::print_stderr, reason = "a test that is skipped says so")]
fn exercise_file_system(name: &str, make: &[&str], check: &[&str], bytes: u64, policy: &str) {
    if let Err(why) = mounted::possible() {
        eprintln!("skipped: {why}");
        return;
    }
    let (machine, backing) = machine(bytes, "fuse", policy);
    mounted::must(make[0], &[&make[1..], &[backing.to_str().unwrap()]].concat());
    let running = Running::start(&machine, None);
    let (device, place) = (mounted::device(&running), machine.path("mnt"));
    let file_system = Mounted::mount(&device, &place);
    match fsx_binary() {
        Ok(fsx) => amid_boosts(&format!("fsx on {name}"), &running, || {
            let configuration = "flen = 4194304\nopsize = { min = 0, max = 262144 }\n\
                                 weights = { fsync = 2, fdatasync = 2, posix_fallocate = 3, punch_hole = 5, \
                                 posix_fadvise = 5, copy_file_range = 3, sendfile = 3, close_open = 2 }\n";
            std::thread::scope(|scope| {
                for seed in 1..=3 {
                    let (machine, fsx, file) = (&machine, &fsx, place.join(format!("fsx{seed}")));
                    scope.spawn(move || exercise(machine, fsx, configuration, &file, 4000 * times(), seed));
                }
            });
        }),
        Err(why) => eprintln!("skipped fsx: {why}"),
    }
    let ours = (place.join("ours"), pattern(0, 1, 4 * MIB as usize));
    amid_boosts(&format!("stress-ng on {name}"), &running, || {
        std::fs::write(&ours.0, &ours.1).unwrap();
        let timeout = (12 * times()).to_string();
        let stressors = "--hdd 2 --hdd-bytes 12m --iomix 1 --iomix-bytes 16m --dentry 1 \
                         --rename 1 --dir 1 --fallocate 1 --fallocate-bytes 8m --fpunch 1 --link 1 --symlink 1 \
                         --sync-file 1 --sync-file-bytes 4m --xattr 1 --utime 1";
        let options = ["stress-ng", "--verify", "--seed", "7", "--timeout", &timeout];
        let place = ["--temp-path", place.to_str().unwrap()];
        tool(&[&options[..], &place, &stressors.split_whitespace().collect::<Vec<_>>()].concat());
    });
    let before = contents(&place);
    file_system.unmount();
    mounted::must(check[0], &[&check[1..], &[device.to_str().unwrap()]].concat());
    let file_system = Mounted::mount(&device, &place);
    let after = contents(&place);
    assert!(after.get(&ours.0) == Some(&ours.1), "our own file changed");
    assert!(before.keys().eq(after.keys()) && !before.is_empty(), "{:?} became {:?}", before.keys(), after.keys());
    for (path, bytes) in &before {
        assert!(*bytes == after[path], "{} changed", path.display());
    }
    file_system.unmount();
    rounds::deletes_everything(&machine, &running);
    running.stop();
    mounted::must(check[0], &[&check[1..], &[backing.to_str().unwrap()]].concat());
}

#[test]
fn ext4_stays_whole_while_boosts_come_and_go() {
    exercise_file_system("ext4", &["mkfs.ext4", "-q"], &["e2fsck", "-fn"], 128 * MIB, "adaptive");
}

#[test]
fn xfs_stays_whole_while_boosts_come_and_go() {
    exercise_file_system("xfs", &["mkfs.xfs", "-q", "-s", "size=512"], &["xfs_repair", "-n"], 320 * MIB, "paper");
}
