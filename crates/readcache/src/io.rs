//! Effects as drivers carry them out: which I/O an effect is, and what its end means.
//!
//! A driver owns the memory and the volumes and moves bytes between them. The checksums are made and verified here.

use surgetank_model::{Operation, RequestId};

use crate::effect::{Effect, EffectId, IoFailure, Outcome, RequestError, ScratchId, Slice, Target};

/// An effect by who carries it out.
#[derive(Debug)]
pub enum Action {
    /// An I/O on a volume.
    Io(Io),
    /// Make a scratch buffer.
    Allocate {
        /// Its name.
        scratch: ScratchId,
        /// Bytes.
        length: u32,
    },
    /// Free a scratch buffer.
    Release {
        /// Its name.
        scratch: ScratchId,
    },
    /// Copy bytes between buffers.
    Copy {
        /// Source.
        from: Slice,
        /// Destination.
        to: Slice,
    },
    /// Answer a request.
    Reply {
        /// Which.
        request: RequestId,
        /// Whether it succeeded.
        result: Result<(), RequestError>,
    },
}

/// An I/O on a volume.
#[derive(Debug)]
pub struct Io {
    /// The effect that its end answers.
    pub id: EffectId,
    /// Which volume.
    pub target: Target,
    /// What it does.
    pub operation: Operation,
    /// First byte on the volume.
    pub offset: u64,
    /// Bytes; 0 for a flush.
    pub length: u64,
    /// Where the bytes are, of a read or a write.
    pub memory: Option<Slice>,
    /// What its end means.
    pub meaning: Meaning,
}

/// What the end of an I/O means to the engine.
#[derive(Debug)]
pub enum Meaning {
    /// Done, or failed.
    Done,
    /// Done if the blocks that were read have these checksums.
    Checked(Box<[u32]>),
    /// The engine wants the checksums of the blocks that were written.
    Summed,
}

impl Meaning {
    /// Whether the outcome follows from the bytes of the I/O: the driver keeps them until then.
    #[must_use]
    pub const fn needs_bytes(&self) -> bool {
        !matches!(self, Self::Done)
    }

    /// What the engine is told. `bytes` are what was read or written; they are asked for only if they matter. `block` is the
    /// engine's.
    pub fn outcome<'a>(self, result: Result<(), IoFailure>, block: u32, bytes: impl FnOnce() -> &'a [u8]) -> Outcome {
        if let Err(failure) = result {
            return Outcome::Failed(failure);
        }
        let sums = |bytes: &'a [u8]| bytes.chunks(block as usize).map(crc32c::crc32c);
        match self {
            Self::Done => Outcome::Done,
            Self::Checked(checksums) => match sums(bytes()).eq(checksums.iter().copied()) {
                true => Outcome::Done,
                false => Outcome::Failed(IoFailure::Corrupt),
            },
            Self::Summed => Outcome::Written(sums(bytes()).collect()),
        }
    }
}

impl From<Effect> for Action {
    fn from(effect: Effect) -> Self {
        let moved = |id, target, operation, offset, slice: Slice, meaning| {
            Self::Io(Io { id, target, operation, offset, length: slice.length.into(), memory: Some(slice), meaning })
        };
        let without_bytes = |id, target, operation, offset, length| {
            Self::Io(Io { id, target, operation, offset, length, memory: None, meaning: Meaning::Done })
        };
        let bare = |id, operation, offset, length| without_bytes(id, Target::Backing, operation, offset, length);
        match effect {
            Effect::Read { id, target, offset, into, checksums } => {
                let meaning = checksums.map_or(Meaning::Done, Meaning::Checked);
                moved(id, target, Operation::Read, offset, into, meaning)
            }
            Effect::WriteSegment { id, member, offset, from } => {
                let operation = Operation::Write { fua: false };
                moved(id, Target::Member(member), operation, offset, from, Meaning::Summed)
            }
            Effect::DiscardSegment { id, member, offset, length } => {
                without_bytes(id, Target::Member(member), Operation::Discard, offset, length.into())
            }
            Effect::Write { id, offset, from, fua } => {
                moved(id, Target::Backing, Operation::Write { fua }, offset, from, Meaning::Done)
            }
            Effect::Flush { id } => bare(id, Operation::Flush, 0, 0),
            Effect::Discard { id, offset, length } => bare(id, Operation::Discard, offset, length),
            Effect::WriteZeroes { id, offset, length, fua } => bare(id, Operation::WriteZeroes { fua }, offset, length),
            Effect::Allocate { scratch, length } => Self::Allocate { scratch, length },
            Effect::Release { scratch } => Self::Release { scratch },
            Effect::Copy { from, to } => Self::Copy { from, to },
            Effect::Reply { request, result } => Self::Reply { request, result },
        }
    }
}
