//! Content of the demo's files: reproducible, and every block says which block it is, so that a block in the wrong
//! place is recognised as that and not only as different.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes of a block: the smallest unit that a mix-up in a block device could displace whole.
pub const BLOCK: usize = 4096;

const WORDS: usize = BLOCK / 8;
/// The first word of every block: marks it as one of ours.
const MAGIC: u64 = 0x7375_7267_6574_616e;

/// Which file's content. Two files with the same seed and different numbers share no block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileContent {
    /// Of the whole run.
    pub seed: u64,
    /// Of the file in its run.
    pub file: u64,
}

/// Sebastiano Vigna's splitmix64: one multiply-xor round a word, full period, and any word of a block can be made
/// without those before it.
fn splitmix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl FileContent {
    /// Fills `buffer` with the content from block `first` on.
    ///
    /// # Panics
    /// If the buffer's length is not a multiple of [`BLOCK`].
    pub fn fill(&self, first: u64, buffer: &mut [u8]) {
        assert_eq!(buffer.len() % BLOCK, 0, "content is made in whole blocks");
        for (index, block) in buffer.chunks_exact_mut(BLOCK).enumerate() {
            self.fill_block(first + index as u64, block);
        }
    }

    fn fill_block(&self, index: u64, block: &mut [u8]) {
        let start = splitmix(self.seed ^ splitmix(self.file ^ splitmix(index)));
        let head = [MAGIC, self.seed, self.file, index];
        for (word, bytes) in block.chunks_exact_mut(8).enumerate() {
            let value = match head.get(word) {
                Some(value) => *value,
                None => splitmix(start.wrapping_add((word as u64).wrapping_mul(WORDS as u64 + 1))),
            };
            bytes.copy_from_slice(&value.to_le_bytes());
        }
    }

    /// Compares `found`, read from block `first` on, with what was written; `scratch` is room for as many bytes.
    ///
    /// # Errors
    /// The first block that differs, and what it looks like.
    ///
    /// # Panics
    /// If the lengths differ or are not whole blocks.
    pub fn verify(&self, first: u64, found: &[u8], scratch: &mut [u8]) -> Result<(), Mismatch> {
        assert_eq!(found.len(), scratch.len(), "scratch is as long as what was read");
        self.fill(first, scratch);
        if found == scratch {
            return Ok(());
        }
        let differs = found.chunks_exact(BLOCK).zip(scratch.chunks_exact(BLOCK)).position(|(f, s)| f != s);
        let index = differs.unwrap_or_default();
        let block = &found[index * BLOCK..(index + 1) * BLOCK];
        Err(Mismatch { block: first + index as u64, looks_like: self.recognise(block) })
    }

    fn recognise(&self, block: &[u8]) -> LooksLike {
        let word = |n: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&block[n * 8..n * 8 + 8]);
            u64::from_le_bytes(bytes)
        };
        if block.iter().all(|byte| *byte == 0) {
            return LooksLike::Zeroes;
        }
        if word(0) != MAGIC {
            return LooksLike::Unknown;
        }
        let claimed = Self { seed: word(1), file: word(2) };
        let mut expected = vec![0; BLOCK];
        claimed.fill_block(word(3), &mut expected);
        if expected == block {
            LooksLike::Block { other_run: claimed.seed != self.seed, file: claimed.file, block: word(3) }
        } else {
            LooksLike::Torn { file: claimed.file, block: word(3) }
        }
    }
}

/// A block that is not what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Number of the block in its file.
    pub block: u64,
    /// What is there instead.
    pub looks_like: LooksLike,
}

/// What was found where another block should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LooksLike {
    /// Nothing but zeroes.
    Zeroes,
    /// A whole block of ours that belongs elsewhere.
    Block {
        /// It was written by another run.
        other_run: bool,
        /// Which file it belongs to.
        file: u64,
        /// Its number there.
        block: u64,
    },
    /// It begins like a block of ours, but its content is not that block's.
    Torn {
        /// Which file it says it belongs to.
        file: u64,
        /// Its number there.
        block: u64,
    },
    /// Not ours.
    Unknown,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {} holds ", self.block)?;
        match &self.looks_like {
            LooksLike::Zeroes => f.write_str("zeroes"),
            LooksLike::Block { other_run: true, .. } => f.write_str("a block of an earlier run"),
            LooksLike::Block { file, block, .. } => write!(f, "block {block} of file {file}"),
            LooksLike::Torn { file, block } => write!(f, "a damaged copy of block {block} of file {file}"),
            LooksLike::Unknown => f.write_str("unknown bytes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONTENT: FileContent = FileContent { seed: 7, file: 3 };

    fn blocks(content: FileContent, first: u64, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count * BLOCK];
        content.fill(first, &mut bytes);
        bytes
    }

    fn verify(found: &[u8]) -> Result<(), Mismatch> {
        CONTENT.verify(0, found, &mut vec![0; found.len()])
    }

    #[test]
    fn content_does_not_depend_on_how_it_is_cut() {
        let whole = blocks(CONTENT, 0, 8);
        let parts = [blocks(CONTENT, 0, 3), blocks(CONTENT, 3, 5)].concat();
        assert_eq!(whole, parts);
        assert_eq!(verify(&whole), Ok(()));
    }

    #[test]
    fn no_two_blocks_are_alike() {
        let mut seen = std::collections::HashSet::new();
        for file in 0..8 {
            for block in 0..64 {
                assert!(seen.insert(blocks(FileContent { seed: 7, file }, block, 1)));
            }
        }
        assert!(seen.insert(blocks(FileContent { seed: 8, file: 0 }, 0, 1)));
    }

    #[test]
    fn every_flipped_bit_is_found() {
        let good = blocks(CONTENT, 0, 2);
        for byte in (0..good.len()).step_by(97) {
            let mut bad = good.clone();
            bad[byte] ^= 1 << (byte % 8);
            assert_eq!(verify(&bad).unwrap_err().block, (byte / BLOCK) as u64, "byte {byte}");
        }
    }

    #[test]
    fn what_stands_in_the_wrong_place_is_named() {
        let mut found = blocks(CONTENT, 0, 4);
        found[2 * BLOCK..3 * BLOCK].fill(0);
        assert_eq!(verify(&found).unwrap_err().to_string(), "block 2 holds zeroes");
        found[2 * BLOCK..3 * BLOCK].copy_from_slice(&blocks(FileContent { seed: 7, file: 9 }, 5, 1));
        assert_eq!(verify(&found).unwrap_err().to_string(), "block 2 holds block 5 of file 9");
        found[2 * BLOCK..3 * BLOCK].copy_from_slice(&blocks(FileContent { seed: 6, file: 3 }, 2, 1));
        assert_eq!(verify(&found).unwrap_err().to_string(), "block 2 holds a block of an earlier run");
        found[2 * BLOCK + 512] ^= 1;
        assert_eq!(verify(&found).unwrap_err().to_string(), "block 2 holds a damaged copy of block 2 of file 3");
        found[2 * BLOCK..3 * BLOCK].fill(0xa5);
        assert_eq!(verify(&found).unwrap_err().to_string(), "block 2 holds unknown bytes");
    }
}
