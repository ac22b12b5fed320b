//! Cost: AGBs and money behind one interface.
//!
//! A [`Tariff`] says what a volume of some size costs over some time in both. AGBs are size × reserved bandwidth × time
//! (NRK15, III-B). Money is billed time at a catalog's or the user's price; what is unknown stays unknown.

use std::time::Duration;

use surgetank_model::cost::Cost;
use surgetank_model::volume_type::Billing;
use surgetank_model::{Bandwidth, Bytes, Limits, VolumeType};

/// What volumes of one kind cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Tariff {
    /// Reserved bandwidth: what AGBs charge, and what is bought where bandwidth is sold.
    pub bandwidth: Bandwidth,
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
        let money = match (usd_per_gib_month, volume_type) {
            (Some(usd), _) => Money::PerGib(usd),
            (None, Some(volume_type)) => Money::Type(Box::new(volume_type.clone())),
            (None, None) => Money::Unknown,
        };
        Self { bandwidth, money }
    }

    /// What a volume of `size` costs that is rented for `seconds`.
    #[must_use]
    pub fn cost(&self, size: Bytes, seconds: f64) -> Cost {
        Cost { agbs: size.as_gib() * self.bandwidth.as_mib_s() * seconds, usd: self.usd(size, seconds) }
    }

    /// What a volume of `size` costs for each second that is billed.
    #[must_use]
    pub fn per_second(&self, size: Bytes) -> Cost {
        Cost { agbs: size.as_gib() * self.bandwidth.as_mib_s(), usd: self.usd_per_hour(size).map(|usd| usd / 3600.0) }
    }

    /// The shortest time that is billed in money. AGBs are by the moment.
    #[must_use]
    pub fn minimum(&self) -> Duration {
        match &self.money {
            Money::Type(volume_type) => volume_type.billing.billed(Duration::ZERO),
            Money::Unknown | Money::PerGib(_) => Duration::ZERO,
        }
    }

    fn usd(&self, size: Bytes, seconds: f64) -> Option<f64> {
        let rented = Duration::try_from_secs_f64(seconds).ok()?;
        let hours = match &self.money {
            Money::Type(volume_type) => volume_type.billing.billed(rented).as_secs_f64() / 3600.0,
            Money::Unknown | Money::PerGib(_) => seconds / 3600.0,
        };
        Some(self.usd_per_hour(size)? * hours)
    }

    fn usd_per_hour(&self, size: Bytes) -> Option<f64> {
        match &self.money {
            Money::Unknown => None,
            Money::PerGib(usd) => Some(usd * size.as_gib() / f64::from(Billing::default().hours_per_month)),
            // How many transactions there will be is not known here, and what they cost is not nothing.
            Money::Type(volume_type) if bills_transactions(volume_type) => None,
            Money::Type(volume_type) => {
                let need = Limits { bandwidth: Some(self.bandwidth), iops: None };
                let offer = volume_type.cheapest_with(size, &need)?;
                volume_type.price_per_hour_with(offer.size, &offer.bought)
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
fn bills_transactions(volume_type: &VolumeType) -> bool {
    volume_type.price.as_ref().is_some_and(|price| price.transaction_usd().is_some())
}
