//! Volume types: what a provider rents out, with its limits, credits and price.
//!
//! [`Catalog::builtin`] holds the types that surgetank knows (`catalog.toml`, with source, date and confidence of every
//! figure); [`Catalog::parse`] reads more in the same form.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::bucket::{Limits, TokenBucket};
use crate::time::Instant;
use crate::units::{Bandwidth, Bytes, GIB, Iops, Span};

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
}

/// How credits refill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BurstRefill {
    /// c ← clamp(c + (baseline − used)·dt, 0, bucket): all credit schemes in the catalog.
    #[default]
    BaselineMinusUsed,
}

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
        let scaled = self.per_gib.map(|rate| {
            let bytes_per_s = u128::from(rate.get()) * u128::from(size.get()) / u128::from(GIB);
            Bandwidth::new(u64::try_from(bytes_per_s).unwrap_or(u64::MAX))
        });
        clamp(scaled, self.min, self.max)
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

fn clamp<T: Ord + Copy>(value: Option<T>, min: Option<T>, max: Option<T>) -> Option<T> {
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

/// How many IOPS may be bought.
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
    /// At most for each GiB.
    pub per_gib_max: Option<f64>,
}

impl IopsRange {
    /// The most that a volume of this size may have.
    fn max_at(&self, size: Bytes) -> Iops {
        let by_size = self.per_gib_max.map_or(self.max, |per_gib| Iops::new((per_gib * size.as_gib()) as u64));
        by_size.min(self.max).max(self.floor.unwrap_or(Iops::new(1)))
    }
}

/// How much bandwidth may be bought, or follows the IOPS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BandwidthRange {
    /// At least.
    pub min: Option<Bandwidth>,
    /// At most.
    pub max: Bandwidth,
    /// Part of the size's price.
    pub included: Option<Bandwidth>,
    /// At most for each provisioned operation per second.
    pub per_iops: Option<Bandwidth>,
    /// It is not bought: each provisioned operation per second brings `per_iops`.
    #[serde(default)]
    pub follows_iops: bool,
}

impl BandwidthRange {
    fn max_at(&self, iops: Iops) -> Bandwidth {
        let by_iops = self.per_iops.map(|each| Bandwidth::new(each.get().saturating_mul(iops.get())));
        by_iops.map_or(self.max, |by_iops| by_iops.min(self.max))
    }
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

/// What a volume costs by the month.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// USD for a GiB.
    pub gib_month_usd: f64,
    /// USD for each IOPS above the included ones, in steps (each prices what is above the step before). Empty: the
    /// IOPS cost nothing.
    #[serde(default)]
    pub iops_month_usd: Vec<IopsPriceStep>,
    /// USD for each `bandwidth_unit` above the included bandwidth; `None`: bandwidth costs nothing.
    pub bandwidth_month_usd: Option<f64>,
    /// What `bandwidth_month_usd` buys.
    pub bandwidth_unit: Option<Bandwidth>,
    /// Where the prices come from.
    #[serde(default)]
    pub source: String,
    /// Date of the source.
    pub as_of: Option<String>,
    /// How sure they are.
    #[serde(default)]
    pub confidence: String,
}

/// The price of a range of IOPS.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IopsPriceStep {
    /// Up to this many; `None`: without end.
    pub up_to: Option<Iops>,
    /// USD a month for each.
    pub usd: f64,
}

/// How rented time is billed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Billing {
    /// Where the prices hold.
    pub region: String,
    /// Hours in the month that prices are for.
    pub hours_per_month: u32,
    /// Time is rounded up to a multiple of this; zero: not rounded.
    pub granularity: Span,
    /// Least time billed.
    pub minimum: Span,
    /// Where this comes from.
    pub source: String,
}

impl Default for Billing {
    fn default() -> Self {
        Self {
            region: String::new(),
            hours_per_month: 730,
            granularity: Span::default(),
            minimum: Span::default(),
            source: String::new(),
        }
    }
}

impl Billing {
    /// The time that is billed for a rental.
    #[must_use]
    pub fn billed(&self, rented: Duration) -> Duration {
        let granularity = self.granularity.0.as_nanos();
        let nanoseconds = rented.max(self.minimum.0).as_nanos();
        let rounded = if granularity == 0 { nanoseconds } else { nanoseconds.div_ceil(granularity) * granularity };
        Duration::from_nanos(u64::try_from(rounded).unwrap_or(u64::MAX))
    }
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
        let iops = self.bought_iops(bought).unwrap_or(range.min);
        if iops < range.min || iops > range.max_at(size) {
            let max = range.max_at(size);
            return Err(format!("{key} of {size} cannot have {iops}: {} to {max} are possible", range.min));
        }
        let bandwidth = self.bought_bandwidth(bought);
        match bandwidth {
            Some(_) if bandwidths.follows_iops && bought.bandwidth.is_some() => {
                Err(format!("{key} does not sell bandwidth: it follows the IOPS"))
            }
            Some(bandwidth)
                if bandwidths.min.is_some_and(|min| bandwidth < min) || bandwidth > bandwidths.max_at(iops) =>
            {
                let max = bandwidths.max_at(iops);
                Err(format!("{key} with {iops} cannot have {bandwidth}: at most {max} is possible"))
            }
            _ => Ok(()),
        }
    }

    fn bought_iops(&self, bought: &Provision) -> Option<Iops> {
        match &self.performance {
            Performance::Provisioned { iops, .. } => Some(bought.iops.unwrap_or(iops.included.unwrap_or(iops.min))),
            _ => None,
        }
    }

    fn bought_bandwidth(&self, bought: &Provision) -> Option<Bandwidth> {
        match &self.performance {
            Performance::Provisioned { iops, bandwidth } => {
                let most = bandwidth.max_at(self.bought_iops(bought).unwrap_or(iops.min));
                let least = bandwidth.included.or(bandwidth.min);
                Some(if bandwidth.follows_iops { most } else { bought.bandwidth.or(least).unwrap_or(most) })
            }
            _ => None,
        }
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
            Performance::Provisioned { .. } => {
                Limits { bandwidth: self.bought_bandwidth(bought), iops: self.bought_iops(bought) }
            }
            Performance::IopsCredits { baseline, burst, bandwidth_steps, .. } => {
                let step = bandwidth_steps.iter().find(|step| size <= step.up_to).or(bandwidth_steps.last());
                let iops = baseline.at(size).map_or(*burst, |baseline| baseline.max(*burst));
                Limits { bandwidth: step.map(|step| step.bandwidth), iops: Some(iops) }
            }
            Performance::BandwidthCredits { baseline, burst, iops, .. } => {
                Limits { bandwidth: burst.at(size).max(baseline.at(size)), iops: *iops }
            }
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
            Performance::Fixed { .. } | Performance::PerSize { .. } | Performance::Provisioned { .. } => limits,
        }
    }

    /// The burst credits of a volume of this size; `None`: it has none.
    #[must_use]
    pub fn credits_at(&self, size: Bytes) -> Option<Credits> {
        let credits = match &self.performance {
            Performance::IopsCredits { baseline, burst, bucket, .. } => Credits {
                unit: CreditUnit::Operations,
                baseline_per_s: baseline.at(size)?.get(),
                burst_per_s: burst.get(),
                bucket: *bucket,
            },
            Performance::BandwidthCredits { baseline, burst, bucket_per_gib, .. } => {
                let bucket = u128::from(bucket_per_gib.get()) * u128::from(size.get()) / u128::from(GIB);
                Credits {
                    unit: CreditUnit::Bytes,
                    baseline_per_s: baseline.at(size)?.get(),
                    burst_per_s: burst.at(size)?.get(),
                    bucket: u64::try_from(bucket).unwrap_or(u64::MAX),
                }
            }
            _ => return None,
        };
        (credits.burst_per_s > credits.baseline_per_s).then_some(credits)
    }

    /// USD a month for a volume of this size with what was bought; `None`: unknown. The size is rounded up to one on
    /// offer; `None` as well if there is none.
    #[must_use]
    pub fn price_per_month(&self, size: Bytes, bought: &Provision) -> Option<f64> {
        let price = self.price.as_ref()?;
        let size = self.size.fit(size)?;
        let mut usd = price.gib_month_usd * size.as_gib();
        if let Performance::Provisioned { iops: range, bandwidth: bandwidths } = &self.performance {
            let iops = self.bought_iops(bought)?;
            usd += iops_price(&price.iops_month_usd, range.included, iops);
            if let (Some(each), Some(unit), Some(bandwidth)) =
                (price.bandwidth_month_usd, price.bandwidth_unit, self.bought_bandwidth(bought))
            {
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

/// USD a month for `iops`, of which `included` cost nothing.
fn iops_price(steps: &[IopsPriceStep], included: Option<Iops>, iops: Iops) -> f64 {
    let mut priced = included.map_or(0, Iops::get);
    let mut usd = 0.0;
    for step in steps {
        let up_to = step.up_to.map_or(iops.get(), |up_to| up_to.get().min(iops.get()));
        usd += step.usd * up_to.saturating_sub(priced) as f64;
        priced = priced.max(up_to);
    }
    usd
}
