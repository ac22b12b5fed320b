//! The curve for people and for scripts.

use std::fmt::Write;

use serde::Serialize;
use surgetank_report::Table;
use surgetank_report::number::thousands;

/// Everything that the command found.
#[derive(Debug, Default, Serialize)]
pub struct MrcAnswer {
    pub trace: String,
    pub format: &'static str,
    pub policy: String,
    /// What counts as one block: a "request" (its first address), or a "block" of `block_size_kib`.
    pub unit: &'static str,
    pub block_size_kib: Option<f64>,
    pub requests: u64,
    /// Estimated if sampled; null where nobody counted.
    pub distinct_blocks: Option<u64>,
    pub sample_rate: Option<f64>,
    pub sample_keys_max: Option<u64>,
    pub broken_lines: u64,
    pub points: Vec<Point>,
}

/// One size.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    pub size_blocks: u64,
    pub hits: u64,
    pub requests: u64,
    pub miss_ratio: f64,
}

impl From<surgetank_mrc::Point> for Point {
    fn from(point: surgetank_mrc::Point) -> Self {
        let surgetank_mrc::Point { size_blocks, hits, requests, miss_ratio } = point;
        Self { size_blocks, hits, requests, miss_ratio }
    }
}

/// 1234567 → "1,234,567".
pub fn grouped(number: u64) -> String {
    thousands(number as f64)
}

impl MrcAnswer {
    /// What the curve is of, in one line.
    pub fn title(&self) -> String {
        let sampled = match (self.sample_rate, self.sample_keys_max) {
            (None, None) => String::new(),
            (Some(rate), None) => format!(", sampled at {rate}"),
            (None, Some(keys)) => format!(", from at most {} sampled blocks", grouped(keys)),
            (Some(rate), Some(keys)) => format!(", from at most {} blocks sampled at {rate}", grouped(keys)),
        };
        let blocks = match self.block_size_kib {
            Some(kib) => format!("blocks of {kib} KiB"),
            None if self.requests == 1 => "request".to_owned(),
            None => "requests".to_owned(),
        };
        format!("{}: {} {blocks} under {}{sampled}", self.trace, grouped(self.requests), self.policy)
    }

    /// Hits and miss ratio of each size.
    pub fn table(&self) -> Table {
        let row = |point: &Point| [grouped(point.size_blocks), grouped(point.hits), format!("{:.4}", point.miss_ratio)];
        Table::new(["blocks", "hits", "miss ratio"]).words(0).with(self.points.iter().map(row))
    }

    /// Table and picture.
    pub fn people(&self) -> String {
        let mut text = format!("{}\n{}\n", self.title(), self.table());
        if let Some(distinct) = self.distinct_blocks {
            let about = if self.sample_rate.is_some() || self.sample_keys_max.is_some() { "about " } else { "" };
            let _ = writeln!(text, "{about}{} different blocks", grouped(distinct));
        }
        let ascending = self.ascending();
        if ascending.len() > 2 {
            let _ = write!(text, "\n{}", plot(&ascending));
        }
        text
    }

    /// The points by size, each once, without size 0, which has no logarithm.
    pub fn ascending(&self) -> Vec<Point> {
        let mut points: Vec<Point> = self.points.iter().copied().filter(|point| point.size_blocks > 0).collect();
        points.sort_by_key(|point| point.size_blocks);
        points.dedup_by_key(|point| point.size_blocks);
        points
    }
}

const COLUMNS: usize = 64;
const ROWS: usize = 10;
const EIGHTHS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The curve as columns: miss ratio over the logarithm of the size, of ascending points.
fn plot(points: &[Point]) -> String {
    let logarithm = |point: &Point| (point.size_blocks as f64).ln();
    let (Some(first), Some(last)) = (points.first(), points.last()) else { return String::new() };
    let (from, to) = (logarithm(first), logarithm(last));
    let height = |column: usize| {
        let at = from + (to - from) * column as f64 / (COLUMNS - 1) as f64;
        // Between two sizes the curve is not known: the smaller one's value holds.
        let known = points.iter().take_while(|point| logarithm(point) <= at + 1e-9).last().unwrap_or(first);
        (known.miss_ratio * (ROWS * 8) as f64).round() as usize
    };
    let heights: Vec<usize> = (0..COLUMNS).map(height).collect();
    let mut text = String::new();
    for row in (0..ROWS).rev() {
        let label = match row {
            _ if row == ROWS - 1 => "1.0",
            _ if row == ROWS / 2 - 1 => "0.5",
            _ => "",
        };
        let cells: String = heights.iter().map(|height| EIGHTHS[height.saturating_sub(row * 8).min(8)]).collect();
        let _ = writeln!(text, "{label:>4} │{}", cells.trim_end());
    }
    let _ = writeln!(text, " 0.0 └{}", "─".repeat(COLUMNS));
    let (left, right) = (grouped(first.size_blocks), format!("{} blocks", grouped(last.size_blocks)));
    let _ = writeln!(text, "      {left}{right:>width$}", width = COLUMNS.saturating_sub(left.len()));
    text
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// An answer with as many points as given.
    pub fn sample(points: &[(u64, f64)]) -> MrcAnswer {
        let point = |(size_blocks, miss_ratio): &(u64, f64)| Point {
            size_blocks: *size_blocks,
            hits: 0,
            requests: 10,
            miss_ratio: *miss_ratio,
        };
        MrcAnswer { trace: "a<b".to_owned(), points: points.iter().map(point).collect(), ..MrcAnswer::default() }
    }

    #[test]
    fn the_plot_falls_with_the_curve() {
        let text = plot(&sample(&[(1, 1.0), (10, 0.5), (100, 0.0)]).points);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), ROWS + 2);
        assert_eq!(lines[0].matches('█').count(), 32);
        assert_eq!(lines[ROWS - 1].matches('█').count(), 63);
        assert!(lines[ROWS + 1].ends_with("100 blocks"));
    }

    #[test]
    fn anything_can_be_shown() {
        for points in [&[][..], &[(0, 1.0)], &[(5, 0.3)], &[(3, 0.2), (1, 0.4), (3, 0.2), (u64::MAX, 0.0)]] {
            assert!(sample(points).people().starts_with("a<b: "));
        }
    }
}
