//! Cost: AGBs and money behind one interface.
//!
//! A [`Tariff`] says what a volume of some size costs over some time in both. AGBs are size × reserved bandwidth × time
//! (NRK15, III-B). Money is billed time at a catalog's or the user's price; what is unknown stays unknown.

use std::time::Duration;

use surgetank_model::cost::Cost;
use surgetank_model::volume_type::{BilledTime, Billing};
use surgetank_model::{Bandwidth, Bytes, Limits, VolumeType};

/// What volumes of one kind cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Tariff {
    /// Reserved bandwidth of each volume: what AGBs charge, and what is bought where bandwidth is sold.
    pub bandwidth: Bandwidth,
    /// How many equal volumes share a size, above zero; each is rented, and billed, on its own.
    pub volumes: u32,
    /// The price in money.
    pub money: Money,
}

/// A price in money.
#[derive(Clone, Debug, PartialEq)]
pub enum Money {
    /// Nobody said.
    Unknown,
    /// USD for each GiB and month of 730 hours, billed by the moment.
    PerGib(f64),
    /// A catalog's type, with as much bandwidth as is reserved.
    Type(Box<VolumeType>),
}

impl Tariff {
    /// The tariff of volumes that a file describes: the user's price goes before the catalog's.
    #[must_use]
    pub fn new(bandwidth: Bandwidth, volume_type: Option<&VolumeType>, usd_per_gib_month: Option<f64>) -> Self {
        Self::striped(1, bandwidth, volume_type, usd_per_gib_month)
    }

    /// The tariff of a stripe over so many volumes of this bandwidth each.
    #[must_use]
    pub fn striped(
        volumes: u32,
        bandwidth: Bandwidth,
        volume_type: Option<&VolumeType>,
        usd_per_gib_month: Option<f64>,
    ) -> Self {
        let money = match (usd_per_gib_month, volume_type) {
            (Some(usd), _) => Money::PerGib(usd),
            (None, Some(volume_type)) => Money::Type(Box::new(volume_type.clone())),
            (None, None) => Money::Unknown,
        };
        Self { bandwidth, volumes: volumes.max(1), money }
    }

    /// What a volume of `size` costs that is rented for `seconds`.
    #[must_use]
    pub fn cost(&self, size: Bytes, seconds: f64) -> Cost {
        Cost { agbs: self.agbs_per_s(size) * seconds, usd: self.usd(size, seconds) }
    }

    /// The sum over all volumes, each its own size times its own bandwidth.
    fn agbs_per_s(&self, size: Bytes) -> f64 {
        self.rented(size).as_gib() * self.bandwidth.as_mib_s()
    }

    /// What is rented to have `size`: of a stripe, equal volumes of a size that the type has. A single volume counts as it is asked
    /// for, as in the papers.
    #[must_use]
    pub fn rented(&self, size: Bytes) -> Bytes {
        if self.volumes == 1 {
            return size;
        }
        let count = u64::from(self.volumes);
        let each = self.of_each(size);
        let fitting = match &self.money {
            Money::Type(volume_type) => volume_type.size.fit(each).unwrap_or(each),
            Money::Unknown | Money::PerGib(_) => each,
        };
        Bytes::new(fitting.get().saturating_mul(count))
    }

    /// Each volume's share of a size.
    fn of_each(&self, size: Bytes) -> Bytes {
        Bytes::new(size.get().div_ceil(u64::from(self.volumes)))
    }

    /// What a volume costs that has each of these sizes for so long, one after the other. What is billed beyond its time, it is as
    /// the last of them.
    #[must_use]
    pub fn cost_of_sizes(&self, held: impl Iterator<Item = (Bytes, Duration)>) -> Cost {
        let held: Vec<_> = held.collect();
        let rented: Duration = held.iter().map(|(_, held)| held).sum();
        let beyond = self.billed(rented).saturating_sub(rented);
        let last = held.len().saturating_sub(1);
        held.iter().enumerate().fold(Cost::ZERO, |sum, (index, (size, held))| {
            let billed = if index == last { *held + beyond } else { *held };
            let usd = self.usd_per_hour(*size).map(|usd| usd * (billed.as_secs_f64() / 3600.0));
            sum.plus(Cost { agbs: self.per_second(*size).agbs * held.as_secs_f64(), usd })
        })
    }

    /// What a volume of `size` costs for each second that is billed.
    #[must_use]
    pub fn per_second(&self, size: Bytes) -> Cost {
        Cost { agbs: self.agbs_per_s(size), usd: self.usd_per_hour(size).map(|usd| usd / 3600.0) }
    }

    /// The time that is billed in money. AGBs are by the moment.
    #[must_use]
    pub fn billed_time(&self) -> BilledTime {
        match &self.money {
            Money::Type(volume_type) => volume_type.billing.time(),
            Money::Unknown | Money::PerGib(_) => BilledTime::default(),
        }
    }

    fn billed(&self, rented: Duration) -> Duration {
        self.billed_time().of(rented)
    }

    fn usd(&self, size: Bytes, seconds: f64) -> Option<f64> {
        let rented = Duration::try_from_secs_f64(seconds).ok()?;
        Some(self.usd_per_hour(size)? * (self.billed(rented).as_secs_f64() / 3600.0))
    }

    /// USD for each hour that a volume of `size` is billed; `None`: not known.
    #[must_use]
    pub fn usd_per_hour(&self, size: Bytes) -> Option<f64> {
        match &self.money {
            Money::Unknown => None,
            Money::PerGib(usd) => {
                Some(usd * self.rented(size).as_gib() / f64::from(Billing::default().hours_per_month))
            }
            // How many transactions there will be is not known here, and what they cost is not nothing.
            Money::Type(volume_type) if bills_transactions(volume_type) => None,
            Money::Type(volume_type) => {
                let need = Limits { bandwidth: Some(self.bandwidth), iops: None };
                let offer = volume_type.cheapest_with(self.of_each(size), &need)?;
                Some(volume_type.price_per_hour_with(offer.size, &offer.bought)? * f64::from(self.volumes))
            }
        }
    }

    /// Where the price comes from, for people: source, date and confidence.
    #[must_use]
    pub fn source(&self) -> Option<String> {
        match &self.money {
            Money::Unknown => None,
            Money::PerGib(usd) => Some(format!("${usd} per GiB and month, as the file says")),
            Money::Type(volume_type) => {
                let price = volume_type.price.as_ref()?;
                let date = price.as_of.as_deref().unwrap_or("undated");
                let (key, source, confidence) = (volume_type.key(), &price.source, &price.confidence);
                let beside = match price.transactions_10k_usd {
                    Some(usd) if usd > 0.0 => format!(
                        "; unknown in money, because ${usd} for 10,000 transactions come on top: write usd_per_gib_month to leave \
                         them out"
                    ),
                    _ => String::new(),
                };
                Some(format!("{key}: {source} ({date}, {confidence}){beside}"))
            }
        }
    }
}

/// Whether each request costs money beside the volume.
pub(crate) fn bills_transactions(volume_type: &VolumeType) -> bool {
    volume_type.price.as_ref().is_some_and(|price| price.transaction_usd().is_some())
}

#[cfg(test)]
mod tests {
    use surgetank_model::Catalog;

    use super::*;

    #[test]
    fn a_volume_that_grows_costs_each_size_for_its_time_and_the_shortest_time_once() {
        let catalog = Catalog::builtin();
        let gp3 = catalog.find("aws", "gp3").unwrap();
        let tariff = Tariff::new(Bandwidth::from_mib_s(128), Some(gp3), None);
        let (gib, seconds) = (Bytes::from_gib, Duration::from_secs);
        let an_hour = |size: u64| tariff.usd_per_hour(gib(size)).unwrap();
        let close = |usd: Option<f64>, expected: f64| (usd.unwrap() / expected - 1.0).abs() < 1e-12;
        let least = tariff.billed_time().least().as_secs_f64();
        assert!(least >= 30.0, "{least} s are billed at least");
        let short = tariff.cost_of_sizes([(gib(2), seconds(10)), (gib(6), seconds(15))].into_iter());
        assert!((short.agbs - 128.0 * (20.0 + 90.0)).abs() < 1e-9, "{short:?}");
        assert!(close(short.usd, (an_hour(2) * 10.0 + an_hour(6) * (least - 10.0)) / 3600.0), "{short:?}");
        let long = tariff.cost_of_sizes([(gib(2), seconds(1000)), (gib(6), seconds(500))].into_iter());
        assert!(close(long.usd, (an_hour(2) * 1000.0 + an_hour(6) * 500.0) / 3600.0), "{long:?}");
        for time in [1, 100, 5000] {
            let one = tariff.cost_of_sizes([(gib(3), seconds(time))].into_iter());
            assert_eq!(one, tariff.cost(gib(3), time as f64), "{time} s");
        }
        assert_eq!(tariff.cost_of_sizes(std::iter::empty()).agbs, 0.0);
    }
}
