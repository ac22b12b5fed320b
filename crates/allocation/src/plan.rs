//! What a scheme answers: everybody's share, and what it is expected to do.

use std::collections::BTreeMap;
use std::fmt;

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
    /// The paper's algorithm.
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
        /// Whose.
        application: String,
        /// Intervals.
        times: u32,
    },
    /// Some applications have fewer samples than a surface takes.
    Bootstrap,
    /// The solver failed, and says how.
    Solver(String),
}

/// No shares meet all SLOs, and what would change that. Either of both remedies suffices.
#[derive(Clone, Debug, PartialEq)]
pub struct Infeasible {
    /// SLOs that hold together with those of all others.
    pub relaxed: Vec<Relaxed>,
    /// Cache that would have to be added. None if no cache suffices, as where bounds follow a fair share that grows with it.
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
    /// Whose.
    pub application: String,
    /// What it is now.
    pub slo: Slo,
    /// What would be feasible.
    pub feasible: Slo,
}

/// How far a plan is from the previous one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// As far as the problem allows, at most.
    Within,
    /// Farther: within what it allows, no plan meets all SLOs.
    Exceeded,
}

/// A bound counts as met up to this part of it: programs are solved in floating point, and shares are whole bytes.
pub const TOLERANCE: f64 = 1e-6;

impl Plan {
    /// What is not feasible, if nothing is.
    #[must_use]
    pub fn infeasible(&self) -> Option<&Infeasible> {
        match &self.basis {
            Basis::FairShare(Fallback::Infeasible(infeasible)) => Some(infeasible),
            _ => None,
        }
    }

    /// Of these amounts.
    pub(crate) fn of(problem: &Problem, amounts: &[Amount], basis: Basis, estimate: Estimate) -> Self {
        let latency = |index: usize| {
            let (first, second) = (amounts[index].level1.get() as f64, amounts[index].second().get() as f64);
            problem.latency_ms(index, first, second, estimate)
        };
        Self::with_latencies(problem, amounts, (0..amounts.len()).map(latency), basis)
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

/// Which promise a plan breaks: one sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Broken(String);

/// Checks what every plan promises: a share for each application of servers that it reaches, no server overcommitted,
/// latencies and fair speedup that follow from the shares, and every SLO, unless the plan is the fair share or a baseline.
///
/// # Errors
/// The first promise that is broken.
pub fn verify(problem: &Problem, plan: &Plan) -> Result<(), Broken> {
    let broken = |message: String| Err(Broken(message));
    if !plan.shares.iter().map(|share| &*share.application).eq(problem.applications()) {
        return broken("the plan's applications are not those of the problem".to_owned());
    }
    let Some(amounts) = plan.amounts(problem).into_iter().collect::<Option<Vec<Amount>>>() else {
        return broken("an application has a share of a server that it does not reach".to_owned());
    };
    overcommitted(problem, &amounts).map_or(Ok(()), |server| broken(format!("{server} is overcommitted")))?;
    let estimate = match plan.basis {
        Basis::Optimal => Estimate::Split,
        Basis::FairShare(_) => Estimate::Whole,
        // Fitted latencies are not those of the problem, and shared caches not what a partition of the same sizes is.
        Basis::Mlms | Basis::Baseline => return Ok(()),
    };
    for (index, (share, amount)) in plan.shares.iter().zip(&amounts).enumerate() {
        let (name, bound_ms) = (&share.application, problem.bound_ms(index));
        let (first, second) = (amount.level1.get() as f64, amount.second().get() as f64);
        let latency_ms = problem.latency_ms(index, first, second, estimate);
        if (latency_ms - share.latency_ms).abs() > latency_ms * TOLERANCE {
            return broken(format!("{name} is said to take {} ms, and would take {latency_ms} ms", share.latency_ms));
        }
        if share.slo_met != (share.latency_ms <= bound_ms * (1.0 + TOLERANCE)) {
            return broken(format!("whether {name} is within its bound is wrong"));
        }
        let target_ms = problem.target_ms(index);
        if plan.basis == Basis::Optimal && latency_ms > target_ms * (1.0 + TOLERANCE) {
            return broken(format!("{name} takes {latency_ms} ms, and may take {target_ms} ms"));
        }
    }
    if (plan.fair_speedup - fair_speedup(&plan.shares)).abs() > TOLERANCE * plan.fair_speedup {
        return broken("the fair speedup does not follow from the latencies".to_owned());
    }
    Ok(())
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

/// Checks that no application's share of a level has changed by more than the problem allows.
///
/// # Errors
/// Naming the first application whose share has.
pub fn verify_change(problem: &Problem, previous: &Plan, plan: &Plan) -> Result<(), Broken> {
    let (Some(change_max), Change::Within) = (problem.change_max, plan.change) else {
        return Ok(());
    };
    for (index, amounts) in previous.amounts(problem).into_iter().zip(plan.amounts(problem)).enumerate() {
        let (Some(before), Some(after)) = amounts else { continue };
        let member = &problem.applications[index];
        let levels = [
            (before.level1, after.level1, problem.level1[member.level1].cache),
            (before.second(), after.second(), problem.reachable(index)),
        ];
        for (before, after, of) in levels {
            let limit = change_max * of.get() as f64 * (1.0 + TOLERANCE);
            if before.get().abs_diff(after.get()) as f64 > limit + 1.0 {
                return Err(Broken(format!("{}'s share changes from {before} to {after} at once", member.name)));
            }
        }
    }
    Ok(())
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
            Self::Solver(message) => write!(f, "the linear program could not be solved: {message}"),
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
