//! What a configuration says of an array: `[array.NAME]`.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use surgetank_array::format::MEMBERS_MAX;
use surgetank_model::units::Span;
use surgetank_model::volume_type::Credits;
use surgetank_model::{Bandwidth, Bytes, Iops, Limits, VolumeType};
use surgetank_policy::budget::Budget;
use surgetank_policy::file::RawBudget;
use surgetank_policy::rotation::Way;
use toml::Spanned;

use super::caching::Providers;
use crate::accounting::HOURS_PER_MONTH;
use crate::toml_error::{ConfigError, Source, nearest};

/// How long the replaced members of an ephemeral array are kept, by default and at least.
const HOLD_MS: (u64, u64) = (3_600_000, 1000);
/// The smallest member: smaller ones hold hardly more than what is on a member beside the data.
const MEMBER_MIN: Bytes = Bytes::from_mib(8);

/// What an array is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Its data is to stay: a replaced member is deleted as soon as it counts no more.
    Persistent,
    /// Scratch space: replaced members are kept for a while, detached, then deleted.
    Ephemeral {
        /// How long.
        hold: Duration,
    },
}

impl Use {
    /// As configurations and reports name it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Persistent => "persistent",
            Self::Ephemeral { .. } => "ephemeral",
        }
    }
}

/// An array.
#[derive(Clone, Debug)]
pub struct ArrayConfig {
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
    /// What it is for.
    pub usage: Use,
    /// When members are replaced by themselves.
    pub rotate: Way,
    /// Extra volumes at most, where members are replaced one after the other.
    pub rotate_at_once: u32,
    /// How fast a joining member is copied to; `None`: as fast as the volumes are.
    pub copy_rate: Option<Bandwidth>,
    /// The most that extra volumes may cost.
    pub budget: Budget,
    /// What a member costs, if that is known.
    pub usd_per_gib_month: Option<f64>,
    /// What their type is in the catalog, `aws/gp2`: so a start can say what would be cheaper than their rotation.
    pub catalog_type: Option<VolumeType>,
}

impl ArrayConfig {
    /// What a member costs for each GiB and hour: what the section says, else the catalog.
    #[must_use]
    pub fn usd_per_gib_hour(&self) -> Option<f64> {
        let written = self.usd_per_gib_month.map(|usd| usd / HOURS_PER_MONTH);
        written.or_else(|| {
            Some(self.catalog_type.as_ref()?.price_per_hour(self.member_size)? / self.member_size.as_gib().max(1e-9))
        })
    }

    /// Nominal limits of the whole: those of its members together.
    #[must_use]
    pub fn whole_limits(&self) -> Limits {
        let bandwidth =
            self.limits.bandwidth.map(|one| Bandwidth::new(one.get().saturating_mul(u64::from(self.members))));
        Limits { bandwidth, iops: None }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawArray {
    provider: Option<Spanned<String>>,
    volume_type: Option<Spanned<String>>,
    bandwidth: Option<Bandwidth>,
    iops: Option<Iops>,
    throttle: Option<bool>,
    members: Spanned<u32>,
    member_size: Spanned<Bytes>,
    #[serde(rename = "use")]
    usage: Option<Spanned<String>>,
    hold: Option<Spanned<Span>>,
    rotate: Option<Spanned<String>>,
    rotate_at_once: Option<Spanned<u32>>,
    copy_rate: Option<Bandwidth>,
    #[serde(default)]
    budget: RawBudget,
    usd_per_gib_month: Option<Spanned<f64>>,
    catalog_type: Option<Spanned<String>>,
}

/// Checks all sections.
pub(super) fn arrays(
    source: &Source,
    raw: BTreeMap<Spanned<String>, RawArray>,
    providers: &mut Providers,
) -> Result<BTreeMap<String, ArrayConfig>, ConfigError> {
    let check = |(name, array): (Spanned<String>, RawArray)| {
        super::check_name(source, "array", &name)?;
        Ok((name.into_inner(), array.check(source, providers)?))
    };
    raw.into_iter().map(check).collect()
}

impl RawArray {
    fn check(self, source: &Source, providers: &mut Providers) -> Result<ArrayConfig, ConfigError> {
        let provider = providers.named(source, self.provider.as_ref())?;
        let span = self.volume_type.as_ref().map(Spanned::span);
        let volume_type = self.volume_type.map_or_else(|| "fast".to_owned(), Spanned::into_inner);
        let of_type = providers.by_name[provider].type_limits(&volume_type);
        let of_type = of_type.map_err(|error| source.at(span, error.to_string()))?;
        let (members, span) = (*self.members.get_ref(), self.members.span());
        // One more is there while a member is replaced, and both have a number of their own.
        if members == 0 || members >= MEMBERS_MAX {
            let message = format!("members is {members}: an array has 1 to {} members", MEMBERS_MAX - 1);
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
        let usage = match self.usage.as_ref().map_or("persistent", |written| written.get_ref()) {
            "persistent" => Use::Persistent,
            "ephemeral" => Use::Ephemeral { hold: source.at_least("hold", self.hold.as_ref(), HOLD_MS)? },
            written => {
                let span = self.usage.as_ref().map(Spanned::span);
                return Err(unknown(source, span, "use", written, &["persistent", "ephemeral"], ""));
            }
        };
        if let (Use::Persistent, Some(hold)) = (usage, &self.hold) {
            let message =
                "hold is how long an ephemeral array keeps replaced members: write use = \"ephemeral\", or take it out";
            return Err(source.at(Some(hold.span()), message));
        }
        let rotate = match self.rotate.as_ref() {
            None => Way::default(),
            Some(written) => match Way::NAMES.iter().find(|(name, _)| name == written.get_ref()) {
                Some((_, way)) => *way,
                None => {
                    let names = Way::NAMES.map(|(name, _)| name);
                    return Err(unknown(source, Some(written.span()), "rotate", written.get_ref(), &names, ""));
                }
            },
        };
        let rotate_at_once = self.rotate_at_once.as_ref().map_or(1, |written| *written.get_ref());
        if rotate_at_once == 0 || rotate_at_once > members {
            let span = self.rotate_at_once.as_ref().map(Spanned::span);
            let message =
                format!("rotate_at_once is {rotate_at_once}: of {members} members 1 to {members} are replaced at once");
            return Err(source.at(span, message));
        }
        let usd_per_gib_month = super::price(source, "usd_per_gib_month", self.usd_per_gib_month.as_ref())?;
        if let (Some(span), None, None) = (self.budget.usd_span(), usd_per_gib_month, &self.catalog_type) {
            let message =
                "a budget in USD needs a price: write usd_per_gib_month or catalog_type beside it, or budget in AGBs";
            return Err(source.at(Some(span), message));
        }
        Ok(ArrayConfig {
            budget: self.budget.check(source)?,
            usd_per_gib_month,
            provider,
            limits: Limits { bandwidth: self.bandwidth.or(of_type.bandwidth), iops: self.iops.or(of_type.iops) },
            credits: providers.by_name[provider]
                .credits(&volume_type, member_size)
                .map_err(|error| source.at(Some(span.clone()), error.to_string()))?,
            throttle: self.throttle.unwrap_or(of_type.throttle),
            volume_type,
            members,
            member_size,
            usage,
            rotate,
            rotate_at_once,
            copy_rate: self.copy_rate,
            catalog_type: self
                .catalog_type
                .map(|name| super::catalog_type(source, "catalog_type", &name))
                .transpose()?,
        })
    }
}

fn unknown(
    source: &Source,
    span: Option<std::ops::Range<usize>>,
    key: &str,
    written: &str,
    known: &[&str],
    more: &str,
) -> ConfigError {
    let message = match nearest(written, known.iter().copied()) {
        Some(nearest) => {
            format!("{key} is \"{written}\", which this version does not know: did you mean \"{nearest}\"?")
        }
        None => {
            let known = known.join("\" or \"");
            format!("{key} is \"{written}\", which this version does not know: write \"{known}\"{more}")
        }
    };
    source.at(span, message)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Backing, Config};
    use crate::toml_error::each_mistake_is_told;

    const FILE: &str = r#"
[provider.local]
directory = "/tmp/volumes"
[array.scratch]
provider = "local"
volume_type = "slow"
members = 10
member_size = "50 GiB"
use = "persistent"
rotate = "never"
copy_rate = "60 MiB/s"
[device.data]
backing = "array:scratch"
export = "nbd"
"#;

    fn load(text: &str) -> Result<Config, String> {
        Config::from_text(Path::new("a.toml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn the_documented_section_is_read() {
        let config = load(FILE).unwrap();
        let array = &config.arrays["scratch"];
        assert_eq!((array.members, array.member_size, array.usage), (10, Bytes::from_gib(50), Use::Persistent));
        assert_eq!(array.copy_rate, Some(Bandwidth::from_mib_s(60)));
        assert_eq!((array.rotate, array.rotate_at_once), (Way::Never, 1));
        let priced =
            load(&FILE.replace("rotate = \"never\"", "usd_per_gib_month = 0.73\nbudget.usd_per_day = 0.5")).unwrap();
        let priced = &priced.arrays["scratch"];
        assert_eq!(priced.budget, Budget { usd_per_day: Some(0.5), ..Budget::default() });
        assert!(priced.usd_per_gib_hour().is_some_and(|usd| (usd - 0.001).abs() < 1e-9));
        let unsaid = load(&FILE.replace("rotate = \"never\"\n", "")).unwrap();
        assert_eq!(unsaid.arrays["scratch"].rotate, Way::Staggered, "as `simulate` has it");
        let device = &config.devices["data"];
        assert_eq!(device.backing, Backing::Array("scratch".to_owned()));
        assert_eq!(device.backing_limits.bandwidth, Some(Bandwidth::from_mib_s(330)), "ten times that of the type");
        let ephemeral = FILE.replace("\"persistent\"", "\"ephemeral\"\nhold = \"5 min\"");
        assert_eq!(
            load(&ephemeral).unwrap().arrays["scratch"].usage,
            Use::Ephemeral { hold: Duration::from_secs(300) }
        );
        let alone = FILE.split("[device").next().unwrap();
        assert!(load(alone).unwrap().devices.is_empty(), "an array can be made before a device uses it");
    }

    #[test]
    fn every_mistake_has_a_place_and_a_remedy() {
        let mistakes = [
            ("\"60 MiB/s\"", "60", "a.toml:11:13: 60 has no unit"),
            ("= 10", "= 0", "a.toml:7:11: members is 0: an array has 1 to 127 members"),
            ("= 10", "= 500", "a.toml:7:11: members is 500: an array has 1 to 127 members"),
            (
                "\"50 GiB\"",
                "\"50 KiB\"",
                "a.toml:8:15: member_size is 50 KiB, but a member of type \"slow\" has 8 MiB to",
            ),
            (
                "\"persistent\"",
                "\"persistnt\"",
                "a.toml:9:7: use is \"persistnt\", which this version does not know: did you mean",
            ),
            (
                "\"persistent\"",
                "\"cache\"",
                "a.toml:9:7: use is \"cache\", which this version does not know: write \"persistent\" or",
            ),
            ("\"persistent\"", "\"persistent\"\nhold = \"1 h\"", "a.toml:10:8: hold is how long an ephemeral array"),
            (
                "\"never\"",
                "\"stagered\"",
                "a.toml:10:10: rotate is \"stagered\", which this version does not know: did you mean \"staggered\"?",
            ),
            (
                "\"never\"",
                "\"never\"\nrotate_at_once = 11",
                "a.toml:11:18: rotate_at_once is 11: of 10 members 1 to 10 are replaced at once",
            ),
            (
                "\"never\"",
                "\"never\"\ncatalog_type = \"aws/gp22\"",
                "a.toml:11:16: unknown catalog_type \"aws/gp22\": did you mean \"aws/gp2\"?",
            ),
            (
                "\"never\"",
                "\"never\"\nbudget.usd_per_day = 0.5",
                "a.toml:11:22: a budget in USD needs a price: write usd_per_gib_month or catalog_type",
            ),
            ("\"never\"", "\"never\"\nbudget.agbs_per_day = 0.0", "a.toml:11:23: agbs_per_day must be above zero"),
            (
                "\"never\"",
                "\"never\"\nusd_per_gib_month = -1.0",
                "a.toml:11:21: usd_per_gib_month must be a number of USD",
            ),
            ("\"local\"", "\"elsewhere\"", "a.toml:5:12: the provider \"elsewhere\" is not supported"),
            (
                "\"slow\"",
                "\"slwo\"",
                "a.toml:6:15: the local provider has no volume type \"slwo\": did you mean \"slow\"",
            ),
            (
                "array:scratch",
                "array:scrtch",
                "a.toml:13:11: there is no section [array.scrtch]: did you mean \"scratch\"?",
            ),
            ("array:scratch", "array:", "a.toml:13:11: there is no section [array.]"),
            ("[array.scratch", "[array.\"a/b\"", "a.toml:4:8: the array name \"a/b\" does not do"),
            ("\"nbd\"", "\"dm\"", "a.toml:14:10: the kernel cannot map a device straight to an array"),
            ("members =", "membrs =", "did you mean \"members\""),
            (
                "[device.data]",
                "[device.b]\nbacking = \"array:scratch\"\n[device.data]",
                "the device b has this backing volume already",
            ),
        ];
        each_mistake_is_told(FILE, load, &mistakes);
    }
}
