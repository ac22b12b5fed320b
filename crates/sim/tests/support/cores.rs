//! Seeded runs on all cores.

use std::ops::{AddAssign, Range};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Runs the seeds and adds up what they did.
#[allow(clippy::disallowed_methods, reason = "the tests, not the world, have threads")]
pub fn over_all_cores<R: Default + Send + for<'a> AddAssign<&'a R>>(
    seeds: Range<u64>,
    one: impl Fn(u64) -> R + Sync,
) -> R {
    let (next, total) = (AtomicU64::new(seeds.start), Mutex::new(R::default()));
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                let mut own = R::default();
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

/// The seeds of a campaign: `SURGETANK_SEED` runs one, `SURGETANK_FIRST` starts elsewhere, `SURGETANK_TIMES` multiplies their
/// number, for long searches.
#[allow(clippy::disallowed_methods, reason = "the tests, not the world, have an environment")]
pub fn seeds(first: u64, count: u64) -> Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    match number("SURGETANK_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("SURGETANK_FIRST").unwrap_or(first);
            first..first + count * number("SURGETANK_TIMES").unwrap_or(1)
        }
    }
}
