//! Which of its versions a vscsi trace has.

/// Bytes of a record of version 1.
pub const SIZE_1: usize = 32;
/// Bytes of a record of version 2.
pub const SIZE_2: usize = 40;

/// The version of the records that `head` begins with: the upper byte of a field that lies elsewhere in each.
pub fn version(head: &[u8]) -> Option<u8> {
    let is = |size: usize, at: usize, version: u8| {
        let mut records = head.chunks_exact(size).take(2);
        records.len() > 0 && records.all(|record| record[at + 1] == version)
    };
    match () {
        () if is(SIZE_2, 2, 2) => Some(2),
        () if is(SIZE_1, 14, 1) => Some(1),
        () => None,
    }
}
