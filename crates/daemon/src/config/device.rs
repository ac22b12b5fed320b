//! What a configuration says of a device: `[device.NAME]`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use surgetank_model::{Bandwidth, Bytes, Iops, Limits, VolumeType};
use surgetank_policy::file::{PolicyConfig, RawPolicy};
use surgetank_policy::stripe::Machine;
use surgetank_policy::{Prices, ValueOfTime};
use toml::Spanned;

use super::array::ArrayConfig;
use super::caching::{self, Beside, RawCaching};
use super::nbd::{self, NbdTcp};
use super::read_cache::{RawReadCache, ReadCacheConfig};
use super::{CachingConfig, catalog_type, check_path, check_socket, price};
use crate::exports::{self, KINDS, Kind};
use crate::toml_error::{ConfigError, Source, nearest};

/// One elastic device.
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// The backing volume.
    pub backing: Backing,
    /// How it is exported; `None`: as the machine and the rights allow.
    pub export: Option<&'static Kind>,
    /// The NBD server's Unix socket.
    pub socket: PathBuf,
    /// Where else the NBD server listens.
    pub nbd_tcp: Option<NbdTcp>,
    /// Nominal limits of the backing volume. The bandwidth is what utilization is relative to.
    pub backing_limits: Limits,
    /// Whether the daemon holds the backing volume to these limits (files that stand for slow volumes).
    pub backing_throttle: bool,
    /// What the backing volume costs, if known.
    pub backing_usd_per_gib_month: Option<f64>,
    /// What a cloud calls it, if known: what raising it in place would cost, the built-in catalog says.
    pub backing_volume_type: Option<VolumeType>,
    /// What to rent; `None`: never anything, the device passes through.
    pub caching: Option<CachingConfig>,
    /// When to rent it.
    pub policy: PolicyConfig,
    /// The read cache over the backing volume; `None`: it has none.
    pub read_cache: Option<ReadCacheConfig>,
    /// What happens to dirty data when the daemon stops.
    pub on_stop: OnStop,
}

impl DeviceConfig {
    /// Whether its users may find it as a block device.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.export.is_none_or(|kind| kind.is_block_device)
    }

    /// The directory of its certificates, if it is served under TLS.
    #[must_use]
    pub fn certificates(&self) -> Option<&Path> {
        self.nbd_tcp.as_ref()?.tls_certificates.as_deref()
    }
}

/// Where the bytes of a backing volume are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A block device or a file.
    Path(PathBuf),
    /// Memory, lost when the daemon ends: for benchmarks.
    Memory(Bytes),
    /// An array: a name of [`Config::arrays`].
    Array(String),
}

/// What happens to dirty data when the daemon stops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnStop {
    /// They stay on the caching volume, which stays attached (and billed) until the daemon is back.
    #[default]
    Keep,
    /// They are drained and the caching volume is deleted before the daemon ends.
    Drain,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawDevice {
    pub(super) backing: Spanned<String>,
    export: Option<Spanned<String>>,
    socket: Option<Spanned<PathBuf>>,
    #[serde(default)]
    nbd: nbd::RawNbd,
    #[serde(default)]
    throttle: bool,
    backing_limits: Option<RawLimits>,
    backing_usd_per_gib_month: Option<Spanned<f64>>,
    backing_volume_type: Option<Spanned<String>>,
    caching: Option<RawCaching>,
    read_cache: Option<RawReadCache>,
    #[serde(default)]
    policy: RawPolicy,
    #[serde(default)]
    on_stop: OnStop,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLimits {
    bandwidth: Bandwidth,
    iops: Option<Iops>,
}

/// What a device has beside its own section.
#[derive(Clone, Copy)]
pub(super) struct OfMachine<'a> {
    pub machine: Machine,
    pub arrays: &'a BTreeMap<String, ArrayConfig>,
    /// Whether read caches share what the machine has for them.
    pub shares: bool,
}

impl RawDevice {
    pub(super) fn check(
        self,
        source: &Source,
        name: &str,
        run_directory: &Path,
        providers: &mut caching::Providers,
        OfMachine { machine, arrays, shares }: OfMachine<'_>,
    ) -> Result<DeviceConfig, ConfigError> {
        let span = self.socket.as_ref().map(Spanned::span);
        let socket = check_path(source, "socket", self.socket)?;
        let socket = check_socket(source, span, socket.unwrap_or_else(|| run_directory.join(format!("{name}.sock"))))?;
        let value_of_time = self.policy.value_of_time_span();
        let policy = self.policy.check(source)?;
        let export_span = self.export.as_ref().map(Spanned::span);
        let export = self.export.map_or(Ok(None), |export| check_export(source, &export))?;
        let export_given = (export, export_span.clone());
        let with = |read_cache: RawReadCache| read_cache.check(source, providers, export_given, shares);
        let read_cache = self.read_cache.map(with).transpose()?;
        let backing = check_backing(source, &self.backing, arrays)?;
        if matches!(backing, Backing::Array(_)) && export.is_some_and(Kind::is_mapped) {
            let message =
                "the kernel cannot map a device straight to an array: write \"ublk\", \"fuse\", \"nbd\" or \"auto\"";
            return Err(source.at(export_span, message));
        }
        let of_array = match &backing {
            Backing::Array(name) => arrays.get(name).map(ArrayConfig::whole_limits),
            Backing::Path(_) | Backing::Memory(_) => None,
        };
        let given = self.backing_limits.map(|given| Limits { bandwidth: Some(given.bandwidth), iops: given.iops });
        let backing_limits = given.or(of_array.filter(|limits| limits.bandwidth.is_some())).ok_or_else(|| {
            let message = format!(
                "missing setting \"backing_limits\" of the device {name}: add [device.{name}.backing_limits] with bandwidth = \"33 MiB/s\", \
                 what its backing volume moves"
            );
            source.at(Some(self.backing.span()), message)
        })?;
        let beside = Beside {
            machine,
            arrays,
            backing: backing_limits.bandwidth.unwrap_or(Bandwidth::from_mib_s(1)),
            grain: policy.grain,
        };
        let caching = self.caching.map(|caching| caching.check(source, providers, &beside)).transpose()?;
        let backing_usd_per_gib_month =
            price(source, "backing_usd_per_gib_month", self.backing_usd_per_gib_month.as_ref())?;
        let usd = caching.as_ref().map(|caching| Prices::known(backing_usd_per_gib_month, caching.usd_per_gib_month));
        if policy.value_of_time.is_some_and(ValueOfTime::is_money) && usd == Some(None) {
            let message = format!(
                "value_of_time is money, and for that the prices of both volumes must be known: write backing_usd_per_gib_month in \
                 [device.{name}] and usd_per_gib_month in [device.{name}.caching], both above zero"
            );
            return Err(source.at(value_of_time, message));
        }
        Ok(DeviceConfig {
            backing,
            export,
            socket,
            nbd_tcp: self.nbd.check(source, export)?,
            backing_limits,
            backing_throttle: self.throttle,
            backing_usd_per_gib_month,
            backing_volume_type: self
                .backing_volume_type
                .map(|name| catalog_type(source, "backing_volume_type", &name))
                .transpose()?,
            caching,
            read_cache,
            policy,
            on_stop: self.on_stop,
        })
    }
}

fn check_backing(
    source: &Source,
    backing: &Spanned<String>,
    arrays: &BTreeMap<String, ArrayConfig>,
) -> Result<Backing, ConfigError> {
    let text = backing.get_ref();
    if let Some(name) = text.strip_prefix("array:") {
        if arrays.contains_key(name) {
            return Ok(Backing::Array(name.to_owned()));
        }
        let remedy = match nearest(name, arrays.keys().map(String::as_str)) {
            Some(nearest) => format!("did you mean \"{nearest}\"?"),
            None => "add it with members = 10 and member_size = \"50 GiB\"".to_owned(),
        };
        return Err(source.at(Some(backing.span()), format!("there is no section [array.{name}]: {remedy}")));
    }
    if let Some(size) = text.strip_prefix("memory:") {
        let size = size.parse::<Bytes>().map_err(|error| source.at(Some(backing.span()), error.to_string()))?;
        if size == Bytes::ZERO || !size.get().is_multiple_of(4096) {
            let message = format!("a backing volume in memory cannot have {size}: write a multiple of 4 KiB");
            return Err(source.at(Some(backing.span()), message));
        }
        return Ok(Backing::Memory(size));
    }
    if text.is_empty() {
        let message = "backing is empty: write the path of a block device or file, such as \"/dev/vdb\"";
        return Err(source.at(Some(backing.span()), message));
    }
    Ok(Backing::Path(PathBuf::from(text)))
}

/// `None` for `auto`.
fn check_export(source: &Source, export: &Spanned<String>) -> Result<Option<&'static Kind>, ConfigError> {
    let written = export.get_ref().as_str();
    let kind = exports::kind(written);
    if kind.is_some() || written == "auto" {
        return Ok(kind);
    }
    let known = || std::iter::once("auto").chain(KINDS.iter().map(|kind| kind.name));
    let message = match nearest(written, known()) {
        Some(nearest) => format!("unknown export \"{written}\": did you mean \"{nearest}\"?"),
        None => {
            let known: Vec<_> = known().collect();
            format!("unknown export \"{written}\": write \"{}\"", known.join("\" or \""))
        }
    };
    Err(source.at(Some(export.span()), message))
}
