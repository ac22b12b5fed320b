//! How full the credit buckets of a volume are, in closed form.
//!
//! c ← clamp(c + (baseline − served)·dt, 0, bucket): credits refill at the baseline and are spent by what is served; at
//! most the burst rate is served while there are any, else the baseline. The throttle takes the same rule token by token
//! ([`crate::TokenBucket`]).

use crate::units::Bytes;
use crate::volume_type::{CreditUnit, Credits, VolumeType};

/// A bucket and how full it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Balance {
    credits: Credits,
    level: f64,
}

impl Balance {
    /// A full bucket.
    #[must_use]
    pub const fn full(credits: Credits) -> Self {
        Self { level: credits.bucket as f64, credits }
    }

    /// The buckets of a new volume: full.
    #[must_use]
    pub fn of_new(volume_type: &VolumeType, size: Bytes) -> Vec<Self> {
        volume_type.all_credits_at(size).into_iter().map(Self::full).collect()
    }

    /// What the bucket is.
    #[must_use]
    pub const fn credits(&self) -> &Credits {
        &self.credits
    }

    /// Credits in it.
    #[must_use]
    pub const fn level(&self) -> f64 {
        self.level
    }

    /// The share of it that is full, from 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        if self.credits.bucket == 0 { 0.0 } else { self.level / self.credits.bucket as f64 }
    }

    /// Corrects the level by one that is known; one that is no number is none.
    pub fn correct(&mut self, level: f64) {
        if level.is_finite() {
            self.level = level.clamp(0.0, self.credits.bucket as f64);
        }
    }

    /// Accounts for what was served in a time.
    pub fn account(&mut self, served: f64, seconds: f64) {
        self.correct(self.level + self.credits.baseline_per_s as f64 * seconds - served);
    }

    /// The highest rate that is served while there are credits.
    #[must_use]
    pub fn cap(&self) -> f64 {
        self.credits.burst_per_s.max(self.credits.baseline_per_s) as f64
    }

    /// The highest rate that is served for so many seconds from now on.
    #[must_use]
    pub fn affords(&self, seconds: f64) -> f64 {
        let spent = if seconds > 0.0 { self.level / seconds } else { f64::INFINITY };
        (self.credits.baseline_per_s as f64 + spent).min(self.cap())
    }

    /// Seconds until it is empty at this rate; infinite: never.
    #[must_use]
    pub fn lasts(&self, per_s: f64) -> f64 {
        let spent_per_s = per_s.min(self.cap()) - self.credits.baseline_per_s as f64;
        if spent_per_s > 0.0 { self.level / spent_per_s } else { f64::INFINITY }
    }

    /// Seconds that a full one carries the burst rate; infinite: for ever.
    #[must_use]
    pub fn lasts_full(&self) -> f64 {
        Self::full(self.credits).lasts(self.cap())
    }

    /// What bytes are in the bucket's unit, in operations of so many bytes.
    #[must_use]
    pub fn units(&self, bytes: f64, operation: f64) -> f64 {
        match self.credits.unit {
            CreditUnit::Operations => bytes / operation,
            CreditUnit::Bytes => bytes,
        }
    }

    /// Seconds to serve so many units, at most at this rate: fast while there are credits, then at the baseline.
    #[must_use]
    pub fn time_for(&self, units: f64, rate: f64) -> f64 {
        let baseline = self.credits.baseline_per_s as f64;
        let fast = rate.min(self.cap());
        let lasts_s = self.lasts(fast);
        if units <= fast * lasts_s { units / fast } else { lasts_s + (units - fast * lasts_s) / baseline }
    }

    /// Serves a rate for a time: the average rate served, and when the bucket was empty.
    pub fn serve(&mut self, demand_per_s: f64, seconds: f64) -> (f64, Option<f64>) {
        let baseline = self.credits.baseline_per_s as f64;
        let wanted = demand_per_s.min(self.cap());
        let lasts_s = self.lasts(wanted);
        if lasts_s >= seconds {
            self.account(wanted * seconds, seconds);
            return (wanted, None);
        }
        self.level = 0.0;
        ((wanted * lasts_s + baseline * (seconds - lasts_s)) / seconds, Some(lasts_s))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::time::Instant;

    proptest! {
        /// The closed form against the bucket that the throttle takes tokens from.
        #[test]
        fn the_closed_form_follows_the_token_bucket(
            baseline in 1u64..200, above in 1u64..500, bucket in 1u64..20_000,
            demands in prop::collection::vec((0u64..600, 1u64..20), 1..8),
        ) {
            let unit = CreditUnit::Operations;
            let credits = Credits { unit, baseline_per_s: baseline, burst_per_s: baseline + above, bucket };
            let (mut balance, mut tokens) = (Balance::full(credits), credits.bucket(Instant::ZERO));
            // What is left of one demand is part of the next: lost, it would be one more token after each.
            let (mut now, mut left) = (Instant::ZERO, 0.0);
            for (demand, seconds) in demands {
                let mut taken = 0u64;
                for _ in 0..seconds * 1000 {
                    now += Duration::from_millis(1);
                    // The burst rate is a limit of its own, beside the bucket.
                    left += demand.min(credits.burst_per_s) as f64 / 1000.0;
                    while left >= 1.0 && tokens.take(now, 1).is_ok() {
                        (taken, left) = (taken + 1, left - 1.0);
                    }
                    // What the bucket refuses is not asked for later.
                    left = left.min(1.0);
                }
                let (served, _) = balance.serve(demand as f64, seconds as f64);
                let slack = 3.0 + 0.02 * taken as f64;
                prop_assert!((served * seconds as f64 - taken as f64).abs() <= slack, "{served} {taken}");
                prop_assert!((balance.level() - tokens.available(now) as f64).abs() <= slack + 2.0);
            }
        }

        #[test]
        fn what_a_bucket_affords_is_what_it_lasts_for(
            baseline in 1u64..200, above in 1u64..500, bucket in 1u64..20_000, seconds in 0.1f64..1000.0,
        ) {
            let unit = CreditUnit::Bytes;
            let balance = Balance::full(Credits { unit, baseline_per_s: baseline, burst_per_s: baseline + above, bucket });
            prop_assert!(balance.lasts(balance.affords(seconds)) >= seconds * (1.0 - 1e-9));
        }
    }
}
