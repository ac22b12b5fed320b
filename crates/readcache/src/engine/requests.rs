//! Requests from submission to reply.

use std::ops::Range;

use smallvec::SmallVec;
use surgetank_model::{Operation, Request, RequestId};

use super::{Engine, Pending};
use crate::changes::Change;
use crate::effect::{BufferId, Effect, IoFailure, MemberId, RequestError, Slice, Target};
use crate::placement::{Segment, Slot};
use crate::planted::{Bug, planted};

/// Pieces of a read, at most: one that is scattered over more is cheaper to read from the backing volume.
const PIECES_MAX: usize = 32;

/// A request that is not answered.
#[derive(Debug)]
pub(super) struct Active {
    pub request: Request,
    pub stage: Stage,
}

/// How far a request is.
#[derive(Debug)]
pub(super) enum Stage {
    /// Read from members.
    Cached {
        /// Reads that have not ended.
        parts: u32,
        /// Why one has failed.
        failure: Option<IoFailure>,
    },
    /// Read from the backing volume. It fills the cache if nothing changes its blocks after this change.
    Missed { since: Option<u64> },
    /// Changes the backing volume.
    Changing {
        change: Change,
        /// Blocks that were cached: what is written takes their place.
        cached: SmallVec<[Range<u64>; 4]>,
    },
    /// Flushes the backing volume.
    Flushing,
}

/// A part of a read: blocks that follow each other on a member.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    request: RequestId,
    /// The first one.
    block: u64,
    slot: Slot,
    count: u32,
    pub segment: Segment,
    pub member: MemberId,
}

impl Engine {
    /// Takes a request; exactly one `Effect::Reply` answers it.
    pub fn submit(&mut self, request: Request) {
        if !self.is_valid(&request) {
            self.effects.push_back(Effect::Reply { request: request.id, result: Err(RequestError::Invalid) });
            return;
        }
        match request.operation {
            Operation::Read => self.start_read(request),
            Operation::Write { .. } | Operation::Discard | Operation::WriteZeroes { .. } => self.start_change(request),
            Operation::Flush => {
                self.begin(request, Stage::Flushing);
                self.emit(Pending::Backing(request.id), |id| Effect::Flush { id });
            }
        }
        self.pump();
    }

    fn is_valid(&self, request: &Request) -> bool {
        let known = self.requests.contains_key(&request.id);
        if request.operation == Operation::Flush {
            return !known;
        }
        let block = u64::from(self.config.logical_block);
        let transfers = matches!(request.operation, Operation::Read | Operation::Write { .. });
        request.length > 0
            && request.offset.is_multiple_of(block)
            && request.length.is_multiple_of(block)
            && request.offset.checked_add(request.length).is_some_and(|end| end <= self.config.size)
            && !(transfers && request.length > Request::LENGTH_MAX)
            && !known
    }

    fn begin(&mut self, request: Request, stage: Stage) {
        self.requests.insert(request.id, Active { request, stage });
    }

    fn reply(&mut self, request: RequestId, result: Result<(), IoFailure>) {
        self.requests.remove(&request);
        self.effects.push_back(Effect::Reply { request, result: result.map_err(RequestError::Backing) });
    }

    /// The blocks of which a request has a part.
    pub(super) fn touched(&self, request: &Request) -> Range<u64> {
        let block = u64::from(self.config.block);
        request.offset / block..(request.offset + request.length).div_ceil(block)
    }

    /// The blocks that a request has as a whole, if it has no part of others.
    fn whole(&self, request: &Request) -> Option<Range<u64>> {
        let block = u64::from(self.config.block);
        let aligned = request.offset.is_multiple_of(block) && request.length.is_multiple_of(block);
        aligned.then(|| self.touched(request))
    }

    fn start_read(&mut self, request: Request) {
        let pieces = self.whole(&request).and_then(|blocks| self.locate(request.id, blocks));
        let Some(pieces) = pieces else { return self.read_backing(request) };
        let mut parts = 0;
        for piece in pieces {
            let at = (piece.block * u64::from(self.config.block) - request.offset) as u32;
            let length = piece.count * self.config.block;
            let into = Slice { buffer: BufferId::Request(request.id), offset: at, length };
            parts += self.read_piece(piece, into);
        }
        if parts == 0 {
            self.status.hit_bytes += request.length;
            self.effects.push_back(Effect::Reply { request: request.id, result: Ok(()) });
        } else {
            self.begin(request, Stage::Cached { parts, failure: None });
        }
    }

    /// Where the blocks of a read are, if all are cached and not too scattered. Those that are have been used either way.
    fn locate(&mut self, request: RequestId, blocks: Range<u64>) -> Option<SmallVec<[Piece; 4]>> {
        let mut pieces: SmallVec<[Piece; 4]> = SmallVec::new();
        let mut complete = true;
        for block in blocks {
            let Some(slot) = self.placement.find(block) else {
                complete = false;
                continue;
            };
            self.placement.touch(slot);
            let segment = self.placement.segment_of(slot).0;
            let is_full = pieces.len() == PIECES_MAX;
            match pieces.last_mut() {
                Some(last) if last.segment == segment && last.slot.0 + last.count == slot.0 => last.count += 1,
                _ if !complete || is_full => complete = false,
                _ => {
                    let member = self.member_id(self.placement.member_of(segment).0)?;
                    pieces.push(Piece { request, block, slot, count: 1, segment, member });
                }
            }
        }
        complete.then_some(pieces)
    }

    /// Reads a piece from memory, at once, or from its member. How many reads that are.
    fn read_piece(&mut self, piece: Piece, into: Slice) -> u32 {
        let position = self.placement.segment_of(piece.slot).1;
        if let Some(buffer) = self.buffers.get(&piece.segment)
            && !planted(Bug::ReadBeforeWritten)
        {
            let offset = position * self.config.block;
            let from = Slice { buffer: BufferId::Scratch(buffer.scratch), offset, length: into.length };
            self.effects.push_back(Effect::Copy { from, to: into });
            return 0;
        }
        let Some((member, offset)) = self.on_member(piece.segment, position) else { return 0 };
        let slots = piece.slot.0..piece.slot.0 + piece.count;
        let checksums: Box<[u32]> = slots.map(|slot| self.placement.checksum(Slot(slot))).collect();
        let checksums = (!planted(Bug::Unchecked)).then_some(checksums);
        self.readers[piece.segment.0 as usize] += 1;
        self.asks(member);
        let target = Target::Member(member);
        self.emit(Pending::Piece(piece), |id| Effect::Read { id, target, offset, into, checksums });
        1
    }

    pub(super) fn piece_ended(&mut self, piece: Piece, result: Result<(), IoFailure>) {
        self.readers[piece.segment.0 as usize] -= 1;
        if result.is_err() {
            // Nothing has come to these slots meanwhile; blocks that have left them are elsewhere.
            for (block, slot) in (piece.block..).zip(piece.slot.0..piece.slot.0 + piece.count) {
                if self.placement.find(block) == Some(Slot(slot)) {
                    self.placement.remove(block);
                }
            }
        }
        self.answered(piece.member, result);
        self.free_if_idle(piece.segment);
        let Some(active) = self.requests.get_mut(&piece.request) else { return };
        let request = active.request;
        let Stage::Cached { parts, failure } = &mut active.stage else { return };
        *parts -= 1;
        *failure = failure.or(result.err());
        match (*parts, *failure) {
            (0, None) => {
                self.status.hit_bytes += request.length;
                self.reply(request.id, Ok(()));
            }
            (0, Some(failure)) if planted(Bug::MemberFailureAnswered) => self.reply(request.id, Err(failure)),
            (0, Some(_)) => {
                self.status.failed_reads += 1;
                self.read_backing(request);
            }
            _ => {}
        }
    }

    fn read_backing(&mut self, request: Request) {
        self.status.missed_bytes += request.length;
        let whole = self.whole(&request).filter(|_| !self.members.is_empty());
        let mut since = whole.and_then(|blocks| self.changes.read_begins(&blocks));
        if planted(Bug::FillDuringChange) {
            since = self.whole(&request).map(|_| self.changes.begun());
        }
        self.begin(request, Stage::Missed { since });
        let into = Slice { buffer: BufferId::Request(request.id), offset: 0, length: request.length as u32 };
        let (target, offset) = (Target::Backing, request.offset);
        self.emit(Pending::Backing(request.id), |id| Effect::Read { id, target, offset, into, checksums: None });
    }

    fn start_change(&mut self, request: Request) {
        let touched = self.touched(&request);
        let mut cached: SmallVec<[Range<u64>; 4]> = SmallVec::new();
        let is_write = matches!(request.operation, Operation::Write { .. });
        let stale = planted(Bug::StaleAfterDiscard) && !is_write
            || planted(Bug::StaleAfterPart) && self.whole(&request).is_none()
            || planted(Bug::StaleAfterWrite) && is_write;
        if stale {
            // Nothing is removed.
        } else if is_write {
            self.remove_written(&request, touched.clone(), &mut cached);
        } else {
            self.placement.remove_range(touched.clone());
            self.release_dropped_buffers();
        }
        let change = self.changes.begin(&touched);
        self.begin(request, Stage::Changing { change, cached });
        let Request { id: name, operation, offset, length } = request;
        let from = Slice { buffer: BufferId::Request(name), offset: 0, length: length as u32 };
        self.emit(Pending::Backing(name), |id| match operation {
            Operation::Write { fua } => Effect::Write { id, offset, from, fua },
            Operation::WriteZeroes { fua } => Effect::WriteZeroes { id, offset, length, fua },
            Operation::Read | Operation::Flush | Operation::Discard => Effect::Discard { id, offset, length },
        });
    }

    /// Removes the blocks of a write, and lists those that were cached and will be written as a whole.
    fn remove_written(&mut self, request: &Request, touched: Range<u64>, cached: &mut SmallVec<[Range<u64>; 4]>) {
        let size = u64::from(self.config.block);
        let whole = request.offset.div_ceil(size)..(request.offset + request.length) / size;
        for block in touched {
            if !self.placement.remove(block) || !whole.contains(&block) {
                continue;
            }
            match cached.last_mut() {
                Some(last) if last.end == block => last.end += 1,
                _ => cached.push(block..block + 1),
            }
        }
    }

    /// The backing volume has answered.
    pub(super) fn backing_ended(&mut self, id: RequestId, result: Result<(), IoFailure>) {
        let Some(active) = self.requests.remove(&id) else { return };
        let Active { request, stage } = active;
        match stage {
            Stage::Missed { since } => {
                let succeeded = result.is_ok() || planted(Bug::FailedFillCached);
                if let (Some(since), Some(blocks), true) = (since, self.whole(&request), succeeded) {
                    if self.changes.may_keep(&blocks, since) || planted(Bug::RacingFillKept) {
                        self.fill(blocks, BufferId::Request(id));
                    } else {
                        self.status.unfilled_blocks += blocks.end - blocks.start;
                    }
                }
            }
            Stage::Changing { change, cached } => {
                let alone = self.changes.end(&self.touched(&request), change) || planted(Bug::RacingWriteKept);
                if alone && (result.is_ok() || planted(Bug::FailedWriteCached)) {
                    self.keep_written(&request, &cached);
                }
            }
            Stage::Flushing | Stage::Cached { .. } => {}
        }
        self.reply(id, result);
    }

    fn keep_written(&mut self, request: &Request, cached: &[Range<u64>]) {
        for blocks in cached {
            let offset = blocks.start * u64::from(self.config.block) - request.offset;
            self.update(blocks.clone(), BufferId::Request(request.id), offset as u32);
        }
    }
}
