//! What other threads ask of an array and learn about it: whoever replaces its members.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError};
use surgetank_array::effect::Target;
use surgetank_array::{Event, MemberId, Rejected, Status};

use super::Member;
use super::members::{Counters, Served};
use crate::event::EventFd;
use crate::waking::Flagged;

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

/// The answer to what was asked of an array.
#[derive(Debug)]
pub struct Answer(Receiver<Result<(), Rejected>>);

impl Answer {
    /// Waits for the answer: the array's thread gives it when it next polls. `None`: it has not done so in that time.
    ///
    /// # Errors
    /// The array's refusal, or that it was closed.
    pub fn wait(&self, timeout: Duration) -> Option<Result<(), Rejected>> {
        match self.0.recv_timeout(timeout) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                Some(Err(Rejected("the array was closed: open it and try again".to_owned())))
            }
        }
    }
}

/// What is asked of an array.
pub(super) enum Ask {
    Replace { slot: u32, id: MemberId, member: Member },
    Cancel { slot: u32 },
    Grow,
}

pub(super) struct Command {
    pub ask: Ask,
    pub reply: Sender<Result<(), Rejected>>,
}

struct State {
    engine: Status,
    members: Vec<(Target, String, Arc<Counters>)>,
    events: VecDeque<Event>,
    released: Vec<Member>,
    /// Somebody wants to know how the engine stands.
    asked: bool,
}

/// What the array's thread and the others share.
pub(super) struct Shared {
    event: EventFd,
    flag: Flagged,
    state: Mutex<State>,
}

impl Shared {
    pub fn new(engine: Status) -> io::Result<Self> {
        let (members, events, released) = (Vec::new(), VecDeque::new(), Vec::new());
        let state = State { engine, members, events, released, asked: false };
        Ok(Self { event: EventFd::new()?, flag: Flagged::new(), state: Mutex::new(state) })
    }

    /// What is in the state stays right if a thread panics between two of its changes.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The array's thread is to poll.
    pub fn raise(&self) {
        self.flag.raise(&self.event);
    }

    /// Whether somebody raised it.
    pub fn take_raised(&self) -> bool {
        self.flag.take(&self.event)
    }

    pub fn take_asked(&self) -> bool {
        std::mem::take(&mut self.state().asked)
    }

    pub fn publish(&self, engine: Status) {
        self.state().engine = engine;
    }

    pub fn attached(&self, target: Target, name: String, counters: Arc<Counters>) {
        self.state().members.push((target, name, counters));
    }

    pub fn add_event(&self, event: Event) {
        self.state().events.push_back(event);
    }

    pub fn release(&self, member: Member) {
        let mut state = self.state();
        state.members.retain(|(target, ..)| *target != member.target);
        state.released.push(member);
    }
}

impl AsFd for Shared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// An array's remote control, for any thread. Cloning gives another handle on the same array.
#[derive(Clone)]
pub struct ArrayHandle {
    shared: Arc<Shared>,
    commands: Sender<Command>,
}

impl fmt::Debug for ArrayHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrayHandle").finish_non_exhaustive()
    }
}

impl ArrayHandle {
    pub(super) fn new(shared: Arc<Shared>, commands: Sender<Command>) -> Self {
        Self { shared, commands }
    }

    fn ask(&self, ask: Ask) -> Answer {
        let (reply, answer) = crossbeam_channel::bounded(1);
        match self.commands.try_send(Command { ask, reply }) {
            Ok(()) => self.shared.raise(),
            Err(TrySendError::Full(command) | TrySendError::Disconnected(command)) => {
                if let Ask::Replace { member, .. } = command.ask {
                    self.shared.release(member);
                }
            }
        }
        Answer(answer)
    }

    /// A blank volume is to take the place of a slot's member; `id` is a fresh random name. The volume comes back with
    /// [`ArrayHandle::take_released`] when the array is done with it, at once if it refuses it.
    #[must_use]
    pub fn replace(&self, slot: u32, id: MemberId, member: Member) -> Answer {
        self.ask(Ask::Replace { slot, id, member })
    }

    /// The replacement of a slot's member is to end without effect.
    #[must_use]
    pub fn cancel(&self, slot: u32) -> Answer {
        self.ask(Ask::Cancel { slot })
    }

    /// The volumes of all members have grown: the array is to use what all of them have.
    #[must_use]
    pub fn grow(&self) -> Answer {
        self.ask(Ask::Grow)
    }

    /// How the array stands, without waiting for it. The next call knows what has changed up to this one.
    #[must_use]
    pub fn status(&self) -> ArrayStatus {
        let status = {
            let mut state = self.shared.state();
            state.asked = true;
            let of = |(target, name, counters): &(Target, String, Arc<Counters>)| MemberStatus {
                target: *target,
                name: name.clone(),
                served: counters.served(),
                gone: counters.is_gone(),
            };
            ArrayStatus { engine: state.engine.clone(), members: state.members.iter().map(of).collect() }
        };
        self.shared.raise();
        status
    }

    /// What has happened since the last call, in order.
    #[must_use]
    pub fn take_events(&self) -> Vec<Event> {
        self.shared.state().events.drain(..).collect()
    }

    /// The volumes that the array is done with since the last call: replaced members, joining ones that were dropped or
    /// refused, and those that had no place in it.
    #[must_use]
    pub fn take_released(&self) -> Vec<Member> {
        std::mem::take(&mut self.shared.state().released)
    }
}
