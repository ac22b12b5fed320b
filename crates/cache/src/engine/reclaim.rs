//! Reclaiming: making segments reusable, durably.
//!
//! flush backing and cache → write the page of the segment table with higher generations → flush cache → free.

use std::time::Duration;

use surgetank_model::Instant;

use super::{Engine, FlushRequest, Pending, Stage, Waiter};
use crate::effect::{Effect, IoFailure, Target};
use crate::format::{SEGMENTS_PER_PAGE, SegmentTable};
use crate::planted::{Bug, planted};

/// How often segments are reclaimed while nobody waits for room.
const PERIOD: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    /// Both volumes are made durable; so many have not answered.
    Flushing {
        left: u8,
        failed: bool,
    },
    /// The page is being written.
    Writing,
    /// The page is made durable.
    Settling,
}

/// The state of the reclaim cycle.
#[derive(Debug)]
pub(super) struct Reclaim {
    phase: Phase,
    page: u32,
    segments: Vec<u32>,
    last: Instant,
    /// A volume did not flush: not before this is it asked again.
    pause_until: Option<Instant>,
    /// Something may have become reclaimable.
    pub worth_a_look: bool,
}

impl Reclaim {
    pub(super) fn new(now: Instant) -> Self {
        let segments = Vec::new();
        Self { phase: Phase::Idle, page: 0, segments, last: now, pause_until: None, worth_a_look: false }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// The segments that are being freed: what was drained from them is durable.
    pub(super) fn freeing(&self) -> &[u32] {
        match self.phase {
            Phase::Writing | Phase::Settling => &self.segments,
            Phase::Idle | Phase::Flushing { .. } => &[],
        }
    }

    /// The backing volume did not flush: segments that were to be freed have something dirty again.
    pub(super) fn abandon(&mut self) {
        if let Phase::Flushing { failed, .. } = &mut self.phase {
            *failed = true;
        }
    }
}

impl Engine {
    pub(super) fn reclaim_deadline(&self) -> Option<Instant> {
        let boost = self.boost.as_ref().filter(|_| matches!(self.stage, Stage::Absorb | Stage::Drain))?;
        let waits = boost.reclaim.worth_a_look && boost.reclaim.is_idle();
        let due = boost.reclaim.pause_until.unwrap_or(boost.reclaim.last + PERIOD);
        (waits && due > self.now).then_some(due)
    }

    pub(super) fn pump_reclaim(&mut self) {
        if !matches!(self.stage, Stage::Absorb | Stage::Drain) {
            return;
        }
        let now = self.now;
        // In a cache of which all is drained, a change may wait for the very segment that is open.
        let wanted = self.stage == Stage::Drain || self.boost.as_ref().is_some_and(|boost| boost.space_wanted);
        let drained = wanted && self.is_drained();
        let Some(boost) = self.boost.as_mut().filter(|boost| boost.reclaim.is_idle()) else { return };
        if drained && !boost.space.is_unused() {
            boost.space.seal();
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
            boost.reclaim.phase = Phase::Flushing { left, failed: false };
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
            Phase::Flushing { left, failed } => {
                let (left, failed) = (left - 1, failed || result.is_err());
                boost.reclaim.phase = Phase::Flushing { left, failed };
                if left == 0 && failed {
                    boost.reclaim.phase = Phase::Idle;
                    boost.reclaim.pause_until = Some(self.now + PERIOD);
                } else if left == 0 {
                    self.write_table();
                }
            }
            Phase::Settling if target == Target::Cache => match result {
                Ok(()) => self.free_segments(),
                Err(_) => boost.reclaim.phase = Phase::Idle,
            },
            Phase::Settling | Phase::Writing | Phase::Idle => {}
        }
    }

    fn write_table(&mut self) {
        let Some(boost) = self.boost.as_mut() else { return };
        boost.reclaim.phase = Phase::Writing;
        let page = boost.reclaim.page;
        boost.table_sequences[page as usize] += 1;
        let first = page * SEGMENTS_PER_PAGE;
        let end = (first + SEGMENTS_PER_PAGE).min(boost.space.geometry.segments);
        let freed = &boost.reclaim.segments;
        let generation = |number: u32| {
            boost.space.segments[number as usize].generation
                + u32::from(freed.contains(&number) && !planted(Bug::GenerationNotRaised))
        };
        let table = SegmentTable {
            page,
            sequence: boost.table_sequences[page as usize],
            epoch: boost.attach.epoch,
            generations: (first..end).map(generation).collect(),
        };
        let id = self.pending.insert(Pending::ReclaimTable);
        self.cache.started(self.now, 0);
        self.effects.push_back(Effect::WriteTable { id, offset: table.offset(), page: Box::new(table) });
    }

    pub(super) fn reclaim_table_written(&mut self, result: Result<(), IoFailure>) {
        self.cache.ended(self.now, 0);
        self.cache.wrote(false);
        let Some(boost) = self.boost.as_mut().filter(|boost| boost.reclaim.phase == Phase::Writing) else { return };
        if result.is_err() {
            boost.reclaim.phase = Phase::Idle;
            self.cache_failing();
            return;
        }
        boost.reclaim.phase = Phase::Settling;
        if planted(Bug::TableNotFlushed) {
            return self.free_segments();
        }
        // The page was just written, so it is never durable already.
        self.flush_target(Target::Cache, Waiter::Reclaim);
    }

    fn free_segments(&mut self) {
        let Some(boost) = self.boost.as_mut() else { return };
        for number in std::mem::take(&mut boost.reclaim.segments) {
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
        boost.reclaim.phase = Phase::Idle;
        boost.reclaim.last = self.now;
        boost.space_wanted = false;
        self.retry_waiting = true;
        self.stirred = true;
    }
}
