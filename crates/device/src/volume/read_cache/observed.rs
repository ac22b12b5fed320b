//! What a read cache shows to whoever decides how large it may be.

use std::sync::atomic::{AtomicU64, Ordering};
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

/// Times of reads before the cache and after it, which whoever asks it adds up.
#[derive(Debug, Default)]
pub(super) struct Overhead([Sum; 2]);

#[derive(Debug, Default)]
struct Sum {
    count: AtomicU64,
    nanoseconds: AtomicU64,
}

impl Overhead {
    pub fn add(&self, before: Times, after: Times) {
        for (sum, times) in self.0.iter().zip([before, after]) {
            sum.count.fetch_add(times.count, Ordering::Relaxed);
            let nanoseconds = u64::try_from(times.total.as_nanos()).unwrap_or(u64::MAX);
            sum.nanoseconds.fetch_add(nanoseconds, Ordering::Relaxed);
        }
    }

    /// One read more or less does not count.
    pub fn times(&self) -> [Times; 2] {
        self.0.each_ref().map(|Sum { count, nanoseconds }| Times {
            count: count.load(Ordering::Relaxed),
            total: Duration::from_nanos(nanoseconds.load(Ordering::Relaxed)),
        })
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
    /// What reads took in this process before they were queued, and after they were answered, as far as it was told.
    pub overhead: [Times; 2],
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
    /// Up to what the cache's members have; `None` while it has none: no size can be asked about then.
    curve: Option<MiniatureCurve>,
    /// Up to its reach, if that is farther. A curve's sizes are parts of its largest one, so the first one is not seen in this one.
    far: Option<MiniatureCurve>,
}

impl Watch {
    pub const fn new(reach: u64) -> Self {
        Self { reach, curve: None, far: None }
    }

    /// Looks at caches of up to what the members of this one have, if it has any, or its reach. If that has changed, it begins anew.
    pub fn fit(&mut self, engine: &Engine) {
        let (size, block) = (engine.status().size, engine.block());
        let up_to = |largest: u64| Miniatures {
            segment_blocks: engine.segment() / block,
            change_max: CHANGE_MAX,
            ..Miniatures::up_to(largest / u64::from(block))
        };
        let reaches_farther = size > 0 && self.reach > size;
        refit(&mut self.curve, (size > 0).then(|| up_to(size)));
        refit(&mut self.far, reaches_farther.then(|| up_to(self.reach)));
    }

    /// An access. One that covers parts of blocks is read past the cache, and removes what it writes from it.
    pub fn observe(&mut self, io: &VolumeIo, block: u32) {
        let (block, end) = (u64::from(block), io.offset + io.length);
        let is_whole = io.offset.is_multiple_of(block) && io.length.is_multiple_of(block);
        let access = match io.operation {
            Operation::Read if is_whole => Access::Read,
            Operation::Write { .. } if is_whole => Access::Write,
            Operation::Write { .. } | Operation::Discard | Operation::WriteZeroes { .. } => Access::Discard,
            Operation::Read | Operation::Flush => return,
        };
        for curve in self.curve.iter_mut().chain(&mut self.far) {
            curve.observe_range(access, io.offset / block..end.div_ceil(block));
        }
    }

    /// Another interval begins. `None`: there are no members.
    pub fn end_interval(&mut self, block: u32) -> Option<Misses> {
        let curve = self.curve.as_mut()?;
        let (mut points, mut sampled) = (curve.points(), curve.sampled());
        curve.end_interval();
        if let Some(far) = &mut self.far {
            if far.sampled() > 0.0 {
                let nearest = points.last().map_or(0, |point| point.size_blocks);
                points.extend(far.points().into_iter().filter(|point| point.size_blocks > nearest));
                sampled = far.sampled().min(sampled);
            }
            far.end_interval();
        }
        Some(Misses { points, block, sampled })
    }
}

/// Begins a curve anew, unless it is the wanted one.
fn refit(curve: &mut Option<MiniatureCurve>, wanted: Option<Miniatures>) {
    if curve.as_ref().map(MiniatureCurve::options) != wanted.as_ref() {
        // The old one goes first, so that there is never the memory of two.
        *curve = None;
        *curve = wanted.map(MiniatureCurve::new);
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

#[cfg(test)]
mod tests {
    use surgetank_readcache::{Config, MemberId};

    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn a_watch_sees_as_far_as_a_second_level_and_the_first_one_as_well_as_without_it() {
        let mut engine = Engine::new(Config::new(256 * MIB, 512)).unwrap();
        engine.add_member(MemberId(0), 8 * MIB).unwrap();
        let block = engine.block();
        let (mut near, mut far) = (Watch::new(0), Watch::new(64 * MIB));
        for watch in [&mut near, &mut far] {
            watch.fit(&engine);
            // What is read again and again is more than the members have, and less than the reach.
            for offset in (0..6).flat_map(|_| (0..32 * MIB).step_by(128 << 10)) {
                let (operation, length, memory) = (Operation::Read, 128 << 10, Vec::new().into());
                watch.observe(&VolumeIo { token: 0, operation, offset, length, memory }, block);
            }
        }
        let (near, far) = (near.end_interval(block).unwrap(), far.end_interval(block).unwrap());
        assert_eq!(far.points[..near.points.len()], near.points);
        let misses = |misses: &Misses| misses.points.last().map(|point| point.miss_ratio).unwrap();
        assert!(misses(&near) > 0.9 && misses(&far) < 0.4, "{near:?} {far:?}");
        assert!(far.points.windows(2).all(|pair| pair[0].size_blocks < pair[1].size_blocks));
    }
}
