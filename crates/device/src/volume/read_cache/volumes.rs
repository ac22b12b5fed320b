//! The backing volume, the members, and what is in flight on them.

use std::io;

use slab::Slab;
use surgetank_model::Instant;
use surgetank_readcache::effect::{EffectId, IoFailure, Target};
use surgetank_readcache::io::{Io, Meaning};
use surgetank_readcache::{MemberId, Outcome};

use super::super::pieces::Requests;
use super::super::{Completion, Memory, Volume, VolumeIo};
use super::Member;
use crate::poller::Poller;

struct InFlight {
    effect: EffectId,
    target: Target,
    meaning: Meaning,
    /// What was read or written, if its checksums matter.
    memory: Memory,
}

struct Attached {
    member: Member,
    in_flight: u32,
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
}

impl Volumes {
    pub fn new(backing: Box<dyn Volume>, block: u32, poller: &Poller) -> io::Result<Self> {
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
        })
    }

    pub fn backing(&mut self) -> &mut dyn Volume {
        &mut *self.backing
    }

    pub fn backing_block(&self) -> u32 {
        self.backing.logical_block()
    }

    /// Takes a volume into use. The member comes back with an error.
    pub fn attach(&mut self, member: Member, poller: &Poller) -> Result<(), (Member, io::Error)> {
        let member = member.watched(poller)?;
        self.members.push(Attached { member, in_flight: 0 });
        Ok(())
    }

    /// A volume of which nothing is asked any more.
    pub fn detach(&mut self, id: MemberId, poller: &Poller) -> Option<Member> {
        let place = self.members.iter().position(|attached| attached.member.id == id)?;
        let member = self.members.remove(place).member;
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
        members.chain([&self.backing]).filter_map(|volume| volume.next_deadline()).min()
    }

    /// Starts an I/O, or has it fail if there is nothing to start it on.
    pub fn start(&mut self, now: Instant, io: Io, requests: &Requests) {
        let Io { id, target, operation, offset, length, memory, meaning } = io;
        let Some(memory) = memory.map_or(Some(Memory::new()), |slice| requests.gather(&[slice])) else {
            tracing::error!(?id, "the read cache's engine names memory that does not exist");
            return self.ready.push((id, Outcome::Failed(IoFailure::Io)));
        };
        let (volume, in_flight) = match target {
            Target::Backing => (&mut self.backing, &mut self.backing_in_flight),
            Target::Member(member) => match self.members.iter_mut().find(|attached| attached.member.id == member) {
                Some(Attached { member, in_flight }) => (&mut member.volume, in_flight),
                None => return self.ready.push((id, Outcome::Failed(IoFailure::Gone))),
            },
        };
        let kept = if meaning.needs_bytes() { memory.clone() } else { Memory::new() };
        let token = self.table.insert(InFlight { effect: id, target, meaning, memory: kept }) as u64;
        *in_flight += 1;
        volume.submit(now, VolumeIo { token, operation, offset, length, memory });
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
            self.finish(&completion);
        }
        self.completions = completions;
        outcomes.append(&mut self.ready);
    }

    fn finish(&mut self, completion: &Completion) {
        let taken = usize::try_from(completion.token).ok().and_then(|token| self.table.try_remove(token));
        let Some(InFlight { effect, target, meaning, memory }) = taken else {
            tracing::error!(token = completion.token, "a volume completed an I/O that is not in flight");
            return;
        };
        match target {
            Target::Backing => self.backing_in_flight -= 1,
            Target::Member(id) => {
                if let Some(attached) = self.members.iter_mut().find(|attached| attached.member.id == id) {
                    attached.in_flight -= 1;
                    if let Err(failure) = completion.result {
                        tracing::debug!(member = attached.member.name, %failure, "an I/O of a read cache failed");
                    }
                }
            }
        }
        let result = completion.result.map_err(IoFailure::from);
        let mut joined = Vec::new();
        // SAFETY: the I/O on this memory has ended, the request it belongs to is not answered, and no copy runs now.
        let outcome = meaning.outcome(result, self.block, || unsafe { bytes(&memory, &mut joined) });
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
