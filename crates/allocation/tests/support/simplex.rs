//! Linear programs without cleverness: a dense tableau, and always the first column and row that will do (Bland's rule), so that it
//! ends. It knows nothing of the solvers that plans come from.

/// Below this a number is rounding. Programs are scaled so that what counts is far above it.
const ROUNDING: f64 = 1e-9;

/// Minimise Σ cost × value over values that are not negative.
#[derive(Clone, Debug, Default)]
pub struct Simplex {
    costs: Vec<f64>,
    /// Σ factor × value ≤ limit.
    rows: Vec<(Vec<(usize, f64)>, f64)>,
}

impl Simplex {
    pub fn column(&mut self, cost: f64) -> usize {
        self.costs.push(cost);
        self.costs.len() - 1
    }

    pub fn at_most(&mut self, terms: &[(usize, f64)], limit: f64) {
        self.rows.push((terms.to_vec(), limit));
    }

    /// The least cost, or none if no values meet all rows.
    pub fn minimise(&self) -> Option<f64> {
        let (columns, rows) = (self.costs.len(), self.rows.len());
        // Columns, one slack a row, one artificial variable for all, and the limits.
        let artificial = columns + rows;
        let mut table = vec![vec![0.0; artificial + 2]; rows];
        for (row, (terms, limit)) in self.rows.iter().enumerate() {
            for (column, factor) in terms {
                table[row][*column] += factor;
            }
            table[row][columns + row] = 1.0;
            table[row][artificial] = -1.0;
            table[row][artificial + 1] = *limit;
        }
        let mut basis: Vec<usize> = (columns..artificial).collect();
        let worst = (0..rows).min_by(|a, b| self.rows[*a].1.total_cmp(&self.rows[*b].1))?;
        if self.rows[worst].1 < 0.0 {
            let mut costs = vec![0.0; artificial + 2];
            costs[artificial] = 1.0;
            pivot(&mut table, &mut basis, &mut costs, worst, artificial);
            run(&mut table, &mut basis, &mut costs, artificial + 1);
            // What is left of the artificial variable is what rows are broken by.
            if -costs[artificial + 1] > ROUNDING * 10.0 {
                return None;
            }
            if let Some(row) = basis.iter().position(|of| *of == artificial) {
                let column = (0..artificial).find(|column| table[row][*column].abs() > ROUNDING)?;
                pivot(&mut table, &mut basis, &mut costs, row, column);
            }
        }
        let mut costs = [&self.costs[..], &vec![0.0; rows + 2]].concat();
        for (row, column) in basis.clone().into_iter().enumerate() {
            let cost = costs[column];
            for (value, of_row) in costs.iter_mut().zip(&table[row]) {
                *value -= cost * of_row;
            }
        }
        run(&mut table, &mut basis, &mut costs, artificial);
        Some(-costs[artificial + 1])
    }
}

/// Pivots until no column below `end` makes it cheaper.
fn run(table: &mut [Vec<f64>], basis: &mut [usize], costs: &mut [f64], end: usize) {
    let limit = costs.len() - 1;
    while let Some(column) = (0..end).find(|column| costs[*column] < -ROUNDING) {
        let candidates = (0..table.len()).filter(|row| table[*row][column] > ROUNDING);
        let ratio = |row: usize| table[row][limit] / table[row][column];
        let least = candidates.clone().map(ratio).fold(f64::INFINITY, f64::min);
        let row = candidates.filter(|row| ratio(*row) <= least + ROUNDING).min_by_key(|row| basis[*row]);
        pivot(table, basis, costs, row.expect("costs have an end"), column);
    }
}

fn pivot(table: &mut [Vec<f64>], basis: &mut [usize], costs: &mut [f64], row: usize, column: usize) {
    let factor = table[row][column];
    for value in &mut table[row] {
        *value /= factor;
    }
    let line = table[row].clone();
    let others = table.iter_mut().enumerate().filter(|(other, _)| *other != row).map(|(_, values)| &mut values[..]);
    for values in others.chain([costs]) {
        let factor = values[column];
        if factor != 0.0 {
            for (value, of_line) in values.iter_mut().zip(&line) {
                *value -= factor * of_line;
            }
        }
    }
    basis[row] = column;
}
