//! Reads: hits from the log, misses from the backing volume, and installing copies of what missed.

use std::ops::Range;

use surgetank_model::{Request, RequestId};

use super::{Engine, EngineStage, Pending, ReadFill};
use crate::effect::{BufferId, Effect, IoFailure, Outcome, ReplyError, ScratchId, Slice, Target};
use crate::format::{BLOCK, Content, Entry, Place, Summary};
use crate::index::{Extent, ExtentState, Kind};
use crate::planted::{Bug, planted};
use crate::space::Use;

const BLOCK64: u64 = BLOCK as u64;

/// Blocks of one installed copy, at most.
const FILL_BLOCKS: u64 = 256;
/// Copies being made at a time; more misses are simply not installed.
const FILLS_MAX: usize = 16;
/// Slots of the memory of recent misses, and the bytes of a slot's range.
const MISSED_SLOTS: usize = 4096;
const MISSED_GRAIN: u64 = 64 << 10;

/// A copy of the backing volume on its way into the cache.
#[derive(Clone, Debug)]
pub(super) struct Fill {
    blocks: Range<u64>,
    /// A change began meanwhile: what was read may be old.
    cancelled: bool,
}

impl Engine {
    pub(super) fn start_read(&mut self, request: &Request) {
        self.read_range(request, request.offset..request.offset + request.length);
    }

    /// Reads bytes of a request where they are now.
    pub(super) fn read_range(&mut self, request: &Request, bytes: Range<u64>) {
        let from_cache = matches!(self.stage, EngineStage::Absorb | EngineStage::Drain | EngineStage::Failing);
        let Some(boost) = self.boost.as_ref().filter(|_| from_cache) else {
            return self.read_missing(request, bytes);
        };
        let blocks = bytes.start / BLOCK64..bytes.end.div_ceil(BLOCK64);
        let extents: Vec<Extent> = boost.index.overlapping(blocks).collect();
        let mut at = bytes.start;
        for extent in extents {
            let start = (extent.block * BLOCK64).max(at);
            let end = (extent.end() * BLOCK64).min(bytes.end);
            self.read_missing(request, at..start);
            // Of a volume that is read back only some bytes are wanted; the others have been overwritten since.
            let only = self.boost.as_ref().and_then(|boost| boost.trouble.only.as_ref());
            match only.map(|only| only.pieces(&(start..end))) {
                None => self.read_newest(request, &extent, start..end),
                Some(pieces) => {
                    for (piece, wanted) in pieces {
                        if wanted {
                            self.read_newest(request, &extent, piece);
                        } else {
                            self.read_missing(request, piece);
                        }
                    }
                }
            }
            at = end;
        }
        self.read_missing(request, at..bytes.end);
    }

    /// Reads bytes of an extent, unless a record that is missing may hold newer ones.
    fn read_newest(&mut self, request: &Request, extent: &Extent, bytes: Range<u64>) {
        if self.may_be_missing(&bytes) {
            self.park(request.id, bytes);
        } else {
            self.read_extent(request, extent, bytes);
        }
    }

    /// Whether a record of these bytes may be missing from the log.
    fn may_be_missing(&self, bytes: &Range<u64>) -> bool {
        let unknown = self.boost.as_ref().and_then(|boost| boost.trouble.unknown.as_ref());
        self.stage == EngineStage::Failing && unknown.is_some_and(|unknown| !unknown.newer.contains(bytes))
    }

    /// Reads bytes that the log does not hold.
    fn read_missing(&mut self, request: &Request, bytes: Range<u64>) {
        if bytes.is_empty() {
        } else if self.loss.as_ref().is_some_and(|loss| loss.overlaps(&bytes)) && !planted(Bug::LostRangesRead) {
            self.fail_request(request.id, ReplyError::Io);
        } else if self.may_be_missing(&bytes) {
            self.park(request.id, bytes);
        } else {
            self.read_miss(request, bytes);
        }
    }

    fn slice(request: &Request, bytes: &Range<u64>) -> Slice {
        Slice {
            buffer: BufferId::Request(request.id),
            offset: (bytes.start - request.offset) as u32,
            length: (bytes.end - bytes.start) as u32,
        }
    }

    fn read_backing(&mut self, request: &Request, bytes: Range<u64>, fill: Option<u64>) {
        if bytes.is_empty() {
            return;
        }
        self.add_part(request.id);
        let (offset, length) = (bytes.start, bytes.end - bytes.start);
        let into = Self::slice(request, &bytes);
        let id = self.pending.insert(Pending::Direct { request: request.id, offset, length, change: false, fill });
        self.backing.started(self.now, length);
        self.effects.push_back(Effect::Read { id, target: Target::Backing, offset, into, checksums: None });
    }

    fn read_miss(&mut self, request: &Request, bytes: Range<u64>) {
        if bytes.is_empty() || !self.wants_fill(&bytes) {
            self.read_backing(request, bytes, None);
            return;
        }
        let aligned = bytes.start.next_multiple_of(BLOCK64)..bytes.end / BLOCK64 * BLOCK64;
        if aligned.start >= aligned.end {
            self.read_backing(request, bytes, None);
            return;
        }
        self.read_backing(request, bytes.start..aligned.start, None);
        let mut at = aligned.start;
        while at < aligned.end {
            let end = aligned.end.min(at + FILL_BLOCKS * BLOCK64);
            let fill = self.begin_fill(at / BLOCK64..end / BLOCK64);
            self.read_backing(request, at..end, fill);
            at = end;
        }
        self.read_backing(request, aligned.end..bytes.end, None);
    }

    fn read_extent(&mut self, request: &Request, extent: &Extent, bytes: Range<u64>) {
        let into = Self::slice(request, &bytes);
        match extent.kind {
            Kind::Zeroes | Kind::Discarded => self.effects.push_back(Effect::Zero { to: into }),
            // A failing volume is spared what the backing volume has as well.
            Kind::Data
                if self.stage == EngineStage::Failing && !extent.state.dirty() && !planted(Bug::CleanReadFails) =>
            {
                self.read_backing(request, bytes, None);
            }
            Kind::Data if self.stage == EngineStage::Failing && (extent.state == ExtentState::Bad || self.is_out()) => {
                self.park(request.id, bytes);
            }
            Kind::Data => {
                let (first, last) = (bytes.start.next_multiple_of(BLOCK64), bytes.end / BLOCK64 * BLOCK64);
                if first >= last {
                    // Parts of one block, or of two neighbours.
                    let middle = first.min(bytes.end);
                    self.read_part_of_block(request, extent, bytes.start..middle);
                    self.read_part_of_block(request, extent, middle..bytes.end);
                    return;
                }
                self.read_part_of_block(request, extent, bytes.start..first);
                self.read_blocks(request, extent, first..last);
                self.read_part_of_block(request, extent, last..bytes.end);
            }
        }
    }

    fn read_blocks(&mut self, request: &Request, extent: &Extent, bytes: Range<u64>) {
        let part = extent.clip(&(bytes.start / BLOCK64..bytes.end / BLOCK64));
        let into = Self::slice(request, &bytes);
        let Some(boost) = self.boost.as_mut() else { return };
        boost.space.pin(part.location);
        boost.hit_bytes += u64::from(into.length);
        let offset = boost.space.offset(part.location);
        let checksums = boost.space.checksums(part.location, part.blocks).filter(|_| !planted(Bug::RotRead));
        let Extent { block, blocks, location, .. } = part;
        let id = self.pending.insert(Pending::Hit { request: request.id, location, blocks, block, into });
        self.add_part(request.id);
        self.cache.started(self.now, u64::from(into.length));
        self.effects.push_back(Effect::Read { id, target: Target::Cache, offset, into, checksums });
    }

    fn read_part_of_block(&mut self, request: &Request, extent: &Extent, bytes: Range<u64>) {
        if bytes.is_empty() {
            return;
        }
        let block = bytes.start / BLOCK64;
        let location = extent.clip(&(block..block + 1)).location;
        let scratch = self.allocate(BLOCK);
        let into = Self::slice(request, &bytes);
        let skip = (bytes.start - block * BLOCK64) as u32;
        self.add_part(request.id);
        let bounce = Pending::Bounce { request: request.id, location, block, scratch, skip, into };
        if let Some(boost) = self.boost.as_mut() {
            boost.hit_bytes += u64::from(into.length);
        }
        self.read_log_block(bounce, location, scratch);
    }

    /// Reads one block of the log into a scratch buffer.
    pub(super) fn read_log_block(&mut self, pending: Pending, location: u32, scratch: ScratchId) {
        let Some(boost) = self.boost.as_mut() else { return };
        boost.space.pin(location);
        let offset = boost.space.offset(location);
        let checksums = boost.space.checksums(location, 1);
        let id = self.pending.insert(pending);
        self.cache.started(self.now, BLOCK64);
        let into = Slice { buffer: BufferId::Scratch(scratch), offset: 0, length: BLOCK };
        self.effects.push_back(Effect::Read { id, target: Target::Cache, offset, into, checksums });
    }

    /// A read of the log has ended.
    pub(super) fn log_read_ended(&mut self, location: u32, bytes: u64) {
        self.cache.ended(self.now, bytes);
        if let Some(boost) = self.boost.as_mut() {
            boost.space.unpin(location);
        }
    }

    pub(super) fn hit_done(
        &mut self,
        request: RequestId,
        location: u32,
        blocks: u32,
        block: u64,
        into: Slice,
        result: Result<(), IoFailure>,
    ) {
        self.log_read_ended(location, u64::from(into.length));
        if let Err(failure) = result {
            let bytes = block * BLOCK64..(block + u64::from(blocks)) * BLOCK64;
            self.hit_failed(request, bytes, Extent { block, blocks, location, ..Extent::DIRTY_DATA }, failure);
        }
        self.finish_part(request, Ok(()));
    }

    #[expect(clippy::too_many_arguments, reason = "the fields of one Pending variant")]
    pub(super) fn bounce_done(
        &mut self,
        request: RequestId,
        location: u32,
        block: u64,
        scratch: ScratchId,
        skip: u32,
        into: Slice,
        result: Result<(), IoFailure>,
    ) {
        self.log_read_ended(location, BLOCK64);
        match result {
            Ok(()) => {
                let from = Slice { buffer: BufferId::Scratch(scratch), offset: skip, length: into.length };
                self.effects.push_back(Effect::Copy { from, to: into });
            }
            Err(failure) => {
                let start = block * BLOCK64 + u64::from(skip);
                let bytes = start..start + u64::from(into.length);
                self.hit_failed(request, bytes, Extent { block, blocks: 1, location, ..Extent::DIRTY_DATA }, failure);
            }
        }
        self.release_scratch(Some(scratch));
        self.finish_part(request, Ok(()));
    }

    /// A read of the log failed. What the backing volume holds as well is read there, what was superseded meanwhile where it
    /// is now, and the rest waits until it is known whether it can be read.
    fn hit_failed(&mut self, id: RequestId, bytes: Range<u64>, unread: Extent, failure: IoFailure) {
        self.cache_read_failed(failure);
        if let Some(boost) = self.boost.as_mut() {
            boost.mark_bad(&unread);
        }
        if let Some(request) = self.requests.get(&id).map(|active| active.request) {
            self.read_range(&request, bytes);
        }
    }

    /// Whether a miss of these bytes should be installed.
    fn wants_fill(&mut self, bytes: &Range<u64>) -> bool {
        if self.stage != EngineStage::Absorb || self.is_locked(&(bytes.start / BLOCK64..bytes.end.div_ceil(BLOCK64))) {
            return false;
        }
        let Some(boost) = self.boost.as_mut() else { return false };
        if boost.fills.len() >= FILLS_MAX || boost.space_wanted {
            return false;
        }
        match boost.attach.read_fill {
            ReadFill::Never => false,
            ReadFill::Always => true,
            ReadFill::SecondHit => {
                if boost.missed.is_empty() {
                    boost.missed = vec![u64::MAX; MISSED_SLOTS];
                }
                let grain = bytes.start / MISSED_GRAIN;
                // Fibonacci hashing spreads neighbouring ranges over the slots.
                let slot = (grain.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as usize % MISSED_SLOTS;
                std::mem::replace(&mut boost.missed[slot], grain) == grain
            }
        }
    }

    fn begin_fill(&mut self, blocks: Range<u64>) -> Option<u64> {
        let boost = self.boost.as_mut().filter(|boost| boost.fills.len() < FILLS_MAX)?;
        let id = self.next_fill;
        self.next_fill += 1;
        boost.fills.insert(id, Fill { blocks, cancelled: false });
        Some(id)
    }

    /// A change begins: copies of its range that are on their way are old.
    pub(super) fn cancel_fills(&mut self, blocks: &Range<u64>) {
        let Some(boost) = self.boost.as_mut() else { return };
        for fill in boost.fills.values_mut() {
            let overlaps = fill.blocks.start < blocks.end && blocks.start < fill.blocks.end;
            fill.cancelled |= overlaps && !planted(Bug::FillsNotCancelled);
        }
    }

    /// The backing volume has been read for a fill: install the copy, unless it is old or there is no room.
    pub(super) fn fill_read(&mut self, id: u64, request: &Request, result: Result<(), IoFailure>) {
        let wanted = self.stage == EngineStage::Absorb && result.is_ok();
        let fill = self.boost.as_ref().and_then(|boost| boost.fills.get(&id)).filter(|fill| !fill.cancelled).cloned();
        let Some((fill, segment)) = fill.filter(|_| wanted).and_then(|fill| {
            let segment = self.copies_segment((fill.blocks.end - fill.blocks.start) as u32 + 1)?;
            Some((fill, segment))
        }) else {
            self.boost.iter_mut().for_each(|boost| {
                boost.fills.remove(&id);
            });
            return;
        };
        let bytes = fill.blocks.start * BLOCK64..fill.blocks.end * BLOCK64;
        let blocks = (fill.blocks.end - fill.blocks.start) as u32;
        let scratch = self.allocate(blocks * BLOCK);
        let whole = Slice { buffer: BufferId::Scratch(scratch), offset: 0, length: blocks * BLOCK };
        self.effects.push_back(Effect::Copy { from: Self::slice(request, &bytes), to: whole });
        let Some(boost) = self.boost.as_mut() else { return };
        let entries = vec![Entry { block: fill.blocks.start, blocks, content: Content::Copied }];
        let (offset, summary) = boost.append_to(segment, entries, blocks);
        let pending = self.pending.insert(Pending::Install { fill: id, segment, scratch, blocks });
        self.cache.started(self.now, u64::from(blocks + 1) * BLOCK64);
        let data = smallvec::smallvec![whole];
        self.effects.push_back(Effect::Append { id: pending, offset, summary, data, fua: false });
    }

    /// The open segment for copies, with room for `blocks`; takes a free one, or the copies least lately read, as long
    /// as writes have plenty.
    fn copies_segment(&mut self, blocks: u32) -> Option<u32> {
        let boost = self.boost.as_mut()?;
        let geometry = boost.space.geometry;
        let segment_blocks = geometry.segment_blocks();
        if blocks > segment_blocks {
            return None;
        }
        if let Some(open) = boost.space.open_copies {
            if boost.space.segments[open as usize].position + blocks <= segment_blocks {
                return Some(open);
            }
            boost.space.open_copies = None;
        }
        if !boost.space.has_room(u64::from(segment_blocks), geometry.reserve_segments()) {
            return None;
        }
        let segment = boost.space.reusable_for_copies()?;
        boost.purge(segment);
        let sequence = boost.next_sequence;
        boost.space.start(segment, Use::Copies, sequence);
        Some(segment)
    }

    pub(super) fn install_done(&mut self, fill: u64, segment: u32, scratch: ScratchId, blocks: u32, outcome: Outcome) {
        self.cache.ended(self.now, u64::from(blocks + 1) * BLOCK64);
        self.release_scratch(Some(scratch));
        let Some(boost) = self.boost.as_mut() else { return };
        boost.space.segments[segment as usize].appends -= 1;
        let fill = boost.fills.remove(&fill);
        let Outcome::Appended(summary) = outcome else {
            self.cache_failing();
            return;
        };
        let Some(fill) = fill.filter(|fill| !fill.cancelled) else { return };
        if boost.index.overlapping(fill.blocks.clone()).next().is_none() {
            boost.keep_checksums(segment, summary.place.position, &summary.checksums);
            let location = boost.space.location(segment, summary.place.position + 1);
            boost.insert(Extent {
                block: fill.blocks.start,
                blocks,
                location,
                kind: Kind::Data,
                state: ExtentState::Copy,
            });
        }
    }
}

impl super::Boost {
    /// Takes a segment's extents out of the index; it holds only copies.
    pub(super) fn purge(&mut self, segment: u32) {
        let chunks = std::mem::take(&mut self.space.segments[segment as usize].chunks);
        let first = self.space.location(segment, 0);
        let held = first..first + self.space.geometry.segment_blocks();
        for chunk in chunks {
            let Self { index, space, .. } = self;
            index.retain_in_chunk(u64::from(chunk), |extent| {
                if !held.contains(&extent.location) {
                    return Some(extent);
                }
                space.removed(&extent, None);
                None
            });
        }
    }

    /// The place and the summary of a record of `data_blocks` at the end of a segment.
    pub(super) fn append_to(&mut self, segment: u32, entries: Vec<Entry>, data_blocks: u32) -> (u64, Box<Summary>) {
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let room = &mut self.space.segments[segment as usize];
        let place = Place { sequence, segment, generation: room.generation, position: room.position };
        room.position += 1 + data_blocks;
        room.appends += 1;
        let offset = self.space.offset(self.space.location(segment, place.position));
        let mut summary = Summary {
            layout: self.superblock.layout,
            epoch: self.attach.epoch,
            place,
            durable: self.durable,
            previous: None,
            entries,
            checksums: Vec::new(),
            repeat: None,
        };
        if !summary.is_copies() {
            self.appending.insert(sequence);
            summary.previous = self.last_record.replace(place);
            self.checkpoint.appended(&summary, data_blocks);
        }
        (offset, Box::new(summary))
    }

    /// The highest sequence up to which every record has been written.
    pub(super) fn settled(&self) -> u64 {
        self.appending.first().copied().unwrap_or(self.next_sequence) - 1
    }

    /// Records up to this sequence are durable.
    pub(super) fn now_durable(&mut self, sequence: u64) {
        if !self.durable_frozen {
            self.durable = self.durable.max(sequence);
        }
    }

    /// Remembers the checksums of a record's data, to verify what is read of it.
    pub(super) fn keep_checksums(&mut self, segment: u32, position: u32, checksums: &[u32]) {
        let segment_blocks = self.space.geometry.segment_blocks() as usize;
        let kept = &mut self.space.segments[segment as usize].checksums;
        let first = position as usize + 1;
        let end = first + checksums.len();
        if kept.len() < end {
            kept.reserve_exact(segment_blocks - kept.len());
            kept.resize(end, 0);
        }
        kept[first..end].copy_from_slice(checksums);
    }

    /// Puts an extent into the index, over whatever is there.
    pub(super) fn insert(&mut self, extent: Extent) {
        let Self { index, space, .. } = self;
        let segment = space.segment_of(extent.location);
        index.replace(extent.block..extent.end(), Some(extent), |old| space.removed(&old, Some(segment)));
        space.added(&extent);
    }
}
