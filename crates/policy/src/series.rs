//! What comes next in a series of positive numbers: bytes of bursts, or seconds between them.
//!
//! Several experts each forecast a distribution, and are heard by how well they did lately (Hedge: weights fall
//! exponentially with their losses). All but the first forecast one number, and their own past errors around it tell how
//! wide it is (the simple form of conformal prediction). No expert is best for series that repeat, alternate, grow and
//! vary by chance; together they are little worse than the best of them.

use std::collections::VecDeque;

/// Values that are remembered: enough for a distribution, few enough to follow a change.
pub const MEMORY: usize = 16;
/// Errors that an expert remembers.
const ERRORS: usize = 8;
/// The weight of a value to that of the next one, and of a loss.
const FADING: f64 = 0.85;
/// How fast weights fall with losses.
const RATE: f64 = 1.0;
/// A loss is no larger than this: a forecast that is wrong by a factor of e.
const LOSS_MAX: f64 = 1.0;
/// Before an expert has erred, it is taken to be wrong by these factors.
const UNKNOWN: [f64; 3] = [0.9, 1.0, 1.1];
/// Two values in a row that are further from what was forecast than this factor, and nearer to one another than
/// [`SIMILAR`], are a change: what was before tells nothing any more.
const CHANGED: f64 = 1.4;
const SIMILAR: f64 = 1.1;
/// A trend is the line through so many values at most.
const TREND: usize = 6;

/// A value, and its weight.
pub type Likely = (f64, f64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// As the last ones were distributed.
    Recent,
    /// As the one before.
    Last,
    /// On the line through the last ones.
    Trend,
    /// As so many before.
    Season(usize),
}

const KINDS: [Kind; 6] = [Kind::Recent, Kind::Last, Kind::Trend, Kind::Season(2), Kind::Season(3), Kind::Season(4)];

#[derive(Clone, Debug)]
struct Expert {
    kind: Kind,
    /// Losses, faded.
    loss: f64,
    /// Values ÷ what was forecast.
    errors: VecDeque<f64>,
}

impl Expert {
    /// The number that it forecasts; `None`: it knows too little.
    fn center(&self, values: &VecDeque<f64>) -> Option<f64> {
        match self.kind {
            Kind::Recent | Kind::Last => values.back().copied(),
            Kind::Trend => trend(values),
            Kind::Season(length) => values.len().checked_sub(length).map(|index| values[index]),
        }
    }

    /// What it forecasts, of all together the weight 1; empty: it knows too little.
    fn forecast(&self, values: &VecDeque<f64>) -> Vec<Likely> {
        let Some(center) = self.center(values) else { return Vec::new() };
        let mut likely: Vec<Likely> = if self.kind == Kind::Recent {
            let weights = std::iter::successors(Some(1.0), |weight| Some(weight * FADING));
            values.iter().rev().copied().zip(weights).collect()
        } else if self.errors.is_empty() {
            UNKNOWN.iter().map(|error| (center * error, 1.0)).collect()
        } else {
            self.errors.iter().map(|error| (center * error, 1.0)).collect()
        };
        let total: f64 = likely.iter().map(|(_, weight)| weight).sum();
        likely.iter_mut().for_each(|(_, weight)| *weight /= total);
        likely
    }

    /// The value after `values` has come.
    fn learn(&mut self, values: &VecDeque<f64>, value: f64) {
        let likely = self.forecast(values);
        let loss = if likely.is_empty() { LOSS_MAX } else { loss(&likely, value).min(LOSS_MAX) };
        self.loss = self.loss * FADING + loss;
        if let Some(center) = self.center(values) {
            if self.errors.len() == ERRORS {
                self.errors.pop_front();
            }
            self.errors.push_back(value / center);
        }
    }
}

/// How far a forecast is from what came, in factors of e (the continuous ranked probability score of logarithms): 0 for one
/// that is sharp and right.
fn loss(likely: &[Likely], value: f64) -> f64 {
    let logs: Vec<(f64, f64)> = likely.iter().map(|(likely, weight)| (likely.ln(), *weight)).collect();
    let value = value.ln();
    let far: f64 = logs.iter().map(|(log, weight)| weight * (log - value).abs()).sum();
    let wide: f64 =
        logs.iter().flat_map(|one| logs.iter().map(move |other| one.1 * other.1 * (one.0 - other.0).abs())).sum();
    far - wide / 2.0
}

/// The next value on the line through the last ones; no less than half of the last.
fn trend(values: &VecDeque<f64>) -> Option<f64> {
    let count = values.len().min(TREND);
    let last = values.iter().skip(values.len() - count);
    let n = count as f64;
    let (mean_at, mean) = ((n - 1.0) / 2.0, last.clone().sum::<f64>() / n);
    let pairs = (0u32..).map(f64::from).zip(last);
    let (above, below) = pairs.fold((0.0, 0.0), |(above, below), (at, value)| {
        (above + (at - mean_at) * (value - mean), below + (at - mean_at) * (at - mean_at))
    });
    let next = mean + above / below * (n - mean_at);
    values.back().filter(|_| count >= 3).map(|last| next.max(last / 2.0))
}

/// A series. See the module.
#[derive(Clone, Debug)]
pub struct Series {
    values: VecDeque<f64>,
    experts: [Expert; KINDS.len()],
    /// What the experts forecast together. It changes with values alone, and is asked for with every sample.
    forecast: Vec<Likely>,
    median: Option<f64>,
}

impl Default for Series {
    fn default() -> Self {
        let experts = KINDS.map(|kind| Expert { kind, loss: 0.0, errors: VecDeque::new() });
        Self { values: VecDeque::new(), experts, forecast: Vec::new(), median: None }
    }
}

impl Series {
    /// The next value has come, above zero.
    pub fn push(&mut self, value: f64) {
        if !(value > 0.0 && value.is_finite()) {
            return;
        }
        if self.changes_with(value) {
            let last = self.values.back().copied();
            *self = Self::default();
            last.into_iter().for_each(|last| self.push(last));
        }
        for expert in &mut self.experts {
            if !self.values.is_empty() {
                expert.learn(&self.values, value);
            }
        }
        if self.values.len() == MEMORY {
            self.values.pop_front();
        }
        self.values.push_back(value);
        self.forecast = self.mixture();
        self.median = quantiles(&self.forecast, 1).first().copied();
    }

    /// Whether this value and the last one are alike, and unlike all before.
    fn changes_with(&self, value: f64) -> bool {
        let apart = |one: f64, other: f64, factor: f64| one > other * factor || other > one * factor;
        let Some((last, before)) = self.values.iter().next_back().zip(self.values.len().checked_sub(1)) else {
            return false;
        };
        before >= 3
            && !apart(*last, value, SIMILAR)
            && self.values.iter().take(before).all(|other| apart(*other, value, CHANGED))
    }

    /// Values that have come and are remembered, oldest first.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = f64> + '_ {
        self.values.iter().copied()
    }

    /// Whether none has come.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// What the next one is likely to be, with weights that sum up to 1; empty: nothing is known.
    #[must_use]
    pub fn forecast(&self) -> &[Likely] {
        &self.forecast
    }

    /// The median of that; `None`: nothing is known.
    #[must_use]
    pub fn median(&self) -> Option<f64> {
        self.median
    }

    /// What the experts forecast, each heard by how well it did.
    fn mixture(&self) -> Vec<Likely> {
        let least = self.experts.iter().map(|expert| expert.loss).fold(f64::INFINITY, f64::min);
        let mut likely = Vec::with_capacity(MEMORY + (KINDS.len() - 1) * ERRORS);
        for expert in &self.experts {
            let weight = (RATE * (least - expert.loss)).exp();
            likely.extend(expert.forecast(&self.values).into_iter().map(|(value, part)| (value, part * weight)));
        }
        let total: f64 = likely.iter().map(|(_, weight)| weight).sum();
        likely.retain(|(_, weight)| *weight > total * 1e-4);
        let total: f64 = likely.iter().map(|(_, weight)| weight).sum();
        likely.iter_mut().for_each(|(_, weight)| *weight /= total);
        likely
    }
}

/// So many values that stand for a forecast: those at the middle of equal parts of it.
#[must_use]
pub fn quantiles(likely: &[Likely], count: u32) -> Vec<f64> {
    let mut sorted = likely.to_vec();
    sorted.sort_unstable_by(|one, other| one.0.total_cmp(&other.0));
    let total: f64 = sorted.iter().map(|(_, weight)| weight).sum();
    let (mut quantiles, mut below) = (Vec::with_capacity(count as usize), 0.0);
    let mut next = 0;
    for (value, weight) in sorted {
        below += weight;
        while next < count && below >= total * (f64::from(next) + 0.5) / f64::from(count) {
            quantiles.push(value);
            next += 1;
        }
    }
    quantiles
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn after(values: impl IntoIterator<Item = f64>) -> Series {
        let mut series = Series::default();
        values.into_iter().for_each(|value| series.push(value));
        series
    }

    fn expected(series: &Series) -> f64 {
        series.median().unwrap()
    }

    /// The weight of what is forecast between these.
    fn between(series: &Series, low: f64, high: f64) -> f64 {
        series.forecast().iter().filter(|(value, _)| (low..=high).contains(value)).map(|(_, weight)| weight).sum()
    }

    #[test]
    fn nothing_is_known_at_first_and_little_after_one() {
        assert_eq!(after([]).forecast(), &[]);
        assert!((expected(&after([5.0])) - 5.0).abs() < 1e-9);
    }

    #[test]
    fn what_repeats_is_expected_again() {
        assert!(between(&after([4.0; 6]), 3.9, 4.1) > 0.95);
    }

    #[test]
    fn what_alternates_is_expected_in_turn() {
        let turns = |count: usize| (0..count).map(|turn| if turn % 2 == 0 { 1.0 } else { 8.0 });
        assert!(between(&after(turns(12)), 0.9, 1.1) > 0.8);
        assert!(between(&after(turns(13)), 7.9, 8.1) > 0.8);
        let in_three = (0..13).map(|turn| [1.0, 4.0, 9.0][turn % 3]);
        assert!(between(&after(in_three), 3.9, 4.1) > 0.7);
    }

    #[test]
    fn what_grows_is_expected_to_go_on() {
        let grown = expected(&after((1..9).map(|step| 100.0 + 20.0 * f64::from(step))));
        assert!((270.0..300.0).contains(&grown), "{grown}");
    }

    #[test]
    fn what_varies_by_chance_is_expected_as_it_is_distributed() {
        let by_chance = [1.0, 1.0, 8.0, 1.0, 8.0, 8.0, 1.0, 1.0, 8.0, 8.0, 8.0, 1.0, 1.0, 8.0, 1.0, 8.0];
        let small = between(&after(by_chance), 0.0, 2.0);
        assert!((0.25..0.75).contains(&small), "{small}");
    }

    #[test]
    fn a_change_is_followed_after_two() {
        let changed = after([400.0; 10].into_iter().chain([150.0; 2]));
        assert!(between(&changed, 130.0, 170.0) > 0.95, "{:?}", changed.forecast());
        // One alone is an exception.
        assert!(between(&after([400.0; 10].into_iter().chain([150.0])), 390.0, 410.0) > 0.2);
    }

    #[test]
    fn quantiles_stand_for_their_parts() {
        let likely = [(3.0, 0.5), (1.0, 0.25), (2.0, 0.25)];
        assert_eq!(quantiles(&likely, 4), [1.0, 2.0, 3.0, 3.0]);
        assert_eq!(quantiles(&likely, 1), [2.0]);
        assert_eq!(quantiles(&[], 4), [0.0f64; 0]);
    }

    /// Onsets of the write phases of an IOR run on 384 ranks, in seconds: the example of FTIO (arXiv 2306.08601), whose spectrum
    /// finds a period of 10.84 s in its volume over time.
    const IOR: [f64; 8] = [3.17, 13.16, 23.74, 34.59, 44.42, 53.78, 63.94, 74.17];

    #[test]
    fn a_period_is_known_better_from_onsets_than_from_a_spectrum() {
        let found = expected(&after(IOR.windows(2).map(|pair| pair[1] - pair[0])));
        let mean = (IOR[7] - IOR[0]) / 7.0;
        assert!((found - mean).abs() < 0.25 * (10.84 - mean), "{found} {mean}");
    }

    proptest! {
        /// Whatever comes: positive numbers, whose weights sum up to 1.
        #[test]
        fn forecasts_are_distributions(values in prop::collection::vec(1e-3..1e15f64, 1..40)) {
            let series = after(values);
            let likely = series.forecast();
            prop_assert!((likely.iter().map(|(_, weight)| weight).sum::<f64>() - 1.0).abs() < 1e-9);
            prop_assert!(likely.iter().all(|(value, weight)| *value > 0.0 && value.is_finite() && *weight > 0.0));
        }

        /// The mixture is hardly worse than its best expert: no rule alone is best for all series.
        #[test]
        fn little_is_lost_to_the_best_expert(
            kind in 0..4usize,
            values in prop::collection::vec(1.0..10.0f64, 40),
        ) {
            let values: Vec<f64> = values.iter().enumerate().map(|(turn, chance)| match kind {
                0 => 5.0 + 0.01 * chance,
                1 => [2.0, 9.0][turn % 2] + 0.01 * chance,
                2 => 10.0 + turn as f64 + 0.01 * chance,
                _ => *chance,
            }).collect();
            let (mut series, mut mixed, mut alone) = (Series::default(), 0.0, [0.0; KINDS.len()]);
            for (turn, value) in values.iter().enumerate() {
                if turn >= 16 {
                    mixed += loss(series.forecast(), *value);
                    for (sum, expert) in alone.iter_mut().zip(&series.experts) {
                        *sum += loss(&expert.forecast(&series.values), *value);
                    }
                }
                series.push(*value);
            }
            let best = alone.into_iter().fold(f64::INFINITY, f64::min);
            // The worst that was found in chance alone is 1.28 times.
            prop_assert!(mixed <= 1.35 * best + 0.25, "{mixed} {alone:?}");
        }
    }
}
