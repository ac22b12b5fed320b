//! Sets of numbers of which many follow each other: chunks of a group, bytes of a chunk.

/// Numbers as runs in their order, with gaps between them, each from its first number to the one behind its last. A gibibyte of zeros is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runs(Vec<(u32, u32)>);

impl Runs {
    /// None.
    pub const NONE: Self = Self(Vec::new());

    /// Whether it has none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// How many it has.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.iter().map(|(first, end)| u64::from(end - first)).sum()
    }

    /// Whether it has a number.
    #[must_use]
    pub fn contains(&self, number: u32) -> bool {
        self.find(number, true) == Some(number)
    }

    /// The first number from one on that it has, or does not have; `None`: it has none there.
    #[must_use]
    pub fn find(&self, from: u32, has: bool) -> Option<u32> {
        let next = self.0.get(self.0.partition_point(|(_, end)| *end <= from));
        match (next, has) {
            (next, true) => next.map(|(first, _)| from.max(*first)),
            (Some((first, end)), false) if *first <= from => Some(*end),
            (_, false) => Some(from),
        }
    }

    /// Adds the numbers from the first to the one before `end`.
    pub fn add(&mut self, first: u32, end: u32) {
        if first >= end {
            return;
        }
        // Mostly what comes goes on where the last one has ended.
        let from = self.0.partition_point(|(_, other)| *other < first);
        let to = from + self.0[from..].partition_point(|(other, _)| *other <= end);
        let joined =
            self.0[from..to].iter().fold((first, end), |(first, end), (from, to)| (first.min(*from), end.max(*to)));
        self.0.splice(from..to, [joined]);
    }

    /// Removes the numbers from the first to the one before `end`.
    pub fn cut(&mut self, first: u32, end: u32) {
        if first >= end {
            return;
        }
        let from = self.0.partition_point(|(_, other)| *other <= first);
        let to = from + self.0[from..].partition_point(|(other, _)| *other < end);
        let rest = |(begins, ends): (u32, u32)| [(begins, first), (end, ends)];
        let rests = self.0[from..to].iter().copied().flat_map(rest).filter(|(first, end)| first < end);
        let rests: Vec<(u32, u32)> = rests.collect();
        self.0.splice(from..to, rests);
    }

    /// Adds a number.
    pub fn insert(&mut self, number: u32) {
        self.add(number, number + 1);
    }

    /// Removes a number; whether it had it.
    pub fn remove(&mut self, number: u32) -> bool {
        let had = self.contains(number);
        if had {
            self.cut(number, number + 1);
        }
        had
    }

    /// Removes the numbers from one on, and says which those were.
    pub fn split_off(&mut self, at: u32) -> Self {
        let mut behind = self.clone();
        behind.cut(0, at);
        self.cut(at, u32::MAX);
        behind
    }

    /// Adds what another has.
    pub fn add_all(&mut self, other: &Self) {
        other.0.iter().for_each(|(first, end)| self.add(*first, *end));
    }

    /// Removes what another has.
    pub fn cut_all(&mut self, other: &Self) {
        other.0.iter().for_each(|(first, end)| self.cut(*first, *end));
    }

    /// The numbers, in their order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(|(first, end)| *first..*end)
    }

    /// The runs.
    #[must_use]
    pub fn runs(&self) -> &[(u32, u32)] {
        &self.0
    }
}

impl FromIterator<u32> for Runs {
    fn from_iter<T: IntoIterator<Item = u32>>(numbers: T) -> Self {
        let mut all = Self::NONE;
        numbers.into_iter().for_each(|number| all.insert(number));
        all
    }
}

impl From<std::ops::Range<u32>> for Runs {
    fn from(range: std::ops::Range<u32>) -> Self {
        let mut all = Self::NONE;
        all.add(range.start, range.end);
        all
    }
}

impl<const N: usize> From<[u32; N]> for Runs {
    fn from(numbers: [u32; N]) -> Self {
        numbers.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn runs_are_what_a_set_of_their_numbers_is() {
        let mut random = 7_u32;
        let mut below = |bound: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (random >> 8) % bound
        };
        let (mut runs, mut set) = (Runs::NONE, BTreeSet::new());
        for _ in 0..20_000 {
            let (first, end) = (below(40), below(44));
            match below(8) {
                0..3 => {
                    runs.add(first, end);
                    set.extend(first..end);
                }
                3 => {
                    runs.cut(first, end);
                    set.retain(|number| !(first..end).contains(number));
                }
                4 => assert_eq!(runs.remove(first), set.remove(&first)),
                5 => {
                    runs.insert(first);
                    set.insert(first);
                }
                6 => {
                    let behind = runs.split_off(first);
                    assert!(behind.iter().eq(set.split_off(&first)));
                }
                _ => {
                    let other = Runs::from(first..end);
                    let mut both = runs.clone();
                    both.add_all(&other);
                    assert!(both.iter().eq(set.union(&(first..end).collect()).copied()));
                    runs.cut_all(&other);
                    set.retain(|number| !other.contains(*number));
                }
            }
            assert!(runs.iter().eq(set.iter().copied()), "{runs:?} for {set:?}");
            assert!(runs.runs().windows(2).all(|pair| pair[0].1 < pair[1].0), "{runs:?}");
            assert_eq!((runs.len(), runs.is_empty()), (set.len() as u64, set.is_empty()));
            assert_eq!(runs.find(first, true), set.range(first..).next().copied());
            assert_eq!(runs.find(first, false), (first..).find(|number| !set.contains(number)));
            assert_eq!(runs, set.iter().copied().collect());
        }
    }
}
