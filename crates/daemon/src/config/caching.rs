//! From whom a daemon rents, and what each device rents of it.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::Deserialize;
use surgetank_model::units::Span;
use surgetank_model::{Bandwidth, Bytes, Iops, Limits};
use surgetank_provider::ProviderConfig;
use surgetank_provider::table::{Rented, Section};
use surgetank_rental::stripe::MEMBERS_MAX;
use toml::Spanned;

use super::{CachingConfig, price};
use crate::toml_error::{ConfigError, Source};

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

/// A number of volumes, or that somebody else is to choose it.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
enum Count {
    Number(i64),
    Word(String),
}

/// Over how many volumes a caching volume is striped.
fn volumes(source: &Source, written: Option<&Spanned<Count>>) -> Result<u32, ConfigError> {
    let Some(written) = written else { return Ok(1) };
    let at = |message| source.at(Some(written.span()), message);
    match written.get_ref() {
        Count::Number(number) => {
            let volumes = u32::try_from(*number).ok().filter(|volumes| (1..=MEMBERS_MAX).contains(volumes));
            volumes.ok_or_else(|| {
                at(format!("volumes is {number}: a caching volume is striped over 1 to {MEMBERS_MAX} volumes"))
            })
        }
        Count::Word(word) if word == "auto" => Err(at(
            "volumes = \"auto\" needs the bursts that it is to be chosen for: describe them in a scenario, have `surgetank \
             recommend` choose, and write the number that it answers"
                .to_owned(),
        )),
        Count::Word(word) => {
            Err(at(format!("volumes is \"{word}\": write a number of volumes from 1 to {MEMBERS_MAX}, such as 4")))
        }
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
    pub(super) fn check(self, source: &Source, providers: &mut Providers) -> Result<CachingConfig, ConfigError> {
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
        let volumes = volumes(source, self.volumes.as_ref())?;
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
        let initial_size = self.initial_size.map_or(Bytes::from_gib(10).clamp(min, max), Spanned::into_inner);
        if initial_size < min || initial_size > max {
            let message = format!(
                "initial_size is {initial_size}, but a caching volume of type \"{volume_type}\" is from {min} to {max} here"
            );
            return Err(source.at(span, message));
        }
        Ok(CachingConfig {
            provider,
            limits: Limits { bandwidth: Some(bandwidth), iops: self.iops.or(of_type.iops) },
            volume_type,
            volumes,
            initial_size,
            size: (min, max),
            throttle: self.throttle.unwrap_or(of_type.throttle),
            outage_patience: source.at_least("outage_patience", self.outage_patience.as_ref(), OUTAGE_PATIENCE_MS)?,
            usd_per_gib_month: price(source, "usd_per_gib_month", self.usd_per_gib_month.as_ref())?,
        })
    }
}
