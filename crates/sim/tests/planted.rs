//! The tests are tested: every planted bug is found by the campaigns of `tests/crash.rs`, within their seeds.
//!
//! `cargo test -p surgetank-sim --features planted-bugs --test planted` prints which family finds which bug, and at
//! which seed.

use surgetank_cache::planted::{Bug, plant};
use surgetank_sim::{Family, run};

#[path = "support/hunt.rs"]
mod hunt;
#[path = "support/known.rs"]
mod known;
#[path = "support/once_failed.rs"]
mod once_failed;
#[path = "support/scenes.rs"]
mod scenes;

use hunt::Found;

/// How many seeds of each family the search for a bug takes; at most what `tests/crash.rs` runs of it.
const SEARCH: [(Family, u64); 22] = [
    (Family::Short, 12_000),
    (Family::Superseding, 4500),
    (Family::Overwrites, 4000),
    (Family::EveryEvent, 40_000),
    (Family::Long, 200),
    (Family::Errors, 4000),
    (Family::ForgetfulFlushes, 3000),
    (Family::BadRanges, 3000),
    (Family::Growth, 3000),
    (Family::CacheGrowth, 800),
    (Family::Rot, 3000),
    (Family::Losses, 3000),
    (Family::Latent, 3000),
    (Family::CacheFlushes, 3000),
    (Family::Outages, 3000),
    (Family::Stops, 3000),
    (Family::Owners, 3000),
    (Family::Stuck, 2500),
    (Family::ProviderOutages, 3000),
    (Family::FailedAppends, 3000),
    (Family::TableCopies, 3000),
    (Family::Mapped, 3000),
];

/// Seeds tried of each family before the next one has its turn; doubles every round.
const FIRST_TURN: u64 = 250;

/// The first run that fails with the bug awake.
fn search(bug: Bug) -> Option<Found> {
    let mut runs = 0;
    let mut finds = |family: Family, seed: u64| {
        runs += 1;
        let what = hunt::shows(bug, plant, family, seed)?;
        Some(Found { family: family.name(), seed, runs, what })
    };
    plant(Some(bug));
    let scene = scenes::SCENES.iter().find(|(of, _)| *of == bug).and_then(|(_, scene)| scene().err());
    plant(None);
    if let Some(what) = scene {
        return Some(Found { family: "a scene", seed: 0, runs: 0, what: what.to_owned() });
    }
    let of_search = |&&(of, family, seed): &&(Bug, Family, u64)| {
        of == bug && SEARCH.iter().any(|(searched, count)| *searched == family && seed <= *count)
    };
    let known = known::RUNS.iter().filter(of_search).find_map(|&(_, family, seed)| finds(family, seed));
    let mut found = known.or_else(|| once_failed::RUNS.iter().find_map(|&(family, seed)| finds(family, seed)));
    let (mut from, mut to) = (1, FIRST_TURN);
    let most = SEARCH.iter().map(|&(_, count)| count).max().unwrap_or(0);
    while found.is_none() && from <= most {
        found = SEARCH.iter().find_map(|&(family, count)| (from..=to.min(count)).find_map(|seed| finds(family, seed)));
        (from, to) = (to + 1, to * 2);
    }
    found
}

#[test]
fn every_planted_bug_is_found() {
    hunt::all_are_found(Bug::ALL, search);
}

/// Without a bug awake, the same build is sound.
#[test]
fn asleep_the_bugs_do_no_harm() {
    for (bug, scene) in scenes::SCENES {
        assert_eq!(scene(), Ok(()), "{bug:?}");
    }
    for seed in 1..=300 {
        assert!(run(&Family::Short.scenario(seed)).is_ok(), "seed {seed}");
    }
}
