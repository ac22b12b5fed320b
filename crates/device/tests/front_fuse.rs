//! The fuse front with real mounts and loop devices; skipped where the machine has none.

#![allow(clippy::print_stdout, reason = "tests say what they skip")]

#[allow(dead_code, reason = "each test file uses a part")]
mod front_support;

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use front_support::{Driver, has, run};
use surgetank_device::front::{Export, FuseConfig, FuseFront, FuseHandle};
use surgetank_device::{Buffer, Front};

const MIB: usize = 1 << 20;
const TIMEOUT: Duration = Duration::from_secs(60);

fn can_run() -> bool {
    let root = rustix::process::geteuid().is_root();
    let missing = ["/dev/fuse", "/dev/loop-control"].into_iter().find(|path| !Path::new(path).exists());
    if !root || missing.is_some() {
        println!("skipped: needs root, /dev/fuse and /dev/loop-control");
    }
    root && missing.is_none()
}

fn config(run_directory: &Path, size: usize, logical_block: u32) -> FuseConfig {
    let export = Export { name: "data".into(), size: size as u64, logical_block };
    FuseConfig { export, run_directory: run_directory.to_owned(), session_threads: 1 }
}

struct Device {
    driver: Driver,
    handle: FuseHandle,
    path: PathBuf,
    run_directory: tempfile::TempDir,
}

impl Device {
    fn start(size: usize, logical_block: u32) -> Self {
        let run_directory = tempfile::tempdir().unwrap();
        let front = FuseFront::start(&config(run_directory.path(), size, logical_block)).unwrap();
        let handle = front.handle();
        let driver = Driver::start(front, size);
        let path = handle.wait_ready(TIMEOUT).unwrap();
        Self { driver, handle, path, run_directory }
    }

    fn name(&self) -> &str {
        self.path.to_str().unwrap()
    }

    fn sysfs(&self, file: &str) -> String {
        let number = self.path.file_name().unwrap().to_str().unwrap();
        std::fs::read_to_string(format!("/sys/block/{number}/{file}")).unwrap_or_default().trim().to_owned()
    }

    fn close(self) {
        self.handle.close().unwrap();
        assert_eq!(self.sysfs("loop/backing_file"), "");
        assert!(!self.run_directory.path().join("data.fuse").exists());
    }
}

#[test]
fn the_device_is_what_was_asked_for() {
    if !can_run() {
        return;
    }
    for block in [512, 4096] {
        let device = Device::start(8 * MIB, block);
        assert_eq!(device.sysfs("size"), (8 * MIB / 512).to_string());
        assert_eq!(device.sysfs("queue/logical_block_size"), block.to_string());
        assert_eq!(device.sysfs("loop/dio"), "1", "direct I/O");
        let second = FuseFront::start(&config(device.run_directory.path(), MIB, 512));
        let error = second.err().unwrap().to_string();
        assert!(error.contains("another process serves"), "{error}");
        device.close();
    }
}

#[test]
fn direct_reads_and_writes_of_all_lengths() {
    if !can_run() {
        return;
    }
    let device = Device::start(16 * MIB, 512);
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&device.path).unwrap();
    let mut buffer = Buffer::zeroed(4 * MIB);
    let mut expected = vec![0u8; 16 * MIB];
    let mut word = 1u32;
    for (offset, length) in [(0, 512), (512, 4096), (4096, MIB), (MIB, 4 * MIB), (5 * MIB + 512, 3 * MIB - 512)] {
        let bytes = &mut buffer.unique().unwrap()[..length];
        for byte in bytes.iter_mut() {
            word = word.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (word >> 24) as u8;
        }
        file.write_all_at(bytes, offset as u64).unwrap();
        expected[offset..offset + length].copy_from_slice(bytes);
    }
    file.sync_all().unwrap();
    assert!(device.driver.seen.flushes.load(Ordering::SeqCst) > 0, "fsync is a flush");
    assert!(*device.driver.disk.lock().unwrap() == expected);
    for offset in (0..16).step_by(4) {
        let bytes = buffer.unique().unwrap();
        file.read_exact_at(bytes, (offset * MIB) as u64).unwrap();
        assert!(bytes == &expected[offset * MIB..(offset + 4) * MIB]);
    }
    drop(file);
    if has("blkdiscard") {
        run("blkdiscard", &["-o", "4096", "-l", "8192", device.name()]);
        assert_eq!(device.driver.seen.discarded.load(Ordering::SeqCst), 8192);
        run("blkdiscard", &["-z", "-o", "65536", "-l", "65536", device.name()]);
        expected[4096..12288].fill(0);
        expected[65536..131_072].fill(0);
        assert!(*device.driver.disk.lock().unwrap() == expected);
    }
    device.close();
}

#[test]
fn a_file_system_lives_on_it() {
    if !can_run() || !["mkfs.ext4", "mount", "umount", "fsck.ext4"].into_iter().all(has) {
        return;
    }
    let device = Device::start(64 * MIB, 4096);
    let mount_point = tempfile::tempdir().unwrap();
    let at = mount_point.path().to_str().unwrap();
    run("mkfs.ext4", &["-q", "-F", device.name()]);
    run("mount", &[device.name(), at]);
    let bytes: Vec<u8> =
        (0..8 * MIB as u32 / 4).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    for name in ["one", "two"] {
        let path = mount_point.path().join(name);
        std::fs::write(&path, &bytes).unwrap();
        File::open(&path).unwrap().sync_all().unwrap();
    }
    std::fs::remove_file(mount_point.path().join("two")).unwrap();
    run("sync", &["-f", at]);
    if has("fstrim") {
        let before = device.driver.seen.discarded.load(Ordering::SeqCst);
        run("fstrim", &[at]);
        assert!(device.driver.seen.discarded.load(Ordering::SeqCst) - before > MIB as u64);
    }
    let error = device.handle.close().unwrap_err().to_string();
    assert!(error.contains(&format!("the mount {at}")), "{error}");
    run("umount", &[at]);
    run("fsck.ext4", &["-f", "-n", device.name()]);
    run("mount", &["-o", "ro", device.name(), at]);
    let back = std::fs::read(mount_point.path().join("one")).unwrap();
    run("umount", &[at]);
    assert_eq!(crc32c::crc32c(&back), crc32c::crc32c(&bytes));
    device.close();
}

#[test]
fn fio_verifies() {
    if !can_run() || !has("fio") {
        return;
    }
    let device = Device::start(64 * MIB, 512);
    let file = format!("--filename={}", device.name());
    for (mode, sizes, depth) in [("write", "1M-1M", "8"), ("randrw", "4k-4k", "32"), ("randwrite", "512-256k", "16")] {
        let (mode, sizes, depth) = (format!("--rw={mode}"), format!("--bsrange={sizes}"), format!("--iodepth={depth}"));
        let common = [
            "--name=v",
            "--ioengine=libaio",
            "--direct=1",
            "--size=64M",
            "--verify=crc32c",
            "--verify_fatal=1",
            "--verify_state_save=0",
        ];
        let mut arguments: Vec<&str> = common.to_vec();
        arguments.extend([file.as_str(), &mode, &sizes, &depth, "--randseed=7"]);
        run("fio", &arguments);
    }
    device.close();
}

#[test]
fn a_front_dropped_in_use_fails_its_users_and_hangs_nobody() {
    if !can_run() {
        return;
    }
    let device = Device::start(8 * MIB, 512);
    let file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&device.path).unwrap();
    let Device { driver, path, run_directory, .. } = device;
    drop(driver);
    let mut buffer = Buffer::zeroed(4096);
    assert!(file.read_exact_at(buffer.unique().unwrap(), 0).is_err());
    // The same place can be served again, before and after the last user of the dead device has gone.
    let front = FuseFront::start(&config(run_directory.path(), MIB, 512)).unwrap();
    let handle = front.handle();
    let driver = Driver::start(front, MIB);
    handle.wait_ready(TIMEOUT).unwrap();
    drop(file);
    handle.close().unwrap();
    drop(driver);
    let front = FuseFront::start(&config(run_directory.path(), MIB, 512)).unwrap();
    let handle = front.handle();
    let driver = Driver::start(front, MIB);
    handle.wait_ready(TIMEOUT).unwrap();
    handle.close().unwrap();
    drop(driver);
    assert!(path.exists());
}

/// Not a test: the process that `what_a_killed_process_leaves_is_cleared` kills.
#[test]
#[ignore = "run by another test"]
fn child_serves() {
    let Some(directory) = std::env::var_os("SURGETANK_TEST_FUSE_DIRECTORY") else { return };
    let front = FuseFront::start(&config(Path::new(&directory), 8 * MIB, 512)).unwrap();
    let handle = front.handle();
    let _driver = Driver::start(front, 8 * MIB);
    println!("\nready {}", handle.wait_ready(TIMEOUT).unwrap().display());
    std::thread::sleep(Duration::from_secs(600));
}

/// Not a test: the process whose memory `idle_sessions_keep_no_buffers_in_memory` measures.
#[test]
#[ignore = "run by another test"]
fn child_measures_idle_sessions() {
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/status").unwrap();
        let field = text.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
        field.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
    };
    let (before, sessions) = (resident(), 16);
    // At once, as a daemon starts its devices.
    let devices: Vec<Device> = std::thread::scope(|scope| {
        let starting: Vec<_> = (0..sessions).map(|_| scope.spawn(|| Device::start(MIB, 512))).collect();
        starting.into_iter().map(|device| device.join().unwrap()).collect()
    });
    let grown = (resident() - before) / sessions;
    // The device itself is 1 MiB of memory.
    assert!(grown < 3 * MIB, "{grown} bytes a session");
    devices.into_iter().for_each(Device::close);
}

#[test]
fn idle_sessions_keep_no_buffers_in_memory() {
    if !can_run() {
        return;
    }
    let mut child = Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", "child_measures_idle_sessions", "--ignored", "--nocapture"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn what_a_killed_process_leaves_is_cleared() {
    if !can_run() {
        return;
    }
    let run_directory = tempfile::tempdir().unwrap();
    // One whose mount is gone is named by its path within it. What others have left on this machine is not this test's.
    let loops = || {
        let entries = std::fs::read_dir("/sys/block").unwrap().map(|entry| entry.unwrap().path());
        let files = entries.map(|device| {
            let file = std::fs::read_to_string(device.join("loop/backing_file")).unwrap_or_default();
            (device, file)
        });
        let stale = |file: &str| file.contains(run_directory.path().to_str().unwrap()) || file.starts_with("/disk");
        files.filter(|(_, file)| stale(file)).collect::<std::collections::BTreeSet<(PathBuf, String)>>()
    };
    let before = loops();
    // In some rounds somebody still has the dead device open, or the mount goes with a namespace of the process's own.
    for (held, apart) in [(false, false), (true, false), (false, true), (true, true)] {
        let program = std::env::current_exe().unwrap();
        let mut command = Command::new(if apart { Path::new("unshare") } else { &program });
        if apart {
            command.args(["--mount", "--propagation", "slave"]).arg(&program);
        }
        let mut child = command
            .args(["--exact", "child_serves", "--ignored", "--nocapture"])
            .env("SURGETANK_TEST_FUSE_DIRECTORY", run_directory.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let path = lines.find_map(|line| line.strip_prefix("ready ").map(PathBuf::from)).expect("the child serves");
        let file = held.then(|| OpenOptions::new().read(true).write(true).open(&path).unwrap());
        if let Some(file) = &file {
            file.write_all_at(&[1; 8192], 0).unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let stale = std::fs::read_dir(run_directory.path().join("data.fuse")).err();
        let stale = stale.and_then(|error| error.raw_os_error());
        assert_eq!(stale, if apart { None } else { Some(libc::ENOTCONN) }, "the mount is dead, or gone");
        let front = FuseFront::start(&config(run_directory.path(), 8 * MIB, 512)).unwrap();
        let handle = front.handle();
        let driver = Driver::start(front, 8 * MIB);
        let fresh = handle.wait_ready(TIMEOUT).unwrap();
        assert_eq!(std::fs::read(&fresh).unwrap().len(), 8 * MIB);
        handle.close().unwrap();
        drop((driver, file));
        assert_eq!(loops().difference(&before).collect::<Vec<_>>(), [] as [&(PathBuf, String); 0]);
    }
}

#[test]
fn the_address_is_the_device() {
    if !can_run() {
        return;
    }
    let run_directory = tempfile::tempdir().unwrap();
    let front = FuseFront::start(&config(run_directory.path(), MIB, 512)).unwrap();
    let handle = front.handle();
    let (sender, addresses) = std::sync::mpsc::channel();
    let driver = Driver::start_watching(front, MIB, move |front| {
        let _ = sender.send(front.address());
    });
    let path = handle.wait_ready(TIMEOUT).unwrap();
    let address = addresses.iter().find(|address| !address.is_empty());
    assert_eq!(address.as_deref(), path.to_str());
    handle.close().unwrap();
    drop(driver);
}

#[test]
fn a_front_that_was_never_served_can_be_dropped() {
    if !can_run() {
        return;
    }
    let run_directory = tempfile::tempdir().unwrap();
    drop(FuseFront::start(&config(run_directory.path(), MIB, 512)).unwrap());
    assert!(!run_directory.path().join("data.fuse").exists());
}
