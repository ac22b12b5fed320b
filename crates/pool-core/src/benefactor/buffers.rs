//! A benefactor's memory: three buffers, so that one is filled while another is drained and a third is full (seed 002, Figure 2).
//!
//! A buffer is *empty*, *filling*, *full* (closed: what is in it is drained, oldest first) and empty again once the last piece in it
//! has gone: drained to the next tier, or forgotten. Room is never made by dropping what is not drained: where there is none, clients
//! wait for credits.

use std::collections::{BTreeMap, VecDeque};

use crate::planted::{Bug, planted};

/// Buffers of a benefactor.
pub const BUFFERS: usize = 3;

/// A chunk's place in memory, its room reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Piece {
    /// Which buffer.
    pub buffer: u8,
    /// Which filling of that buffer: one that has ended is never mistaken for a later one.
    pub filling: u64,
    /// Where in it, in bytes.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// What becomes of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Its bytes are still coming.
    Reserved,
    /// They are there.
    Stored,
    /// They are being written to the next tier.
    Draining,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Empty,
    Filling,
    Full,
}

#[derive(Debug)]
struct Buffer {
    phase: Phase,
    filling: u64,
    used: u64,
    pieces: BTreeMap<u64, (u64, State)>,
}

/// See the module.
#[derive(Debug)]
pub struct Buffers {
    size: u64,
    chunk: u64,
    fillings: u64,
    buffers: [Buffer; BUFFERS],
    /// Full ones, in the order in which they became full.
    full: VecDeque<u8>,
}

/// Memory that is too small to be three buffers of whole chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{lent} bytes of memory make no three buffers of a chunk: lend at least {least} bytes, or none")]
pub struct TooSmall {
    /// What was to be lent.
    pub lent: u64,
    /// What is needed.
    pub least: u64,
}

impl Buffers {
    /// Three equal buffers of memory in which chunks of up to `chunk` bytes have room. A rest is not used.
    ///
    /// # Errors
    /// [`TooSmall`]: not even one chunk fits in each.
    pub fn new(memory: u64, chunk: u64) -> Result<Self, TooSmall> {
        let size = memory / BUFFERS as u64;
        if size < chunk || chunk == 0 {
            return Err(TooSmall { lent: memory, least: chunk.max(1).saturating_mul(BUFFERS as u64) });
        }
        let empty = || Buffer { phase: Phase::Empty, filling: 0, used: 0, pieces: BTreeMap::new() };
        Ok(Self { size, chunk, fillings: 0, buffers: [empty(), empty(), empty()], full: VecDeque::new() })
    }

    /// Bytes of a buffer.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Whole chunks that can be promised to clients: what the filling buffer and the empty ones have room for.
    #[must_use]
    pub fn credits(&self) -> u64 {
        let room = |buffer: &Buffer| (self.size - buffer.used) / self.chunk;
        self.buffers.iter().filter(|buffer| buffer.phase != Phase::Full).map(room).sum()
    }

    /// Bytes in pieces.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.buffers.iter().flat_map(|buffer| buffer.pieces.values()).map(|(length, _)| length).sum()
    }

    /// Room for a chunk; `None`: it has to wait until a buffer is empty.
    pub fn reserve(&mut self, length: u64) -> Option<Piece> {
        if length == 0 || length > self.chunk {
            return None;
        }
        let filling = self.buffers.iter().position(|buffer| buffer.phase == Phase::Filling);
        let at = match filling {
            Some(at) if self.buffers[at].used + length <= self.size => at,
            filling => {
                // The one that was being filled is closed even if none is empty: what is in it can be drained meanwhile.
                if let Some(at) = filling {
                    self.close(at);
                }
                let empty = self.buffers.iter().position(|buffer| buffer.phase == Phase::Empty)?;
                self.fillings += 1;
                (self.buffers[empty].phase, self.buffers[empty].filling) = (Phase::Filling, self.fillings);
                empty
            }
        };
        let buffer = &mut self.buffers[at];
        let offset = buffer.used;
        buffer.used += length;
        buffer.pieces.insert(offset, (length, State::Reserved));
        Some(Piece { buffer: number(at), filling: buffer.filling, offset, length })
    }

    /// Its bytes are there.
    pub fn stored(&mut self, piece: Piece) {
        self.set(piece, State::Reserved, State::Stored);
    }

    /// What is in the filling buffer is to be drained, though it is not full: it is old, or somebody waits for it.
    pub fn close_filling(&mut self) {
        let filling =
            self.buffers.iter().position(|buffer| buffer.phase == Phase::Filling && !buffer.pieces.is_empty());
        if let Some(at) = filling {
            self.close(at);
        }
    }

    /// Whether a buffer is full: what is in it is to be drained.
    #[must_use]
    pub fn has_full(&self) -> bool {
        !self.full.is_empty()
    }

    /// What to drain next: of the buffer that has been full for longest.
    pub fn next_drain(&mut self) -> Option<Piece> {
        let ready =
            |state: State| state == State::Stored || (planted(Bug::DrainedBeforeStored) && state == State::Reserved);
        for at in &self.full {
            let Buffer { filling, pieces, .. } = &mut self.buffers[usize::from(*at)];
            if let Some((offset, (length, state))) = pieces.iter_mut().find(|(_, (_, state))| ready(*state)) {
                *state = State::Draining;
                return Some(Piece { buffer: *at, filling: *filling, offset: *offset, length: *length });
            }
        }
        None
    }

    /// It could not be drained, and is drained again.
    pub fn drain_failed(&mut self, piece: Piece) {
        self.set(piece, State::Draining, State::Stored);
    }

    /// It has gone: the next tier has it, its client withdrew it, or nobody needs it. One that is gone already is not minded.
    pub fn gone(&mut self, piece: Piece) {
        let at = usize::from(piece.buffer);
        let Some(buffer) = self.buffers.get_mut(at).filter(|buffer| buffer.filling == piece.filling) else { return };
        if buffer.pieces.remove(&piece.offset).is_none() {
            return;
        }
        let empty = buffer.pieces.is_empty() || planted(Bug::BufferReused);
        if empty && buffer.phase == Phase::Full {
            self.empty(at);
        } else if empty && buffer.phase == Phase::Filling {
            // Nothing of this filling is left, and late words about it no longer count.
            self.fillings += 1;
            (buffer.used, buffer.filling) = (0, self.fillings);
        }
    }

    fn empty(&mut self, at: usize) {
        self.buffers[at] = Buffer { phase: Phase::Empty, filling: 0, used: 0, pieces: BTreeMap::new() };
        self.full.retain(|full| usize::from(*full) != at);
    }

    fn close(&mut self, at: usize) {
        if self.buffers[at].pieces.is_empty() {
            self.empty(at);
        } else {
            self.buffers[at].phase = Phase::Full;
            self.full.push_back(number(at));
        }
    }

    fn set(&mut self, piece: Piece, from: State, to: State) {
        let buffer = self.buffers.get_mut(usize::from(piece.buffer)).filter(|buffer| buffer.filling == piece.filling);
        if let Some((_, state)) = buffer.and_then(|buffer| buffer.pieces.get_mut(&piece.offset))
            && *state == from
        {
            *state = to;
        }
    }
}

fn number(at: usize) -> u8 {
    u8::try_from(at).expect("there are three buffers")
}
