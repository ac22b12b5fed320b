//! The directory in which a daemon keeps what it must not forget: whose it is, and under which name it rents.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use surgetank_cache::Epoch;

use crate::{files, places};
use surgetank_rental::owner::parse_epoch;

/// How long a daemon that was killed may take to release it.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);

/// Locks it: one daemon for one state directory.
///
/// # Errors
/// One sentence with the remedy.
pub fn lock(directory: &Path) -> Result<File, String> {
    let failed = |error: std::io::Error| format!("the state directory {} cannot be used: {error}", directory.display());
    places::make(directory)?;
    let path: PathBuf = directory.join("lock");
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path).map_err(failed)?;
    let until = std::time::Instant::now() + LOCK_TIMEOUT;
    let mut locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
    while locked == Err(rustix::io::Errno::WOULDBLOCK) && std::time::Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        locked = flock(&file, FlockOperation::NonBlockingLockExclusive);
    }
    match locked {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(format!(
            "another surgetank daemon uses the state directory {}, or a command of `surgetank array`: stop it first, or give this \
             one its own state_directory",
            directory.display()
        )),
        Err(errno) => Err(failed(errno.into())),
    }
}

/// Its random name, made once: volumes carry it.
///
/// # Errors
/// It cannot be read or written, or is none.
pub fn owner_id(directory: &Path) -> std::io::Result<String> {
    let path = directory.join("owner-id");
    if let Some(bytes) = files::read(&path)? {
        let text = String::from_utf8_lossy(&bytes).trim().to_owned();
        if parse_epoch(&text).is_none() {
            // Under another name the volumes that are rented would be nobody's.
            return Err(std::io::Error::other(
                "its owner-id is not 32 hex digits: restore it from a backup or from the tag surgetank:owner of a \
                 rented volume, or remove it if none is rented",
            ));
        }
        return Ok(text);
    }
    let name = Epoch(rand::random()).to_string();
    files::write_atomically(&path, format!("{name}\n").as_bytes())?;
    Ok(name)
}
