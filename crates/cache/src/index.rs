//! Which blocks of the device are in the log: extents sorted by device block, eight bytes each.
//!
//! The device is cut into chunks of 4096 blocks (16 MiB); a chunk holds its extents in a sorted vector, so an entry
//! needs 12 bits for its start and 12 for its length. Random 4 KiB writes cost 8 bytes a block plus the vector's slack,
//! a streaming burst a few bytes a MiB.

use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks in a chunk.
pub const CHUNK_BLOCKS: u64 = 4096;

/// What the device reads there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Data in the log.
    Data,
    /// Zeroes.
    Zeroes,
    /// Zeroes, discarded.
    Discarded,
}

/// How an extent relates to the backing volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentState {
    /// Newer than the backing volume.
    Dirty,
    /// As dirty, but the log could not be read: lost unless overwritten.
    Bad,
    /// Drained, but its record would be replayed by a recovery: a write here must go to the log.
    Clean,
    /// A copy of what the backing volume holds; no record of it would be replayed.
    Copy,
}

impl ExtentState {
    /// Whether a recovery could replay a record for this extent.
    #[must_use]
    pub const fn replayable(self) -> bool {
        match self {
            Self::Dirty | Self::Bad | Self::Clean => true,
            Self::Copy => false,
        }
    }

    /// Whether the backing volume lacks it.
    #[must_use]
    pub const fn dirty(self) -> bool {
        match self {
            Self::Dirty | Self::Bad => true,
            Self::Clean | Self::Copy => false,
        }
    }
}

/// An extent as callers see it: `blocks` of the device from `block`, at `location` in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First block of the device.
    pub block: u64,
    /// Blocks.
    pub blocks: u32,
    /// Block of the log that holds the first one; for `Zeroes` and `Discarded`, of the record's summary.
    pub location: u32,
    /// What it holds.
    pub kind: Kind,
    /// How it relates to the backing volume.
    pub state: ExtentState,
}

impl Extent {
    /// Dirty data of no block.
    pub const DIRTY_DATA: Self = Self { block: 0, blocks: 0, location: 0, kind: Kind::Data, state: ExtentState::Dirty };

    /// First block after the extent.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.block + self.blocks as u64
    }

    /// The part of the extent inside `range`, which overlaps it.
    #[must_use]
    pub fn clip(&self, range: &Range<u64>) -> Self {
        let start = self.block.max(range.start);
        let end = self.end().min(range.end);
        let location = match self.kind {
            Kind::Data => self.location + (start - self.block) as u32,
            Kind::Zeroes | Kind::Discarded => self.location,
        };
        Self { block: start, blocks: (end - start) as u32, location, ..*self }
    }

    /// Whether `next` continues this extent on the device and in the log.
    fn continues_in(&self, next: &Self) -> bool {
        let location = match self.kind {
            Kind::Data => self.location + self.blocks,
            Kind::Zeroes | Kind::Discarded => self.location,
        };
        self.end() == next.block && self.kind == next.kind && self.state == next.state && location == next.location
    }
}

/// An extent within its chunk. Bits of `head`, low to high: start (12), blocks − 1 (12), kind (2), state (2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed {
    head: u32,
    location: u32,
}

const _: () = assert!(std::mem::size_of::<Packed>() == 8);

impl Packed {
    fn start(self) -> u64 {
        u64::from(self.head & 0xfff)
    }

    fn end(self) -> u64 {
        self.start() + u64::from(self.head >> 12 & 0xfff) + 1
    }

    fn pack(extent: &Extent) -> Self {
        let start = (extent.block % CHUNK_BLOCKS) as u32;
        let kind = match extent.kind {
            Kind::Data => 0,
            Kind::Zeroes => 1,
            Kind::Discarded => 2,
        };
        let state = match extent.state {
            ExtentState::Dirty => 0,
            ExtentState::Bad => 1,
            ExtentState::Clean => 2,
            ExtentState::Copy => 3,
        };
        Self { head: start | (extent.blocks - 1) << 12 | kind << 24 | state << 26, location: extent.location }
    }

    fn unpack(self, chunk: u64) -> Extent {
        Extent {
            block: chunk * CHUNK_BLOCKS + self.start(),
            blocks: (self.end() - self.start()) as u32,
            location: self.location,
            kind: match self.head >> 24 & 3 {
                0 => Kind::Data,
                1 => Kind::Zeroes,
                _ => Kind::Discarded,
            },
            state: match self.head >> 26 & 3 {
                0 => ExtentState::Dirty,
                1 => ExtentState::Bad,
                2 => ExtentState::Clean,
                _ => ExtentState::Copy,
            },
        }
    }
}

/// Extents that a range of blocks makes: chunks that it touches.
#[must_use]
pub const fn chunks(block: u64, blocks: u32) -> u64 {
    (block + blocks as u64).div_ceil(CHUNK_BLOCKS) - block / CHUNK_BLOCKS
}

/// The extents of one device.
#[derive(Clone, Debug, Default)]
pub struct Index {
    chunks: BTreeMap<u64, Vec<Packed>>,
}

/// Extents that go into an empty index together, in their order: sorted into chunks first, each of which then stays in the
/// processor's cache.
#[derive(Debug, Default)]
pub struct Bulk {
    /// Where the list of each chunk is: one more than its place in `lists`, or 0. Every extent looks here, so it is a table and
    /// no map: 4 bytes for each 16 MiB of the device.
    places: Vec<u32>,
    lists: Vec<(u64, Vec<Packed>)>,
}

impl Bulk {
    /// Adds an extent, over those that were added before.
    pub fn push(&mut self, extent: &Extent) {
        for (chunk, part) in by_chunk(extent.block..extent.end()) {
            let at = chunk as usize;
            if at >= self.places.len() {
                self.places.resize(at + 1, 0);
            }
            if self.places[at] == 0 {
                self.lists.push((chunk, Vec::new()));
                self.places[at] = self.lists.len() as u32;
            }
            self.lists[self.places[at] as usize - 1].1.push(Packed::pack(&extent.clip(&part)));
        }
    }

    /// Fills an empty index, and tells what changes, in order.
    pub fn fill(self, index: &mut Index, mut change: impl FnMut(Change)) {
        for (chunk, mut entries) in self.lists {
            let in_order = entries.clone();
            entries.sort_unstable_by_key(|entry| entry.head & 0xfff);
            if entries.windows(2).all(|pair| pair[0].end() <= pair[1].start()) {
                in_order.iter().for_each(|entry| change(Change::Added(entry.unpack(chunk))));
                let mut merged: Vec<Packed> = Vec::with_capacity(entries.len());
                for entry in entries {
                    let next = entry.unpack(chunk);
                    let before = merged.last().map(|last| last.unpack(chunk)).filter(|last| last.continues_in(&next));
                    match (before, merged.last_mut()) {
                        (Some(before), Some(last)) => {
                            *last = Packed::pack(&Extent { blocks: before.blocks + next.blocks, ..before });
                        }
                        _ => merged.push(entry),
                    }
                }
                merged.shrink_to_fit();
                index.chunks.insert(chunk, merged);
                continue;
            }
            for entry in in_order {
                let extent = entry.unpack(chunk);
                let range = extent.block..extent.end();
                index.replace(range, Some(extent), |old| change(Change::Covered { old, by: extent }));
                change(Change::Added(extent));
            }
        }
    }
}

/// What becomes of an extent of a [`Bulk`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is in the index now.
    Added(Extent),
    /// An extent, or a part of one, is covered by another.
    Covered {
        /// The covered part.
        old: Extent,
        /// What covers it.
        by: Extent,
    },
}

/// The parts of a range of blocks chunk by chunk.
fn by_chunk(range: Range<u64>) -> impl Iterator<Item = (u64, Range<u64>)> {
    let chunks = if range.is_empty() { 0..0 } else { range.start / CHUNK_BLOCKS..(range.end - 1) / CHUNK_BLOCKS + 1 };
    chunks.map(move |chunk| {
        let start = range.start.max(chunk * CHUNK_BLOCKS);
        let end = range.end.min((chunk + 1) * CHUNK_BLOCKS);
        (chunk, start..end)
    })
}

impl Index {
    /// The extents that overlap a range, clipped to it, in order.
    pub fn overlapping(&self, range: Range<u64>) -> impl Iterator<Item = Extent> + '_ {
        let first_chunk = range.start / CHUNK_BLOCKS;
        let last_chunk = if range.is_empty() { first_chunk } else { (range.end - 1) / CHUNK_BLOCKS + 1 };
        self.chunks.range(first_chunk..last_chunk).flat_map(move |(&chunk, entries)| {
            let base = chunk * CHUNK_BLOCKS;
            let range = range.clone();
            let from = entries.partition_point(|entry| base + entry.end() <= range.start);
            entries[from..]
                .iter()
                .take_while({
                    let end = range.end;
                    move |entry| base + entry.start() < end
                })
                .map(move |entry| entry.unpack(chunk).clip(&range))
        })
    }

    /// Replaces what overlaps `range` by `new` (whose range it is), or by nothing. Calls `removed` with every part of an
    /// extent that goes.
    pub fn replace(&mut self, range: Range<u64>, new: Option<Extent>, mut removed: impl FnMut(Extent)) {
        for (chunk, part) in by_chunk(range) {
            let new = new.map(|extent| extent.clip(&part));
            if new.is_some() || self.chunks.contains_key(&chunk) {
                self.replace_in_chunk(chunk, &part, new, &mut removed);
            }
        }
    }

    fn replace_in_chunk(
        &mut self,
        chunk: u64,
        range: &Range<u64>,
        new: Option<Extent>,
        removed: &mut impl FnMut(Extent),
    ) {
        let base = chunk * CHUNK_BLOCKS;
        let entries = self.chunks.entry(chunk).or_default();
        let mut from = entries.partition_point(|entry| base + entry.end() <= range.start);
        let mut until = from;
        let mut pieces: smallvec::SmallVec<[Packed; 3]> = smallvec::SmallVec::new();
        let mut tail = None;
        while let Some(extent) = entries.get(until).map(|entry| entry.unpack(chunk)) {
            if extent.block >= range.end {
                break;
            }
            if extent.block < range.start {
                pieces.push(Packed::pack(&extent.clip(&(extent.block..range.start))));
            }
            if extent.end() > range.end {
                tail = Some(extent.clip(&(range.end..extent.end())));
            }
            removed(extent.clip(range));
            until += 1;
        }
        if let Some(mut extent) = new {
            // A streaming burst appends to the extent before it: keep it one entry.
            let before = pieces.last().copied().or_else(|| from.checked_sub(1).map(|at| entries[at]));
            if let Some(before) = before.map(|entry| entry.unpack(chunk)).filter(|before| before.continues_in(&extent))
            {
                if pieces.pop().is_none() {
                    from -= 1;
                }
                extent = Extent { blocks: before.blocks + extent.blocks, ..before };
            }
            pieces.push(Packed::pack(&extent));
        }
        pieces.extend(tail.as_ref().map(Packed::pack));
        if entries.len() == entries.capacity() && until - from < pieces.len() {
            // A quarter more at a time: doubling would waste half the index of a random workload.
            entries.reserve_exact((entries.len() / 4).max(4));
        }
        entries.splice(from..until, pieces);
        if entries.is_empty() {
            self.chunks.remove(&chunk);
        }
    }

    /// Takes the extents in `range` that `goes` accepts out, wholly or in part. Calls `removed` with every part.
    pub fn remove_where(&mut self, range: Range<u64>, goes: impl Fn(&Extent) -> bool, mut removed: impl FnMut(Extent)) {
        let gone: smallvec::SmallVec<[Extent; 4]> = self.overlapping(range).filter(|extent| goes(extent)).collect();
        for extent in gone {
            self.replace(extent.block..extent.end(), None, &mut removed);
        }
    }

    /// The first extent at or after `from` that `wanted` accepts.
    pub fn find(&self, from: u64, mut wanted: impl FnMut(&Extent) -> bool) -> Option<Extent> {
        self.overlapping(from..u64::MAX).find(|extent| wanted(extent))
    }

    /// All extents, in order.
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        self.overlapping(0..u64::MAX)
    }

    /// Changes the state of every data extent of a chunk that `of` accepts, and removes the accepted ones without data.
    /// Returns how many blocks of data changed.
    pub fn turn_to_copies(&mut self, chunk: u64, mut of: impl FnMut(&Extent) -> bool) -> u32 {
        let mut kept = 0;
        self.retain_in_chunk(chunk, |extent| {
            if !of(&extent) {
                return Some(extent);
            }
            match extent.kind {
                Kind::Data => {
                    kept += extent.blocks;
                    Some(Extent { state: ExtentState::Copy, ..extent })
                }
                Kind::Zeroes | Kind::Discarded => None,
            }
        });
        kept
    }

    /// Maps every extent of a chunk to what it becomes, or to nothing.
    pub fn retain_in_chunk(&mut self, chunk: u64, mut becomes: impl FnMut(Extent) -> Option<Extent>) {
        let Some(entries) = self.chunks.get_mut(&chunk) else { return };
        entries.retain_mut(|entry| match becomes(entry.unpack(chunk)) {
            Some(extent) => {
                *entry = Packed::pack(&extent);
                true
            }
            None => false,
        });
        if entries.is_empty() {
            self.chunks.remove(&chunk);
        }
    }

    /// Bytes that the index takes, for the memory bound.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        self.chunks.values().map(|entries| entries.capacity() * std::mem::size_of::<Packed>() + 48).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The naive index: one entry a block.
    type Model = BTreeMap<u64, (u32, Kind, ExtentState)>;

    #[derive(Clone, Debug)]
    enum Step {
        Put { block: u64, blocks: u32, location: u32, kind: Kind, state: ExtentState },
        Take { block: u64, blocks: u32 },
        TakeCopies { block: u64, blocks: u32 },
        TurnToCopies { chunk: u64, location: u32 },
    }

    fn step() -> impl Strategy<Value = Step> {
        // Near a border of two chunks, so that extents cross it.
        let range = (4000u64..4200, 1u32..60);
        let kind = prop_oneof![4 => Just(Kind::Data), 1 => Just(Kind::Zeroes), 1 => Just(Kind::Discarded)];
        let state = prop_oneof![
            Just(ExtentState::Dirty),
            Just(ExtentState::Clean),
            Just(ExtentState::Copy),
            Just(ExtentState::Bad)
        ];
        prop_oneof![
            6 => (range.clone(), 0u32..2000, kind, state).prop_map(|((block, blocks), location, kind, state)| {
                Step::Put { block, blocks, location, kind, state }
            }),
            2 => range.clone().prop_map(|(block, blocks)| Step::Take { block, blocks }),
            1 => range.prop_map(|(block, blocks)| Step::TakeCopies { block, blocks }),
            1 => (0u64..2, 0u32..2000).prop_map(|(chunk, location)| Step::TurnToCopies { chunk, location }),
        ]
    }

    fn expanded(extent: &Extent) -> impl Iterator<Item = (u64, (u32, Kind, ExtentState))> + use<> {
        let extent = *extent;
        (extent.block..extent.end()).map(move |block| {
            let one = extent.clip(&(block..block + 1));
            (block, (one.location, one.kind, one.state))
        })
    }

    fn apply(index: &mut Index, model: &mut Model, step: Step) {
        let mut removed = Model::new();
        let mut expected = Model::new();
        match step {
            Step::Put { block, blocks, location, kind, state } => {
                let extent = Extent { block, blocks, location, kind, state };
                index.replace(block..extent.end(), Some(extent), |old| removed.extend(expanded(&old)));
                for (block, value) in expanded(&extent) {
                    expected.extend(model.insert(block, value).map(|old| (block, old)));
                }
            }
            Step::Take { block, blocks } => {
                let range = block..block + u64::from(blocks);
                index.replace(range.clone(), None, |old| removed.extend(expanded(&old)));
                range.for_each(|block| expected.extend(model.remove(&block).map(|old| (block, old))));
            }
            Step::TakeCopies { block, blocks } => {
                let range = block..block + u64::from(blocks);
                let is_copy = |extent: &Extent| extent.state == ExtentState::Copy;
                index.remove_where(range.clone(), is_copy, |old| removed.extend(expanded(&old)));
                for block in range
                    .filter(|block| matches!(model.get(block), Some((_, _, ExtentState::Copy))))
                    .collect::<Vec<_>>()
                {
                    expected.extend(model.remove(&block).map(|old| (block, old)));
                }
            }
            Step::TurnToCopies { chunk, location } => {
                // As in the engine, a segment's extents are told by where they begin.
                let whole: Vec<Extent> = index.iter().filter(|extent| extent.block / CHUNK_BLOCKS == chunk).collect();
                index.turn_to_copies(chunk, |extent| extent.location >= location);
                for (block, (at, kind, _)) in
                    whole.iter().filter(|extent| extent.location >= location).flat_map(expanded)
                {
                    match kind {
                        Kind::Data => model.insert(block, (at, kind, ExtentState::Copy)),
                        Kind::Zeroes | Kind::Discarded => model.remove(&block),
                    };
                }
            }
        }
        assert_eq!(removed, expected, "what replace says it removed");
    }

    proptest! {
        #[test]
        fn index_answers_as_a_map_of_blocks(steps in prop::collection::vec(step(), 1..60), from in 4000u64..4200) {
            let (mut index, mut model) = (Index::default(), Model::new());
            for step in steps {
                apply(&mut index, &mut model, step);
                let flat: Model = index.iter().flat_map(|extent| expanded(&extent)).collect();
                prop_assert_eq!(&flat, &model);
            }
            let part: Model = index.overlapping(from..from + 40).flat_map(|extent| expanded(&extent)).collect();
            let wanted: Model = model.range(from..from + 40).map(|(block, value)| (*block, *value)).collect();
            prop_assert_eq!(part, wanted);
            let found = index.find(from, |extent| extent.state == ExtentState::Dirty).map(|extent| extent.block);
            let first = model.range(from..).find(|(_, (_, _, state))| *state == ExtentState::Dirty).map(|(block, _)| *block);
            prop_assert_eq!(found, first);
        }
    }

    proptest! {
        #[test]
        fn in_bulk_it_is_the_same(steps in prop::collection::vec(step(), 1..60)) {
            let (mut one_by_one, mut bulk, mut added) = (Index::default(), Bulk::default(), Vec::new());
            for step in steps {
                let Step::Put { block, blocks, location, kind, state } = step else { continue };
                let extent = Extent { block, blocks, location, kind, state };
                one_by_one.replace(block..extent.end(), Some(extent), |_| ());
                bulk.push(&extent);
                added.extend(expanded(&extent));
            }
            let (mut filled, mut left) = (Index::default(), Model::new());
            let mut count = 0;
            bulk.fill(&mut filled, |change| match change {
                Change::Added(extent) => {
                    for (block, value) in expanded(&extent) {
                        assert_eq!(left.insert(block, value), None, "what it covers is told first");
                        count += 1;
                    }
                }
                Change::Covered { old, by } => {
                    assert!(by.block <= old.block && old.end() <= by.end());
                    for (block, value) in expanded(&old) {
                        assert_eq!(left.remove(&block), Some(value));
                    }
                }
            });
            prop_assert_eq!(count, added.len());
            let flat = |index: &Index| index.iter().flat_map(|extent| expanded(&extent)).collect::<Model>();
            prop_assert_eq!(flat(&filled), flat(&one_by_one));
            prop_assert_eq!(flat(&filled), left);
        }
    }

    #[test]
    fn a_streaming_burst_stays_few_extents() {
        let mut index = Index::default();
        for block in 0..4096u64 {
            let extent =
                Extent { block, blocks: 1, location: block as u32 + 7, kind: Kind::Data, state: ExtentState::Dirty };
            index.replace(block..block + 1, Some(extent), |_| ());
        }
        assert_eq!(index.iter().count(), 1);
    }

    #[test]
    fn random_blocks_cost_at_most_twelve_bytes() {
        let mut index = Index::default();
        let mut random = surgetank_model::random::Random::from_seed(1);
        let blocks = 100_000u64;
        for at in 0..blocks {
            let block = random.below(blocks * 4);
            let location = (at * 2) as u32;
            let extent = Extent { block, blocks: 1, location, kind: Kind::Data, state: ExtentState::Dirty };
            index.replace(block..block + 1, Some(extent), |_| ());
        }
        let held = index.iter().map(|extent| u64::from(extent.blocks)).sum::<u64>();
        let bytes = index.memory_bytes() as u64;
        assert!(bytes <= held * 12, "{bytes} bytes for {held} blocks");
    }
}
