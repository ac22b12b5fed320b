//! On-media layout of the caching volume, and why it is so.
//!
//! ```text
//! 0          superblock A   4 KiB
//! 4 KiB      superblock B   4 KiB
//! 8 KiB      segment table: for each page two slots of 4 KiB (A, B)
//! first_segment (aligned to the segment size, at most one segment in)
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
