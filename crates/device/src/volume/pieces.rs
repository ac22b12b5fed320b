//! The memory of a volume with an engine: that of its requests, in the pieces that the engine takes, and the engine's scratch
//! buffers. A read cache has the same.

use std::collections::HashMap;

use slab::Slab;
use surgetank_model::effect::{BufferId, ScratchId, Slice};
use surgetank_model::{Operation, Request, RequestId};

use super::{Completion, Failure, Memory, VolumeIo};
use crate::buffer::{Buffer, BufferPool};

/// Idle scratch memory that is kept, in bytes of each size.
const IDLE_BYTES_MAX: usize = 16 << 20;
/// Bits of a request's number that say which request; the others say which of its pieces.
const PLACE_BITS: u32 = 32;

/// A request of the volume's user.
#[derive(Debug)]
struct Entry {
    token: u64,
    memory: Memory,
    pieces: u32,
    failure: Option<Failure>,
}

/// Requests in flight, and scratch buffers.
#[derive(Debug)]
pub(super) struct Requests {
    entries: Slab<Entry>,
    scratch: HashMap<ScratchId, Buffer>,
    pool: BufferPool,
}

impl Requests {
    pub fn new() -> Self {
        Self { entries: Slab::new(), scratch: HashMap::new(), pool: BufferPool::new(IDLE_BYTES_MAX) }
    }

    /// Takes a request: the pieces that the engine is to be given.
    pub fn add(&mut self, io: VolumeIo) -> impl Iterator<Item = Request> + use<> {
        let VolumeIo { token, operation, offset, length, memory } = io;
        let transfers = matches!(operation, Operation::Read | Operation::Write { .. });
        let most = if transfers { Request::LENGTH_MAX } else { u64::MAX };
        let pieces = length.div_ceil(most).max(1);
        let place = self.entries.insert(Entry { token, memory, pieces: pieces as u32, failure: None }) as u64;
        (0..pieces).map(move |piece| {
            let start = piece * most;
            let id = RequestId(piece << PLACE_BITS | place);
            Request { id, operation, offset: offset + start, length: (length - start).min(most) }
        })
    }

    /// A piece of a request is answered: the completion, if it was the last one.
    pub fn answer(&mut self, id: RequestId, result: Result<(), Failure>) -> Option<Completion> {
        let place = id.0 as u32 as usize;
        let entry = self.entries.get_mut(place)?;
        entry.pieces -= 1;
        if let Err(failure) = result {
            entry.failure.get_or_insert(failure);
        }
        if entry.pieces > 0 {
            return None;
        }
        let entry = self.entries.remove(place);
        Some(Completion { token: entry.token, result: entry.failure.map_or(Ok(()), Err) })
    }

    /// Makes a scratch buffer. Its content is arbitrary: the engine reads into all of it before it writes from it.
    pub fn allocate(&mut self, scratch: ScratchId, length: u32) {
        self.scratch.insert(scratch, self.pool.take(length as usize));
    }

    /// Frees a scratch buffer. Its memory is used again once no I/O holds it.
    pub fn release(&mut self, scratch: ScratchId) {
        self.scratch.remove(&scratch);
    }

    /// Memory that holds these bytes.
    pub fn memory_of(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.pool.take(bytes.len());
        buffer.unique().expect("memory from the pool has one handle").copy_from_slice(bytes);
        buffer
    }

    /// Handles on the memory that slices of one buffer name, in ascending order; `None` if there is no such memory.
    pub fn gather(&self, slices: &[Slice]) -> Option<Memory> {
        let Some(first) = slices.first() else { return Some(Memory::new()) };
        match first.buffer {
            BufferId::Scratch(scratch) => {
                let buffer = self.scratch.get(&scratch)?;
                let end = |slice: &Slice| slice.offset as usize + slice.length as usize;
                let inside = slices.iter().all(|slice| slice.buffer == first.buffer && end(slice) <= buffer.len());
                let handle = |slice: &Slice| buffer.slice(slice.offset as usize, slice.length as usize);
                inside.then(|| slices.iter().map(handle).collect())
            }
            BufferId::Request(id) => {
                let entry = self.entries.get(id.0 as u32 as usize)?;
                let base = (id.0 >> PLACE_BITS) * Request::LENGTH_MAX;
                gather(&entry.memory, base, slices)
            }
        }
    }
}

/// The parts of `memory` that slices name, whose offsets count from `base`.
fn gather(memory: &Memory, base: u64, slices: &[Slice]) -> Option<Memory> {
    let mut parts = Memory::with_capacity(slices.len());
    let mut handles = memory.iter();
    // The present handle, and the offset of its first byte.
    let (mut handle, mut start) = (handles.next()?, 0);
    for slice in slices {
        let (mut at, mut left) = (base + u64::from(slice.offset), u64::from(slice.length));
        while left > 0 {
            let end = start + handle.len() as u64;
            if at >= end {
                (handle, start) = (handles.next()?, end);
                continue;
            }
            let take = left.min(end - at);
            parts.push(handle.slice(usize::try_from(at.checked_sub(start)?).ok()?, take as usize));
            (at, left) = (at + take, left - take);
        }
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Byte by byte as the gather list has them.
        #[test]
        fn slices_find_their_bytes_in_any_gather_list(
            lengths in prop::collection::vec(1usize..20, 1..12), cuts in prop::collection::vec(1u32..9, 1..40), base in 0u64..7
        ) {
            let buffer = Buffer::zeroed(4096);
            // In an order of their own, with gaps between them.
            let mut place = 4096;
            let memory: Memory = lengths.iter().map(|length| {
                place -= length + 3;
                buffer.slice(place, *length)
            }).collect();
            let flat: Vec<*mut u8> = memory.iter().flat_map(|slice| {
                (0..slice.len()).map(|at| slice.slice(at, 1).as_ptr())
            }).collect();
            let id = BufferId::Request(RequestId(0));
            let (mut slices, mut at) = (Vec::new(), 0u32);
            for pair in cuts.chunks(2) {
                slices.push(Slice { buffer: id, offset: at, length: pair[0] });
                at += pair[0] + pair.get(1).map_or(0, |gap| gap - 1);
            }
            let named = slices.iter().flat_map(|slice| slice.offset..slice.offset + slice.length);
            let expected: Option<Vec<*mut u8>> =
                named.map(|at| flat.get((base + u64::from(at)) as usize).copied()).collect();
            let found = gather(&memory, base, &slices).map(|parts| {
                parts.iter().flat_map(|part| (0..part.len()).map(|at| part.slice(at, 1).as_ptr())).collect()
            });
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn what_is_longer_than_the_engine_takes_goes_in_pieces_and_ends_once() {
        let mut requests = Requests::new();
        let io = |operation, length| VolumeIo { token: 9, operation, offset: 4096, length, memory: Memory::new() };
        let length = 2 * Request::LENGTH_MAX + 512;
        let pieces: Vec<Request> = requests.add(io(Operation::Read, length)).collect();
        let ranges: Vec<(u64, u64)> = pieces.iter().map(|piece| (piece.offset - 4096, piece.length)).collect();
        let most = Request::LENGTH_MAX;
        assert_eq!(ranges, [(0, most), (most, most), (2 * most, 512)]);
        assert!(requests.answer(pieces[1].id, Err(Failure::NoSpace)).is_none());
        assert!(requests.answer(pieces[0].id, Ok(())).is_none());
        let ended = requests.answer(pieces[2].id, Ok(())).expect("all have been answered");
        assert_eq!((ended.token, ended.result), (9, Err(Failure::NoSpace)));
        assert!(requests.answer(pieces[2].id, Ok(())).is_none());
        assert_eq!(requests.add(io(Operation::Discard, length)).count(), 1);
        assert_eq!(requests.add(io(Operation::Flush, 0)).count(), 1);
    }
}
