//! The solver of default builds: microlp, a simplex method in Rust.

use microlp::{ComparisonOp, Error, OptimizationDirection, Problem, SolveOutcome, Variable};

use super::{Cuts, Failure, Program, ROUNDS_MAX, Row, Solution};

pub(super) fn minimise(program: &mut Program, cuts: &mut Cuts<'_>) -> Result<Solution, Failure> {
    let mut problem = Problem::new(OptimizationDirection::Minimize);
    let variables: Vec<Variable> = program
        .columns
        .iter()
        .map(|column| match column.whole {
            false => problem.add_var(column.cost, (column.low, column.high)),
            true => problem.add_integer_var(column.cost, (column.low as i32, column.high as i32)),
        })
        .collect();
    let terms = |row: &Row| row.terms.iter().map(|(column, factor)| (variables[*column], *factor)).collect::<Vec<_>>();
    for row in &program.rows {
        problem.add_constraint(terms(row), relation(row), row.limit);
    }
    let mut outcome = problem.solve().map_err(failure)?;
    for _ in 0..ROUNDS_MAX {
        let SolveOutcome::Solution(mut solution) = outcome else {
            return Err(Failure::Solver("it stopped before its end".to_owned()));
        };
        let values: Vec<f64> = variables.iter().map(|variable| solution.var_value(*variable)).collect();
        let new = cuts(&values);
        if new.is_empty() {
            return Ok(Solution { values, cost: solution.objective() });
        }
        let (last, others) = new.split_last().expect("it is not empty");
        for row in others {
            let next = solution.add_constraint(terms(row), relation(row), row.limit).map_err(failure)?;
            let SolveOutcome::Solution(next) = next else {
                return Err(Failure::Solver("it stopped before its end".to_owned()));
            };
            solution = next;
        }
        outcome = solution.add_constraint(terms(last), relation(last), last.limit).map_err(failure)?;
        program.rows.extend(new);
    }
    Err(Failure::Solver(format!("{ROUNDS_MAX} rounds of cuts were not enough")))
}

fn relation(row: &Row) -> ComparisonOp {
    if row.exact { ComparisonOp::Eq } else { ComparisonOp::Le }
}

fn failure(error: Error) -> Failure {
    match error {
        Error::Infeasible => Failure::Infeasible,
        error => Failure::Solver(error.to_string()),
    }
}
