//! File systems on the block device of a daemon in a child process, that outlive the daemon's death.

use std::fs::OpenOptions;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::child::Running;
use super::{Machine, TIMEOUT, eventually};

/// How long a killed daemon may take to die before its connection is cut, as the manual says.
const DEATH_TIMEOUT: Duration = Duration::from_secs(5);

/// Whether this process may make loop devices.
pub fn possible() -> Result<(), String> {
    for path in ["/dev/fuse", "/dev/loop-control"] {
        OpenOptions::new().read(true).write(true).open(path).map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(())
}

/// The block device.
pub fn device(running: &Running) -> PathBuf {
    PathBuf::from(running.client.status().unwrap().devices[0].address.clone())
}

/// Runs a tool and says whether it ended well, and what it said.
pub fn run(tool: &str, arguments: &[&str]) -> (bool, String) {
    let output = Command::new(tool).args(arguments).stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{tool}: {error}"));
    let said = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    (output.status.success(), said)
}

/// Runs a tool that must end well.
#[track_caller]
pub fn must(tool: &str, arguments: &[&str]) -> String {
    let (well, said) = run(tool, arguments);
    assert!(well, "{tool} {arguments:?}: {said}");
    said
}

/// A mounted file system. Dropping it unmounts it, whatever its device is.
pub struct Mounted(PathBuf);

impl Mounted {
    pub fn mount(device: &Path, place: &Path) -> Self {
        std::fs::create_dir_all(place).unwrap();
        must("mount", &[device.to_str().unwrap(), place.to_str().unwrap()]);
        Self(place.to_owned())
    }

    /// In order: everything is written.
    pub fn unmount(self) {
        must("umount", &[self.0.to_str().unwrap()]);
        std::mem::forget(self);
    }

    /// After the death of its device.
    pub fn abandon(self) {
        drop(self);
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let place = self.0.to_str().unwrap();
        if !run("umount", &[place]).0 {
            run("umount", &["-l", place]);
        }
    }
}

/// A read-only check of an ext4 that is not mounted: no error at all.
#[track_caller]
pub fn check_ext4(device: &Path) {
    must("e2fsck", &["-fn", device.to_str().unwrap()]);
}

/// Waits for a killed daemon to die. One whose own threads wait for its device does when its connection is cut.
pub fn see_it_die(machine: &Machine, running: &mut Running) {
    let until = Instant::now() + DEATH_TIMEOUT;
    while !running.dead() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    if !running.dead() {
        cut(&machine.path("run/data.fuse"));
        let until = Instant::now() + TIMEOUT;
        eventually("the daemon dies when its connection is cut", || running.dead() || Instant::now() > until);
    }
    assert!(running.was_killed(), "the daemon ended otherwise: {}", machine.log());
}

/// Takes away what a dead daemon left, after a test that failed.
pub fn clear(mount: &Path) {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if !mounts.lines().any(|line| line.split(' ').nth(4) == mount.to_str()) {
        return;
    }
    for number in 0..256 {
        let file = std::fs::read_to_string(format!("/sys/block/loop{number}/loop/backing_file")).unwrap_or_default();
        if Path::new(file.trim_end()).starts_with(mount) {
            run("losetup", &["-d", &format!("/dev/loop{number}")]);
        }
    }
    run("umount", &["-l", mount.to_str().unwrap_or_default()]);
}

/// Ends the kernel's wait for a FUSE server that does not answer.
#[expect(clippy::print_stderr, reason = "it should be rare")]
fn cut(mount: &Path) {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let fields = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for line in mounts.lines().map(fields).filter(|fields| Path::new(&fields[4]) == mount) {
        let minor = line[2].split(':').nth(1).unwrap().to_owned();
        eprintln!("the daemon waited for its own device: cutting connection {minor}");
        std::fs::write(format!("/sys/fs/fuse/connections/{minor}/abort"), "1").unwrap();
    }
}
