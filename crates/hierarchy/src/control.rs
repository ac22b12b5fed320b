//! Who decides what applications have, each interval anew.

use std::time::Duration;

use surgetank_allocation::mlms::{Mlms, SAMPLES_MIN, Sample};
use surgetank_allocation::{
    Application, Basis, Description, Fallback, Latencies, MissCurve, Model, Plan, Problem, Server, Slo, baselines,
    confidence, solve,
};
use surgetank_model::Bytes;
use surgetank_mrc::Rate;

use crate::case::{Case, CaseError, Measured};
use crate::online::OnlineCurve;
use crate::system::{Grant, Layout, Sharing, System};

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
}

impl Scheme {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Independent,
        Self::FairShare,
        Self::Uncontrolled,
        Self::FirstLevelOnly,
        Self::SecondLevelOnly,
        Self::Mlms,
        Self::Optimal,
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
    mlms: Mlms,
    plan: Option<Plan>,
    violations: Vec<u32>,
    /// How long an access to the disk takes, of late.
    disk_ms: f64,
    /// Intervals that have ended.
    ended: usize,
}

/// How fast the latency of the disk follows what is measured.
const FOLLOWS: f64 = 0.3;

impl<'a> Controller<'a> {
    pub fn new(case: &'a Case, scheme: Scheme) -> Result<Self, CaseError> {
        let rate = Rate::new(case.sampled).map_err(|error| CaseError(error.to_string()))?;
        let layout = &case.layout;
        let curve = |reach: &crate::system::Reach| {
            let second: u64 = reach.level2.iter().map(|server| layout.level2[*server]).sum();
            OnlineCurve::new(rate, layout.level1[reach.level1] + second)
        };
        Ok(Self {
            case,
            scheme,
            curves: layout.reach.iter().map(curve).collect(),
            mlms: Mlms::default(),
            plan: None,
            violations: vec![0; layout.reach.len()],
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
        self.curves[application].feed(blocks);
    }

    /// Before the first interval.
    pub fn first(&self) -> Vec<Grant> {
        match self.scheme {
            Scheme::Independent => System::everything(&self.case.layout),
            _ => System::fair_share(&self.case.layout),
        }
    }

    /// An interval has ended: what applications have in the next one. None: what they have.
    pub fn next(&mut self, measured: &mut [Measured], disk_ms: Option<f64>) -> Result<Option<Vec<Grant>>, CaseError> {
        self.ended += 1;
        if !self.watches() {
            return Ok(None);
        }
        self.curves.iter_mut().for_each(OnlineCurve::age);
        if let Some(disk_ms) = disk_ms {
            let known = self.disk_ms > 0.0;
            self.disk_ms = if known { self.disk_ms + FOLLOWS * (disk_ms - self.disk_ms) } else { disk_ms };
        }
        let Some(curves) = self.all_curves()? else { return Ok(None) };
        let problem = self.problem(&curves, measured)?;
        let predicted = baselines::fair_share(&problem);
        for ((share, measured), violations) in
            predicted.shares.iter().zip(measured.iter_mut()).zip(&mut self.violations)
        {
            measured.predicted_fair_ms = share.fair_latency_ms;
            let is_above = measured.latency_ms > share.bound_ms;
            *violations = if is_above && self.plan.is_some() { *violations + 1 } else { 0 };
        }
        let is_warming = self.ended < self.case.warmup;
        if self.scheme == Scheme::Mlms {
            return self.next_of_mlms(&problem, measured);
        }
        if is_warming {
            return Ok(None);
        }
        let problem = self.problem(&curves, measured)?;
        let plan = match self.scheme {
            Scheme::FirstLevelOnly => {
                baselines::first_level_only(&problem).map_err(|error| CaseError(error.to_string()))?
            }
            Scheme::SecondLevelOnly => {
                baselines::second_level_only(&problem).map_err(|error| CaseError(error.to_string()))?
            }
            _ => solve(&problem, self.plan.as_ref()),
        };
        if let Basis::FairShare(Fallback::Violated { .. }) = plan.basis {
            // Models are measured anew in the next interval.
            self.violations.fill(0);
        }
        Ok(Some(self.grant(&problem, plan, measured)))
    }

    /// The paper's algorithm takes its first samples at shares of its own, at the end of the time in which caches warm up.
    fn next_of_mlms(&mut self, problem: &Problem, measured: &mut [Measured]) -> Result<Option<Vec<Grant>>, CaseError> {
        let begins = self.case.warmup.saturating_sub(SAMPLES_MIN + 2);
        if self.ended > begins {
            for (source, measured) in self.case.sources.iter().zip(measured.iter()) {
                let bytes = |blocks: u64| Bytes::new(blocks * self.case.layout.block);
                let (first, second) = (bytes(measured.level1), bytes(measured.level2));
                self.mlms.observe(&source.name, Sample { first, second, latency_ms: measured.latency_ms });
            }
        }
        if self.ended < begins {
            return Ok(None);
        }
        let plan = if self.ended < self.case.warmup {
            Mlms::bootstrap(problem, self.ended - begins)
        } else {
            self.mlms.solve(problem, self.plan.as_ref())
        };
        Ok(Some(self.grant(problem, plan, measured)))
    }

    fn all_curves(&self) -> Result<Option<Vec<MissCurve>>, CaseError> {
        let block = self.case.layout.block;
        self.curves
            .iter()
            .map(|curve| curve.curve(block).map_err(|error| CaseError(error.to_string())).transpose())
            .collect::<Option<Result<Vec<_>, _>>>()
            .transpose()
    }

    fn problem(&self, curves: &[MissCurve], measured: &[Measured]) -> Result<Problem, CaseError> {
        let Layout { block, level1, level2, .. } = &self.case.layout;
        let server = |level: &'static str| {
            move |(index, cache): (usize, &u64)| Server { name: name(level, index), cache: Bytes::new(cache * block) }
        };
        let times = self.case.times;
        let ms = |ms: f64| Duration::from_secs_f64(ms / 1e3);
        let latencies = Latencies {
            level1: ms(times.level1_ms),
            level2: ms(times.level2_ms),
            disk: ms(self.disk_ms.max(times.level2_ms * 1.01)),
        };
        let application = |(index, curve): (usize, &MissCurve)| {
            let reach = &self.case.layout.reach[index];
            let bound_ms = measured[index].predicted_fair_ms * (1.0 + self.case.slos[index]);
            let margin = match self.case.deviations {
                Some(deviations) if bound_ms > 0.0 => {
                    confidence::margin(self.curves[index].sampled(), latencies, bound_ms, deviations)
                }
                _ => 0.0,
            };
            Application {
                name: self.case.sources[index].name.clone(),
                level1: name("first", reach.level1),
                level2: reach.level2.iter().map(|server| name("second", *server)).collect(),
                slo: Slo::AboveFair(self.case.slos[index]),
                model: Model::Curve(curve.clone()),
                accesses_per_s: (measured[index].accesses as f64 / self.case.interval_s).max(1e-3),
                margin: if self.scheme == Scheme::Optimal { margin } else { 0.0 },
                violations: if self.scheme == Scheme::Optimal { self.violations[index] } else { 0 },
            }
        };
        Problem::new(Description {
            latencies,
            hierarchy: self.case.layout.hierarchy,
            level1: level1.iter().enumerate().map(server("first")).collect(),
            level2: level2.iter().enumerate().map(server("second")).collect(),
            applications: curves.iter().enumerate().map(application).collect(),
            segment: Bytes::new(*block),
            change_max: if self.scheme == Scheme::Optimal { self.case.change_max } else { None },
        })
        .map_err(|error| CaseError(error.to_string()))
    }

    /// Takes over a plan.
    fn grant(&mut self, problem: &Problem, plan: Plan, measured: &mut [Measured]) -> Vec<Grant> {
        let block = self.case.layout.block;
        let grant = |(index, share): (usize, &surgetank_allocation::Share)| Grant {
            level1: share.level1.get() / block,
            level2: self.case.layout.reach[index]
                .level2
                .iter()
                .map(|server| {
                    let bytes = share.level2.get(&name("second", *server)).map_or(0, |bytes| bytes.get());
                    (*server, bytes / block)
                })
                .collect(),
            hull: if plan.basis == Basis::Optimal { problem.hull(index).cloned() } else { None },
        };
        let grants = plan.shares.iter().enumerate().map(grant).collect();
        for (share, measured) in plan.shares.iter().zip(measured) {
            measured.next_ms = share.latency_ms;
        }
        self.plan = Some(plan);
        grants
    }

    /// Where the last plan comes from.
    pub fn basis(&self) -> Option<&Basis> {
        self.plan.as_ref().map(|plan| &plan.basis)
    }
}

fn name(level: &str, index: usize) -> String {
    format!("{level} {index}")
}
