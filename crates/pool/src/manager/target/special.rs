//! FIFOs, sockets and devices.

use std::io::{Error, ErrorKind, Result};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use rustix::fs::{CWD, FileType, Mode, mknodat};
use surgetank_pool_core::id::Inode;
use surgetank_pool_core::meta::value::{Placed, Special, SpecialKind};

use super::{Owner, found, placed, theirs};

/// Makes one where nothing is.
pub(super) fn make(at: &Path, special: Special, owner: Owner, maybe_done: bool) -> Result<Placed> {
    match found(at)? {
        None => made(at, special, owner.0)?,
        Some(done) if maybe_done && is(&done, special) => {}
        Some(_) => return Err(theirs()),
    }
    super::give_owner(at, owner)?;
    Ok(placed(Inode(0), &std::fs::symlink_metadata(at)?))
}

fn made(at: &Path, special: Special, mode: u32) -> Result<()> {
    let what = match special.what {
        SpecialKind::Fifo => FileType::Fifo,
        SpecialKind::Socket => FileType::Socket,
        SpecialKind::Characters => FileType::CharacterDevice,
        SpecialKind::Blocks => FileType::BlockDevice,
    };
    match mknodat(CWD, at, what, Mode::from_raw_mode(mode & 0o7777), special.device) {
        Ok(()) => Ok(()),
        // It would be refused every time, and everything behind it would wait.
        Err(rustix::io::Errno::PERM | rustix::io::Errno::ACCESS | rustix::io::Errno::INVAL) => {
            let sentence = "this process may not make it at the target, which does not get it";
            Err(Error::new(ErrorKind::AlreadyExists, sentence))
        }
        Err(error) => Err(error.into()),
    }
}

fn is(found: &std::fs::Metadata, special: Special) -> bool {
    let kind = found.file_type();
    match special.what {
        SpecialKind::Fifo => kind.is_fifo(),
        SpecialKind::Socket => kind.is_socket(),
        SpecialKind::Characters => kind.is_char_device() && found.rdev() == special.device,
        SpecialKind::Blocks => kind.is_block_device() && found.rdev() == special.device,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fifo_and_a_socket_are_made_once_and_nothing_of_others_is_touched() {
        let directory = tempfile::tempdir().unwrap();
        let owner = (0o640, rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        for (name, what) in [("fifo", SpecialKind::Fifo), ("socket", SpecialKind::Socket)] {
            let (at, special) = (directory.path().join(name), Special { what, device: 0 });
            let placed = make(&at, special, owner, false).unwrap();
            assert!(is(&std::fs::symlink_metadata(&at).unwrap(), special));
            assert_eq!(make(&at, special, owner, true).unwrap(), placed);
            assert!(make(&at, special, owner, false).is_err());
        }
        let at = directory.path().join("file");
        std::fs::write(&at, "theirs").unwrap();
        assert!(make(&at, Special { what: SpecialKind::Fifo, device: 0 }, owner, true).is_err());
        assert_eq!(std::fs::read(at).unwrap(), b"theirs");
    }
}
