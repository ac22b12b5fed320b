//! The tests of buckets as targets are tested: every planted bug is found by one of them.
#![cfg(all(feature = "objects", feature = "planted-bugs"))]

// Its tests pass without a bug, here as there.
#[path = "pool/objects.rs"]
mod objects;
#[path = "pool/objects_faults.rs"]
mod objects_faults;
#[path = "pool/support/mod.rs"]
mod support;

use surgetank_pool::planted::objects::{Bug, plant};

use self::support::s3::TestBucket;

/// A test that passes without a bug.
type Test = fn();

/// Which test finds a bug.
const fn finds(bug: Bug) -> Test {
    match bug {
        Bug::ManifestUnconditional => objects_faults::a_manifest_that_another_pool_puts_in_the_same_moment_stays,
        Bug::UploadStays => objects::a_file_that_is_removed_in_mid_drain_leaves_no_upload,
        Bug::RecordOmitted => objects::a_manager_that_is_killed_in_mid_drain_leaves_no_upload,
        Bug::PartsAsTheyCame => objects::what_is_closed_arrives_in_a_bucket_whole_and_is_read_there,
        Bug::ReplacedUnseen => objects::what_others_put_into_a_bucket_is_seen_and_stays,
        Bug::MarkUnread | Bug::CopyUnmarked => {
            objects_faults::what_others_put_at_a_name_in_the_same_moment_is_not_taken_for_the_pools
        }
        Bug::MoveForgotten => {
            objects_faults::a_directory_whose_former_objects_cannot_be_removed_at_first_stays_the_pools
        }
        Bug::AwayIsLost => objects_faults::what_only_a_bucket_has_that_is_away_is_not_lost,
        Bug::ConflictEndsMove => objects_faults::what_a_directory_has_that_cannot_move_holds_up_nothing_else,
        Bug::LengthOnceChecked => objects_faults::what_a_store_has_not_taken_whole_is_sent_again,
        Bug::OwnPutUnknown => objects_faults::an_empty_file_arrives_though_the_store_says_that_it_failed,
        Bug::CredentialsAsRights => objects_faults::who_reads_waits_for_credentials_that_are_refused_for_a_while,
        Bug::RowUnused => objects::rows_with_parity_arrive_in_a_bucket_without_those_that_are_lost,
        Bug::BroughtUponOthers => {
            objects_faults::who_writes_between_a_read_and_the_commit_of_what_is_brought_back_loses_nothing
        }
    }
}

#[test]
fn every_planted_bug_is_found() {
    if TestBucket::name_alone().is_none() {
        return;
    }
    let missed = support::planted::missed(Bug::ALL, |bug| {
        plant(Some(bug));
        support::threads_do_first(move || plant(Some(bug)));
        finds(bug)();
    });
    assert_eq!(missed, [], "no test finds them");
}
