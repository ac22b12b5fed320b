//! Cost: adjusted GB-seconds (AGBs) and money.
//!
//! The papers charge a volume of size N (GB) and reserved bandwidth B (MB/s) N·B for each second (NRK15, III-B).
//! In their formulas 1 GB = 1024 MB, so that S GB at B MB/s take 1024·S/B seconds. Here GB is GiB and MB/s is MiB/s:
//! the same numbers. With decimal units throughout an AGB would be a different unit: 1 GiB × 1 MiB/s is 1.126 decimal.

use std::time::Duration;

use crate::time::Instant;
use crate::units::{Bandwidth, Bytes};
use crate::volume_type::Billing;

/// AGBs of a volume of `size` and reserved `bandwidth` over `time`: GiB × MiB/s × s.
#[must_use]
pub fn agbs(size: Bytes, bandwidth: Bandwidth, time: Duration) -> f64 {
    size.as_gib() * bandwidth.as_mib_s() * time.as_secs_f64()
}

/// What something cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Adjusted GB-seconds.
    pub agbs: f64,
    /// USD; `None`: a price is unknown.
    pub usd: Option<f64>,
}

impl Cost {
    /// Nothing.
    pub const ZERO: Self = Self { agbs: 0.0, usd: Some(0.0) };

    /// Both costs; unknown if one is.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self { agbs: self.agbs + other.agbs, usd: self.usd.zip(other.usd).map(|(one, other)| one + other) }
    }
}

/// A volume over the time that it is rented.
#[derive(Clone, Debug, PartialEq)]
pub struct Rental {
    /// Which volume; a volume has one open rental at most.
    pub volume: String,
    /// Its size.
    pub size: Bytes,
    /// Its reserved bandwidth.
    pub bandwidth: Bandwidth,
    /// USD an hour for the whole volume; `None`: unknown.
    pub usd_per_hour: Option<f64>,
    /// How its time is billed in money. AGBs are by the moment. A rental that begins when another one of the same volume ends
    /// goes on with it (a resized volume): what is billed beyond the time of both is at the later one's price.
    pub billing: Billing,
    /// When it began.
    pub from: Instant,
    /// When it ended; `None`: it goes on.
    pub until: Option<Instant>,
}

impl Rental {
    /// What it cost until `now` (or its end), after the same volume had been rented for `before`. Money is billed time: an open
    /// rental counts as if it ended now, and what is `continued` has no rounding of its own.
    fn cost(&self, now: Instant, before: Duration, continued: bool) -> Cost {
        if now < self.from {
            return Cost::ZERO;
        }
        let rented = self.until.unwrap_or(now).min(now).since(self.from);
        let billed = if continued { rented } else { self.billing.billed(before + rented).saturating_sub(before) };
        Cost {
            agbs: agbs(self.size, self.bandwidth, rented),
            usd: self.usd_per_hour.map(|usd| usd * billed.as_secs_f64() / 3600.0),
        }
    }

    fn agbs_per_s(&self) -> f64 {
        self.size.as_gib() * self.bandwidth.as_mib_s()
    }
}

/// A point of a cost curve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CostPoint {
    /// When.
    pub at: Instant,
    /// What everything cost until then. AGBs are a straight line to the next point.
    pub total: Cost,
    /// AGBs per second from here to the next point.
    pub agbs_per_s: f64,
}

/// Adds up what is rented.
#[derive(Clone, Debug, Default)]
pub struct Account {
    rentals: Vec<Rental>,
}

impl Account {
    /// A rental, ended or not. An open one of the same volume ends where this one begins (a resized volume).
    pub fn add(&mut self, rental: Rental) {
        self.end(&rental.volume, rental.from);
        self.rentals.push(rental);
    }

    /// The volume's open rental ends, if it has one.
    pub fn end(&mut self, volume: &str, now: Instant) {
        let open = self.rentals.iter_mut().filter(|rental| rental.volume == volume && rental.until.is_none());
        for rental in open {
            rental.until = Some(now.max(rental.from));
        }
    }

    /// Every rental, in the order added.
    #[must_use]
    pub fn rentals(&self) -> &[Rental] {
        &self.rentals
    }

    /// What everything cost until `now`.
    #[must_use]
    pub fn total(&self, now: Instant) -> Cost {
        let mut volumes: Vec<&str> = self.rentals.iter().map(|rental| rental.volume.as_str()).collect();
        volumes.sort_unstable();
        volumes.dedup();
        volumes.iter().fold(Cost::ZERO, |sum, volume| sum.plus(self.total_of(volume, now)))
    }

    /// What one volume cost until `now`.
    #[must_use]
    pub fn total_of(&self, volume: &str, now: Instant) -> Cost {
        let mut rentals = self.rentals.iter().filter(|rental| rental.volume == volume).peekable();
        let (mut sum, mut before) = (Cost::ZERO, Duration::ZERO);
        while let Some(rental) = rentals.next() {
            // What begins later is not known at `now`.
            let continued = rentals.peek().is_some_and(|next| rental.until == Some(next.from) && next.from < now);
            sum = sum.plus(rental.cost(now, before, continued));
            let rented = rental.until.unwrap_or(now).since(rental.from);
            before = if continued { before + rented } else { Duration::ZERO };
        }
        sum
    }

    /// The cost curve until `now`: a point wherever something begins or ends, and one at `now`.
    #[must_use]
    pub fn series(&self, now: Instant) -> Vec<CostPoint> {
        let edges = self.rentals.iter().flat_map(|rental| [Some(rental.from), rental.until]).flatten();
        let mut instants: Vec<Instant> = edges.filter(|at| *at < now).chain([now]).collect();
        instants.sort_unstable();
        instants.dedup();
        let rate_at = |at: Instant| -> f64 {
            let rented = |rental: &&Rental| rental.from <= at && rental.until.is_none_or(|until| until > at);
            self.rentals.iter().filter(rented).map(Rental::agbs_per_s).sum()
        };
        instants.iter().map(|&at| CostPoint { at, total: self.total(at), agbs_per_s: rate_at(at) }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanoseconds(seconds * 1_000_000_000)
    }

    fn rental(volume: &str, gib: u64, mib_s: u64, from: u64, until: Option<u64>) -> Rental {
        Rental {
            volume: volume.to_owned(),
            size: Bytes::from_gib(gib),
            bandwidth: Bandwidth::from_mib_s(mib_s),
            usd_per_hour: Some(0.36),
            billing: Billing::default(),
            from: at(from),
            until: until.map(at),
        }
    }

    #[test]
    fn the_papers_cm1_figures() {
        // C(t) = B·N·t: static-slow over 1565 s and static-fast over 1250 s of billed time.
        let hour = |seconds| Duration::from_secs(seconds);
        assert_eq!(agbs(Bytes::from_gib(50), Bandwidth::from_mib_s(33), hour(1565)), 2_582_250.0);
        assert_eq!(agbs(Bytes::from_gib(50), Bandwidth::from_mib_s(128), hour(1250)), 8_000_000.0);
    }

    #[test]
    fn totals_and_series_agree() {
        let mut account = Account::default();
        account.add(rental("backing", 50, 33, 0, None));
        account.add(rental("cache", 10, 128, 100, Some(300)));
        account.add(rental("cache", 4, 128, 500, None));
        account.end("cache", at(600));
        assert_eq!(account.total(at(1000)).agbs, 1650.0 * 1000.0 + 1280.0 * 200.0 + 512.0 * 100.0);
        let series = account.series(at(1000));
        assert_eq!(
            series.iter().map(|point| point.at.as_seconds()).collect::<Vec<_>>(),
            [0.0, 100.0, 300.0, 500.0, 600.0, 1000.0]
        );
        assert_eq!(
            series.iter().map(|point| point.agbs_per_s).collect::<Vec<_>>(),
            [1650.0, 2930.0, 1650.0, 2162.0, 1650.0, 1650.0]
        );
        assert_eq!(account.total_of("cache", at(550)).agbs, 1280.0 * 200.0 + 512.0 * 50.0);
    }

    #[test]
    fn money_is_billed_time_and_unknown_stays_unknown() {
        let billing = Billing {
            granularity: crate::units::Span(Duration::from_secs(1)),
            minimum: crate::units::Span(Duration::from_secs(60)),
            ..Billing::default()
        };
        let short = Rental { billing, ..rental("cache", 1, 1, 0, Some(10)) };
        let mut account = Account::default();
        account.add(short);
        assert!((account.total(at(1000)).usd.unwrap() - 0.006).abs() < 1e-12);
        account.add(Rental { usd_per_hour: None, ..rental("other", 1, 1, 20, None) });
        assert!(account.total(at(15)).usd.is_some());
        assert_eq!(account.total(at(30)).usd, None);
    }

    #[test]
    fn a_volume_that_grows_is_billed_by_each_size_for_its_time_and_once_for_the_shortest() {
        let seconds = |seconds| crate::units::Span(Duration::from_secs(seconds));
        let billing = Billing { granularity: seconds(10), minimum: seconds(60), ..Billing::default() };
        let of = |gib: u64, from, until| Rental {
            billing: billing.clone(),
            usd_per_hour: Some(0.36 * gib as f64),
            ..rental("cache", gib, 1, from, until)
        };
        // A hundredth of a cent for each GiB and second.
        let cents = |account: &Account, now| (account.total(at(now)).usd.unwrap() * 1e4).round() as u64;
        let mut account = Account::default();
        account.add(of(1, 100, None));
        assert_eq!(cents(&account, 110), 60, "the shortest time, if it ended now");
        account.add(of(4, 110, None));
        assert_eq!(cents(&account, 105), 60, "nothing is known of the growth yet");
        assert_eq!(cents(&account, 120), 10 + 4 * 50, "the rest of the shortest time at the later price");
        account.end("cache", at(175));
        assert_eq!(cents(&account, 1000), 10 + 4 * 70, "75 s are 80 s");
        assert_eq!(account.total(at(1000)).agbs, 10.0 + 4.0 * 65.0);
        // The next one is another volume.
        account.add(of(2, 300, Some(301)));
        assert_eq!(cents(&account, 1000), 10 + 4 * 70 + 2 * 60);
    }

    proptest! {
        #[test]
        fn series_is_the_integral_of_its_rate(volumes in prop::collection::vec((0u64..4, 1u64..20, 1u64..200, 0u64..500, 1u64..500), 1..12)) {
            let mut account = Account::default();
            for (volume, gib, mib_s, from, length) in volumes {
                account.add(rental(&volume.to_string(), gib, mib_s, from, Some(from + length)));
            }
            let series = account.series(at(2000));
            for pair in series.windows(2) {
                let grown = pair[1].total.agbs - pair[0].total.agbs;
                let integral = pair[0].agbs_per_s * (pair[1].at - pair[0].at).as_secs_f64();
                prop_assert!((grown - integral).abs() < 1e-6 * (1.0 + pair[1].total.agbs));
            }
        }
    }
}
