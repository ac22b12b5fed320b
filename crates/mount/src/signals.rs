//! Whether a signal has come to a thread that waits.
//!
//! fuser does not pass on the kernel's word that a call is interrupted, so it is looked for where the kernel shows pending signals.

use std::fs;

/// The kernel adds it to each thread of a process that any signal ends.
const KILL: u64 = 1 << (libc::SIGKILL - 1);
/// A thread that ends is closing what it has open (`PF_EXITING`).
const EXITING: u64 = 4;
/// Which of the fields of `/proc/PID/stat` behind the name, from the state on, has flags, and which has what a thread ends with.
const FLAGS: usize = 6;
const ENDS_WITH: usize = 49;

/// Whether the kernel has woken this thread for a signal. A thread that cannot be seen from here, or has gone, has none.
pub(crate) fn has_come(thread: u32) -> bool {
    status(thread).is_some_and(|status| is_pending(&status, thread))
}

/// Whether a signal ends this thread's process: nobody will see what its calls answer. One that ends by itself is told from it, since whoever
/// waits for its end expects that its files are closed by then.
pub(crate) fn is_killed(thread: u32) -> bool {
    let is_pending = status(thread).is_some_and(|status| mask(&status, "SigPnd") & KILL != 0);
    is_pending || fs::read_to_string(format!("/proc/{thread}/stat")).is_ok_and(|stat| ends_by_signal(&stat))
}

fn status(thread: u32) -> Option<String> {
    fs::read_to_string(format!("/proc/{thread}/status")).ok()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

fn mask(status: &str, name: &str) -> u64 {
    field(status, name).and_then(|mask| u64::from_str_radix(mask, 16).ok()).unwrap_or_default()
}

/// A signal to the whole process wakes its first thread, if any.
fn is_pending(status: &str, thread: u32) -> bool {
    let is_first = field(status, "Tgid").and_then(|group| group.parse().ok()) == Some(thread);
    let to_process = if is_first { mask(status, "ShdPnd") } else { 0 };
    (mask(status, "SigPnd") | to_process) & !mask(status, "SigBlk") != 0
}

fn ends_by_signal(stat: &str) -> bool {
    let Some((_, behind_name)) = stat.rsplit_once(')') else { return false };
    let mut fields = behind_name.split_ascii_whitespace().map(|field| field.parse::<u64>().unwrap_or_default());
    let is_exiting = fields.nth(FLAGS).is_some_and(|flags| flags & EXITING != 0);
    // As `wait` tells it: the signal's number is in the seven lowest bits.
    is_exiting && fields.nth(ENDS_WITH - FLAGS - 1).is_some_and(|with| with & 0x7f != 0)
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

    #[test]
    fn who_ends_by_a_signal_is_told_from_who_ends_by_itself() {
        let stat = |flags: u64, with: u64| {
            let between = "0 ".repeat(ENDS_WITH - FLAGS - 1);
            format!("7 (a name) with) S 1 2 3 4 5 {flags} {between}{with}\n")
        };
        assert!(ends_by_signal(&stat(0x40_0004, 9)) && ends_by_signal(&stat(4, 0x80 | 6)), "with a core, too");
        assert!(!ends_by_signal(&stat(4, 1 << 8)), "it has failed by itself");
        assert!(!ends_by_signal(&stat(0x40_0000, 9)), "it goes on");
        assert!(!ends_by_signal("") && !ends_by_signal("7 (x) S"));
        assert!(!is_killed(std::process::id()) && !is_killed(u32::MAX));
        let mut killed = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let thread = killed.id();
        assert!(!is_killed(thread));
        killed.kill().unwrap();
        // It stays as a process that has ended, until it is waited for.
        while !is_killed(thread) {
            std::thread::yield_now();
        }
        killed.wait().unwrap();
    }
}
