//! What a bench says: one row a bar, as a table for people and as JSON.

use std::fmt::Write;

use serde::Serialize;

/// One measurement beside what it is compared with.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// Ours, median over the rounds.
    pub ours: f64,
    /// What it is compared with, median over the rounds.
    pub reference: f64,
    /// What the reference is.
    pub reference_name: String,
    /// Unit of both.
    pub unit: &'static str,
    /// Ours ÷ reference.
    pub ratio: f64,
    /// What the ratio must be.
    pub bar: Option<Bar>,
    /// Whether it is; `None`: for information.
    pub met: Option<bool>,
}

/// What a ratio must be.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bar {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

impl Row {
    /// Two measurements of one quantity.
    pub fn new(
        name: impl Into<String>,
        unit: &'static str,
        ours: f64,
        reference: f64,
        reference_name: impl Into<String>,
    ) -> Self {
        let ratio = ours / reference;
        Self {
            name: name.into(),
            ours,
            reference,
            reference_name: reference_name.into(),
            unit,
            ratio,
            bar: None,
            met: None,
        }
    }

    /// Measurements taken in turns, so many of each. The ratio is the median of the turns' ratios: a minute in which
    /// the machine is slow then weighs on both alike.
    pub fn paired(
        name: impl Into<String>,
        unit: &'static str,
        turns: &[[f64; 2]],
        reference_name: impl Into<String>,
    ) -> Self {
        let all = |pick: fn(&[f64; 2]) -> f64| median(turns.iter().map(pick).collect());
        let row = Self::new(name, unit, all(|turn| turn[0]), all(|turn| turn[1]), reference_name);
        Self { ratio: all(|turn| turn[0] / turn[1]), ..row }
    }

    /// The same with a bar.
    pub fn bar(self, bar: Bar) -> Self {
        let met = match bar {
            Bar::AtLeast(least) => self.ratio >= least,
            Bar::AtMost(most) => self.ratio <= most,
        };
        Self { bar: Some(bar), met: Some(met), ..self }
    }
}

/// Everything that a run of the bench found.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Shorter runs, fewer rounds.
    pub quick: bool,
    /// Programs and kernel, with their versions.
    pub versions: Vec<(String, String)>,
    /// In the order of measuring.
    pub rows: Vec<Row>,
    /// Parts that could not run here, and why.
    pub skipped: Vec<String>,
}

impl Report {
    /// The table, in Markdown.
    pub fn markdown(&self) -> String {
        let mut text =
            String::from("| measured | surgetank | compared with | ratio | bar | |\n|---|---:|---:|---:|---:|---|\n");
        for row in &self.rows {
            let bar = match row.bar {
                Some(Bar::AtLeast(least)) => format!("≥ {least:.2}"),
                Some(Bar::AtMost(most)) => format!("≤ {most:.2}"),
                None => String::new(),
            };
            let met = match row.met {
                Some(true) => "met",
                Some(false) => "**missed**",
                None => "",
            };
            let (ours, reference) = (digits(row.ours), digits(row.reference));
            let _ = writeln!(
                text,
                "| {} | {ours} {unit} | {reference} {unit}: {} | {:.3} | {bar} | {met} |",
                row.name,
                row.reference_name,
                row.ratio,
                unit = row.unit,
            );
        }
        for reason in &self.skipped {
            let _ = writeln!(text, "\nSkipped: {reason}");
        }
        text.push('\n');
        for (program, version) in &self.versions {
            let _ = writeln!(text, "- {program}: {version}");
        }
        text
    }
}

/// Three significant digits or the whole number, whichever is more.
fn digits(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        medium if medium >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The middle one, or the mean of the two middle ones.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 0 => (values[middle - 1] + values[middle]) / 2.0,
        _ => values[middle],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_is_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert!(median(Vec::new()).is_nan());
    }

    #[test]
    fn a_slow_minute_weighs_on_both_sides_of_a_pair() {
        let row = Row::paired("a", "MiB/s", &[[120.0, 100.0], [12.0, 10.0], [11.0, 10.0]], "b");
        assert_eq!((row.ours, row.reference, row.ratio), (12.0, 10.0, 1.2));
    }

    #[test]
    fn bars_are_judged_on_the_ratio() {
        let row = |ours, bar| Row::new("a", "MiB/s", ours, 100.0, "b").bar(bar).met;
        assert_eq!(row(95.0, Bar::AtLeast(0.95)), Some(true));
        assert_eq!(row(94.0, Bar::AtLeast(0.95)), Some(false));
        assert_eq!(row(94.0, Bar::AtMost(0.95)), Some(true));
        assert_eq!(row(f64::NAN, Bar::AtLeast(0.95)), Some(false));
        assert_eq!(Row::new("a", "MiB/s", 1.0, 1.0, "b").met, None);
    }

    #[test]
    fn missed_bars_stand_out_in_the_table() {
        let rows = vec![Row::new("a", "MiB/s", 1.234, 100.0, "raw").bar(Bar::AtLeast(1.0))];
        let text = Report { rows, ..Report::default() }.markdown();
        assert!(text.contains("| a | 1.23 MiB/s | 100 MiB/s: raw | 0.012 | ≥ 1.00 | **missed** |"), "{text}");
    }
}
