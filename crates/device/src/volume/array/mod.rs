//! An array as a volume: carries out over its members' volumes what `surgetank-array` decides.
//!
//! - [`setup`]: reading and writing what makes volumes an array, off the path of the data.
//! - `handle`: what other threads ask and learn: replacements, growth, how it stands.
//! - `members`: the members' volumes and what is in flight on them.

mod handle;
mod members;
pub mod setup;

use std::os::fd::{AsFd, BorrowedFd};
use std::{fmt, io};

use surgetank_array::effect::{EffectId, IoFailure, ReplyError, Target};
use surgetank_array::io::Action;
use surgetank_array::{Config, Ended, Engine, Event, Join, MemberId, Outcome, Plan, Rejected, Single};
use surgetank_model::{Instant, Request, RequestId};

use self::handle::{Ask, Roll};
use self::members::Members;
use super::pieces::Requests;
use super::remote::{self, Command, Inbox};
use super::{Completion, Failure, Operation, Volume, VolumeIo};
use crate::poller::Poller;

pub use self::handle::{ArrayHandle, ArrayStatus, MemberStatus};
pub use self::members::Served;
pub use self::setup::{read_head, write_creation};
pub use super::remote::Answer;

/// Rounds of I/Os that one poll takes the answers of. A copy between volumes that answer at once must not hold up the
/// caller for as long as it takes; what is left over comes with the next poll.
const ROUNDS_MAX: u32 = 32;

/// A volume that is to be a member of an array.
pub type Member = super::member::Member<Target>;

/// A volume striped over other volumes, each of which can be replaced while it serves.
///
/// It takes I/Os from the start; they wait until its members have been opened. The ranges of a member that cannot be opened
/// fail, and the member is tried again every second.
pub struct ArrayVolume {
    engine: Engine,
    logical_block: u32,
    members: Members,
    requests: Requests,
    /// Watches the members' descriptors and the handle's.
    poller: Poller,
    inbox: Inbox<Ask>,
    roll: Roll,
    ended: Vec<Completion>,
    outcomes: Vec<(EffectId, Outcome)>,
    opened: bool,
}

impl fmt::Debug for ArrayVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArrayVolume").field("size", &self.engine.size()).finish_non_exhaustive()
    }
}

impl ArrayVolume {
    /// Serves the array of a plan over its members. Those that have no place in the plan are released at once.
    ///
    /// # Errors
    /// If a member of the plan is missing or its blocks are larger than the array's, and those of `epoll_create1(2)`,
    /// `epoll_ctl(2)` and `eventfd(2)`.
    pub fn open(plan: &Plan, members: Vec<Member>, config: Config, now: Instant) -> io::Result<(Self, ArrayHandle)> {
        let invalid = |what: String| io::Error::new(io::ErrorKind::InvalidInput, what);
        let places = || plan.active.iter().chain(&plan.joining).chain(&plan.superseded);
        let logical_block = plan.geometry.logical_block;
        if let Some(missing) = places().find(|place| members.iter().all(|member| member.id != place.target)) {
            let (slot, member) = (missing.slot, missing.member);
            return Err(invalid(format!("member {member} of slot {slot} was not given: attach its volume")));
        }
        if let Some(odd) = members.iter().find(|member| member.volume.logical_block() > logical_block) {
            return Err(invalid(blocks_differ(&odd.name, odd.volume.logical_block(), logical_block)));
        }
        let engine = Engine::new(config, now, plan);
        let poller = Poller::new()?;
        let (inbox, remote) = remote::connect("array", engine.status())?;
        poller.add(inbox.as_fd(), 0)?;
        let roll = Roll::default();
        let mut array = Self {
            engine,
            logical_block,
            members: Members::new(),
            requests: Requests::new(),
            poller,
            inbox,
            roll: roll.clone(),
            ended: Vec::new(),
            outcomes: Vec::new(),
            opened: false,
        };
        for member in members {
            if places().any(|place| place.target == member.id) {
                array.attach(member).map_err(|(_, error)| error)?;
            } else {
                array.inbox.release(member);
            }
        }
        array.carry_out(now);
        Ok((array, ArrayHandle::new(remote, roll)))
    }

    fn attach(&mut self, member: Member) -> Result<(), (Member, io::Error)> {
        let (target, name) = (member.id, member.name.clone());
        let counters = self.members.attach(member, &self.poller)?;
        self.roll.attached(target, name, counters);
        Ok(())
    }

    /// Carries out what the engine asks for.
    fn carry_out(&mut self, now: Instant) {
        while let Some(effect) = self.engine.next_effect() {
            match Action::from(effect) {
                Action::Io(io) => self.members.start(now, io, &self.requests),
                Action::Allocate { scratch, length } => self.requests.allocate(scratch, length),
                Action::Release { scratch } => self.requests.release(scratch),
                Action::Reply { request, result } => {
                    self.ended.extend(self.requests.answer(request, result.map_err(failure)));
                }
            }
        }
    }

    /// Does a request that is one I/O: its memory goes to the member, and the I/O has the number that the engine knows.
    fn start_single(&mut self, now: Instant, single: &Single, io: VolumeIo) {
        let io = VolumeIo { token: single.id.0, offset: single.offset, ..io };
        if !self.members.start_single(now, single.target, io) {
            tracing::error!(target = ?single.target, "the array's engine names a member that is not there");
            let ended = self.engine.complete_single(now, EffectId(single.id.0), Err(IoFailure::Gone));
            self.ended.extend(ended.map(answer));
        }
    }

    /// Answers the requests of one I/O that have ended.
    fn end_singles(&mut self, now: Instant) {
        while let Some(single) = self.members.next_single() {
            let result = single.result.map_err(IoFailure::from);
            let Some(ended) = self.engine.complete_single(now, single.id, result) else {
                tracing::error!(token = single.id.0, "a member completed an I/O that is not in flight");
                continue;
            };
            self.members.count_single(&single, &ended.request);
            self.ended.push(answer(ended));
        }
    }

    /// Answers what other threads have asked.
    fn take_commands(&mut self, now: Instant) {
        if self.inbox.take_asked() {
            self.inbox.publish(self.engine.status());
        }
        while let Some(Command { ask, reply }) = self.inbox.take_command() {
            let answer = match ask {
                Ask::Replace { slot, id, member } => self.replace(now, (slot, id), member),
                Ask::Cancel { slot } => self.engine.cancel(now, slot),
                Ask::Hurry { slot, hurried } => {
                    self.engine.set_hurried(slot, hurried);
                    Ok(())
                }
                Ask::Grow => self.grow(now),
            };
            self.inbox.publish(self.engine.status());
            // Whoever asked may have gone.
            let _ = reply.send(answer);
        }
    }

    fn replace(&mut self, now: Instant, (slot, id): (u32, MemberId), member: Member) -> Result<(), Rejected> {
        let (target, size, block) = (member.id, member.volume.size(), member.volume.logical_block());
        if block > self.logical_block {
            let refusal = Rejected(blocks_differ(&member.name, block, self.logical_block));
            self.inbox.release(member);
            return Err(refusal);
        }
        if let Err(refusal) = self.engine.replace(now, slot, Join { target, member: id, size }) {
            self.inbox.release(member);
            return Err(refusal);
        }
        // What the engine asks of the volume is carried out later.
        self.attach(member).map_err(|(member, error)| {
            let refusal = Rejected(format!("{} cannot be waited for ({error}): close other volumes", member.name));
            self.inbox.release(member);
            refusal
        })
    }

    fn grow(&mut self, now: Instant) -> Result<(), Rejected> {
        let unknown =
            |failure| Rejected(format!("a member does not say how large it is ({failure}): replace it first"));
        let sizes = self.members.sizes().map_err(unknown)?;
        self.engine.grow(now, &sizes)
    }

    /// Passes on what has happened.
    fn take_events(&mut self) {
        let opened = self.engine.is_opened();
        let mut changed = std::mem::replace(&mut self.opened, opened) != opened;
        while let Some(event) = self.engine.next_event() {
            changed = true;
            if let Event::Released(target) = event
                && let Some(member) = self.members.detach(target, &self.poller)
            {
                self.roll.detached(target);
                self.inbox.release(member);
            }
            self.inbox.add_event(event);
        }
        if changed {
            self.inbox.publish(self.engine.status());
        }
    }
}

fn blocks_differ(name: &str, block: u32, array: u32) -> String {
    format!("{name} has blocks of {block} bytes and the array has blocks of {array}: use a volume with blocks as small")
}

impl Volume for ArrayVolume {
    fn size(&self) -> u64 {
        self.engine.size()
    }

    fn logical_block(&self) -> u32 {
        self.logical_block
    }

    fn submit(&mut self, now: Instant, io: VolumeIo) {
        let allowed = io.check(self.size(), self.logical_block);
        if allowed.is_err() || (io.length == 0 && io.operation != Operation::Flush) {
            return self.ended.push(Completion { token: io.token, result: allowed });
        }
        let VolumeIo { token, operation, offset, length, .. } = io;
        let request = Request { id: RequestId(token), operation, offset, length };
        if let Some(single) = self.engine.submit_single(now, &request) {
            return self.start_single(now, &single, io);
        }
        for piece in self.requests.add(io) {
            self.engine.submit(now, piece);
        }
        self.carry_out(now);
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        if self.inbox.take_raised() {
            self.take_commands(now);
        }
        let mut outcomes = std::mem::take(&mut self.outcomes);
        let mut rounds = 0;
        loop {
            let due = self.engine.next_deadline().is_some_and(|deadline| deadline <= now);
            if due {
                self.engine.tick(now);
            }
            self.carry_out(now);
            self.members.poll(now, rounds == 0, &mut outcomes);
            self.end_singles(now);
            if outcomes.is_empty() && !due && !self.engine.has_effects() {
                break;
            }
            for (effect, outcome) in outcomes.drain(..) {
                self.engine.complete(now, effect, outcome);
            }
            rounds += 1;
            if rounds == ROUNDS_MAX {
                self.carry_out(now);
                self.inbox.raise();
                break;
            }
        }
        self.outcomes = outcomes;
        self.take_events();
        completions.append(&mut self.ended);
    }

    fn has_ended(&mut self) -> bool {
        !self.ended.is_empty() || self.members.have_ended()
    }

    /// Has the array grow if all of its members have. It is larger once that is durable, some polls later.
    fn resize_check(&mut self) -> Result<u64, Failure> {
        let sizes = self.members.sizes()?;
        // The time is that of the last call.
        match self.engine.grow(Instant::ZERO, &sizes) {
            Ok(()) => self.inbox.raise(),
            Err(refusal) => tracing::debug!(%refusal, "the array does not grow"),
        }
        Ok(self.size())
    }

    fn next_deadline(&self) -> Option<Instant> {
        [self.engine.next_deadline(), self.members.next_deadline()].into_iter().flatten().min()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.poller.as_fd())
    }
}

/// The answer to a request of one I/O; its name is the user's token.
fn answer(ended: Ended) -> Completion {
    Completion { token: ended.request.id.0, result: ended.result.map_err(failure) }
}

const fn failure(error: ReplyError) -> Failure {
    match error {
        ReplyError::NoSpace => Failure::NoSpace,
        ReplyError::Unsupported => Failure::Unsupported,
        ReplyError::Io | ReplyError::Invalid | ReplyError::Stopping => Failure::Io,
    }
}
