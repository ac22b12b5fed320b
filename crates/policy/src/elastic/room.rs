//! For which sizes the provider has had room: a size that was learned may be larger than any that it rents.

use std::time::Duration;

use surgetank_model::{Bytes, Instant};

use super::Controller;

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

impl Controller {
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
