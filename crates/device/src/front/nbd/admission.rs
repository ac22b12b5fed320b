//! Who is let in, and for how long without having chosen the export.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, sockopt};
use rustix::time::{Itimerspec, TimerfdTimerFlags, timerfd_settime};

use super::connection::{Connection, Phase};
use super::handshake::Handshake;
use super::in_flight::Key;
use super::{KEY_TCP, KEY_UNIX, NbdFront, SLOT_BASE};

/// The socket's send buffer that we ask for, in bytes: a whole large read without a pause.
const SEND_BUFFER: usize = 2 << 20;
/// Connections accepted in one turn, so that a flood of them leaves time for those that are there.
const ACCEPTS_MAX: usize = 64;

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
                    tracing::warn!(%error, "cannot accept an NBD connection now");
                    self.accept_again = true;
                    return;
                }
            }
        }
        self.accept_more = true;
        self.wake.raise();
    }

    fn admit(&mut self, socket: OwnedFd, tcp: bool) {
        if self.connections() >= self.limits.connections {
            let oldest = self.greeting().min_by_key(|(key, _)| key.serial).map(|(key, _)| key);
            let Some(oldest) = oldest else {
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
        let mut handshake = Handshake::new(self.export.clone());
        if tcp && self.tls.is_some() {
            handshake = handshake.requiring_tls();
        }
        self.connections[slot] = Some((key.serial, Connection::new(socket, handshake)));
        if !self.timer_is_set {
            self.set_timer(self.limits.handshake);
        }
        self.mark_dirty(key);
    }

    /// Connections that have not finished their handshake, with the time at which each came.
    fn greeting(&self) -> impl Iterator<Item = (Key, Instant)> {
        self.connections.iter().enumerate().filter_map(|(slot, entry)| match entry {
            Some((serial, connection)) if matches!(connection.phase, Phase::Handshake(_)) => {
                Some((Key { slot: slot as u32, serial: *serial }, connection.since))
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
        let left = |since| patience.saturating_sub(now.duration_since(since));
        let slow: Vec<Key> = self.greeting().filter(|(_, since)| left(*since).is_zero()).map(|(key, _)| key).collect();
        for key in slow {
            tracing::debug!(?patience, "an NBD client took too long to choose the export");
            self.close(key);
        }
        if let Some(next) = self.greeting().map(|(_, since)| left(since)).min() {
            self.set_timer(next);
        }
    }
}
