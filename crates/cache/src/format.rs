//! On-media layout of the caching volume, and why it is so.
//!
//! ```text
//! 0          superblock A   4 KiB
//! 4 KiB      superblock B   4 KiB
//! 8 KiB      segment table: for each page two slots of 4 KiB (A, B)
//! first_segment (the next multiple of 64 KiB)
//!            segments: commit records, appended
//! ```
//!
//! - A commit record is one 4 KiB summary block followed by its data blocks, written as **one** write. The summary
//!   carries a crc32c of every data block, so no barrier is needed between data and metadata: a torn record is
//!   recognised block by block, and one flush commits both.
//! - A record names its epoch, segment, generation and position, so a stale or foreign record is never taken for
//!   one of ours: the epoch is random for every attachment, and a segment's generation in the segment table grows,
//!   durably, before the segment is used again.
//! - Superblocks and table pages are written alternately to two slots; the valid one with the higher sequence
//!   counts, so a torn write leaves the older one.
//! - All integers are little-endian.

use std::fmt;

use crate::planted::{Bug, planted};
use surgetank_model::units::{KIB, MIB};

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
}

/// One page of the segment table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SegmentTable {
    /// Number of the page in the table.
    pub page: u32,
    /// Grows with every write of this page; picks the newer of its two slots.
    pub sequence: u64,
    /// Which attachment.
    pub epoch: Epoch,
    /// The generation whose records count, for each segment of this page.
    pub generations: Vec<u32>,
}

/// What a record says of a range of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Data blocks follow the summary.
    Data,
    /// The range reads as zeroes; written as zeroes when drained.
    Zeroes,
    /// The range was discarded; it reads as zeroes and is discarded when drained.
    Discarded,
    /// Data blocks follow, copied from the backing volume by a read: never replayed.
    Copied,
}

impl Content {
    /// Whether data blocks follow the summary.
    #[must_use]
    pub const fn has_data(self) -> bool {
        match self {
            Self::Data | Self::Copied => true,
            Self::Zeroes | Self::Discarded => false,
        }
    }

    const fn code(self) -> u8 {
        match self {
            Self::Data => 1,
            Self::Zeroes => 2,
            Self::Discarded => 3,
            Self::Copied => 4,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Data,
            2 => Self::Zeroes,
            3 => Self::Discarded,
            4 => Self::Copied,
            _ => return None,
        })
    }
}

/// One entry of a summary: a range of the device, in 4 KiB blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// First block of the device.
    pub block: u64,
    /// Blocks.
    pub blocks: u32,
    /// What the range holds.
    pub content: Content,
}

/// The summary block of a commit record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// Which attachment.
    pub epoch: Epoch,
    /// Segment that it lies in.
    pub segment: u32,
    /// The segment's generation.
    pub generation: u32,
    /// 4 KiB block in the segment at which the summary lies; its data follow.
    pub position: u32,
    /// Order of the record in the log; the highest counts for each block of the device.
    pub sequence: u64,
    /// Ranges, in the order of their data.
    pub entries: Vec<Entry>,
    /// crc32c of each data block, in order. Empty until the driver has computed them.
    pub checksums: Vec<u32>,
}

/// A valid record found by a scan: its summary, and which of its data blocks match their checksums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The summary.
    pub summary: Summary,
    /// For each data block: whether its checksum matched.
    pub intact: Vec<bool>,
}

/// A block as it is written.
pub type Block = Box<[u8; BLOCK as usize]>;

/// The crc32c (Castagnoli) that every structure and every data block carries.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Bytes of the area that holds both superblocks.
pub const SUPERBLOCKS_LENGTH: u32 = 2 * BLOCK;

/// Data blocks of one record, at most: 1 MiB.
pub const RECORD_BLOCKS: u32 = 256;

/// Segments whose generations one page of the segment table holds.
pub const SEGMENTS_PER_PAGE: u32 = 1008;

const SUPERBLOCK_MAGIC: [u8; 8] = *b"SRGTSUPR";
const TABLE_MAGIC: [u8; 8] = *b"SRGTTABL";
const SUMMARY_MAGIC: [u8; 8] = *b"SRGTSUMM";
const VERSION: u32 = 1;

/// Sequences, generations and block numbers beyond these were not written by us: counting on from them would overflow.
const SEQUENCE_MAX: u64 = 1 << 62;
const GENERATION_MAX: u32 = 1 << 31;
const DEVICE_BLOCKS_MAX: u64 = 1 << 50;

/// All structures begin alike: magic (8), crc32c of the block with this field zero (4), version (4), epoch (16).
const HEADER: usize = 32;
const SUMMARY_HEADER: usize = 64;
const ENTRY_LENGTH: usize = 12;
const TABLE_HEADER: usize = 48;

const _: () = assert!(TABLE_HEADER + 4 * SEGMENTS_PER_PAGE as usize <= BLOCK as usize);

/// Writes integers one after the other.
struct Writer {
    block: Block,
    at: usize,
}

impl Writer {
    fn new(magic: [u8; 8], epoch: Epoch) -> Self {
        let mut writer = Self { block: Box::new([0; BLOCK as usize]), at: 0 };
        writer.put(&magic);
        writer.put(&[0; 4]);
        writer.put(&VERSION.to_le_bytes());
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
    /// A reader after the common header, with the epoch, if magic, version and checksum are right.
    fn open(block: &'a [u8], magic: [u8; 8]) -> Option<(Self, Epoch)> {
        let block = block.get(..BLOCK as usize)?;
        if block[..8] != magic || block[12..16] != VERSION.to_le_bytes() {
            return None;
        }
        let stored = u32::from_le_bytes(block[8..12].try_into().ok()?);
        let crc = crc32c::crc32c_append(checksum(&block[..8]), &[0; 4]);
        if crc32c::crc32c_append(crc, &block[12..]) != stored {
            return None;
        }
        let epoch = Epoch(block[16..HEADER].try_into().ok()?);
        Some((Self { bytes: &block[HEADER..] }, epoch))
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
        let mut writer = Writer::new(SUPERBLOCK_MAGIC, self.epoch);
        writer.put(&self.sequence.to_le_bytes());
        let state: u32 = match self.state {
            LogState::Active => 1,
            LogState::Clean => 2,
        };
        writer.put(&state.to_le_bytes());
        writer.put(&self.segment_size.to_le_bytes());
        writer.put(&self.segments.to_le_bytes());
        writer.put(&self.device_size.to_le_bytes());
        writer.seal()
    }

    /// What a block holds, if it is a valid superblock.
    #[must_use]
    pub fn decode(block: &[u8]) -> Option<Self> {
        let (mut reader, epoch) = Reader::open(block, SUPERBLOCK_MAGIC)?;
        let sequence = reader.u64()?;
        let state = match reader.u32()? {
            1 => LogState::Active,
            2 => LogState::Clean,
            _ => return None,
        };
        let (segment_size, segments, device_size) = (reader.u32()?, reader.u32()?, reader.u64()?);
        let geometry = Geometry { segment_size, segments };
        let sound = geometry.is_sound() && sequence <= SEQUENCE_MAX;
        sound.then_some(Self { sequence, epoch, state, device_size, segment_size, segments })
    }

    /// The log's geometry.
    #[must_use]
    pub const fn geometry(&self) -> Geometry {
        Geometry { segment_size: self.segment_size, segments: self.segments }
    }

    /// Where the superblock of this sequence is written: the slots alternate.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        (self.sequence % 2) * BLOCK as u64
    }
}

/// The valid superblock of the higher sequence among the two slots at the start of a caching volume.
#[must_use]
pub fn choose_superblock(area: &[u8]) -> Option<Superblock> {
    area.chunks(BLOCK as usize).take(2).filter_map(Superblock::decode).max_by_key(|superblock| superblock.sequence)
}

impl SegmentTable {
    /// The block to write.
    #[must_use]
    pub fn encode(&self) -> Block {
        let mut writer = Writer::new(TABLE_MAGIC, self.epoch);
        writer.put(&self.sequence.to_le_bytes());
        writer.put(&self.page.to_le_bytes());
        writer.put(&(self.generations.len() as u32).to_le_bytes());
        for generation in &self.generations {
            writer.put(&generation.to_le_bytes());
        }
        writer.seal()
    }

    /// What a block holds, if it is a valid page.
    #[must_use]
    pub fn decode(block: &[u8]) -> Option<Self> {
        let (mut reader, epoch) = Reader::open(block, TABLE_MAGIC)?;
        let (sequence, page, count) = (reader.u64()?, reader.u32()?, reader.u32()?);
        if count > SEGMENTS_PER_PAGE || sequence > SEQUENCE_MAX {
            return None;
        }
        let generations = (0..count)
            .map(|_| reader.u32().filter(|&generation| generation <= GENERATION_MAX))
            .collect::<Option<_>>()?;
        Some(Self { page, sequence, epoch, generations })
    }

    /// Where the page of this sequence is written: its two slots alternate.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        SUPERBLOCKS_LENGTH as u64 + (self.page as u64 * 2 + self.sequence % 2) * BLOCK as u64
    }
}

/// Reads the table area: for each page the valid slot of this epoch with the higher sequence.
/// `None` if a page has no valid slot.
#[must_use]
pub fn read_table(area: &[u8], epoch: Epoch, segments: u32) -> Option<Vec<SegmentTable>> {
    let pages = segments.div_ceil(SEGMENTS_PER_PAGE);
    let mut slots = area.chunks(BLOCK as usize);
    (0..pages)
        .map(|page| {
            let expected = (segments - page * SEGMENTS_PER_PAGE).min(SEGMENTS_PER_PAGE) as usize;
            slots
                .by_ref()
                .take(2)
                .filter_map(SegmentTable::decode)
                .filter(|table| table.epoch == epoch && table.page == page && table.generations.len() == expected)
                .max_by_key(|table| table.sequence)
        })
        .collect()
}

impl Summary {
    /// Whether a summary has room for this many entries and data blocks.
    #[must_use]
    pub const fn fits(entries: usize, data_blocks: usize) -> bool {
        SUMMARY_HEADER + entries * ENTRY_LENGTH + data_blocks * 4 <= BLOCK as usize
    }

    /// Data blocks that its entries announce.
    #[must_use]
    pub fn data_blocks(&self) -> u32 {
        self.entries.iter().filter(|entry| entry.content.has_data()).map(|entry| entry.blocks).sum()
    }

    /// The block to write. Its checksums have been computed: one for each data block.
    #[must_use]
    pub fn encode(&self) -> Block {
        debug_assert_eq!(self.checksums.len(), self.data_blocks() as usize);
        let mut writer = Writer::new(SUMMARY_MAGIC, self.epoch);
        writer.put(&self.sequence.to_le_bytes());
        writer.put(&self.segment.to_le_bytes());
        writer.put(&self.generation.to_le_bytes());
        writer.put(&self.position.to_le_bytes());
        writer.put(&(self.entries.len() as u16).to_le_bytes());
        writer.put(&(self.checksums.len() as u16).to_le_bytes());
        writer.at = SUMMARY_HEADER;
        for entry in &self.entries {
            writer.put(&(entry.block << 8 | u64::from(entry.content.code())).to_le_bytes());
            writer.put(&entry.blocks.to_le_bytes());
        }
        for checksum in &self.checksums {
            writer.put(&checksum.to_le_bytes());
        }
        writer.seal()
    }

    /// What a block holds, if it is a valid summary.
    #[must_use]
    pub fn decode(block: &[u8]) -> Option<Self> {
        let (mut reader, epoch) = Reader::open(block, SUMMARY_MAGIC)?;
        let sequence = reader.u64()?;
        let (segment, generation, position) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let (entries, data_blocks) = (usize::from(reader.u16()?), usize::from(reader.u16()?));
        if !Self::fits(entries, data_blocks) || sequence > SEQUENCE_MAX {
            return None;
        }
        reader.bytes = &block[SUMMARY_HEADER..BLOCK as usize];
        let entries = (0..entries)
            .map(|_| {
                let (packed, blocks) = (reader.u64()?, reader.u32()?);
                let content = Content::from_code((packed & 0xff) as u8)?;
                let block = packed >> 8;
                (blocks > 0 && block < DEVICE_BLOCKS_MAX).then_some(Entry { block, blocks, content })
            })
            .collect::<Option<Vec<_>>>()?;
        let announced: u64 =
            entries.iter().filter(|entry| entry.content.has_data()).map(|entry| u64::from(entry.blocks)).sum();
        if announced != data_blocks as u64 {
            return None;
        }
        let checksums = (0..data_blocks).map(|_| reader.u32()).collect::<Option<_>>()?;
        Some(Self { epoch, segment, generation, position, sequence, entries, checksums })
    }
}

/// Finds the valid records of a segment. A hole (a record that never arrived, or only in part) does not end the scan:
/// what follows it counts.
#[must_use]
pub fn scan_segment(bytes: &[u8], epoch: Epoch, segment: u32, generation: u32) -> Vec<Record> {
    let blocks: Vec<&[u8]> = bytes.chunks_exact(BLOCK as usize).collect();
    let mut records = Vec::new();
    let mut position = 0;
    while position < blocks.len() {
        let record = Summary::decode(blocks[position]).filter(|summary| {
            summary.epoch == epoch
                && summary.segment == segment
                && summary.generation == generation
                && summary.position as usize == position
                && position + summary.checksums.len() < blocks.len()
        });
        if record.is_none() && planted(Bug::StopAtFirstHole) {
            break;
        }
        position += 1;
        if let Some(summary) = record {
            let data = &blocks[position..position + summary.checksums.len()];
            let matches = |(block, crc): (&&[u8], &u32)| checksum(block) == *crc || planted(Bug::DataChecksumIgnored);
            let intact = data.iter().zip(&summary.checksums).map(matches).collect();
            // Copies may be left from before the segment was used for records, which may lie among them.
            if summary.entries.iter().any(|entry| entry.content != Content::Copied) {
                position += summary.checksums.len();
            }
            records.push(Record { summary, intact });
        }
    }
    records
}

/// How a caching volume is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of a segment: a power of two.
    pub segment_size: u32,
    /// Segments in the log.
    pub segments: u32,
}

impl Geometry {
    /// Bytes of the smallest and largest segment.
    const SEGMENT_SIZES: (u64, u64) = (64 * KIB, 16 * MIB);
    /// A log of fewer segments cannot keep its reserve and still be of use.
    const SEGMENTS_MIN: u64 = 8;

    /// The division of a volume of `size` bytes; `None` if it is too small.
    ///
    /// Of `n` blocks in segments of `s`, summaries take `n ÷ s` (as long as a segment is no longer than a record), and
    /// three segments are lost: the reserve, and the one that the header displaces. The least of both together is at
    /// `s = √(n ÷ 3)`, here with half a power of two for rounding: 1 % of 512 MiB.
    #[must_use]
    pub fn of_volume(size: u64) -> Option<Self> {
        let (smallest, largest) = Self::SEGMENT_SIZES;
        let blocks = (size / u64::from(BLOCK) * 2 / 3).isqrt();
        let segment_size = 1 << (blocks * u64::from(BLOCK)).clamp(smallest, largest).ilog2();
        // Of a volume of more than 16 TiB the rest is not used.
        let segments_max = u64::from(u32::MAX - 1) * u64::from(BLOCK) / segment_size;
        let mut segments = (size / segment_size).min(segments_max);
        while segments >= Self::SEGMENTS_MIN {
            let geometry = Self { segment_size: segment_size as u32, segments: u32::try_from(segments).ok()? };
            if geometry.end() <= size {
                return geometry.is_sound().then_some(geometry);
            }
            segments -= 1;
        }
        None
    }

    /// Whether block numbers of the log fit 32 bits and the segment size is one that `of_volume` gives.
    fn is_sound(self) -> bool {
        let (smallest, largest) = Self::SEGMENT_SIZES;
        self.segment_size.is_power_of_two()
            && (smallest..=largest).contains(&u64::from(self.segment_size))
            && u64::from(self.segments) >= Self::SEGMENTS_MIN
            && u64::from(self.segments) * u64::from(self.segment_blocks()) < u64::from(u32::MAX)
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

    /// 4 KiB blocks in a segment.
    #[must_use]
    pub const fn segment_blocks(self) -> u32 {
        self.segment_size / BLOCK
    }

    /// Pages of the segment table.
    #[must_use]
    pub const fn table_pages(self) -> u32 {
        self.segments.div_ceil(SEGMENTS_PER_PAGE)
    }

    /// Bytes of the table area.
    #[must_use]
    pub const fn table_length(self) -> u64 {
        self.table_pages() as u64 * 2 * BLOCK as u64
    }

    /// First byte of a segment on the volume.
    #[must_use]
    pub const fn segment_offset(self, segment: u32) -> u64 {
        let header = SUPERBLOCKS_LENGTH as u64 + self.table_length();
        header.next_multiple_of(Self::SEGMENT_SIZES.0) + segment as u64 * self.segment_size as u64
    }

    /// The byte after the last segment.
    #[must_use]
    pub const fn end(self) -> u64 {
        self.segment_offset(self.segments)
    }
}

#[cfg(test)]
mod tests;
