//! Least squares without negative coefficients.

use crate::planted::{Bug, planted};

/// The coefficients, none negative, of the least sum of squared errors over these rows of terms and values.
///
/// Such a solution is a least-squares solution over the terms that it uses. There are so few that all sets of them are tried;
/// of equal ones the set of fewer terms counts.
pub(super) fn fit<const N: usize>(rows: &[([f64; N], f64)]) -> [f64; N] {
    let mut best = ([0.0; N], rows.iter().map(|(_, value)| value * value).sum::<f64>());
    let mut sets: Vec<u32> = (1..1 << N).collect();
    sets.sort_by_key(|set| set.count_ones());
    if planted(Bug::SurfaceRises) {
        sets = vec![(1 << N) - 1];
    }
    for set in sets {
        let used: Vec<usize> = (0..N).filter(|term| set & 1 << term != 0).collect();
        let Some(solution) = least_squares(rows, &used) else { continue };
        if solution.iter().any(|coefficient| *coefficient < 0.0) && !planted(Bug::SurfaceRises) {
            continue;
        }
        let mut coefficients = [0.0; N];
        for (term, coefficient) in used.iter().zip(solution) {
            coefficients[*term] = coefficient;
        }
        let error = squares(rows, &coefficients);
        if error < best.1 * (1.0 - 1e-9) {
            best = (coefficients, error);
        }
    }
    best.0
}

fn squares<const N: usize>(rows: &[([f64; N], f64)], coefficients: &[f64; N]) -> f64 {
    let error = |(terms, value): &([f64; N], f64)| {
        let fitted: f64 = terms.iter().zip(coefficients).map(|(term, factor)| term * factor).sum();
        (fitted - value).powi(2)
    };
    rows.iter().map(error).sum()
}

/// By the normal equations, or none if the rows leave a coefficient open.
fn least_squares<const N: usize>(rows: &[([f64; N], f64)], used: &[usize]) -> Option<Vec<f64>> {
    let count = used.len();
    let sum = |of: &dyn Fn(&[f64; N], f64) -> f64| rows.iter().map(|(terms, value)| of(terms, *value)).sum::<f64>();
    let mut equations: Vec<Vec<f64>> = used
        .iter()
        .map(|i| {
            let mut line: Vec<f64> = used.iter().map(|j| sum(&|terms, _| terms[*i] * terms[*j])).collect();
            line.push(sum(&|terms, value| terms[*i] * value));
            line
        })
        .collect();
    // Gauss-Jordan with pivots.
    for column in 0..count {
        let pivot =
            (column..count).max_by(|a, b| equations[*a][column].abs().total_cmp(&equations[*b][column].abs()))?;
        equations.swap(column, pivot);
        let line = equations[column].clone();
        if line[column].abs() < 1e-10 * rows.len() as f64 {
            return None;
        }
        for (index, other) in equations.iter_mut().enumerate().filter(|(index, _)| *index != column) {
            let factor = other[column] / line[column];
            debug_assert!(index < count);
            for (value, of_line) in other.iter_mut().zip(&line) {
                *value -= factor * of_line;
            }
        }
    }
    Some((0..count).map(|index| equations[index][count] / equations[index][index]).collect())
}
