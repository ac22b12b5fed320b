//! What other threads ask of a read cache and learn about it: whoever swaps its members.

use std::fmt;

use surgetank_readcache::{Event, MemberId, Status};

use super::super::remote::{self, Answer, Remote};
use super::Member;

/// What is asked of a read cache.
pub(super) enum Ask {
    Add(Member),
    Remove(MemberId),
}

impl remote::Ask for Ask {
    type Id = MemberId;
    type Status = Status;
    type Event = Event;

    fn into_member(self) -> Option<Member> {
        match self {
            Self::Add(member) => Some(member),
            Self::Remove(_) => None,
        }
    }
}

/// A read cache's remote control, for any thread. Cloning gives another handle on the same read cache.
#[derive(Clone)]
pub struct ReadCacheHandle(Remote<Ask>);

impl fmt::Debug for ReadCacheHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadCacheHandle").finish_non_exhaustive()
    }
}

impl ReadCacheHandle {
    pub(super) fn new(remote: Remote<Ask>) -> Self {
        Self(remote)
    }

    /// A volume is to be a member; whatever it holds is overwritten. It comes back with [`ReadCacheHandle::take_released`] when
    /// the read cache is done with it, at once if it refuses it.
    #[must_use]
    pub fn add(&self, member: Member) -> Answer {
        self.0.ask(Ask::Add(member))
    }

    /// A member is to go, with what it holds; it comes back with [`ReadCacheHandle::take_released`].
    #[must_use]
    pub fn remove(&self, member: MemberId) -> Answer {
        self.0.ask(Ask::Remove(member))
    }

    /// How the read cache stands, without waiting for it: as of the last event, or of the poll after the last call that asked.
    #[must_use]
    pub fn status(&self) -> Status {
        self.0.status()
    }

    /// What has happened since the last call, in order.
    #[must_use]
    pub fn take_events(&self) -> Vec<Event> {
        self.0.take_events()
    }

    /// The volumes that the read cache is done with since the last call: removed, failed and refused ones.
    #[must_use]
    pub fn take_released(&self) -> Vec<Member> {
        self.0.take_released()
    }
}
