//! The policies by name: each a preset of the one controller.

use std::time::Duration;

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use surgetank_model::ReadFill;

/// A policy: its name and its defaults. A file may set each of them otherwise, except how reads fill the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preset {
    /// As files, flags and reports name it.
    pub name: &'static str,
    /// What it does, for people: a few words.
    pub about: &'static str,
    /// When a boost starts.
    pub when: When,
    /// How it goes.
    pub how: How,
}

/// When a boost starts, beside the utilization threshold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct When {
    /// For bursts alone that the backing volume cannot serve in time, and that pay: see [`crate::worth`].
    pub worth: bool,
    /// Before a burst that is expected: see [`crate::forecast`].
    pub forecast: bool,
    /// Least time from the start of one boost to the start of the next, in inactivity delays.
    pub interval_delays: u32,
}

/// How a boost goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct How {
    /// Burst writes go to both volumes.
    pub split: bool,
    /// When read misses fill the cache.
    pub read_fill: ReadFill,
    /// In a simulation, the first cache is the one that the planner recommends; else it has the papers' 10 GiB.
    pub planned_size: bool,
}

impl Preset {
    /// All policies.
    pub const ALL: &'static [Self] = &[
        Self {
            name: "paper",
            about: "The papers' controller",
            when: When { worth: false, forecast: false, interval_delays: 0 },
            how: How { split: false, read_fill: ReadFill::Always, planned_size: false },
        },
        Self {
            name: "adaptive",
            about: "Boosts that pay, with split and forecasts",
            when: When { worth: true, forecast: true, interval_delays: 1 },
            how: How { split: true, read_fill: ReadFill::SecondHit, planned_size: true },
        },
    ];
    /// The papers'.
    pub const PAPER: Self = Self::ALL[0];
    /// The one that splits bursts over both volumes and expects regular ones.
    pub const ADAPTIVE: Self = Self::ALL[1];

    /// The policy of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|preset| preset.name == name)
    }

    /// Least time from boost to boost.
    #[must_use]
    pub fn boost_interval(&self, inactivity_delay: Duration) -> Duration {
        inactivity_delay * self.when.interval_delays
    }
}

/// The papers'.
impl Default for Preset {
    fn default() -> Self {
        Self::PAPER
    }
}

impl<'de> Deserialize<'de> for Preset {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Self::named(&name).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|preset| format!("`{}`", preset.name)).collect();
            D::Error::custom(format_args!("unknown variant `{name}`, expected {}", names.join(" or ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use serde::de::value::{Error, StrDeserializer};

    use super::*;

    #[test]
    fn a_policy_is_read_by_its_name() {
        let read = |name| Preset::deserialize(StrDeserializer::<Error>::new(name));
        assert!(Preset::ALL.iter().all(|preset| read(preset.name) == Ok(*preset)));
        let error = read("papr").unwrap_err().to_string();
        assert!(error.starts_with("unknown variant `papr`, expected `paper` or `adaptive`"), "{error}");
    }
}
