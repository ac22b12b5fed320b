//! The optimum by the program on paper and a solver of its own: a variable for each share of each server, a row for each line of each
//! hull, and for inclusive hierarchies one program for each choice of where applications have their blocks.

use surgetank_allocation::{Description, Hierarchy};

use super::simplex::Simplex;
use super::{GRAIN, naive};

/// What is asked of a problem.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Question {
    /// The least Σ latency ÷ fair latency.
    Cost,
    /// Whether any shares are within so many times all targets.
    Within(f64),
}

/// The lines on or above which the hull is: through two points of the curve, and below no other one. Each as its slope a byte, and its
/// value at size 0.
pub fn lines(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let mut lines = Vec::new();
    for (at, &(from, high)) in points.iter().enumerate() {
        for &(to, low) in &points[at + 1..] {
            let slope = (low - high) / (to - from);
            let at_zero = high - slope * from;
            if points.iter().all(|(size, ratio)| *ratio >= at_zero + slope * size - 1e-12) {
                lines.push((slope, at_zero));
            }
        }
    }
    lines
}

/// The least cost, or 0 if only feasibility is asked. None: no shares meet all SLOs.
pub fn exact(description: &Description, question: Question) -> Option<f64> {
    let count = description.applications.len();
    let choices = if description.hierarchy == Hierarchy::Inclusive { 1 << count } else { 1_u32 };
    let costs = (0..choices).filter_map(|choice| with_choice(description, question, choice));
    costs.reduce(f64::min)
}

/// Bit i of the choice: the disk sees what level 1 misses of application i, not what level 2 does.
fn with_choice(description: &Description, question: Question, choice: u32) -> Option<f64> {
    let grain = GRAIN.get() as f64;
    let mut program = Simplex::default();
    let mut of_first = vec![Vec::new(); description.level1.len()];
    let mut of_second = vec![Vec::new(); description.level2.len()];
    let mut constant = 0.0;
    for (of, application) in description.applications.iter().enumerate() {
        let fair_ms = naive::fair_latency_ms(description, of);
        let [t1, t2, t3] = naive::latencies_ms(description, of);
        let first = program.column(0.0);
        let server = description.level1.iter().position(|server| server.name == application.level1)?;
        of_first[server].push((first, 1.0));
        let mut seconds = Vec::new();
        for name in &application.level2 {
            let server = description.level2.iter().position(|server| server.name == *name)?;
            seconds.push((program.column(0.0), 1.0));
            of_second[server].push(seconds[seconds.len() - 1]);
        }
        let weight = if question == Question::Cost { 1.0 / fair_ms } else { 0.0 };
        // What both levels hit, so that nothing is the first solution.
        let (hits, hits_of_both) = (program.column(-weight * (t2 - t1)), program.column(-weight * (t3 - t2)));
        constant += weight * t3;
        let behind: Vec<(usize, f64)> = match description.hierarchy {
            Hierarchy::Exclusive => seconds.iter().copied().chain([(first, 1.0)]).collect(),
            Hierarchy::Inclusive if choice & 1 << of == 0 => seconds.clone(),
            Hierarchy::Inclusive => vec![(first, 1.0)],
        };
        let points = naive::curve(description, of).points();
        let last = points[points.len() - 1].1;
        for (slope, at_zero) in lines(points).into_iter().chain([(0.0, last)]) {
            program.at_most(&[(hits, 1.0), (first, slope * grain)], 1.0 - at_zero);
            let shares = behind.iter().map(|(share, _)| (*share, slope * grain));
            program.at_most(&shares.chain([(hits_of_both, 1.0)]).collect::<Vec<_>>(), 1.0 - at_zero);
        }
        let times = if let Question::Within(times) = question { times } else { 1.0 };
        let target_ms = naive::bound_ms(description, of) * (1.0 - application.margin) * times;
        program.at_most(&[(hits, t1 - t2), (hits_of_both, t2 - t3)], target_ms - t3);
    }
    for (servers, shares) in [(&description.level1, of_first), (&description.level2, of_second)] {
        for (server, shares) in servers.iter().zip(shares) {
            program.at_most(&shares, server.cache.get() as f64 / grain);
        }
    }
    Some(constant + program.minimise()?)
}
