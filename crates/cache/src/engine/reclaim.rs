//! Reclaiming: making segments reusable, durably.
//!
//! flush backing and cache → write the page of the segment table with higher generations → flush cache → write and flush
//! its second copy → free.

use std::time::Duration;

use surgetank_model::Instant;

use super::{Engine, EngineStage, FlushRequest, Pending, Waiter};
use crate::effect::{Effect, IoFailure, Target};
use crate::format::{Layout, SegmentTable, TableCopy};
use crate::planted::{Bug, planted};
use crate::space::Indexed;

/// How often segments are reclaimed while nobody waits for room.
const PERIOD: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReclaimPhase {
    Idle,
    /// Both volumes are made durable; so many have not answered.
    Flushing {
        left: u8,
        failed: bool,
    },
    /// A copy of the page is being written.
    Writing(TableCopy),
    /// It is made durable.
    Settling(TableCopy),
}

/// The state of the reclaim cycle.
#[derive(Debug)]
pub(super) struct Reclaim {
    phase: ReclaimPhase,
    page: u32,
    segments: Vec<u32>,
    /// The segments of the page of which the table is to say that they have an index.
    marked: Vec<u32>,
    last: Instant,
    /// A volume did not flush: not before this is it asked again.
    pause_until: Option<Instant>,
    /// Something may have become reclaimable.
    pub worth_a_look: bool,
}

impl Reclaim {
    pub(super) fn new(now: Instant) -> Self {
        let (segments, marked) = (Vec::new(), Vec::new());
        Self { phase: ReclaimPhase::Idle, page: 0, segments, marked, last: now, pause_until: None, worth_a_look: false }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.phase == ReclaimPhase::Idle
    }

    /// Whether this segment is about to be freed.
    pub(super) fn holds(&self, segment: u32) -> bool {
        self.phase != ReclaimPhase::Idle && self.segments.contains(&segment)
    }

    /// The segments that are being freed: what was drained from them is durable.
    pub(super) fn freeing(&self) -> &[u32] {
        match self.phase {
            ReclaimPhase::Writing(_) | ReclaimPhase::Settling(_) => &self.segments,
            ReclaimPhase::Idle | ReclaimPhase::Flushing { .. } => &[],
        }
    }

    /// The backing volume did not flush: segments that were to be freed have something dirty again.
    pub(super) fn abandon(&mut self) {
        if let ReclaimPhase::Flushing { failed, .. } = &mut self.phase {
            *failed = true;
        }
    }
}

impl Engine {
    pub(super) fn reclaim_deadline(&self) -> Option<Instant> {
        let boost = self.boost.as_ref().filter(|_| matches!(self.stage, EngineStage::Absorb | EngineStage::Drain))?;
        let waits = boost.reclaim.worth_a_look && boost.reclaim.is_idle();
        let due = boost.reclaim.pause_until.unwrap_or(boost.reclaim.last + PERIOD);
        (waits && due > self.now).then_some(due)
    }

    pub(super) fn pump_reclaim(&mut self) {
        if matches!(self.stage, EngineStage::Absorb | EngineStage::Drain) {
            self.begin_freeing();
            self.begin_marking();
        }
    }

    /// Has the segment table say which segments have an index, if that is worth a write.
    fn begin_marking(&mut self) {
        let Some(boost) = self.boost.as_mut().filter(|boost| boost.reclaim.is_idle()) else { return };
        if !std::mem::take(&mut boost.checkpoint.marks_worth_a_look) {
            return;
        }
        let due = boost.space.unmarked().filter(|(_, unmarked)| *unmarked >= boost.space.marks_due());
        if let Some((page, _)) = due.filter(|_| !self.stopping) {
            boost.reclaim.page = page;
            boost.reclaim.segments = Vec::new();
            self.write_table();
        }
    }

    fn begin_freeing(&mut self) {
        let now = self.now;
        // In a cache of which all is drained, a change may wait for the very segment that is open.
        let wanted = self.stage == EngineStage::Drain || self.boost.as_ref().is_some_and(|boost| boost.space_wanted);
        let drained = wanted && self.is_drained();
        let Some(boost) = self.boost.as_mut().filter(|boost| boost.reclaim.is_idle()) else { return };
        if drained && !boost.space.is_unused() {
            boost.seal();
            boost.reclaim.worth_a_look = true;
        }
        let due = boost.space_wanted || drained || now >= boost.reclaim.last + PERIOD;
        let paused = boost.reclaim.pause_until.is_some_and(|until| now < until);
        if !boost.reclaim.worth_a_look || !due || paused || boost.drain.is_blocked(now) {
            return;
        }
        boost.reclaim.pause_until = None;
        let Some((page, segments)) = boost.space.reclaimable() else {
            boost.reclaim.worth_a_look = false;
            return;
        };
        boost.reclaim.page = page;
        boost.reclaim.segments = segments;
        let mut left = 0;
        for target in [Target::Backing, Target::Cache] {
            let skipped = match target {
                Target::Backing => planted(Bug::ReclaimWithoutBackingFlush),
                Target::Cache => planted(Bug::ReclaimWithoutCacheFlush),
            };
            left += u8::from(!skipped && self.flush_target(target, Waiter::Reclaim) != FlushRequest::Ready);
        }
        if let Some(boost) = self.boost.as_mut() {
            boost.reclaim.phase = ReclaimPhase::Flushing { left, failed: false };
        }
        if left == 0 {
            self.write_table();
        }
    }

    /// Nothing is dirty, nor about to be.
    pub(super) fn is_drained(&self) -> bool {
        self.boost.as_ref().is_some_and(|boost| {
            boost.space.dirty == 0
                && boost.queue.is_empty()
                && boost.batches_in_flight == 0
                && boost.merges_in_flight == 0
                && boost.drain.is_idle()
        })
    }

    pub(super) fn reclaim_flushed(&mut self, target: Target, result: Result<(), IoFailure>) {
        let Some(boost) = self.boost.as_mut() else { return };
        match boost.reclaim.phase {
            ReclaimPhase::Flushing { left, failed } => {
                let (left, failed) = (left - 1, failed || result.is_err());
                boost.reclaim.phase = ReclaimPhase::Flushing { left, failed };
                if left == 0 && failed {
                    boost.reclaim.phase = ReclaimPhase::Idle;
                    boost.reclaim.pause_until = Some(self.now + PERIOD);
                } else if left == 0 {
                    self.write_table();
                }
            }
            // The cycle ended with the caching volume if that has failed.
            ReclaimPhase::Settling(copy) if target == Target::Cache => self.table_settled(copy),
            ReclaimPhase::Settling(_) | ReclaimPhase::Writing(_) | ReclaimPhase::Idle => {}
        }
    }

    fn write_table(&mut self) {
        let Some(boost) = self.boost.as_mut() else { return };
        let sequence = &mut boost.table_sequences[boost.reclaim.page as usize];
        *sequence += 1;
        let (freed, page) = (&boost.reclaim.segments, boost.reclaim.page);
        let written = |number: &u32| boost.space.segments[*number as usize].indexed == Indexed::Written;
        let marked =
            boost.space.geometry.segments_of_page(page).filter(|number| written(number) && !freed.contains(number));
        boost.reclaim.marked = marked.collect();
        let first = match boost.superblock.layout {
            // Each version of the page has one copy, and the copies alternate.
            Layout::One => {
                if sequence.is_multiple_of(2) {
                    TableCopy::First
                } else {
                    TableCopy::Second
                }
            }
            Layout::Two => TableCopy::First,
        };
        self.write_table_copy(first);
    }

    fn write_table_copy(&mut self, copy: TableCopy) {
        let Some(boost) = self.boost.as_mut() else { return };
        boost.reclaim.phase = ReclaimPhase::Writing(copy);
        let page = boost.reclaim.page;
        let geometry = boost.space.geometry;
        let freed = &boost.reclaim.segments;
        let generation = |number: u32| {
            boost.space.segments[number as usize].generation
                + u32::from(freed.contains(&number) && !planted(Bug::GenerationNotRaised))
        };
        let marked = &boost.reclaim.marked;
        let indexed = |number: u32| match boost.space.segments[number as usize].indexed {
            Indexed::Marked => !freed.contains(&number),
            Indexed::Written => marked.binary_search(&number).is_ok(),
            Indexed::No => false,
        };
        let table = SegmentTable {
            layout: geometry.layout,
            page,
            sequence: boost.table_sequences[page as usize],
            epoch: boost.attach.epoch,
            generations: geometry.segments_of_page(page).map(generation).collect(),
            indexed: geometry.segments_of_page(page).map(indexed).collect(),
        };
        let id = self.pending.insert(Pending::ReclaimTable);
        self.cache.started(self.now, 0);
        let offset = geometry.table_offset(page, copy);
        self.effects.push_back(Effect::WriteTable { id, offset, page: Box::new(table) });
    }

    pub(super) fn reclaim_table_written(&mut self, result: Result<(), IoFailure>) {
        self.cache.ended(self.now, 0);
        self.cache.wrote(false);
        let Some(boost) = self.boost.as_mut() else { return };
        let ReclaimPhase::Writing(copy) = boost.reclaim.phase else { return };
        if result.is_err() {
            return self.cache_failing();
        }
        boost.reclaim.phase = ReclaimPhase::Settling(copy);
        if planted(Bug::TableNotFlushed) {
            return self.table_settled(copy);
        }
        // The page was just written, so it is never durable already.
        self.flush_target(Target::Cache, Waiter::Reclaim);
    }

    /// A copy of the page is durable. A segment is used again when both are: each alone must be enough for a recovery.
    fn table_settled(&mut self, copy: TableCopy) {
        let layout = self.boost.as_ref().map(|boost| boost.superblock.layout);
        if layout == Some(Layout::Two) && copy == TableCopy::First && !planted(Bug::SecondTableCopyForgotten) {
            self.write_table_copy(TableCopy::Second);
        } else {
            self.free_segments();
        }
    }

    fn free_segments(&mut self) {
        let Some(boost) = self.boost.as_mut() else { return };
        boost.checkpoint.marks_worth_a_look = true;
        for number in std::mem::take(&mut boost.reclaim.marked) {
            boost.space.segments[number as usize].indexed = Indexed::Marked;
        }
        let freed = std::mem::take(&mut boost.reclaim.segments);
        boost.reclaim.phase = ReclaimPhase::Idle;
        self.needs_pump = true;
        if freed.is_empty() {
            return;
        }
        for number in freed {
            let first = boost.space.location(number, 0);
            let held = first..first + boost.space.geometry.segment_blocks();
            let mut chunks = std::mem::take(&mut boost.space.segments[number as usize].chunks);
            chunks.sort_unstable();
            chunks.dedup();
            let super::Boost { index, .. } = boost;
            for chunk in &chunks {
                index.turn_to_copies(u64::from(*chunk), |extent| held.contains(&extent.location));
            }
            boost.space.segments[number as usize].chunks = chunks;
            boost.space.free(number);
        }
        boost.reclaim.last = self.now;
        boost.space_wanted = false;
        self.retry_waiting = true;
    }
}

#[cfg(debug_assertions)]
mod check {
    use super::super::port::{Port, Waiter};
    use super::{Reclaim, ReclaimPhase};

    impl Reclaim {
        /// Whether the phase waits for what is in flight: so many writes of the table, and flushes. A cache that fails forgets
        /// the cycle, and what was in flight of it ends later.
        pub fn check(&self, tables: u32, ports: [&Port; 2], failing: bool) -> Result<(), String> {
            let flushes = ports.map(|port| u8::from(port.flushes.is_awaited_by(Waiter::Reclaim)));
            let waits = match self.phase {
                ReclaimPhase::Idle => failing || tables == 0 && flushes == [0, 0],
                ReclaimPhase::Flushing { left, .. } => left > 0 && left == flushes[0] + flushes[1] && tables == 0,
                ReclaimPhase::Writing(_) => tables == 1 && flushes == [0, 0],
                ReclaimPhase::Settling(_) => tables == 0 && flushes == [0, 1],
            };
            if waits {
                return Ok(());
            }
            Err(format!("reclaiming is {:?} with {tables} writes and {flushes:?} flushes in flight", self.phase))
        }
    }
}
