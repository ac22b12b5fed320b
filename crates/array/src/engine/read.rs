//! Reads: from the active member, or from the joining one where both hold the same and that is sooner.
//!
//! The joining member serves no range that is being changed, and a change waits for reads of the joining member that overlap
//! it. So no read shows what a later one does not.

use surgetank_model::{Request, RequestId};

use super::requests::error_of;
use super::{Engine, Pending, Waiting};
use crate::effect::{BufferId, Effect, EffectId, IoFailure, Target};
use crate::geometry::Run;
use crate::planted::{Bug, planted};

/// An I/O of a read.
#[derive(Debug)]
pub(super) struct ReadPart {
    request: RequestId,
    pub target: Target,
    pub run: Run,
    /// The other member has failed it.
    last: bool,
}

impl ReadPart {
    /// Which read.
    #[cfg(debug_assertions)]
    pub fn request(&self) -> RequestId {
        self.request
    }
}

impl Engine {
    /// Starts a read, unless it must wait: for what overlaps it and only the joining member has, or, if it is `settled`, for
    /// every change that overlaps it.
    pub(super) fn start_read(&mut self, request: Request, settled: bool) -> bool {
        let runs = self.geometry.runs(request.offset, request.length);
        let joins = |run: &Run| self.slots[run.slot as usize].join.is_some();
        let locked = (settled || runs.iter().any(joins)) && self.is_locked(&request);
        let parked = |run: &Run| !self.slots[run.slot as usize].parked.is_empty();
        if locked && (settled || runs.iter().any(parked)) {
            return false;
        }
        self.begin(request, runs.clone());
        for run in runs {
            let active = self.serving(run.slot).map(|member| member.target);
            let join = self.readable_join(&request, &run).filter(|_| !locked || planted(Bug::ReadWhileWritten));
            let queued = |target: Target| self.members.get(&target).map_or(0, |member| member.port.bytes_in_flight);
            match (active, join) {
                (Some(active), Some(join)) if queued(join) < queued(active) => {
                    self.read_from(&request, run, join, false)
                }
                (Some(active), _) => self.read_from(&request, run, active, false),
                (None, Some(join)) => self.read_from(&request, run, join, true),
                (None, None) => self.fail_request(request.id, error_of(IoFailure::Io)),
            }
        }
        if self.end_part(request.id) {
            self.reply(request.id);
        }
        true
    }

    /// The joining member of a run's slot, if it holds the same there.
    fn readable_join(&self, request: &Request, run: &Run) -> Option<Target> {
        let slot = &self.slots[run.slot as usize];
        let join = slot.join.as_ref().filter(|_| !slot.dropping)?;
        let same = self.geometry.regions_of(run).all(|region| join.synced.get(region));
        let ready = self.members.get(&join.target).is_some_and(super::Member::is_ready);
        (same && ready && request.length > 0).then_some(join.target)
    }

    fn read_from(&mut self, request: &Request, run: Run, target: Target, last: bool) {
        let Some(member) = self.members.get_mut(&target) else { return };
        member.port.started(run.length);
        self.add_part(request.id);
        let offset = self.geometry.data_offset() + run.offset;
        let into = self.geometry.slices(&run, request.offset, BufferId::Request(request.id));
        let part = ReadPart { request: request.id, target, run, last };
        let id = self.emit(Pending::Read(part), |id| Effect::Read { id, target, offset, into });
        if let Some(join) = self.slots[run.slot as usize].join.as_mut().filter(|join| join.target == target) {
            join.reads.insert(id, (request.offset, request.offset + request.length));
        }
    }

    pub(super) fn read_ended(&mut self, id: EffectId, part: ReadPart, result: Result<(), IoFailure>) {
        if let Some(member) = self.member(part.target) {
            member.port.ended(part.run.length);
        }
        let slot = &mut self.slots[part.run.slot as usize];
        let joins = slot.join.as_mut().is_some_and(|join| join.reads.remove(&id).is_some());
        self.retry_waiting |= joins;
        if let Err(failure) = result {
            self.read_failed(&part, failure);
        }
        if !self.end_part(part.request) {
            return;
        }
        let Some(active) = self.requests.get(&part.request) else { return };
        if active.again && active.error.is_none() {
            let request = active.request;
            self.requests.remove(&request.id);
            self.waiting.push_back(Waiting { request, settled: true });
            self.retry_waiting = true;
        } else {
            self.reply(part.request);
        }
    }

    /// A member failed a read: the other one has the same, unless it is being changed.
    fn read_failed(&mut self, part: &ReadPart, failure: IoFailure) {
        let Some(active) = self.requests.get(&part.request) else { return };
        let request = active.request;
        let serving = self.serving(part.run.slot).map(|member| member.target);
        let other = match serving {
            Some(active) if active != part.target => Some(active),
            _ => self.readable_join(&request, &part.run).filter(|join| *join != part.target),
        };
        let Some(other) = other.filter(|_| !part.last) else {
            return self.fail_request(request.id, error_of(failure));
        };
        if serving != Some(other) && self.is_locked(&request) {
            if let Some(active) = self.requests.get_mut(&request.id) {
                active.again = true;
            }
            return;
        }
        self.read_from(&request, part.run, other, true);
    }
}
