//! How long samples may be left out: for simulations, which know that traffic stays as it is.

use surgetank_model::Instant;

use super::Controller;
use super::lifecycle::{Stage, Work};
use super::rental::Rental;

/// Samples that decide nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steady {
    /// From this moment on they may. [`Instant::FAR`]: never.
    pub until: Instant,
    /// The length of the last sampling interval before counts: so the last two samples before are needed, and not only the
    /// last at or before that moment.
    pub counts_interval: bool,
}

impl Controller {
    /// For how long samples decide nothing while the device goes on as the last sample saw it: the same rates, dirty data
    /// that neither begin nor end, the same cache, no answers, no hints. All but the last of them may then be left out; but
    /// a [`Controller::next_deadline`] ends it as well. `None`: the next sample may decide something.
    #[must_use]
    pub fn steady(&self) -> Option<Steady> {
        let (config, hot) = (&self.config, self.meter.hot);
        let rate = self.meter.backing_rate(config.backing_bandwidth);
        // Without an inactivity delay the forecast takes every sample above the threshold for a burst of its own.
        if (hot && config.inactivity_delay.is_zero())
            || !self.meter.is_clear()
            || self.observation.cache_failed
            // For how long the device is waited for counts when a step is answered.
            || (config.preset.when.worth && self.stage != Stage::Boost && self.meter.interval.is_saturated())
            // How long a cache is kept depends on how long it has been kept, and on what it has saved.
            || self.rental.as_ref().is_some_and(|rental| {
                rental.is_dropped()
                    || (rental.adopted.is_some()
                        && ((config.preset.when.worth && self.stage == Stage::Boost)
                            || !rental.is_additive(&self.meter.interval, rate)))
            })
        {
            return None;
        }
        let unlimited = self.ledger.is_unlimited();
        let expected = self.rental.as_ref().and_then(Rental::expects_until);
        let steady = match (self.stage, self.work) {
            // How much a burst has written counts, up to the sample that decides.
            (Stage::Idle, _) if hot && config.preset.when.worth => self.held,
            (Stage::Idle, _) if !hot && config.preset.when.worth && self.meter.is_used() => false,
            (Stage::Idle, _) if hot => self.held || self.earliest_start().is_some_and(|start| start > self.now),
            // Later than this, what the budget did not allow is asked for with every sample.
            (Stage::Idle, _) => self.expected().is_none_or(|expected| expected.start > self.now),
            (Stage::Boost, _) => unlimited,
            (Stage::Attach, Work::Retry(_)) => unlimited && self.wanted() && !self.is_trying(),
            (Stage::Drain, Work::Settled) if self.observation.dirty_bytes == 0 => false,
            (Stage::Drain, Work::Settled | Work::Retry(_))
            | (Stage::Release, Work::Outstanding(_) | Work::Retry(_)) => unlimited && (!hot || !self.hot_again()),
            // Nothing but the answer to a step goes on from here.
            _ => true,
        };
        let calm = match (self.stage, self.work) {
            (Stage::Boost, _) | (Stage::Attach, Work::Retry(_)) => self.absorbs_until(),
            _ => None,
        };
        let burst = self.bursts.ends_at(config.inactivity_delay).filter(|_| !hot);
        let until = [expected.or(calm), burst].into_iter().flatten().min();
        // A drain may end exactly at a sample, and the interval before it is then one of an empty cache.
        let drains = config.preset.when.worth
            && self.observation.dirty_bytes > 0
            && self.rental.as_ref().is_some_and(|rental| rental.adopted.is_some());
        // The forecast learns it from what is above the threshold, and a budget pays for another one.
        let counts_interval = hot || !unlimited || drains;
        steady.then(|| Steady { until: until.unwrap_or(Instant::FAR), counts_interval })
    }
}
