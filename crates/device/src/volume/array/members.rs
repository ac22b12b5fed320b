//! The members' volumes and what is in flight on them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use slab::Slab;
use surgetank_array::effect::{EffectId, IoFailure, Target};
use surgetank_array::io::{Content, Io};
use surgetank_array::{Outcome, is_single};
use surgetank_model::{Instant, Request};

use super::super::pieces::Requests;
use super::super::{Completion, Failure, Operation, Volume, VolumeIo};
use super::Member;
use crate::buffer::Buffer;
use crate::poller::Poller;

/// What a member has done, in numbers that only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Reads.
    pub reads: u64,
    /// Writes and write-zeroes, those of structures and copies among them.
    pub writes: u64,
    /// Discards.
    pub discards: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written, zeroed ranges included.
    pub written_bytes: u64,
    /// I/Os that failed; they do not count above.
    pub failures: u64,
}

/// The same, written by the array's thread and read by any.
#[derive(Debug, Default)]
pub(super) struct Counters {
    reads: AtomicU64,
    writes: AtomicU64,
    discards: AtomicU64,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    failures: AtomicU64,
    gone: AtomicBool,
}

impl Counters {
    fn count(&self, operation: Operation, length: u64, result: Result<(), Failure>) {
        // One thread writes.
        let add = |to: &AtomicU64, more| to.store(to.load(Ordering::Relaxed) + more, Ordering::Relaxed);
        match (result, operation) {
            (Err(_), _) => add(&self.failures, 1),
            (Ok(()), Operation::Read) => {
                add(&self.reads, 1);
                add(&self.read_bytes, length);
            }
            (Ok(()), Operation::Write { .. } | Operation::WriteZeroes { .. }) => {
                add(&self.writes, 1);
                add(&self.written_bytes, length);
            }
            (Ok(()), Operation::Discard) => add(&self.discards, 1),
            (Ok(()), Operation::Flush) => {}
        }
        self.gone.store(result == Err(Failure::Gone), Ordering::Relaxed);
    }

    pub fn served(&self) -> Served {
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Served {
            reads: of(&self.reads),
            writes: of(&self.writes),
            discards: of(&self.discards),
            read_bytes: of(&self.read_bytes),
            written_bytes: of(&self.written_bytes),
            failures: of(&self.failures),
        }
    }

    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }
}

struct Attached {
    member: Member,
    in_flight: u32,
    counters: Arc<Counters>,
}

struct InFlight {
    effect: EffectId,
    operation: Operation,
    length: u64,
    content: Content,
    /// The memory of a bitmap that is being read.
    bitmap: Option<Buffer>,
}

/// The members of an array.
pub(super) struct Members {
    attached: Vec<Attached>,
    /// By the token of the I/O.
    table: Slab<InFlight>,
    /// Answers that are known without any I/O.
    ready: Vec<(EffectId, Outcome)>,
    /// Requests of one I/O that have ended.
    singles: Vec<SingleEnded>,
    completions: Vec<Completion>,
}

/// A request of one I/O that has ended.
pub(super) struct SingleEnded {
    pub id: EffectId,
    pub result: Result<(), Failure>,
    /// Place of its member.
    place: usize,
}

impl Members {
    pub fn new() -> Self {
        Self {
            attached: Vec::new(),
            table: Slab::new(),
            ready: Vec::new(),
            singles: Vec::new(),
            completions: Vec::new(),
        }
    }

    /// Takes a volume into use, and returns where its work is counted. The member comes back with an error.
    pub fn attach(&mut self, member: Member, poller: &Poller) -> Result<Arc<Counters>, (Member, io::Error)> {
        let member = member.watched(poller)?;
        let counters = Arc::new(Counters::default());
        self.attached.push(Attached { member, in_flight: 0, counters: counters.clone() });
        Ok(counters)
    }

    /// A volume of which nothing is asked any more.
    pub fn detach(&mut self, target: Target, poller: &Poller) -> Option<Member> {
        let place = self.attached.iter().position(|attached| attached.member.id == target)?;
        let member = self.attached.remove(place).member;
        Some(member.unwatched(poller))
    }

    /// What every member has now, in bytes; asks their volumes.
    ///
    /// # Errors
    /// That of the first that cannot say.
    pub fn sizes(&mut self) -> Result<Vec<(Target, u64)>, Failure> {
        let size = |attached: &mut Attached| Ok((attached.member.id, attached.member.volume.resize_check()?));
        self.attached.iter_mut().map(size).collect()
    }

    pub fn have_ended(&mut self) -> bool {
        self.attached.iter_mut().any(|attached| attached.in_flight > 0 && attached.member.volume.has_ended())
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.attached.iter().filter_map(|attached| attached.member.volume.next_deadline()).min()
    }

    /// Starts an I/O, or has it fail if there is nothing to start it on.
    pub fn start(&mut self, now: Instant, io: Io, requests: &Requests) {
        let Io { id, target, operation, offset, length, memory, content } = io;
        let (mut bitmap, mut gathered) = (None, requests.gather(&memory));
        let whole = |buffer: Buffer| Some(smallvec::smallvec![buffer.slice(0, buffer.len())]);
        match &content {
            Content::Memory => {}
            Content::Structure(bytes) => gathered = whole(requests.memory_of(bytes)),
            Content::Bitmap => {
                let buffer = Buffer::zeroed(length as usize);
                bitmap = Some(buffer.clone());
                gathered = whole(buffer);
            }
        }
        let Some(memory) = gathered else {
            tracing::error!(?id, "the array's engine names memory that does not exist");
            return self.ready.push((id, Outcome::Failed(IoFailure::Io)));
        };
        let Some(attached) = self.attached.iter_mut().find(|attached| attached.member.id == target) else {
            return self.ready.push((id, Outcome::Failed(IoFailure::Gone)));
        };
        let token = self.table.insert(InFlight { effect: id, operation, length, content, bitmap }) as u64;
        attached.in_flight += 1;
        attached.member.volume.submit(now, VolumeIo { token, operation, offset, length, memory });
    }

    /// Starts the one I/O of a request; false: there is nothing to start it on.
    pub fn start_single(&mut self, now: Instant, target: Target, io: VolumeIo) -> bool {
        let Some(attached) = self.attached.iter_mut().find(|attached| attached.member.id == target) else {
            return false;
        };
        attached.in_flight += 1;
        attached.member.volume.submit(now, io);
        true
    }

    /// Starts what waits on the volumes and appends what has ended to `outcomes`, but for requests of one I/O. `all`: looks at
    /// idle volumes too, whose descriptors may be readable for nothing.
    pub fn poll(&mut self, now: Instant, all: bool, outcomes: &mut Vec<(EffectId, Outcome)>) {
        let mut completions = std::mem::take(&mut self.completions);
        for place in 0..self.attached.len() {
            let attached = &mut self.attached[place];
            if !all && attached.in_flight == 0 {
                continue;
            }
            attached.member.volume.poll(now, &mut completions);
            for completion in completions.drain(..) {
                self.finish(place, &completion);
            }
        }
        self.completions = completions;
        outcomes.append(&mut self.ready);
    }

    /// The next request of one I/O that has ended, until the next poll.
    pub fn next_single(&mut self) -> Option<SingleEnded> {
        self.singles.pop()
    }

    /// Counts what such a request was.
    pub fn count_single(&self, ended: &SingleEnded, request: &Request) {
        if let Some(attached) = self.attached.get(ended.place) {
            attached.counters.count(request.operation, request.length, ended.result);
        }
    }

    fn finish(&mut self, place: usize, completion: &Completion) {
        let attached = &mut self.attached[place];
        if let Err(failure) = completion.result {
            tracing::debug!(member = attached.member.name, %failure, "an I/O failed");
        }
        let id = EffectId(completion.token);
        if is_single(id) {
            attached.in_flight -= 1;
            return self.singles.push(SingleEnded { id, result: completion.result, place });
        }
        let taken = usize::try_from(completion.token).ok().and_then(|token| self.table.try_remove(token));
        let Some(io) = taken else {
            tracing::error!(token = completion.token, "a member completed an I/O that is not in flight");
            return;
        };
        attached.in_flight -= 1;
        attached.counters.count(io.operation, io.length, completion.result);
        // SAFETY: the read into this memory has ended, and nobody else has been given a handle on it.
        let bytes = || io.bitmap.as_ref().map_or(&[][..], |buffer| unsafe { buffer.bytes() });
        let outcome = io.content.outcome(completion.result.map_err(IoFailure::from), bytes);
        self.ready.push((io.effect, outcome));
    }
}
