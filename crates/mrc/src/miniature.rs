//! The curve of a read cache under its own policy, from accesses as they happen: in bounded memory, and of the last intervals more than of
//! those before.
//!
//! Only of LRU one list says what every size would do. So there are some caches of fixed sizes here, which run the code of the read cache
//! ([`Simulated`]). They are scaled down with a sample of the blocks (Mini17): of a share of the blocks, taken by their hashes, a cache of that
//! share of the size has as large a part as the whole cache of all blocks. What sizes there are follows from the largest one that the
//! cache can have; so does the rate, by which the largest miniature has [`BLOCKS_MAX`] blocks.
//!
//! As for the read cache, reads alone are counted and bring blocks in; a write keeps a block that is cached, and a discard, zeroes, or a write of
//! a part of a block remove it.
//!
//! What it costs, at most:
//!
//! - memory: the sizes together are 8.7 times the largest, so there are 71,000 blocks of 19 bytes, and of each size up to 256
//!   segments of 32 bytes: 1.4 MiB;
//! - time: one hash an access, and for one that is sampled a use of 20 small caches, 2 µs. A cache of 128 MiB (blocks of 4 KiB) samples a
//!   quarter of its blocks, and one of 10 GiB one in 320.

use std::ops::Range;

use surgetank_readcache::Simulated;

use crate::curve::Point;
use crate::online::{Access, CHANGE_LEAST};
use crate::planted::{Bug, planted};
use crate::sample::{Rate, mix};

/// Blocks of the largest miniature, at most.
pub const BLOCKS_MAX: u64 = 8192;
/// Blocks of a miniature that is not of full size, at least: what smaller ones have is chance.
const BLOCKS_LEAST: u64 = 64;
/// The sizes, in parts of the largest. Plans are about equal parts and what is near to them, so most have the same distance from each other.
const PARTS: [u64; 20] = [1, 2, 4, 8, 12, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120, 128];
const WHOLE: u64 = 128;

/// What caches there are, and how their hits are forgotten.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Miniatures {
    /// Blocks of the largest cache that is asked about.
    pub largest: u64,
    /// Blocks of a segment of the read cache; 1 if that is not to matter. A cache of few segments cannot use all of its size.
    pub segment_blocks: u32,
    /// Blocks of the largest miniature, at most; never more than [`BLOCKS_MAX`].
    pub blocks_max: u64,
    /// The share of its weight that an access keeps when an interval ends, from 0 to 1.
    pub kept: f64,
    /// How far the miss ratios of an interval may be from those of the intervals before, at any size: beyond that the mix of accesses
    /// has changed, and what was before no longer counts. 1 for never.
    pub change_max: f64,
}

impl Miniatures {
    /// Up to this size, with the rest as an [`OnlineCurve`](crate::OnlineCurve) has it by default.
    #[must_use]
    pub const fn up_to(largest: u64) -> Self {
        Self { largest, segment_blocks: 1, blocks_max: BLOCKS_MAX, kept: 0.6, change_max: 1.0 }
    }
}

/// See the module.
#[derive(Debug)]
pub struct MiniatureCurve {
    options: Miniatures,
    rate: Rate,
    /// Accesses that a sampled one stands for.
    weight: f64,
    /// Ascending by size.
    caches: Vec<Cache>,
    /// Slots of all caches.
    slots: u64,
    /// Of the intervals that have ended, by the weight that they have left.
    former: Counts,
    /// Of this interval.
    current: Counts,
}

/// A miniature.
#[derive(Debug)]
struct Cache {
    /// Blocks of what it stands for.
    size: u64,
    miniature: Simulated,
}

/// Reads that were counted.
#[derive(Debug)]
struct Counts {
    /// Sampled reads that hit, by cache.
    hits: [f64; PARTS.len()],
    /// Reads, sampled or not.
    reads: f64,
    /// Reads that were sampled.
    sampled: f64,
}

impl Counts {
    const NONE: Self = Self { hits: [0.0; PARTS.len()], reads: 0.0, sampled: 0.0 };

    fn keep(&mut self, kept: f64) {
        self.hits.iter_mut().for_each(|hits| *hits *= kept);
        self.reads *= kept;
        self.sampled *= kept;
    }

    fn add(&mut self, other: &Self) {
        self.hits.iter_mut().zip(&other.hits).for_each(|(hits, other)| *hits += other);
        self.reads += other.reads;
        self.sampled += other.sampled;
    }
}

impl MiniatureCurve {
    /// Nothing observed yet.
    #[must_use]
    pub fn new(options: Miniatures) -> Self {
        let blocks_max = options.blocks_max.clamp(1, BLOCKS_MAX);
        let kept = if options.kept.is_nan() { 0.0 } else { options.kept.clamp(0.0, 1.0) };
        let options = Miniatures { blocks_max, kept, ..options };
        let rate = Rate::new(blocks_max as f64 / options.largest as f64).unwrap_or(Rate::ALL);
        let scale = if planted(Bug::MiniatureUnscaled) { 1.0 } else { rate.share() };
        let least = if rate == Rate::ALL { 1 } else { BLOCKS_LEAST };
        let segment_blocks = (f64::from(options.segment_blocks) * rate.share()).round() as u32;
        let mut sizes: Vec<u64> = PARTS.iter().map(|part| part_of(options.largest, *part)).collect();
        sizes.dedup();
        let cache = |size: u64| {
            let blocks = (size as f64 * scale).round() as u64;
            (blocks >= least).then(|| Cache { size, miniature: Simulated::of_segments(blocks, segment_blocks.max(1)) })
        };
        let caches: Vec<Cache> = sizes.into_iter().filter_map(cache).collect();
        let slots = caches.iter().map(|cache| u64::from(cache.miniature.slots())).sum();
        Self { options, rate, weight: 1.0 / rate.share(), caches, slots, former: Counts::NONE, current: Counts::NONE }
    }

    /// What it was made with.
    #[must_use]
    pub const fn options(&self) -> &Miniatures {
        &self.options
    }

    /// An access to a block. Blocks are below 2^38, as the read cache has them; one beyond counts as some other one.
    #[inline]
    pub fn observe(&mut self, access: Access, block: u64) {
        if access == Access::Read {
            self.current.reads += 1.0;
        }
        if mix(block) <= self.rate.threshold || planted(Bug::MiniatureSeesAll) {
            self.observe_sampled(access, block);
        }
    }

    fn observe_sampled(&mut self, access: Access, block: u64) {
        match access {
            Access::Read => {
                self.current.sampled += 1.0;
                for (cache, hits) in self.caches.iter_mut().zip(&mut self.current.hits) {
                    *hits += f64::from(u8::from(cache.miniature.access(block)));
                }
            }
            Access::Write if planted(Bug::MiniatureTakesWritten) => {
                self.caches.iter_mut().for_each(|cache| _ = cache.miniature.access(block));
            }
            Access::Write => self.caches.iter_mut().for_each(|cache| _ = cache.miniature.write(block)),
            Access::Discard if planted(Bug::MiniatureKeepsDiscarded) => {}
            Access::Discard => self.caches.iter_mut().for_each(|cache| _ = cache.miniature.remove(block)),
        }
    }

    /// An access to several blocks. A discard takes no longer than the miniatures are large.
    pub fn observe_range(&mut self, access: Access, blocks: Range<u64>) {
        // Each block is hashed, and each that is sampled is looked for in every cache.
        let length = blocks.end.saturating_sub(blocks.start) as f64;
        let looks = length * (self.rate.share() * self.caches.len() as f64).max(1.0);
        let is_short = looks <= self.slots as f64;
        if access != Access::Discard || is_short {
            blocks.for_each(|block| self.observe(access, block));
        } else if !planted(Bug::MiniatureKeepsRange) {
            self.caches.iter_mut().for_each(|cache| cache.miniature.remove_range(&blocks));
        }
    }

    /// An interval has ended: what was observed so far loses weight. What the caches have stays.
    pub fn end_interval(&mut self) {
        let kept = if planted(Bug::MiniatureAgeless) { 1.0 } else { self.options.kept };
        if self.has_changed() {
            self.former = Counts::NONE;
        }
        self.former.add(&std::mem::replace(&mut self.current, Counts::NONE));
        self.former.keep(kept);
    }

    /// Whether the mix of accesses in this interval is another one than before.
    fn has_changed(&self) -> bool {
        let is_sure = self.current.sampled.min(self.former.sampled) >= CHANGE_LEAST;
        if self.options.change_max >= 1.0 || !is_sure || planted(Bug::MiniatureKeepsMix) {
            return false;
        }
        let ratio = |counts: &Counts, hits: f64| hits / counts.reads;
        let (current, former) = (self.hits(&self.current), self.hits(&self.former));
        let mut both = current.zip(former);
        both.any(|(current, former)| {
            (ratio(&self.current, current) - ratio(&self.former, former)).abs() > self.options.change_max
        })
    }

    /// What counts now.
    fn counts(&self) -> Counts {
        let mut counts = Counts::NONE;
        counts.add(&self.current);
        if !self.has_changed() {
            counts.add(&self.former);
        }
        counts
    }

    /// Reads that hit in a cache of each size. If too few of the reads were sampled, a few blocks that are read often are not among the sampled ones,
    /// and they would hit; the other way round if too many were (SHARDS15).
    fn hits(&self, counts: &Counts) -> impl Iterator<Item = f64> {
        let missing = counts.reads - counts.sampled * self.weight;
        let missing = if planted(Bug::MiniatureUnadjusted) { 0.0 } else { missing };
        let (weight, reads, mut most) = (self.weight, counts.reads, 0.0_f64);
        let hits = counts.hits[..self.caches.len()].to_vec();
        // A larger cache may have missed more by chance.
        hits.into_iter().map(move |hits| {
            most = most.max((hits * weight + missing).clamp(0.0, reads));
            most
        })
    }

    /// The curve at its own sizes, ascending. Never rises. Where nothing was read, no size hits.
    #[must_use]
    pub fn points(&self) -> Vec<Point> {
        let counts = self.counts();
        let point = |(cache, hits): (&Cache, f64)| Point {
            size_blocks: cache.size,
            hits: hits.round() as u64,
            requests: counts.reads.round() as u64,
            miss_ratio: if counts.reads > 0.0 { (counts.reads - hits) / counts.reads } else { 1.0 },
        };
        self.caches.iter().zip(self.hits(&counts)).map(point).collect()
    }

    /// The share of the blocks that is sampled.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Reads that were sampled, those of earlier intervals by the weight that they have left: how sure the curve is.
    /// Several of one block count several times.
    #[must_use]
    pub fn sampled(&self) -> f64 {
        self.counts().sampled
    }

    /// Reads, sampled or not, by the weight that they have left.
    #[must_use]
    pub fn reads(&self) -> f64 {
        self.counts().reads
    }
}

/// A part of the largest size, at least one block.
fn part_of(largest: u64, part: u64) -> u64 {
    ((u128::from(largest) * u128::from(part) / u128::from(WHOLE)) as u64).max(1)
}
