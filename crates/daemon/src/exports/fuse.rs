//! A loop device over a file that FUSE serves. The kernel asks for data while it comes and goes.

use std::fs::OpenOptions;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use surgetank_device::front::{FuseConfig, FuseFront, FuseHandle};
use surgetank_device::mountinfo;

use super::{Export, Opened, Opening, linked, lock_memory};
use crate::device::Until;
use crate::link::Link;
use crate::places;

/// How long the kernel may take to set the loop device up.
const SET_UP_TIMEOUT: Duration = Duration::from_secs(60);
/// How long the daemon waits for the users of a device to close it when it stops.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(20);

struct Fuse(FuseHandle, Link);

/// Whether this process may make loop devices and FUSE mounts, found out without making one.
pub(super) fn possible() -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("a loop device needs root".to_owned());
    }
    for path in ["/dev/fuse", "/dev/loop-control"] {
        OpenOptions::new().read(true).write(true).open(path).map_err(|error| format!("{path}: {error}"))?;
    }
    Ok(())
}

pub(super) fn open(Opening { export, run_directory, .. }: Opening<'_>) -> Result<Opened, String> {
    places::make(run_directory)?;
    lock_memory();
    let link = Link::new(run_directory, &export.name);
    let config = FuseConfig { export, run_directory: run_directory.to_owned(), session_threads: 1 };
    let front = FuseFront::start(&config).map_err(|error| error.to_string())?;
    let export = Arc::new(Fuse(front.handle(), link));
    Ok(Opened { front: Box::new(front), kind: "fuse", export })
}

impl Export for Fuse {
    fn address(&self) -> Result<String, String> {
        let device = self.0.wait_ready(SET_UP_TIMEOUT).map_err(|error| error.to_string())?;
        Ok(linked(&self.1, &device))
    }

    fn grown(&self, _size: u64) -> Result<(), String> {
        self.0.grown().map_err(|error| error.to_string())
    }

    fn unused(&self) -> Result<(), String> {
        self.0.unused().map_err(|error| error.to_string())
    }

    /// Waits for the users of the device; then what the file systems have not written yet is written, and the device ends
    /// under them.
    fn close(&self, device: &str, _until: Until) {
        let Self(handle, link) = self;
        link.remove();
        let until = Instant::now() + CLOSE_TIMEOUT;
        let mut told = false;
        while let Err(error) = handle.close() {
            if !told {
                tracing::warn!(device, %error, "waiting for the users of the device");
                told = true;
            }
            if Instant::now() >= until {
                tracing::error!(device, %error, "the device ends while it is in use");
                if let Ok(path) = handle.wait_ready(Duration::ZERO) {
                    write_back(&path);
                }
                return;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// Lets the file systems on a block device write what they have not written yet, in a process of its own: it can be
/// killed when it waits for too long.
fn write_back(device: &Path) {
    let Ok(number) = rustix::fs::stat(device).map(|stat| stat.st_rdev) else { return };
    let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let mounts = mountinfo::read().unwrap_or_default();
    let mut sync = Command::new("sync");
    // Where it is mounted may not be visible from here: in another mount namespace. Then all file systems write.
    if let Some(mount) = mounts.iter().find(|mount| mount.number == number) {
        sync.arg("-f").arg(&mount.point);
    }
    let Ok(mut sync) = sync.spawn() else { return };
    let until = Instant::now() + CLOSE_TIMEOUT;
    while matches!(sync.try_wait(), Ok(None)) {
        if Instant::now() >= until {
            // It is waited for by nobody: it may not end before the device does.
            let _ = sync.kill();
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
