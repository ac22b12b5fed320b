//! What the engine asks of its driver, and what the driver answers.

use smallvec::SmallVec;
use surgetank_model::RequestId;
pub use surgetank_model::effect::{BufferId, EffectId, IoFailure, Rejected, ReplyError, ScratchId, Slice};

use crate::format::{Epoch, Parse, Parsed, SegmentTable, Summary, Superblock};

/// Which volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Target {
    /// The large, slow, permanent volume.
    Backing,
    /// The small, fast, short-lived volume.
    Cache,
}

/// Gather list of a write: its slices follow each other on the volume.
pub type Slices = SmallVec<[Slice; 4]>;

/// Something the driver must do. The driver takes effects in order; effects without an id happen at once,
/// the others may run concurrently in any order and each is answered by exactly one `complete`.
#[derive(Debug)]
pub enum Effect {
    /// Make a scratch buffer of `length` bytes (a multiple of 512).
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
    /// Fill with zeroes, at once.
    Zero {
        /// Destination.
        to: Slice,
    },
    /// Read a volume. With `checksums` (one per 4 KiB block) the driver verifies what it read and answers
    /// `Failed(Corrupt)` on a mismatch.
    Read {
        /// Its name.
        id: EffectId,
        /// Which volume.
        target: Target,
        /// First byte on the volume.
        offset: u64,
        /// Destination.
        into: Slice,
        /// crc32c of each 4 KiB block, if known.
        checksums: Option<Box<[u32]>>,
    },
    /// Write a volume.
    Write {
        /// Its name.
        id: EffectId,
        /// Which volume.
        target: Target,
        /// First byte on the volume.
        offset: u64,
        /// Source, gathered.
        from: Slices,
        /// Forced unit access: durable before the answer.
        fua: bool,
    },
    /// Append to the log of the caching volume: the driver has its [`Encoder`](crate::io::Encoder) complete the summary
    /// (in the order of these effects), writes the summary block and the data after it as one write, and answers
    /// `Appended` with the summary (also when `data` is empty). On failure it answers `Failed`.
    Append {
        /// Its name.
        id: EffectId,
        /// First byte on the caching volume.
        offset: u64,
        /// The commit record, without checksums yet.
        summary: Box<Summary>,
        /// What follows the summary; every slice is a multiple of 4 KiB.
        data: Slices,
        /// Forced unit access: durable before the answer.
        fua: bool,
    },
    /// Write a superblock (4 KiB) at `offset` of the caching volume.
    WriteSuperblock {
        /// Its name.
        id: EffectId,
        /// First byte on the caching volume.
        offset: u64,
        /// What to encode.
        superblock: Superblock,
    },
    /// Write one page (4 KiB) of the segment table at `offset` of the caching volume.
    WriteTable {
        /// Its name.
        id: EffectId,
        /// First byte on the caching volume.
        offset: u64,
        /// What to encode.
        page: Box<SegmentTable>,
    },
    /// Write the index of a segment, in whole blocks, at `offset` of the caching volume.
    WriteIndex {
        /// Its name.
        id: EffectId,
        /// First byte on the caching volume.
        offset: u64,
        /// What to write.
        bytes: Box<[u8]>,
    },
    /// Make completed writes durable.
    Flush {
        /// Its name.
        id: EffectId,
        /// Which volume.
        target: Target,
    },
    /// Tell the backing volume that a range is not needed; afterwards it must read as zeroes.
    Discard {
        /// Its name.
        id: EffectId,
        /// First byte on the backing volume.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// Zero a range of the backing volume.
    WriteZeroes {
        /// Its name.
        id: EffectId,
        /// First byte on the backing volume.
        offset: u64,
        /// Bytes.
        length: u64,
        /// Forced unit access: durable before the answer.
        fua: bool,
    },
    /// Read bytes of a buffer as a structure of the caching volume, at once; answered by `Parsed`.
    Parse {
        /// Its name.
        id: EffectId,
        /// What was read from the caching volume.
        from: Slice,
        /// What it should be.
        what: Box<Parse>,
    },
    /// Persist who owns the dirty data, durably, before the answer: in the state directory and as a tag on
    /// the caching volume.
    PersistOwner {
        /// Its name.
        id: EffectId,
        /// What to persist.
        owner: Owner,
    },
    /// Say in the owner record, durably, before the answer, that these ranges of `Owner::Lost` of this epoch are not lost
    /// any more. After a failure any of them may count as lost or not.
    RecordHealed {
        /// Its name.
        id: EffectId,
        /// The loss that they are of.
        epoch: Epoch,
        /// Byte ranges of the device (offset, length). Parts of them may have been lost never, or no longer.
        ranges: Vec<(u64, u64)>,
    },
    /// Answer a request; its buffer is the front's again.
    Reply {
        /// Which request.
        request: RequestId,
        /// Whether it succeeded.
        result: Result<(), ReplyError>,
    },
}

/// Where the newest data of a device is, as persisted outside the caching volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Owner {
    /// On the backing volume alone.
    #[default]
    Backing,
    /// Partly on the caching volume of this epoch: it must be recovered before the device is served.
    Cache {
        /// Which attachment.
        epoch: Epoch,
    },
    /// The caching volume failed or vanished while dirty. The newest data of these byte ranges of the device are on it
    /// alone: they answer EIO until they are overwritten, or read back from it after all ([`crate::Engine::restore`]).
    /// Nothing else on it counts.
    Lost {
        /// Which attachment.
        epoch: Epoch,
        /// Lost ranges (offset, length) in bytes, sorted, disjoint.
        ranges: Vec<(u64, u64)>,
    },
}

/// How an effect ended.
#[derive(Debug)]
pub enum Outcome {
    /// Done.
    Done,
    /// An append is done; the summary comes back with its checksums.
    Appended(Box<Summary>),
    /// Answer to `Parse`: what [`Parse::read`] makes of the bytes.
    Parsed(Parsed),
    /// It failed.
    Failed(IoFailure),
}
