//! The tests of files with holes are tested: every planted bug is found by one of them.
#![cfg(feature = "planted-bugs")]
#![allow(clippy::print_stdout, reason = "where each bug shows is the result")]

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

/// How the test fails with the bug awake in the writers, which run in its thread.
fn shows(bug: Bug) -> Option<String> {
    let test = std::thread::spawn(move || {
        plant(Some(bug));
        finds(bug)();
    });
    let why = test.join().err()?;
    let text = why.downcast_ref::<String>().cloned();
    text.or_else(|| why.downcast_ref::<&str>().map(ToString::to_string)).or_else(|| Some("it fails".to_owned()))
}

#[test]
fn every_planted_bug_is_found() {
    for bug in Bug::ALL {
        // Which of two threads comes first decides whether some of them show.
        let what = (0..5).find_map(|_| shows(*bug)).unwrap_or_else(|| panic!("{bug:?} is not found"));
        println!("{bug:?}: {}", what.chars().take(160).collect::<String>());
    }
}
