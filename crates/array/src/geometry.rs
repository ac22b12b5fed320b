//! How an array is divided, and where each of its bytes is.

use smallvec::SmallVec;

use crate::effect::Rejected;
use crate::effect::{BufferId, Slice, Slices};
use crate::format::{BITS_PER_PAGE, BLOCK, MEMBERS_MAX, PAGES_MAX, SUPERBLOCKS_LENGTH};

/// The division of an array. All members have the same.
///
/// The array's chunks go round the members: chunk `k` is on member `k mod members`, in row `k ÷ members`. So a range of the
/// array is one contiguous range on each member that it touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Members of the stripe: its slots.
    pub members: u32,
    /// Logical block size, 512 or 4096 bytes.
    pub logical_block: u32,
    /// Bytes of a chunk: a power of two of at least 4 KiB.
    pub chunk: u32,
    /// Bytes of a region, the unit of the copy: a power of two, not less than a chunk.
    pub region: u32,
    /// Pages of the bitmap.
    pub bitmap_pages: u32,
    /// Bytes of data on each member: a multiple of a chunk.
    pub data_length: u64,
}

/// A range of the data of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Slot of the member.
    pub slot: u32,
    /// First byte of the member's data.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

impl Run {
    /// The byte behind it.
    #[must_use]
    pub const fn end(&self) -> u64 {
        self.offset + self.length
    }
}

/// The bitmap has room for so many times the data that a member has at first: volumes may grow.
const GROWTH: u64 = 8;
/// Data begin at a multiple of this, in bytes.
const ALIGNMENT: u64 = 64 << 10;
/// Largest region, in bytes: one copy moves it at once.
const REGION_MAX: u32 = 4 << 20;
/// Regions that members are divided into, at most, unless they would be larger than [`REGION_MAX`]. With room for
/// [`GROWTH`], a bitmap of so many takes 1 MiB of memory and half of that on the member.
const REGIONS_MAX: u64 = 1 << 18;
/// Members below this size, in bytes, have larger regions than they must: a region is copied by one I/O, which costs a volume that
/// is limited in operations one of them, and such a small member has few to give.
const SMALL: u64 = 1 << 30;
/// Smallest region of a small member, in bytes.
const REGION_OF_SMALL: u64 = 1 << 20;
/// More bytes than a member can have.
const DATA_MAX: u64 = 1 << 56;

/// Bytes of a region for new members of `member_size` bytes, in chunks of `chunk` bytes.
///
/// A replacement copies whole regions, and a request of the array touches a region on every member: what is scattered over
/// the array is copied with all that lies between. So regions are as small as chunks where the bitmap allows it.
#[must_use]
pub fn region_for(member_size: u64, chunk: u32) -> u32 {
    let least = if member_size < SMALL { REGION_OF_SMALL } else { member_size.div_ceil(REGIONS_MAX) };
    let least = least.clamp(1, u64::from(REGION_MAX)).next_power_of_two();
    (least as u32).max(chunk)
}

impl Geometry {
    /// Divides members of `member_size` bytes.
    ///
    /// # Errors
    /// If sizes or numbers do not go together.
    pub fn divide(
        members: u32,
        member_size: u64,
        logical_block: u32,
        chunk: u32,
        region: u32,
    ) -> Result<Self, Rejected> {
        let data_max = member_size.min(DATA_MAX);
        let regions = data_max.div_ceil(u64::from(region.max(1)));
        let pages = (regions * GROWTH).div_ceil(u64::from(BITS_PER_PAGE)).clamp(1, u64::from(PAGES_MAX));
        let empty =
            Self { members, logical_block, chunk, region, bitmap_pages: pages as u32, data_length: u64::from(chunk) };
        if !empty.is_sound() {
            return Err(Rejected(format!(
                "an array cannot have {members} members, blocks of {logical_block} bytes, chunks of {chunk} bytes and regions of \
                 {region} bytes: chunks and regions are powers of two, 4 KiB ≤ chunk ≤ region ≤ 4 MiB, members 1 to \
                 {MEMBERS_MAX}, blocks of 512 or 4096 bytes"
            )));
        }
        let geometry = empty.with_member_size(member_size);
        if geometry.data_length == 0 {
            let least = geometry.data_offset() + u64::from(chunk);
            return Err(Rejected(format!(
                "a member of {member_size} bytes holds no chunk: use volumes of at least {least} bytes"
            )));
        }
        if geometry.regions() > u64::from(geometry.bitmap_pages) * u64::from(BITS_PER_PAGE) {
            return Err(Rejected(format!(
                "a member of {member_size} bytes has too many regions of {region} bytes: use larger regions"
            )));
        }
        Ok(geometry)
    }

    /// The same for members of another size, as far as the bitmap has room.
    #[must_use]
    pub fn with_member_size(self, member_size: u64) -> Self {
        let room = u64::from(self.bitmap_pages) * u64::from(BITS_PER_PAGE) * u64::from(self.region);
        let data = member_size.saturating_sub(self.data_offset()).min(room).min(DATA_MAX);
        Self { data_length: data - data % u64::from(self.chunk), ..self }
    }

    /// Whether all of it goes together, so that nothing computed of it overflows.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let regions_max = u64::from(self.bitmap_pages) * u64::from(BITS_PER_PAGE);
        (1..=MEMBERS_MAX).contains(&self.members)
            && matches!(self.logical_block, 512 | 4096)
            && self.chunk.is_power_of_two()
            && self.region.is_power_of_two()
            && (BLOCK..=self.region).contains(&self.chunk)
            && self.region <= REGION_MAX
            && (1..=PAGES_MAX).contains(&self.bitmap_pages)
            && (1..=DATA_MAX).contains(&self.data_length)
            && self.data_length.is_multiple_of(u64::from(self.chunk))
            && self.regions() <= regions_max
    }

    /// Bytes of the array.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.data_length * u64::from(self.members)
    }

    /// First byte of the bitmap on a member.
    #[must_use]
    pub fn bitmap_offset(&self) -> u64 {
        u64::from(SUPERBLOCKS_LENGTH)
    }

    /// Bytes of the bitmap on a member: both copies of its pages.
    #[must_use]
    pub fn bitmap_length(&self) -> u64 {
        2 * u64::from(self.bitmap_pages) * u64::from(BLOCK)
    }

    /// First byte of a copy (0 or 1) of a page of the bitmap.
    #[must_use]
    pub fn page_offset(&self, page: u32, copy: u32) -> u64 {
        self.bitmap_offset() + u64::from(copy * self.bitmap_pages + page) * u64::from(BLOCK)
    }

    /// First byte of the data on a member.
    #[must_use]
    pub fn data_offset(&self) -> u64 {
        (self.bitmap_offset() + self.bitmap_length()).next_multiple_of(ALIGNMENT)
    }

    /// Bytes of a member that the array uses.
    #[must_use]
    pub fn member_length(&self) -> u64 {
        self.data_offset() + self.data_length
    }

    /// Regions of a member; the last one may be short.
    #[must_use]
    pub fn regions(&self) -> u64 {
        self.data_length.div_ceil(u64::from(self.region))
    }

    /// The regions that a range of a member's data touches.
    #[must_use]
    pub fn regions_of(&self, run: &Run) -> std::ops::Range<u64> {
        let region = u64::from(self.region);
        run.offset / region..run.end().div_ceil(region)
    }

    /// The bytes of a region among a member's data.
    #[must_use]
    pub fn region_bytes(&self, region: u64) -> std::ops::Range<u64> {
        let start = region * u64::from(self.region);
        start..(start + u64::from(self.region)).min(self.data_length)
    }

    /// What a range of the array is on each member that it touches, in the order of the array.
    #[must_use]
    pub fn runs(&self, offset: u64, length: u64) -> SmallVec<[Run; 8]> {
        let (chunk, members) = (u64::from(self.chunk), u64::from(self.members));
        if length == 0 {
            return SmallVec::new();
        }
        let (first, last) = (offset / chunk, (offset + length - 1) / chunk);
        let touched = first..=last.min(first + members - 1);
        touched
            .map(|head| {
                let tail = head + (last - head) / members * members;
                let start = head / members * chunk + if head == first { offset % chunk } else { 0 };
                let end = tail / members * chunk + if tail == last { (offset + length - 1) % chunk + 1 } else { chunk };
                Run { slot: (head % members) as u32, offset: start, length: end - start }
            })
            .collect()
    }

    /// Where the bytes of a run are in the buffer of the request at `offset` of the array that it is of.
    #[must_use]
    pub fn slices(&self, run: &Run, offset: u64, buffer: BufferId) -> Slices {
        let (chunk, members) = (u64::from(self.chunk), u64::from(self.members));
        let mut slices = Slices::new();
        let mut at = run.offset;
        while at < run.end() {
            let take = (chunk - at % chunk).min(run.end() - at);
            let on_array = (at / chunk * members + u64::from(run.slot)) * chunk + at % chunk;
            let start = (on_array - offset) as u32;
            match slices.last_mut() {
                Some(last) if last.offset + last.length == start => last.length += take as u32,
                _ => slices.push(Slice { buffer, offset: start, length: take as u32 }),
            }
            at += take;
        }
        slices
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use surgetank_model::RequestId;

    use super::*;

    #[test]
    fn regions_are_as_small_as_chunks_until_there_are_too_many() {
        let regions = |gib: u64| region_for(gib << 30, 256 << 10);
        assert_eq!(
            [1, 64, 65, 256, 1024, 1025, 16384].map(regions),
            [256 << 10, 256 << 10, 512 << 10, 1 << 20, 4 << 20, 4 << 20, 4 << 20]
        );
        assert_eq!(region_for((1 << 30) - 1, 256 << 10), 1 << 20);
        for gib in [1, 64, 65, 1024, 16384] {
            assert!(Geometry::divide(8, gib << 30, 4096, 256 << 10, regions(gib)).is_ok(), "{gib} GiB");
        }
    }

    proptest! {
        /// Byte by byte as the definition of the stripe has it.
        #[test]
        fn a_range_is_one_run_on_each_member_it_touches(
            members in 1u32..6, chunk in 12u32..15, sectors in 1u64..400, start in 0u64..400
        ) {
            let geometry = Geometry::divide(members, 8 << 20, 512, 1 << chunk, 1 << 15).expect("it is sound");
            let (offset, length) = (start * 512, sectors * 512);
            let buffer = BufferId::Request(RequestId(1));
            let mut seen = vec![false; length as usize / 512];
            for run in geometry.runs(offset, length) {
                let slices = geometry.slices(&run, offset, buffer);
                prop_assert_eq!(slices.iter().map(|slice| u64::from(slice.length)).sum::<u64>(), run.length);
                let mut at = run.offset;
                for slice in slices {
                    for sector in 0..u64::from(slice.length) / 512 {
                        let on_array = offset + u64::from(slice.offset) + sector * 512;
                        let (number, within) = (on_array >> chunk, on_array % (1 << chunk));
                        prop_assert_eq!(number % u64::from(members), u64::from(run.slot));
                        prop_assert_eq!(number / u64::from(members) * (1 << chunk) + within, at);
                        let place = &mut seen[(u64::from(slice.offset) / 512 + sector) as usize];
                        prop_assert!(!std::mem::replace(place, true));
                        at += 512;
                    }
                }
            }
            prop_assert!(seen.iter().all(|seen| *seen));
        }

        #[test]
        fn any_division_is_refused_or_sound(
            members in any::<u32>(), size in any::<u64>(), block in any::<u32>(), chunk in 0u32..32, region in 0u32..32
        ) {
            if let Ok(geometry) = Geometry::divide(members % 200, size, block, 1 << chunk, 1 << region) {
                prop_assert!(geometry.is_sound() && geometry.member_length() <= size);
            }
        }
    }
}
