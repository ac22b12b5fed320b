//! What the optimum depends on: rates, prices and sizes.

use surgetank_cache::format::Geometry;
use surgetank_model::volume_type::{CreditUnit, Credits};
use surgetank_model::{Bytes, Limits};
use surgetank_policy::Config;

use super::{Currency, Objective};
use crate::setup::{Fidelity, Setup};
use crate::volume::BURST;

/// More sizes than this are taken together: the least cost of a group, and the most room.
const SIZES_MAX: usize = 40;
/// What the fastest run is worth: a second more than any cost of it.
const ENDLESS: f64 = 1e6;

/// A volume's service: a constant rate, or with burst credits one of two.
#[derive(Clone, Copy, Debug)]
pub struct Pipe {
    /// Bytes per second.
    pub rate: f64,
    /// Bytes that may be ahead of the rate: what a token bucket saved up.
    pub ahead: f64,
    /// Bytes that full credits serve, and bytes per second that they earn.
    credits: Option<(f64, f64)>,
}

impl Pipe {
    fn new(limits: Limits, credits: Option<&Credits>, request: f64, fidelity: Fidelity) -> Self {
        let bandwidth = limits.bandwidth.map_or(f64::MAX, |bandwidth| bandwidth.get() as f64);
        let iops = limits.iops.map_or(f64::MAX, |iops| iops.get() as f64 * request);
        let credits = credits.map(|credits| {
            let bytes = match credits.unit {
                CreditUnit::Operations => request,
                CreditUnit::Bytes => 1.0,
            };
            (credits.bucket as f64 * bytes, credits.baseline_per_s as f64 * bytes)
        });
        let (rate, ahead) = match fidelity {
            Fidelity::Fluid => (bandwidth.min(iops), 0.0),
            // An I/O is done when it starts, and the log may merge requests into fewer I/Os.
            Fidelity::Block => (bandwidth, bandwidth * BURST.as_secs_f64() + request),
        };
        Self { rate: rate.max(1.0), ahead, credits }
    }

    /// The least seconds for so many bytes while credits last.
    pub fn at_rate(&self, bytes: f64) -> f64 {
        (bytes - self.ahead).max(0.0) / self.rate
    }

    /// The least seconds for so many bytes, whatever was served before.
    pub fn time(&self, bytes: f64) -> f64 {
        let in_credit = |(bucket, earned): (f64, f64)| (bytes - self.ahead - bucket) / earned.max(1.0);
        self.credits.map_or(self.at_rate(bytes), |credits| self.at_rate(bytes).max(in_credit(credits)))
    }

    /// Bytes up to which full credits last.
    pub fn in_credit(&self) -> f64 {
        match self.credits {
            Some((bucket, earned)) if earned < self.rate => bucket * self.rate / (self.rate - earned) + self.ahead,
            _ => 0.0,
        }
    }

    /// The most bytes in so many seconds.
    pub fn moved(&self, seconds: f64) -> f64 {
        let at_rate = self.rate * seconds;
        let most = self.credits.map_or(at_rate, |(bucket, earned)| at_rate.min(bucket + earned.max(1.0) * seconds));
        most + self.ahead
    }
}

/// A size that can be rented, or several that are taken together.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// The largest of them.
    pub bytes: Bytes,
    /// Bytes that may be dirty in it.
    pub capacity: f64,
    /// Cost per second of the smallest.
    pub per_s: f64,
    /// Cost of renting one at all.
    pub fee: f64,
}

/// See the module. Costs are in the objective's currency.
#[derive(Clone, Debug)]
pub struct Problem {
    /// The backing volume.
    pub backing: Pipe,
    /// A caching volume.
    pub caching: Pipe,
    /// Cost per second of the backing volume.
    pub per_s: f64,
    /// Cost of a second of delay.
    pub value: f64,
    /// From small to large; none may be affordable, but all can be had.
    pub sizes: Vec<Size>,
    /// Seconds from the call until a caching volume absorbs.
    pub before: f64,
    /// Seconds from its release until its bill ends.
    pub after: f64,
}

impl Problem {
    /// The run's; `charged` is the share of the shortest billed time that is charged up front, the rest of the price by
    /// the second: every share bounds the bill from below. `None`: a price is unknown.
    pub fn new(setup: &Setup, objective: &Objective, fidelity: Fidelity, charged: f64) -> Option<Self> {
        let request = setup.application.request.get() as f64;
        let caching = &setup.caching;
        let price = |tariff: &surgetank_planner::cost::Tariff, size| {
            let per_second = tariff.per_second(size);
            match objective.currency {
                Currency::Agbs => Some(per_second.agbs),
                Currency::Usd => per_second.usd,
            }
        };
        let minimum_s = match objective.currency {
            Currency::Agbs => 0.0,
            Currency::Usd => caching.tariff.billed_time().least().as_secs_f64(),
        };
        let mut sizes = Vec::new();
        let (groups, moved) = (groups(&setup.policy, Bytes::new(setup.bytes())), setup.bytes());
        for (smallest, largest) in groups {
            let capacity = Geometry::of_volume(largest.get()).map_or(0.0, |geometry| geometry.capacity() as f64);
            // Stands for all larger ones, too, which cost more.
            let capacity = if largest.get() >= moved { capacity.max(moved as f64) } else { capacity };
            // A size that the type does not offer cannot be rented.
            if let Some(per_s) = price(&caching.tariff, smallest).filter(|_| capacity > 0.0) {
                let (fee, per_s) = (per_s * minimum_s * charged, per_s * (1.0 - charged));
                sizes.push(Size { bytes: largest, capacity, per_s, fee });
            }
        }
        let per_s = price(&setup.backing.tariff, setup.backing.size)?;
        let dearest = sizes.iter().map(|size| size.per_s + size.fee).fold(per_s, f64::max);
        let provider = setup.provider;
        Some(Self {
            backing: Pipe::new(setup.backing.limits, setup.backing.credits.as_ref(), request, fidelity),
            caching: Pipe::new(caching.limits, None, request, fidelity),
            per_s,
            value: if objective.value_of_time.is_finite() {
                objective.value_of_time
            } else {
                ENDLESS * dearest.max(1e-9)
            },
            sizes,
            before: (provider.create + provider.attach).as_secs_f64(),
            after: (provider.detach + provider.delete).as_secs_f64(),
        })
    }

    /// Whether there are several bills to choose from: a shortest billed time.
    pub fn has_minimum(setup: &Setup, objective: &Objective) -> bool {
        objective.currency == Currency::Usd && !setup.caching.tariff.billed_time().least().is_zero()
    }

    /// The least seconds for bytes that both volumes take, the caching one from `offset` on.
    pub fn both(&self, bytes: f64, offset: f64) -> f64 {
        let bytes = (bytes - self.backing.ahead - self.caching.ahead).max(0.0);
        let alone = bytes / self.backing.rate;
        if alone <= offset {
            return alone;
        }
        (bytes + self.caching.rate * offset) / (self.backing.rate + self.caching.rate)
    }
}

/// Where groups of `1..=count` end: each is larger than all before it by the same factor, or has one member.
fn ends(count: u64) -> impl Iterator<Item = u64> {
    let series = move |share: f64| {
        let next = move |end: &u64| (*end < count).then(|| ((*end as f64 * share) as u64).clamp(*end + 1, count));
        std::iter::successors(Some(1), next)
    };
    let mut shares = (0..60).map(|step| 1.0 + f64::from(step) / 20.0);
    let few = shares.find(|share| series(*share).count() <= SIZES_MAX);
    series(few.unwrap_or(4.0))
}

/// The sizes that a controller may rent, each as a group of one, or so many together that there are few groups.
fn groups(policy: &Config, written: Bytes) -> Vec<(Bytes, Bytes)> {
    let grain = Bytes::new(policy.grain.get().max(1));
    let most = policy.size_max.min(policy.backing_size.round_up(grain).max(policy.size_min));
    // A cache that holds everything is as good as a larger one.
    let useful = most.min(written.round_up(grain).max(policy.size_min).max(grain));
    let count = useful.get().div_ceil(grain.get());
    let of = |number: u64| Bytes::new(number.saturating_mul(grain.get())).min(most).max(policy.size_min.min(most));
    let grid = ends(count).scan(0, |before, last| {
        let first = std::mem::replace(before, last) + 1;
        Some((of(first), of(last)))
    });
    let told = [Some(policy.initial_size), policy.fixed_size].into_iter().flatten().map(|size| size.min(most));
    let mut groups: Vec<_> = grid.chain(told.map(|size| (size, size))).collect();
    groups.sort_unstable();
    groups.dedup();
    groups
}
