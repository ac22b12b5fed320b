//! Volume types: what a provider rents out, with its limits, credits and price.
//!
//! [`Catalog::builtin`] holds the types that surgetank knows (`catalog.toml`, with source, date and confidence of every
//! figure); [`Catalog::parse`] reads more in the same form.

mod offer;
mod price;
mod ranges;

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bucket::{Limits, TokenBucket};
use crate::time::Instant;
use crate::units::{Bandwidth, Bytes, GIB, Iops};

pub use self::offer::{Offer, Supply};
pub use self::price::{BilledTime, Billing, IopsPriceStep, Price};
use self::ranges::clamp;
pub use self::ranges::{
    BandwidthByIops, BandwidthBySize, BandwidthRange, BandwidthStep, IopsBySize, IopsRange, Tier, TierBurst,
};

/// A kind of volume that can be rented.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeType {
    /// Who rents it out.
    pub provider: String,
    /// The provider's name of it.
    pub name: String,
    /// For people.
    #[serde(default)]
    pub title: String,
    /// What sizes it has.
    pub size: SizeLimits,
    /// What it gives.
    pub performance: Performance,
    /// What it costs; `None`: unknown.
    #[serde(default)]
    pub price: Option<Price>,
    /// `provider/name` of the type whose price is taken for this one, where it has none of its own.
    #[serde(default)]
    pub price_of: Option<String>,
    /// Whether the limits at most hold for all volumes of this type on one machine together, so that an array of them
    /// gives no more.
    #[serde(default)]
    pub limits_per_machine: bool,
    /// How time is billed; filled in from the catalog's provider.
    #[serde(default)]
    pub billing: Billing,
    /// Where the limits come from.
    #[serde(default)]
    pub source: String,
    /// Date of the source.
    #[serde(default)]
    pub as_of: Option<String>,
    /// How sure they are: documented, secondary, derived, stated.
    #[serde(default)]
    pub confidence: String,
    /// For people.
    #[serde(default)]
    pub notes: String,
}

/// What sizes a volume type has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SizeLimits {
    /// The smallest.
    pub min: Bytes,
    /// The largest.
    pub max: Bytes,
    /// Sizes are multiples of this.
    pub step: Bytes,
}

impl SizeLimits {
    /// The smallest size on offer that holds `size`; `None` if there is none.
    #[must_use]
    pub fn fit(&self, size: Bytes) -> Option<Bytes> {
        if size > self.max {
            return None;
        }
        let fitting = size.max(self.min).round_up(Bytes::new(self.step.get().max(1)));
        (fitting <= self.max).then_some(fitting)
    }
}

/// What a volume gives, by its size and by what was bought.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "model", rename_all = "snake_case", deny_unknown_fields)]
pub enum Performance {
    /// The same at every size.
    Fixed {
        /// `None`: not limited.
        bandwidth: Option<Bandwidth>,
        /// `None`: not limited.
        iops: Option<Iops>,
    },
    /// Follows the size.
    PerSize {
        /// By size.
        bandwidth: BandwidthBySize,
        /// By size.
        iops: IopsBySize,
    },
    /// Bought apart from the size, within ranges.
    Provisioned {
        /// What may be bought.
        iops: IopsRange,
        /// What may be bought.
        bandwidth: BandwidthRange,
    },
    /// A baseline by size, and I/O credits above it.
    IopsCredits {
        /// Sustained, and the rate at which credits refill.
        baseline: IopsBySize,
        /// Served at most, while credits last.
        burst: Iops,
        /// Most credits; one is one I/O. Full at creation.
        bucket: u64,
        /// How credits refill.
        burst_refill: BurstRefill,
        /// The largest I/O that counts as one.
        io_unit: Bytes,
        /// Bandwidth by size, ascending.
        bandwidth_steps: Vec<BandwidthStep>,
    },
    /// A baseline by size, and throughput credits above it.
    BandwidthCredits {
        /// Sustained, and the rate at which credits refill.
        baseline: BandwidthBySize,
        /// Served at most, while credits last.
        burst: BandwidthBySize,
        /// Most credits per GiB of volume; one is one byte. Full at creation.
        bucket_per_gib: Bytes,
        /// How credits refill.
        burst_refill: BurstRefill,
        /// `None`: not limited.
        iops: Option<Iops>,
    },
    /// Fixed tiers, ascending; some with a burst on two buckets.
    Tiers {
        /// By size.
        tiers: Vec<Tier>,
        /// How credits refill.
        #[serde(default)]
        burst_refill: BurstRefill,
    },
    /// Whatever the cloud's operator set: unknown until a catalog file says it.
    Operator {},
}

/// How credits refill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BurstRefill {
    /// c ← clamp(c + (baseline − used)·dt, 0, bucket): all credit schemes in the catalog.
    #[default]
    BaselineMinusUsed,
}

/// What was bought besides the size. `None`: the least that can be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Provision {
    /// IOPS.
    pub iops: Option<Iops>,
    /// Bandwidth.
    pub bandwidth: Option<Bandwidth>,
}

/// What credits count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreditUnit {
    /// I/O operations.
    Operations,
    /// Bytes.
    Bytes,
}

/// The burst credits of one volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    /// What a credit is.
    pub unit: CreditUnit,
    /// Sustained rate, and the rate at which credits refill, per second.
    pub baseline_per_s: u64,
    /// Highest rate while credits last, per second.
    pub burst_per_s: u64,
    /// Most credits; the bucket is full at creation.
    pub bucket: u64,
}

impl Credits {
    /// Whether there is anything above the baseline.
    fn are_any(&self) -> bool {
        self.burst_per_s > self.baseline_per_s
    }

    /// The bucket of a volume created at `now`: what is served is taken from it, and it refills at the baseline.
    /// Empty, it lets pass what refills: the baseline. The burst rate is a limit of its own.
    #[must_use]
    pub fn bucket(&self, now: Instant) -> TokenBucket {
        TokenBucket::full(now, self.baseline_per_s, self.bucket)
    }

    /// How long a full bucket carries the burst rate; `None`: for ever.
    #[must_use]
    pub fn burst_time(&self) -> Option<Duration> {
        let drain_per_s = self.burst_per_s.checked_sub(self.baseline_per_s).filter(|rate| *rate > 0)?;
        Some(Iops::new(drain_per_s).time_for(self.bucket))
    }

    /// How long an empty bucket of an idle volume takes to fill.
    #[must_use]
    pub fn refill_time(&self) -> Duration {
        Iops::new(self.baseline_per_s).time_for(self.bucket)
    }
}

impl VolumeType {
    /// `provider/name`.
    #[must_use]
    pub fn key(&self) -> String {
        format!("{}/{}", self.provider, self.name)
    }

    /// Whether a volume of this size may have what was bought.
    ///
    /// # Errors
    /// Which limit forbids it, for people.
    pub fn check(&self, size: Bytes, bought: &Provision) -> Result<(), String> {
        let key = self.key();
        if self.size.fit(size) != Some(size) {
            let SizeLimits { min, max, step } = self.size;
            return Err(format!("{key} has no volume of {size}: sizes are {min} to {max} in steps of {step}"));
        }
        let Performance::Provisioned { iops: range, bandwidth: bandwidths } = &self.performance else {
            return match bought {
                Provision { iops: None, bandwidth: None } => Ok(()),
                _ => Err(format!("{key} does not sell IOPS or bandwidth apart from the size: leave them out")),
            };
        };
        if range.per_mib_s.is_some() && bought.iops.is_some() {
            return Err(format!("{key} does not sell IOPS: they follow the bandwidth"));
        }
        if bandwidths.follows_iops && bought.bandwidth.is_some() {
            return Err(format!("{key} does not sell bandwidth: it follows the IOPS"));
        }
        let (iops, bandwidth) = provisioned(range, bandwidths, size, bought);
        let (least, most) = (range.min_at(size), range.max_at(size));
        if range.per_mib_s.is_none() && (iops < least || iops > most) {
            return Err(format!("{key} of {size} cannot have {iops}: {least} to {most} are possible"));
        }
        let (least, most) = (bandwidths.min_for(size, iops), bandwidths.max_for(size, iops));
        if !bandwidths.follows_iops && (least.is_some_and(|least| bandwidth < least) || bandwidth > most) {
            let from = least.map_or(String::new(), |least| format!("at least {least} and "));
            return Err(format!(
                "{key} of {size} with {iops} cannot have {bandwidth}: {from}at most {most} is possible"
            ));
        }
        Ok(())
    }

    /// The tier of a volume of this size.
    fn tier(&self, size: Bytes) -> Option<&Tier> {
        match &self.performance {
            Performance::Tiers { tiers, .. } => tiers.iter().find(|tier| size <= tier.size),
            _ => None,
        }
    }

    /// The name of the tier of a volume of this size, where there are tiers.
    #[must_use]
    pub fn tier_name(&self, size: Bytes) -> Option<&str> {
        self.tier(size).map(|tier| tier.name.as_str())
    }

    /// Whether it is known what volumes of this type give.
    #[must_use]
    pub fn limits_are_known(&self) -> bool {
        !matches!(self.performance, Performance::Operator {})
    }

    /// The most that a volume of this size gives, while its credits last, with the least that can be bought.
    #[must_use]
    pub fn limits_at(&self, size: Bytes) -> Limits {
        self.limits_with(size, &Provision::default())
    }

    /// The most that a volume of this size gives, while its credits last, with what was bought (see [`Self::check`]).
    #[must_use]
    pub fn limits_with(&self, size: Bytes, bought: &Provision) -> Limits {
        match &self.performance {
            Performance::Fixed { bandwidth, iops } => Limits { bandwidth: *bandwidth, iops: *iops },
            Performance::PerSize { bandwidth, iops } => Limits { bandwidth: bandwidth.at(size), iops: iops.at(size) },
            Performance::Provisioned { iops, bandwidth } => {
                let (iops, bandwidth) = provisioned(iops, bandwidth, size, bought);
                Limits { bandwidth: Some(bandwidth), iops: Some(iops) }
            }
            Performance::IopsCredits { baseline, burst, bandwidth_steps, .. } => {
                let step = bandwidth_steps.iter().find(|step| size <= step.up_to).or(bandwidth_steps.last());
                let iops = baseline.at(size).map_or(*burst, |baseline| baseline.max(*burst));
                Limits { bandwidth: step.map(|step| step.bandwidth), iops: Some(iops) }
            }
            Performance::BandwidthCredits { baseline, burst, iops, .. } => {
                Limits { bandwidth: burst.at(size).max(baseline.at(size)), iops: *iops }
            }
            Performance::Tiers { .. } => {
                let tier = self.tier(size);
                let burst = tier.and_then(|tier| tier.burst.as_ref());
                let bandwidth =
                    tier.map(|tier| burst.map_or(tier.bandwidth, |burst| burst.bandwidth.max(tier.bandwidth)));
                let iops = tier.map(|tier| burst.map_or(tier.iops, |burst| burst.iops.max(tier.iops)));
                Limits { bandwidth, iops }
            }
            Performance::Operator {} => Limits::NONE,
        }
    }

    /// What a volume of this size gives for ever: [`Self::limits_with`] without credits.
    #[must_use]
    pub fn sustained_with(&self, size: Bytes, bought: &Provision) -> Limits {
        let limits = self.limits_with(size, bought);
        match &self.performance {
            Performance::IopsCredits { baseline, io_unit, .. } => {
                let iops = baseline.at(size);
                let carried = iops.map(|iops| Bandwidth::new(iops.get().saturating_mul(io_unit.get())));
                Limits { bandwidth: clamp(carried, None, limits.bandwidth), iops: clamp(iops, None, limits.iops) }
            }
            Performance::BandwidthCredits { baseline, .. } => Limits { bandwidth: baseline.at(size), ..limits },
            Performance::Tiers { .. } => match self.tier(size) {
                Some(tier) => Limits { bandwidth: Some(tier.bandwidth), iops: Some(tier.iops) },
                None => limits,
            },
            Performance::Fixed { .. }
            | Performance::PerSize { .. }
            | Performance::Provisioned { .. }
            | Performance::Operator {} => limits,
        }
    }

    /// The burst credits of a volume of this size; `None`: it has none. Where it has two buckets, that of operations.
    #[must_use]
    pub fn credits_at(&self, size: Bytes) -> Option<Credits> {
        self.all_credits_at(size).into_iter().next()
    }

    /// All buckets of burst credits of a volume of this size: they fill and empty independently.
    #[must_use]
    pub fn all_credits_at(&self, size: Bytes) -> Vec<Credits> {
        let credits = match &self.performance {
            Performance::IopsCredits { baseline, burst, bucket, .. } => baseline.at(size).map(|baseline| Credits {
                unit: CreditUnit::Operations,
                baseline_per_s: baseline.get(),
                burst_per_s: burst.get(),
                bucket: *bucket,
            }),
            Performance::BandwidthCredits { baseline, burst, bucket_per_gib, .. } => {
                let bucket = u128::from(bucket_per_gib.get()) * u128::from(size.get()) / u128::from(GIB);
                baseline.at(size).zip(burst.at(size)).map(|(baseline, burst)| Credits {
                    unit: CreditUnit::Bytes,
                    baseline_per_s: baseline.get(),
                    burst_per_s: burst.get(),
                    bucket: u64::try_from(bucket).unwrap_or(u64::MAX),
                })
            }
            Performance::Tiers { .. } => return self.tier(size).map_or_else(Vec::new, tier_credits),
            _ => None,
        };
        credits.into_iter().filter(Credits::are_any).collect()
    }

    /// USD a month for a volume of this size with what was bought; `None`: unknown. The size is rounded up to one on
    /// offer, and then to one that is billed; `None` as well if there is none.
    #[must_use]
    pub fn price_per_month(&self, size: Bytes, bought: &Provision) -> Option<f64> {
        let price = self.price.as_ref()?;
        let size = self.size.fit(size)?;
        let Some(gib_usd) = price.gib_month_usd else { return self.tier(size)?.usd_month };
        let mut usd = gib_usd * price.billed_size(size).as_gib();
        if let Performance::Provisioned { iops: range, bandwidth: bandwidths } = &self.performance {
            let (iops, bandwidth) = provisioned(range, bandwidths, size, bought);
            if range.per_mib_s.is_none() {
                usd += price::iops_price(&price.iops_month_usd, range.included, iops);
            }
            if let (Some(each), Some(unit)) = (price.bandwidth_month_usd, price.bandwidth_unit) {
                let included = bandwidths.included.map_or(0, Bandwidth::get);
                usd += each * bandwidth.get().saturating_sub(included) as f64 / unit.get() as f64;
            }
        }
        Some(usd)
    }

    /// USD an hour for a volume of this size with the least that can be bought; `None`: unknown.
    #[must_use]
    pub fn price_per_hour(&self, size: Bytes) -> Option<f64> {
        self.price_per_hour_with(size, &Provision::default())
    }

    /// USD an hour for a volume of this size with what was bought; `None`: unknown.
    #[must_use]
    pub fn price_per_hour_with(&self, size: Bytes, bought: &Provision) -> Option<f64> {
        Some(self.price_per_month(size, bought)? / f64::from(self.billing.hours_per_month.max(1)))
    }
}

/// The IOPS and the bandwidth of a provisioned volume: what was bought, else the least that can be, or what follows.
fn provisioned(range: &IopsRange, bandwidths: &BandwidthRange, size: Bytes, bought: &Provision) -> (Iops, Bandwidth) {
    let least = range.included.unwrap_or(range.min).max(range.min_at(size));
    let iops = bought.iops.unwrap_or(least);
    if bandwidths.follows_iops {
        return (iops, bandwidths.max_at(iops));
    }
    let least = bandwidths.included.max(bandwidths.min_for(size, iops));
    let bandwidth = bought.bandwidth.or(least).unwrap_or(bandwidths.max_at(iops));
    (range.following(bandwidth).unwrap_or(iops), bandwidth)
}

fn tier_credits(tier: &Tier) -> Vec<Credits> {
    let Some(burst) = &tier.burst else { return Vec::new() };
    let bucket = |unit, baseline_per_s: u64, burst_per_s: u64| {
        let above = u128::from(burst_per_s.saturating_sub(baseline_per_s));
        let bucket = u64::try_from(above * burst.time.0.as_nanos() / 1_000_000_000).unwrap_or(u64::MAX);
        Credits { unit, baseline_per_s, burst_per_s, bucket }
    };
    let both = [
        bucket(CreditUnit::Operations, tier.iops.get(), burst.iops.get()),
        bucket(CreditUnit::Bytes, tier.bandwidth.get(), burst.bandwidth.get()),
    ];
    both.into_iter().filter(Credits::are_any).collect()
}
