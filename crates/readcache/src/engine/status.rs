//! What the engine tells of itself.

use super::Engine;
use crate::effect::{IoFailure, MemberId};

/// What a driver may want to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A member failed and serves no more. Its part of the cache is lost, no data is.
    Failed {
        /// Which.
        member: MemberId,
        /// How.
        failure: IoFailure,
    },
    /// Nothing is asked of a member any more: it may be detached and deleted.
    Released(MemberId),
    /// The cache was larger than it may be, and is not any more: [`Status::held_bytes`].
    Shrunk,
}

/// The cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Members that serve.
    pub members: u32,
    /// Bytes that the members have for blocks.
    pub size: u64,
    /// Bytes of the members on which something may be. As many, unless the cache may have fewer.
    pub held_bytes: u64,
    /// Bytes of blocks that are cached.
    pub cached_bytes: u64,
    /// Bytes of memory that the engine needs for them, without buffers.
    pub memory_bytes: u64,
    /// Bytes that were read from the cache.
    pub hit_bytes: u64,
    /// Bytes that were read from the backing volume.
    pub missed_bytes: u64,
    /// Reads that a member failed; the backing volume answered them.
    pub failed_reads: u64,
    /// Blocks that were read and not cached, for want of a free segment or because they were being changed.
    pub unfilled_blocks: u64,
}

impl Engine {
    /// Bytes that were read from the cache.
    #[must_use]
    pub const fn hit_bytes(&self) -> u64 {
        self.status.hit_bytes
    }

    /// How the cache is.
    #[must_use]
    pub fn status(&self) -> Status {
        let serving = self.members.values().filter(|member| member.serves);
        let segments: u64 = serving.clone().map(|member| u64::from(member.segments)).sum();
        Status {
            members: serving.count() as u32,
            size: segments * u64::from(self.config.segment),
            held_bytes: u64::from(self.placement.held()) * u64::from(self.config.segment),
            cached_bytes: self.placement.blocks() as u64 * u64::from(self.config.block),
            memory_bytes: (self.placement.memory() + self.readers.capacity() * size_of::<u32>()) as u64,
            ..self.status
        }
    }
}
