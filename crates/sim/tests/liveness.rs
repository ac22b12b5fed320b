//! After the faults stop, every run ends idle: everything on the backing volume alone, the cache released.

mod support;

use surgetank_sim::{Report, Scenario, Trouble};

use support::{check, seeds};

/// `run` ends only when the cache is released; it then compares the whole backing volume with the oracle.
#[test]
fn runs_without_faults_end_on_the_backing_volume_alone() {
    let mut total = Report::default();
    for seed in seeds(300) {
        let report = check("runs_without_faults_end_on_the_backing_volume_alone", "liveness", &Scenario::short(seed));
        total += &report;
    }
    for seed in seeds(20) {
        let report = check("runs_without_faults_end_on_the_backing_volume_alone", "liveness", &Scenario::long(seed));
        total += &report;
    }
    assert_eq!(total.adoptions, total.releases);
    assert!(total.adoptions > 100 && total.cancels > 10, "the runs do not do enough: {total:?}");
}

#[test]
fn errors_of_the_backing_volume_end_with_the_faults() {
    let mut total = Report::default();
    for seed in seeds(300) {
        let trouble = Trouble { backing_errors: 0.05, cache_errors: 0.0, until_event: 300 };
        let scenario = Scenario { trouble: Some(trouble), ..Scenario::short(seed) };
        total += &check("errors_of_the_backing_volume_end_with_the_faults", "liveness", &scenario);
    }
    assert!(total.errors > 0, "no fault was ever seen: {total:?}");
}

#[test]
fn errors_of_the_cache_end_with_the_faults() {
    let mut total = Report::default();
    for seed in seeds(300) {
        let trouble = Trouble { backing_errors: 0.0, cache_errors: 0.02, until_event: 400 };
        let scenario = Scenario { trouble: Some(trouble), ..Scenario::short(seed) };
        total += &check("errors_of_the_cache_end_with_the_faults", "liveness", &scenario);
    }
    assert!(total.failures > 0, "no cache ever failed: {total:?}");
}
