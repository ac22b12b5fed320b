//! The shard's memory: requests in flight with their buffers, and the engine's scratch buffers.

use std::collections::HashMap;

use surgetank_cache::{BufferId, ScratchId, Slice};
use surgetank_device::{Buffer, BufferSlice};
use surgetank_model::RequestId;

/// Scratch memory that is kept for the next allocation of the same length, in bytes per device.
const POOL_BYTES_MAX: usize = 8 << 20;

/// Where a request came from: its answer goes there.
#[derive(Debug)]
pub enum Origin {
    /// A client: a piece of a request.
    Client {
        /// The request's name in the intake.
        request: RequestId,
        /// The piece's serial number there.
        serial: u64,
    },
    /// The shard itself: the last flush before it stops.
    Shutdown,
}

#[derive(Debug)]
struct Slot {
    origin: Origin,
    buffer: Option<BufferSlice>,
}

/// Buffers by the names that the engine uses.
#[derive(Debug, Default)]
pub struct Buffers {
    /// Indexed by request id, so looking one up costs nothing; ids are reused after the reply.
    requests: Vec<Option<Slot>>,
    free: Vec<u32>,
    scratch: HashMap<u32, Buffer>,
    pool: Vec<Buffer>,
    pool_bytes: usize,
}

impl Buffers {
    /// Names a request that has arrived.
    pub fn insert(&mut self, origin: Origin, buffer: Option<BufferSlice>) -> RequestId {
        let slot = Some(Slot { origin, buffer });
        if let Some(index) = self.free.pop() {
            self.requests[index as usize] = slot;
            return RequestId(u64::from(index));
        }
        self.requests.push(slot);
        RequestId(self.requests.len() as u64 - 1)
    }

    /// Forgets a request that is being answered, and its memory. `None` if there is no such request.
    pub fn remove(&mut self, request: RequestId) -> Option<Origin> {
        let index = usize::try_from(request.0).ok()?;
        let slot = self.requests.get_mut(index)?.take()?;
        self.free.push(u32::try_from(index).ok()?);
        Some(slot.origin)
    }

    /// Makes a scratch buffer. Its content is arbitrary: the engine fills what it uses.
    pub fn allocate(&mut self, scratch: ScratchId, length: u32) {
        let length = length as usize;
        let pooled = self.pool.iter().rposition(|buffer| buffer.len() == length);
        let buffer = if let Some(index) = pooled {
            self.pool_bytes -= length;
            self.pool.swap_remove(index)
        } else {
            Buffer::zeroed(length)
        };
        self.scratch.insert(scratch.0, buffer);
    }

    /// Frees a scratch buffer.
    pub fn release(&mut self, scratch: ScratchId) {
        let Some(mut buffer) = self.scratch.remove(&scratch.0) else { return };
        // A buffer that some I/O still holds must not be handed out again.
        if self.pool_bytes + buffer.len() <= POOL_BYTES_MAX && buffer.unique().is_some() {
            self.pool_bytes += buffer.len();
            self.pool.push(buffer);
        }
    }

    /// A handle on a range; `None` if the engine names memory that does not exist (a bug that must not write
    /// anywhere).
    #[must_use]
    pub fn slice(&self, slice: Slice) -> Option<BufferSlice> {
        let (offset, length) = (slice.offset as usize, slice.length as usize);
        match slice.buffer {
            BufferId::Request(request) => {
                let slot = self.requests.get(usize::try_from(request.0).ok()?)?.as_ref()?;
                let memory = slot.buffer.as_ref()?;
                (offset + length <= memory.len()).then(|| memory.slice(offset, length))
            }
            BufferId::Scratch(scratch) => {
                let buffer = self.scratch.get(&scratch.0)?;
                (offset + length <= buffer.len()).then(|| buffer.slice(offset, length))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_names_are_reused_and_stale_names_are_refused() {
        let mut buffers = Buffers::default();
        let one = buffers
            .insert(Origin::Client { request: RequestId(7), serial: 0 }, Some(Buffer::zeroed(1024).slice(512, 512)));
        let slice = Slice { buffer: BufferId::Request(one), offset: 0, length: 512 };
        assert!(buffers.slice(slice).is_some());
        assert!(buffers.slice(Slice { length: 513, ..slice }).is_none());
        assert!(buffers.remove(one).is_some());
        assert!(buffers.remove(one).is_none());
        assert!(buffers.slice(slice).is_none());
        assert_eq!(buffers.insert(Origin::Shutdown, None), one);
    }

    #[test]
    fn scratch_memory_in_use_is_not_pooled() {
        let mut buffers = Buffers::default();
        buffers.allocate(ScratchId(1), 4096);
        let held = buffers.slice(Slice { buffer: BufferId::Scratch(ScratchId(1)), offset: 0, length: 4096 }).unwrap();
        buffers.release(ScratchId(1));
        assert_eq!(buffers.pool_bytes, 0);
        drop(held);
        buffers.allocate(ScratchId(2), 4096);
        buffers.release(ScratchId(2));
        assert_eq!(buffers.pool_bytes, 4096);
        buffers.allocate(ScratchId(3), 4096);
        assert_eq!(buffers.pool_bytes, 0);
    }
}
