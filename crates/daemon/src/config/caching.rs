//! From whom a daemon rents, and what each device rents of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use surgetank_model::units::Span;
use surgetank_model::{Bandwidth, Bytes, Iops, Limits};
use surgetank_policy::stripe::{self, Machine};
use surgetank_provider::ProviderConfig;
use surgetank_provider::table::{Rented, Section};
use surgetank_rental::stripe::MEMBERS_MAX;
use toml::Spanned;

use super::{ArrayConfig, CachingConfig, price};
use crate::toml_error::{ConfigError, Source};

/// Size of the first caching volume, by default.
const FIRST: Bytes = Bytes::from_gib(10);
/// How long a caching volume that answers nothing is waited for, by default and at least. Path failovers and restarts of a
/// cloud's storage take up to two minutes.
const OUTAGE_PATIENCE_MS: (u64, u64) = (300_000, 1000);

/// The providers of a daemon.
pub(super) struct Providers {
    pub(super) by_name: BTreeMap<&'static str, Arc<dyn ProviderConfig>>,
    /// From whom a device rents that does not say.
    unnamed: &'static str,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCaching {
    provider: Option<Spanned<String>>,
    volume_type: Option<Spanned<String>>,
    bandwidth: Option<Bandwidth>,
    iops: Option<Iops>,
    volumes: Option<Spanned<Count>>,
    initial_size: Option<Spanned<Bytes>>,
    min_size: Option<Spanned<Bytes>>,
    max_size: Option<Spanned<Bytes>>,
    throttle: Option<bool>,
    outage_patience: Option<Spanned<Span>>,
    usd_per_gib_month: Option<Spanned<f64>>,
}

/// A number of volumes, or that the limits are to decide.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Count {
    Number(i64),
    Word(String),
}

/// The machine.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMachine {
    bandwidth: Option<Spanned<Bandwidth>>,
    attachments: Option<Spanned<i64>>,
}

/// Volumes of a machine, at most; no machine takes as many.
const ATTACHMENTS_MAX: u32 = 1024;

impl RawMachine {
    pub(super) fn check(self, source: &Source) -> Result<Machine, ConfigError> {
        if let Some(zero) = self.bandwidth.as_ref().filter(|bandwidth| bandwidth.get_ref().get() == 0) {
            let message = "the machine's bandwidth is zero: write what all its volumes move together, or leave it out";
            return Err(source.at(Some(zero.span()), message));
        }
        let check = |given: Spanned<i64>| {
            let most = u32::try_from(*given.get_ref()).ok().filter(|most| (2..=ATTACHMENTS_MAX).contains(most));
            most.ok_or_else(|| {
                let message =
                    format!("attachments is {}: a machine takes 2 to {ATTACHMENTS_MAX} volumes", given.get_ref());
                source.at(Some(given.span()), message)
            })
        };
        let attachments = self.attachments.map(check).transpose()?;
        Ok(Machine { bandwidth: self.bandwidth.map(Spanned::into_inner), attachments })
    }
}

/// What is beside a device's caching volumes.
pub(super) struct Beside<'a> {
    pub(super) machine: Machine,
    pub(super) arrays: &'a BTreeMap<String, ArrayConfig>,
    /// What the backing volume moves.
    pub(super) backing: Bandwidth,
    /// The step of sizes.
    pub(super) grain: Bytes,
}

impl Beside<'_> {
    /// How many volumes machine and provider take beside the members of all arrays and the backing volume, as far as that is known.
    fn free(&self, provider: &str, limit: Option<u32>) -> Option<u32> {
        let members = |of: &dyn Fn(&ArrayConfig) -> bool| {
            self.arrays.values().filter(|array| of(array)).map(|array| array.members).fold(0, u32::saturating_add)
        };
        let of_machine = self.machine.attachments.map(|most| most.saturating_sub(members(&|_| true).max(1)));
        let of_provider = limit.map(|most| most.saturating_sub(members(&|array| array.provider == provider)));
        [of_machine, of_provider].into_iter().flatten().min()
    }
}

/// Over how many volumes a caching volume is striped. `None`: the limits decide.
fn volumes(source: &Source, written: Option<&Spanned<Count>>) -> Result<Option<u32>, ConfigError> {
    let Some(written) = written else { return Ok(Some(1)) };
    let at = |message| source.at(Some(written.span()), message);
    match written.get_ref() {
        Count::Number(number) => {
            let volumes = u32::try_from(*number).ok().filter(|volumes| (1..=MEMBERS_MAX).contains(volumes));
            volumes.map(Some).ok_or_else(|| {
                at(format!("volumes is {number}: a caching volume is striped over 1 to {MEMBERS_MAX} volumes"))
            })
        }
        Count::Word(word) if word == "auto" => Ok(None),
        Count::Word(word) => Err(at(format!(
            "volumes is \"{word}\": write a number of volumes from 1 to {MEMBERS_MAX}, such as 4, or \"auto\""
        ))),
    }
}

/// Checks the sections of providers, each apart.
pub(super) fn providers(source: &Source, sections: Vec<Section>) -> Result<Providers, ConfigError> {
    if let Some([first, second]) = sections.windows(2).find(|pair| pair[0].name == pair[1].name) {
        let message = format!(
            "[provider.{}] and [provider.{}] are one provider under two names: keep one of them",
            first.written, second.written
        );
        return Err(source.at(Some(second.span.clone()), message));
    }
    let check = |Section { name, span, config, .. }: Section| match config.check() {
        Ok(()) => Ok((name, config)),
        Err(error) => Err(source.at(Some(span), error)),
    };
    let unnamed = if let [only] = &*sections { only.name } else { "local" };
    Ok(Providers { by_name: sections.into_iter().map(check).collect::<Result<_, _>>()?, unnamed })
}

impl Providers {
    /// From whom who has written this, or nothing, rents. A provider whose keys all have defaults needs no section.
    pub(super) fn named(
        &mut self,
        source: &Source,
        written: Option<&Spanned<String>>,
    ) -> Result<&'static str, ConfigError> {
        let span = written.map(Spanned::span);
        let written = written.map_or(self.unnamed, |written| written.get_ref());
        let Some((_, name)) = Rented::NAMES.iter().find(|(known, _)| *known == written) else {
            let mut known: Vec<&str> = Rented::NAMES.iter().map(|(_, name)| *name).collect();
            known.dedup();
            let message = format!(
                "the provider \"{written}\" is not supported in this version: write provider = \"{}\"",
                known.join("\" or \"")
            );
            return Err(source.at(span, message));
        };
        if !self.by_name.contains_key(name) {
            let empty: Result<Rented, _> = toml::from_str(&format!("[{name}]"));
            let empty = empty.map_err(|error| {
                let why = error.message().replace('`', "\"");
                source.at(span, format!("there is no section [provider.{name}]: add it ({why})"))
            })?;
            self.by_name.extend(empty.sections().into_iter().map(|section| (section.name, section.config)));
        }
        Ok(name)
    }
}

impl RawCaching {
    pub(super) fn check(
        self,
        source: &Source,
        providers: &mut Providers,
        beside: &Beside<'_>,
    ) -> Result<CachingConfig, ConfigError> {
        let provider = providers.named(source, self.provider.as_ref())?;
        let span = self.volume_type.as_ref().map(Spanned::span);
        let volume_type = self.volume_type.map_or_else(|| "fast".to_owned(), Spanned::into_inner);
        let of_type = providers.by_name[provider].type_limits(&volume_type);
        let of_type = of_type.map_err(|error| source.at(span.clone(), error.to_string()))?;
        let bandwidth = self.bandwidth.or(of_type.bandwidth).ok_or_else(|| {
            let message = format!(
                "what a volume of type \"{volume_type}\" moves is known to its provider alone: add it to this device's \
                 caching section, such as bandwidth = \"128 MiB/s\""
            );
            source.at(span, message)
        })?;
        let written = volumes(source, self.volumes.as_ref())?;
        let volumes = written.unwrap_or_else(|| {
            let largest = self.max_size.as_ref().map_or(Bytes::new(u64::MAX), |most| *most.get_ref());
            let first = self.initial_size.as_ref().map_or(FIRST.min(largest), |first| *first.get_ref());
            stripe::volumes(&stripe::Limits {
                machine: beside.machine,
                free: beside.free(provider, providers.by_name[provider].volumes_max()),
                backing: beside.backing,
                each: bandwidth,
                first,
                largest,
                unit: of_type.sizes.0.max(Bytes::new(1)).round_up(beside.grain),
            })
        });
        let all = |each: Bytes| Bytes::new(each.get().saturating_mul(u64::from(volumes)));
        let sizes = (all(of_type.sizes.0), all(of_type.sizes.1));
        let bound = self.max_size.as_ref().or(self.min_size.as_ref()).map(Spanned::span);
        let min = self.min_size.map_or(sizes.0, Spanned::into_inner).max(sizes.0);
        let max = self.max_size.map_or(sizes.1, Spanned::into_inner).min(sizes.1);
        if min > max {
            let message = format!(
                "no caching volume of type \"{volume_type}\" has {min} or more and {max} or less: write a smaller min_size or a \
                 larger max_size"
            );
            return Err(source.at(bound, message));
        }
        let span = self.initial_size.as_ref().map(Spanned::span);
        let initial_size = self.initial_size.map_or(FIRST.clamp(min, max), Spanned::into_inner);
        // Of a number of volumes that was chosen, nobody could know what they have at least.
        let initial_size = if written.is_none() { initial_size.max(sizes.0) } else { initial_size };
        if initial_size < min || initial_size > max {
            let message = format!(
                "initial_size is {initial_size}, but a caching volume of type \"{volume_type}\" is from {min} to {max} here"
            );
            return Err(source.at(span, message));
        }
        Ok(CachingConfig {
            provider,
            limits: Limits { bandwidth: Some(bandwidth), iops: self.iops.or(of_type.iops) },
            volumes,
            volumes_are_chosen: written.is_none(),
            machine_leaves: beside
                .machine
                .bandwidth
                .map(|_| beside.machine.passes(Bandwidth::new(u64::MAX), beside.backing).0),
            billed_time: providers.by_name[provider].billed_time(&volume_type),
            initial_size,
            size: (min, max),
            throttle: self.throttle.unwrap_or(of_type.throttle),
            outage_patience: source.at_least("outage_patience", self.outage_patience.as_ref(), OUTAGE_PATIENCE_MS)?,
            usd_per_gib_month: price(source, "usd_per_gib_month", self.usd_per_gib_month.as_ref())?,
            volume_type,
        })
    }
}
