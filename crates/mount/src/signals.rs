//! Whether a signal has come to a thread that waits.
//!
//! fuser does not pass on the kernel's word that a call is interrupted, so it is looked for where the kernel shows pending signals.

use std::fs;

/// Whether the kernel has woken this thread for a signal. A thread that cannot be seen from here, or has gone, has none.
pub(crate) fn has_come(thread: u32) -> bool {
    fs::read_to_string(format!("/proc/{thread}/status")).is_ok_and(|status| is_pending(&status, thread))
}

/// A signal to the whole process wakes its first thread, if any.
fn is_pending(status: &str, thread: u32) -> bool {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim);
    let mask = |name| field(name).and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or_default();
    let is_first = field("Tgid").and_then(|group| group.parse().ok()) == Some(thread);
    let to_process = if is_first { mask("ShdPnd") } else { 0 };
    (mask("SigPnd") | to_process) & !mask("SigBlk") != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_is_not_blocked_is_seen() {
        let status = |pending: &str, shared: &str, blocked: &str| {
            format!("Name:\tx\nTgid:\t7\nPid:\t7\nSigPnd:\t{pending}\nShdPnd:\t{shared}\nSigBlk:\t{blocked}\n")
        };
        let (none, kill) = ("0000000000000000", "0000000000000100");
        assert!(!is_pending(&status(none, none, none), 7));
        assert!(is_pending(&status(kill, none, none), 7) && is_pending(&status(none, kill, none), 7));
        assert!(!is_pending(&status(kill, none, kill), 7), "it is blocked");
        assert!(!is_pending(&status(none, kill, none), 8), "the first thread gets it");
        assert!(!has_come(std::process::id()) && !has_come(u32::MAX));
    }
}
