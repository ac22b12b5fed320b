//! The tests are tested: every planted bug of the rental code is found by the campaigns of `tests/crash.rs` that rent, within
//! their seeds.

use surgetank_rental::planted::{Bug, plant};
use surgetank_sim::Family;

#[path = "support/hunt.rs"]
mod hunt;

use hunt::Found;

/// Seeds of each family that the search for a bug takes; at most what `tests/crash.rs` runs of it.
const SEEDS: u64 = 3000;

/// The first run that fails with the bug awake.
fn search(bug: Bug) -> Option<Found> {
    let families = [Family::Provider, Family::ProviderOutages, Family::Mapped];
    let seeds = (1..=SEEDS).flat_map(|seed| families.map(|family| (family, seed)));
    seeds.zip(1..).find_map(|((family, seed), runs)| {
        let what = hunt::shows(bug, plant, family, seed)?;
        Some(Found { family: family.name(), seed, runs, what })
    })
}

#[test]
fn every_planted_bug_of_the_rental_code_is_found() {
    hunt::all_are_found(Bug::ALL, search);
}
