//! What time is worth, and boosts that are judged by bills.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer};

use crate::elastic::Config;

/// What a second is worth in which the application waits for the device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ValueOfTime {
    /// AGBs a second.
    Agbs(f64),
    /// USD an hour.
    UsdPerHour(f64),
}

/// What both volumes cost in money.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prices {
    /// USD an hour of the whole backing volume.
    pub backing_usd_per_hour: f64,
    /// USD per GiB and hour of a caching volume.
    pub caching_usd_per_gib_hour: f64,
}

impl Prices {
    /// Both of them, where both are known. A backing volume that costs nothing has no price that another one could be
    /// compared with.
    #[must_use]
    pub fn known(backing_usd_per_hour: Option<f64>, caching_usd_per_gib_hour: Option<f64>) -> Option<Self> {
        let backing_usd_per_hour = backing_usd_per_hour.filter(|usd| *usd > 0.0)?;
        Some(Self { backing_usd_per_hour, caching_usd_per_gib_hour: caching_usd_per_gib_hour? })
    }
}

impl ValueOfTime {
    /// The number, in its own unit.
    #[must_use]
    pub fn number(self) -> f64 {
        match self {
            Self::Agbs(number) | Self::UsdPerHour(number) => number,
        }
    }

    /// Whether it can be had without prices.
    #[must_use]
    pub fn is_money(self) -> bool {
        matches!(self, Self::UsdPerHour(_))
    }
}

impl Config {
    /// Lets boosts be judged by bills: a dollar counts as many AGBs as the backing volume costs of both.
    pub fn judge_by_bills(&mut self, prices: &Prices) {
        self.caching_rent = prices.caching_usd_per_gib_hour * self.agbs_s_per_usd_hour(prices);
    }

    /// Values time as it is said to be worth; in money, boosts are then judged by bills. `false`: a price is needed for that and
    /// not known, and nothing has changed.
    pub fn set_value_of_time(&mut self, value: ValueOfTime, prices: Option<&Prices>) -> bool {
        match (value, prices) {
            (ValueOfTime::Agbs(agbs), _) => self.value_of_time = agbs,
            (ValueOfTime::UsdPerHour(usd), Some(prices)) => {
                self.judge_by_bills(prices);
                self.value_of_time = usd * self.agbs_s_per_usd_hour(prices);
            }
            (ValueOfTime::UsdPerHour(_), None) => return false,
        }
        true
    }

    /// AGBs a second for each dollar an hour.
    fn agbs_s_per_usd_hour(&self, prices: &Prices) -> f64 {
        self.backing_bandwidth.as_mib_s() * self.backing_size.as_gib() / prices.backing_usd_per_hour
    }
}

impl FromStr for ValueOfTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let money = text.strip_suffix("USD/h").or_else(|| text.strip_prefix('$')?.strip_suffix("/h"));
        let number: f64 = money.unwrap_or(text).trim().parse().map_err(|_| remedy())?;
        match money {
            _ if number.is_nan() || number < 0.0 => Err(remedy()),
            Some(_) if number.is_infinite() => Ok(Self::Agbs(number)),
            Some(_) => Ok(Self::UsdPerHour(number)),
            None => Ok(Self::Agbs(number)),
        }
    }
}

fn remedy() -> String {
    "write AGBs a second such as 1650, or money an hour such as \"3 USD/h\"".to_owned()
}

impl<'de> Deserialize<'de> for ValueOfTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = ValueOfTime;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("AGBs a second, or money an hour such as \"3 USD/h\"")
            }
            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<ValueOfTime, E> {
                text.parse().map_err(E::custom)
            }
            fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<ValueOfTime, E> {
                Ok(ValueOfTime::Agbs(number as f64))
            }
            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<ValueOfTime, E> {
                Ok(ValueOfTime::Agbs(number as f64))
            }
            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<ValueOfTime, E> {
                Ok(ValueOfTime::Agbs(number))
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use surgetank_model::{Bandwidth, Bytes};

    use super::*;
    use crate::preset::Preset;

    #[test]
    fn a_value_of_time_has_a_unit_or_is_in_agbs() {
        let read = |text: &str| text.parse::<ValueOfTime>();
        assert_eq!(read("1650"), Ok(ValueOfTime::Agbs(1650.0)));
        assert_eq!(read("inf"), Ok(ValueOfTime::Agbs(f64::INFINITY)));
        assert_eq!(read("3.5 USD/h"), Ok(ValueOfTime::UsdPerHour(3.5)));
        assert_eq!(read("$3.5/h"), Ok(ValueOfTime::UsdPerHour(3.5)));
        for wrong in ["", "-1", "NaN", "3 EUR/h", "3 USD", "much"] {
            assert!(read(wrong).unwrap_err().contains("USD/h"), "{wrong}");
        }
    }

    #[test]
    fn in_money_a_boost_is_judged_by_bills() {
        let mib_s = Bandwidth::from_mib_s;
        let before = Config::new(Preset::ADAPTIVE, mib_s(33), Bytes::from_gib(50), mib_s(128));
        // 50 GiB for 0.005 USD an hour; a caching GiB costs twice as much as one of them.
        let prices = Prices::known(Some(0.005), Some(0.0002)).unwrap();
        let mut config = before.clone();
        assert!(config.set_value_of_time(ValueOfTime::UsdPerHour(0.015), Some(&prices)));
        assert!((config.value_of_time / (3.0 * 33.0 * 50.0) - 1.0).abs() < 1e-12, "three times the backing volume");
        assert!((config.caching_rent / (2.0 * 33.0) - 1.0).abs() < 1e-12, "{}", config.caching_rent);
        let mut config = before.clone();
        assert!(config.set_value_of_time(ValueOfTime::Agbs(7.0), Some(&prices)));
        assert_eq!(config, Config { value_of_time: 7.0, ..before.clone() }, "AGBs are judged by AGBs");
        for prices in
            [Prices::known(None, Some(1.0)), Prices::known(Some(0.0), Some(1.0)), Prices::known(Some(1.0), None)]
        {
            let mut config = before.clone();
            assert!(!config.set_value_of_time(ValueOfTime::UsdPerHour(1.0), prices.as_ref()));
            assert_eq!(config, before);
        }
    }
}
