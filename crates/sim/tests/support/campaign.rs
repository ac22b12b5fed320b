//! Campaigns of seeded runs on all cores.

use std::io::Write;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use surgetank_sim::{Family, Report};

use crate::support::check;

/// Runs the seeds of a family on all cores and adds up what they did.
///
/// The environment changes which: `SURGETANK_SEED` runs one seed, `SURGETANK_FIRST` starts elsewhere,
/// `SURGETANK_TIMES` multiplies the number of seeds, for long searches.
#[allow(clippy::disallowed_methods, reason = "the tests, not the world, have threads and an environment")]
pub fn campaign(test: &str, family: Family, count: u64) -> Report {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let seeds = match number("SURGETANK_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("SURGETANK_FIRST").unwrap_or(1);
            first..first + count * number("SURGETANK_TIMES").unwrap_or(1)
        }
    };
    let total = over_all_cores(seeds.clone(), |seed| {
        let again = format!("SURGETANK_SEED={seed} cargo test -p surgetank-sim --test crash -- --exact {test}");
        check(&family.scenario(seed), &again)
    });
    let (name, runs, points) = (family.name(), seeds.end - seeds.start, total.points());
    let line = format!("{name}: {runs} runs, {points} crashes and faults, 0 violations; {total:?}\n");
    // Not captured: the counts are a result.
    std::io::stderr().write_all(line.as_bytes()).expect("standard error is open");
    total
}

fn over_all_cores(seeds: Range<u64>, one: impl Fn(u64) -> Report + Sync) -> Report {
    let (next, total) = (AtomicU64::new(seeds.start), Mutex::new(Report::default()));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                let mut own = Report::default();
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        break;
                    }
                    own += &one(seed);
                }
                *total.lock().expect("no thread holds it while it panics") += &own;
            });
        }
    });
    total.into_inner().expect("no thread holds it while it panics")
}
