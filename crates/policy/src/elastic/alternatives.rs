//! What else could be done about a burst than to rent a caching volume for it, in the configuration's prices.

use super::Config;
use super::status::Prediction;

/// Who saves so much of what another one saves, saves as much: both are estimates.
const AS_MUCH: f64 = 0.95;

impl Config {
    /// What the boost costs in USD, what raising the backing volume in place would cost and save, and what comes of doing nothing.
    /// Empty where it is not known how that volume could be raised.
    pub(super) fn compared(&self, boost: &Prediction) -> String {
        let Some(in_place) = &self.in_place else { return String::new() };
        let saved = boost.saved.0.as_secs_f64();
        let (backing, caching) = (self.backing_bandwidth.as_mib_s(), self.caching_bandwidth.as_mib_s());
        let boosted = if self.split { backing + caching } else { caching };
        // Of each byte of the burst. A caching volume may be too small for all of them; a volume that was raised is not.
        let faster = |mib_s: f64| 1.0 / backing - 1.0 / mib_s;
        let raised_saves = saved * faster(in_place.bandwidth.as_mib_s()) / faster(boosted).max(f64::MIN_POSITIVE);
        let raised_usd = in_place.usd_per_hour * in_place.least.as_secs_f64() / 3600.0;
        let gib_hours = boost.cost_agbs as f64 / caching / 3600.0;
        let boost_usd = self.caching_usd_per_gib_hour.map(|usd| usd * gib_hours);
        let told = boost_usd.map_or_else(String::new, |usd| format!(" ({usd:.4} USD)"));
        let is_cheaper = boost_usd.is_some_and(|usd| raised_usd < usd) && raised_saves >= AS_MUCH * saved;
        let verdict = if is_cheaper { ", which is cheaper" } else { "" };
        format!(
            "{told}; doing nothing costs these {saved:.0} s, and raising the backing volume in place to {:.0} MiB/s costs {raised_usd:.4} \
             USD, for it stays so for {:.0} h, and saves {raised_saves:.0} s{verdict}",
            in_place.bandwidth.as_mib_s(),
            in_place.least.as_secs_f64() / 3600.0
        )
    }
}
