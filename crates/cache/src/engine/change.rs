//! Writes, discards and write-zeroes: where each part goes.
//!
//! A change may go straight to the backing volume only where no record that a recovery could replay covers it, or the
//! record would bring old data back. Elsewhere it goes to the log. Parts of a block are merged with the old content
//! where the log has it, so every record holds whole blocks, and go straight to the backing volume where it has not.

use std::ops::Range;

use smallvec::SmallVec;
use surgetank_model::{Operation, Request, RequestId};

use super::append::Part;
use super::requests::covered;
use super::{Engine, EngineStage, Pending};
use crate::effect::{BufferId, Effect, IoFailure, ScratchId, Slice, Target};
use crate::format::{BLOCK, Content};
use crate::index::{Extent, ExtentState, Kind, chunks};
use crate::planted::{Bug, planted};
use crate::space::Space;

const BLOCK64: u64 = BLOCK as u64;

/// Routing decides piece by piece of this many bytes, so that one long request can use both volumes.
const PIECE_BYTES: u64 = 1 << 20;
/// Shorter writes are not split: they would fragment the backing volume's queue and gain nothing.
const SPLIT_BYTES_MIN: u64 = 64 << 10;
/// With less than this left, changes over dirty ranges wait for the end of the drain instead of prolonging it.
const CUTOVER_BYTES: u64 = 4 << 20;

/// Where a run of bytes of a change goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// To the backing volume.
    Direct,
    /// To the log: whole blocks.
    Log,
    /// To the log, merged with the rest of its block, which the log holds.
    Merge,
}

type Plan = SmallVec<[(Range<u64>, Way); 4]>;

/// A part of a block being merged with the block's old content.
#[derive(Debug)]
pub(super) struct Merge {
    request: RequestId,
    block: u64,
    pub location: u32,
    scratch: ScratchId,
    /// The bytes of the device that the request changes.
    bytes: Range<u64>,
    /// Blocks of the log promised to it.
    pub reserved: u64,
    /// Whether the old content is also on the backing volume.
    clean: bool,
    /// The old content comes from the backing volume, after the log failed to give it.
    pub second_try: bool,
}

impl Merge {
    pub(super) fn request(&self) -> RequestId {
        self.request
    }

    /// The bytes of the device that the request changes.
    pub(super) fn bytes(&self) -> &Range<u64> {
        &self.bytes
    }
}

impl Engine {
    /// Starts a change whose range is not locked. `false`: it must wait.
    pub(super) fn start_change(&mut self, request: &Request) -> bool {
        let bytes = request.offset..request.offset + request.length;
        let plan = match self.stage {
            EngineStage::Recovering => return false,
            EngineStage::PassThrough | EngineStage::Adopting | EngineStage::Lost => {
                smallvec::smallvec![(bytes, Way::Direct)]
            }
            EngineStage::Failing if self.must_wait_for_loss(&bytes) => return false,
            EngineStage::Releasing | EngineStage::Failing => {
                if self.runs(&bytes).iter().any(|(_, way)| *way != Way::Direct) {
                    return false;
                }
                smallvec::smallvec![(bytes, Way::Direct)]
            }
            EngineStage::Absorb | EngineStage::Drain => match self.plan(request, &bytes) {
                Some(plan) => plan,
                None => return false,
            },
        };
        let blocks = covered(request);
        self.lock(blocks.clone());
        self.cancel_fills(&blocks);
        self.begin(*request);
        for (run, way) in plan {
            match way {
                Way::Direct => self.change_backing(request, run),
                Way::Log => self.queue_part(request, run),
                Way::Merge => self.start_merge(request, run),
            }
        }
        self.finish_part(request.id, Ok(()));
        true
    }

    /// The runs of a range by whether the log holds replayable records there, each of the least ways possible.
    fn runs(&self, bytes: &Range<u64>) -> Plan {
        let mut plan = Plan::new();
        let mut at = bytes.start;
        let blocks = bytes.start / BLOCK64..bytes.end.div_ceil(BLOCK64);
        let extents = self.boost.iter().flat_map(|boost| boost.index.overlapping(blocks.clone()));
        let blocks_direct = |state: ExtentState| match planted(Bug::DirectOverReplayable) {
            true => state.dirty(),
            false => state.replayable(),
        };
        for extent in extents.filter(|extent| blocks_direct(extent.state)) {
            let start = (extent.block * BLOCK64).max(bytes.start);
            let end = (extent.end() * BLOCK64).min(bytes.end);
            push_run(&mut plan, at..start, Way::Direct);
            push_blocks(&mut plan, start..end);
            at = end;
        }
        push_run(&mut plan, at..bytes.end, Way::Direct);
        plan
    }

    /// Where the runs of a change go while a cache is adopted; `None`: the change must wait.
    fn plan(&mut self, request: &Request, bytes: &Range<u64>) -> Option<Plan> {
        let runs = self.runs(bytes);
        let overlaps = runs.iter().any(|(_, way)| *way != Way::Direct);
        let is_write = matches!(request.operation, Operation::Write { .. });
        if self.stage == EngineStage::Drain && overlaps && (self.is_cutover() || self.is_finishing()) {
            return None;
        }
        if self.stage == EngineStage::Absorb && is_write {
            if !overlaps {
                return Some(self.route(bytes));
            }
            // Whole to the log, rather than in pieces to both volumes, if there is room.
            let mut whole = Plan::new();
            for (run, way) in &runs {
                match way {
                    Way::Merge => push_run(&mut whole, run.clone(), Way::Merge),
                    Way::Log => push_run(&mut whole, run.clone(), Way::Log),
                    Way::Direct => push_aligned(&mut whole, run.clone()),
                }
            }
            let keep = self.boost.as_ref().map_or(0, |boost| boost.space.geometry.reserve_segments());
            if self.reserve(&whole, is_write, keep) {
                return Some(whole);
            }
        }
        if !self.reserve(&runs, is_write, 0) {
            self.boost.iter_mut().for_each(|boost| boost.space_wanted = true);
            return None;
        }
        if self.stage == EngineStage::Absorb && is_write {
            self.count_spilled(&runs);
        }
        Some(runs)
    }

    /// Whether little enough is left that changes over it should wait for it to be drained and freed.
    fn is_cutover(&self) -> bool {
        self.boost.as_ref().is_some_and(|boost| {
            let left = (boost.space.dirty + boost.queued_blocks) * BLOCK64;
            left <= CUTOVER_BYTES.min(boost.space.usable_bytes() / 8) && !boost.drain.is_blocked(self.now)
        })
    }

    /// Whether changes over what the log holds wait for the drain, and how much of it is left does not matter.
    pub(super) fn is_finishing(&self) -> bool {
        let finishing =
            self.boost.as_ref().is_some_and(|boost| boost.drain.finishing && !boost.drain.is_blocked(self.now));
        self.stage == EngineStage::Drain && finishing && !planted(Bug::FinishHoldsNothing)
    }

    /// Routes a burst write that the log need not take, piece by piece, to the volume that will have it done sooner.
    fn route(&mut self, bytes: &Range<u64>) -> Plan {
        let mut plan = Plan::new();
        let first = bytes.start.next_multiple_of(BLOCK64).min(bytes.end);
        let last = (bytes.end / BLOCK64 * BLOCK64).max(first);
        push_run(&mut plan, bytes.start..first, Way::Direct);
        let mut at = first;
        // Pieces of this request that are routed but not in flight yet.
        let (mut to_backing, mut to_cache) = (0, 0);
        while at < last {
            let (way, length) = self.route_piece(PIECE_BYTES.min(last - at), to_backing, to_cache);
            let end = at + length;
            match way {
                Way::Direct => to_backing += length,
                Way::Log | Way::Merge => to_cache += length,
            }
            plan.push((at..end, way));
            at = end;
        }
        push_run(&mut plan, last..bytes.end, Way::Direct);
        plan
    }

    /// Where a piece of at most `length` bytes goes, and how much of it.
    fn route_piece(&mut self, length: u64, to_backing: u64, to_cache: u64) -> (Way, u64) {
        let (backing, cache) = (&self.backing, &self.cache);
        let Some(boost) = self.boost.as_mut() else { return (Way::Direct, length) };
        if boost.attach.split && length >= SPLIT_BYTES_MIN {
            let queued = boost.queued_blocks * BLOCK64;
            if backing.estimate(to_backing, length) < cache.estimate(queued + to_cache, length) {
                boost.split_bytes += length;
                return (Way::Direct, length);
            }
        }
        let keep = boost.space.geometry.reserve_segments();
        let blocks = boost.space.fitting((length / BLOCK64) as u32, keep);
        let fitting = u64::from(blocks) * BLOCK64;
        // Room that a change over dirty blocks waits for is left to it.
        if !boost.space_wanted && (fitting == length || fitting >= SPLIT_BYTES_MIN) {
            boost.space.reserved += boost.space.geometry.need(blocks);
            return (Way::Log, fitting);
        }
        boost.evicted_bytes += length;
        (Way::Direct, length)
    }

    fn count_spilled(&mut self, runs: &Plan) {
        let direct = runs.iter().filter(|(_, way)| *way == Way::Direct).map(|(run, _)| run.end - run.start);
        let spilled: u64 = direct.sum();
        self.boost.iter_mut().for_each(|boost| boost.evicted_bytes += spilled);
    }

    /// Promises the log's blocks that a plan needs, leaving `keep` segments; or nothing.
    fn reserve(&mut self, plan: &Plan, is_write: bool, keep: u64) -> bool {
        let Some(boost) = self.boost.as_mut() else { return false };
        let need = plan.iter().map(|(run, way)| part_need(&boost.space, run, *way, is_write)).sum();
        let bare = plan.iter().filter(|(_, way)| *way == Way::Log && !is_write);
        let tombstones = bare.map(|(run, _)| part_tombstones(run)).sum();
        let room = need == 0 || boost.space.has_room(need, keep) && boost.space.has_room_for_tombstones(tombstones);
        if room {
            boost.space.reserved += need;
            boost.space.tombstones_reserved += tombstones;
        }
        room
    }

    fn change_backing(&mut self, request: &Request, bytes: Range<u64>) {
        if let Some(boost) = self.boost.as_mut() {
            // Copies of the old content; nothing replayable is here.
            let blocks = bytes.start / BLOCK64..bytes.end.div_ceil(BLOCK64);
            let super::Boost { index, space, .. } = boost;
            index.remove_where(blocks, |extent| !extent.state.replayable(), |old| space.removed(&old, None));
        }
        self.add_part(request.id);
        let (offset, length) = (bytes.start, bytes.end - bytes.start);
        let pending = Pending::Direct { request: request.id, offset, length, change: true, fill: None };
        let id = self.pending.insert(pending);
        let transferred = if matches!(request.operation, Operation::Write { .. }) { length } else { 0 };
        self.backing.started(self.now, transferred);
        self.direct_bytes += transferred;
        let effect = match request.operation {
            Operation::Write { fua } => {
                let from = Slice {
                    buffer: BufferId::Request(request.id),
                    offset: (offset - request.offset) as u32,
                    length: length as u32,
                };
                let fua = fua && !planted(Bug::FuaIgnoredOnBacking);
                Effect::Write { id, target: Target::Backing, offset, from: smallvec::smallvec![from], fua }
            }
            Operation::WriteZeroes { fua } => Effect::WriteZeroes { id, offset, length, fua },
            Operation::Discard | Operation::Read | Operation::Flush => Effect::Discard { id, offset, length },
        };
        self.effects.push_back(effect);
    }

    pub(super) fn direct_done(
        &mut self,
        id: RequestId,
        bytes: Range<u64>,
        change: bool,
        fill: Option<u64>,
        result: Result<(), IoFailure>,
    ) {
        let request = self.requests.get(&id).map(|active| active.request);
        let Some(request) = request else { return };
        let transfers = matches!(request.operation, Operation::Write { .. } | Operation::Read);
        let transferred = if transfers { bytes.end - bytes.start } else { 0 };
        self.backing.ended(self.now, transferred);
        if change {
            self.direct_bytes -= transferred;
            let forced =
                matches!(request.operation, Operation::Write { fua: true } | Operation::WriteZeroes { fua: true });
            self.backing.wrote_for_application(forced && result.is_ok());
            let healed = match planted(Bug::HealRoundsUp) {
                true => bytes.start / BLOCK64 * BLOCK64..bytes.end.next_multiple_of(BLOCK64),
                false => bytes.clone(),
            };
            if result.is_ok() || planted(Bug::FailedWriteHeals) {
                self.heal(id, &healed);
            }
        }
        if let Some(fill) = fill {
            self.fill_read(fill, &request, result);
        }
        self.finish_part(id, result);
    }

    /// Queues whole blocks of a change for the log.
    fn queue_part(&mut self, request: &Request, bytes: Range<u64>) {
        let (block, blocks) = (bytes.start / BLOCK64, ((bytes.end - bytes.start) / BLOCK64) as u32);
        let (content, source, fua) = match request.operation {
            Operation::Write { fua } => {
                let source = Slice {
                    buffer: BufferId::Request(request.id),
                    offset: (bytes.start - request.offset) as u32,
                    length: blocks * BLOCK,
                };
                (Content::Data, Some(source), fua)
            }
            Operation::WriteZeroes { fua } => (Content::Zeroes, None, fua),
            Operation::Discard | Operation::Read | Operation::Flush => (Content::Discarded, None, false),
        };
        let Some(boost) = self.boost.as_ref() else { return };
        let has_data = content.has_data();
        let reserved = boost.space.geometry.need(if has_data { blocks } else { 0 });
        let tombstones = if has_data { 0 } else { part_tombstones(&bytes) };
        self.add_part(request.id);
        self.enqueue(Part {
            request: request.id,
            block,
            blocks,
            content,
            source,
            scratch: None,
            fua,
            reserved,
            tombstones,
        });
    }

    /// Fetches the old content of a block of which the request changes a part.
    fn start_merge(&mut self, request: &Request, bytes: Range<u64>) {
        let block = bytes.start / BLOCK64;
        let scratch = self.allocate(BLOCK);
        let Some(boost) = self.boost.as_mut() else { return };
        let old: Option<Extent> = boost.index.overlapping(block..block + 1).next();
        boost.merges_in_flight += 1;
        let reserved = boost.space.geometry.need(1);
        self.add_part(request.id);
        let location = old.map_or(0, |extent| extent.location);
        let clean = old.is_some_and(|extent| !extent.state.dirty());
        let merge = Merge { request: request.id, block, location, scratch, bytes, reserved, clean, second_try: false };
        match old.map(|extent| extent.kind) {
            Some(Kind::Data) => self.read_log_block(Pending::Merge(merge), location, scratch),
            Some(Kind::Zeroes | Kind::Discarded) | None => {
                self.effects.push_back(Effect::Zero { to: whole_block(scratch) });
                self.merged(merge);
            }
        }
    }

    /// The old content has been read.
    pub(super) fn merge_read(&mut self, merge: Merge, result: Result<(), IoFailure>) {
        if merge.second_try {
            self.backing.ended(self.now, BLOCK64);
        } else {
            self.log_read_ended(merge.location, BLOCK64);
        }
        match result {
            Ok(()) => self.merged(merge),
            Err(failure) if merge.clean && !merge.second_try => {
                self.cache_read_failed(failure);
                let into = whole_block(merge.scratch);
                let offset = merge.block * BLOCK64;
                let id = self.pending.insert(Pending::Merge(Merge { second_try: true, ..merge }));
                self.backing.started(self.now, BLOCK64);
                self.effects.push_back(Effect::Read { id, target: Target::Backing, offset, into, checksums: None });
            }
            Err(failure) => {
                if let Some(boost) = self.boost.as_mut() {
                    boost.merges_in_flight -= 1;
                    boost.space.reserved -= if planted(Bug::FailedMergeKeepsRoom) { 0 } else { merge.reserved };
                }
                self.release_scratch(Some(merge.scratch));
                if merge.second_try {
                    return self.finish_part(merge.request, Err(failure));
                }
                self.cache_read_failed(failure);
                self.strand_merge(merge);
            }
        }
    }

    /// The failed cache is released: nothing of the block is in a log any more, so its part can change where the block is.
    pub(super) fn change_after_drop(&mut self, merge: Merge) {
        if let Some(request) = self.requests.get(&merge.request).map(|active| active.request) {
            self.change_backing(&request, merge.bytes);
        }
        self.finish_part(merge.request, Ok(()));
    }

    /// Whether it is not known yet what becomes of these bytes: records of them may be missing, or what stays lost is being
    /// recorded.
    fn must_wait_for_loss(&self, bytes: &Range<u64>) -> bool {
        let unknown = self.boost.as_ref().and_then(|boost| boost.trouble.unknown.as_ref());
        unknown.is_some_and(|unknown| !unknown.newer.contains(bytes))
            || self.is_recording_loss() && self.loss.as_ref().is_some_and(|loss| loss.overlaps(bytes))
    }

    /// The scratch buffer holds the block's old content: put the new part over it and queue the block.
    fn merged(&mut self, merge: Merge) {
        let Merge { request, block, scratch, bytes, reserved, .. } = merge;
        let Some(active) = self.requests.get(&request).map(|active| active.request) else { return };
        let length = (bytes.end - bytes.start) as u32;
        let to = Slice { buffer: BufferId::Scratch(scratch), offset: (bytes.start - block * BLOCK64) as u32, length };
        let fua = match active.operation {
            Operation::Write { fua } => {
                let offset = (bytes.start - active.offset) as u32;
                let from = Slice { buffer: BufferId::Request(request), offset, length };
                self.effects.push_back(Effect::Copy { from, to });
                fua
            }
            Operation::WriteZeroes { fua } => {
                self.effects.push_back(Effect::Zero { to });
                fua
            }
            Operation::Discard | Operation::Read | Operation::Flush => {
                self.effects.push_back(Effect::Zero { to });
                false
            }
        };
        if let Some(boost) = self.boost.as_mut() {
            boost.merges_in_flight -= 1;
        }
        let source = Some(whole_block(scratch));
        let content = Content::Data;
        self.enqueue(Part {
            request,
            block,
            blocks: 1,
            content,
            source,
            scratch: Some(scratch),
            fua,
            reserved,
            tombstones: 0,
        });
    }
}

fn whole_block(scratch: ScratchId) -> Slice {
    Slice { buffer: BufferId::Scratch(scratch), offset: 0, length: BLOCK }
}

/// Blocks of the log that a run may need.
fn part_need(space: &Space, run: &Range<u64>, way: Way, is_write: bool) -> u64 {
    match way {
        Way::Direct => 0,
        Way::Merge => space.geometry.need(1),
        Way::Log if is_write => space.geometry.need(((run.end - run.start) / BLOCK64) as u32),
        Way::Log => space.geometry.need(0),
    }
}

/// Extents in the index that a run of whole blocks without data makes.
fn part_tombstones(run: &Range<u64>) -> u64 {
    chunks(run.start / BLOCK64, ((run.end - run.start) / BLOCK64) as u32)
}

/// Adds a run, joined with the one before it if that goes the same way.
fn push_run(plan: &mut Plan, run: Range<u64>, way: Way) {
    if run.is_empty() {
        return;
    }
    if let Some((last, _)) =
        plan.last_mut().filter(|(last, last_way)| *last_way == way && way != Way::Merge && last.end == run.start)
    {
        last.end = run.end;
        return;
    }
    plan.push((run, way));
}

/// Adds bytes that the log holds: whole blocks as such, parts of blocks to be merged.
fn push_blocks(plan: &mut Plan, bytes: Range<u64>) {
    split_at_blocks(bytes, |part, whole| push_run(plan, part, if whole { Way::Log } else { Way::Merge }));
}

/// Adds bytes that the log does not hold: whole blocks to the log, parts of blocks to the backing volume.
fn push_aligned(plan: &mut Plan, bytes: Range<u64>) {
    split_at_blocks(bytes, |part, whole| push_run(plan, part, if whole { Way::Log } else { Way::Direct }));
}

fn split_at_blocks(bytes: Range<u64>, mut each: impl FnMut(Range<u64>, bool)) {
    let first = bytes.start.next_multiple_of(BLOCK64).min(bytes.end);
    let last = (bytes.end / BLOCK64 * BLOCK64).max(first);
    each(bytes.start..first, false);
    each(first..last, true);
    each(last..bytes.end, false);
}
