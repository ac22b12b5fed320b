//! The segments of the log: which are free, what each holds, and which may be reused.
//!
//! A segment may be reused only when no recovery needs its records. Two rules follow:
//! - every block in it is drained or superseded (`dirty == 0`), made durable where it is now (the reclaim cycle flushes
//!   both volumes first), and the segment's generation in the segment table has grown durably;
//! - it supersedes nothing in an older segment whose records would still be replayed, or the older version would come
//!   back. Each segment remembers the oldest segment it superseded (`oldest_superseded`); everything between must go
//!   before it, or with it in the same (atomic) page of the table.

use crate::format::{Geometry, UNINDEXED_MAX};
use crate::index::{Extent, Kind};
use crate::planted::{Bug, planted};

/// Under pressure so much of the log, and no fewer segments, is drained first.
const PRESSURE_BYTES: usize = 16 << 20;
const PRESSURE_SEGMENTS_MIN: usize = 4;

/// So much of the log is named ahead as what may hold records without an index: a recovery reads it.
const AHEAD_BYTES: u32 = 32 << 20;

/// What a segment is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Nothing.
    Free,
    /// Records are appended.
    Open,
    /// Full, or closed early; its records would be replayed.
    Sealed,
    /// Holds only copies of what the backing volume has; may be reused at once.
    Copies,
}

/// Whether a segment has an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Indexed {
    /// It has none that a recovery would read.
    No,
    /// It is written, and the segment table does not say so yet.
    Written,
    /// The segment table says so, durably.
    Marked,
}

/// One segment.
#[derive(Clone, Debug)]
pub struct Segment {
    /// What it is used for.
    pub usage: Use,
    /// The generation that its records carry.
    pub generation: u32,
    /// Sequence of its first record: segments are replayed in this order.
    pub order: u64,
    /// Least `order` of a segment that has a record superseded by one of this segment's.
    pub oldest_superseded: u64,
    /// Blocks in the index that are here and not on the backing volume. Entries without data may be long.
    pub dirty: u64,
    /// Blocks of data in the index that are here.
    pub held: u32,
    /// Extents without data that its records make in the index.
    pub tombstones: u64,
    /// Reads of it in flight: it must not be overwritten.
    pub pins: u32,
    /// Appends to it, and writes of its index, in flight.
    pub appends: u32,
    /// Whether it has an index.
    pub indexed: Indexed,
    /// The superblock names it, durably, as one that may hold records without an index.
    pub listed: bool,
    /// Next block to append at.
    pub position: u32,
    /// When it was last read, for eviction of copies.
    pub used_at: u64,
    /// Chunks of the index that may refer to it.
    pub chunks: Vec<u32>,
    /// crc32c of each data block, by position.
    pub checksums: Vec<u32>,
}

impl Segment {
    /// A segment that holds nothing.
    const fn empty(usage: Use, generation: u32, order: u64, used_at: u64) -> Self {
        Self {
            usage,
            generation,
            order,
            oldest_superseded: u64::MAX,
            dirty: 0,
            held: 0,
            tombstones: 0,
            pins: 0,
            appends: 0,
            indexed: Indexed::No,
            listed: false,
            position: 0,
            used_at,
            chunks: Vec::new(),
            checksums: Vec::new(),
        }
    }
}

/// All segments of one log.
#[derive(Clone, Debug)]
pub struct Space {
    /// How the volume is divided.
    pub geometry: Geometry,
    /// The segments.
    pub segments: Vec<Segment>,
    /// The open segment for records.
    pub open: Option<u32>,
    /// The open segment for copies made by reads.
    pub open_copies: Option<u32>,
    /// Blocks that queued writes may still need.
    pub reserved: u64,
    /// Extents without data that queued changes may still make.
    pub tombstones_reserved: u64,
    /// Blocks not on the backing volume.
    pub dirty: u64,
    /// Of those, blocks that could not be read.
    pub bad: u64,
    /// Largest `used_segments` so far.
    pub high_water: u32,
    /// The superblock lets any segment hold records without an index.
    pub any_listed: bool,
    in_use: u32,
    /// Extents without data that the records in the log make.
    tombstones: u64,
    clock: u64,
}

impl Space {
    /// All segments free, with these generations.
    #[must_use]
    pub fn new(geometry: Geometry, generation: impl Fn(u32) -> u32) -> Self {
        Self {
            geometry,
            segments: (0..geometry.segments)
                .map(|number| Segment::empty(Use::Free, generation(number), 0, 0))
                .collect(),
            open: None,
            open_copies: None,
            reserved: 0,
            tombstones_reserved: 0,
            dirty: 0,
            bad: 0,
            high_water: 0,
            any_listed: true,
            in_use: 0,
            tombstones: 0,
            clock: 0,
        }
    }

    /// The volume has grown to this division: its new segments are free, of generation 1.
    pub fn grow(&mut self, geometry: Geometry) {
        self.geometry = geometry;
        self.segments.resize(geometry.segments as usize, Segment::empty(Use::Free, 1, 0, 0));
    }

    /// The segment of a block of the log.
    #[must_use]
    pub const fn segment_of(&self, location: u32) -> u32 {
        location / self.geometry.segment_blocks()
    }

    /// The block of the log at a position of a segment.
    #[must_use]
    pub const fn location(&self, segment: u32, position: u32) -> u32 {
        segment * self.geometry.segment_blocks() + position
    }

    /// First byte of a block of the log on the volume.
    #[must_use]
    pub const fn offset(&self, location: u32) -> u64 {
        let position = location % self.geometry.segment_blocks();
        self.geometry.segment_offset(self.segment_of(location)) + position as u64 * crate::format::BLOCK as u64
    }

    /// The checksums of data blocks from `location` on.
    #[must_use]
    pub fn checksums(&self, location: u32, blocks: u32) -> Option<Box<[u32]>> {
        let first = (location % self.geometry.segment_blocks()) as usize;
        self.segments[self.segment_of(location) as usize].checksums.get(first..first + blocks as usize).map(Into::into)
    }

    /// A read of a segment begins.
    pub fn pin(&mut self, location: u32) {
        self.clock += 1;
        let clock = self.clock;
        let segment = self.segment_of(location) as usize;
        self.segments[segment].pins += 1;
        self.segments[segment].used_at = clock;
    }

    /// A read of a segment has ended.
    pub fn unpin(&mut self, location: u32) {
        let segment = self.segment_of(location) as usize;
        self.segments[segment].pins -= 1;
    }

    /// An extent is in the index now.
    pub fn added(&mut self, extent: &Extent) {
        let number = self.segment_of(extent.location) as usize;
        let segment = &mut self.segments[number];
        if extent.state.dirty() {
            segment.dirty += u64::from(extent.blocks);
            self.dirty += u64::from(extent.blocks);
        }
        if extent.kind == Kind::Data {
            segment.held += extent.blocks;
        }
        for chunk in extent.block / crate::index::CHUNK_BLOCKS..=(extent.end() - 1) / crate::index::CHUNK_BLOCKS {
            if segment.chunks.last() != Some(&(chunk as u32)) {
                segment.chunks.push(chunk as u32);
            }
        }
    }

    /// An extent, or a part, is no longer in the index; a record in segment `by` supersedes it.
    pub fn removed(&mut self, extent: &Extent, by: Option<u32>) {
        let number = self.segment_of(extent.location);
        let segment = &mut self.segments[number as usize];
        if extent.state.dirty() {
            segment.dirty -= u64::from(extent.blocks);
            self.dirty -= u64::from(extent.blocks);
        }
        if extent.state == crate::index::ExtentState::Bad {
            self.bad -= u64::from(extent.blocks);
        }
        if extent.kind == Kind::Data {
            segment.held -= extent.blocks;
        }
        let order = segment.order;
        let covered = by.filter(|&by| by != number && extent.state.replayable());
        if let Some(by) = covered.filter(|_| !planted(Bug::TombstoneNotCovered)) {
            let newer = &mut self.segments[by as usize];
            newer.oldest_superseded = newer.oldest_superseded.min(order);
        }
    }

    /// An extent of the index, or a part, is on the backing volume now.
    pub fn drained(&mut self, extent: &Extent) {
        let number = self.segment_of(extent.location) as usize;
        self.segments[number].dirty -= u64::from(extent.blocks);
        self.dirty -= u64::from(extent.blocks);
    }

    /// An extent of the index is not certainly on the backing volume any more.
    pub fn undrained(&mut self, extent: &Extent) {
        let number = self.segment_of(extent.location) as usize;
        self.segments[number].dirty += u64::from(extent.blocks);
        self.dirty += u64::from(extent.blocks);
    }

    /// Bytes of segments whose records would be replayed.
    #[must_use]
    pub const fn used_bytes(&self) -> u64 {
        self.in_use as u64 * self.geometry.segment_size as u64
    }

    /// Whether any record would be replayed.
    #[must_use]
    pub const fn is_unused(&self) -> bool {
        self.in_use == 0
    }

    /// Usable bytes of the cache: all segments. The last ones ([`Geometry::reserve_segments`]) only take changes of what
    /// is dirty.
    #[must_use]
    pub const fn usable_bytes(&self) -> u64 {
        self.geometry.segments as u64 * self.geometry.segment_size as u64
    }

    /// Whether `need` blocks can be promised, leaving `keep` segments free.
    #[must_use]
    pub fn has_room(&self, need: u64, keep: u64) -> bool {
        self.room(keep) >= need
    }

    /// Whether so many more extents without data may be made. A log that has none takes any change.
    #[must_use]
    pub const fn has_room_for_tombstones(&self, more: u64) -> bool {
        let held = self.tombstones + self.tombstones_reserved;
        more == 0 || held == 0 || held + more <= self.geometry.tombstones_max()
    }

    /// A record that is about to be written to a segment makes so many extents without data.
    pub fn add_tombstones(&mut self, segment: u32, count: u64) {
        self.segments[segment as usize].tombstones += count;
        self.tombstones += count;
    }

    /// Blocks of a part of `blocks` that can be promised room, leaving `keep` segments free.
    #[must_use]
    pub fn fitting(&self, blocks: u32, keep: u64) -> u32 {
        let room = self.room(keep);
        if room >= self.geometry.need(blocks) {
            return blocks;
        }
        let most = room.saturating_sub(1 + room.div_ceil(u64::from(self.geometry.record_blocks() - 1)));
        most.min(u64::from(blocks)) as u32
    }

    /// Blocks that can be promised, leaving `keep` segments free.
    fn room(&self, keep: u64) -> u64 {
        // The last block of a segment holds no record.
        let per_segment = u64::from(self.geometry.segment_blocks()) - 1;
        let reusable = u64::from(self.geometry.segments - self.in_use) - u64::from(self.open_copies.is_some());
        let open = self.open.map_or(0, |open| {
            u64::from(self.geometry.segment_blocks() - self.segments[open as usize].position).saturating_sub(1)
        });
        (reusable.saturating_sub(keep) * per_segment + open).saturating_sub(self.reserved)
    }

    /// Segments that can be overwritten.
    fn reusable(&self) -> impl Iterator<Item = (u32, &Segment)> {
        (0..).zip(&self.segments).filter(|(number, segment)| {
            let pinned = segment.pins > 0 && !planted(Bug::PinsIgnored);
            let busy = pinned || segment.appends > 0 || self.open_copies == Some(*number);
            !busy && matches!(segment.usage, Use::Free | Use::Copies)
        })
    }

    fn may_hold_records(&self, segment: &Segment) -> bool {
        segment.listed || self.any_listed || planted(Bug::UnlistedSegmentUsed)
    }

    /// A segment that can be overwritten by records: free, else the copies that were read least lately.
    #[must_use]
    pub fn reusable_for_records(&self) -> Option<u32> {
        let reusable = self.reusable().filter(|(_, segment)| self.may_hold_records(segment));
        let chosen = reusable.min_by_key(|(number, segment)| (segment.usage != Use::Free, segment.used_at, *number));
        chosen.map(|(number, _)| number)
    }

    /// The same for copies, if possible none that is named for records.
    #[must_use]
    pub fn reusable_for_copies(&self) -> Option<u32> {
        let order = |(number, segment): &(u32, &Segment)| {
            (segment.usage != Use::Free, segment.listed, segment.used_at, *number)
        };
        self.reusable().min_by_key(order).map(|(number, _)| number)
    }

    /// Segments that the superblock is to name ahead.
    fn ahead(&self) -> usize {
        let most = self.geometry.segments / 8;
        (AHEAD_BYTES / self.geometry.segment_size).min(most).max(2) as usize
    }

    /// Whether the superblock should name more segments: soon, or at once, records would have to wait for that.
    #[must_use]
    pub fn wants_list(&self) -> bool {
        if !self.geometry.indexed {
            return false;
        }
        let (mut listed, mut unlisted) = (0, false);
        for (_, segment) in self.reusable() {
            listed += usize::from(segment.listed);
            unlisted |= !segment.listed;
        }
        unlisted && listed < self.ahead().div_ceil(2)
    }

    /// The segments that a superblock is to name as those that may hold records without an index; `None`: any.
    #[must_use]
    pub fn list(&mut self) -> Option<Vec<u32>> {
        if !self.geometry.indexed {
            return None;
        }
        let in_use = |segment: &Segment| matches!(segment.usage, Use::Open | Use::Sealed);
        let holds = |segment: &Segment| match segment.indexed {
            Indexed::Marked => false,
            Indexed::No | Indexed::Written => segment.listed || in_use(segment),
        };
        let named = (0..).zip(&self.segments).filter(|(_, segment)| holds(segment));
        let mut list: Vec<u32> = named.map(|(number, _)| number).collect();
        let mut more: Vec<_> = self.reusable().filter(|(_, segment)| !segment.listed).collect();
        more.sort_unstable_by_key(|(number, segment)| (segment.usage != Use::Free, segment.used_at, *number));
        let spare = self.reusable().filter(|(_, segment)| segment.listed).count();
        let room = UNINDEXED_MAX.checked_sub(list.len()).filter(|room| *room > 0)?;
        let ahead = self.ahead().saturating_sub(spare).min(room);
        list.extend(more.into_iter().take(ahead).map(|(number, _)| number));
        list.sort_unstable();
        Some(list)
    }

    /// A superblock with this list is about to be written: what it does not name may hold no new records.
    pub fn unlist(&mut self, list: Option<&[u32]>) {
        let Some(list) = list else { return };
        self.any_listed = false;
        for (number, segment) in (0..).zip(&mut self.segments) {
            segment.listed &= list.binary_search(&number).is_ok();
        }
    }

    /// A superblock with this list is durable.
    pub fn listed(&mut self, list: Option<&[u32]>) {
        self.any_listed = list.is_none();
        for &number in list.unwrap_or_default() {
            self.segments[number as usize].listed = true;
        }
    }

    /// Full segments without an index that are worth a flush, and written indexes that are worth a write of the table.
    #[must_use]
    pub fn marks_due(&self) -> usize {
        2 * self.ahead()
    }

    /// Segments of a page of the table whose indexes are written and that it does not say so of, the page first; of the
    /// page with the most.
    #[must_use]
    pub fn unmarked(&self) -> Option<(u32, usize)> {
        let mut pages = vec![0; self.geometry.table_pages() as usize];
        for (number, segment) in (0..).zip(&self.segments) {
            let (page, _) = self.geometry.place_in_table(number);
            pages[page as usize] += usize::from(segment.indexed == Indexed::Written);
        }
        let most = (0..).zip(pages).max_by_key(|(_, unmarked)| *unmarked);
        most.filter(|(_, unmarked)| *unmarked > 0)
    }

    /// Starts to fill a reusable segment, whose extents have been taken out of the index.
    pub fn start(&mut self, number: u32, usage: Use, order: u64) {
        self.clock += 1;
        let clock = self.clock;
        let segment = &mut self.segments[number as usize];
        debug_assert!(segment.pins == 0 && segment.dirty == 0 && segment.held == 0);
        let listed = segment.listed;
        *segment = Segment { listed, ..Segment::empty(usage, segment.generation, order, clock) };
        if usage == Use::Open {
            self.in_use += 1;
            self.high_water = self.high_water.max(self.in_use);
            self.open = Some(number);
        } else {
            self.open_copies = Some(number);
        }
    }

    /// Recovery: a segment that holds records.
    pub fn restore(&mut self, number: u32, order: u64, indexed: Indexed) {
        self.start(number, Use::Open, order);
        self.open = None;
        let blocks = self.geometry.segment_blocks();
        let segment = &mut self.segments[number as usize];
        segment.indexed = indexed;
        segment.usage = Use::Sealed;
        segment.position = blocks;
        segment.checksums = vec![0; blocks as usize];
    }

    /// Closes the open segment.
    pub fn seal(&mut self) {
        if let Some(open) = self.open.take() {
            self.segments[open as usize].usage = Use::Sealed;
            self.segments[open as usize].chunks.shrink_to_fit();
        }
    }

    /// Segments that may be freed together by one write of one page of the segment table: the page and its segments.
    #[must_use]
    pub fn reclaimable(&self) -> Option<(u32, Vec<u32>)> {
        let mut used: Vec<u32> = (0..self.geometry.segments)
            .filter(|&number| matches!(self.segments[number as usize].usage, Use::Open | Use::Sealed))
            .collect();
        used.sort_unstable_by_key(|&number| self.segments[number as usize].order);
        let mut page = None;
        let mut youngest_kept = None;
        let mut freed = Vec::new();
        for number in used {
            let segment = &self.segments[number as usize];
            let (own_page, _) = self.geometry.place_in_table(number);
            let idle = segment.usage == Use::Sealed && segment.dirty == 0;
            let idle = idle && (segment.appends == 0 || planted(Bug::AppendsIgnored));
            let free_of_older =
                youngest_kept.is_none_or(|order| segment.oldest_superseded > order) || planted(Bug::ReusedTooEarly);
            if idle && free_of_older && page.is_none_or(|page| page == own_page) {
                page = Some(own_page);
                freed.push(number);
            } else {
                youngest_kept = Some(segment.order);
            }
        }
        page.map(|page| (page, freed))
    }

    /// The order up to which segments should be drained first when room is wanted: that of the oldest 16 MiB of those that
    /// count. They are the first that can be freed, and more than the drain has in flight.
    #[must_use]
    pub fn oldest_orders(&self, counts: impl Fn(&Segment) -> bool) -> u64 {
        let count = (PRESSURE_BYTES / self.geometry.segment_size as usize).min(self.segments.len() / 8);
        let used = |segment: &&Segment| matches!(segment.usage, Use::Open | Use::Sealed) && counts(segment);
        let mut orders: Vec<u64> = self.segments.iter().filter(used).map(|segment| segment.order).collect();
        let last = count.max(PRESSURE_SEGMENTS_MIN).min(orders.len());
        match last.checked_sub(1) {
            Some(last) => *orders.select_nth_unstable(last).1,
            None => u64::MAX,
        }
    }

    /// A segment's records are durably outdated; what the index still holds of it are copies.
    pub fn free(&mut self, number: u32) {
        let segment = &mut self.segments[number as usize];
        segment.generation += 1;
        segment.indexed = Indexed::No;
        self.tombstones -= std::mem::take(&mut segment.tombstones);
        segment.usage = if segment.held > 0 { Use::Copies } else { Use::Free };
        segment.oldest_superseded = u64::MAX;
        if segment.held == 0 {
            segment.chunks = Vec::new();
            segment.checksums = Vec::new();
        }
        self.in_use -= 1;
    }

    /// Bytes that the table takes, for the memory bound.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let of = |segment: &Segment| 4 * (segment.chunks.capacity() + segment.checksums.capacity());
        self.segments.iter().map(|segment| std::mem::size_of::<Segment>() + of(segment)).sum()
    }
}

#[cfg(debug_assertions)]
mod check;
#[cfg(test)]
mod tests;
