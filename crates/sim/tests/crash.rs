//! No crash loses what was promised: crashes at random events and at every event, of both kinds, repeated, amid faults.
//! Together at least 150,000 crash and fault points; `make sim` runs the same for hours.

#[path = "support/campaign.rs"]
mod campaign;
#[path = "support/cores.rs"]
mod cores;
#[path = "support/once_failed.rs"]
mod once_failed;
mod support;

use surgetank_sim::family::EVENTS;
use surgetank_sim::{CrashScenario, Family, Report};

use campaign::campaign;
use once_failed::RUNS;
use support::check;

fn crashes(report: &Report) -> u32 {
    report.power_cuts + report.daemon_crashes
}

/// Long writes go to both volumes where that is sooner.
fn assert_split(report: &Report) {
    assert!(report.split_bytes > 0, "nothing was ever split: {report:?}");
}

#[test]
fn random_crashes_of_short_runs() {
    let report = campaign("random_crashes_of_short_runs", Family::Short, 12_000);
    assert_split(&report);
    assert!(report.recoveries > 0 && report.crashes_in_recovery > 0, "the runs do not do enough: {report:?}");
}

#[test]
fn random_crashes_of_long_runs() {
    let report = campaign("random_crashes_of_long_runs", Family::Long, 200);
    assert_split(&report);
    assert!(report.evicted_bytes > 0 && report.hit_bytes > 0, "the runs do not do enough: {report:?}");
}

#[test]
fn random_crashes_amid_overwrites() {
    let report = campaign("random_crashes_amid_overwrites", Family::Overwrites, 4000);
    assert_split(&report);
    assert!(report.indexes_read > 500, "recoveries hardly ever read an index: {report:?}");
    let enough = report.drained_bytes > 0 && report.cancels > 0 && report.finishes > 0;
    assert!(enough, "the runs do not do enough: {report:?}");
}

#[test]
fn power_cuts_while_superseded_segments_go() {
    let report = campaign("power_cuts_while_superseded_segments_go", Family::Superseding, 4500);
    assert!(report.recoveries > 0, "the runs do not do enough: {report:?}");
}

#[test]
fn a_crash_at_every_event() {
    const RUNS: u64 = 70;
    for run in 0..RUNS {
        let scenario = CrashScenario { crashes: Vec::new(), ..Family::EveryEvent.scenario(run * 2 * EVENTS) };
        let report = check(&scenario, "cargo test -p surgetank-sim --test crash");
        assert!(report.events <= EVENTS, "run {run} has {} events: crash at all of them", report.events);
    }
    let report = campaign("a_crash_at_every_event", Family::EveryEvent, RUNS * 2 * EVENTS);
    assert_split(&report);
    assert!(crashes(&report) >= 27_000, "too few crash points: {report:?}");
}

#[test]
fn random_crashes_amid_errors() {
    let report = campaign("random_crashes_amid_errors", Family::Errors, 4000);
    assert_split(&report);
    assert!(report.errors > 0 && report.losses > 0, "no fault was ever seen: {report:?}");
}

#[test]
fn random_crashes_amid_flushes_that_forget() {
    let report = campaign("random_crashes_amid_flushes_that_forget", Family::ForgetfulFlushes, 3000);
    assert_split(&report);
    assert!(report.forgotten > 0, "no flush ever forgot: {report:?}");
}

#[test]
fn random_crashes_amid_stuck_requests() {
    let report = campaign("random_crashes_amid_stuck_requests", Family::Stuck, 2500);
    assert_split(&report);
    assert!(report.stuck > 0, "nothing ever got stuck: {report:?}");
}

#[test]
fn random_crashes_amid_bad_ranges() {
    let report = campaign("random_crashes_amid_bad_ranges", Family::BadRanges, 3000);
    assert_split(&report);
    assert!(report.errors > 0 && report.failures > 0, "no fault was ever seen: {report:?}");
}

#[test]
fn random_crashes_of_a_growing_device() {
    let report = campaign("random_crashes_of_a_growing_device", Family::Growth, 3000);
    assert_split(&report);
    assert!(report.growths > 0, "no device ever grew: {report:?}");
}

/// A crash on the way leaves the old size or the new one, and what was absorbed meanwhile.
#[test]
fn random_crashes_while_the_caching_volume_grows() {
    let report = campaign("random_crashes_while_the_caching_volume_grows", Family::CacheGrowth, 800);
    assert!(report.caches_grown > 350 && report.recoveries > 700, "the runs do not do enough: {report:?}");
    assert!(report.growths_taken_up > 50, "what a crash leaves half done stays so: {report:?}");
    assert!(report.latent > 60 && report.failures > 30, "no fault was ever seen: {report:?}");
}

/// From the wish for a larger volume to the log that uses it: what is billed is on record before the provider is asked.
#[test]
fn crashes_while_the_controller_grows_the_caching_volume() {
    let report = campaign("crashes_while_the_controller_grows_the_caching_volume", Family::ProviderGrowth, 300);
    assert!(report.grown_volumes > 40 && report.caches_grown > 25, "too few growths: {report:?}");
    assert!(report.recoveries > 30 && report.provider_faults > 500, "the runs do not do enough: {report:?}");
    assert!(report.growths_taken_up > 0, "what faults and crashes leave half done stays so: {report:?}");
}

#[test]
fn random_crashes_amid_faults_of_the_provider() {
    let report = campaign("random_crashes_amid_faults_of_the_provider", Family::Provider, 6000);
    assert_split(&report);
    assert!(report.rentals > 1000 && report.provider_faults > 1000, "too few life cycles: {report:?}");
    assert!(report.finishes > 0, "no budget ever asked a drain to be finished: {report:?}");
    assert!(report.throttled > 500 && report.failed_volumes > 250, "the provider is too kind: {report:?}");
    assert!(report.undeleted > 150, "what it accepts it does: {report:?}");
    assert!(
        report.unknown > 5000 && report.stale > 500 && report.twins > 500,
        "it makes and tells everything once and at once: {report:?}"
    );
}

/// No volume of a stripe is left, and none is deleted while the stripe may hold the only copy, whatever happens to a part.
#[test]
fn crashes_of_striped_caching_volumes() {
    let report = campaign("crashes_of_striped_caching_volumes", Family::Striped, 600);
    assert!(report.rentals > 2000 && report.provider_faults > 3000, "too few life cycles: {report:?}");
    assert!(report.throttled > 500 && report.failed_volumes > 200, "the provider is too kind: {report:?}");
    assert!(
        report.unknown > 2000 && report.stale > 100 && report.twins > 300,
        "it makes and tells everything once and at once: {report:?}"
    );
    assert!(report.recoveries > 60 && report.grown_volumes > 50, "the runs do not do enough: {report:?}");
}

/// A flipped bit is never read: it answers an error, or the data come from elsewhere.
#[test]
fn a_rotten_bit_is_never_read() {
    let report = campaign("a_rotten_bit_is_never_read", Family::Rot, 3000);
    assert_split(&report);
    assert!(report.rotten > 0 && report.failures > 0, "nothing ever rotted: {report:?}");
}

/// Also with a restart: what an orderly stop left is there, or an error.
#[test]
fn orderly_stops_and_what_rots_meanwhile() {
    let report = campaign("orderly_stops_and_what_rots_meanwhile", Family::Stops, 4000);
    assert_split(&report);
    assert!(report.stops > 1000 && report.rotten > 300, "the runs do not do enough: {report:?}");
}

/// Whatever comes back in time is drained, and nothing is discarded.
#[test]
fn outages_of_either_volume_or_both() {
    let report = campaign("outages_of_either_volume_or_both", Family::Outages, 6000);
    assert_split(&report);
    assert!(report.outages > 4000 && report.losses > 100 && report.restored > 100, "too few outages: {report:?}");
}

/// The lost ranges, and no others: exactly the newest data that are nowhere else and cannot be read.
#[test]
fn sectors_that_cannot_be_read() {
    let report = campaign("sectors_that_cannot_be_read", Family::Latent, 6000);
    assert_split(&report);
    assert!(report.latent > 4000 && report.losses > 100, "nothing was ever unreadable: {report:?}");
}

#[test]
fn flushes_of_the_cache_that_fail_and_no_space() {
    let report = campaign("flushes_of_the_cache_that_fail_and_no_space", Family::CacheFlushes, 4000);
    assert_split(&report);
    assert!(report.forgotten > 100 && report.failures > 1000, "no flush ever failed: {report:?}");
}

#[test]
fn crashes_on_the_way_to_a_loss_and_back() {
    let report = campaign("crashes_on_the_way_to_a_loss_and_back", Family::Losses, 6000);
    assert_split(&report);
    assert!(report.losses > 500 && report.errors > 0, "nothing was ever lost: {report:?}");
}

#[test]
fn owner_records_that_fail() {
    let report = campaign("owner_records_that_fail", Family::Owners, 4000);
    assert_split(&report);
    assert!(report.owner_failures > 5000 && report.losses > 100, "the runs do not do enough: {report:?}");
}

#[test]
fn outages_amid_faults_of_the_provider() {
    let report = campaign("outages_amid_faults_of_the_provider", Family::ProviderOutages, 3000);
    assert!(report.outages > 500 && report.rentals > 1000, "the runs do not do enough: {report:?}");
    assert!(report.failed_in_use > 200, "no volume in use ever failed: {report:?}");
}

#[test]
fn writes_of_the_cache_that_fail_amid_overwrites() {
    let report = campaign("writes_of_the_cache_that_fail_amid_overwrites", Family::FailedAppends, 3000);
    assert!(report.failures > 500 && report.recoveries > 500, "the runs do not do enough: {report:?}");
}

#[test]
fn either_copy_of_the_segment_table_is_enough() {
    let report = campaign("either_copy_of_the_segment_table_is_enough", Family::TableCopies, 3000);
    assert!(report.latent > 1000 && report.recoveries > 500, "the runs do not do enough: {report:?}");
}

/// Requests reach the newest data whichever way the kernel maps the device, and whatever ends in the middle of a switch.
#[test]
fn crashes_in_switches_of_the_map() {
    let report = campaign("crashes_in_switches_of_the_map", Family::Mapped, 4000);
    assert!(report.crashes_in_switch > 2000 && report.found_suspended > 20, "too few crashes in switches: {report:?}");
    assert!(report.switches_in > 2000 && report.switches_out > 2000, "too few switches: {report:?}");
    assert!(report.switch_failures > 500 && report.switches_withdrawn > 10, "too few of them fail: {report:?}");
    assert!(report.adoptions > 2000 && report.recoveries > 200, "too few boosts: {report:?}");
    assert!(report.refusals > 20 && report.straight_requests > 100_000, "the runs do not do enough: {report:?}");
}

/// Whoever counts on the next flush for a write is told by it that one has failed, also when the device was mapped straight since.
#[test]
fn flushes_that_fail_while_a_switch_waits() {
    let report = campaign("flushes_that_fail_while_a_switch_waits", Family::FlushesInSwitches, 300);
    assert!(report.switches_out > 1000 && report.switches_withdrawn > 20, "too few switches: {report:?}");
    assert!(report.forgotten > 1000, "no flush ever forgot: {report:?}");
}

/// Announced or not, a boost begins for somebody who wants it, within the budget, and leaves nothing behind.
#[test]
fn announced_bursts_amid_faults_of_the_provider() {
    let report = campaign("announced_bursts_amid_faults_of_the_provider", Family::Announced, 1500);
    assert!(report.rentals > 1000 && report.provider_faults > 1000, "too few life cycles: {report:?}");
}

#[test]
fn runs_that_once_failed() {
    for (family, seed) in RUNS {
        let again = format!("the campaign of {} with SURGETANK_SEED={seed}", family.name());
        check(&family.without_cloud_faults(seed), &again);
        check(&family.scenario(seed), &again);
    }
}
