//! Sets of disjoint ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of disjoint, non-adjacent ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// Start → end.
    ranges: BTreeMap<u64, u64>,
    total: u64,
}

impl RangeSet {
    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The sum of the ranges' lengths.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.total
    }

    /// Whether any of it lies in `range`.
    #[must_use]
    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        !range.is_empty() && self.ranges.range(..range.end).next_back().is_some_and(|(_, &end)| end > range.start)
    }

    /// The ranges, in order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(&start, &end)| start..end)
    }

    /// Adds a range.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let mut merged = range;
        while let Some((&start, &end)) = self.ranges.range(..=merged.end).next_back() {
            if end < merged.start {
                break;
            }
            self.ranges.remove(&start);
            self.total -= end - start;
            merged = merged.start.min(start)..merged.end.max(end);
        }
        self.total += merged.end - merged.start;
        self.ranges.insert(merged.start, merged.end);
    }

    /// Takes a range out; says whether anything of it was in.
    pub fn remove(&mut self, range: &Range<u64>) -> bool {
        let mut changed = false;
        if range.is_empty() {
            return false;
        }
        while let Some((&start, &end)) = self.ranges.range(..range.end).next_back() {
            if end <= range.start {
                break;
            }
            changed = true;
            self.ranges.remove(&start);
            self.total -= end - start;
            if end > range.end {
                self.ranges.insert(range.end, end);
                self.total += end - range.end;
            }
            if start < range.start {
                self.ranges.insert(start, range.start);
                self.total += range.start - start;
            }
        }
        changed
    }
}

impl FromIterator<Range<u64>> for RangeSet {
    fn from_iter<I: IntoIterator<Item = Range<u64>>>(ranges: I) -> Self {
        let mut set = Self::default();
        ranges.into_iter().for_each(|range| set.insert(range));
        set
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn range_set_answers_as_a_set_of_numbers(
            steps in prop::collection::vec((any::<bool>(), 0u64..60, 0u64..12), 1..60),
            probe in 0u64..60,
        ) {
            let (mut set, mut model) = (RangeSet::default(), BTreeSet::new());
            for (insert, start, length) in steps {
                let range = start..start + length;
                if insert {
                    set.insert(range.clone());
                    model.extend(range);
                } else {
                    let changed = range.clone().any(|number| model.remove(&number));
                    range.clone().for_each(|number| { model.remove(&number); });
                    prop_assert_eq!(set.remove(&range), changed);
                }
                prop_assert_eq!(set.iter().flatten().collect::<BTreeSet<_>>(), model.clone());
                prop_assert_eq!(set.total(), model.len() as u64);
            }
            prop_assert_eq!(set.overlaps(&(probe..probe + 5)), model.range(probe..probe + 5).next().is_some());
        }
    }
}
