//! For which sizes the provider has had room, since a size that was learned may be larger than any that it rents; and for which this machine has room,
//! where boosts and read caches share a budget.

use std::time::Duration;

use surgetank_model::{Bytes, Instant};

use super::{Controller, Wish};

/// What the provider had room for, and what not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Room {
    /// The largest volume that was rented since one was refused.
    rented: Option<Bytes>,
    /// One that was refused for want of room, and until when no such one is asked for.
    refused: Option<(Bytes, Instant)>,
}

impl Room {
    /// A volume of this size was rented.
    pub fn had(&mut self, size: Bytes) {
        self.rented = self.rented.max(Some(size));
    }

    /// There was no room for one of this size, which is asked for no more for so long.
    pub fn lacked(&mut self, now: Instant, size: Bytes, pause: Duration) {
        self.refused = Some((size, now + pause));
        self.rented = self.rented.filter(|rented| *rented < size);
    }
}

/// What this machine has for the caching volume of a device, where boosts and read caches share a budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headroom {
    /// What they have together.
    pub budget: Bytes,
    /// What the least shares of read caches leave of it, caches that are not served, and other boosts.
    pub most: Bytes,
}

impl Headroom {
    /// Whether a caching volume of this size has room.
    ///
    /// # Errors
    /// Why not: one sentence.
    pub fn allows(&self, size: Bytes) -> Result<(), String> {
        if size <= self.most {
            return Ok(());
        }
        let Self { budget, most } = self;
        Err(format!(
            "the budget of {budget} that read caches and boosts share does not allow it: their least shares, caches that are not served and other \
             boosts leave {most}, and a caching volume of {size} is wanted"
        ))
    }
}

impl Controller {
    /// What this machine has for the caching volume from now on: no boost begins, and none grows, beyond that. `None`, as in the beginning: as much as
    /// the provider rents.
    pub fn set_headroom(&mut self, headroom: Option<Headroom>) {
        self.headroom = headroom;
    }

    /// Whether a step for which room is sought is not wanted any more: the boost is to end, or its caching volume has failed.
    #[must_use]
    pub fn calls_off(&self) -> bool {
        self.wish == Wish::End || self.degraded
    }

    /// Whether a caching volume may be rented in this size, or grow to it.
    pub(super) fn has_headroom(&self, size: Bytes) -> Result<(), String> {
        self.headroom.map_or(Ok(()), |headroom| headroom.allows(size))
    }

    /// The size to ask for: the wanted one, or, if there was no room for that lately, the largest one of which there was, or the
    /// first one. A quota may be another one's for a while, so there is no smaller one.
    pub(super) fn size_with_room(&self, wanted: Bytes) -> Bytes {
        match self.room.refused {
            Some((refused, until)) if wanted >= refused && self.now < until => {
                wanted.min(self.room.rented.unwrap_or(self.config.first_size()))
            }
            _ => wanted,
        }
    }
}
