//! Executes the engine's effects over two simulated volumes: what the daemon's shard does with real ones. What the bytes are,
//! and what the end of an I/O means, is [`surgetank_cache::io`]'s for both.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use surgetank_cache::effect::Slices;
use surgetank_cache::format::BLOCK;
use surgetank_cache::io::{Action, Encoder, Io, Meaning};
use surgetank_cache::{BufferId, Effect, EffectId, Epoch, Outcome, Owner, ReplyError, ScratchId, Slice, Target};
use surgetank_model::{Instant, Operation, RequestId};

use crate::disk::{self, Disk, Finished, Ticket};

/// The engine broke the contract of its effects. The text says how.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(pub String);

/// What became of an effect.
#[derive(Debug)]
pub enum Executed {
    /// Done at once.
    AtOnce,
    /// An I/O is in flight on a volume; no ticket if it is stuck.
    Started(Target, Option<Ticket>),
    /// Answered at once.
    Answered(EffectId, Outcome),
    /// The world keeps the owner record.
    PersistOwner {
        /// To be answered.
        id: EffectId,
        /// What to persist.
        owner: Owner,
    },
    /// The same of what was healed.
    RecordHealed {
        /// To be answered.
        id: EffectId,
        /// The loss.
        epoch: Epoch,
        /// What was healed.
        ranges: Vec<(u64, u64)>,
    },
    /// The request is answered.
    Reply {
        /// Which.
        request: RequestId,
        /// How.
        result: Result<(), ReplyError>,
        /// Its buffer; empty if it had none.
        buffer: Vec<u8>,
    },
}

#[derive(Debug)]
struct Waiting {
    effect: EffectId,
    /// Where the bytes of a read go.
    into: Option<Slice>,
    meaning: Meaning,
    uses: SmallVec<[BufferId; 4]>,
}

#[derive(Debug, Default)]
struct Buffer {
    bytes: Vec<u8>,
    /// Effects in flight that use it.
    users: u32,
}

/// The volumes that effects go to.
#[derive(Debug)]
pub struct Disks {
    /// The backing volume.
    pub backing: Disk,
    /// The caching volume, while one is attached.
    pub cache: Option<Disk>,
}

impl Disks {
    /// The volume that a target means.
    ///
    /// # Errors
    /// If it is the caching volume and there is none.
    pub fn get(&mut self, target: Target) -> Result<&mut Disk, Broken> {
        match target {
            Target::Backing => Ok(&mut self.backing),
            Target::Cache => {
                self.cache.as_mut().ok_or_else(|| Broken("an effect uses a cache that is not attached".into()))
            }
        }
    }
}

/// Buffers and effects in flight of one engine. A crash drops it.
#[derive(Debug, Default)]
pub struct Driver {
    requests: FxHashMap<RequestId, Buffer>,
    scratch: FxHashMap<ScratchId, Buffer>,
    waiting: Vec<Option<Waiting>>,
    free: Vec<u32>,
    pool: Vec<Vec<u8>>,
    encoder: Encoder,
}

impl Driver {
    /// An empty buffer, reused.
    pub fn buffer(&mut self) -> Vec<u8> {
        self.pool.pop().unwrap_or_default()
    }

    /// Returns a buffer.
    pub fn recycle(&mut self, mut buffer: Vec<u8>) {
        if buffer.capacity() > 0 && self.pool.len() < 64 {
            buffer.clear();
            self.pool.push(buffer);
        }
    }

    /// Keeps the buffer of a request that is about to be submitted.
    pub fn add_request(&mut self, request: RequestId, bytes: Vec<u8>) {
        self.requests.insert(request, Buffer { bytes, users: 0 });
    }

    /// Scratch buffers in existence: a quiet engine has none but what it caches.
    #[must_use]
    pub fn scratch_buffers(&self) -> usize {
        self.scratch.len()
    }

    fn get(&mut self, id: BufferId) -> Result<&mut Buffer, Broken> {
        let buffer = match id {
            BufferId::Request(request) => self.requests.get_mut(&request),
            BufferId::Scratch(scratch) => self.scratch.get_mut(&scratch),
        };
        buffer.ok_or_else(|| Broken(format!("an effect uses {id:?}, which does not exist")))
    }

    fn bytes(&mut self, slice: Slice) -> Result<&mut [u8], Broken> {
        let buffer = self.get(slice.buffer)?;
        let length = buffer.bytes.len();
        let end = slice.offset as usize + slice.length as usize;
        let range = buffer.bytes.get_mut(slice.offset as usize..end);
        range.ok_or_else(|| Broken(format!("{slice:?} lies outside its buffer of {length} bytes")))
    }

    fn gather(&mut self, from: &Slices, out: &mut Vec<u8>) -> Result<(), Broken> {
        for &slice in from {
            out.extend_from_slice(self.bytes(slice)?);
        }
        Ok(())
    }

    fn remove(&mut self, id: BufferId) -> Result<Vec<u8>, Broken> {
        let buffer = match id {
            BufferId::Request(request) => self.requests.remove(&request),
            BufferId::Scratch(scratch) => self.scratch.remove(&scratch),
        };
        match buffer {
            Some(Buffer { bytes, users: 0 }) => Ok(bytes),
            Some(_) => Err(Broken(format!("{id:?} is released while an effect in flight uses it"))),
            None => Err(Broken(format!("{id:?} is released but does not exist"))),
        }
    }

    /// Executes the next effect.
    ///
    /// # Errors
    /// If the effect breaks the contract.
    pub fn execute(&mut self, now: Instant, effect: Effect, disks: &mut Disks) -> Result<Executed, Broken> {
        match Action::from(effect) {
            Action::Io(io) => self.start(now, io, disks),
            Action::Parse { id, from, meaning } => {
                let bytes = &*self.bytes(from)?;
                Ok(Executed::Answered(id, meaning.outcome(Ok(()), || bytes)))
            }
            Action::Allocate { scratch, length } => {
                let mut bytes = self.buffer();
                // Fresh memory is not zeroed for the engine.
                bytes.resize(length as usize, 0xa5);
                if self.scratch.insert(scratch, Buffer { bytes, users: 0 }).is_some() {
                    return Err(Broken(format!("{scratch:?} is allocated twice")));
                }
                Ok(Executed::AtOnce)
            }
            Action::Release { scratch } => {
                let bytes = self.remove(BufferId::Scratch(scratch))?;
                self.recycle(bytes);
                Ok(Executed::AtOnce)
            }
            Action::Copy { from, to } => self.copy(from, to),
            Action::Zero { to } => {
                self.bytes(to)?.fill(0);
                Ok(Executed::AtOnce)
            }
            Action::PersistOwner { id, owner } => Ok(Executed::PersistOwner { id, owner }),
            Action::RecordHealed { id, epoch, ranges } => Ok(Executed::RecordHealed { id, epoch, ranges }),
            Action::Reply { request, result } => {
                let buffer = self.remove(BufferId::Request(request))?;
                Ok(Executed::Reply { request, result, buffer })
            }
        }
    }

    fn copy(&mut self, from: Slice, to: Slice) -> Result<Executed, Broken> {
        if from.length != to.length {
            return Err(Broken(format!("a copy from {from:?} to {to:?} has two lengths")));
        }
        let mut bytes = self.buffer();
        bytes.extend_from_slice(self.bytes(from)?);
        self.bytes(to)?.copy_from_slice(&bytes);
        self.recycle(bytes);
        Ok(Executed::AtOnce)
    }

    fn start(&mut self, now: Instant, io: Io, disks: &mut Disks) -> Result<Executed, Broken> {
        let Io { id, target, operation, offset, length, memory, content } = io;
        let head = content.head_length() as usize;
        let mut data = Vec::new();
        if let Operation::Write { .. } = operation {
            data = disks.get(target)?.buffer();
            data.resize(head, 0);
            self.gather(&memory, &mut data)?;
            if data.len() as u64 != length {
                return Err(Broken(format!("a write announces {length} bytes but has {}", data.len())));
            }
        }
        let (front, gathered) = data.split_at_mut(head);
        let (bytes, meaning) = self.encoder.encode(content, gathered.chunks_exact(BLOCK as usize));
        front.copy_from_slice(&bytes.unwrap_or_default());
        let mut into = None;
        let io = match operation {
            Operation::Read => {
                let [slice] = memory[..] else { return Err(Broken(format!("a read goes to {memory:?}"))) };
                self.bytes(slice)?;
                into = Some(slice);
                disk::Io::Read { offset, length }
            }
            Operation::Write { fua } => disk::Io::Write { offset, data, fua },
            Operation::Flush => disk::Io::Flush,
            Operation::Discard => disk::Io::Zero { offset, length, fua: false },
            Operation::WriteZeroes { fua } => disk::Io::Zero { offset, length, fua },
        };
        let uses: SmallVec<[BufferId; 4]> = memory.iter().map(|slice| slice.buffer).collect();
        for &buffer in &uses {
            self.get(buffer)?.users += 1;
        }
        let tag = self.wait(Waiting { effect: id, into, meaning, uses });
        let ticket = disks.get(target)?.submit(now, tag, io).map_err(|misfit| Broken(misfit.0))?;
        Ok(Executed::Started(target, ticket))
    }

    fn wait(&mut self, waiting: Waiting) -> u32 {
        match self.free.pop() {
            Some(tag) => {
                self.waiting[tag as usize] = Some(waiting);
                tag
            }
            None => {
                self.waiting.push(Some(waiting));
                self.waiting.len() as u32 - 1
            }
        }
    }

    /// Interprets a finished I/O. The data goes to the buffer that waits for it, and then back to `disk`.
    ///
    /// # Errors
    /// If a buffer vanished meanwhile.
    pub fn finish(&mut self, finished: Finished, disk: &mut Disk) -> Result<(EffectId, Outcome), Broken> {
        let Finished { tag, result, data, flush: _ } = finished;
        let waiting = self.waiting[tag as usize].take();
        let Waiting { effect, into, meaning, uses } = waiting.ok_or_else(|| Broken("an I/O finished twice".into()))?;
        self.free.push(tag);
        for buffer in uses {
            self.get(buffer)?.users -= 1;
        }
        if let Some(into) = into.filter(|_| result.is_ok()) {
            self.bytes(into)?.copy_from_slice(&data);
        }
        let outcome = meaning.outcome(result, || &data);
        disk.recycle(data);
        Ok((effect, outcome))
    }
}
