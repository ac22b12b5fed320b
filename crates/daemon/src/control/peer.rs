//! Which user is at the other end of a Unix socket.

use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// The user of the process that connected, or that listens (unix(7), `SO_PEERCRED`).
///
/// Not by rustix, in whose answer the process has a number: one outside our PID namespace has none.
pub fn user(stream: &UnixStream) -> io::Result<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    let place = (&raw mut peer).cast();
    // SAFETY: the kernel writes at most `length` bytes to `place`, which has as many.
    let done = unsafe { libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, place, &mut length) };
    match done {
        0 if length as usize == size_of::<libc::ucred>() => Ok(peer.uid),
        0 => Err(io::ErrorKind::InvalidData.into()),
        _ => Err(io::Error::last_os_error()),
    }
}
