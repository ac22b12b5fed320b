//! Compaction: what still counts in a segment of the log is copied elsewhere, so that the segment is empty again.
//!
//! The victim is the segment with fewest live bytes. Chosen anew before each step, it is the one that was begun, unless another
//! has fewer by then. While somebody waits for room, a sixteenth of a segment is worth it ([`WORTH`]): each byte that is won costs 15
//! copied ones at most. While nobody does, room is made ahead once little is left: then half of the segment must be won, and three
//! quarters of the time are left to others.

use std::time::Duration;

use surgetank_model::Instant;

use super::segments::{At, Segments, WORTH};

/// Nothing is compacted ahead before less than a part of the room in so many is left.
const LOW: u64 = 8;
/// Pauses of a compaction that nobody waits for, in times that its steps took.
const PAUSES: u32 = 3;
/// Bytes of a step, at most: everybody else waits that long for the log.
const STEP: u64 = 4 << 20;

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next {
    /// Copy these records, then [`Compaction::stepped`].
    Copy(Vec<At>),
    /// Ask again then.
    Wait(Instant),
    /// Nothing, until records are over or appended.
    Nothing,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Compaction {
    not_before: Instant,
}

impl Compaction {
    /// What to do now; `wanted`: somebody waits for room.
    #[must_use]
    pub fn next(&self, now: Instant, segments: &Segments, wanted: bool) -> Next {
        let Some((won, live)) = segments.victim() else { return Next::Nothing };
        if !wanted {
            if segments.room() >= segments.of() / LOW || won < segments.room_of() / 2 {
                return Next::Nothing;
            }
            if now < self.not_before {
                return Next::Wait(self.not_before);
            }
        }
        // What a power cut tears of a step is less than what the victim wins: what is left of it has room still.
        let mut bytes = 0;
        let limit = STEP.min(segments.room_of() / WORTH);
        let step = live.into_iter().take_while(|at| {
            let is_in = bytes == 0 || bytes + at.length <= limit;
            bytes += at.length;
            is_in
        });
        Next::Copy(step.collect())
    }

    /// A step has ended.
    pub fn stepped(&mut self, began: Instant, now: Instant) {
        self.not_before = now + now.since(began).max(Duration::from_millis(1)) * PAUSES;
    }
}
