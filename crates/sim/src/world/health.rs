//! A device becomes healthy: within a bounded time after the last fault or restart nothing fails or recovers any more, all
//! requests are answered, and nothing is lost that can be read.

use std::time::Duration;

use surgetank_cache::format::BLOCK;
use surgetank_cache::{EngineStage, Status};
use surgetank_model::Instant;

use crate::disk::Disk;
use crate::world::{Step, World};

/// Time for retries, probes, pauses after errors, and the drain.
const BOUND: Duration = Duration::from_secs(300);
/// The drain of a whole device takes at most so many of the slowest answers.
const ANSWERS: u32 = 1500;

/// Since when what is going on.
#[derive(Debug, Default)]
pub(super) struct Health {
    /// The last fault, or restart.
    pub(super) disturbed: Instant,
    /// The stage, and since when.
    stage: Option<(EngineStage, Instant)>,
}

impl World<'_> {
    /// A fault has begun or ended, or the daemon has started.
    pub(super) fn disturb(&mut self) {
        self.health.disturbed = self.now;
    }

    pub(super) fn check_health(&mut self, status: &Status) -> Step {
        let since = match self.health.stage {
            Some((stage, since)) if stage == status.stage => since,
            _ => {
                self.health.stage = Some((status.stage, self.now));
                return Ok(());
            }
        };
        if self.faulty || self.outages.is_any_passing() {
            self.disturb();
            return Ok(());
        }
        let patience = if self.vanished { self.scenario.patience } else { Duration::ZERO };
        let bound = BOUND + patience + self.scenario.backing_latency_max * ANSWERS;
        let due = |since: Instant| self.now > since.max(self.health.disturbed) + bound;
        match status.stage {
            EngineStage::Failing | EngineStage::Recovering if due(since) => {
                return Err(format!("still {:?} since {since}, though the last fault was long ago", status.stage));
            }
            EngineStage::Lost if due(since) => self.check_nothing_readable_is_lost()?,
            _ => {}
        }
        match self.outstanding.iter().find(|outstanding| due(outstanding.at)) {
            Some(outstanding) => Err(format!("{:?} is not answered since {}", outstanding.request, outstanding.at)),
            None => Ok(()),
        }
    }

    fn check_nothing_readable_is_lost(&self) -> Step {
        let disk = self.kept.as_ref().or(self.disks.cache.as_ref());
        let Some(disk) = disk.filter(|disk| !self.accepting && !self.deceived && !disk.is_out()) else { return Ok(()) };
        match self.readable_loss(disk) {
            Some(block) => Err(format!("block {block} stays lost, though the caching volume can be read")),
            None => Ok(()),
        }
    }

    /// A block that is lost and could be read.
    pub(super) fn readable_loss(&self, disk: &Disk) -> Option<u64> {
        let blocks = self.engine.lost_ranges(usize::MAX).into_iter().map(|(offset, _)| offset / u64::from(BLOCK));
        blocks.into_iter().find(|&block| self.books.is_readable(block, disk) && !self.books.may_be_unknown(disk))
    }
}
