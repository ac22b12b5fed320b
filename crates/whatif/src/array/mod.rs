//! Arrays of burstable volumes in virtual time: the production rotation over members in flows, second by second.
//!
//! - [`popularity`]: what is accessed how often, and what a cache keeps of it;
//! - [`member`]: what a volume can serve at a moment;
//! - [`fleet`]: the members, their replacements, the bill;
//! - [`stripe`]: an array that holds the data; [`cache`]: one that caches what is read of a slower volume.
//!
//! An application with a bounded number of requests in flight waits for the slowest volume that its requests need: the rate of
//! all is that of the first volume at its limit.

pub mod cache;
pub mod fleet;
pub mod member;
pub mod popularity;
pub mod stripe;

use std::time::Duration;

use surgetank_model::Bytes;
use surgetank_model::volume_type::Provision;
use surgetank_planner::scenario::{ArrayScenario, Backed, Role};
use surgetank_policy::rotation::Way;

use self::fleet::{Fleet, STEP};
use self::member::{Kind, Work};

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ArrayMode {
    /// One volume of the array's capacity.
    Single,
    /// The array, whose members stay.
    Array,
    /// The array as its members are rotated.
    Rotated,
    /// The volume below a cache, alone.
    Backing,
    /// With one volume of the cache's capacity.
    SingleCache,
    /// With the array, rotated.
    ArrayCache,
}

impl ArrayMode {
    /// As reports write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::Array => "array",
            Self::Rotated => "rotated",
            Self::Backing => "backing",
            Self::SingleCache => "single_cache",
            Self::ArrayCache => "array_cache",
        }
    }

    /// Those of a scenario.
    #[must_use]
    pub const fn of(role: &Role) -> [Self; 3] {
        match role {
            Role::Persistent | Role::Ephemeral => [Self::Single, Self::Array, Self::Rotated],
            Role::ReadCache(_) => [Self::Backing, Self::SingleCache, Self::ArrayCache],
        }
    }
}

/// A moment of a run, averaged over some time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moment {
    /// Its end, since the start.
    pub at_s: f64,
    /// Requests per second.
    pub iops: f64,
    /// The share of credits left, of the member that has the least.
    pub credits_least: f64,
    /// The same, the mean of all members.
    pub credits_mean: f64,
    /// Volumes beside one for each slot.
    pub extra: u32,
}

/// What came out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ArrayReport {
    /// Requests per second.
    pub mean_iops: f64,
    /// Bytes of them.
    pub mean_mib_s: f64,
    /// What is left without credits: the same with those of the members, and of a volume below, at their end.
    pub sustained_iops: f64,
    /// The least mean of ten seconds; of a cache, once it has warmed up.
    pub least_iops: f64,
    /// USD a month, as billed; `None`: the price is unknown.
    pub usd_month: Option<f64>,
    /// The time of rented volumes that goes beyond one for each slot, as a share.
    pub overhead_ratio: f64,
    /// The same of the time that is billed: a provider may bill an hour for half of one.
    pub billed_overhead_ratio: f64,
    /// Members replaced.
    pub rotations: u64,
    /// Replacements that the provider refused.
    pub refusals: u64,
    /// Copied from members to their successors.
    pub copied_gib: f64,
    /// Most volumes beside one for each slot.
    pub extra_most: u32,
    /// The share of accesses that the cache had; `None`: there is no cache.
    pub hit_ratio: Option<f64>,
    /// Over time.
    pub moments: Vec<Moment>,
}

/// Simulates a mode; `None`: there is no such volume.
#[must_use]
pub fn run(scenario: &ArrayScenario, mode: ArrayMode) -> Option<ArrayReport> {
    let array = &scenario.array;
    let whole = array.volume_type.size.fit(scenario.capacity());
    let (members, size, way) = match mode {
        ArrayMode::Single | ArrayMode::SingleCache => (1, whole?, Way::Never),
        ArrayMode::Array | ArrayMode::Backing => (array.members, array.member_size, Way::Never),
        ArrayMode::Rotated | ArrayMode::ArrayCache => (array.members, array.member_size, array.rotate),
    };
    let fleet = Fleet::new(scenario, members, size, way);
    Some(match &scenario.role {
        Role::ReadCache(backed) => {
            let fleet = (mode != ArrayMode::Backing).then_some(fleet);
            cache::run(scenario, backed, fleet, size)
        }
        Role::Persistent | Role::Ephemeral => stripe::run(scenario, fleet, size),
    })
}

/// Why the array of a scenario is not rotated in time: sentences for people.
#[must_use]
pub fn troubles(scenario: &ArrayScenario) -> Vec<String> {
    let troubles = fleet::policy(scenario, scenario.array.rotate).check(scenario.member_holds());
    troubles.iter().map(ToString::to_string).collect()
}

/// Windows whose least mean counts.
const WINDOW: Duration = Duration::from_secs(10);
/// As fine as a screen shows.
const MOMENTS_MAX: u64 = 900;
const HOURS_PER_MONTH: f64 = 730.0;

/// Adds up what is served.
#[derive(Debug, Default)]
struct Meter {
    steps: u64,
    served: f64,
    window: f64,
    /// Whether the least does not count yet: a new cache is empty.
    warming_up: bool,
    least: Option<f64>,
    every: u64,
    moment: f64,
    moments: Vec<Moment>,
}

impl Meter {
    fn new(scenario: &ArrayScenario) -> Self {
        let every = scenario.workload.duration.as_secs().div_ceil(MOMENTS_MAX).max(1);
        Self { every, ..Self::default() }
    }

    /// A step of so many requests per second.
    fn step(&mut self, iops: f64, fleet: Option<&Fleet>) {
        self.steps += 1;
        self.served += iops;
        self.window += iops;
        self.moment += iops;
        if self.steps.is_multiple_of(WINDOW.as_secs()) {
            let mean = std::mem::take(&mut self.window) / WINDOW.as_secs_f64();
            if !self.warming_up {
                self.least = Some(self.least.map_or(mean, |least| least.min(mean)));
            }
        }
        if self.steps.is_multiple_of(self.every) {
            let credits: Vec<f64> =
                fleet.map_or_else(Vec::new, |fleet| fleet.slots.iter().map(|slot| slot.member.credits()).collect());
            self.moments.push(Moment {
                at_s: self.steps as f64,
                iops: std::mem::take(&mut self.moment) / self.every as f64,
                credits_least: credits.iter().copied().fold(1.0, f64::min),
                credits_mean: credits.iter().sum::<f64>() / credits.len().max(1) as f64,
                extra: fleet.map_or(0, Fleet::extra),
            });
        }
    }

    /// The report of a run of an array of volumes of this size, and of a volume below.
    fn report(
        self,
        scenario: &ArrayScenario,
        fleet: Option<&Fleet>,
        size: Bytes,
        below: Option<&Backed>,
    ) -> ArrayReport {
        let seconds = self.steps.max(1) as f64;
        let mean_iops = self.served / seconds;
        let rented = fleet.map(Fleet::rented).unwrap_or_default();
        let slots = fleet.map_or(0, |fleet| fleet.slots.len());
        let beyond = |volume_s: f64| if slots == 0 { 0.0 } else { volume_s / (slots as f64 * seconds) - 1.0 };
        let volumes = |billed_s: f64| {
            let hour = scenario.array.volume_type.price_per_hour(size)?;
            Some(hour * HOURS_PER_MONTH * billed_s / seconds)
        };
        let array_usd = if slots == 0 { Some(0.0) } else { volumes(rented.billed_s) };
        let below_usd =
            below.map_or(Some(0.0), |below| below.volume_type.price_per_month(below.size, &Provision::default()));
        ArrayReport {
            mean_iops,
            mean_mib_s: mean_iops * scenario.workload.request.as_mib(),
            least_iops: self.least.unwrap_or(mean_iops),
            usd_month: array_usd.zip(below_usd).map(|(array, below)| array + below),
            overhead_ratio: beyond(rented.volume_s),
            billed_overhead_ratio: beyond(rented.billed_s),
            rotations: fleet.map_or(0, |fleet| fleet.rotations),
            refusals: fleet.map_or(0, |fleet| fleet.refusals),
            copied_gib: fleet.map_or(0.0, |fleet| fleet.copied / (1u64 << 30) as f64),
            extra_most: fleet.map_or(0, |fleet| fleet.extra_most),
            moments: self.moments,
            ..ArrayReport::default()
        }
    }
}

/// How many steps a scenario has.
fn steps(scenario: &ArrayScenario) -> u64 {
    scenario.workload.duration.as_secs() / STEP.as_secs().max(1)
}

/// How many times a second all volumes of the machine together can do `each`, beside what is `taken`.
fn machine_headroom(scenario: &ArrayScenario, each: Work, taken: Work) -> f64 {
    let of = |limit: Option<f64>, each: f64, taken: f64| match limit {
        Some(limit) if each > 0.0 => (limit - taken).max(0.0) / each,
        _ => f64::INFINITY,
    };
    let limits = &scenario.machine;
    of(limits.iops.map(|iops| iops.get() as f64), each.operations, taken.operations).min(of(
        limits.bandwidth.map(|rate| rate.get() as f64),
        each.bytes,
        taken.bytes,
    ))
}

/// The volume below a cache, as it begins.
fn below(backed: &Backed) -> (Kind, member::Member) {
    let kind = Kind::new(&backed.volume_type, backed.size);
    let mut member = kind.member();
    if !backed.full {
        member.empty();
    }
    (kind, member)
}
