//! The cache may have a part of its members only, and how large that is changes while it serves: devices share a host's cache.

use super::{Engine, Event, Pending};
use crate::effect::{Effect, IoFailure, MemberId};
use crate::placement::Segment;
use crate::planted::{Bug, planted};

use super::members::SEGMENTS_LEAST;
use super::segments::FREE_LEAST;

/// Segments that are parked at once.
const PARKING_MAX: u32 = 8;

impl Engine {
    /// The cache has so many bytes of its members at most from now on, as many as they have if `None`; fewer than four segments are none.
    /// It may grow at once. While it is larger, it evicts and takes nothing new, until [`Event::Shrunk`].
    pub fn set_limit(&mut self, bytes: Option<u64>) {
        let segments = bytes.map_or(u64::from(u32::MAX), |bytes| bytes / u64::from(self.config.segment));
        let segments = if segments < SEGMENTS_LEAST { 0 } else { segments };
        self.limit = u32::try_from(segments).unwrap_or(u32::MAX);
        self.placement.set_limit(self.limit);
        self.release_dropped_buffers();
        self.shrinking = self.placement.held() > self.limit;
        self.pump();
    }

    /// Parks what is free if the cache is too large.
    pub(super) fn shrink(&mut self) {
        let least = if self.limit == 0 { 0 } else { FREE_LEAST };
        while self.parking < PARKING_MAX {
            let Some(segment) = self.placement.park(least) else { break };
            let Some((member, offset)) = self.on_member(segment, 0) else { break };
            self.parking += 1;
            self.asks(member);
            let length = self.config.segment;
            self.emit(Pending::Parking { segment, member }, |id| Effect::DiscardSegment { id, member, offset, length });
            if planted(Bug::ParkedBeforeTold) {
                self.placement.parked(segment);
            }
        }
        if self.shrinking && self.placement.held() <= self.limit {
            self.shrinking = false;
            self.events.push_back(Event::Shrunk);
        }
    }

    /// A member that cannot be told keeps the room; that harms nobody but those who wait for it.
    pub(super) fn parking_ended(&mut self, segment: Segment, member: MemberId, result: Result<(), IoFailure>) {
        self.parking -= 1;
        self.answered(member, result.or_else(|failure| if failure == IoFailure::Gone { Err(failure) } else { Ok(()) }));
        if !planted(Bug::ParkedBeforeTold) {
            self.placement.parked(segment);
        }
    }
}
