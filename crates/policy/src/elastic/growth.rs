//! A caching volume that is filling up grows while it is in use, if the rest of the burst is expected to pay for that.
//!
//! What is compared is the rest of the burst on the volume as it is, and on a larger one from the moment at which the
//! provider is expected to have grown it. It is decided as late as that allows: each moment of a burst tells more of it.
//!
//! A growth of which nobody knows what became of it is billed as done, so it is asked for again while the burst goes on.

use std::time::Duration;

use surgetank_model::units::Span;
use surgetank_model::volume::GROWTHS_MAX;
use surgetank_model::{Bytes, Instant};

use super::Controller;
use super::lifecycle::Stage;
use super::rental::Rental;
use super::status::Prediction;
use crate::planted::{Bug, planted};
use crate::step::Refusal;
use crate::worth::{Outcome, Terms};

/// Sizes that are compared at most.
const SIZES_MAX: u64 = 16;
/// What growing takes of which nothing is known yet.
const FIRST_LEAD: Duration = Duration::from_secs(5);
/// It must pay as well if the rest of the burst is so many times as long as expected: one that is larger than was planned for may
/// be much larger, and a large volume that is full costs more than a small one.
const LONGER: f64 = 4.0;
/// Decided so many samples before the volume would be full by the time that it has grown.
const AHEAD_SAMPLES: u32 = 2;

/// What is known of growing volumes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Growth {
    /// What was before, while the present one is not answered.
    from: Option<Before>,
    /// How long the last one took.
    lead: Option<Duration>,
    /// Refusals in a row.
    refusals: u32,
    /// None is asked for before.
    until: Option<Instant>,
}

/// A boost before its volume grows.
#[derive(Clone, Copy, Debug)]
struct Before {
    size: Bytes,
    predicted: Option<Prediction>,
    /// When it was asked to grow; `None`: it was asked before, and what is left to do may take no time.
    at: Option<Instant>,
}

impl Growth {
    /// A growth was asked for that is not answered.
    #[cfg(debug_assertions)]
    pub fn is_asked(&self) -> bool {
        self.from.is_some()
    }
}

impl Controller {
    /// Whether volumes of this device grow at all.
    pub(super) fn grows(&self) -> bool {
        self.config.grows && self.config.preset.when.worth && self.config.fixed_size.is_none()
    }

    /// Whether a sample may ask for the growth of this volume.
    fn may_grow(&self) -> bool {
        self.grows() && self.meter.hot && self.growth.until.is_none_or(|until| until <= self.now)
    }

    /// Asks again for a growth that was left half done, by an answer that did not come, a fault or a crash. Answers whether it
    /// does.
    pub(super) fn take_up_growth(&mut self) -> bool {
        let is_due = self.may_grow() && !planted(Bug::GrowthNotTakenUp);
        let open = self.rental.as_ref().filter(|rental| is_due && rental.growth_is_open);
        let Some((size, predicted)) = open.map(|rental| (rental.size, rental.predicted)) else { return false };
        if let Err(reason) = self.affordable_grown(size) {
            self.reason = Some(reason);
            return false;
        }
        if let Some(rental) = &mut self.rental {
            rental.growth = format!(
                "asks again for the caching volume to grow to {size}: it is billed as that, and may not be used as that yet"
            );
        }
        self.growth.from = Some(Before { size, predicted, at: None });
        self.enter(Stage::Grow);
        true
    }

    /// Grows the volume, if it is about to be full and that is expected to pay. Answers whether it does.
    pub(super) fn grow_if_worth_it(&mut self) -> bool {
        let Some((size, outcome)) = self.worth_growing() else { return false };
        if let Err(reason) = self.affordable_grown(size) {
            self.reason = Some(reason);
            return false;
        }
        let Some(rental) = &mut self.rental else { return false };
        let written = Bytes::new(self.bursts.written());
        let Prediction { saved, cost_agbs } = outcome.prediction(&self.config);
        rental.growth = format!(
            "grows the caching volume from {} to {size}: the burst has written {:.0} MiB and fills it; the rest is expected to \
             save {:.0} s more of waiting for {cost_agbs} AGBs more",
            rental.size,
            written.as_mib(),
            saved.0.as_secs_f64()
        );
        let predicted = rental.predicted;
        self.growth.from = Some(Before { size: rental.size, predicted, at: Some(self.now) });
        rental.predicted = predicted.map(|predicted| Prediction {
            saved: Span(predicted.saved.0.saturating_add(saved.0)),
            cost_agbs: predicted.cost_agbs.saturating_add(cost_agbs),
        });
        self.resize(size);
        self.enter(Stage::Grow);
        true
    }

    /// The size that gains most over the present one, and what it gains.
    fn worth_growing(&self) -> Option<(Bytes, Outcome)> {
        let terms = self.terms();
        // One that has saved nothing so far would not do so if it were larger.
        let helps = |rental: &&Rental| rental.saved() > 0.0;
        let has_room = |rental: &&Rental| {
            rental.size < self.config.bounds().max && rental.growths() < GROWTHS_MAX && !rental.growth_is_open
        };
        let rental = self.rental.as_ref().filter(|_| self.may_grow()).filter(has_room).filter(helps)?;
        // At first it is taken to be no faster than a new volume.
        let lead = self.growth.lead.or(self.forecast.lead()).unwrap_or(FIRST_LEAD).as_secs_f64();
        let dirty = self.observation.dirty_bytes as f64;
        let room = (rental.usable as f64 - dirty).max(0.0);
        let ahead = lead + (AHEAD_SAMPLES * self.forecast.sampling()).as_secs_f64();
        if room > terms.caching * ahead {
            return None;
        }
        let likely = self.bursts.likely(self.bursts.written());
        let total: f64 = likely.iter().map(|(_, weight)| weight).sum();
        let gain = |size: Bytes, longer: f64| {
            let mut sum = Outcome::default();
            for (left, weight) in &likely {
                let (left, share) = (longer * left, weight / total.max(f64::MIN_POSITIVE));
                let stays = terms.going_on(left, rental.size, room, dirty);
                let grows = terms.growing(left, (rental.size, size), (room, dirty), lead);
                sum.saved_s += share * (grows.saved_s - stays.saved_s);
                sum.cost += share * (grows.cost - stays.cost);
            }
            Outcome { gain: terms.value_per_s * sum.saved_s - sum.cost, ..sum }
        };
        let bounds = self.config.bounds();
        let grain = bounds.grain.get().max(1);
        let most = likely.iter().map(|(left, _)| terms.size_for(*left).get()).max()?.div_ceil(grain);
        let step = most.div_ceil(SIZES_MAX).max(1) as usize;
        let sizes =
            (1..=most).step_by(step).map(|grains| rental.size.get().saturating_add(grains.saturating_mul(grain)));
        let sizes = sizes.map(|size| bounds.clamp(Bytes::new(size))).filter(|size| *size > rental.size);
        let best = sizes.map(|size| (size, gain(size, 1.0))).max_by(|(_, a), (_, b)| a.gain.total_cmp(&b.gain))?;
        let pays = best.1.gain > 0.0 && gain(best.0, LONGER).gain > 0.0;
        (pays || planted(Bug::GrowthCostForgotten)).then_some(best)
    }

    /// It is billed for the new size from the moment at which it is asked for.
    fn resize(&mut self, size: Bytes) {
        if let Some(rental) = &mut self.rental {
            rental.resize(self.now, size);
            self.ledger.open(self.now, size);
        }
    }

    /// The volume has grown, and the engine uses it.
    pub(super) fn grown(&mut self) {
        let took = self.growth.from.take().and_then(|before| before.at).map(|at| self.now.since(at));
        if self.growth.refusals > 0 {
            self.reason = None;
        }
        self.growth = Growth { lead: took.or(self.growth.lead), ..Growth::default() };
        if let Some(rental) = &mut self.rental {
            rental.growth_is_open = false;
        }
        self.boost();
    }

    /// It has not, as far as is known: what may happen yet is paid for, and the boost goes on with what there is until it is time
    /// to ask again.
    pub(super) fn growth_refused(&mut self, refusal: &Refusal, text: String) {
        let before = self.growth.from.take();
        let may_have_grown = matches!(refusal, Refusal::Timeout | Refusal::Transient(_));
        if let Some(Before { size, .. }) = before.filter(|_| !may_have_grown) {
            self.resize(size);
        }
        if let (Some(rental), Some(before)) = (&mut self.rental, before) {
            if may_have_grown {
                rental.growth_is_open = true;
            } else {
                rental.predicted = before.predicted;
            }
        }
        self.growth.refusals = self.growth.refusals.saturating_add(1);
        let pause = self.config.backoff.wait(refusal, self.growth.refusals, &mut self.random);
        self.growth.until = Some(self.now + pause);
        self.reason = Some(text);
        self.boost();
    }

    /// Why the caching volume grew last in this boost; for people.
    #[must_use]
    pub fn why_grown(&self) -> Option<&str> {
        self.rental.as_ref().map(|rental| rental.growth.as_str()).filter(|growth| !growth.is_empty())
    }
}

impl Terms {
    fn both(&self) -> f64 {
        if self.split { self.backing + self.caching } else { self.caching }
    }

    /// The rest of a burst, of `left` bytes, on a volume of `size` that holds `dirty` bytes and has `room` for more.
    fn going_on(&self, left: f64, size: Bytes, room: f64, dirty: f64) -> Outcome {
        let absorbed = self.absorbed(left).min(room / self.shape.peak);
        let fitting = if self.split { absorbed * self.both() / self.caching } else { absorbed };
        let burst = fitting / self.both() + (left - fitting).max(0.0) / self.backing;
        let saved_s = self.effect * (left / self.backing - burst).max(0.0);
        let drain = (dirty + absorbed * self.shape.peak) / self.backing;
        let held = burst + self.shape.gaps * left + self.delay.max(drain) + self.end;
        let cost = self.dearness * self.rent_per_s * size.as_gib() * held;
        Outcome { saved_s, cost, gain: self.value_per_s * saved_s - cost }
    }

    /// The same on one that is asked for now, and as large as the second size after `lead` seconds: until then, what does not fit
    /// goes to the backing volume.
    fn growing(&self, left: f64, (from, to): (Bytes, Bytes), (room, dirty): (f64, f64), lead: f64) -> Outcome {
        let full = (lead - room / self.caching).max(0.0);
        let missed = (self.backing * full).min(left);
        let more = (to.get() - from.get()) as f64 * self.usable;
        let rest = self.going_on(left - missed, to, room + more, dirty);
        let cost = rest.cost + self.dearness * self.rent_per_s * to.as_gib() * (missed / self.backing);
        Outcome { cost, gain: self.value_per_s * rest.saved_s - cost, ..rest }
    }
}
