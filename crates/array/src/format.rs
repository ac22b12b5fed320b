//! What is on a member of an array, and why it is so.
//!
//! ```text
//! 0            superblock A   4 KiB
//! 4 KiB        superblock B   4 KiB
//! 8 KiB        bitmap, first copy: pages of 4 KiB, a bit for each region of this member
//!              bitmap, second copy
//! data_offset  (the next multiple of 64 KiB) the member's chunks
//! ```
//!
//! - Superblocks are written alternately to two slots; the valid one with the higher sequence counts, so a torn write leaves the
//!   older one.
//! - Every superblock names the *members of all slots* and a *generation*. The generation grows whenever the array starts and
//!   whenever its membership changes. The list of the highest generation counts: a member that it does not name is
//!   superseded, and whoever has only superseded members is told which volume is missing. So a replaced member is never taken
//!   for its successor, also if it was out of reach when it was replaced.
//! - A *joining* member says so, and never counts. It goes on from where it was only if its generation is the newest: then the
//!   array was not served without it.
//! - The bitmap of an active member says which regions were ever written. A region's bit is durable before the first byte of it
//!   is written, and cleared when a discard of the whole region is durable. So a region without a bit reads as zeroes on the
//!   old member and on a new one, which is blank, and need not be copied.
//! - The bitmap of a joining member says which regions are durably the same on both members. A region's bit is durably gone
//!   before it is written to both. So a copy is resumed after a crash without one byte of doubt: what has no bit is copied
//!   again, from the member that counts.
//! - A page of the bitmap is written alternately to its two copies. If either copy is damaged or torn, the newer one may be the
//!   one that is missing: then all regions of the page count as written, or as not copied. That costs a copy, never data.
//! - A volume joins *blank*: what was never written on it reads as zeroes.
//! - All integers are little-endian. Magic, crc32c and version begin every structure.

use std::fmt;

use crate::geometry::Geometry;

/// Bytes of a superblock and of a page of the bitmap.
pub const BLOCK: u32 = 4096;
/// Bytes of the area that holds both superblocks.
pub const SUPERBLOCKS_LENGTH: u32 = 2 * BLOCK;
/// Members of an array, at most.
pub const MEMBERS_MAX: u32 = 128;
/// Pages of a bitmap, at most.
pub const PAGES_MAX: u32 = 1024;
/// Regions of a page of the bitmap.
pub const BITS_PER_PAGE: u32 = 8 * (BLOCK - PAGE_HEADER as u32);

const VERSION: u32 = 1;
const SUPERBLOCK_MAGIC: [u8; 8] = *b"SRGTARRY";
const PAGE_MAGIC: [u8; 8] = *b"SRGTBITS";
/// Magic (8), crc32c of the block with this field zero (4), version (4), array (16), member (16), sequence (8).
const HEADER: usize = 56;
/// Page and kind follow.
const PAGE_HEADER: usize = 64;
/// Generations beyond this were not written by us: two million starts.
const GENERATION_MAX: u64 = 1 << 41;
/// Numbers beyond this were not written by us: counting on from them would overflow.
const NUMBER_MAX: u64 = 1 << 62;

const _: () = assert!(HEADER + 56 + 16 * MEMBERS_MAX as usize <= BLOCK as usize);
const _: () = assert!(PAGE_HEADER == HEADER + 8);

/// The random name of an array.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArrayId(pub [u8; 16]);

/// The random name of a member.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MemberId(pub [u8; 16]);

fn hexadecimal(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl fmt::Display for ArrayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hexadecimal(f, &self.0)
    }
}

impl fmt::Debug for ArrayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hexadecimal(f, &self.0)
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hexadecimal(f, &self.0)
    }
}

impl fmt::Debug for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hexadecimal(f, &self.0)
    }
}

/// What a member is to its array.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemberState {
    /// It has a slot's data.
    Active,
    /// It is being given a slot's data.
    Joining,
    /// It was replaced; nothing on it counts.
    Retired,
}

/// The superblock of a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Which array.
    pub array: ArrayId,
    /// Which member.
    pub member: MemberId,
    /// Grows with every superblock written to this member; picks the newer of the two slots.
    pub sequence: u64,
    /// Grows with every start of the array and every change of its membership.
    pub generation: u64,
    /// Its slot.
    pub slot: u32,
    /// What it is to the array.
    pub state: MemberState,
    /// How the array is divided.
    pub geometry: Geometry,
    /// The members of all slots, in order.
    pub members: Vec<MemberId>,
}

/// What the bits of a page say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The region was ever written.
    Written,
    /// The region of a joining member is durably the same as that of the active one.
    Copied,
}

/// A page of a member's bitmap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Which array.
    pub array: ArrayId,
    /// Which member.
    pub member: MemberId,
    /// Grows with every version of this page; picks the newer of its two copies.
    pub sequence: u64,
    /// Number of the page.
    pub page: u32,
    /// What its bits say.
    pub kind: Kind,
    /// [`BITS_PER_PAGE`] bits, the lowest of each word first.
    pub bits: Box<[u64]>,
}

/// What was read of a bitmap: the blocks of both copies, as far as they are valid pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pages(pub Vec<Option<Page>>);

impl Pages {
    /// What the bytes of a bitmap hold, block by block.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Self {
        Self(bytes.chunks(BLOCK as usize).map(Page::decode).collect())
    }
}

/// Writes integers one after the other.
struct Writer(Vec<u8>);

impl Writer {
    fn new(magic: [u8; 8], array: ArrayId, member: MemberId, sequence: u64) -> Self {
        let mut bytes = Vec::with_capacity(BLOCK as usize);
        bytes.extend_from_slice(&magic);
        bytes.extend_from_slice(&[0; 4]);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&array.0);
        bytes.extend_from_slice(&member.0);
        bytes.extend_from_slice(&sequence.to_le_bytes());
        Self(bytes)
    }

    fn u32(&mut self, number: u32) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn u64(&mut self, number: u64) {
        self.0.extend_from_slice(&number.to_le_bytes());
    }

    fn seal(mut self) -> Box<[u8]> {
        self.0.resize(BLOCK as usize, 0);
        let crc = crc32c::crc32c(&self.0);
        self.0[8..12].copy_from_slice(&crc.to_le_bytes());
        self.0.into_boxed_slice()
    }
}

/// Reads integers one after the other.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// A reader after the common header, with what that names, if magic, version and checksum are right.
    fn open(block: &'a [u8], magic: [u8; 8]) -> Option<(Self, ArrayId, MemberId, u64)> {
        let block = block.get(..BLOCK as usize)?;
        let mut reader = Self(block.strip_prefix(&magic)?);
        let (stored, version) = (reader.u32()?, reader.u32()?);
        let crc = crc32c::crc32c_append(crc32c::crc32c(&magic), &[0; 4]);
        if version != VERSION || crc32c::crc32c_append(crc, &block[12..]) != stored {
            return None;
        }
        let (array, member, sequence) = (ArrayId(reader.take()?), MemberId(reader.take()?), reader.u64()?);
        (sequence <= NUMBER_MAX).then_some((reader, array, member, sequence))
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
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
    pub fn encode(&self) -> Box<[u8]> {
        let mut writer = Writer::new(SUPERBLOCK_MAGIC, self.array, self.member, self.sequence);
        writer.u64(self.generation);
        writer.u32(self.slot);
        writer.u32(match self.state {
            MemberState::Active => 1,
            MemberState::Joining => 2,
            MemberState::Retired => 3,
        });
        let geometry = &self.geometry;
        for number in
            [geometry.members, geometry.logical_block, geometry.chunk, geometry.region, geometry.bitmap_pages, 0]
        {
            writer.u32(number);
        }
        writer.u64(geometry.data_length);
        self.members.iter().for_each(|member| writer.0.extend_from_slice(&member.0));
        writer.seal()
    }

    /// What a block holds, if it is a valid superblock.
    #[must_use]
    pub fn decode(block: &[u8]) -> Option<Self> {
        let (mut reader, array, member, sequence) = Reader::open(block, SUPERBLOCK_MAGIC)?;
        let (generation, slot) = (reader.u64()?, reader.u32()?);
        let state = match reader.u32()? {
            1 => MemberState::Active,
            2 => MemberState::Joining,
            3 => MemberState::Retired,
            _ => return None,
        };
        let (members, logical_block, chunk, region) = (reader.u32()?, reader.u32()?, reader.u32()?, reader.u32()?);
        let (bitmap_pages, _) = (reader.u32()?, reader.u32()?);
        let data_length = reader.u64()?;
        let geometry = Geometry { members, logical_block, chunk, region, bitmap_pages, data_length };
        if !geometry.is_sound() || slot >= members || generation > GENERATION_MAX {
            return None;
        }
        let members = (0..members).map(|_| reader.take().map(MemberId)).collect::<Option<Vec<_>>>()?;
        Some(Self { array, member, sequence, generation, slot, state, geometry, members })
    }

    /// First byte of its place on the member.
    #[must_use]
    pub const fn offset(&self) -> u64 {
        (self.sequence & 1) * BLOCK as u64
    }

    /// Whether a block begins as a superblock does, valid or not.
    #[must_use]
    pub fn is_marked(block: &[u8]) -> bool {
        block.starts_with(&SUPERBLOCK_MAGIC)
    }
}

impl Page {
    /// The block to write.
    #[must_use]
    pub fn encode(&self) -> Box<[u8]> {
        let mut writer = Writer::new(PAGE_MAGIC, self.array, self.member, self.sequence);
        writer.u32(self.page);
        writer.u32(match self.kind {
            Kind::Written => 1,
            Kind::Copied => 2,
        });
        self.bits.iter().take(BITS_PER_PAGE as usize / 64).for_each(|word| writer.u64(*word));
        writer.seal()
    }

    /// What a block holds, if it is a valid page.
    #[must_use]
    pub fn decode(block: &[u8]) -> Option<Self> {
        let (mut reader, array, member, sequence) = Reader::open(block, PAGE_MAGIC)?;
        let page = reader.u32()?;
        let kind = match reader.u32()? {
            1 => Kind::Written,
            2 => Kind::Copied,
            _ => return None,
        };
        let bits = (0..BITS_PER_PAGE / 64).map(|_| reader.u64()).collect::<Option<_>>()?;
        Some(Self { array, member, sequence, page, kind, bits })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn superblock() -> Superblock {
        let geometry = Geometry::divide(3, 4 << 20, 512, 1 << 14, 1 << 16).expect("it is sound");
        let (array, member) = (ArrayId([7; 16]), MemberId([2; 16]));
        let members = vec![MemberId([1; 16]), member, MemberId([3; 16])];
        Superblock {
            array,
            member,
            sequence: 5,
            generation: 9,
            slot: 1,
            state: MemberState::Joining,
            geometry,
            members,
        }
    }

    fn page() -> Page {
        let bits = (0..u64::from(BITS_PER_PAGE / 64)).map(|word| word * word).collect();
        let (array, member) = (ArrayId([7; 16]), MemberId([2; 16]));
        Page { array, member, sequence: 8, page: 3, kind: Kind::Copied, bits }
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        assert_eq!(Superblock::decode(&superblock().encode()), Some(superblock()));
        assert_eq!(Page::decode(&page().encode()), Some(page()));
        assert_eq!(Pages::read(&page().encode()), Pages(vec![Some(page())]));
    }

    proptest! {
        #[test]
        fn any_flipped_bit_is_noticed(bit in 0usize..8 * BLOCK as usize) {
            for mut block in [superblock().encode(), page().encode()] {
                block[bit / 8] ^= 1 << (bit % 8);
                prop_assert_eq!((Superblock::decode(&block), Page::decode(&block)), (None, None));
            }
        }

        #[test]
        fn decoders_take_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..5000)) {
            prop_assert_eq!((Superblock::decode(&bytes), Page::decode(&bytes)), (None, None));
            prop_assert!(Pages::read(&bytes).0.iter().all(Option::is_none));
        }
    }
}
