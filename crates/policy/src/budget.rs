//! What was rented lately, and what may still be rented.
//!
//! The limits hold over sliding windows of an hour and a day. A caching volume with dirty data cannot be deleted at
//! once, so the controller asks with the longest time that it may still need ([`Ledger::fits`]), and lets changes over
//! dirty data wait before rewriting can prolong that; only a provider that fails to detach or delete, or a volume that
//! fails, can make a rental longer.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use surgetank_model::units::{GIB, Span};
use surgetank_model::volume_type::BilledTime;
use surgetank_model::{Bandwidth, Bytes, Instant};

/// The most that caching volumes of one device, or extra volumes of one array, may cost. `None`: not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Budget {
    /// AGBs in any hour.
    pub agbs_per_hour: Option<f64>,
    /// AGBs in any 24 hours.
    pub agbs_per_day: Option<f64>,
    /// USD in any hour; needs a known price.
    pub usd_per_hour: Option<f64>,
    /// USD in any 24 hours; needs a known price.
    pub usd_per_day: Option<f64>,
}

/// What a volume costs by its size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tariff {
    /// Reserved bandwidth, for AGBs.
    pub bandwidth: Bandwidth,
    /// USD per GiB and hour; `None`: unknown.
    pub usd_per_gib_hour: Option<f64>,
    /// How long a volume is billed for in money.
    pub billed_time: BilledTime,
}

impl Tariff {
    /// AGBs a second.
    pub(crate) fn agbs_per_s(&self, size: Bytes) -> f64 {
        size.as_gib() * self.bandwidth.as_mib_s()
    }

    fn usd_per_s(&self, size: Bytes) -> Option<f64> {
        self.usd_per_gib_hour.map(|usd| usd * size.as_gib() / 3600.0)
    }
}

/// A rental that has ended, told relative to now, so that it survives a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PastRental {
    /// How long ago it began.
    pub started_ago: Span,
    /// How long it lasted.
    pub lasted: Span,
    /// Size of the caching volume.
    pub size: Bytes,
    /// The volume went on, as the next rental if there is one: with another size, or after a restart.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub goes_on: bool,
    /// No volume was there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub was_vain: bool,
}

/// How much of one window's budget is used.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct BudgetUse {
    /// Length of the window in hours (1 or 24).
    pub window_h: u64,
    /// AGBs spent in it.
    pub spent_agbs: f64,
    /// AGBs that may be spent in it.
    pub limit_agbs: Option<f64>,
    /// USD spent in it; `None`: the price is unknown.
    pub spent_usd: Option<f64>,
    /// USD that may be spent in it.
    pub limit_usd: Option<f64>,
}

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Nanoseconds on the driver's clock; negative for what was rented before its origin.
type Nanoseconds = i128;

fn nanoseconds(now: Instant) -> Nanoseconds {
    now.as_nanoseconds().into()
}

#[derive(Clone, Copy, Debug)]
struct Rental {
    from: Nanoseconds,
    until: Option<Nanoseconds>,
    size: Bytes,
    /// Since when the volume is rented, at whatever size.
    since: Nanoseconds,
    /// The volume has gone on, as the next rental if there is one.
    goes_on: bool,
    /// No volume was there.
    was_vain: bool,
}

impl Rental {
    /// Until when it is billed in money, which may lie ahead. One that is open is billed as if it ended now, and so is the last one.
    fn billed_until(&self, now: Nanoseconds, billed_time: BilledTime, is_last: bool) -> Nanoseconds {
        let until = self.until.unwrap_or(now);
        let is_exact = self.was_vain || (self.goes_on && !is_last);
        if is_exact { until } else { self.billed_if(until, billed_time) }
    }

    /// The same, if it were to end then.
    fn billed_if(&self, until: Nanoseconds, billed_time: BilledTime) -> Nanoseconds {
        let rented = Duration::from_nanos(u64::try_from(until - self.since).unwrap_or(0));
        self.since + billed_time.of(rented).as_nanos() as Nanoseconds
    }
}

/// The caching volumes that one device rented in the last day.
#[derive(Clone, Debug)]
pub struct Ledger {
    tariff: Tariff,
    budget: Budget,
    rentals: VecDeque<Rental>,
}

impl Ledger {
    /// A ledger that knows of `past` rentals.
    #[must_use]
    pub fn new(now: Instant, tariff: Tariff, budget: Budget, past: &[PastRental]) -> Self {
        let mut rentals: VecDeque<Rental> = VecDeque::new();
        for &PastRental { started_ago, lasted, size, goes_on, was_vain } in past {
            let from = nanoseconds(now) - started_ago.0.as_nanos() as Nanoseconds;
            let until = Some(from + lasted.0.as_nanos() as Nanoseconds);
            let since = rentals.back().filter(|former| former.goes_on).map_or(from, |former| former.since);
            rentals.push_back(Rental { from, until, size, since, goes_on, was_vain });
        }
        Self { tariff, budget, rentals }
    }

    /// A rental begins. If one is open, its volume has this size from now on.
    pub fn open(&mut self, now: Instant, size: Bytes) {
        let is_open = self.rentals.back().is_some_and(|rental| rental.until.is_none());
        self.begin(now, size, is_open);
    }

    /// The volume of the last rental, which an earlier run has begun, goes on.
    pub fn resume(&mut self, now: Instant, size: Bytes) {
        self.begin(now, size, true);
    }

    fn begin(&mut self, now: Instant, size: Bytes, goes_on: bool) {
        self.close(now, true);
        self.rentals.back_mut().into_iter().for_each(|former| former.goes_on = goes_on && !former.was_vain);
        let since = self.rentals.back().filter(|former| former.goes_on).map_or(nanoseconds(now), |former| former.since);
        let (horizon, billed_time) = (nanoseconds(now) - DAY.as_nanos() as Nanoseconds, self.tariff.billed_time);
        self.rentals.retain(|rental| rental.billed_until(horizon, billed_time, false) > horizon);
        let (until, goes_on, was_vain) = (None, false, false);
        self.rentals.push_back(Rental { from: nanoseconds(now), until, size, since, goes_on, was_vain });
    }

    /// The open rental ends. `was_there`: a volume was, or may have been.
    pub fn close(&mut self, now: Instant, was_there: bool) {
        if let Some(rental) = self.rentals.back_mut().filter(|rental| rental.until.is_none()) {
            (rental.until, rental.was_vain) = (Some(nanoseconds(now)), !was_there);
        }
    }

    /// The size of what is rented now.
    #[cfg(debug_assertions)]
    pub(crate) fn open_size(&self) -> Option<Bytes> {
        self.rentals.back().filter(|rental| rental.until.is_none()).map(|rental| rental.size)
    }

    /// Ended rentals of the last day, relative to `now`. An open one counts as ending now, and goes on.
    #[must_use]
    pub fn past(&self, now: Instant) -> Vec<PastRental> {
        let now = nanoseconds(now);
        let span = |ns: Nanoseconds| Span(Duration::from_nanos(u64::try_from(ns.max(0)).unwrap_or(u64::MAX)));
        let (horizon, billed_time) = (now - DAY.as_nanos() as Nanoseconds, self.tariff.billed_time);
        let recent =
            self.ranked().filter(|(rental, is_last)| rental.billed_until(now, billed_time, *is_last) > horizon);
        recent
            .map(|(rental, _)| rental)
            .map(|rental| PastRental {
                started_ago: span(now - rental.from),
                lasted: span(rental.until.unwrap_or(now) - rental.from),
                size: rental.size,
                goes_on: rental.goes_on || rental.until.is_none(),
                was_vain: rental.was_vain,
            })
            .collect()
    }

    /// Rentals, and whether each is the last.
    fn ranked(&self) -> impl Iterator<Item = (&Rental, bool)> {
        let count = self.rentals.len();
        self.rentals.iter().enumerate().map(move |(number, rental)| (rental, number + 1 == count))
    }

    /// GiB-seconds of the `window` that ends at `now`: rented, and billed in money, which is more where a minimum is billed. All of that
    /// counts from the moment at which it is owed.
    fn gib_seconds(&self, now: Instant, window: Duration) -> (f64, f64) {
        let now = nanoseconds(now);
        let start = now - window.as_nanos() as Nanoseconds;
        let overlap = |(rental, is_last): (&Rental, bool)| {
            let since = rental.from.max(start);
            let until = |until: Nanoseconds| (until - since).max(0) as f64 / 1e9 * rental.size.as_gib();
            let billed_until = rental.billed_until(now, self.tariff.billed_time, is_last);
            (until(rental.until.unwrap_or(now).min(now)), until(billed_until))
        };
        // The sum of nothing is a negative zero.
        self.ranked().map(overlap).fold((0.0, 0.0), |sum, more| (sum.0 + more.0, sum.1 + more.1))
    }

    /// How much of the budget is used, hour first.
    #[must_use]
    pub fn usage(&self, now: Instant) -> [BudgetUse; 2] {
        let per_gib = Bytes::new(GIB);
        [
            (HOUR, self.budget.agbs_per_hour, self.budget.usd_per_hour),
            (DAY, self.budget.agbs_per_day, self.budget.usd_per_day),
        ]
        .map(|(window, limit_agbs, limit_usd)| {
            let (rented, billed) = self.gib_seconds(now, window);
            BudgetUse {
                window_h: window.as_secs() / 3600,
                spent_agbs: rented * self.tariff.agbs_per_s(per_gib),
                limit_agbs,
                spent_usd: self.tariff.usd_per_s(per_gib).map(|usd| usd * billed),
                limit_usd,
            }
        })
    }

    /// Everything may be rented.
    #[must_use]
    pub fn is_unlimited(&self) -> bool {
        self.budget == Budget::default()
    }

    /// How long it takes until a volume of `size` may be rented for `further`, if nothing else is rented until then; `None`: the
    /// budget is too small for it.
    #[must_use]
    pub fn allowed_in(&self, now: Instant, size: Bytes, further: Duration) -> Option<Duration> {
        let mut ledger = self.clone();
        ledger.close(now, true);
        let fits = |wait_s: u64| ledger.fits(now + Duration::from_secs(wait_s), size, further).is_ok();
        // What is owed now may lie ahead.
        let (mut no, mut yes) = (0, (DAY + self.tariff.billed_time.least()).as_secs() + 1);
        if !fits(yes) {
            return None;
        }
        // What was spent only becomes less.
        while no < yes {
            let middle = no + (yes - no) / 2;
            if fits(middle) { yes = middle } else { no = middle + 1 }
        }
        Some(Duration::from_secs(yes))
    }

    /// USD beyond what is spent for a volume of `size` that is rented for `further`, or goes on so if one is rented; `None`: its price is unknown.
    fn needs_usd(&self, now: Instant, size: Bytes, further: Duration) -> Option<f64> {
        let (now, billed_time) = (nanoseconds(now), self.tariff.billed_time);
        let ahead = |until: Nanoseconds, size: Bytes| Some(self.tariff.usd_per_s(size)? * (until - now) as f64 / 1e9);
        let until = now + further.as_nanos() as Nanoseconds;
        match self.rentals.back().filter(|rental| rental.until.is_none()) {
            None => ahead(now + billed_time.of(further).as_nanos() as Nanoseconds, size),
            // What it owes at its present size is among what is spent.
            Some(open) => {
                let owed = ahead(open.billed_until(now, billed_time, true), open.size)?;
                Some((ahead(open.billed_if(until, billed_time), size)? - owed).max(0.0))
            }
        }
    }

    /// Whether a volume of `size` may be rented for `further` from `now` on. Nothing spent falls out of the window
    /// meanwhile, so that the answer holds for every moment until then.
    ///
    /// # Errors
    /// Which limit forbids it; for people.
    pub fn fits(&self, now: Instant, size: Bytes, further: Duration) -> Result<(), String> {
        let needs_agbs = self.tariff.agbs_per_s(size) * further.as_secs_f64();
        let needs_usd = self.needs_usd(now, size, further);
        for used in self.usage(now) {
            let window = if used.window_h == 1 { "hour" } else { "day" };
            if let Some(limit) = used.limit_agbs
                && used.spent_agbs + needs_agbs > limit
            {
                return Err(format!(
                    "the budget of {limit:.0} AGBs per {window} does not allow it: {:.0} are spent and a volume of \
                     {size} may need {needs_agbs:.0}",
                    used.spent_agbs
                ));
            }
            match (used.limit_usd, used.spent_usd, needs_usd) {
                (Some(limit), Some(spent), Some(needs)) if spent + needs > limit => {
                    return Err(format!(
                        "the budget of ${limit:.2} per {window} does not allow it: ${spent:.4} are spent and a volume of \
                         {size} may need ${needs:.4}"
                    ));
                }
                (Some(limit), None, _) | (Some(limit), _, None) => {
                    return Err(format!(
                        "the budget of ${limit:.2} per {window} cannot be kept because the price of the volumes is \
                         unknown: state its price or budget in AGBs"
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanoseconds(seconds * 1_000_000_000)
    }

    fn ledger(budget: Budget, usd_per_gib_hour: Option<f64>) -> Ledger {
        let billed_time = BilledTime::default();
        let tariff = Tariff { bandwidth: Bandwidth::from_mib_s(100), usd_per_gib_hour, billed_time };
        Ledger::new(at(0), tariff, budget, &[])
    }

    /// As Azure bills disks.
    #[test]
    fn a_minimum_that_is_billed_is_spent_from_the_beginning() {
        let hour = Duration::from_secs(3600);
        let billed_time = BilledTime { minimum: hour, granularity: hour };
        let budget = Budget { usd_per_hour: Some(2.5), usd_per_day: Some(2.5), ..Budget::default() };
        let tariff = Tariff { bandwidth: Bandwidth::from_mib_s(1), usd_per_gib_hour: Some(1.0), billed_time };
        let mut ledger = Ledger::new(at(0), tariff, budget, &[]);
        let (one, minute) = (Bytes::from_gib(1), Duration::from_secs(60));
        let day = |ledger: &Ledger, seconds| ledger.usage(at(seconds))[1].spent_usd.unwrap();
        assert!(ledger.fits(at(0), Bytes::from_gib(3), minute).is_err(), "three hours of a GiB are billed at least");
        ledger.open(at(0), one);
        assert_eq!((day(&ledger, 1), day(&ledger, 3600), day(&ledger, 5400)), (1.0, 1.0, 2.0), "begun hours count");
        assert!(ledger.fits(at(60), one, hour).is_ok() && ledger.fits(at(60), one, 3 * hour).is_err());
        ledger.close(at(60), true);
        assert_eq!((day(&ledger, 60), day(&ledger, 7200)), (1.0, 1.0));
        assert_eq!(
            ledger.usage(at(5400)).map(|used| used.spent_usd),
            [Some(0.5), Some(1.0)],
            "its hour is over by half"
        );
        // A restart in between.
        let mut ledger = Ledger::new(at(7200), tariff, budget, &ledger.past(at(7200)));
        ledger.open(at(7200), one);
        ledger.close(at(7201), true);
        assert_eq!(day(&ledger, 7201), 2.0);
        assert!(ledger.fits(at(7201), one, minute).is_err(), "a third hour is more than the budget");
        // A volume that grows is billed for its minimum once.
        let mut ledger = Ledger::new(at(0), tariff, budget, &[]);
        ledger.open(at(0), one);
        ledger.open(at(1800), Bytes::from_gib(2));
        ledger.close(at(1801), true);
        assert_eq!(day(&ledger, 1801), 0.5 + 1.0);
        let again = Ledger::new(at(1801), tariff, budget, &ledger.past(at(1801)));
        assert_eq!(day(&again, 1801), 0.5 + 1.0);
    }

    #[test]
    fn a_growth_in_its_first_hour_is_paid_for_and_restarts_and_refusals_cost_no_hour() {
        let hour = Duration::from_secs(3600);
        let billed_time = BilledTime { minimum: hour, granularity: hour };
        let budget = Budget { usd_per_day: Some(2.5), ..Budget::default() };
        let tariff = Tariff { bandwidth: Bandwidth::from_mib_s(1), usd_per_gib_hour: Some(1.0), billed_time };
        let day = |ledger: &Ledger, seconds| ledger.usage(at(seconds))[1].spent_usd.unwrap();
        let mut ledger = Ledger::new(at(0), tariff, budget, &[]);
        ledger.open(at(0), Bytes::from_gib(1));
        assert!(ledger.fits(at(1800), Bytes::from_gib(4), Duration::from_secs(60)).is_ok(), "0.5 and 4 times 0.5");
        assert!(ledger.fits(at(1800), Bytes::from_gib(5), Duration::from_secs(60)).is_err());
        assert!(ledger.fits(at(1800), Bytes::from_gib(4), hour).is_err(), "a second hour is begun");
        // The daemon ends and starts again, twice.
        for restart in [600, 1200] {
            let past = ledger.past(at(restart));
            ledger = Ledger::new(at(restart), tariff, budget, &past);
            assert_eq!(day(&ledger, restart), 1.0, "it may have ended");
            ledger.resume(at(restart), Bytes::from_gib(1));
            assert_eq!(day(&ledger, restart), 1.0);
        }
        assert_eq!((day(&ledger, 3599), day(&ledger, 3601)), (1.0, 2.0));
        ledger.close(at(3000), true);
        ledger.open(at(3600), Bytes::from_gib(1));
        ledger.close(at(3636), false);
        assert!((day(&ledger, 3700) - 1.01).abs() < 1e-9, "no volume was there");
        assert_eq!(ledger.allowed_in(at(3700), Bytes::from_gib(2), hour), Some(DAY - Duration::from_secs(1864)));
    }

    #[test]
    fn windows_slide() {
        let mut ledger = ledger(Budget { agbs_per_hour: Some(100_000.0), ..Budget::default() }, Some(0.36));
        ledger.open(at(100), Bytes::from_gib(10));
        ledger.close(at(200), true);
        assert_eq!(ledger.usage(at(200)).map(|used| used.spent_agbs), [100_000.0, 100_000.0]);
        assert!(ledger.usage(at(200))[0].spent_usd.is_some_and(|usd| (usd - 0.1).abs() < 1e-12));
        assert_eq!(ledger.usage(at(3750)).map(|used| used.spent_agbs), [50_000.0, 100_000.0]);
        assert_eq!(ledger.usage(at(3800)).map(|used| used.spent_agbs), [0.0, 100_000.0]);
        assert!(ledger.fits(at(3750), Bytes::from_gib(10), Duration::from_secs(50)).is_ok());
        assert!(ledger.fits(at(3750), Bytes::from_gib(10), Duration::from_secs(51)).is_err());
        let allowed_in = |seconds| ledger.allowed_in(at(3700), Bytes::from_gib(10), Duration::from_secs(seconds));
        assert_eq!(allowed_in(50), Some(Duration::from_secs(50)));
        assert_eq!(allowed_in(100), Some(Duration::from_secs(100)));
        assert_eq!(allowed_in(101), None, "more than the budget");
    }

    #[test]
    fn the_past_survives_a_restart() {
        let mut before = ledger(Budget::default(), None);
        before.open(at(1000), Bytes::from_gib(4));
        before.close(at(1060), true);
        let past = before.past(at(2000));
        let after = Ledger::new(at(0), before.tariff, before.budget, &past);
        assert_eq!(after.usage(at(0))[1].spent_agbs, before.usage(at(2000))[1].spent_agbs);
        assert_eq!(after.past(at(500))[0].started_ago, Span(Duration::from_secs(1500)));
    }

    #[test]
    fn nothing_spent_is_zero() {
        let ledger = ledger(Budget { agbs_per_day: Some(1.0), ..Budget::default() }, None);
        let refusal = ledger.fits(at(0), Bytes::from_gib(1), Duration::from_secs(1)).unwrap_err();
        assert!(refusal.contains("does not allow it: 0 are spent"), "{refusal}");
    }

    #[test]
    fn an_unknown_price_is_not_zero() {
        let ledger = ledger(Budget { usd_per_day: Some(1.0), ..Budget::default() }, None);
        let refusal = ledger.fits(at(0), Bytes::from_gib(1), Duration::from_secs(1)).unwrap_err();
        assert!(refusal.contains("unknown"), "{refusal}");
    }
}
