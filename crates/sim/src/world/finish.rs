//! A drain that is to be finished is not prolonged by what the application rewrites.

use surgetank_cache::{CacheMode, EngineStage};

use crate::world::{Expect, Outstanding, Step, World};

/// By how much what is dirty may still grow.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finish {
    /// What was dirty at the last event.
    dirty: u64,
    /// Bytes of changes that may have been on their way to the log when it was asked for.
    growth_left: u64,
}

impl World<'_> {
    pub(super) fn set_mode(&mut self, mode: CacheMode) {
        self.engine.set_mode(self.now, mode);
        let status = self.engine.status();
        if mode != CacheMode::Finish || status.stage != EngineStage::Drain {
            self.finish = None;
        } else if self.finish.is_none() {
            let changes = self.outstanding.iter().filter(|request| matches!(request.expect, Expect::Write(_)));
            // What is on its way counts already, and again when it has arrived and what it covers was drained meanwhile.
            let blocks = |change: &Outstanding| 2 * (change.request.length.next_multiple_of(4096) + 4096);
            self.finish = Some(Finish { dirty: status.dirty_bytes, growth_left: changes.map(blocks).sum() });
            self.report.finishes += 1;
        }
    }

    pub(super) fn check_finish(&mut self) -> Step {
        let faulty = self.faulty_lately();
        let Some(finish) = &mut self.finish else { return Ok(()) };
        let status = self.engine.status();
        let growth = status.dirty_bytes.saturating_sub(finish.dirty);
        finish.dirty = status.dirty_bytes;
        // A volume that fails may make anything dirty again.
        if !matches!(status.stage, EngineStage::Drain | EngineStage::Releasing) || faulty {
            self.finish = None;
            return Ok(());
        }
        let Some(left) = finish.growth_left.checked_sub(growth) else {
            return Err("what is dirty grows although the drain is to be finished".into());
        };
        finish.growth_left = left;
        Ok(())
    }
}
