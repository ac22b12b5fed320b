//! When to try again: exponential, capped, with seeded jitter.

use std::time::Duration;

use surgetank_model::random::Random;

/// How long to wait after refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Wait after the first refusal, before jitter.
    pub first: Duration,
    /// The longest wait; doubling stops there.
    pub cap: Duration,
    /// Wait after a refusal that will not pass by itself (someone must act first).
    pub permanent: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { first: Duration::from_secs(2), cap: Duration::from_secs(300), permanent: Duration::from_secs(1800) }
    }
}

impl Backoff {
    /// The wait after the `attempt`-th refusal in a row (from 1): `first` × 2^(attempt − 1), at most `cap`, of which
    /// a random half is taken off so that many devices do not ask at once. At least a millisecond.
    #[must_use]
    pub fn delay(&self, attempt: u32, random: &mut Random) -> Duration {
        let doublings = attempt.saturating_sub(1).min(20);
        let full = self.first.saturating_mul(1 << doublings).min(self.cap);
        let jittered = full.mul_f64(1.0 - random.unit() / 2.0);
        jittered.max(Duration::from_millis(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_to_the_cap_and_jitters_by_half() {
        let backoff = Backoff::default();
        let mut random = Random::from_seed(7);
        for attempt in 1..100 {
            let full = backoff.first.saturating_mul(1 << (attempt - 1).min(20)).min(backoff.cap);
            let delay = backoff.delay(attempt, &mut random);
            assert!(delay <= full && delay >= full / 2, "{attempt}: {delay:?} of {full:?}");
        }
    }
}
