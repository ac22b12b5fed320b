//! What the tests of the world share.

use std::panic::{AssertUnwindSafe, catch_unwind};

use surgetank_sim::{CrashScenario, Report, run, shrink};

/// Why a run failed: a broken promise, or a panic.
fn failure(scenario: &CrashScenario) -> Option<String> {
    match catch_unwind(AssertUnwindSafe(|| run(scenario))) {
        Ok(Ok(_)) => None,
        Ok(Err(failure)) => Some(failure.to_string()),
        Err(_) => Some(format!("seed {}: the engine panicked\n  scenario: {scenario:?}", scenario.seed)),
    }
}

/// Runs one scenario; a failure, also a panic of the engine, is shrunk, and `again` names the command that reproduces it.
pub fn check(scenario: &CrashScenario, again: &str) -> Report {
    if let Ok(Ok(report)) = catch_unwind(AssertUnwindSafe(|| run(scenario))) {
        return report;
    }
    let first = failure(scenario).unwrap_or_else(|| "it failed once and then not: the run is not deterministic".into());
    let small = shrink(scenario, |candidate| failure(candidate).is_some());
    let smallest = failure(&small).unwrap_or_default();
    panic!("{first}\n  reproduce: {again}\n  shrunk: {smallest}");
}
