//! How long a drain takes, from what drains of this device have shown: at which rate they go, and how much the
//! application makes dirty again meanwhile.

use std::time::Duration;

use surgetank_model::{Bandwidth, Instant, Observation};

/// As long as nothing is known, a drain may take so much longer than the backing volume's bandwidth says.
const SLOWNESS_MIN: f64 = 1.25;
/// Slower is taken for trouble of the backing volume, which no reserve can pay.
const SLOWNESS_MAX: f64 = 8.0;
/// A drain that rewrites prolong further than this ends because changes wait in the end, not by itself.
const REWRITES_MAX: f64 = 4.0;
/// A boost ends early enough for a drain that takes so much longer, so that changes seldom have to wait.
const REWRITES_SPARE: f64 = 1.25;
/// Less time of a drain says little.
const MEASURED_MIN: Duration = Duration::from_secs(2);
/// For so long it counts. Without an end, a budget that cannot pay for what one drain showed would allow no boost any
/// more, and so nothing would be learned either.
const KNOWN_FOR: Duration = Duration::from_secs(3600);

/// What a drain does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Changes over dirty ranges make them dirty again.
    Plain,
    /// They wait.
    Finish,
}

/// What a drain, or a part of it, has done so far.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    time: Duration,
    /// Bytes drained; what was rewritten meanwhile counts again.
    drained: u64,
    /// Bytes that were made dirty meanwhile.
    rewritten: u64,
}

impl Tally {
    fn is_telling(&self) -> bool {
        self.time >= MEASURED_MIN
    }
}

/// What is known of the drains of one device. See the module.
#[derive(Clone, Debug, Default)]
pub(super) struct Drains {
    /// The drain under way, at the last sample.
    last: Option<(Instant, Way, Observation)>,
    tally: Tally,
    /// Time that a byte takes ÷ what the bandwidth says, and when that was seen.
    slowness: Option<(Instant, f64)>,
    /// Bytes made dirty for each byte drained, and when that was seen.
    rewrites: Option<(Instant, f64)>,
}

impl Drains {
    /// A sample; `way` while draining.
    pub fn observe(&mut self, now: Instant, way: Option<Way>, observation: &Observation, backing: Bandwidth) {
        let last = std::mem::replace(&mut self.last, way.map(|way| (now, way, *observation)));
        let Some(way) = way else { return };
        let Some((before, _, was)) = last.filter(|(_, last_way, _)| *last_way == way) else {
            self.tally = Tally::default();
            return;
        };
        // A drain that has come to its end has not had all of the time to drain.
        if observation.dirty_bytes == 0 {
            return;
        }
        let shrunk = was.dirty_bytes.saturating_sub(observation.dirty_bytes);
        // A driver without a counter of drained bytes shows rewrites only by what does not get less.
        let drained = observation.drained_bytes.saturating_sub(was.drained_bytes).max(shrunk);
        self.tally.time += now.since(before);
        self.tally.drained += drained;
        self.tally.rewritten += (drained + observation.dirty_bytes).saturating_sub(was.dirty_bytes);
        if !self.tally.is_telling() {
            return;
        }
        let drained = self.tally.drained.max(1) as f64;
        let slowness = self.tally.time.as_secs_f64() * backing.get() as f64 / drained;
        self.slowness = Some((now, slowness.clamp(SLOWNESS_MIN, SLOWNESS_MAX)));
        if way == Way::Plain {
            self.rewrites = Some((now, self.tally.rewritten as f64 / drained));
        }
    }

    /// How long it takes to drain so much while changes over dirty ranges wait.
    pub fn time_to_finish(&self, now: Instant, dirty: u64, backing: Bandwidth) -> Duration {
        backing.time_for(dirty).mul_f64(known(now, self.slowness).unwrap_or(SLOWNESS_MIN))
    }

    /// How long it takes while the application rewrites what is dirty as it did lately.
    pub fn time_to_drain(&self, now: Instant, dirty: u64, backing: Bandwidth) -> Duration {
        let rewrites = known(now, self.rewrites).unwrap_or(0.0);
        let longer = if rewrites < 1.0 { (1.0 / (1.0 - rewrites)).min(REWRITES_MAX) } else { REWRITES_MAX };
        self.time_to_finish(now, dirty, backing).mul_f64(longer)
    }

    /// The same with time to spare.
    pub fn time_to_drain_at_ease(&self, now: Instant, dirty: u64, backing: Bandwidth) -> Duration {
        let spare = self.time_to_finish(now, dirty, backing).mul_f64(REWRITES_SPARE);
        self.time_to_drain(now, dirty, backing).max(spare)
    }
}

fn known(now: Instant, value: Option<(Instant, f64)>) -> Option<f64> {
    value.filter(|(at, _)| now.since(*at) < KNOWN_FOR).map(|(_, value)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanoseconds(seconds * 1_000_000_000)
    }

    fn backing() -> Bandwidth {
        Bandwidth::from_mib_s(100)
    }

    /// `seconds` of a drain of so many MiB/s, of which so many are rewritten.
    fn drain(drains: &mut Drains, way: Way, seconds: u64, drained: u64, rewritten: u64) {
        let mut observation = Observation { dirty_bytes: 10_000 * MIB, ..Observation::default() };
        for second in 0..=seconds {
            drains.observe(at(second), Some(way), &observation, backing());
            observation.drained_bytes += drained * MIB;
            observation.dirty_bytes -= (drained - rewritten) * MIB;
        }
        drains.observe(at(seconds), None, &observation, backing());
    }

    fn times(drains: &Drains, now: Instant) -> [u64; 2] {
        [
            drains.time_to_finish(now, 1000 * MIB, backing()).as_millis() as u64,
            drains.time_to_drain(now, 1000 * MIB, backing()).as_millis() as u64,
        ]
    }

    #[test]
    fn rates_and_rewrites_are_learned_and_forgotten() {
        let mut drains = Drains::default();
        assert_eq!(times(&drains, at(0)), [12_500, 12_500], "nothing is known");
        drain(&mut drains, Way::Plain, 1, 100, 50);
        assert_eq!(times(&drains, at(1)), [12_500, 12_500], "too short to tell");
        drain(&mut drains, Way::Plain, 10, 100, 50);
        assert_eq!(times(&drains, at(10)), [12_500, 25_000]);
        drain(&mut drains, Way::Plain, 10, 25, 25);
        assert_eq!(times(&drains, at(10)), [40_000, 160_000]);
        // While changes wait, nothing is learned of rewrites.
        drain(&mut drains, Way::Finish, 10, 50, 0);
        assert_eq!(times(&drains, at(10)), [20_000, 80_000]);
        assert_eq!(times(&drains, at(3610)), [12_500, 12_500]);
    }

    #[test]
    fn a_drain_that_does_not_get_on_has_a_longest_time() {
        let mut drains = Drains::default();
        drain(&mut drains, Way::Plain, 10, 0, 0);
        assert_eq!(times(&drains, at(10)), [80_000, 80_000]);
    }

    #[test]
    fn without_a_counter_of_drained_bytes_what_is_dirty_tells() {
        let mut drains = Drains::default();
        for second in 0..=10 {
            let observation = Observation { dirty_bytes: (10_000 - 20 * second) * MIB, ..Observation::default() };
            drains.observe(at(second), Some(Way::Plain), &observation, backing());
        }
        assert_eq!(times(&drains, at(10)), [50_000, 50_000]);
    }
}
