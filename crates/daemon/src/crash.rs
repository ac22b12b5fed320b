//! Named points at which the crash tests end the daemon without warning. Nothing of it is in a release build.

/// Ends the process at once, as SIGKILL does, if `SURGETANK_CRASH_AT` is `step:when` (optionally `step:when:N` for
/// the N-th time that it is passed).
#[cfg(any(debug_assertions, feature = "crash-points"))]
pub fn crash_point(step: &str, when: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    static WANTED: OnceLock<Option<(String, u32)>> = OnceLock::new();
    static PASSED: AtomicU32 = AtomicU32::new(0);
    let wanted = WANTED.get_or_init(|| {
        let text = std::env::var("SURGETANK_CRASH_AT").ok()?;
        let mut parts = text.splitn(3, ':');
        let point = format!("{}:{}", parts.next()?, parts.next()?);
        Some((point, parts.next().and_then(|times| times.parse().ok()).unwrap_or(1)))
    });
    let Some((point, times)) = wanted else { return };
    if *point == format!("{step}:{when}") && PASSED.fetch_add(1, Ordering::Relaxed) + 1 == *times {
        // SAFETY: raises a signal against ourselves; nothing is touched.
        unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        loop {
            std::thread::park();
        }
    }
}

/// Nothing in a release build.
#[cfg(not(any(debug_assertions, feature = "crash-points")))]
pub const fn crash_point(_step: &str, _when: &str) {}
