//! Whether a boost pays, and with which size: what was learned of bursts, of the provider and of boosts in vain.

use std::time::Duration;

use surgetank_model::{Bytes, Instant};

use super::status::{Cause, Prediction};
use super::{Config, Controller};
use crate::bursts::Shape;
use crate::forecast::Stakes;
use crate::planted::{Bug, planted};
use crate::series::Likely;
use crate::worth::{Outcome, Terms};

/// Sizes that are compared at most.
const SIZES_MAX: u64 = 16;
/// Of a cache that was never used, so much is taken to be usable: the log has overhead.
pub(super) const USABLE: f64 = 0.97;
/// What boosts in vain have cost is to be paid off by so many boosts like the one that is expected.
const PAID_BY: f64 = 4.0;
/// A cache is kept for so many samples of calm at least: bursts have gaps.
const KEPT_SAMPLES: u32 = 5;
/// Share of what was saved so far that a wait in vain for a burst may cost, if it can be kept below.
const VAIN_MAX: f64 = 0.01;
/// Share of what the backing volume costs that pays for boosts in vain.
const PAID_OFF: f64 = 0.01;

/// Share of all that was spent so far that keeping a cache may cost without knowing what comes.
const BLIND: f64 = 0.01;
/// So long ago counts no more for what was spent so far than a third.
const REMEMBERED_S: f64 = 86_400.0;

/// What the device has cost lately, in AGBs: its volumes, and the time for which it was waited. What is risked is a share of it,
/// so being wrong has a bounded price.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    agbs: f64,
    at: Instant,
}

impl Account {
    pub fn new(now: Instant) -> Self {
        Self { agbs: 0.0, at: now }
    }

    /// Of a day, with what is older faded.
    pub fn total(&self, now: Instant, config: &Config) -> f64 {
        let (seconds, backing) = (now.since(self.at).as_secs_f64(), config.backing_agbs_per_s());
        let left = (-seconds / REMEMBERED_S).exp();
        self.agbs * left + backing * REMEMBERED_S * (1.0 - left)
    }

    pub fn add(&mut self, now: Instant, config: &Config, agbs: f64) {
        *self = Self { agbs: self.total(now, config) + agbs, at: now };
    }
}

/// What was lost by boosts that cost more than they saved, in AGBs. Time pays it off, and so do boosts that pay.
#[derive(Clone, Copy, Debug)]
pub(super) struct Debt {
    agbs: f64,
    at: Instant,
    /// Boosts in vain in a row.
    pub boosts: u32,
}

impl Debt {
    /// So much is left of it from the last run.
    pub fn new(now: Instant, agbs: f64) -> Self {
        Self { agbs, at: now, boosts: 0 }
    }

    /// What is left of it.
    pub fn left(&self, now: Instant, config: &Config) -> f64 {
        let paid_off_per_s = PAID_OFF * config.backing_agbs_per_s();
        (self.agbs - paid_off_per_s * now.since(self.at).as_secs_f64()).max(0.0)
    }

    /// When boosts of so much `gain` may pay off the rest of it.
    pub fn paid_off(&self, config: &Config, gain: f64) -> Instant {
        let rate = PAID_OFF * config.backing_agbs_per_s();
        let wait = Duration::try_from_secs_f64((self.agbs - PAID_BY * gain).max(0.0) / rate.max(f64::MIN_POSITIVE));
        wait.map_or(Instant::FAR, |wait| self.at + wait)
    }

    fn add(&mut self, now: Instant, config: &Config, loss: f64) {
        self.agbs = (self.left(now, config) + loss).max(0.0);
        self.at = now;
        self.boosts = if loss > 0.0 { self.boosts.saturating_add(1) } else { 0 };
    }
}

impl Controller {
    /// What boosts are judged by now.
    pub(super) fn terms(&self) -> Terms {
        let seconds = |time: Option<Duration>| time.unwrap_or_default().as_secs_f64();
        Terms {
            backing: self.meter.backing_rate(self.config.backing_bandwidth),
            shape: self.bursts.shape(),
            usable: self.usable,
            lead: seconds(self.forecast.lead()),
            end: seconds(self.ending),
            ..Terms::of(&self.config)
        }
    }

    /// Something that the next boost depends on was learned.
    pub(super) fn plan_next(&mut self) {
        if self.config.preset.when.worth {
            let terms = self.terms();
            // It is there when the burst begins, and was held for that time.
            let terms = Terms { lead: 0.0, end: terms.lead + terms.end, ..terms };
            let (size, outcome) = self.best_size(0, &terms);
            (self.next_size, self.next) = (size, outcome);
            let likely = self.bursts.likely(0);
            if let Some(rental) = &mut self.rental {
                rental.unfit = (outcome.gain - terms.expected(&likely, rental.size).gain).max(0.0);
            }
        }
    }

    /// The size that pays best for a burst that has written `so_far`, and what it comes to.
    fn best_size(&self, so_far: u64, terms: &Terms) -> (Bytes, Outcome) {
        let likely = self.bursts.likely(so_far);
        let of = |size: Bytes| (size, terms.expected(&likely, size));
        match self.config.fixed_size {
            Some(size) if self.bursts.is_known() => of(self.config.bounds().clamp(size)),
            Some(_) => of(self.config.bounds().clamp(self.config.initial_size)),
            None => {
                let sizes = sizes(terms, &likely, &self.config);
                terms.best(&likely, sizes).unwrap_or_else(|| of(self.next_size))
            }
        }
    }

    /// What a forecast is weighed by.
    pub(super) fn stakes(&self) -> Stakes {
        let terms = self.terms();
        Stakes {
            holding_per_s: terms.rent_per_s * self.next_size.as_gib(),
            lateness_per_s: self.value_of_lateness(),
            end_s: terms.end,
            vain_max: VAIN_MAX * self.saved_agbs,
        }
    }

    /// When an empty cache is not worth keeping any more, if the device stays calm; `None`: it is not calm.
    pub(super) fn kept_until(&self) -> Option<Instant> {
        let delay = self.config.inactivity_delay;
        let rental = self.rental.as_ref()?;
        if !self.config.preset.when.worth || rental.cause == Some(Cause::Request) {
            return self.meter.calm_after(delay);
        }
        let terms = self.terms();
        let rent = terms.rent_per_s * rental.size.as_gib();
        let sampling = self.forecast.sampling();
        // The next volume is as late as the forecast expects, or else by all that it takes.
        let late = self.value_of_lateness() * (terms.lead + sampling.as_secs_f64());
        let late = self.expected().map_or(late, |expected| expected.cost.min(late));
        let penalty = (late + rent * (terms.lead + terms.end) - rental.unfit).max(0.0);
        let calm = self.meter.calm_for(self.now).as_secs_f64();
        let blind = terms.delay.max(BLIND * self.account.total(self.now, &self.config) / rent);
        let keep = self.forecast.keep_for(calm, rent, penalty, (blind, terms.delay));
        let keep = Duration::try_from_secs_f64(keep).unwrap_or(Duration::MAX);
        // What is billed anyway may as well be kept.
        let billed = rental.started() + self.config.billing_minimum.saturating_sub(self.ending.unwrap_or_default());
        self.meter.calm_after(keep.max(KEPT_SAMPLES * sampling)).map(|until| until.max(billed))
    }

    fn value_of_lateness(&self) -> f64 {
        let terms = self.terms();
        terms.value_per_s * terms.saved_share()
    }

    /// The size for the present burst if a boost is expected to pay for itself, and for those in vain.
    ///
    /// # Errors
    /// Why not; for people.
    pub(super) fn worth_it(&self) -> Result<(Bytes, Outcome), String> {
        let (size, outcome) = self.best_size(self.bursts.written(), &self.terms());
        // Whoever says how large caches are wants them.
        if self.config.fixed_size.is_some() {
            return Ok((size, outcome));
        }
        if outcome.gain <= 0.0 && !planted(Bug::CostForgotten) {
            return Err(format!(
                "no caching volume is expected to pay for this burst: one of {size} costs {:.0} AGBs and saves {:.1} s",
                outcome.cost, outcome.saved_s
            ));
        }
        let debt = self.debt.left(self.now, &self.config);
        if PAID_BY * outcome.gain <= debt && !planted(Bug::CostForgotten) {
            return Err(format!(
                "the last {} boosts cost more than they saved: the next begins when a burst is worth {:.0} AGBs more than its \
                 caching volume costs, or later",
                self.debt.boosts,
                debt / PAID_BY
            ));
        }
        Ok((size, outcome))
    }

    pub(super) fn begin_if_worth_it(&mut self) -> Result<(), String> {
        let (size, outcome) = self.worth_it()?;
        self.affordable_with(size, 0)?;
        self.next_size = size;
        let written = Bytes::new(self.bursts.written());
        self.begin(Cause::Saturation { written }, Some(outcome.prediction()));
        Ok(())
    }

    /// When a cache that nobody needs any more stops to absorb, if the device stays calm; `None`: it is not calm. What is
    /// dirty drains beside the application until then, so the inactivity delay says when that is no use.
    pub(super) fn absorbs_until(&self) -> Option<Instant> {
        let kept = self.kept_until()?;
        let is_empty = self.observation.dirty_bytes == 0;
        let calm = self.meter.calm_after(self.config.inactivity_delay).filter(|_| !is_empty);
        Some(calm.map_or(kept, |calm| calm.max(kept)))
    }

    /// Nothing has fit on the caching volume for so long that draining it beside the burst is cheaper than to wait.
    pub(super) fn is_full_in_vain(&self) -> bool {
        let rate = self.meter.backing_rate(self.config.backing_bandwidth);
        let until = self.rental.as_ref().and_then(|rental| rental.full_until(rate));
        let asked = self.cause() == Some(Cause::Request);
        self.config.preset.when.worth
            && !asked
            && until.is_some_and(|until| until <= self.now)
            && !planted(Bug::FullForEver)
    }

    /// A boost has ended that cost and saved this.
    pub(super) fn settle_debt(&mut self, came_to: &Prediction) {
        self.saved_agbs += self.config.value_of_time * came_to.saved.0.as_secs_f64();
        let loss = came_to.cost_agbs as f64 - self.config.value_of_time * came_to.saved.0.as_secs_f64();
        let loss = if planted(Bug::DebtForgotten) { 0.0 } else { loss };
        self.debt.add(self.now, &self.config, loss);
    }
}

impl Terms {
    /// Those of a device of which nothing is known yet.
    pub(super) fn of(config: &Config) -> Self {
        Self {
            backing: config.backing_bandwidth.get() as f64,
            caching: config.caching_bandwidth.get() as f64,
            split: config.split,
            value_per_s: config.value_of_time,
            rent_per_s: config.caching_bandwidth.as_mib_s(),
            shape: Shape { peak: 1.0, gaps: 0.0 },
            usable: USABLE,
            lead: 0.0,
            delay: config.inactivity_delay.as_secs_f64(),
            end: 0.0,
            minimum: config.billing_minimum.as_secs_f64(),
        }
    }

    /// What stands for the first burst: what a cache of `size` absorbs, or a quarter of the largest that pays.
    pub(super) fn guess(&self, size: Bytes) -> u64 {
        let share = self.absorbed(1.0).max(f64::MIN_POSITIVE);
        (size.get() as f64 / share).min(self.largest() / 4.0) as u64
    }
}

impl Outcome {
    pub(super) fn prediction(&self) -> Prediction {
        Prediction::of(self.saved_s, self.cost)
    }
}

/// Multiples of the grain between those that fit the smallest and the largest of the likely bursts.
fn sizes(terms: &Terms, likely: &[Likely], config: &Config) -> Vec<Bytes> {
    let bounds = config.bounds();
    let missed = terms.backing * terms.lead;
    let needed = likely.iter().map(|(written, _)| terms.size_for((written - missed).max(0.0)).get());
    let (low, high) = needed.fold((u64::MAX, 0), |(low, high), size| (low.min(size), high.max(size)));
    let grain = bounds.grain.get().max(1);
    let (first, last) = (low / grain, high.div_ceil(grain));
    let step = last.saturating_sub(first).div_ceil(SIZES_MAX).max(1);
    let mut sizes: Vec<Bytes> = (first..=last)
        .step_by(usize::try_from(step).unwrap_or(usize::MAX))
        .chain([last])
        .map(|grains| bounds.clamp(Bytes::new(grains.saturating_mul(grain))))
        .collect();
    sizes.dedup();
    sizes
}
