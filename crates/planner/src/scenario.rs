//! The file of `predict`, `recommend` and `simulate`: an application, its volumes, and what was measured of them.
//!
//! The names in the file are a contract. What leaves this module has been checked: every quantity has its unit, is in
//! a range that can be meant, and does not contradict another. The first mistake is reported with file, line and
//! column.

mod array;
mod caching;
mod checks;

use std::path::PathBuf;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use surgetank_model::toml_error::{ConfigError, Source};
use surgetank_model::units::Span;
use surgetank_model::{Bandwidth, Bytes, Catalog, VolumeType};
use surgetank_policy::Preset;
use surgetank_policy::file::{PolicyConfig, RawPolicy};
use toml::Spanned;

use self::caching::{RawCaching, RawMachine};
use crate::fluid::{Absorb, Pipes};
use crate::stripe::{Machine, Striping};

pub use self::array::{Array, ArrayScenario, Backed, Role, Workload};
pub use self::checks::find_type;

/// The papers' first cache (NRK15, IV-A).
const PAPER_INITIAL: Bytes = Bytes::from_gib(10);

/// A checked scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The application; `None` only if there is a trace instead.
    pub app: Option<App>,
    /// The backing volume of every VM.
    pub backing: Backing,
    /// The caching volumes of every VM.
    pub caching: Caching,
    /// The machine of every VM.
    pub machine: Machine,
    /// What was measured; empty: the fluid model answers.
    pub calibration: Vec<CalibrationPoint>,
    /// The controller, if the file has a `[policy]` section; without a name in it `adaptive`.
    pub policy: Option<PolicyConfig>,
    /// How long the provider takes.
    pub provider: Latencies,
    /// Compute time between checkpoints; `None`: the compute time is spread evenly over them.
    pub interval: Option<Duration>,
    /// A trace to replay; a relative path is relative to the scenario's file.
    pub trace: Option<PathBuf>,
    /// The jobs of a log to replay.
    pub jobs: Option<Jobs>,
    /// Seed of everything that chance decides.
    pub seed: u64,
}

/// A bulk-synchronous application: all VMs compute, then all write a checkpoint (NRK15, III-C).
#[derive(Clone, Debug, PartialEq)]
pub struct App {
    /// How many VMs, the papers' n; at least 1.
    pub vms: u32,
    /// Compute time without any checkpoint, the papers' I·It.
    pub compute: Duration,
    /// How many checkpoints each VM writes, the papers' K.
    pub checkpoints: u32,
    /// Size of a checkpoint of one VM, the papers' Sc; above zero if there is any checkpoint.
    pub checkpoint_size: Bytes,
    /// What each VM writes before it computes, the papers' Si; may be zero.
    pub initial_dump: Bytes,
}

/// A batch system's job log, and what its jobs write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jobs {
    /// The log; a relative path is relative to the scenario's file.
    pub log: PathBuf,
    /// Run time between a job's checkpoints, above zero; one more is written at its end.
    pub interval: Duration,
    /// Bytes of a checkpoint for each processor of a job; `None`: the memory that the log knows.
    pub memory: Option<Bytes>,
    /// Larger jobs write elsewhere.
    pub processors_max: Option<u64>,
}

/// The backing volume of one VM.
#[derive(Clone, Debug, PartialEq)]
pub struct Backing {
    /// Its size, the papers' N.
    pub size: Bytes,
    /// Its reserved bandwidth, the papers' Bb.
    pub bandwidth: Bandwidth,
    /// Its type in the catalog, if the file names one.
    pub volume_type: Option<VolumeType>,
    /// USD per GiB and month, in place of the catalog's price.
    pub usd_per_gib_month: Option<f64>,
}

/// The caching volumes of one VM.
#[derive(Clone, Debug, PartialEq)]
pub struct Caching {
    /// Reserved bandwidth, the papers' Bc: of all volumes of a stripe together, as far as the machine has it to spare beside the
    /// backing volume.
    pub bandwidth: Bandwidth,
    /// Over how many volumes a boost is striped, and what each gives.
    pub striping: Striping,
    /// Cache size of a checkpoint, the papers' M(Sc); no larger than the backing volume.
    pub checkpoint_cache: Option<Bytes>,
    /// Cache size of the initial dump, the papers' M(Si); no larger than the backing volume.
    pub initial_cache: Option<Bytes>,
    /// Its type in the catalog, if the file names one.
    pub volume_type: Option<VolumeType>,
    /// USD per GiB and month, in place of the catalog's price.
    pub usd_per_gib_month: Option<f64>,
}

/// One measurement: writing a dataset through an elastic device (NRK15, III-C).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CalibrationPoint {
    /// Bytes written, the papers' x.
    pub dataset: Bytes,
    /// Size of the caching volume, the papers' M.
    pub cache: Bytes,
    /// Sustained throughput of the writes, the papers' B_M(x).
    pub throughput: Bandwidth,
    /// How long the caching volume was attached, the papers' D_M(x).
    pub attached: Duration,
}

/// How long a provider takes. Zero unless the file says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Latencies {
    /// From the call to the available volume.
    pub create: Duration,
    /// From the call until the guest has the disk.
    pub attach: Duration,
    /// From the call until the guest no longer has it.
    pub detach: Duration,
    /// From the call until it is no longer billed.
    pub delete: Duration,
    /// From the call until a volume in use is larger; `None`: the provider cannot grow one in place. `simulate` alone heeds
    /// it.
    pub grow: Option<Duration>,
    /// Each call takes longer by a share of itself that is drawn from 0 to this. `simulate` alone heeds it;
    /// 0: machines are alike.
    pub jitter: f64,
    /// Share of calls that fail and that the controller tries again, from 0 to below 1. `simulate` alone heeds it.
    pub faults: f64,
}

impl Scenario {
    /// Checks the text of a scenario file. Volume types are looked up in `catalog`.
    ///
    /// # Errors
    /// The first thing wrong with it, with file, line and column.
    pub fn parse(source: &Source, catalog: &Catalog) -> Result<Self, ConfigError> {
        source.parse::<RawScenario>()?.check(source, catalog)
    }

    /// The controller: the file's, else `adaptive`. Prediction and simulation assume the same.
    #[must_use]
    pub fn controller(&self) -> PolicyConfig {
        let default = || PolicyConfig { preset: Preset::ADAPTIVE, ..PolicyConfig::default() };
        self.policy.clone().unwrap_or_else(default)
    }

    /// The first caching volume under this policy, where the file does not say: for a policy that plans sizes what absorbs the
    /// application's first burst as fast as any, else the papers'.
    #[must_use]
    pub fn initial_cache(&self, preset: Preset) -> Bytes {
        let planned = || {
            let app = self.app.as_ref().filter(|_| preset.how.planned_size)?;
            let first = if app.initial_dump > Bytes::ZERO { app.initial_dump } else { app.checkpoint_size };
            let pipes = Pipes { backing: self.backing.bandwidth, caching: self.caching.bandwidth };
            Some(pipes.cache_for(first, Absorb::Split))
        };
        self.caching.initial_cache.or_else(planned).unwrap_or(PAPER_INITIAL.min(self.backing.size))
    }

    /// What is possible and hardly meant, in sentences.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let (backing, caching) = (self.backing.bandwidth, self.caching.bandwidth);
        let slower = caching < backing;
        let message = || {
            format!(
                "the caching volumes ({caching}) are slower than the backing volume ({backing}), so that a boost hardly helps: \
                 check that the two are not exchanged"
            )
        };
        let useless = slower.then(message);
        let (each, all) = (self.caching.striping.each, self.caching.bandwidth);
        let enough = all.get().div_ceil(each.get());
        let volumes = u64::from(self.caching.striping.volumes);
        // More that were chosen are rounded up to less.
        let given = self.caching.striping.auto.is_none();
        let idle = (given && self.machine.bandwidth.is_some() && enough < volumes).then(|| {
            format!(
                "beside the backing volume the machine moves {:.0} MiB/s, which {enough} of the {volumes} caching volumes give: \
                 lower volumes in [caching]",
                all.as_mib_s()
            )
        });
        useless.into_iter().chain(idle).collect()
    }

    /// The application, for what cannot do without.
    ///
    /// # Errors
    /// One sentence: the file has none.
    pub fn app(&self) -> Result<&App, &'static str> {
        self.app.as_ref().ok_or(
            "the file has a trace or [jobs] and no [app], so there is nothing to predict: surgetank simulate replays it, and surgetank recommend --trace weighs a trace; or add the section [app], such as vms = 1, compute = \"10 min\", \
             checkpoints = 3, checkpoint_size = \"4 GiB\"",
        )
    }

    /// Compute time before each checkpoint, and what is left after the last one.
    #[must_use]
    pub fn compute_phases(&self) -> (Duration, Duration) {
        let Some(app) = &self.app else { return (Duration::ZERO, Duration::ZERO) };
        match self.interval {
            _ if app.checkpoints == 0 => (Duration::ZERO, app.compute),
            None => (app.compute / app.checkpoints, Duration::ZERO),
            Some(interval) => (interval, app.compute.saturating_sub(interval.saturating_mul(app.checkpoints))),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawScenario {
    app: Option<Spanned<RawApp>>,
    backing: RawBacking,
    caching: Spanned<RawCaching>,
    machine: Option<RawMachine>,
    #[serde(default)]
    calibration: Vec<RawPoint>,
    policy: Option<RawPolicy>,
    #[serde(default)]
    provider: RawLatencies,
    interval: Option<Spanned<Span>>,
    trace: Option<Spanned<PathBuf>>,
    jobs: Option<Spanned<RawJobs>>,
    seed: Option<Spanned<i64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawJobs {
    log: Spanned<PathBuf>,
    interval: Option<Spanned<Span>>,
    memory: Option<Spanned<Bytes>>,
    processors_max: Option<Spanned<i64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawApp {
    vms: Spanned<i64>,
    compute: Spanned<Span>,
    checkpoints: Spanned<i64>,
    checkpoint_size: Spanned<Bytes>,
    initial_dump: Option<Spanned<Bytes>>,
    // The same as at the top of the file, for those who look for them here.
    interval: Option<Spanned<Span>>,
    trace: Option<Spanned<PathBuf>>,
    seed: Option<Spanned<i64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawBacking {
    size: Spanned<Bytes>,
    bandwidth: Spanned<Bandwidth>,
    volume_type: Option<Spanned<String>>,
    usd_per_gib_month: Option<Spanned<f64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawPoint {
    dataset: Spanned<Bytes>,
    cache: Spanned<Bytes>,
    throughput: Spanned<Bandwidth>,
    attached: Spanned<Span>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawLatencies {
    create_s: Option<Spanned<Seconds>>,
    attach_s: Option<Spanned<Seconds>>,
    detach_s: Option<Spanned<Seconds>>,
    delete_s: Option<Spanned<Seconds>>,
    grow_s: Option<Spanned<Seconds>>,
    jitter: Option<Spanned<f64>>,
    faults: Option<Spanned<f64>>,
}

/// Seconds as a number, since the setting's name has the unit, or a time with its unit.
#[derive(Clone, Copy, Debug)]
enum Seconds {
    Number(f64),
    Span(Span),
}

impl<'de> Deserialize<'de> for Seconds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match toml::Value::deserialize(deserializer)? {
            toml::Value::Float(number) => Ok(Self::Number(number)),
            toml::Value::Integer(number) => Ok(Self::Number(number as f64)),
            toml::Value::String(text) => text.parse().map(Self::Span).map_err(D::Error::custom),
            other => Err(D::Error::custom(format_args!(
                "{other} is no time: write a number of seconds, such as 2.5, or a time with its unit, such as \"2 s\""
            ))),
        }
    }
}
