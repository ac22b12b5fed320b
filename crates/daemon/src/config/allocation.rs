//! What a configuration says of how the read caches of all devices share what this machine has for them: `[allocation]`.

use std::time::Duration;

use serde::Deserialize;
use surgetank_allocation::Slo;
use surgetank_model::Bytes;
use surgetank_model::units::Span;
use toml::{Spanned, Value};

use crate::toml_error::{ConfigError, Source};

/// How often shares are planned, by default and at least, in milliseconds.
const INTERVAL_MS: (u64, u64) = (30_000, 1000);
/// How far above the latency of a fair share that of a device may be, if nobody says otherwise.
const SLO_DEFAULT: f64 = 0.05;
/// The smallest share: a cache has four segments or none.
pub(super) const SHARE_MIN: Bytes = Bytes::from_mib(4);

/// How read caches share.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AllocationConfig {
    /// What all of them have together.
    pub cache: Bytes,
    /// How often shares are planned.
    pub interval: Duration,
    /// What devices are promised that say nothing else.
    pub slo: Slo,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawAllocation {
    cache: Spanned<Bytes>,
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
    /// `sharing`: how many devices have a read cache.
    pub(super) fn check(self, source: &Source, sharing: usize) -> Result<AllocationConfig, ConfigError> {
        let (cache, span) = (*self.cache.get_ref(), self.cache.span());
        if sharing == 0 {
            let message =
                "nothing shares this cache: give a device a section [device.NAME.read_cache], or remove [allocation]";
            return Err(source.at(Some(span), message));
        }
        let least = Bytes::new(SHARE_MIN.get().saturating_mul(sharing as u64));
        if cache < least {
            let message =
                format!("cache is {cache}, and {sharing} read caches need {least}: {SHARE_MIN} each at least");
            return Err(source.at(Some(span), message));
        }
        Ok(AllocationConfig {
            cache,
            interval: source.at_least("interval", self.interval.as_ref(), INTERVAL_MS)?,
            slo: check_slo(source, self.slo.as_ref())?.unwrap_or(Slo::AboveFair(SLO_DEFAULT)),
        })
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
        let none = FILE.replace("[device.a.read_cache]\nmembers = 2\nmember_size = \"1 GiB\"\n", "");
        let none = none.replace("[device.b.read_cache]\nmembers = 1\nmember_size = \"1 GiB\"\nslo = \"2 ms\"\n", "");
        assert!(load(&none).unwrap_err().contains("nothing shares this cache: give a device a section"));
    }
}
