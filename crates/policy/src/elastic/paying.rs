//! What a budget allows: to begin a boost, to go on with it, and to let rewriting prolong its drain. A boost that begins, or grows, needs room as well
//! where boosts and read caches share.

use std::time::Duration;

use surgetank_model::Bytes;

use super::Controller;
use super::drains::Way;
use super::lifecycle::{Stage, Work};
use crate::planted::{Bug, planted};
use crate::step::Step;

/// Why an application's writes take long, for people.
const WRITES_WAIT: &str =
    "the boost ends for the budget's sake, and writes over what is not drained yet wait until it is";

impl Controller {
    /// What may be dirty at the next observation: until then the cache may take what its bandwidth allows.
    pub(super) fn dirty_soon(&self) -> u64 {
        let (dirty, size) = (self.observation.dirty_bytes, self.rental.as_ref().map_or(0, |rental| rental.size.get()));
        if planted(Bug::NextIntervalForgotten) {
            return dirty;
        }
        let more = self.config.caching_bandwidth.get() as f64 * self.meter.interval.length.as_secs_f64();
        dirty.saturating_add(more as u64).min(size.max(dirty))
    }

    /// Whether the budget allows to hold a volume until a full cache at the start, or `dirty` bytes during a boost, are
    /// drained while the application rewrites as it did lately, and the volume is gone.
    pub(super) fn affordable(&self, dirty: u64) -> Result<(), String> {
        self.affordable_with(self.next_size, dirty)
    }

    /// The same, if a boost were to begin with a caching volume of `size`.
    pub(super) fn affordable_with(&self, size: Bytes, dirty: u64) -> Result<(), String> {
        if self.rental.is_none() {
            self.has_headroom(size)?;
        }
        if self.ledger.is_unlimited() {
            return Ok(());
        }
        let backing = self.config.backing_bandwidth;
        let (size, drain) = match &self.rental {
            Some(rental) => (rental.size, self.drains.time_to_drain_at_ease(self.now, dirty, backing)),
            // A boost that must end before its cache was full would be a waste.
            None if planted(Bug::StartIsFree) => return Ok(()),
            None => (size, self.drains.time_to_drain(self.now, size.get(), backing)),
        };
        self.ledger.fits(self.now, size, self.and_gone(drain))
    }

    /// The same for the caching volume that is there, if it were to grow to `size`.
    pub(super) fn affordable_grown(&self, size: Bytes) -> Result<(), String> {
        self.has_headroom(size)?;
        if self.ledger.is_unlimited() || planted(Bug::GrowthIsFree) {
            return Ok(());
        }
        let backing = self.config.backing_bandwidth;
        // The budget is asked again when it has grown, and it may be full by then.
        let full = self.dirty_soon().max(self.rental.as_ref().map_or(0, |rental| rental.usable));
        let drain = self.drains.time_to_drain(self.now, full, backing);
        self.ledger.fits(self.now, size, self.and_gone(drain) + self.config.create_timeout)
    }

    /// Whether the budget allows to let rewriting prolong the drain until the next observation, and to finish it from then
    /// on. Finished when this says no for the first time, it is paid for.
    fn may_be_rewritten(&self) -> Result<(), String> {
        let Some(rental) = self.rental.as_ref().filter(|_| !self.ledger.is_unlimited()) else { return Ok(()) };
        let mut drain = self.drains.time_to_finish(self.now, self.dirty_soon(), self.config.backing_bandwidth);
        if planted(Bug::FinishIsLate) {
            drain = Duration::ZERO;
        }
        self.ledger.fits(self.now, rental.size, self.and_gone(drain))
    }

    /// The time of a drain, until the next observation, and for deleting the volume.
    fn and_gone(&self, drain: Duration) -> Duration {
        let reserve = if planted(Bug::ReserveForgotten) { Duration::ZERO } else { self.config.budget_reserve };
        drain + reserve + self.meter.interval.length
    }

    /// How the present drain goes; `None`: there is none.
    pub(super) fn draining(&self) -> Option<Way> {
        let rental = self.rental.as_ref().filter(|_| self.stage == Stage::Drain && !self.degraded)?;
        Some(if rental.finishing { Way::Finish } else { Way::Plain })
    }

    /// Lets changes over what is dirty wait, if the budget does not allow another sampling interval without that.
    /// Answers whether it just began.
    pub(super) fn finishes(&mut self) -> bool {
        let Err(reason) = self.may_be_rewritten() else { return false };
        if planted(Bug::BudgetIgnoresRewrites) {
            return false;
        }
        let Some(rental) = self.rental.as_mut().filter(|rental| !rental.finishing) else { return false };
        rental.finishing = true;
        self.reason = Some(format!("{WRITES_WAIT}: {reason}"));
        true
    }

    pub(super) fn decide_finish(&mut self) {
        // A drain that is asked for is answered at once; something may become dirty after a release was asked for.
        let may = match self.stage {
            Stage::Drain => !matches!(self.work, Work::Outstanding(_)),
            _ => self.observation.dirty_bytes > 0 && self.overtaking.is_none() && !self.degraded,
        };
        if !may || !self.finishes() {
            return;
        }
        match (self.stage, self.work) {
            (Stage::Release, _) => self.overtaking = Some(self.push(Step::Finish)),
            // The step that is due will say so.
            (_, Work::Due) => {}
            _ => self.enter(Stage::Drain),
        }
    }
}
