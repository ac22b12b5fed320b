//! The tests of parity are tested: every planted bug is found by one of them.
#![cfg(feature = "planted-bugs")]

// Its tests pass without a bug, here as there.
#[path = "pool/parity.rs"]
mod parity;
#[path = "pool/support/mod.rs"]
mod support;

use surgetank_pool_core::planted::{Bug, plant};

/// A test that passes without a bug.
type Test = fn();

/// Bugs of what decides that writers, benefactors and managers would have as well, and which test finds each. Others show in simulated pools alone:
/// they take several losses in an order that chance rarely has here.
const FOUND: &[(Bug, Test)] = &[
    (
        Bug::StaleParity,
        parity::every_byte_is_the_one_that_was_written_whatever_is_done_to_a_file_while_benefactors_are_lost,
    ),
    (Bug::CommittedBeforeParity, parity::a_short_row_is_protected_by_its_commit),
    (Bug::WrongMember, parity::files_are_read_and_drained_without_those_that_are_lost_where_nobody_takes_their_place),
    (
        Bug::ElsewhereForgotten,
        parity::files_are_read_and_drained_without_those_that_are_lost_where_nobody_takes_their_place,
    ),
];

#[test]
fn every_planted_bug_is_found() {
    let missed = support::planted::missed(FOUND, |(bug, test)| {
        plant(Some(bug));
        support::threads_do_first(move || plant(Some(bug)));
        test();
    });
    assert!(missed.is_empty(), "no test finds {:?}", missed.iter().map(|(bug, _)| bug).collect::<Vec<_>>());
}
