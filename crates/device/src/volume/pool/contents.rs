//! What is kept here of a file: chunks that are not committed, and some that were read.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;

use super::GRAIN;

/// Bytes of a chunk, as memory has them.
pub(super) const CHUNK: usize = GRAIN as usize;
/// Chunks that were read or committed last, and are kept.
const READ_MAX: usize = 16;

/// A chunk that is not committed.
pub(super) enum Draft {
    /// It is being written. Its first bytes, so many, are as they are to be; the others are what the pool has.
    Open(Vec<u8>, usize),
    /// All of it is as it is to be; whether the present session's writer has it.
    Whole(Bytes, bool),
}

/// Chunks by where they begin in the file, in chunks.
#[derive(Default)]
pub(super) struct Contents {
    drafts: BTreeMap<u64, Draft>,
    read: VecDeque<(u64, Bytes)>,
}

/// What has to be read from the pool first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted(pub u64);

impl Contents {
    /// Whether a chunk has something that is not committed.
    pub fn has(&self, chunk: u64) -> bool {
        self.drafts.contains_key(&chunk)
    }

    /// Bytes that are not committed.
    pub fn uncommitted(&self) -> usize {
        self.drafts.len() * CHUNK
    }

    /// Writes within a chunk. `fresh`: the pool has nothing there.
    ///
    /// # Errors
    /// [`Wanted`]: the chunk as the pool has it, nothing was written.
    pub fn write(&mut self, chunk: u64, at: usize, fresh: bool, parts: &[&[u8]]) -> Result<(), Wanted> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let (mut bytes, known) = match self.drafts.remove(&chunk) {
            Some(Draft::Open(bytes, known)) => (bytes, known),
            Some(Draft::Whole(bytes, _)) => (Vec::from(bytes), CHUNK),
            None => match self.take_read(chunk) {
                Some(bytes) => (Vec::from(bytes), CHUNK),
                None => (vec![0; CHUNK], if fresh { CHUNK } else { 0 }),
            },
        };
        let end = at + length;
        let is_gap = at > known;
        if !is_gap {
            let mut to = at;
            for part in parts {
                bytes[to..to + part.len()].copy_from_slice(part);
                to += part.len();
            }
        }
        let known = if is_gap { known } else { known.max(end) };
        if known > 0 || !is_gap {
            self.drafts.insert(chunk, Draft::Open(bytes, known));
        }
        if is_gap { Err(Wanted(chunk)) } else { Ok(()) }
    }

    /// The bytes of a chunk from there on that are here, if all that are asked for are.
    ///
    /// # Errors
    /// [`Wanted`]: the chunk as the pool has it.
    pub fn read(&self, chunk: u64, at: usize, length: usize) -> Result<&[u8], Wanted> {
        match self.drafts.get(&chunk) {
            Some(Draft::Open(bytes, known)) if at + length <= *known => Ok(&bytes[at..at + length]),
            Some(Draft::Open(..)) => Err(Wanted(chunk)),
            Some(Draft::Whole(bytes, _)) => Ok(&bytes[at..at + length]),
            None => {
                let found = self.read.iter().find(|(of, _)| *of == chunk);
                found.map(|(_, bytes)| &bytes[at..at + length]).ok_or(Wanted(chunk))
            }
        }
    }

    /// This is what the pool has of a chunk.
    pub fn learn(&mut self, chunk: u64, base: Bytes) {
        match self.drafts.get_mut(&chunk) {
            Some(Draft::Open(bytes, known)) => {
                bytes[*known..].copy_from_slice(&base[*known..]);
                *known = CHUNK;
            }
            Some(Draft::Whole(..)) => {}
            None => self.keep_read(chunk, base),
        }
    }

    /// A draft whose end is not known: the pool has it.
    pub fn incomplete(&self) -> Option<Wanted> {
        let of = |(chunk, draft): (&u64, &Draft)| match draft {
            Draft::Open(_, known) if *known < CHUNK => Some(Wanted(*chunk)),
            _ => None,
        };
        self.drafts.iter().find_map(of)
    }

    /// A chunk, if all of it is as it is to be and the writer does not have it.
    pub fn stage(&mut self, chunk: u64) -> Option<Bytes> {
        let draft = self.drafts.get_mut(&chunk)?;
        if let Draft::Open(bytes, CHUNK) = draft {
            *draft = Draft::Whole(Bytes::from(std::mem::take(bytes)), false);
        }
        match draft {
            Draft::Whole(bytes, false) => Some(bytes.clone()),
            _ => None,
        }
    }

    /// The writer has a chunk.
    pub fn staged(&mut self, chunk: u64) {
        if let Some(Draft::Whole(_, staged)) = self.drafts.get_mut(&chunk) {
            *staged = true;
        }
    }

    /// Drafts in their order.
    pub fn drafts(&self) -> Vec<u64> {
        self.drafts.keys().copied().collect()
    }

    /// The writer has ended, and what it had with it.
    pub fn writer_ended(&mut self) {
        for draft in self.drafts.values_mut() {
            if let Draft::Whole(_, staged) = draft {
                *staged = false;
            }
        }
    }

    /// All drafts are committed.
    pub fn committed(&mut self) {
        for (chunk, draft) in std::mem::take(&mut self.drafts) {
            if let Draft::Whole(bytes, _) = draft {
                self.keep_read(chunk, bytes);
            }
        }
    }

    fn take_read(&mut self, chunk: u64) -> Option<Bytes> {
        let at = self.read.iter().position(|(of, _)| *of == chunk)?;
        self.read.remove(at).map(|(_, bytes)| bytes)
    }

    fn keep_read(&mut self, chunk: u64, bytes: Bytes) {
        self.take_read(chunk);
        self.read.push_back((chunk, bytes));
        if self.read.len() > READ_MAX {
            self.read.pop_front();
        }
    }
}
