//! After the faults stop, every run ends idle: everything on the backing volume alone, the cache released.

mod support;

use std::time::Duration;

use surgetank_sim::{CrashKind, CrashScenario, Family, Report, Trouble};

use support::check;

const AGAIN: &str = "cargo test -p surgetank-sim --test liveness";

/// `run` ends only when the cache is released; it then compares the whole backing volume with the oracle.
#[test]
fn runs_without_faults_end_on_the_backing_volume_alone() {
    let mut total = Report::default();
    for seed in 1..=300 {
        let report = check(&CrashScenario::short(seed), AGAIN);
        total += &report;
    }
    for seed in 1..=20 {
        let report = check(&CrashScenario::long(seed), AGAIN);
        total += &report;
    }
    assert_eq!(total.adoptions, total.releases);
    assert!(total.adoptions > 100 && total.cancels > 10, "the runs do not do enough: {total:?}");
}

#[test]
fn errors_of_the_backing_volume_end_with_the_faults() {
    let mut total = Report::default();
    for seed in 1..=300 {
        let trouble = Trouble { backing_errors: 0.05, until_event: 300, ..Trouble::NONE };
        let scenario = CrashScenario { trouble: Some(trouble), ..CrashScenario::short(seed) };
        total += &check(&scenario, AGAIN);
    }
    assert!(total.errors > 0, "no fault was ever seen: {total:?}");
}

#[test]
fn errors_of_the_cache_end_with_the_faults() {
    let mut total = Report::default();
    for seed in 1..=300 {
        let trouble = Trouble { cache_errors: 0.02, until_event: 400, ..Trouble::NONE };
        let scenario = CrashScenario { trouble: Some(trouble), ..CrashScenario::short(seed) };
        total += &check(&scenario, AGAIN);
    }
    assert!(total.failures > 0, "no cache ever failed: {total:?}");
}

/// A boost begins whenever the controller wants one, and `run` ends only when the device is mapped straight again.
#[test]
fn the_map_follows_every_boost_and_goes_straight_again() {
    let mut total = Report::default();
    for seed in 1..=200 {
        let scenario = Family::Mapped.scenario(seed);
        let mapped = scenario.mapped.map(|mapped| surgetank_sim::Mapped { faults: 0.0, ..mapped });
        let trouble = Some(Trouble { until_event: 600, ..Trouble::NONE });
        let calm = CrashScenario {
            crashes: Vec::new(),
            provider_faults: Some(0.0),
            cloud_faults: 0.0,
            lags: 0.0,
            mapped,
            trouble,
            ..scenario
        };
        let report = check(&calm, AGAIN);
        assert_eq!(report.switches_in, report.switches_out, "seed {seed}");
        assert!(report.adoptions == report.releases && report.switches_in <= report.adoptions + report.rentals);
        total += &report;
    }
    assert!(total.adoptions > 100 && total.straight_requests > 10_000, "the runs do not do enough: {total:?}");
    assert_eq!(total.switches_withdrawn + total.refusals, 0);
}

/// A daemon that dies in calm is no event for the application: its requests are answered meanwhile.
#[test]
fn requests_go_on_while_no_daemon_runs() {
    let mut total = Report::default();
    for seed in 1..=100 {
        let scenario = Family::Mapped.scenario(seed);
        let crashes = scenario.crashes.iter().map(|crash| surgetank_sim::Crash { kind: CrashKind::Daemon, ..*crash });
        let absence_max = Duration::from_millis(50);
        let mapped = scenario.mapped.map(|mapped| surgetank_sim::Mapped { absence_max, ..mapped });
        let crashing = CrashScenario { crashes: crashes.collect(), mapped, ..scenario };
        total += &check(&crashing, AGAIN);
    }
    assert!(total.daemon_crashes > 100 && total.answered_alone > 1000, "the runs do not do enough: {total:?}");
}

/// The caching volume is pulled out: exactly what was on it alone is lost, and overwriting or accepting ends that.
#[test]
fn a_vanished_cache_loses_what_it_alone_had() {
    let mut total = Report::default();
    for seed in 1..=1000 {
        let scenario = if seed % 4 == 0 { CrashScenario::overwriting(seed) } else { CrashScenario::short(seed) };
        let trouble = Trouble { vanish_at: Some(40 + (seed % 200) as u32), ..Trouble::NONE };
        let scenario = CrashScenario { trouble: Some(trouble), ..scenario };
        total += &check(&scenario, AGAIN);
    }
    assert!(total.losses > 50, "nothing was ever lost: {total:?}");
}
