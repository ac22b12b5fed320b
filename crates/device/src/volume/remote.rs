//! What other threads ask of a volume that is made of members, and learn about it: whoever adds, replaces or removes these.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, TrySendError};
use surgetank_model::effect::Rejected;

use super::member::Member;
use crate::event::EventFd;
use crate::waking::Flagged;

/// The answer to what was asked of the volume.
#[derive(Debug)]
pub struct Answer {
    receiver: Receiver<Result<(), Rejected>>,
    /// What the volume is.
    whole: &'static str,
}

impl Answer {
    /// Waits for the answer: the volume's thread gives it when it next polls. `None`: it has not done so in that time.
    ///
    /// # Errors
    /// The volume's refusal, or that it was closed.
    pub fn wait(&self, timeout: Duration) -> Option<Result<(), Rejected>> {
        match self.receiver.recv_timeout(timeout) {
            Ok(answer) => Some(answer),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                Some(Err(Rejected(format!("the {} was closed: open it and try again", self.whole))))
            }
        }
    }
}

/// What can be asked of a volume, and what it tells.
pub(super) trait Ask {
    /// Numbers of its members.
    type Id;
    /// How its engine stands.
    type Status: Clone;
    /// What happens to it.
    type Event;

    /// The member that the ask brings, if it does.
    fn into_member(self) -> Option<Member<Self::Id>>;
}

pub(super) struct Command<A> {
    pub ask: A,
    pub reply: Sender<Result<(), Rejected>>,
}

struct State<A: Ask> {
    status: A::Status,
    events: VecDeque<A::Event>,
    released: Vec<Member<A::Id>>,
    /// Somebody wants to know how the engine stands.
    asked: bool,
}

struct Shared<A: Ask> {
    event: EventFd,
    flag: Flagged,
    state: Mutex<State<A>>,
}

impl<A: Ask> Shared<A> {
    /// What is in the state stays right if a thread panics between two of its changes.
    fn state(&self) -> MutexGuard<'_, State<A>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn raise(&self) {
        self.flag.raise(&self.event);
    }

    fn release(&self, member: Member<A::Id>) {
        self.state().released.push(member);
    }
}

/// The side of the volume's thread. When it is dropped, what was asked and not taken is refused: the members go back.
pub(super) struct Inbox<A: Ask> {
    shared: Arc<Shared<A>>,
    commands: Receiver<Command<A>>,
}

/// The side of the others.
pub(super) struct Remote<A: Ask> {
    shared: Arc<Shared<A>>,
    commands: Sender<Command<A>>,
    whole: &'static str,
}

impl<A: Ask> Clone for Remote<A> {
    fn clone(&self) -> Self {
        Self { shared: self.shared.clone(), commands: self.commands.clone(), whole: self.whole }
    }
}

/// Both sides. `whole` is what the volume is, for people.
pub(super) fn connect<A: Ask>(whole: &'static str, status: A::Status) -> io::Result<(Inbox<A>, Remote<A>)> {
    let state = State { status, events: VecDeque::new(), released: Vec::new(), asked: false };
    let shared = Arc::new(Shared { event: EventFd::new()?, flag: Flagged::new(), state: Mutex::new(state) });
    let (sender, commands) = crossbeam_channel::unbounded();
    Ok((Inbox { shared: shared.clone(), commands }, Remote { shared, commands: sender, whole }))
}

impl<A: Ask> Inbox<A> {
    /// The volume's thread is to poll again.
    pub fn raise(&self) {
        self.shared.raise();
    }

    /// Whether somebody raised it.
    pub fn take_raised(&self) -> bool {
        self.shared.flag.take(&self.shared.event)
    }

    /// The next command; its asker may have gone when it is answered.
    pub fn take_command(&self) -> Option<Command<A>> {
        self.commands.try_recv().ok()
    }

    /// Whether somebody wants to know how the engine stands.
    pub fn take_asked(&self) -> bool {
        std::mem::take(&mut self.shared.state().asked)
    }

    /// How the engine stands.
    pub fn publish(&self, status: A::Status) {
        self.shared.state().status = status;
    }

    pub fn add_event(&self, event: A::Event) {
        self.shared.state().events.push_back(event);
    }

    /// The volume is done with a member.
    pub fn release(&self, member: Member<A::Id>) {
        self.shared.release(member);
    }
}

impl<A: Ask> AsFd for Inbox<A> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.event.as_fd()
    }
}

impl<A: Ask> Drop for Inbox<A> {
    fn drop(&mut self) {
        while let Some(command) = self.take_command() {
            if let Some(member) = command.ask.into_member() {
                self.shared.release(member);
            }
        }
    }
}

impl<A: Ask> Remote<A> {
    /// Asks. If the volume has been closed, a member that the ask brings is released at once.
    pub fn ask(&self, ask: A) -> Answer {
        let (reply, receiver) = crossbeam_channel::bounded(1);
        match self.commands.try_send(Command { ask, reply }) {
            Ok(()) => self.shared.raise(),
            Err(TrySendError::Full(command) | TrySendError::Disconnected(command)) => {
                if let Some(member) = command.ask.into_member() {
                    self.shared.release(member);
                }
            }
        }
        Answer { receiver, whole: self.whole }
    }

    /// How the engine stood when that was last published. The next call knows what has changed up to this one.
    pub fn status(&self) -> A::Status {
        let status = {
            let mut state = self.shared.state();
            state.asked = true;
            state.status.clone()
        };
        self.shared.raise();
        status
    }

    /// What has happened since the last call, in order.
    pub fn take_events(&self) -> Vec<A::Event> {
        self.shared.state().events.drain(..).collect()
    }

    /// The members that the volume is done with since the last call.
    pub fn take_released(&self) -> Vec<Member<A::Id>> {
        std::mem::take(&mut self.shared.state().released)
    }
}
