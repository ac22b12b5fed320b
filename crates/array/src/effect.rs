//! What the engine asks of its driver, and what the driver answers.

use smallvec::SmallVec;
use surgetank_model::RequestId;
pub use surgetank_model::effect::{BufferId, EffectId, IoFailure, Rejected, ReplyError, ScratchId, Slice};

use crate::format::Pages;

/// Which volume: a number that the driver gives each volume that it shows to the engine, unique in the engine's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target(pub u32);

/// Gather or scatter list: its slices follow each other on the volume.
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
    /// Read a volume.
    Read {
        /// Its name.
        id: EffectId,
        /// Which volume.
        target: Target,
        /// First byte on the volume.
        offset: u64,
        /// Destination, scattered.
        into: Slices,
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
    /// Write a superblock or a page of the bitmap.
    WriteStructure {
        /// Its name.
        id: EffectId,
        /// Which volume.
        target: Target,
        /// First byte on the volume.
        offset: u64,
        /// What to write.
        bytes: Box<[u8]>,
    },
    /// Read a member's bitmap into memory of the driver's own; answered by `Outcome::Bitmap`.
    LoadBitmap {
        /// Its name.
        id: EffectId,
        /// Which volume.
        target: Target,
        /// First byte on the volume.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// Make completed writes durable.
    Flush {
        /// Its name.
        id: EffectId,
        /// Which volume.
        target: Target,
    },
    /// Tell a volume that a range is not needed; afterwards it must read as zeroes.
    Discard {
        /// Its name.
        id: EffectId,
        /// Which volume.
        target: Target,
        /// First byte on the volume.
        offset: u64,
        /// Bytes.
        length: u64,
    },
    /// Zero a range of a volume.
    WriteZeroes {
        /// Its name.
        id: EffectId,
        /// Which volume.
        target: Target,
        /// First byte on the volume.
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
        result: Result<(), ReplyError>,
    },
}

/// How an effect ended.
#[derive(Debug)]
pub enum Outcome {
    /// Done.
    Done,
    /// Answer to `LoadBitmap`: what [`Pages::read`] makes of the bytes.
    Bitmap(Pages),
    /// It failed.
    Failed(IoFailure),
}
