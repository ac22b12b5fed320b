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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use surgetank_model::{Bandwidth, Bytes, InPlace};

    use super::*;
    use crate::preset::Preset;

    /// 4 GiB take 32.8 s at 125 MiB/s and 6.6 s at 625 MiB/s: the boost holds 3.2 GiB for 40 s.
    fn said(caching_usd_per_gib_hour: Option<f64>, usd_per_hour: f64, raised_mib_s: u64) -> String {
        let mib_s = Bandwidth::from_mib_s;
        let in_place = InPlace { bandwidth: mib_s(raised_mib_s), usd_per_hour, least: Duration::from_secs(6 * 3600) };
        let config = Config {
            in_place: Some(in_place),
            caching_usd_per_gib_hour,
            ..Config::new(Preset::ADAPTIVE, mib_s(125), Bytes::from_gib(100), mib_s(500))
        };
        config.compared(&Prediction::of(26.2, 3.2 * 500.0 * 40.0))
    }

    #[test]
    fn a_boost_is_compared_with_raising_the_volume_in_place_and_with_doing_nothing() {
        // 3.2 GiB for 40 s at 0.001 USD; 6 h at 0.0274 USD for 625 MiB/s.
        assert_eq!(
            said(Some(0.001), 0.0274, 625),
            " (0.0000 USD); doing nothing costs these 26 s, and raising the backing volume in place to 625 MiB/s costs 0.1644 USD, \
             for it stays so for 6 h, and saves 26 s"
        );
        // Half of the way: 4096 MiB × (1/125 − 1/250).
        let half = said(Some(10.0), 0.0274, 250);
        assert!(
            half.starts_with(" (0.3556 USD)") && half.ends_with("saves 16 s"),
            "cheaper, but it saves less: {half}"
        );
        assert!(said(Some(10.0), 0.0274, 625).ends_with("saves 26 s, which is cheaper"));
        // A price that is not known is not zero.
        assert!(said(None, 0.0, 625).starts_with("; doing nothing") && said(None, 0.0, 625).ends_with("saves 26 s"));
    }

    #[test]
    fn nothing_is_said_of_a_volume_that_nobody_knows_how_to_raise() {
        let mib_s = Bandwidth::from_mib_s;
        let config = Config::new(Preset::ADAPTIVE, mib_s(33), Bytes::from_gib(50), mib_s(128));
        assert_eq!(config.compared(&Prediction::of(30.0, 70_000.0)), "");
    }
}
