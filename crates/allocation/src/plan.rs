//! What a scheme answers: everybody's share, and what it is expected to do.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use surgetank_model::Bytes;

use crate::placement::Place;
use crate::problem::{Amount, Estimate, Problem, Slo};

/// Shares of both levels for every application of a problem, in its order.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// One an application.
    pub shares: Vec<Share>,
    /// N ÷ Σ latency ÷ fair latency: the harmonic mean of what applications gain over the fair share.
    pub fair_speedup: f64,
    /// Which scheme the shares come from.
    pub basis: Basis,
    /// How the plan stands to the largest change that the problem allows.
    pub change: Change,
}

/// What one application has.
#[derive(Clone, Debug, PartialEq)]
pub struct Share {
    /// Whose it is.
    pub application: String,
    /// Of its first-level server.
    pub level1: Bytes,
    /// Of second-level servers by name, without those of which it has nothing.
    pub level2: BTreeMap<String, Bytes>,
    /// What its accesses take on average, expected.
    pub latency_ms: f64,
    /// The same under the fair share.
    pub fair_latency_ms: f64,
    /// What it is promised.
    pub bound_ms: f64,
    /// Whether the expected latency is within the bound.
    pub slo_met: bool,
}

/// Where shares come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Basis {
    /// The least Σ latency ÷ fair latency at which every SLO holds.
    Optimal,
    /// The paper's algorithm. Latencies are those of its surfaces.
    Mlms,
    /// A scheme to compare with ([`crate::baselines`]).
    Baseline,
    /// An equal split of each server, because the scheme has no better answer.
    FairShare(Fallback),
}

/// Why the fair share is all there is.
#[derive(Clone, Debug, PartialEq)]
pub enum Fallback {
    /// No shares meet all SLOs.
    Infeasible(Infeasible),
    /// The measured latency of an application was above its bound in that many intervals in a row: its model is wrong.
    Violated {
        /// The application's name.
        application: String,
        /// Intervals.
        times: u32,
    },
    /// Some applications have fewer samples than a surface takes.
    Bootstrap,
    /// The paper's algorithm found no shares that meet all SLOs and fit on the servers. There may be some.
    NoCombination,
    /// The solver failed, or its plan breaks a promise; and how.
    Solver(String),
}

/// No shares meet all SLOs, and what would change that. Either of both remedies suffices.
#[derive(Clone, Debug, PartialEq)]
pub struct Infeasible {
    /// SLOs that hold together with those of all others.
    pub relaxed: Vec<Relaxed>,
    /// Cache that would have to be added. None if no cache is known to suffice: bounds may follow a fair share that grows
    /// with it, or a curve may ask for more than a problem's servers can have.
    pub added: Option<Vec<Added>>,
}

/// So much more cache at a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    /// Its level.
    pub level: Level,
    /// Its name.
    pub server: String,
    /// What it lacks.
    pub cache: Bytes,
}

/// A level of caches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// In front: each application uses one server.
    First,
    /// Behind it.
    Second,
}

/// An application whose SLO does not hold, and the least one that would.
#[derive(Clone, Debug, PartialEq)]
pub struct Relaxed {
    /// The application's name.
    pub application: String,
    /// The SLO that it has.
    pub slo: Slo,
    /// The SLO that would be feasible.
    pub feasible: Slo,
}

/// How far a plan is from the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// As far as the problem allows, at most.
    Within,
    /// Farther: within what it allows no plan meets all SLOs, or the scheme does not bound changes.
    Exceeded,
}

/// A bound counts as met up to this part of it: programs are solved in floating point, and shares are whole bytes.
pub const TOLERANCE: f64 = 1e-6;

impl Plan {
    /// Which SLOs cannot be met, if the plan is the fair share for that reason.
    #[must_use]
    pub fn infeasible(&self) -> Option<&Infeasible> {
        match &self.basis {
            Basis::FairShare(Fallback::Infeasible(infeasible)) => Some(infeasible),
            _ => None,
        }
    }

    /// Of these amounts, with latencies by this estimate for all.
    pub(crate) fn of(problem: &Problem, amounts: &[Amount], basis: Basis, estimate: Estimate) -> Self {
        let latency = |index: usize| {
            let (first, second) = (amounts[index].level1.get() as f64, amounts[index].second().get() as f64);
            problem.latency_ms(index, first, second, estimate)
        };
        Self::with_latencies(problem, amounts, (0..amounts.len()).map(latency), basis)
    }

    /// Of these amounts, with latencies by each application's own estimate.
    pub(crate) fn planned(problem: &Problem, amounts: &[Amount]) -> Self {
        let latency = |(index, amount): (usize, &Amount)| {
            problem.planned_ms(index, amount.level1.get() as f64, amount.second().get() as f64)
        };
        Self::with_latencies(problem, amounts, amounts.iter().enumerate().map(latency), Basis::Optimal)
    }

    /// Of amounts whose latencies do not follow from the amounts alone.
    pub(crate) fn with_latencies(
        problem: &Problem,
        amounts: &[Amount],
        latencies_ms: impl Iterator<Item = f64>,
        basis: Basis,
    ) -> Self {
        let share = |(index, latency_ms): (usize, f64)| {
            let (member, amount) = (&problem.applications[index], &amounts[index]);
            let bound_ms = problem.bound_ms(index);
            Share {
                application: member.name.clone(),
                level1: amount.level1,
                level2: amount.level2.iter().map(|(j, bytes)| (problem.level2[*j].name.clone(), *bytes)).collect(),
                latency_ms,
                fair_latency_ms: member.fair_latency_ms,
                bound_ms,
                slo_met: latency_ms <= bound_ms * (1.0 + TOLERANCE),
            }
        };
        let shares: Vec<Share> = latencies_ms.enumerate().map(share).collect();
        let fair_speedup = fair_speedup(&shares);
        Self { shares, fair_speedup, basis, change: Change::Within }
    }

    /// The amounts of this problem's applications, in its order; none for those of which the plan has no share that they
    /// could still use.
    pub(crate) fn amounts(&self, problem: &Problem) -> Vec<Option<Amount>> {
        let shares: BTreeMap<&str, &Share> = self.shares.iter().map(|share| (&*share.application, share)).collect();
        let servers: BTreeMap<&str, usize> =
            problem.level2.iter().enumerate().map(|(index, server)| (&*server.name, index)).collect();
        let amount = |member: &crate::problem::Member| {
            let share = shares.get(&*member.name)?;
            let mut level2 = Vec::new();
            for (name, bytes) in &share.level2 {
                let server = servers.get(&**name).filter(|server| member.level2.contains(server))?;
                level2.push((*server, *bytes));
            }
            level2.sort_unstable();
            Some(Amount { level1: share.level1, level2 })
        };
        problem.applications.iter().map(amount).collect()
    }
}

pub(crate) fn fair_speedup(shares: &[Share]) -> f64 {
    shares.len() as f64 / shares.iter().map(|share| share.latency_ms / share.fair_latency_ms).sum::<f64>()
}

/// A server of which more is shared out than it has.
pub(crate) fn overcommitted<'a>(problem: &'a Problem, amounts: &[Amount]) -> Option<&'a str> {
    let mut first = vec![0_u64; problem.level1.len()];
    let mut second = vec![0_u64; problem.level2.len()];
    for (member, amount) in problem.applications.iter().zip(amounts) {
        first[member.level1] = first[member.level1].saturating_add(amount.level1.get());
        for (server, bytes) in &amount.level2 {
            second[*server] = second[*server].saturating_add(bytes.get());
        }
    }
    let servers = problem.level1.iter().zip(first).chain(problem.level2.iter().zip(second));
    servers.into_iter().find(|(server, shared)| *shared > server.cache.get()).map(|(server, _)| &*server.name)
}

/// How far shares are from former ones.
pub(crate) fn change(problem: &Problem, former: Option<&[Option<Amount>]>, now: &[Amount]) -> Change {
    let has_changed = |(index, (before, after)): (usize, (&Option<Amount>, &Amount))| {
        before.as_ref().is_some_and(|before| changes_too_much(problem, index, before, after))
    };
    let (Some(former), Some(_)) = (former, problem.change_max) else { return Change::Within };
    if former.iter().zip(now).enumerate().any(has_changed) { Change::Exceeded } else { Change::Within }
}

/// Whether one application's share of a level changes by more than the problem allows. Shares are whole segments, so a
/// segment more is no change.
fn changes_too_much(problem: &Problem, application: usize, before: &Amount, after: &Amount) -> bool {
    let levels = [
        (before.level1, after.level1, problem.first_cache(problem.applications[application].level1)),
        (before.second(), after.second(), problem.reachable(application)),
    ];
    levels.into_iter().any(|(before, after, of)| {
        let limit = problem.change_max.unwrap_or(1.0) * of.get() as f64 * (1.0 + TOLERANCE);
        before.get().abs_diff(after.get()) as f64 > limit + problem.segment as f64
    })
}

/// A bound for people: rounded up to a whole nanosecond, and as long as there are durations.
pub(crate) fn duration_of(ms: f64) -> Duration {
    let up = (ms * 1e6).ceil() / 1e9;
    let duration = Duration::try_from_secs_f64(up).unwrap_or(Duration::MAX);
    if duration.as_secs_f64() * 1e3 < ms { duration.saturating_add(Duration::from_nanos(1)) } else { duration }
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Infeasible(infeasible) => write!(f, "{infeasible}"),
            Self::Violated { application, times } => write!(
                f,
                "application {application} was above its bound in {times} intervals in a row: the fair share holds until its model is measured anew"
            ),
            Self::Bootstrap => write!(f, "some applications have too few samples for a latency surface"),
            Self::NoCombination => write!(f, "no shares were found that meet all SLOs and fit on the servers"),
            Self::Solver(message) => write!(f, "there is no plan that keeps its promises: {message}"),
        }
    }
}

impl fmt::Display for Infeasible {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let relaxed: Vec<String> = self
            .relaxed
            .iter()
            .map(|one| format!("application {} cannot have {}, but {}", one.application, one.slo, one.feasible))
            .collect();
        write!(f, "no shares meet all SLOs: {}", relaxed.join("; "))?;
        let added: Vec<String> = self
            .added
            .iter()
            .flatten()
            .map(|added| format!("{:.1} MiB more at {}", added.cache.as_mib(), added.server))
            .collect();
        if added.is_empty() { Ok(()) } else { write!(f, "; or add {}", added.join(" and ")) }
    }
}

impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AboveFair(slo) => write!(f, "{:.3} % above its fair share", slo * 100.0),
            Self::Latency(latency) => write!(f, "{:.6} ms", latency.as_secs_f64() * 1e3),
        }
    }
}

/// Amounts with these first-level shares, and second-level ones that are placed.
pub(crate) fn amounts_of(first: &[Bytes], places: Vec<Place>) -> Vec<Amount> {
    first.iter().zip(places).map(|(level1, level2)| Amount { level1: *level1, level2 }).collect()
}
