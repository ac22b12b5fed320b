//! What the controller of an elastic device is told at start.

use std::time::Duration;

use surgetank_model::volume_type::BilledTime;
use surgetank_model::{Bandwidth, Bytes, InPlace};

use crate::backoff::Backoff;
use crate::budget::{Budget, Tariff};
use crate::preset::Preset;
use crate::sizing::Bounds;
use crate::step::Step;

/// Settings of a controller. [`Config::new`] gives the papers' defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Which policy.
    pub preset: Preset,
    /// Reserved bandwidth of the backing volume (the papers' Bb): utilization is relative to it.
    pub backing_bandwidth: Bandwidth,
    /// Size of the backing volume; no caching volume is larger.
    pub backing_size: Bytes,
    /// Reserved bandwidth of the caching volume (the papers' Bc); of a stripe, that of all its volumes.
    pub caching_bandwidth: Bandwidth,
    /// Reserved bandwidth that AGBs count for each GiB of it: the same; of a stripe, that of each of its volumes.
    pub caching_reserved: Bandwidth,
    /// AGBs that a GiB of caching volume costs a second, at least 0: by default Bc. Where bills count, its price in those of the
    /// backing volume, of which a second is Bb·N.
    pub caching_rent: f64,
    /// USD per GiB and hour of the caching volume; `None`: unknown.
    pub caching_usd_per_gib_hour: Option<f64>,
    /// The backing volume, raised in place: what a boost is compared with. `None`: it cannot be, or nobody knows how.
    pub in_place: Option<InPlace>,
    /// Utilization above which a boost starts (the papers' UT), above 0.
    pub utilization_threshold: f64,
    /// How long utilization stays below the threshold before draining has priority (the papers' ID).
    pub inactivity_delay: Duration,
    /// Size of the first caching volume.
    pub initial_size: Bytes,
    /// Size of every caching volume after the first; `None`: learned from the bursts.
    pub fixed_size: Option<Bytes>,
    /// Sizes are multiples of this.
    pub grain: Bytes,
    /// Smallest caching volume (the volume type's limit).
    pub size_min: Bytes,
    /// Largest caching volume (the volume type's limit).
    pub size_max: Bytes,
    /// The provider can grow a volume in place.
    pub grows: bool,
    /// Split burst writes over both volumes. The driver passes it to the engine with `Adopt`.
    pub split: bool,
    /// Attach before a burst that is expected: see [`crate::forecast`].
    pub forecast: bool,
    /// AGBs that a second is worth in which the application waits for the device, at least 0. By default twice what the backing
    /// volume costs in it (Bb·N): it is rented for as long as the application runs, and so is the machine that waits, which
    /// costs no less. The papers' controller does not ask.
    pub value_of_time: f64,
    /// How long a caching volume is billed for.
    pub billed_time: BilledTime,
    /// Waits after refusals.
    pub backoff: Backoff,
    /// How often an attach is tried before the volume is deleted, at least 1.
    pub attach_attempts: u32,
    /// Least time from the start of one boost to the start of the next.
    pub boost_interval_min: Duration,
    /// The most that caching volumes may cost.
    pub budget: Budget,
    /// Time for creating, attaching, releasing, detaching and deleting together that a budget must be able to pay besides
    /// the drain. A provider that is slower than this may exceed the budget.
    pub budget_reserve: Duration,
    /// How long the driver waits for `Create` and `Grow`.
    pub create_timeout: Duration,
    /// How long the driver waits for `Attach` and `Adopt`.
    pub attach_timeout: Duration,
    /// How long the driver waits for `Detach` and `Delete`.
    pub detach_timeout: Duration,
    /// Seed of the jitter.
    pub seed: u64,
}

impl Config {
    /// The papers' defaults: threshold 30 %, delay 30 s, first cache 10 GiB, grain 1 GiB; and the policy's.
    #[must_use]
    pub fn new(
        preset: Preset,
        backing_bandwidth: Bandwidth,
        backing_size: Bytes,
        caching_bandwidth: Bandwidth,
    ) -> Self {
        let inactivity_delay = Duration::from_secs(30);
        Self {
            preset,
            backing_bandwidth,
            backing_size,
            caching_bandwidth,
            caching_reserved: caching_bandwidth,
            caching_rent: caching_bandwidth.as_mib_s(),
            caching_usd_per_gib_hour: None,
            in_place: None,
            utilization_threshold: 0.30,
            inactivity_delay,
            initial_size: Bytes::from_gib(10),
            fixed_size: None,
            grain: Bytes::from_gib(1),
            size_min: Bytes::from_gib(1),
            size_max: Bytes::from_gib(16 * 1024),
            grows: false,
            split: preset.how.split,
            forecast: preset.when.forecast,
            value_of_time: 2.0 * backing_bandwidth.as_mib_s() * backing_size.as_gib(),
            billed_time: BilledTime::default(),
            backoff: Backoff::default(),
            attach_attempts: 3,
            boost_interval_min: preset.boost_interval(inactivity_delay),
            budget: Budget::default(),
            budget_reserve: Duration::from_secs(60),
            create_timeout: Duration::from_secs(60),
            attach_timeout: Duration::from_secs(90),
            detach_timeout: Duration::from_secs(90),
            seed: 0,
        }
    }

    /// Whether the settings make sense together.
    ///
    /// # Errors
    /// One sentence: which setting, why, and the remedy.
    pub fn validate(&self) -> Result<(), String> {
        if !(self.utilization_threshold > 0.0 && self.utilization_threshold.is_finite()) {
            return Err(format!(
                "utilization_threshold is {}: it is a share of the backing volume's bandwidth above 0, such as 0.30",
                self.utilization_threshold
            ));
        }
        if self.grain == Bytes::ZERO {
            return Err("grain is zero: write the step of cache sizes, such as \"1 GiB\"".to_owned());
        }
        if self.size_min > self.size_max {
            return Err(format!(
                "the smallest caching volume, {}, is larger than the largest, {}: exchange them",
                self.size_min, self.size_max
            ));
        }
        if self.initial_size == Bytes::ZERO {
            return Err("initial_size is zero: write the first cache's size, such as \"10 GiB\"".to_owned());
        }
        if !(self.value_of_time >= 0.0 && self.value_of_time.is_finite()) {
            return Err(format!(
                "value_of_time is {}: it is in AGBs a second, at least 0, and by default twice what the backing volume costs",
                self.value_of_time
            ));
        }
        if !(self.caching_rent >= 0.0 && self.caching_rent.is_finite()) {
            return Err(format!(
                "caching_rent is {}: it is in AGBs a second for each GiB, at least 0, and by default the caching bandwidth",
                self.caching_rent
            ));
        }
        let limits = [
            ("agbs_per_hour", self.budget.agbs_per_hour),
            ("agbs_per_day", self.budget.agbs_per_day),
            ("usd_per_hour", self.budget.usd_per_hour),
            ("usd_per_day", self.budget.usd_per_day),
        ];
        match limits.iter().find(|(_, limit)| limit.is_some_and(|limit| limit.is_nan() || limit <= 0.0)) {
            Some((name, _)) => Err(format!("the budget's {name} is not above zero: leave it out for no limit")),
            None => Ok(()),
        }
    }

    /// How long the driver waits for this step before it answers `Refused(Timeout)`; `None`: as long as it takes.
    #[must_use]
    pub fn timeout(&self, step: &Step) -> Option<Duration> {
        match step {
            Step::Create { .. } | Step::Grow { .. } => Some(self.create_timeout),
            Step::Attach | Step::Adopt => Some(self.attach_timeout),
            Step::Detach | Step::Delete => Some(self.detach_timeout),
            // The first three are done at once; a release drains first.
            Step::Absorb | Step::Drain | Step::Finish | Step::Release => None,
        }
    }

    pub(super) fn bounds(&self) -> Bounds {
        // A cache larger than what it caches is of no use; never below the type's smallest.
        let useful = self.backing_size.round_up(Bytes::new(self.grain.get().max(1)));
        Bounds { grain: self.grain, min: self.size_min, max: self.size_max.min(useful.max(self.size_min)) }
    }

    /// Size of the first caching volume, as large as one may be here.
    #[must_use]
    pub fn first_size(&self) -> Bytes {
        self.bounds().clamp(self.initial_size)
    }

    /// AGBs that the backing volume costs in a second.
    pub(super) fn backing_agbs_per_s(&self) -> f64 {
        self.backing_bandwidth.as_mib_s() * self.backing_size.as_gib()
    }

    /// AGBs that a caching volume of `size` costs in a second, as boosts are judged.
    pub(super) fn rent_agbs_per_s(&self, size: Bytes) -> f64 {
        size.as_gib() * self.caching_rent
    }

    /// AGBs of a caching volume whose rent comes to this, as boosts are judged.
    pub(super) fn in_agbs(&self, rent: f64) -> f64 {
        // What costs nothing is not worth telling.
        if self.caching_rent > 0.0 { rent * self.caching_reserved.as_mib_s() / self.caching_rent } else { 0.0 }
    }

    pub(super) fn tariff(&self) -> Tariff {
        Tariff {
            bandwidth: self.caching_reserved,
            usd_per_gib_hour: self.caching_usd_per_gib_hour,
            billed_time: self.billed_time,
        }
    }
}
