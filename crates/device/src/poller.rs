//! Waiting for descriptors: a small level-triggered epoll wrapper, and the waker that other threads use.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use crate::event::EventFd;
use crate::spin::{SPIN_TIME, Spin};
use crate::waking::{Event, Sleeping};

/// Events taken per `wait`; more stay readable and come with the next one (level-triggered).
const EVENTS_MAX: usize = 64;

/// Level-triggered readiness of descriptors, each under a key of the caller's choice.
///
/// Its own descriptor is readable while one of those it watches is, so pollers nest.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    /// A poller that watches nothing yet.
    ///
    /// # Errors
    /// Those of `epoll_create1(2)`.
    pub fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Watches `descriptor` for reading, under `key`. It must be removed before it is closed if it has duplicates.
    ///
    /// # Errors
    /// Those of `epoll_ctl(2)`; `EEXIST` if it is watched already.
    pub fn add(&self, descriptor: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, descriptor, epoll::EventData::new_u64(key), epoll::EventFlags::IN)?)
    }

    /// Stops watching `descriptor`.
    ///
    /// # Errors
    /// Those of `epoll_ctl(2)`; `ENOENT` if it was not watched.
    pub fn remove(&self, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, descriptor)?)
    }

    /// Replaces `keys` by the keys of the readable descriptors (at most 64), waiting for the first of them at most
    /// `timeout` (`None`: for ever; nanosecond precision). A signal ends the wait early, with no keys, and so does
    /// io_uring when it completes an I/O of this thread: then the completion is in the ring's memory.
    ///
    /// # Errors
    /// Those of `epoll_pwait2(2)` except `EINTR`.
    pub fn wait(&self, timeout: Option<Duration>, keys: &mut Vec<u64>) -> io::Result<()> {
        keys.clear();
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: timeout.subsec_nanos().into(),
        });
        let mut events = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_MAX];
        match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok((events, _)) => {
                keys.extend(events.iter().map(|event| event.data.u64()));
                Ok(())
            }
            Err(rustix::io::Errno::INTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

impl Poller {
    /// [`Poller::wait`], but looks for events for [`SPIN_TIME`] before it sleeps, if `spin` has learnt that it pays.
    /// Other threads that are ready to run on this core go first. `arrived` tells of events that are seen without the
    /// kernel; they end the look, with no keys.
    ///
    /// # Errors
    /// Those of [`Poller::wait`].
    pub fn wait_eagerly(
        &self,
        spin: &mut Spin,
        timeout: Option<Duration>,
        keys: &mut Vec<u64>,
        mut arrived: impl FnMut() -> bool,
    ) -> io::Result<()> {
        let window = timeout.map_or(SPIN_TIME, |timeout| timeout.min(SPIN_TIME));
        if window.is_zero() || !spin.pays() {
            return self.wait(timeout, keys);
        }
        let begun = Instant::now();
        let found = loop {
            self.wait(Some(Duration::ZERO), keys)?;
            if !keys.is_empty() || arrived() {
                break true;
            }
            if begun.elapsed() >= window {
                break false;
            }
            std::thread::yield_now();
        };
        spin.learn(found);
        if !found { self.wait(timeout.map(|timeout| timeout.saturating_sub(window)), keys) } else { Ok(()) }
    }
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Wakes a thread that sleeps in [`Poller::wait`]. Cloning gives another handle on the same waker.
///
/// The sleeper says so with [`Waker::sleep`], then looks at its queues a last time, then waits; the others put their
/// message in the queue, then call [`Waker::wake`]. While the sleeper is awake, a wake costs one atomic load.
#[derive(Clone, Debug)]
pub struct Waker(Arc<WakerState>);

#[derive(Debug)]
struct WakerState {
    event: EventFd,
    sleeping: Sleeping,
}

impl Waker {
    /// A waker whose sleeper is awake.
    ///
    /// # Errors
    /// Those of `eventfd(2)`.
    pub fn new() -> io::Result<Self> {
        Ok(Self(Arc::new(WakerState { event: EventFd::new()?, sleeping: Sleeping::new() })))
    }

    /// The sleeper is about to wait. What others queued before this is to be looked at after it.
    pub fn sleep(&self) {
        self.0.sleeping.sleep();
    }

    /// The sleeper has waited and is awake again. `signalled`: the waker's descriptor was readable.
    pub fn awake(&self, signalled: bool) {
        self.0.sleeping.awake(&self.0.event, signalled);
    }

    /// Wakes the sleeper, if it sleeps. Called after the message is queued.
    pub fn wake(&self) {
        self.0.sleeping.wake(&self.0.event);
    }

    /// Makes the descriptor readable whether or not anybody sleeps.
    pub(crate) fn signal(&self) {
        self.0.event.signal();
    }

    /// Makes the descriptor unreadable.
    pub(crate) fn drain(&self) {
        self.0.event.drain();
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wake_reaches_a_sleeper_and_only_a_sleeper() {
        let poller = Poller::new().unwrap();
        let waker = Waker::new().unwrap();
        poller.add(waker.as_fd(), 7).unwrap();
        let mut keys = vec![99];
        waker.wake();
        poller.wait(Some(Duration::ZERO), &mut keys).unwrap();
        assert!(keys.is_empty(), "an awake sleeper costs no system call");
        waker.sleep();
        let other = waker.clone();
        let thread = std::thread::spawn(move || other.wake());
        poller.wait(None, &mut keys).unwrap();
        thread.join().unwrap();
        assert_eq!(keys, [7]);
        waker.awake(true);
        poller.wait(Some(Duration::ZERO), &mut keys).unwrap();
        assert!(keys.is_empty(), "drained");
    }

    #[test]
    fn a_signal_that_comes_after_its_drain_ends_one_wait_only() {
        let poller = Poller::new().unwrap();
        let waker = Waker::new().unwrap();
        poller.add(waker.as_fd(), 7).unwrap();
        // What a `wake` does that is interrupted between clearing the flag and signalling.
        waker.signal();
        let mut keys = Vec::new();
        for expected in [1, 0] {
            waker.sleep();
            poller.wait(Some(Duration::ZERO), &mut keys).unwrap();
            waker.awake(keys.contains(&7));
            assert_eq!(keys.len(), expected);
        }
    }

    #[test]
    fn no_message_is_lost_between_threads() {
        const MESSAGES: usize = 20_000;
        let poller = Poller::new().unwrap();
        let waker = Waker::new().unwrap();
        poller.add(waker.as_fd(), 1).unwrap();
        let (sender, receiver) = crossbeam_channel::unbounded();
        let other = waker.clone();
        let thread = std::thread::spawn(move || {
            for message in 0..MESSAGES {
                sender.send(message).unwrap();
                other.wake();
            }
        });
        let (mut received, mut keys) = (0, Vec::new());
        while received < MESSAGES {
            received += receiver.try_iter().count();
            waker.sleep();
            keys.clear();
            if receiver.is_empty() && received < MESSAGES {
                poller.wait(None, &mut keys).unwrap();
            }
            waker.awake(!keys.is_empty());
        }
        thread.join().unwrap();
    }

    #[test]
    fn an_eager_wait_finds_what_is_there_and_what_comes_later() {
        let poller = Poller::new().unwrap();
        let waker = Waker::new().unwrap();
        poller.add(waker.as_fd(), 3).unwrap();
        let (mut spin, mut keys) = (Spin::default(), Vec::new());
        poller.wait_eagerly(&mut spin, Some(Duration::from_millis(1)), &mut keys, || false).unwrap();
        assert!(keys.is_empty(), "the time is up");
        waker.signal();
        poller.wait_eagerly(&mut spin, None, &mut keys, || false).unwrap();
        assert_eq!(keys, [3]);
        waker.drain();
        let other = waker.clone();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(SPIN_TIME * 20);
            other.signal();
        });
        poller.wait_eagerly(&mut Spin::default(), None, &mut keys, || false).unwrap();
        thread.join().unwrap();
        assert_eq!(keys, [3], "came after the look");
    }

    #[test]
    fn pollers_nest() {
        let (outer, inner, waker) = (Poller::new().unwrap(), Poller::new().unwrap(), Waker::new().unwrap());
        inner.add(waker.as_fd(), 1).unwrap();
        outer.add(inner.as_fd(), 2).unwrap();
        waker.signal();
        let mut keys = Vec::new();
        outer.wait(Some(Duration::ZERO), &mut keys).unwrap();
        assert_eq!(keys, [2]);
        outer.remove(inner.as_fd()).unwrap();
        outer.wait(Some(Duration::ZERO), &mut keys).unwrap();
        assert!(keys.is_empty());
    }
}
