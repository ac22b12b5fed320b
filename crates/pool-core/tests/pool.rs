//! Whole pools in virtual time: what was promised survives, what is gone leaves nothing.

mod support {
    pub mod target;
}
#[path = "support/pool/mod.rs"]
mod pool;

use std::io::Write;

use pool::{Report, report};

/// Runs of a kind: `SURGETANK_SEED` runs one, `SURGETANK_FIRST` begins elsewhere, `SURGETANK_TIMES` multiplies their number.
#[allow(clippy::disallowed_methods, reason = "the test, not what it tests, has an environment and threads")]
fn campaign(runs: u64) -> Report {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let first = number("SURGETANK_FIRST").unwrap_or(0);
    let seeds = match number("SURGETANK_SEED") {
        Some(seed) => seed..seed + 1,
        None => first..first + runs * number("SURGETANK_TIMES").unwrap_or(1),
    };
    let next = std::sync::atomic::AtomicU64::new(seeds.start);
    let total = std::sync::Mutex::new(Report::default());
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
                        Err(what) => panic!("SURGETANK_SEED={seed}: {what}"),
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
    total
}

#[test]
fn what_was_promised_survives_and_what_was_deleted_leaves_nothing() {
    campaign(800);
}

#[test]
fn runs_that_once_failed_pass() {
    // A source without the chunk, a late answer to a commit, late seals, a warden that asked nobody, copies within a layout.
    for seed in [56, 41, 1260, 1281, 660, 3559, 101_342, 102_955] {
        if let Err(what) = report(seed) {
            panic!("run {seed}: {what}");
        }
    }
}
