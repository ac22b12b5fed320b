//! A connection's stream of records under TLS; [`super::credentials`] says who is admitted.

use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, getpeername, sendmsg};
use rustls::ServerConnection;

use super::credentials::Credentials;
use crate::front::FrontError;

/// Records read from the socket at once, in bytes.
const INPUT_LENGTH: usize = 64 << 10;
/// Data that are encrypted and wait for the socket at most, in bytes.
const OUTPUT_LENGTH_MAX: usize = 256 << 10;

/// A socket under TLS, as a stream of bytes that never blocks.
pub(super) struct TlsStream {
    socket: OwnedFd,
    session: ServerConnection,
    credentials: Credentials,
    /// Records as they came from the socket, from `start` to `end`.
    input: Box<[u8]>,
    start: usize,
    end: usize,
}

impl std::fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsStream").field("socket", &self.socket).finish_non_exhaustive()
    }
}

impl TlsStream {
    pub(super) fn new(socket: OwnedFd, credentials: &Credentials) -> Result<Self, FrontError> {
        let mut session = ServerConnection::new(credentials.current())
            .map_err(|error| FrontError(format!("TLS cannot be begun: {error}")))?;
        session.set_buffer_limit(Some(OUTPUT_LENGTH_MAX));
        let input = vec![0; INPUT_LENGTH].into_boxed_slice();
        Ok(Self { socket, session, credentials: credentials.clone(), input, start: 0, end: 0 })
    }

    /// Fills the first of the rooms that has any. `INTR`: nothing came of what was read; try again.
    pub(super) fn read(&mut self, rooms: [&mut [u8]; 2]) -> Result<usize, Errno> {
        let [first, second] = rooms;
        let room = if first.is_empty() { second } else { first };
        match self.session.reader().read(room) {
            Ok(read) => return Ok(read),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Cut off without a farewell: the end all the same, since every request says how long it is.
            Err(_) => return Ok(0),
        }
        if self.start == self.end {
            (self.start, self.end) = (0, rustix::io::read(&self.socket, &mut self.input[..])?);
            if self.end == 0 {
                return Ok(0);
            }
        }
        let mut rest = &self.input[self.start..self.end];
        // What the session has room for; it was emptied above.
        let taken = self.session.read_tls(&mut rest).map_err(|_| Errno::PROTO)?;
        if taken == 0 {
            return Ok(0);
        }
        self.start += taken;
        let processed = self.session.process_new_packets();
        // Answers of a handshake, or the alert that says what is wrong. A full socket takes them later.
        let flushed = self.flush();
        if let Err(error) = processed {
            self.credentials.tell(&error, getpeername(&self.socket).ok().flatten());
            return Err(Errno::PROTO);
        }
        match flushed {
            Ok(()) | Err(Errno::AGAIN) => Err(Errno::INTR),
            Err(error) => Err(error),
        }
    }

    /// Encrypts what there is room for and sends it. What was taken counts as sent.
    pub(super) fn write(&mut self, slices: &[io::IoSlice<'_>]) -> Result<usize, Errno> {
        self.flush()?;
        let taken = self.session.writer().write_vectored(slices).map_err(|_| Errno::PROTO)?;
        match self.flush() {
            Ok(()) | Err(Errno::AGAIN) => Ok(taken),
            Err(error) => Err(error),
        }
    }

    /// Sends what is encrypted.
    pub(super) fn flush(&mut self) -> Result<(), Errno> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut Socket(&self.socket)) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Errno::from_io_error(&error).unwrap_or(Errno::PROTO)),
            }
        }
        Ok(())
    }

    /// Whether something is encrypted and not sent.
    pub(super) fn is_waiting(&self) -> bool {
        self.session.wants_write()
    }
}

impl Drop for TlsStream {
    fn drop(&mut self) {
        // So that the client can tell the end from a cut; whether it gets there is its affair.
        self.session.send_close_notify();
        let _ = self.flush();
    }
}

/// Sends without SIGPIPE.
struct Socket<'a>(&'a OwnedFd);

impl Write for Socket<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_vectored(&[io::IoSlice::new(bytes)])
    }

    fn write_vectored(&mut self, slices: &[io::IoSlice<'_>]) -> io::Result<usize> {
        Ok(sendmsg(self.0, slices, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
