//! What other threads ask of a read cache and learn about it: whoever swaps its members.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender};
use surgetank_readcache::{Event, MemberId, Status};

use super::super::remote::{self, Answer, Remote};
use super::observed::Overhead;
use super::{Member, Observation, Times};

/// What is asked of a read cache.
pub(super) enum Ask {
    Add(Member),
    Remove(MemberId),
    /// To make known how it stands.
    Look,
    /// To say how it stands and how long what it does takes, and to begin another interval.
    Observe(Sender<Observation>),
    /// To have so many bytes of its members at most.
    Limit(Option<u64>),
}

impl remote::Ask for Ask {
    type Id = MemberId;
    type Status = Status;
    type Event = Event;

    fn into_member(self) -> Option<Member> {
        match self {
            Self::Add(member) => Some(member),
            Self::Remove(_) | Self::Look | Self::Observe(_) | Self::Limit(_) => None,
        }
    }
}

/// What a read cache was asked, and says later.
#[derive(Debug)]
pub struct Observing {
    observation: Receiver<Observation>,
    _asked: Answer,
}

impl Observing {
    /// `None` if it does not say so in that time, or was closed.
    #[must_use]
    pub fn wait(&self, timeout: Duration) -> Option<Observation> {
        self.observation.recv_timeout(timeout).ok()
    }
}

/// A read cache's remote control, for any thread. Cloning gives another handle on the same read cache.
#[derive(Clone)]
pub struct ReadCacheHandle {
    remote: Remote<Ask>,
    hit_bytes: Arc<AtomicU64>,
    overhead: Arc<Overhead>,
}

impl fmt::Debug for ReadCacheHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadCacheHandle").finish_non_exhaustive()
    }
}

impl ReadCacheHandle {
    pub(super) fn new(remote: Remote<Ask>, hit_bytes: Arc<AtomicU64>, overhead: Arc<Overhead>) -> Self {
        Self { remote, hit_bytes, overhead }
    }

    /// Bytes that were read from the cache, or are about to be. Nobody is woken for that.
    #[must_use]
    pub fn hit_bytes(&self) -> u64 {
        self.hit_bytes.load(Ordering::Relaxed)
    }

    /// What reads have taken in this process before they were queued and after the cache had answered. Nobody is woken for that.
    pub fn add_overhead(&self, before: Times, after: Times) {
        self.overhead.add(before, after);
    }

    /// Once this is answered, [`ReadCacheHandle::status`] is as of then.
    #[must_use]
    pub fn look(&self) -> Answer {
        self.remote.ask(Ask::Look)
    }

    /// A volume is to be a member; whatever it holds is overwritten. It comes back with [`ReadCacheHandle::take_released`] when
    /// the read cache is done with it, at once if it refuses it.
    #[must_use]
    pub fn add(&self, member: Member) -> Answer {
        self.remote.ask(Ask::Add(member))
    }

    /// A member is to go, with what it holds; it comes back with [`ReadCacheHandle::take_released`].
    #[must_use]
    pub fn remove(&self, member: MemberId) -> Answer {
        self.remote.ask(Ask::Remove(member))
    }

    /// How it stands, how long what it does takes, and what would miss in caches of other sizes, of which another interval begins.
    #[must_use]
    pub fn observe(&self) -> Observing {
        let (sender, observation) = crossbeam_channel::bounded(1);
        let asked = self.remote.ask(Ask::Observe(sender));
        Observing { observation, _asked: asked }
    }

    /// The cache has so many bytes of its members at most from now on, all that they have if `None`. It grows at once. While it is larger, it
    /// takes nothing new and evicts, until `Event::Shrunk`.
    #[must_use]
    pub fn set_limit(&self, bytes: Option<u64>) -> Answer {
        self.remote.ask(Ask::Limit(bytes))
    }

    /// How the read cache stands, without waiting for it: as of the last event, or of the poll after the last call that asked.
    #[must_use]
    pub fn status(&self) -> Status {
        self.remote.status()
    }

    /// What has happened since the last call, in order.
    #[must_use]
    pub fn take_events(&self) -> Vec<Event> {
        self.remote.take_events()
    }

    /// The volumes that the read cache is done with since the last call: removed, failed and refused ones.
    #[must_use]
    pub fn take_released(&self) -> Vec<Member> {
        self.remote.take_released()
    }
}
