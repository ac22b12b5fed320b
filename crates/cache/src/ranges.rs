//! Sets of disjoint ranges.

use std::collections::BTreeMap;
use std::ops::Range;

use smallvec::SmallVec;

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

    /// How many ranges.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Whether any of it lies in `range`.
    #[must_use]
    pub fn overlaps(&self, range: &Range<u64>) -> bool {
        !range.is_empty() && self.ranges.range(..range.end).next_back().is_some_and(|(_, &end)| end > range.start)
    }

    /// Whether all of `range` is in.
    #[must_use]
    pub fn contains(&self, range: &Range<u64>) -> bool {
        range.is_empty() || self.ranges.range(..=range.start).next_back().is_some_and(|(_, &end)| end >= range.end)
    }

    /// The parts of `range` in order, each with whether it is in.
    #[must_use]
    pub fn pieces(&self, range: &Range<u64>) -> Vec<(Range<u64>, bool)> {
        let mut pieces = Vec::new();
        let mut at = range.start;
        let before = self.ranges.range(..=at).next_back().map_or(at, |(&start, _)| start);
        for (&start, &end) in self.ranges.range(before..range.end) {
            let (start, end) = (start.max(at), end.min(range.end));
            if at < start {
                pieces.push((at..start, false));
            }
            if start < end {
                pieces.push((start..end, true));
                at = end;
            }
        }
        if at < range.end {
            pieces.push((at..range.end, false));
        }
        pieces
    }

    /// What is in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let pieces = self.iter().flat_map(|range| other.pieces(&range));
        pieces.filter(|(_, both)| *both).map(|(piece, _)| piece).collect()
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

    /// Takes a range out; answers what of it was in, in order.
    pub fn remove(&mut self, range: &Range<u64>) -> SmallVec<[Range<u64>; 1]> {
        let mut removed = SmallVec::new();
        if range.is_empty() {
            return removed;
        }
        while let Some((&start, &end)) = self.ranges.range(..range.end).next_back() {
            if end <= range.start {
                break;
            }
            self.ranges.remove(&start);
            if end > range.end {
                self.ranges.insert(range.end, end);
            }
            if start < range.start {
                self.ranges.insert(start, range.start);
            }
            let piece = start.max(range.start)..end.min(range.end);
            self.total -= piece.end - piece.start;
            removed.push(piece);
        }
        removed.reverse();
        removed
    }

    /// The set of these ranges (offset, length), which are mostly sorted and disjoint; built densely.
    #[must_use]
    pub fn from_pairs(pairs: &[(u64, u64)]) -> Self {
        let ranges = pairs.iter().map(|&(offset, length)| offset..offset.saturating_add(length));
        let apart = |pair: &[(u64, u64)]| pair[0].1 > 0 && pair[0].0.saturating_add(pair[0].1) < pair[1].0;
        let last_is_empty = pairs.last().is_some_and(|&(_, length)| length == 0);
        if last_is_empty || !pairs.windows(2).all(apart) {
            return ranges.collect();
        }
        // Nodes of a tree that is made of sorted pairs are full; ones that grow in order are half empty.
        let total = ranges.clone().map(|range| range.end - range.start).sum();
        Self { ranges: ranges.map(|range| (range.start, range.end)).collect(), total }
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
            for &(insert, start, length) in &steps {
                let range = start..start + length;
                if insert {
                    set.insert(range.clone());
                    model.extend(range);
                } else {
                    let removed: Vec<u64> = range.clone().filter(|number| model.remove(number)).collect();
                    prop_assert_eq!(set.remove(&range).into_iter().flatten().collect::<Vec<_>>(), removed);
                }
                prop_assert_eq!(set.iter().flatten().collect::<BTreeSet<_>>(), model.clone());
                prop_assert_eq!(set.total(), model.len() as u64);
                let pairs: Vec<_> = set.iter().map(|range| (range.start, range.end - range.start)).collect();
                prop_assert_eq!(set.len(), pairs.len());
                prop_assert_eq!(&RangeSet::from_pairs(&pairs), &set);
            }
            let probed = probe..probe + 5;
            prop_assert_eq!(set.overlaps(&probed), model.range(probed.clone()).next().is_some());
            prop_assert_eq!(set.contains(&probed), model.range(probed.clone()).count() == 5);
            let pieces = set.pieces(&probed);
            let flat: Vec<(u64, bool)> = pieces.iter().flat_map(|(piece, is_in)| piece.clone().map(move |at| (at, *is_in))).collect();
            prop_assert_eq!(flat, probed.clone().map(|at| (at, model.contains(&at))).collect::<Vec<_>>());
            let other: RangeSet = [3..9, 20..31, 40..41].into_iter().collect();
            let both: BTreeSet<u64> = model.iter().copied().filter(|at| other.contains(&(*at..at + 1))).collect();
            prop_assert_eq!(set.intersection(&other).iter().flatten().collect::<BTreeSet<_>>(), both);
            // Pairs in any order, overlapping, empty: as one by one.
            let pairs: Vec<_> = steps.iter().map(|&(_, start, length)| (start, length)).collect();
            let one_by_one: RangeSet = pairs.iter().map(|&(start, length)| start..start + length).collect();
            prop_assert_eq!(RangeSet::from_pairs(&pairs), one_by_one);
            prop_assert_eq!(set.overlaps(&(probe..probe + 5)), model.range(probe..probe + 5).next().is_some());
        }
    }
}
