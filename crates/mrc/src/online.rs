//! The curve of a cache of what is read, from accesses as they happen: in bounded memory, and of the last intervals more
//! than of those before.
//!
//! What it predicts is a read cache beside which data is written: [`readcache`](surgetank_readcache) with LRU in place of its
//! own policy, of any size. Such a cache takes in what a read misses. A write keeps a block cached that is, with its new
//! content, and does not bring in one that is not; a discard, zeroes, or a write of a part of a block remove it. So
//!
//! - reads alone are counted, and a block is known from its first read on;
//! - a read hits in a cache that has held its block ever since the last read. A write in between makes the block the newest
//!   one where it is still cached, so there are several stretches to survive, from access to access, and the cache must be
//!   larger than the longest distance among them;
//! - a distance counts the other blocks that were *read* meanwhile. Writes push nothing out where their blocks are not
//!   cached. Where they are, a written block may have become newer than another one, which is not counted: that would take a
//!   stack for each size. The estimate is too good by that, by 0.004 on the average where half of the accesses write, and by
//!   0.012 where four fifths do (Zipf 1.0 and 1.2).
//!
//! SHARDS of fixed size with its adjustment ([`crate::sample`]), whose rate can only fall. A sample that grows old would stay
//! at the rate of the widest scan that it ever saw. So once the rate has fallen, a second sample begins, and takes the place
//! of the first after some intervals. What is not read again within that time counts as new.

use std::ops::Range;

use crate::bits::Ranks;
use crate::curve::{Curve, Point};
use crate::histogram::{Histogram, Sums};
use crate::history::Note;
use crate::planted::{Bug, planted};
use crate::sample::{KeySample, Rate, mix};

/// Keys of a sample, at most: with more of them its table would have twice as many places.
pub const KEYS_MAX: usize = 6_800;

/// Reads that were sampled at least, in an interval and before, so that their difference is no chance: with 400 in each, two
/// samples of one distribution differ by more than 0.1 somewhere in one of 30 cases, and then only history is lost.
pub(crate) const CHANGE_LEAST: f64 = 400.0;

/// Buckets at most 0.4 % of their distance wide.
type Coarse = Histogram<512>;

/// What an application does to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads it.
    Read,
    /// Writes it as a whole.
    Write,
    /// What removes it from a read cache: a discard, zeroes, a write of a part of it.
    Discard,
}

/// How an online curve samples and forgets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Online {
    /// The rate at which sampling begins; it bounds what accesses to few blocks cost.
    pub rate: Rate,
    /// Blocks in a sample, at most; never more than [`KEYS_MAX`].
    pub keys_max: usize,
    /// The share of its weight that an access keeps when an interval ends, from 0 to 1.
    pub kept: f64,
    /// When its rate has fallen, another sample takes the place of the one that counts after so many intervals; 0 for never.
    /// A block is remembered for as many intervals at least.
    pub renewed_after: u32,
    /// How far the miss ratios of an interval may be from those of the intervals before, at any size: beyond that the mix of accesses
    /// has changed, and what was before no longer counts. 1 for never.
    pub change_max: f64,
}

impl Default for Online {
    /// Intervals are thought of as 30 s. After three of them a new mix of accesses has more than three quarters of the
    /// weight, and blocks are remembered for two hours.
    fn default() -> Self {
        Self { rate: Rate::ALL, keys_max: KEYS_MAX, kept: 0.6, renewed_after: 240, change_max: 1.0 }
    }
}

/// What is known of a sampled block since it was read.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// The last position that was given away when it was written; 0 if it was not.
    written_at: u32,
    /// The bucket of the longest distance between two accesses, or [`LOST`].
    deepest: u32,
}

/// No cache has it.
const LOST: u32 = u32::MAX;

impl Note for Seen {
    #[inline]
    fn since(self, at: usize) -> usize {
        at.max(self.written_at as usize)
    }

    fn follow(&mut self, ranks: &Ranks) {
        if planted(Bug::WriteMisplaced) {
            return;
        }
        // As many positions after it count as before.
        self.written_at = ranks.of(self.written_at as usize + 1).saturating_sub(1) as u32;
    }
}

/// See the module.
#[derive(Debug)]
pub struct OnlineCurve {
    options: Online,
    sample: KeySample<Seen>,
    /// The one that will take its place, if the rate has fallen.
    next: Option<KeySample<Seen>>,
    /// Since the last time that a sample began, or might have.
    intervals: u32,
    /// Of the intervals that have ended, by the weight that they have left.
    former: Counts,
    /// Of this interval.
    current: Counts,
}

/// Reads that were counted.
#[derive(Debug, Default)]
struct Counts {
    histogram: Coarse,
    /// Reads, sampled or not.
    reads: f64,
    /// Reads that the sampled ones stand for.
    represented: f64,
    /// Reads that were sampled.
    sampled: f64,
}

impl Counts {
    fn keep(&mut self, kept: f64) {
        self.histogram.keep(kept);
        self.reads *= kept;
        self.sampled *= kept;
        if !planted(Bug::RepresentedKept) {
            self.represented *= kept;
        }
    }

    fn add(&mut self, other: &Self) {
        self.histogram.add_all(&other.histogram);
        self.reads += other.reads;
        self.represented += other.represented;
        self.sampled += other.sampled;
    }
}

/// Miss ratios that follow from counts.
struct Ratios<'a> {
    /// Histograms in this order are summed up.
    parts: Vec<(Sums<'a, 512>, &'a Counts)>,
}

impl<'a> Ratios<'a> {
    fn of(counts: impl IntoIterator<Item = &'a Counts>) -> Self {
        Self { parts: counts.into_iter().map(|counts| (counts.histogram.sums(), counts)).collect() }
    }

    fn sum(&self, pick: fn(&Counts) -> f64) -> f64 {
        self.parts.iter().map(|(_, counts)| pick(counts)).sum()
    }

    /// Reads that hit in a cache of this size.
    fn hits(&self, size: u64) -> f64 {
        let reads = self.sum(|counts| counts.reads);
        let missing = if planted(Bug::AdjustmentMissing) { 0.0 } else { reads - self.sum(|counts| counts.represented) };
        let below: f64 = self.parts.iter().map(|(sums, _)| sums.below(size)).sum();
        if size == 0 { 0.0 } else { (below + missing).clamp(0.0, reads) }
    }

    /// Where nothing was read, no size hits.
    fn misses(&self, size: u64) -> f64 {
        let reads = self.sum(|counts| counts.reads);
        if reads > 0.0 { (reads - self.hits(size)) / reads } else { 1.0 }
    }
}

impl OnlineCurve {
    /// Nothing observed yet.
    #[must_use]
    pub fn new(options: Online) -> Self {
        let keys_max = if planted(Bug::KeysUnbounded) { usize::MAX } else { options.keys_max.clamp(1, KEYS_MAX) };
        let kept = if options.kept.is_nan() { 0.0 } else { options.kept.clamp(0.0, 1.0) };
        let options = Online { keys_max, kept, ..options };
        let sample = KeySample::new(options.rate, keys_max);
        Self { options, sample, next: None, intervals: 0, former: Counts::default(), current: Counts::default() }
    }

    /// An access to a block.
    #[inline]
    pub fn observe(&mut self, access: Access, block: u64) {
        match access {
            Access::Read => self.read(block),
            Access::Write if planted(Bug::WriteCounted) => self.read(block),
            Access::Write if self.is_sampled(block) => self.samples().for_each(|sample| write(sample, block)),
            Access::Discard if self.is_sampled(block) => self.samples().for_each(|sample| discard(sample, block)),
            Access::Write | Access::Discard => {}
        }
    }

    /// Whether one of the samples may have a block: what most accesses end with.
    #[inline]
    fn is_sampled(&self, block: u64) -> bool {
        let next = self.next.as_ref().map_or(0, |next| next.rate().threshold);
        mix(block) <= next.max(self.sample.rate().threshold)
    }

    /// An access to several blocks. A discard takes no longer than the sample is large.
    pub fn observe_range(&mut self, access: Access, blocks: Range<u64>) {
        let is_long = blocks.end.saturating_sub(blocks.start) > self.options.keys_max as u64;
        if access == Access::Discard && is_long {
            for sample in self.samples() {
                let within = sample.notes().filter(|(block, _)| blocks.contains(block));
                within.for_each(|(_, seen)| seen.deepest = LOST);
            }
        } else {
            blocks.for_each(|block| self.observe(access, block));
        }
    }

    fn samples(&mut self) -> impl Iterator<Item = &mut KeySample<Seen>> {
        std::iter::once(&mut self.sample).chain(&mut self.next)
    }

    #[inline]
    fn read(&mut self, block: u64) {
        self.current.reads += 1.0;
        if self.is_sampled(block) {
            self.read_sampled(block);
        }
    }

    fn read_sampled(&mut self, block: u64) {
        if let Some(next) = &mut self.next {
            next.access(block);
        }
        let Some(used) = self.sample.access(block) else { return };
        self.current.represented += used.weight;
        self.current.sampled += 1.0;
        let Some(distance) = used.distance else { return };
        if used.note.deepest != LOST {
            let before = if planted(Bug::DepthForgotten) { 0 } else { used.note.deepest as usize };
            self.current.histogram.add(Coarse::bucket(distance).max(before), used.weight);
        }
    }

    /// An interval has ended: what was observed so far loses weight. Which blocks were used in which order is not
    /// forgotten.
    pub fn end_interval(&mut self) {
        let kept = if planted(Bug::AgeingMissing) { 1.0 } else { self.options.kept };
        if self.has_changed() {
            self.former = Counts::default();
        }
        self.former.add(&std::mem::take(&mut self.current));
        self.former.keep(kept);
        self.intervals = self.intervals.saturating_add(1);
        if self.intervals == self.options.renewed_after && !planted(Bug::SampleKept) {
            self.intervals = 0;
            self.renew();
        }
    }

    /// Whether the mix of accesses in this interval is another one than before.
    fn has_changed(&self) -> bool {
        if self.options.change_max >= 1.0 || self.current.sampled.min(self.former.sampled) < CHANGE_LEAST {
            return false;
        }
        let (current, former) = (Ratios::of([&self.current]), Ratios::of([&self.former]));
        let sizes = (0..u64::BITS).flat_map(|log| [1 << log, (1 << log) + (1 << log >> 1)]);
        sizes.into_iter().any(|size| (current.misses(size) - former.misses(size)).abs() > self.options.change_max)
    }

    /// What counts now.
    fn counts(&self) -> impl Iterator<Item = &Counts> {
        std::iter::once(&self.former).filter(|_| !self.has_changed()).chain([&self.current])
    }

    /// Points of the curve of this interval alone; none if nothing in it was sampled.
    #[must_use]
    pub fn points_of_interval(&self, sizes: &[u64]) -> Option<Vec<Point>> {
        (self.current.sampled > 0.0).then(|| points(&Ratios::of([&self.current]), sizes))
    }

    /// The next sample takes its place, and another one begins if the rate has fallen.
    fn renew(&mut self) {
        if let Some(next) = self.next.take() {
            self.sample = next;
        }
        let has_fallen = self.sample.rate() != self.options.rate;
        self.next = has_fallen.then(|| KeySample::new(self.options.rate, self.options.keys_max));
    }

    /// The rate now. A sample has no information on caches of fewer blocks than about 1 ÷ rate.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.sample.rate()
    }

    /// Reads that were sampled, those of earlier intervals by the weight that they have left: how sure the curve is.
    /// Several of one block count several times.
    #[must_use]
    pub fn sampled(&self) -> f64 {
        self.counts().map(|counts| counts.sampled).sum()
    }

    /// Reads, sampled or not, by the weight that they have left: at most 1 ÷ (1 − kept) times the most of an interval.
    #[must_use]
    pub fn reads(&self) -> f64 {
        self.counts().map(|counts| counts.reads).sum()
    }
}

fn points(ratios: &Ratios<'_>, sizes: &[u64]) -> Vec<Point> {
    let requests = ratios.sum(|counts| counts.reads).round() as u64;
    let point = |size: &u64| Point {
        size_blocks: *size,
        hits: ratios.hits(*size).round() as u64,
        requests,
        miss_ratio: ratios.misses(*size),
    };
    sizes.iter().map(point).collect()
}

fn write(sample: &mut KeySample<Seen>, block: u64) {
    if planted(Bug::WriteIgnored) {
        return;
    }
    if planted(Bug::WriteAllocates) {
        sample.access(block);
    }
    let Some((distance, last, seen)) = sample.look(block) else { return };
    if seen.deepest == LOST && !planted(Bug::DiscardUndone) {
        return;
    }
    let before = if seen.deepest == LOST { 0 } else { seen.deepest };
    *seen = Seen { written_at: last as u32, deepest: before.max(Coarse::bucket(distance) as u32) };
}

fn discard(sample: &mut KeySample<Seen>, block: u64) {
    if let Some((_, _, seen)) = sample.look(block)
        && !planted(Bug::DiscardIgnored)
    {
        seen.deepest = LOST;
    }
}

impl Default for OnlineCurve {
    fn default() -> Self {
        Self::new(Online::default())
    }
}

impl Curve for OnlineCurve {
    /// Reads of these blocks.
    fn feed(&mut self, keys: &[u64]) {
        keys.iter().for_each(|key| self.read(*key));
    }

    /// [`Self::reads`], rounded.
    fn requests(&self) -> u64 {
        self.reads().round() as u64
    }

    /// Blocks that are remembered.
    fn distinct(&self) -> Option<u64> {
        Some((self.sample.keys() as f64 / self.rate().share()).round() as u64)
    }

    /// Never rises. Where nothing was read, no size hits.
    fn points(&self, sizes: &[u64]) -> Vec<Point> {
        points(&Ratios::of(self.counts()), sizes)
    }
}
