//! What a read cache shows to whoever decides how large it may be.

use std::time::Duration;

use surgetank_model::{Instant, Operation, RequestId};
use surgetank_mrc::{Access, MiniatureCurve, Miniatures, Point};
use surgetank_readcache::{Engine, Status};

use super::VolumeIo;

/// An interval whose miss ratios are others by more than this, at some size, is one of another mix of accesses.
const CHANGE_MAX: f64 = 0.1;

/// How long some I/Os took, since the device is served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// I/Os that have ended.
    pub count: u64,
    /// How long all of them took together.
    pub total: Duration,
}

impl Times {
    pub(super) fn add(&mut self, taken: Duration) {
        self.count += 1;
        self.total += taken;
    }

    /// Those that ended after the others had.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self { count: self.count.saturating_sub(earlier.count), total: self.total.saturating_sub(earlier.total) }
    }

    /// How long one took on average; `None` if none has ended.
    #[must_use]
    pub fn mean(self) -> Option<Duration> {
        (self.count > 0).then(|| self.total.div_f64(self.count as f64))
    }
}

/// What would miss in caches of other sizes, of what was read lately.
#[derive(Clone, Debug, PartialEq)]
pub struct Misses {
    /// By size, in blocks of the cache, up to all that its members have, or more.
    pub points: Vec<Point>,
    /// Bytes of a block.
    pub block: u32,
    /// Reads of blocks that were sampled for it.
    pub sampled: f64,
}

/// How a read cache stands, and how long what it does takes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observation {
    /// The engine.
    pub status: Status,
    /// Reads, from submission to answer.
    pub reads: Times,
    /// Reads of members for them: what a hit waits for.
    pub member_reads: Times,
    /// Reads of the backing volume for them: what a miss waits for.
    pub backing_reads: Times,
    /// `None` if the cache does not look at accesses, or has no members.
    pub misses: Option<Misses>,
}

/// Looks at the accesses to a device, as its cache sees them.
#[derive(Debug)]
pub(super) struct Watch {
    /// Looks at caches of so many bytes at least.
    reach: u64,
    /// `None` while the cache has no members: no size can be asked about then.
    curve: Option<MiniatureCurve>,
}

impl Watch {
    pub const fn new(reach: u64) -> Self {
        Self { reach, curve: None }
    }

    /// Looks at caches of up to what the members of this one have, if it has any, or its reach. If that has changed, it begins anew.
    pub fn fit(&mut self, engine: &Engine) {
        let (size, block) = (engine.status().size, engine.block());
        let size = if size > 0 { size.max(self.reach) } else { 0 };
        let options = Miniatures {
            segment_blocks: engine.segment() / block,
            change_max: CHANGE_MAX,
            ..Miniatures::up_to(size / u64::from(block))
        };
        if self.curve.as_ref().is_some_and(|curve| *curve.options() == options) {
            return;
        }
        // The old one goes first, so that there is never the memory of two.
        self.curve = None;
        self.curve = (options.largest > 0).then(|| MiniatureCurve::new(options));
    }

    /// An access. One that covers parts of blocks is read past the cache, and removes what it writes from it.
    pub fn observe(&mut self, io: &VolumeIo, block: u32) {
        let Some(curve) = &mut self.curve else { return };
        let (block, end) = (u64::from(block), io.offset + io.length);
        let is_whole = io.offset.is_multiple_of(block) && io.length.is_multiple_of(block);
        let access = match io.operation {
            Operation::Read if is_whole => Access::Read,
            Operation::Write { .. } if is_whole => Access::Write,
            Operation::Write { .. } | Operation::Discard | Operation::WriteZeroes { .. } => Access::Discard,
            Operation::Read | Operation::Flush => return,
        };
        curve.observe_range(access, io.offset / block..end.div_ceil(block));
    }

    /// Another interval begins. `None`: there are no members.
    pub fn end_interval(&mut self, block: u32) -> Option<Misses> {
        let curve = self.curve.as_mut()?;
        let misses = Misses { points: curve.points(), block, sampled: curve.sampled() };
        curve.end_interval();
        Some(misses)
    }
}

/// When the reads that are not answered began.
#[derive(Debug, Default)]
pub(super) struct Began {
    /// By the place of the request, which is the low half of its number.
    at: Vec<Option<Instant>>,
}

impl Began {
    pub fn begin(&mut self, request: RequestId, now: Instant) {
        let place = request.0 as u32 as usize;
        if self.at.len() <= place {
            self.at.resize(place + 1, None);
        }
        self.at[place].get_or_insert(now);
    }

    /// How long it took, if it is a read.
    pub fn end(&mut self, request: RequestId, now: Instant) -> Option<Duration> {
        self.at.get_mut(request.0 as u32 as usize)?.take().map(|began| now.since(began))
    }
}
