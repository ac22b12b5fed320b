//! The kernel's announcements of disks: netlink uevents.
//!
//! An announcement says no more than that a look at `/sys` is worth its while, so nothing depends on it: a machine
//! whose kernel sends none (a container), and one whose queue overflowed, find their disks by looking now and then.

use std::io;
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

/// The multicast group in which the kernel itself speaks; udev's daemon has another one.
const KERNEL: u32 = 1;
/// The longest announcement, in bytes (`UEVENT_BUFFER_SIZE` is 2048, plus its header).
const UEVENT_BYTES_MAX: usize = 8 << 10;

/// Watches on a thread of its own, until it is dropped.
#[derive(Debug)]
pub struct Watch {
    /// Closing it ends the thread.
    stop: Option<io::PipeWriter>,
    watching: Option<JoinHandle<()>>,
}

impl Watch {
    /// Calls `disk_changed` after a disk came, went or changed.
    ///
    /// # Errors
    /// If this machine has no uevents for us.
    pub fn start(disk_changed: impl Fn() + Send + 'static) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, Some(KOBJECT_UEVENT))?;
        rustix::net::bind(&socket, &SocketAddrNetlink::new(0, KERNEL))?;
        Self::over(socket, disk_changed)
    }

    /// As [`Watch::start`], over a datagram socket that announcements come from. It must not block.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn over(socket: OwnedFd, disk_changed: impl Fn() + Send + 'static) -> io::Result<Self> {
        let (stopped, stop) = io::pipe()?;
        let watching = std::thread::Builder::new().name("uevents".into()).spawn(move || {
            if let Err(error) = watch(&socket, &stopped, &disk_changed) {
                tracing::warn!(%error, "the kernel's announcements of disks cannot be received: disks are looked for now and then");
            }
        })?;
        Ok(Self { stop: Some(stop), watching: Some(watching) })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(watching) = self.watching.take() {
            let _ = watching.join();
        }
    }
}

fn watch(socket: &OwnedFd, stopped: &io::PipeReader, disk_changed: &dyn Fn()) -> Result<(), Errno> {
    loop {
        let mut ready = [PollFd::new(socket, PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        match poll(&mut ready, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        if !ready[1].revents().is_empty() {
            return Ok(());
        }
        if drain(socket)? {
            disk_changed();
        }
    }
}

/// Takes what has been announced; whether any of it is about a disk.
fn drain(socket: &OwnedFd) -> Result<bool, Errno> {
    let mut about_a_disk = false;
    let mut bytes = [0; UEVENT_BYTES_MAX];
    loop {
        match rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
            Ok((_, length)) => about_a_disk |= is_about_a_disk(&bytes[..length.min(UEVENT_BYTES_MAX)]),
            // Some were lost: look.
            Err(Errno::NOBUFS) => about_a_disk = true,
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(about_a_disk),
            Err(error) => return Err(error),
        }
    }
}

/// Whether an announcement is about a disk: `ACTION@PATH`, then `KEY=VALUE` strings, each ended by a zero byte
/// (lib/kobject_uevent.c).
#[must_use]
pub fn is_about_a_disk(announcement: &[u8]) -> bool {
    let mut fields = announcement.split(|&byte| byte == 0);
    let is_announcement = fields.next().is_some_and(|header| header.contains(&b'@'));
    let (mut block, mut disk) = (false, false);
    for field in fields {
        block |= field == b"SUBSYSTEM=block";
        disk |= field == b"DEVTYPE=disk";
    }
    is_announcement && block && disk
}
