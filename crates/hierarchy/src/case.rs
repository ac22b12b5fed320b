//! Enforcement intervals: accesses, what they took, another plan; and the judgement.

use surgetank_allocation::Basis;

use crate::control::{Controller, Scheme};
use crate::disk::{DiskType, Disks, stripe};
use crate::load::{Load, Source};
use crate::place::{BLOCKS_MAX, key, spread};
use crate::planted::{Bug, planted};
use crate::system::{Answer, Layout, System};

/// What is simulated.
#[derive(Clone, Debug)]
pub struct Case {
    /// The servers.
    pub layout: Layout,
    /// What caches take to answer.
    pub times: Times,
    /// The disks.
    pub disk: DiskType,
    /// Of each second-level server.
    pub disks: usize,
    /// The applications, one for each of the layout.
    pub sources: Vec<Source>,
    /// Of all chance.
    pub seed: u64,
    /// Between two plans.
    pub interval_s: f64,
    /// In all.
    pub intervals: usize,
    /// Of these, the first ones: caches get warm under the fair share, models learn, and nothing is judged.
    pub warmup: usize,
    /// How far above its fair latency each application's may be.
    pub slos: Vec<f64>,
    /// How much of a level's cache an application's share may gain or lose in an interval under the optimal scheme and the
    /// paper's algorithm.
    pub change_max: Option<f64>,
    /// How sure the optimal scheme is of curves, in standard deviations; it takes them for exact, if none.
    pub deviations: Option<f64>,
    /// Which part of the blocks curves are from.
    pub sampled: f64,
}

/// What caches take to answer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Times {
    /// A hit in the first level.
    pub level1_ms: f64,
    /// A hit in the second level; a disk's answer takes this and the disk's own time.
    pub level2_ms: f64,
}

/// A case that makes no sense: one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CaseError(pub(crate) String);

impl CaseError {
    pub(crate) fn of(error: impl std::fmt::Display) -> Self {
        Self(error.to_string())
    }
}

/// One interval of one application.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Measured {
    /// Accesses.
    pub accesses: u64,
    /// What they took on average.
    pub latency_ms: f64,
    /// Parts of them that hit, by level.
    pub hits: [f64; 2],
    /// Blocks of level 1 that it had.
    pub level1: u64,
    /// Of level 2.
    pub level2: u64,
    /// What the plan for this interval expected of it; 0 if there was none.
    pub expected_ms: f64,
    /// What the fair share would have done, by the curve at the end of the interval; 0 if there was none.
    pub predicted_fair_ms: f64,
    /// What the next plan expects.
    pub(crate) next_ms: f64,
}

/// One interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// By application.
    pub measured: Vec<Measured>,
    /// Where its plan came from, if there was one.
    pub basis: Option<Basis>,
}

/// A scheme beside the fair share over the same accesses.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// By application, over all intervals that are judged.
    pub applications: Vec<Judged>,
    /// N ÷ Σ latency ÷ fair latency.
    pub fair_speedup: f64,
    /// Intervals that are judged.
    pub judged: usize,
}

/// One application of a scheme.
#[derive(Clone, Debug, PartialEq)]
pub struct Judged {
    /// Whose.
    pub name: String,
    /// Average latency.
    pub latency_ms: f64,
    /// The same under the fair share.
    pub fair_ms: f64,
    /// Latency ÷ fair latency, interval by interval.
    pub normalised: Vec<f64>,
    /// Intervals in which that was above 1 + SLO.
    pub broken: usize,
}

impl Case {
    /// Runs the scheme.
    ///
    /// # Errors
    /// If the case makes no sense.
    pub fn run(&self, scheme: Scheme) -> Result<Vec<Interval>, CaseError> {
        self.check()?;
        if scheme != Scheme::Independent {
            return self.run_together(scheme, &self.sources);
        }
        let mut intervals: Vec<Interval> =
            vec![Interval { measured: vec![Measured::default(); self.sources.len()], basis: None }; self.intervals];
        for index in 0..self.sources.len() {
            let mut alone = self.sources.clone();
            let others = alone.iter_mut().enumerate().filter(|(other, _)| *other != index);
            others.for_each(|(_, source)| source.accesses_per_s = 0.0);
            for (all, one) in intervals.iter_mut().zip(self.run_together(scheme, &alone)?) {
                all.measured[index] = one.measured[index];
            }
        }
        Ok(intervals)
    }

    fn check(&self) -> Result<(), CaseError> {
        let count = self.layout.reach.len();
        let error = |text: String| Err(CaseError(text));
        if self.sources.len() != count || self.slos.len() != count {
            return error(format!(
                "{count} applications reach servers, {} have accesses and {} have SLOs: each needs all three",
                self.sources.len(),
                self.slos.len()
            ));
        }
        if !(self.interval_s > 0.0 && self.interval_s.is_finite()) {
            return error(format!("an interval of {} s is none", self.interval_s));
        }
        for reach in &self.layout.reach {
            let is_there = reach.level1 < self.layout.level1.len()
                && !reach.level2.is_empty()
                && reach.level2.iter().all(|server| *server < self.layout.level2.len());
            if !is_there {
                return error(
                    "an application reaches a server that is not there, or none of the second level".to_owned(),
                );
            }
        }
        Ok(())
    }

    fn run_together(&self, scheme: Scheme, sources: &[Source]) -> Result<Vec<Interval>, CaseError> {
        let mut system = System::new(self.layout.clone(), scheme.sharing());
        let mut controller = Controller::new(self, scheme)?;
        let mut grants = controller.first();
        system.apply(&grants);
        let mut run = Run::new(self, sources);
        let mut intervals: Vec<Interval> = Vec::with_capacity(self.intervals);
        for interval in 0..self.intervals {
            let until_ms = (interval + 1) as f64 * self.interval_s * 1e3;
            let basis = controller.basis().cloned();
            let (mut measured, disk_ms) = run.until(until_ms, &mut system, |application, blocks| {
                if scheme != Scheme::FairShare {
                    controller.feed(application, blocks);
                }
            });
            for (index, (measured, grant)) in measured.iter_mut().zip(&grants).enumerate() {
                measured.level1 = grant.level1;
                measured.level2 = grant.level2.iter().map(|(_, blocks)| blocks).sum();
                measured.expected_ms = intervals.last().map_or(0.0, |last| last.measured[index].next_ms);
            }
            if let Some(next) = controller.next(&mut measured, disk_ms)? {
                system.apply(&next);
                grants = next;
            }
            intervals.push(Interval { measured, basis });
        }
        Ok(intervals)
    }

    /// Judges what a scheme did by what the fair share did.
    #[must_use]
    pub fn judge(&self, scheme: &[Interval], fair: &[Interval]) -> Outcome {
        let all = scheme.len().min(fair.len());
        let judged: Vec<usize> = (self.warmup.min(all)..all).collect();
        let of = |(index, source): (usize, &Source)| {
            let mean = |run: &[Interval]| {
                let of = |at: &usize| run[*at].measured[index];
                let accesses: u64 = judged.iter().map(|at| of(at).accesses).sum();
                let sum: f64 = judged.iter().map(|at| of(at).latency_ms * of(at).accesses as f64).sum();
                sum / accesses as f64
            };
            let normalised: Vec<f64> = judged
                .iter()
                .filter(|at| fair[**at].measured[index].accesses > 0)
                .map(|at| {
                    let (ours, theirs) = (scheme[*at].measured[index], fair[*at].measured[index]);
                    let fair_ms = if planted(Bug::PlanBelieved) { ours.predicted_fair_ms } else { theirs.latency_ms };
                    ours.latency_ms / fair_ms
                })
                .collect();
            let broken = normalised.iter().filter(|ratio| **ratio > 1.0 + self.slos[index]).count();
            Judged { name: source.name.clone(), latency_ms: mean(scheme), fair_ms: mean(fair), normalised, broken }
        };
        let applications: Vec<Judged> = self.sources.iter().enumerate().map(of).collect();
        let sum: f64 = applications.iter().map(|one| one.latency_ms / one.fair_ms).sum();
        Outcome { fair_speedup: applications.len() as f64 / sum, applications, judged: judged.len() }
    }
}

impl Outcome {
    /// Intervals of applications in which an SLO was broken, of all.
    #[must_use]
    pub fn broken(&self) -> (usize, usize) {
        let of = |one: &Judged| (one.broken, one.normalised.len());
        self.applications.iter().map(of).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    /// How far the worst interval of an application was above its fair latency, as a part of that.
    #[must_use]
    pub fn worst(&self) -> f64 {
        self.applications.iter().flat_map(|one| &one.normalised).fold(0.0, |worst, ratio| ratio.max(worst)) - 1.0
    }
}

/// Accesses on their way through the system.
struct Run<'a> {
    case: &'a Case,
    load: std::iter::Peekable<Load>,
    disks: Vec<Disks>,
    /// Blocks per application that nobody was told of.
    fed: Vec<Vec<u64>>,
}

/// As many blocks as are told of at once.
const FED: usize = 2048;

#[derive(Clone, Copy, Default)]
struct Sums {
    accesses: u64,
    latency_ms: f64,
    hits: [u64; 2],
}

impl<'a> Run<'a> {
    fn new(case: &'a Case, sources: &[Source]) -> Self {
        let load = Load::new(sources, case.seed).peekable();
        let disks = case.layout.level2.iter().map(|_| Disks::new(case.disk, case.disks)).collect();
        Self { case, load, disks, fed: vec![Vec::with_capacity(FED); sources.len()] }
    }

    /// All accesses up to a time: what they took, and what those to the disk did on average.
    fn until(
        &mut self,
        until_ms: f64,
        system: &mut System,
        mut tell: impl FnMut(usize, &[u64]),
    ) -> (Vec<Measured>, Option<f64>) {
        let mut sums = vec![Sums::default(); self.fed.len()];
        let (mut reads, mut read_ms) = (0_u64, 0.0);
        let late = if planted(Bug::IntervalLate) { self.case.interval_s * 1e3 } else { 0.0 };
        while let Some(access) = self.load.next_if(|access| access.at_ms + late < until_ms) {
            let block = access.block % BLOCKS_MAX;
            let answer = system.access(access.application, block);
            let times = self.case.times;
            let latency_ms = match answer {
                Answer::Level1 => times.level1_ms,
                Answer::Level2 => times.level2_ms,
                Answer::Disk => {
                    let latency_ms = times.level2_ms + self.read(access.application, block, access.at_ms);
                    (reads, read_ms) = (reads + 1, read_ms + latency_ms);
                    latency_ms
                }
            };
            let sums = &mut sums[access.application];
            sums.accesses += 1;
            sums.latency_ms += latency_ms;
            if let Some(hits) = sums.hits.get_mut(answer as usize) {
                *hits += 1;
            }
            let fed = &mut self.fed[access.application];
            fed.push(block);
            if fed.len() == FED {
                tell(access.application, fed);
                fed.clear();
            }
        }
        for (application, fed) in self.fed.iter_mut().enumerate() {
            tell(application, fed);
            fed.clear();
        }
        let measured = |sums: &Sums| {
            let part = |of: f64| if sums.accesses == 0 { 0.0 } else { of / sums.accesses as f64 };
            let hits = sums.hits.map(|hits| part(hits as f64));
            Measured { accesses: sums.accesses, latency_ms: part(sums.latency_ms), hits, ..Measured::default() }
        };
        (sums.iter().map(measured).collect(), (reads > 0).then(|| read_ms / reads as f64))
    }

    /// The disk on which a block lies: stripes are on any of those of the servers that the application reaches.
    fn read(&mut self, application: usize, block: u64, at_ms: f64) -> f64 {
        let reached = &self.case.layout.reach[application].level2;
        let hash = spread(key(application, stripe(block)));
        let server = reached[(hash % reached.len() as u64) as usize];
        // Each application has an area of the disk.
        let place = block + (application as u64) * (1 << 17);
        self.disks[server].read(place, hash >> 8, at_ms)
    }
}
