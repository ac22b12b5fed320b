//! What a bench sets up and must put away, also on Ctrl-C: loop devices, control groups. Everything is a value whose drop
//! undoes it, so an error or an interrupt that travels up as `Err` cleans up on its way.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use anyhow::Context;

use crate::interrupt::output;

/// A loop device over a file, with direct I/O.
#[derive(Debug)]
pub struct Loop {
    /// `/dev/loopN`.
    pub path: PathBuf,
}

impl Loop {
    pub fn attach(file: &Path) -> anyhow::Result<Self> {
        let output = output(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(file))?;
        Ok(Self { path: String::from_utf8_lossy(&output.stdout).trim().into() })
    }

    /// `MAJOR:MINOR`.
    pub fn number(&self) -> anyhow::Result<String> {
        let name = self.path.file_name().context("a loop device has a name")?.to_string_lossy().into_owned();
        Ok(fs::read_to_string(format!("/sys/block/{name}/dev"))?.trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = output(Command::new("losetup").arg("--detach").arg(&self.path));
    }
}

/// What the kernel lets the processes of a control group do to one disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskLimit {
    /// Bytes per second, each for reads and writes.
    pub bytes: Option<u64>,
    /// Requests per second, each for reads and writes.
    pub requests: Option<u64>,
}

/// A control group (version 1, `blkio`) that throttles one disk.
#[derive(Debug)]
pub struct Throttle {
    directory: PathBuf,
    disk: String,
}

impl Throttle {
    /// Where the controller is mounted on a machine with control groups of version 1.
    const CONTROLLER: &str = "/sys/fs/cgroup/blkio";

    /// Whether this machine has what it takes.
    pub fn available() -> bool {
        Path::new(Self::CONTROLLER).join("blkio.throttle.write_bps_device").exists()
    }

    pub fn new(disk: &str) -> anyhow::Result<Self> {
        let directory = Path::new(Self::CONTROLLER).join(format!("surgetank-bench-{}", std::process::id()));
        fs::create_dir(&directory).with_context(|| format!("cannot make the control group {}", directory.display()))?;
        Ok(Self { directory, disk: disk.to_owned() })
    }

    /// Sets the limits; they hold at once.
    pub fn set(&self, limit: DiskLimit) -> anyhow::Result<()> {
        for (what, value) in [("bps", limit.bytes), ("iops", limit.requests)] {
            for direction in ["read", "write"] {
                let file = self.directory.join(format!("blkio.throttle.{direction}_{what}_device"));
                fs::write(&file, format!("{} {}", self.disk, value.unwrap_or(0)))
                    .with_context(|| format!("cannot set {}", file.display()))?;
            }
        }
        Ok(())
    }

    /// A command that runs in the group.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg("echo $$ > \"$0\" && exec \"$@\"").arg(self.directory.join("cgroup.procs")).arg(program);
        command
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        // A group goes away only when its last process has been reaped by the kernel.
        for _ in 0..50 {
            if fs::remove_dir(&self.directory).is_ok() || !self.directory.exists() {
                return;
            }
            sleep(Duration::from_millis(20));
        }
    }
}
