//! What a world holds against a controller.

use surgetank_policy::{BoostRecord, Phase, Prediction, Refusal, StepOutcome};

use super::{BACKING_MIB_S, Plan, World};

/// A growth of which nobody knows what became of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct HalfDone {
    /// Seconds of burst since it could have been asked for again, and the most that may be.
    idle_s: u64,
    idle_s_max: u64,
}

impl World {
    /// What is billed is used before long, if the burst goes on and nothing forbids it.
    pub(super) fn check_growth(&mut self, demand: u64) {
        let Some(growth) = &mut self.growth else { return };
        let is_free = self.plan.budget_agbs_hour.is_none() && self.plan.budget_agbs_day.is_none();
        // More than twice what the backing volume moves is a burst in any case.
        let continues =
            demand > 2 * BACKING_MIB_S && self.controller.phase() == Phase::Boost && self.outstanding.is_empty();
        growth.idle_s = if continues && is_free { growth.idle_s + 1 } else { 0 };
        assert!(growth.idle_s <= growth.idle_s_max, "a growth that is billed is left half done: {growth:?}");
    }

    pub(super) fn note_growth(&mut self, outcome: &StepOutcome) {
        let StepOutcome::Refused(refusal) = outcome else {
            (self.growth, self.growth_refusals) = (None, 0);
            return;
        };
        self.growth_refusals += 1;
        let backoff = self.controller.config().backoff;
        let longest = match refusal {
            Refusal::Permanent(_) => backoff.permanent,
            _ => backoff.cap.min(backoff.first * 2u32.saturating_pow(self.growth_refusals.min(20) - 1)),
        };
        // And a sample or two.
        let half_done = HalfDone { idle_s: 0, idle_s_max: longest.as_secs() + 3 };
        if matches!(refusal, Refusal::Timeout | Refusal::Transient(_)) || self.growth.is_some() {
            self.growth = Some(half_done);
        }
    }

    /// The most that was spent within so many seconds.
    pub fn most_within(&self, window_s: usize) -> f64 {
        let mut most: f64 = 0.0;
        let mut sum = 0.0;
        for (second, spent) in self.spent.iter().enumerate() {
            sum += spent;
            if second >= window_s {
                sum -= self.spent[second - window_s];
            }
            most = most.max(sum);
        }
        most
    }

    /// What is wrong with how boosts pay, if anything: one was begun though it was not expected to pay, or those in vain cost more than what is allowed: what one boost may lose, what four were expected to
    /// gain, and 1 % of what the backing volume costs.
    pub fn vain(&self) -> Option<String> {
        let config = self.controller.config();
        let (mut net, mut gain_max, mut loss_max) = (0.0f64, 0.0f64, 0.0f64);
        let is_ours = |record: &&BoostRecord| record.predicted.is_some() && !self.requested.contains(&record.started);
        for record in self.records.iter().filter(is_ours) {
            let gain =
                |outcome: &Prediction| config.value_of_time * outcome.saved.0.as_secs_f64() - outcome.cost_agbs as f64;
            let expected = record.predicted.as_ref().map_or(0.0, gain);
            // Numbers for people are rounded.
            if expected < -1.0 {
                return Some(format!("a boost was begun that was expected to lose {expected:.0} AGBs"));
            }
            net -= gain(&record.observed);
            gain_max = gain_max.max(expected);
            loss_max = loss_max.max(-gain(&record.observed));
        }
        let paid = config.backing_bandwidth.as_mib_s() * config.backing_size.as_gib() * self.now.as_seconds();
        let allowed = 4.0 * gain_max + loss_max + 0.01 * paid + 1.0;
        (net > allowed).then(|| format!("boosts in vain cost {net:.0} AGBs, where {allowed:.0} are allowed"))
    }

    /// Which window's budget was exceeded at some moment, and by how much.
    pub fn overspent(&self) -> Option<String> {
        let Plan { budget_agbs_hour, budget_agbs_day, .. } = self.plan;
        let windows = [(3600, budget_agbs_hour), (24 * 3600, budget_agbs_day)];
        windows.into_iter().find_map(|(window_s, limit)| {
            let (spent, limit) = (self.most_within(window_s), limit?);
            // Sums of seconds are rounded.
            (spent > limit + 1e-6).then(|| format!("{spent:.0} of {limit:.0} AGBs within {window_s} s"))
        })
    }
}
