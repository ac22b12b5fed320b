//! What tests draw at random: the same seed, the same setup.

use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_model::volume_type::{CreditUnit, Credits};
use surgetank_model::{Bandwidth, Bytes, Limits};

/// What is drawn at random.
pub struct Chance(Random);

impl Chance {
    pub fn of(seed: u64) -> Self {
        Self(Random::from_seed(seed))
    }

    /// A number between two others, both allowed.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.below(high - low + 1)
    }

    pub fn one_in(&mut self, count: u64) -> bool {
        self.0.below(count) == 0
    }

    /// Mostly on the sampling grid, so that what coincides with samples is seen as well.
    pub fn time(&mut self, low_s: u64, high_s: u64) -> Duration {
        let seconds = Duration::from_secs(self.between(low_s, high_s));
        if self.one_in(3) { seconds + Duration::from_millis(self.between(1, 999)) } else { seconds }
    }

    /// Sizes of all orders between these.
    pub fn mib(&mut self, low: u64, high: u64) -> Bytes {
        let most = low << self.between(0, (high / low).ilog2().into());
        Bytes::new(self.between(low, most.min(high)) << 20)
    }

    /// Credits of a volume of so many MiB/s, once in `one_in`.
    pub fn credits(&mut self, one_in: u64, backing: u64) -> Option<Credits> {
        let operations = self.one_in(2);
        let per_s = |mib_s: u64| if operations { mib_s } else { mib_s << 20 };
        self.one_in(one_in).then(|| Credits {
            unit: if operations { CreditUnit::Operations } else { CreditUnit::Bytes },
            baseline_per_s: per_s(self.between(1, backing * 3 / 2)),
            burst_per_s: per_s(backing * 2),
            bucket: per_s(self.between(1, 20_000)),
        })
    }
}

/// Limits of so many MiB/s alone.
pub fn limits(mib_s: u64) -> Limits {
    Limits { bandwidth: Some(Bandwidth::from_mib_s(mib_s)), iops: None }
}
