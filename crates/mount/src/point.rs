//! Where a file system is mounted: looked at before, taken away afterwards.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use surgetank_device::mountinfo::{self, Mount};

use crate::Error;

/// What the source of a pool's mount begins with.
const SCHEME: &str = "pool://";

/// Whether a staging pool is mounted there.
#[must_use]
pub fn is_pool(mount: &Mount) -> bool {
    mount.kind.starts_with("fuse") && mount.source.as_os_str().as_bytes().starts_with(SCHEME.as_bytes())
}

fn mounts() -> Vec<Mount> {
    mountinfo::read().unwrap_or_default()
}

/// What is mounted on a directory, on top.
#[must_use]
pub fn on(point: &Path) -> Option<Mount> {
    mounts().into_iter().rev().find(|mount| mount.point == point)
}

/// The mount that a path lies in.
#[must_use]
pub fn of(path: &Path) -> Option<Mount> {
    mountinfo::innermost(&mounts(), path).cloned()
}

/// The full path of a directory on which something can be mounted.
pub(crate) fn check(point: &Path) -> Result<PathBuf, Error> {
    let shown = point.display().to_string();
    if !Path::new("/dev/fuse").exists() {
        return Err(Error::Point(
            shown,
            "there is no /dev/fuse: load the kernel's module with `modprobe fuse`".to_owned(),
        ));
    }
    // What a killed process left answers nothing.
    if let Ok(full) = std::path::absolute(point)
        && let Some(mounted) = on(&full)
    {
        let remedy = match is_pool(&mounted) {
            true => format!("take it away with `surgetank umount {shown}`"),
            false => "choose another directory".to_owned(),
        };
        return Err(Error::Point(shown, format!("{} is mounted there already: {remedy}", mounted.source.display())));
    }
    let found = match fs::metadata(point) {
        Ok(found) => found,
        Err(error) => return Err(Error::Point(shown.clone(), format!("{error}: make it with `mkdir {shown}`"))),
    };
    if !found.is_dir() {
        return Err(Error::Point(shown, "it is no directory: name one".to_owned()));
    }
    let full = fs::canonicalize(point).map_err(|error| Error::Point(shown.clone(), error.to_string()))?;
    match fs::read_dir(&full).map(|mut entries| entries.next().is_some()) {
        Ok(false) => Ok(full),
        Ok(true) => Err(Error::Point(
            shown,
            "it is not empty, and a mount would hide what is in it: name an empty one".to_owned(),
        )),
        Err(error) => Err(Error::Point(shown, error.to_string())),
    }
}

/// Takes a mount of a pool away. Everything that was closed is in the pool.
///
/// # Errors
/// If it is none, or somebody uses it.
pub fn unmount(point: &Path) -> Result<(), Error> {
    let shown = point.display().to_string();
    let full = fs::canonicalize(point).or_else(|_| std::path::absolute(point)).unwrap_or_else(|_| point.to_owned());
    let Some(mounted) = on(&full) else {
        return Err(Error::Point(
            shown,
            "nothing is mounted there: `grep pool:// /proc/mounts` lists mounts of pools".to_owned(),
        ));
    };
    if !is_pool(&mounted) {
        return Err(Error::Point(
            shown,
            format!("{} is mounted there, which is no staging pool: use umount(8)", mounted.source.display()),
        ));
    }
    match rustix::mount::unmount(&full, UnmountFlags::empty()) {
        Ok(()) => Ok(()),
        Err(Errno::BUSY) => {
            let remedy = format!("a program uses it: end it (`fuser -vm {shown}` names it), and try again");
            Err(Error::Point(shown, remedy))
        }
        Err(Errno::PERM) => Err(Error::Point(shown, "only root may unmount it: use sudo".to_owned())),
        Err(error) => Err(Error::Point(shown, error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_cannot_be_mounted_on_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("file"), "").unwrap();
        for (point, why) in [
            (at("none"), "make it with `mkdir "),
            (at("file"), "it is no directory: name one"),
            (directory.path().to_owned(), "it is not empty, and a mount would hide what is in it"),
        ] {
            let told = check(&point).unwrap_err().to_string();
            assert!(told.starts_with(&format!("mount point {}", point.display())) && told.contains(why), "{told}");
        }
        let told = unmount(&at("file")).unwrap_err().to_string();
        assert!(told.contains("nothing is mounted there"), "{told}");
        let told = unmount(Path::new("/proc")).unwrap_err().to_string();
        assert!(told.contains("is mounted there, which is no staging pool: use umount(8)"), "{told}");
    }
}
