//! The sections `[caching]` and `[machine]`: what a boost is striped over, and what the machine allows.

use std::ops::Range;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use surgetank_model::toml_error::{ConfigError, Source};
use surgetank_model::{Bandwidth, Bytes, Catalog, VolumeType};
use toml::Spanned;

use super::checks::{check_bandwidth, check_count, check_price, check_type, check_within};
use super::{Backing, Caching, Scenario};
use crate::recommend::Constraints;
use crate::stripe::{self, Auto, Machine, Striping, times};

/// No machine takes as many.
const ATTACHMENTS_MAX: i64 = 1024;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawCaching {
    bandwidth: Option<Spanned<Bandwidth>>,
    volumes: Option<Spanned<Volumes>>,
    checkpoint_cache: Option<Spanned<Bytes>>,
    initial_cache: Option<Spanned<Bytes>>,
    volume_type: Option<Spanned<String>>,
    usd_per_gib_month: Option<Spanned<f64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMachine {
    bandwidth: Option<Spanned<Bandwidth>>,
    attachments: Option<Spanned<i64>>,
}

/// `volumes = 8` or `volumes = "auto"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Volumes {
    Number(i64),
    Auto,
}

impl<'de> Deserialize<'de> for Volumes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match toml::Value::deserialize(deserializer)? {
            toml::Value::Integer(number) => Ok(Self::Number(number)),
            toml::Value::String(text) if text == "auto" => Ok(Self::Auto),
            other => Err(D::Error::custom(format_args!(
                "{other} is no number of caching volumes: write a whole number, such as 8, or \"auto\""
            ))),
        }
    }
}

impl RawMachine {
    pub(super) fn check(self, source: &Source, backing: &Backing) -> Result<Machine, ConfigError> {
        let attachments = self
            .attachments
            .map(|given| check_count(source, "attachments", &given, (2, ATTACHMENTS_MAX)))
            .transpose()?;
        let bandwidth = match &self.bandwidth {
            None => None,
            Some(given) => {
                let bandwidth = check_bandwidth(source, "bandwidth", given)?;
                if bandwidth <= backing.bandwidth {
                    let message = format!(
                        "the machine moves {bandwidth}, which the backing volume takes up alone with {}: no caching volume speeds it \
                         up, take a larger machine",
                        backing.bandwidth
                    );
                    return Err(source.at(Some(given.span()), message));
                }
                Some(bandwidth)
            }
        };
        Ok(Machine { bandwidth, attachments })
    }
}

impl RawCaching {
    /// Where the planner is asked to choose.
    pub(super) fn auto_at(&self) -> Option<Range<usize>> {
        self.volumes.as_ref().filter(|volumes| *volumes.get_ref() == Volumes::Auto).map(Spanned::span)
    }

    pub(super) fn check(
        self,
        source: &Source,
        catalog: &Catalog,
        here: Range<usize>,
        machine: Machine,
        backing: &Backing,
    ) -> Result<Caching, ConfigError> {
        let cache = |name, size: Option<&Spanned<Bytes>>| {
            size.map(|size| check_within(source, name, size, backing)).transpose()
        };
        let checkpoint_cache = cache("checkpoint_cache", self.checkpoint_cache.as_ref())?;
        let initial_cache = cache("initial_cache", self.initial_cache.as_ref())?;
        let volume_type = check_type(source, catalog, self.volume_type.as_ref())?;
        let usd_per_gib_month = check_price(source, self.usd_per_gib_month.as_ref())?;
        let auto_at = self.auto_at();
        let (volumes, each, auto) = match auto_at {
            Some(at) => {
                self.leaves_the_choice(source)?;
                let types = stripe::types(catalog, machine, volume_type.as_ref(), backing.volume_type.as_ref())
                    .map_err(|message| source.at(Some(at), message))?;
                // What is chosen comes once everything is known.
                (1, backing.bandwidth, Some(Auto { types, cache: Bytes::ZERO }))
            }
            None => {
                let most = machine.volumes_max(catalog, volume_type.as_ref());
                let volumes = self.volumes(source, most, volume_type.as_ref())?;
                (
                    volumes,
                    self.each(source, here, volumes, volume_type.as_ref(), checkpoint_cache.max(initial_cache))?,
                    None,
                )
            }
        };
        let (bandwidth, alone) = machine.passes(times(each, volumes), backing.bandwidth);
        Ok(Caching {
            bandwidth,
            striping: Striping { volumes, each, alone, auto },
            checkpoint_cache,
            initial_cache,
            volume_type,
            usd_per_gib_month,
        })
    }

    /// Refuses what fixes a part of what `volumes = "auto"` chooses.
    fn leaves_the_choice(&self, source: &Source) -> Result<(), ConfigError> {
        let bandwidth = self.bandwidth.as_ref().map(|given| ("bandwidth", given.span()));
        let price = self.usd_per_gib_month.as_ref().map(|given| ("usd_per_gib_month", given.span()));
        let Some((name, span)) = bandwidth.or(price) else { return Ok(()) };
        let message = format!(
            "{name} is of one kind of volume, and volumes = \"auto\" leaves the kind to the planner: remove one of the two"
        );
        Err(source.at(Some(span), message))
    }

    /// How many volumes.
    fn volumes(&self, source: &Source, most: u32, volume_type: Option<&VolumeType>) -> Result<u32, ConfigError> {
        let Some(given) = &self.volumes else { return Ok(1) };
        let Volumes::Number(number) = *given.get_ref() else { return Ok(1) };
        let at = |message: String| source.at(Some(given.span()), message);
        let volumes = u32::try_from(number).ok().filter(|volumes| *volumes > 0).ok_or_else(|| {
            at(format!(
                "volumes is {number}: write over how many caching volumes a boost is striped, from 1 on, or \"auto\""
            ))
        })?;
        if volumes <= most {
            return Ok(volumes);
        }
        Err(at(match volume_type {
            Some(known) if known.limits_per_machine => format!(
                "all {} volumes of a machine together give no more than one, so a stripe of {volumes} has no point: write volumes = 1, \
                 or take another type",
                known.key()
            ),
            _ => format!(
                "volumes is {volumes}, and beside its backing volume the machine takes {most} more: lower it, or write what your \
                 machine takes as attachments in [machine]"
            ),
        }))
    }

    /// What each volume gives: what the file says, or what comes with volumes of this size.
    fn each(
        &self,
        source: &Source,
        here: Range<usize>,
        volumes: u32,
        volume_type: Option<&VolumeType>,
        cache: Option<Bytes>,
    ) -> Result<Bandwidth, ConfigError> {
        let striped = self.volumes.is_some();
        if let Some(given) = &self.bandwidth {
            let each = check_bandwidth(source, "bandwidth", given)?;
            // Without a stripe, a bandwidth beside a type is what the type's volume is limited to, as it always was.
            let Some(known) = volume_type.filter(|known| striped && known.limits_are_known()) else { return Ok(each) };
            if stripe::gives(known, each) {
                return Ok(each);
            }
            let message = format!(
                "bandwidth is {each}, which no volume of {} gives: with volumes it is what each of them has, lower it or leave it out",
                known.key()
            );
            return Err(source.at(Some(given.span()), message));
        }
        let Some(known) = volume_type.filter(|_| striped) else {
            return Err(source.at(Some(here), "the setting \"bandwidth\" is missing here: add it"));
        };
        let size = Bytes::new(cache.unwrap_or_default().get().div_ceil(u64::from(volumes)));
        stripe::included(known, size).ok_or_else(|| {
            let message = format!(
                "what volumes of {} give is unknown: write bandwidth, which each of them has, or give the type's limits with --catalog \
                 FILE",
                known.key()
            );
            source.at(self.volume_type.as_ref().map(Spanned::span), message)
        })
    }
}

impl Scenario {
    /// The same with the stripe of those it may choose from that costs the least money.
    pub(super) fn settled(self) -> Result<Self, String> {
        let Some(auto) = self.caching.striping.auto.clone() else { return Ok(self) };
        if self.app.is_none() {
            return Err(
                "volumes = \"auto\" chooses for the bursts of [app], and the file has none: write a number".to_owned()
            );
        }
        let found = stripe::consider(&self, &auto, &Constraints::default())?;
        let Some(best) = found.first() else {
            return Err("no stripe of the types to choose from holds a cache: write a number of volumes".to_owned());
        };
        let mut settled = self.with_stripe(&best.choice);
        settled.caching.striping.auto = Some(Auto { cache: best.size(), types: auto.types.clone() });
        Ok(settled)
    }
}
