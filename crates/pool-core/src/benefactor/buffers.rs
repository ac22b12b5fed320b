//! A benefactor's memory: three buffers, so that one is filled while another is drained and a third is full (seed 002, Figure 2).
//!
//! A buffer is *empty*, *filling*, *full* (closed: what is in it is drained, oldest first) and empty again once the last piece in it
//! has gone: drained to the next tier, or forgotten. Pieces that drain together keep their room until all of them are there, so that
//! they are a part of a buffer ([`Buffers::batch`]); the next tier need not wait until more than that is in the filling one. While no buffer is empty, the holes that single pieces have left are used again:
//! otherwise a few pieces that stay would keep all the room of those that went. Room is never made by dropping what is not drained:
//! where there is none, clients wait for credits.

mod holes;

use std::collections::BTreeMap;

use self::holes::Holes;
use crate::benefactor::sharing::Owner;
use crate::id::MountId;
use crate::planted::{Bug, planted};

/// Buffers of a benefactor.
pub const BUFFERS: usize = 3;
/// Parts of a buffer that are drained one after the other.
const BATCHES: u64 = 8;
/// Chunks that are drained together, at most.
const BATCH_CHUNKS: u64 = 64;

/// A chunk's place in memory, its room reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Piece {
    /// Which buffer.
    pub buffer: u8,
    /// Which reservation: one that is over is never mistaken for a later one at its place.
    pub serial: u64,
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

/// A piece of a buffer.
#[derive(Debug)]
struct Reserved {
    piece: Piece,
    state: State,
    owner: Owner,
}

#[derive(Debug)]
struct Buffer {
    phase: Phase,
    /// Bytes from its beginning that pieces and holes lie in.
    used: u64,
    /// By their offsets.
    pieces: BTreeMap<u64, Reserved>,
    holes: Holes,
}

impl Buffer {
    fn empty(chunk: u64) -> Self {
        Self { phase: Phase::Empty, used: 0, pieces: BTreeMap::new(), holes: Holes::new(chunk) }
    }

    fn has(&self, piece: Piece) -> bool {
        self.pieces.get(&piece.offset).is_some_and(|is| is.piece == piece)
    }

    fn reserved(&mut self, piece: Piece) -> Option<&mut Reserved> {
        self.pieces.get_mut(&piece.offset).filter(|is| is.piece == piece)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Buffers {
    size: u64,
    chunk: u64,
    /// Reservations so far.
    serial: u64,
    /// Bytes in pieces.
    held: u64,
    buffers: [Buffer; BUFFERS],
    /// Pieces that can be drained, by whose they are and by their serials: the oldest first.
    stored: BTreeMap<Owner, BTreeMap<u64, Piece>>,
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
        let empty = || Buffer::empty(chunk);
        Ok(Self { size, chunk, serial: 0, held: 0, buffers: [empty(), empty(), empty()], stored: BTreeMap::new() })
    }

    /// Bytes of a buffer.
    #[must_use]
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Whole chunks that can be promised to clients: what the filling buffer, the empty ones and holes have room for.
    #[must_use]
    pub fn credits(&self) -> u64 {
        let room = |buffer: &Buffer| (self.size - buffer.used) / self.chunk + buffer.holes.chunks();
        self.buffers.iter().map(room).sum()
    }

    /// Bytes in no piece, of which some may lie between pieces and have room for small ones alone.
    #[must_use]
    pub const fn free(&self) -> u64 {
        self.size * BUFFERS as u64 - self.held
    }

    /// Bytes of a chunk, at most.
    #[must_use]
    pub const fn chunk(&self) -> u64 {
        self.chunk
    }

    /// Bytes in pieces.
    #[must_use]
    pub const fn held(&self) -> u64 {
        self.held
    }

    /// Room for a chunk; `None`: it has to wait until something has gone.
    pub fn reserve(&mut self, length: u64, owner: Owner) -> Option<Piece> {
        if length == 0 || length > self.chunk {
            return None;
        }
        let (at, offset) = self.room(length)?;
        self.serial += 1;
        let piece = Piece { buffer: number(at), serial: self.serial, offset, length };
        self.buffers[at].pieces.insert(offset, Reserved { piece, state: State::Reserved, owner });
        if planted(Bug::DrainedBeforeStored) {
            self.stored.entry(owner).or_default().insert(piece.serial, piece);
        }
        self.held += length;
        Some(piece)
    }

    /// A buffer, and where in it there is room.
    fn room(&mut self, length: u64) -> Option<(usize, u64)> {
        let filling = self.buffers.iter().position(|buffer| buffer.phase == Phase::Filling);
        if let Some(at) = filling.filter(|at| self.buffers[*at].used + length <= self.size) {
            let buffer = &mut self.buffers[at];
            buffer.used += length;
            return Some((at, buffer.used - length));
        }
        // The one that was being filled is closed even if none is empty: what is in it can be drained meanwhile.
        if let Some(at) = filling {
            self.close(at);
        }
        if let Some(at) = self.buffers.iter().position(|buffer| buffer.phase == Phase::Empty) {
            (self.buffers[at].phase, self.buffers[at].used) = (Phase::Filling, length);
            return Some((at, 0));
        }
        self.buffers.iter_mut().enumerate().find_map(|(at, buffer)| Some((at, buffer.holes.take(length)?)))
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

    /// Bytes that are drained together, at most; a chunk at least.
    #[must_use]
    pub fn batch(&self) -> u64 {
        (self.size / BATCHES).clamp(self.chunk, self.chunk * BATCH_CHUNKS)
    }

    /// Whether the filling buffer has as much as is drained together.
    #[must_use]
    pub fn fills_batch(&self) -> bool {
        self.buffers.iter().any(|buffer| buffer.phase == Phase::Filling && buffer.used >= self.batch())
    }

    /// Whether a buffer is full: what is in it is to be drained.
    #[must_use]
    pub fn has_full(&self) -> bool {
        self.buffers.iter().any(|buffer| buffer.phase == Phase::Full)
    }

    /// What to drain next: the oldest piece of a full buffer, of those who may drain. What is in the filling one is younger than all of
    /// these.
    pub fn next_drain(&mut self, may: impl Fn(Owner) -> bool) -> Option<Piece> {
        let oldest = self.stored.iter().filter(|(owner, _)| may(**owner)).filter_map(|(_, of)| of.first_key_value());
        let (_, piece) = oldest.min_by_key(|(serial, _)| **serial)?;
        let piece = *piece;
        if self.buffers[usize::from(piece.buffer)].phase != Phase::Full {
            return None;
        }
        self.forget_stored(piece);
        self.reserved(piece)?.state = State::Draining;
        Some(piece)
    }

    /// Whose a piece is, has become known.
    pub fn is_of(&mut self, piece: Piece, mount: MountId) {
        let was_stored = self.forget_stored(piece);
        let Some(reserved) = self.reserved(piece) else { return };
        reserved.owner.mount = Some(mount);
        if was_stored {
            let owner = reserved.owner;
            self.stored.entry(owner).or_default().insert(piece.serial, piece);
        }
    }

    fn reserved(&mut self, piece: Piece) -> Option<&mut Reserved> {
        self.buffers.get_mut(usize::from(piece.buffer))?.reserved(piece)
    }

    /// A piece can be drained no more; `false`: it could not.
    fn forget_stored(&mut self, piece: Piece) -> bool {
        let Some(owner) = self.reserved(piece).map(|of| of.owner) else { return false };
        let Some(of) = self.stored.get_mut(&owner) else { return false };
        let was_stored = of.remove(&piece.serial).is_some();
        if of.is_empty() {
            self.stored.remove(&owner);
        }
        was_stored
    }

    /// It could not be drained, and is drained again.
    pub fn drain_failed(&mut self, piece: Piece) {
        self.set(piece, State::Draining, State::Stored);
    }

    /// It has gone: the next tier has it, its client withdrew it, or nobody needs it. One that is gone already is not minded.
    pub fn gone(&mut self, piece: Piece) {
        let at = usize::from(piece.buffer);
        if !self.buffers.get(at).is_some_and(|buffer| buffer.has(piece)) {
            return;
        }
        self.forget_stored(piece);
        let buffer = &mut self.buffers[at];
        buffer.pieces.remove(&piece.offset);
        self.held -= piece.length;
        if buffer.pieces.is_empty() || planted(Bug::BufferReused) {
            self.empty(at);
        } else {
            buffer.holes.add(piece.offset, piece.length);
        }
    }

    fn empty(&mut self, at: usize) {
        self.held -= self.buffers[at].pieces.values().map(|of| of.piece.length).sum::<u64>();
        self.buffers[at] = Buffer::empty(self.chunk);
        for of in self.stored.values_mut() {
            of.retain(|_, piece| usize::from(piece.buffer) != at);
        }
        self.stored.retain(|_, of| !of.is_empty());
    }

    fn close(&mut self, at: usize) {
        let buffer = &mut self.buffers[at];
        if buffer.pieces.is_empty() {
            self.empty(at);
        } else {
            buffer.phase = Phase::Full;
            buffer.holes.add(buffer.used, self.size - buffer.used);
            buffer.used = self.size;
        }
    }

    fn set(&mut self, piece: Piece, from: State, to: State) {
        if let Some(reserved) = self.reserved(piece).filter(|reserved| reserved.state == from) {
            reserved.state = to;
            let owner = reserved.owner;
            self.stored.entry(owner).or_default().insert(piece.serial, piece);
        }
    }
}

fn number(at: usize) -> u8 {
    u8::try_from(at).expect("there are three buffers")
}
