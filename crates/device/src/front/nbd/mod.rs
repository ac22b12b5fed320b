//! The NBD export: fixed newstyle, on a Unix socket and on TCP: loopback, or any address under TLS.
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
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::time::{TimerfdClockId, TimerfdFlags, timerfd_create};
use surgetank_model::{ClientId, Operation};

use self::connection::{Connection, ConnectionPhase, Fate};
pub use self::credentials::Credentials;
use self::in_flight::{Key, Requests};
use self::listener::UnixSocket;
use self::serving::is_full;
use super::wake::Wake;
use super::{Export, Front, FrontError, Submission, Token};
use crate::buffer::{Buffer, BufferPool};
use crate::seldom::Seldom;

mod admission;
mod certificates;
mod connection;
mod credentials;
pub mod handshake;
mod in_flight;
mod listener;
mod serving;
mod stream;
mod tls;
pub mod transmission;

/// Events taken from the kernel at once.
const EVENTS_MAX: usize = 64;
/// Idle buffers of each size kept for use again, in bytes.
const POOL_BYTES: usize = 8 << 20;

const KEY_WAKE: u64 = 0;
const KEY_UNIX: u64 = 1;
const KEY_TCP: u64 = 2;
const KEY_TIMER: u64 = 3;
const SLOT_BASE: u64 = 4;

/// What clients may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections. At the limit the oldest one that has not finished its handshake gives way.
    pub connections: usize,
    /// Connections from one address, or of one user over the Unix socket.
    pub of_one: usize,
    /// Requests of one connection, from their arrival until their replies are sent.
    pub requests: usize,
    /// Bytes of one connection's requests; no further request is read while it has that many. A single request may
    /// pass it, by 32 MiB at most.
    pub bytes: usize,
    /// From a connection's coming until it has chosen the export, TLS included.
    pub handshake: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self { connections: 24, of_one: 16, requests: 256, bytes: 16 << 20, handshake: Duration::from_secs(30) }
    }
}

/// What is exported, and where.
#[derive(Clone, Debug)]
pub struct NbdConfig {
    /// The device. Clients may ask for its name or for the default export.
    pub export: Export,
    /// A socket file, made with mode 0600.
    pub unix: Option<PathBuf>,
    /// An address, with `tls`, or a loopback one; port 0 chooses one.
    pub tcp: Option<SocketAddr>,
    /// Who is admitted over TCP, and under whose name: then nothing is served there without TLS. The Unix socket has
    /// its file's permissions instead.
    pub tls: Option<Credentials>,
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
    tls: Option<Credentials>,
    /// Rings when the oldest handshake has lasted long enough.
    timer: OwnedFd,
    timer_is_set: bool,
    /// More connections wait than one turn accepts.
    accept_more: bool,
    /// A connection could not be accepted for want of descriptors; try when one is closed.
    accept_again: bool,
    connections: Vec<Option<(u32, Connection)>>,
    serial: u32,
    active: VecDeque<Key>,
    dirty: Vec<Key>,
    requests: Requests,
    /// Refused connections are told of now and then.
    refusals: Seldom,
    /// Clients that have left and of which nobody was told yet.
    left: Vec<ClientId>,
    pending: VecDeque<Submission>,
    pool: BufferPool,
    scratch: Vec<u8>,
}

impl NbdFront {
    /// Starts to listen.
    ///
    /// # Errors
    /// If nowhere to listen is given, an address is not loopback and there is no TLS, a socket is in use, or the kernel
    /// refuses.
    pub fn open(config: NbdConfig) -> Result<Self, FrontError> {
        if config.unix.is_none() && config.tcp.is_none() {
            return Err(FrontError(
                "an NBD export needs a place to listen; give a Unix socket or a loopback address".into(),
            ));
        }
        let failed = |error: Errno| FrontError::new("cannot watch sockets", error, "close some files");
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let wake = Wake::new().map_err(|error| FrontError::new("cannot make an eventfd", error, "close some files"))?;
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC);
        let timer = timer.map_err(failed)?;
        let secured = config.tls.is_some();
        let tcp = config.tcp.map(|address| listener::bind_tcp(address, secured)).transpose()?;
        let unix = config.unix.as_deref().map(UnixSocket::bind).transpose()?;
        let watch = |descriptor: BorrowedFd<'_>, key, flags| {
            epoll::add(&epoll, descriptor, epoll::EventData::new_u64(key), flags).map_err(failed)
        };
        watch(wake.as_fd(), KEY_WAKE, epoll::EventFlags::IN)?;
        watch(timer.as_fd(), KEY_TIMER, epoll::EventFlags::IN)?;
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
            tls: config.tls,
            timer,
            timer_is_set: false,
            accept_more: false,
            accept_again: false,
            connections: Vec::new(),
            serial: 0,
            active: VecDeque::new(),
            dirty: Vec::new(),
            requests: Requests::default(),
            refusals: Seldom::default(),
            left: Vec::new(),
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
            ConnectionPhase::Transmission(receiver) => connection.bytes + receiver.held(),
            ConnectionPhase::Handshake(_) => 0,
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
            self.left.push(key.client());
            if std::mem::take(&mut self.accept_again) {
                self.accept(KEY_UNIX);
                self.accept(KEY_TCP);
            }
        }
    }

    fn collect_events(&mut self) {
        if std::mem::take(&mut self.accept_more) {
            self.accept(KEY_UNIX);
            self.accept(KEY_TCP);
        }
        let mut events = [MaybeUninit::<epoll::Event>::uninit(); EVENTS_MAX];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        // An interrupted wait comes back with the next poll of the descriptor.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut events, Some(&now)) else { return };
        for event in events {
            let (data, flags) = (event.data.u64(), event.flags);
            match data {
                KEY_WAKE => self.wake.clear(),
                KEY_UNIX | KEY_TCP => self.accept(data),
                KEY_TIMER => self.end_slow_handshakes(),
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
        if connection.is_deserted() {
            self.close(key);
        } else if readable {
            self.activate(key);
        }
    }
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

    fn take_left(&mut self, left: &mut Vec<ClientId>) {
        left.append(&mut self.left);
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
            let client = request.connection.client();
            let token = self.requests.insert(request);
            self.pending.push_back(Submission {
                token,
                client,
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
            (None, Some((_, address))) if self.tls.is_some() => format!("nbds://{address}"),
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
