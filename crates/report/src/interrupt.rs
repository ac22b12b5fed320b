//! SIGINT, SIGTERM and SIGHUP as something that the program waits for.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::{Doing, Failure};

/// Counts the signals that ask the process to stop. Cloning gives another handle on the same count.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    count: Mutex<u32>,
    changed: Condvar,
}

impl Interrupt {
    /// Takes over SIGINT, SIGTERM and SIGHUP for the rest of the process.
    ///
    /// # Errors
    /// If the handlers or their thread cannot be installed.
    pub fn install() -> Result<Self, Failure> {
        Self::install_with(&[], |_| ())
    }

    /// The same, but for other signals that do not ask it to stop, SIGHUP among them if it is one. `heard` is told of
    /// every signal.
    ///
    /// # Errors
    /// If the handlers or their thread cannot be installed.
    pub fn install_with(others: &'static [i32], heard: impl Fn(i32) + Send + 'static) -> Result<Self, Failure> {
        const STOP: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];
        let interrupt = Self::default();
        let not_installed = || "the signal handlers cannot be installed".to_owned();
        let mut signals = Signals::new(STOP.iter().chain(others)).doing(not_installed)?;
        let shared = interrupt.clone();
        let heeding = std::thread::Builder::new().name("signals".into()).spawn(move || {
            for signal in signals.forever() {
                if !others.contains(&signal) {
                    shared.raise();
                }
                heard(signal);
            }
        });
        heeding.doing(not_installed)?;
        Ok(interrupt)
    }

    fn count_guard(&self) -> MutexGuard<'_, u32> {
        self.0.count.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks to stop, as a signal does. Used when one part of a concurrent run has failed.
    pub fn raise(&self) {
        *self.count_guard() += 1;
        self.0.changed.notify_all();
    }

    /// How often the process was asked to stop.
    #[must_use]
    pub fn count(&self) -> u32 {
        *self.count_guard()
    }

    /// Whether the process was asked to stop.
    #[must_use]
    pub fn raised(&self) -> bool {
        self.count() > 0
    }

    /// Waits until asked to stop more than `seen` times, at most `timeout`; says how often it was asked.
    #[must_use]
    pub fn wait_beyond(&self, seen: u32, timeout: Duration) -> u32 {
        let until = Instant::now() + timeout;
        let mut count = self.count_guard();
        while *count <= seen {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            count = self.0.changed.wait_timeout(count, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        *count
    }

    /// Sleeps for `duration`; true if it was cut short because the process was asked to stop.
    #[must_use]
    pub fn sleep(&self, duration: Duration) -> bool {
        self.wait_beyond(0, duration) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raised_interrupt_ends_every_sleep() {
        let interrupt = Interrupt::default();
        let other = interrupt.clone();
        let sleeper = std::thread::spawn(move || other.sleep(Duration::from_secs(600)));
        interrupt.raise();
        assert!(sleeper.join().unwrap());
        assert!(interrupt.sleep(Duration::from_secs(600)));
        assert_eq!(interrupt.count(), 1);
    }

    #[test]
    fn a_quiet_sleep_is_not_an_interruption() {
        assert!(!Interrupt::default().sleep(Duration::from_millis(1)));
    }
}
