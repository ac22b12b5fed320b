//! Whole pools in virtual time: what was promised survives, what is gone leaves nothing.

mod support {
    pub mod target;
}
#[path = "support/pool/mod.rs"]
mod pool;

use std::io::Write;

use pool::{Report, report, scenes};
use surgetank_pool_core::placement::Media;

/// Runs of a kind: `SURGETANK_SEED` runs one, `SURGETANK_FIRST` begins elsewhere, `SURGETANK_TIMES` multiplies their number.
#[allow(clippy::disallowed_methods, reason = "the test, not what it tests, has an environment and threads")]
fn campaign(from: u64, runs: u64) -> Report {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("SURGETANK_FIRST").unwrap_or(0);
    let seeds = match number("SURGETANK_SEED") {
        Some(seed) => seed..seed + 1,
        None => first + from..first + from + runs * number("SURGETANK_TIMES").unwrap_or(1),
    };
    let next = std::sync::atomic::AtomicU64::new(seeds.start);
    let total = std::sync::Mutex::new(Report::default());
    let failures = std::sync::Mutex::new(Vec::new());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                let mut own = Report::default();
                loop {
                    let seed = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    match report(seed) {
                        Ok(report) => own += &report,
                        Err(what) => {
                            let failure = format!("SURGETANK_SEED={seed}: {what}");
                            failures.lock().expect("no thread holds it while it panics").push(failure);
                        }
                    }
                }
                *total.lock().expect("no thread holds it while it panics") += &own;
            });
        }
    });
    let total = total.into_inner().expect("no thread holds it while it panics");
    // Not captured: the counts are a result.
    let line = format!("{} pools: {total:?}\n", seeds.end - seeds.start);
    std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
    let failures = failures.into_inner().expect("no thread holds it while it panics");
    assert!(
        failures.is_empty(),
        "{} of {} runs fail:\n{}",
        failures.len(),
        seeds.end - seeds.start,
        failures.join("\n")
    );
    total
}

#[test]
fn what_was_promised_survives_and_what_was_deleted_leaves_nothing() {
    campaign(0, 800);
}

#[test]
fn metadata_histories_are_linearizable() {
    let total = campaign(500_000, 1000);
    // The check is none if little is heard.
    assert!(total.heard > 100 * total.runs, "{total:?}");
}

#[test]
fn a_manager_that_answers_from_memory_is_found() {
    let found = (0..100).find_map(|seed| pool::run_with_stale_lookups(seed).err());
    assert!(found.as_ref().is_some_and(|what| what.starts_with("names: ")), "{found:?}");
}

#[test]
fn runs_that_once_failed_pass() {
    // A source without the chunk, a late answer to a commit, late seals, a warden that asked nobody, copies within a layout, what a session
    // sealed as the version that repair brings, copies that count though nobody finds them, a refused commit whose copy is late.
    for seed in [56, 41, 1260, 1281, 660, 3559, 101_342, 102_955, 105_268, 109_011, 2_001_419, 2_004_539] {
        if let Err(what) = report(seed) {
            panic!("run {seed}: {what}");
        }
    }
}

fn play(copies: u32, media: Media, scene: scenes::Play) {
    if let Err(what) = scenes::play(copies, media, scene) {
        panic!("{what}");
    }
}

#[test]
fn staged_is_not_drained_until_the_target_has_it() {
    play(2, Media::Any, scenes::staged_is_not_drained);
}

#[test]
fn the_drain_completes_after_the_application_has_gone() {
    play(2, Media::Any, scenes::the_application_is_gone);
}

#[test]
fn what_is_not_drained_is_not_evicted_however_often_somebody_asks() {
    play(2, Media::Any, scenes::undrained_stays);
}

#[test]
fn what_a_dead_benefactor_has_on_ssd_is_drained_when_it_returns() {
    play(1, Media::Ssd, scenes::a_benefactor_returns);
}

#[test]
fn one_benefactor_down_while_a_file_grows_leaves_neither_zeros_nor_a_gap() {
    play(2, Media::Any, scenes::down_while_appending);
}

#[test]
fn all_leases_lost_at_once_start_no_repair() {
    play(2, Media::Any, scenes::all_leases_end);
}

#[test]
fn one_stuck_benefactor_does_not_stall_a_sync() {
    play(2, Media::Any, scenes::one_benefactor_is_stuck);
}

#[test]
fn who_writes_on_is_told_that_a_committed_chunk_is_lost_and_so_is_who_looks() {
    play(1, Media::Any, scenes::a_lost_chunk_is_told);
}
