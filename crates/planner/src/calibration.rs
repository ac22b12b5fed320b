//! Measured points, and what lies between them (NRK15, III-C).
//!
//! What is interpolated is the time that a dataset takes to write, not its throughput: in the fluid model that time is
//! made of straight pieces over both the dataset and the cache, so straight lines between points are exact but at the
//! kinks, and they never leave the range of their neighbours. Nothing is extrapolated.

use std::collections::BTreeMap;

use surgetank_model::Bytes;

use crate::scenario::CalibrationPoint;

/// Seconds to write, and seconds attached, of each repeat.
type Repeats = (Vec<f64>, Vec<f64>);

/// Repeats of one measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The least.
    pub low: f64,
    /// The median.
    pub median: f64,
    /// The most.
    pub high: f64,
}

impl Spread {
    /// Of values that are not empty and are numbers.
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let (low, high) = (values[0], values[values.len() - 1]);
        let median = (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0;
        Self { low, median, high }
    }

    fn between(self, other: Self, share: f64) -> Self {
        let mix = |from: f64, to: f64| from + (to - from) * share;
        Self { low: mix(self.low, other.low), median: mix(self.median, other.median), high: mix(self.high, other.high) }
    }
}

/// What is known of writing one dataset with one cache size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Seconds to write the dataset: x/B_M(x).
    pub write_s: Spread,
    /// Seconds that the caching volume was attached: D_M(x).
    pub attached_s: Spread,
    /// How often the least repeated of the points behind it was measured.
    pub repeats: usize,
}

impl Measured {
    fn between(self, other: Self, share: f64) -> Self {
        Self {
            write_s: self.write_s.between(other.write_s, share),
            attached_s: self.attached_s.between(other.attached_s, share),
            repeats: self.repeats.min(other.repeats),
        }
    }
}

/// All points of a setting.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Calibration {
    /// By dataset, then by cache size.
    points: BTreeMap<Bytes, BTreeMap<Bytes, Measured>>,
}

/// A question that the points do not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outside {
    /// One sentence.
    pub why: String,
}

impl Calibration {
    /// Points of the same dataset and cache size are repeats.
    #[must_use]
    pub fn new(points: &[CalibrationPoint]) -> Self {
        let mut repeats: BTreeMap<Bytes, BTreeMap<Bytes, Repeats>> = BTreeMap::new();
        for point in points {
            let (write_s, attached_s) = repeats.entry(point.dataset).or_default().entry(point.cache).or_default();
            write_s.push(point.dataset.as_mib() / point.throughput.as_mib_s());
            attached_s.push(point.attached.as_secs_f64());
        }
        let measured = |(write_s, attached_s): Repeats| Measured {
            repeats: write_s.len(),
            write_s: Spread::of(write_s),
            attached_s: Spread::of(attached_s),
        };
        let curve =
            |caches: BTreeMap<Bytes, _>| caches.into_iter().map(|(cache, both)| (cache, measured(both))).collect();
        Self { points: repeats.into_iter().map(|(dataset, caches)| (dataset, curve(caches))).collect() }
    }

    /// Whether nothing was measured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// All cache sizes that were measured, ascending.
    #[must_use]
    pub fn caches(&self) -> Vec<Bytes> {
        let mut caches: Vec<Bytes> = self.points.values().flat_map(BTreeMap::keys).copied().collect();
        caches.sort_unstable();
        caches.dedup();
        caches
    }

    /// What writing `dataset` with a cache of `cache` takes: a point, or between the points around it.
    ///
    /// # Errors
    /// There are none around it.
    pub fn at(&self, dataset: Bytes, cache: Bytes) -> Result<Measured, Outside> {
        let measured = |(dataset, curve): (&Bytes, &BTreeMap<Bytes, Measured>)| Some((*dataset, on(curve, cache)?));
        let below = self.points.range(..=dataset).rev().find_map(measured);
        let above = self.points.range(dataset..).find_map(measured);
        match (below, above) {
            (Some((low, below)), Some((high, above))) => Ok(below.between(above, share(low, dataset, high))),
            _ => Err(self.outside(dataset, cache)),
        }
    }

    fn outside(&self, dataset: Bytes, cache: Bytes) -> Outside {
        let range = |mut sizes: Vec<Bytes>| {
            sizes.sort_unstable();
            match (sizes.first(), sizes.last()) {
                (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
                (Some(only), _) => only.to_string(),
                _ => "none".to_owned(),
            }
        };
        let (datasets, caches) = (range(self.points.keys().copied().collect()), range(self.caches()));
        let why = format!(
            "{dataset} with a cache of {cache} lies outside the calibration points (datasets {datasets}, caches {caches})"
        );
        Outside { why }
    }
}

/// On one dataset's points, over the cache size.
fn on(curve: &BTreeMap<Bytes, Measured>, cache: Bytes) -> Option<Measured> {
    let (low, below) = curve.range(..=cache).next_back()?;
    let (high, above) = curve.range(cache..).next()?;
    Some(below.between(*above, share(*low, cache, *high)))
}

/// How far `at` lies on the way from `low` to `high`.
fn share(low: Bytes, at: Bytes, high: Bytes) -> f64 {
    let length = high.get() - low.get();
    if length == 0 { 0.0 } else { (at.get() - low.get()) as f64 / length as f64 }
}
