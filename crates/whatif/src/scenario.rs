//! What is simulated, from the planner's scenario file.

use std::time::Duration;

use surgetank_model::{Bytes, Iops, Limits};
use surgetank_planner::cost::Tariff;
use surgetank_planner::scenario::Scenario;
use surgetank_policy::file::Volumes;
use surgetank_policy::{Config, Preset};

use crate::setup::{AppPhase, Application, Caching, Setup, Volume};

/// Bytes of a request: what an operating system sends of a long write.
const REQUEST: Bytes = Bytes::new(1 << 20);
/// Requests in flight: enough to keep both volumes busy.
const DEPTH: u32 = 32;

impl Setup {
    /// The scenario's application under its controller (or under `preset`, if that is given).
    #[must_use]
    pub fn of(scenario: &Scenario, preset: Option<Preset>) -> Self {
        let backing = &scenario.backing;
        let caching = &scenario.caching;
        let tariffs = Tariffs {
            backing: Tariff::new(backing.bandwidth, backing.volume_type.as_ref(), backing.usd_per_gib_month),
            caching: caching.tariff(),
        };
        let (policy, sampling) = controller(scenario, preset, &tariffs);
        let volume_type = backing.volume_type.as_ref();
        let fill = policy.preset.how.read_fill;
        let iops = |found: Option<Limits>| found.and_then(|limits| limits.iops);
        let volumes = caching.striping.volumes;
        let cache_size = Bytes::new(policy.initial_size.get().div_ceil(u64::from(volumes)));
        let cached = iops(caching.volume_type.as_ref().map(|found| found.limits_at(cache_size)))
            .map(|each| Iops::new(each.get().saturating_mul(u64::from(volumes))));
        Self {
            vms: scenario.app.as_ref().map_or(1, |app| app.vms),
            application: application(scenario),
            backing: Volume {
                size: backing.size,
                limits: Limits {
                    bandwidth: Some(backing.bandwidth),
                    iops: iops(volume_type.map(|found| found.limits_at(backing.size))),
                },
                credits: volume_type.and_then(|found| found.credits_at(backing.size)),
                tariff: tariffs.backing,
            },
            caching: Caching {
                limits: Limits { bandwidth: Some(caching.bandwidth), iops: cached },
                alone: Limits { bandwidth: Some(caching.striping.alone), iops: cached },
                tariff: tariffs.caching,
                read_fill: fill,
            },
            policy,
            sampling,
            provider: scenario.provider,
            seed: scenario.seed,
        }
    }

    /// Replays this instead of an application: bytes read and written in each interval of `every`.
    pub fn replay(&mut self, arrivals: impl Iterator<Item = (Bytes, Bytes)>, every: Duration) {
        let moved = |(number, (read, written)): (u32, (Bytes, Bytes))| {
            let nothing = read == Bytes::ZERO && written == Bytes::ZERO;
            (!nothing).then_some(AppPhase::Arrive { at: every.saturating_mul(number), read, written })
        };
        self.application.phases = (0..).zip(arrivals).filter_map(moved).chain([AppPhase::Finish]).collect();
        self.application.initial_phases = 0;
    }
}

/// What both volumes cost.
struct Tariffs {
    backing: Tariff,
    caching: Tariff,
}

fn application(scenario: &Scenario) -> Application {
    let mut phases = Vec::new();
    let mut initial_phases = 0;
    if let Some(app) = &scenario.app {
        if app.initial_dump > Bytes::ZERO {
            phases.push(AppPhase::Write(app.initial_dump));
            initial_phases = 1;
        }
        let (before, after) = scenario.compute_phases();
        for _ in 0..app.checkpoints {
            phases.extend([AppPhase::Compute(before), AppPhase::Write(app.checkpoint_size)]);
        }
        if after > Duration::ZERO {
            phases.push(AppPhase::Compute(after));
        }
    }
    Application { phases, initial_phases, request: REQUEST, depth: DEPTH }
}

/// The controller, and how often it looks.
fn controller(scenario: &Scenario, preset: Option<Preset>, tariffs: &Tariffs) -> (Config, Duration) {
    let (backing, caching) = (&scenario.backing, &scenario.caching);
    let mut file = scenario.controller();
    file.preset = preset.unwrap_or(file.preset);
    let all = |each: Bytes| Bytes::new(each.get().saturating_mul(u64::from(caching.striping.volumes)));
    let offered = caching.volume_type.as_ref().map(|found| (all(found.size.min), all(found.size.max)));
    let (smallest, largest) = offered.unwrap_or((Bytes::from_mib(1), backing.size));
    let largest = largest.min(backing.size).max(smallest);
    let initial_size = scenario.initial_cache(file.preset).clamp(smallest, largest);
    let volumes = Volumes {
        backing_bandwidth: backing.bandwidth,
        backing_size: backing.size,
        caching_bandwidth: caching.bandwidth,
        caching_reserved: caching.striping.each,
        initial_size,
        caching_sizes: (smallest, largest),
        caching_usd_per_gib_hour: per_gib_hour(&tariffs.caching, initial_size),
        backing_usd_per_hour: tariffs.backing.usd_per_hour(backing.size),
    };
    let config = file.controller(&volumes, scenario.seed);
    (Config { fixed_size: caching.checkpoint_cache, ..config }, file.sampling)
}

/// USD per GiB and hour of a volume of this size, if its price is known.
pub(crate) fn per_gib_hour(tariff: &Tariff, size: Bytes) -> Option<f64> {
    tariff.usd_per_hour(size).map(|usd| usd / size.as_gib().max(f64::MIN_POSITIVE))
}
