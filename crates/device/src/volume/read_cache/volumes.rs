//! The backing volume, the members, and what is in flight on them.
//!
//! Members may answer late or never, and the backing volume answers their reads then. So what a member reads for a request goes to memory of this
//! module's own first, which lives as long as anybody holds it: when the member answers after all, the memory of the request may long
//! be another one's.

use std::io;
use std::time::Duration;

use slab::Slab;
use surgetank_model::{Instant, Operation};
use surgetank_readcache::effect::{BufferId, EffectId, IoFailure, Target};
use surgetank_readcache::io::{Io, Meaning};
use surgetank_readcache::{MemberId, Outcome};

use super::super::pieces::Requests;
use super::super::{Completion, Memory, Volume, VolumeIo};
use super::{Member, Times, copy};
use crate::buffer::BufferPool;
use crate::poller::Poller;

/// Idle memory for reads of members that is kept, in bytes of each size.
const IDLE_BYTES_MAX: usize = 4 << 20;

struct InFlight {
    /// `None`: the engine was told that it failed.
    effect: Option<EffectId>,
    target: Target,
    meaning: Meaning,
    /// What was read or written, if its checksums matter or it goes elsewhere.
    memory: Memory,
    /// Where what was read goes if it is what it should be.
    into: Option<Memory>,
    is_read: bool,
    /// When it began, and how many I/Os of the volume had ended then.
    began: (Instant, u64),
}

struct Attached {
    member: Member,
    in_flight: u32,
    /// I/Os that have ended.
    ended: u64,
}

/// See the module.
pub(super) struct Volumes {
    backing: Box<dyn Volume>,
    backing_in_flight: u32,
    members: Vec<Attached>,
    /// Bytes of a block, the unit of checksums.
    block: u32,
    /// By the token of the I/O.
    table: Slab<InFlight>,
    /// Answers that are known without any I/O.
    ready: Vec<(EffectId, Outcome)>,
    completions: Vec<Completion>,
    pool: BufferPool,
    /// How long an I/O of a member is waited for.
    timeout: Duration,
    /// When an I/O of a member may be late.
    next_look: Option<Instant>,
    /// Of members for requests, and of the backing volume.
    reads: (Times, Times),
}

impl Volumes {
    pub fn new(backing: Box<dyn Volume>, block: u32, timeout: Duration, poller: &Poller) -> io::Result<Self> {
        if let Some(descriptor) = backing.descriptor() {
            poller.add(descriptor, 0)?;
        }
        Ok(Self {
            backing,
            backing_in_flight: 0,
            members: Vec::new(),
            block,
            table: Slab::new(),
            ready: Vec::new(),
            completions: Vec::new(),
            pool: BufferPool::new(IDLE_BYTES_MAX),
            timeout,
            next_look: None,
            reads: (Times::default(), Times::default()),
        })
    }

    pub fn backing(&mut self) -> &mut dyn Volume {
        &mut *self.backing
    }

    pub fn backing_block(&self) -> u32 {
        self.backing.logical_block()
    }

    /// How long reads took: those of members for requests, and those of the backing volume.
    pub const fn reads(&self) -> (Times, Times) {
        self.reads
    }

    /// How long an I/O of a member is waited for, from now on.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
        // What is in flight is looked at anew.
        self.next_look = self.next_look.map(|_| Instant::ZERO);
    }

    /// Takes a volume into use. The member comes back with an error.
    pub fn attach(&mut self, member: Member, poller: &Poller) -> Result<(), (Member, io::Error)> {
        let member = member.watched(poller)?;
        self.members.push(Attached { member, in_flight: 0, ended: 0 });
        Ok(())
    }

    /// A volume of which nothing is asked any more. What it has not answered holds its memory until it does.
    pub fn detach(&mut self, id: MemberId, poller: &Poller) -> Option<Member> {
        let place = self.members.iter().position(|attached| attached.member.id == id)?;
        let member = self.members.remove(place).member;
        self.table.retain(|_, io| io.target != Target::Member(id));
        Some(member.unwatched(poller))
    }

    fn busy(&mut self) -> impl Iterator<Item = &mut Box<dyn Volume>> {
        let backing = (self.backing_in_flight > 0).then_some(&mut self.backing);
        let members = self.members.iter_mut().filter(|attached| attached.in_flight > 0);
        backing.into_iter().chain(members.map(|attached| &mut attached.member.volume))
    }

    pub fn have_ended(&mut self) -> bool {
        !self.ready.is_empty() || self.busy().any(|volume| volume.has_ended())
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        let members = self.members.iter().map(|attached| &attached.member.volume);
        let volumes = members.chain([&self.backing]).filter_map(|volume| volume.next_deadline());
        volumes.chain(self.next_look.filter(|at| *at != Instant::FAR)).min()
    }

    /// Starts an I/O, or has it fail if there is nothing to start it on.
    pub fn start(&mut self, now: Instant, io: Io, requests: &Requests) {
        let Io { id, target, operation, offset, length, memory, meaning } = io;
        let is_read = operation == Operation::Read;
        let of_request = memory.is_some_and(|slice| matches!(slice.buffer, BufferId::Request(_)));
        let Some(memory) = memory.map_or(Some(Memory::new()), |slice| requests.gather(&[slice])) else {
            tracing::error!(?id, "the read cache's engine names memory that does not exist");
            return self.ready.push((id, Outcome::Failed(IoFailure::Io)));
        };
        let (volume, in_flight, ended) = match target {
            Target::Backing => (&mut self.backing, &mut self.backing_in_flight, 0),
            Target::Member(member) => match self.members.iter_mut().find(|attached| attached.member.id == member) {
                Some(Attached { member, in_flight, ended }) => (&mut member.volume, in_flight, *ended),
                None => return self.ready.push((id, Outcome::Failed(IoFailure::Gone))),
            },
        };
        let is_member = matches!(target, Target::Member(_));
        let (memory, into) = if is_member && is_read && of_request {
            let own = self.pool.take(length as usize).slice(0, length as usize);
            (Memory::from_iter([own]), Some(memory))
        } else {
            (memory, None)
        };
        if is_member {
            self.next_look.get_or_insert(now + self.timeout);
        }
        let kept = if meaning.needs_bytes() || into.is_some() { memory.clone() } else { Memory::new() };
        let began = (now, ended);
        let io = InFlight { effect: Some(id), target, meaning, memory: kept, into, is_read, began };
        let token = self.table.insert(io) as u64;
        *in_flight += 1;
        volume.submit(now, VolumeIo { token, operation, offset, length, memory });
    }

    /// Has late I/Os of members fail, as far as somebody waits for them. A member that has ended none meanwhile has gone: all of its
    /// I/Os fail.
    fn look_for_late(&mut self, now: Instant) {
        if self.next_look.is_none_or(|at| at > now) {
            return;
        }
        let (mut silent, mut late, mut next) = (Vec::new(), Vec::new(), None);
        for (token, io) in &self.table {
            let Some(attached) = self.members.iter().find(|attached| io.target == Target::Member(attached.member.id))
            else {
                continue;
            };
            let (began, ended) = io.began;
            let mut due = began + self.timeout;
            if io.effect.is_none() {
                continue;
            }
            if due <= now {
                if attached.ended == ended {
                    silent.push(attached.member.id);
                } else if io.is_read {
                    late.push(token);
                } else {
                    // Nobody waits for the write of a segment while the member goes on.
                    due = now + self.timeout;
                }
            }
            next = next.into_iter().chain([due].into_iter().filter(|due| *due > now)).min();
        }
        self.next_look = next;
        silent.sort_unstable();
        silent.dedup();
        for id in &silent {
            let attached = self.members.iter().find(|attached| attached.member.id == *id);
            let (name, timeout) = (attached.map(|attached| &*attached.member.name), self.timeout);
            tracing::warn!(
                member = name,
                ?timeout,
                "a member of a read cache does not answer: its part of the cache is dropped"
            );
        }
        for (token, io) in &mut self.table {
            let gone = matches!(io.target, Target::Member(id) if silent.contains(&id));
            let failure = if gone { IoFailure::Gone } else { IoFailure::Io };
            if gone || late.contains(&token) {
                self.ready.extend(io.effect.take().map(|effect| (effect, Outcome::Failed(failure))));
            }
        }
    }

    /// Starts what waits on the volumes and appends what has ended to `outcomes`. `all`: looks at idle volumes too, whose
    /// descriptors may be readable for nothing.
    pub fn poll(&mut self, now: Instant, all: bool, outcomes: &mut Vec<(EffectId, Outcome)>) {
        let mut completions = std::mem::take(&mut self.completions);
        if all {
            self.backing.poll(now, &mut completions);
            self.members.iter_mut().for_each(|attached| attached.member.volume.poll(now, &mut completions));
        } else {
            self.busy().for_each(|volume| volume.poll(now, &mut completions));
        }
        for completion in completions.drain(..) {
            self.finish(now, &completion);
        }
        self.completions = completions;
        self.look_for_late(now);
        outcomes.append(&mut self.ready);
    }

    fn finish(&mut self, now: Instant, completion: &Completion) {
        let taken = usize::try_from(completion.token).ok().and_then(|token| self.table.try_remove(token));
        let Some(InFlight { effect, target, meaning, memory, into, is_read, began }) = taken else {
            tracing::error!(token = completion.token, "a volume completed an I/O that is not in flight");
            return;
        };
        match target {
            Target::Backing => self.backing_in_flight -= 1,
            Target::Member(id) => {
                if let Some(attached) = self.members.iter_mut().find(|attached| attached.member.id == id) {
                    attached.in_flight -= 1;
                    attached.ended += 1;
                    if let Err(failure) = completion.result {
                        tracing::debug!(member = attached.member.name, %failure, "an I/O of a read cache failed");
                    }
                }
            }
        }
        match target {
            Target::Backing if is_read => self.reads.1.add(now.since(began.0)),
            Target::Member(_) if into.is_some() => self.reads.0.add(now.since(began.0)),
            Target::Backing | Target::Member(_) => {}
        }
        let Some(effect) = effect else { return };
        let result = completion.result.map_err(IoFailure::from);
        let mut joined = Vec::new();
        // SAFETY: the I/O on this memory has ended, the request it belongs to is not answered, and no copy runs now.
        let outcome = meaning.outcome(result, self.block, || unsafe { bytes(&memory, &mut joined) });
        if let (Outcome::Done, Some(into)) = (&outcome, into) {
            copy(&memory, &into);
        }
        self.ready.push((effect, outcome));
    }
}

/// The bytes of memory, in one piece.
///
/// # Safety
/// As for `BufferSlice::bytes`, for all parts.
unsafe fn bytes<'a>(memory: &'a Memory, joined: &'a mut Vec<u8>) -> &'a [u8] {
    if let [whole] = memory.as_slice() {
        // SAFETY: the caller rules out writers.
        return unsafe { whole.bytes() };
    }
    for part in memory {
        // SAFETY: as above.
        joined.extend_from_slice(unsafe { part.bytes() });
    }
    joined
}
