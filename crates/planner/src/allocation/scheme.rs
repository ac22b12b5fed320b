//! How shares are chosen.

use surgetank_allocation::mlms::{self, Gap};
use surgetank_allocation::{Basis, Fallback, Plan, Problem, baselines, solve};

/// A scheme by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// One linear program.
    Optimal,
    /// The paper's algorithm.
    Mlms,
    /// An equal split of each server.
    FairShare,
    /// Each application as if it was alone.
    Independent,
    /// Each server is one LRU list.
    Uncontrolled,
    /// The first level is divided, the second one LRU list a server.
    FirstLevelOnly,
    /// The second level is divided, the first one LRU list a server.
    SecondLevelOnly,
}

impl Scheme {
    /// All of them, the default first.
    pub const ALL: [Self; 7] = [
        Self::Optimal,
        Self::Mlms,
        Self::FairShare,
        Self::Independent,
        Self::Uncontrolled,
        Self::FirstLevelOnly,
        Self::SecondLevelOnly,
    ];

    /// What it is called.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Optimal => "optimal",
            Self::Mlms => "mlms",
            Self::FairShare => "fair-share",
            Self::Independent => "independent",
            Self::Uncontrolled => "uncontrolled",
            Self::FirstLevelOnly => "first-level-only",
            Self::SecondLevelOnly => "second-level-only",
        }
    }

    /// What it does, in a few words.
    #[must_use]
    pub fn about(self) -> &'static str {
        match self {
            Self::Optimal => "The largest fair speedup at which every SLO holds",
            Self::Mlms => "The paper's algorithm, from latencies that it measures",
            Self::FairShare => "An equal split of each server's cache",
            Self::Independent => "Every application alone: a bound, no division",
            Self::Uncontrolled => "One LRU list a server, shared by all",
            Self::FirstLevelOnly => "The first level divided, the second one shared",
            Self::SecondLevelOnly => "The second level divided, the first one shared",
        }
    }

    /// What it does for a problem whose applications have curves, with the latencies that follow from these.
    pub(super) fn plan(self, problem: &Problem, previous: Option<&Plan>) -> Plan {
        // Only applications without a curve keep a cache from being shared, and a file has none of those.
        let shared = |plan: Result<Plan, baselines::NoCurve>| plan.unwrap_or_else(|_| baselines::fair_share(problem));
        match self {
            Self::Optimal => solve(problem, previous),
            Self::Mlms => {
                let plan = mlms::settled(problem);
                match plan.basis {
                    Basis::Mlms => Plan { basis: Basis::Mlms, ..Gap::judged(problem, &plan) },
                    _ => plan,
                }
            }
            Self::FairShare => baselines::fair_share(problem),
            Self::Independent => baselines::independent(problem),
            Self::Uncontrolled => shared(baselines::uncontrolled(problem)),
            Self::FirstLevelOnly => shared(baselines::first_level_only(problem)),
            Self::SecondLevelOnly => shared(baselines::second_level_only(problem)),
        }
    }
}

/// Why a scheme has no answer but the fair share.
pub(super) fn fallback(plan: &Plan) -> Option<&Fallback> {
    match &plan.basis {
        Basis::FairShare(fallback) => Some(fallback),
        Basis::Optimal | Basis::Mlms | Basis::Baseline => None,
    }
}
