//! Carries out the effects of an array's engine over simulated volumes, as a driver does over real ones.

use rustc_hash::FxHashMap;
use surgetank_array::effect::{BufferId, EffectId, ReplyError, Slice, Slices, Target};
use surgetank_array::io::{Action, Content, Io};
use surgetank_array::{Effect, Outcome};
use surgetank_model::{Operation, RequestId};

use crate::disk;

/// What becomes of an effect.
#[derive(Debug)]
pub enum Executed {
    /// It is done.
    AtOnce,
    /// It is to be submitted to a volume, under this tag.
    Submit {
        /// Which volume.
        target: Target,
        /// For [`Memory::finish`].
        tag: u32,
        /// What to submit.
        io: disk::Io,
    },
    /// A request is answered.
    Reply {
        /// Which.
        request: RequestId,
        /// Whether it succeeded.
        result: Result<(), ReplyError>,
        /// Its buffer.
        buffer: Vec<u8>,
    },
}

/// An effect in flight.
#[derive(Debug)]
struct InFlight {
    id: EffectId,
    read: bool,
    memory: Slices,
    content: Content,
}

/// Buffers and effects in flight of one engine. A crash drops it.
#[derive(Debug, Default)]
pub struct Memory {
    buffers: FxHashMap<BufferId, Vec<u8>>,
    in_flight: FxHashMap<u32, InFlight>,
    next_tag: u32,
}

impl Memory {
    /// Keeps the buffer of a request that is about to be submitted.
    pub fn add_request(&mut self, request: RequestId, bytes: Vec<u8>) {
        self.buffers.insert(BufferId::Request(request), bytes);
    }

    /// Buffers in existence.
    #[must_use]
    pub fn buffers(&self) -> usize {
        self.buffers.len()
    }

    fn bytes(&mut self, slice: Slice) -> Result<&mut [u8], String> {
        let buffer = self.buffers.get_mut(&slice.buffer).ok_or_else(|| format!("{slice:?} has no buffer"))?;
        let end = slice.offset as usize + slice.length as usize;
        buffer.get_mut(slice.offset as usize..end).ok_or_else(|| format!("{slice:?} lies outside its buffer"))
    }

    fn remove(&mut self, buffer: BufferId) -> Result<Vec<u8>, String> {
        let uses = |other: &InFlight| other.memory.iter().any(|slice| slice.buffer == buffer);
        if self.in_flight.values().any(uses) {
            return Err(format!("{buffer:?} is released while an effect in flight uses it"));
        }
        self.buffers.remove(&buffer).ok_or_else(|| format!("{buffer:?} is released but does not exist"))
    }

    /// Carries out an effect, up to its volume.
    ///
    /// # Errors
    /// If the effect breaks the contract.
    pub fn execute(&mut self, effect: Effect) -> Result<Executed, String> {
        match Action::from(effect) {
            Action::Allocate { scratch, length } => {
                // Fresh memory is not zeroed for the engine.
                let bytes = vec![0xa5; length as usize];
                match self.buffers.insert(BufferId::Scratch(scratch), bytes) {
                    None => Ok(Executed::AtOnce),
                    Some(_) => Err(format!("{scratch:?} is allocated twice")),
                }
            }
            Action::Release { scratch } => self.remove(BufferId::Scratch(scratch)).map(|_| Executed::AtOnce),
            Action::Reply { request, result } => {
                let buffer = self.remove(BufferId::Request(request))?;
                Ok(Executed::Reply { request, result, buffer })
            }
            Action::Io(io) => self.start(io),
        }
    }

    fn start(&mut self, io: Io) -> Result<Executed, String> {
        let Io { id, target, operation, offset, length, memory, content } = io;
        let request = match operation {
            Operation::Read => disk::Io::Read { offset, length },
            Operation::Flush => disk::Io::Flush,
            Operation::Discard => disk::Io::Zero { offset, length, fua: false },
            Operation::WriteZeroes { fua } => disk::Io::Zero { offset, length, fua },
            Operation::Write { fua } => {
                let mut data = Vec::with_capacity(length as usize);
                match &content {
                    Content::Structure(bytes) => data.extend_from_slice(bytes),
                    Content::Memory | Content::Bitmap => {
                        for slice in &memory {
                            data.extend_from_slice(self.bytes(*slice)?);
                        }
                    }
                }
                disk::Io::Write { offset, data, fua }
            }
        };
        let tag = self.next_tag;
        self.next_tag += 1;
        self.in_flight.insert(tag, InFlight { id, read: operation == Operation::Read, memory, content });
        Ok(Executed::Submit { target, tag, io: request })
    }

    /// What the engine is told of an I/O that has ended.
    ///
    /// # Errors
    /// If it is not in flight.
    pub fn finish(&mut self, finished: &disk::Finished) -> Result<(EffectId, Outcome), String> {
        let entry = self.in_flight.remove(&finished.tag).ok_or("an I/O ends that is not in flight")?;
        if entry.read && finished.result.is_ok() {
            let mut at = 0;
            for slice in &entry.memory {
                let bytes = self.bytes(*slice)?;
                let length = bytes.len();
                bytes.copy_from_slice(&finished.data[at..at + length]);
                at += length;
            }
        }
        Ok((entry.id, entry.content.outcome(finished.result, || &finished.data)))
    }
}
