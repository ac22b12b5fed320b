//! A fingerprint of everything that happened in a run: the same seed must give the same one.

use surgetank_cache::effect::Slices;
use surgetank_cache::{BufferId, Effect, Slice, Target};

/// An order-dependent hash. Not for adversaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trace(u64);

impl Default for Trace {
    fn default() -> Self {
        Self(0x243f_6a88_85a3_08d3)
    }
}

impl Trace {
    /// The fingerprint so far.
    #[must_use]
    pub fn value(self) -> u64 {
        self.0
    }

    /// Adds a number.
    pub fn add(&mut self, value: u64) {
        let mixed = (self.0.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }

    fn all<const N: usize>(&mut self, values: [u64; N]) {
        for value in values {
            self.add(value);
        }
    }

    fn slice(&mut self, slice: Slice) {
        let buffer = match slice.buffer {
            BufferId::Request(id) => id.0 << 1,
            BufferId::Scratch(id) => u64::from(id.0) << 1 | 1,
        };
        self.all([buffer, u64::from(slice.offset) << 32 | u64::from(slice.length)]);
    }

    fn slices(&mut self, slices: &Slices) {
        for &slice in slices {
            self.slice(slice);
        }
    }

    /// Adds an effect with what it says.
    pub fn effect(&mut self, effect: &Effect) {
        match effect {
            Effect::Allocate { scratch, length } => self.all([1, u64::from(scratch.0), u64::from(*length)]),
            Effect::Release { scratch } => self.all([2, u64::from(scratch.0)]),
            Effect::Copy { from, to } => {
                self.add(3);
                self.slice(*from);
                self.slice(*to);
            }
            Effect::Zero { to } => {
                self.add(4);
                self.slice(*to);
            }
            Effect::Read { id, target, offset, into, checksums } => {
                self.all([5, id.0, code(*target), *offset]);
                self.slice(*into);
                checksums.iter().flat_map(|crcs| crcs.iter()).for_each(|&crc| self.add(u64::from(crc)));
            }
            Effect::Write { id, target, offset, from, fua } => {
                self.all([6, id.0, code(*target), *offset, u64::from(*fua)]);
                self.slices(from);
            }
            Effect::Append { id, offset, summary, data, fua } => {
                self.all([7, id.0, *offset, u64::from(*fua), summary.place.sequence]);
                summary.entries.iter().for_each(|entry| self.add(entry.block << 24 | u64::from(entry.blocks)));
                self.slices(data);
            }
            Effect::WriteSuperblock { id, offset, superblock } => self.all([8, id.0, *offset, superblock.sequence]),
            Effect::WriteTable { id, offset, page } => self.all([9, id.0, *offset, page.sequence]),
            Effect::WriteIndex { id, offset, bytes } => self.all([19, id.0, *offset, bytes.len() as u64]),
            Effect::Flush { id, target } => self.all([10, id.0, code(*target)]),
            Effect::Discard { id, offset, length } => self.all([11, id.0, *offset, *length]),
            Effect::WriteZeroes { id, offset, length, fua } => {
                self.all([12, id.0, *offset, *length, u64::from(*fua)]);
            }
            Effect::Parse { id, from, .. } => {
                self.all([13, id.0]);
                self.slice(*from);
            }
            Effect::PersistOwner { id, .. } => self.all([16, id.0]),
            Effect::RecordHealed { id, ranges, .. } => {
                self.all([18, id.0]);
                ranges.iter().for_each(|&(offset, length)| self.all([offset, length]));
            }
            Effect::Reply { request, result } => self.all([17, request.0, u64::from(result.is_ok())]),
        }
    }
}

fn code(target: Target) -> u64 {
    match target {
        Target::Backing => 0,
        Target::Cache => 1,
    }
}
