//! Latency by both shares, fitted to what was measured.

use surgetank_model::Bytes;

/// A latency that falls with both shares, ever more slowly:
/// c₀ + c₁u + c₂v + c₃u² + c₄v² + c₅w², where u = 1 − x/X, v = 1 − y/Y and w = 1 − (x+y)/(X+Y), none below 0.
///
/// Without a negative coefficient that falls monotonically and is convex, so that a linear program can take it, too. Six
/// coefficients are why it takes six samples at least.
#[derive(Clone, Debug, PartialEq)]
pub struct Surface {
    coefficients: [f64; TERMS],
    extent: (f64, f64),
}

/// What was measured in an interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The application's share of level 1.
    pub first: Bytes,
    /// Its shares of level 2, together.
    pub second: Bytes,
    /// What its accesses took on average.
    pub latency_ms: f64,
}

/// Why no surface goes through samples.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FitError {
    /// They leave the surface open.
    #[error("{0} samples are too few for a latency surface: it takes {SAMPLES_MIN}")]
    TooFew(usize),
    /// One of them is none.
    #[error("a measured latency of {0} ms is none")]
    Latency(f64),
}

/// As many as coefficients.
pub const SAMPLES_MIN: usize = TERMS;

const TERMS: usize = 6;

/// The terms of a surface at one point.
type Values = [f64; TERMS];

impl Surface {
    /// The surface of the least sum of squared errors among those that never rise. `extent` is what the application can
    /// have of each level at most.
    ///
    /// # Errors
    /// If samples are too few, or none.
    pub fn fit(samples: &[Sample], extent: (Bytes, Bytes)) -> Result<Self, FitError> {
        Self::fit_above(samples, extent, 0.0)
    }

    /// The same among those that are nowhere below `least_ms`, which is what a hit in level 1 takes.
    pub(super) fn fit_above(samples: &[Sample], extent: (Bytes, Bytes), least_ms: f64) -> Result<Self, FitError> {
        if samples.len() < SAMPLES_MIN {
            return Err(FitError::TooFew(samples.len()));
        }
        if let Some(sample) = samples.iter().find(|sample| !(sample.latency_ms > 0.0 && sample.latency_ms.is_finite()))
        {
            return Err(FitError::Latency(sample.latency_ms));
        }
        let extent = (extent.0.get().max(1) as f64, extent.1.get().max(1) as f64);
        let at = |sample: &Sample| values(sample.first.get() as f64, sample.second.get() as f64, extent);
        let rows: Vec<(Values, f64)> =
            samples.iter().map(|sample| (at(sample), sample.latency_ms - least_ms)).collect();
        let mut coefficients = super::fit::fit(&rows);
        coefficients[0] += least_ms;
        Ok(Self { coefficients, extent })
    }

    /// The same, raised as a whole if it falls below this with enough cache.
    pub(crate) fn at_least(mut self, least_ms: f64) -> Self {
        self.coefficients[0] = self.coefficients[0].max(least_ms);
        self
    }

    /// The latency with these shares, in bytes.
    #[must_use]
    pub fn at(&self, first: f64, second: f64) -> f64 {
        values(first, second, self.extent).iter().zip(self.coefficients).map(|(term, factor)| term * factor).sum()
    }

    /// Up to which shares it falls.
    pub(crate) fn extent(&self) -> (f64, f64) {
        self.extent
    }

    /// The latency without cache, and what depends on level 1, on level 2, and on both together.
    pub(crate) fn parts(&self) -> (f64, [impl Fn(f64) -> f64 + use<>; 3]) {
        let [_, c1, c2, c3, c4, c5] = self.coefficients;
        let (x, y) = self.extent;
        let part = |linear: f64, square: f64, end: f64| {
            move |size: f64| {
                let left = (1.0 - size / end).max(0.0);
                linear * left + square * left * left
            }
        };
        (self.at(0.0, 0.0), [part(c1, c3, x), part(c2, c4, y), part(0.0, c5, x + y)])
    }
}

fn values(first: f64, second: f64, extent: (f64, f64)) -> Values {
    let left = |size: f64, end: f64| (1.0 - size / end).max(0.0);
    let (u, v, w) = (left(first, extent.0), left(second, extent.1), left(first + second, extent.0 + extent.1));
    [1.0, u, v, u * u, v * v, w * w]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(first: u64, second: u64, latency_ms: f64) -> Sample {
        Sample { first: Bytes::from_mib(first), second: Bytes::from_mib(second), latency_ms }
    }

    const EXTENT: (Bytes, Bytes) = (Bytes::from_mib(100), Bytes::from_mib(400));

    fn grid(latency: impl Fn(f64, f64) -> f64) -> Vec<Sample> {
        let grid = (0..=4).flat_map(|i| (0..=4).map(move |j| (25 * i, 100 * j)));
        grid.map(|(x, y)| sample(x, y, latency(x as f64 / 100.0, y as f64 / 400.0))).collect()
    }

    #[test]
    fn a_surface_of_its_own_kind_is_found_again() {
        let samples =
            grid(|u, v| 0.5 + 2.0 * (1.0 - u) + 3.0 * (1.0 - v).powi(2) + (1.0 - (u + 4.0 * v) / 5.0).powi(2));
        let surface = Surface::fit(&samples, EXTENT).unwrap();
        for sample in samples {
            let at = surface.at(sample.first.get() as f64, sample.second.get() as f64);
            assert!((at - sample.latency_ms).abs() < 1e-6, "{at} for {sample:?}");
        }
    }

    #[test]
    fn a_surface_never_rises_even_if_samples_do() {
        let samples = grid(|u, v| 5.0 + 3.0 * u - 2.0 * v);
        let surface = Surface::fit(&samples, EXTENT).unwrap();
        for step in 0..40 {
            let (x, next) = (f64::from(step) * 3e6, f64::from(step + 1) * 3e6);
            for y in [0.0, 1e8, 4e8] {
                assert!(surface.at(next, y) <= surface.at(x, y) + 1e-9);
            }
        }
    }

    #[test]
    fn too_few_samples_make_no_surface() {
        let samples = vec![sample(1, 1, 1.0); 5];
        assert_eq!(Surface::fit(&samples, EXTENT), Err(FitError::TooFew(5)));
        assert!(Surface::fit(&[sample(1, 1, f64::NAN); 6], EXTENT).is_err());
        // Six times the same sample says what that one is, and nothing else.
        let surface = Surface::fit(&[sample(50, 100, 2.0); 6], EXTENT).unwrap();
        assert!((surface.at(50.0 * 1048576.0, 100.0 * 1048576.0) - 2.0).abs() < 1e-6);
    }
}
