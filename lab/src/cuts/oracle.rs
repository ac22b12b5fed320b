//! What was written, what must still be there: blocks that name themselves, and a judgement of what is read.
//!
//! Several writers each own a stretch of the device. A writer's operations follow from its seed, so a block that is found
//! says which operation wrote it, and whether that operation touched this block at all can be told again.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use surgetank_model::random::Random;

/// The unit of judging, in bytes: what a disk writes whole or not at all.
pub const BLOCK: usize = 512;
/// The unit of writing, in blocks: 4 KiB.
pub const UNIT: u64 = 8;
/// The longest write, in units.
const UNITS_MAX: u64 = 64;

/// A part of the device with its writer, and what is known of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Stretch {
    /// What the operations follow from.
    pub seed: u64,
    /// Its first block.
    pub first: u64,
    /// For each block the operation that must be there at least; 0: never written.
    pub least: Vec<u64>,
    /// Operations before this one were of earlier lives.
    pub begins: u64,
}

/// What one operation writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteOperation {
    /// From this block of the stretch.
    pub block: u64,
    /// So many.
    pub blocks: u64,
    /// And whether a flush follows.
    pub flush: bool,
}

/// How a block was found not to be what it must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// Which block of the device.
    pub block: u64,
    /// What is wrong.
    pub what: String,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "block {}: {}", self.block, self.what)
    }
}

impl Stretch {
    /// Nothing has been written yet.
    pub fn new(seed: u64, first: u64, blocks: u64) -> Self {
        Self { seed, first, least: vec![0; blocks as usize], begins: 1 }
    }

    /// What an operation is.
    pub fn operation(&self, number: u64) -> WriteOperation {
        let mut chance = Random::from_seed(self.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let total = self.least.len() as u64 / UNIT;
        // Small writes in a few places, so that blocks are overwritten, and now and then a long one.
        let units = if chance.chance(0.2) { 1 + chance.below(UNITS_MAX) } else { 1 + chance.below(4) };
        let units = units.min(total);
        let range = if chance.chance(0.5) { total / 8 } else { total };
        let unit = chance.below(range.max(1)).min(total - units);
        WriteOperation { block: unit * UNIT, blocks: units * UNIT, flush: chance.chance(0.03) }
    }

    /// The bytes that an operation writes.
    pub fn data(&self, number: u64) -> Vec<u8> {
        let WriteOperation { block, blocks, .. } = self.operation(number);
        (block..block + blocks).flat_map(|block| self.content(block, number)).collect()
    }

    /// A block says whose it is in every eight bytes, so a torn one shows.
    fn content(&self, block: u64, number: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BLOCK);
        bytes.extend_from_slice(&number.to_le_bytes());
        for word in 1..(BLOCK / 8) as u64 {
            let mixed = mix(self.seed ^ mix(number ^ mix((self.first + block) * 64 + word)));
            bytes.extend_from_slice(&mixed.to_le_bytes());
        }
        bytes
    }

    /// Operations up to this one were flushed: they must be found, or what followed them.
    pub fn flushed(&mut self, up_to: u64) {
        self.flushed_among(self.begins..=up_to);
        self.begins = self.begins.max(up_to + 1);
    }

    /// The same of some operations, given in order: of those between them nobody knows what became.
    pub fn flushed_among(&mut self, numbers: RangeInclusive<u64>) {
        for number in numbers {
            let WriteOperation { block, blocks, .. } = self.operation(number);
            for block in block..block + blocks {
                self.least[block as usize] = number;
            }
        }
    }

    /// Judges the whole stretch as it was read. What was found is what must be found from now on, wrong as it may be: it
    /// came from disks that had lost their power since, and a loss counts once.
    ///
    /// `ends` is the first operation that was certainly not begun.
    pub fn judge(&mut self, found: &[u8], ends: u64) -> Vec<Fault> {
        let mut faults = Vec::new();
        for (block, bytes) in found.chunks_exact(BLOCK).enumerate() {
            let number = bytes.first_chunk().map_or(0, |number| u64::from_le_bytes(*number));
            if let Some(what) = self.fault(block as u64, number, bytes, ends) {
                faults.push(Fault { block: self.first + block as u64, what });
                let is_ours = number == 0 || bytes == self.content(block as u64, number);
                self.least[block] = if is_ours { number } else { 0 };
            } else {
                self.least[block] = number;
            }
        }
        self.begins = ends;
        faults
    }

    fn fault(&self, block: u64, number: u64, bytes: &[u8], ends: u64) -> Option<String> {
        let least = self.least[block as usize];
        if number == 0 {
            let is_blank = bytes.iter().all(|byte| *byte == 0);
            return match (is_blank, least) {
                (true, 0) => None,
                (true, least) => Some(format!("blank, but operation {least} was flushed")),
                (false, _) => Some("neither blank nor ours".to_owned()),
            };
        }
        if bytes != self.content(block, number) {
            return Some(format!("torn, or another block's: it begins as operation {number}'s"));
        }
        if number == least {
            return None;
        }
        if number < least {
            return Some(format!("older than what was flushed: operation {number}, not {least}"));
        }
        let WriteOperation { block: from, blocks, .. } = self.operation(number);
        let wrote_it = number >= self.begins && number < ends && (from..from + blocks).contains(&block);
        (!wrote_it).then(|| format!("operation {number}, which never wrote it"))
    }
}

/// The finalizer of splitmix64.
fn mix(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes operations up to a number into memory.
    fn written(stretch: &Stretch, to: u64) -> Vec<u8> {
        let mut disk = vec![0; stretch.least.len() * BLOCK];
        for number in stretch.begins..=to {
            let at = stretch.operation(number).block as usize * BLOCK;
            let data = stretch.data(number);
            disk[at..at + data.len()].copy_from_slice(&data);
        }
        disk
    }

    #[test]
    fn what_may_be_found_is_taken_and_what_may_not_is_told() {
        let fresh = Stretch::new(5, 800, 2048);
        let disk = written(&fresh, 50);
        let mut stretch = fresh.clone();
        stretch.flushed(40);
        // Any state between the flush and the end will do, and is what must be found the next time.
        assert_eq!(stretch.clone().judge(&disk, 51), []);
        let mut older = stretch.clone();
        assert_eq!(older.judge(&written(&fresh, 40), 51), []);
        assert_eq!(older.judge(&written(&fresh, 40), 60), []);
        // The flushed state lost: each block that the 40 operations wrote.
        let blank = vec![0; disk.len()];
        let faults = stretch.clone().judge(&blank, 51);
        assert!(!faults.is_empty() && faults.iter().all(|fault| fault.what.starts_with("blank")), "{faults:?}");
        // Operations that were not begun, torn blocks, blocks in other places.
        let faults = stretch.clone().judge(&written(&fresh, 60), 51);
        assert!(faults.iter().any(|fault| fault.what.contains("never wrote it")), "{faults:?}");
        let WriteOperation { block, .. } = stretch.operation(50);
        let at = block as usize * BLOCK;
        let mut torn = disk.clone();
        torn[at + 300] ^= 1;
        assert_eq!(stretch.clone().judge(&torn, 51).len(), 1);
        let mut moved = disk.clone();
        moved.copy_within(at..at + BLOCK, 2047 * BLOCK);
        assert!(stretch.judge(&moved, 51).iter().any(|fault| fault.block == 2847));
    }
    #[test]
    fn operations_that_failed_may_be_there_until_one_that_was_flushed_follows() {
        let fresh = Stretch::new(5, 0, 2048);
        let write = |disk: &mut [u8], number| {
            let at = fresh.operation(number).block as usize * BLOCK;
            let data = fresh.data(number);
            disk[at..at + data.len()].copy_from_slice(&data);
        };
        // 1 to 10 were flushed, 11 to 20 failed, 21 to 30 were flushed.
        let judged = |written: &[RangeInclusive<u64>]| {
            let (mut stretch, mut disk) = (fresh.clone(), vec![0; fresh.least.len() * BLOCK]);
            written.iter().cloned().flatten().for_each(|number| write(&mut disk, number));
            stretch.flushed_among(1..=10);
            stretch.flushed_among(21..=30);
            stretch.judge(&disk, 31)
        };
        assert_eq!(judged(&[1..=10, 21..=30]), []);
        assert_eq!(judged(&[1..=30]), []);
        assert_eq!(judged(&[1..=14, 21..=30]), []);
        // What failed is no excuse for what was flushed after it.
        assert!(judged(&[1..=20]).iter().any(|fault| fault.what.contains("older than what was flushed")));
        assert!(!judged(&[11..=30]).is_empty());
    }
}
