//! The control socket's file, and the socket that listens on it.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

use super::{TIMEOUT, client};
use crate::places;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;

/// A listening socket. Its file goes with it.
pub struct Listener {
    pub socket: UnixListener,
    _file: SocketFile,
}

impl Listener {
    /// Makes the socket.
    ///
    /// # Errors
    /// One sentence: it cannot be made, another daemon listens on it, or something else lies there.
    pub fn bind(path: &Path) -> Result<Self, String> {
        let failed = |error: io::Error| format!("the control socket {} cannot be made: {error}", path.display());
        if let Some(directory) = path.parent() {
            places::make(directory)?;
        }
        if is_stale(path)? {
            fs::remove_file(path).map_err(failed)?;
        }
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let socket = socket.map_err(|error| failed(error.into()))?;
        let address = SocketAddrUnix::new(path).map_err(|error| failed(error.into()))?;
        rustix::net::bind(&socket, &address).map_err(|error| failed(error.into()))?;
        let file = SocketFile::of(path).map_err(failed)?;
        // Nobody can connect before `listen`, so there is no moment at which others could.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        rustix::net::listen(&socket, BACKLOG).map_err(|error| failed(error.into()))?;
        Ok(Self { socket: UnixListener::from(socket), _file: file })
    }
}

/// The socket's file. It is removed if it is still ours: by then another daemon's may lie there.
struct SocketFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

impl SocketFile {
    fn of(path: &Path) -> io::Result<Self> {
        Ok(Self { path: path.to_owned(), identity: identity(path)? })
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|now| now == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// Whether a killed daemon has left its socket here, which may be removed. Nothing else may.
///
/// # Errors
/// One sentence: another daemon listens on it, or something else lies there.
pub fn is_stale(path: &Path) -> Result<bool, String> {
    let shown = path.display();
    let unusable = |error: io::Error| format!("the control socket {shown} cannot be made: {error}");
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(unusable(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(format!(
                "the control socket {shown} cannot be made: something that is no socket lies there; move it away or \
                 name another control_socket"
            ));
        }
        Ok(_) => {}
    }
    match client::connect(path, TIMEOUT) {
        Ok(_) => Err(format!(
            "another surgetank daemon answers at {shown}: stop it first, or give this one another control_socket"
        )),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(format!(
            "something listens at {shown} and does not answer: stop it first, or give this daemon another control_socket"
        )),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(true),
        Err(error) => Err(unusable(error)),
    }
}
