//! The engine: requests and completions in, effects out. It needs no time: nothing of it is tried again, nothing waits.
//!
//! What a read may return rests on three rules:
//!
//! - A block that is being changed is not cached: a change removes its blocks when it begins, and until it ends none is put back.
//! - What a read of the backing volume returned is cached only if no change of its blocks was in flight meanwhile
//!   ([`changes`](crate::changes)); what a write brought, only if it was the only one.
//! - A segment is not filled again before everything that reads it has ended.

#[cfg(debug_assertions)]
mod check;
mod fill;
mod limit;
mod members;
mod requests;
mod segments;
mod status;

use std::collections::{BTreeMap, VecDeque};

use surgetank_model::RequestId;

use self::members::Member;
use self::requests::{Active, Piece};
use self::segments::{Buffer, Eviction, Run};
pub use self::status::{Event, Status};
use crate::changes::Changes;
use crate::effect::{Effect, EffectId, IoFailure, MemberId, Outcome, Rejected, ScratchId};
use crate::placement::{BLOCKS_MAX, Placement, Segment};

/// Bytes of a segment if nobody says otherwise: four of the largest I/Os that a cloud counts as one.
pub const SEGMENT_DEFAULT: u32 = 1 << 20;
/// Bytes of a block if nobody says otherwise: what file systems read.
pub const BLOCK_DEFAULT: u32 = 4 << 10;

/// What a driver chooses.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Bytes of the device and the backing volume.
    pub size: u64,
    /// The smallest request, in bytes.
    pub logical_block: u32,
    /// Bytes of a block, the unit of what is cached: a power of two.
    pub block: u32,
    /// Bytes of a segment, a multiple of the block.
    pub segment: u32,
}

impl Config {
    /// The default blocks and segments over a backing volume.
    #[must_use]
    pub const fn new(size: u64, logical_block: u32) -> Self {
        Self { size, logical_block, block: BLOCK_DEFAULT, segment: SEGMENT_DEFAULT }
    }
}

/// What an effect in flight is for.
#[derive(Debug)]
enum Pending {
    /// A read, change or flush of the backing volume for this request.
    Backing(RequestId),
    /// A read of a member for a request.
    Piece(Piece),
    SegmentWrite {
        segment: Segment,
        member: MemberId,
    },
    EvictionRead {
        segment: Segment,
        member: MemberId,
    },
    /// A member is told that a segment is not needed.
    Parking {
        segment: Segment,
        member: MemberId,
    },
}

/// A read cache over a backing volume. See the crate.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    placement: Placement,
    changes: Changes,
    members: BTreeMap<MemberId, Member>,
    /// By the placement's numbers.
    ids: Vec<Option<MemberId>>,
    requests: BTreeMap<RequestId, Active>,
    pending: BTreeMap<EffectId, Pending>,
    /// Reads in flight of each segment.
    readers: Vec<u32>,
    /// Segments whose blocks are in memory: those that are open, and those that are being written.
    buffers: BTreeMap<Segment, Buffer>,
    /// Segments of which survivors are being read.
    evictions: BTreeMap<Segment, Eviction>,
    /// Segments that it may have.
    limit: u32,
    /// Segments that are being parked.
    parking: u32,
    /// It was larger than it may be, and nobody was told yet that it is not.
    shrinking: bool,
    /// A copy into an open segment that may become longer.
    run: Option<Run>,
    next_effect: u64,
    next_scratch: u32,
    effects: VecDeque<Effect>,
    events: VecDeque<Event>,
    status: Status,
}

impl Engine {
    /// A cache without members.
    ///
    /// # Errors
    /// If the sizes do not fit each other.
    pub fn new(config: Config) -> Result<Self, Rejected> {
        let Config { size, logical_block, block, segment } = config;
        if !block.is_power_of_two() || !block.is_multiple_of(logical_block.max(1)) || !segment.is_multiple_of(block) {
            return Err(Rejected(format!(
                "blocks of {block} bytes do not fit logical blocks of {logical_block} and segments of {segment}: use a power of \
                 two between them"
            )));
        }
        if size / u64::from(block) > BLOCKS_MAX {
            let most = (BLOCKS_MAX * u64::from(block)) >> 40;
            return Err(Rejected(format!(
                "a read cache with blocks of {block} bytes serves up to {most} TiB and the volume has {size} bytes: use larger \
                 blocks"
            )));
        }
        Ok(Self {
            config,
            placement: Placement::new(size / u64::from(block), segment / block),
            changes: Changes::new(),
            members: BTreeMap::new(),
            ids: Vec::new(),
            requests: BTreeMap::new(),
            pending: BTreeMap::new(),
            readers: Vec::new(),
            buffers: BTreeMap::new(),
            evictions: BTreeMap::new(),
            limit: u32::MAX,
            parking: 0,
            shrinking: false,
            run: None,
            next_effect: 0,
            next_scratch: 0,
            effects: VecDeque::new(),
            events: VecDeque::new(),
            status: Status::default(),
        })
    }

    /// The backing volume has so many bytes now; it does not shrink.
    ///
    /// # Errors
    /// If the cache cannot name so many blocks.
    pub fn grow(&mut self, size: u64) -> Result<(), Rejected> {
        let grown = Self::new(Config { size, ..self.config })?;
        self.config = grown.config;
        self.placement.grow(size / u64::from(self.config.block));
        Ok(())
    }

    /// Takes the answer to an effect.
    pub fn complete(&mut self, effect: EffectId, outcome: Outcome) {
        let Some(pending) = self.pending.remove(&effect) else { return };
        let (result, checksums) = match outcome {
            Outcome::Done => (Ok(()), None),
            Outcome::Written(checksums) => (Ok(()), Some(checksums)),
            Outcome::Failed(failure) => (Err(failure), None),
        };
        match pending {
            Pending::Backing(request) => self.backing_ended(request, result),
            Pending::Piece(piece) => self.piece_ended(piece, result),
            Pending::SegmentWrite { segment, member } => {
                let checksums = result.and_then(|()| checksums.ok_or(IoFailure::Corrupt));
                self.segment_written(segment, member, checksums);
            }
            Pending::EvictionRead { segment, member } => self.survivors_read(segment, member, result),
            Pending::Parking { segment, member } => self.parking_ended(segment, member, result),
        }
        self.pump();
    }

    /// What the driver must do next.
    pub fn next_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// What the driver may want to know.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Bytes of a block.
    #[must_use]
    pub const fn block(&self) -> u32 {
        self.config.block
    }

    /// Bytes of a segment.
    #[must_use]
    pub const fn segment(&self) -> u32 {
        self.config.segment
    }

    /// What follows every event.
    fn pump(&mut self) {
        self.sweep();
        self.make_room();
        self.shrink();
        self.release_members();
    }

    fn emit(&mut self, pending: Pending, effect: impl FnOnce(EffectId) -> Effect) {
        let id = EffectId(self.next_effect);
        self.next_effect += 1;
        self.pending.insert(id, pending);
        self.effects.push_back(effect(id));
    }

    fn allocate(&mut self, length: u32) -> ScratchId {
        let scratch = ScratchId(self.next_scratch);
        self.next_scratch = self.next_scratch.wrapping_add(1);
        self.effects.push_back(Effect::Allocate { scratch, length });
        scratch
    }
}
