//! No crash loses what was promised: crashes at random events and at every event, of both kinds, and repeated.

mod support;

use surgetank_sim::{Crash, CrashKind, Report, Scenario, Trigger, Trouble};

use support::{check, seeds};

#[allow(clippy::print_stdout, reason = "the counts are the result")]
fn print(what: &str, runs: u64, total: &Report) {
    println!("{what}: {runs} runs, {total:?}");
}

#[test]
fn random_crashes_of_short_runs() {
    let (mut runs, mut total) = (0, Report::default());
    for seed in seeds(4000) {
        let scenario = Scenario::short(seed).with_random_crashes(4, 400);
        total += &check("random_crashes_of_short_runs", "crash", &scenario);
        runs += 1;
    }
    print("short", runs, &total);
}

#[test]
fn random_crashes_of_long_runs() {
    let (mut runs, mut total) = (0, Report::default());
    for seed in seeds(120) {
        let scenario = Scenario::long(seed).with_random_crashes(6, 6000);
        total += &check("random_crashes_of_long_runs", "crash", &scenario);
        runs += 1;
    }
    print("long", runs, &total);
}

#[test]
fn random_crashes_amid_overwrites() {
    let (mut runs, mut total) = (0, Report::default());
    for seed in seeds(2000) {
        let scenario = Scenario::overwriting(seed).with_random_crashes(4, 2000);
        total += &check("random_crashes_amid_overwrites", "crash", &scenario);
        runs += 1;
    }
    print("overwrites", runs, &total);
}

/// Crashes while volumes fail or vanish.
#[test]
fn random_crashes_amid_faults() {
    let (mut runs, mut total) = (0, Report::default());
    for seed in seeds(2000) {
        let trouble = match seed % 3 {
            0 => Trouble { cache_errors: 0.02, until_event: 400, ..Trouble::NONE },
            1 => Trouble { backing_errors: 0.03, until_event: 400, ..Trouble::NONE },
            _ => Trouble { vanish_at: Some(30 + (seed % 300) as u32), ..Trouble::NONE },
        };
        let scenario = if seed % 4 == 0 { Scenario::overwriting(seed) } else { Scenario::short(seed) };
        let scenario = Scenario { trouble: Some(trouble), ..scenario }.with_random_crashes(3, 400);
        total += &check("random_crashes_amid_faults", "crash", &scenario);
        runs += 1;
    }
    print("faults", runs, &total);
}

/// Every event of a few short runs is a crash point, for both kinds of crash, each followed by a second crash during
/// the recovery.
#[test]
fn a_crash_at_every_event() {
    let (mut runs, mut total) = (0, Report::default());
    for seed in seeds(4) {
        let mut scenario = Scenario { requests: 25, device_blocks: 40, ..Scenario::short(seed) };
        let whole = check("a_crash_at_every_event", "crash", &scenario);
        for after_events in 0..whole.events as u32 {
            for kind in [CrashKind::PowerCut, CrashKind::Daemon] {
                let trigger = Trigger::Start;
                let again = Crash { trigger, after_events: after_events % 23, kind: CrashKind::PowerCut };
                scenario.crashes = vec![Crash { trigger, after_events, kind }, again];
                total += &check("a_crash_at_every_event", "crash", &scenario);
                runs += 1;
            }
        }
    }
    print("every event", runs, &total);
}
