//! The bars: what is measured, what it is compared with, and whether the ratio is what it must be.

use serde::Serialize;
use surgetank_report::Table;
use surgetank_report::number::{difference, digits};

/// One measurement beside what it is compared with.
#[derive(Clone, Debug, Serialize)]
pub struct Bar {
    pub name: String,
    pub ours: f64,
    /// What it is compared with.
    pub reference: f64,
    /// What the reference is.
    pub reference_name: String,
    /// Unit of both.
    pub unit: &'static str,
    /// Ours ÷ reference.
    pub ratio: f64,
    /// The least and the greatest ratio of one round, where both were measured in turns.
    pub spread: Option<[f64; 2]>,
    /// What the ratio must be; `None`: for information.
    pub limit: Option<Limit>,
    /// Whether it is.
    pub met: Option<bool>,
}

/// What a ratio must be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
    /// 1, or off by at most this share.
    Within(f64),
}

impl Limit {
    fn allows(self, ratio: f64) -> bool {
        match self {
            Self::AtLeast(least) => ratio >= least,
            Self::AtMost(most) => ratio <= most,
            Self::Within(share) => (ratio - 1.0).abs() <= share,
        }
    }
}

impl Bar {
    /// A measurement and what it is compared with, for information.
    pub fn new(name: impl Into<String>, unit: &'static str, ours: f64, reference: (f64, impl Into<String>)) -> Self {
        let (name, (reference, reference_name)) = (name.into(), reference);
        let (reference_name, ratio) = (reference_name.into(), ours / reference);
        Self { name, ours, reference, reference_name, unit, ratio, spread: None, limit: None, met: None }
    }

    /// Medians of measurements taken in turns. The ratio is the median of the turns' ratios: a minute in which the machine
    /// is slow then weighs on both alike.
    pub fn paired(name: impl Into<String>, unit: &'static str, turns: &[[f64; 2]], peer: &str) -> Self {
        let all = |pick: fn(&[f64; 2]) -> f64| median(turns.iter().map(pick).collect());
        let bar = Self::new(name, unit, all(|turn| turn[0]), (all(|turn| turn[1]), peer));
        Self { ratio: all(|turn| turn[0] / turn[1]), ..bar }.spread(turns)
    }

    /// The same, with how far single rounds differ.
    pub fn spread(self, turns: &[[f64; 2]]) -> Self {
        let ratios = || turns.iter().map(|turn| turn[0] / turn[1]);
        let spread = [ratios().fold(f64::INFINITY, f64::min), ratios().fold(f64::NEG_INFINITY, f64::max)];
        Self { spread: (turns.len() > 1).then_some(spread), ..self }
    }

    /// The same, judged.
    pub fn must_be(self, limit: Limit) -> Self {
        Self { limit: Some(limit), met: Some(limit.allows(self.ratio)), ..self }
    }
}

/// Whether no bar is missed.
pub fn all_met(bars: &[Bar]) -> bool {
    bars.iter().all(|bar| bar.met != Some(false))
}

/// One row a bar.
pub fn table(bars: &[Bar]) -> Table {
    Table::of("measured | ours | compared with | ratio | must be | ").with(bars.iter().map(|bar| {
        let Bar { name, ours, reference, reference_name, unit, ratio, spread, limit, met } = bar;
        let value = |value: &f64| format!("{} {unit}", digits(*value)).trim_end().to_owned();
        let (ratio, limit) = match limit {
            Some(Limit::AtLeast(least)) => (format!("{ratio:.3}"), format!("≥ {least:.2}")),
            Some(Limit::AtMost(most)) => (format!("{ratio:.3}"), format!("≤ {most:.2}")),
            Some(Limit::Within(share)) => (difference(*ratio, 2), format!("± {:.0} %", share * 100.0)),
            None => (format!("{ratio:.3}"), String::new()),
        };
        let ratio = match spread {
            Some([least, most]) => format!("{ratio} ({least:.2} to {most:.2})"),
            None => ratio,
        };
        let met = met.map_or("", |met| if met { "met" } else { "**missed**" });
        [name.clone(), value(ours), format!("{}: {reference_name}", value(reference)), ratio, limit, met.to_owned()]
    }))
}

/// The middle one, or the mean of the two middle ones.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => f64::NAN,
        count if count % 2 == 0 => f64::midpoint(values[middle - 1], values[middle]),
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
        let bar = Bar::paired("a", "MiB/s", &[[120.0, 100.0], [12.0, 10.0], [11.0, 10.0]], "b");
        assert_eq!((bar.ours, bar.reference, bar.ratio), (12.0, 10.0, 1.2));
        assert!(table(&[bar]).markdown().contains("| 1.200 (1.10 to 1.20) |"));
    }

    #[test]
    fn bars_are_judged_on_the_ratio() {
        let met = |ours, limit| Bar::new("a", "MiB/s", ours, (100.0, "b")).must_be(limit).met;
        for (ours, limit, expected) in [
            (95.0, Limit::AtLeast(0.95), true),
            (94.0, Limit::AtLeast(0.95), false),
            (94.0, Limit::AtMost(0.95), true),
            (101.5, Limit::Within(0.02), true),
            (97.0, Limit::Within(0.02), false),
            (f64::NAN, Limit::AtLeast(0.95), false),
            (f64::NAN, Limit::Within(0.95), false),
        ] {
            assert_eq!(met(ours, limit), Some(expected), "{ours} {limit:?}");
        }
        assert!(all_met(&[Bar::new("a", "MiB/s", 0.0, (1.0, "b"))]));
    }

    #[test]
    fn missed_bars_stand_out_in_the_table() {
        let bar = |limit| Bar::new("a", "MiB/s", 1.234, (100.0, "raw")).must_be(limit);
        let text = table(&[bar(Limit::AtLeast(1.0)), bar(Limit::Within(0.02))]).markdown();
        assert!(text.contains("| a | 1.23 MiB/s | 100 MiB/s: raw | 0.012 | ≥ 1.00 | **missed** |"), "{text}");
        assert!(text.contains("| -98.77 % | ± 2 % | **missed** |"), "{text}");
    }
}
