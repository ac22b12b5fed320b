//! Linear programs, whoever solves them.

#[cfg(feature = "highs")]
mod highs;
#[cfg(not(feature = "highs"))]
mod simplex;

#[cfg(feature = "highs")]
use highs as solver;
#[cfg(not(feature = "highs"))]
use simplex as solver;

/// Minimise Σ cost × value over columns within their limits, such that every row holds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Program {
    pub columns: Vec<Column>,
    pub rows: Vec<Row>,
}

/// A variable.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Column {
    pub cost: f64,
    pub low: f64,
    pub high: f64,
    /// Only whole numbers are values.
    pub whole: bool,
}

/// Σ factor × value of these columns is at most, or exactly, the limit.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub terms: Vec<(usize, f64)>,
    pub exact: bool,
    pub limit: f64,
}

/// Values of all columns.
#[derive(Clone, Debug)]
pub(crate) struct Solution {
    pub values: Vec<f64>,
    pub cost: f64,
}

/// Why there is no solution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// No values meet all rows.
    Infeasible,
    /// The solver failed.
    Solver(String),
}

/// Rows that values break and solutions may not.
pub(crate) type Cuts<'a> = dyn FnMut(&[f64]) -> Vec<Row> + 'a;

/// Should a program need more rounds of cuts than this, it is not solved.
const ROUNDS_MAX: usize = 200;

impl Program {
    /// A variable from 0 to `high`.
    pub fn column(&mut self, cost: f64, high: f64) -> usize {
        self.columns.push(Column { cost, low: 0.0, high, whole: false });
        self.columns.len() - 1
    }

    pub fn at_most(&mut self, terms: Vec<(usize, f64)>, limit: f64) {
        self.rows.push(Row { terms, exact: false, limit });
    }

    pub fn exactly(&mut self, terms: Vec<(usize, f64)>, limit: f64) {
        self.rows.push(Row { terms, exact: true, limit });
    }

    /// The cheapest values that meet all rows and break no cut. Cuts that were needed are rows from then on.
    pub fn minimise(&mut self, cuts: &mut Cuts<'_>) -> Result<Solution, Failure> {
        solver::minimise(self, cuts)
    }
}
