//! Files whose names somebody else chose: found beneath a directory that the user chose, or not at all.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

/// What `name` beneath `directory` is now: a descriptor to look at (`O_PATH`), which opens nothing yet. No part of the
/// name may be a symbolic link or lead out of the directory; the directory itself may be reached through links.
///
/// # Errors
/// As openat2(2) (Linux 5.6): ENOENT, ELOOP for a link, EXDEV for a way out.
pub fn look_beneath(directory: &Path, name: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(CWD, directory, flags | OFlags::DIRECTORY, Mode::empty())?;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    loop {
        match rustix::fs::openat2(&directory, name, flags, Mode::empty(), resolve) {
            // AGAIN: something was renamed meanwhile.
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            result => return Ok(result?),
        }
    }
}
