//! The caching volume grows while it is in use.
//!
//! pages of the segment table for the new part, both copies → flush → a superblock that names the part → flush → the other
//! superblock → flush → records may go there. A crash leaves the old division, with nothing behind its end, or the new one,
//! whose new segments are empty until both superblocks name them.

use surgetank_model::Instant;

use super::{Boost, Engine, EngineStage, Event, Pending, Rejected, Waiter};
use crate::effect::{Effect, IoFailure, Target};
use crate::format::{Geometry, SegmentTable, TableCopy};
use crate::planted::{Bug, planted};

/// How far a growth has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Idle,
    /// The pages of the new part are being written; so many writes have not ended.
    Writing { left: u32, failed: bool },
    /// They are made durable.
    Settling,
    /// So many superblocks have yet to name the part, durably.
    Marking { left: u8 },
}

/// The growth of the caching volume that is under way.
#[derive(Debug, Default)]
pub(super) struct Growth {
    phase: Phase,
    /// The division that it leads to, and the bytes of the volume.
    to: Option<(Geometry, u64)>,
}

impl Growth {
    pub(super) fn is_idle(&self) -> bool {
        self.phase == Phase::Idle
    }

    /// The division that the next superblock is to name.
    pub(super) fn marks(&self) -> Option<Geometry> {
        self.to.map(|(geometry, _)| geometry).filter(|_| matches!(self.phase, Phase::Marking { .. }))
    }
}

impl Engine {
    /// The caching volume has grown to `size` bytes: the log takes what is new in use, also what it grew by before a crash.
    /// Ends in `Event::CacheGrown` or `CacheGrowFailed`, or with the cache if that fails; at once if that is no segment more.
    ///
    /// # Errors
    /// If there is no cache in use or a growth is under way, or if the log cannot grow: too often, or of the first release's
    /// layout.
    pub fn grow_cache(&mut self, now: Instant, size: u64) -> Result<(), Rejected> {
        self.pass_to(now);
        let stage = self.stage;
        let works = matches!(stage, EngineStage::Absorb | EngineStage::Drain) && !self.stopping;
        let Some(boost) = self.boost.as_mut().filter(|boost| works && boost.growth.is_idle()) else {
            return Err(Rejected(format!("the log on the caching volume cannot grow now, in stage {stage:?}")));
        };
        let (geometry, attached) = (boost.space.geometry, size <= boost.attach.cache_size);
        let forgotten = attached && planted(Bug::UnusedPartForgotten);
        let Some(grown) = geometry.grown(size).filter(|_| !forgotten) else {
            if attached || geometry.can_grow() {
                self.events.push_back(Event::CacheGrown { cache_bytes: boost.space.usable_bytes() });
                return Ok(());
            }
            return Err(Rejected(format!(
                "the log on the caching volume cannot grow to {size} bytes: it has grown as often as it can"
            )));
        };
        boost.growth.to = Some((grown, size));
        self.needs_pump = true;
        self.write_new_pages(geometry, grown);
        Ok(())
    }

    fn write_new_pages(&mut self, old: Geometry, grown: Geometry) {
        let Some(boost) = self.boost.as_mut() else { return };
        let pages: Vec<SegmentTable> = (old.table_pages()..grown.table_pages())
            .map(|page| SegmentTable {
                layout: grown.layout,
                page,
                sequence: 1,
                epoch: boost.attach.epoch,
                generations: vec![1; grown.segments_of_page(page).len()],
                indexed: vec![false; grown.segments_of_page(page).len()],
            })
            .collect();
        boost.growth.phase = Phase::Writing { left: 2 * pages.len() as u32, failed: false };
        for page in pages {
            for copy in TableCopy::ALL {
                let id = self.pending.insert(Pending::Growth);
                self.cache.started(self.now, 0);
                let offset = grown.table_offset(page.page, copy);
                self.effects.push_back(Effect::WriteTable { id, offset, page: Box::new(page.clone()) });
            }
        }
    }

    /// A page of the new part is written, or not: then the old division stays.
    pub(super) fn growth_written(&mut self, result: Result<(), IoFailure>) {
        self.cache.ended(self.now, 0);
        self.cache.wrote(false);
        let Some(boost) = self.boost.as_mut() else { return };
        let Phase::Writing { left, failed } = &mut boost.growth.phase else { return };
        *left -= 1;
        *failed |= result.is_err();
        match (*left, *failed) {
            (0, true) => self.abandon_growth(),
            (0, false) if planted(Bug::GrowthNotFlushed) => self.begin_marking_growth(),
            (0, false) => {
                boost.growth.phase = Phase::Settling;
                // They were just written, so they are never durable already.
                self.flush_target(Target::Cache, Waiter::Growth);
            }
            _ => {}
        }
    }

    pub(super) fn growth_flushed(&mut self, result: Result<(), IoFailure>) {
        let settles = self.boost.as_ref().is_some_and(|boost| boost.growth.phase == Phase::Settling);
        if settles && result.is_ok() {
            self.begin_marking_growth();
        }
    }

    fn begin_marking_growth(&mut self) {
        let Some(boost) = self.boost.as_mut() else { return };
        boost.growth.phase = Phase::Marking { left: if planted(Bug::GrowthMarkedOnce) { 1 } else { 2 } };
        self.needs_pump = true;
        if planted(Bug::GrownBeforeMarked) {
            boost.grow();
            self.retry_waiting = true;
        }
    }

    /// A superblock is durable, perhaps one that names the new part: it may have been on its way before.
    pub(super) fn growth_marked(&mut self) {
        let Some(boost) = self.boost.as_mut() else { return };
        let names = boost.growth.marks() == Some(boost.superblock.geometry());
        let Phase::Marking { left } = &mut boost.growth.phase else { return };
        if !names {
            return;
        }
        *left -= 1;
        if *left == 0 {
            boost.grow();
            boost.growth = Growth::default();
            let cache_bytes = boost.space.usable_bytes();
            self.events.push_back(Event::CacheGrown { cache_bytes });
            self.retry_waiting = true;
            self.needs_pump = true;
        }
    }

    /// The log stays as it is, or the next recovery finds it grown.
    pub(super) fn abandon_growth(&mut self) {
        let Some(boost) = self.boost.as_mut().filter(|boost| !boost.growth.is_idle()) else { return };
        boost.growth = Growth::default();
        self.needs_pump = true;
        self.events.push_back(Event::CacheGrowFailed);
    }
}

impl Boost {
    /// Records may go to the new part.
    fn grow(&mut self) {
        let Some((geometry, size)) = self.growth.to.filter(|(to, _)| *to != self.space.geometry) else { return };
        self.attach.cache_size = size;
        self.table_sequences.resize(geometry.table_pages() as usize, 1);
        self.space.grow(geometry);
        self.checkpoint.list_worth_a_look = true;
    }
}

#[cfg(debug_assertions)]
mod check {
    use super::super::check::{equal, holds};
    use super::super::port::{Port, Waiter};
    use super::super::{Boost, EngineStage};
    use super::Phase;

    impl Boost {
        /// Whether a growth waits for what is in flight, and everything agrees on how the volume is divided.
        pub fn check_growth(&self, writes: u32, cache: &Port, stage: EngineStage) -> Result<(), String> {
            let (space, superblock) = (self.space.geometry, self.superblock.geometry());
            let phase = self.growth.phase;
            let waits = match phase {
                // A cache that fails forgets its growth, and what was in flight of it ends later.
                Phase::Idle => {
                    stage == EngineStage::Failing || writes == 0 && !cache.flushes.is_awaited_by(Waiter::Growth)
                }
                Phase::Writing { left, .. } => {
                    left > 0 && left == writes && !cache.flushes.is_awaited_by(Waiter::Growth)
                }
                Phase::Settling => writes == 0 && cache.flushes.is_awaited_by(Waiter::Growth),
                Phase::Marking { left } => left > 0 && writes == 0 && !cache.flushes.is_awaited_by(Waiter::Growth),
            };
            if !waits {
                return Err(format!("a growth is {phase:?} with {writes} writes in flight"));
            }
            holds("only a cache in use grows", phase == Phase::Idle || stage != EngineStage::Failing)?;
            holds("a growth leads somewhere", (phase == Phase::Idle) == self.growth.to.is_none())?;
            equal("segments of the log", self.space.segments.len(), space.segments as usize)?;
            equal("pages of the segment table", self.table_sequences.len(), space.table_pages() as usize)?;
            let named = superblock == space || self.growth.to.is_some_and(|(to, _)| superblock == to);
            // What a failed cache was about to be is in its superblock; nothing goes there any more.
            holds("the superblock divides the volume as the log does", named || stage == EngineStage::Failing)
        }
    }
}
