//! What the engine asks of its driver, and what the driver answers.

use surgetank_model::RequestId;
pub use surgetank_model::effect::{BufferId, EffectId, IoFailure, Rejected, ScratchId, Slice};

/// A member of the cache: a number that the driver gives each volume that it adds, unique in the engine's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub u32);

/// Which volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The slow volume, which has everything.
    Backing,
    /// A member of the cache.
    Member(MemberId),
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// It is misaligned, too long or beyond the end.
    Invalid,
    /// The backing volume failed it, like this: a cache before it is not to be noticed.
    Backing(IoFailure),
}

/// Something the driver must do. The driver takes effects in order; effects without an id happen at once,
/// the others may run concurrently in any order and each is answered by exactly one `complete`.
#[derive(Debug)]
pub enum Effect {
    /// Make a scratch buffer of `length` bytes.
    Allocate {
        /// Its name.
        scratch: ScratchId,
        /// Bytes.
        length: u32,
    },
    /// Free a scratch buffer. No effect in flight uses it.
    Release {
        /// Its name.
        scratch: ScratchId,
    },
    /// Copy bytes between buffers, at once. Lengths are equal.
    Copy {
        /// Source.
        from: Slice,
        /// Destination.
        to: Slice,
    },
    /// Read a volume. With `checksums` (one a block) the driver verifies what it read and answers `Failed(Corrupt)` on a
    /// mismatch.
    Read {
        /// Its name.
        id: EffectId,
        /// Which volume.
        target: Target,
        /// First byte on the volume.
        offset: u64,
        /// Destination.
        into: Slice,
        /// crc32c of each block, of what is read from a member.
        checksums: Option<Box<[u32]>>,
    },
    /// Write a segment to a member; answered by `Written` with the crc32c of each block.
    WriteSegment {
        /// Its name.
        id: EffectId,
        /// Which member.
        member: MemberId,
        /// First byte on the member.
        offset: u64,
        /// Source.
        from: Slice,
    },
    /// Tell a member that a segment is not needed: what is there may read as anything, and its room may be somebody else's.
    DiscardSegment {
        /// Its name.
        id: EffectId,
        /// Which member.
        member: MemberId,
        /// First byte on the member.
        offset: u64,
        /// Bytes.
        length: u32,
    },
    /// Write the backing volume.
    Write {
        /// Its name.
        id: EffectId,
        /// First byte.
        offset: u64,
        /// Source.
        from: Slice,
        /// Forced unit access: durable before the answer.
        fua: bool,
    },
    /// Make completed writes of the backing volume durable.
    Flush {
        /// Its name.
        id: EffectId,
    },
    /// Tell the backing volume that a range is not needed; afterwards it must read as zeroes.
    Discard {
        /// Its name.
        id: EffectId,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// Zero a range of the backing volume.
    WriteZeroes {
        /// Its name.
        id: EffectId,
        /// First byte.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Forced unit access: durable before the answer.
        fua: bool,
    },
    /// Answer a request; its buffer is the front's again.
    Reply {
        /// Which request.
        request: RequestId,
        /// Whether it succeeded.
        result: Result<(), RequestError>,
    },
}

/// How an effect ended.
#[derive(Debug)]
pub enum Outcome {
    /// Done.
    Done,
    /// Answer to `WriteSegment`: crc32c of each block.
    Written(Box<[u32]>),
    /// It failed.
    Failed(IoFailure),
}
