//! What a configuration says of how the read caches of all devices share what this machine has for them: `[allocation]`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use surgetank_allocation::{SEGMENTS_MIN, Slo};
use surgetank_model::Bytes;
use surgetank_model::units::Span;
use surgetank_readcache::engine::SEGMENT_DEFAULT;
use toml::{Spanned, Value};

use super::{Config, DeviceConfig};
use crate::toml_error::{ConfigError, Source};

/// How often shares are planned, by default and at least, in milliseconds.
const INTERVAL_MS: (u64, u64) = (30_000, 1000);
/// How far above the latency of a fair share that of a device may be, if nobody says otherwise.
const SLO_DEFAULT: f64 = 0.05;
/// The smallest share.
const SHARE_MIN: Bytes = Bytes::new(SEGMENTS_MIN * SEGMENT_DEFAULT as u64);

/// How read caches share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AllocationConfig {
    /// What all of them have together.
    pub cache: Bytes,
    /// What all second levels have together; `None`: each has its members.
    pub level2: Option<Bytes>,
    /// Whether the caching volumes of boosts that are rented where read caches are count to it.
    pub boosts: bool,
    /// How often shares are planned.
    pub interval: Duration,
    /// What devices are promised that say nothing else.
    pub slo: Slo,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAllocation {
    cache: Spanned<Bytes>,
    level2: Option<Spanned<Bytes>>,
    boosts: Option<Spanned<bool>>,
    interval: Option<Spanned<Span>>,
    slo: Option<Spanned<Value>>,
}

/// Reads what a device is promised: a part of the latency of its fair share, or a latency.
pub(super) fn check_slo(source: &Source, slo: Option<&Spanned<Value>>) -> Result<Option<Slo>, ConfigError> {
    let Some(slo) = slo else { return Ok(None) };
    let refused = |message: String| source.at(Some(slo.span()), message);
    let read = Slo::read(slo.get_ref()).map_err(refused)?;
    match read {
        _ if read.is_valid() => Ok(Some(read)),
        Slo::Latency(latency) if latency.is_zero() => {
            Err(refused("slo is 0 s: every read takes time, so write a latency above zero".to_owned()))
        }
        Slo::Latency(latency) => Err(refused(format!(
            "slo is {}: write a latency of {} at most",
            Span(latency),
            Span(surgetank_allocation::LATENCY_MAX)
        ))),
        Slo::AboveFair(_) => Err(refused(format!(
            "slo is {}: write how far above that of a fair share the latency may be, such as 0.05, {} at most, or a latency, such as \"2 ms\"",
            slo.get_ref(),
            Slo::ABOVE_MAX
        ))),
    }
}

impl RawAllocation {
    /// With boosts, no caching volume of a device is larger than what the least shares of read caches leave.
    pub(super) fn check(
        self,
        source: &Source,
        devices: &mut BTreeMap<String, DeviceConfig>,
    ) -> Result<AllocationConfig, ConfigError> {
        let caches = || devices.values().filter_map(|device| device.read_cache.as_ref());
        let (sharing, second) = (caches().count(), caches().filter(|cache| cache.level2.is_some()).count());
        let (cache, span) = (*self.cache.get_ref(), self.cache.span());
        let nothing =
            "nothing shares this cache: give a device a section [device.NAME.read_cache], or remove [allocation]";
        let least = least_shares(source, &self.cache, (sharing, nothing), |least| {
            format!("cache is {cache}, and {sharing} read caches need {least}: {SHARE_MIN} each at least")
        })?;
        if let Some(level2) = &self.level2 {
            let nothing =
                "nothing shares level2: give a device a section [device.NAME.read_cache.level2], or remove level2";
            least_shares(source, level2, (second, nothing), |least| {
                let level2 = level2.get_ref();
                format!("level2 is {level2}: each second level has {SHARE_MIN} at least, all together {least}")
            })?;
        }
        if let Some(boosts) = self.boosts.as_ref().filter(|boosts| *boosts.get_ref()) {
            let left = Bytes::new(cache.get() - least.get());
            let names: Vec<String> = that_share(devices).cloned().collect();
            if names.is_empty() {
                let message = "no device rents caching volumes where read caches are rented, so that no boost shares: give one a section \
                               [device.NAME.caching] with the provider of a read cache, or remove boosts";
                return Err(source.at(Some(boosts.span()), message));
            }
            for name in &names {
                let Some(device) = devices.get_mut(name) else { continue };
                let grain = device.policy.grain.get();
                let Some(caching) = device.caching.as_mut() else { continue };
                // Each volume of a stripe has the same size, a multiple of the grain.
                let grain = if caching.volumes > 1 { grain.saturating_mul(u64::from(caching.volumes)) } else { 1 };
                let smallest = caching.size.0.round_up(Bytes::new(grain.max(1)));
                if smallest > left {
                    let message = format!(
                        "cache is {cache}, of which the least shares of {sharing} read caches leave {left}, and a caching volume of {name} has \
                         {smallest} at least: write a larger cache, a smaller min_size or size_grain, fewer volumes, or remove boosts"
                    );
                    return Err(source.at(Some(span), message));
                }
                caching.size.1 = caching.size.1.min(left);
                caching.initial_size = caching.initial_size.min(left);
            }
        }
        Ok(AllocationConfig {
            cache,
            level2: self.level2.map(Spanned::into_inner),
            boosts: self.boosts.is_some_and(Spanned::into_inner),
            interval: source.at_least("interval", self.interval.as_ref(), INTERVAL_MS)?,
            slo: check_slo(source, self.slo.as_ref())?.unwrap_or(Slo::AboveFair(SLO_DEFAULT)),
        })
    }
}

/// What the least shares of so many sharers of a budget have together. If there are none, or the budget is smaller, that is refused: with what is said
/// of no sharers, or with what `small` says.
fn least_shares(
    source: &Source,
    budget: &Spanned<Bytes>,
    (sharers, nothing): (usize, &str),
    small: impl FnOnce(Bytes) -> String,
) -> Result<Bytes, ConfigError> {
    let refused = |message: String| Err(source.at(Some(budget.span()), message));
    let least = Bytes::new(SHARE_MIN.get().saturating_mul(sharers as u64));
    match *budget.get_ref() {
        _ if sharers == 0 => refused(nothing.to_owned()),
        budget if budget < least => refused(small(least)),
        _ => Ok(least),
    }
}

/// Devices whose caching volumes are rented where read caches are.
fn that_share(devices: &BTreeMap<String, DeviceConfig>) -> impl Iterator<Item = &String> {
    let caches = || devices.values().filter_map(|device| Some(device.read_cache.as_ref()?.provider));
    let rents = move |device: &DeviceConfig| {
        device.caching.as_ref().is_some_and(|caching| caches().any(|provider| provider == caching.provider))
    };
    devices.iter().filter(move |(_, device)| rents(device)).map(|(name, _)| name)
}

impl Config {
    /// Devices whose boosts have a part of what read caches share.
    pub(crate) fn boosts_that_share(&self) -> impl Iterator<Item = &String> {
        let share = self.allocation.is_some_and(|allocation| allocation.boosts);
        that_share(&self.devices).filter(move |_| share)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::Config;
    use crate::toml_error::each_mistake_is_told;

    const FILE: &str = r#"
[provider.local]
directory = "/tmp/volumes"
[allocation]
cache = "1 GiB"
interval = "10 s"
slo = 0.1
[device.a]
backing = "/dev/vdb"
export = "nbd"
backing_limits.bandwidth = "33 MiB/s"
[device.a.read_cache]
members = 2
member_size = "1 GiB"
[device.b]
backing = "/dev/vdc"
export = "nbd"
backing_limits.bandwidth = "33 MiB/s"
[device.b.read_cache]
members = 1
member_size = "1 GiB"
slo = "2 ms"
"#;

    fn load(text: &str) -> Result<Config, String> {
        Config::from_text(Path::new("s.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn read_caches_share_what_the_machine_has() {
        let config = load(FILE).unwrap();
        let allocation = config.allocation.unwrap();
        assert_eq!((allocation.cache, allocation.interval), (Bytes::from_gib(1), Duration::from_secs(10)));
        let slo = |name: &str| config.devices[name].read_cache.as_ref().unwrap().slo;
        assert_eq!((slo("a"), slo("b")), (None, Some(Slo::Latency(Duration::from_millis(2)))));
        assert_eq!(allocation.slo, Slo::AboveFair(0.1));
        let plain = load(&FILE.replace("interval = \"10 s\"\nslo = 0.1\n", "")).unwrap().allocation.unwrap();
        assert_eq!((plain.interval, plain.slo), (Duration::from_secs(30), Slo::AboveFair(0.05)));
    }

    const BOOSTS: &str = "[device.a.caching]\nvolume_type = \"fast\"\nmin_size = \"16 MiB\"\n[device.b]";

    #[test]
    fn boosts_share_where_read_caches_are_rented_and_leave_these_their_least_shares() {
        let text = FILE.replace("[device.b]", BOOSTS);
        let config = load(&text).unwrap();
        assert_eq!(config.boosts_that_share().count(), 0, "as before, if nobody says otherwise");
        let before = config.devices["a"].caching.clone().unwrap();
        assert!(before.initial_size > Bytes::from_gib(1));
        let config = load(&text.replace("slo = 0.1", "boosts = true")).unwrap();
        assert_eq!(config.boosts_that_share().collect::<Vec<_>>(), ["a"]);
        let caching = config.devices["a"].caching.as_ref().unwrap();
        let left = Bytes::from_mib(1024 - 8);
        assert_eq!((caching.size, caching.initial_size), ((before.size.0, left), left));
        let elsewhere =
            "[provider.host]\nurl = \"http://127.0.0.1:1\"\ntoken_file = \"/t\"\n[allocation]\nboosts = true";
        let elsewhere = FILE.replace("[allocation]", elsewhere).replace(
            "[device.b]",
            &BOOSTS.replace("\"fast\"", "\"fast\"\nbandwidth = \"1 MiB/s\"\nprovider = \"host\""),
        );
        let elsewhere = elsewhere.replace("members =", "provider = \"local\"\nmembers =");
        let refused = load(&elsewhere).unwrap_err();
        assert!(
            refused.contains("s.toml:8:10: no device rents caching volumes where read caches are rented"),
            "{refused}"
        );
    }

    #[test]
    fn every_mistake_is_told_in_one_sentence() {
        each_mistake_is_told(
            FILE,
            load,
            &[
                ("slo = 0.1", "slo = 0", "s.toml:7:7: slo is 0: write how far above that of a fair share"),
                ("slo = 0.1", "slo = nan", "slo is nan: write how far"),
                ("slo = \"2 ms\"", "slo = \"0 s\"", "slo is 0 s: every read takes time"),
                ("slo = \"2 ms\"", "slo = -1", "slo is -1: write how far"),
                ("slo = \"2 ms\"", "slo = 1e300", "such as 0.05, 1000 at most"),
                ("slo = \"2 ms\"", "slo = \"2 h\"", "write a latency of 1 h at most"),
                ("cache = \"1 GiB\"", "cache = \"7 MiB\"", "and 2 read caches need 8 MiB"),
                ("slo = 0.1", "level2 = \"1 GiB\"", "s.toml:7:10: nothing shares level2: give a device a section"),
                ("slo = 0.1", "level2 = 1", "s.toml:7:10: "),
                ("slo = 0.1", "boosts = 1", "s.toml:7:10: "),
                (
                    "slo = 0.1",
                    "boosts = true",
                    "s.toml:7:10: no device rents caching volumes where read caches are rented",
                ),
                ("slo = \"2 ms\"", "slo = \"2\"", "s.toml:"),
                ("interval = \"10 s\"", "interval = \"10 ms\"", "interval"),
                ("interval = \"10 s\"", "intervall = \"10 s\"", "did you mean \"interval\""),
                ("[allocation]", "[alocation]", "did you mean \"allocation\""),
                (
                    "[allocation]\ncache = \"1 GiB\"\ninterval = \"10 s\"\nslo = 0.1\n",
                    "",
                    "slo is promised to read caches that share: add [allocation]",
                ),
            ],
        );
        let second = FILE
            .replace("[device.b]", "[device.a.read_cache.level2]\nmembers = 1\nmember_size = \"1 GiB\"\n[device.b]");
        let of = |level2: &str| load(&second.replace("slo = 0.1", &format!("level2 = \"{level2}\"")));
        assert_eq!(of("4 MiB").unwrap().allocation.unwrap().level2, Some(Bytes::from_mib(4)));
        assert_eq!(load(&second).unwrap().allocation.unwrap().level2, None, "as before, if nobody says otherwise");
        assert!(
            of("3 MiB")
                .unwrap_err()
                .contains("s.toml:7:10: level2 is 3 MiB: each second level has 4 MiB at least, all together 4 MiB")
        );
        let small =
            FILE.replace("[device.b]", BOOSTS).replace("cache = \"1 GiB\"", "cache = \"23 MiB\"\nboosts = true");
        let told = "s.toml:5:9: cache is 23 MiB, of which the least shares of 2 read caches leave 15 MiB, and a caching volume of a has 16 MiB at least";
        assert!(load(&small).unwrap_err().contains(told));
        // The least size of a stripe is a multiple of its volumes' grains.
        let striped = small.replace("cache = \"23 MiB\"", "cache = \"24 MiB\"");
        assert!(load(&striped).is_ok());
        let striped = striped.replace("min_size = \"16 MiB\"", "min_size = \"16 MiB\"\nvolumes = 3");
        let told = load(
            &striped.replace("[device.a.caching]", "[device.a.policy]\nsize_grain = \"8 MiB\"\n[device.a.caching]"),
        );
        assert!(told.clone().unwrap_err().contains("and a caching volume of a has 24 MiB at least"), "{told:?}");
        let none = FILE.replace("[device.a.read_cache]\nmembers = 2\nmember_size = \"1 GiB\"\n", "");
        let none = none.replace("[device.b.read_cache]\nmembers = 1\nmember_size = \"1 GiB\"\nslo = \"2 ms\"\n", "");
        assert!(load(&none).unwrap_err().contains("nothing shares this cache: give a device a section"));
    }
}
