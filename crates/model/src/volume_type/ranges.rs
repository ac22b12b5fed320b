//! What may be bought within a volume type, and what follows from a volume's size.

use serde::{Deserialize, Serialize};

use crate::units::{Bandwidth, Bytes, GIB, Iops, Span};

/// A bandwidth that grows with the size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BandwidthBySize {
    /// For each GiB.
    pub per_gib: Option<Bandwidth>,
    /// At least.
    pub min: Option<Bandwidth>,
    /// At most.
    pub max: Option<Bandwidth>,
}

impl BandwidthBySize {
    /// The bandwidth at a size; `None`: not limited.
    #[must_use]
    pub fn at(&self, size: Bytes) -> Option<Bandwidth> {
        clamp(self.per_gib.map(|each| for_size(each, size)), self.min, self.max)
    }
}

/// A rate of operations that grows with the size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IopsBySize {
    /// For each GiB.
    pub per_gib: Option<f64>,
    /// At least.
    pub min: Option<Iops>,
    /// At most.
    pub max: Option<Iops>,
}

impl IopsBySize {
    /// The rate at a size, rounded down; `None`: not limited.
    #[must_use]
    pub fn at(&self, size: Bytes) -> Option<Iops> {
        // A float cast saturates, so no size overflows.
        let scaled = self.per_gib.map(|per_gib| Iops::new((per_gib * size.as_gib()) as u64));
        clamp(scaled, self.min, self.max)
    }
}

pub(super) fn clamp<T: Ord + Copy>(value: Option<T>, min: Option<T>, max: Option<T>) -> Option<T> {
    let value = match (value, min) {
        (Some(value), Some(min)) => value.max(min),
        (Some(value), None) => value,
        (None, _) => return max,
    };
    Some(max.map_or(value, |max| value.min(max)))
}

/// Bandwidth of volumes up to a size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BandwidthStep {
    /// The largest size of this step.
    pub up_to: Bytes,
    /// The bandwidth.
    pub bandwidth: Bandwidth,
}

/// How many IOPS may be bought, or follow the bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IopsRange {
    /// At least.
    pub min: Iops,
    /// At most.
    pub max: Iops,
    /// Part of the size's price.
    pub included: Option<Iops>,
    /// May be bought at any size, whatever `per_gib_max` says.
    pub floor: Option<Iops>,
    /// At least for each GiB.
    pub per_gib_min: Option<f64>,
    /// At most for each GiB.
    pub per_gib_max: Option<f64>,
    /// They are not bought: each MiB/s of bandwidth brings so many.
    pub per_mib_s: Option<Iops>,
}

impl IopsRange {
    /// The most that a volume of this size may have.
    pub(super) fn max_at(&self, size: Bytes) -> Iops {
        let by_size = self.per_gib_max.map_or(self.max, |per_gib| Iops::new((per_gib * size.as_gib()) as u64));
        by_size.min(self.max).max(self.floor.unwrap_or(Iops::new(1)))
    }

    /// The least that a volume of this size may have.
    pub(super) fn min_at(&self, size: Bytes) -> Iops {
        let by_size = self.per_gib_min.map(|per_gib| Iops::new((per_gib * size.as_gib()).ceil() as u64));
        by_size.map_or(self.min, |by_size| by_size.max(self.min))
    }

    /// What comes with this bandwidth; `None`: they are bought.
    pub(super) fn following(&self, bandwidth: Bandwidth) -> Option<Iops> {
        let per_mib_s = self.per_mib_s?;
        Some(Iops::new((per_mib_s.get() as f64 * bandwidth.as_mib_s()) as u64).clamp(self.min, self.max))
    }
}

/// How much bandwidth may be bought, or follows the IOPS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BandwidthRange {
    /// At least.
    pub min: Option<Bandwidth>,
    /// At most.
    pub max: Bandwidth,
    /// Part of the size's price.
    pub included: Option<Bandwidth>,
    /// At least for each provisioned operation per second.
    pub per_iops_min: Option<Bandwidth>,
    /// At most for each provisioned operation per second.
    pub per_iops: Option<Bandwidth>,
    /// At least for each GiB.
    pub per_gib_min: Option<Bandwidth>,
    /// At most for each GiB.
    pub per_gib_max: Option<Bandwidth>,
    /// It is not bought: each provisioned operation per second brings `per_iops`.
    #[serde(default)]
    pub follows_iops: bool,
    /// In place of `per_iops`, by how many operations per second are provisioned, ascending.
    #[serde(default)]
    pub steps: Vec<BandwidthByIops>,
}

/// The bandwidth that provisioned IOPS bring, up to so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BandwidthByIops {
    /// The most IOPS of this step.
    pub up_to: Iops,
    /// For each of them.
    pub each: Bandwidth,
    /// At most in this step.
    pub max: Bandwidth,
}

impl BandwidthRange {
    /// The most that so many IOPS allow (or bring).
    pub(super) fn max_at(&self, iops: Iops) -> Bandwidth {
        let of = |each: Bandwidth| Bandwidth::new(each.get().saturating_mul(iops.get()));
        let step = self.steps.iter().find(|step| iops <= step.up_to).or(self.steps.last());
        let by_iops = step.map(|step| of(step.each).min(step.max)).or(self.per_iops.map(of));
        by_iops.map_or(self.max, |by_iops| by_iops.min(self.max))
    }

    /// The most that a volume of this size with so many IOPS may have.
    pub(super) fn max_for(&self, size: Bytes, iops: Iops) -> Bandwidth {
        let by_size = self.per_gib_max.map_or(self.max, |each| for_size(each, size));
        self.max_at(iops).min(by_size)
    }

    /// The least that a volume of this size with so many IOPS may have.
    pub(super) fn min_for(&self, size: Bytes, iops: Iops) -> Option<Bandwidth> {
        let by_size = self.per_gib_min.map(|each| for_size(each, size));
        let by_iops = self.per_iops_min.map(|each| Bandwidth::new(each.get().saturating_mul(iops.get())));
        [self.min, by_size, by_iops].into_iter().flatten().max()
    }
}

fn for_size(each: Bandwidth, size: Bytes) -> Bandwidth {
    let bytes_per_s = u128::from(each.get()) * u128::from(size.get()) / u128::from(GIB);
    Bandwidth::new(u64::try_from(bytes_per_s).unwrap_or(u64::MAX))
}

/// A size on offer with what it gives: sizes in between are rounded up to the next tier, and billed as that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// The provider's name of it.
    pub name: String,
    /// The largest volume of this tier.
    pub size: Bytes,
    /// Sustained.
    pub iops: Iops,
    /// Sustained.
    pub bandwidth: Bandwidth,
    /// While credits last; absent: no burst.
    pub burst: Option<TierBurst>,
    /// USD a month; absent: unknown.
    pub usd_month: Option<f64>,
}

/// The burst of a tier: two buckets, one of operations and one of bytes, each as large as its burst rate needs above
/// the sustained one for `time`, and full at creation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierBurst {
    /// At most.
    pub iops: Iops,
    /// At most.
    pub bandwidth: Bandwidth,
    /// How long a full bucket carries its rate.
    pub time: Span,
}
