//! What a run does: everything follows from these values.

use std::time::Duration;

use surgetank_cache::ReadFill;
use surgetank_model::random::Random;

/// How a run is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashKind {
    /// Both volumes lose what is not durable.
    PowerCut,
    /// The daemon dies; the volumes keep everything.
    Daemon,
}

/// One crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// Events handled since the start or the crash before.
    pub after_events: u32,
    /// Which kind.
    pub kind: CrashKind,
}

/// I/O errors of a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trouble {
    /// Probability that an I/O on the backing volume fails.
    pub backing_errors: f64,
    /// Probability that an I/O on the caching volume fails.
    pub cache_errors: f64,
    /// Events after which all faults stop.
    pub until_event: u32,
}

/// One run.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Seed of everything random in the run.
    pub seed: u64,
    /// Logical block of the device, 512 or 4096 bytes.
    pub logical_block: u32,
    /// Size of the device in 4 KiB blocks.
    pub device_blocks: u32,
    /// Size of the caching volumes, in bytes.
    pub cache_size: u64,
    /// Whether bursts are split over both volumes.
    pub split: bool,
    /// Whether reads fill the cache.
    pub read_fill: ReadFill,
    /// Requests of the workload.
    pub requests: u32,
    /// Requests in flight at most.
    pub depth: u32,
    /// The backing volume holds data before the run.
    pub filled: bool,
    /// Longest time between two control actions, that start, steer and end boosts. `None`: no boosts.
    pub boosts: Option<Duration>,
    /// When the run is interrupted, in order.
    pub crashes: Vec<Crash>,
    /// I/O errors.
    pub trouble: Option<Trouble>,
}

impl Scenario {
    /// A short run without crashes: a few dozen requests on a small device.
    #[must_use]
    pub fn short(seed: u64) -> Self {
        let mut random = Random::from_seed(seed ^ 0x5ce9_a810);
        let mut scenario = Self::sized(seed, &mut random);
        scenario.requests = 10 + random.below(40) as u32;
        scenario.device_blocks = 24 + random.below(120) as u32;
        scenario
    }

    /// A long run without crashes: hundreds of requests, several boosts, caches that fill up.
    #[must_use]
    pub fn long(seed: u64) -> Self {
        let mut random = Random::from_seed(seed ^ 0x10_5ce9);
        let mut scenario = Self::sized(seed, &mut random);
        scenario.requests = 200 + random.below(800) as u32;
        scenario.device_blocks = 100 + random.below(900) as u32;
        scenario
    }

    fn sized(seed: u64, random: &mut Random) -> Self {
        Self {
            seed,
            logical_block: if random.below(3) == 0 { 4096 } else { 512 },
            device_blocks: 0,
            cache_size: (640 << 10) + (random.below(5) * random.below(5)) * (64 << 10) + random.below(16) * 4096,
            split: random.below(2) == 0,
            read_fill: match random.below(4) {
                0 => ReadFill::SecondHit,
                1 => ReadFill::Always,
                _ => ReadFill::Never,
            },
            requests: 0,
            depth: 1 + random.below(16) as u32,
            filled: random.below(3) == 0,
            boosts: Some(Duration::from_millis([2, 6, 6, 60][random.below(4) as usize])),
            crashes: Vec::new(),
            trouble: None,
        }
    }

    /// With up to `most` crashes of both kinds at random events, each within `within_events` of the one before.
    #[must_use]
    pub fn with_random_crashes(mut self, most: u64, within_events: u64) -> Self {
        let mut random = Random::from_seed(self.seed ^ 0x0c4a_54e5);
        let count = 1 + random.below(most);
        self.crashes = (0..count)
            .map(|_| {
                // A third of the crashes come soon after a restart: during recovery.
                let within = if random.below(3) == 0 { within_events.min(40) } else { within_events };
                let kind = if random.below(2) == 0 { CrashKind::PowerCut } else { CrashKind::Daemon };
                Crash { after_events: random.below(within) as u32, kind }
            })
            .collect();
        self
    }
}
