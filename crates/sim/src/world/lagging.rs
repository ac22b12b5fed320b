//! What a cloud tells late, and makes twice: it may not know a volume that was just made, nor, once for a moment, any other; and a listing may be one from
//! before, with what is gone, and with tags and states that have changed. A creation may make another volume of the same token, by a request that
//! was repeated on the way, or that arrives late.

use std::collections::BTreeMap;
use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_model::volume::VolumeDescription;
use surgetank_model::{Instant, Lag};

/// What is told of a cloud that lags: more than twice as long as a volume may not be known, and longer than whoever waits looks away.
const LAG: Lag = Lag { created: Duration::from_millis(600), known: Duration::from_millis(600) };
/// For how long a volume that was just made is not known, at most, and another one.
const UNKNOWN_MAX: (Duration, Duration) = (Duration::from_millis(190), Duration::from_millis(90));
/// When a volume may not be known for a moment: so long after it was made, at most.
const LATER_MAX: Duration = Duration::from_millis(900);

/// When a request that was repeated on the way arrives, at most.
const TWIN_MAX: Duration = Duration::from_millis(1500);

/// What it is told that a cloud may do.
pub(crate) fn allowance(chance: f64) -> Lag {
    if chance > 0.0 { LAG } else { Lag::NONE }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Lagging {
    /// Probability of each.
    chance: f64,
    /// Of these faults alone: seeds from before them keep what else is drawn.
    random: Random,
    /// The latest answer to each listing, by key and value.
    listed: BTreeMap<(String, String), Vec<VolumeDescription>>,
    /// Answers that a volume is not there which was.
    pub(crate) unknown: u32,
    /// Listings from before.
    pub(crate) stale: u32,
    /// Volumes that a creation made besides.
    pub(crate) twins: u32,
}

impl Lagging {
    pub(crate) fn new(seed: u64, chance: f64) -> Self {
        let random = Random::from_seed(seed ^ 0x1a66_1a66);
        Self { chance, random, listed: BTreeMap::new(), unknown: 0, stale: 0, twins: 0 }
    }

    fn strikes(&mut self) -> bool {
        self.chance > 0.0 && self.random.chance(self.chance)
    }

    fn within(&mut self, most: Duration) -> Duration {
        Duration::from_nanos(self.random.below(most.as_nanos() as u64))
    }

    /// From when to when a volume that is made now is not known.
    pub(crate) fn gaps(&mut self, now: Instant) -> Vec<(Instant, Instant)> {
        let mut gaps = Vec::new();
        if self.strikes() {
            gaps.push((now, now + self.within(UNKNOWN_MAX.0)));
        }
        if self.strikes() {
            let from = now + UNKNOWN_MAX.0 + self.within(LATER_MAX);
            gaps.push((from, from + self.within(UNKNOWN_MAX.1)));
        }
        gaps
    }

    /// From when on deletions find a volume that is made now.
    pub(crate) fn deletable_at(&mut self, now: Instant) -> Instant {
        if self.strikes() { now + self.within(LATER_MAX) } else { now }
    }

    /// When another volume shows that a creation makes besides.
    pub(crate) fn twin(&mut self, now: Instant) -> Option<Instant> {
        let strikes = self.strikes();
        self.twins += u32::from(strikes);
        strikes.then(|| now + self.within(TWIN_MAX))
    }

    /// Whether the name of another volume is less than that of the first.
    pub(crate) fn is_lesser(&mut self) -> bool {
        self.random.chance(0.5)
    }

    /// What a listing answers of which that is so.
    pub(crate) fn answer(&mut self, key: &str, value: &str, so: Vec<VolumeDescription>) -> Vec<VolumeDescription> {
        if self.chance == 0.0 {
            return so;
        }
        let (stale, name) = (self.strikes(), (key.to_owned(), value.to_owned()));
        match self.listed.get(&name).filter(|_| stale) {
            Some(before) => {
                self.stale += 1;
                before.clone()
            }
            None => {
                self.listed.insert(name, so.clone());
                so
            }
        }
    }
}
