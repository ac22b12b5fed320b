//! What a configuration says of a device's read cache: `[device.NAME.read_cache]`.

use std::ops::Range;
use std::time::Duration;

use serde::Deserialize;
use surgetank_allocation::Slo;
use surgetank_model::units::Span;
use surgetank_model::volume_type::Credits;
use surgetank_model::{Bandwidth, Bytes, Iops, Limits};
use surgetank_rental::read_cache::{Level, VOLUMES_MAX};
use toml::{Spanned, Value};

use super::allocation::check_slo;
use super::caching::Providers;
use crate::exports::Kind;
use crate::toml_error::{ConfigError, Source};

/// The smallest member: what is on one is lost with it, and a segment has 1 MiB.
const MEMBER_MIN: Bytes = Bytes::from_mib(8);
/// How long a read of a member is waited for, by default and at least.
const TIMEOUT_MS: (u64, u64) = (5000, 100);

/// The read cache of a device.
#[derive(Clone, Debug)]
pub struct ReadCacheConfig {
    /// Who rents its volumes out: a name of [`Config::providers`](super::Config::providers).
    pub provider: &'static str,
    /// The provider's name of their type.
    pub volume_type: String,
    /// Nominal limits of a member, as far as they are known.
    pub limits: Limits,
    /// The burst credits of a member, to which the daemon holds it as well.
    pub credits: Vec<Credits>,
    /// Whether the daemon holds members to them.
    pub throttle: bool,
    /// Members.
    pub members: u32,
    /// Size of a member.
    pub member_size: Bytes,
    /// How long a read of a member is waited for before the backing volume is asked.
    pub timeout: Duration,
    /// What a member costs, if that is known.
    pub usd_per_gib_month: Option<f64>,
    /// What its reads are promised if it shares with others; `None`: what all are.
    pub slo: Option<Slo>,
    /// The one beneath it, which answers what it does not have.
    pub level2: Option<Box<ReadCacheConfig>>,
}

impl ReadCacheConfig {
    /// That of a level, if the device has one there.
    #[must_use]
    pub fn at(&self, level: Level) -> Option<&Self> {
        match level {
            Level::First => Some(self),
            Level::Second => self.level2.as_deref(),
        }
    }

    /// All levels.
    pub fn levels(&self) -> impl Iterator<Item = &Self> {
        Level::ALL.into_iter().filter_map(|level| self.at(level))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawReadCache {
    provider: Option<Spanned<String>>,
    volume_type: Option<Spanned<String>>,
    bandwidth: Option<Bandwidth>,
    iops: Option<Iops>,
    throttle: Option<bool>,
    members: Spanned<u32>,
    member_size: Spanned<Bytes>,
    timeout: Option<Spanned<Span>>,
    usd_per_gib_month: Option<Spanned<f64>>,
    slo: Option<Spanned<Value>>,
    level2: Option<Spanned<Box<RawReadCache>>>,
}

impl RawReadCache {
    pub(super) fn check(
        self,
        source: &Source,
        providers: &mut Providers,
        (export, export_span): (Option<&Kind>, Option<Range<usize>>),
        shares: bool,
    ) -> Result<ReadCacheConfig, ConfigError> {
        if export.is_some_and(Kind::is_mapped) {
            let message = "the kernel would map the device straight to its backing volume, past the read cache: write \"ublk\", \"fuse\", \
                           \"nbd\" or \"auto\"";
            return Err(source.at(export_span, message));
        }
        let level2 = self.level2.map(|level2| {
            let (span, level2) = (level2.span(), *level2.into_inner());
            if level2.level2.is_some() {
                return Err(source.at(Some(span), "a read cache has two levels: remove level2 beneath level2"));
            }
            if let Some(slo) = &level2.slo {
                let message = "slo is what the device's reads are promised, by whatever level they are answered: write it beside level2";
                return Err(source.at(Some(slo.span()), message));
            }
            level2.check(source, providers, (None, None), shares)
        });
        let level2 = level2.transpose()?.map(Box::new);
        let provider = providers.named(source, self.provider.as_ref())?;
        let span = self.volume_type.as_ref().map(Spanned::span);
        let volume_type = self.volume_type.map_or_else(|| "fast".to_owned(), Spanned::into_inner);
        let of_type = providers.by_name[provider].type_limits(&volume_type);
        let of_type = of_type.map_err(|error| source.at(span, error.to_string()))?;
        let (members, span) = (*self.members.get_ref(), self.members.span());
        if members == 0 || members > VOLUMES_MAX {
            let message = format!("members is {members}: a read cache has 1 to {VOLUMES_MAX} members");
            return Err(source.at(Some(span), message));
        }
        let (member_size, span) = (*self.member_size.get_ref(), self.member_size.span());
        let (least, most) = (of_type.sizes.0.max(MEMBER_MIN), of_type.sizes.1);
        if member_size < least || member_size > most {
            let message = format!(
                "member_size is {member_size}, but a member of type \"{volume_type}\" has {least} to {most}: write a size between"
            );
            return Err(source.at(Some(span), message));
        }
        if let Some(slo) = self.slo.as_ref().filter(|_| !shares) {
            let message = "slo is promised to read caches that share: add [allocation] with cache = \"64 GiB\", what this machine has \
                           for all of them, or remove it";
            return Err(source.at(Some(slo.span()), message));
        }
        Ok(ReadCacheConfig {
            level2,
            slo: check_slo(source, self.slo.as_ref())?,
            provider,
            limits: Limits { bandwidth: self.bandwidth.or(of_type.bandwidth), iops: self.iops.or(of_type.iops) },
            credits: providers.by_name[provider]
                .credits(&volume_type, member_size)
                .map_err(|error| source.at(Some(span), error.to_string()))?,
            throttle: self.throttle.unwrap_or(of_type.throttle),
            volume_type,
            members,
            member_size,
            timeout: source.at_least("timeout", self.timeout.as_ref(), TIMEOUT_MS)?,
            usd_per_gib_month: super::price(source, "usd_per_gib_month", self.usd_per_gib_month.as_ref())?,
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
[device.data]
backing = "/dev/vdb"
export = "nbd"
backing_limits.bandwidth = "33 MiB/s"
[device.data.read_cache]
provider = "local"
volume_type = "slow"
members = 10
member_size = "10 GiB"
timeout = "2 s"
"#;

    fn load(text: &str) -> Result<Config, String> {
        Config::from_text(Path::new("r.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn the_documented_section_is_read() {
        let config = load(FILE).unwrap();
        let cache = config.devices["data"].read_cache.as_ref().unwrap();
        assert_eq!((cache.members, cache.member_size), (10, Bytes::from_gib(10)));
        assert_eq!((cache.timeout, cache.throttle), (Duration::from_secs(2), true));
        assert!(config.devices["data"].caching.is_none(), "it needs no boosts");
    }

    const LEVEL2: &str =
        "[device.data.read_cache.level2]\nvolume_type = \"slow\"\nmembers = 2\nmember_size = \"20 GiB\"\n";

    #[test]
    fn a_second_level_has_the_same_settings() {
        let config = load(&format!("{FILE}{LEVEL2}")).unwrap();
        let levels: Vec<u32> =
            config.devices["data"].read_cache.as_ref().unwrap().levels().map(|cache| cache.members).collect();
        assert_eq!(levels, [10, 2]);
        for (more, told) in [
            ("slo = 0.1\n", "r.toml:18:7: slo is what the device's reads are promised"),
            ("level2 = { members = 1, member_size = \"8 MiB\" }", "a read cache has two levels"),
            ("memberz = 1", "memberz"),
        ] {
            let error = load(&format!("{FILE}{LEVEL2}{more}")).unwrap_err();
            assert!(error.contains(told), "{error}");
        }
        let small = load(&format!("{FILE}{}", LEVEL2.replace("20 GiB", "1 MiB"))).unwrap_err();
        assert!(small.starts_with("r.toml:17:15: member_size is 1 MiB"), "{small}");
    }

    #[test]
    fn every_mistake_has_a_place_and_a_remedy() {
        let mistakes = [
            (
                "timeout = \"2 s\"",
                "usd_per_gib_month = -0.1",
                "r.toml:13:21: usd_per_gib_month must be a number of USD that is not negative",
            ),
            ("= 10", "= 0", "r.toml:11:11: members is 0: a read cache has 1 to 127 members"),
            ("= 10", "= 500", "r.toml:11:11: members is 500: a read cache has 1 to 127 members"),
            (
                "\"10 GiB\"",
                "\"1 MiB\"",
                "r.toml:12:15: member_size is 1 MiB, but a member of type \"slow\" has 8 MiB to",
            ),
            ("\"10 GiB\"", "10", "r.toml:12:15: 10 has no unit"),
            ("\"2 s\"", "\"2 ms\"", "r.toml:13:11: timeout is below 100 ms"),
            ("\"local\"", "\"elsewhere\"", "r.toml:9:12: the provider \"elsewhere\" is not supported"),
            (
                "\"slow\"",
                "\"slwo\"",
                "r.toml:10:15: the local provider has no volume type \"slwo\": did you mean \"slow\"",
            ),
            ("\"nbd\"", "\"dm\"", "r.toml:6:10: the kernel would map the device straight to its backing volume"),
            ("member_size =", "membr_size =", "did you mean \"member_size\""),
            ("[device.data.read_cache]", "[device.data.read_cahce]", "did you mean \"read_cache\""),
        ];
        each_mistake_is_told(FILE, load, &mistakes);
    }
}
