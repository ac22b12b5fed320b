//! Families of runs: a family and a seed name one scenario.

use std::time::Duration;

use surgetank_model::random::Random;

use crate::scenario::{BadRange, Crash, CrashKind, Scenario, Stuck, Trigger, Trouble, Victim};

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
    /// A caching volume vanishes, and what it took with it is overwritten, while flushes of the backing volume and records
    /// of the loss fail; with crashes, and stops in order.
    Healing,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 13] = [
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
        Self::Healing,
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
            Self::Healing => "healing",
        }
    }

    /// The scenario of a seed.
    #[must_use]
    pub fn scenario(self, seed: u64) -> Scenario {
        let mut random = Random::from_seed(seed ^ 0x00fa_3117);
        let base = if random.below(3) == 0 { Scenario::overwriting(seed) } else { Scenario::short(seed) };
        let event = random.below(400) as u32;
        let until_event = 400 + random.below(600) as u32;
        let victim = if random.below(2) == 0 { Victim::Backing } else { Victim::Cache };
        let trouble = |trouble| Scenario { trouble: Some(Trouble { until_event, ..trouble }), ..base.clone() };
        match self {
            Self::Short => Scenario::short(seed).with_random_crashes(4, 400),
            Self::Long => Scenario::long(seed).with_random_crashes(6, 6000),
            Self::Overwrites => Scenario::overwriting(seed).with_random_crashes(4, 2000),
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
                Scenario { growths: growths.collect(), ..base }.with_random_crashes(4, 600)
            }
            Self::Provider => {
                let faults = [0.0, 0.1, 0.5][random.below(3) as usize];
                Scenario { boosts: None, provider_faults: Some(faults), ..base }.with_random_crashes(4, 600)
            }
            Self::Rot => trouble(Trouble { rot_at: Some(event), ..Trouble::NONE }),
            Self::Healing => healing(seed, &mut random),
        }
    }
}

fn superseding(seed: u64, random: &mut Random) -> Scenario {
    let crash =
        |_| Crash { trigger: Trigger::TableWrite, after_events: random.below(6) as u32, kind: CrashKind::PowerCut };
    Scenario {
        crashes: (0..3).map(crash).collect(),
        device_blocks: 6 + (seed % 12) as u32,
        backing_latency_max: Duration::from_millis(300),
        think_max: Duration::from_millis(200),
        boosts: Some(Duration::from_secs(10)),
        ..Scenario::overwriting(seed)
    }
}

fn healing(seed: u64, random: &mut Random) -> Scenario {
    let kinds = [CrashKind::PowerCut, CrashKind::Daemon, CrashKind::Restart];
    let vanish_at = 30 + random.below(200) as u32;
    // The first one comes soon after the loss, most often amid records of what is healed.
    let mut after_events = vanish_at;
    let crashes = (0..1 + random.below(4)).map(|_| {
        let (trigger, within) = if random.below(4) == 0 { (Trigger::Start, 400) } else { (Trigger::OwnerWrite, 40) };
        let after_events = std::mem::take(&mut after_events) + random.below(within) as u32;
        Crash { trigger, after_events, kind: kinds[random.below(3) as usize] }
    });
    let crashes = crashes.collect();
    let trouble = Trouble {
        vanish_at: Some(vanish_at),
        backing_errors: [0.0, 0.03, 0.1][random.below(3) as usize],
        forgetful: random.below(4) > 0,
        record_errors: [0.0, 0.2][random.below(2) as usize],
        until_event: vanish_at + 300 + random.below(1500) as u32,
        ..Trouble::NONE
    };
    Scenario {
        crashes,
        trouble: Some(trouble),
        requests: 60 + random.below(200) as u32,
        device_blocks: 12 + random.below(60) as u32,
        think_max: Duration::from_millis([0, 1, 20][random.below(3) as usize]),
        backing_latency_max: Duration::from_millis([1, 20][random.below(2) as usize]),
        // The loss is seldom accepted.
        boosts: Some(Duration::from_secs(2)),
        ..Scenario::overwriting(seed)
    }
}

/// Events of a run that [`Family::EveryEvent`] crashes at; runs that end before simply have no crash.
pub const EVENTS: u64 = 224;

fn every_event(seed: u64) -> Scenario {
    let (run, point) = (seed / (2 * EVENTS), seed % (2 * EVENTS));
    let kind = if point.is_multiple_of(2) { CrashKind::PowerCut } else { CrashKind::Daemon };
    let after_events = (point / 2) as u32;
    let scenario = Scenario { requests: 25, device_blocks: 40, ..Scenario::short(run) };
    let again = Crash { trigger: Trigger::Start, after_events: after_events % 23, kind: CrashKind::PowerCut };
    Scenario { crashes: vec![Crash { trigger: Trigger::Start, after_events, kind }, again], ..scenario }
}
