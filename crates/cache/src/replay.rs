//! What a log says of the device, without an engine: for tools that work offline, and for tests to compare with.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use crate::format::{
    BLOCK, Content, Flaw, Gap, Geometry, IN_FLIGHT_BLOCKS_MAX, Layout, Place, Records, Repeat, Superblock,
};
use crate::index::{Extent, ExtentState, Index, Kind};
use crate::ranges::RangeSet;

/// What was read of a log: the records of each segment, and what could not be read.
#[derive(Clone, Debug)]
pub struct Log {
    geometry: Geometry,
    generations: Vec<u32>,
    durable: u64,
    closed: bool,
    /// The last record, if the log is closed.
    last: Option<Place>,
    /// Sequences of records that failed: nothing in them was acknowledged.
    void: Vec<u64>,
    found: BTreeMap<u32, Records>,
    /// Blocks that could not be read, in order, by segment.
    unreadable: BTreeMap<u32, Vec<u32>>,
    /// What is repeated elsewhere of records of a segment.
    repeats: BTreeMap<u32, Vec<Repeat>>,
}

impl Log {
    /// A log of which no segment is read yet.
    #[must_use]
    pub fn new(superblock: &Superblock, generations: Vec<u32>) -> Self {
        Self {
            geometry: superblock.geometry(),
            generations,
            durable: superblock.durable,
            closed: superblock.closed,
            last: superblock.last,
            void: superblock.void.clone(),
            found: BTreeMap::new(),
            unreadable: BTreeMap::new(),
            repeats: BTreeMap::new(),
        }
    }

    /// The generation of the records of a segment that count.
    #[must_use]
    pub fn generation(&self, segment: u32) -> u32 {
        self.generations.get(segment as usize).copied().unwrap_or(0)
    }

    /// Adds what a segment holds, in the place of what was known of it.
    pub fn add(&mut self, records: Records, unreadable: Vec<u32>) {
        if !unreadable.is_empty() {
            self.unreadable.insert(records.segment, unreadable);
        }
        self.found.insert(records.segment, records);
    }

    /// Segments to scan again, each with what other segments repeat of records that are missing there. Until there are
    /// none, the log is not read yet.
    pub fn again(&mut self) -> Vec<(u32, Vec<Repeat>)> {
        let mut again = BTreeSet::new();
        for segment in self.found.keys().copied().collect::<Vec<_>>() {
            let previous = self.found[&segment].previous.filter(|place| !self.is_known(place));
            // One that never arrived does not count.
            let previous = previous.filter(|place| {
                let lost = place.sequence <= self.durable() || self.is_unreadable(place.segment, place.position);
                lost && !self.void.contains(&place.sequence)
            });
            let Some((previous, records)) = previous.zip(self.found.get_mut(&segment)) else { continue };
            if let Some(repeat) = records.repeat.take().filter(|repeat| repeat.place == previous) {
                let known = self.repeats.entry(previous.segment).or_default();
                if !known.contains(&repeat) {
                    known.push(*repeat);
                    again.insert(previous.segment);
                }
            }
        }
        again.into_iter().map(|segment| (segment, self.repeats[&segment].clone())).collect()
    }

    /// The records of each segment.
    pub fn segments(&self) -> impl Iterator<Item = &Records> {
        self.found.values()
    }

    /// Records up to this sequence were durable.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.segments().map(|records| records.durable).fold(self.durable, u64::max)
    }

    /// Whether a record that another one names is accounted for: it is here, or its segment has been freed since.
    fn is_known(&self, place: &Place) -> bool {
        place.generation != self.generation(place.segment)
            || self.found.get(&place.segment).is_some_and(|records| records.contains(place.sequence))
    }

    fn is_unreadable(&self, segment: u32, position: u32) -> bool {
        self.unreadable.get(&segment).is_some_and(|blocks| blocks.binary_search(&position).is_ok())
    }

    /// Places where a record is or may be of which nothing is known, but for those that a crash merely cut short. The
    /// sequence of one that no other record names is the highest that it may have.
    #[must_use]
    pub fn missing(&self) -> Vec<Gap> {
        let mut missing: Vec<Gap> = self.breaks().filter(|gap| !self.is_cut(gap)).collect();
        missing.extend(self.unnamed());
        missing.sort_unstable_by_key(|gap| (gap.place.sequence, gap.place.segment, gap.place.position));
        missing.dedup();
        missing
    }

    /// Records that others name and that are neither here nor freed.
    fn breaks(&self) -> impl Iterator<Item = Gap> + '_ {
        let across = self.segments().filter_map(|records| records.previous).chain(self.last);
        let across = across.filter(|place| !self.is_known(place));
        let across = across.map(|place| Gap { place, unreadable: self.is_unreadable(place.segment, place.position) });
        let within = self.segments().flat_map(|records| records.gaps.iter().copied());
        within.chain(across)
    }

    /// Whether nobody misses such a record: a crash cut it short, or it never was written.
    fn is_cut(&self, gap: &Gap) -> bool {
        let void = self.void.contains(&gap.place.sequence);
        void || !gap.unreadable && gap.place.sequence > self.durable()
    }

    /// Blocks that cannot be read and in which a record may begin that no other one names.
    fn unnamed(&self) -> Vec<Gap> {
        let gap = |sequence: u64, segment: u32, position: u32| {
            let generation = self.generation(segment);
            Gap { place: Place { sequence, segment, generation, position }, unreadable: true }
        };
        let mut unnamed = Vec::new();
        if self.geometry.layout == Layout::One {
            // Its records do not name the ones before them.
            for records in self.segments().filter(|records| !records.is_empty()) {
                let unreadable = self.unreadable.get(&records.segment).into_iter().flatten().copied();
                let free = unreadable.filter(|block| *block <= records.end && !records.covers(*block));
                unnamed.extend(free.map(|block| gap(records.sequence_max, records.segment, block)));
            }
        }
        // A record that was freed, or that a crash cut short, names nothing any more: what cannot be read may be a record from
        // before it.
        let is_freed = |place: &Place| place.generation != self.generation(place.segment);
        let named = || self.segments().filter_map(|records| records.previous);
        let cut: Vec<Place> = self.breaks().filter(|gap| self.is_cut(gap)).map(|gap| gap.place).collect();
        let silent = named().chain(self.last).filter(is_freed).chain(cut.iter().copied());
        if let Some(silent) = silent.map(|place| place.sequence).max() {
            let followed = |sequence| named().any(|place| place.sequence == sequence);
            let open = self.segments().filter(|records| records.end_unreadable && records.order() < silent);
            let open = open.filter(|records| !records.last().is_some_and(|(sequence, _)| followed(sequence)));
            unnamed.extend(open.filter_map(|records| {
                let void = |sequence| self.void.contains(&sequence);
                Some(gap(records.hidden_before(silent, void, self.segments())?, records.segment, records.end))
            }));
        }
        // In its own segment such a record has others before it.
        for place in cut {
            let Some(records) = self.found.get(&place.segment) else { continue };
            let unreadable = self.unreadable.get(&place.segment).into_iter().flatten().copied();
            let before = unreadable.filter(|block| *block < place.position && !records.covers(*block));
            unnamed.extend(before.filter_map(|block| {
                let void = |sequence| self.void.contains(&sequence);
                Some(gap(records.hidden_at(block, place.sequence, void)?, place.segment, block))
            }));
        }
        let highest = self.segments().map(|records| records.sequence_max).max().unwrap_or(0);
        if self.closed {
            return unnamed;
        }
        // The next record begins behind the last one and those that never arrived, or in another segment if there is no room.
        // Nothing follows the first record of a segment if its write failed.
        let begun = |records: &&Records| !records.is_empty() && !self.void.contains(&records.order());
        let last = self.segments().filter(begun).max_by_key(|records| records.order());
        let window = last.map_or(0..0, |last| last.end..last.end + IN_FLIGHT_BLOCKS_MAX);
        let behind = last.and_then(|last| {
            let mut unreadable = self.unreadable.get(&last.segment).into_iter().flatten().copied();
            Some(gap(highest + 1, last.segment, unreadable.find(|block| window.contains(block))?))
        });
        let full = last.is_none() || window.end + 2 > self.geometry.segment_blocks();
        let blank = self.segments().find(|records| full && records.is_empty() && records.end_unreadable);
        let blank = blank.map(|records| gap(highest + 1, records.segment, records.end));
        // All that may be there are told as one.
        unnamed.extend(behind.or(blank));
        unnamed
    }

    /// The newest version of every block of a device of so many blocks.
    #[must_use]
    pub fn newest(&self, device_blocks: u64) -> Newest {
        let mut newest = Newest {
            geometry: self.geometry,
            device_blocks,
            index: Index::default(),
            stale: RangeSet::default(),
            torn: RangeSet::default(),
            doubtful: RangeSet::default(),
            beyond: RangeSet::default(),
        };
        let missing = self.missing();
        let unknown = missing.iter().map(|gap| gap.place.sequence).max();
        if unknown.is_some() {
            newest.doubtful.insert(0..device_blocks);
        }
        let mut segments: Vec<&Records> = self.segments().collect();
        segments.sort_by_key(|records| records.order());
        segments.into_iter().for_each(|records| newest.replay(records, self, unknown));
        newest
    }
}

/// The newest version of a range of the device, as far as it is sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// Data, from this byte of the caching volume on.
    Data(u64),
    /// Zeroes.
    Zeroes,
    /// Zeroes: it was discarded.
    Discarded,
}

/// The newest version of every block of the device that a log holds. Ranges are in blocks of the device.
#[derive(Clone, Debug)]
pub struct Newest {
    geometry: Geometry,
    device_blocks: u64,
    index: Index,
    stale: RangeSet,
    torn: RangeSet,
    doubtful: RangeSet,
    beyond: RangeSet,
}

impl Newest {
    /// The newest sound versions, in the order of the device. Ranges of data are not longer than 16 MiB.
    pub fn sound(&self) -> impl Iterator<Item = (Range<u64>, Version)> + '_ {
        self.index.iter().map(|extent| {
            let blocks = self.geometry.segment_blocks();
            let (segment, position) = (extent.location / blocks, extent.location % blocks);
            let version = match extent.kind {
                Kind::Data => {
                    Version::Data(self.geometry.segment_offset(segment) + u64::from(position) * u64::from(BLOCK))
                }
                Kind::Zeroes => Version::Zeroes,
                Kind::Discarded => Version::Discarded,
            };
            (extent.block..extent.end(), version)
        })
    }

    /// Ranges whose newest version was durable, as far as is known, and is damaged or cannot be read.
    pub fn stale(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.stale.iter()
    }

    /// Ranges whose newest version was not known to be durable and did not arrive whole: what is older counts, as after any
    /// crash.
    pub fn torn(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.torn.iter()
    }

    /// Ranges of which records that are missing may have held a newer version.
    pub fn doubtful(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.doubtful.iter()
    }

    /// Ranges beyond the end of the device.
    pub fn beyond(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.beyond.iter()
    }

    fn replay(&mut self, records: &Records, log: &Log, unknown: Option<u64>) {
        let durable = log.durable();
        for record in records.iter().filter(|record| !log.void.contains(&record.sequence)) {
            let summary = records.segment * self.geometry.segment_blocks() + record.position;
            let mut data = 0;
            for entry in record.entries() {
                let first = data;
                data += entry.data_blocks();
                let kind = match entry.content {
                    Content::Copied => continue,
                    Content::Data => Kind::Data,
                    Content::Zeroes => Kind::Zeroes,
                    Content::Discarded => Kind::Discarded,
                };
                let end = entry.block + u64::from(entry.blocks);
                self.beyond.insert(entry.block.max(self.device_blocks)..end.max(self.device_blocks));
                let certain = unknown.is_some_and(|unknown| record.sequence > unknown);
                if kind != Kind::Data {
                    if certain {
                        self.doubtful.remove(&(entry.block..end));
                    }
                    self.put(entry.block..end, Extent { kind, location: summary, ..Extent::DIRTY_DATA });
                    continue;
                }
                for (run, flaw) in record.runs(first..first + entry.blocks) {
                    let start = entry.block + u64::from(run.start - first);
                    let blocks = start..(start + run.len() as u64).min(self.device_blocks);
                    let torn = flaw == Some(Flaw::Mismatch) && record.sequence > durable;
                    if certain && !torn {
                        self.doubtful.remove(&blocks);
                    }
                    match flaw {
                        None => {
                            let location = summary + 1 + run.start;
                            self.put(blocks, Extent { location, ..Extent::DIRTY_DATA });
                        }
                        Some(_) if torn => self.torn.insert(blocks),
                        Some(_) => {
                            self.torn.remove(&blocks);
                            self.stale.insert(blocks);
                        }
                    }
                }
            }
        }
    }

    /// A sound version: `like` says where and what.
    fn put(&mut self, blocks: Range<u64>, like: Extent) {
        let blocks = blocks.start..blocks.end.min(self.device_blocks);
        if blocks.is_empty() {
            return;
        }
        let extent = Extent {
            block: blocks.start,
            blocks: (blocks.end - blocks.start) as u32,
            state: ExtentState::Dirty,
            ..like
        };
        self.stale.remove(&blocks);
        self.torn.remove(&blocks);
        self.index.replace(blocks, Some(extent), |_| ());
    }
}
