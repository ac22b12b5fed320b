//! The smallest volume of a type that gives what is needed.

use serde::{Deserialize, Serialize};

use super::{BandwidthRange, IopsRange, Performance, Provision, VolumeType};
use crate::bucket::Limits;
use crate::units::{Bandwidth, Bytes, Iops, MIB};

/// What may carry a need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Supply {
    /// For ever.
    Sustained,
    /// While burst credits last.
    OnCredits,
}

/// A volume that could be rented.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Offer {
    /// Its size.
    pub size: Bytes,
    /// What is bought besides.
    pub bought: Provision,
    /// What it gives, by the supply that was asked for.
    pub gives: Limits,
    /// USD a month; `None`: unknown.
    pub usd_month: Option<f64>,
}

impl VolumeType {
    /// The cheapest volume of at least `size` that sustains `need`; `None`: this type has none.
    #[must_use]
    pub fn cheapest_with(&self, size: Bytes, need: &Limits) -> Option<Offer> {
        self.offer(size, need, Supply::Sustained)
    }

    /// The smallest volume of at least `size` that gives `need`, with the least bought that does: no larger one is
    /// cheaper, for no price falls with the size. `None`: the type's limits forbid it, or its limits are unknown and
    /// something is needed.
    #[must_use]
    pub fn offer(&self, size: Bytes, need: &Limits, supply: Supply) -> Option<Offer> {
        if !self.limits_are_known() && *need != Limits::NONE {
            return None;
        }
        // Whatever a size gives, a larger one gives too.
        self.smallest(size, |size| self.sufficient(size, need, supply))
    }

    /// What the smallest size of at least `size` has of something that every larger one has too; `None`: no size has it.
    pub fn smallest<T>(&self, size: Bytes, has: impl Fn(Bytes) -> Option<T>) -> Option<T> {
        let least = self.size.fit(size)?;
        let step = self.size.step.get().max(1);
        let (mut low, mut high) = (0, (self.size.max.get() - least.get()) / step);
        let at = |steps: u64| Bytes::new(least.get() + steps * step);
        has(at(high))?;
        while low < high {
            let middle = low + (high - low) / 2;
            if has(at(middle)).is_some() {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        has(at(low))
    }

    /// A volume of exactly this size, if it gives what is needed.
    fn sufficient(&self, size: Bytes, need: &Limits, supply: Supply) -> Option<Offer> {
        let bought = match &self.performance {
            Performance::Provisioned { iops, bandwidth } => least_provision(iops, bandwidth, size, need)?,
            _ => Provision::default(),
        };
        self.check(size, &bought).ok()?;
        let gives = match supply {
            Supply::Sustained => self.sustained_with(size, &bought),
            Supply::OnCredits => self.limits_with(size, &bought),
        };
        let enough = need.bandwidth.is_none_or(|need| gives.bandwidth.is_none_or(|has| has >= need))
            && need.iops.is_none_or(|need| gives.iops.is_none_or(|has| has >= need));
        enough.then(|| Offer { size, bought, gives, usd_month: self.price_per_month(size, &bought) })
    }
}

/// The least to buy with a volume of this size for a need; `None`: it cannot be had at any size.
fn least_provision(range: &IopsRange, bandwidths: &BandwidthRange, size: Bytes, need: &Limits) -> Option<Provision> {
    let included = bandwidths.included.max(bandwidths.min);
    if let Some(per_mib_s) = range.per_mib_s {
        let for_iops = need.iops.map(|iops| Bandwidth::new(iops.get().saturating_mul(MIB).div_ceil(per_mib_s.get())));
        let needed = need.bandwidth.max(for_iops).filter(|needed| Some(*needed) > included);
        let least = bandwidths.min_for(size, range.min);
        return Some(Provision { iops: None, bandwidth: needed.map(|needed| needed.max(least.unwrap_or(needed))) });
    }
    let for_bandwidth = match need.bandwidth {
        Some(need) => Some(iops_for(range.min, range.max, |iops| bandwidths.max_at(iops) >= need)?),
        None => None,
    };
    let needed = need.iops.max(for_bandwidth).filter(|iops| *iops > range.included.unwrap_or(range.min));
    let iops = needed.map(|iops| iops.max(range.min_at(size)));
    let sold = !bandwidths.follows_iops;
    let bandwidth = need.bandwidth.filter(|need| sold && included.is_some_and(|included| *need > included));
    let least = iops.and_then(|iops| bandwidths.min_for(size, iops));
    Some(Provision { iops, bandwidth: bandwidth.map(|bandwidth| bandwidth.max(least.unwrap_or(bandwidth))) })
}

/// The least IOPS of a range for which something holds that holds for all more.
fn iops_for(min: Iops, max: Iops, holds: impl Fn(Iops) -> bool) -> Option<Iops> {
    if !holds(max) {
        return None;
    }
    let (mut low, mut high) = (min.get(), max.get());
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(Iops::new(middle)) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    Some(Iops::new(low))
}
