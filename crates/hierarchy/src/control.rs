//! Who decides what applications have, each interval anew.

mod moves;

use std::collections::VecDeque;
use std::time::Duration;

use surgetank_allocation::mlms::{BOOTSTRAP_SAMPLES, Mlms, Sample};
use surgetank_allocation::{
    Application, Basis, Description, Estimate, Hierarchy, Latencies, MissCurve, Model, Plan, Problem, Server, Slo,
    baselines, confidence, solve,
};
use surgetank_model::Bytes;
use surgetank_mrc::online::{Access, Online, OnlineCurve};
use surgetank_mrc::{Curve, Rate};

use crate::case::{Case, CaseError, Measured, Times};
use crate::foresight::Foresight;
use crate::place::misses;
use crate::system::{Grant, Layout, Reach, Sharing, System};

/// A scheme of the paper's figures, or ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scheme {
    /// Each application alone on everything: the bound of what any scheme can do.
    Independent,
    /// An equal split of each server.
    FairShare,
    /// No partitions.
    Uncontrolled,
    /// Partitions by curves in the first level alone.
    FirstLevelOnly,
    /// In the second level alone.
    SecondLevelOnly,
    /// The paper's algorithm.
    Mlms,
    /// One linear program over both levels.
    Optimal,
    /// The same with the exact curves of the interval that comes: to compare with, and no bound.
    Clairvoyant,
}

impl Scheme {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Independent,
        Self::FairShare,
        Self::Uncontrolled,
        Self::FirstLevelOnly,
        Self::SecondLevelOnly,
        Self::Mlms,
        Self::Optimal,
        Self::Clairvoyant,
    ];

    /// As tables have it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Independent => "independent",
            Self::FairShare => "fair share",
            Self::Uncontrolled => "uncontrolled",
            Self::FirstLevelOnly => "first level only",
            Self::SecondLevelOnly => "second level only",
            Self::Mlms => "mlms",
            Self::Optimal => "optimal",
            Self::Clairvoyant => "clairvoyant",
        }
    }

    pub(crate) fn sharing(self) -> [Sharing; 2] {
        match self {
            Self::Uncontrolled => [Sharing::Shared; 2],
            Self::FirstLevelOnly => [Sharing::Partitioned, Sharing::Shared],
            Self::SecondLevelOnly => [Sharing::Shared, Sharing::Partitioned],
            _ => [Sharing::Partitioned; 2],
        }
    }
}

/// What is known while the system runs, and the last plan.
#[derive(Debug)]
pub(crate) struct Controller<'a> {
    case: &'a Case,
    scheme: Scheme,
    curves: Vec<OnlineCurve>,
    /// Of the clairvoyant scheme.
    foresight: Option<Foresight>,
    /// At which sizes, in blocks, each curve has a point.
    sizes: Vec<Vec<u64>>,
    mlms: Mlms,
    plan: Option<Plan>,
    /// What the last intervals missed, each alone, the newest in front.
    lately: Vec<VecDeque<MissCurve>>,
    violations: Vec<u32>,
    /// How much of its bound a plan leaves to each application; none if its curve says nothing.
    margins: Vec<Option<f64>>,
    /// Measured latency ÷ what the model says of the shares that there were: an application's misses may take longer than
    /// those of others, and a model knows one latency of the disk.
    bias: Vec<f64>,
    /// By how much plans were too optimistic of late, as a part of what they expected: at first a guess, which becomes less as
    /// plans prove right.
    excess: Vec<f64>,
    /// How far each share is split: 0 one cache, 1 as the hull says.
    split: Vec<f64>,
    /// For how many intervals it has been split as far as that.
    steady: Vec<usize>,
    /// Until when it is one cache.
    whole_until: Vec<usize>,
    /// What applications have by a fair share.
    fair: Vec<Grant>,
    /// What applications have.
    has: Vec<Grant>,
    /// How long an access to the disk takes, of late.
    disk_ms: f64,
    /// Intervals that have ended.
    ended: usize,
}

/// What was counted in an interval counts for this much after the next one.
const COUNTS_KEPT: f64 = 0.8;
/// Intervals whose curves are looked at one by one: of so many the counts are.
const LATELY: usize = 5;
/// Beyond this an interval's miss ratios are of another mix of accesses.
const CHANGE_MAX: f64 = 0.15;
/// Points of a curve.
const POINTS: u64 = 256;

/// How fast latencies and biases follow what is measured.
const FOLLOWS: f64 = 0.3;
/// The same for biases once shares change: caches that are not warm yet are no bias.
const FOLLOWS_SLOWLY: f64 = 0.1;

/// What plans are too optimistic by while nothing is known of it, how much of that is left after an interval without, and how much counts.
const EXCESS: f64 = 0.03;
const EXCESS_KEPT: f64 = 0.9;
const EXCESS_MAX: f64 = 0.2;
/// A curve that may be wrong by more than this part of the bound, or so many times the SLO, says nothing: the application keeps its fair share. One
/// that says more holds the fair share's latency, as far as it knows.
const NOISE_MAX: f64 = 0.15;
const NOISE_OF_SLO: f64 = 2.0;
/// What is left of a bound then: less than any fair share takes.
const MARGIN_MAX: f64 = 0.9;

impl<'a> Controller<'a> {
    pub fn new(case: &'a Case, scheme: Scheme) -> Result<Self, CaseError> {
        let rate = Rate::new(case.sampled).map_err(CaseError::of)?;
        let layout = &case.layout;
        let curve =
            |_| OnlineCurve::new(Online { rate, kept: COUNTS_KEPT, change_max: CHANGE_MAX, ..Online::default() });
        let sizes = |reach: &Reach| sizes(layout.level1[reach.level1] + layout.reached(reach));
        Ok(Self {
            case,
            scheme,
            curves: layout.reach.iter().map(curve).collect(),
            foresight: (scheme == Scheme::Clairvoyant).then(|| Foresight::new(case)),
            sizes: layout.reach.iter().map(sizes).collect(),
            mlms: Mlms::default(),
            plan: None,
            lately: vec![VecDeque::new(); layout.reach.len()],
            violations: vec![0; layout.reach.len()],
            margins: vec![Some(0.0); layout.reach.len()],
            bias: vec![1.0; layout.reach.len()],
            excess: vec![EXCESS; layout.reach.len()],
            split: vec![0.0; layout.reach.len()],
            steady: vec![0; layout.reach.len()],
            whole_until: vec![0; layout.reach.len()],
            fair: System::fair_share(layout),
            has: System::fair_share(layout),
            disk_ms: 0.0,
            ended: 0,
        })
    }

    /// Whether it looks at accesses at all.
    pub fn watches(&self) -> bool {
        !matches!(self.scheme, Scheme::Independent | Scheme::FairShare | Scheme::Uncontrolled)
    }

    /// Accesses of an application.
    pub fn feed(&mut self, application: usize, blocks: &[u64]) {
        blocks.iter().for_each(|block| self.curves[application].observe(Access::Read, *block));
    }

    /// Before the first interval.
    pub fn first(&self) -> Vec<Grant> {
        match self.scheme {
            Scheme::Independent => System::everything(&self.case.layout),
            _ => self.fair.clone(),
        }
    }

    /// An interval has ended: what applications have in the next one. None: what they have.
    pub fn next(&mut self, measured: &mut [Measured], disk_ms: Option<f64>) -> Result<Option<Vec<Grant>>, CaseError> {
        self.ended += 1;
        if !self.watches() {
            return Ok(None);
        }
        self.end_interval()?;
        if let Some(disk_ms) = disk_ms {
            let known = self.disk_ms > 0.0;
            self.disk_ms = if known { self.disk_ms + FOLLOWS * (disk_ms - self.disk_ms) } else { disk_ms };
        }
        let Some(curves) = self.all_curves()? else { return Ok(None) };
        let problem = self.problem(&curves, measured)?;
        let predicted = baselines::fair_share(&problem);
        let is_warming = self.ended < self.case.warmup;
        for (index, (share, measured)) in predicted.shares.iter().zip(measured.iter_mut()).enumerate() {
            measured.predicted_fair_ms = share.fair_latency_ms;
            let (has, curve) = (&self.has[index], &curves[index]);
            let model_ms = self.model_ms(has, |size| match problem.hull(index) {
                Some(hull) => misses(curve, hull, has.split, size),
                None => curve.at(size),
            });
            let follows = match self.plan.is_none() {
                true => FOLLOWS,
                // What a split does not do yet is no bias.
                false if self.split[index] > 0.0 && self.steady[index] < moves::ARRIVED => 0.0,
                false => FOLLOWS_SLOWLY,
            };
            let bias = &mut self.bias[index];
            *bias += follows * (measured.latency_ms / model_ms - *bias);
            if self.plan.is_none() {
                continue;
            }
            let is_above = measured.latency_ms > share.bound_ms * *bias;
            self.violations[index] = if is_above { self.violations[index] + 1 } else { 0 };
            let excess = measured.latency_ms / (measured.expected_ms * *bias) - 1.0;
            self.excess[index] = excess.clamp(EXCESS_KEPT * self.excess[index], EXCESS_MAX);
        }
        if self.scheme == Scheme::Mlms {
            return Ok(self.next_of_mlms(&problem, &curves, measured));
        }
        if is_warming {
            return Ok(None);
        }
        if self.is_optimal() {
            let (problem, plan) = self.planned(&curves, measured, &predicted)?;
            return Ok(Some(self.grant(&problem, &curves, plan, measured)));
        }
        let problem = self.problem(&curves, measured)?;
        let plan = match self.scheme {
            Scheme::FirstLevelOnly => baselines::first_level_only(&problem).map_err(CaseError::of)?,
            _ => baselines::second_level_only(&problem).map_err(CaseError::of)?,
        };
        Ok(Some(self.grant(&problem, &curves, plan, measured)))
    }

    /// The paper's algorithm takes its first samples at shares of its own while caches warm up, each for as many intervals as there are for it: the last
    /// one is the sample, since what comes before is the filling of caches. Then shares follow each interval's plan by steps, for the same reason.
    fn next_of_mlms(
        &mut self,
        problem: &Problem,
        curves: &[MissCurve],
        measured: &mut [Measured],
    ) -> Option<Vec<Grant>> {
        let lasts = (self.case.warmup / BOOTSTRAP_SAMPLES).max(1);
        let begins = self.case.warmup.saturating_sub(BOOTSTRAP_SAMPLES * lasts);
        let of_bootstrap = self.ended.checked_sub(begins)?;
        let (is_bootstrap, is_last) = (self.ended < self.case.warmup, of_bootstrap % lasts == 0);
        if self.ended <= self.case.warmup && !is_last {
            return None;
        }
        if of_bootstrap > 0 {
            for (source, measured) in self.case.sources.iter().zip(measured.iter()) {
                let bytes = |blocks: u64| Bytes::new(blocks * self.case.layout.block);
                let (first, second) = (bytes(measured.level1), bytes(measured.level2));
                self.mlms.observe(&source.name, Sample { first, second, latency_ms: measured.latency_ms });
            }
        }
        let plan = match is_bootstrap {
            true => Mlms::bootstrap(problem, of_bootstrap / lasts),
            false => self.mlms.solve(problem, self.plan.as_ref()),
        };
        Some(self.grant(problem, curves, plan, measured))
    }

    fn end_interval(&mut self) -> Result<(), CaseError> {
        let block = Bytes::new(self.case.layout.block);
        for ((curve, sizes), lately) in self.curves.iter_mut().zip(&self.sizes).zip(&mut self.lately) {
            let points = curve.points_of_interval(sizes);
            curve.end_interval();
            // Who knows what comes does not look back.
            if let Some(points) = points.filter(|_| self.foresight.is_none()) {
                let alone = MissCurve::from_measured(&points, block).map_err(CaseError::of)?;
                lately.push_front(alone);
                lately.truncate(LATELY);
            }
        }
        Ok(())
    }

    fn all_curves(&mut self) -> Result<Option<Vec<MissCurve>>, CaseError> {
        let block = Bytes::new(self.case.layout.block);
        if let Some(foresight) = &mut self.foresight {
            // One interval further than those that have ended; the first one has passed without a look at it.
            if self.ended == 1 {
                foresight.next(&self.sizes, block).map_err(CaseError::of)?;
            }
            let curves = foresight.next(&self.sizes, block);
            return curves.map(Some).map_err(CaseError::of);
        }
        if self.curves.iter().any(|curve| curve.sampled() == 0.0) {
            return Ok(None);
        }
        let curve = |(curve, sizes): (&OnlineCurve, &Vec<u64>)| MissCurve::from_measured(&curve.points(sizes), block);
        let all: Result<Vec<MissCurve>, _> = self.curves.iter().zip(&self.sizes).map(curve).collect();
        all.map(Some).map_err(CaseError::of)
    }

    fn latencies(&self) -> Latencies {
        let Times { level1_ms, level2_ms } = self.case.times;
        let ms = |ms: f64| Duration::from_secs_f64(ms / 1e3);
        Latencies { level1: ms(level1_ms), level2: ms(level2_ms), disk: ms(self.disk_ms.max(level2_ms * 1.01)) }
    }

    /// How much of its bound a plan leaves to an application, as a part of that: what its curve may be wrong by, and what plans were wrong by of late. None if
    /// its curve says nothing.
    fn margin(&self, index: usize, fair_ms: f64) -> Option<f64> {
        let slo = self.case.slos[index];
        let bound_ms = fair_ms * (1.0 + slo);
        let deviations = self.case.deviations.filter(|_| bound_ms > 0.0);
        let Some(deviations) = deviations else { return Some(0.0) };
        let sampled = self.curves[index].sampled() as u64;
        let noise = match self.foresight {
            Some(_) => 0.0,
            None => confidence::margin(sampled, self.latencies(), bound_ms, deviations),
        };
        let is_known = noise <= NOISE_MAX.min(NOISE_OF_SLO * slo);
        is_known.then(|| (noise + self.excess[index]).min(slo / (1.0 + slo)))
    }

    fn is_optimal(&self) -> bool {
        matches!(self.scheme, Scheme::Optimal | Scheme::Clairvoyant)
    }

    /// A plan in which whoever would have been above its bound in one of the last intervals keeps its fair share.
    fn planned(
        &mut self,
        curves: &[MissCurve],
        measured: &[Measured],
        former: &Plan,
    ) -> Result<(Problem, Plan), CaseError> {
        for (index, measured) in measured.iter().enumerate() {
            self.margins[index] = self.margin(index, measured.predicted_fair_ms);
        }
        loop {
            let problem = self.problem(curves, measured)?;
            let plan = solve(&problem, Some(self.plan.as_ref().unwrap_or(former)));
            let grants = self.grants(&plan);
            let is_broken = |index: &usize| {
                self.margins[*index].is_some() && !self.held_lately(*index, &grants[*index], problem.hull(*index), 1.0)
            };
            let broken: Vec<usize> = (0..grants.len()).filter(is_broken).collect();
            if broken.is_empty() {
                return Ok((problem, plan));
            }
            broken.into_iter().for_each(|index| self.margins[index] = None);
        }
    }

    fn problem(&self, curves: &[MissCurve], measured: &[Measured]) -> Result<Problem, CaseError> {
        let Layout { block, level1, level2, .. } = &self.case.layout;
        let server = |level: &'static str| {
            move |(index, cache): (usize, &u64)| Server { name: name(level, index), cache: Bytes::new(cache * block) }
        };
        let latencies = self.latencies();
        let application = |(index, curve): (usize, &MissCurve)| {
            let reach = &self.case.layout.reach[index];
            Application {
                name: self.case.sources[index].name.clone(),
                level1: name("first", reach.level1),
                level2: reach.level2.iter().map(|server| name("second", *server)).collect(),
                latencies: None,
                estimate: Estimate::Split,
                slo: Slo::AboveFair(self.case.slos[index]),
                model: Model::Curve(curve.clone()),
                accesses_per_s: (measured[index].accesses as f64 / self.case.interval_s).max(1e-3),
                most: None,
                queue: None,
                margin: if self.is_optimal() { self.margins[index].unwrap_or(MARGIN_MAX) } else { 0.0 },
                violations: if self.is_optimal() { self.violations[index] } else { 0 },
            }
        };
        Problem::new(Description {
            latencies,
            hierarchy: self.case.layout.hierarchy,
            level1: level1.iter().enumerate().map(server("first")).collect(),
            level2: level2.iter().enumerate().map(server("second")).collect(),
            applications: curves.iter().enumerate().map(application).collect(),
            segment: Bytes::new(*block),
            // Steps are the controller's.
            change_max: None,
        })
        .map_err(CaseError::of)
    }

    /// What a plan gives, in blocks.
    fn grants(&self, plan: &Plan) -> Vec<Grant> {
        let block = self.case.layout.block;
        let grant = |(index, share): (usize, &surgetank_allocation::Share)| {
            let second = |server: &usize| share.level2.get(&name("second", *server)).map_or(0, |bytes| bytes.get());
            let level2 = self.case.layout.reach[index].level2.iter().map(|server| (*server, second(server) / block));
            Grant { level1: share.level1.get() / block, level2: level2.collect(), hull: None, split: 0.0 }
        };
        plan.shares.iter().enumerate().map(grant).collect()
    }

    /// Takes over a plan, that of the optimal scheme and of the paper's algorithm step by step.
    fn grant(&mut self, problem: &Problem, curves: &[MissCurve], plan: Plan, measured: &mut [Measured]) -> Vec<Grant> {
        let mut grants = self.grants(&plan);
        match self.scheme {
            Scheme::Optimal | Scheme::Clairvoyant => grants = self.step(problem, curves, &plan, &grants),
            // It knows no curves by which a step could be too far.
            Scheme::Mlms if self.ended >= self.case.warmup => {
                grants = self.stepped(&grants, self.case.change_max.unwrap_or(f64::INFINITY));
            }
            _ => {}
        }
        for (index, grant) in grants.iter_mut().enumerate() {
            let curve = &curves[index];
            measured[index].next_ms = self.model_ms(grant, |size| curve.at(size));
            let Some(hull) = problem.hull(index).filter(|_| self.is_optimal()) else { continue };
            let far =
                self.how_far(index, grant, (curve, hull), (plan.shares[index].bound_ms, measured[index].latency_ms));
            measured[index].next_ms = self.model_ms(grant, |size| misses(curve, hull, far, size));
            self.steady[index] = if far == self.split[index] { self.steady[index] + 1 } else { 0 };
            self.split[index] = far;
            (grant.split, grant.hull) = (far, (far > 0.0).then(|| hull.clone()));
        }
        self.plan = Some(plan);
        self.has.clone_from(&grants);
        grants
    }

    /// An application's latency with these shares, by what caches of a size miss.
    fn model_ms(&self, grant: &Grant, misses: impl Fn(f64) -> f64) -> f64 {
        let (first, behind) = self.sizes_of(grant);
        let Times { level1_ms, level2_ms } = self.case.times;
        level1_ms + (level2_ms - level1_ms) * misses(first) + (self.disk_ms - level2_ms) * misses(behind)
    }

    /// How large a cache is, in bytes, that misses what the first level does, and one that misses what both do.
    fn sizes_of(&self, grant: &Grant) -> (f64, f64) {
        let bytes = |blocks: u64| (blocks * self.case.layout.block) as f64;
        let (first, second) = (bytes(grant.level1), bytes(grant.level2.iter().map(|(_, blocks)| blocks).sum()));
        let behind = match self.case.layout.hierarchy {
            Hierarchy::Exclusive => first + second,
            Hierarchy::Inclusive => first.max(second),
        };
        (first, behind)
    }

    /// Where the last plan comes from.
    pub fn basis(&self) -> Option<&Basis> {
        self.plan.as_ref().map(|plan| &plan.basis)
    }
}

/// Closer together where there are few blocks.
fn sizes(blocks_max: u64) -> Vec<u64> {
    let at = |step: u64| {
        let part = step as f64 / POINTS as f64;
        (blocks_max as f64 * part * (0.3 + 0.7 * part)).round() as u64
    };
    let mut sizes: Vec<u64> = (1..=POINTS).map(at).filter(|size| *size > 0).collect();
    sizes.dedup();
    sizes
}

fn name(level: &str, index: usize) -> String {
    format!("{level} {index}")
}
