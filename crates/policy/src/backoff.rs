//! When to try again: exponential, capped, with seeded jitter.

use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_model::volume;

use crate::step::Refusal;

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

    /// The wait after the `attempt`-th refusal in a row (from 1), by what the last one was.
    #[must_use]
    pub fn wait(&self, refusal: &Refusal, attempt: u32, random: &mut Random) -> Duration {
        match refusal {
            Refusal::Permanent(_) => self.permanent,
            _ => self.wait_until_done(refusal, attempt, random),
        }
    }

    /// The same for what costs money until it is done: it never waits for a person.
    #[must_use]
    pub fn wait_until_done(&self, refusal: &Refusal, attempt: u32, random: &mut Random) -> Duration {
        throttled(self.delay(attempt, random), refusal, self.cap)
    }
}

/// `own`, unless the provider has had too many requests and wants to be asked later than that: then as late, at most after `longest`.
#[must_use]
pub fn throttled(own: Duration, refusal: &Refusal, longest: Duration) -> Duration {
    match refusal {
        Refusal::Throttled { after, .. } => volume::throttled(own, *after).min(longest.max(own)),
        _ => own,
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

    #[test]
    fn a_provider_that_throttles_is_asked_when_it_says_within_a_second_and_the_cap() {
        let (second, cap) = (Duration::from_secs(1), Duration::from_secs(300));
        let after = |after| Refusal::Throttled { after, text: String::new() };
        for (own, said, wait) in [
            (second / 10, None, second),
            (second / 10, Some(Duration::ZERO), second),
            (second / 10, Some(second * 30), second * 30),
            (second * 40, Some(second * 30), second * 40),
            (second * 40, None, second * 40),
            (second, Some(Duration::MAX), cap),
        ] {
            assert_eq!(throttled(own, &after(said), cap), wait, "{own:?}, {said:?}");
        }
        assert_eq!(throttled(second / 10, &after(Some(second * 30)), second / 5), second / 5, "the cap is the user's");
        assert_eq!(throttled(second / 10, &Refusal::Capacity, cap), second / 10);
        let (backoff, mut random) = (Backoff { cap, ..Backoff::default() }, Random::from_seed(7));
        assert_eq!(backoff.wait(&after(Some(second * 90)), 1, &mut random), second * 90);
        assert_eq!(backoff.wait_until_done(&after(Some(second * 90)), 1, &mut random), second * 90);
        assert!(backoff.wait_until_done(&Refusal::Permanent(String::new()), 1, &mut random) <= backoff.first);
    }
}
