//! Where clients connect: a Unix socket, TCP.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use crate::front::FrontError;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 64;

/// A listening Unix socket; its file goes with it.
#[derive(Debug)]
pub(super) struct UnixSocket {
    pub(super) socket: OwnedFd,
    pub(super) path: PathBuf,
    /// Device and inode of the file, so that a successor's is not removed.
    identity: (u64, u64),
}

impl UnixSocket {
    /// Binds, with access for the owner alone. The file of a dead server is replaced; that of a living one is not.
    pub(super) fn bind(path: &Path) -> Result<Self, FrontError> {
        let failed = |error: io::Error| {
            FrontError::new(
                &format!("cannot listen on the socket {}", path.display()),
                error,
                "choose a path in a directory that you may write to",
            )
        };
        remove_stale(path)?;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).map_err(|e| failed(e.into()))?;
        let address = SocketAddrUnix::new(path).map_err(|e| failed(e.into()))?;
        bind(&socket, &address).map_err(|e| failed(e.into()))?;
        // Nobody can connect before `listen`, so there is no moment at which others could.
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).map_err(failed)?;
        listen(&socket, BACKLOG).map_err(|e| failed(e.into()))?;
        let metadata = fs::symlink_metadata(path).map_err(failed)?;
        Ok(Self { socket, path: path.to_owned(), identity: (metadata.dev(), metadata.ino()) })
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        if fs::symlink_metadata(&self.path).is_ok_and(|now| (now.dev(), now.ino()) == self.identity) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn remove_stale(path: &Path) -> Result<(), FrontError> {
    let shown = path.display();
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(FrontError(format!("{shown} exists and is not a socket; remove it or choose another path")));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => fs::remove_file(path)
            .map_err(|error| FrontError::new(&format!("cannot remove the stale socket {shown}"), error, "remove it")),
        _ => Err(FrontError(format!(
            "another process listens on the socket {shown}; stop it or choose another path (`ss -xlp` names it)"
        ))),
    }
}

/// Listens on an address, which is a loopback one unless TLS secures the connections; gives the address with the port
/// that was chosen for port 0.
pub(super) fn bind_tcp(address: SocketAddr, secured: bool) -> Result<(OwnedFd, SocketAddr), FrontError> {
    if !secured && !address.ip().is_loopback() {
        return Err(FrontError(format!(
            "refusing to serve NBD on {address}: the connection would be neither encrypted nor authenticated; \
             configure TLS (tls_certificates), or use 127.0.0.1, [::1] or a Unix socket"
        )));
    }
    let failed = |error: rustix::io::Errno| {
        FrontError::new(
            &format!("cannot listen on {address}"),
            error,
            "choose a port that is free (`ss -tlp` lists them)",
        )
    };
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = socket_with(family, SocketType::STREAM, flags, None).map_err(failed)?;
    sockopt::set_socket_reuseaddr(&socket, true).map_err(failed)?;
    bind(&socket, &address).map_err(failed)?;
    listen(&socket, BACKLOG).map_err(failed)?;
    let bound = rustix::net::getsockname(&socket).map_err(failed)?;
    let bound = SocketAddr::try_from(bound).map_err(failed)?;
    Ok((socket, bound))
}
