//! What a boost saves and costs, in AGBs: the arithmetic of "when" and of "how big".
//!
//! A cache that absorbs saves the time that the backing volume would have taken for what it absorbs. It costs from the
//! wish for it until it is deleted: the lead until it is there, the burst, the drain, and the end.

use surgetank_model::Bytes;
use surgetank_model::units::GIB;

use crate::bursts::Shape;
use crate::series::Likely;

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
    /// What bursts look like.
    pub shape: Shape,
    /// Share of a caching volume that data can use.
    pub usable: f64,
    /// Seconds from the wish for a volume until it absorbs.
    pub lead: f64,
    /// Seconds for which a calm device keeps it.
    pub delay: f64,
    /// Seconds to detach and delete it.
    pub end: f64,
    /// Seconds that are billed at least.
    pub minimum: f64,
    /// Share of the time that a cache can save that it does save, as far as is known.
    pub effect: f64,
    /// Cost of a caching volume ÷ what follows from the other terms, as far as is known.
    pub dearness: f64,
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

    /// Share of a burst's time that a cache saves.
    #[must_use]
    pub fn saved_share(&self) -> f64 {
        (1.0 - self.backing / self.rate()).max(0.0)
    }

    /// Bytes of a burst of `written` bytes that go to a cache with room for them.
    #[must_use]
    pub fn absorbed(&self, written: f64) -> f64 {
        if self.split { written * self.caching / self.rate() } else { written }
    }

    /// The caching volume that absorbs a burst of `written` bytes wholly.
    #[must_use]
    pub fn size_for(&self, written: f64) -> Bytes {
        Bytes::new((self.absorbed(written) * self.shape.peak / self.usable) as u64)
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
        // It drains in the gaps.
        let room = size.get() as f64 * self.usable / self.shape.peak;
        let absorbed = self.absorbed(left).min(room);
        // What does not fit goes to the backing volume at its own rate.
        let fitting = if self.split { absorbed * self.rate() / self.caching } else { absorbed };
        let burst = fitting / self.rate() + (left - fitting).max(0.0) / self.backing;
        let saved_s = self.effect * (left / self.backing - burst).max(0.0);
        let drain = absorbed * self.shape.peak / self.backing;
        let held = self.lead + burst + self.shape.gaps * left + self.delay.max(drain) + self.end;
        let held = held.max(self.minimum);
        let cost = self.dearness * self.rent_per_s * size.as_gib() * held;
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
            let better = best
                .is_none_or(|(other, best)| outcome.gain > best.gain || (outcome.gain >= best.gain && size < other));
            if better {
                best = Some((size, outcome));
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: f64 = 1_048_576.0;

    /// The papers' setting: 50 GiB at 33 MiB/s, caches of 128 MiB/s.
    fn terms() -> Terms {
        Terms {
            backing: 33.0 * MIB,
            caching: 128.0 * MIB,
            split: true,
            value_per_s: 50.0 * 33.0,
            rent_per_s: 128.0,
            shape: Shape { peak: 1.0, gaps: 0.0 },
            usable: 1.0,
            lead: 0.0,
            delay: 0.0,
            end: 0.0,
            minimum: 0.0,
            effect: 1.0,
            dearness: 1.0,
        }
    }

    fn gib(gib: f64) -> f64 {
        gib * GIB as f64
    }

    #[test]
    fn the_papers_checkpoint() {
        let terms = terms();
        let written = gib(4.0);
        assert_eq!(terms.size_for(written).as_mib().round(), (4096.0f64 * 128.0 / 161.0).round());
        let outcome = terms.outcome(written, Bytes::from_gib(4));
        // 4096 MiB take 124.1 s at 33 MiB/s and 25.4 s at 161 MiB/s; the volume is held until all is drained.
        assert!((outcome.saved_s - (4096.0 / 33.0 - 4096.0 / 161.0)).abs() < 1e-6, "{outcome:?}");
        assert!((outcome.cost - 512.0 * 4096.0 / 33.0).abs() < 1e-3, "{outcome:?}");
        // What does not fit takes the backing volume's time: 1 GiB missing costs 1024·N AGBs.
        let less = terms.outcome(written, Bytes::from_gib(2));
        assert!((outcome.saved_s - less.saved_s - (terms.absorbed(written) - gib(2.0)) / terms.backing).abs() < 1e-6);
    }

    #[test]
    fn above_a_size_no_cache_pays() {
        let terms = terms();
        // S* = N·Bb/Bc.
        assert!((terms.largest() / gib(1.0) - 50.0 * 33.0 / 128.0).abs() < 1e-9);
        for (written, pays) in [(12.5, true), (13.2, false)] {
            let sizes = (1..=20).map(Bytes::from_gib);
            let (_, outcome) = terms.best(&[(gib(written), 1.0)], sizes).unwrap();
            assert_eq!(outcome.gain > 0.0, pays, "{written}: {outcome:?}");
        }
    }

    #[test]
    fn a_burst_that_ends_before_the_cache_is_there_is_lost() {
        let late = Terms { lead: 60.0, end: 5.0, ..terms() };
        let outcome = late.outcome(gib(1.0), Bytes::from_gib(1));
        assert!(outcome.saved_s == 0.0 && outcome.gain < 0.0, "{outcome:?}");
        assert!((outcome.cost - 65.0 * 128.0).abs() < 1e-9);
    }

    #[test]
    fn the_size_is_a_quantile_of_the_likely_bursts() {
        // Small ones pay for large caches seldom: most bursts have 1 GiB, one in twenty has 8.
        let sizes = || (1..=8).map(Bytes::from_gib);
        let (mostly_small, _) = terms().best(&[(gib(1.0), 0.95), (gib(8.0), 0.05)], sizes()).unwrap();
        let (mostly_large, _) = terms().best(&[(gib(1.0), 0.2), (gib(8.0), 0.8)], sizes()).unwrap();
        assert!(
            mostly_small <= Bytes::from_gib(2) && mostly_large >= Bytes::from_gib(6),
            "{mostly_small} {mostly_large}"
        );
    }
}
