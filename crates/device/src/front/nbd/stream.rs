//! A connection's bytes: the socket's own, or those beneath TLS.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, sendmsg};

use super::credentials::Credentials;
use super::tls::TlsStream;

/// A stream that never blocks: `AGAIN` when the socket is empty or full, `INTR` when trying again at once is worth it.
#[derive(Debug)]
pub(super) enum Stream {
    Plain(OwnedFd),
    Tls(Box<TlsStream>),
    /// Between the two, or after TLS could not be begun.
    Closed,
}

impl Stream {
    /// Goes on under TLS. What was sent so far must have left.
    pub(super) fn begin_tls(&mut self, credentials: &Credentials) {
        if let Self::Plain(socket) = std::mem::replace(self, Self::Closed) {
            match TlsStream::new(socket, credentials) {
                Ok(stream) => *self = Self::Tls(Box::new(stream)),
                Err(error) => tracing::warn!(%error, "an NBD connection is closed"),
            }
        }
    }

    /// Reads into the first room, then the second.
    pub(super) fn read(&mut self, rooms: [&mut [u8]; 2]) -> Result<usize, Errno> {
        match self {
            Self::Plain(socket) => rustix::io::readv(&*socket, &mut rooms.map(IoSliceMut::new)),
            Self::Tls(stream) => stream.read(rooms),
            Self::Closed => Err(Errno::NOTCONN),
        }
    }

    /// Whether a read that did not fill its rooms has left nothing to be read.
    pub(super) fn short_reads_mean_empty(&self) -> bool {
        matches!(self, Self::Plain(_))
    }

    /// Takes some of the bytes.
    pub(super) fn write(&mut self, slices: &[IoSlice<'_>]) -> Result<usize, Errno> {
        match self {
            Self::Plain(socket) => sendmsg(&*socket, slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL),
            Self::Tls(stream) => stream.write(slices),
            Self::Closed => Err(Errno::NOTCONN),
        }
    }

    /// Sends what was taken and has not left yet.
    pub(super) fn flush(&mut self) -> Result<(), Errno> {
        match self {
            Self::Tls(stream) => stream.flush(),
            Self::Plain(_) | Self::Closed => Ok(()),
        }
    }

    /// Whether something was taken and has not left.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.is_waiting())
    }
}
