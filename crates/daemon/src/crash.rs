//! Named points at which the crash tests end the daemon without warning. Nothing of it is in a release build.

/// Ends the process at once, as SIGKILL does, if `SURGETANK_CRASH_AT` is `step:when` (optionally `step:when:N` for
/// the N-th time that it is passed); stops it instead, for a test that cuts the power there, if `SURGETANK_STOP_AT` is.
#[cfg(any(debug_assertions, feature = "crash-points"))]
pub fn crash_point(step: &str, when: &str) {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Wanted {
        point: String,
        times: u32,
        signal: libc::c_int,
    }

    static WANTED: OnceLock<Option<Wanted>> = OnceLock::new();
    static PASSED: AtomicU32 = AtomicU32::new(0);
    let wanted = |(name, signal)| {
        let text = std::env::var(name).ok()?;
        let mut parts = text.splitn(3, ':');
        let point = format!("{}:{}", parts.next()?, parts.next()?);
        Some(Wanted { point, times: parts.next().and_then(|times| times.parse().ok()).unwrap_or(1), signal })
    };
    let ends = [("SURGETANK_CRASH_AT", libc::SIGKILL), ("SURGETANK_STOP_AT", libc::SIGSTOP)];
    let Some(wanted) = WANTED.get_or_init(|| ends.into_iter().find_map(wanted)) else { return };
    let is_here = wanted.point == format!("{step}:{when}");
    if is_here && PASSED.fetch_add(1, Ordering::Relaxed) + 1 == wanted.times {
        // SAFETY: raises a signal against ourselves; nothing is touched.
        unsafe { libc::kill(libc::getpid(), wanted.signal) };
        loop {
            std::thread::park();
        }
    }
}

/// Nothing in a release build.
#[cfg(not(any(debug_assertions, feature = "crash-points")))]
pub const fn crash_point(_step: &str, _when: &str) {}
