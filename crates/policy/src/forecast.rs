//! When the next burst comes.
//!
//! A reactive controller loses the time to notice a burst and to create and attach a volume, every time. Applications
//! that compute and checkpoint in turn are regular: either their pauses are alike (a fixed amount of work between
//! checkpoints) or their onsets are (a timer). Two experts, one for each, forecast the next onset from the median of what
//! they saw; the one that erred less is heard. Whether and when to attach early weighs what an early volume costs against
//! what a late one costs, in AGBs: at the quantile `early / (early + late)` of the onset both are balanced, and a volume
//! that waits in vain is deleted when waiting has cost as much as being late would have (ski rental: at most twice
//! the best that hindsight could do).

use std::cell::Cell;
use std::collections::VecDeque;
use std::time::Duration;

use surgetank_model::{Bandwidth, Bytes, Instant};

/// Intervals and errors that an expert remembers: enough for a median, few enough to follow a change.
const MEMORY: usize = 8;
/// With one interval seen nothing is known of its spread: this share of it.
const SPREAD_UNKNOWN: f64 = 0.02;
/// After a forecast in vain, an onset within this share of an interval of its forecast restores trust.
const TRUST: f64 = 0.10;

/// What being early and being late cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stakes {
    /// Bandwidth of the backing volume (Bb).
    pub backing_bandwidth: Bandwidth,
    /// Size of the backing volume (N).
    pub backing_size: Bytes,
    /// Bandwidth of the caching volume (Bc).
    pub caching_bandwidth: Bandwidth,
    /// Size of the caching volume (M).
    pub caching_size: Bytes,
}

impl Stakes {
    /// AGBs a second of holding the caching volume: Bc·M.
    fn holding_per_s(&self) -> f64 {
        self.caching_bandwidth.as_mib_s() * self.caching_size.as_gib()
    }

    /// AGBs of a burst that is absorbed later by `delay`: the application and its backing volume take longer by the
    /// share of the delay that the caching volume would have saved, Bb·N·delay·Bc/(Bb+Bc).
    fn lateness(&self, delay: Duration) -> f64 {
        let (backing, caching) = (self.backing_bandwidth.as_mib_s(), self.caching_bandwidth.as_mib_s());
        backing * self.backing_size.as_gib() * delay.as_secs_f64() * caching / (backing + caching).max(1.0)
    }
}

/// An early boost that pays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Ask for the volume then.
    pub start: Instant,
    /// After this the forecast was wrong: delete the volume, and do not start any more.
    pub until: Instant,
}

/// What it forecasts follows from what it saw, and is asked for far more often.
#[derive(Clone, Debug, Default)]
struct Expert {
    intervals: VecDeque<Duration>,
    errors: VecDeque<Duration>,
    forecast: Option<Duration>,
    /// Mean error, or a guess before any is known.
    spread: Duration,
}

impl Expert {
    fn saw(&mut self, interval: Duration) {
        if let Some(forecast) = self.forecast {
            remember(&mut self.errors, interval.abs_diff(forecast));
        }
        remember(&mut self.intervals, interval);
        self.forecast = median(&self.intervals);
        self.spread = match self.errors.len() {
            0 => self.forecast.unwrap_or_default().mul_f64(SPREAD_UNKNOWN),
            count => self.errors.iter().sum::<Duration>() / count as u32,
        };
    }
}

fn median(intervals: &VecDeque<Duration>) -> Option<Duration> {
    let mut sorted: Vec<Duration> = intervals.iter().copied().collect();
    sorted.sort_unstable();
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        length if length % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2),
    }
}

fn remember(memory: &mut VecDeque<Duration>, value: Duration) {
    if memory.len() == MEMORY {
        memory.pop_front();
    }
    memory.push_back(value);
}

/// A burst as the device saw it.
#[derive(Clone, Copy, Debug)]
struct Burst {
    onset: Instant,
    /// The end of the last sample above the threshold.
    last_hot: Instant,
}

/// Learns from the samples when bursts come. See the module.
#[derive(Clone, Debug, Default)]
pub struct Forecast {
    burst: Option<Burst>,
    /// From the end of a burst to the next onset.
    pauses: Expert,
    /// From onset to onset.
    periods: Expert,
    /// Time from asking for a volume to using it.
    attach: Expert,
    /// The longest sample lately: an onset is known no better.
    sampling: Duration,
    distrusted: bool,
    /// The last answer: it is asked for with every sample and changes with few.
    memo: Cell<Option<(Stakes, Option<Expected>)>>,
}

impl Forecast {
    /// The device was above the threshold, or not, from `from` to `to`. What is apart by less than `calm` is one burst.
    pub fn observe(&mut self, from: Instant, to: Instant, hot: bool, calm: Duration) {
        if !hot {
            return;
        }
        self.memo.set(None);
        self.sampling = to.since(from);
        match &mut self.burst {
            Some(burst) if from.since(burst.last_hot) < calm => burst.last_hot = to,
            Some(Burst { onset, last_hot }) => {
                let (pause, period) = (from.since(*last_hot), from.since(*onset));
                let near = |expert: &Expert, interval: Duration| {
                    expert.forecast.is_some_and(|forecast| interval.abs_diff(forecast) <= forecast.mul_f64(TRUST))
                };
                if near(&self.pauses, pause) || near(&self.periods, period) {
                    self.distrusted = false;
                }
                self.pauses.saw(pause);
                self.periods.saw(period);
                self.burst = Some(Burst { onset: from, last_hot: to });
            }
            None => self.burst = Some(Burst { onset: from, last_hot: to }),
        }
    }

    /// A volume was in use so long after it was asked for.
    pub fn attached(&mut self, after: Duration) {
        self.memo.set(None);
        self.attach.saw(after);
    }

    /// A volume waited in vain: no more forecasts until one would have been right.
    pub fn missed(&mut self) {
        self.memo.set(None);
        self.distrusted = true;
    }

    /// How long it takes from asking for a volume to using it, as far as that is known.
    #[must_use]
    pub fn lead(&self) -> Option<Duration> {
        self.attach.forecast
    }

    /// Whether bursts have come at intervals, and not been forecast in vain.
    #[must_use]
    pub fn is_regular(&self) -> bool {
        !self.distrusted && self.pauses.forecast.is_some()
    }

    /// When to ask for a volume for the next burst; `None` if that is not known, or does not pay.
    #[must_use]
    pub fn expected(&self, stakes: &Stakes) -> Option<Expected> {
        if let Some((of, expected)) = self.memo.get()
            && of == *stakes
        {
            return expected;
        }
        let expected = self.find_expected(stakes);
        self.memo.set(Some((*stakes, expected)));
        expected
    }

    fn find_expected(&self, stakes: &Stakes) -> Option<Expected> {
        let burst = self.burst?;
        let lead = self.attach.forecast?;
        let (pause, period) = (self.pauses.forecast?, self.periods.forecast?);
        let onset =
            if self.periods.spread < self.pauses.spread { burst.onset + period } else { burst.last_hot + pause };
        let spread = self.pauses.spread.min(self.periods.spread).max(self.sampling);
        let early = stakes.holding_per_s() * spread.as_secs_f64();
        let late = stakes.lateness(lead + self.sampling);
        if self.distrusted || early >= late {
            return None;
        }
        // The onset taken as spread evenly around the forecast; the volume is there at the balanced quantile.
        let quantile = early / (early + late);
        let before = lead + spread.mul_f64(1.0 - 2.0 * quantile);
        let patience = Duration::from_secs_f64((late / stakes.holding_per_s()).min(1e6));
        let start = Instant::from_nanoseconds(onset.since(Instant::ZERO + before).as_nanos() as u64);
        Some(Expected { start, until: onset + spread + patience })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CALM: Duration = Duration::from_secs(30);

    fn stakes() -> Stakes {
        Stakes {
            backing_bandwidth: Bandwidth::from_mib_s(33),
            backing_size: Bytes::from_gib(50),
            caching_bandwidth: Bandwidth::from_mib_s(128),
            caching_size: Bytes::from_gib(4),
        }
    }

    fn second(at: u64) -> Instant {
        Instant::from_nanoseconds(at * 1_000_000_000)
    }

    /// Samples of a second each, above the threshold in `bursts`.
    fn after(bursts: &[(u64, u64)], attach_s: u64) -> Forecast {
        let mut forecast = Forecast::default();
        forecast.attached(Duration::from_secs(attach_s));
        let end = bursts.last().map_or(0, |(_, end)| *end);
        for at in 0..end {
            let hot = bursts.iter().any(|(onset, end)| (*onset..*end).contains(&at));
            forecast.observe(second(at), second(at + 1), hot, CALM);
        }
        forecast
    }

    #[test]
    fn nothing_is_known_after_one_burst() {
        assert_eq!(after(&[(10, 50)], 8).expected(&stakes()), None);
    }

    #[test]
    fn pauses_alike_are_found_though_bursts_differ() {
        let forecast = after(&[(0, 60), (460, 500), (900, 1000), (1400, 1410)], 8);
        let expected = forecast.expected(&stakes()).unwrap();
        // The next comes at 1810; the volume is there a little before.
        assert!(expected.start < second(1802) && expected.start > second(1799), "{expected:?}");
        assert!(expected.until > second(1811) && expected.until < second(1860), "{expected:?}");
    }

    #[test]
    fn a_timer_is_found_though_bursts_differ() {
        let forecast = after(&[(0, 60), (600, 640), (1200, 1300), (1800, 1810)], 8);
        let expected = forecast.expected(&stakes()).unwrap();
        assert!(expected.start < second(2392) && expected.start > second(2389), "{expected:?}");
    }

    #[test]
    fn what_comes_and_goes_within_the_delay_is_one_burst() {
        let forecast = after(&[(0, 5), (10, 20), (25, 40), (440, 450), (460, 480)], 8);
        let expected = forecast.expected(&stakes()).unwrap();
        assert!(expected.start < second(872) && expected.start > second(850), "{expected:?}");
    }

    #[test]
    fn a_miss_silences_it_until_it_would_have_been_right() {
        let mut forecast = after(&[(0, 40), (440, 480), (880, 920)], 8);
        assert!(forecast.expected(&stakes()).is_some());
        forecast.missed();
        assert_eq!(forecast.expected(&stakes()), None);
        // Far off, then right.
        forecast.observe(second(2000), second(2001), true, CALM);
        assert_eq!(forecast.expected(&stakes()), None);
        forecast.observe(second(2401), second(2402), true, CALM);
        assert!(!forecast.distrusted);
    }

    #[test]
    fn what_is_all_over_the_place_is_not_forecast() {
        let forecast = after(&[(0, 40), (100, 140), (1900, 1940), (2000, 2040), (7000, 7040)], 8);
        assert_eq!(forecast.expected(&stakes()), None);
    }

    proptest! {
        /// A volume that waits in vain costs no more than its attach, twice the spread and what being late would cost.
        #[test]
        fn a_wait_in_vain_is_bounded(pauses in prop::collection::vec(40u64..2000, 2..12), attach in 1u64..60) {
            let mut at = 0;
            let bursts: Vec<(u64, u64)> = pauses.iter().map(|pause| {
                let onset = at + pause;
                at = onset + 20;
                (onset, at)
            }).collect();
            let stakes = stakes();
            if let Some(expected) = after(&bursts, attach).expected(&stakes) {
                let held = expected.until.since(expected.start).as_secs_f64();
                let late = stakes.lateness(Duration::from_secs(attach + 1));
                let patience = late / stakes.holding_per_s();
                prop_assert!(held <= attach as f64 + 3.0 * patience + 1e-6, "{held} {patience}");
            }
        }
    }
}
