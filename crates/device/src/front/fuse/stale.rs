//! What a killed daemon left behind: a mount without a server and a loop device on it.

use std::io;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use super::filesystem::FILE;
use super::loop_device::LoopDevice;
use crate::front::FrontError;
use crate::mountinfo;

/// Mounts stacked on one directory that are taken away at most.
const STACKED_MAX: usize = 16;
/// How often a busy mount is tried, and the pause between.
const UNMOUNT_ATTEMPTS: usize = 100;
const UNMOUNT_PAUSE: Duration = Duration::from_millis(5);

/// Takes away a dead mount on `directory` and the loop devices on it.
///
/// # Errors
/// If the mount's server is alive.
pub(super) fn clear(directory: &Path) -> Result<(), FrontError> {
    for _ in 0..STACKED_MAX {
        if !is_mounted(directory) {
            clear_unmounted(directory);
            return Ok(());
        }
        // A dead connection answers at once; a living server answers itself.
        match rustix::fs::statfs(directory) {
            Err(Errno::NOTCONN | Errno::CONNABORTED) => {}
            _ => {
                return Err(FrontError(format!(
                    "another process serves {}; stop it first (`fuser -vm {0}` names it)",
                    directory.display()
                )));
            }
        }
        tracing::warn!(directory = %directory.display(), "clearing what a killed daemon left");
        // While the mount is there, the kernel still names the device's file by its path.
        for device in LoopDevice::backed_by(&directory.join(FILE)) {
            device.detach_lazily();
        }
        unmount(directory, UnmountFlags::DETACH).map_err(|error| {
            let shown = directory.display();
            FrontError::new(&format!("cannot unmount the dead {shown}"), error, &format!("try `umount -l {shown}`"))
        })?;
    }
    Ok(())
}

/// Takes away loop devices whose mount went with the mount namespace of a killed daemon, as that of a systemd unit does.
fn clear_unmounted(directory: &Path) {
    for device in LoopDevice::left_by(&directory.join(FILE)) {
        tracing::warn!(device = %device.path().display(), "clearing what a killed daemon left");
        device.detach_lazily();
    }
}

/// Whether something is mounted on `directory`.
fn is_mounted(directory: &Path) -> bool {
    mountinfo::read().unwrap_or_default().iter().any(|mount| mount.point == directory)
}

/// Unmounts, at once if possible, otherwise as soon as nobody uses the mount. True if nothing is left of it.
pub(super) fn unmount_any(directory: &Path) -> io::Result<bool> {
    for _ in 0..UNMOUNT_ATTEMPTS {
        match unmount(directory, UnmountFlags::empty()) {
            // A detached loop device releases its file a moment later.
            Err(Errno::BUSY) => sleep(UNMOUNT_PAUSE),
            Err(Errno::INVAL) => return Ok(true),
            other => return Ok(other.map(|()| true)?),
        }
    }
    unmount(directory, UnmountFlags::DETACH)?;
    Ok(false)
}
