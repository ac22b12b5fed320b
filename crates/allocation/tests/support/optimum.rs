//! The linear program as it is on paper: a variable for each share of each server, and a row for each line of each hull. Large
//! programs are for a solver; [`super::exact`] has one of its own for small ones.

use std::collections::BTreeMap;

use microlp::{ComparisonOp, Error, OptimizationDirection, Problem, Variable};
use surgetank_allocation::{Basis, Description, Hierarchy, solve};
use surgetank_model::random::Random;

use super::exact::lines;
use super::{Extent, MEDIUM, description, ensure, naive, problem, with_absolute_bounds};

/// Σ latency ÷ fair latency of the best shares, or none if no shares meet all SLOs.
fn optimum(description: &Description) -> Option<f64> {
    let mib = f64::from(1 << 20);
    let mut program = Problem::new(OptimizationDirection::Minimize);
    let mut of_first: BTreeMap<&str, Vec<(Variable, f64)>> = BTreeMap::new();
    let mut of_second: BTreeMap<&str, Vec<(Variable, f64)>> = BTreeMap::new();
    let mut constant = 0.0;
    for (of, application) in description.applications.iter().enumerate() {
        let fair_ms = naive::fair_latency_ms(description, of);
        let [t1, t2, t3] = naive::latencies_ms(description, of);
        let first = program.add_var(0.0, (0.0, f64::INFINITY));
        of_first.entry(&application.level1).or_default().push((first, 1.0));
        let mut both = vec![(first, 1.0)];
        for server in &application.level2 {
            let share = program.add_var(0.0, (0.0, f64::INFINITY));
            of_second.entry(server).or_default().push((share, 1.0));
            both.push((share, 1.0));
        }
        let m = program.add_var((t2 - t1) / fair_ms, (0.0, 1.0));
        let n = program.add_var((t3 - t2) / fair_ms, (0.0, 1.0));
        let points = naive::curve(description, of).points();
        let last = points[points.len() - 1].1;
        program.add_constraint([(m, 1.0)], ComparisonOp::Ge, last);
        program.add_constraint([(n, 1.0)], ComparisonOp::Ge, last);
        for (slope, at_zero) in lines(points) {
            program.add_constraint([(m, 1.0), (first, -slope * mib)], ComparisonOp::Ge, at_zero);
            let line: Vec<(Variable, f64)> =
                both.iter().map(|(share, _)| (*share, -slope * mib)).chain([(n, 1.0)]).collect();
            program.add_constraint(&line[..], ComparisonOp::Ge, at_zero);
        }
        let target_ms = naive::bound_ms(description, of) * (1.0 - application.margin);
        program.add_constraint([(m, t2 - t1), (n, t3 - t2)], ComparisonOp::Le, target_ms - t1);
        constant += t1 / fair_ms;
    }
    for (servers, shares) in [(&description.level1, of_first), (&description.level2, of_second)] {
        for (server, shares) in shares {
            program.add_constraint(&shares[..], ComparisonOp::Le, naive::cache(servers, server) as f64 / mib);
        }
    }
    match program.solve() {
        Ok(outcome) => Some(constant + outcome.into_solution().expect("it ends").objective()),
        Err(Error::Infeasible) => None,
        Err(error) => panic!("{error}"),
    }
}

/// The plan costs what the whole program says, and is infeasible when that is.
pub fn compare(seed: u64, extent: Extent) -> Result<(), String> {
    let random = &mut Random::from_seed(seed);
    let mut description = description(random, extent);
    description.hierarchy = Hierarchy::Exclusive;
    if random.chance(0.4) {
        description = with_absolute_bounds(description, 0.8 + 0.3 * random.unit());
    }
    let plan = solve(&problem(&description)?, None);
    naive::check(&description, &plan)?;
    match (optimum(&description), plan.infeasible()) {
        (None, Some(_)) => Ok(()),
        (Some(least), None) => {
            ensure(plan.basis == Basis::Optimal, || format!("it is {:?}", plan.basis))?;
            let cost = plan.shares.len() as f64 / plan.fair_speedup;
            // What decides between equals may cost so much.
            ensure((cost - least).abs() < 5e-5 * least, || format!("it costs {cost}, and could cost {least}"))
        }
        (least, _) => Err(format!("the least cost is {least:?}, and the plan {:?}", plan.basis)),
    }
}

pub fn run(seed: u64) -> Result<(), String> {
    compare(seed, MEDIUM)
}
