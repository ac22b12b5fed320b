//! Whether the tests of something find each bug that is planted in it.

use std::fmt::Debug;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bugs at a time: each is awake in threads of its own, and most show by something that is waited for.
const AT_A_TIME: usize = 4;

/// The bugs that no test finds, and prints how the others show. `test` plants a bug and runs what finds it; it fails with the bug.
pub fn missed<B: Copy + Debug + Send + Sync + 'static>(bugs: &[B], test: fn(B)) -> Vec<B> {
    super::wait::PATIENCE_S.store(60, Ordering::Relaxed);
    let (next, missed) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                while let Some(bug) = bugs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    if !is_found(*bug, test) {
                        missed.lock().expect("no thread panics while it holds it").push(*bug);
                    }
                }
            });
        }
    });
    // Busy processors hide some of the bugs: those get another chance alone.
    let missed = missed.into_inner().expect("no thread panics while it holds it");
    missed.into_iter().filter(|bug| !is_found(*bug, test)).collect()
}

/// Some show in most runs only: what a benefactor has at which moment, and which of two threads comes first, is chance.
#[allow(clippy::print_stdout, reason = "where each bug shows is the result")]
fn is_found<B: Copy + Debug + Send + 'static>(bug: B, test: fn(B)) -> bool {
    let what = (0..5).find_map(|_| shows(bug, test));
    if let Some(what) = &what {
        println!("{bug:?}: {}", what.chars().take(160).collect::<String>());
    }
    what.is_some()
}

/// How a test fails with a bug.
fn shows<B: Send + 'static>(bug: B, test: fn(B)) -> Option<String> {
    let why = std::thread::spawn(move || test(bug)).join().err()?;
    let text = why.downcast_ref::<String>().cloned();
    text.or_else(|| why.downcast_ref::<&str>().map(ToString::to_string)).or_else(|| Some("it fails".to_owned()))
}
