//! The NBD export: fixed newstyle, on a Unix socket and on loopback TCP.
//!
//! The protocol is two state machines without sockets ([`handshake`], [`transmission`]); this module moves bytes
//! between them, the sockets and the device. All sockets are in one epoll instance, edge-triggered, whose descriptor
//! is the front's. What a client can make us hold is bounded per connection ([`Limits`]): a client that sends too much
//! or reads too little is simply not read from, and no other client notices.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, sockopt};
use surgetank_model::Operation;

use self::connection::{Connection, Fate, Phase};
use self::handshake::{Handshake, Progress};
use self::in_flight::{InFlight, Key, Requests};
use self::listener::UnixSocket;
use self::transmission::{Arrival, Intake, Received, Receiver};
use super::wake::Wake;
use super::{Export, Front, FrontError, Submission, Token};
use crate::buffer::{Buffer, BufferPool};

mod connection;
pub mod handshake;
mod in_flight;
mod listener;
pub mod transmission;
pub mod wire;

/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 64;
/// Idle buffers of each size kept for use again, in bytes.
const POOL_BYTES: usize = 8 << 20;
/// A connection with this many bytes of heads unsent is not read from.
const WAITING_BYTES_MAX: usize = 64 << 10;
/// The socket's send buffer that we ask for, in bytes: a whole large read without a pause.
const SEND_BUFFER: usize = 2 << 20;
/// The most extents in one answer to BLOCK_STATUS.
const EXTENTS_MAX: usize = 1024;

const KEY_WAKE: u64 = 0;
const KEY_UNIX: u64 = 1;
const KEY_TCP: u64 = 2;
const SLOT_BASE: u64 = 3;

/// What clients may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections. At the limit the oldest one that has not finished its handshake gives way.
    pub connections: usize,
    /// Requests of one connection, from their arrival until their replies are sent.
    pub requests: usize,
    /// Bytes of one connection's requests; no further request is read while it has that many. A single request may
    /// pass it, by 32 MiB at most.
    pub bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 16, requests: 256, bytes: 16 << 20 }
    }
}

/// What is exported, and where.
#[derive(Clone, Debug)]
pub struct NbdConfig {
    /// The device. Clients may ask for its name or for the default export.
    pub export: Export,
    /// A socket file, made with mode 0600.
    pub unix: Option<PathBuf>,
    /// A loopback address; port 0 chooses one.
    pub tcp: Option<SocketAddr>,
    /// What clients may hold.
    pub limits: Limits,
}

/// A run of bytes of which the same is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes.
    pub length: u64,
    /// Nothing is stored there.
    pub hole: bool,
    /// Reads as zeroes.
    pub zero: bool,
}

/// Describes the range (first byte, bytes) from its beginning; must answer at once.
pub type Extents = Box<dyn FnMut(u64, u64, &mut Vec<Extent>) + Send>;

/// The server. See the module.
pub struct NbdFront {
    export: Export,
    limits: Limits,
    extents: Option<Extents>,
    epoll: OwnedFd,
    wake: Wake,
    unix: Option<UnixSocket>,
    tcp: Option<(OwnedFd, SocketAddr)>,
    /// A connection could not be accepted for want of descriptors; try when one is closed.
    accept_again: bool,
    connections: Vec<Option<(u32, Connection)>>,
    serial: u32,
    active: VecDeque<Key>,
    dirty: Vec<Key>,
    requests: Requests,
    pending: VecDeque<Submission>,
    pool: BufferPool,
    scratch: Vec<u8>,
}

impl NbdFront {
    /// Starts to listen.
    ///
    /// # Errors
    /// If nowhere to listen is given, an address is not loopback, a socket is in use, or the kernel refuses.
    pub fn open(config: NbdConfig) -> Result<Self, FrontError> {
        if config.unix.is_none() && config.tcp.is_none() {
            return Err(FrontError(
                "an NBD export needs a place to listen; give a Unix socket or a loopback address".into(),
            ));
        }
        let failed = |error: Errno| FrontError::new("cannot watch sockets", error, "close some files");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let wake = Wake::new().map_err(|error| FrontError::new("cannot make an eventfd", error, "close some files"))?;
        let tcp = config.tcp.map(listener::bind_tcp).transpose()?;
        let unix = config.unix.as_deref().map(UnixSocket::bind).transpose()?;
        let watch = |descriptor: BorrowedFd<'_>, key, flags| {
            epoll::add(&epoll, descriptor, epoll::EventData::new_u64(key), flags).map_err(failed)
        };
        watch(wake.as_fd(), KEY_WAKE, epoll::EventFlags::IN)?;
        if let Some(unix) = &unix {
            watch(unix.socket.as_fd(), KEY_UNIX, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        }
        if let Some((tcp, _)) = &tcp {
            watch(tcp.as_fd(), KEY_TCP, epoll::EventFlags::IN | epoll::EventFlags::ET)?;
        }
        Ok(Self {
            export: config.export,
            limits: config.limits,
            extents: None,
            epoll,
            wake,
            unix,
            tcp,
            accept_again: false,
            connections: Vec::new(),
            serial: 0,
            active: VecDeque::new(),
            dirty: Vec::new(),
            requests: Requests::default(),
            pending: VecDeque::new(),
            pool: BufferPool::new(POOL_BYTES),
            scratch: Vec::new(),
        })
    }

    /// Answers BLOCK_STATUS from `extents` instead of "everything is allocated".
    #[must_use]
    pub fn with_extents(mut self, extents: Extents) -> Self {
        self.extents = Some(extents);
        self
    }

    /// The TCP address, with the port that was chosen.
    #[must_use]
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp.as_ref().map(|(_, address)| *address)
    }

    /// Open connections.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.iter().flatten().count()
    }

    /// Bytes of the buffers of requests that have arrived and are not answered and sent.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        let held = |connection: &Connection| match &connection.phase {
            Phase::Transmission(receiver) => connection.bytes + receiver.held(),
            Phase::Handshake(_) => 0,
        };
        self.connections.iter().flatten().map(|(_, connection)| held(connection)).sum()
    }

    fn get(&mut self, key: Key) -> Option<&mut Connection> {
        match self.connections.get_mut(key.slot as usize) {
            Some(Some((serial, connection))) if *serial == key.serial => Some(connection),
            _ => None,
        }
    }

    /// Remembers that a connection may have something to read; `receive` will look.
    fn activate(&mut self, key: Key) {
        if let Some(connection) = self.get(key)
            && !connection.active
        {
            connection.active = true;
            self.active.push_back(key);
        }
    }

    fn mark_dirty(&mut self, key: Key) {
        if let Some(connection) = self.get(key)
            && !connection.dirty
        {
            connection.dirty = true;
            self.dirty.push(key);
        }
    }

    fn close(&mut self, key: Key) {
        if self.get(key).is_some() {
            // Replies to what is in flight find nobody and are dropped.
            self.connections[key.slot as usize] = None;
            if std::mem::take(&mut self.accept_again) {
                self.accept(KEY_UNIX);
                self.accept(KEY_TCP);
            }
        }
    }

    fn accept(&mut self, listener: u64) {
        loop {
            let socket = match (listener, &self.unix, &self.tcp) {
                (KEY_UNIX, Some(unix), _) => unix.socket.as_fd(),
                (KEY_TCP, _, Some((tcp, _))) => tcp.as_fd(),
                _ => return,
            };
            match accept_with(socket, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok(socket) => self.admit(socket, listener == KEY_TCP),
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::AGAIN) => return,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept an NBD connection now");
                    self.accept_again = true;
                    return;
                }
            }
        }
    }

    fn admit(&mut self, socket: OwnedFd, tcp: bool) {
        if self.connections() >= self.limits.connections {
            let greeting = self.connections.iter().enumerate().filter_map(|(slot, entry)| match entry {
                Some((serial, Connection { phase: Phase::Handshake(_), .. })) => {
                    Some(Key { slot: slot as u32, serial: *serial })
                }
                _ => None,
            });
            let Some(oldest) = greeting.min_by_key(|key| key.serial) else {
                tracing::warn!(limit = self.limits.connections, "refusing an NBD connection: too many are open");
                return;
            };
            self.connections[oldest.slot as usize] = None;
        }
        if tcp {
            let _ = sockopt::set_tcp_nodelay(&socket, true);
        } else if sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER).is_err() {
            // Without CAP_NET_ADMIN the system's limit holds.
            let _ = sockopt::set_socket_send_buffer_size(&socket, SEND_BUFFER);
        }
        let slot = self.connections.iter().position(Option::is_none).unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        self.serial = self.serial.wrapping_add(1);
        let key = Key { slot: slot as u32, serial: self.serial };
        let data = epoll::EventData::new_u64(u64::from(key.serial) << 32 | (u64::from(key.slot) + SLOT_BASE));
        let flags = epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        if let Err(error) = epoll::add(&self.epoll, &socket, data, flags) {
            tracing::warn!(%error, "cannot watch an NBD connection; it is closed");
            return;
        }
        let connection = Connection::new(socket, Handshake::new(self.export.clone()));
        self.connections[slot] = Some((key.serial, connection));
        self.mark_dirty(key);
    }

    fn collect_events(&mut self) {
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MAX];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interrupted wait comes back with the next poll of the descriptor.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&now)) else { return };
        for event in events {
            let (data, flags) = (event.data.u64(), event.flags);
            match data {
                KEY_WAKE => self.wake.clear(),
                KEY_UNIX | KEY_TCP => self.accept(data),
                _ => {
                    let slot = (data & u64::from(u32::MAX)) - SLOT_BASE;
                    let key = Key { slot: slot as u32, serial: (data >> 32) as u32 };
                    self.note_event(key, flags);
                }
            }
        }
    }

    fn note_event(&mut self, key: Key, flags: epoll::EventFlags) {
        use epoll::EventFlags as Flag;
        let Some(Some((serial, connection))) = self.connections.get_mut(key.slot as usize) else { return };
        if *serial != key.serial {
            return;
        }
        if flags.intersects(Flag::RDHUP | Flag::HUP | Flag::ERR) {
            connection.hung_up = true;
        }
        let readable = flags.intersects(Flag::IN | Flag::RDHUP | Flag::HUP | Flag::ERR);
        connection.readable |= readable;
        if flags.contains(Flag::OUT) {
            connection.set_writable();
            if !connection.is_drained() && !std::mem::replace(&mut connection.dirty, true) {
                self.dirty.push(key);
            }
        }
        let (stuck, gone) = (connection.ending || connection.paused, flags.intersects(Flag::HUP | Flag::ERR));
        if stuck && gone {
            // Nothing will be read and nobody will take the replies.
            self.close(key);
        } else if readable {
            self.activate(key);
        }
    }

    /// Reads and parses one connection until `share` requests came, nothing is left, or it holds enough.
    fn serve(&mut self, key: Key, share: usize, sink: &mut Vec<Submission>) {
        let limit = sink.len() + share;
        loop {
            let (limits, overloaded) = (self.limits, self.is_overloaded());
            let Some(connection) = self.get(key) else { return };
            connection.paused = overloaded || is_full(connection, limits);
            if connection.ending || connection.paused {
                return;
            }
            if sink.len() >= limit {
                return self.activate(key);
            }
            let fate = match &connection.phase {
                Phase::Handshake(_) => self.step_handshake(key),
                Phase::Transmission(_) => self.step_transmission(key, sink),
            };
            match fate {
                Step::Parsed => {}
                Step::Lost => return self.close(key),
                Step::Starved => {
                    let Some(connection) = self.get(key) else { return };
                    if !connection.readable {
                        return;
                    }
                    if connection.fill() == Fate::Lost {
                        return self.close(key);
                    }
                }
            }
        }
    }

    fn step_handshake(&mut self, key: Key) -> Step {
        let mut out = std::mem::take(&mut self.scratch);
        out.clear();
        let step = match self.get(key) {
            None => Step::Lost,
            Some(connection) => {
                let (phase, input) = connection.parts();
                let Phase::Handshake(handshake) = phase else { return Step::Parsed };
                let (used, progress) = handshake.advance(input, &mut out);
                connection.consume(used);
                if !out.is_empty() {
                    connection.heads(0, |heads| heads.extend_from_slice(&out));
                }
                match progress {
                    Progress::More => Step::Starved,
                    Progress::Continue => Step::Parsed,
                    Progress::Transmission(session) => {
                        connection.phase = Phase::Transmission(Receiver::new(session));
                        Step::Parsed
                    }
                    Progress::Close => {
                        connection.ending = true;
                        Step::Parsed
                    }
                }
            }
        };
        self.scratch = out;
        self.mark_dirty(key);
        step
    }

    fn step_transmission(&mut self, key: Key, sink: &mut Vec<Submission>) -> Step {
        let Some(Some((_, connection))) = self.connections.get_mut(key.slot as usize) else { return Step::Lost };
        let (phase, input) = connection.parts();
        let Phase::Transmission(receiver) = phase else { return Step::Parsed };
        let pool = &self.pool;
        let (used, received) = receiver.advance(input, &self.export, &mut |length| pool.take(length));
        connection.consume(used);
        match received {
            Received::More => Step::Starved,
            Received::Broken => Step::Lost,
            Received::Request(arrival) => {
                self.take_request(key, arrival, sink);
                Step::Parsed
            }
        }
    }

    fn take_request(&mut self, key: Key, arrival: Arrival, sink: &mut Vec<Submission>) {
        let Arrival { header, intake, data } = arrival;
        match intake {
            Intake::Execute { operation, then_flush } => {
                let length = if operation == Operation::Flush { 0 } else { header.length };
                let offset = if operation == Operation::Flush { 0 } else { header.offset };
                let buffer = if operation == Operation::Read { Some(self.pool.take(length as usize)) } else { data };
                let bytes = buffer.as_ref().map_or(0, Buffer::len);
                if let Some(connection) = self.get(key) {
                    connection.requests += 1;
                    connection.bytes += bytes;
                }
                let token = self.requests.insert(InFlight {
                    connection: key,
                    cookie: header.cookie,
                    offset,
                    length,
                    operation,
                    then_flush,
                });
                sink.push(Submission { token, operation, offset, length: u64::from(length), buffer });
            }
            Intake::BlockStatus { one } => {
                let extents = self.describe(header.offset, header.length, one);
                self.answer(key, |heads| wire::extents_chunk(heads, header.cookie, &extents));
            }
            Intake::Refuse(error) => {
                let structured = matches!(header.command, wire::command::READ | wire::command::BLOCK_STATUS);
                self.answer_error(key, header.cookie, structured, error);
            }
            Intake::Disconnect => {
                if let Some(connection) = self.get(key) {
                    connection.ending = true;
                }
                self.mark_dirty(key);
            }
        }
    }

    /// Answers a request that never was in flight.
    fn answer(&mut self, key: Key, write: impl FnOnce(&mut Vec<u8>)) {
        if let Some(connection) = self.get(key) {
            connection.requests += 1;
            connection.heads(1, write);
            self.mark_dirty(key);
        }
    }

    fn answer_error(&mut self, key: Key, cookie: u64, may_be_chunk: bool, error: u32) {
        let chunk = may_be_chunk && self.is_structured(key);
        self.answer(key, |heads| match chunk {
            true => wire::error_chunk(heads, cookie, error),
            false => wire::simple_reply(heads, error, cookie),
        });
    }

    fn is_structured(&mut self, key: Key) -> bool {
        let connection = self.get(key);
        matches!(connection, Some(Connection { phase: Phase::Transmission(receiver), .. }) if receiver.session().structured)
    }

    fn describe(&mut self, offset: u64, length: u32, one: bool) -> Vec<(u32, u32)> {
        let mut found = Vec::new();
        if let Some(extents) = &mut self.extents {
            extents(offset, u64::from(length), &mut found);
        }
        if found.is_empty() {
            found.push(Extent { length: u64::from(length), hole: false, zero: false });
        }
        let mut left = length;
        let mut answer: Vec<(u32, u32)> = Vec::new();
        for extent in found {
            let bytes = u32::try_from(extent.length).unwrap_or(u32::MAX).min(left);
            let flags = u32::from(extent.hole) | u32::from(extent.zero) << 1;
            if bytes == 0 || answer.len() == if one { 1 } else { EXTENTS_MAX } {
                break;
            }
            answer.push((bytes, flags));
            left -= bytes;
        }
        if answer.is_empty() { vec![(length, 0)] } else { answer }
    }

    /// Whether the engine has as much as all connections together may hold. Only connections that come and go with
    /// requests in flight get it there; then all wait for the engine.
    fn is_overloaded(&self) -> bool {
        let Limits { connections, requests, bytes } = self.limits;
        self.requests.count() >= connections.saturating_mul(requests)
            || self.requests.bytes() >= connections.saturating_mul(bytes)
    }

    fn resume_all(&mut self) {
        let paused = self.connections.iter().enumerate().filter_map(|(slot, entry)| match entry {
            Some((serial, connection)) if connection.paused => Some(Key { slot: slot as u32, serial: *serial }),
            _ => None,
        });
        for key in paused.collect::<Vec<Key>>() {
            self.activate(key);
        }
        self.wake.raise();
    }

    fn answer_request(&mut self, request: &InFlight, result: Result<(), i32>, buffer: Option<Buffer>) {
        let key = request.connection;
        let structured = request.operation == Operation::Read && self.is_structured(key);
        let Some(Some((_, connection))) = self.connections.get_mut(key.slot as usize) else { return };
        let (cookie, offset, length) = (request.cookie, request.offset, request.length);
        let result = result.map_err(wire::error::from_errno);
        match (request.operation, result, buffer) {
            (Operation::Read, Ok(()), Some(buffer)) if buffer.len() == length as usize => {
                connection.heads(0, |heads| match structured {
                    true => wire::data_chunk(heads, cookie, offset, length),
                    false => wire::simple_reply(heads, 0, cookie),
                });
                connection.data(buffer);
            }
            (operation, result, _) => {
                connection.bytes -= request.memory();
                // A read that comes back without its data has failed.
                let lost = if operation == Operation::Read { wire::error::EIO } else { 0 };
                let error = result.err().unwrap_or(lost);
                connection.heads(1, |heads| match structured {
                    true => wire::error_chunk(heads, cookie, error),
                    false => wire::simple_reply(heads, error, cookie),
                });
            }
        }
        self.mark_dirty(key);
    }
}

/// What one step of parsing came to.
enum Step {
    Parsed,
    Starved,
    Lost,
}

fn is_full(connection: &Connection, limits: Limits) -> bool {
    connection.requests >= limits.requests
        || connection.bytes >= limits.bytes
        || connection.waiting() >= WAITING_BYTES_MAX
}

impl Front for NbdFront {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn receive(&mut self, budget: usize, sink: &mut Vec<Submission>) {
        self.collect_events();
        while sink.len() < budget
            && let Some(submission) = self.pending.pop_front()
        {
            sink.push(submission);
        }
        // One turn for each, so that none waits for another's queue.
        let turns = self.active.len();
        let share = (budget / turns.max(1)).max(1);
        for _ in 0..turns {
            let Some(key) = self.active.pop_front() else { break };
            if let Some(connection) = self.get(key) {
                connection.active = false;
                self.serve(key, share, sink);
            }
        }
        self.flush();
        if !self.active.is_empty() || !self.pending.is_empty() {
            self.wake.raise();
        }
    }

    fn reply(&mut self, token: Token, result: Result<(), i32>, buffer: Option<Buffer>) {
        let overloaded = self.is_overloaded();
        let Some(mut request) = self.requests.remove(token) else { return };
        if overloaded && !self.is_overloaded() {
            self.resume_all();
        }
        if self.get(request.connection).is_none() {
            return;
        }
        if request.then_flush && result.is_ok() {
            request.then_flush = false;
            let token = self.requests.insert(request);
            self.pending.push_back(Submission {
                token,
                operation: Operation::Flush,
                offset: 0,
                length: 0,
                buffer: None,
            });
            self.wake.raise();
            return;
        }
        self.answer_request(&request, result, buffer);
    }

    fn flush(&mut self) {
        let mut dirty = std::mem::take(&mut self.dirty);
        let (limits, overloaded) = (self.limits, self.is_overloaded());
        for key in dirty.drain(..) {
            let Some(Some((serial, connection))) = self.connections.get_mut(key.slot as usize) else { continue };
            if *serial != key.serial {
                continue;
            }
            connection.dirty = false;
            let lost = connection.send() == Fate::Lost;
            let done = connection.ending && connection.is_drained() && connection.requests == 0;
            let resumes = connection.paused && !connection.ending && !overloaded && !is_full(connection, limits);
            if lost || done {
                self.close(key);
            } else if resumes {
                self.activate(key);
                self.wake.raise();
            }
        }
        dirty.append(&mut self.dirty);
        self.dirty = dirty;
    }

    fn set_size(&mut self, size: u64) {
        self.export.size = size;
    }

    fn address(&self) -> String {
        match (&self.unix, &self.tcp) {
            (Some(unix), _) => format!("nbd+unix:///?socket={}", escape(&unix.path)),
            (None, Some((_, address))) => format!("nbd://{address}"),
            (None, None) => String::new(),
        }
    }
}

/// A path as the value of a URI's query.
fn escape(path: &std::path::Path) -> String {
    use std::os::unix::ffi::OsStrExt;
    let mut text = String::new();
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'/' | b'-' | b'.' | b'_' | b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("%{byte:02X}")),
        }
    }
    text
}
