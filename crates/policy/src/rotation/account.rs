//! The credits of one member, accounted from what it served, and what is asked of it.

use surgetank_model::volume_type::CreditUnit;
use surgetank_model::{Balance, Bytes};

use super::Sample;
use super::config::Config;
use super::planted::{Bug, planted};

/// What a volume served in a time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Served {
    /// Reads and writes.
    pub operations: f64,
    /// Bytes of both.
    pub bytes: f64,
}

/// Less than this share of a bucket is none: the member serves what refills, and what is asked of it cannot be seen.
const EMPTY: f64 = 0.002;
/// A rate may rise by so much before it is seen.
const RISE: f64 = 1.1;
/// Where a full bucket does not last until a successor has the slot, its replacement begins at this share: what is left speeds the copy
/// up, and members are not replaced while they are nearly new.
const TOO_LATE: f64 = 0.5;
/// A successor must bring at least this share of a bucket.
const GAIN_MIN: f64 = 1.0 / 64.0;
/// The short average is over this share of the time that a full bucket carries a burst.
const SHORT: f64 = 1.0 / 16.0;

/// What is asked of one bucket of a member, per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Demand {
    /// Highest of this window and of the one before.
    peaks: [f64; 2],
    /// Since the window began.
    window_s: f64,
    /// Averages over the time that a burst lasts, and over a short part of it; `None`: nothing was seen.
    means: Option<[f64; 2]>,
}

impl Demand {
    fn see(&mut self, per_s: f64, seconds: f64, burst_s: f64) {
        self.window_s += seconds;
        if self.window_s > burst_s {
            (self.peaks, self.window_s) = ([0.0, self.peaks[0]], 0.0);
        }
        self.peaks[0] = self.peaks[0].max(per_s);
        let mut means = self.means.unwrap_or([per_s; 2]);
        for (mean, over_s) in means.iter_mut().zip([burst_s, burst_s * SHORT]) {
            *mean += (per_s - *mean) * (1.0 - (-seconds / over_s.max(1e-3)).exp());
        }
        self.means = Some(means);
    }

    fn peak(&self) -> f64 {
        self.peaks[0].max(self.peaks[1])
    }

    /// Whether credits of this bucket are spent, all in all.
    fn spends(&self, baseline: f64) -> bool {
        self.means.is_some_and(|means| means.iter().any(|mean| *mean > baseline))
    }
}

/// See the module.
#[derive(Clone, Debug)]
pub struct Account {
    buckets: Vec<(Balance, Demand)>,
}

impl Account {
    /// Of a new member, but for the levels that are known.
    pub fn new(config: &Config, levels: &[f64]) -> Self {
        let buckets = config.credits.iter().map(|credits| (Balance::full(*credits), Demand::default()));
        let mut account = Self { buckets: buckets.collect() };
        account.correct(levels);
        account
    }

    pub fn correct(&mut self, levels: &[f64]) {
        self.buckets.iter_mut().zip(levels).for_each(|((balance, _), level)| balance.correct(*level));
    }

    pub fn levels(&self) -> Vec<f64> {
        self.buckets.iter().map(|(balance, _)| balance.level()).collect()
    }

    /// Takes over the credits of the joining member; what is asked of the slot stays.
    pub fn succeed(&mut self, successor: Self) {
        for ((balance, _), (new, _)) in self.buckets.iter_mut().zip(successor.buckets) {
            *balance = new;
        }
    }

    /// The share of the emptiest bucket that is full; `None`: there is no bucket.
    pub fn share(&self) -> Option<f64> {
        self.buckets.iter().map(|(balance, _)| balance.share()).min_by(f64::total_cmp)
    }

    /// Whether a bucket of operations is empty: then every I/O waits for one that refills.
    pub fn queues(&self) -> bool {
        let queues = |balance: &Balance| balance.credits().unit == CreditUnit::Operations && balance.share() < EMPTY;
        self.buckets.iter().any(|(balance, _)| queues(balance))
    }

    /// Whether any bucket is empty.
    pub fn is_empty(&self) -> bool {
        self.share().is_some_and(|share| share < EMPTY)
    }

    /// When the first bucket is empty at the rate of late; `None`: never.
    pub fn empty_in_s(&self) -> Option<f64> {
        let lasts = |(balance, demand): &(Balance, Demand)| Some(balance.lasts(demand.means?[1]));
        self.buckets.iter().filter_map(lasts).filter(|lasts| lasts.is_finite()).min_by(f64::total_cmp)
    }

    /// Accounts for what the slot's member served.
    pub fn observe(&mut self, config: &Config, sample: &Sample, seconds: f64) {
        if seconds <= 0.0 {
            return;
        }
        for (balance, demand) in &mut self.buckets {
            let unit = balance.credits().unit;
            let used = config.charged(unit, &sample.served);
            balance.account(used, seconds);
            let copied = config.copied_units(unit, sample.copied);
            let asked = ((used - copied) / seconds).max(0.0);
            let baseline = balance.credits().baseline_per_s as f64;
            // Whoever takes all that refills may ask for any amount.
            let throttled = balance.share() < EMPTY && used >= 0.9 * baseline * seconds;
            demand.see(if throttled { balance.cap() } else { asked }, seconds, balance.lasts_full());
        }
    }

    /// Accounts for what the joining member served.
    pub fn spend(&mut self, served: &Served, config: &Config, seconds: f64) {
        for (balance, _) in &mut self.buckets {
            let used = config.charged(balance.credits().unit, served);
            balance.account(if planted(Bug::SuccessorIsFull) { 0.0 } else { used }, seconds);
        }
    }

    /// Seconds from now until the member's replacement must begin, so that its credits last until the successor has the slot;
    /// `None`: credits are not spent, or a successor would have no more of them.
    ///
    /// For each bucket the credits must carry θ = setup·(λ − b) + c·(ρ + λ − b), with λ the highest rate of late and ρ the
    /// copy's; what is above that is spent at λ − b. Where no bucket carries that much, late is better than never: half of one does.
    pub fn latest_s(&self, config: &Config, holds: Bytes, copy_s: f64, until_replaced_s: f64) -> Option<f64> {
        let latest = self.buckets.iter().filter_map(|(balance, demand)| {
            let credits = balance.credits();
            let (baseline, bucket) = (credits.baseline_per_s as f64, credits.bucket as f64);
            let asked = (demand.peak() * RISE).min(balance.cap());
            if !demand.spends(baseline) || asked <= baseline {
                return None;
            }
            let copied = if planted(Bug::CopyIsFree) { 0.0 } else { config.copied_units(credits.unit, holds) };
            let copying = if copied > 0.0 { copied / copy_s.max(1e-3) } else { 0.0 };
            let both = (asked + copying).min(balance.cap());
            let needed = (until_replaced_s - copy_s) * (asked - baseline) + copy_s * (both - baseline);
            let gain = bucket - balance.level();
            let too_late = needed >= bucket;
            if gain <= (2.0 * copied).max(GAIN_MIN * bucket) || (too_late && planted(Bug::LateIsNever)) {
                return None;
            }
            let needed = if too_late { TOO_LATE * bucket } else { needed };
            Some((balance.level() - needed) / (asked - baseline))
        });
        latest.min_by(f64::total_cmp)
    }
}
