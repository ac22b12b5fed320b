//! What `allocate` answers.

use std::collections::BTreeMap;

use serde::Serialize;
use surgetank_allocation::mlms::Gap;
use surgetank_allocation::{Change, Fallback, Hierarchy, Level, Plan, Problem, Share, Slo, TOLERANCE, baselines};
use surgetank_model::Bytes;

use super::scheme::{Scheme, fallback};

/// Shares, what they do, and how other schemes stand to them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Allocation {
    /// Whether every SLO holds.
    pub feasible: bool,
    /// Where the shares come from. Without an answer they are the fair share.
    pub scheme: &'static str,
    /// `exclusive` or `inclusive`.
    pub hierarchy: &'static str,
    /// N ÷ Σ latency ÷ fair latency.
    pub fair_speedup: f64,
    /// In the order of the file.
    pub apps: Vec<AppShare>,
    /// First-level ones first.
    pub servers: Vec<ServerShare>,
    /// Every scheme for the same file, each without a previous plan.
    pub schemes: Vec<SchemeResult>,
    /// How far the fair speedup of `mlms` is below the optimum's, as a part of it; null if one of them has no answer, or if
    /// there are too many applications to simulate it beside.
    pub mlms_below_optimum: Option<f64>,
    /// Whether shares change by more than `change_max`, because else no plan meets all SLOs.
    pub change_exceeded: bool,
    /// Why there is no answer, and what would be feasible.
    pub infeasible: Option<Infeasible>,
}

/// An application's share.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AppShare {
    /// Its name.
    pub name: String,
    /// Its first-level server.
    pub level1: String,
    /// Of that server.
    pub level1_mib: f64,
    /// Of second-level servers by name, without those of which it has nothing.
    pub level2_mib: BTreeMap<String, f64>,
    /// What its accesses take on average, if a share that is between two points of the hull is split.
    pub latency_ms: f64,
    /// What they take if each share is one cache.
    pub unsplit_latency_ms: f64,
    /// What they would take under the fair share.
    pub fair_latency_ms: f64,
    /// What it is promised.
    pub bound_ms: f64,
    /// How much of the bound is left, as a part of it; negative if the SLO does not hold.
    pub slo_margin: f64,
    /// Whether its latency is within the bound.
    pub slo_met: bool,
    /// Its equal part of the first-level server.
    pub fair_level1_mib: f64,
    /// Its equal parts of second-level servers.
    pub fair_level2_mib: BTreeMap<String, f64>,
}

impl AppShare {
    /// Of all second-level servers.
    #[must_use]
    pub fn second_mib(&self) -> f64 {
        self.level2_mib.values().sum()
    }

    /// The same under the fair share.
    #[must_use]
    pub fn fair_second_mib(&self) -> f64 {
        self.fair_level2_mib.values().sum()
    }
}

/// A level as the file calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum LevelName {
    /// I/O servers.
    Level1,
    /// Storage servers.
    Level2,
}

impl From<Level> for LevelName {
    fn from(level: Level) -> Self {
        match level {
            Level::First => Self::Level1,
            Level::Second => Self::Level2,
        }
    }
}

/// What of a server is shared out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ServerShare {
    /// Its level.
    pub level: LevelName,
    /// Its name.
    pub name: String,
    /// What it has.
    pub cache_mib: f64,
    /// What applications have of it. More than it has under `independent` alone, which is no division.
    pub shared_mib: f64,
}

/// What a scheme does.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SchemeResult {
    /// Its name.
    pub name: &'static str,
    /// By the curves.
    pub fair_speedup: f64,
    /// How far that is below the optimum's, as a part of it; negative above, which only schemes are that keep no SLO. Null if there
    /// is no optimum.
    pub below_optimum: Option<f64>,
    /// Applications whose SLO it breaks.
    pub slo_broken: Vec<String>,
    /// Whether the scheme has no answer, and the numbers are those of the fair share.
    pub fell_back: bool,
}

/// Why no shares meet all SLOs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Infeasible {
    /// For people.
    pub reason: String,
    /// SLOs that would hold together with those of all others.
    pub relaxed: Vec<RelaxedSlo>,
    /// Cache that would suffice instead; none if none does.
    pub added: Vec<MoreCache>,
}

/// An SLO that does not hold, and the least one that would.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RelaxedSlo {
    /// Whose.
    pub name: String,
    /// As the file has it, if it is one above the fair share.
    pub slo: Option<f64>,
    /// Of the same kind.
    pub feasible_slo: Option<f64>,
    /// As the file has it, if it is a latency.
    pub slo_ms: Option<f64>,
    /// Of the same kind.
    pub feasible_slo_ms: Option<f64>,
}

/// Cache that a server lacks.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MoreCache {
    /// The server's level.
    pub level: LevelName,
    /// Its name.
    pub name: String,
    /// What it lacks.
    pub add_mib: f64,
}

/// Of more applications `mlms` is not simulated beside another scheme: the answer would wait for it.
const COMPARED_MAX: usize = 64;

impl Allocation {
    /// What a scheme answers, with all others beside it. The previous plan counts for `optimal` alone.
    ///
    /// # Errors
    /// If the solver fails: one sentence.
    pub fn of(problem: &Problem, scheme: Scheme, previous: Option<&Plan>) -> Result<Self, String> {
        let plan = scheme.plan(problem, previous);
        if let Some(failed @ Fallback::Solver(_)) = fallback(&plan) {
            return Err(failed.to_string());
        }
        let best = Scheme::Optimal.plan(problem, None);
        let count = plan.shares.len();
        let compared = Scheme::ALL
            .into_iter()
            .filter(|other| *other != Scheme::Mlms || scheme == Scheme::Mlms || count <= COMPARED_MAX);
        let schemes: Vec<SchemeResult> = compared
            .map(|other| match other {
                Scheme::Optimal => SchemeResult::of(other, &best, &best),
                _ if other == scheme => SchemeResult::of(other, &plan, &best),
                _ => SchemeResult::of(other, &other.plan(problem, None), &best),
            })
            .collect();
        let mlms = schemes.iter().find(|one| one.name == Scheme::Mlms.name() && !one.fell_back);
        Ok(Self {
            feasible: fallback(&plan).is_none() && plan.shares.iter().all(|share| share.slo_met),
            scheme: scheme.name(),
            hierarchy: match problem.hierarchy() {
                Hierarchy::Exclusive => "exclusive",
                Hierarchy::Inclusive => "inclusive",
            },
            fair_speedup: plan.fair_speedup,
            apps: apps(problem, &plan),
            servers: servers(problem, &plan),
            mlms_below_optimum: mlms.and_then(|mlms| mlms.below_optimum),
            schemes,
            change_exceeded: plan.change == Change::Exceeded,
            infeasible: infeasible(scheme, &plan),
        })
    }

    /// Applications whose SLO holds only if their share is split.
    pub fn need_split(&self) -> impl Iterator<Item = &AppShare> {
        self.apps.iter().filter(|app| app.slo_met && app.unsplit_latency_ms > app.bound_ms * (1.0 + TOLERANCE))
    }
}

fn mib(of: &BTreeMap<String, Bytes>) -> BTreeMap<String, f64> {
    of.iter().map(|(name, bytes)| (name.clone(), bytes.as_mib())).collect()
}

fn apps(problem: &Problem, plan: &Plan) -> Vec<AppShare> {
    let (whole, fair) = (Gap::judged(problem, plan), baselines::fair_share(problem));
    let app = |(index, share): (usize, &Share)| AppShare {
        name: share.application.clone(),
        level1: problem.first_server(index).unwrap_or_default().to_owned(),
        level1_mib: share.level1.as_mib(),
        level2_mib: mib(&share.level2),
        latency_ms: share.latency_ms,
        unsplit_latency_ms: whole.shares[index].latency_ms,
        fair_latency_ms: share.fair_latency_ms,
        bound_ms: share.bound_ms,
        slo_margin: 1.0 - share.latency_ms / share.bound_ms,
        slo_met: share.slo_met,
        fair_level1_mib: fair.shares[index].level1.as_mib(),
        fair_level2_mib: mib(&fair.shares[index].level2),
    };
    plan.shares.iter().enumerate().map(app).collect()
}

fn servers(problem: &Problem, plan: &Plan) -> Vec<ServerShare> {
    let mut shared: BTreeMap<(bool, &str), f64> = BTreeMap::new();
    for (index, share) in plan.shares.iter().enumerate() {
        let first = problem.first_server(index).unwrap_or_default();
        *shared.entry((true, first)).or_default() += share.level1.as_mib();
        for (server, bytes) in &share.level2 {
            *shared.entry((false, server)).or_default() += bytes.as_mib();
        }
    }
    let all = [Level::First, Level::Second]
        .into_iter()
        .flat_map(|level| problem.servers(level).iter().map(move |server| (level, server)));
    all.map(|(level, server)| ServerShare {
        level: level.into(),
        name: server.name.clone(),
        cache_mib: server.cache.as_mib(),
        shared_mib: shared.get(&(level == Level::First, &*server.name)).copied().unwrap_or_default(),
    })
    .collect()
}

impl SchemeResult {
    fn of(scheme: Scheme, plan: &Plan, best: &Plan) -> Self {
        let broken = plan.shares.iter().filter(|share| !share.slo_met).map(|share| share.application.clone());
        let optimum = fallback(best).is_none().then_some(best.fair_speedup);
        Self {
            name: scheme.name(),
            fair_speedup: plan.fair_speedup,
            below_optimum: optimum.map(|optimum| 1.0 - plan.fair_speedup / optimum),
            slo_broken: broken.collect(),
            fell_back: fallback(plan).is_some(),
        }
    }
}

fn infeasible(scheme: Scheme, plan: &Plan) -> Option<Infeasible> {
    let without_remedy = |reason: String| Some(Infeasible { reason, relaxed: Vec::new(), added: Vec::new() });
    let Some(fallback) = fallback(plan) else {
        let broken: Vec<&str> =
            plan.shares.iter().filter(|share| !share.slo_met).map(|share| &*share.application).collect();
        if broken.is_empty() {
            return None;
        }
        return without_remedy(format!(
            "the scheme {} breaks the SLO of {}: --scheme optimal finds shares that meet all SLOs, if there are any",
            scheme.name(),
            broken.join(", ")
        ));
    };
    match fallback {
        Fallback::Infeasible(found) if found.relaxed.is_empty() && found.added.is_none() => without_remedy(format!(
            "the scheme {} finds no shares that meet all SLOs: --scheme optimal does, if there are any",
            scheme.name()
        )),
        Fallback::Infeasible(found) => Some(Infeasible {
            reason: found.to_string(),
            relaxed: found.relaxed.iter().map(RelaxedSlo::of).collect(),
            added: found
                .added
                .iter()
                .flatten()
                .map(|added| MoreCache {
                    level: added.level.into(),
                    name: added.server.clone(),
                    add_mib: added.cache.as_mib(),
                })
                .collect(),
        }),
        other => without_remedy(other.to_string()),
    }
}

impl RelaxedSlo {
    fn of(relaxed: &surgetank_allocation::Relaxed) -> Self {
        let above = |slo: Slo| match slo {
            Slo::AboveFair(above) => Some(above),
            Slo::Latency(_) => None,
        };
        let latency_ms = |slo: Slo| match slo {
            Slo::AboveFair(_) => None,
            Slo::Latency(latency) => Some(latency.as_secs_f64() * 1e3),
        };
        Self {
            name: relaxed.application.clone(),
            slo: above(relaxed.slo),
            feasible_slo: above(relaxed.feasible),
            slo_ms: latency_ms(relaxed.slo),
            feasible_slo_ms: latency_ms(relaxed.feasible),
        }
    }
}
