//! What a boost saves and costs, in AGBs: the arithmetic of "when" and of "how big".
//!
//! A cache that absorbs saves the time that the backing volume would have taken for what it absorbs. It costs from the
//! wish for it until it is deleted: the lead until it is there, the burst, the drain, and the end.

use surgetank_model::Bytes;
use surgetank_model::units::GIB;

use crate::bursts::Likely;

/// What a boost is judged by.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Terms {
    /// Bytes a second of the backing volume when it is saturated.
    pub backing: f64,
    /// Bytes a second of the caching volume.
    pub caching: f64,
    /// Burst writes go to both.
    pub split: bool,
    /// AGBs that a second of the application's waiting is worth.
    pub value_per_s: f64,
    /// AGBs that a GiB of caching volume costs a second.
    pub rent_per_s: f64,
    /// Share of a caching volume that data can use.
    pub usable: f64,
    /// Seconds from the wish for a volume until it absorbs.
    pub lead: f64,
    /// Seconds for which a calm device keeps it.
    pub delay: f64,
    /// Seconds to detach and delete it.
    pub end: f64,
}

/// What a boost comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Seconds that the application waits less.
    pub saved_s: f64,
    /// AGBs of the caching volume.
    pub cost: f64,
    /// AGBs that it saves more than it costs.
    pub gain: f64,
}

impl Terms {
    fn rate(&self) -> f64 {
        if self.split { self.backing + self.caching } else { self.caching }
    }

    /// Bytes of a burst of `written` bytes that a cache without an end takes.
    #[must_use]
    pub fn absorbed(&self, written: f64) -> f64 {
        if self.split { written * self.caching / self.rate() } else { written }
    }

    /// The caching volume that absorbs a burst of `written` bytes wholly.
    #[must_use]
    pub fn size_for(&self, written: f64) -> Bytes {
        Bytes::new((self.absorbed(written) / self.usable) as u64)
    }

    /// The largest burst for which a cache pays: the longer it lasts, the longer each byte is held.
    #[must_use]
    pub fn largest(&self) -> f64 {
        let worth = self.value_per_s * GIB as f64 / self.rent_per_s.max(f64::MIN_POSITIVE);
        (worth - (self.lead + self.end) * self.backing).max(0.0)
    }

    /// A boost with a cache of `size` that is asked for when `written` bytes of the burst are to come.
    #[must_use]
    pub fn outcome(&self, written: f64, size: Bytes) -> Outcome {
        let left = (written - self.backing * self.lead).max(0.0);
        let absorbed = self.absorbed(left).min(size.get() as f64 * self.usable);
        // What does not fit goes to the backing volume at its own rate.
        let fitting = if self.split { absorbed * self.rate() / self.caching } else { absorbed };
        let burst = fitting / self.rate() + (left - fitting).max(0.0) / self.backing;
        let saved_s = (left / self.backing - burst).max(0.0);
        let held = self.lead + burst + self.delay.max(absorbed / self.backing) + self.end;
        let cost = self.rent_per_s * size.as_gib() * held;
        Outcome { saved_s, cost, gain: self.value_per_s * saved_s - cost }
    }

    /// What is expected of a boost with a cache of `size`.
    #[must_use]
    pub fn expected(&self, likely: &[Likely], size: Bytes) -> Outcome {
        let total: f64 = likely.iter().map(|(_, weight)| weight).sum();
        let mut sum = Outcome::default();
        for (written, weight) in likely {
            let (outcome, share) = (self.outcome(*written, size), weight / total.max(f64::MIN_POSITIVE));
            sum.saved_s += share * outcome.saved_s;
            sum.cost += share * outcome.cost;
            sum.gain += share * outcome.gain;
        }
        sum
    }

    /// The size among `sizes` that gains most, the smaller of equals; `None`: there is none.
    #[must_use]
    pub fn best(&self, likely: &[Likely], sizes: impl IntoIterator<Item = Bytes>) -> Option<(Bytes, Outcome)> {
        let mut best: Option<(Bytes, Outcome)> = None;
        for size in sizes {
            let outcome = self.expected(likely, size);
            let better = best.is_none_or(|(other, best)| {
                outcome.gain > best.gain || (outcome.gain >= best.gain && size < other)
            });
            if better {
                best = Some((size, outcome));
            }
        }
        best
    }
}
