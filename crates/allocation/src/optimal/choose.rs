//! Where the applications of an inclusive hierarchy have their blocks: a choice for each, which no linear program makes.

use super::build::{Built, Request};
use super::terms::Mode;
use crate::lp::{Failure, Solution};
use crate::planted::{Bug, planted};
use crate::problem::Hierarchy;

/// Up to so many applications of an inclusive hierarchy the solver chooses for each, by whole numbers. Beyond it the choices come
/// from the shares of linear programs, and may miss the optimum.
const CHOICES_MAX: usize = 8;

/// Linear programs whose shares make the choices of the next one.
const ROUNDS_MAX: usize = 3;

type Answer = Result<(Built, Solution), Failure>;

/// The solution, with the better choice for each application of an inclusive hierarchy.
pub(super) fn chosen(request: &Request<'_>) -> Answer {
    let count = request.problem.applications.len();
    let behind = solved(request, &vec![Mode::Behind; count]);
    if request.problem.hierarchy == Hierarchy::Exclusive || planted(Bug::FirstLevelAloneIgnored) {
        return behind;
    }
    if count > CHOICES_MAX {
        return in_rounds(request, behind);
    }
    better(behind, solved(request, &vec![Mode::Either; count]))
}

/// With these modes, but for applications without a second level.
fn solved(request: &Request<'_>, modes: &[Mode]) -> Answer {
    let members = request.problem.applications.iter().zip(modes);
    let modes = members.map(|(member, mode)| if member.level2.is_empty() { Mode::Alone } else { *mode });
    let mut built = Built::new(request, &modes.collect::<Vec<_>>());
    let solution = built.minimise(request.problem)?;
    Ok((built, solution))
}

/// The cheaper one of what there is.
fn better(one: Answer, other: Answer) -> Answer {
    let cost = |(built, solution): &(Built, Solution)| built.constant + solution.cost;
    match (one, other) {
        (Ok(one), Ok(other)) => Ok(if cost(&other) < cost(&one) { other } else { one }),
        (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
        (Err(failure), Err(_)) => Err(failure),
    }
}

/// Whose first-level share is the larger one lives on it alone in the next program, until nobody changes or it gets no better.
/// Where there is no solution to begin with, fair shares decide.
fn in_rounds(request: &Request<'_>, behind: Answer) -> Answer {
    let mode = |(first, second): (f64, f64)| if second < first { Mode::Alone } else { Mode::Behind };
    let mut best = behind;
    let mut former = vec![Mode::Behind; request.problem.applications.len()];
    for _ in 0..ROUNDS_MAX {
        let shares: Vec<(f64, f64)> = match &best {
            Ok((built, solution)) => built.shares(&solution.values),
            Err(_) => {
                let fair = request.problem.applications.iter().map(|member| &member.fair);
                fair.map(|fair| (fair.level1.get() as f64, fair.second().get() as f64)).collect()
            }
        };
        let modes: Vec<Mode> = shares.into_iter().map(mode).collect();
        if modes == former {
            break;
        }
        let next = solved(request, &modes);
        former = modes;
        let is_better = match (&best, &next) {
            (Ok((_, best)), Ok((_, next))) => next.cost < best.cost,
            (Err(_), Ok(_)) => true,
            (_, Err(_)) => false,
        };
        best = better(best, next);
        if !is_better {
            break;
        }
    }
    best
}
