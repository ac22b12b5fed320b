//! Effects as drivers carry them out: which I/O an effect is, and what its end means.
//!
//! A driver owns the memory and the volumes and moves bytes between them. What is in a structure, and what the bytes of one
//! mean, is said here, so that the simulator tests what ships.

use surgetank_model::{Operation, RequestId};

use crate::effect::{Effect, EffectId, IoFailure, Outcome, ReplyError, ScratchId, Slices, Target};
use crate::format::Pages;

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
    /// Answer a request.
    Reply {
        /// Which.
        request: RequestId,
        /// Whether it succeeded.
        result: Result<(), ReplyError>,
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
    /// Where the bytes are, unless `content` says otherwise.
    pub memory: Slices,
    /// What the bytes are.
    pub content: Content,
}

/// What the bytes of an I/O are.
#[derive(Debug)]
pub enum Content {
    /// Those of its memory, if it has any.
    Memory,
    /// These, to be written.
    Structure(Box<[u8]>),
    /// A bitmap, to be read into memory of the driver's own.
    Bitmap,
}

impl Content {
    /// What the engine is told. `bytes` are what was read; they are asked for only if they matter.
    pub fn outcome<'a>(&self, result: Result<(), IoFailure>, bytes: impl FnOnce() -> &'a [u8]) -> Outcome {
        match (result, self) {
            (Err(failure), _) => Outcome::Failed(failure),
            (Ok(()), Self::Bitmap) => Outcome::Bitmap(Pages::read(bytes())),
            (Ok(()), Self::Memory | Self::Structure(_)) => Outcome::Done,
        }
    }
}

impl From<Effect> for Action {
    fn from(effect: Effect) -> Self {
        let plain = |id, target, operation, offset, memory: Slices| {
            let length = memory.iter().map(|slice| u64::from(slice.length)).sum();
            Self::Io(Io { id, target, operation, offset, length, memory, content: Content::Memory })
        };
        let bare = |id, target, operation, offset, length, content| {
            Self::Io(Io { id, target, operation, offset, length, memory: Slices::new(), content })
        };
        match effect {
            Effect::Read { id, target, offset, into } => plain(id, target, Operation::Read, offset, into),
            Effect::Write { id, target, offset, from, fua } => {
                plain(id, target, Operation::Write { fua }, offset, from)
            }
            Effect::WriteStructure { id, target, offset, bytes } => {
                let (operation, length) = (Operation::Write { fua: false }, bytes.len() as u64);
                bare(id, target, operation, offset, length, Content::Structure(bytes))
            }
            Effect::LoadBitmap { id, target, offset, length } => {
                bare(id, target, Operation::Read, offset, length, Content::Bitmap)
            }
            Effect::Flush { id, target } => bare(id, target, Operation::Flush, 0, 0, Content::Memory),
            Effect::Discard { id, target, offset, length } => {
                bare(id, target, Operation::Discard, offset, length, Content::Memory)
            }
            Effect::WriteZeroes { id, target, offset, length, fua } => {
                bare(id, target, Operation::WriteZeroes { fua }, offset, length, Content::Memory)
            }
            Effect::Allocate { scratch, length } => Self::Allocate { scratch, length },
            Effect::Release { scratch } => Self::Release { scratch },
            Effect::Reply { request, result } => Self::Reply { request, result },
        }
    }
}
