//! How often a cloud is asked: a bucket for the verbs that read and one for those that change, shared by all devices of a daemon.
//! A verb that finds its bucket empty is refused as the cloud would refuse it, so whoever asks decides on the wait.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use surgetank_model::bucket::TokenBucket;
use surgetank_model::time::Instant;

use crate::{ProviderError, Verb};

/// So many seconds' worth of verbs that read may come at once.
const READS_BURST_S: u64 = 4;
/// The same of verbs that change something.
const WRITES_BURST_S: u64 = 5;

/// Checks what a section says of rates. `who` permits so many calls.
///
/// # Errors
/// One sentence with the remedy.
pub fn check(who: &str, reads_per_s: u32, writes_per_s: u32) -> Result<(), String> {
    for (key, rate) in [("reads_per_s", reads_per_s), ("writes_per_s", writes_per_s)] {
        if !(1..=1_000_000).contains(&rate) {
            return Err(format!("{key} is {rate}: write how many calls {who} permits in a second, at least 1"));
        }
    }
    Ok(())
}

/// The buckets, and the time by which they fill.
#[derive(Debug)]
pub struct Turns {
    cloud: &'static str,
    section: &'static str,
    started: std::time::Instant,
    rates: Mutex<Rates>,
}

impl Turns {
    /// Full buckets, for what people call `cloud` and a `section` of the configuration.
    #[must_use]
    pub fn new(cloud: &'static str, section: &'static str, reads_per_s: u32, writes_per_s: u32) -> Self {
        let rates = Mutex::new(Rates::new(Instant::ZERO, reads_per_s, writes_per_s));
        Self { cloud, section, started: std::time::Instant::now(), rates }
    }

    /// Before a verb's first call, so that what is throttled has not been carried out.
    ///
    /// # Errors
    /// `Throttled`, with the time until there is a token.
    pub fn take(&self, verb: Verb) -> Result<(), ProviderError> {
        let now = Instant::ZERO + self.started.elapsed();
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        rates.take(now, verb).map_err(|after| ProviderError::Throttled {
            after: Some(after),
            text: format!(
                "this daemon asks {} no more often than reads_per_s and writes_per_s of {} say",
                self.cloud, self.section
            ),
        })
    }
}

#[derive(Clone, Debug)]
struct Rates {
    reads: TokenBucket,
    writes: TokenBucket,
}

impl Rates {
    fn new(now: Instant, reads_per_s: u32, writes_per_s: u32) -> Self {
        let bucket = |per_s: u32, burst_s| TokenBucket::full(now, per_s.into(), u64::from(per_s) * burst_s);
        Self { reads: bucket(reads_per_s, READS_BURST_S), writes: bucket(writes_per_s, WRITES_BURST_S) }
    }

    /// The error says how long until there is one.
    fn take(&mut self, now: Instant, verb: Verb) -> Result<(), Duration> {
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
