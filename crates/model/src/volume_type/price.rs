//! Prices, and how rented time is billed.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::units::{Bandwidth, Bytes, Iops, Span};

/// What a volume costs by the month.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// USD for a GiB; `None`: the price is that of the tier.
    pub gib_month_usd: Option<f64>,
    /// USD for each IOPS above the included ones, in steps (each prices what is above the step before). Empty: the
    /// IOPS cost nothing.
    #[serde(default)]
    pub iops_month_usd: Vec<IopsPriceStep>,
    /// USD for each `bandwidth_unit` above the included bandwidth; `None`: bandwidth costs nothing.
    pub bandwidth_month_usd: Option<f64>,
    /// What `bandwidth_month_usd` buys.
    pub bandwidth_unit: Option<Bandwidth>,
    /// The sizes that are billed, ascending, and beyond the last one its multiples: a volume is billed as the next larger one. Empty: as
    /// large as it is.
    #[serde(default)]
    pub billed_sizes: Vec<Bytes>,
    /// USD for 10,000 transactions, billed besides; `None`: none are billed.
    pub transactions_10k_usd: Option<f64>,
    /// Where the prices come from.
    #[serde(default)]
    pub source: String,
    /// Date of the source.
    pub as_of: Option<String>,
    /// How sure they are.
    #[serde(default)]
    pub confidence: String,
}

impl Price {
    /// The same with what it leaves unsaid taken from another: an override of one figure does not make the others zero.
    #[must_use]
    pub fn over(self, known: &Self) -> Self {
        let iops_month_usd =
            if self.iops_month_usd.is_empty() { known.iops_month_usd.clone() } else { self.iops_month_usd };
        let billed_sizes = if self.billed_sizes.is_empty() { known.billed_sizes.clone() } else { self.billed_sizes };
        Self {
            gib_month_usd: self.gib_month_usd.or(known.gib_month_usd),
            iops_month_usd,
            billed_sizes,
            bandwidth_month_usd: self.bandwidth_month_usd.or(known.bandwidth_month_usd),
            bandwidth_unit: self.bandwidth_unit.or(known.bandwidth_unit),
            transactions_10k_usd: self.transactions_10k_usd.or(known.transactions_10k_usd),
            source: self.source,
            as_of: self.as_of,
            confidence: self.confidence,
        }
    }

    /// The size that is billed for a volume of this size.
    #[must_use]
    pub fn billed_size(&self, size: Bytes) -> Bytes {
        let Some(last) = self.billed_sizes.last() else { return size };
        let next = self.billed_sizes.iter().find(|billed| size <= **billed);
        next.copied().unwrap_or_else(|| size.round_up(Bytes::new(last.get().max(1))))
    }

    /// USD for one transaction, where they are billed besides.
    #[must_use]
    pub fn transaction_usd(&self) -> Option<f64> {
        self.transactions_10k_usd.filter(|usd| *usd > 0.0).map(|usd| usd / 10_000.0)
    }

    /// Whether the sizes that are billed ascend from one that is not zero.
    #[must_use]
    pub fn sizes_ascend(&self) -> bool {
        self.billed_sizes.first().is_none_or(|first| *first > Bytes::ZERO)
            && self.billed_sizes.is_sorted_by(|one, next| one < next)
    }

    /// Whether every figure is a number that is not negative.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let steps = self.iops_month_usd.iter().map(|step| step.usd);
        let others = [self.gib_month_usd, self.bandwidth_month_usd, self.transactions_10k_usd];
        others.into_iter().flatten().chain(steps).all(|usd| usd.is_finite() && usd >= 0.0)
    }
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

/// The time that is billed for rented time: a minimum at least, and whole steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BilledTime {
    /// Least time billed.
    pub minimum: Duration,
    /// Time is rounded up to a multiple of this; zero: not rounded.
    pub granularity: Duration,
}

impl BilledTime {
    /// What is billed for a rental that lasts for so long.
    #[must_use]
    pub fn of(&self, rented: Duration) -> Duration {
        let granularity = self.granularity.as_nanos();
        let nanoseconds = rented.max(self.minimum).as_nanos();
        let rounded = if granularity == 0 { nanoseconds } else { nanoseconds.div_ceil(granularity) * granularity };
        Duration::from_nanos(u64::try_from(rounded).unwrap_or(u64::MAX))
    }

    /// The shortest time that is billed.
    #[must_use]
    pub fn least(&self) -> Duration {
        self.of(Duration::ZERO)
    }
}

impl Billing {
    /// What of it is about time.
    #[must_use]
    pub fn time(&self) -> BilledTime {
        BilledTime { minimum: self.minimum.0, granularity: self.granularity.0 }
    }

    /// The time that is billed for a rental.
    #[must_use]
    pub fn billed(&self, rented: Duration) -> Duration {
        self.time().of(rented)
    }
}

/// USD a month for `iops`, of which `included` cost nothing.
pub(super) fn iops_price(steps: &[IopsPriceStep], included: Option<Iops>, iops: Iops) -> f64 {
    let mut priced = included.map_or(0, Iops::get);
    let mut usd = 0.0;
    for step in steps {
        let up_to = step.up_to.map_or(iops.get(), |up_to| up_to.get().min(iops.get()));
        usd += step.usd * up_to.saturating_sub(priced) as f64;
        priced = priced.max(up_to);
    }
    usd
}
