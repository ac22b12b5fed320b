//! No crash loses what was promised: crashes at random events and at every event, of both kinds, repeated, amid faults.
//! Together at least 100,000 crash points; `make sim` runs the same for hours.

#[path = "support/campaign.rs"]
mod campaign;
mod support;

use surgetank_sim::family::EVENTS;
use surgetank_sim::{Family, Report, Scenario};

use campaign::campaign;
use support::check;

fn crashes(report: &Report) -> u32 {
    report.power_cuts + report.daemon_crashes
}

#[test]
fn random_crashes_of_short_runs() {
    let report = campaign("random_crashes_of_short_runs", Family::Short, 12_000);
    assert!(report.recoveries > 0 && report.crashes_in_recovery > 0, "the runs do not do enough: {report:?}");
}

#[test]
fn random_crashes_of_long_runs() {
    let report = campaign("random_crashes_of_long_runs", Family::Long, 200);
    assert!(report.evicted_bytes > 0 && report.hit_bytes > 0, "the runs do not do enough: {report:?}");
}

#[test]
fn random_crashes_amid_overwrites() {
    let report = campaign("random_crashes_amid_overwrites", Family::Overwrites, 4000);
    assert!(report.drained_bytes > 0 && report.cancels > 0, "the runs do not do enough: {report:?}");
}

#[test]
fn power_cuts_while_superseded_segments_go() {
    let report = campaign("power_cuts_while_superseded_segments_go", Family::Superseding, 4500);
    assert!(report.recoveries > 0, "the runs do not do enough: {report:?}");
}

#[test]
fn a_crash_at_every_event() {
    const RUNS: u64 = 140;
    for run in 0..RUNS {
        let scenario = Scenario { crashes: Vec::new(), ..Family::EveryEvent.scenario(run * 2 * EVENTS) };
        let report = check(&scenario, "cargo test -p surgetank-sim --test crash");
        assert!(report.events <= EVENTS, "run {run} has {} events: crash at all of them", report.events);
    }
    let report = campaign("a_crash_at_every_event", Family::EveryEvent, RUNS * 2 * EVENTS);
    assert!(crashes(&report) >= 55_000, "too few crash points: {report:?}");
}

#[test]
fn random_crashes_amid_errors() {
    let report = campaign("random_crashes_amid_errors", Family::Errors, 4000);
    assert!(report.errors > 0 && report.losses > 0, "no fault was ever seen: {report:?}");
}

#[test]
fn random_crashes_amid_flushes_that_forget() {
    let report = campaign("random_crashes_amid_flushes_that_forget", Family::ForgetfulFlushes, 3000);
    assert!(report.forgotten > 0, "no flush ever forgot: {report:?}");
}

#[test]
fn random_crashes_amid_stuck_requests() {
    let report = campaign("random_crashes_amid_stuck_requests", Family::Stuck, 2500);
    assert!(report.stuck > 0, "nothing ever got stuck: {report:?}");
}

#[test]
fn random_crashes_amid_bad_ranges() {
    let report = campaign("random_crashes_amid_bad_ranges", Family::BadRanges, 3000);
    assert!(report.errors > 0 && report.failures > 0, "no fault was ever seen: {report:?}");
}

#[test]
fn random_crashes_of_a_growing_device() {
    let report = campaign("random_crashes_of_a_growing_device", Family::Growth, 3000);
    assert!(report.growths > 0, "no device ever grew: {report:?}");
}

#[test]
fn random_crashes_amid_faults_of_the_provider() {
    let report = campaign("random_crashes_amid_faults_of_the_provider", Family::Provider, 3000);
    assert!(report.rentals > 1000 && report.provider_faults > 1000, "too few life cycles: {report:?}");
}

/// What was lost heals by overwriting, one record after the other, and a flush that failed is told to an application,
/// whatever writes that heal and whatever stops come in between.
#[test]
fn random_crashes_amid_healing() {
    let report = campaign("random_crashes_amid_healing", Family::Healing, 6000);
    assert!(report.healings > 10_000 && report.record_errors > 100, "too little is healed: {report:?}");
    assert!(report.restarts > 100 && report.handed_over > 10, "no failed flush was ever handed over: {report:?}");
}

/// A flipped bit is never read: it answers an error, or the data come from elsewhere.
#[test]
fn a_rotten_bit_is_never_read() {
    let report = campaign("a_rotten_bit_is_never_read", Family::Rot, 3000);
    assert!(report.rotten > 0 && report.failures > 0, "nothing ever rotted: {report:?}");
}
