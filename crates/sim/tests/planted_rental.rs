//! The tests are tested: every planted bug of the rental code is found by the campaigns of `tests/crash.rs` that rent, within
//! their seeds.

use surgetank_rental::planted::{Bug, plant};
use surgetank_sim::Family;

#[path = "support/hunt.rs"]
mod hunt;

use hunt::Found;

/// Families with the seeds of each that the search for a bug takes; at most what `tests/crash.rs` runs of it.
const FAMILIES: [(Family, u64); 3] =
    [(Family::Provider, 4000), (Family::ProviderOutages, 3000), (Family::Mapped, 4000)];

/// The first run that fails with the bug awake.
fn search(bug: Bug) -> Option<Found> {
    let last = FAMILIES.iter().map(|(_, seeds)| *seeds).max()?;
    let seeds = (1..=last).flat_map(|seed| {
        let families = FAMILIES.into_iter().filter(move |(_, seeds)| seed <= *seeds);
        families.map(move |(family, _)| (family, seed))
    });
    seeds.zip(1..).find_map(|((family, seed), runs)| {
        let what = hunt::shows(bug, plant, family, seed)?;
        Some(Found { family: family.name(), seed, runs, what })
    })
}

#[test]
fn every_planted_bug_of_the_rental_code_is_found() {
    hunt::all_are_found(Bug::ALL, search);
}
