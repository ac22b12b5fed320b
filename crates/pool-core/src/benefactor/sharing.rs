//! How a benefactor's room is divided among mounts: by dynamic thresholds (CH98).
//!
//! A mount may take more as long as it has less than [`FACTOR`] times what is free. So one alone gets eight ninths of the room, and mounts that
//! contend get equal parts. However much mounts have whose targets stand still, each of them leaves a ninth of what it found: others always find
//! some. Nobody has to know which mounts there are. What repair brings is already promised to somebody: it may take eight ninths of what
//! its mount has to leave. So may a mount in memory as long as all that it has there may go on to the SSD: that returns it, whatever its
//! target does.

use crate::id::MountId;
use crate::planted::{Bug, planted};

/// What a mount may have, as a multiple of what is free.
pub const FACTOR: u64 = 8;

/// Whose room a chunk takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner {
    /// The mount; `None`: that is not known yet.
    pub mount: Option<MountId>,
    /// Repair brings it, or it takes the place of a damaged one.
    pub repairs: bool,
}

impl Owner {
    /// Whether more may be taken while its mount has `held` bytes and `free` bytes are free; `passes_on`: all that it has may go on to
    /// the SSD. One that has nothing may take whatever there is.
    #[must_use]
    pub fn may_take(self, held: u64, free: u64, passes_on: bool) -> bool {
        let factor = if self.repairs { FACTOR } else { 1 };
        held == 0 || held < factor.saturating_mul(most(free, passes_on)) || planted(Bug::RoomUndivided)
    }
}

/// What sessions of a mount may have when so much is free.
const fn most(free: u64, passes_on: bool) -> u64 {
    free.saturating_mul(if passes_on { FACTOR * FACTOR } else { FACTOR })
}

/// How many chunks, each as long as `chunk`, sessions of a mount may put one after the other while nothing else changes.
#[must_use]
pub fn allowance(held: u64, free: u64, chunk: u64, passes_on: bool) -> u64 {
    if planted(Bug::RoomUndivided) {
        return free / chunk;
    }
    // The last is taken while `held + (n - 1) * chunk < factor * (free - (n - 1) * chunk)`.
    match most(free, passes_on).saturating_sub(held) {
        0 => 0,
        more => ((more - 1) / (most(chunk, passes_on) + chunk) + 1).min(free / chunk),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allowance_is_as_many_chunks_as_may_be_taken_one_after_the_other() {
        for (held, free, chunk) in
            (0..200).flat_map(|held| (0..100).flat_map(move |free| [1, 2, 7, 16].map(|chunk| (held, free, chunk))))
        {
            for passes_on in [false, true] {
                let (mut has, mut left, mut taken) = (held, free, 0);
                while left >= chunk && Owner::default().may_take(has, left, passes_on) {
                    (has, left, taken) = (has + chunk, left - chunk, taken + 1);
                }
                assert_eq!(allowance(held, free, chunk, passes_on), taken, "{held} of {free} in chunks of {chunk}");
            }
        }
    }

    #[test]
    fn repair_takes_a_part_of_what_its_mount_leaves() {
        let repairs = Owner { mount: None, repairs: true };
        for (passes_on, leaves) in [(false, [1000, 138]), (true, [138, 17])] {
            let (mut held, mut free) = (0, 9000);
            for (owner, left) in [Owner::default(), repairs].into_iter().zip(leaves) {
                while owner.may_take(held, free, passes_on) {
                    (held, free) = (held + 1, free - 1);
                }
                assert_eq!(free, left);
            }
        }
    }

    /// Mounts come one after the other and take all that they may, and none of them returns anything.
    #[test]
    fn whoever_comes_finds_a_ninth_of_what_the_one_before_found() {
        for all in 0..5000 {
            let mut free = all;
            for _ in 0..4 {
                let taken = allowance(0, free, 1, false);
                assert!(free == 0 || taken > 0, "whoever has nothing gets something, if there is something");
                assert!((free - taken) * (FACTOR + 1) + FACTOR >= free, "of {free} are {taken} taken");
                free -= taken;
            }
        }
    }
}
