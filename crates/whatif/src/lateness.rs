//! How long a device is behind a trace: the delay of a load that nobody waits for.
//!
//! A trace does not stop while its device is busy, so its completion says little. A device is late while bytes that
//! arrived more than [`GRACE`] ago are not done: never, if the volume keeps up with the load.

use std::collections::VecDeque;
use std::time::Duration;

use surgetank_model::Instant;

/// What arrives in one step of a trace may take as long as the step: traces are replayed in steps of a second.
pub const GRACE: Duration = Duration::from_secs(1);

/// What has arrived, what of it is done, and for how long the device was late.
#[derive(Clone, Debug, Default)]
pub struct Lateness {
    arrived: f64,
    done: f64,
    /// Arrivals that are not done: when, and the bytes that had arrived then.
    waiting: VecDeque<(Instant, f64)>,
    late_until: Instant,
    late: Duration,
}

impl Lateness {
    /// Bytes arrive.
    pub fn arrive(&mut self, now: Instant, bytes: f64) {
        if bytes > 0.0 {
            self.arrived += bytes;
            self.waiting.push_back((now, self.arrived));
        }
    }

    /// Nothing that arrived is waited for.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Bytes were done evenly between these moments; `all`: nothing is left, whatever rounding says.
    pub fn flow(&mut self, from: Instant, to: Instant, bytes: f64, all: bool) {
        let before = self.done;
        self.done += bytes;
        while let Some(&(arrived, until)) = self.waiting.front() {
            if until > self.done && !all {
                return;
            }
            let share = if bytes > 0.0 { ((until - before) / bytes).clamp(0.0, 1.0) } else { 1.0 };
            self.end(arrived, from + to.since(from).mul_f64(share));
            self.waiting.pop_front();
        }
        self.done = self.arrived;
    }

    /// So many bytes are done in all.
    pub fn reach(&mut self, now: Instant, bytes: f64, all: bool) {
        self.flow(now, now, bytes - self.done, all);
    }

    fn end(&mut self, arrived: Instant, done: Instant) {
        self.late += done.since((arrived + GRACE).max(self.late_until));
        self.late_until = self.late_until.max(done);
    }

    /// For how long the device was late.
    #[must_use]
    pub fn late(&self) -> Duration {
        self.late
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: f64) -> Instant {
        Instant::ZERO + Duration::from_secs_f64(seconds)
    }

    #[test]
    fn a_volume_that_keeps_up_is_never_late() {
        let mut lateness = Lateness::default();
        for second in 0..10 {
            lateness.arrive(at(f64::from(second)), 10.0);
            lateness.flow(at(f64::from(second)), at(f64::from(second) + 0.9), 10.0, true);
        }
        assert_eq!(lateness.late(), Duration::ZERO);
    }

    #[test]
    fn time_behind_counts_once_however_much_waits() {
        let mut lateness = Lateness::default();
        lateness.arrive(at(0.0), 50.0);
        lateness.arrive(at(1.0), 50.0);
        lateness.flow(at(0.0), at(10.0), 100.0, true);
        assert_eq!(lateness.late(), Duration::from_secs(9), "from 1 s, when the first is late, to 10 s");
        assert!(lateness.is_done());
    }
}
