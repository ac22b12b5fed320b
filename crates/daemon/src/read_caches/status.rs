//! How a read cache stands, for people: a part of the answer to `status`. The names of the fields are a contract.

use serde::{Deserialize, Serialize};
use surgetank_rental::Slot;
use surgetank_rental::read_cache::{Part, VolumeStatus};

use super::manager::Manager;
use crate::accounting::HOURS_PER_MONTH;
use crate::clock::unix_ms;

const GIB: f64 = (1_u64 << 30) as f64;
const MIB: f64 = (1_u64 << 20) as f64;

/// The read cache of a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ReadCacheStatus {
    /// From whom its volumes are rented.
    pub provider: String,
    /// Their type.
    pub volume_type: String,
    /// Members as configured; 0: the section is gone, and the volumes are being deleted.
    pub members: u32,
    /// Members in use.
    pub serving: u32,
    /// What those have for blocks.
    pub size_gib: f64,
    /// What is cached.
    pub cached_gib: f64,
    /// What was read from the cache since the device started.
    pub hit_gib: f64,
    /// What was read from the backing volume since.
    pub missed_gib: f64,
    /// The share of what was read that came from the cache; `null`: nothing was read.
    pub hit_ratio: Option<f64>,
    /// Reads that a member failed or did not answer; the backing volume answered them.
    pub failed_reads: u64,
    /// Memory that the cache's index takes.
    pub memory_mib: f64,
    /// Its volumes, by place.
    pub volumes: Vec<ReadCacheVolumeStatus>,
    /// Why a volume is missing.
    pub reason: Option<String>,
    /// When the next one is tried.
    pub retry_s: Option<f64>,
    /// What the volumes that are there have cost so far, in adjusted GB-seconds; `null`: their bandwidth is not known.
    #[serde(default)]
    pub cost_agbs: Option<f64>,
    /// The same in money; `null`: their price is not known.
    #[serde(default)]
    pub cost_usd: Option<f64>,
    /// What they cost an hour.
    #[serde(default)]
    pub usd_per_hour: Option<f64>,
    /// Its share of what the machine has for all read caches; absent: they do not share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<ShareStatus>,
    /// The one beneath it, which is asked for what it does not have; absent: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level2: Option<Box<ReadCacheStatus>>,
}

/// What a read cache has of what all share, and whether its device is as fast as it was promised.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShareStatus {
    /// What it may have now.
    pub size_gib: f64,
    /// An equal part.
    pub fair_gib: f64,
    /// What boosts have, or are about to have, of what all share.
    #[serde(default)]
    pub boosts_gib: f64,
    /// What reads took on average in the last interval that had enough; `null`: none had.
    pub latency_ms: Option<f64>,
    /// What they were expected to take when that interval began.
    pub expected_ms: Option<f64>,
    /// What they would have taken with an equal part, as far as is known.
    pub fair_latency_ms: Option<f64>,
    /// What they may take.
    pub bound_ms: Option<f64>,
    /// Whether they took no more.
    pub slo_met: Option<bool>,
    /// What reads are expected to take in the interval that runs; `null`: nothing is known of them yet.
    #[serde(default)]
    pub predicted_ms: Option<f64>,
    /// Intervals that have ended.
    #[serde(default)]
    pub interval: u64,
    /// Why equal parts are all there is; `null`: they are not, or nothing was read yet.
    pub reason: Option<String>,
}

/// A volume of a read cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReadCacheVolumeStatus {
    /// The provider's name; `null`: not known yet.
    pub volume: Option<String>,
    /// `coming`, `serving` or `leaving`.
    pub part: String,
    /// Its size.
    pub size_gib: f64,
    /// Since its creation was asked for.
    pub age_s: f64,
    /// The share of its burst credits that is left, of the emptiest bucket; `null`: it has none.
    pub credits_share: Option<f64>,
}

impl ReadCacheStatus {
    /// One that cannot be looked after.
    #[must_use]
    pub fn refused(reason: String) -> Self {
        Self { reason: Some(reason), ..Self::default() }
    }
}

/// How one stands; `None`: there is none.
pub(super) fn of(manager: &Manager) -> Option<ReadCacheStatus> {
    if manager.wanted.is_none() && manager.life.is_empty() {
        return None;
    }
    let (life, now) = (manager.life.status(), unix_ms());
    let engine = manager.engine_status().unwrap_or_default();
    let volume = |volume: &VolumeStatus| ReadCacheVolumeStatus {
        volume: volume.volume.as_ref().map(|id| id.0.clone()),
        part: match volume.part {
            Part::Coming => "coming",
            Part::Serving => "serving",
            Part::Leaving => "leaving",
        }
        .to_owned(),
        size_gib: volume.size.as_gib(),
        age_s: now.saturating_sub(volume.started_unix_ms) as f64 / 1e3,
        credits_share: manager.credits_share(volume.place),
    };
    let read = engine.hit_bytes + engine.missed_bytes;
    let volumes: Vec<ReadCacheVolumeStatus> = life.volumes.iter().map(volume).collect();
    let gib: f64 = volumes.iter().map(|volume| volume.size_gib).sum();
    let gib_s: f64 = volumes.iter().map(|volume| volume.size_gib * volume.age_s).sum();
    let config = manager.wanted.as_ref();
    let usd = config.and_then(|config| config.usd_per_gib_month).map(|usd| usd / HOURS_PER_MONTH);
    Some(ReadCacheStatus {
        provider: manager.provider.0.clone(),
        volume_type: manager.wanted.as_ref().map(|config| config.volume_type.clone()).unwrap_or_default(),
        members: manager.wanted.as_ref().map_or(0, |config| config.members),
        serving: engine.members,
        size_gib: engine.size as f64 / GIB,
        cached_gib: engine.cached_bytes as f64 / GIB,
        hit_gib: engine.hit_bytes as f64 / GIB,
        missed_gib: engine.missed_bytes as f64 / GIB,
        hit_ratio: (read > 0).then(|| engine.hit_bytes as f64 / read as f64),
        failed_reads: engine.failed_reads,
        memory_mib: engine.memory_bytes as f64 / MIB,
        volumes,
        cost_agbs: config.and_then(|config| config.limits.bandwidth).map(|rate| gib_s * rate.as_mib_s()),
        cost_usd: usd.map(|usd| usd * gib_s / 3600.0),
        usd_per_hour: usd.map(|usd| usd * gib),
        share: None,
        level2: None,
        reason: life.trouble,
        retry_s: life.retry.map(|at| at.since(manager.now()).as_secs_f64()),
    })
}

impl Manager {
    fn credits_share(&self, place: Slot) -> Option<f64> {
        let (meter, config) = (self.meters.get(&place)?, self.wanted.as_ref()?);
        let balances = meter.balances(self.now());
        let shares = balances.iter().zip(&config.credits);
        shares.map(|((_, balance), credits)| *balance as f64 / credits.bucket.max(1) as f64).min_by(f64::total_cmp)
    }
}
