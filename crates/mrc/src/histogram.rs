//! Weights by distance, in memory that does not grow with the trace.

/// Distances below `EXACT`, a power of two, have a bucket each; above, each doubling has half as many buckets, so that a
/// bucket is at most 2 ÷ `EXACT` of its distance wide.
#[derive(Debug, Default)]
pub(crate) struct Histogram<const EXACT: u64> {
    buckets: Vec<f64>,
}

impl<const EXACT: u64> Histogram<EXACT> {
    const PER_DOUBLING: usize = (EXACT / 2) as usize;

    pub fn new() -> Self {
        Self { buckets: Vec::new() }
    }

    pub fn bucket(distance: u64) -> usize {
        let doublings = (distance / EXACT).checked_ilog2().map_or(0, |log| log + 1);
        // Within its doubling, the leading bits of the distance.
        (distance >> doublings) as usize + doublings as usize * Self::PER_DOUBLING
    }

    /// The smallest distance of a bucket.
    fn smallest(bucket: usize) -> u64 {
        if (bucket as u64) < EXACT {
            return bucket as u64;
        }
        let doublings = (bucket / Self::PER_DOUBLING - 1) as u32;
        let leading = (bucket % Self::PER_DOUBLING + Self::PER_DOUBLING) as u64;
        leading.checked_shl(doublings).filter(|smallest| smallest >> doublings == leading).unwrap_or(u64::MAX)
    }

    #[inline]
    pub fn add(&mut self, bucket: usize, weight: f64) {
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, 0.0);
        }
        self.buckets[bucket] += weight;
    }

    /// Adds all that another one counts.
    pub fn add_all(&mut self, other: &Self) {
        if other.buckets.len() > self.buckets.len() {
            self.buckets.resize(other.buckets.len(), 0.0);
        }
        self.buckets.iter_mut().zip(&other.buckets).for_each(|(weight, other)| *weight += other);
    }

    /// Keeps this share of all weights.
    pub fn keep(&mut self, share: f64) {
        self.buckets.iter_mut().for_each(|weight| *weight *= share);
    }

    pub fn sums(&self) -> Sums<'_, EXACT> {
        let sum = |sum: &mut f64, weight: &f64| Some(std::mem::replace(sum, *sum + weight));
        Sums { histogram: self, before: self.buckets.iter().scan(0.0, sum).collect() }
    }
}

/// What lies below distances.
pub(crate) struct Sums<'a, const EXACT: u64> {
    histogram: &'a Histogram<EXACT>,
    /// Weight before each bucket.
    before: Vec<f64>,
}

impl<const EXACT: u64> Sums<'_, EXACT> {
    /// The weight of all distances below this one; within a bucket, its share.
    pub fn below(&self, distance: u64) -> f64 {
        let bucket = Histogram::<EXACT>::bucket(distance);
        let (Some(before), Some(weight)) = (self.before.get(bucket), self.histogram.buckets.get(bucket)) else {
            return self.histogram.buckets.iter().sum();
        };
        let (from, to) = (Histogram::<EXACT>::smallest(bucket), Histogram::<EXACT>::smallest(bucket + 1));
        before + weight * (distance - from) as f64 / (to - from) as f64
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn is_narrow_and_in_order<const EXACT: u64>(distance: u64) -> Result<(), TestCaseError> {
        let bucket = Histogram::<EXACT>::bucket(distance);
        let (from, to) = (Histogram::<EXACT>::smallest(bucket), Histogram::<EXACT>::smallest(bucket + 1));
        prop_assert!(from <= distance && (distance < to || to == u64::MAX), "{from} {distance} {to}");
        prop_assert!(distance < EXACT || (to - from) as f64 <= 2.0 * distance as f64 / EXACT as f64);
        prop_assert_eq!(Histogram::<EXACT>::bucket(from), bucket);
        Ok(())
    }

    proptest! {
        #[test]
        fn buckets_are_narrow_and_in_order(distance in any::<u64>(), shift in 0u32..64) {
            is_narrow_and_in_order::<512>(distance >> shift)?;
            is_narrow_and_in_order::<4096>(distance >> shift)?;
        }
    }
}
