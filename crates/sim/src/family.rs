//! Families of runs: a family and a seed name one scenario.

use std::time::Duration;

use surgetank_cache::format::TableCopy;
use surgetank_model::random::Random;

use crate::disk::Outliers;
use crate::scenario::{
    BadRange, Crash, CrashKind, CrashScenario, Latent, Mapped, Outage, Stop, Stuck, Style, Trigger, Trouble, Victim,
    cloud_faults, division, lags,
};

/// What the runs of a campaign have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Short runs with crashes at random events.
    Short,
    /// Long ones.
    Long,
    /// The same blocks overwritten over and over, with crashes.
    Overwrites,
    /// A few blocks overwritten over and over while nothing is drained, and power cuts right after the segment table is
    /// written: segments go because newer records supersede all of theirs.
    Superseding,
    /// A crash of each kind at every event of a short run, and a second one during the recovery: the seed counts
    /// through events and kinds of one run after another.
    EveryEvent,
    /// Errors of either volume, or a caching volume that vanishes, with crashes.
    Errors,
    /// A flush of the backing volume that fails forgets what it covered, with crashes.
    ForgetfulFlushes,
    /// I/Os that get stuck for a while, with crashes.
    Stuck,
    /// Ranges that cannot be read or written, with crashes.
    BadRanges,
    /// The device grows, with crashes.
    Growth,
    /// The production controller steers, and its provider refuses, hangs, and answers late or twice, with crashes.
    Provider,
    /// A bit flips on the caching volume; no crash after that.
    Rot,
    /// A volume, or both, answers nothing for 0.1 s to 10 min, with crashes in the middle.
    Outages,
    /// Sectors anywhere on the caching volume cannot be read, for a while or for good, with crashes.
    Latent,
    /// Orderly stops, half of them with a bit that flips meanwhile, and crashes.
    Stops,
    /// Flushes of the caching volume fail and forget, or writes find no space, with crashes.
    CacheFlushes,
    /// What is on the caching volume alone is lost for good, with crashes on the way there and back.
    Losses,
    /// The owner record is not persisted, or the answer says so, while caching volumes come, go and fail, with crashes.
    Owners,
    /// The production controller steers, its provider is faulty, and the caching volume fails for a while.
    ProviderOutages,
    /// Writes of the caching volume fail while few blocks are overwritten and the drain takes long, with crashes then.
    FailedAppends,
    /// Segments are used again and again, then one copy of the segment table, or an index, cannot be read, with crashes.
    TableCopies,
    /// The kernel maps the device, straight to the backing volume or to the daemon, with crashes in the middle of switches,
    /// amid faults of switches, of the provider and of volumes.
    Mapped,
    /// The same with switches alone, and flushes that fail and forget while a switch waits for what is in flight.
    FlushesInSwitches,
    /// Bursts are announced, and come or do not, amid faults of the provider and with crashes.
    Announced,
    /// The caching volume grows while it is in use, with crashes on the way; in some runs one superblock cannot be read, or
    /// I/Os of the caching volume fail.
    CacheGrowth,
    /// The production controller has the caching volume grow, its provider is faulty, and it crashes on the way.
    ProviderGrowth,
    /// Caching volumes are stripes over several, each of which the provider may refuse, lose or be late with, with crashes; in
    /// some runs they grow, or fail for a while.
    Striped,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 27] = [
        Self::Short,
        Self::Long,
        Self::Overwrites,
        Self::Superseding,
        Self::EveryEvent,
        Self::Errors,
        Self::ForgetfulFlushes,
        Self::Stuck,
        Self::BadRanges,
        Self::Growth,
        Self::Provider,
        Self::Rot,
        Self::Outages,
        Self::Latent,
        Self::Stops,
        Self::CacheFlushes,
        Self::Losses,
        Self::Owners,
        Self::ProviderOutages,
        Self::FailedAppends,
        Self::TableCopies,
        Self::Mapped,
        Self::FlushesInSwitches,
        Self::Announced,
        Self::CacheGrowth,
        Self::ProviderGrowth,
        Self::Striped,
    ];

    /// Its name in tables and commands.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Long => "long",
            Self::Overwrites => "overwrites",
            Self::Superseding => "superseding",
            Self::EveryEvent => "every-event",
            Self::Errors => "errors",
            Self::ForgetfulFlushes => "forgetful-flushes",
            Self::Stuck => "stuck",
            Self::BadRanges => "bad-ranges",
            Self::Growth => "growth",
            Self::Provider => "provider",
            Self::Rot => "rot",
            Self::Outages => "outages",
            Self::Latent => "latent",
            Self::Stops => "stops",
            Self::CacheFlushes => "cache-flushes",
            Self::Losses => "losses",
            Self::Owners => "owners",
            Self::ProviderOutages => "provider-outages",
            Self::FailedAppends => "failed-appends",
            Self::TableCopies => "table-copies",
            Self::Mapped => "mapped",
            Self::FlushesInSwitches => "flushes-in-switches",
            Self::Announced => "announced",
            Self::CacheGrowth => "cache-growth",
            Self::ProviderGrowth => "provider-growth",
            Self::Striped => "striped",
        }
    }

    /// The scenario of a seed.
    #[must_use]
    pub fn scenario(self, seed: u64) -> CrashScenario {
        let scenario = self.without_cloud_faults(seed);
        let is_faulty = scenario.provider_faults.is_some() && self != Self::FlushesInSwitches;
        if !is_faulty {
            return scenario;
        }
        CrashScenario { cloud_faults: cloud_faults(seed), lags: lags(seed), ..scenario }
    }

    /// The same, of a provider that neither throttles nor fails to make a volume, and does not lag: runs that are known from before are these.
    #[must_use]
    pub fn without_cloud_faults(self, seed: u64) -> CrashScenario {
        let mut random = Random::from_seed(seed ^ 0x00fa_3117);
        let base = if random.below(3) == 0 { CrashScenario::overwriting(seed) } else { CrashScenario::short(seed) };
        let event = random.below(400) as u32;
        let until_event = 400 + random.below(600) as u32;
        let victim = if random.below(2) == 0 { Victim::Backing } else { Victim::Cache };
        let trouble = |trouble| CrashScenario { trouble: Some(Trouble { until_event, ..trouble }), ..base.clone() };
        match self {
            Self::Short => CrashScenario::short(seed).with_random_crashes(4, 400),
            Self::Long => CrashScenario::long(seed).with_random_crashes(6, 6000),
            Self::Overwrites => CrashScenario::overwriting(seed).with_random_crashes(4, 2000),
            Self::Superseding => superseding(seed, &mut random),
            Self::EveryEvent => every_event(seed),
            Self::Errors => trouble(match seed % 3 {
                0 => Trouble { cache_errors: 0.02, ..Trouble::NONE },
                1 => Trouble { backing_errors: 0.03, ..Trouble::NONE },
                _ => Trouble { vanish_at: Some(event), ..Trouble::NONE },
            })
            .with_random_crashes(3, 400),
            Self::ForgetfulFlushes => {
                trouble(Trouble { backing_errors: 0.05, forgetful: true, ..Trouble::NONE }).with_random_crashes(3, 600)
            }
            Self::Stuck => {
                let lasts = Duration::from_millis([5, 500, 30_000][random.below(3) as usize]);
                trouble(Trouble { stuck: Some(Stuck { victim, at_event: event, lasts }), ..Trouble::NONE })
                    .with_random_crashes(2, 800)
            }
            Self::BadRanges => {
                let size = match victim {
                    Victim::Backing => base.size(),
                    Victim::Cache => base.cache_size,
                };
                let offset = random.below(size) / 512 * 512;
                let length = 512 * (1 + random.below(64));
                trouble(Trouble { bad_range: Some(BadRange { victim, offset, length }), ..Trouble::NONE })
                    .with_random_crashes(3, 600)
            }
            Self::Growth => {
                let unit = u64::from(base.logical_block) / 512;
                let mut at = 0;
                let growths = (0..1 + random.below(4)).map(|_| {
                    at += random.below(300) as u32;
                    (at, (unit * (1 + random.below(200 / unit))) as u32)
                });
                CrashScenario { growths: growths.collect(), ..base }.with_random_crashes(4, 600)
            }
            Self::Provider => {
                let faults = [0.0, 0.1, 0.5][random.below(3) as usize];
                CrashScenario { boosts: None, provider_faults: Some(faults), ..base }.with_random_crashes(4, 600)
            }
            Self::Rot => trouble(Trouble { rot_at: Some(event), ..Trouble::NONE }),
            Self::Outages => outages(base, &mut random),
            Self::Latent => latent(base, &mut random),
            Self::Stops => stops(base, &mut random),
            Self::CacheFlushes => {
                let (cache_flush_errors, no_space) = [(0.1, 0.0), (0.0, 0.02), (0.05, 0.01)][random.below(3) as usize];
                let scenario = trouble(Trouble { cache_flush_errors, no_space, ..Trouble::NONE });
                let crashes =
                    crashes(&mut random, &[Trigger::Failing, Trigger::Failing, Trigger::Start, Trigger::OwnerWrite]);
                CrashScenario { crashes, ..scenario }
            }
            Self::Losses => losses(base, &mut random),
            Self::Owners => {
                let owner_errors = [0.2, 0.5, 0.9][random.below(3) as usize];
                let latent = random.below(2) == 0;
                let scenario = if latent { latent_anywhere(base, &mut random) } else { losses(base, &mut random) };
                let trouble = scenario.trouble.map(|trouble| Trouble { owner_errors, until_event, ..trouble });
                CrashScenario { trouble, ..scenario }
            }
            Self::ProviderOutages => {
                let faults = [0.0, 0.1, 0.5][random.below(3) as usize];
                let scenario = outages(base, &mut random);
                // The provider is faulty while volumes fail and come back, and then no more.
                let trouble = scenario.trouble.map(|trouble| Trouble { until_event: 2000, ..trouble });
                CrashScenario { boosts: None, provider_faults: Some(faults), trouble, ..scenario }
            }
            Self::FailedAppends => failed_appends(seed, &mut random),
            Self::TableCopies => table_copies(seed, &mut random),
            Self::Mapped => mapped(base, &mut random),
            Self::FlushesInSwitches => flushes_in_switches(base, &mut random),
            Self::Announced => announced(base, &mut random),
            Self::CacheGrowth => cache_growth(base, &mut random),
            Self::ProviderGrowth => provider_growth(base, &mut random),
            Self::Striped => striped(seed, &mut random),
        }
    }
}

/// How long a volume answers nothing: 0.1 s to 10 min, each order of magnitude as often.
fn outage(random: &mut Random, victim: Option<Victim>, at_event: u32) -> Outage {
    let longest = [1_000, 10_000, 60_000, 600_000][random.below(4) as usize];
    let lasts = Duration::from_millis(longest / 10 + random.below(longest * 9 / 10 + 1));
    Outage { victim, at_event, lasts, gone: random.below(2) == 0 }
}

/// A few crashes, most of them at moments that matter.
fn crashes(random: &mut Random, triggers: &[Trigger]) -> Vec<Crash> {
    let count = [0, 1, 2, 4][random.below(4) as usize];
    let crash = |_| {
        let kind = if random.below(2) == 0 { CrashKind::PowerCut } else { CrashKind::Daemon };
        let trigger = triggers[random.below(triggers.len() as u64) as usize];
        let within = if trigger == Trigger::Start { 500 } else { [3, 30, 150][random.below(3) as usize] };
        Crash { trigger, after_events: random.below(within) as u32, kind }
    };
    (0..count).map(crash).collect()
}

fn patience(random: &mut Random) -> Duration {
    Duration::from_secs([2, 30, 300][random.below(3) as usize])
}

fn outages(base: CrashScenario, random: &mut Random) -> CrashScenario {
    let victim = [Some(Victim::Cache), Some(Victim::Cache), Some(Victim::Backing), None][random.below(4) as usize];
    let at_event = 20 + random.below(300) as u32;
    let first = outage(random, victim, at_event);
    let again = (random.below(2) == 0).then(|| {
        let victim = [Some(Victim::Cache), Some(Victim::Backing), None][random.below(3) as usize];
        let at_event = at_event + random.below(300) as u32;
        outage(random, victim, at_event)
    });
    let accepts = random.below(8) == 0;
    let trouble = Trouble { outages: [Some(first), again], accepts, ..Trouble::NONE };
    let crashes = crashes(random, &[Trigger::Outage, Trigger::Outage, Trigger::Failing, Trigger::Lost, Trigger::Start]);
    CrashScenario { trouble: Some(trouble), crashes, patience: patience(random), ..base }
}

/// Ranges on the caching volume: the superblocks, the segment table, the log where it begins, anywhere.
fn latent_anywhere(base: CrashScenario, random: &mut Random) -> CrashScenario {
    const LOG: u64 = 64 << 10;
    let mut latent = [None; 3];
    let count = 1 + random.below(3) as usize;
    for slot in &mut latent[..count] {
        let (start, span) = match random.below(6) {
            0 => (0, 16 << 10),
            1 | 2 => (LOG, 64 << 10),
            3 => (LOG, 256 << 10),
            _ => (0, base.cache_size),
        };
        let offset = start + random.below(span.min(base.cache_size - start)) / 512 * 512;
        let length = 512 * if random.below(3) == 0 { 1 + random.below(64) } else { 1 };
        let length = length.min(base.cache_size - offset);
        let lasts = Duration::from_millis([50, 3_000, 30_000][random.below(3) as usize]);
        *slot = Some(Latent {
            victim: Victim::Cache,
            offset,
            length,
            at_event: random.below(300) as u32,
            lasts: (random.below(2) == 0).then_some(lasts),
        });
    }
    let crashes =
        crashes(random, &[Trigger::Start, Trigger::Start, Trigger::Failing, Trigger::Lost, Trigger::OwnerWrite]);
    let cache_errors = [0.0, 0.0, 0.03][random.below(3) as usize];
    let trouble = Trouble { latent, cache_errors, until_event: 1000, ..Trouble::NONE };
    CrashScenario { trouble: Some(trouble), crashes, ..base }
}

fn latent(base: CrashScenario, random: &mut Random) -> CrashScenario {
    latent_anywhere(base, random)
}

fn stops(base: CrashScenario, random: &mut Random) -> CrashScenario {
    let stop = Stop { at_event: 20 + random.below(300) as u32, rots: random.below(2) == 0 };
    let crashes = if stop.rots { Vec::new() } else { crashes(random, &[Trigger::Start, Trigger::OwnerWrite]) };
    CrashScenario { stop: Some(stop), crashes, ..base }
}

fn losses(base: CrashScenario, random: &mut Random) -> CrashScenario {
    let at_event = 20 + random.below(300) as u32;
    let log = division(base.cache_size).map_or(0, |geometry| geometry.segment_offset(0));
    let bad = Latent { victim: Victim::Cache, offset: log, length: base.cache_size - log, at_event, lasts: None };
    let trouble = match random.below(3) {
        // The volume, or all of its log, is gone for good; else a part of the log.
        0 => Trouble { vanish_at: Some(at_event), ..Trouble::NONE },
        1 => Trouble { latent: [Some(bad), None, None], ..Trouble::NONE },
        _ => {
            let length = 4096 * (1 + random.below(40));
            let offset = log + random.below(48) * 4096;
            Trouble { latent: [Some(Latent { offset, length, ..bad }), None, None], ..Trouble::NONE }
        }
    };
    let crashes =
        crashes(random, &[Trigger::Failing, Trigger::Failing, Trigger::Lost, Trigger::Lost, Trigger::OwnerWrite]);
    let patience = Duration::from_secs([1, 20][random.below(2) as usize]);
    // What is overwritten after a loss may fail to be.
    let backing_errors = [0.0, 0.0, 0.1][random.below(3) as usize];
    let accepts = random.below(3) == 0;
    let trouble = Trouble { accepts, backing_errors, until_event: 2000, ..trouble };
    CrashScenario { trouble: Some(trouble), crashes, patience, ..base }
}

fn superseding(seed: u64, random: &mut Random) -> CrashScenario {
    let crash =
        |_| Crash { trigger: Trigger::TableWrite, after_events: random.below(6) as u32, kind: CrashKind::PowerCut };
    CrashScenario {
        crashes: (0..3).map(crash).collect(),
        device_blocks: 6 + (seed % 12) as u32,
        backing_latency_max: Duration::from_millis(300),
        think_max: Duration::from_millis(200),
        boosts: Some(Duration::from_secs(10)),
        ..CrashScenario::overwriting(seed)
    }
}

fn failed_appends(seed: u64, random: &mut Random) -> CrashScenario {
    let (cache_errors, no_space) = [(0.02, 0.0), (0.0, 0.02), (0.0, 0.1)][random.below(3) as usize];
    let trouble = Trouble { cache_errors, no_space, until_event: 300 + random.below(700) as u32, ..Trouble::NONE };
    let crash = |_| {
        let kind = if random.below(4) == 0 { CrashKind::PowerCut } else { CrashKind::Daemon };
        Crash { trigger: Trigger::Failing, after_events: 10 + random.below(120) as u32, kind }
    };
    let crashes = (0..2).map(crash).collect();
    let base = if random.below(3) == 0 { superseding(seed, random) } else { CrashScenario::overwriting(seed) };
    let (think_max, backing_latency_max) = (Duration::from_millis(20), Duration::from_millis(300));
    CrashScenario { crashes, trouble: Some(trouble), think_max, backing_latency_max, ..base }
}

fn table_copies(seed: u64, random: &mut Random) -> CrashScenario {
    let base = CrashScenario::overwriting(seed);
    let geometry = division(base.cache_size);
    let [first, second] =
        geometry.map(|geometry| TableCopy::ALL.map(|copy| geometry.table_offset(0, copy))).unwrap_or_default();
    let (kind, segment) = (random.below(4), random.below(4) as u32);
    let offset = match (kind, geometry.filter(|geometry| geometry.indexed)) {
        (0, _) => second,
        (1, Some(geometry)) => geometry.index_offset(segment),
        _ => first,
    };
    let at_event = 100 + random.below(400) as u32;
    let bad = Latent { victim: Victim::Cache, offset, length: 512, at_event, lasts: None };
    let trouble = Trouble { latent: [Some(bad), None, None], until_event: 1000, ..Trouble::NONE };
    // What is lost of the table is written anew when segments are freed the next time.
    let kind = if random.below(2) == 0 { CrashKind::PowerCut } else { CrashKind::Daemon };
    let after_events = at_event + random.below(60) as u32;
    let crashes = vec![Crash { trigger: Trigger::Start, after_events, kind }];
    CrashScenario { trouble: Some(trouble), crashes, ..base }
}

fn mapped(base: CrashScenario, random: &mut Random) -> CrashScenario {
    let style = if random.below(4) > 0 { Style::Trickle } else { base.style };
    let requests = 150 + random.below(350) as u32;
    let base = CrashScenario { requests, style, ..base };
    let scenario = match random.below(6) {
        0 => outages(base, random),
        1 | 2 => {
            let (backing_errors, backing_flush_errors) =
                [(0.05, 0.0), (0.0, 0.3), (0.0, 0.3)][random.below(3) as usize];
            let trouble = Trouble { backing_errors, backing_flush_errors, forgetful: true, ..Trouble::NONE };
            // Much is in flight that a flush may forget while a switch waits for it.
            let (depth, backing_latency_max) = (8 + random.below(16) as u32, Duration::from_millis(4));
            CrashScenario { trouble: Some(trouble), depth, backing_latency_max, ..base }
        }
        3 => {
            let lasts = Duration::from_millis([5, 500, 30_000][random.below(3) as usize]);
            let stuck = Stuck { victim: Victim::Backing, at_event: random.below(600) as u32, lasts };
            CrashScenario { trouble: Some(Trouble { stuck: Some(stuck), ..Trouble::NONE }), ..base }
        }
        _ => base,
    };
    // Faults go on for about as long as the application.
    let until_event = 800 + random.below(700) as u32;
    let trouble = scenario.trouble.unwrap_or(Trouble::NONE);
    let trouble = Some(Trouble { until_event, ..trouble });
    let count = [1, 2, 4, 6][random.below(4) as usize];
    let crash = |_| {
        let kind = if random.below(2) == 0 { CrashKind::PowerCut } else { CrashKind::Daemon };
        let (trigger, within) = match random.below(8) {
            0 => (Trigger::Start, 600),
            1 => (Trigger::OwnerWrite, 30),
            2 => (Trigger::Switch, 100),
            3 => (Trigger::Switch, 30),
            _ => (Trigger::Switch, 8),
        };
        Crash { trigger, after_events: random.below(within) as u32, kind }
    };
    let crashes = (0..count).map(crash).collect();
    let mapped = Mapped {
        faults: [0.0, 0.1, 0.4][random.below(3) as usize],
        pace_max: Duration::from_micros([30, 300, 3000][random.below(3) as usize]),
        absence_max: Duration::from_micros([10, 1000, 20_000][random.below(3) as usize]),
        by_hand: random.below(4) == 0,
    };
    let provider_faults = Some([0.0, 0.0, 0.1, 0.5][random.below(4) as usize]);
    CrashScenario { boosts: None, provider_faults, trouble, crashes, mapped: Some(mapped), ..scenario }
}

/// A switch to the backing volume begins while nothing is owed, and by the time that nothing is in flight a flush has failed which
/// dropped a write that is answered only after it. So much is in flight, some of it for a hundred times as long as a flush.
fn flushes_in_switches(base: CrashScenario, random: &mut Random) -> CrashScenario {
    let backing_flush_errors = [0.3, 0.6][random.below(2) as usize];
    let trouble = Trouble { backing_flush_errors, forgetful: true, until_event: 8000, ..Trouble::NONE };
    let crash = Crash { trigger: Trigger::Switch, after_events: random.below(30) as u32, kind: CrashKind::Daemon };
    let mapped = Mapped {
        faults: 0.0,
        pace_max: Duration::from_millis([1, 5][random.below(2) as usize]),
        absence_max: Duration::from_millis(1),
        by_hand: false,
    };
    CrashScenario {
        boosts: None,
        provider_faults: Some(0.0),
        requests: 500 + random.below(500) as u32,
        style: Style::Trickle,
        depth: 16 + random.below(32) as u32,
        backing_outliers: Outliers { one_in: 2 + random.below(3), at_once: true },
        announce: true,
        trouble: Some(trouble),
        crashes: if random.below(3) == 0 { vec![crash] } else { Vec::new() },
        mapped: Some(mapped),
        ..base
    }
}

fn cache_growth(base: CrashScenario, random: &mut Random) -> CrashScenario {
    let mut at = 0;
    let cache_growths = (0..1 + random.below(3)).map(|_| {
        at += random.below(200) as u32;
        // Less than a segment at times, and as much as there was at others.
        (at, (8 + random.below(40) * random.below(8)) as u32)
    });
    let cache_growths = cache_growths.collect();
    let superblock = Latent {
        victim: Victim::Cache,
        offset: 4096 * random.below(2),
        length: 512,
        at_event: random.below(300) as u32,
        lasts: None,
    };
    let trouble = match random.below(6) {
        0 | 1 => Some(Trouble { latent: [Some(superblock), None, None], until_event: 1000, ..Trouble::NONE }),
        2 => Some(Trouble { cache_errors: 0.02, until_event: 600, ..Trouble::NONE }),
        _ => None,
    };
    let crash = |_| {
        let kind = if random.below(3) > 0 { CrashKind::PowerCut } else { CrashKind::Daemon };
        let (trigger, within) = match random.below(6) {
            0 | 1 => (Trigger::CacheGrowth, 16),
            2 | 3 => (Trigger::CacheGrowth, 150),
            4 => (Trigger::SuperblockWrite, 12),
            _ => (Trigger::Start, 400),
        };
        Crash { trigger, after_events: random.below(within) as u32, kind }
    };
    let crashes = (0..4).map(crash).collect();
    // More than fits, so that the new part is used at once.
    let (requests, device_blocks) = (base.requests + 60, base.device_blocks + 250);
    CrashScenario { cache_growths, trouble, crashes, requests, device_blocks, ..base }
}

fn provider_growth(base: CrashScenario, random: &mut Random) -> CrashScenario {
    let provider_faults = Some([0.0, 0.1, 0.4][random.below(3) as usize]);
    let count = random.below(3);
    let crash = |_| {
        let kind = if random.below(2) == 0 { CrashKind::PowerCut } else { CrashKind::Daemon };
        let (trigger, within) =
            [(Trigger::Growth, 12), (Trigger::Growth, 60), (Trigger::CacheGrowth, 30)][random.below(3) as usize];
        Crash { trigger, after_events: random.below(within) as u32, kind }
    };
    let crashes = (0..count).map(crash).collect();
    // More than fits on the first caching volume, written without a pause; and a controller that asks what pays.
    let (requests, device_blocks) = (base.requests + 600, base.device_blocks + 700);
    CrashScenario {
        seed: base.seed * 2,
        style: Style::Mixed,
        depth: 16,
        boosts: None,
        provider_faults,
        crashes,
        requests,
        device_blocks,
        think_max: Duration::ZERO,
        backing_latency_max: Duration::from_millis(1),
        ..base
    }
}

fn striped(seed: u64, random: &mut Random) -> CrashScenario {
    let base = match random.below(8) {
        0 | 1 => Family::ProviderGrowth,
        2 => Family::ProviderOutages,
        _ => Family::Provider,
    };
    let volumes = [2, 4, 8][random.below(3) as usize];
    let scenario = base.without_cloud_faults(seed);
    // In half of the runs as many calls of stripes go wrong as with one volume; else as many of each member.
    let parts = f64::from(if random.below(2) == 0 { volumes } else { 1 });
    let provider_faults = scenario.provider_faults.map(|faults| 1.0 - (1.0 - faults).powf(1.0 / parts));
    CrashScenario { volumes, provider_faults, ..scenario }
}

fn announced(base: CrashScenario, random: &mut Random) -> CrashScenario {
    let faults = [0.0, 0.1, 0.5][random.below(3) as usize];
    CrashScenario {
        boosts: None,
        provider_faults: Some(faults),
        announce: true,
        requests: 150 + random.below(350) as u32,
        style: Style::Trickle,
        // A rare burst would be waited for as long as time is worth here, which is for hours.
        think_max: Duration::from_millis(20),
        backing_latency_max: Duration::from_millis(1 + random.below(4)),
        ..base
    }
    .with_random_crashes(2, 1200)
}

/// Events of a run that [`Family::EveryEvent`] crashes at; runs that end before simply have no crash.
pub const EVENTS: u64 = 288;

fn every_event(seed: u64) -> CrashScenario {
    let (run, point) = (seed / (2 * EVENTS), seed % (2 * EVENTS));
    let kind = if point.is_multiple_of(2) { CrashKind::PowerCut } else { CrashKind::Daemon };
    let after_events = (point / 2) as u32;
    let scenario = CrashScenario { requests: 25, device_blocks: 40, ..CrashScenario::short(run) };
    let again = Crash { trigger: Trigger::Start, after_events: after_events % 23, kind: CrashKind::PowerCut };
    CrashScenario { crashes: vec![Crash { trigger: Trigger::Start, after_events, kind }, again], ..scenario }
}
