//! What the daemon says of itself: the answer to `status`. The names of the fields are a contract.

use serde::{Deserialize, Serialize};
use surgetank_model::cost::Rental;

use crate::accounting::{Activity, BoostReport};
use crate::read_caches::status::ReadCacheStatus;

/// All devices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StatusReport {
    /// The devices, by name.
    pub devices: Vec<DeviceStatus>,
    /// What the last sweep found that needs a person.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}

/// Lost ranges that a status lists.
pub const LOST_RANGES_LISTED: usize = 1000;

/// Where a device is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the words of the vocabulary")]
pub enum DevicePhase {
    Idle,
    Attaching,
    Boost,
    Drain,
    Detaching,
    Degraded,
}

impl From<surgetank_policy::Phase> for DevicePhase {
    fn from(phase: surgetank_policy::Phase) -> Self {
        match phase {
            surgetank_policy::Phase::Idle => Self::Idle,
            surgetank_policy::Phase::Attaching => Self::Attaching,
            surgetank_policy::Phase::Boost => Self::Boost,
            surgetank_policy::Phase::Drain => Self::Drain,
            surgetank_policy::Phase::Detaching => Self::Detaching,
            surgetank_policy::Phase::Degraded => Self::Degraded,
        }
    }
}

impl std::fmt::Display for DevicePhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Idle => "idle",
            Self::Attaching => "attaching",
            Self::Boost => "boost",
            Self::Drain => "drain",
            Self::Detaching => "detaching",
            Self::Degraded => "degraded",
        })
    }
}

/// One device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceStatus {
    /// Its name.
    pub name: String,
    /// How it is exported: `dm`, `ublk`, `fuse` or `nbd`.
    pub export: String,
    /// What the user opens; empty while it is not served.
    pub address: String,
    /// Where the kernel sends the requests of a device that it maps itself (`dm`): `straight` to the backing volume, or to the
    /// daemon, which has them `served`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub map: Option<String>,
    /// Its size.
    pub size_gib: f64,
    /// Where it is.
    pub phase: DevicePhase,
    /// Why it is degraded, does not boost, what it is trying again, or why the last boost did not begin.
    pub reason: Option<String>,
    /// When it tries again.
    pub retry_s: Option<f64>,
    /// When the boost for a burst that was announced is to begin; absent: none is announced.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub announced_s: Option<f64>,
    /// The application's throughput over the last sampling interval.
    pub throughput_mib_s: f64,
    /// That throughput as a share of the backing volume's bandwidth.
    pub utilization: f64,
    /// The caching volume, while one is rented.
    pub caching: Option<CachingStatus>,
    /// The read cache over the backing volume; absent: it has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_cache: Option<ReadCacheStatus>,
    /// Boosts so far, over all runs of the daemon.
    pub boosts: u64,
    /// Size of the next caching volume.
    pub next_cache_gib: Option<f64>,
    /// What everything rented has cost so far, over all runs of the daemon.
    pub cost_agbs: f64,
    /// The same in money; null if a price is not known.
    pub cost_usd: Option<f64>,
    /// Ranges of the device that answer EIO until they are overwritten: the first [`LOST_RANGES_LISTED`], in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_ranges: Vec<LostRange>,
    /// How many there are.
    #[serde(default)]
    pub lost_range_count: u64,
    /// Bytes of all of them.
    pub lost_bytes: u64,
}

/// A caching volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CachingStatus {
    /// The provider's name of it, or those of the volumes over which it is striped; empty while that is not known.
    pub volume: String,
    /// Over how many volumes it is striped; 1: it is one.
    #[serde(default = "one")]
    pub volumes: u32,
    /// Its size.
    pub size_gib: f64,
    /// Not yet on the backing volume.
    pub dirty_gib: f64,
    /// Most of it in use.
    pub high_water_gib: f64,
    /// Why it was rented, and what it is expected to save.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// That it was asked to grow last, and why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub growth: Option<String>,
}

/// What daemons that know no stripes rent.
const fn one() -> u32 {
    1
}

/// A range of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostRange {
    /// First byte.
    pub offset_bytes: u64,
    /// Bytes.
    pub length_bytes: u64,
}

/// Everything that a report on a device plots. In process only.
#[derive(Clone, Debug, Default)]
pub struct DeviceReport {
    /// Finished boosts of this run, oldest first.
    pub boosts: Vec<BoostReport>,
    /// What moved, per sampling interval, oldest first. Seconds count from the daemon's start.
    pub activity: Vec<Activity>,
    /// What was rented when; the backing volume is called `backing`, caching volumes `caching`.
    pub rentals: Vec<Rental>,
    /// What all that cost until now, as the status says it but for this run alone.
    pub cost_agbs: f64,
    /// The same in money.
    pub cost_usd: Option<f64>,
    /// Now, in seconds since the daemon's start.
    pub now_s: f64,
}
