//! What other threads ask of a read cache and learn about it: whoever swaps its members.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fmt, io};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError};
use surgetank_readcache::{Event, MemberId, Rejected, Status};

use super::Member;
use crate::event::EventFd;
use crate::waking::Flagged;

/// The answer to what was asked of a read cache.
#[derive(Debug)]
pub struct Answer(Receiver<Result<(), Rejected>>);

impl Answer {
    /// Waits for the answer: the read cache's thread gives it when it next polls. `None`: it has not done so in that time.
    ///
    /// # Errors
    /// The refusal, or that the read cache was closed.
    pub fn wait(&self, timeout: Duration) -> Option<Result<(), Rejected>> {
        match self.0.recv_timeout(timeout) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                Some(Err(Rejected("the read cache was closed: open it and try again".to_owned())))
            }
        }
    }
}

/// What is asked of a read cache.
pub(super) enum Ask {
    Add(Member),
    Remove(MemberId),
}

pub(super) struct Command {
    pub ask: Ask,
    pub reply: Sender<Result<(), Rejected>>,
}

struct State {
    engine: Status,
    events: VecDeque<Event>,
    released: Vec<Member>,
    /// Somebody wants to know how the engine stands.
    asked: bool,
}

/// What the read cache's thread and the others share.
pub(super) struct Shared {
    event: EventFd,
    flag: Flagged,
    state: Mutex<State>,
}

impl Shared {
    pub fn new(engine: Status) -> io::Result<Self> {
        let state = State { engine, events: VecDeque::new(), released: Vec::new(), asked: false };
        Ok(Self { event: EventFd::new()?, flag: Flagged::new(), state: Mutex::new(state) })
    }

    /// What is in the state stays right if a thread panics between two of its changes.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The read cache's thread is to poll.
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

    pub fn add_event(&self, event: Event) {
        self.state().events.push_back(event);
    }

    pub fn release(&self, member: Member) {
        self.state().released.push(member);
    }
}

impl AsFd for Shared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

/// A read cache's remote control, for any thread. Cloning gives another handle on the same read cache.
#[derive(Clone)]
pub struct ReadCacheHandle {
    shared: Arc<Shared>,
    commands: Sender<Command>,
}

impl fmt::Debug for ReadCacheHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadCacheHandle").finish_non_exhaustive()
    }
}

impl ReadCacheHandle {
    pub(super) fn new(shared: Arc<Shared>, commands: Sender<Command>) -> Self {
        Self { shared, commands }
    }

    fn ask(&self, ask: Ask) -> Answer {
        let (reply, answer) = crossbeam_channel::bounded(1);
        match self.commands.try_send(Command { ask, reply }) {
            Ok(()) => self.shared.raise(),
            Err(TrySendError::Full(command) | TrySendError::Disconnected(command)) => {
                if let Ask::Add(member) = command.ask {
                    self.shared.release(member);
                }
            }
        }
        Answer(answer)
    }

    /// A volume is to be a member; whatever it holds is overwritten. It comes back with [`ReadCacheHandle::take_released`] when
    /// the read cache is done with it, at once if it refuses it.
    #[must_use]
    pub fn add(&self, member: Member) -> Answer {
        self.ask(Ask::Add(member))
    }

    /// A member is to go, with what it holds; it comes back with [`ReadCacheHandle::take_released`].
    #[must_use]
    pub fn remove(&self, member: MemberId) -> Answer {
        self.ask(Ask::Remove(member))
    }

    /// How the read cache stands, without waiting for it: as of the last event, or of the poll after the last call that asked.
    #[must_use]
    pub fn status(&self) -> Status {
        let status = {
            let mut state = self.shared.state();
            state.asked = true;
            state.engine
        };
        self.shared.raise();
        status
    }

    /// What has happened since the last call, in order.
    #[must_use]
    pub fn take_events(&self) -> Vec<Event> {
        self.shared.state().events.drain(..).collect()
    }

    /// The volumes that the read cache is done with since the last call: removed, failed and refused ones.
    #[must_use]
    pub fn take_released(&self) -> Vec<Member> {
        std::mem::take(&mut self.shared.state().released)
    }
}
