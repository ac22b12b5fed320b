//! What the controller of a device is told at start.

use surgetank_model::{Bandwidth, Bytes, Catalog, Limits};
use surgetank_policy::Config;
use surgetank_policy::file::Volumes;

use super::{CachingConfig, DeviceConfig};
use crate::accounting::HOURS_PER_MONTH;

impl DeviceConfig {
    /// The settings of the controller that rents such caching volumes for a backing volume of this size; `seed` is that of its
    /// jitter.
    #[must_use]
    pub fn controller(&self, caching: &CachingConfig, size: Bytes, seed: u64) -> Config {
        let bandwidth = |limits: &Limits| limits.bandwidth.unwrap_or(Bandwidth::from_mib_s(1));
        let volumes = Volumes {
            backing_bandwidth: bandwidth(&self.backing_limits),
            backing_size: size,
            caching_bandwidth: bandwidth(&caching.all_limits()),
            caching_reserved: bandwidth(&caching.limits),
            initial_size: caching.initial_size,
            caching_sizes: caching.size,
            caching_usd_per_gib_hour: caching.usd_per_gib_month.map(|usd| usd / HOURS_PER_MONTH),
            backing_usd_per_hour: self.backing_usd_per_gib_month.map(|usd| usd * size.as_gib() / HOURS_PER_MONTH),
        };
        let mut config = self.policy.controller(&volumes, seed);
        if caching.volumes > 1 {
            // Each volume of a stripe has the same size, a multiple of the grain.
            config.grain = Bytes::new(config.grain.get().saturating_mul(u64::from(caching.volumes)));
            let whole = config.size_max.get() / config.grain.get() * config.grain.get();
            config.size_max = Bytes::new(whole).max(config.size_min.round_up(config.grain));
        }
        config.billed_time = caching.billed_time;
        config.in_place = self.backing_volume_type.as_ref().and_then(|known| {
            let both = volumes.backing_bandwidth.get().saturating_add(volumes.caching_bandwidth.get());
            Catalog::builtin().raised(known, size, volumes.backing_bandwidth, Bandwidth::new(both))
        });
        config
    }
}
