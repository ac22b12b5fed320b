//! Segments: filled in memory, written whole, read once more for their survivors, and free again.

use super::{Engine, Pending};
use crate::effect::{BufferId, Effect, IoFailure, MemberId, ScratchId, Slice, Target};
use crate::placement::{Queue, Segment, Slot, State};
use crate::planted::{Bug, planted};

/// Segments in memory at once: two that are open, the others being written. While there are so many, nothing more is cached.
const BUFFERS_MAX: usize = 8;
/// Segments whose survivors are read at once.
const EVICTIONS_MAX: usize = 2;
/// Segments that are free or on the way to that, as far as the cache is not smaller than 16 times this.
const FREE_TARGET: usize = 8;
/// Free segments that only survivors may open.
const FOR_SURVIVORS: usize = 1;
/// Free segments, at least: that one, and one that fills may open.
pub(super) const FREE_LEAST: usize = FOR_SURVIVORS + 1;
/// Segments that leave in one event because the cache is to be smaller: a bounded piece of work.
const SHRINKING_MAX: usize = 4;

/// The memory of a segment.
#[derive(Debug)]
pub(super) struct Buffer {
    pub scratch: ScratchId,
    pub writing: bool,
}

/// A segment whose survivors are being read.
#[derive(Debug)]
pub(super) struct Eviction {
    pub scratch: ScratchId,
    /// Position in the segment of the first block that is read.
    first: u32,
    survivors: Vec<Slot>,
    /// What they were: for a bug on purpose.
    blocks: Vec<u64>,
}

/// A copy into the memory of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    from: BufferId,
    from_offset: u32,
    to: ScratchId,
    to_offset: u32,
    length: u32,
}

impl Engine {
    /// Whether a queue's open segment has room for a block; opens one.
    pub(super) fn has_room(&mut self, queue: Queue, spare: usize) -> bool {
        if self.placement.open(queue).is_some() {
            return true;
        }
        // Without room not even survivors, which were being read when it was taken away, open one: it would stay.
        if self.limit == 0 || self.buffers.len() >= BUFFERS_MAX || self.placement.free_segments() <= spare {
            return false;
        }
        let Some(segment) = self.placement.open_segment(queue) else { return false };
        let scratch = self.allocate(self.config.segment);
        self.buffers.insert(segment, Buffer { scratch, writing: false });
        true
    }

    /// The same for a block that was read or written. A cache that is too large takes nothing new.
    pub(super) fn has_room_for_fill(&mut self, queue: Queue) -> bool {
        let spare = if self.placement.is_too_large() { usize::MAX } else { FOR_SURVIVORS };
        self.has_room(queue, spare)
    }

    /// Copies a block to the slot that it was given, and writes the segment if that was the last one.
    pub(super) fn put(&mut self, slot: Slot, from: BufferId, from_offset: u32) {
        let (segment, position) = self.placement.segment_of(slot);
        let Some(buffer) = self.buffers.get(&segment) else { return };
        let block = self.config.block;
        let (to, to_offset) = (buffer.scratch, position * block);
        let longer = |run: &&mut Run| {
            let next = (run.from_offset + run.length, run.to_offset + run.length);
            (run.from, run.to) == (from, to) && next == (from_offset, to_offset)
        };
        if let Some(run) = self.run.as_mut().filter(longer) {
            run.length += block;
        } else {
            self.end_run();
            self.run = Some(Run { from, from_offset, to, to_offset, length: block });
        }
        if to_offset + block == self.config.segment {
            self.end_run();
            self.write(segment);
        }
    }

    /// Emits the copy that was put together.
    pub(super) fn end_run(&mut self) {
        if let Some(Run { from, from_offset, to, to_offset, length }) = self.run.take() {
            self.effects.push_back(Effect::Copy {
                from: Slice { buffer: from, offset: from_offset, length },
                to: Slice { buffer: BufferId::Scratch(to), offset: to_offset, length },
            });
        }
    }

    fn write(&mut self, segment: Segment) {
        let (State::Open(queue), Some(buffer)) = (self.placement.state(segment), self.buffers.get_mut(&segment)) else {
            return;
        };
        buffer.writing = true;
        let scratch = buffer.scratch;
        self.placement.close(queue);
        let Some((member, offset)) = self.on_member(segment, 0) else { return };
        self.asks(member);
        let from = Slice { buffer: BufferId::Scratch(scratch), offset: 0, length: self.config.segment };
        self.emit(Pending::SegmentWrite { segment, member }, |id| Effect::WriteSegment { id, member, offset, from });
    }

    /// Where a position of a segment is.
    pub(super) fn on_member(&self, segment: Segment, position: u32) -> Option<(MemberId, u64)> {
        let (number, place) = self.placement.member_of(segment);
        let offset = u64::from(place) * u64::from(self.config.segment) + u64::from(position * self.config.block);
        Some((self.member_id(number)?, offset))
    }

    pub(super) fn segment_written(
        &mut self,
        segment: Segment,
        member: MemberId,
        checksums: Result<Box<[u32]>, IoFailure>,
    ) {
        if let Some(buffer) = self.buffers.remove(&segment) {
            self.effects.push_back(Effect::Release { scratch: buffer.scratch });
        }
        self.answered(member, checksums.as_ref().map(|_| ()).map_err(|failure| *failure));
        match checksums {
            Ok(checksums) => {
                let first = self.placement.first_slot(segment).0;
                (first..).zip(checksums).for_each(|(slot, sum)| self.placement.set_checksum(Slot(slot), sum));
            }
            Err(_) if planted(Bug::FailedSegmentCounts) => {}
            Err(_) => self.placement.drop_segment(segment),
        }
    }

    /// Lets segments leave until enough are free and the cache is not too large.
    pub(super) fn make_room(&mut self) {
        let target = FREE_TARGET.min(self.placement.used() as usize / 16).max(FREE_LEAST);
        let buffers = std::mem::take(&mut self.buffers);
        let mut rounds = 0;
        while self.evictions.len() < EVICTIONS_MAX {
            let is_short = self.placement.free_segments() + self.evictions.len() < target;
            let shrinks = self.placement.has_to_evict(FREE_LEAST, self.evictions.len()) && rounds < SHRINKING_MAX;
            if !is_short && !shrinks {
                break;
            }
            rounds += 1;
            let written = |segment: Segment| !buffers.contains_key(&segment);
            let mut survivors = Vec::new();
            let Some(segment) = self.placement.evict(written, &mut survivors) else { break };
            self.read_survivors(segment, survivors);
        }
        self.buffers = buffers;
    }

    fn read_survivors(&mut self, segment: Segment, survivors: Vec<Slot>) {
        let ends = survivors.first().zip(survivors.last()).map(|(first, last)| (*first, *last));
        let Some((first, last)) = ends else { return self.free_if_idle(segment) };
        let position = self.placement.segment_of(first).1;
        let Some((member, offset)) = self.on_member(segment, position) else { return self.free_if_idle(segment) };
        let length = (last.0 - first.0 + 1) * self.config.block;
        // Also those of blocks that were removed since: what is on the member has not changed.
        let checksums = (first.0..=last.0).map(|slot| self.placement.checksum(Slot(slot))).collect();
        let scratch = self.allocate(length);
        let blocks = survivors.iter().filter_map(|slot| self.placement.block_at(*slot)).collect();
        self.evictions.insert(segment, Eviction { scratch, first: position, survivors, blocks });
        self.asks(member);
        let into = Slice { buffer: BufferId::Scratch(scratch), offset: 0, length };
        self.emit(Pending::EvictionRead { segment, member }, |id| Effect::Read {
            id,
            target: Target::Member(member),
            offset,
            into,
            checksums: Some(checksums),
        });
    }

    pub(super) fn survivors_read(&mut self, segment: Segment, member: MemberId, result: Result<(), IoFailure>) {
        self.answered(member, result);
        let Some(eviction) = self.evictions.remove(&segment) else { return };
        if result.is_ok() || planted(Bug::FailedSurvivorsKept) {
            self.keep_survivors(&eviction);
        }
        self.end_run();
        self.effects.push_back(Effect::Release { scratch: eviction.scratch });
        self.free_if_idle(segment);
    }

    fn keep_survivors(&mut self, eviction: &Eviction) {
        for (slot, block) in eviction.survivors.iter().zip(&eviction.blocks) {
            if !self.has_room(Queue::Main, 0) {
                return;
            }
            let changed = self.placement.block_at(*slot).is_none();
            let to = match self.placement.relocate(*slot) {
                None if changed && planted(Bug::ChangedSurvivorKept) && self.placement.find(*block).is_none() => {
                    self.placement.insert(*block, Queue::Main)
                }
                to => to,
            };
            if let Some(to) = to {
                let position = self.placement.segment_of(*slot).1 - eviction.first;
                self.put(to, BufferId::Scratch(eviction.scratch), position * self.config.block);
            }
        }
    }

    /// A segment that has left its queue is free when nothing reads it any more.
    pub(super) fn free_if_idle(&mut self, segment: Segment) {
        let is_read = self.readers[segment.0 as usize] > 0 && !planted(Bug::ReadersIgnored);
        if !is_read && !self.evictions.contains_key(&segment) {
            self.placement.free(segment);
        }
    }

    /// Sweeps one of the dropped segments.
    pub(super) fn sweep(&mut self) {
        let (readers, buffers, evictions) = (&self.readers, &self.buffers, &self.evictions);
        self.placement.sweep(|segment| {
            let is_read = readers[segment.0 as usize] > 0 || evictions.contains_key(&segment);
            !is_read && !buffers.contains_key(&segment) || planted(Bug::DroppedReused)
        });
    }
}
