//! Crash tests of the life of an array's volumes: the production life cycle of `surgetank_rental::array` over a provider that lies.
//!
//! Members are created, replaced and deleted while calls of the provider are refused, late, lost or carried out long after, writes
//! of the record fail, and the process dies at any ask. What is on the members is modelled by their superblocks alone ([`media`]):
//! the bytes are the affair of [`crate::array`].
//!
//! What must hold, in [`world`]: no volume that counts is detached or deleted; none is written before the record and its tag say that
//! it may count; a replaced member never serves; in the end there is one volume a slot, and after a deletion none.

mod carrying;
pub mod media;
pub mod world;

use surgetank_model::random::Random;

pub use world::{Failure, Report, run};

use crate::scenario::{cloud_faults, lags};

/// What the runs of a campaign have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Crashes at random asks.
    Members,
    /// A crash at every ask of a run with one replacement: the seed counts through the asks of one run after another.
    EveryAsk,
}

/// Asks of a run of [`Family::EveryAsk`] at which a crash is tried.
pub const ASKS: u64 = 150;

/// One run. Everything in it follows from this.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Seed of everything that is drawn in the run.
    pub seed: u64,
    /// Members of the array.
    pub members: u32,
    /// Slots whose member is replaced, one after the other.
    pub replacements: Vec<u32>,
    /// Asks, and events of the array that is served, after which the process dies, counted from the start or the crash before.
    pub crashes: Vec<u64>,
    /// Share of the calls that go wrong, and of the writes of the record.
    pub faults: f64,
    /// Probability that a call is throttled, and that a volume cannot be made, while there are faults.
    pub cloud_faults: f64,
    /// Probability that the provider does not know a volume for a while, and that a listing is one from before.
    pub lags: f64,
    /// Replaced members are kept for a while.
    pub holds: bool,
    /// Once its members have been replaced, the array is deleted with the next crash still to come.
    pub deletes_early: bool,
}

impl Family {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Members, Self::EveryAsk];

    /// What people call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Members => "members",
            Self::EveryAsk => "members-every-ask",
        }
    }

    /// The scenario of a seed.
    #[must_use]
    pub fn scenario(self, seed: u64) -> Scenario {
        match self {
            Self::EveryAsk => {
                let (run, ask) = (seed / ASKS, seed % ASKS);
                let mut random = Random::from_seed(run ^ 0x3e3b_0001);
                let members = 1 + (run % 3) as u32;
                Scenario {
                    seed: run,
                    members,
                    replacements: vec![random.below(u64::from(members)) as u32],
                    crashes: vec![ask],
                    faults: 0.0,
                    cloud_faults: 0.0,
                    lags: 0.0,
                    holds: run % 5 == 4,
                    deletes_early: run % 4 == 3,
                }
            }
            Self::Members => {
                let mut random = Random::from_seed(seed ^ 0x3e3b_0000);
                let members = 1 + random.below(4) as u32;
                let replacements = (0..1 + random.below(4)).map(|_| random.below(u64::from(members)) as u32).collect();
                Scenario {
                    seed,
                    members,
                    replacements,
                    crashes: (0..2 + random.below(7)).map(|_| random.below(110)).collect(),
                    faults: [0.0, 0.02, 0.08, 0.25][random.below(4) as usize],
                    cloud_faults: cloud_faults(seed),
                    lags: lags(seed),
                    holds: random.below(4) == 0,
                    deletes_early: random.below(4) == 0,
                }
            }
        }
    }
}
