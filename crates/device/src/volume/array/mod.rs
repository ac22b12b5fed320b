//! An array as a volume: carries out over its members' volumes what `surgetank-array` decides.
//!
//! - [`setup`]: reading and writing what makes volumes an array, off the path of the data.
//! - `handle`: what other threads ask and learn: replacements, growth, how it stands.
//! - `members`: the members' volumes and what is in flight on them; `requests`: whose memory is where.

mod handle;
mod members;
pub(super) mod requests;
pub mod setup;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::{fmt, io};

use crossbeam_channel::Receiver;
use surgetank_array::effect::{EffectId, ReplyError, Target};
use surgetank_array::io::Action;
use surgetank_array::{Config, Engine, Event, Join, MemberId, Outcome, Plan, Rejected};
use surgetank_model::Instant;

use self::handle::{Ask, Command, Shared};
use self::members::Members;
use self::requests::Requests;
use super::{Completion, Failure, Operation, Volume, VolumeIo};
use crate::poller::Poller;

pub use self::handle::{Answer, ArrayHandle, ArrayStatus, MemberStatus};
pub use self::members::Served;
pub use self::setup::{read_head, write_creation};

/// Rounds of I/Os that one poll takes the answers of. A copy between volumes that answer at once must not hold up the
/// caller for as long as it takes; what is left over comes with the next poll.
const ROUNDS_MAX: u32 = 32;

/// A volume that is to be a member of an array.
pub struct Member {
    /// Its number, unique in the life of the array.
    pub target: Target,
    /// What people call it.
    pub name: String,
    /// The volume.
    pub volume: Box<dyn Volume>,
}

impl fmt::Debug for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Member").field("target", &self.target).field("name", &self.name).finish_non_exhaustive()
    }
}

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
    shared: Arc<Shared>,
    commands: Receiver<Command>,
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
        if let Some(missing) = places().find(|place| members.iter().all(|member| member.target != place.target)) {
            let (slot, member) = (missing.slot, missing.member);
            return Err(invalid(format!("member {member} of slot {slot} was not given: attach its volume")));
        }
        if let Some(odd) = members.iter().find(|member| member.volume.logical_block() > logical_block) {
            return Err(invalid(blocks_differ(&odd.name, odd.volume.logical_block(), logical_block)));
        }
        let engine = Engine::new(config, now, plan);
        let poller = Poller::new()?;
        let shared = Arc::new(Shared::new(engine.status())?);
        poller.add(shared.as_fd(), 0)?;
        let (sender, commands) = crossbeam_channel::unbounded();
        let mut array = Self {
            engine,
            logical_block,
            members: Members::new(),
            requests: Requests::new(),
            poller,
            shared: shared.clone(),
            commands,
            ended: Vec::new(),
            outcomes: Vec::new(),
            opened: false,
        };
        for member in members {
            if places().any(|place| place.target == member.target) {
                array.attach(member).map_err(|(_, error)| error)?;
            } else {
                shared.release(member);
            }
        }
        array.carry_out(now);
        Ok((array, ArrayHandle::new(shared, sender)))
    }

    fn attach(&mut self, member: Member) -> Result<(), (Member, io::Error)> {
        let (target, name) = (member.target, member.name.clone());
        let counters = self.members.attach(member, &self.poller)?;
        self.shared.attached(target, name, counters);
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

    /// Answers what other threads have asked.
    fn take_commands(&mut self, now: Instant) {
        if self.shared.take_asked() {
            self.shared.publish(self.engine.status());
        }
        while let Ok(Command { ask, reply }) = self.commands.try_recv() {
            let answer = match ask {
                Ask::Replace { slot, id, member } => self.replace(now, (slot, id), member),
                Ask::Cancel { slot } => self.engine.cancel(now, slot),
                Ask::Grow => self.grow(now),
            };
            self.shared.publish(self.engine.status());
            // Whoever asked may have gone.
            let _ = reply.send(answer);
        }
    }

    fn replace(&mut self, now: Instant, (slot, id): (u32, MemberId), member: Member) -> Result<(), Rejected> {
        let (target, size, block) = (member.target, member.volume.size(), member.volume.logical_block());
        if block > self.logical_block {
            let refusal = Rejected(blocks_differ(&member.name, block, self.logical_block));
            self.shared.release(member);
            return Err(refusal);
        }
        if let Err(refusal) = self.engine.replace(now, slot, Join { target, member: id, size }) {
            self.shared.release(member);
            return Err(refusal);
        }
        // What the engine asks of the volume is carried out later.
        self.attach(member).map_err(|(member, error)| {
            let refusal = Rejected(format!("{} cannot be waited for ({error}): close other volumes", member.name));
            self.shared.release(member);
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
                self.shared.release(member);
            }
            self.shared.add_event(event);
        }
        if changed {
            self.shared.publish(self.engine.status());
        }
    }
}

impl Drop for ArrayVolume {
    /// What was asked and not taken is refused: the volumes of replacements go back.
    fn drop(&mut self) {
        while let Ok(command) = self.commands.try_recv() {
            if let Ask::Replace { member, .. } = command.ask {
                self.shared.release(member);
            }
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
        for piece in self.requests.add(io) {
            self.engine.submit(now, piece);
        }
        self.carry_out(now);
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        if self.shared.take_raised() {
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
            if outcomes.is_empty() && !due {
                break;
            }
            for (effect, outcome) in outcomes.drain(..) {
                self.engine.complete(now, effect, outcome);
            }
            rounds += 1;
            if rounds == ROUNDS_MAX {
                self.carry_out(now);
                self.shared.raise();
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
            Ok(()) => self.shared.raise(),
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

const fn failure(error: ReplyError) -> Failure {
    match error {
        ReplyError::NoSpace => Failure::NoSpace,
        ReplyError::Unsupported => Failure::Unsupported,
        ReplyError::Io | ReplyError::Invalid | ReplyError::Stopping => Failure::Io,
    }
}
