//! Recovery: what a caching volume holds after a crash.
//!
//! superblock → flush both volumes (what is read from now on cannot vanish) → segment table → every segment → replay in
//! the order of the records' sequences.

use std::ops::Range;

use surgetank_model::Instant;

use super::lifecycle::Step;
use super::port::Port;
use super::{Attach, Boost, Engine, Event, FlushRequest, Pending, Rejected, Stage, Waiter};
use crate::effect::{Effect, IoFailure, Outcome, Target};
use crate::format::{BLOCK, Content, LogState, Record, SegmentTable, Superblock};
use crate::index::{Extent, Kind, State};
use crate::planted::{Bug, planted};
use crate::space::Space;

/// Segments read at a time.
const SCANS: u32 = 4;

/// What has been found so far.
#[derive(Debug)]
pub(super) struct Recovery {
    attach: Attach,
    superblock: Option<Superblock>,
    table: Vec<SegmentTable>,
    generations: Vec<u32>,
    records: Vec<Record>,
    next_scan: u32,
    scans_in_flight: u32,
    failed: bool,
}

impl Engine {
    /// Reads back a caching volume after a crash; ends in `Event::Recovered` or `RecoverFailed`. Draining follows
    /// unless `set_mode(Absorb)` is called. A volume that was released is `Recovered` with nothing dirty, and
    /// `Released` at once.
    ///
    /// # Errors
    /// If the engine does not await recovery.
    pub fn recover(&mut self, now: Instant, attach: Attach) -> Result<(), Rejected> {
        self.now = self.now.max(now);
        if self.stage != Stage::Recovering || self.recovery.is_some() || self.step != Step::None {
            return Err(Rejected(format!("there is nothing to recover in stage {:?}", self.stage)));
        }
        self.cache = Port::new(self.now, attach.cache_limits);
        self.recovery = Some(Recovery {
            attach,
            superblock: None,
            table: Vec::new(),
            generations: Vec::new(),
            records: Vec::new(),
            next_scan: 0,
            scans_in_flight: 0,
            failed: false,
        });
        self.step = Step::RecoverSuperblock;
        self.step_serial += 1;
        self.step_effect(|id| Effect::ReadSuperblocks { id });
        Ok(())
    }

    fn recovery_fails(&mut self, reason: &'static str) {
        self.recovery = None;
        self.give_up_step();
        self.events.push_back(Event::RecoverFailed { reason });
    }

    /// A superblock or the segment table has been read.
    pub(super) fn recovery_read(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Superblock(superblock) => self.superblock_read(superblock),
            Outcome::Table(table) => self.table_read(table),
            _ => self.recovery_fails("the caching volume cannot be read"),
        }
    }

    fn superblock_read(&mut self, superblock: Option<Superblock>) {
        let Some(recovery) = self.recovery.as_mut() else { return };
        let Some(superblock) = superblock else { return self.recovery_fails("the caching volume has no superblock") };
        if superblock.epoch != recovery.attach.epoch {
            return self.recovery_fails("the caching volume belongs to another attachment: its epoch differs");
        }
        if superblock.geometry().end() > recovery.attach.cache_size {
            return self.recovery_fails("the caching volume is smaller than its superblock says");
        }
        if superblock.device_size > self.config.size {
            return self.recovery_fails("the backing volume is smaller than when the caching volume was attached");
        }
        if superblock.state == LogState::Clean {
            // The release came so far; CLEAN may not be durable yet, and its owner record and event are missing.
            self.recovery = None;
            self.stage = Stage::Releasing;
            self.retry_waiting = true;
            self.stirred = true;
            self.events.push_back(Event::Recovered { dirty_bytes: 0 });
            self.step = Step::ReleaseMarkFlush;
            self.enter_step();
            return;
        }
        recovery.superblock = Some(superblock);
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
        let superblock = self.recovery.as_ref().and_then(|recovery| recovery.superblock.clone());
        let Some(superblock) = superblock else { return };
        let geometry = superblock.geometry();
        self.step = Step::RecoverTable;
        self.step_serial += 1;
        self.step_effect(|id| Effect::ReadTable {
            id,
            offset: u64::from(crate::format::SUPERBLOCKS_LENGTH),
            length: geometry.table_length(),
            epoch: superblock.epoch,
            segments: geometry.segments,
        });
    }

    fn table_read(&mut self, table: Option<Vec<SegmentTable>>) {
        let Some(recovery) = self.recovery.as_mut() else { return };
        let Some(table) = table else {
            return self.recovery_fails("the segment table of the caching volume is damaged");
        };
        recovery.generations = table.iter().flat_map(|page| page.generations.iter().copied()).collect();
        recovery.table = table;
        self.step = Step::RecoverScan;
        self.step_serial += 1;
        self.pump_scan();
    }

    fn pump_scan(&mut self) {
        while let Some(recovery) = self.recovery.as_mut() {
            let Some(superblock) = recovery.superblock.as_ref() else { return };
            let segment = recovery.next_scan;
            if segment == superblock.segments || recovery.scans_in_flight == SCANS {
                break;
            }
            let (offset, length) = (superblock.geometry().segment_offset(segment), superblock.segment_size);
            let (epoch, generation) = (superblock.epoch, recovery.generations[segment as usize]);
            recovery.next_scan += 1;
            recovery.scans_in_flight += 1;
            let id = self.pending.insert(Pending::Scan { segment });
            self.effects.push_back(Effect::Scan { id, offset, length, epoch, segment, generation });
        }
        if self.recovery.as_ref().is_some_and(|recovery| recovery.scans_in_flight == 0) {
            self.replay();
        }
    }

    pub(super) fn scan_done(&mut self, segment: u32, outcome: Outcome) {
        let Some(recovery) = self.recovery.as_mut() else { return };
        recovery.scans_in_flight -= 1;
        match outcome {
            Outcome::Scanned(records) => {
                recovery.records.extend(records.into_iter().filter(|record| record.summary.segment == segment));
            }
            _ => {
                recovery.failed = true;
                recovery.next_scan = recovery.superblock.as_ref().map_or(0, |superblock| superblock.segments);
            }
        }
        if recovery.failed && recovery.scans_in_flight == 0 {
            return self.recovery_fails("the caching volume cannot be read");
        }
        if !recovery.failed {
            self.pump_scan();
        }
    }

    fn replay(&mut self) {
        let Some(recovery) = self.recovery.take() else { return };
        let Recovery { attach, superblock: Some(superblock), table, generations, mut records, .. } = recovery else {
            return;
        };
        records.sort_unstable_by_key(|record| record.summary.sequence);
        if planted(Bug::OlderRecordWins) {
            records.reverse();
        }
        let geometry = superblock.geometry();
        let mut space = Space::new(geometry, |segment| generations[segment as usize]);
        for record in &records {
            let summary = &record.summary;
            let replayed = summary.entries.iter().any(|entry| entry.content != Content::Copied);
            if replayed && space.segments[summary.segment as usize].usage == crate::space::Use::Free {
                space.restore(summary.segment, summary.sequence);
            }
        }
        let sequences = table.iter().map(|page| page.sequence).collect();
        // The device may have grown since the superblock was written.
        let device_blocks = self.config.size / u64::from(BLOCK);
        let mut boost = Boost::new(self.now, attach, superblock, sequences, space);
        for record in &records {
            boost.next_sequence = boost.next_sequence.max(record.summary.sequence + 1);
            boost.replay(record, device_blocks);
        }
        let dirty_bytes = boost.space.dirty * u64::from(BLOCK);
        self.boost = Some(boost);
        self.stage = Stage::Drain;
        self.give_up_step();
        self.retry_waiting = true;
        self.events.push_back(Event::Recovered { dirty_bytes });
    }
}

impl Boost {
    /// Puts what a record holds, as far as it is intact, over what older records left.
    fn replay(&mut self, record: &Record, device_blocks: u64) {
        let summary = &record.summary;
        let summary_location = self.space.location(summary.segment, summary.position);
        if summary.entries.iter().all(|entry| entry.content == Content::Copied) {
            return;
        }
        self.keep_checksums(summary);
        let mut at = 0;
        for entry in &summary.entries {
            let data = at..at + if entry.content.has_data() { entry.blocks as usize } else { 0 };
            at = data.end;
            if entry.block + u64::from(entry.blocks) > device_blocks {
                continue;
            }
            let tombstone = |kind| Extent {
                block: entry.block,
                blocks: entry.blocks,
                location: summary_location,
                kind,
                state: State::Dirty,
            };
            match entry.content {
                Content::Zeroes => self.insert(tombstone(Kind::Zeroes)),
                Content::Discarded if planted(Bug::DiscardsNotReplayed) => {}
                Content::Discarded => self.insert(tombstone(Kind::Discarded)),
                Content::Data => {
                    for run in intact_runs(&record.intact[data.clone()]) {
                        self.insert(Extent {
                            block: entry.block + run.start as u64,
                            blocks: run.len() as u32,
                            location: summary_location + 1 + (data.start + run.start) as u32,
                            kind: Kind::Data,
                            state: State::Dirty,
                        });
                    }
                }
                Content::Copied => {}
            }
        }
    }
}

/// The runs of `true`.
fn intact_runs(intact: &[bool]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for (at, _) in intact.iter().enumerate().filter(|(_, intact)| **intact) {
        match runs.last_mut().filter(|run| run.end == at) {
            Some(run) => run.end = at + 1,
            None => runs.push(at..at + 1),
        }
    }
    runs
}
