//! How often a cloud is asked: a bucket for the verbs that read and one for those that change, shared by all devices of a daemon.
//! A verb that finds its bucket empty is refused as the cloud would refuse it, so whoever asks decides on the wait.

use std::time::Duration;

use surgetank_model::bucket::TokenBucket;
use surgetank_model::time::Instant;

use crate::Verb;

/// So many seconds' worth of verbs that read may come at once.
const READS_BURST_S: u64 = 4;
/// The same of verbs that change something.
const WRITES_BURST_S: u64 = 5;

/// The buckets.
#[derive(Clone, Debug)]
pub struct Rates {
    reads: TokenBucket,
    writes: TokenBucket,
}

impl Rates {
    /// Full buckets at `now`.
    #[must_use]
    pub fn new(now: Instant, reads_per_s: u32, writes_per_s: u32) -> Self {
        let bucket = |per_s: u32, burst_s| TokenBucket::full(now, per_s.into(), u64::from(per_s) * burst_s);
        Self { reads: bucket(reads_per_s, READS_BURST_S), writes: bucket(writes_per_s, WRITES_BURST_S) }
    }

    /// Takes a token for this verb.
    ///
    /// # Errors
    /// How long until there is one.
    pub fn take(&mut self, now: Instant, verb: Verb) -> Result<(), Duration> {
        let bucket = match verb {
            Verb::Describe | Verb::List => &mut self.reads,
            Verb::Create | Verb::Attach | Verb::Detach | Verb::Delete | Verb::SetTag | Verb::Grow => &mut self.writes,
        };
        bucket.take(now, 1).map_err(|at| Duration::from_nanos(at.as_nanoseconds().saturating_sub(now.as_nanoseconds())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_pass_and_then_the_rate_holds_for_each_kind_of_verb() {
        let start = Instant::ZERO;
        let mut rates = Rates::new(start, 5, 1);
        for (verb, burst, wait_ms) in [(Verb::Describe, 20, 200), (Verb::Delete, 5, 1000)] {
            for _ in 0..burst {
                assert_eq!(rates.take(start, verb), Ok(()));
            }
            let wait = rates.take(start, verb).unwrap_err();
            assert!(
                wait > Duration::ZERO && wait <= Duration::from_millis(wait_ms) + Duration::from_nanos(1),
                "{wait:?}"
            );
            assert_eq!(rates.take(start + wait, verb), Ok(()), "it is asked again when it says");
        }
        assert_eq!(rates.take(start + Duration::from_secs(60), Verb::List), Ok(()));
    }
}
