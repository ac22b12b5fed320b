//! The tests of what a writer keeps are tested: every planted bug is found by one of them.
#![cfg(feature = "planted-bugs")]

// Its tests pass without a bug, here as there.
#[path = "pool/kept.rs"]
mod kept;
#[path = "pool/room.rs"]
mod room;
#[path = "pool/sharing.rs"]
mod sharing;
#[path = "pool/support/mod.rs"]
mod support;

use surgetank_pool::planted::writers::{Bug, plant};

/// A test that passes without a bug.
type Test = fn();

/// Which test finds a bug.
const fn finds(bug: Bug) -> Test {
    match bug {
        Bug::DroppedBeforeStored => kept::what_no_benefactor_has_acknowledged_is_kept,
        Bug::PartDropped => kept::a_part_of_a_chunk_is_laid_upon_what_others_commit_of_it,
        Bug::OlderWritingRead | Bug::CutForgotten => kept::a_file_of_which_little_is_kept_is_one_commit,
        Bug::LengthForgotten => kept::the_last_chunk_of_a_file_of_which_little_is_kept_grows,
        Bug::NothingDropped | Bug::KeptIsNotCommitted => kept::a_writer_keeps_no_more_of_a_file_than_it_may,
        Bug::LayoutForgotten => kept::a_group_that_is_not_committed_with_the_rest_stays_where_it_is,
        Bug::DroppedWithOneSsd => kept::on_one_ssd_nothing_is_dropped_here_and_what_is_too_much_is_committed,
        Bug::RoomUncounted => kept::writers_leave_room_for_what_a_benefactor_has_that_dies,
        Bug::ReplacedWithdrawn | Bug::ReplacedForgotten => {
            kept::benefactors_that_answer_late_still_have_what_only_they_have
        }
        Bug::RestoredStays => kept::copies_in_the_place_of_lost_ones_take_no_room_in_the_end,
        Bug::RoomKeptInVain => room::writers_that_wait_for_room_do_not_wait_for_each_other,
        Bug::LeftUnseen => room::copies_of_what_has_left_the_pool_take_no_room_while_a_writer_waits_for_it,
        Bug::SealedStays => room::what_was_sealed_for_a_commit_that_failed_takes_no_room_while_its_session_goes_on,
        Bug::MountsAsOne => sharing::a_mount_whose_target_is_full_leaves_room_to_others,
        Bug::UncommittedUnbounded => kept::a_file_is_committed_when_very_much_of_it_is_not,
        Bug::AnyGroupsWait => kept::a_file_is_committed_when_very_many_groups_of_it_are_changed,
    }
}

#[test]
fn every_planted_bug_is_found() {
    let missed = support::planted::missed(Bug::ALL, |bug| {
        plant(Some(bug));
        support::threads_do_first(move || plant(Some(bug)));
        finds(bug)();
    });
    assert_eq!(missed, [], "no test finds them");
}
