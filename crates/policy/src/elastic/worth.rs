//! Whether a boost pays, and with which size: what was learned of bursts, of the provider and of boosts in vain.

use std::time::Duration;

use surgetank_model::units::GIB;
use surgetank_model::{Bytes, Instant};

use super::rental::Rental;
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

/// Share of all that was spent so far that may be lost by not knowing what comes, or what a cache saves.
const RISKED: f64 = 0.01;
/// What is tried can be kept for so many inactivity delays.
const TRIED_DELAYS: f64 = 20.0;
/// So long ago counts no more for what was spent so far than a third.
const REMEMBERED_S: f64 = 86_400.0;

/// What the device has cost lately, in AGBs: its volumes, and the time for which it was waited. What is risked is a share of it,
/// so being wrong has a bounded price.
#[derive(Clone, Copy, Debug)]
pub(super) struct Account {
    agbs: f64,
    /// Of it, the time for which it was waited.
    waited: f64,
    at: Instant,
}

impl Account {
    pub fn new(now: Instant) -> Self {
        Self { agbs: 0.0, waited: 0.0, at: now }
    }

    /// Of a day, with what is older faded.
    pub fn total(&self, now: Instant, config: &Config) -> f64 {
        let (seconds, backing) = (now.since(self.at).as_secs_f64(), config.backing_agbs_per_s());
        let left = (-seconds / REMEMBERED_S).exp();
        self.agbs * left + backing * REMEMBERED_S * (1.0 - left)
    }

    /// What of it was waited for.
    pub fn waited(&self, now: Instant) -> f64 {
        self.waited * (-now.since(self.at).as_secs_f64() / REMEMBERED_S).exp()
    }

    pub fn rented(&mut self, now: Instant, config: &Config, agbs: f64) {
        *self = Self { agbs: self.total(now, config) + agbs, waited: self.waited(now), at: now };
    }

    pub fn waits(&mut self, now: Instant, config: &Config, time: Duration) {
        let agbs = config.value_of_time * time.as_secs_f64();
        *self = Self { agbs: self.total(now, config) + agbs, waited: self.waited(now) + agbs, at: now };
    }
}

/// So many seconds of a faultless effect stand for what is not known of it yet.
const EFFECT_UNKNOWN_S: f64 = 10.0;
/// The weight of a boost's effect to that of the next one.
const EFFECT_FADING: f64 = 0.85;

/// What boosts save and cost, relative to the arithmetic. A load that does not wait for its device brings later what is
/// served earlier; bursts shorter than a sample are over before they are noticed; one that leaves the backing volume no time to
/// drain holds a cache for long.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Effect {
    saved_s: f64,
    /// If all that was absorbed had been waiting from the start.
    most_s: f64,
    /// AGBs while they were in use, and as they were expected.
    cost: f64,
    expected_cost: f64,
}

impl Effect {
    /// Share of the time that a cache can save, from 0 to 1.
    fn saved(&self) -> f64 {
        ((self.saved_s + EFFECT_UNKNOWN_S) / (self.most_s + EFFECT_UNKNOWN_S)).clamp(0.0, 1.0)
    }

    /// Cost ÷ what is expected, at least 1.
    fn cost(&self) -> f64 {
        if self.expected_cost > 0.0 { (self.cost / self.expected_cost).max(1.0) } else { 1.0 }
    }

    fn add(&mut self, (saved_s, most_s): (f64, f64), (cost, expected_cost): (f64, f64)) {
        let fade = |sum: &mut f64, more: f64| *sum = *sum * EFFECT_FADING + more;
        fade(&mut self.saved_s, saved_s);
        fade(&mut self.most_s, most_s);
        fade(&mut self.cost, cost);
        fade(&mut self.expected_cost, expected_cost);
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
        let minimum = self.config.billed_time.least().as_secs_f64();
        Terms {
            backing: self.meter.backing_rate(self.config.backing_bandwidth),
            shape: self.bursts.shape(),
            usable: self.usable,
            lead: seconds(self.forecast.lead()),
            end: seconds(self.forecast.end()),
            effect: self.effect.saved(),
            dearness: self.effect.cost(),
            // What is billed anyway serves the bursts that come in that time.
            minimum: self.forecast.period().map_or(minimum, |period| minimum.min(period)),
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
                // What has not been full is large enough.
                let fits = rental.evicted == 0 && size > rental.size;
                let less = if fits { 0.0 } else { outcome.gain - terms.expected(&likely, rental.size).gain };
                rental.unfit = less.max(0.0);
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
        self.meter.calm_after(delay)?;
        let terms = self.terms();
        let rent = terms.rent_per_s * rental.size.as_gib();
        let sampling = self.forecast.sampling();
        // The next volume is as late as the forecast expects, or else by all that it takes.
        let late = self.value_of_lateness() * (terms.lead + sampling.as_secs_f64());
        let late = self.expected().map_or(late, |expected| expected.cost.min(late));
        let penalty = (late + rent * (terms.lead + terms.end) - rental.unfit).max(0.0);
        let calm = self.meter.calm_for(self.now).as_secs_f64();
        let blind = terms.delay.max(RISKED * self.account.total(self.now, &self.config) / rent);
        let keep = self.forecast.keep_for(calm, rent, penalty, (blind, terms.delay));
        let keep = Duration::try_from_secs_f64(keep).unwrap_or(Duration::MAX);
        // What is billed anyway may as well be kept.
        let billed =
            rental.started() + self.config.billed_time.least().saturating_sub(self.forecast.end().unwrap_or_default());
        let shortest = self.meter.calm_after(KEPT_SAMPLES * sampling)?.max(self.oversize_from(penalty));
        self.meter.calm_after(keep.max(KEPT_SAMPLES * sampling)).map(|until| until.min(shortest).max(billed))
    }

    /// From when on what was rented is too large for the next burst: it has cost as much more as to replace it (ski rental).
    fn oversize_from(&self, penalty: f64) -> Instant {
        let from = self.rental.as_ref().and_then(|rental| {
            let more = self.config.rent_agbs_per_s(rental.size) - self.config.rent_agbs_per_s(self.next_size);
            let held = Duration::try_from_secs_f64(penalty / more.max(0.0)).ok()?;
            Some(rental.started + held)
        });
        from.unwrap_or(Instant::FAR)
    }

    fn value_of_lateness(&self) -> f64 {
        let terms = self.terms();
        terms.value_per_s * terms.saved_share() * terms.effect
    }

    /// The size for the present burst if a boost is expected to pay for itself, and for those in vain; or if it would at its
    /// full effect, and to find out costs little beside all that the device costs.
    ///
    /// # Errors
    /// Why not; for people.
    pub(super) fn worth_it(&self) -> Result<(Bytes, Outcome), String> {
        let terms = self.terms();
        let (size, outcome) = self.best_size(self.bursts.written(), &terms);
        let debt = self.debt.left(self.now, &self.config);
        let is_paid_off = PAID_BY * outcome.gain > debt;
        // Whoever says how large caches are wants them.
        if self.config.fixed_size.is_some() || planted(Bug::CostForgotten) || (outcome.gain > 0.0 && is_paid_off) {
            return Ok((size, outcome));
        }
        let (bold, at_best) = self.best_size(self.bursts.written(), &Terms { effect: 1.0, ..terms });
        if at_best.gain > 0.0 && at_best.cost <= self.allowance() {
            return Ok((bold, at_best));
        }
        Err(if outcome.gain <= 0.0 {
            format!(
                "no caching volume is expected to pay for this burst: one of {size} costs {:.0} AGBs and saves {:.1} s",
                outcome.cost, outcome.saved_s
            )
        } else {
            // Nobody knows how many they were in the last run.
            let count = Some(self.debt.boosts)
                .filter(|boosts| *boosts > 0)
                .map_or(String::new(), |boosts| format!("{boosts} "));
            format!(
                "the last {count}boosts cost more than they saved: the next begins when a burst is worth {:.0} AGBs more than its \
                 caching volume costs, or later",
                debt / PAID_BY
            )
        })
    }

    /// AGBs that may be lost to find out what a cache saves, those of the present one included.
    fn allowance(&self) -> f64 {
        let lost = self.rental.as_ref().map_or(0.0, |rental| {
            let rent = self.config.rent_agbs_per_s(rental.size);
            let lost = rent * self.now.since(rental.started).as_secs_f64() - self.config.value_of_time * rental.saved();
            lost.max(rent * rental.empty.as_secs_f64())
        });
        RISKED * self.account.waited(self.now) - self.debt.left(self.now, &self.config) - lost
    }

    /// Begins a boost as the papers' controller does, for throughput alone: a cache may save what no sample shows beforehand,
    /// such as reads of what it has. Where the device has been waited for so much that this costs little beside it.
    pub(super) fn begin_to_try(&mut self) {
        if !self.config.preset.when.worth || !self.meter.is_used() {
            return;
        }
        let terms = self.terms();
        let held = (terms.lead + TRIED_DELAYS * terms.delay + terms.end).max(terms.minimum);
        let bounds = self.config.bounds();
        let most = self.allowance() / (terms.rent_per_s * held) * GIB as f64;
        let size = bounds.clamp(Bytes::new(most as u64).min(self.config.initial_size.max(self.next_size)));
        let starts = self.earliest_start().is_none_or(|start| start <= self.now);
        if size.get() as f64 <= most && starts && self.affordable_with(size, 0).is_ok() {
            self.next_size = size;
            self.begin(Cause::Utilization(self.meter.utilization), None);
        }
    }

    /// Until when the papers' controller would keep the cache, as far as that costs little beside what the device was waited for.
    fn tried_until(&self) -> Option<Instant> {
        let allowed = self.config.preset.when.worth && self.allowance() > 0.0;
        allowed.then(|| self.meter.used_until().map_or(Instant::FAR, |used| used + self.config.inactivity_delay))
    }

    /// What a sample decides depends on how much may still be lost.
    pub(super) fn is_trying(&self) -> bool {
        self.tried_until().is_some_and(|until| until > self.now)
    }

    pub(super) fn begin_if_worth_it(&mut self) -> Result<(), String> {
        let (size, outcome) = self.worth_it()?;
        self.affordable_with(size, 0)?;
        self.next_size = size;
        let written = Bytes::new(self.bursts.written());
        self.begin(Cause::Saturation { written }, Some(outcome.prediction(&self.config)));
        Ok(())
    }

    /// When a cache that nobody needs any more stops to absorb, if the device stays calm; `None`: it is not calm. What is
    /// dirty drains beside the application until then, so the inactivity delay says when that is no use.
    pub(super) fn absorbs_until(&self) -> Option<Instant> {
        let is_empty = self.observation.dirty_bytes == 0;
        let oversize = self.oversize_from(self.value_of_lateness() * self.terms().lead);
        let tried = self.tried_until().filter(|_| !is_empty || oversize > self.now);
        let kept = self.kept_until()?.max(tried.unwrap_or(Instant::ZERO));
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

    /// What a boost that has ended tells of those to come.
    pub(super) fn learn_effect(&mut self, rental: &Rental, rate: f64) {
        let terms = self.terms();
        let most_s = rental.fitted as f64 / rate.max(1.0) * terms.saved_share();
        let used = self.now.since(rental.started).saturating_sub(rental.empty).as_secs_f64();
        let size = rental.mean_size(self.now);
        let cost = self.config.rent_agbs_per_s(size) * used;
        // What the arithmetic makes of as much.
        let terms = Terms { lead: 0.0, end: terms.lead + terms.end, dearness: 1.0, ..terms };
        let expected = terms.outcome(rental.absorbed as f64, size).cost;
        let costs = if rental.absorbed > 0 { (cost, expected) } else { (0.0, 0.0) };
        self.effect.add((rental.saved(), most_s), costs);
    }

    /// A boost has ended that saved and cost this, as boosts are judged.
    pub(super) fn settle_debt(&mut self, saved: Duration, cost: f64) {
        let gained = self.config.value_of_time * saved.as_secs_f64();
        self.saved_agbs += gained;
        self.debt.add(self.now, &self.config, cost - gained);
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
            rent_per_s: config.caching_rent,
            shape: Shape { peak: 1.0, gaps: 0.0 },
            usable: USABLE,
            lead: 0.0,
            delay: config.inactivity_delay.as_secs_f64(),
            end: 0.0,
            minimum: config.billed_time.least().as_secs_f64(),
            effect: 1.0,
            dearness: 1.0,
        }
    }

    /// What stands for the first burst: what a cache of `size` absorbs, or a quarter of the largest that pays.
    pub(super) fn guess(&self, size: Bytes) -> u64 {
        let share = self.absorbed(1.0).max(f64::MIN_POSITIVE);
        (size.get() as f64 / share).min(self.largest() / 4.0) as u64
    }
}

impl Outcome {
    /// For people and histories: in the AGBs of the volume, whatever it is judged by.
    pub(super) fn prediction(&self, config: &Config) -> Prediction {
        Prediction::of(self.saved_s, config.in_agbs(self.cost))
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
