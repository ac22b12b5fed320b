//! Effects as drivers carry them out: which I/O an effect is, which bytes it puts on a volume, and what its end means.
//!
//! ```text
//! Effect → Action::Io → the driver gathers memory → Encoder: head and Meaning → the volume → Meaning::outcome → Outcome
//! ```
//!
//! A driver owns the memory and the volumes and moves bytes between them. What is on the caching volume, and whether what was
//! read of it is sound, is said here, so that the simulator tests what the daemon ships.

use surgetank_model::{Operation, RequestId};

use crate::effect::{Effect, EffectId, IoFailure, Outcome, Owner, ReplyError, ScratchId, Slice, Slices, Target};
use crate::format::{BLOCK, Epoch, Parse, Sealer, Summary, verifies};

/// An effect by who carries it out. Each comes from the [`Effect`] of the same name, and every I/O is an [`Io`].
#[derive(Debug)]
pub enum Action {
    /// An I/O on a volume.
    Io(Io),
    /// Look at memory, at once, and answer [`Meaning::outcome`] of it.
    Parse {
        /// Its name.
        id: EffectId,
        /// What was read from the caching volume.
        from: Slice,
        /// What becomes of it.
        meaning: Meaning,
    },
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
    /// Fill with zeroes.
    Zero {
        /// Destination.
        to: Slice,
    },
    /// Persist the owner record.
    PersistOwner {
        /// Its name.
        id: EffectId,
        /// What to persist.
        owner: Owner,
    },
    /// Persist what was healed of a loss.
    RecordHealed {
        /// Its name.
        id: EffectId,
        /// The loss.
        epoch: Epoch,
        /// Byte ranges of the device (offset, length).
        ranges: Vec<(u64, u64)>,
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
    /// Bytes, with those of the head; 0 for a flush.
    pub length: u64,
    /// Where the bytes of a read go, or those of a write behind its head come from.
    pub memory: Slices,
    /// What the bytes are. For [`Encoder::encode`].
    pub content: Content,
}

/// What the bytes of an I/O are.
#[derive(Debug)]
pub enum Content {
    /// Those of its memory, if it has any.
    Memory,
    /// A read of blocks of 4 KiB with these checksums.
    Checked(Box<[u32]>),
    /// A record: the summary is the head, its memory the data.
    Record(Box<Summary>),
    /// A structure of the caching volume: all of it is the head.
    Structure(Box<[u8]>),
}

/// What the end of an I/O means to the engine.
#[derive(Debug)]
pub enum Meaning {
    /// Done, or failed.
    Done,
    /// Done if the bytes match their checksums.
    Checked(Box<[u32]>),
    /// A record is written; the engine wants its summary back.
    Appended(Box<Summary>),
    /// The bytes are read as this.
    Parsed(Box<Parse>),
}

/// Completes what goes to the caching volume, in the order of the effects: a driver has one for each engine.
#[derive(Debug, Default)]
pub struct Encoder {
    sealer: Sealer,
}

impl Encoder {
    /// The bytes to write before the memory of an I/O, and what its end means. `data` is its memory in order, in blocks of
    /// 4 KiB; nothing but a record has it looked at.
    pub fn encode<'a>(
        &mut self,
        content: Content,
        data: impl Iterator<Item = &'a [u8]>,
    ) -> (Option<Box<[u8]>>, Meaning) {
        match content {
            Content::Memory => (None, Meaning::Done),
            Content::Checked(checksums) => (None, Meaning::Checked(checksums)),
            Content::Record(mut summary) => {
                let head = self.sealer.seal(&mut summary, data);
                (Some(head), Meaning::Appended(summary))
            }
            Content::Structure(bytes) => (Some(bytes), Meaning::Done),
        }
    }
}

impl Content {
    /// Bytes that are written before the memory.
    #[must_use]
    pub const fn head_length(&self) -> u64 {
        match self {
            Self::Memory | Self::Checked(_) => 0,
            Self::Record(_) => BLOCK as u64,
            Self::Structure(bytes) => bytes.len() as u64,
        }
    }
}

impl Meaning {
    /// Whether the outcome follows from the bytes that were read: the driver keeps them until then.
    #[must_use]
    pub const fn needs_bytes(&self) -> bool {
        match self {
            Self::Checked(_) | Self::Parsed(_) => true,
            Self::Done | Self::Appended(_) => false,
        }
    }

    /// What the engine is told. `bytes` are what was read; they are asked for only if they matter.
    pub fn outcome<'a>(self, result: Result<(), IoFailure>, bytes: impl FnOnce() -> &'a [u8]) -> Outcome {
        if let Err(failure) = result {
            return Outcome::Failed(failure);
        }
        match self {
            Self::Done => Outcome::Done,
            Self::Checked(checksums) => match verifies(bytes(), &checksums) {
                true => Outcome::Done,
                false => Outcome::Failed(IoFailure::Corrupt),
            },
            Self::Appended(summary) => Outcome::Appended(summary),
            Self::Parsed(what) => Outcome::Parsed(what.read(bytes())),
        }
    }
}

impl From<Effect> for Action {
    fn from(effect: Effect) -> Self {
        match effect {
            Effect::Read { id, target, offset, into, checksums } => {
                let content = checksums.map_or(Content::Memory, Content::Checked);
                let (length, memory) = (u64::from(into.length), smallvec::smallvec![into]);
                Self::Io(Io { id, target, operation: Operation::Read, offset, length, memory, content })
            }
            Effect::Write { id, target, offset, from, fua } => {
                let length = from.iter().map(|slice| u64::from(slice.length)).sum();
                let (operation, content) = (Operation::Write { fua }, Content::Memory);
                Self::Io(Io { id, target, operation, offset, length, memory: from, content })
            }
            Effect::Append { id, offset, summary, data, fua } => {
                let length = u64::from(1 + summary.data_blocks()) * u64::from(BLOCK);
                let (target, operation) = (Target::Cache, Operation::Write { fua });
                Self::Io(Io { id, target, operation, offset, length, memory: data, content: Content::Record(summary) })
            }
            Effect::WriteSuperblock { id, offset, superblock } => Self::structure(id, offset, superblock.encode()),
            Effect::WriteTable { id, offset, page } => Self::structure(id, offset, page.encode()),
            Effect::WriteIndex { id, offset, bytes } => Self::structure(id, offset, bytes),
            Effect::Flush { id, target } => Self::bare(id, target, Operation::Flush, 0, 0),
            Effect::Discard { id, offset, length } => {
                Self::bare(id, Target::Backing, Operation::Discard, offset, length)
            }
            Effect::WriteZeroes { id, offset, length, fua } => {
                Self::bare(id, Target::Backing, Operation::WriteZeroes { fua }, offset, length)
            }
            Effect::Parse { id, from, what } => Self::Parse { id, from, meaning: Meaning::Parsed(what) },
            Effect::Allocate { scratch, length } => Self::Allocate { scratch, length },
            Effect::Release { scratch } => Self::Release { scratch },
            Effect::Copy { from, to } => Self::Copy { from, to },
            Effect::Zero { to } => Self::Zero { to },
            Effect::PersistOwner { id, owner } => Self::PersistOwner { id, owner },
            Effect::RecordHealed { id, epoch, ranges } => Self::RecordHealed { id, epoch, ranges },
            Effect::Reply { request, result } => Self::Reply { request, result },
        }
    }
}

impl Action {
    /// A write of a structure of the caching volume.
    fn structure(id: EffectId, offset: u64, bytes: Box<[u8]>) -> Self {
        let (target, operation) = (Target::Cache, Operation::Write { fua: false });
        let (length, memory) = (bytes.len() as u64, Slices::new());
        Self::Io(Io { id, target, operation, offset, length, memory, content: Content::Structure(bytes) })
    }

    /// An I/O without bytes.
    fn bare(id: EffectId, target: Target, operation: Operation, offset: u64, length: u64) -> Self {
        let (memory, content) = (Slices::new(), Content::Memory);
        Self::Io(Io { id, target, operation, offset, length, memory, content })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::effect::BufferId;
    use crate::format::{Content as Holds, Entry, Layout, Place, Superblock, checksum};

    const ID: EffectId = EffectId(7);
    const DATA: [u8; 2 * BLOCK as usize] = [0x5a; 2 * BLOCK as usize];

    fn io(effect: Effect) -> Io {
        match Action::from(effect) {
            Action::Io(io) => io,
            other => panic!("{other:?} is no I/O"),
        }
    }

    fn append() -> Effect {
        let summary = Summary {
            layout: Layout::Two,
            epoch: Epoch([3; 16]),
            place: Place { sequence: 1, segment: 0, generation: 1, position: 0 },
            durable: 0,
            previous: None,
            entries: vec![Entry { block: 9, blocks: 2, content: Holds::Data }],
            checksums: Vec::new(),
            repeat: None,
        };
        let from = Slice { buffer: BufferId::Request(RequestId(1)), offset: 0, length: 2 * BLOCK };
        Effect::Append {
            id: ID,
            offset: 1 << 16,
            summary: Box::new(summary),
            data: smallvec::smallvec![from],
            fua: true,
        }
    }

    #[test]
    fn a_record_is_sealed_over_its_data_and_comes_back() {
        let io = io(append());
        assert_eq!((io.operation, io.length), (Operation::Write { fua: true }, 3 * u64::from(BLOCK)));
        assert_eq!(io.content.head_length(), u64::from(BLOCK));
        let (head, meaning) = Encoder::default().encode(io.content, DATA.chunks_exact(BLOCK as usize));
        let written = Summary::decode(&head.expect("a summary")).expect("it is sealed");
        assert_eq!(written.checksums, [checksum(&DATA[..BLOCK as usize]); 2]);
        assert!(!meaning.needs_bytes());
        match meaning.outcome(Ok(()), || unreachable!("nothing was read")) {
            Outcome::Appended(summary) => assert_eq!(summary.checksums, written.checksums),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_was_read_is_done_only_if_its_checksums_match() {
        let into = Slice { buffer: BufferId::Scratch(ScratchId(1)), offset: 0, length: 2 * BLOCK };
        let read = |checksums| Effect::Read { id: ID, target: Target::Cache, offset: 0, into, checksums };
        let outcome = |effect, result, bytes| {
            let (head, meaning) = Encoder::default().encode(io(effect).content, std::iter::empty());
            assert_eq!(head, None);
            meaning.outcome(result, || bytes)
        };
        let right: Box<[u32]> = Box::new([checksum(&DATA[..BLOCK as usize]); 2]);
        assert!(matches!(outcome(read(Some(right.clone())), Ok(()), &DATA), Outcome::Done));
        let short = &DATA[..BLOCK as usize];
        assert!(matches!(outcome(read(Some(right.clone())), Ok(()), short), Outcome::Failed(IoFailure::Corrupt)));
        assert!(matches!(outcome(read(Some(Box::new([0, 0]))), Ok(()), &DATA), Outcome::Failed(IoFailure::Corrupt)));
        assert!(matches!(outcome(read(None), Ok(()), &[]), Outcome::Done));
        let gone = Err(IoFailure::Gone);
        assert!(matches!(outcome(read(Some(right)), gone, &DATA), Outcome::Failed(IoFailure::Gone)));
    }

    #[test]
    fn a_structure_is_written_as_it_is_encoded() {
        let geometry = crate::format::Geometry::divide(4 << 20, Layout::Two, false).expect("it is large enough");
        let superblock = Superblock::new(Epoch([3; 16]), geometry, 1 << 20);
        let io = io(Effect::WriteSuperblock { id: ID, offset: 0, superblock: superblock.clone() });
        assert_eq!((io.length, io.content.head_length(), io.memory.len()), (u64::from(BLOCK), u64::from(BLOCK), 0));
        let (head, _) = Encoder::default().encode(io.content, std::iter::empty());
        assert_eq!(Superblock::decode(&head.expect("all of it")), Some(superblock));
    }
}
