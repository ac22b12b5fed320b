//! Families of runs of arrays: a family and a seed name one scenario.

use surgetank_model::random::Random;

/// What the runs of a campaign have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Replacements under load, with crashes at random events, and bits of bitmaps that flip.
    Rotations,
    /// A crash of each kind at every event of a short run with one replacement, and a power cut during the start that follows: the
    /// seed counts through events and kinds of one run after another.
    EveryEvent,
    /// Joining members fail writes and flushes, forget, vanish, or come back after they were dropped, with crashes. No request
    /// may fail.
    Joining,
    /// All members do, with crashes.
    Faults,
    /// Starts at which a volume is missing, and replaced ones are there.
    Withheld,
}

/// Events of a run of [`Family::EveryEvent`] at which a crash is tried.
pub const EVENTS: u64 = 700;

/// A crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Crash {
    /// Events since the start of the run or the last crash.
    pub after_events: u32,
    /// The power fails; else the process alone does.
    pub power: bool,
}

/// One run. Everything in it follows from this.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Seed of everything that is drawn in the run.
    pub seed: u64,
    /// Members of the array.
    pub members: u32,
    /// Bytes of a chunk and of a region.
    pub division: (u32, u32),
    /// Logical block size, in bytes.
    pub logical_block: u32,
    /// Bytes of a member; those that join later have the second size.
    pub member_sizes: (u64, u64),
    /// Requests of the application.
    pub requests: u32,
    /// Requests in flight, at most.
    pub depth: u32,
    /// Requests after which a replacement begins, and its slot.
    pub replacements: Vec<(u32, u32)>,
    /// Crashes, one after the other.
    pub crashes: Vec<Crash>,
    /// Share of the I/Os that fail: of joining members, and of others.
    pub errors: (f64, f64),
    /// Share of the flushes that fail, of the same; they forget.
    pub flush_errors: (f64, f64),
    /// A joining member vanishes after this many of its I/Os.
    pub vanishes_after: Option<u64>,
    /// At a start, one volume may be missing at first.
    pub withholds: bool,
    /// At a start, volumes are there that were replaced or dropped.
    pub shows_all: bool,
    /// At a crash, a bit of one copy of a member's bitmap may flip.
    pub rots: bool,
    /// Bytes per second of a copy; 0: no limit.
    pub copy_rate: u64,
    /// Copies take a share of their member's queue.
    pub hurried: bool,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Rotations, Self::EveryEvent, Self::Joining, Self::Faults, Self::Withheld];

    /// What people call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rotations => "rotations",
            Self::EveryEvent => "array-every-event",
            Self::Joining => "joining",
            Self::Faults => "array-faults",
            Self::Withheld => "withheld",
        }
    }

    /// The scenario of a seed.
    #[must_use]
    pub fn scenario(self, seed: u64) -> Scenario {
        if self == Self::EveryEvent {
            let (run, place) = (seed / (2 * EVENTS), seed % (2 * EVENTS));
            let mut scenario = Self::drawn(run ^ 0x5eed_0000, 1);
            (scenario.requests, scenario.members) = (16, 1 + (run % 2) as u32);
            scenario.replacements = vec![(4, 0)];
            let during_start = Crash { after_events: 1 + ((place / 2 * 7 + run) % 48) as u32, power: true };
            let crash = Crash { after_events: (place / 2) as u32, power: place.is_multiple_of(2) };
            scenario.crashes = vec![crash, during_start];
            return scenario;
        }
        let mut random = Random::from_seed(seed ^ 0x000a_11a5);
        let crashes = 2 + random.below(7);
        let mut scenario = Self::drawn(seed, crashes);
        match self {
            Self::Rotations | Self::EveryEvent => scenario.rots = random.below(4) == 0,
            // An old member that is out of reach when the only other one takes over is stale to that one alone.
            Self::Withheld => {
                (scenario.withholds, scenario.shows_all) = (true, true);
                if scenario.members == 1 {
                    scenario.members = 2;
                }
            }
            Self::Joining => {
                scenario.shows_all = true;
                scenario.errors.0 = [0.0, 0.02, 0.1][random.below(3) as usize];
                scenario.flush_errors.0 = [0.0, 0.1, 0.3][random.below(3) as usize];
                scenario.vanishes_after = (random.below(3) == 0).then(|| random.below(80));
            }
            Self::Faults => {
                let errors = [0.0, 0.01, 0.05][random.below(3) as usize];
                let flushes = [0.0, 0.05, 0.2][random.below(3) as usize];
                (scenario.errors, scenario.flush_errors) = ((errors, errors), (flushes, flushes));
            }
        }
        scenario
    }

    fn drawn(seed: u64, crashes: u64) -> Scenario {
        let mut random = Random::from_seed(seed ^ 0xa99a_0001);
        let members = 1 + random.below(3) as u32;
        let region = [8 << 10, 16 << 10][random.below(2) as usize];
        let chunk = [4 << 10, 8 << 10][random.below(2) as usize];
        let data = 16 + random.below(48);
        let size = (64 << 10) + data * 1024;
        let larger = if random.below(3) == 0 { size + (8 << 10) + random.below(16 << 10) / 512 * 512 } else { size };
        let requests = 20 + random.below(60) as u32;
        let mut replacements: Vec<(u32, u32)> = (0..1 + random.below(3))
            .map(|_| (random.below(u64::from(requests)) as u32, random.below(u64::from(members)) as u32))
            .collect();
        if larger > size {
            // All are replaced: then the array grows.
            replacements = (0..members).map(|slot| (random.below(u64::from(requests)) as u32, slot)).collect();
        }
        replacements.sort_unstable();
        let crash = |_| Crash { after_events: random.below(160) as u32, power: random.below(3) > 0 };
        let crashes = (0..crashes).map(crash).collect();
        Scenario {
            seed,
            members,
            division: (chunk, region),
            logical_block: if seed.is_multiple_of(3) { 4096 } else { 512 },
            member_sizes: (size, larger),
            requests,
            depth: 1 + (seed % 6) as u32,
            replacements,
            crashes,
            errors: (0.0, 0.0),
            flush_errors: (0.0, 0.0),
            vanishes_after: None,
            withholds: false,
            shows_all: false,
            rots: false,
            copy_rate: if seed % 4 == 1 { 20 << 20 } else { 0 },
            hurried: seed % 5 == 2,
        }
    }
}
