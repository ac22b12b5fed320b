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

use std::time::Duration;

use surgetank_model::Bytes;

use super::{HOST, Observed, Sharer, Verdict};
use crate::confidence::margin;
use crate::curve::{MissCurve, interpolate};
use crate::problem::{Application, Estimate, Latencies, Model, Slo};

/// Reads that an interval has at least, so that its average says something.
const READS_LEAST: u64 = 50;
/// What a new measurement of fewer reads weighs beside the former ones.
const WEIGHT: f64 = 0.5;
/// Reads of an interval whose average needs no former ones.
const READS_ENOUGH: u64 = 500;
/// The share of its time for which a disk is busy that has a queue.
const SATURATED: f64 = 0.8;
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
    /// What a miss takes without a queue before the disk, as far as that was seen.
    miss: Duration,
    /// What a read and the pause before the next one take if all miss and the disk is saturated; zero if the disk's limits are not known.
    queue: Duration,
    /// That pause, on average.
    pause: Duration,
    /// What reads really take, as a part of what the curve says.
    correction: f64,
}

impl Known {
    /// The average latency with a cache of this size.
    pub fn latency(&self, size: Bytes) -> Duration {
        self.with_misses(self.misses(size))
    }

    /// The average latency if this part of the reads misses.
    fn with_misses(&self, misses: f64) -> Duration {
        self.modelled(misses).mul_f64(self.correction)
    }

    fn misses(&self, size: Bytes) -> f64 {
        interpolate(self.curve.points(), size.get() as f64)
    }

    /// The same, uncorrected: the longer one of what it is without a queue before the disk, and behind one that is always there.
    fn modelled(&self, misses: f64) -> Duration {
        let alone = self.hit + self.miss.saturating_sub(self.hit).mul_f64(misses);
        let queued = self.queue.mul_f64(misses).saturating_sub(self.pause);
        alone.max(queued)
    }

    /// For a plan, where what a read takes is a line over the misses: the latencies with none and with all, and a curve whose ratios say
    /// how far between them the latency with each size is.
    fn for_plan(&self) -> (Latencies, MissCurve) {
        let hit = self.with_misses(0.0).max(Duration::from_nanos(1));
        // There is no second level; each is slower than the one before it all the same.
        let disk = self.with_misses(1.0).max(hit + Duration::from_nanos(2));
        let latencies = Latencies { level1: hit, level2: hit + Duration::from_nanos(1), disk };
        let part = |misses: f64| self.with_misses(misses).saturating_sub(hit).div_duration_f64(disk - hit);
        (latencies, self.curve.mapped(part))
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Member {
    pub sharer: Sharer,
    pub known: Option<Known>,
    pub violations: u32,
    pub verdict: Option<Verdict>,
    /// What its reads are to take in the interval that runs, with the share that is planned.
    pub predicted: Option<Duration>,
    /// What it might have, and what its cache had, when the interval began.
    pub former: (Bytes, Bytes),
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
            predicted: None,
            former: (Bytes::ZERO, Bytes::ZERO),
            idle: 0,
        }
    }

    /// It read nothing, or is not served: it was not above its bound, and after some time it has its fair share again.
    pub fn rest(&mut self) {
        self.violations = 0;
        self.idle = self.idle.saturating_add(1);
        if self.idle >= IDLE_MAX {
            (self.known, self.verdict) = (None, None);
        }
    }

    pub fn observe(&mut self, observed: &Observed, is_settled: bool, limit: Bytes, fair: Bytes) {
        self.idle = 0;
        let Some((curve, sampled)) = &observed.curve else { return };
        let former = self.known.take();
        let weight = if observed.reads >= READS_ENOUGH { 1.0 } else { WEIGHT };
        let smooth = |new: Option<Duration>, former: Option<Duration>| match (new, former) {
            (Some(new), Some(former)) => Some(former.mul_f64(1.0 - weight) + new.mul_f64(weight)),
            (new, former) => new.or(former),
        };
        let (hit, miss) = observed.waits;
        // Behind a queue a miss does not tell what it takes without one.
        let is_saturated = observed.disk.is_some_and(|disk| disk.utilization >= SATURATED);
        let miss = miss.map(|miss| match hit.filter(|_| is_saturated) {
            Some(hit) => former.as_ref().map_or(hit, |known| known.miss).min(miss),
            None => miss,
        });
        let hit = smooth(hit, former.as_ref().map(|known| known.hit));
        let miss = smooth(miss, former.as_ref().map(|known| known.miss));
        // Whoever reads waits for an answer or makes a pause: so many are there at least.
        let in_flight = if observed.in_flight.is_finite() { observed.in_flight } else { 0.0 };
        let readers = (in_flight - READERS_TOLERANCE).ceil().clamp(1.0, READERS_MAX);
        let queue = observed.disk.map(|disk| disk.busy.mul_f64(readers));
        let queue = smooth(queue, former.as_ref().map(|known| known.queue)).unwrap_or_default();
        let pause = observed.latency.filter(|_| in_flight > 0.0);
        let pause = pause.map(|latency| latency.mul_f64((readers / in_flight - 1.0).clamp(0.0, PAUSE_MAX)));
        let pause = smooth(pause, former.as_ref().map(|known| known.pause)).unwrap_or_default();
        // Where nothing hit yet, or all did, the other one is all that is known.
        let (Some(hit), Some(miss)) = (hit.or(miss), miss.or(hit)) else {
            self.known = former;
            return;
        };
        let worth = former.as_ref().map_or(WORTH.0, |known| known.worth);
        let measured = observed.misses.filter(|_| is_settled && observed.reads >= READS_LEAST);
        let worth = measured.map_or(worth, |misses| f64::midpoint(worth, self::worth(curve, limit, misses, worth)));
        let curve = curve.stretched(1.0 / worth);
        let correction = former.map_or(1.0, |known| known.correction);
        let mut known = Known { curve, worth, sampled: *sampled, hit, miss, queue, pause, correction };
        if let Some(latency) = observed.latency.filter(|_| observed.reads >= READS_LEAST) {
            let fair = known.latency(fair);
            let bound = match self.sharer.slo {
                Slo::AboveFair(above) => {
                    Duration::try_from_secs_f64(fair.as_secs_f64() * (1.0 + above)).unwrap_or(Duration::MAX)
                }
                Slo::Latency(bound) => bound,
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

    pub fn application(&self, name: &str, fair: Bytes) -> Option<Application> {
        let known = self.known.as_ref()?;
        let (latencies, curve) = known.for_plan();
        let bound_ms = self.verdict.map_or(latencies.disk, |verdict| verdict.bound).as_secs_f64() * 1e3;
        // The estimates of both shares are from one sample, and are wrong in the same direction.
        let most = match self.sharer.slo {
            Slo::AboveFair(above) => above / (1.0 + above) / 2.0,
            // Where the fair share holds the bound by the estimate, too few samples do not make that infeasible.
            Slo::Latency(bound) => match 1.0 - known.latency(fair).div_duration_f64(bound) {
                left if left > 0.0 => left,
                _ => 1.0,
            },
        };
        Some(Application {
            name: name.to_owned(),
            level1: HOST.to_owned(),
            level2: Vec::new(),
            latencies: Some(latencies),
            estimate: Estimate::Whole,
            slo: self.sharer.slo,
            model: Model::Curve(curve.up_to(self.sharer.most)),
            accesses_per_s: 1.0,
            margin: margin(known.sampled as u64, latencies, bound_ms, DEVIATIONS).min(most),
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
