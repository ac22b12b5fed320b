//! A read cache as a volume: carries out over a backing volume and the members' volumes what `surgetank-readcache` decides.
//!
//! - `handle`: what other threads ask and learn: members that come and go, how it stands.
//! - `observed`: what it shows to whoever decides how large it may be.
//! - `volumes`: the volumes and what is in flight on them.

mod handle;
mod observed;
mod volumes;

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{fmt, io};

use surgetank_model::Instant;
use surgetank_model::effect::{EffectId, IoFailure, Slice};
use surgetank_readcache::io::Action;
use surgetank_readcache::{Config, Engine, Event, MemberId, Outcome, Rejected, RequestError};

use self::handle::Ask;
use self::observed::{Began, Overhead, Watch};
use self::volumes::Volumes;
use super::pieces::Requests;
use super::remote::{self, Command, Inbox};
use super::{Completion, Failure, Memory, Operation, Volume, VolumeIo};
use crate::poller::Poller;

pub use self::handle::{Observing, ReadCacheHandle};
pub use self::observed::{Misses, Observation, Times};
pub use super::remote::Answer;

/// Rounds of I/Os that one poll takes the answers of, so that volumes that answer at once do not hold up the caller; what is
/// left over comes with the next poll.
const ROUNDS_MAX: u32 = 32;
/// How long an I/O of a member is waited for if nobody says otherwise.
pub const TIMEOUT_DEFAULT: Duration = Duration::from_secs(5);

/// A volume that is to be a member of a read cache.
pub type Member = super::member::Member<MemberId>;

/// A backing volume with a write-through read cache before it. Without members it is the backing volume.
pub struct ReadCacheVolume {
    engine: Engine,
    size: u64,
    volumes: Volumes,
    requests: Requests,
    /// Watches the volumes' descriptors and the handle's.
    poller: Poller,
    inbox: Inbox<Ask>,
    ended: Vec<Completion>,
    outcomes: Vec<(EffectId, Outcome)>,
    began: Began,
    watch: Option<Watch>,
    /// Reads that were answered.
    reads: Times,
    /// For the handle.
    hit_bytes: Arc<AtomicU64>,
    /// From the handle.
    overhead: Arc<Overhead>,
}

impl fmt::Debug for ReadCacheVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadCacheVolume").field("size", &self.size).finish_non_exhaustive()
    }
}

impl ReadCacheVolume {
    /// A read cache over `backing`, without members yet. `config` is for its size: see [`Config::new`].
    ///
    /// # Errors
    /// If the sizes do not fit each other, and those of `epoll_create1(2)`, `epoll_ctl(2)` and `eventfd(2)`.
    pub fn new(backing: Box<dyn Volume>, config: Config) -> io::Result<(Self, ReadCacheHandle)> {
        let invalid = |refusal: Rejected| io::Error::new(io::ErrorKind::InvalidInput, refusal);
        let size = backing.size();
        let engine = Engine::new(Config { size, logical_block: backing.logical_block(), ..config }).map_err(invalid)?;
        let poller = Poller::new()?;
        let (inbox, remote) = remote::connect("read cache", engine.status())?;
        poller.add(inbox.as_fd(), 0)?;
        let cache = Self {
            volumes: Volumes::new(backing, engine.block(), TIMEOUT_DEFAULT, &poller)?,
            engine,
            size,
            requests: Requests::new(),
            poller,
            inbox,
            ended: Vec::new(),
            outcomes: Vec::new(),
            began: Began::default(),
            watch: None,
            reads: Times::default(),
            hit_bytes: Arc::default(),
            overhead: Arc::default(),
        };
        let handle = ReadCacheHandle::new(remote, cache.hit_bytes.clone(), cache.overhead.clone());
        Ok((cache, handle))
    }

    /// A read that a member has not answered for so long is answered by the backing volume, and a member that has answered nothing
    /// at all meanwhile serves no more. [`TIMEOUT_DEFAULT`] if nobody says otherwise; [`Duration::MAX`]: they are waited for.
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.volumes.set_timeout(timeout);
    }

    /// Looks at the accesses from now on, so that it can say what would miss in caches of other sizes: up to what its members have, or up to
    /// `reach` bytes if that is more. Has `limit` bytes of its members at most.
    pub fn share(&mut self, limit: u64, reach: u64) {
        self.watch = Some(Watch::new(reach));
        self.fit_watch();
        self.limit(limit);
    }

    /// Has so many bytes of its members at most, and looks at nothing.
    pub fn limit(&mut self, limit: u64) {
        self.engine.set_limit(Some(limit));
    }

    /// Members may have come or gone.
    fn fit_watch(&mut self) {
        if let Some(watch) = &mut self.watch {
            watch.fit(&self.engine);
        }
    }

    /// Carries out what the engine asks for.
    fn carry_out(&mut self, now: Instant) {
        while let Some(effect) = self.engine.next_effect() {
            match Action::from(effect) {
                Action::Io(io) => self.volumes.start(now, io, &self.requests),
                Action::Allocate { scratch, length } => self.requests.allocate(scratch, length),
                Action::Release { scratch } => self.requests.release(scratch),
                Action::Copy { from, to } => self.copy(from, to),
                Action::Reply { request, result } => {
                    let Some(completion) = self.requests.answer(request, result.map_err(failure)) else { continue };
                    if let Some(taken) = self.began.end(request, now) {
                        self.reads.add(taken);
                    }
                    self.ended.push(completion);
                }
            }
        }
        self.hit_bytes.store(self.engine.hit_bytes(), Ordering::Relaxed);
    }

    fn copy(&self, from: Slice, to: Slice) {
        match (self.requests.gather(&[from]), self.requests.gather(&[to])) {
            (Some(from), Some(to)) => copy(&from, &to),
            _ => tracing::error!(?from, ?to, "the read cache's engine names memory that does not exist"),
        }
    }

    /// Answers what other threads have asked.
    fn take_commands(&mut self) {
        while let Some(Command { ask, reply }) = self.inbox.take_command() {
            let answer = match ask {
                Ask::Add(member) => self.add(member),
                Ask::Remove(member) => self.engine.remove_member(member),
                Ask::Look => {
                    self.inbox.publish(self.engine.status());
                    Ok(())
                }
                Ask::Observe(sender) => {
                    // Whoever asked may have gone.
                    let _ = sender.send(self.observation());
                    Ok(())
                }
                Ask::Limit(bytes) => {
                    self.engine.set_limit(bytes);
                    Ok(())
                }
            };
            // Whoever asked may have gone.
            let _ = reply.send(answer);
        }
        if self.inbox.take_asked() {
            self.inbox.publish(self.engine.status());
        }
    }

    fn observation(&mut self) -> Observation {
        let (member_reads, backing_reads) = self.volumes.reads();
        let status = self.engine.status();
        let misses = self.watch.as_mut().and_then(|watch| watch.end_interval(self.engine.block()));
        Observation { status, reads: self.reads, overhead: self.overhead.times(), member_reads, backing_reads, misses }
    }

    fn add(&mut self, member: Member) -> Result<(), Rejected> {
        let (id, size) = (member.id, member.volume.size());
        let (block, ours) = (member.volume.logical_block(), self.engine.block());
        if !ours.is_multiple_of(block) {
            let refusal = Rejected(format!(
                "{} has blocks of {block} bytes and the read cache has blocks of {ours}: use a volume with blocks as small",
                member.name
            ));
            self.inbox.release(member);
            return Err(refusal);
        }
        if let Err(refusal) = self.engine.add_member(id, size) {
            self.inbox.release(member);
            return Err(refusal);
        }
        self.fit_watch();
        self.volumes.attach(member, &self.poller).map_err(|(member, error)| {
            let refusal = Rejected(format!("{} cannot be waited for ({error}): close other volumes", member.name));
            self.inbox.release(member);
            // It was added just now, and nothing was asked of it.
            let _ = self.engine.remove_member(id);
            refusal
        })
    }

    /// Passes on what has happened.
    fn take_events(&mut self) {
        let mut changed = false;
        while let Some(event) = self.engine.next_event() {
            changed = true;
            if let Event::Released(id) = event
                && let Some(member) = self.volumes.detach(id, &self.poller)
            {
                self.inbox.release(member);
            }
            self.inbox.add_event(event);
        }
        if changed {
            self.fit_watch();
            self.inbox.publish(self.engine.status());
        }
    }
}

impl Volume for ReadCacheVolume {
    fn size(&self) -> u64 {
        self.size
    }

    fn logical_block(&self) -> u32 {
        self.volumes.backing_block()
    }

    fn submit(&mut self, now: Instant, io: VolumeIo) {
        let allowed = io.check(self.size, self.logical_block());
        if allowed.is_err() || (io.length == 0 && io.operation != Operation::Flush) {
            return self.ended.push(Completion { token: io.token, result: allowed });
        }
        if let Some(watch) = &mut self.watch {
            watch.observe(&io, self.engine.block());
        }
        let is_read = io.operation == Operation::Read;
        for piece in self.requests.add(io) {
            if is_read {
                self.began.begin(piece.id, now);
            }
            self.engine.submit(piece);
        }
        self.carry_out(now);
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        if self.inbox.take_raised() {
            self.take_commands();
        }
        let mut outcomes = std::mem::take(&mut self.outcomes);
        for round in 0..=ROUNDS_MAX {
            self.carry_out(now);
            if round == ROUNDS_MAX {
                self.inbox.raise();
                break;
            }
            self.volumes.poll(now, round == 0, &mut outcomes);
            if outcomes.is_empty() {
                break;
            }
            outcomes.drain(..).for_each(|(effect, outcome)| self.engine.complete(effect, outcome));
        }
        self.outcomes = outcomes;
        self.take_events();
        completions.append(&mut self.ended);
    }

    fn has_ended(&mut self) -> bool {
        !self.ended.is_empty() || self.volumes.have_ended()
    }

    fn resize_check(&mut self) -> Result<u64, Failure> {
        let size = self.volumes.backing().resize_check()?;
        if size > self.size {
            match self.engine.grow(size) {
                Ok(()) => self.size = size,
                Err(refusal) => tracing::warn!(%refusal, "the device does not grow"),
            }
        }
        Ok(self.size)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.volumes.next_deadline()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.poller.as_fd())
    }
}

/// Copies memory of the same length, whatever pieces it is in.
fn copy(from: &Memory, to: &Memory) {
    let (mut sources, mut source_done) = (from.iter(), 0);
    let mut source = sources.next();
    for target in to {
        let mut done = 0;
        while done < target.len() {
            let Some(slice) = source else { return };
            let length = (slice.len() - source_done).min(target.len() - done);
            target.slice(done, length).copy_from(&slice.slice(source_done, length));
            (done, source_done) = (done + length, source_done + length);
            if source_done == slice.len() {
                (source, source_done) = (sources.next(), 0);
            }
        }
    }
}

const fn failure(error: RequestError) -> Failure {
    match error {
        RequestError::Backing(IoFailure::NoSpace) => Failure::NoSpace,
        RequestError::Backing(IoFailure::Unsupported) => Failure::Unsupported,
        RequestError::Backing(IoFailure::Gone) => Failure::Gone,
        RequestError::Backing(IoFailure::Io | IoFailure::Corrupt) | RequestError::Invalid => Failure::Io,
    }
}
