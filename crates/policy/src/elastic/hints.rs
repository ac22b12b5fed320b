//! What users and applications say: a burst comes, it is over, the volume is to go.

use std::time::Duration;

use surgetank_model::{Bytes, Instant};

use super::Controller;
use super::lifecycle::{Stage, Wish, Work};
use super::status::{Cause, HintRefused};
use crate::planted::{Bug, planted};
use crate::worth::Terms;

/// What is known of a burst to come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BurstHint {
    /// Bytes that it writes; `None`: as bursts did before.
    pub size: Option<Bytes>,
    /// From now until it begins.
    pub starts_in: Duration,
}

/// A burst that somebody announced, and whose boost has not begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Announced {
    /// When the boost is to begin, so that the volume absorbs when the burst starts.
    pub boost: Instant,
    burst: Instant,
    size: Option<Bytes>,
}

impl Controller {
    /// Boosts for a burst that is announced, or absorbs again (`surgetank boost`): as late as the time that attaching has taken
    /// allows, or as long as it may take where that is not known. Neither the threshold nor a back-off holds it up; the budget
    /// does. It ends as every boost: when utilization has been below the threshold for the inactivity delay, counted from when
    /// the burst should have begun. One burst is remembered, the last that was announced.
    ///
    /// # Errors
    /// Why it cannot begin, if that should be now.
    pub fn hint_burst(&mut self, now: Instant, hint: BurstHint) -> Result<(), HintRefused> {
        self.now = self.now.max(now);
        // What is not known yet takes no longer than the provider is waited for.
        let longest = || self.config.create_timeout.saturating_add(self.config.attach_timeout);
        let lead = self.forecast.lead().unwrap_or_else(longest).saturating_add(self.meter.interval.length);
        let boost = self.now + hint.starts_in.saturating_sub(lead);
        let announced = Announced { boost, burst: self.now + hint.starts_in, size: hint.size };
        let answer = if boost > self.now {
            self.announced = Some(announced);
            Ok(())
        } else {
            self.boost_for(announced)
        };
        self.checked();
        answer
    }

    /// Boosts now, for a burst of which nothing more is known.
    ///
    /// # Errors
    /// As [`Controller::hint_burst`].
    pub fn hint_boost(&mut self, now: Instant) -> Result<(), HintRefused> {
        self.hint_burst(now, BurstHint::default())
    }

    /// Ends the boost now (`surgetank drain`): drains with priority, then releases, detaches and deletes. No other
    /// boost starts before traffic has been below the threshold once, and none for a burst that was announced. Nothing happens
    /// without a boost.
    pub fn hint_drain(&mut self, now: Instant) {
        self.now = self.now.max(now);
        self.held = self.meter.hot;
        self.wish = Wish::None;
        self.announced = self.announced.filter(|_| planted(Bug::AnnouncementOutlivesDrain));
        self.end_requested();
        self.checked();
    }

    /// As [`Controller::hint_drain`], and what waits for another try is tried at once (`surgetank detach`).
    pub fn hint_detach(&mut self, now: Instant) {
        self.hint_drain(now);
        if let Work::Retry(_) = self.work {
            self.work = Work::Retry(self.now);
            self.decide();
        }
        self.checked();
    }

    /// Begins the boost of a burst that was announced when it is time.
    pub(super) fn follow_announcement(&mut self) {
        let Some(announced) = self.announced.filter(|announced| announced.boost <= self.now) else { return };
        let late = announced.burst + self.config.inactivity_delay <= self.now;
        if matches!(self.stage, Stage::Detach | Stage::Delete) && !late {
            // The last volume is in the way for a moment.
            return;
        }
        self.announced = None;
        if let Err(HintRefused(why)) = self.boost_for(announced) {
            self.refused = Some(why);
        }
    }

    fn boost_for(&mut self, Announced { burst, size, .. }: Announced) -> Result<(), HintRefused> {
        match self.stage {
            Stage::Idle => {
                let terms = Terms { lead: 0.0, ..self.terms() };
                let size = size.map(|written| {
                    let written = written.get() as f64;
                    let cache = self.config.bounds().clamp(terms.size_for(written));
                    (cache, terms.outcome(written, cache).prediction(&self.config))
                });
                let (cache, predicted) = size.map_or((self.next_size, None), |(cache, came)| (cache, Some(came)));
                if !planted(Bug::AnnouncementIsFree) {
                    self.affordable_with(cache, 0).map_err(HintRefused)?;
                }
                self.next_size = cache;
                self.held = false;
                self.wish = Wish::Boost;
                self.begin(Cause::Request, predicted);
            }
            Stage::Create | Stage::Attach | Stage::Adopt => self.wish = Wish::Boost,
            Stage::Boost | Stage::Grow | Stage::Absorb => self.wish = Wish::None,
            Stage::Release if self.overtaken => self.wish = Wish::None,
            Stage::Drain | Stage::Release if !self.degraded && self.may_absorb() => {
                self.affordable(self.dirty_soon()).map_err(HintRefused)?;
                self.held = false;
                self.absorb_again();
            }
            Stage::Drain | Stage::Release => {
                return Err(HintRefused(
                    "the caching volume is being released after a failure: try again when it is gone".to_owned(),
                ));
            }
            Stage::Detach | Stage::Delete => {
                return Err(HintRefused(
                    "the last caching volume is being detached: try again when it is gone".to_owned(),
                ));
            }
        }
        if burst > self.now
            && let Some(rental) = &mut self.rental
        {
            rental.await_burst(burst + self.config.inactivity_delay);
        }
        self.meter.restart_calm(self.now);
        Ok(())
    }
}
