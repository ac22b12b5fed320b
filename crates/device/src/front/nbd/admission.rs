//! Who is let in, and for how long without having chosen the export.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, getpeername, sockopt};
use rustix::time::{Itimerspec, TimerfdTimerFlags, timerfd_settime};

use super::connection::{Connection, ConnectionPhase, Peer};
use super::handshake::Handshake;
use super::in_flight::Key;
use super::{KEY_TCP, KEY_UNIX, Limits, NbdFront, SLOT_BASE};

/// The socket's send buffer that we ask for, in bytes: a whole large read without a pause.
const SEND_BUFFER: usize = 2 << 20;
/// Connections accepted in one turn, so that a flood of them leaves time for those that are there.
const ACCEPTS_MAX: usize = 64;

/// How long a TCP connection is silent before its peer is asked whether it is there, how often it is asked, and how long
/// what we send may remain unanswered: a machine that has gone says nothing.
const SILENCE: Duration = Duration::from_secs(60);
const ASK_EVERY: Duration = Duration::from_secs(15);
const ASKS: u32 = 4;
const UNANSWERED_MS: u32 = 120_000;

/// Why a connection is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// Every place is taken.
    All,
    /// Its peer has as many as it may have.
    OfOne(Peer),
}

/// Who is at the other end; `None`: nobody any more.
fn peer_of(socket: &OwnedFd, tcp: bool) -> Option<Peer> {
    if !tcp {
        return sockopt::socket_peercred(socket).ok().map(|peer| Peer::User(peer.uid));
    }
    let address = SocketAddr::try_from(getpeername(socket).ok()??).ok()?.ip().to_canonical();
    Some(Peer::Address(match address {
        IpAddr::V4(_) => address,
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into()
        }
    }))
}

/// Lets the kernel find out that the peer's machine has gone.
fn watch_over(socket: &OwnedFd) {
    let set = || {
        sockopt::set_socket_keepalive(socket, true)?;
        sockopt::set_tcp_keepidle(socket, SILENCE)?;
        sockopt::set_tcp_keepintvl(socket, ASK_EVERY)?;
        sockopt::set_tcp_keepcnt(socket, ASKS)?;
        sockopt::set_tcp_user_timeout(socket, UNANSWERED_MS)
    };
    if let Err(error) = set() {
        tracing::debug!(%error, "an NBD client that vanishes will not be noticed");
    }
}

impl NbdFront {
    /// Accepts what waits at a listener.
    pub(super) fn accept(&mut self, listener: u64) {
        for _ in 0..ACCEPTS_MAX {
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
                    if let Some(others) = self.refusals.next(Instant::now()) {
                        tracing::warn!(%error, others, "cannot accept an NBD connection now");
                    }
                    self.accept_again = true;
                    return;
                }
            }
        }
        self.accept_more = true;
        self.wake.raise();
    }

    /// The connection that gives way to one more of this peer: the oldest without an export among the peer's own, if it
    /// has as many as it may, or among all.
    fn make_room(&mut self, peer: Peer) -> Result<(), Refused> {
        let of_peer = |connection: &Connection| connection.peer == peer;
        let own = self.connections.iter().flatten().filter(|(_, connection)| of_peer(connection)).count();
        let refused = if own >= self.limits.of_one {
            Refused::OfOne(peer)
        } else if self.connections() >= self.limits.connections {
            Refused::All
        } else {
            return Ok(());
        };
        let oldest = self
            .greeting()
            .filter(|(_, connection)| refused == Refused::All || of_peer(connection))
            .min_by_key(|(_, connection)| connection.since)
            .map(|(key, _)| key);
        self.connections[oldest.ok_or(refused)?.slot as usize] = None;
        Ok(())
    }

    fn admit(&mut self, socket: OwnedFd, tcp: bool) {
        let Some(peer) = peer_of(&socket, tcp) else { return };
        if let Err(refused) = self.make_room(peer) {
            if let Some(others) = self.refusals.next(Instant::now()) {
                let Limits { connections, of_one, .. } = self.limits;
                match refused {
                    Refused::All => {
                        tracing::warn!(limit = connections, others, "refusing an NBD connection: too many are open");
                    }
                    Refused::OfOne(peer) => {
                        tracing::warn!(
                            limit = of_one,
                            ?peer,
                            others,
                            "refusing an NBD connection: its peer has many open"
                        );
                    }
                }
            }
            return;
        }
        if tcp {
            let _ = sockopt::set_tcp_nodelay(&socket, true);
            watch_over(&socket);
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
            if let Some(others) = self.refusals.next(Instant::now()) {
                tracing::warn!(%error, others, "cannot watch an NBD connection; it is closed");
            }
            return;
        }
        let mut handshake = Handshake::new(self.export.clone());
        if tcp && self.tls.is_some() {
            handshake = handshake.requiring_tls();
        }
        self.connections[slot] = Some((key.serial, Connection::new(socket, peer, handshake)));
        if !self.timer_is_set {
            self.set_timer(self.limits.handshake);
        }
        self.mark_dirty(key);
    }

    /// Connections that have not finished their handshake.
    fn greeting(&self) -> impl Iterator<Item = (Key, &Connection)> {
        self.connections.iter().enumerate().filter_map(|(slot, entry)| match entry {
            Some((serial, connection)) if matches!(connection.phase, ConnectionPhase::Handshake(_)) => {
                Some((Key { slot: slot as u32, serial: *serial }, connection))
            }
            _ => None,
        })
    }

    fn set_timer(&mut self, after: Duration) {
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Never zero, which would disarm it.
        let after = after.max(Duration::from_millis(1));
        let after = Timespec {
            tv_sec: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: after.subsec_nanos().into(),
        };
        let times = Itimerspec { it_interval: zero, it_value: after };
        self.timer_is_set = timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &times).is_ok();
    }

    /// Closes the connections that take too long to choose the export.
    pub(super) fn end_slow_handshakes(&mut self) {
        let _ = rustix::io::read(&self.timer, &mut [0; 8]);
        self.timer_is_set = false;
        let now = Instant::now();
        let patience = self.limits.handshake;
        let left = |(_, connection): &(Key, &Connection)| patience.saturating_sub(now.duration_since(connection.since));
        let slow: Vec<Key> = self.greeting().filter(|each| left(each).is_zero()).map(|(key, _)| key).collect();
        for key in slow {
            tracing::debug!(?patience, "an NBD client took too long to choose the export");
            self.close(key);
        }
        if let Some(next) = self.greeting().map(|each| left(&each)).min() {
            self.set_timer(next);
        }
    }
}
