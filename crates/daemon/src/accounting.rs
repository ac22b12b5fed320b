//! What boosts cost, and what moved when: for `status`, and for the reports that plot it.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use surgetank_model::cost::{Account, Cost, Rental};
use surgetank_model::volume_type::{BilledTime, Billing};
use surgetank_model::{Bandwidth, Bytes, Instant};
use surgetank_policy as policy;

use crate::shard::Sample;

/// Samples that are kept: four hours at one a second.
const ACTIVITY_MAX: usize = 4 * 3600;
/// Finished boosts that are kept in memory.
const BOOSTS_MAX: usize = 1024;
/// Hours in a month, as providers' price lists count it.
pub const HOURS_PER_MONTH: f64 = 730.0;

/// What a device has cost over all runs of the daemon. Part of the journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Totals {
    /// Adjusted GB-seconds of everything rented.
    pub agbs: f64,
    /// USD; `None`: a price is unknown.
    pub usd: Option<f64>,
}

impl Totals {
    /// Nothing, at known prices.
    pub const ZERO: Self = Self { agbs: 0.0, usd: Some(0.0) };

    /// Both together.
    #[must_use]
    pub fn plus(self, more: Self) -> Self {
        let usd = self.usd.zip(more.usd).map(|(before, usd)| before + usd);
        Self { agbs: self.agbs + more.agbs, usd }
    }
}

/// What is known of a volume's price.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Price {
    /// Reserved bandwidth.
    pub bandwidth: Bandwidth,
    /// USD per GiB and month; `None`: unknown.
    pub usd_per_gib_month: Option<f64>,
    /// How long a volume is billed for.
    pub billed_time: BilledTime,
}

impl Price {
    /// USD an hour for a volume of this size.
    #[must_use]
    pub fn usd_per_hour(&self, size: Bytes) -> Option<f64> {
        self.usd_per_gib_month.map(|usd| usd * size.as_gib() / HOURS_PER_MONTH)
    }

    /// USD for what is billed beyond the time for which a volume was rented, at its last size.
    fn rest(&self, size: Bytes, rented: Duration) -> Option<f64> {
        let rest = self.billed_time.of(rented).saturating_sub(rented);
        self.usd_per_hour(size).map(|usd| usd * rest.as_secs_f64() / 3600.0)
    }

    fn rental(&self, volume: &str, size: Bytes, from: Instant) -> Rental {
        Rental {
            volume: volume.to_owned(),
            size,
            bandwidth: self.bandwidth,
            usd_per_hour: self.usd_per_hour(size),
            billing: Billing::default(),
            from,
            until: None,
        }
    }
}

/// A finished boost. Times that were not reached are `None`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BoostReport {
    /// Seconds since the daemon's start at which the volume was asked for.
    pub started_s: f64,
    /// From asking for the volume to the first absorbed write.
    pub attach_s: Option<f64>,
    /// From the first absorbed write to the last drain.
    pub absorb_s: Option<f64>,
    /// From the last drain until the engine released it.
    pub drain_s: Option<f64>,
    /// From asking for the volume until it was deleted.
    pub rented_s: f64,
    /// Size of the caching volume, as large as it became.
    pub cache_gib: f64,
    /// From when it was billed as which size, in seconds since the daemon's start and GiB: several if it grew.
    pub sizes: Vec<(f64, f64)>,
    /// Most of it in use.
    pub high_water_gib: f64,
    /// What a larger one would have taken.
    pub evicted_gib: f64,
}

impl BoostReport {
    fn new(record: &policy::BoostRecord) -> Self {
        let seconds = |time: Option<Duration>| time.map(|time| time.as_secs_f64());
        Self {
            started_s: record.started.as_seconds(),
            attach_s: seconds(record.attach_time()),
            absorb_s: seconds(record.absorb_time()),
            drain_s: seconds(record.drain_time()),
            rented_s: record.ended.since(record.started).as_secs_f64(),
            cache_gib: record.size.as_gib(),
            sizes: record.sizes.iter().map(|(size, from)| (from.as_seconds(), size.as_gib())).collect(),
            high_water_gib: record.high_water.as_gib(),
            evicted_gib: record.evicted.as_gib(),
        }
    }
}

/// What moved in one sampling interval, in bytes, and the levels at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Activity {
    /// End of the interval, in seconds since the daemon's start.
    pub at_s: f64,
    /// Its length.
    pub interval_s: f64,
    /// Read by the application.
    pub app_read_bytes: u64,
    /// Written by the application.
    pub app_written_bytes: u64,
    /// Read from the backing volume.
    pub backing_read_bytes: u64,
    /// Written to the backing volume, by the application or the drain.
    pub backing_written_bytes: u64,
    /// Read from the caching volume.
    pub cache_read_bytes: u64,
    /// Written to the caching volume.
    pub cache_written_bytes: u64,
    /// Of `backing_written_bytes`: by the drain.
    pub drained_bytes: u64,
    /// Not yet on the backing volume.
    pub dirty_bytes: u64,
    /// Size of the caching volume in use.
    pub cache_bytes: u64,
}

/// The accounts and the activity of one device.
#[derive(Debug)]
pub struct Accounts {
    account: Account,
    /// Costs before this run of the daemon.
    before: Totals,
    /// What the caching volume that an earlier run has rented cost until this run, and for how long it was rented.
    taken_over: Option<(Totals, Duration)>,
    /// Since when this run pays for the caching volume that is rented.
    rented: Option<Instant>,
    /// USD for what was billed of caching volumes beyond the time for which they were rented; `None`: their price is unknown.
    beyond: Option<f64>,
    caching: Option<Price>,
    boosts: VecDeque<BoostReport>,
    activity: VecDeque<Activity>,
    last: Option<Sample>,
}

const BACKING: &str = "backing";
const CACHING: &str = "caching";

impl Accounts {
    /// Opens the accounts: the backing volume is rented all the time.
    #[must_use]
    pub fn new(now: Instant, before: Totals, backing: Price, backing_size: Bytes, caching: Option<Price>) -> Self {
        let mut account = Account::default();
        account.add(backing.rental(BACKING, backing_size, now));
        Self {
            account,
            before,
            taken_over: None,
            rented: None,
            beyond: Some(0.0),
            caching,
            boosts: VecDeque::new(),
            activity: VecDeque::new(),
            last: None,
        }
    }

    /// A caching volume is asked for: the bill starts.
    pub fn rent(&mut self, now: Instant, size: Bytes) {
        (self.rented, self.taken_over) = (Some(now), None);
        self.bill(now, size);
    }

    /// The same for one that an earlier run has rented, for so long and at this cost.
    pub fn take_over(&mut self, now: Instant, size: Bytes, before: (Totals, Duration)) {
        self.rent(now, size);
        self.taken_over = Some(before);
    }

    fn bill(&mut self, now: Instant, size: Bytes) {
        if let Some(price) = self.caching {
            self.account.add(price.rental(CACHING, size, now));
        }
    }

    /// The caching volume that is rented is billed as one of this size from now on.
    pub fn resize(&mut self, now: Instant, size: Bytes) {
        let open = |rental: &&Rental| rental.volume == CACHING && rental.until.is_none();
        if self.account.rentals().iter().rfind(open).is_some_and(|rental| rental.size != size) {
            self.bill(now, size);
        }
    }

    /// The caching volume is gone: the bill stops, at the end of what is billed. `was_there`: it was, or may have been.
    pub fn end_rental(&mut self, now: Instant, was_there: bool) {
        let last = self.account.rentals().iter().rfind(|rental| rental.volume == CACHING && was_there);
        if let (Some(since), Some(last), Some(price)) = (self.rented, last, self.caching) {
            let before = self.taken_over.map_or(Duration::ZERO, |(_, lasted)| lasted);
            let rest = price.rest(last.size, before.saturating_add(now.since(since)));
            self.beyond = self.beyond.zip(rest).map(|(beyond, rest)| beyond + rest);
        }
        self.rented = None;
        self.taken_over = None;
        self.account.end(CACHING, now);
    }

    /// What the caching volume that is rented has cost until now, earlier runs included; `None`: none is rented.
    #[must_use]
    pub fn rental_cost(&self, now: Instant) -> Option<Totals> {
        let since = self.rented?;
        let of_it = |rental: &&Rental| rental.volume == CACHING && rental.from >= since;
        let mut account = Account::default();
        self.account.rentals().iter().filter(of_it).for_each(|rental| account.add(rental.clone()));
        let Cost { agbs, usd } = account.total(now);
        Some(self.taken_over.map_or(Totals::ZERO, |(before, _)| before).plus(Totals { agbs, usd }))
    }

    /// What the caching volume that an earlier run has rented cost until now, and for how long it is rented, in all runs; `None`:
    /// this run has rented it.
    #[must_use]
    pub fn over_runs(&self, now: Instant) -> Option<(Totals, Duration)> {
        let (_, lasted) = self.taken_over?;
        Some((self.rental_cost(now)?, lasted.saturating_add(now.since(self.rented?))))
    }

    /// What the caching volume of a boost cost, each of its sizes for its time; `None`: its price is not known at all.
    #[must_use]
    pub fn boost_cost(&self, record: &policy::BoostRecord) -> Option<Totals> {
        let price = self.caching?;
        let held = record.held().map(|(_, held)| held).sum();
        let last = record.held().last().map_or(Bytes::ZERO, |(size, _)| size);
        let beyond = Totals { agbs: 0.0, usd: if record.was_there { price.rest(last, held) } else { Some(0.0) } };
        Some(record.held().fold(beyond, |sum, (size, held)| {
            let usd = price.usd_per_hour(size).map(|usd| usd * held.as_secs_f64() / 3600.0);
            Totals {
                agbs: sum.agbs + surgetank_model::cost::agbs(size, price.bandwidth, held),
                usd: sum.usd.zip(usd).map(|(sum, usd)| sum + usd),
            }
        }))
    }

    /// A boost has ended.
    pub fn boosted(&mut self, record: &policy::BoostRecord) {
        if self.boosts.len() == BOOSTS_MAX {
            self.boosts.pop_front();
        }
        self.boosts.push_back(BoostReport::new(record));
    }

    /// What everything cost until now, earlier runs included.
    #[must_use]
    pub fn totals(&self, now: Instant) -> Totals {
        let Cost { agbs, usd } = self.account.total(now);
        let before = if self.before == Totals::default() { Some(0.0) } else { self.before.usd };
        let usd = usd.zip(self.beyond).map(|(usd, beyond)| usd + beyond);
        Totals { agbs: self.before.agbs + agbs, usd: before.zip(usd).map(|(before, usd)| before + usd) }
    }

    /// Takes a sample and remembers what moved since the last.
    pub fn observe(&mut self, sample: &Sample) {
        if let Some(last) = &self.last {
            let activity = difference(last, sample);
            if self.activity.len() == ACTIVITY_MAX {
                self.activity.pop_front();
            }
            self.activity.push_back(activity);
        }
        self.last = Some(sample.clone());
    }

    /// The application's throughput over the last interval, in bytes per second.
    #[must_use]
    pub fn throughput(&self) -> f64 {
        self.activity
            .back()
            .map_or(0.0, |last| (last.app_read_bytes + last.app_written_bytes) as f64 / last.interval_s.max(1e-9))
    }

    /// For reports: finished boosts, activity, and what was rented when.
    #[must_use]
    pub fn report(&self) -> (Vec<BoostReport>, Vec<Activity>, Account) {
        (self.boosts.iter().cloned().collect(), self.activity.iter().copied().collect(), self.account.clone())
    }
}

fn difference(last: &Sample, now: &Sample) -> Activity {
    // A counter that counts from the adoption begins anew with the next caching volume.
    let drained = now.status.drained_bytes.checked_sub(last.status.drained_bytes).unwrap_or(now.status.drained_bytes);
    Activity {
        at_s: now.now.as_seconds(),
        interval_s: now.now.since(last.now).as_secs_f64(),
        app_read_bytes: now.observation.read_bytes.saturating_sub(last.observation.read_bytes),
        app_written_bytes: now.observation.written_bytes.saturating_sub(last.observation.written_bytes),
        backing_read_bytes: now.backing.read_bytes - last.backing.read_bytes,
        backing_written_bytes: now.backing.written_bytes - last.backing.written_bytes,
        cache_read_bytes: now.cache.read_bytes - last.cache.read_bytes,
        cache_written_bytes: now.cache.written_bytes - last.cache.written_bytes,
        drained_bytes: drained,
        dirty_bytes: now.status.dirty_bytes,
        cache_bytes: now.status.cache_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: Bytes = Bytes::from_gib(1);

    #[test]
    fn a_boost_costs_what_it_cost_in_all_runs_and_at_all_its_sizes() {
        let at = |seconds: u64| Instant::ZERO + Duration::from_secs(seconds);
        let price = Price {
            bandwidth: Bandwidth::from_mib_s(100),
            usd_per_gib_month: None,
            billed_time: BilledTime { minimum: Duration::from_secs(60), ..BilledTime::default() },
        };
        let mut accounts = Accounts::new(at(0), Totals::default(), price, GIB, Some(price));
        assert_eq!(accounts.rental_cost(at(0)), None);
        let before = (Totals { agbs: 700.0, usd: None }, Duration::from_secs(7));
        accounts.take_over(at(1), GIB, before);
        accounts.resize(at(3), Bytes::from_gib(2));
        let cost = accounts.rental_cost(at(4)).unwrap();
        assert_eq!((cost.agbs, cost.usd), (700.0 + 200.0 + 200.0, None));
        assert_eq!(accounts.over_runs(at(4)), Some((cost, Duration::from_secs(10))));
        accounts.end_rental(at(4), true);
        assert_eq!(accounts.rental_cost(at(5)), None);
        accounts.rent(at(6), GIB);
        assert_eq!(accounts.rental_cost(at(7)).unwrap().agbs, 100.0, "the next one has its own cost alone");
        assert_eq!(accounts.over_runs(at(7)), None);
    }

    /// Azure bills an hour, whichever runs of the daemon it was rented in.
    #[test]
    fn a_short_boost_costs_what_is_billed_at_least() {
        let at = |minutes: u64| Instant::ZERO + Duration::from_secs(60 * minutes);
        let hour = Duration::from_secs(3600);
        let billed_time = BilledTime { minimum: hour, granularity: hour };
        let price = |usd| Price { bandwidth: Bandwidth::from_mib_s(100), usd_per_gib_month: Some(usd), billed_time };
        let usd = |accounts: &Accounts, minutes| accounts.totals(at(minutes)).usd.unwrap();
        let mut accounts = Accounts::new(at(0), Totals::ZERO, price(0.0), GIB, Some(price(HOURS_PER_MONTH)));
        accounts.rent(at(0), GIB);
        assert_eq!(usd(&accounts, 6), 0.1, "as long as it is rented, its time counts");
        accounts.end_rental(at(6), true);
        accounts.end_rental(at(7), true);
        assert!((usd(&accounts, 30) - 1.0).abs() < 1e-12);
        accounts.take_over(at(30), GIB, (Totals::ZERO, Duration::from_secs(24 * 60)));
        accounts.end_rental(at(36), true);
        assert!(
            (usd(&accounts, 36) - 1.6).abs() < 1e-12,
            "24 minutes were counted before, 6 now, and 30 were billed beyond"
        );
        accounts.rent(at(40), GIB);
        accounts.end_rental(at(159), true);
        assert!((usd(&accounts, 160) - 3.6).abs() < 1e-12, "what was begun of an hour is paid for");
        accounts.rent(at(160), GIB);
        accounts.end_rental(at(163), false);
        assert!((usd(&accounts, 163) - 3.65).abs() < 1e-12, "no volume was there");
    }
}
