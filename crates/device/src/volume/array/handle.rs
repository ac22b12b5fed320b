//! What other threads ask of an array and learn about it: whoever replaces its members.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use surgetank_array::effect::Target;
use surgetank_array::{Event, MemberId, Status};

use super::super::remote::{self, Answer, Remote};
use super::Member;
use super::members::{Counters, Served};

/// A member's volume, and what it has done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// Its number.
    pub target: Target,
    /// What people call it.
    pub name: String,
    /// What it has done since it came.
    pub served: Served,
    /// Its last I/O failed because the volume was unplugged.
    pub gone: bool,
}

/// How an array stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayStatus {
    /// What its engine says: as of the last command or change of its membership, or of the poll after the last call that asked.
    pub engine: Status,
    /// Its members' volumes, joining ones too, as of now.
    pub members: Vec<MemberStatus>,
}

/// What is asked of an array.
pub(super) enum Ask {
    Replace { slot: u32, id: MemberId, member: Member },
    Cancel { slot: u32 },
    Hurry { slot: u32, hurried: bool },
    Grow,
}

impl remote::Ask for Ask {
    type Id = Target;
    type Status = Status;
    type Event = Event;

    fn into_member(self) -> Option<Member> {
        match self {
            Self::Replace { member, .. } => Some(member),
            Self::Cancel { .. } | Self::Hurry { .. } | Self::Grow => None,
        }
    }
}

/// A member by its number, its name, and what it has done.
type Entry = (Target, String, Arc<Counters>);

/// The members that the array has.
#[derive(Clone, Debug, Default)]
pub(super) struct Roll(Arc<Mutex<Vec<Entry>>>);

impl Roll {
    /// What is in it stays right if a thread panics between two of its changes.
    fn members(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn attached(&self, target: Target, name: String, counters: Arc<Counters>) {
        self.members().push((target, name, counters));
    }

    pub fn detached(&self, target: Target) {
        self.members().retain(|(member, ..)| *member != target);
    }
}

/// An array's remote control, for any thread. Cloning gives another handle on the same array.
#[derive(Clone)]
pub struct ArrayHandle {
    remote: Remote<Ask>,
    roll: Roll,
}

impl fmt::Debug for ArrayHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrayHandle").finish_non_exhaustive()
    }
}

impl ArrayHandle {
    pub(super) fn new(remote: Remote<Ask>, roll: Roll) -> Self {
        Self { remote, roll }
    }

    /// A blank volume is to take the place of a slot's member; `id` is a fresh random name. The volume comes back with
    /// [`ArrayHandle::take_released`] when the array is done with it, at once if it refuses it.
    #[must_use]
    pub fn replace(&self, slot: u32, id: MemberId, member: Member) -> Answer {
        self.remote.ask(Ask::Replace { slot, id, member })
    }

    /// The replacement of a slot's member is to end without effect.
    #[must_use]
    pub fn cancel(&self, slot: u32) -> Answer {
        self.remote.ask(Ask::Cancel { slot })
    }

    /// A slot's member has no credits left, or has some again: without, a copy of it gets a share of what it still gives.
    #[must_use]
    pub fn hurry(&self, slot: u32, hurried: bool) -> Answer {
        self.remote.ask(Ask::Hurry { slot, hurried })
    }

    /// The volumes of all members have grown: the array is to use what all of them have.
    #[must_use]
    pub fn grow(&self) -> Answer {
        self.remote.ask(Ask::Grow)
    }

    /// How the array stands, without waiting for it. The next call knows what has changed up to this one.
    #[must_use]
    pub fn status(&self) -> ArrayStatus {
        let of = |(target, name, counters): &Entry| MemberStatus {
            target: *target,
            name: name.clone(),
            served: counters.served(),
            gone: counters.is_gone(),
        };
        ArrayStatus { engine: self.remote.status(), members: self.roll.members().iter().map(of).collect() }
    }

    /// What has happened since the last call, in order.
    #[must_use]
    pub fn take_events(&self) -> Vec<Event> {
        self.remote.take_events()
    }

    /// The volumes that the array is done with since the last call: replaced members, joining ones that were dropped or
    /// refused, and those that had no place in it.
    #[must_use]
    pub fn take_released(&self) -> Vec<Member> {
        self.remote.take_released()
    }
}
