//! The fluid model of one burst: volumes as pipes of constant width, no request sizes, no queues.
//!
//! Split (both volumes take writes at once, in proportion to their bandwidths): S bytes take
//! max((S−M)/Bb, S/(Bb+Bc)) to absorb; a cache of M* = S·Bc/(Bb+Bc) suffices; whatever its size, everything has reached
//! the backing volume after S/Bb. Write-back (the papers' controller: everything goes to the cache while it has room,
//! and the application comes before the drain): S/Bc if it fits, the rest at Bb; the drain of what is in the cache
//! takes M/Bb more.

use std::time::Duration;

use surgetank_model::{Bandwidth, Bytes};
use surgetank_policy::file::PolicyConfig;

/// Where the writes of a burst go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absorb {
    /// To both volumes, so that both run at full rate.
    Split,
    /// To the caching volume while it has room.
    WriteBack,
}

impl Absorb {
    /// As flags and JSON name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Split => "split",
            Self::WriteBack => "writeback",
        }
    }

    /// How a controller absorbs.
    #[must_use]
    pub fn of(policy: &PolicyConfig) -> Self {
        let split = policy.split.unwrap_or(policy.preset.how.split);
        if split { Self::Split } else { Self::WriteBack }
    }
}

/// The two volumes of an elastic device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pipes {
    /// The papers' Bb.
    pub backing: Bandwidth,
    /// The papers' Bc.
    pub caching: Bandwidth,
}

/// What a burst takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// Seconds from the first write to the last.
    pub absorb_s: f64,
    /// Seconds from the first write until everything is on the backing volume: so long the caching volume is needed.
    pub occupied_s: f64,
}

/// What real life adds to a burst. All zero: the bound that no controller beats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delays {
    /// From the first write until the caching volume absorbs: the backing volume alone serves so long.
    pub boost: Duration,
    /// How long the controller waits for more after the last write.
    pub quiet: Duration,
    /// From the end of the drain until the volume is deleted.
    pub release: Duration,
}

impl Pipes {
    /// A burst whose caching volume comes late and goes late. `occupied_s` counts from when it is there.
    #[must_use]
    pub fn delayed(&self, dataset: Bytes, cache: Bytes, absorb: Absorb, delays: &Delays) -> Burst {
        let (lead_s, quiet_s) = (delays.boost.as_secs_f64(), delays.quiet.as_secs_f64());
        let before = (self.backing.get() as f64 * lead_s) as u64;
        let rest = self.burst(Bytes::new(dataset.get().saturating_sub(before)), cache, absorb);
        let alone_s = (dataset.as_mib() / self.backing.as_mib_s()).min(lead_s);
        Burst {
            absorb_s: alone_s + rest.absorb_s,
            occupied_s: rest.occupied_s.max(rest.absorb_s + quiet_s) + delays.release.as_secs_f64(),
        }
    }

    /// A burst of `dataset` with a caching volume of `cache`.
    #[must_use]
    pub fn burst(&self, dataset: Bytes, cache: Bytes, absorb: Absorb) -> Burst {
        let (slow, fast) = (self.backing.as_mib_s(), self.caching.as_mib_s());
        let (total, room) = (dataset.as_mib(), cache.as_mib().min(dataset.as_mib()));
        match absorb {
            Absorb::Split => {
                Burst { absorb_s: ((total - room) / slow).max(total / (slow + fast)), occupied_s: total / slow }
            }
            Absorb::WriteBack => {
                let absorb_s = room / fast + (total - room) / slow;
                Burst { absorb_s, occupied_s: absorb_s + room / slow }
            }
        }
    }

    /// The smallest cache that absorbs a burst as fast as any.
    #[must_use]
    pub fn cache_for(&self, dataset: Bytes, absorb: Absorb) -> Bytes {
        match absorb {
            Absorb::WriteBack => dataset,
            Absorb::Split => {
                let both = u128::from(self.backing.get()) + u128::from(self.caching.get());
                let share = u128::from(dataset.get()) * u128::from(self.caching.get());
                Bytes::new(u64::try_from(share.div_ceil(both)).unwrap_or(u64::MAX))
            }
        }
    }

    /// The dataset in GiB above which no cache pays in AGBs: renting it until it is drained costs more than the backing
    /// volume for the time that it saves. `None`: it never pays, however small the dataset.
    ///
    /// Split with M*: saved N·S·Bc/(Bb+Bc), paid Bc·M*·S/Bb, so S = N·Bb/Bc. Write-back with M = S: saved N·S·(1−Bb/Bc),
    /// paid Bc·S·(S/Bc + S/Bb), so S = N·(1−Bb/Bc)/(1+Bc/Bb).
    #[must_use]
    pub fn break_even_gib(&self, backing_size: Bytes, absorb: Absorb) -> Option<f64> {
        let (slow, fast) = (self.backing.as_mib_s(), self.caching.as_mib_s());
        let gib = match absorb {
            Absorb::Split => backing_size.as_gib() * slow / fast,
            Absorb::WriteBack => backing_size.as_gib() * (1.0 - slow / fast) / (1.0 + fast / slow),
        };
        (gib > 0.0).then_some(gib)
    }
}
