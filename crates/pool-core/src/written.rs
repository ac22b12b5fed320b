//! Which bytes of a chunk a session has written since it committed last.
//!
//! Several sessions write one file at the same time. Whoever commits second lays what it has written upon what the others have
//! committed: these bytes and no others, so that nothing of theirs is written over with what was there before. Zeros between the former
//! end of a file and what is written behind it are in the chunk, and count as nobody's.

use crate::planted::{Bug, planted};
use crate::runs::Runs;

/// Bytes of a chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written(Runs);

impl Written {
    /// Bytes are written, from the first to the one before `end`.
    pub fn add(&mut self, first: u32, end: u32) {
        self.0.add(first, end);
    }

    /// Zeros come between the end of the chunk and what is written next.
    pub fn add_gap(&mut self, first: u32, end: u32) {
        if planted(Bug::GapCounts) {
            self.add(first, end);
        }
    }

    /// The chunk is cut off.
    pub fn cut(&mut self, length: u32) {
        self.0.cut(length, u32::MAX);
    }

    /// Whether nothing is written.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The byte behind the last one that is written; zero if none is.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.0.runs().last().map_or(0, |(_, end)| *end)
    }

    /// Whether all of a chunk of this length is written.
    #[must_use]
    pub fn covers(&self, length: u32) -> bool {
        self.0.find(0, false).is_none_or(|end| end >= length)
    }

    /// A chunk of this length, with what is written of `ours` upon `theirs`, and zeros where neither has anything.
    #[must_use]
    pub fn lay(&self, ours: &[u8], theirs: &[u8], length: u32) -> Vec<u8> {
        let length = length as usize;
        let mut bytes = theirs[..theirs.len().min(length)].to_vec();
        bytes.resize(length, 0);
        let all = [(0, u32::try_from(ours.len()).unwrap_or(u32::MAX))];
        let ranges = if planted(Bug::OverlayTakesAll) && !self.is_empty() { &all[..] } else { self.0.runs() };
        for (first, end) in ranges {
            let (first, end) = (*first as usize, (*end as usize).min(length).min(ours.len()));
            if first < end {
                bytes[first..end].copy_from_slice(&ours[first..end]);
            }
        }
        bytes
    }
}
