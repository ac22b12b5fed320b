//! Group commit: what waits for the log goes into records, many parts to one.

use smallvec::SmallVec;
use surgetank_model::{FlushRequest, RequestId};

use super::port::Waiter;
use super::{Boost, Engine, EngineStage, Pending};
use crate::effect::{Effect, Outcome, ScratchId, Slice, Target};
use crate::format::{BLOCK, Content, Entry, RECORD_BLOCKS, RECORDS_IN_FLIGHT_MAX, Summary};
use crate::index::{Extent, ExtentState, Kind};
use crate::planted::{Bug, planted};
use crate::space::Use;

/// Records in flight. Full ones keep the volume busy whatever its latency.
const RECORDS_MAX: u32 = RECORDS_IN_FLIGHT_MAX;
/// Records in flight that are not full: a new one waits for the rest of its company until one of these has ended. Two
/// keep the volume busy; more would make small records of what one could carry, and pay for each in IOPS.
const SMALL_RECORDS_MAX: u32 = 2;

/// A part of a change on its way into the log.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub request: RequestId,
    pub block: u64,
    pub blocks: u32,
    pub content: Content,
    /// The data, if the content has any.
    pub source: Option<Slice>,
    /// A scratch buffer to free when the part has ended.
    pub scratch: Option<ScratchId>,
    pub fua: bool,
    /// Blocks of the log promised to it.
    pub reserved: u64,
    /// Extents without data promised to it.
    pub tombstones: u64,
}

/// A record in flight.
#[derive(Debug)]
pub(super) struct Batch {
    pub segment: u32,
    pub sequence: u64,
    pub bytes: u64,
    pub parts: Vec<Part>,
    /// Durable when it has been written.
    fua: bool,
}

impl Part {
    pub fn data_blocks(&self) -> u32 {
        if self.content.has_data() { self.blocks } else { 0 }
    }

    /// Cuts off the first `blocks`.
    fn split_off_front(&mut self, blocks: u32) -> Self {
        let mut front = self.clone();
        front.blocks = blocks;
        front.reserved = 0;
        self.block += u64::from(blocks);
        self.blocks -= blocks;
        if let (Some(front), Some(rest)) = (front.source.as_mut(), self.source.as_mut()) {
            front.length = blocks * BLOCK;
            rest.offset += front.length;
            rest.length -= front.length;
        }
        front
    }
}

impl Boost {
    /// Whether the open segment has room for a record.
    fn has_room(&self) -> bool {
        let blocks = self.space.geometry.segment_blocks();
        self.space.open.is_some_and(|open| self.space.segments[open as usize].position + 2 <= blocks)
    }

    /// Whether the first record of the open segment is in flight.
    fn is_beginning(&self) -> bool {
        self.space.open.is_some_and(|open| self.appending.contains(&self.space.segments[open as usize].order))
    }
}

impl Engine {
    pub(super) fn enqueue(&mut self, part: Part) {
        self.needs_pump = true;
        let Some(boost) = self.boost.as_mut() else { return };
        boost.queued_blocks += u64::from(part.data_blocks());
        boost.queue.push_back(part);
    }

    /// Emits records as long as there is something to commit and the volume wants more.
    pub(super) fn pump_append(&mut self) {
        while let Some(boost) = self.boost.as_ref().filter(|boost| !boost.queue.is_empty()) {
            if self.stage == EngineStage::Failing {
                self.strand_queue();
                return;
            }
            if self.stopping {
                return;
            }
            // Nothing follows the first record of a segment before it is written: a recovery looks for records that cannot be
            // read in no other segment that looks empty than one of which the first block cannot be read.
            if boost.is_beginning() && boost.has_room() && !planted(Bug::SegmentBegunByMany) {
                return;
            }
            let full = boost.queued_blocks >= u64::from(boost.space.geometry.record_blocks());
            if boost.batches_in_flight >= if full { RECORDS_MAX } else { SMALL_RECORDS_MAX } || !self.open_segment() {
                return;
            }
            self.emit_record();
        }
    }

    /// Makes sure that the open segment has room for a record.
    fn open_segment(&mut self) -> bool {
        let Some(boost) = self.boost.as_mut() else { return false };
        if boost.has_room() {
            return true;
        }
        if boost.space.open.is_some() {
            boost.seal();
        }
        let Some(segment) = boost.space.reusable_for_records() else {
            boost.checkpoint.list_worth_a_look = boost.space.wants_list();
            boost.space_wanted |= !boost.checkpoint.list_worth_a_look;
            return false;
        };
        boost.purge(segment);
        let sequence = boost.next_sequence;
        boost.space.start(segment, Use::Open, sequence);
        boost.checkpoint.begin(segment, boost.last_record);
        true
    }

    fn emit_record(&mut self) {
        let Some(boost) = self.boost.as_mut() else { return };
        let Some(segment) = boost.space.open else { return };
        let room = boost.space.geometry.segment_blocks() - boost.space.segments[segment as usize].position - 1;
        let mut entries: Vec<Entry> = Vec::new();
        let mut data: SmallVec<[Slice; 4]> = SmallVec::new();
        let mut parts: Vec<Part> = Vec::new();
        let mut data_blocks = 0;
        let mut split = None;
        let layout = boost.superblock.layout;
        while let Some(part) = boost.queue.front_mut() {
            let joins = entries
                .last()
                .is_some_and(|last| last.content == part.content && last.block + u64::from(last.blocks) == part.block);
            let wanted = part.data_blocks();
            let take = wanted.min(room.min(RECORD_BLOCKS) - data_blocks);
            let fits = Summary::fits(layout, entries.len() + usize::from(!joins), (data_blocks + take) as usize);
            if !fits || (wanted > 0 && take == 0) {
                break;
            }
            let taken = if take < wanted {
                split = Some(part.request);
                part.split_off_front(take)
            } else {
                boost.space.reserved -= part.reserved;
                boost.space.tombstones_reserved -= part.tombstones;
                boost.space.add_tombstones(segment, part.tombstones);
                match boost.queue.pop_front() {
                    Some(part) => part,
                    None => break,
                }
            };
            match entries.last_mut().filter(|_| joins) {
                Some(last) => last.blocks += taken.blocks,
                None => entries.push(Entry { block: taken.block, blocks: taken.blocks, content: taken.content }),
            }
            data.extend(taken.source);
            data_blocks += take;
            parts.push(taken);
        }
        boost.queued_blocks -= u64::from(data_blocks);
        boost.batches_in_flight += 1;
        let forced = parts.iter().any(|part| part.fua);
        let (offset, summary) = boost.append_to(segment, entries, data_blocks);
        let bytes = u64::from(data_blocks + 1) * u64::from(BLOCK);
        if let Some(request) = split {
            self.add_part(request);
        }
        self.cache.started(self.now, bytes);
        let sequence = summary.place.sequence;
        // No more may be missing before a durable record than what was in flight: a recovery must know where one may hide.
        let fua = forced && (self.cache.flushes.is_durable() || planted(Bug::ForcedBeforeOthers));
        let id = self.pending.insert(Pending::Append(Batch { segment, sequence, bytes, parts, fua }));
        let fua = fua && !planted(Bug::FuaIgnoredInLog);
        self.effects.push_back(Effect::Append { id, offset, summary, data, fua });
    }

    /// A record is on the volume, or not.
    pub(super) fn append_done(&mut self, batch: Batch, outcome: Outcome) {
        self.cache.ended(self.now, batch.bytes);
        self.cache.wrote(batch.fua && matches!(outcome, Outcome::Appended(_)));
        let Some(boost) = self.boost.as_mut() else { return };
        boost.batches_in_flight -= 1;
        boost.space.segments[batch.segment as usize].appends -= 1;
        let Outcome::Appended(summary) = outcome else {
            if planted(Bug::StrandedDropped) {
                self.cache_failing();
                batch.parts.iter().for_each(|part| self.finish_part(part.request, Ok(())));
                return;
            }
            if planted(Bug::StrandedTooEarly) {
                self.cache_failing();
                batch.parts.into_iter().for_each(|part| self.strand(part));
                return;
            }
            boost.superblock.void.push(batch.sequence);
            // The record may be there all the same and would be replayed: its parts wait until that is ruled out.
            boost.trouble.stranded.extend(batch.parts);
            self.cache_failing();
            return;
        };
        boost.appending.remove(&batch.sequence);
        if boost.last_appended.is_none_or(|last| last.sequence < batch.sequence) {
            boost.last_appended = Some(summary.place);
        }
        if batch.fua && self.cache.flushes.is_durable() {
            let settled = boost.settled();
            boost.now_durable(settled);
            boost.checkpoint.flushed = settled;
        }
        boost.keep_checksums(batch.segment, summary.place.position, &summary.checksums);
        let summary_location = boost.space.location(batch.segment, summary.place.position);
        let mut data_location = summary_location + 1;
        for part in &batch.parts {
            let (kind, location) = match part.content {
                Content::Data | Content::Copied => (Kind::Data, data_location),
                Content::Zeroes => (Kind::Zeroes, summary_location),
                Content::Discarded => (Kind::Discarded, summary_location),
            };
            data_location += part.data_blocks();
            boost.insert(Extent { block: part.block, blocks: part.blocks, location, kind, state: ExtentState::Dirty });
        }
        boost.drain.stir_from(boost.space.segments[batch.segment as usize].order);
        boost.reclaim.worth_a_look = true;
        for part in batch.parts {
            self.release_scratch(part.scratch);
            let flush = part.fua && !batch.fua && !planted(Bug::FuaIgnoredInLog);
            if !flush || self.flush_target(Target::Cache, Waiter::Request(part.request)) == FlushRequest::Ready {
                self.finish_part(part.request, Ok(()));
            }
        }
    }
}
