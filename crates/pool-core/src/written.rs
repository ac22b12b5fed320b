//! Which bytes of a chunk a session has written since it committed last.
//!
//! Several sessions write one file at the same time. Whoever commits second lays what it has written upon what the others have
//! committed: these bytes and no others, so that nothing of theirs is written over with what was there before. Zeros between the former
//! end of a file and what is written behind it are in the chunk, and count as nobody's.

use crate::planted::{Bug, planted};

/// Bytes of a chunk: ranges in their order, with gaps between them, each from its first byte to the one behind its last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written(Vec<(u32, u32)>);

impl Written {
    /// Bytes are written, from the first to the one before `end`.
    pub fn add(&mut self, first: u32, end: u32) {
        if first >= end {
            return;
        }
        // Mostly what comes goes on where the last one has ended.
        let from = self.0.partition_point(|(_, other)| *other < first);
        let to = from + self.0[from..].partition_point(|(other, _)| *other <= end);
        let joined =
            self.0[from..to].iter().fold((first, end), |(first, end), (from, to)| (first.min(*from), end.max(*to)));
        self.0.splice(from..to, [joined]);
    }

    /// Zeros come between the end of the chunk and what is written next.
    pub fn add_gap(&mut self, first: u32, end: u32) {
        if planted(Bug::GapCounts) {
            self.add(first, end);
        }
    }

    /// The chunk is cut off.
    pub fn cut(&mut self, length: u32) {
        self.0.retain(|(first, _)| *first < length);
        if let Some((_, end)) = self.0.last_mut() {
            *end = length.min(*end);
        }
    }

    /// Whether nothing is written.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The byte behind the last one that is written; zero if none is.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.0.last().map_or(0, |(_, end)| *end)
    }

    /// Whether all of a chunk of this length is written.
    #[must_use]
    pub fn covers(&self, length: u32) -> bool {
        length == 0 || self.0.first().is_some_and(|(first, end)| *first == 0 && *end >= length)
    }

    /// A chunk of this length, with what is written of `ours` upon `theirs`, and zeros where neither has anything.
    #[must_use]
    pub fn lay(&self, ours: &[u8], theirs: &[u8], length: u32) -> Vec<u8> {
        let length = length as usize;
        let mut bytes = theirs[..theirs.len().min(length)].to_vec();
        bytes.resize(length, 0);
        let all = [(0, u32::try_from(ours.len()).unwrap_or(u32::MAX))];
        let ranges = if planted(Bug::OverlayTakesAll) && !self.is_empty() { &all[..] } else { &self.0 };
        for (first, end) in ranges {
            let (first, end) = (*first as usize, (*end as usize).min(length).min(ours.len()));
            if first < end {
                bytes[first..end].copy_from_slice(&ours[first..end]);
            }
        }
        bytes
    }
}
