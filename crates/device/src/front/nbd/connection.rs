//! One connection: its socket, what has arrived and what waits to be sent.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Instant;

use rustix::io::Errno;
use rustix::process::Uid;

use super::credentials::Credentials;
use super::handshake::Handshake;
use super::stream::Stream;
use super::transmission::Receiver;
use crate::buffer::Buffer;

/// Bytes read from a socket at most before they are parsed; holds the longest option.
const INPUT_LENGTH: usize = 64 << 10;
/// Bytes taken behind the data of a large write: a few headers, because what is read here has to be copied.
const INPUT_BEHIND_DATA: usize = 512;
/// Data from this length on are worth a read of their own, in bytes.
const LARGE_DATA: usize = 32 << 10;
/// Slices handed to one send.
const SLICES_MAX: usize = 64;
/// Heads are gathered in pieces of about this length, in bytes.
const PIECE_LENGTH: usize = 4 << 10;

/// What became of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    Open,
    Lost,
}

/// A reply, or several heads in a row, on its way out.
#[derive(Debug)]
enum Piece {
    Heads { bytes: Vec<u8>, requests: usize },
    Data { buffer: Buffer },
}

/// Who is at the other end of a connection, as far as the kernel tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    /// Of a Unix socket.
    User(Uid),
    /// Of TCP; of an IPv6 address the network's part, because whoever has one address there has them all.
    Address(IpAddr),
}

#[derive(Debug)]
pub(super) enum ConnectionPhase {
    Handshake(Handshake),
    Transmission(Receiver),
}

/// A connection and what it holds of our memory.
#[derive(Debug)]
pub(super) struct Connection {
    stream: Stream,
    /// Who is at the other end.
    pub(super) peer: Peer,
    /// When it came.
    pub(super) since: Instant,
    pub(super) phase: ConnectionPhase,
    input: Box<[u8]>,
    start: usize,
    end: usize,
    output: VecDeque<Piece>,
    /// Bytes of the first piece that were sent.
    sent: usize,
    /// Bytes of heads that wait.
    waiting: usize,
    /// Requests that came in and whose replies are not sent yet.
    pub(super) requests: usize,
    /// Bytes of the buffers of those requests.
    pub(super) bytes: usize,
    /// The socket may have more to read.
    pub(super) readable: bool,
    /// The peer has closed its side: read to the end.
    pub(super) hung_up: bool,
    writable: bool,
    /// Nothing more is read; closes when everything is answered.
    pub(super) ending: bool,
    /// It holds as much as it may; looked at again when something is answered.
    pub(super) paused: bool,
    /// In the server's list of connections with something to read or to send.
    pub(super) active: bool,
    pub(super) dirty: bool,
}

impl Connection {
    pub(super) fn new(socket: OwnedFd, peer: Peer, handshake: Handshake) -> Self {
        let mut greeting = Vec::with_capacity(32);
        handshake.greet(&mut greeting);
        let mut connection = Self {
            stream: Stream::Plain(socket),
            peer,
            since: Instant::now(),
            phase: ConnectionPhase::Handshake(handshake),
            input: vec![0; INPUT_LENGTH].into_boxed_slice(),
            start: 0,
            end: 0,
            output: VecDeque::new(),
            sent: 0,
            waiting: 0,
            requests: 0,
            bytes: 0,
            readable: false,
            hung_up: false,
            writable: true,
            ending: false,
            paused: false,
            active: false,
            dirty: false,
        };
        connection.heads(0, |out| out.extend_from_slice(&greeting));
        connection
    }

    /// The peer has gone, and what it may have left is not read: nobody takes the replies. It is not told of again, so
    /// whoever pauses a connection asks as well.
    pub(super) fn is_deserted(&self) -> bool {
        self.hung_up && (self.ending || self.paused)
    }

    /// The phase together with the input, for parsing.
    pub(super) fn parts(&mut self) -> (&mut ConnectionPhase, &[u8]) {
        (&mut self.phase, &self.input[self.start..self.end])
    }

    pub(super) fn consume(&mut self, length: usize) {
        self.start += length;
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Reads once: first what is missing of a write's data, then whatever follows.
    pub(super) fn fill(&mut self) -> Fate {
        if self.start > 0 {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = match &mut self.phase {
            ConnectionPhase::Transmission(receiver) if self.end == 0 => receiver.room(),
            _ => &mut [],
        };
        let data = room.len();
        let behind = if data >= LARGE_DATA { INPUT_BEHIND_DATA } else { INPUT_LENGTH };
        let spare = &mut self.input[self.end..behind.max(self.end)];
        let asked = data + spare.len();
        let read = match self.stream.read([room, spare]) {
            Ok(0) if asked > 0 => return Fate::Lost,
            Ok(read) => read,
            Err(Errno::AGAIN) => {
                self.readable = false;
                return Fate::Open;
            }
            Err(Errno::INTR) => return Fate::Open,
            Err(_) => return Fate::Lost,
        };
        // A short read emptied the socket: the next byte raises a new event. The end of the stream would not.
        if read < asked && !self.hung_up && self.stream.short_reads_mean_empty() {
            self.readable = false;
        }
        if let ConnectionPhase::Transmission(receiver) = &mut self.phase {
            receiver.filled(read.min(data));
        }
        self.end += read.saturating_sub(data);
        Fate::Open
    }

    /// Queues heads written by `write`, which end `requests` requests.
    pub(super) fn heads(&mut self, requests: usize, write: impl FnOnce(&mut Vec<u8>)) {
        match self.output.back_mut() {
            Some(Piece::Heads { bytes, requests: ended }) if bytes.len() < PIECE_LENGTH => {
                let before = bytes.len();
                write(bytes);
                *ended += requests;
                self.waiting += bytes.len() - before;
            }
            _ => {
                let mut bytes = Vec::with_capacity(64);
                write(&mut bytes);
                self.waiting += bytes.len();
                self.output.push_back(Piece::Heads { bytes, requests });
            }
        }
    }

    /// Queues the data of a read, which ends a request.
    pub(super) fn data(&mut self, buffer: Buffer) {
        self.output.push_back(Piece::Data { buffer });
    }

    /// Whether everything queued is sent.
    pub(super) fn is_drained(&self) -> bool {
        self.output.is_empty() && !self.stream.is_waiting()
    }

    /// Goes on under TLS once the answer that says so has left. Words that came before that answer are nobody's: a third
    /// party may have slipped them in, to be taken for the client's own. A client that waits, as it must, has no others
    /// on the way and room for the answer.
    pub(super) fn begin_tls(&mut self, credentials: &Credentials) -> Fate {
        if self.end > self.start || self.send() == Fate::Lost || !self.is_drained() {
            return Fate::Lost;
        }
        self.stream.begin_tls(credentials);
        Fate::Open
    }

    /// Bytes of heads that wait to be sent.
    pub(super) fn waiting(&self) -> usize {
        self.waiting
    }

    /// The socket has room again.
    pub(super) fn set_writable(&mut self) {
        self.writable = true;
    }

    /// Sends what the socket takes.
    pub(super) fn send(&mut self) -> Fate {
        while self.writable && !self.output.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES_MAX];
            let mut count = 0;
            for (piece, slice) in self.output.iter().zip(&mut slices) {
                let bytes = match piece {
                    Piece::Heads { bytes, .. } => bytes.as_slice(),
                    // SAFETY: the buffer came back with its reply, so its I/O has ended, and nobody else writes to it.
                    Piece::Data { buffer } => unsafe { buffer.bytes() },
                };
                let skip = if count == 0 { self.sent } else { 0 };
                *slice = IoSlice::new(&bytes[skip..]);
                count += 1;
            }
            match self.stream.write(&slices[..count]) {
                Ok(sent) => self.count_sent(sent),
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                Err(_) => return Fate::Lost,
            }
        }
        if self.writable {
            match self.stream.flush() {
                Ok(()) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => self.writable = false,
                Err(_) => return Fate::Lost,
            }
        }
        Fate::Open
    }

    fn count_sent(&mut self, sent: usize) {
        self.sent += sent;
        while let Some(piece) = self.output.front() {
            let length = match piece {
                Piece::Heads { bytes, .. } => bytes.len(),
                Piece::Data { buffer } => buffer.len(),
            };
            if self.sent < length {
                return;
            }
            self.sent -= length;
            match self.output.pop_front() {
                Some(Piece::Heads { bytes, requests }) => {
                    self.waiting -= bytes.len();
                    self.requests -= requests;
                }
                Some(Piece::Data { buffer }) => {
                    self.requests -= 1;
                    self.bytes -= buffer.len();
                }
                None => {}
            }
        }
    }
}
