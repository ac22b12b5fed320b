//! The solver of builds with the feature `highs`.

use highs::{HighsModelStatus, Model, RowProblem, Sense};

use super::{Cuts, Failure, Program, ROUNDS_MAX, Row, Solution};

pub(super) fn minimise(program: &mut Program, cuts: &mut Cuts<'_>) -> Result<Solution, Failure> {
    let mut problem = RowProblem::default();
    let columns: Vec<highs::Col> = program
        .columns
        .iter()
        .map(|column| match column.whole {
            false => problem.add_column(column.cost, column.low..=column.high),
            true => problem.add_integer_column(column.cost, column.low..=column.high),
        })
        .collect();
    let terms = |row: &Row| row.terms.iter().map(|(column, factor)| (columns[*column], *factor)).collect::<Vec<_>>();
    let range = |row: &Row| if row.exact { row.limit } else { f64::NEG_INFINITY }..=row.limit;
    for row in &program.rows {
        problem.add_row(range(row), terms(row));
    }
    let mut model = Model::try_new(problem).map_err(|status| Failure::Solver(format!("{status:?}")))?;
    model.make_quiet();
    model.set_sense(Sense::Minimise);
    // One thread, so that the same program has the same solution.
    model.set_option("threads", 1);
    for _ in 0..ROUNDS_MAX {
        let solved = model.try_solve().map_err(|status| Failure::Solver(format!("{status:?}")))?;
        match solved.status() {
            HighsModelStatus::Optimal => {}
            HighsModelStatus::Infeasible => return Err(Failure::Infeasible),
            status => return Err(Failure::Solver(format!("{status:?}"))),
        }
        let values = solved.get_solution().columns().to_vec();
        let new = cuts(&values);
        if new.is_empty() {
            return Ok(Solution { values, cost: solved.objective_value() });
        }
        model = solved.into();
        for row in &new {
            model.add_row(range(row), terms(row));
        }
        program.rows.extend(new);
    }
    Err(Failure::Solver(format!("{ROUNDS_MAX} rounds of cuts were not enough")))
}
