//! Files whose names somebody else chose: found beneath a directory that the user chose, or not at all.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;

/// What `name` beneath `directory` is now: a descriptor to look at (`O_PATH`), which opens nothing yet. No part of the
/// name may be a symbolic link or lead out of the directory; the directory itself may be reached through links.
///
/// Walked part by part rather than by openat2(2), which systemd takes from services with `RestrictSUIDSGID=`.
///
/// # Errors
/// ENOENT, ELOOP for a link, EXDEV for a way out.
pub fn look_beneath(directory: &Path, name: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let mut at = openat(CWD, directory, flags | OFlags::DIRECTORY, Mode::empty())?;
    for part in name.components() {
        let part = match part {
            Component::Normal(part) => part,
            Component::CurDir => continue,
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return Err(Errno::XDEV.into()),
        };
        // With these flags a link is opened itself, not what it leads to.
        at = openat(&at, part, flags | OFlags::NOFOLLOW, Mode::empty())?;
        if FileType::from_raw_mode(fstat(&at)?.st_mode) == FileType::Symlink {
            return Err(Errno::LOOP.into());
        }
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn only_what_lies_beneath_and_is_no_link_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let own = directory.path().join("own");
        fs::create_dir_all(own.join("volumes")).unwrap();
        fs::write(own.join("volumes/a.img"), "a").unwrap();
        fs::write(directory.path().join("secret"), "s").unwrap();
        symlink("../secret", own.join("link")).unwrap();
        symlink("volumes", own.join("way")).unwrap();
        symlink(&own, directory.path().join("named")).unwrap();
        let look = |name: &str| {
            let named = directory.path().join("named");
            look_beneath(&named, Path::new(name)).map(drop).map_err(|error| error.raw_os_error().unwrap())
        };
        assert_eq!(look("volumes/a.img"), Ok(()));
        assert_eq!(look("./volumes/a.img"), Ok(()));
        for name in ["link", "way/a.img", "way"] {
            assert_eq!(look(name), Err(libc::ELOOP), "{name}");
        }
        let secret = directory.path().join("secret");
        for name in ["../secret", "volumes/../../secret", secret.to_str().unwrap()] {
            assert_eq!(look(name), Err(libc::EXDEV), "{name}");
        }
        assert_eq!(look("volumes/b.img"), Err(libc::ENOENT));
        assert_eq!(look("volumes/a.img/x"), Err(libc::ENOTDIR));
    }
}
