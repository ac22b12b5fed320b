//! The tests of files with holes are tested: every planted bug is found by one of them.
#![cfg(feature = "planted-bugs")]

// Its tests pass without a bug, here as there.
#[path = "pool/sparse.rs"]
mod sparse;
#[path = "pool/support/mod.rs"]
mod support;

use surgetank_pool::planted::holes::{Bug, plant};

/// A test that passes without a bug.
type Test = fn();

/// Which test finds a bug.
const fn finds(bug: Bug) -> Test {
    match bug {
        Bug::LostInCatchUp => sparse::a_hole_that_is_not_committed_stays_when_others_have_committed_elsewhere,
        Bug::FormerForgotten => sparse::a_hole_stays_while_what_is_written_over_it_has_no_room,
        Bug::AnyGroupsWait => sparse::a_file_is_committed_when_very_many_groups_of_it_have_holes,
        Bug::PunchWaits => sparse::a_hole_by_an_extension_never_wins_over_what_others_have_written,
    }
}

#[test]
fn every_planted_bug_is_found() {
    // Writers run in the thread of the test.
    let missed = support::planted::missed(Bug::ALL, |bug| {
        plant(Some(bug));
        finds(bug)();
    });
    assert_eq!(missed, [], "no test finds them");
}
