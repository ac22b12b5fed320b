//! The tests are tested: every planted bug of the rental code, and of what users ask of the controller, is found by the campaigns
//! of `tests/crash.rs` that rent, within their seeds.

use surgetank_policy::planted as policy;
use surgetank_rental::planted::{Bug, plant};
use surgetank_sim::{Family, members, read_cache, run};

#[path = "support/hunt.rs"]
mod hunt;

use hunt::Found;

/// Families with the seeds of each that the search for a bug takes; at most what `tests/crash.rs` runs of it.
const FAMILIES: [(Family, u64); 6] = [
    (Family::Provider, 4000),
    (Family::ProviderOutages, 3000),
    (Family::Mapped, 4000),
    (Family::FlushesInSwitches, 300),
    (Family::ProviderGrowth, 300),
    (Family::Striped, 600),
];

/// Where bugs showed that a search finds late: these runs are tried first. Each is one that the search would come to.
const KNOWN: [(Bug, Family, u64); 7] = [
    (Bug::StraightAtBoot, Family::Mapped, 32),
    (Bug::StraightAccepted, Family::Mapped, 32),
    (Bug::IdentityIsDeleted, Family::Provider, 47),
    (Bug::DiscardForgotten, Family::Mapped, 705),
    (Bug::PartlyTaggedIsTagged, Family::Striped, 246),
    (Bug::SweepIgnoresParts, Family::Striped, 106),
    (Bug::DeletingIsDeleted, Family::Mapped, 274),
];

/// The first run that fails with the bug awake.
fn search(bug: Bug) -> Option<Found> {
    match bug {
        Bug::MemberNotPersisted | Bug::RetiredBeforeRecorded | Bug::OldestServes => among_members(bug),
        Bug::WrittenBeforeRecorded | Bug::FailedMemberForgotten => in_read_caches(bug),
        bug => known(bug).or_else(|| first_of(bug, plant, &FAMILIES)),
    }
}

fn known(bug: Bug) -> Option<Found> {
    let of_bug = KNOWN.iter().filter(|(of, ..)| *of == bug);
    of_bug.zip(1..).find_map(|(&(_, family, seed), runs)| {
        let what = hunt::shows(bug, plant, family, seed)?;
        Some(Found { family: family.name(), seed, runs, what })
    })
}

/// The same among the campaigns of `tests/members.rs`.
fn among_members(bug: Bug) -> Option<Found> {
    let family = members::Family::Members;
    first_seed(bug, family.name(), |seed| members::run(&family.scenario(seed)).err().map(|failure| failure.what))
}

/// The same among the campaign of `tests/read_cache.rs`.
fn in_read_caches(bug: Bug) -> Option<Found> {
    let run = |seed| read_cache::run(&read_cache::Scenario::of(seed)).err().map(|failure| failure.what);
    first_seed(bug, "read-cache", run)
}

/// The first of 3000 seeds whose run fails with the bug awake.
fn first_seed(
    bug: Bug,
    family: &'static str,
    run: impl Fn(u64) -> Option<String> + std::panic::RefUnwindSafe,
) -> Option<Found> {
    let what = |seed| {
        plant(Some(bug));
        let what = std::panic::catch_unwind(|| run(seed));
        plant(None);
        what.unwrap_or_else(|_| Some("a check of the life cycle fails".to_owned()))
    };
    (1..=3000).find_map(|seed| Some(Found { family, seed, runs: seed, what: what(seed)? }))
}

fn first_of<B: Copy>(bug: B, plant: fn(Option<B>), families: &[(Family, u64)]) -> Option<Found> {
    let last = families.iter().map(|(_, seeds)| *seeds).max()?;
    let seeds = (1..=last).flat_map(|seed| {
        let families = families.iter().filter(move |(_, seeds)| seed <= *seeds);
        families.map(move |(family, _)| (*family, seed))
    });
    seeds.zip(1..).find_map(|((family, seed), runs)| {
        let what = hunt::shows(bug, plant, family, seed)?;
        Some(Found { family: family.name(), seed, runs, what })
    })
}

/// What decides on the volumes of a whole account: no run of a daemon shows it, and the exhaustive test beside it finds them.
const OF_ACCOUNTS: [Bug; 4] =
    [Bug::ReaperIgnoresAttachments, Bug::ReaperIgnoresMachines, Bug::ReaperIgnoresTags, Bug::ReaperIgnoresAge];

#[test]
fn every_planted_bug_of_the_rental_code_is_found() {
    let bugs: Vec<Bug> = Bug::ALL.iter().copied().filter(|bug| !OF_ACCOUNTS.contains(bug)).collect();
    hunt::all_are_found(&bugs, search);
}

/// What the campaign counts of growths that were left half done and taken up again, it would miss.
#[test]
fn a_controller_that_takes_no_growth_up_is_found() {
    let first_taken_up = |bug, mut seeds: std::ops::RangeInclusive<u64>| {
        policy::plant(bug);
        let takes_up =
            |seed: &u64| run(&Family::ProviderGrowth.scenario(*seed)).is_ok_and(|report| report.growths_taken_up > 0);
        let first = seeds.find(takes_up);
        policy::plant(None);
        first
    };
    let first = first_taken_up(None, 1..=300).expect("one of these runs takes a growth up");
    // The others that do would show it as well.
    assert_eq!(first_taken_up(Some(policy::Bug::GrowthNotTakenUp), 1..=first), None);
}

/// What users were promised; what else a controller may do wrong, its own tests find.
#[test]
fn every_planted_bug_of_announcements_is_found() {
    let bugs = [policy::Bug::AnnouncementIsFree, policy::Bug::AnnouncementOutlivesDrain];
    hunt::all_are_found(&bugs, |bug| first_of(bug, policy::plant, &[(Family::Announced, 1500)]));
}
