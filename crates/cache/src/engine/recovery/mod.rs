//! Recovery: what a caching volume holds after a crash, or after it was lost.
//!
//! superblocks → flush both volumes (what is read from now on cannot vanish) → segment table → the index of each segment
//! that has one, and the segments that the superblock names as those that may hold other records → the segment table and
//! the superblock, repaired → replay in the order of the records' sequences.
//!
//! A segment whose index cannot be read is read itself; if a superblock cannot be read, so is every one without an index.
//!
//! Both superblocks, both copies of each page of the table, and the blocks of a segment that cannot be read as a whole are
//! read apart. One superblock or none is enough (the geometry follows from the size, and a page of the table of this epoch
//! proves that it is our volume), so is one copy of a page. A data block that cannot be read, or that was durable and does
//! not match its checksum, is dirty and lost. Records of which nothing can be read are told from records that never were
//! by what the records after them say.

mod repair;
mod replay;
mod scan;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use surgetank_model::Instant;

use super::lifecycle::Step;
use super::port::Port;
use super::{Attach, Engine, EngineStage, Event, FlushRequest, Pending, Rejected, Waiter};
use crate::effect::{BufferId, Effect, IoFailure, Outcome, ReplyError, ScratchId, Slice, Target};
use crate::format::{
    BLOCK, Content, Geometry, Layout, LogState, Parse, Parsed, Place, Records, Repeat, SegmentTable, Superblock,
    TableCopy,
};
use crate::planted::{Bug, planted};

const BLOCK64: u64 = BLOCK as u64;

/// Bytes of indexes read at once, at most.
const INDEXES_BYTES: u32 = 1 << 20;
/// Recoveries that find both superblocks or records missing because something cannot be read, before that counts.
const ATTEMPTS: u32 = 3;

/// What a read of a recovery is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A superblock, by its slot.
    Superblock { slot: usize, scratch: ScratchId },
    /// A copy of a page of the segment table.
    Table { page: u32, copy: TableCopy, scratch: ScratchId },
    /// The indexes of these segments.
    Indexes { segments: Range<u32>, scratch: ScratchId },
    /// These blocks of a segment.
    Segment { segment: u32, blocks: Range<u32> },
    /// Whether the volume answers at all, after a segment could not be read.
    Answer { segment: u32, scratch: ScratchId },
}

/// What a place of the volume holds.
#[derive(Clone, Debug)]
enum Slot<T> {
    Unread,
    /// It could not be read.
    Unreadable,
    /// It holds something else.
    Invalid,
    Valid(T),
}

impl<T> Slot<T> {
    fn valid(&self) -> Option<&T> {
        match self {
            Self::Valid(value) => Some(value),
            _ => None,
        }
    }
}

/// A segment that is being read.
#[derive(Debug)]
struct Scan {
    scratch: ScratchId,
    /// Reads and the look at what was read that have not ended.
    left: u32,
    unreadable: Vec<u32>,
}

/// What has been found so far.
#[derive(Debug)]
pub(super) struct Recovery {
    attach: Attach,
    /// The device is served meanwhile: only what is lost is wanted.
    pub restoring: bool,
    superblocks: [Slot<Superblock>; 2],
    /// Both copies of each page.
    copies: Vec<[Slot<SegmentTable>; 2]>,
    superblock: Option<Superblock>,
    table: Vec<SegmentTable>,
    found: BTreeMap<u32, Records>,
    /// Extents without data that they make.
    tombstones: u64,
    /// Blocks that could not be read, of each segment that was scanned.
    unreadable: BTreeMap<u32, Vec<u32>>,
    /// Runs of segments whose indexes are to be read.
    indexes: Vec<Range<u32>>,
    pub indexes_in_flight: usize,
    scans: BTreeMap<u32, Scan>,
    to_scan: BTreeSet<u32>,
    /// What is repeated elsewhere of records of a segment.
    repeats: BTreeMap<u32, Vec<Repeat>>,
    /// A place that could be read.
    readable_at: u64,
    pub in_flight: u32,
    failed: Option<&'static str>,
    /// When all was read: what is known of records that are missing.
    unknown: Option<(u64, bool)>,
}

impl Recovery {
    fn generation(&self, segment: u32) -> u32 {
        self.page_of(segment).and_then(|(page, at)| page.generations.get(at)).copied().unwrap_or(0)
    }

    /// Whether the table says that a segment has an index.
    fn is_indexed(&self, segment: u32) -> bool {
        let has_indexes = self.superblock.as_ref().is_some_and(|superblock| superblock.indexed);
        let page = self.page_of(segment).filter(|_| has_indexes);
        page.and_then(|(page, at)| page.indexed.get(at)).copied().unwrap_or(false)
    }

    /// Whether there can be no newer superblock than the one that was found.
    fn has_newest(&self) -> bool {
        let [Some(first), Some(second)] = [self.superblocks[0].valid(), self.superblocks[1].valid()] else {
            return false;
        };
        first.epoch == second.epoch && first.sequence.abs_diff(second.sequence) == 1
    }

    /// The segments that may hold records and have no index; `None`: any.
    fn listed(&self) -> Option<&[u32]> {
        let list = self.superblock.as_ref()?.unindexed.as_deref()?;
        self.has_newest().then_some(list)
    }

    /// Whether no record follows those that were found.
    fn is_closed(&self) -> bool {
        self.has_newest() && self.superblock.as_ref().is_some_and(|superblock| superblock.closed)
    }

    fn found(&mut self, segment: u32, records: Records) {
        self.tombstones += records.tombstones;
        let before = self.found.insert(segment, records);
        self.tombstones -= before.map_or(0, |before| before.tombstones);
    }

    /// Whether it would take more memory than any log that was written by an engine.
    fn is_excessive(&self) -> bool {
        self.superblock
            .as_ref()
            .is_some_and(|superblock| self.tombstones > superblock.geometry().tombstones_recovered_max())
    }

    /// Takes what an index says of a segment, if it says anything.
    fn index_read(&mut self, segment: u32, records: Option<Records>) {
        match records {
            Some(records) => self.found(segment, records),
            None if planted(Bug::DamagedIndexIsEmpty) => _ = self.unreadable.insert(segment, Vec::new()),
            None => _ = self.to_scan.insert(segment),
        }
    }

    fn is_unreadable(&self, segment: u32, position: u32) -> bool {
        self.unreadable.get(&segment).is_some_and(|blocks| blocks.binary_search(&position).is_ok())
    }

    /// Whether a record that another one names is accounted for: it is here, or its segment has been freed since.
    fn is_known(&self, place: &Place) -> bool {
        place.generation != self.generation(place.segment)
            || self.found.get(&place.segment).is_some_and(|records| records.contains(place.sequence))
    }
}

const UNREADABLE: &str = "the caching volume cannot be read";
const EXCESSIVE: &str = "the log on the caching volume names more zeroed and discarded ranges than one of its size may: it was tampered with";

impl Engine {
    /// Reads back a caching volume after a crash; ends in `Event::Recovered` or `RecoverFailed`. Draining follows
    /// unless `set_mode(Absorb)` is called. A volume that was released is `Recovered` with nothing dirty, and
    /// `Released` at once. One of which a part cannot be read is `Recovered`, then `CacheFailing`.
    ///
    /// # Errors
    /// If the engine does not await recovery.
    pub fn recover(&mut self, now: Instant, attach: Attach) -> Result<(), Rejected> {
        self.now = self.now.max(now);
        if self.stage != EngineStage::Recovering || self.recovery.is_some() || self.step != Step::None {
            return Err(Rejected(format!("there is nothing to recover in stage {:?}", self.stage)));
        }
        self.begin_recovery(attach, false);
        Ok(())
    }

    /// Reads a caching volume back that was lost, while the device is served: what can be read of the lost ranges is
    /// drained. Ends in `Event::CacheDropped` (nothing is lost any more), `CacheLost` (some of it still is), or
    /// `RestoreFailed` (nothing could be read).
    ///
    /// # Errors
    /// If nothing is lost, or it is being read back or accepted already.
    pub fn restore(&mut self, now: Instant, attach: Attach) -> Result<(), Rejected> {
        self.now = self.now.max(now);
        let lost = self.loss.as_ref().filter(|_| self.stage == EngineStage::Lost);
        if lost.is_none() || self.recovery.is_some() || self.step != Step::None {
            return Err(Rejected(format!("there is nothing to restore in stage {:?}", self.stage)));
        }
        self.begin_recovery(attach, true);
        Ok(())
    }

    /// Whether a lost caching volume is being drained.
    pub(super) fn is_restoring(&self) -> bool {
        self.boost.as_ref().is_some_and(|boost| boost.trouble.only.is_some())
    }

    fn begin_recovery(&mut self, attach: Attach, restoring: bool) {
        self.cache = Port::new(self.now, attach.cache_limits);
        self.recovery = Some(Recovery {
            attach,
            restoring,
            superblocks: [Slot::Unread, Slot::Unread],
            copies: Vec::new(),
            superblock: None,
            table: Vec::new(),
            found: BTreeMap::new(),
            tombstones: 0,
            unreadable: BTreeMap::new(),
            indexes: Vec::new(),
            indexes_in_flight: 0,
            scans: BTreeMap::new(),
            to_scan: BTreeSet::new(),
            repeats: BTreeMap::new(),
            readable_at: 0,
            in_flight: 0,
            failed: None,
            unknown: None,
        });
        self.step = Step::RecoverRead;
        self.step_serial += 1;
        for slot in 0..2 {
            let scratch = self.allocate(BLOCK);
            self.recovery_fetch(Wanted::Superblock { slot, scratch }, slot as u64 * BLOCK64, scratch, 0, BLOCK);
        }
    }

    fn recovery_fails(&mut self, reason: &'static str) {
        let Some(recovery) = self.recovery.as_mut() else { return };
        recovery.failed = Some(recovery.failed.unwrap_or(reason));
        self.end_failed_recovery();
    }

    /// A recovery that failed ends when nothing of it is in flight any more.
    fn end_failed_recovery(&mut self) {
        let Some(recovery) = self.recovery.as_ref().filter(|recovery| recovery.in_flight == 0) else { return };
        let (Some(reason), restoring) = (recovery.failed, recovery.restoring) else { return };
        let scratches: Vec<ScratchId> = recovery.scans.values().map(|scan| scan.scratch).collect();
        scratches.into_iter().for_each(|scratch| self.release_scratch(Some(scratch)));
        self.recovery = None;
        self.abandon_step();
        self.needs_pump = true;
        if restoring {
            if !self.ends_healed_loss() {
                self.events.push_back(Event::RestoreFailed { reason });
            }
        } else {
            self.unrecovered_since.get_or_insert(self.now);
            self.events.push_back(Event::RecoverFailed { reason });
        }
    }

    /// Until when requests wait for a recovery.
    pub(super) fn recovery_deadline(&self) -> Option<Instant> {
        let since = self.unrecovered_since.filter(|_| self.stage == EngineStage::Recovering)?;
        Some(since + self.config.outage_patience).filter(|at| *at > self.now && !self.waiting.is_empty())
    }

    /// Requests do not wait for ever for a volume that cannot be read back; nothing is discarded with them.
    pub(super) fn pump_recovery(&mut self) {
        let Some(since) = self.unrecovered_since.filter(|_| self.stage == EngineStage::Recovering) else { return };
        if self.now < since + self.config.outage_patience {
            return;
        }
        for request in std::mem::take(&mut self.waiting) {
            self.effects.push_back(Effect::Reply { request: request.id, result: Err(ReplyError::Io) });
        }
    }

    /// Reads a part of the caching volume into a scratch buffer.
    fn recovery_fetch(&mut self, wanted: Wanted, offset: u64, scratch: ScratchId, at: u32, length: u32) {
        let Some(recovery) = self.recovery.as_mut() else { return };
        recovery.in_flight += 1;
        let id = self.pending.insert(Pending::Recovery(wanted));
        let into = Slice { buffer: BufferId::Scratch(scratch), offset: at, length };
        self.effects.push_back(Effect::Read { id, target: Target::Cache, offset, into, checksums: None });
    }

    fn recovery_parse(&mut self, wanted: Wanted, scratch: ScratchId, length: u32, what: Parse) {
        let Some(recovery) = self.recovery.as_mut() else { return };
        recovery.in_flight += 1;
        let id = self.pending.insert(Pending::Parse(wanted));
        let from = Slice { buffer: BufferId::Scratch(scratch), offset: 0, length };
        self.effects.push_back(Effect::Parse { id, from, what: Box::new(what) });
    }

    /// A read of a recovery has ended.
    pub(super) fn recovery_read(&mut self, wanted: Wanted, result: Result<(), IoFailure>) {
        self.needs_pump = true;
        let Some(recovery) = self.recovery.as_mut() else { return };
        recovery.in_flight -= 1;
        if recovery.failed.is_some() {
            if let Wanted::Superblock { scratch, .. }
            | Wanted::Table { scratch, .. }
            | Wanted::Indexes { scratch, .. }
            | Wanted::Answer { scratch, .. } = wanted
            {
                self.release_scratch(Some(scratch));
            }
            return self.end_failed_recovery();
        }
        let epoch = recovery.attach.epoch;
        match (wanted, result) {
            (Wanted::Superblock { slot, scratch }, Ok(())) => {
                recovery.readable_at = slot as u64 * BLOCK64;
                self.recovery_parse(Wanted::Superblock { slot, scratch }, scratch, BLOCK, Parse::Superblock);
            }
            (Wanted::Superblock { slot, scratch }, Err(_)) => {
                recovery.superblocks[slot] = Slot::Unreadable;
                self.release_scratch(Some(scratch));
                self.superblocks_read();
            }
            (Wanted::Table { page, copy, scratch }, Ok(())) => {
                let Some(geometry) = recovery.superblock.as_ref().map(Superblock::geometry) else { return };
                recovery.readable_at = geometry.table_offset(page, copy);
                let what = Parse::Table { epoch, geometry, page };
                self.recovery_parse(Wanted::Table { page, copy, scratch }, scratch, BLOCK, what);
            }
            (Wanted::Table { page, copy, scratch }, Err(_)) => {
                recovery.copies[page as usize][copy as usize] = Slot::Unreadable;
                self.release_scratch(Some(scratch));
                self.table_read();
            }
            (Wanted::Indexes { segments, scratch }, Ok(())) => {
                let Some(geometry) = recovery.superblock.as_ref().map(Superblock::geometry) else { return };
                let generations = segments.clone().map(|segment| recovery.generation(segment)).collect();
                let length = segments.len() as u32 * geometry.index_length();
                let what = Parse::Indexes { epoch, geometry, first: segments.start, generations };
                self.recovery_parse(Wanted::Indexes { segments, scratch }, scratch, length, what);
            }
            (Wanted::Indexes { segments, scratch }, Err(_)) => {
                recovery.indexes_in_flight -= 1;
                // One of them at a time, then the segment itself.
                if segments.len() == 1 {
                    recovery.index_read(segments.start, None);
                } else {
                    recovery.indexes.extend(segments.map(|segment| segment..segment + 1));
                }
                self.release_scratch(Some(scratch));
                self.pump_indexes();
            }
            (Wanted::Segment { segment, .. }, Ok(())) => self.part_read(segment),
            (Wanted::Segment { segment, blocks }, Err(_)) => self.part_unreadable(segment, blocks),
            (Wanted::Answer { segment, scratch }, answer) => {
                self.release_scratch(Some(scratch));
                match answer {
                    Ok(()) => self.read_apart(segment),
                    Err(_) => self.recovery_fails(UNREADABLE),
                }
            }
        }
    }

    /// What was read has been looked at.
    pub(super) fn recovery_parsed(&mut self, wanted: &Wanted, outcome: Outcome) {
        self.needs_pump = true;
        let Some(recovery) = self.recovery.as_mut() else { return };
        recovery.in_flight -= 1;
        if let Wanted::Superblock { scratch, .. } | Wanted::Table { scratch, .. } | Wanted::Indexes { scratch, .. } =
            wanted
        {
            let scratch = *scratch;
            self.release_scratch(Some(scratch));
        }
        let Some(recovery) = self.recovery.as_mut() else { return };
        if recovery.failed.is_some() {
            return self.end_failed_recovery();
        }
        match (wanted, outcome) {
            (Wanted::Superblock { slot, .. }, Outcome::Parsed(Parsed::Superblock(superblock))) => {
                recovery.superblocks[*slot] = superblock.map_or(Slot::Invalid, Slot::Valid);
                self.superblocks_read();
            }
            (Wanted::Table { page, copy, .. }, Outcome::Parsed(Parsed::Table(table))) => {
                recovery.copies[*page as usize][*copy as usize] = table.map_or(Slot::Invalid, Slot::Valid);
                self.table_read();
            }
            (Wanted::Indexes { segments, .. }, Outcome::Parsed(Parsed::Indexes(found))) => {
                recovery.indexes_in_flight -= 1;
                let found = found.into_iter().chain(std::iter::repeat(None));
                segments.clone().zip(found).for_each(|(segment, records)| recovery.index_read(segment, records));
                if recovery.is_excessive() {
                    return self.recovery_fails(EXCESSIVE);
                }
                self.pump_indexes();
            }
            (Wanted::Segment { segment, .. }, Outcome::Parsed(Parsed::Segment(records))) => {
                self.segment_read(*segment, records);
            }
            _ => self.recovery_fails(UNREADABLE),
        }
    }

    fn superblocks_read(&mut self) {
        let device_size = self.config.size;
        let Some(recovery) = self.recovery.as_mut().filter(|recovery| recovery.in_flight == 0) else { return };
        let valid = recovery.superblocks.iter().filter_map(Slot::valid);
        let newest = valid.max_by_key(|superblock| superblock.sequence).cloned();
        let newest = if planted(Bug::OldSizeBelieved) { newest.map(Superblock::forget_growth) } else { newest };
        let unreadable = recovery.superblocks.iter().any(|slot| matches!(slot, Slot::Unreadable));
        let epoch = recovery.attach.epoch;
        if planted(Bug::OneSuperblockSlotFatal) && unreadable {
            return self.recovery_fails("a superblock of the caching volume cannot be read");
        }
        let superblock = match newest {
            Some(superblock) => superblock,
            None if unreadable && self.recovery_attempts < ATTEMPTS => {
                self.recovery_attempts += 1;
                return self.recovery_fails("no superblock of the caching volume can be read");
            }
            // A page of the table will have to prove that this is our volume.
            None if unreadable => {
                match Geometry::divide(recovery.attach.cache_size, Layout::default(), recovery.attach.indexes) {
                    Some(geometry) => Superblock::unread(epoch, geometry, device_size),
                    None => return self.recovery_fails("the caching volume is too small to be one"),
                }
            }
            None => return self.recovery_fails("the caching volume has no superblock"),
        };
        if superblock.epoch != epoch {
            return self.recovery_fails("the caching volume belongs to another attachment: its epoch differs");
        }
        if superblock.geometry().end() > recovery.attach.cache_size {
            return self.recovery_fails("the caching volume is smaller than its superblock says");
        }
        if superblock.device_size > device_size {
            return self.recovery_fails("the backing volume is smaller than when the caching volume was attached");
        }
        if superblock.state == LogState::Clean && !recovery.restoring {
            // The release came so far; CLEAN may not be durable yet, and its owner record and event are missing.
            self.recovery = None;
            self.unrecovered_since = None;
            self.stage = EngineStage::Releasing;
            self.retry_waiting = true;
            self.needs_pump = true;
            self.events.push_back(Event::Recovered { dirty_bytes: 0 });
            self.step = Step::ReleaseMarkFlush;
            self.enter_step();
            return;
        }
        let superblock = recovery.superblock.insert(superblock);
        if let Some(loss) = self.loss.as_ref().filter(|_| recovery.restoring) {
            // The volume was gone before its superblock could name them.
            for sequence in loss.void() {
                if !superblock.void.contains(sequence) {
                    superblock.void.push(*sequence);
                }
            }
        }
        self.step = Step::RecoverFlush { left: 0, failed: false };
        self.step_serial += 1;
        let mut left = 0;
        for target in [Target::Backing, Target::Cache] {
            left += u8::from(self.flush_target(target, Waiter::Lifecycle(self.step_serial)) != FlushRequest::Ready);
        }
        self.step = Step::RecoverFlush { left, failed: false };
        if left == 0 {
            self.read_table();
        }
    }

    pub(super) fn recovery_flushed(&mut self, result: Result<(), IoFailure>) {
        // Both answers are awaited: a late one must not be taken for an answer to a later attempt.
        if let Step::RecoverFlush { left, failed } = &mut self.step {
            *left -= 1;
            *failed |= result.is_err();
            match (*left, *failed) {
                (0, false) => self.read_table(),
                (0, true) => self.recovery_fails("a volume cannot be flushed"),
                _ => {}
            }
        }
    }

    fn read_table(&mut self) {
        self.step = Step::RecoverRead;
        self.step_serial += 1;
        let Some(recovery) = self.recovery.as_mut() else { return };
        let Some(geometry) = recovery.superblock.as_ref().map(Superblock::geometry) else { return };
        recovery.copies = (0..geometry.table_pages()).map(|_| [Slot::Unread, Slot::Unread]).collect();
        for page in 0..geometry.table_pages() {
            for copy in TableCopy::ALL {
                let scratch = self.allocate(BLOCK);
                let offset = geometry.table_offset(page, copy);
                self.recovery_fetch(Wanted::Table { page, copy, scratch }, offset, scratch, 0, BLOCK);
            }
        }
    }

    fn table_read(&mut self) {
        let Some(recovery) = self.recovery.as_mut().filter(|recovery| recovery.in_flight == 0) else { return };
        let Some(superblock) = recovery.superblock.as_ref() else { return };
        let mut table = Vec::with_capacity(recovery.copies.len());
        for copies in &recovery.copies {
            let unreadable = copies.iter().any(|copy| matches!(copy, Slot::Unreadable));
            let age = |page: &&SegmentTable| match planted(Bug::StaleTablePage) {
                true => u64::MAX - page.sequence,
                false => page.sequence,
            };
            let newest = copies.iter().filter_map(Slot::valid).max_by_key(age);
            match newest {
                // Of two copies that alternate, the one that cannot be read may be the newer.
                Some(page) if superblock.layout == Layout::Two || !unreadable => table.push(page.clone()),
                _ if unreadable => {
                    return self.recovery_fails("the segment table of the caching volume cannot be read");
                }
                _ => return self.recovery_fails("the segment table of the caching volume is damaged"),
            }
        }
        let (segments, geometry) = (superblock.segments, superblock.geometry());
        recovery.table = table;
        let (indexed, others): (Vec<u32>, Vec<u32>) = (0..segments).partition(|segment| recovery.is_indexed(*segment));
        recovery.to_scan = match recovery.listed() {
            Some(list) => list.iter().copied().filter(|segment| *segment < segments).collect(),
            None => others.into_iter().collect(),
        };
        recovery.to_scan.retain(|segment| indexed.binary_search(segment).is_err());
        let most = (INDEXES_BYTES / geometry.index_length()) as usize;
        let follow = |a: &u32, b: &u32| a + 1 == *b && geometry.place_in_table(*a).0 == geometry.place_in_table(*b).0;
        let runs = indexed.chunk_by(follow).flat_map(|run| run.chunks(most));
        recovery.indexes = runs.map(|run| run[0]..run[0] + run.len() as u32).rev().collect();
        self.pump_indexes();
    }

    /// All is read. Records that cannot be read in one segment may be repeated in another: then that one is read again.
    fn resolve(&mut self) {
        let Some(recovery) = self.recovery.as_mut() else { return };
        let across = recovery.found.values().filter_map(|records| Some((Some(records.segment), records.previous?)));
        let last = recovery.superblock.iter().filter_map(|superblock| Some((None, superblock.last?)));
        let unknown: Vec<_> = across.chain(last).filter(|(_, place)| !recovery.is_known(place)).collect();
        let marked = recovery.marked();
        for (by, place) in unknown {
            let records = by.and_then(|by| recovery.found.get_mut(&by));
            let indexed = records.as_ref().is_some_and(|records| records.indexed);
            let repeat = records.and_then(|records| records.repeat.take()).filter(|repeat| repeat.place == place);
            let repeat = repeat.filter(|_| !planted(Bug::RepeatIgnored));
            // One that never arrived does not count: what repeats it may be freed before what it covers.
            let lost = place.sequence <= marked || recovery.is_unreadable(place.segment, place.position);
            let lost = lost && !recovery.is_void(place.sequence);
            let repeat = repeat.filter(|_| lost || planted(Bug::CutRecordsRepeated));
            let known = recovery.repeats.entry(place.segment).or_default();
            match (repeat, by) {
                (Some(repeat), _) if !known.contains(&repeat) => {
                    known.push(*repeat);
                    recovery.to_scan.insert(place.segment);
                }
                _ if !recovery.unreadable.contains_key(&place.segment) => _ = recovery.to_scan.insert(place.segment),
                // Its first summary repeats that record; its index does not.
                (_, Some(by)) if indexed => _ = recovery.to_scan.insert(by),
                _ => {}
            }
        }
        let segments = recovery.superblock.as_ref().map_or(0, |superblock| superblock.segments);
        recovery.to_scan.retain(|segment| *segment < segments);
        if !recovery.to_scan.is_empty() {
            return self.pump_scan();
        }
        let unknown = recovery.find_unknown();
        recovery.unknown = unknown;
        if unknown.as_ref().is_some_and(|(_, unreadable)| *unreadable) && self.recovery_attempts < ATTEMPTS {
            self.recovery_attempts += 1;
            return self.recovery_fails("a part of the log on the caching volume cannot be read");
        }
        let device_blocks = self.config.size / BLOCK64;
        let beyond = |records: &Records| {
            records.iter().any(|record| {
                record.entries().any(|entry| {
                    entry.content != Content::Copied && entry.block + u64::from(entry.blocks) > device_blocks
                })
            })
        };
        if recovery.found.values().any(beyond) {
            return self.recovery_fails("the backing volume is smaller than what the caching volume holds of it");
        }
        self.repair();
    }
}
