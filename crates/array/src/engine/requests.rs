//! Requests from submission to reply: admission, order, parts.

use std::collections::BTreeMap;

use smallvec::SmallVec;
use surgetank_model::{FlushRequest, Instant, Operation, Request, RequestId};

use super::{Engine, Waiting, single};
use crate::effect::{Effect, IoFailure, ReplyError};
use crate::geometry::Run;
use crate::planted::{Bug, planted};
use crate::port::Waiter;

/// A request that has started.
#[derive(Debug)]
pub(super) struct Active {
    pub request: Request,
    pub runs: SmallVec<[Run; 8]>,
    /// Parts that have not ended, one of them the start itself.
    pub parts: u32,
    pub error: Option<ReplyError>,
    /// Runs of a change that the active member failed.
    pub failed: SmallVec<[Run; 1]>,
    /// Runs of a change that the joining member failed, or may have forgotten.
    pub failed_doubles: SmallVec<[Run; 1]>,
    /// Slots whose member failed a flush meanwhile, and may have made it forget a part of this change.
    pub forgotten: SmallVec<[u32; 1]>,
    /// A read of which a part is to be read again when nothing that overlaps it is being changed.
    pub again: bool,
    /// A change that only the joining member has: it is answered when that has become active.
    pub parked: bool,
}

/// Whether a request changes its range.
pub(super) const fn is_change(operation: Operation) -> bool {
    match operation {
        Operation::Write { .. } | Operation::Discard | Operation::WriteZeroes { .. } => true,
        Operation::Read | Operation::Flush => false,
    }
}

pub(super) const fn error_of(failure: IoFailure) -> ReplyError {
    match failure {
        IoFailure::NoSpace => ReplyError::NoSpace,
        IoFailure::Unsupported => ReplyError::Unsupported,
        IoFailure::Io | IoFailure::Corrupt | IoFailure::Gone => ReplyError::Io,
    }
}

impl Engine {
    /// Takes a request; exactly one `Effect::Reply` answers it.
    pub fn submit(&mut self, now: Instant, request: Request) {
        self.pass_to(now);
        if !self.is_known(request.id)
            && let Some(single) = self.begin_single(now, &request, true)
        {
            return self.effects.push_back(single::effect(&request, single));
        }
        if self.is_valid(&request) {
            let waiting = Waiting { request, settled: false };
            if !self.opened || !self.waiting.is_empty() || !self.try_start(waiting) {
                self.waiting.push_back(waiting);
                self.retry_waiting = true;
            }
        } else {
            self.effects.push_back(Effect::Reply { request: request.id, result: Err(ReplyError::Invalid) });
        }
        self.pump();
    }

    fn is_known(&self, request: RequestId) -> bool {
        let waits = |waiting: &Waiting| waiting.request.id == request;
        self.requests.contains_key(&request) || self.waiting.iter().any(waits) || self.singles.is_known(request)
    }

    fn is_valid(&self, request: &Request) -> bool {
        let known = self.is_known(request.id);
        if request.operation == Operation::Flush {
            return !known;
        }
        let block = u64::from(self.geometry.logical_block);
        let transfers = matches!(request.operation, Operation::Read | Operation::Write { .. });
        request.length > 0
            && request.offset.is_multiple_of(block)
            && request.length.is_multiple_of(block)
            && request.offset.checked_add(request.length).is_some_and(|end| end <= self.size)
            && !(transfers && request.length > Request::LENGTH_MAX)
            && !known
    }

    /// Starts those of the waiting requests that need not wait any more; overlapping changes keep their order.
    pub(super) fn retry_waiting(&mut self) {
        if !self.opened {
            return;
        }
        while std::mem::take(&mut self.retry_waiting) && !self.waiting.is_empty() {
            let mut still: Vec<Waiting> = Vec::new();
            for waiting in std::mem::take(&mut self.waiting) {
                let request = &waiting.request;
                let meets = |other: &Waiting| is_change(other.request.operation) && overlap(&other.request, request);
                let behind = is_change(request.operation) && still.iter().any(meets);
                if behind || !self.try_start(waiting) {
                    still.push(waiting);
                }
            }
            // What has been answered meanwhile may have put reads back.
            let back = std::mem::take(&mut self.waiting);
            self.waiting = still.into_iter().chain(back).collect();
        }
    }

    /// Starts a request, unless it must wait.
    fn try_start(&mut self, waiting: Waiting) -> bool {
        let Waiting { request, settled } = waiting;
        match request.operation {
            Operation::Flush => self.start_flush(request),
            Operation::Read => return self.start_read(request, settled),
            Operation::Write { .. } | Operation::Discard | Operation::WriteZeroes { .. } => {
                return self.start_change(request);
            }
        }
        true
    }

    pub(super) fn begin(&mut self, request: Request, runs: SmallVec<[Run; 8]>) {
        let active = Active {
            request,
            runs,
            parts: 1,
            error: None,
            failed: SmallVec::new(),
            failed_doubles: SmallVec::new(),
            forgotten: SmallVec::new(),
            again: false,
            parked: false,
        };
        self.requests.insert(request.id, active);
    }

    /// Whether a change in flight overlaps this range of the array.
    pub(super) fn is_locked(&self, request: &Request) -> bool {
        is_locked(&self.locks, request) || self.singles.is_locked(request)
    }

    pub(super) fn add_part(&mut self, request: RequestId) {
        if let Some(active) = self.requests.get_mut(&request) {
            active.parts += 1;
        }
    }

    /// A part of a flush has ended.
    pub(super) fn finish_part(&mut self, id: RequestId, success: bool) {
        if !success {
            self.fail_request(id, ReplyError::Io);
        }
        if self.end_part(id) {
            self.reply(id);
        }
    }

    /// A part has ended. Whether it was the last one.
    pub(super) fn end_part(&mut self, id: RequestId) -> bool {
        let Some(active) = self.requests.get_mut(&id) else { return false };
        active.parts -= 1;
        active.parts == 0
    }

    pub(super) fn fail_request(&mut self, id: RequestId, error: ReplyError) {
        if let Some(active) = self.requests.get_mut(&id) {
            active.error.get_or_insert(error);
        }
    }

    pub(super) fn reply(&mut self, id: RequestId) {
        let Some(active) = self.requests.remove(&id) else { return };
        let result = active.error.map_or(Ok(()), Err);
        self.retry_waiting |= !self.waiting.is_empty();
        self.effects.push_back(Effect::Reply { request: id, result });
    }

    /// Makes everything completed so far durable. A joining member is flushed when its copy is recorded and before it counts;
    /// until then the active one is what counts after a crash.
    fn start_flush(&mut self, request: Request) {
        let id = request.id;
        // Until the application has been told of a failure, every flush tells it.
        let telling = |active: &Active| active.request.operation == Operation::Flush && active.error.is_some();
        let telling = self.requests.values().any(telling);
        self.begin(request, SmallVec::new());
        if telling {
            self.fail_request(id, ReplyError::Io);
        }
        for slot in 0..self.slots.len() as u32 {
            if slot + 1 == self.slots.len() as u32 && planted(Bug::FlushSkipsMember) {
                continue;
            }
            let target = self.slots[slot as usize].active;
            let serves = self.slots[slot as usize].serves;
            // That an earlier flush failed is told to the first one after it.
            let owed = self.member(target).is_some_and(|member| std::mem::take(&mut member.owed));
            if owed || !serves {
                self.fail_request(id, ReplyError::Io);
            }
            if !serves {
                continue;
            }
            self.add_part(id);
            if self.flush_member(target, Waiter::Request(id)) == FlushRequest::Ready {
                self.finish_part(id, true);
            }
        }
        self.finish_part(id, true);
    }
}

/// Whether one of these ranges, start → end and disjoint, overlaps a request.
pub(super) fn is_locked(locks: &BTreeMap<u64, u64>, request: &Request) -> bool {
    let end = request.offset + request.length;
    locks.range(..end).next_back().is_some_and(|(_, &locked)| locked > request.offset)
}

pub(super) fn overlap(one: &Request, other: &Request) -> bool {
    one.offset < other.offset + other.length && other.offset < one.offset + one.length
}
