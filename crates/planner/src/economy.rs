//! What a month of a repeated burst costs: on static volumes as fast, on volumes raised in place, and on elastic devices.
//!
//! A [`Load`] writes a burst again and again, which must be taken within a time, and reads and writes a little in between. A way to
//! rent storage counts only if every burst of a month is in time: from whatever bandwidth is sustained, or from credits that
//! the pauses earn back; with the provider's latencies, its attachment limit and its shortest billed time. What
//! transactions cost is included. Nothing here is fitted: limits, credits, prices and latencies are the catalog's.

mod elastic;
mod fixed;

use std::time::Duration;

use serde::Serialize;
use surgetank_model::units::MIB;
use surgetank_model::volume_type::{Performance, Price};
use surgetank_model::{Bandwidth, Bytes, Catalog, Iops, Limits, VolumeType};

use crate::credits::Buckets;

/// What a transaction carries at most.
const TRANSACTION: Bytes = Bytes::new(256 << 10);
/// An I/O of a volume that sells bandwidth credits costs so many of them at least, if it is not in order.
const RANDOM_CREDIT: Bytes = Bytes::new(MIB);
/// A month, as the catalog's prices count it.
const MONTH_S: f64 = 730.0 * 3600.0;

/// A burst that is written again and again.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// What the volume holds.
    pub capacity: Bytes,
    /// What a burst writes, above zero, in order.
    pub burst: Bytes,
    /// Bytes of its requests, above zero.
    pub request: Bytes,
    /// How long writing it may take, above zero.
    pub within: Duration,
    /// From the beginning of one burst to that of the next, longer than `within`.
    pub every: Duration,
    /// How many bursts a month has, at most as many as fit.
    pub bursts_month: u32,
    /// What is read and written between bursts, in random requests of 8 KiB; `None`: nothing.
    pub between: Option<Iops>,
}

impl Load {
    /// Bytes of a request between bursts.
    const RANDOM: Bytes = Bytes::new(8 << 10);

    /// What bursts need.
    #[must_use]
    pub fn rate(&self) -> Bandwidth {
        Bandwidth::new((self.burst.get() as f64 / self.within.as_secs_f64()).ceil() as u64)
    }

    /// What is moved between bursts, bytes per second.
    fn between_bytes(&self) -> u64 {
        self.between.map_or(0, |iops| iops.get() * Self::RANDOM.get())
    }

    /// What that takes of a type's bandwidth, or of its credits for it.
    fn between_cost(&self, known: &VolumeType) -> u64 {
        match known.performance {
            Performance::BandwidthCredits { .. } => {
                self.between.map_or(0, |iops| iops.get().saturating_mul(RANDOM_CREDIT.get()))
            }
            _ => self.between_bytes(),
        }
    }

    /// What a volume of a type needs between bursts.
    fn between_limits(&self, known: &VolumeType) -> Limits {
        Limits { bandwidth: self.between.map(|_| Bandwidth::new(self.between_cost(known))), iops: self.between }
    }

    /// What a backing volume of a type needs: what goes on between bursts, and a drain that takes half of the time to the next one.
    fn drain_limits(&self, known: &VolumeType) -> Limits {
        let drain = (self.burst.get() as f64 / (self.every.as_secs_f64() / 2.0)).ceil() as u64;
        let iops = drain.div_ceil(operation(known).get()) + self.between.map_or(0, Iops::get);
        Limits { bandwidth: Some(Bandwidth::new(drain + self.between_cost(known))), iops: Some(Iops::new(iops)) }
    }

    /// What a volume needs that takes the bursts itself, with what goes on between them.
    fn burst_limits(&self) -> Limits {
        let iops = self.rate().get().div_ceil(self.request.get()) + self.between.map_or(0, Iops::get);
        Limits {
            bandwidth: Some(Bandwidth::new(self.rate().get() + self.between_bytes())),
            iops: Some(Iops::new(iops)),
        }
    }

    /// USD a month for transactions: the requests between bursts, and all bursts in requests of this size.
    fn transactions_usd(&self, known: &VolumeType, request: Bytes) -> f64 {
        let each = known.price.as_ref().and_then(Price::transaction_usd).unwrap_or_default();
        let between = self.between.map_or(0.0, |iops| iops.get() as f64 * MONTH_S);
        each * (between + self.burst_transactions(request) * f64::from(self.bursts_month))
    }

    /// Transactions of one burst in requests of this size.
    fn burst_transactions(&self, request: Bytes) -> f64 {
        (self.burst.get() as f64 / request.min(TRANSACTION).get() as f64).ceil()
    }

    /// Whether so many volumes of a type and size sustain what goes on between bursts, where each random I/O costs more credits
    /// than it moves.
    fn sustains_between(&self, known: &VolumeType, size: Bytes, volumes: u32) -> bool {
        let Performance::BandwidthCredits { baseline, .. } = &known.performance else { return true };
        let needed = self.between_cost(known);
        baseline.at(size).is_none_or(|baseline| baseline.get().saturating_mul(u64::from(volumes)) >= needed)
    }

    /// Whether each of so many volumes takes its share of a burst at this rate, and has earned the credits back before the next. The
    /// rate is of one volume; a type without credits has whatever its limits say.
    fn lasts(&self, known: &VolumeType, size: Bytes, volumes: u32, rate: Bandwidth, request: Bytes) -> bool {
        let Some(mut buckets) = Buckets::full(known, size, request.get() as f64) else { return true };
        let share = self.burst.get() as f64 / f64::from(volumes);
        let rate = rate.get() as f64;
        let between = self.between_cost(known) as f64 / f64::from(volumes);
        let full = buckets.clone();
        let seconds = buckets.transfer(share, rate);
        let rest = (self.every.as_secs_f64() - seconds).max(0.0);
        // What goes on between bursts may be more than a burst is.
        let paused = buckets.pause(rest, between * rest, rate.max(between));
        let in_time = seconds <= share / rate * (1.0 + 1e-9) && paused <= rest * (1.0 + 1e-9);
        in_time && buckets.hold_as_much_as(&full)
    }
}

/// The most that counts as one operation of a long write.
fn operation(known: &VolumeType) -> Bytes {
    match known.performance {
        Performance::BandwidthCredits { .. } => RANDOM_CREDIT,
        _ => TRANSACTION,
    }
}

/// How the bursts are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// On volumes that are as fast for ever, or on credits that last.
    Static,
    /// On a volume that is raised for them, and lowered again.
    InPlace,
    /// By boosts that are announced, so that the caching volumes are there when a burst begins.
    Announced,
    /// By boosts that begin when a burst is seen.
    Reactive,
}

/// The stripe of each boost.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Caching {
    /// Type of its volumes.
    pub volume_type: String,
    /// How many are attached at a time.
    pub volumes: u32,
    /// Size of each.
    pub size_gib: f64,
    /// What each gives, in requests of the load's size.
    pub mib_s: f64,
    /// What the backing volume gives to bursts and drains.
    pub backing_mib_s: f64,
    /// From the call that creates them until they are gone.
    pub boost_s: f64,
}

/// A way to rent storage for a load.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Way {
    /// How the bursts are taken.
    pub kind: Kind,
    /// Type of the volume that holds the data.
    pub volume_type: String,
    /// What is rented, for people.
    pub what: String,
    /// USD a month, transactions included.
    pub usd_month: f64,
    /// USD of that for transactions.
    pub transactions_usd: f64,
    /// USD of that for caching volumes, or for being raised.
    pub bursts_usd: f64,
    /// How long a burst takes.
    pub burst_s: f64,
    /// The caching volumes and what they stand before; `None`: the volume takes the bursts itself.
    pub caching: Option<Caching>,
    /// For people.
    pub note: String,
}

/// The ways of one provider for a load.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Economy {
    /// The cheapest static one; `None`: nothing is as fast.
    pub fixed: Option<Way>,
    /// The cheapest that is raised in place; `None`: none can be.
    pub in_place: Option<Way>,
    /// The cheapest elastic one over each type of backing volume, announced, the cheapest first.
    pub elastic: Vec<Way>,
    /// The cheapest elastic one without announcements; `None`: no boost comes in time.
    pub reactive: Option<Way>,
}

impl Economy {
    /// The elastic device's money over that of the cheapest way without one; `None`: one of them cannot do it.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        let others = [&self.fixed, &self.in_place].into_iter().flatten().map(|way| way.usd_month);
        Some(self.elastic.first()?.usd_month / others.min_by(f64::total_cmp)?)
    }
}

/// Compares what a provider rents out for a load.
#[must_use]
pub fn compare(catalog: &Catalog, provider: &str, load: &Load) -> Economy {
    let types: Vec<&VolumeType> =
        catalog.iter().filter(|known| known.provider == provider && known.limits_are_known()).collect();
    let over = |kind| elastic::over_each(catalog, provider, &types, load, kind);
    Economy {
        fixed: fixed::cheapest(catalog, provider, load),
        in_place: types.iter().filter_map(|known| fixed::raised(catalog, known, load)).min_by(cheaper),
        elastic: over(Kind::Announced),
        reactive: over(Kind::Reactive).into_iter().next(),
    }
}

/// By money, to a millionth of a dollar; of equals by time.
fn cheaper(one: &Way, other: &Way) -> std::cmp::Ordering {
    let money = |way: &Way| (way.usd_month * 1e6).round();
    money(one).total_cmp(&money(other)).then(one.burst_s.total_cmp(&other.burst_s))
}

/// "8 × 2 GiB gp3", "gp3 of 2 GiB".
fn named(volumes: u32, size: Bytes, known: &VolumeType) -> String {
    match volumes {
        1 => format!("{size} {}", known.name),
        _ => format!("{volumes} × {size} {}", known.name),
    }
}
