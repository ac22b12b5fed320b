//! Waiting for what comes at last.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Seconds that something is waited for at most: on a slow machine all that happens comes at last. With a bug it may be in vain.
pub(super) static PATIENCE_S: AtomicU64 = AtomicU64::new(300);

/// When to wait no longer.
fn end_of_patience() -> Instant {
    Instant::now() + Duration::from_secs(PATIENCE_S.load(Ordering::Relaxed))
}

/// Waits until something is so.
pub async fn until(what: &str, is_so: impl AsyncFn() -> bool) {
    there(what, async || is_so().await.then_some(())).await;
}

/// What is there at last.
pub async fn there<T>(what: &str, is_there: impl AsyncFn() -> Option<T>) -> T {
    let end = end_of_patience();
    loop {
        if let Some(found) = is_there().await {
            return found;
        }
        assert!(Instant::now() < end, "it was waited for in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The same, from a thread that may wait.
pub fn at_last<T>(what: &str, mut is_there: impl FnMut() -> Option<T>) -> T {
    let end = end_of_patience();
    loop {
        if let Some(found) = is_there() {
            return found;
        }
        assert!(Instant::now() < end, "it was waited for in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}
