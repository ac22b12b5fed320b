//! On-media layout of the caching volume, and why it is so.
//!
//! ```text
//! 0          superblock A   4 KiB
//! 4 KiB      superblock B   4 KiB
//! 8 KiB      segment table, first copy: a page of 4 KiB for each 1008 segments
//!            an index for each segment (on volumes with segments of 1 MiB or more): 16 bytes a block
//! first_segment (the next multiple of 64 KiB)
//!            segments: commit records, appended
//! end        segment table, second copy
//! ```
//!
//! - A commit record is one 4 KiB summary block followed by its data blocks, written as **one** write. The summary
//!   carries a crc32c of every data block, so no barrier is needed between data and metadata: a torn record is
//!   recognised block by block, and one flush commits both.
//! - A record names its epoch, segment, generation and position, so a stale or foreign record is never taken for
//!   one of ours: the epoch is random for every attachment, and a segment's generation in the segment table grows,
//!   durably, before the segment is used again.
//! - A summary names the record before it and repeats that record's entries and checksums: one unreadable summary loses
//!   nothing, and a recovery knows of every record that it does not find. A summary also carries the highest sequence that
//!   was known to be durable, so damage to a durable record is told from a record that never arrived whole.
//! - Nothing follows the first record of a segment before that is written, and a record is forced to the media only if all that
//!   completed before it is durable. So a record that was acknowledged as durable and cannot be read lies among as many blocks
//!   behind the last one that was found as may be in flight, or at the start of a segment.
//! - Once all of a full segment is durable, its index is written, then the segment table says so. A superblock names the
//!   segments in which there may be records without an index, before there are any. So a recovery reads the indexes and a
//!   few segments; one whose index is damaged is read itself.
//! - Superblocks are written alternately to two slots; the valid one with the higher sequence counts, so a torn write
//!   leaves the older one. A page of the segment table is written to one copy, made durable, then to the other: segments
//!   are reused only when both name the new generations, so either copy alone is enough.
//! - A volume that grows gets a part behind its old end: pages of the table, indexes, segments, the second copy of the pages.
//!   What was there stays where it is. The pages are durable before a superblock names the part, and both superblocks name it,
//!   durably, before a record goes there: so either one alone is enough, and a crash leaves the old division or the new one.
//!   Such a superblock is of version 3, so that a program that does not know of growth refuses the volume rather than miss
//!   what lies in the part.
//! - All integers are little-endian.
//!
//! Volumes of [`Layout::One`] have both slots of a table page side by side after the superblocks, written alternately, and
//! summaries without the record before. They are recovered and drained; new attachments are always of [`Layout::Two`].

mod geometry;
mod records;
mod segment_index;
mod summary;

use std::fmt;

pub use surgetank_model::volume::GROWTHS_MAX;

pub use self::geometry::{Geometry, TableCopy};
pub use self::records::{Flaw, Gap, Records, View, scan_segment};
pub use self::segment_index::{decode_index, encode_index};
pub use self::summary::{Content, Entry, Place, Repeat, Sealer, Summary};

/// The block size of the log: every record and every data block is a multiple of it, in bytes.
pub const BLOCK: u32 = 4096;

/// A random name of one attachment of a caching volume.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Epoch(pub [u8; 16]);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The version of the layout. It is the version field of every structure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// As the first release wrote it.
    One,
    /// Two equal copies of the segment table; summaries name and repeat the record before theirs.
    #[default]
    Two,
}

impl Layout {
    /// The number of the version.
    #[must_use]
    pub const fn version(self) -> u32 {
        match self {
            Self::One => 1,
            Self::Two => 2,
        }
    }
}

/// Where a superblock says the log stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogState {
    /// In use; its records must be replayed after a crash.
    Active,
    /// Released: nothing on it counts. The volume may be deleted.
    Clean,
}

/// The superblock of a caching volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// How the volume is laid out.
    pub layout: Layout,
    /// Grows with every superblock written; picks the newer of the two slots.
    pub sequence: u64,
    /// Which attachment.
    pub epoch: Epoch,
    /// Whether its records count.
    pub state: LogState,
    /// Bytes of the elastic device that it serves.
    pub device_size: u64,
    /// Bytes of a segment: a power of two.
    pub segment_size: u32,
    /// Segments in the log.
    pub segments: u32,
    /// Whether there is a place for the index of each segment.
    pub indexed: bool,
    /// Records up to this sequence were durable when the superblock was written; 0: nothing is known.
    pub durable: u64,
    /// No record follows `last`. Else the log goes on.
    pub closed: bool,
    /// The last record when the log was closed; `None`: there was none.
    pub last: Option<Place>,
    /// Sequences of records that could not be written, in order: nothing in them was acknowledged.
    pub void: Vec<u64>,
    /// The segments in which there may be records and that have no index; `None`: any.
    pub unindexed: Option<Vec<u32>>,
    /// See [`Geometry::grown_at`].
    pub grown_at: [u32; GROWTHS_MAX],
}

/// One page of the segment table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentTable {
    /// How the volume is laid out.
    pub layout: Layout,
    /// Number of the page in the table.
    pub page: u32,
    /// Grows with every change of this page; picks the newer of its two copies.
    pub sequence: u64,
    /// Which attachment.
    pub epoch: Epoch,
    /// The generation whose records count, for each segment of this page.
    pub generations: Vec<u32>,
    /// Whether the segment of that generation has an index.
    pub indexed: Vec<bool>,
}

/// A block as it is written.
pub type Block = Box<[u8; BLOCK as usize]>;

/// The crc32c (Castagnoli) that every structure and every data block carries.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Whether each 4 KiB block of `bytes` has its checksum; false also if their numbers differ.
#[must_use]
pub fn verifies(bytes: &[u8], checksums: &[u32]) -> bool {
    bytes.len() == checksums.len() * BLOCK as usize
        && bytes.chunks_exact(BLOCK as usize).zip(checksums).all(|(block, crc)| checksum(block) == *crc)
}

/// Bytes of the area that holds both superblocks.
pub const SUPERBLOCKS_LENGTH: u32 = 2 * BLOCK;

/// Data blocks of one record, at most: 1 MiB.
pub const RECORD_BLOCKS: u32 = 256;

/// Records in flight, at most: so many may never arrive before one that did.
pub const RECORDS_IN_FLIGHT_MAX: u32 = 8;
/// The blocks that they take.
pub const IN_FLIGHT_BLOCKS_MAX: u32 = RECORDS_IN_FLIGHT_MAX * (1 + RECORD_BLOCKS);

/// Segments whose generations one page of the segment table holds.
pub const SEGMENTS_PER_PAGE: u32 = 1008;

const SUPERBLOCK_MAGIC: [u8; 8] = *b"SRGTSUPR";
const TABLE_MAGIC: [u8; 8] = *b"SRGTTABL";
const SUMMARY_MAGIC: [u8; 8] = *b"SRGTSUMM";
const INDEX_MAGIC: [u8; 8] = *b"SRGTINDX";

/// Sequences, generations and block numbers beyond these were not written by us: counting on from them would overflow.
const SEQUENCE_MAX: u64 = 1 << 62;
const GENERATION_MAX: u32 = INDEXED - 1;
/// In the segment table: the segment has an index.
const INDEXED: u32 = 1 << 31;
const DEVICE_BLOCKS_MAX: u64 = 1 << 50;

/// Records that failed and that a superblock names, at most: more than are ever in flight.
pub const VOID_MAX: usize = 64;

/// Segments without an index that a superblock names, at most.
pub const UNINDEXED_MAX: usize = 512;
/// Instead of their number: any segment.
const UNINDEXED_ANY: u32 = u32::MAX;

/// All structures begin alike: magic (8), crc32c of the block with this field zero (4), version (4), epoch (16).
const HEADER: usize = 32;
const TABLE_HEADER: usize = 48;

/// The version of a superblock of a volume that has grown.
const GROWN_VERSION: u32 = 3;

const _: () = assert!(HEADER + 72 + 8 * VOID_MAX + 4 * UNINDEXED_MAX + 4 * GROWTHS_MAX <= BLOCK as usize);
const _: () = assert!(TABLE_HEADER + 4 * SEGMENTS_PER_PAGE as usize <= BLOCK as usize);

/// Writes integers one after the other.
struct Writer {
    block: Block,
    at: usize,
}

impl Writer {
    fn new(magic: [u8; 8], layout: Layout, epoch: Epoch) -> Self {
        Self::with_version(magic, layout.version(), epoch)
    }

    fn with_version(magic: [u8; 8], version: u32, epoch: Epoch) -> Self {
        let mut writer = Self { block: Box::new([0; BLOCK as usize]), at: 0 };
        writer.put(&magic);
        writer.put(&[0; 4]);
        writer.put(&version.to_le_bytes());
        writer.put(&epoch.0);
        writer
    }

    fn put(&mut self, bytes: &[u8]) {
        self.block[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn seal(mut self) -> Block {
        let crc = checksum(&self.block[..]);
        self.block[8..12].copy_from_slice(&crc.to_le_bytes());
        self.block
    }
}

/// Reads integers one after the other; the block is long enough for what its counts, checked first, announce.
struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    /// A reader after the common header, with layout and epoch, if magic, version and checksum are right.
    fn open(block: &'a [u8], magic: [u8; 8]) -> Option<(Self, Layout, Epoch)> {
        Self::open_long(block.get(..BLOCK as usize)?, magic)
    }

    /// The same of a structure of another length: all of `block`, at least a header.
    fn open_long(block: &'a [u8], magic: [u8; 8]) -> Option<(Self, Layout, Epoch)> {
        let (reader, version, epoch) = Self::open_version(block, magic)?;
        let layout = [Layout::One, Layout::Two].into_iter().find(|layout| layout.version() == version)?;
        Some((reader, layout, epoch))
    }

    /// The same, whatever the version.
    fn open_version(block: &'a [u8], magic: [u8; 8]) -> Option<(Self, u32, Epoch)> {
        if block.len() < HEADER || block[..8] != magic {
            return None;
        }
        let version = u32::from_le_bytes(block[12..16].try_into().ok()?);
        let stored = u32::from_le_bytes(block[8..12].try_into().ok()?);
        let crc = crc32c::crc32c_append(checksum(&block[..8]), &[0; 4]);
        if crc32c::crc32c_append(crc, &block[12..]) != stored {
            return None;
        }
        let epoch = Epoch(block[16..HEADER].try_into().ok()?);
        Some((Self { bytes: &block[HEADER..] }, version, epoch))
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = tail;
        Some(*head)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

impl Superblock {
    /// The block to write.
    #[must_use]
    pub fn encode(&self) -> Block {
        let grown = self.geometry().has_grown();
        let version = if grown { GROWN_VERSION } else { self.layout.version() };
        let mut writer = Writer::with_version(SUPERBLOCK_MAGIC, version, self.epoch);
        writer.put(&self.sequence.to_le_bytes());
        let state: u32 = match self.state {
            LogState::Active => 1,
            LogState::Clean => 2,
        };
        writer.put(&state.to_le_bytes());
        writer.put(&self.segment_size.to_le_bytes());
        writer.put(&self.segments.to_le_bytes());
        writer.put(&self.device_size.to_le_bytes());
        writer.put(&self.durable.to_le_bytes());
        writer.put(&u16::from(self.closed).to_le_bytes());
        writer.put(&u16::from(self.indexed).to_le_bytes());
        summary::put_place(&mut writer, self.last);
        let void = &self.void[..self.void.len().min(VOID_MAX)];
        writer.put(&(void.len() as u32).to_le_bytes());
        void.iter().for_each(|sequence| writer.put(&sequence.to_le_bytes()));
        match self.unindexed.as_ref().filter(|unindexed| unindexed.len() <= UNINDEXED_MAX) {
            Some(unindexed) => {
                writer.put(&(unindexed.len() as u32).to_le_bytes());
                unindexed.iter().for_each(|segment| writer.put(&segment.to_le_bytes()));
            }
            None => writer.put(&UNINDEXED_ANY.to_le_bytes()),
        }
        if grown {
            self.grown_at.iter().for_each(|before| writer.put(&before.to_le_bytes()));
        }
        writer.seal()
    }

    /// What a block holds, if it is a valid superblock.
    #[must_use]
    pub fn decode(block: &[u8]) -> Option<Self> {
        let (mut reader, version, epoch) = Reader::open_version(block.get(..BLOCK as usize)?, SUPERBLOCK_MAGIC)?;
        let layout = match version {
            1 => Layout::One,
            2 | GROWN_VERSION => Layout::Two,
            _ => return None,
        };
        let sequence = reader.u64()?;
        let state = match reader.u32()? {
            1 => LogState::Active,
            2 => LogState::Clean,
            _ => return None,
        };
        let (segment_size, segments, device_size) = (reader.u32()?, reader.u32()?, reader.u64()?);
        // Volumes of the first release have zeroes here.
        let (durable, closed, indexed) = (reader.u64()?, reader.u16()? == 1, reader.u16()? == 1);
        let last = summary::take_place(&mut reader)?;
        let count = reader.u32()? as usize;
        if count > VOID_MAX {
            return None;
        }
        let void = (0..count).map(|_| reader.u64()).collect::<Option<_>>()?;
        let unindexed = match reader.u32()? {
            UNINDEXED_ANY => None,
            count if count as usize > UNINDEXED_MAX => return None,
            count => Some((0..count).map(|_| reader.u32()).collect::<Option<_>>()?),
        };
        let unindexed = unindexed.filter(|_| indexed);
        let mut grown_at = [0; GROWTHS_MAX];
        if version == GROWN_VERSION {
            for before in &mut grown_at {
                *before = reader.u32()?;
            }
            if grown_at[0] == 0 {
                return None;
            }
        }
        let superblock = Self {
            layout,
            sequence,
            epoch,
            state,
            device_size,
            segment_size,
            segments,
            indexed,
            durable,
            closed,
            last,
            void,
            unindexed,
            grown_at,
        };
        let sound = superblock.geometry().is_sound() && [sequence, durable].iter().all(|n| *n <= SEQUENCE_MAX);
        sound.then_some(superblock)
    }

    /// The superblock of an attachment that has just begun: its log is empty.
    #[must_use]
    pub const fn new(epoch: Epoch, geometry: Geometry, device_size: u64) -> Self {
        Self {
            layout: geometry.layout,
            sequence: 1,
            epoch,
            state: LogState::Active,
            device_size,
            segment_size: geometry.segment_size,
            segments: geometry.segments,
            indexed: geometry.indexed,
            durable: 0,
            closed: false,
            last: None,
            void: Vec::new(),
            unindexed: None,
            grown_at: geometry.grown_at,
        }
    }

    /// What a superblock that cannot be read says at least.
    #[must_use]
    pub fn unread(epoch: Epoch, geometry: Geometry, device_size: u64) -> Self {
        // Beyond any that may be there.
        Self { sequence: 1 << 40, ..Self::new(epoch, geometry, device_size) }
    }

    /// The log's geometry.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        let Self { layout, segment_size, segments, indexed, grown_at, .. } = *self;
        Geometry { layout, segment_size, segments, indexed, grown_at }
    }

    /// Takes note that the volume has grown to this division.
    pub(crate) const fn grow(&mut self, geometry: Geometry) {
        self.segments = geometry.segments;
        self.grown_at = geometry.grown_at;
    }

    /// The same of a volume that is as large as when it was adopted, for a planted bug.
    pub(crate) fn forget_growth(self) -> Self {
        let segments = if self.geometry().has_grown() { self.grown_at[0] } else { self.segments };
        Self { segments, grown_at: [0; GROWTHS_MAX], ..self }
    }

    /// The first byte of each segment: where a log that is not empty has a record in some of them.
    pub fn segment_offsets(&self) -> impl Iterator<Item = u64> + use<> {
        let geometry = self.geometry();
        (0..self.segments).map(move |segment| geometry.segment_offset(segment))
    }

    /// Whether a block is the beginning of a record of this attachment.
    #[must_use]
    pub fn has_written(&self, block: &[u8]) -> bool {
        Summary::decode(block).is_some_and(|summary| summary.epoch == self.epoch)
    }

    /// Where the superblock of this sequence is written: the slots alternate.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        (self.sequence % 2) * BLOCK as u64
    }
}

/// The valid superblock of the higher sequence among the two slots at the start of a caching volume. If the other slot may
/// have held a newer one, the log counts as open.
#[must_use]
pub fn choose_superblock(area: &[u8]) -> Option<Superblock> {
    let slots = area.chunks(BLOCK as usize).take(2).map(Superblock::decode);
    choose_among(&slots.collect::<Vec<_>>())
}

/// The same of what the slots hold.
#[must_use]
pub fn choose_among(slots: &[Option<Superblock>]) -> Option<Superblock> {
    let newest = slots.iter().flatten().max_by_key(|superblock| superblock.sequence)?;
    let before = |other: &Superblock| other.epoch == newest.epoch && other.sequence + 1 == newest.sequence;
    let closed = newest.closed && slots.iter().flatten().any(before);
    Some(Superblock { closed, ..newest.clone() })
}

impl SegmentTable {
    /// The block to write.
    #[must_use]
    pub fn encode(&self) -> Block {
        let mut writer = Writer::new(TABLE_MAGIC, self.layout, self.epoch);
        writer.put(&self.sequence.to_le_bytes());
        writer.put(&self.page.to_le_bytes());
        writer.put(&(self.generations.len() as u32).to_le_bytes());
        for (generation, indexed) in self.generations.iter().zip(&self.indexed) {
            let generation = generation | if *indexed { INDEXED } else { 0 };
            writer.put(&generation.to_le_bytes());
        }
        writer.seal()
    }

    /// What a block holds, if it is a valid page.
    #[must_use]
    pub fn decode(block: &[u8]) -> Option<Self> {
        let (mut reader, layout, epoch) = Reader::open(block, TABLE_MAGIC)?;
        let (sequence, page, count) = (reader.u64()?, reader.u32()?, reader.u32()?);
        if count > SEGMENTS_PER_PAGE || sequence > SEQUENCE_MAX {
            return None;
        }
        let states = (0..count).map(|_| reader.u32()).collect::<Option<Vec<_>>>()?;
        // A generation can be counted on from.
        let sound = |state: &u32| (state & !INDEXED) < GENERATION_MAX && (layout == Layout::Two || *state < INDEXED);
        states.iter().all(sound).then(|| Self {
            layout,
            page,
            sequence,
            epoch,
            generations: states.iter().map(|state| state & !INDEXED).collect(),
            indexed: states.iter().map(|state| state & INDEXED != 0).collect(),
        })
    }
}

/// What bytes of a caching volume are to be read as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parse {
    /// A superblock.
    Superblock,
    /// A copy of a page of the segment table of an attachment.
    Table {
        /// Which attachment.
        epoch: Epoch,
        /// How the volume is divided.
        geometry: Geometry,
        /// Which page.
        page: u32,
    },
    /// A whole segment.
    Segment {
        /// Which attachment.
        epoch: Epoch,
        /// Which segment.
        segment: u32,
        /// The generation that its records must carry.
        generation: u32,
        /// Blocks that could not be read, in order.
        unreadable: Vec<u32>,
        /// What records in other segments repeat of some in this segment.
        repeats: Vec<Repeat>,
    },
    /// The indexes of segments that follow each other.
    Indexes {
        /// Which attachment.
        epoch: Epoch,
        /// How the volume is divided.
        geometry: Geometry,
        /// The first segment.
        first: u32,
        /// The generations that the records in each must carry.
        generations: Vec<u32>,
    },
}

/// What bytes of a caching volume hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// The superblock, if it is valid.
    Superblock(Option<Superblock>),
    /// The page, if it is a valid one of that attachment and number.
    Table(Option<SegmentTable>),
    /// The segment's records.
    Segment(Records),
    /// What the valid ones of the indexes say, in order.
    Indexes(Vec<Option<Records>>),
}

impl Parse {
    /// Reads bytes as this.
    #[must_use]
    pub fn read(&self, bytes: &[u8]) -> Parsed {
        match self {
            Self::Superblock => Parsed::Superblock(Superblock::decode(bytes)),
            Self::Table { epoch, geometry, page } => Parsed::Table(SegmentTable::decode(bytes).filter(|table| {
                let expected = geometry.segments_of_page(*page).len();
                table.epoch == *epoch
                    && table.page == *page
                    && table.layout == geometry.layout
                    && table.generations.len() == expected
            })),
            Self::Segment { epoch, segment, generation, unreadable, repeats } => {
                Parsed::Segment(scan_segment(bytes, *epoch, *segment, *generation, unreadable, repeats))
            }
            Self::Indexes { epoch, geometry, first, generations } => {
                let slots = bytes.chunks_exact(geometry.index_length() as usize);
                let slots = slots.zip(generations).zip(*first..);
                let blocks = geometry.segment_blocks();
                Parsed::Indexes(
                    slots
                        .map(|((slot, &generation), segment)| decode_index(slot, *epoch, segment, generation, blocks))
                        .collect(),
                )
            }
        }
    }
}

#[cfg(test)]
mod tests;
