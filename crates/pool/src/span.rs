//! How a file is cut into groups and chunks.

use std::sync::LazyLock;

use surgetank_pool_core::runs::Runs;

use crate::chunks::CHUNK;

/// Bytes of the first group; each has twice as many as the one before, up to [`GROUP_MAX`]. A file of 4 GiB has eight.
const GROUP_MIN: u64 = 64 << 20;
/// Bytes of a group, at most.
const GROUP_MAX: u64 = 1 << 30;
/// Groups that grow.
const GROWING: u32 = (GROUP_MAX / GROUP_MIN).trailing_zeros();

/// Where a group begins in its file, and how many bytes it has room for.
#[must_use]
pub const fn of_group(index: u32) -> (u64, u64) {
    if index <= GROWING {
        (GROUP_MIN * ((1 << index) - 1), GROUP_MIN << index)
    } else {
        (GROUP_MIN * ((1 << GROWING) - 1) + (index - GROWING) as u64 * GROUP_MAX, GROUP_MAX)
    }
}

/// The group that has a byte of a file, and the chunk in it.
#[must_use]
pub fn of_byte(offset: u64) -> (u32, u32) {
    let mut group = match offset.checked_sub(of_group(GROWING).0) {
        Some(behind) => GROWING + u32::try_from(behind / GROUP_MAX).expect("no file is so long"),
        None => 0,
    };
    while of_group(group + 1).0 <= offset {
        group += 1;
    }
    let chunk = (offset - of_group(group).0) / CHUNK;
    (group, u32::try_from(chunk).expect("a group has at most 1024 chunks"))
}

/// Where the next hole of a file begins from an offset on, or the next chunk that is none, by the holes of its groups. The end of the file is
/// a hole; there is nothing behind it.
#[must_use]
pub fn seek<'a>((size, offset): (u64, u64), wants_hole: bool, holes: impl Fn(u32) -> Option<&'a Runs>) -> Option<u64> {
    let mut at = offset;
    while at < size {
        let (index, chunk) = of_byte(at);
        let (first, room) = of_group(index);
        let found = holes(index).unwrap_or(&Runs::NONE).find(chunk, wants_hole).filter(|found| *found < chunks(room));
        at = match found.map(|found| first + u64::from(found) * CHUNK) {
            Some(found) if found < size => return Some(offset.max(found)),
            _ => first + room,
        };
    }
    (wants_hole && offset < size).then_some(size)
}

/// How many chunks so many bytes take.
#[must_use]
pub fn chunks(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(CHUNK)).unwrap_or(u32::MAX)
}

/// What each bit of a checksum becomes when a whole chunk of zeros follows. Checksums combine linearly, so that for most chunks nothing
/// else is to be computed; the general way takes longer than the checksum of the chunk itself.
static BEFORE_A_CHUNK: LazyLock<[u32; 32]> =
    LazyLock::new(|| std::array::from_fn(|bit| crc32c::crc32c_combine(1 << bit, 0, CHUNK as usize)));

/// Bytes and CRC32C of chunks in their order, from the bytes and CRC32C of each.
#[must_use]
pub fn digest(chunks: impl Iterator<Item = (u32, u32)>) -> (u64, u32) {
    let before_a_chunk = |crc: u32| {
        let bits = BEFORE_A_CHUNK.iter().enumerate().filter(|(bit, _)| crc >> bit & 1 == 1);
        bits.fold(0, |sum, (_, becomes)| sum ^ becomes)
    };
    chunks.fold((0, 0), |(bytes, digest), (length, crc)| {
        let combined = match u64::from(length) {
            CHUNK => before_a_chunk(digest) ^ crc,
            _ => crc32c::crc32c_combine(digest, crc, length as usize),
        };
        (bytes + u64::from(length), combined)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_follow_each_other_and_a_file_of_4_gib_has_eight() {
        let mut end = 0;
        for group in 0..20 {
            let (first, size) = of_group(group);
            assert_eq!(first, end);
            end = first + size;
            assert_eq!(of_byte(first), (group, 0));
            assert_eq!(of_byte(end - 1), (group, u32::try_from(size / CHUNK).unwrap() - 1));
        }
        assert_eq!(of_byte(of_group(5_000).0 + 1), (5_000, 0));
        assert_eq!(of_byte((4 << 30) - 1).0, 7);
    }

    #[test]
    fn holes_are_found_from_any_byte_on() {
        let mib = |mib: u64| mib * CHUNK;
        // The first group has 64 chunks.
        let holes = [Runs::from(3..64), Runs::from([0, 2])];
        let find = |offset, wants_hole| seek((mib(68) + 5, offset), wants_hole, |index| holes.get(index as usize));
        let expected = [mib(3), mib(3), mib(3) + 7, mib(66)].map(Some);
        assert_eq!([0, mib(3), mib(3) + 7, mib(65)].map(|at| find(at, true)), expected);
        assert_eq!(find(mib(67), true), Some(mib(68) + 5));
        assert_eq!([7, mib(3), mib(66)].map(|at| find(at, false)), [Some(7), Some(mib(65)), Some(mib(67))]);
        assert_eq!([true, false].map(|wants_hole| find(mib(68) + 5, wants_hole)), [None, None]);
        assert_eq!(seek((mib(2), 5), false, |_| None), Some(5));
        assert_eq!(seek((mib(64), mib(4)), false, |index| holes.get(index as usize)), None);
    }

    #[test]
    fn a_digest_is_that_of_the_bytes() {
        let (one, two) = (b"staged ".as_slice(), b"and drained".as_slice());
        let of = |bytes: &[u8]| (u32::try_from(bytes.len()).unwrap(), crc32c::crc32c(bytes));
        assert_eq!(digest([of(one), of(two)].into_iter()), (18, crc32c::crc32c(b"staged and drained")));
        let whole = vec![7; CHUNK as usize];
        let all = [one, &whole, &whole, two].concat();
        assert_eq!(digest([of(one), of(&whole), of(&whole), of(two)].into_iter()).1, crc32c::crc32c(&all));
    }
}
