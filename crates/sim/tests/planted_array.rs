//! The crash tests of arrays are tested: every planted bug is found by the campaigns of `tests/array_crashes.rs`, within their seeds.

use std::panic::{AssertUnwindSafe, catch_unwind};

use surgetank_array::planted::{Bug, plant};
use surgetank_sim::array::scenario::EVENTS;
use surgetank_sim::array::{Family, run};

#[allow(dead_code, reason = "the other tests use more of it")]
#[path = "support/hunt.rs"]
mod hunt;

use hunt::Found;

/// How many seeds of each family the search for a bug takes; at most what `tests/array_crashes.rs` runs of it.
const SEARCH: [(Family, u64); 5] = [
    (Family::Rotations, 4000),
    (Family::Withheld, 3000),
    (Family::Joining, 3000),
    (Family::Faults, 3000),
    (Family::EveryEvent, 10 * 2 * EVENTS),
];

/// Seeds tried of each family before the next one has its turn; doubles every round.
const FIRST_TURN: u64 = 250;

/// Where bugs showed that a search finds late: these runs are tried first. Each is one that the search would come to.
const KNOWN: [(Bug, Family, u64); 10] = [
    (Bug::BitClearedEarly, Family::Rotations, 613),
    (Bug::GapIsDiscarded, Family::Rotations, 1527),
    (Bug::ReadWhileWritten, Family::Rotations, 1641),
    (Bug::CopyOverSingle, Family::Withheld, 431),
    (Bug::DroppedWithoutGeneration, Family::Joining, 26),
    (Bug::ForgottenCopyCounts, Family::Joining, 1329),
    (Bug::LeftoversBlank, Family::Joining, 1912),
    (Bug::FailedDoubleIgnored, Family::Faults, 259),
    (Bug::FlushFailureUnreported, Family::Faults, 164),
    (Bug::UnknownToldLate, Family::EveryEvent, 1747),
];

/// How the run of this family and seed fails with the bug awake, if it does not fail without.
fn shows(bug: Bug, family: Family, seed: u64) -> Option<String> {
    let scenario = family.scenario(seed);
    plant(Some(bug));
    let failed = match catch_unwind(AssertUnwindSafe(|| run(&scenario))) {
        Ok(Ok(_)) => None,
        Ok(Err(failure)) => Some(failure.what),
        Err(_) => Some("an assertion fails".to_owned()),
    };
    plant(None);
    let what = failed?;
    let sound = catch_unwind(AssertUnwindSafe(|| run(&scenario))).is_ok_and(|run| run.is_ok());
    sound.then_some(what)
}

/// The first run that fails with the bug awake.
fn search(bug: Bug) -> Option<Found> {
    let mut runs = 0;
    let mut finds = |family: Family, seed: u64| {
        runs += 1;
        let what = shows(bug, family, seed)?;
        Some(Found { family: family.name(), seed, runs, what })
    };
    let (mut from, mut to) = (1, FIRST_TURN);
    let most = SEARCH.iter().map(|&(_, count)| count).max().unwrap_or(0);
    let mut found = KNOWN.iter().filter(|(of, ..)| *of == bug).find_map(|&(_, family, seed)| finds(family, seed));
    while found.is_none() && from <= most {
        found = SEARCH.iter().find_map(|&(family, count)| (from..=to.min(count)).find_map(|seed| finds(family, seed)));
        (from, to) = (to + 1, to * 2);
    }
    found
}

#[test]
fn every_planted_bug_of_arrays_is_found() {
    hunt::all_are_found(Bug::ALL, search);
}
