//! Members come empty and go with what they hold, at any time.

use super::{Engine, Event, Rejected};
use crate::effect::{Effect, IoFailure, MemberId};
use crate::placement::{self, State};

/// Segments that a member has at least: two to be filled, one to be free, one to be full.
pub(super) const SEGMENTS_LEAST: u64 = 4;
/// Failures in a row after which a member serves no more.
const FAILURES_MAX: u32 = 8;

#[derive(Debug)]
pub(super) struct Member {
    /// Its number in the placement.
    pub number: placement::Member,
    pub segments: u32,
    pub effects_in_flight: u32,
    /// Failures in a row.
    failures: u32,
    pub serves: bool,
}

impl Engine {
    /// A member comes: an empty volume of so many bytes.
    ///
    /// # Errors
    /// If it is there already, or is too small.
    pub fn add_member(&mut self, id: MemberId, size: u64) -> Result<(), Rejected> {
        let segment = u64::from(self.config.segment);
        let segments = size / segment;
        if self.members.contains_key(&id) {
            return Err(Rejected("the volume is a member of the read cache already: use another one".to_owned()));
        }
        if segments < SEGMENTS_LEAST {
            let least = SEGMENTS_LEAST * segment;
            return Err(Rejected(format!(
                "a member of a read cache needs {least} bytes and the volume has {size}: use a larger one"
            )));
        }
        let number = self.placement.add_member(u32::try_from(segments).unwrap_or(u32::MAX));
        let at = number.0 as usize;
        self.ids.resize(self.ids.len().max(at + 1), None);
        self.ids[at] = Some(id);
        let segments = self.placement.member_segments(number);
        self.readers.resize(self.placement.segments(), 0);
        self.members.insert(id, Member { number, segments, effects_in_flight: 0, failures: 0, serves: true });
        Ok(())
    }

    /// A member goes; `Event::Released` says when nothing is asked of it any more.
    ///
    /// # Errors
    /// If it is not there.
    pub fn remove_member(&mut self, id: MemberId) -> Result<(), Rejected> {
        if !self.members.contains_key(&id) {
            return Err(Rejected("the volume is no member of the read cache: nothing to remove".to_owned()));
        }
        self.drop_member(id);
        self.pump();
        Ok(())
    }

    fn drop_member(&mut self, id: MemberId) {
        let Some(member) = self.members.get_mut(&id).filter(|member| member.serves) else { return };
        member.serves = false;
        self.placement.remove_member(member.number);
        self.release_dropped_buffers();
    }

    /// Frees the memory of segments that were open and are dropped; that of those being written is freed when they are.
    pub(super) fn release_dropped_buffers(&mut self) {
        let (placement, effects) = (&self.placement, &mut self.effects);
        self.buffers.retain(|segment, buffer| {
            let stays = buffer.writing || placement.state(*segment) != State::Dropped;
            if !stays {
                effects.push_back(Effect::Release { scratch: buffer.scratch });
            }
            stays
        });
    }

    /// An effect on a member begins.
    pub(super) fn asks(&mut self, id: MemberId) {
        if let Some(member) = self.members.get_mut(&id) {
            member.effects_in_flight += 1;
        }
    }

    /// An effect on a member has ended.
    pub(super) fn answered(&mut self, id: MemberId, result: Result<(), IoFailure>) {
        let Some(member) = self.members.get_mut(&id) else { return };
        member.effects_in_flight -= 1;
        let failure = match result {
            Ok(()) => {
                member.failures = 0;
                return;
            }
            Err(failure) => failure,
        };
        member.failures += 1;
        if member.serves && (failure == IoFailure::Gone || member.failures >= FAILURES_MAX) {
            self.events.push_back(Event::Failed { member: id, failure });
            self.drop_member(id);
        }
    }

    /// Tells of members that have gone.
    pub(super) fn release_members(&mut self) {
        let (events, ids) = (&mut self.events, &mut self.ids);
        self.members.retain(|id, member| {
            let stays = member.serves || member.effects_in_flight > 0;
            if !stays {
                ids[member.number.0 as usize] = None;
                events.push_back(Event::Released(*id));
            }
            stays
        });
    }

    /// The member that a number of the placement stands for.
    pub(super) fn member_id(&self, number: placement::Member) -> Option<MemberId> {
        self.ids.get(number.0 as usize).copied().flatten()
    }
}
