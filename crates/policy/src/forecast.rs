//! When the next burst comes.
//!
//! A reactive controller loses the time to notice a burst and to create and attach a volume, every time. Applications
//! that compute and checkpoint in turn are regular: either their pauses are alike (a fixed amount of work between
//! checkpoints) or their onsets are (a timer). Each is a [`Series`], and the one that was forecast better is heard.
//!
//! When to ask for a volume and how long to wait with it follows from what that costs: holding it before the onset, being
//! late for one that comes earlier, and waiting for one that comes later or never. The plan with the least expected cost is
//! followed if it is below that of reacting. It never waits for longer than twice what being late costs (ski rental), and in
//! vain for more than a share of what was saved so far, or as short as a wait can be.

use std::cell::Cell;
use std::collections::VecDeque;
use std::time::Duration;

use surgetank_model::Instant;

use crate::series::{self, Series};

/// Times to attach, and to detach, that are remembered.
const TIMES: usize = 8;
/// After a forecast in vain, an onset within this share of an interval of its forecast restores trust.
const TRUST: f64 = 0.10;
/// So much of a forecast must be near for that.
const NEAR: f64 = 0.25;
/// A volume that waits must be there for so much of what is forecast: else it is a bet.
const CAUGHT: f64 = 0.5;
/// Onsets that stand for what is forecast: a power of two.
const ONSETS: u32 = 16;
/// Gaps that are remembered.
const GAPS: usize = 16;
/// With fewer of them known, a gap may as well be as long as its penalty pays for.
const GAPS_KNOWN: usize = 3;
/// An empty cache is never kept for longer than so many times the usual delay.
const DELAYS_MAX: f64 = 100.0;
/// The weight of an error to that of the next one.
const FADING: f64 = 0.8;

/// What being early and being late cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stakes {
    /// AGBs a second of holding the caching volume.
    pub holding_per_s: f64,
    /// AGBs of a burst that is absorbed a second later.
    pub lateness_per_s: f64,
    /// Seconds to detach and delete a volume that waited in vain.
    pub end_s: f64,
    /// AGBs that a wait in vain may cost, if it can be kept below.
    pub vain_max: f64,
}

/// An early boost that pays.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Ask for the volume then.
    pub start: Instant,
    /// After this the forecast was wrong: delete the volume, and do not start any more.
    pub until: Instant,
    /// AGBs that waiting for the burst, being late for it, and waiting in vain are expected to cost.
    pub cost: f64,
}

/// Intervals of one kind, and how well they were forecast.
#[derive(Clone, Debug, Default)]
struct Intervals {
    series: Series,
    /// Seconds by which the forecasts' medians were off, faded.
    error: f64,
    count: u32,
}

impl Intervals {
    fn median(&self) -> Option<f64> {
        self.series.median()
    }

    /// Whether it is about what was forecast.
    fn is_near(&self, interval: Duration) -> bool {
        let seconds = interval.as_secs_f64();
        let forecast = self.series.forecast();
        let near = forecast.iter().filter(|(value, _)| (seconds - value).abs() <= TRUST * value);
        near.map(|(_, weight)| weight).sum::<f64>() >= NEAR
    }

    fn past(&self) -> Vec<Duration> {
        self.series.values().filter_map(|seconds| Duration::try_from_secs_f64(seconds).ok()).collect()
    }

    fn saw(&mut self, interval: Duration) {
        let seconds = interval.as_secs_f64();
        if let Some(median) = self.median() {
            self.error = self.error * FADING + (seconds - median).abs();
        }
        self.count = self.count.saturating_add(1);
        self.series.push(seconds);
    }
}

fn remember(times: &mut VecDeque<Duration>, time: Duration) {
    if times.len() == TIMES {
        times.pop_front();
    }
    times.push_back(time);
}

fn median(times: &VecDeque<Duration>) -> Option<Duration> {
    let mut sorted: Vec<Duration> = times.iter().copied().collect();
    sorted.sort_unstable();
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        length if length % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2),
    }
}

/// A burst as the device saw it.
#[derive(Clone, Copy, Debug)]
struct Burst {
    onset: Instant,
    /// The end of the last hot sample.
    last_hot: Instant,
}

/// Learns from the samples when bursts come. See the module.
#[derive(Clone, Debug, Default)]
pub struct Forecast {
    burst: Option<Burst>,
    /// From the end of a burst to the next onset.
    pauses: Intervals,
    /// From onset to onset.
    periods: Intervals,
    /// Seconds between two hot samples, whether or not a burst ended.
    gaps: VecDeque<f64>,
    /// Times from asking for a volume to using it, with all tries that it took.
    attaches: VecDeque<Duration>,
    /// Times from the release of a volume to the end of its bill.
    ends: VecDeque<Duration>,
    /// The last hot sample's length: an onset is known no better.
    sampling: Duration,
    distrusted: bool,
    /// The last answer: it is asked for with every sample and changes with few.
    memo: Cell<Option<(Stakes, Option<Expected>)>>,
}

/// What is known over a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Past {
    /// From the end of a burst to the next onset, oldest first.
    pub pauses: Vec<Duration>,
    /// From onset to onset, oldest first.
    pub periods: Vec<Duration>,
    /// From asking for a volume to using it.
    pub lead: Option<Duration>,
}

impl Forecast {
    /// That of a device of which this is known.
    #[must_use]
    pub fn new(past: &Past) -> Self {
        let mut forecast = Self::default();
        past.pauses.iter().for_each(|pause| forecast.pauses.saw(*pause));
        past.periods.iter().for_each(|period| forecast.periods.saw(*period));
        forecast.attaches.extend(past.lead);
        forecast
    }

    /// What the next run needs to know.
    #[must_use]
    pub fn past(&self) -> Past {
        Past { pauses: self.pauses.past(), periods: self.periods.past(), lead: self.lead() }
    }

    /// The device was hot, or not, from `from` to `to`. What is apart by less than `calm` is one burst.
    pub fn observe(&mut self, from: Instant, to: Instant, hot: bool, calm: Duration) {
        if !hot {
            return;
        }
        self.memo.set(None);
        self.sampling = to.since(from);
        if let Some(gap) = self.burst.map(|burst| from.since(burst.last_hot)).filter(|gap| !gap.is_zero()) {
            if self.gaps.len() == GAPS {
                self.gaps.pop_front();
            }
            self.gaps.push_back(gap.as_secs_f64());
        }
        match &mut self.burst {
            Some(burst) if from.since(burst.last_hot) < calm => burst.last_hot = to,
            Some(Burst { onset, last_hot }) => {
                let (pause, period) = (from.since(*last_hot), from.since(*onset));
                if self.pauses.is_near(pause) || self.periods.is_near(period) {
                    self.distrusted = false;
                }
                self.pauses.saw(pause);
                self.periods.saw(period);
                self.burst = Some(Burst { onset: from, last_hot: to });
            }
            None => self.burst = Some(Burst { onset: from, last_hot: to }),
        }
    }

    /// For how many seconds of calm, of which `calm` have passed, an empty cache is best kept: longer costs `holding_per_s`, and
    /// a burst that finds none costs `penalty`, both in AGBs. With few gaps known, until holding has cost the penalty, at most
    /// twice what hindsight would have paid (ski rental), or `blind` seconds. Later than that never.
    #[must_use]
    pub fn keep_for(&self, calm: f64, holding_per_s: f64, penalty: f64, (blind, delay): (f64, f64)) -> f64 {
        let longest = (penalty / holding_per_s.max(f64::MIN_POSITIVE)).min(DELAYS_MAX * delay);
        if self.gaps.len() < GAPS_KNOWN {
            return longest.min(blind);
        }
        let sampling = self.sampling.as_secs_f64();
        // A gap ends with the sample after it. The last ones may all be short: those between bursts count as well.
        let ends = || self.gaps.iter().copied().chain(self.pauses.series.values()).map(|gap| gap + sampling);
        let longest_known = ends().fold(0.0, f64::max);
        // One that is longer than all before may be twice as long.
        let unknown = Some(2.0 * longest_known).filter(|_| longest_known <= calm);
        let ahead = || ends().chain(unknown).filter(|end| *end > calm);
        let cost = |until: f64| -> f64 {
            let of = |end: f64| {
                if end <= until { holding_per_s * (end - calm) } else { holding_per_s * (until - calm) + penalty }
            };
            ahead().map(of).sum()
        };
        let untils = ahead().filter(|until| *until <= longest);
        let best = untils.map(|until| (until, cost(until))).min_by(|one, other| one.1.total_cmp(&other.1));
        best.filter(|(_, least)| *least < cost(calm)).map_or(calm, |(until, _)| until)
    }

    /// A volume was in use so long after it was asked for, or would have been.
    pub fn attached(&mut self, after: Duration) {
        self.memo.set(None);
        remember(&mut self.attaches, after);
    }

    /// The bill of a volume ended so long after its release.
    pub fn ended(&mut self, after: Duration) {
        remember(&mut self.ends, after);
    }

    /// How long that takes, as far as it is known.
    #[must_use]
    pub fn end(&self) -> Option<Duration> {
        median(&self.ends)
    }

    /// A volume waited in vain: no more forecasts until one would have been right.
    pub fn missed(&mut self) {
        self.memo.set(None);
        self.distrusted = true;
    }

    /// How long it takes from asking for a volume to using it, as far as that is known.
    #[must_use]
    pub fn lead(&self) -> Option<Duration> {
        median(&self.attaches)
    }

    /// The last hot sample's length.
    #[must_use]
    pub fn sampling(&self) -> Duration {
        self.sampling
    }

    /// Seconds from onset to onset, as they are expected; `None`: nothing is known.
    #[must_use]
    pub fn period(&self) -> Option<f64> {
        self.periods.median()
    }

    /// Whether bursts have come at intervals, and not been forecast in vain.
    #[must_use]
    pub fn is_regular(&self) -> bool {
        !self.distrusted && self.pauses.count > 0
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
        let (burst, lead) = (self.burst?, self.lead()?);
        if self.distrusted {
            return None;
        }
        let (from, intervals) = if self.periods.error < self.pauses.error {
            (burst.onset, &self.periods)
        } else {
            (burst.last_hot, &self.pauses)
        };
        let mut leads: Vec<f64> = self.attaches.iter().map(Duration::as_secs_f64).collect();
        leads.sort_unstable_by(f64::total_cmp);
        let onsets = series::quantiles(intervals.series.forecast(), ONSETS);
        let plan = Plan {
            stakes,
            likely: pairs(&onsets, &leads),
            // As often as not, what came n times comes once more than n times in n + 1.
            comes: f64::from(intervals.count + 1) / f64::from(intervals.count + 2),
            lead: lead.as_secs_f64(),
            sampling: self.sampling.as_secs_f64(),
        };
        let (cost, (start, until)) = plan.best()?;
        let start = from + Duration::try_from_secs_f64(start.max(0.0)).ok()?;
        Some(Expected { start, until: from + Duration::try_from_secs_f64(until).ok()?, cost })
    }
}

/// Each onset with one of the attach times, both in order, so that the pairs are alike in all parts of either: that of the reversed
/// bits of the onset's number.
fn pairs(onsets: &[f64], leads: &[f64]) -> Vec<(f64, f64)> {
    let bits = ONSETS.trailing_zeros();
    let lead = |onset: u32| {
        let place = onset.reverse_bits() >> (u32::BITS - bits);
        leads[place as usize * leads.len() / ONSETS as usize]
    };
    (0..ONSETS).zip(onsets).map(|(number, onset)| (*onset, lead(number))).collect()
}

/// What is weighed, in seconds after the burst before, and in AGBs.
struct Plan<'a> {
    stakes: &'a Stakes,
    /// Onsets, in order, each with the time that an attach takes then; equally likely.
    likely: Vec<(f64, f64)>,
    /// The chance that there is another burst.
    comes: f64,
    /// The median of those times.
    lead: f64,
    sampling: f64,
}

impl Plan<'_> {
    /// What reacting loses with this attach time.
    fn late(&self, lead: f64) -> f64 {
        self.stakes.lateness_per_s * (lead + self.sampling)
    }

    fn mean(&self, of: impl Fn(&(f64, f64)) -> f64) -> f64 {
        self.likely.iter().map(of).sum::<f64>() / self.likely.len() as f64
    }

    /// What a volume costs that is asked for at `start` and waits for the burst until then.
    fn cost(&self, start: f64, until: f64) -> f64 {
        let Stakes { holding_per_s, lateness_per_s, end_s, .. } = *self.stakes;
        let vain = |lead: f64| holding_per_s * ((until - start - lead).max(0.0) + end_s);
        let comes = self.mean(|&(onset, lead)| match start + lead {
            _ if onset > until => vain(lead) + self.late(lead),
            ready if onset >= ready => holding_per_s * (onset - ready),
            ready => (lateness_per_s * (ready - onset)).min(self.late(lead)),
        });
        let never = self.mean(|&(_, lead)| vain(lead) + holding_per_s * lead);
        self.comes * comes + (1.0 - self.comes) * never
    }

    /// The least cost, when to ask for the volume, and how long to wait; `None`: reacting costs less.
    fn best(&self) -> Option<(f64, (f64, f64))> {
        let Stakes { holding_per_s, end_s, vain_max, .. } = *self.stakes;
        // An onset is noticed at the end of its sample, and known no better than that.
        let spare = 2.0 * self.sampling;
        let shortest = holding_per_s * (self.lead + self.sampling + spare + end_s);
        let late = self.mean(|(_, lead)| self.late(*lead));
        let mut best = (self.comes * late, None);
        for (first, before) in &self.likely {
            let start = first - self.sampling - before;
            let ready = start + self.lead;
            for until in self.likely.iter().map(|(last, _)| last + spare).filter(|until| *until > ready) {
                let held = holding_per_s * (until - ready);
                let in_vain = held + holding_per_s * (self.lead + end_s);
                if held > 2.0 * late || in_vain > vain_max.max(shortest) {
                    continue;
                }
                let is_caught = |(onset, lead): &&(f64, f64)| (start + lead..=until).contains(onset);
                if (self.likely.iter().filter(is_caught).count() as f64) < CAUGHT * self.likely.len() as f64 {
                    continue;
                }
                let cost = self.cost(start, until);
                if cost < best.0 {
                    best = (cost, Some((start, until)));
                }
            }
        }
        best.1.map(|when| (best.0, when))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CALM: Duration = Duration::from_secs(30);

    fn stakes() -> Stakes {
        // The papers' volumes, with a cache of 4 GiB.
        Stakes {
            holding_per_s: 4.0 * 128.0,
            lateness_per_s: 50.0 * 33.0 * 128.0 / 161.0,
            end_s: 3.0,
            vain_max: f64::INFINITY,
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
    fn an_empty_cache_is_kept_for_gaps_that_are_short() {
        // Nothing is known: as long as the penalty pays for.
        assert_eq!(after(&[(0, 5)], 8).keep_for(0.0, 10.0, 200.0, (30.0, 30.0)), 20.0);
        let short = after(&[(0, 5), (15, 20), (30, 35), (300, 305), (315, 320), (330, 335)], 8);
        assert_eq!(short.keep_for(1.0, 10.0, 200.0, (30.0, 30.0)), 11.0);
        // It has passed, and the next is too long.
        assert_eq!(short.keep_for(12.0, 10.0, 200.0, (30.0, 30.0)), 12.0);
        let long = after(&[(0, 5), (100, 105), (200, 205), (300, 305)], 8);
        assert_eq!(long.keep_for(1.0, 10.0, 200.0, (30.0, 30.0)), 1.0);
        assert_eq!(long.keep_for(1.0, 1.0, 200.0, (30.0, 30.0)), 96.0);
    }

    #[test]
    fn pauses_are_known_though_many_short_gaps_came_since() {
        let bursts: Vec<(u64, u64)> = (0..4)
            .flat_map(|burst| (0..20).map(move |part| (500 * burst + 10 * part, 500 * burst + 10 * part + 5)))
            .collect();
        let forecast = after(&bursts, 8);
        assert!(forecast.gaps.iter().all(|gap| *gap == 5.0), "{:?}", forecast.gaps);
        assert_eq!(forecast.keep_for(60.0, 1.0, 1000.0, (30.0, 30.0)), 306.0);
        assert_eq!(forecast.keep_for(60.0, 1.0, 200.0, (30.0, 30.0)), 60.0, "that is too long");
    }

    #[test]
    fn a_provider_that_varies_is_asked_earlier_where_late_volumes_are_dear() {
        let mut forecast = after(&[(0, 40), (440, 480), (880, 920), (1320, 1360)], 8);
        for _ in 0..3 {
            forecast.attached(Duration::from_secs(8));
            forecast.attached(Duration::from_secs(30));
        }
        let start = |lateness: f64| {
            let usual = stakes();
            forecast.expected(&Stakes { lateness_per_s: lateness * usual.lateness_per_s, ..usual }).unwrap().start
        };
        assert_eq!(forecast.lead(), Some(Duration::from_secs(8)));
        // The next comes at 1760.
        assert!(start(100.0) <= second(1731), "{}", start(100.0));
        assert!(start(0.4) >= second(1740), "{}", start(0.4));
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

    #[test]
    fn a_wait_in_vain_costs_a_share_of_what_was_saved_where_it_can() {
        let expected = |bursts: &[(u64, u64)], vain_max| after(bursts, 8).expected(&Stakes { vain_max, ..stakes() });
        let varying = [(0, 40), (430, 480), (880, 920), (1330, 1370), (1760, 1800)];
        assert!(expected(&varying, f64::INFINITY).is_some());
        assert_eq!(expected(&varying, 1000.0), None);
        // The lead and three samples: no wait is shorter.
        let alike = [(0, 40), (440, 480), (880, 920), (1320, 1360)];
        let wait = expected(&alike, 1000.0).map(|expected| expected.until.since(expected.start));
        assert_eq!(wait, Some(Duration::from_secs(8 + 3)));
    }

    proptest! {
        /// A volume that waits in vain costs no more than its attach, some samples and twice what being late would cost.
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
                let late = stakes.lateness_per_s * (attach + 1) as f64;
                prop_assert!(held <= attach as f64 + 2.0 * late / stakes.holding_per_s + 1e-6, "{held}");
            }
        }
    }
}
