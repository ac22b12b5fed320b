//! From whom a daemon rents, and what each device rents of it.

use std::collections::BTreeMap;

use serde::Deserialize;
use surgetank_model::units::{Span, TIB};
use surgetank_model::{Bandwidth, Bytes, Iops, Limits};
use surgetank_provider::local::LocalConfig;
use surgetank_provider::remote::RemoteConfig;
use toml::Spanned;

use super::{CachingConfig, RawDevice, price};
use crate::toml_error::{ConfigError, Source};

/// The smallest and the largest volume of a type that only the provider knows.
const UNKNOWN_SIZES: (Bytes, Bytes) = (Bytes::from_mib(1), Bytes::new(16 * TIB));

/// How long a caching volume that answers nothing is waited for, by default and at least. Path failovers and restarts of a
/// cloud's storage take up to two minutes.
const OUTAGE_PATIENCE_MS: (u64, u64) = (300_000, 1000);

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawProviders {
    local: Option<LocalConfig>,
    qemu: Option<Spanned<RemoteConfig>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCaching {
    provider: Option<Spanned<String>>,
    volume_type: Option<Spanned<String>>,
    bandwidth: Option<Bandwidth>,
    iops: Option<Iops>,
    initial_size: Option<Spanned<Bytes>>,
    min_size: Option<Bytes>,
    max_size: Option<Bytes>,
    throttle: Option<bool>,
    outage_patience: Option<Spanned<Span>>,
    usd_per_gib_month: Option<Spanned<f64>>,
}

/// The provider of a daemon: a daemon has one.
#[derive(Debug)]
pub(super) enum Chosen {
    /// Nothing is rented, or from the local provider.
    Local(Option<LocalConfig>),
    /// A provisioning service beside the guest.
    Qemu(RemoteConfig),
}

/// What is known of a type of volumes.
struct OfType {
    sizes: (Bytes, Bytes),
    bandwidth: Bandwidth,
    iops: Option<Iops>,
    /// Whether the daemon has to hold a volume to its limits.
    throttle: bool,
}

impl RawProviders {
    /// Finds out from whom the devices rent.
    pub(super) fn choose(
        self,
        source: &Source,
        devices: &BTreeMap<Spanned<String>, RawDevice>,
    ) -> Result<Chosen, ConfigError> {
        if let Some(qemu) = &self.qemu {
            qemu.get_ref().check().map_err(|error| source.at(Some(qemu.span()), error))?;
        }
        let unnamed = if self.qemu.is_some() && self.local.is_none() { "qemu" } else { "local" };
        let mut rents: Option<(&str, &str)> = None;
        for (device, caching) in devices.iter().filter_map(|(name, device)| Some((name, device.caching.as_ref()?))) {
            let span = caching.provider.as_ref().map(Spanned::span);
            let name = caching.provider.as_ref().map_or(unnamed, |provider| provider.get_ref().as_str());
            if name != "local" && name != "qemu" {
                let message = format!(
                    "the provider \"{name}\" is not supported in this version: write provider = \"local\" or \"qemu\""
                );
                return Err(source.at(span, message));
            }
            match rents {
                Some((other, by)) if other != name => {
                    let message = format!(
                        "the device {by} rents from \"{other}\" and a daemon rents from one provider: run a second daemon \
                         for this device"
                    );
                    return Err(source.at(span, message));
                }
                _ => rents = Some((name, device.get_ref())),
            }
            if name == "qemu" && self.qemu.is_none() {
                let mend = "there is no section [provider.qemu]: add it with the url and the token_file of the \
                            provisioning service";
                return Err(source.at(span, mend));
            }
        }
        Ok(match (rents, self.qemu) {
            (Some(("qemu", _)), Some(qemu)) => Chosen::Qemu(qemu.into_inner()),
            (Some(_), _) => Chosen::Local(Some(self.local.unwrap_or_default())),
            (None, _) => Chosen::Local(self.local),
        })
    }
}

impl RawCaching {
    pub(super) fn check(self, source: &Source, provider: &Chosen) -> Result<CachingConfig, ConfigError> {
        let span = self.volume_type.as_ref().map(Spanned::span);
        let volume_type = self.volume_type.map_or_else(|| "fast".to_owned(), Spanned::into_inner);
        let of_type = match provider {
            Chosen::Local(local) => {
                let local = local.clone().unwrap_or_default();
                let known = local.volume_type(&volume_type).map_err(|error| source.at(span, error.to_string()))?;
                OfType {
                    sizes: (known.min_size, known.max_size),
                    bandwidth: self.bandwidth.unwrap_or(known.bandwidth),
                    iops: known.iops,
                    throttle: true,
                }
            }
            Chosen::Qemu(_) => {
                let bandwidth = self.bandwidth.ok_or_else(|| {
                    let message = format!(
                        "what a volume of type \"{volume_type}\" moves is known to the provisioning service alone: add it to \
                         this device's caching section, such as bandwidth = \"128 MiB/s\""
                    );
                    source.at(span, message)
                })?;
                OfType { sizes: UNKNOWN_SIZES, bandwidth, iops: None, throttle: false }
            }
        };
        let min = self.min_size.unwrap_or(of_type.sizes.0).max(of_type.sizes.0);
        let max = self.max_size.unwrap_or(of_type.sizes.1).min(of_type.sizes.1);
        let span = self.initial_size.as_ref().map(Spanned::span);
        let initial_size = self.initial_size.map_or(Bytes::from_gib(10).clamp(min, max.max(min)), Spanned::into_inner);
        if initial_size < min || initial_size > max {
            let message = format!(
                "initial_size is {initial_size}, but a caching volume of type \"{volume_type}\" is from {min} to {max} here"
            );
            return Err(source.at(span, message));
        }
        Ok(CachingConfig {
            limits: Limits { bandwidth: Some(of_type.bandwidth), iops: self.iops.or(of_type.iops) },
            volume_type,
            initial_size,
            size: (min, max),
            throttle: self.throttle.unwrap_or(of_type.throttle),
            outage_patience: source.at_least("outage_patience", self.outage_patience.as_ref(), OUTAGE_PATIENCE_MS)?,
            usd_per_gib_month: price(source, "usd_per_gib_month", self.usd_per_gib_month.as_ref())?,
        })
    }
}
