//! The bursts of a replayed load, and when each was served.
//!
//! A load that was recorded arrives whether or not the device is ready, so the run's end hardly moves: what a faster device
//! changes is how long each burst lasts and waits. Bursts are the load's own, by what arrives, so that they are the same for
//! every mode: stretches of arrivals with a pause before and behind.

use std::collections::VecDeque;
use std::time::Duration;

use surgetank_model::{Bytes, Instant};

use crate::setup::{AppPhase, Application};

/// A burst and when it was served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Burst {
    /// Its first arrival.
    pub from: Instant,
    /// Its last arrival.
    pub arrived: Instant,
    /// When its last byte was served.
    pub served: Instant,
    /// What arrived.
    pub bytes: Bytes,
}

impl Burst {
    /// From its first arrival until its last byte was served.
    #[must_use]
    pub fn length(&self) -> Duration {
        self.served.since(self.from)
    }

    /// From its last arrival on: what the device made it wait.
    #[must_use]
    pub fn waited(&self) -> Duration {
        self.served.since(self.arrived)
    }
}

/// Bytes of rounding in flows.
const NOTHING: f64 = 1.0;

/// Notes when bursts are served.
#[derive(Clone, Debug, Default)]
pub struct Watch {
    /// Those that are not served, with what has arrived in all when they end.
    waiting: VecDeque<(Burst, f64)>,
    served: Vec<Burst>,
    asked: f64,
    left: f64,
}

impl Watch {
    /// Of an application's arrivals; `pause` ends a burst.
    #[must_use]
    pub fn new(application: &Application, pause: Duration) -> Self {
        let mut waiting: VecDeque<(Burst, f64)> = VecDeque::new();
        let mut sum = 0.0;
        for phase in &application.phases {
            let AppPhase::Arrive { at, read, written } = *phase else { continue };
            let (at, bytes) = (Instant::ZERO + at, read.get().saturating_add(written.get()));
            sum += bytes as f64;
            match waiting.back_mut() {
                Some((burst, end)) if at.since(burst.arrived) <= pause => {
                    burst.arrived = at;
                    burst.bytes = Bytes::new(burst.bytes.get().saturating_add(bytes));
                    *end = sum;
                }
                _ => waiting.push_back((Burst { from: at, arrived: at, served: at, bytes: Bytes::new(bytes) }, sum)),
            }
        }
        Self { waiting, ..Self::default() }
    }

    /// So many bytes arrived.
    pub fn ask(&mut self, bytes: u64) {
        self.asked += bytes as f64;
        self.left += bytes as f64;
    }

    /// From `from` to `to` what is left to serve has become this, evenly.
    pub fn progress(&mut self, from: Instant, to: Instant, left: f64) {
        let (before, after) = (self.asked - self.left, self.asked - left);
        self.left = left;
        while let Some((burst, end)) = self.waiting.front().filter(|(_, end)| *end <= after + NOTHING) {
            let share = if after > before { ((end - before) / (after - before)).clamp(0.0, 1.0) } else { 1.0 };
            let served = from + to.since(from).mul_f64(share);
            self.served.push(Burst { served: served.max(burst.arrived), ..*burst });
            self.waiting.pop_front();
        }
    }

    /// The bursts that were served.
    #[must_use]
    pub fn into_served(self) -> Vec<Burst> {
        self.served
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(number: u64) -> Instant {
        Instant::from_nanoseconds(number * 1_000_000_000)
    }

    #[test]
    fn a_burst_is_served_when_its_last_byte_is() {
        let arrive = |at: u64, written: u64| AppPhase::Arrive {
            at: Duration::from_secs(at),
            read: Bytes::ZERO,
            written: Bytes::new(written),
        };
        let phases = vec![arrive(0, 1000), arrive(5, 1000), arrive(100, 500), AppPhase::Finish];
        let mut watch = Watch::new(&Application { phases, ..Application::default() }, Duration::from_secs(30));
        watch.ask(1000);
        watch.progress(second(0), second(5), 500.0);
        watch.ask(1000);
        // 1500 bytes are left, and served evenly within 15 s together with 100 of the next burst.
        watch.ask(500);
        watch.progress(second(5), second(21), 400.0);
        watch.progress(second(21), second(121), 0.0);
        let found = watch.into_served();
        assert_eq!(found.len(), 2);
        assert_eq!(
            (found[0].bytes, found[0].length(), found[0].waited()),
            (Bytes::new(2000), Duration::from_secs(20), Duration::from_secs(15))
        );
        assert_eq!((found[1].from, found[1].served), (second(100), second(121)));
    }
}
