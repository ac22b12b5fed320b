//! What the blocks of the log say of themselves (pure): each record names its pool, its benefactor and its own place beside what it has, so that
//! it is never taken for another's, and a file of segments can be read without anything else.

use bytes::Bytes;
use surgetank_pool_core::benefactor::holdings::{Entry, GroupOf, Instance, Table};
use surgetank_pool_core::benefactor::segments::At;
use surgetank_pool_core::id::{BenefactorId, Inode, SessionId, Version};

use crate::wire::{Wire, wire_enum, wire_struct};

/// Bytes of a record before what it has; its checksum is in the last four.
pub(super) const HEADER: usize = 128;
/// What a header begins with, and the format's version.
const MAGIC: (u32, u32) = (u32::from_le_bytes(*b"STCL"), 1);

/// Whose log it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The pool's number.
    pub pool: u64,
    /// The benefactor's.
    pub benefactor: BenefactorId,
}

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// The first block of a filling.
    Segment,
    /// All records before it in the segment were flushed.
    Closed,
    /// A chunk: of which file, which writing.
    Chunk(Inode, Instance),
    /// A table: of which group and version, and who sealed it.
    Table(GroupOf, Version, SessionId),
}

/// The front of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) owner: Owner,
    pub(super) segment: u32,
    pub(super) filling: u64,
    pub(super) offset: u64,
    pub(super) what: What,
    /// Bytes behind the header, and their CRC32C.
    pub(super) length: u32,
    pub(super) crc: u32,
}

wire_struct! {
    Owner { pool, benefactor }
    Header { owner, segment, filling, offset, what, length, crc }
}

wire_enum! {
    What { 0 = Segment, 1 = Closed, 2 = Chunk(inode, instance), 3 = Table(of, version, by), }
}

impl Header {
    /// A record's front, from its place.
    pub(super) fn new(owner: Owner, at: At, what: What, content: &[u8]) -> Self {
        let length = u32::try_from(content.len()).expect("a record is smaller than a segment");
        let (segment, filling, offset) = (at.segment, at.filling, at.offset);
        Self { owner, segment, filling, offset, what, length, crc: crc32c::crc32c(content) }
    }

    /// All of the record, with zeros up to the next block.
    pub(super) fn with(&self, content: &[u8]) -> Vec<u8> {
        let mut record = Vec::with_capacity(length(content.len()));
        (MAGIC, *self).put(&mut record);
        record.resize(HEADER - 4, 0);
        record.extend_from_slice(&crc32c::crc32c(&record).to_le_bytes());
        record.extend_from_slice(content);
        record.resize(length(content.len()), 0);
        record
    }

    /// Reads one; `None`: it is none, or damaged.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (front, crc) = bytes.get(..HEADER)?.split_at(HEADER - 4);
        if crc32c::crc32c(front).to_le_bytes() != crc {
            return None;
        }
        let mut front = Bytes::copy_from_slice(front);
        let (magic, header) = <((u32, u32), Self)>::take(&mut front).ok()?;
        (magic == MAGIC).then_some(header)
    }

    /// The chunk, if it is one.
    pub(super) fn chunk(&self) -> Option<(Inode, Entry)> {
        match self.what {
            What::Chunk(inode, instance) => Some((inode, Entry { instance, length: self.length, crc: self.crc })),
            _ => None,
        }
    }

    /// Whether the content is what the header says.
    pub(super) fn is(&self, content: &[u8]) -> bool {
        content.len() == self.length as usize && crc32c::crc32c(content) == self.crc
    }
}

/// Bytes of a record with so many bytes of content, whole blocks.
pub(super) fn length(content: usize) -> usize {
    (HEADER + content).next_multiple_of(surgetank_pool_core::benefactor::segments::BLOCK as usize)
}

/// What a table's record has.
pub(super) fn of_table(table: &Table) -> Vec<u8> {
    table.to_bytes()
}

/// The table that it has.
pub(super) fn table(content: Vec<u8>) -> Option<Table> {
    Table::from_bytes(Bytes::from(content)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_any_change_is_seen() {
        let owner = Owner { pool: u64::MAX, benefactor: BenefactorId(7) };
        let at = At { filling: 9, segment: 3, offset: 8192, length: 8192 };
        let instance = Instance { session: SessionId(5), number: 6 };
        let whats = [
            What::Segment,
            What::Closed,
            What::Chunk(Inode(u64::MAX), instance),
            What::Table(GroupOf { inode: Inode(1), group: 2 }, Version(3), SessionId(4)),
        ];
        for what in whats {
            let content = vec![1; 5000];
            let header = Header::new(owner, at, what, &content);
            let record = header.with(&content);
            assert_eq!(record.len(), 8192);
            assert_eq!(Header::read(&record), Some(header));
            assert!(header.is(&record[HEADER..HEADER + 5000]));
            for byte in 0..HEADER {
                let mut changed = record.clone();
                changed[byte] ^= 4;
                assert_eq!(Header::read(&changed), None, "byte {byte}");
            }
            assert!(!header.is(&record[HEADER + 1..HEADER + 5001 + 1]));
        }
        assert_eq!(Header::read(&[0; HEADER]), None);
        assert_eq!(Header::read(b"short"), None);
    }
}
