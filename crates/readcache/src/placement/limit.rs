//! How many of its members' segments the cache may have. What is too much is evicted and parked, and its member is told that nothing
//! is there, so that another cache may use the room.

use super::{GHOSTS_PERCENT, Placement, Segment, Space, State};
use crate::planted::{Bug, planted};

impl Space {
    /// Segments that something is in or may come to.
    fn used(&self) -> u32 {
        self.segments - self.parking - self.parked.len() as u32
    }
}

impl Placement {
    /// The cache may have so many segments from now on. If it has more, [`Placement::is_too_large`] until they are parked.
    pub fn set_limit(&mut self, segments: u32) {
        self.limit = segments;
        if segments == 0 {
            self.drop_where(|_| true);
        }
        self.limit_ghosts();
        self.take_parked();
    }

    pub(super) fn limit_ghosts(&mut self) {
        let slots = self.segments.len().min(self.limit as usize) as u64 * u64::from(self.segment_blocks);
        self.ghosts.limit(slots * GHOSTS_PERCENT / 100);
    }

    /// Segments that something is in or may come to.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.spaces.iter().map(Space::used).sum()
    }

    /// Those, and those that are being parked: on their members something may be.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.spaces.iter().map(|space| space.used() + space.parking).sum()
    }

    /// Whether it uses more than it may.
    #[must_use]
    pub fn is_too_large(&self) -> bool {
        self.used() > self.limit
    }

    /// Whether segments have to leave, as it uses more than it may even when all of its free ones but `least` are parked, and so many
    /// `more` that are on the way to be free.
    pub fn has_to_evict(&self, least: usize, more: usize) -> bool {
        let free = self.free_segments().saturating_sub(least) + more;
        self.used() as usize > self.limit as usize + free
    }

    /// Takes a free segment out of use if the cache is too large and has more than `least` free ones. Its member is to be told, and
    /// then [`Placement::parked`].
    pub fn park(&mut self, least: usize) -> Option<Segment> {
        if !self.is_too_large() || self.free_segments() <= least {
            return None;
        }
        // Of the member that serves most, so that each goes on serving its share.
        let with_free = self.spaces.iter_mut().filter(|space| !space.free.is_empty());
        let space = with_free.max_by_key(|space| space.used())?;
        let segment = space.free.pop()?;
        space.parking += 1;
        self.set_state(segment, State::Parking);
        Some(segment)
    }

    /// The member of a segment that is being parked has been told.
    pub fn parked(&mut self, segment: Segment) {
        let member = self.details(segment).member;
        let space = &mut self.spaces[member.0 as usize];
        space.parking -= 1;
        if space.present {
            space.parked.push(segment);
            self.set_state(segment, State::Parked);
            self.take_parked();
        } else {
            space.segments -= 1;
            self.spare.push(segment);
            self.set_state(segment, State::Free);
            self.take_parked();
        }
    }

    /// Takes parked segments into use again, as far as the cache may be larger.
    pub(super) fn take_parked(&mut self) {
        let room = if planted(Bug::LimitForgotten) { u32::MAX } else { self.limit.saturating_sub(self.held()) };
        for _ in 0..room {
            let with_parked = self.spaces.iter_mut().filter(|space| !space.parked.is_empty());
            let Some(space) = with_parked.min_by_key(|space| space.used()) else { return };
            let Some(segment) = space.parked.pop() else { return };
            space.free.push(segment);
            self.set_state(segment, State::Free);
        }
    }
}
