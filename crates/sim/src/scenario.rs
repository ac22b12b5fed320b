//! What a run does: everything follows from these values.

use std::time::Duration;

use surgetank_cache::ReadFill;
use surgetank_cache::format::{BLOCK, Geometry, Layout};
use surgetank_model::random::Random;

use crate::disk::Outliers;

/// How a caching volume of this size is divided: half of them have indexes, which only larger ones would need.
#[must_use]
pub fn division(size: u64) -> Option<Geometry> {
    Geometry::divide(size, Layout::default(), matches!(size / u64::from(BLOCK) % 4, 1 | 2))
}

/// How often the provider throttles, and cannot make a volume, in the run of a seed. Half of the runs are as they were before there
/// were these faults.
pub(crate) fn cloud_faults(seed: u64) -> f64 {
    [0.0, 0.0, 0.05, 0.25][Random::from_seed(seed ^ 0xc10d_5eed).below(4) as usize]
}

/// How often what the provider tells lags behind. Half of the runs are as they were before it did.
pub(crate) fn lags(seed: u64) -> f64 {
    [0.0, 0.0, 0.1, 0.4][Random::from_seed(seed ^ 0x1a65_5eed).below(4) as usize]
}

/// How a run is interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashKind {
    /// Both volumes lose what is not durable.
    PowerCut,
    /// The daemon dies; the volumes keep everything.
    Daemon,
}

/// From when on the events before a crash are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trigger {
    /// From the start, or the crash before.
    Start,
    /// From the first write of the segment table after that.
    TableWrite,
    /// From the first write of a superblock after that.
    SuperblockWrite,
    /// From the first time after that when the owner record is written.
    OwnerWrite,
    /// From the first outage after that.
    Outage,
    /// From the first time after that when the engine says that the cache fails.
    Failing,
    /// From the first time after that when something is lost.
    Lost,
    /// From the first time after that when a switch of the map begins.
    Switch,
    /// From the first time after that when the controller asks for a growth of the caching volume.
    Growth,
    /// From the first time after that when the engine is told that the caching volume has grown.
    CacheGrowth,
}

/// One crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// From when on events are counted. If that never happens, neither does the crash.
    pub trigger: Trigger,
    /// Events handled since.
    pub after_events: u32,
    /// Which kind.
    pub kind: CrashKind,
}

/// What the application is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Everything: bursts, hot spots, small and large requests.
    Mixed,
    /// Small writes over and over the same blocks, with flushes and forced unit access: segments of the log become free
    /// out of order while their neighbours stay dirty.
    Overwrites,
    /// Bursts, and between them small requests at a rate that is calm: the device is never idle for long.
    Trickle,
}

/// The volume that a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// The backing volume.
    Backing,
    /// The caching volume.
    Cache,
}

/// I/Os of a volume do not come back for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Which volume.
    pub victim: Victim,
    /// Events after which it begins.
    pub at_event: u32,
    /// How long it lasts; a crash ends it too.
    pub lasts: Duration,
}

/// A range of a volume that cannot be read or written: latent sector errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRange {
    /// Which volume.
    pub victim: Victim,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
}

/// A volume, or both, answers nothing for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// Which; `None`: both.
    pub victim: Option<Victim>,
    /// Events after which it begins; that of the caching volume when one is next in use.
    pub at_event: u32,
    /// How long it lasts.
    pub lasts: Duration,
    /// I/Os say that the volume is gone, rather than EIO.
    pub gone: bool,
}

/// A range that cannot be read until it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latent {
    /// Which volume.
    pub victim: Victim,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u64,
    /// Events after which it is so; on the caching volume when one is next in use.
    pub at_event: u32,
    /// After so long it can be read again by itself.
    pub lasts: Option<Duration>,
}

/// The kernel maps the device: straight to the backing volume, or to the daemon.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mapped {
    /// Probability that a part of a switch fails.
    pub faults: f64,
    /// Longest time that a part of a switch takes, apart from what is in flight.
    pub pace_max: Duration,
    /// Longest time in which no daemon runs after a crash.
    pub absence_max: Duration,
    /// After every power cut somebody maps the device straight by hand.
    pub by_hand: bool,
}

/// The daemon stops in order, and starts again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// Events after which it does, when a cache is next in use.
    pub at_event: u32,
    /// A bit of the log flips meanwhile.
    pub rots: bool,
}

/// Faults of a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Trouble {
    /// Probability that an I/O on the backing volume fails.
    pub backing_errors: f64,
    /// Probability that an I/O on the caching volume fails.
    pub cache_errors: f64,
    /// Events after which all faults stop.
    pub until_event: u32,
    /// Events after which the caching volume that is attached then, or next, vanishes for good.
    pub vanish_at: Option<u32>,
    /// A flush of the backing volume that fails forgets what it covered.
    pub forgetful: bool,
    /// I/Os that get stuck, once.
    pub stuck: Option<Stuck>,
    /// A range of a volume that fails.
    pub bad_range: Option<BadRange>,
    /// Events after which one stored bit of the caching volume's log flips.
    pub rot_at: Option<u32>,
    /// Probability that a flush of the caching volume fails, and forgets what it covered.
    pub cache_flush_errors: f64,
    /// Probability that a flush of the backing volume fails, besides.
    pub backing_flush_errors: f64,
    /// Probability that a write of either volume finds no space.
    pub no_space: f64,
    /// Probability that the owner record is not persisted, or is, but the answer says otherwise.
    pub owner_errors: f64,
    /// Volumes that answer nothing for a while.
    pub outages: [Option<Outage>; 2],
    /// Ranges that cannot be read.
    pub latent: [Option<Latent>; 3],
    /// Whether the user may accept a loss although the caching volume may come back.
    pub accepts: bool,
}

impl Trouble {
    /// No faults yet.
    pub const NONE: Self = Self {
        backing_errors: 0.0,
        cache_errors: 0.0,
        until_event: 0,
        vanish_at: None,
        forgetful: false,
        stuck: None,
        bad_range: None,
        rot_at: None,
        cache_flush_errors: 0.0,
        backing_flush_errors: 0.0,
        no_space: 0.0,
        owner_errors: 0.0,
        outages: [None; 2],
        latent: [None; 3],
        accepts: false,
    };
}

/// One run.
#[derive(Clone, Debug, PartialEq)]
pub struct CrashScenario {
    /// Seed of everything random in the run.
    pub seed: u64,
    /// Logical block of the device, 512 or 4096 bytes.
    pub logical_block: u32,
    /// Size of the device in whole 4 KiB blocks.
    pub device_blocks: u32,
    /// Logical blocks of the device after its last whole 4 KiB block: 0 to 7, 0 if they are 4096 bytes long.
    pub tail: u32,
    /// Size of the caching volumes, in bytes.
    pub cache_size: u64,
    /// Whether bursts are split over both volumes.
    pub split: bool,
    /// Nominal bandwidth of the caching volumes, in MiB/s; the backing volume's is 33. It decides how much is split.
    pub cache_mib_s: u64,
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
    /// What the application is like.
    pub style: Style,
    /// Longest pause of the application between two requests.
    pub think_max: Duration,
    /// Longest answer time of the backing volume, outliers apart.
    pub backing_latency_max: Duration,
    /// Those outliers.
    pub backing_outliers: Outliers,
    /// When the run is interrupted, in order.
    pub crashes: Vec<Crash>,
    /// Faults.
    pub trouble: Option<Trouble>,
    /// The engine waits so long for a caching volume of which nothing can be read.
    pub patience: Duration,
    /// The daemon stops in order.
    pub stop: Option<Stop>,
    /// The device grows: after so many events, by so many sectors of 512 bytes; in order.
    pub growths: Vec<(u32, u32)>,
    /// The caching volume that is in use after so many events, or next, grows by so many blocks of 4 KiB; in order.
    pub cache_growths: Vec<(u32, u32)>,
    /// The production controller steers the boosts, and this is the probability that a call of the provider goes wrong.
    pub provider_faults: Option<f64>,
    /// Probability that a call of the provider is throttled, and that it cannot make a volume; with `provider_faults` alone.
    pub cloud_faults: f64,
    /// Probability that the provider does not know a volume for a while, and that a listing is one from before; with `provider_faults`
    /// alone.
    pub lags: f64,
    /// A caching volume is a stripe over so many volumes of the provider; with `provider_faults` alone.
    pub volumes: u32,
    /// The kernel maps the device, as the production code decides; with `provider_faults` alone.
    pub mapped: Option<Mapped>,
    /// Bursts are announced; with `provider_faults` alone.
    pub announce: bool,
}

impl CrashScenario {
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

    /// A run of several seconds without crashes: a device hardly larger than the cache, overwritten all over while a
    /// slow backing volume drains it in part.
    #[must_use]
    pub fn overwriting(seed: u64) -> Self {
        let mut random = Random::from_seed(seed ^ 0x00e4_3717);
        let mut scenario = Self::sized(seed, &mut random);
        scenario.requests = 60 + random.below(300) as u32;
        scenario.device_blocks = 40 + random.below(160) as u32;
        scenario.style = Style::Overwrites;
        scenario.think_max = Duration::from_millis([0, 20, 200, 1000][random.below(4) as usize]);
        scenario.backing_latency_max = Duration::from_millis([1, 20, 300][random.below(3) as usize]);
        scenario.boosts = Some(Duration::from_millis([100, 1000, 10_000][random.below(3) as usize]));
        scenario
    }

    /// Bytes of the device at first.
    #[must_use]
    pub fn size(&self) -> u64 {
        u64::from(self.device_blocks) * 4096 + u64::from(self.tail) * u64::from(self.logical_block)
    }

    fn sized(seed: u64, random: &mut Random) -> Self {
        let logical_block = if random.below(3) == 0 { 4096 } else { 512 };
        Self {
            seed,
            logical_block,
            device_blocks: 0,
            tail: if logical_block == 512 && random.below(4) == 0 { random.below(8) as u32 } else { 0 },
            cache_size: (640 << 10) + (random.below(5) * random.below(5)) * (64 << 10) + random.below(16) * 4096,
            split: random.below(2) == 0,
            cache_mib_s: [16, 33, 128][(seed % 3) as usize],
            read_fill: match random.below(4) {
                0 => ReadFill::SecondHit,
                1 => ReadFill::Always,
                _ => ReadFill::Never,
            },
            requests: 0,
            depth: 1 + random.below(16) as u32,
            filled: random.below(3) == 0,
            boosts: Some(Duration::from_millis([2, 6, 6, 60][random.below(4) as usize])),
            style: Style::Mixed,
            think_max: Duration::from_millis(20),
            backing_latency_max: Duration::from_micros(400),
            backing_outliers: Outliers::default(),
            crashes: Vec::new(),
            trouble: None,
            patience: Duration::from_secs(5),
            stop: None,
            growths: Vec::new(),
            cache_growths: Vec::new(),
            provider_faults: None,
            cloud_faults: 0.0,
            lags: 0.0,
            volumes: 1,
            mapped: None,
            announce: false,
        }
    }

    /// With up to `most` crashes of both kinds at random events, each within `within_events` of the one before; some are
    /// tied to a critical write, some followed by a second one soon, during or after the recovery.
    #[must_use]
    pub fn with_random_crashes(mut self, most: u64, within_events: u64) -> Self {
        let mut random = Random::from_seed(self.seed ^ 0x0c4a_54e5);
        let count = 1 + random.below(most);
        self.crashes.clear();
        for _ in 0..count {
            let kind = if random.below(2) == 0 { CrashKind::PowerCut } else { CrashKind::Daemon };
            let (trigger, within) = match random.below(8) {
                // The critical moments after these are few.
                0 | 1 => (Trigger::TableWrite, 12),
                2 => (Trigger::SuperblockWrite, 12),
                3 => (Trigger::OwnerWrite, 12),
                _ => (Trigger::Start, within_events),
            };
            self.crashes.push(Crash { trigger, after_events: random.below(within) as u32, kind });
            if random.below(2) == 0 {
                let kind = if random.below(4) > 0 { CrashKind::PowerCut } else { CrashKind::Daemon };
                let within = [15, 60, 150][random.below(3) as usize];
                let after_events = random.below(within) as u32;
                self.crashes.push(Crash { trigger: Trigger::Start, after_events, kind });
            }
        }
        self
    }
}
