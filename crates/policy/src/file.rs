//! The `[policy]` section of configuration files: what users may set of a controller.

use std::ops::Range;
use std::time::Duration;

use serde::Deserialize;
use surgetank_model::toml_error::{ConfigError, Source};
use surgetank_model::units::Span;
use surgetank_model::{Bandwidth, Bytes};
use toml::Spanned;

use crate::backoff::Backoff;
use crate::budget::Budget;
use crate::elastic::Config;
use crate::preset::Preset;
use crate::value::{Prices, ValueOfTime};

/// No provider answers sooner, and a program that asks more often does nothing else; in milliseconds.
const LEAST_MS: u64 = 100;

/// When to boost.
#[derive(Clone, Debug, PartialEq)]
pub struct PolicyConfig {
    /// Which policy.
    pub preset: Preset,
    /// Share of the backing bandwidth above which a boost starts.
    pub utilization_threshold: f64,
    /// How long utilization stays below it before the drain has priority.
    pub inactivity_delay: Duration,
    /// How often the controller looks.
    pub sampling: Duration,
    /// Sizes are multiples of this.
    pub grain: Bytes,
    /// Send burst writes to both volumes; absent: the policy's default.
    pub split: Option<bool>,
    /// Attach before expected bursts; absent: the policy's default.
    pub forecast: Option<bool>,
    /// What a second of waiting is worth; absent: twice what the backing volume costs. In money it needs both volumes' prices.
    pub value_of_time: Option<ValueOfTime>,
    /// Least time from boost to boost; absent: the policy's default.
    pub boost_interval: Option<Duration>,
    /// The most that caching volumes may cost.
    pub budget: Budget,
    /// First and longest wait after a refusal.
    pub retry: (Duration, Duration),
    /// How long the provider may take to create, attach and detach.
    pub timeouts: Timeouts,
}

/// The volumes that a controller works with, as files and providers describe them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Volumes {
    /// Reserved bandwidth of the backing volume.
    pub backing_bandwidth: Bandwidth,
    /// Size of the backing volume.
    pub backing_size: Bytes,
    /// Reserved bandwidth of caching volumes; of a stripe, that of all its volumes.
    pub caching_bandwidth: Bandwidth,
    /// What AGBs count for each GiB of them: the same; of a stripe, what each of its volumes has.
    pub caching_reserved: Bandwidth,
    /// Size of the first caching volume.
    pub initial_size: Bytes,
    /// Smallest and largest caching volume.
    pub caching_sizes: (Bytes, Bytes),
    /// USD per GiB and hour of a caching volume; `None`: unknown.
    pub caching_usd_per_gib_hour: Option<f64>,
    /// USD an hour of the backing volume; `None`: unknown.
    pub backing_usd_per_hour: Option<f64>,
}

impl Volumes {
    /// The prices of both, where they are known.
    #[must_use]
    pub fn prices(&self) -> Option<Prices> {
        Prices::known(self.backing_usd_per_hour, self.caching_usd_per_gib_hour)
    }
}

impl Default for PolicyConfig {
    /// The papers' settings, sampled each second.
    fn default() -> Self {
        Self {
            preset: Preset::default(),
            utilization_threshold: 0.30,
            inactivity_delay: Duration::from_secs(30),
            sampling: Duration::from_secs(1),
            grain: Bytes::from_gib(1),
            split: None,
            forecast: None,
            value_of_time: None,
            boost_interval: None,
            budget: Budget::default(),
            retry: (Duration::from_secs(2), Duration::from_secs(300)),
            timeouts: Timeouts {
                create: Duration::from_secs(60),
                attach: Duration::from_secs(90),
                detach: Duration::from_secs(90),
            },
        }
    }
}

impl PolicyConfig {
    /// What the controller of a device with these volumes is told; `seed` is that of its jitter.
    #[must_use]
    pub fn controller(&self, volumes: &Volumes, seed: u64) -> Config {
        let defaults =
            Config::new(self.preset, volumes.backing_bandwidth, volumes.backing_size, volumes.caching_bandwidth);
        let mut config = Config {
            caching_reserved: volumes.caching_reserved,
            caching_rent: volumes.caching_reserved.as_mib_s(),
            caching_usd_per_gib_hour: volumes.caching_usd_per_gib_hour,
            utilization_threshold: self.utilization_threshold,
            inactivity_delay: self.inactivity_delay,
            initial_size: volumes.initial_size,
            grain: self.grain,
            size_min: volumes.caching_sizes.0,
            size_max: volumes.caching_sizes.1,
            split: self.split.unwrap_or(defaults.split),
            forecast: self.forecast.unwrap_or(defaults.forecast),
            boost_interval_min: self
                .boost_interval
                .unwrap_or_else(|| self.preset.boost_interval(self.inactivity_delay)),
            backoff: Backoff { first: self.retry.0, cap: self.retry.1, ..Backoff::default() },
            budget: self.budget,
            create_timeout: self.timeouts.create,
            attach_timeout: self.timeouts.attach,
            detach_timeout: self.timeouts.detach,
            seed,
            ..defaults
        };
        if let Some(value) = self.value_of_time {
            // Readers of files see to it that prices are there.
            let _ = config.set_value_of_time(value, volumes.prices().as_ref());
        }
        config
    }
}

/// How long the provider may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// To create a volume.
    pub create: Duration,
    /// To attach and adopt it.
    pub attach: Duration,
    /// To detach and delete it.
    pub detach: Duration,
}

/// The section as it stands in a file, not yet checked.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawPolicy {
    name: Option<Preset>,
    utilization_threshold: Option<Spanned<f64>>,
    inactivity_delay: Option<Span>,
    sampling: Option<Spanned<Span>>,
    size_grain: Option<Spanned<Bytes>>,
    split: Option<bool>,
    forecast: Option<bool>,
    value_of_time: Option<Spanned<ValueOfTime>>,
    boost_interval: Option<Span>,
    retry_first: Option<Spanned<Span>>,
    retry_longest: Option<Spanned<Span>>,
    create_timeout: Option<Spanned<Span>>,
    attach_timeout: Option<Spanned<Span>>,
    detach_timeout: Option<Spanned<Span>>,
    budget: RawBudget,
}

/// A `budget` section as it stands in a file, not yet checked.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawBudget {
    agbs_per_hour: Option<Spanned<f64>>,
    agbs_per_day: Option<Spanned<f64>>,
    usd_per_hour: Option<Spanned<f64>>,
    usd_per_day: Option<Spanned<f64>>,
}

impl RawBudget {
    /// Checks it.
    ///
    /// # Errors
    /// The first thing wrong with it, with file, line and column.
    pub fn check(&self, source: &Source) -> Result<Budget, ConfigError> {
        Ok(Budget {
            agbs_per_hour: limit(source, "agbs_per_hour", self.agbs_per_hour.as_ref())?,
            agbs_per_day: limit(source, "agbs_per_day", self.agbs_per_day.as_ref())?,
            usd_per_hour: limit(source, "usd_per_hour", self.usd_per_hour.as_ref())?,
            usd_per_day: limit(source, "usd_per_day", self.usd_per_day.as_ref())?,
        })
    }

    /// Where a limit in money stands.
    #[must_use]
    pub fn usd_span(&self) -> Option<Range<usize>> {
        self.usd_per_hour.as_ref().or(self.usd_per_day.as_ref()).map(Spanned::span)
    }
}

impl RawPolicy {
    /// The same under this policy, where the section names none.
    #[must_use]
    pub fn or_named(self, preset: Preset) -> Self {
        Self { name: Some(self.name.unwrap_or(preset)), ..self }
    }

    /// Where the value of time stands.
    #[must_use]
    pub fn value_of_time_span(&self) -> Option<Range<usize>> {
        self.value_of_time.as_ref().map(Spanned::span)
    }

    /// Checks it; `source` is the file in which it stands.
    ///
    /// # Errors
    /// The first thing wrong with it, with file, line and column.
    pub fn check(self, source: &Source) -> Result<PolicyConfig, ConfigError> {
        let defaults = PolicyConfig::default();
        let threshold = self
            .utilization_threshold
            .as_ref()
            .map_or(defaults.utilization_threshold, |threshold| *threshold.get_ref());
        if !(threshold > 0.0 && threshold <= 1.0) {
            let message = format!(
                "utilization_threshold is {threshold}: it is a share of the backing bandwidth above 0 and at most 1, such as 0.30"
            );
            return Err(source.at(self.utilization_threshold.map(|threshold| threshold.span()), message));
        }
        let sampling = self.sampling.as_ref().map_or(defaults.sampling, |sampling| sampling.get_ref().0);
        if sampling < Duration::from_millis(10) {
            let message = "sampling is below 10 ms: write how often the controller looks, such as \"1 s\"";
            return Err(source.at(self.sampling.map(|sampling| sampling.span()), message));
        }
        let grain = self.size_grain.as_ref().map_or(defaults.grain, |grain| *grain.get_ref());
        if grain == Bytes::ZERO || !grain.get().is_multiple_of(4096) {
            let message = format!("size_grain is {grain}: it is a multiple of 4 KiB above zero, such as \"1 GiB\"");
            return Err(source.at(self.size_grain.map(|grain| grain.span()), message));
        }
        let at_least = |key, given: Option<&Spanned<Span>>, default: Duration| {
            source.at_least(key, given, (u64::try_from(default.as_millis()).unwrap_or(u64::MAX), LEAST_MS))
        };
        let or = |span: Option<Span>, default| span.map_or(default, |span| span.0);
        Ok(PolicyConfig {
            preset: self.name.unwrap_or_default(),
            utilization_threshold: threshold,
            inactivity_delay: or(self.inactivity_delay, defaults.inactivity_delay),
            sampling,
            grain,
            split: self.split,
            forecast: self.forecast,
            value_of_time: value_of_time(source, self.value_of_time.as_ref())?,
            boost_interval: self.boost_interval.map(|span| span.0),
            budget: self.budget.check(source)?,
            retry: (
                at_least("retry_first", self.retry_first.as_ref(), defaults.retry.0)?,
                at_least("retry_longest", self.retry_longest.as_ref(), defaults.retry.1)?,
            ),
            timeouts: Timeouts {
                create: at_least("create_timeout", self.create_timeout.as_ref(), defaults.timeouts.create)?,
                attach: at_least("attach_timeout", self.attach_timeout.as_ref(), defaults.timeouts.attach)?,
                detach: at_least("detach_timeout", self.detach_timeout.as_ref(), defaults.timeouts.detach)?,
            },
        })
    }
}

fn value_of_time(source: &Source, given: Option<&Spanned<ValueOfTime>>) -> Result<Option<ValueOfTime>, ConfigError> {
    let allowed = |value: ValueOfTime| value.number().is_finite() && value.number() >= 0.0;
    match given {
        Some(given) if !allowed(*given.get_ref()) => {
            let message = "value_of_time is in AGBs a second, or money such as \"3 USD/h\", and at least 0: leave it out for twice what \
                           the backing volume costs";
            Err(source.at(Some(given.span()), message))
        }
        given => Ok(given.map(|given| *given.get_ref())),
    }
}

fn limit(source: &Source, key: &str, given: Option<&Spanned<f64>>) -> Result<Option<f64>, ConfigError> {
    source.number(given, |most| most > 0.0, &format!("{key} must be above zero: leave it out for no limit"))
}
