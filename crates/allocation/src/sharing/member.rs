//! What is known of the accesses of one that shares, and what its reads take with another share.
//!
//! What a device's reads really take differs from what follows from its curve and the times of hits and misses: reads are larger than a
//! block, and the curve is that of a sample. By how much is measured as well, and the model is corrected by it.
//!
//! A cache of the curve's policy takes everything in at once. A real one keeps segments free for what comes, and does not cache what comes too fast, so
//! it may miss as much as a smaller one of the curve does. How much smaller is measured too, where the curve is steep enough to tell.
//!
//! What a miss waits for is the disk, and the queue before it. Whoever reads as fast as the disk gives (a loop of reads) waits the
//! longer the more of them miss, and waits for nothing else: by Little's law N readers of whose reads a part m misses take
//! N·m times as long for a read and the pause after it as the disk is busy with one. The times of hits and misses in one interval do not show
//! that of another share. A plan is made of the longer of both, whatever the share.
//!
//! Of two levels that share, the second one is asked for what the first one misses, and keeps what the first one has as well: the disk sees what
//! the larger one would miss.

use std::time::Duration;

use surgetank_model::Bytes;

use super::{HOST, Observed, SECOND, Sharer, Verdict};
use crate::confidence::margin;
use crate::curve::{MissCurve, interpolate};
use crate::problem::{Application, Estimate, Latencies, Model, Queue, Slo};

/// Reads that an interval has at least, so that its average says something.
const READS_LEAST: u64 = 50;
/// What a new measurement of fewer reads weighs beside the former ones.
const WEIGHT: f64 = 0.5;
/// Reads of an interval whose average needs no former ones.
const READS_ENOUGH: u64 = 500;
/// The share of its time for which a disk is busy that has a queue.
const SATURATED: f64 = 0.8;
/// By what factor reads take longer than their disk's queue at least, if they wait for something else.
const QUEUED: f64 = 1.1;
/// Intervals without a read after which the accesses of one do not count any more: little is left of their weight by then.
pub(super) const IDLE_MAX: u32 = 10;
/// By how much more reads are in flight on average, at most, than there are readers: what was in flight when the interval began counts.
const READERS_TOLERANCE: f64 = 0.05;
/// Readers that count, and the pause of one as a multiple of what its reads take: beyond that no disk has a queue because of them.
const READERS_MAX: f64 = 1e6;
const PAUSE_MAX: f64 = 1e3;
/// By how much a model is corrected at most.
const CORRECTION: (f64, f64) = (0.25, 4.0);
/// What a cache is worth, as a part of a cache of the curve: at first, at least and at most.
const WORTH: (f64, f64, f64) = (1.0, 0.6, 1.1);
/// A curve that falls by less than this within those bounds does not tell what the cache is worth.
const STEEP: f64 = 0.05;
/// Differences of miss ratios that tell nothing.
const TELLING: f64 = 0.01;
/// Deviations by which a sampled curve may be wrong: it is in 19 of 20 cases.
const DEVIATIONS: f64 = 1.64;

/// What is known of the accesses of one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Known {
    /// Of the cache as it is.
    curve: MissCurve,
    /// The part of its size that a cache of the curve would need.
    worth: f64,
    sampled: f64,
    hit: Duration,
    /// What a hit in the second level takes; `None`: that does not share.
    second: Option<Duration>,
    /// What a miss takes without a queue before the disk, as far as that was seen.
    miss: Duration,
    /// What a read and the pause before the next one take if all miss and the disk is saturated; zero if the disk's limits are not known.
    queue: Duration,
    /// That pause, on average.
    pause: Duration,
    /// What reads really take, as a part of what the curve says.
    correction: f64,
    /// What its caches can have now.
    most: Shares,
}

impl Known {
    /// The average latency with shares of this size.
    pub fn latency(&self, shares: Shares) -> Duration {
        self.with_misses(self.misses(shares))
    }

    /// The average latency if these parts of the reads miss.
    fn with_misses(&self, misses: Misses) -> Duration {
        self.modelled(misses).mul_f64(self.correction)
    }

    fn misses(&self, shares: Shares) -> Misses {
        let at = |size: Bytes| interpolate(self.curve.points(), size.get() as f64);
        let first = shares.first.min(self.most.first);
        let second = if self.second.is_some() { shares.second.min(self.most.second) } else { Bytes::ZERO };
        Misses { first: at(first), both: at(first.max(second)) }
    }

    /// The same, uncorrected: the longer one of what it is without a queue before the disk, and behind one that is always there.
    fn modelled(&self, misses: Misses) -> Duration {
        let second = self.second.unwrap_or(self.hit);
        let first = second.saturating_sub(self.hit).mul_f64(misses.first);
        let alone = self.hit + first + self.miss.saturating_sub(second).mul_f64(misses.both);
        let queued = self.queue.mul_f64(misses.both).saturating_sub(self.pause);
        alone.max(queued)
    }

    /// For a plan of one level, where what a read takes is a line over the misses: the latencies with none and with all, and a curve whose ratios say
    /// how far between them the latency with each size is.
    fn of_one_level(&self) -> (Latencies, MissCurve) {
        let all = |misses: f64| self.with_misses(Misses { first: misses, both: misses });
        let hit = all(0.0).max(Duration::from_nanos(1));
        // There is no second level; each is slower than the one before it all the same.
        let latencies = ascending([hit, hit, all(1.0)]);
        let part = |misses: f64| all(misses).saturating_sub(hit).div_duration_f64(latencies.disk - hit);
        (latencies, self.curve.mapped(part))
    }

    /// For a plan of both.
    fn of_two_levels(&self, second: Duration) -> (Latencies, Option<Queue>) {
        let corrected = |time: Duration| time.mul_f64(self.correction);
        let queue = Queue { all: corrected(self.queue), pause: corrected(self.pause) };
        let latencies = ascending([self.hit, second, self.miss].map(corrected));
        (latencies, (!self.queue.is_zero()).then_some(queue))
    }
}

/// Each slower than the one before it.
fn ascending([hit, second, disk]: [Duration; 3]) -> Latencies {
    let least = Duration::from_nanos(1);
    let level1 = hit.max(least);
    let level2 = second.max(level1 + least);
    Latencies { level1, level2, disk: disk.max(level2 + least) }
}

/// What one has of both levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Shares {
    pub first: Bytes,
    pub second: Bytes,
}

/// Which parts of the reads miss the first level, and both.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Misses {
    first: f64,
    both: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Member {
    pub sharer: Sharer,
    pub known: Option<Known>,
    pub violations: u32,
    pub verdict: Option<Verdict>,
    /// What its reads take beyond the cache, which no share changes: times of this member are without it.
    pub overhead: Duration,
    /// What its reads are to take in the interval that runs, with the share that is planned.
    pub predicted: Option<Duration>,
    /// Whether its device is served over its cache. If not, nobody tells the cache its limit.
    pub is_served: bool,
    /// What it might have, and what its caches had, when the interval began.
    pub former: (Shares, Shares),
    /// Intervals in a row in which nothing was read.
    pub idle: u32,
}

impl Member {
    /// Nothing is known of it.
    pub fn new(sharer: Sharer) -> Self {
        Self {
            sharer,
            known: None,
            violations: 0,
            verdict: None,
            overhead: Duration::ZERO,
            predicted: None,
            is_served: false,
            former: <(Shares, Shares)>::default(),
            idle: 0,
        }
    }

    /// Whether a plan has a second level of it.
    pub fn is_of_two_levels(&self) -> bool {
        self.known.as_ref().is_some_and(|known| known.second.is_some())
    }

    /// It read nothing, or is not served: it was not above its bound, and after some time it has its fair share again.
    pub fn rest(&mut self) {
        self.violations = 0;
        self.idle = self.idle.saturating_add(1);
        if self.idle >= IDLE_MAX {
            (self.known, self.verdict) = (None, None);
        }
    }

    pub fn observe(&mut self, observed: &Observed, is_settled: bool, limit: Shares, fair: Shares) {
        self.idle = 0;
        let Some((curve, sampled)) = &observed.curve else { return };
        let former = self.known.take();
        let weight = if observed.reads >= READS_ENOUGH { 1.0 } else { WEIGHT };
        let smooth = |new: Option<Duration>, former: Option<Duration>| match (new, former) {
            (Some(new), Some(former)) => Some(former.mul_f64(1.0 - weight) + new.mul_f64(weight)),
            (new, former) => new.or(former),
        };
        self.overhead = match former {
            Some(_) => self.overhead.mul_f64(1.0 - weight) + observed.overhead.mul_f64(weight),
            None => observed.overhead,
        };
        // What the first level misses waits for the second one, where it is asked.
        let (hit, (second, miss)) = match &observed.second {
            Some(behind) => (observed.waits.0, behind.waits),
            None => (observed.waits.0, (None, observed.waits.1)),
        };
        // Whoever reads waits for an answer or makes a pause: so many are there at least.
        let in_flight = if observed.in_flight.is_finite() { observed.in_flight } else { 0.0 };
        let readers = (in_flight - READERS_TOLERANCE).ceil().clamp(1.0, READERS_MAX);
        let queue = observed.disk.map(|disk| disk.busy.mul_f64(readers));
        let queue = smooth(queue, former.as_ref().map(|known| known.queue)).unwrap_or_default();
        let pause = observed.latency.filter(|_| in_flight > 0.0);
        let pause = pause.map(|latency| latency.mul_f64((readers / in_flight - 1.0).clamp(0.0, PAUSE_MAX)));
        let pause = smooth(pause, former.as_ref().map(|known| known.pause)).unwrap_or_default();
        // Behind a queue a miss does not tell what it takes without one. A single reader's disk is as busy without one: where its reads take longer
        // than they would in a queue, there is none.
        let is_saturated = observed.disk.is_some_and(|disk| disk.utilization >= SATURATED);
        let missed = observed.misses.map(|first| {
            let behind = observed.second.as_ref().and_then(|second| second.misses);
            Misses { first, both: first * behind.unwrap_or(1.0) }
        });
        let queued = missed.map(|missed| queue.mul_f64(missed.both).saturating_sub(pause));
        let is_longer = observed.latency.zip(queued).is_some_and(|(latency, queued)| latency >= queued.mul_f64(QUEUED));
        let is_queued = readers > 1.0 || !is_longer;
        let miss = miss.map(|miss| match hit.filter(|_| is_saturated && is_queued) {
            Some(hit) => former.as_ref().map_or(hit, |known| known.miss).min(miss),
            None => miss,
        });
        let hit = smooth(hit, former.as_ref().map(|known| known.hit));
        let second = smooth(second, former.as_ref().and_then(|known| known.second));
        let miss = smooth(miss, former.as_ref().map(|known| known.miss));
        // Where nothing hit yet, or all did, the other one is all that is known.
        let (Some(hit), Some(miss)) = (hit.or(miss), miss.or(hit)) else {
            self.known = former;
            return;
        };
        // Nothing that the second level answered: it may be as fast as the first one.
        let second = observed.second.as_ref().map(|_| second.unwrap_or(hit));
        let worth = former.as_ref().map_or(WORTH.0, |known| known.worth);
        let measured = missed.filter(|_| is_settled && observed.reads >= READS_LEAST);
        let worth =
            measured.map_or(worth, |missed| f64::midpoint(worth, self::worth(curve, limit.first, missed.first, worth)));
        let curve = curve.stretched(1.0 / worth);
        let correction = former.map_or(1.0, |known| known.correction);
        let of_second = observed.second.as_ref().map(|second| second.size);
        let second_most = self.sharer.second.zip(of_second).map(|(most, size)| most.min(size));
        let most = Shares { first: self.sharer.most, second: second_most.unwrap_or_default() };
        let mut known = Known { most, curve, worth, sampled: *sampled, hit, second, miss, queue, pause, correction };
        if let Some(latency) = observed.latency.filter(|_| observed.reads >= READS_LEAST) {
            let fair = known.latency(fair);
            let bound = match self.sharer.slo {
                Slo::AboveFair(above) => {
                    Duration::try_from_secs_f64(fair.as_secs_f64() * (1.0 + above)).unwrap_or(Duration::MAX)
                }
                Slo::Latency(bound) => self.of_cache(bound),
            };
            let verdict =
                Verdict { latency, expected: self.predicted.unwrap_or_else(|| known.latency(limit)), fair, bound };
            self.violations = if verdict.slo_met() { 0 } else { self.violations + 1 };
            self.verdict = Some(verdict);
            // By what missed: where the curve is wrong, times are not.
            let modelled = known.modelled(measured.unwrap_or_else(|| known.misses(limit))).as_secs_f64();
            if modelled > 0.0 && is_settled {
                let seen = (latency.as_secs_f64() / modelled).clamp(CORRECTION.0, CORRECTION.1);
                known.correction = known.correction * (1.0 - weight) + seen * weight;
            }
        }
        self.known = Some(known);
    }

    /// What of a bound on reads is left for the cache.
    fn of_cache(&self, bound: Duration) -> Duration {
        bound.saturating_sub(self.overhead).max(Duration::from_nanos(1))
    }

    pub fn application(&self, name: &str, fair: Shares) -> Option<Application> {
        let known = self.known.as_ref()?;
        let (latencies, queue, curve) = match known.second {
            Some(second) => {
                let (latencies, queue) = known.of_two_levels(second);
                (latencies, queue, known.curve.clone())
            }
            None => {
                let (latencies, curve) = known.of_one_level();
                (latencies, None, curve)
            }
        };
        let most = [known.most.first, known.most.second];
        let slowest = queue.map_or(latencies.disk, |queue| latencies.disk.max(queue.all.saturating_sub(queue.pause)));
        let bound_ms = self.verdict.map_or(slowest, |verdict| verdict.bound).as_secs_f64() * 1e3;
        // The estimates of both shares are from one sample, and are wrong in the same direction.
        let margin_max = match self.sharer.slo {
            Slo::AboveFair(above) => above / (1.0 + above) / 2.0,
            // Where the fair share holds the bound by the estimate, too few samples do not make that infeasible.
            Slo::Latency(bound) => match 1.0 - known.latency(fair).div_duration_f64(self.of_cache(bound)) {
                left if left > 0.0 => left,
                _ => 1.0,
            },
        };
        Some(Application {
            name: name.to_owned(),
            level1: HOST.to_owned(),
            level2: known.second.map(|_| SECOND.to_owned()).into_iter().collect(),
            latencies: Some(latencies),
            most: Some(most),
            queue,
            estimate: Estimate::Whole,
            slo: self.sharer.slo,
            model: Model::Curve(curve.up_to(most[0].max(most[1]))),
            accesses_per_s: 1.0,
            margin: margin(known.sampled as u64, Latencies { disk: slowest, ..latencies }, bound_ms, DEVIATIONS)
                .min(margin_max),
            violations: self.violations,
        })
    }
}

/// What a cache with this limit that misses so much is worth: as near to what it was taken for as the misses allow.
fn worth(curve: &MissCurve, limit: Bytes, misses: f64, former: f64) -> f64 {
    let at = |worth: f64| curve.at(worth * limit.get() as f64);
    if at(WORTH.1) - at(WORTH.2) < STEEP {
        return former;
    }
    // Where the curve crosses a ratio, by twelve halvings of the range.
    let edge = |is_above: &dyn Fn(f64) -> bool| {
        let (mut least, mut most) = (WORTH.1, WORTH.2);
        for _ in 0..12 {
            let middle = f64::midpoint(least, most);
            *(if is_above(at(middle)) { &mut least } else { &mut most }) = middle;
        }
        f64::midpoint(least, most)
    };
    let (low, high) = (edge(&|at| at > misses + TELLING), edge(&|at| at >= misses - TELLING));
    former.clamp(low, high.max(low))
}
