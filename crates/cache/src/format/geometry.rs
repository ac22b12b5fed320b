//! How a caching volume is divided.

use std::ops::Range;

use surgetank_model::units::{KIB, MIB};

use super::{BLOCK, GROWTHS_MAX, Layout, RECORD_BLOCKS, SEGMENTS_PER_PAGE, SUPERBLOCKS_LENGTH};

/// One of the two copies of the segment table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableCopy {
    /// After the superblocks.
    First,
    /// After the last segment, so that one damaged place does not hold both.
    Second,
}

impl TableCopy {
    /// Both.
    pub const ALL: [Self; 2] = [Self::First, Self::Second];

    /// The other one.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::First => Self::Second,
            Self::Second => Self::First,
        }
    }
}

/// How a caching volume is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// How the volume is laid out.
    pub layout: Layout,
    /// Bytes of a segment: a power of two.
    pub segment_size: u32,
    /// Segments in the log.
    pub segments: u32,
    /// Whether there is a place for the index of each segment; never in [`Layout::One`].
    pub indexed: bool,
    /// Segments that the log had before each time it grew, in order; then zeroes. It never grows in [`Layout::One`].
    pub grown_at: [u32; GROWTHS_MAX],
}

/// Segments that lie together, with their pages of the table and their indexes: those of the volume as it was adopted, or
/// those of one growth. Parts follow each other on the volume, so what was there before never moves.
#[derive(Clone, Copy, Debug)]
struct Part {
    /// Growths before it.
    number: usize,
    /// First byte on the volume.
    start: u64,
    /// Its first segment.
    first: u32,
    segments: u32,
    /// Its first page of the table.
    page: u32,
}

impl Geometry {
    /// Bytes of the smallest and largest segment.
    const SEGMENT_SIZES: (u64, u64) = (64 * KIB, 16 * MIB);
    /// Bytes of an index for each block of its segment.
    const INDEX_BYTES: u32 = 16;
    /// A log of fewer segments cannot keep its reserve and still be of use.
    const SEGMENTS_MIN: u64 = 8;

    /// Bytes of the smallest segment for whose like an index is worth its place on volumes that people rent.
    const INDEXED_SIZE: u64 = MIB;

    /// The division of a volume of `size` bytes; `None` if it is too small.
    ///
    /// Of `n` blocks in segments of `s`, summaries take `n ÷ s` (as long as a segment is no longer than a record), and
    /// three segments are lost: the reserve, and the one that the header displaces. The least of both together is at
    /// `s = √(n ÷ 3)`, here with half a power of two for rounding: 1 % of 512 MiB. Large volumes have room for indexes;
    /// small ones are read in a moment.
    #[must_use]
    pub fn of_volume(size: u64) -> Option<Self> {
        Self::with_layout(size, Layout::default())
    }

    /// The same in an older layout.
    #[must_use]
    pub fn with_layout(size: u64, layout: Layout) -> Option<Self> {
        Self::divide(size, layout, layout != Layout::One && Self::wants_indexes(size))
    }

    /// Whether a volume of `size` bytes should have room for indexes.
    #[must_use]
    pub fn wants_indexes(size: u64) -> bool {
        Self::segment_size_of(size) >= Self::INDEXED_SIZE
    }

    fn segment_size_of(size: u64) -> u64 {
        let (smallest, largest) = Self::SEGMENT_SIZES;
        let blocks = (size / u64::from(BLOCK) * 2 / 3).isqrt();
        1 << (blocks * u64::from(BLOCK)).clamp(smallest, largest).ilog2()
    }

    /// The division of a volume with or without room for indexes.
    #[must_use]
    pub fn divide(size: u64, layout: Layout, indexed: bool) -> Option<Self> {
        let segment_size = Self::segment_size_of(size);
        // Of a volume of more than 16 TiB the rest is not used.
        let segments_max = u64::from(u32::MAX - 1) * u64::from(BLOCK) / segment_size;
        let mut segments = (size / segment_size).min(segments_max);
        while segments >= Self::SEGMENTS_MIN {
            let segments_u32 = u32::try_from(segments).ok()?;
            let grown_at = [0; GROWTHS_MAX];
            let geometry =
                Self { layout, segment_size: segment_size as u32, segments: segments_u32, indexed, grown_at };
            if geometry.end() <= size {
                return geometry.is_sound().then_some(geometry);
            }
            segments -= 1;
        }
        None
    }

    /// The division of the same volume once it has grown to `size` bytes: what is on it stays where it is. `None` if it has
    /// no room for another segment, has grown too often, or is of a layout that does not grow.
    #[must_use]
    pub fn grown(self, size: u64) -> Option<Self> {
        let growth = self.grown_at.iter().position(|before| *before == 0)?;
        let mut grown_at = self.grown_at;
        grown_at[growth] = self.segments;
        let segments_max = (u32::MAX - 1) / self.segment_blocks();
        let more = size.saturating_sub(self.end()) / u64::from(self.segment_size);
        let mut more = more.min(u64::from(segments_max.saturating_sub(self.segments))) as u32;
        while more > 0 {
            let geometry = Self { segments: self.segments + more, grown_at, ..self };
            if geometry.end() <= size {
                return geometry.is_sound().then_some(geometry);
            }
            more -= 1;
        }
        None
    }

    /// Whether the log can grow once more, given the room.
    #[must_use]
    pub fn can_grow(self) -> bool {
        self.layout != Layout::One && self.grown_at.last() == Some(&0)
    }

    /// Whether the log has grown since it was adopted.
    #[must_use]
    pub const fn has_grown(self) -> bool {
        self.grown_at[0] > 0
    }

    /// Whether block numbers of the log fit 32 bits, the segment size is one that `of_volume` gives, and every growth added
    /// something.
    pub(super) fn is_sound(self) -> bool {
        let (smallest, largest) = Self::SEGMENT_SIZES;
        let growths = self.grown_at.iter().take_while(|before| **before > 0).count();
        let (grown_at, rest) = self.grown_at.split_at(growths);
        let grows = grown_at.is_sorted_by(|before, after| before < after)
            && grown_at.first().is_none_or(|first| u64::from(*first) >= Self::SEGMENTS_MIN)
            && grown_at.last().is_none_or(|last| *last < self.segments)
            && rest.iter().all(|before| *before == 0);
        self.segment_size.is_power_of_two()
            && (smallest..=largest).contains(&u64::from(self.segment_size))
            && u64::from(self.segments) >= Self::SEGMENTS_MIN
            && u64::from(self.segments) * u64::from(self.segment_blocks()) < u64::from(u32::MAX)
            && grows
            && !((self.indexed || self.has_grown()) && self.layout == Layout::One)
    }

    /// Data blocks of one record, at most.
    #[must_use]
    pub const fn record_blocks(self) -> u32 {
        let longest = self.segment_blocks() - 1;
        if longest < RECORD_BLOCKS { longest } else { RECORD_BLOCKS }
    }

    /// Blocks that one queued part of `blocks` may need in the log, summaries included: it may begin in one record and
    /// end in another, and the records that fill a segment are on average up to a block shorter than the longest.
    #[must_use]
    pub const fn need(self, blocks: u32) -> u64 {
        blocks as u64 + 1 + blocks.div_ceil(self.record_blocks() - 1) as u64
    }

    /// Segments kept for overwrites and tombstones when the cache is full: enough to overwrite 1 MiB without a wait, as
    /// far as a 32nd of the cache allows, and two at least.
    #[must_use]
    pub fn reserve_segments(self) -> u64 {
        let overwrite = self.need(RECORD_BLOCKS).div_ceil(u64::from(self.segment_blocks()) - 1);
        overwrite.min(u64::from(self.segments) / 32).max(2)
    }

    /// Bytes of long writes that the log takes, but for its reserve.
    #[must_use]
    pub fn capacity(self) -> u64 {
        let blocks =
            u64::from(self.segments).saturating_sub(self.reserve_segments()) * u64::from(self.segment_blocks());
        (blocks - blocks.div_ceil(u64::from(self.record_blocks()) + 1)) * u64::from(BLOCK)
    }

    /// Extents without data (zeroes, discarded ranges) that the records in the log may make in the index. They take no room
    /// in the log to speak of, but as much memory as those with data.
    #[must_use]
    pub const fn tombstones_max(self) -> u64 {
        self.segments as u64 * self.segment_blocks() as u64 / 2
    }

    /// The same as a recovery takes it: earlier versions did not count them.
    #[must_use]
    pub const fn tombstones_recovered_max(self) -> u64 {
        const SMALL: u64 = 256 * KIB;
        let twice = 2 * self.tombstones_max();
        if twice > SMALL { twice } else { SMALL }
    }

    /// 4 KiB blocks in a segment.
    #[must_use]
    pub const fn segment_blocks(self) -> u32 {
        self.segment_size / BLOCK
    }

    /// Pages of the segment table.
    #[must_use]
    pub const fn table_pages(self) -> u32 {
        let part = self.last_part();
        part.page + part.pages()
    }

    /// The segments whose generations a page of the segment table holds.
    #[must_use]
    pub fn segments_of_page(self, page: u32) -> Range<u32> {
        let part = self.part_of_page(page);
        let end = part.first + part.segments;
        let first = part.first.saturating_add((page - part.page).saturating_mul(SEGMENTS_PER_PAGE)).min(end);
        first..first.saturating_add(SEGMENTS_PER_PAGE).min(end)
    }

    /// Which page of the segment table holds a segment's generation, and where in it.
    #[must_use]
    pub const fn place_in_table(self, segment: u32) -> (u32, usize) {
        let part = self.part_of(segment);
        let nth = segment - part.first;
        (part.page + nth / SEGMENTS_PER_PAGE, (nth % SEGMENTS_PER_PAGE) as usize)
    }

    /// Where a copy of a page of the segment table lies on the volume.
    #[must_use]
    pub const fn table_offset(self, page: u32, copy: TableCopy) -> u64 {
        let part = self.part_of_page(page);
        let (page, block) = ((page - part.page) as u64, BLOCK as u64);
        match (self.layout, copy) {
            (Layout::One, TableCopy::First) => part.table() + page * 2 * block,
            (Layout::One, TableCopy::Second) => part.table() + (page * 2 + 1) * block,
            (Layout::Two, TableCopy::First) => part.table() + page * block,
            (Layout::Two, TableCopy::Second) => self.segments_end(part) + page * block,
        }
    }

    /// Bytes that the index of a segment may take.
    #[must_use]
    pub const fn index_length(self) -> u32 {
        let length = self.segment_blocks() * Self::INDEX_BYTES;
        if length < BLOCK { BLOCK } else { length }
    }

    /// First byte of the index of a segment on the volume, if there is one. Those of segments of one page of the table follow
    /// each other.
    #[must_use]
    pub const fn index_offset(self, segment: u32) -> u64 {
        let part = self.part_of(segment);
        self.table_end(part) + (segment - part.first) as u64 * self.index_length() as u64
    }

    /// First byte of a segment on the volume.
    #[must_use]
    pub const fn segment_offset(self, segment: u32) -> u64 {
        let part = self.part_of(segment);
        self.segments_start(part) + (segment - part.first) as u64 * self.segment_size as u64
    }

    /// The byte after the last one that is used.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.part_end(self.last_part())
    }

    /// The part of the volume as it was adopted.
    const fn first_part(self) -> Part {
        Part { number: 0, start: 0, first: 0, segments: self.segments_before(0), page: 0 }
    }

    /// The part of the growth after a part.
    const fn next_part(self, part: Part) -> Option<Part> {
        if part.number == GROWTHS_MAX || self.grown_at[part.number] == 0 {
            return None;
        }
        let (number, first) = (part.number + 1, part.first + part.segments);
        let segments = self.segments_before(number).saturating_sub(first);
        Some(Part { number, start: self.part_end(part), first, segments, page: part.page + part.pages() })
    }

    /// Segments of the log before the growth of this number, or all.
    const fn segments_before(self, growth: usize) -> u32 {
        if growth < GROWTHS_MAX && self.grown_at[growth] > 0 { self.grown_at[growth] } else { self.segments }
    }

    const fn last_part(self) -> Part {
        self.part_of(self.segments)
    }

    /// The part in which a segment lies; the last one for those behind the end.
    const fn part_of(self, segment: u32) -> Part {
        let mut part = self.first_part();
        while let Some(next) = self.next_part(part) {
            if segment < next.first {
                break;
            }
            part = next;
        }
        part
    }

    const fn part_of_page(self, page: u32) -> Part {
        let mut part = self.first_part();
        while let Some(next) = self.next_part(part) {
            if page < next.page {
                break;
            }
            part = next;
        }
        part
    }

    /// The byte after a part's first copy of the table, or after both if they are interleaved.
    const fn table_end(self, part: Part) -> u64 {
        let pages = match self.layout {
            Layout::One => 2 * part.pages() as u64,
            Layout::Two => part.pages() as u64,
        };
        part.table() + pages * BLOCK as u64
    }

    const fn segments_start(self, part: Part) -> u64 {
        let indexes = if self.indexed { part.segments as u64 * self.index_length() as u64 } else { 0 };
        (self.table_end(part) + indexes).next_multiple_of(Self::SEGMENT_SIZES.0)
    }

    const fn segments_end(self, part: Part) -> u64 {
        self.segments_start(part) + part.segments as u64 * self.segment_size as u64
    }

    const fn part_end(self, part: Part) -> u64 {
        let pages = match self.layout {
            Layout::One => 0,
            Layout::Two => part.pages() as u64,
        };
        self.segments_end(part) + pages * BLOCK as u64
    }
}

impl Part {
    const fn pages(self) -> u32 {
        self.segments.div_ceil(SEGMENTS_PER_PAGE)
    }

    /// First byte of the first page of its table.
    const fn table(self) -> u64 {
        if self.number == 0 { SUPERBLOCKS_LENGTH as u64 } else { self.start }
    }
}
