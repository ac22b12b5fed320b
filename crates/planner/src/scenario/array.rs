//! The scenario of `simulate` for an array of burstable volumes: what it is made of, and what is asked of it.
//!
//! `[array]` is a volume; `[read_cache]` is a write-through cache, over the volume of `[backing]`. The names are those of `serve`,
//! but for `volume_type`, which names a type of the catalog.

use std::time::Duration;

use serde::Deserialize;
use surgetank_model::toml_error::{ConfigError, Source};
use surgetank_model::units::Span;
use surgetank_model::volume_type::Provision;
use surgetank_model::{Bandwidth, Bytes, Catalog, Iops, Limits, VolumeType};
use surgetank_policy::rotation::{Copying, Way};
use toml::Spanned;

use super::checks::{check_bandwidth, check_count, check_seed, check_size, check_time, find_type};
use super::{Latencies, RawLatencies};

/// A checked scenario of an array.
#[derive(Clone, Debug, PartialEq)]
pub struct ArrayScenario {
    /// The array.
    pub array: Array,
    /// What it is used for.
    pub role: Role,
    /// What is asked of it.
    pub workload: Workload,
    /// What the machine moves at most, all its volumes together.
    pub machine: Limits,
    /// How long the provider takes; what the file does not say is the catalog's.
    pub provider: Latencies,
    /// Volumes that the machine takes beside the array's; `None`: unknown.
    pub room: Option<u32>,
    /// Seed of everything that chance decides.
    pub seed: u64,
}

/// Equal volumes.
#[derive(Clone, Debug, PartialEq)]
pub struct Array {
    /// Their type.
    pub volume_type: VolumeType,
    /// How many, at least 1.
    pub members: u32,
    /// Of each; a size that the type has.
    pub member_size: Bytes,
    /// How they are rotated.
    pub rotate: Way,
    /// Extra volumes at most where they are staggered, at least 1.
    pub at_once: u32,
    /// How members are copied.
    pub copy: Copying,
    /// The largest I/O on a member: larger requests are divided. Above zero.
    pub io_size: Bytes,
}

/// What an array is used for.
#[derive(Clone, Debug, PartialEq)]
pub enum Role {
    /// It holds the data, and members are copied.
    Persistent,
    /// What it holds may be dropped when a member is replaced.
    Ephemeral,
    /// It caches what is read of this volume.
    ReadCache(Backed),
}

/// The volume below a read cache.
#[derive(Clone, Debug, PartialEq)]
pub struct Backed {
    /// Its type.
    pub volume_type: VolumeType,
    /// A size that the type has.
    pub size: Bytes,
    /// Whether it begins with full credits, or with none.
    pub full: bool,
}

/// What is asked of the array.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Requests per second, above zero.
    pub requests_per_s: f64,
    /// Bytes of each, above zero.
    pub request: Bytes,
    /// Share of writes, from 0 to 1.
    pub write_share: f64,
    /// For how long, above zero.
    pub duration: Duration,
    /// What is accessed; what of the array holds data.
    pub used: Bytes,
    /// Exponent of the skew; `None`: uniform.
    pub zipf: Option<f64>,
}

/// Longer runs show nothing new.
const DURATION_MAX: Duration = Duration::from_secs(31 * 24 * 3600);
/// More members than any machine takes.
const MEMBERS_MAX: i64 = 1000;
/// As `serve` copies.
const COPY_RATE: Bandwidth = Bandwidth::from_mib_s(60);
const COPY_IO: Bytes = Bytes::from_mib(1);
/// Steeper ones are one hot block.
const ZIPF_MAX: f64 = 10.0;

impl ArrayScenario {
    /// Whether the file is one of an array.
    #[must_use]
    pub fn is_meant(source: &Source) -> bool {
        source
            .parse::<toml::Table>()
            .is_ok_and(|table| ["array", "read_cache", "workload"].iter().any(|name| table.contains_key(*name)))
    }

    /// Checks the text of such a file. Volume types are looked up in `catalog`.
    ///
    /// # Errors
    /// The first thing wrong with it, with file, line and column.
    pub fn parse(source: &Source, catalog: &Catalog) -> Result<Self, ConfigError> {
        source.parse::<RawScenario>()?.check(source, catalog)
    }

    /// What all members hold together.
    #[must_use]
    pub fn capacity(&self) -> Bytes {
        Bytes::new(self.array.member_size.get().saturating_mul(self.array.members.into()))
    }

    /// What a copy of a member copies, if what is used lies evenly on all.
    #[must_use]
    pub fn member_holds(&self) -> Bytes {
        match self.role {
            Role::Persistent => Bytes::new(self.workload.used.get().div_ceil(self.array.members.max(1).into())),
            Role::Ephemeral | Role::ReadCache(_) => Bytes::ZERO,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScenario {
    array: Option<Spanned<RawArray>>,
    read_cache: Option<Spanned<RawArray>>,
    backing: Option<Spanned<RawBacked>>,
    workload: Option<RawWorkload>,
    #[serde(default)]
    machine: RawMachine,
    #[serde(default)]
    provider: RawLatencies,
    seed: Option<Spanned<i64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawArray {
    provider: Option<Spanned<String>>,
    volume_type: Spanned<String>,
    members: Spanned<i64>,
    member_size: Spanned<Bytes>,
    #[serde(rename = "use")]
    role: Option<Spanned<String>>,
    rotate: Option<Way>,
    rotate_at_once: Option<Spanned<i64>>,
    copy_rate: Option<Spanned<Bandwidth>>,
    copy_io_size: Option<Spanned<Bytes>>,
    io_size: Option<Spanned<Bytes>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBacked {
    provider: Option<Spanned<String>>,
    volume_type: Spanned<String>,
    size: Spanned<Bytes>,
    credits: Option<Spanned<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawWorkload {
    demand: Spanned<String>,
    request: Spanned<Bytes>,
    write_share: Option<Spanned<f64>>,
    duration: Spanned<Span>,
    used: Option<Spanned<Bytes>>,
    zipf: Option<Spanned<f64>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawMachine {
    iops: Option<Spanned<Iops>>,
    bandwidth: Option<Spanned<Bandwidth>>,
}

impl RawScenario {
    fn check(self, source: &Source, catalog: &Catalog) -> Result<ArrayScenario, ConfigError> {
        let (raw, cached) = match (self.array, self.read_cache) {
            (Some(array), None) => (array, None),
            (None, Some(cache)) => (cache, Some(())),
            (Some(_), Some(cache)) => {
                let message = "the file has [array] as well as [read_cache]: simulate one of the two at a time";
                return Err(source.at(Some(cache.span()), message));
            }
            (None, None) => {
                let message = "the file has a [workload] for an array and no [array]: add it, such as volume_type = \"aws/gp2\", \
                               members = 10, member_size = \"10 GiB\"";
                return Err(source.at(None, message));
            }
        };
        let span = raw.span();
        let Some(workload) = self.workload else {
            let message = "nothing is asked of the array: add [workload], such as demand = \"30000 IOPS\", request = \"4 KiB\", \
                           duration = \"80 min\"";
            return Err(source.at(Some(span), message));
        };
        let raw = raw.into_inner();
        let role = role(source, raw.role.as_ref(), cached.is_some(), self.backing, catalog, &span)?;
        let request = check_size(source, "request", &workload.request)?;
        let array = raw.check(source, catalog, request)?;
        let attachments = catalog
            .provider(&array.volume_type.provider)
            .and_then(|provider| provider.attachments.as_ref())
            .map(|attachments| attachments.most);
        let others = u32::from(cached.is_some());
        if let Some(most) = attachments.filter(|most| array.members.saturating_add(others) > *most) {
            let message = format!(
                "the array has {} members, and a machine of {} takes {most} volumes: take fewer, larger ones",
                array.members, array.volume_type.provider
            );
            return Err(source.at(Some(span), message));
        }
        let capacity = array.member_size.get().saturating_mul(array.members.into());
        let most = match &role {
            Role::ReadCache(backed) => backed.size,
            Role::Persistent | Role::Ephemeral => Bytes::new(capacity),
        };
        let workload = workload.check(source, request, most)?;
        let provider = latencies(source, &self.provider, catalog, &array.volume_type.provider)?;
        let limit = |limit: Option<Spanned<Bandwidth>>| {
            limit.map(|rate| check_bandwidth(source, "bandwidth", &rate)).transpose()
        };
        Ok(ArrayScenario {
            room: attachments.map(|most| most.saturating_sub(array.members.saturating_add(others))),
            array,
            role,
            workload,
            machine: Limits {
                iops: self.machine.iops.map(Spanned::into_inner),
                bandwidth: limit(self.machine.bandwidth)?,
            },
            provider,
            seed: check_seed(source, self.seed.as_ref())?,
        })
    }
}

/// What the file says, else what the catalog knows.
fn latencies(source: &Source, raw: &RawLatencies, catalog: &Catalog, provider: &str) -> Result<Latencies, ConfigError> {
    if let Some(grow) = &raw.grow_s {
        return Err(source.at(Some(grow.span()), "members of an array are replaced, not grown: remove grow_s"));
    }
    let mut found = raw.check(source)?;
    let known = catalog.provider(provider).and_then(|provider| provider.latency.as_ref());
    if let Some(known) = known {
        let unsaid = [
            (raw.create_s.is_none(), &mut found.create, known.create),
            (raw.attach_s.is_none(), &mut found.attach, known.attach),
            (raw.detach_s.is_none(), &mut found.detach, known.detach),
        ];
        for (_, found, known) in unsaid.into_iter().filter(|(unsaid, ..)| *unsaid) {
            *found = known.map_or(*found, |known| known.0);
        }
    }
    Ok(found)
}

fn role(
    source: &Source,
    written: Option<&Spanned<String>>,
    cached: bool,
    backing: Option<Spanned<RawBacked>>,
    catalog: &Catalog,
    place: &std::ops::Range<usize>,
) -> Result<Role, ConfigError> {
    match (cached, backing) {
        (true, Some(backing)) => {
            if let Some(written) = written {
                let message = "use is a setting of [array], and a read cache has one use: remove it";
                return Err(source.at(Some(written.span()), message));
            }
            Ok(Role::ReadCache(backing.into_inner().check(source, catalog)?))
        }
        (true, None) => {
            let message =
                "[read_cache] caches no volume: add [backing], such as volume_type = \"aws/st1\", size = \"2 TiB\"";
            Err(source.at(Some(place.clone()), message))
        }
        (false, Some(backing)) => {
            let message = "[backing] is the volume below a [read_cache], and the file has none: remove it";
            Err(source.at(Some(backing.span()), message))
        }
        (false, None) => match written.map(|written| (written.span(), written.get_ref().as_str())) {
            None | Some((_, "persistent")) => Ok(Role::Persistent),
            Some((_, "ephemeral")) => Ok(Role::Ephemeral),
            Some((span, other)) => {
                let message = format!("\"{other}\" is no use of an array: write \"persistent\" or \"ephemeral\"");
                Err(source.at(Some(span), message))
            }
        },
    }
}

/// A type with credits or without, of which a volume of this size exists.
fn volume(
    source: &Source,
    catalog: &Catalog,
    provider: Option<&Spanned<String>>,
    name: &Spanned<String>,
    size: (&str, &Spanned<Bytes>),
) -> Result<(VolumeType, Bytes), ConfigError> {
    let written = name.get_ref();
    let key = match provider {
        Some(provider) if !written.contains('/') => format!("{}/{written}", provider.get_ref()),
        _ => written.clone(),
    };
    let known = find_type(catalog, &key).map_err(|message| source.at(Some(name.span()), message))?;
    if !known.limits_are_known() {
        let message = format!("the limits of {} are its operator's: take a type of the catalog", known.key());
        return Err(source.at(Some(name.span()), message));
    }
    let (what, size) = size;
    let given = check_size(source, what, size)?;
    known.check(given, &Provision::default()).map_err(|message| source.at(Some(size.span()), message))?;
    Ok((known.clone(), given))
}

impl RawArray {
    fn check(self, source: &Source, catalog: &Catalog, request: Bytes) -> Result<Array, ConfigError> {
        let members = check_count(source, "members", &self.members, (1, MEMBERS_MAX))?;
        let size = ("member_size", &self.member_size);
        let (volume_type, member_size) = volume(source, catalog, self.provider.as_ref(), &self.volume_type, size)?;
        let at_once = match &self.rotate_at_once {
            Some(count) => check_count(source, "rotate_at_once", count, (1, members.into()))?,
            None => 1,
        };
        let sized = |name, size: Option<&Spanned<Bytes>>, otherwise| match size {
            Some(size) => check_size(source, name, size),
            None => Ok(otherwise),
        };
        let rate = match &self.copy_rate {
            Some(rate) => check_bandwidth(source, "copy_rate", rate)?,
            None => COPY_RATE,
        };
        Ok(Array {
            volume_type,
            members,
            member_size,
            rotate: self.rotate.unwrap_or_default(),
            at_once,
            copy: Copying { rate, io_size: sized("copy_io_size", self.copy_io_size.as_ref(), COPY_IO)? },
            io_size: sized("io_size", self.io_size.as_ref(), request)?.min(request),
        })
    }
}

impl RawBacked {
    fn check(self, source: &Source, catalog: &Catalog) -> Result<Backed, ConfigError> {
        let size = ("size", &self.size);
        let (volume_type, size) = volume(source, catalog, self.provider.as_ref(), &self.volume_type, size)?;
        let full = match self.credits.as_ref().map(|credits| (credits.span(), credits.get_ref().as_str())) {
            None | Some((_, "full")) => true,
            Some((_, "empty")) => false,
            Some((span, other)) => {
                let message = format!("credits is \"{other}\": write \"full\" or \"empty\", as the volume begins");
                return Err(source.at(Some(span), message));
            }
        };
        Ok(Backed { volume_type, size, full })
    }
}

impl RawWorkload {
    fn check(self, source: &Source, request: Bytes, most: Bytes) -> Result<Workload, ConfigError> {
        let duration = check_time(source, "duration", &self.duration)?;
        if duration < Duration::from_secs(1) || duration > DURATION_MAX {
            let message = format!("duration is {}: write a time from 1 s to 31 d", self.duration.get_ref());
            return Err(source.at(Some(self.duration.span()), message));
        }
        let used = match &self.used {
            None => most,
            Some(used) => {
                let given = check_size(source, "used", used)?;
                if given > most {
                    let message = format!("used is {given}, more than the {most} that there are: lower it");
                    return Err(source.at(Some(used.span()), message));
                }
                given
            }
        };
        if request > used {
            let message = format!("a request is {request}, more than the {used} that hold data: lower it");
            return Err(source.at(Some(self.request.span()), message));
        }
        let share = "write_share must be from 0 to 1, such as 0.5";
        let zipf = "zipf must be from 0 to 10, such as 1.2";
        Ok(Workload {
            requests_per_s: demand(source, &self.demand, request)?,
            request,
            write_share: source
                .number(self.write_share.as_ref(), |share| (0.0..=1.0).contains(&share), share)?
                .unwrap_or(0.0),
            duration,
            used,
            zipf: source
                .number(self.zipf.as_ref(), |zipf| (0.0..=ZIPF_MAX).contains(&zipf), zipf)?
                .filter(|zipf| *zipf > 0.0),
        })
    }
}

/// Requests per second, written as such or as bytes per second.
fn demand(source: &Source, written: &Spanned<String>, request: Bytes) -> Result<f64, ConfigError> {
    let text = written.get_ref().trim();
    let misread = |error: surgetank_model::units::ParseUnitError| source.at(Some(written.span()), error.to_string());
    if text.ends_with("/s") {
        let rate: Bandwidth = text.parse().map_err(misread)?;
        return Ok(rate.get() as f64 / request.get() as f64);
    }
    let rate: Iops = text.parse().map_err(misread)?;
    Ok(rate.get() as f64)
}
