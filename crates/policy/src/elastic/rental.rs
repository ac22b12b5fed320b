//! The caching volume that is rented, and what it is used for.

use std::time::Duration;

use surgetank_model::{Bytes, Instant, Observation};

use super::meter::Interval;
use super::status::{Cause, Prediction, sizes_held};
use crate::sizing::Usage;

/// A full cache waits for the end of its burst for so many times what its drain takes: beside the burst, a drain takes
/// several times as long as after it.
const FULL_DRAINS: f64 = 4.0;

/// The caching volume from `Create` to `Delete`, and what is known of its use.
#[derive(Clone, Debug)]
pub(super) struct Rental {
    pub size: Bytes,
    /// What it was billed as, in order, and from when.
    pub sizes: Vec<(Bytes, Instant)>,
    /// Why it grew last; for people.
    pub growth: String,
    /// It was asked to grow, and nobody knows whether it has or the engine uses all of it: to be asked for again.
    pub growth_is_open: bool,
    /// `None`: it was taken over after a restart.
    pub cause: Option<Cause>,
    pub started: Instant,
    /// A volume is there, or may be.
    pub was_there: bool,
    pub adopted: Option<Instant>,
    pub drain_started: Option<Instant>,
    pub released: Option<Instant>,
    pub usable: u64,
    pub dirty: u64,
    pub high_water: u64,
    pub evicted: u64,
    /// Taken over after a restart: its use is known in part only, so nothing is learned from it.
    pub resumed: bool,
    /// The engine has released it without being asked.
    pub dropped: bool,
    /// A burst is expected until then, and has not come.
    pub expects_until: Option<Instant>,
    /// Changes over what is dirty are to wait for the drain.
    pub finishing: bool,
    /// Why it was begun, and what it is expected to come to; for people.
    pub why: String,
    /// What it is expected to come to.
    pub predicted: Option<Prediction>,
    /// For how long nothing was on it and the device was calm.
    pub empty: Duration,
    /// Bytes that were moved while it absorbed a burst.
    pub absorbed: u64,
    /// Those of them while it had room.
    pub fitted: u64,
    /// What a backing volume alone would take for what it had not moved yet.
    pub backlog: Duration,
    /// For how long it would have been behind, but for that.
    pub saved: Duration,
    /// AGBs by which the next burst would gain less from it than from a volume of the best size.
    pub unfit: f64,
    /// Since when nothing more fits on it, though the burst goes on.
    pub full_since: Option<Instant>,
}

impl Rental {
    pub fn new(now: Instant, size: Bytes) -> Self {
        Self {
            size,
            sizes: vec![(size, now)],
            growth: String::new(),
            growth_is_open: false,
            cause: None,
            started: now,
            adopted: None,
            drain_started: None,
            released: None,
            usable: 0,
            dirty: 0,
            high_water: 0,
            evicted: 0,
            was_there: false,
            resumed: false,
            dropped: false,
            expects_until: None,
            finishing: false,
            why: String::new(),
            predicted: None,
            empty: Duration::ZERO,
            absorbed: 0,
            fitted: 0,
            backlog: Duration::ZERO,
            saved: Duration::ZERO,
            unfit: 0.0,
            full_since: None,
        }
    }

    /// It is billed for another size from now on.
    pub fn resize(&mut self, now: Instant, size: Bytes) {
        self.size = size;
        self.sizes.push((size, now));
    }

    /// How often it has grown: growths that were refused are taken back.
    pub fn growths(&self) -> usize {
        let count = |larger: fn(Bytes, Bytes) -> bool| {
            self.sizes.windows(2).filter(|pair| larger(pair[0].0, pair[1].0)).count()
        };
        count(|before, after| after > before).saturating_sub(count(|before, after| after < before))
    }

    /// Its size, on average until now.
    pub fn mean_size(&self, now: Instant) -> Bytes {
        let time = now.since(self.started).as_secs_f64();
        if self.sizes.len() == 1 || time <= 0.0 {
            return self.size;
        }
        let held = sizes_held(&self.sizes, now).map(|(size, held)| size.get() as f64 * held.as_secs_f64());
        Bytes::new((held.sum::<f64>() / time).round() as u64)
    }

    /// An interval in which it was in use, beside a backing volume that moves `rate` bytes a second.
    pub fn serves(&mut self, interval: &Interval, hot: bool, rate: f64) {
        // What was moved before it was there, it did not save.
        if interval.from.is_none() || self.adopted.is_none() || self.adopted > interval.from || self.released.is_some()
        {
            return;
        }
        // Where the device is behind, the backing volume alone would be, too.
        let waited = if interval.is_saturated() { interval.busy } else { Duration::ZERO };
        self.saved += self.backlog.min(interval.length).saturating_sub(waited);
        self.backlog = self.backlog.saturating_add(interval.time_at(rate)).saturating_sub(interval.length);
        self.empty += if hot || self.dirty > 0 { Duration::ZERO } else { interval.length };
        if hot {
            self.absorbed = self.absorbed.saturating_add(interval.moved);
            self.fitted = self.fitted.saturating_add(if self.full_since.is_none() { interval.moved } else { 0 });
        }
    }

    /// Seconds for which the backing volume alone would have been behind, less those in which the device was.
    pub fn saved(&self) -> f64 {
        self.saved.saturating_add(self.backlog).as_secs_f64()
    }

    /// Intervals like this one, beside a backing volume that moves `rate` bytes a second, come to the same as a long one.
    pub fn is_additive(&self, interval: &Interval, rate: f64) -> bool {
        // Counters of whole bytes hide a part of it.
        let time = interval.time_at(rate).as_secs_f64() * (1.0 + 1e-6);
        interval.moved == 0 || (self.backlog.is_zero() && time < interval.length.as_secs_f64())
    }

    pub fn observe(&mut self, now: Instant, hot: bool, observation: &Observation) {
        if self.adopted.is_none() || self.released.is_some() {
            return;
        }
        if observation.cache_bytes == 0 {
            // Before the first sample with a cache this is a sample from before the adoption.
            self.dropped = self.usable > 0;
            return;
        }
        self.dropped = false;
        (self.usable, self.dirty) = (observation.cache_bytes, observation.dirty_bytes);
        self.note_full(now, hot, observation.evicted_bytes);
        self.high_water = self.high_water.max(observation.high_water_bytes);
        self.evicted = self.evicted.max(observation.evicted_bytes);
    }

    /// Whether a burst goes on for which it has no room, since when.
    fn note_full(&mut self, now: Instant, hot: bool, evicted: u64) {
        let full = hot && evicted > self.evicted;
        self.full_since = self.full_since.filter(|_| full).or(full.then_some(now));
    }

    /// When it has been full for so long that waiting for the end of the burst costs more than a drain beside it, by a backing
    /// volume that moves `rate` bytes a second; `None`: it is not full.
    pub fn full_until(&self, rate: f64) -> Option<Instant> {
        let wait = Duration::try_from_secs_f64(FULL_DRAINS * self.dirty as f64 / rate.max(1.0)).ok()?;
        self.full_since.map(|since| since + wait)
    }

    /// The engine has released it without being asked.
    pub fn is_dropped(&self) -> bool {
        self.dropped
    }

    /// When it was asked for.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// It is rented for a burst that begins by then.
    pub fn await_burst(&mut self, until: Instant) {
        self.expects_until = Some(until);
    }

    /// Until when the burst that it was rented for is expected; `None`: it has come, or there was none.
    pub fn expects_until(&self) -> Option<Instant> {
        self.expects_until
    }

    pub fn usage(&self) -> Usage {
        Usage {
            size: self.size,
            usable: Bytes::new(self.usable),
            high_water: Bytes::new(self.high_water),
            evicted: Bytes::new(self.evicted),
            missed: Bytes::ZERO,
        }
    }
}
