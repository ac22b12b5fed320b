//! Locks of bytes: which ranges somebody has locked, shared or alone, as POSIX has it.
//!
//! An owner's later request replaces what it had of the same bytes: it may split a range, join ranges, weaken or strengthen them. Its
//! own locks are never in its way.

use std::collections::BTreeMap;

/// Bytes from the first to the last, both of them included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Range {
    /// The first byte.
    pub first: u64,
    /// The last byte; not before the first.
    pub last: u64,
}

impl Range {
    /// Whether they have a byte in common.
    const fn meets(self, other: Self) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// The bytes before and behind another range.
    fn without(self, other: Self) -> impl Iterator<Item = Self> {
        let before = (self.first < other.first).then(|| Self { first: self.first, last: other.first - 1 });
        let behind = (other.last < self.last).then(|| Self { first: other.last + 1, last: self.last });
        before.into_iter().chain(behind)
    }
}

/// How bytes are locked. The stronger one is the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Lock {
    /// Others may lock them shared.
    Shared,
    /// Nobody else may lock them.
    Alone,
}

impl Lock {
    fn excludes(self, other: Self) -> bool {
        self == Self::Alone || other == Self::Alone
    }
}

/// Locked bytes: ranges in their order, of which none meets another, and neighbours are locked differently or have a gap between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ranges(Vec<(Range, Lock)>);

impl Ranges {
    /// Locks these bytes so, whatever they were before; `None`: unlocks them.
    pub fn set(&mut self, range: Range, lock: Option<Lock>) {
        let mut parts: Vec<(Range, Lock)> = Vec::with_capacity(self.0.len() + 2);
        for (other, as_before) in std::mem::take(&mut self.0) {
            if other.meets(range) {
                parts.extend(other.without(range).map(|rest| (rest, as_before)));
            } else {
                parts.push((other, as_before));
            }
        }
        parts.extend(lock.map(|lock| (range, lock)));
        parts.sort_unstable_by_key(|(range, _)| range.first);
        for (range, lock) in parts {
            match self.0.last_mut() {
                Some((before, as_before)) if *as_before == lock && before.last.checked_add(1) == Some(range.first) => {
                    before.last = range.last;
                }
                _ => self.0.push((range, lock)),
            }
        }
    }

    /// Locks everything that another has, each byte in the stronger way.
    pub fn add(&mut self, other: &Self) {
        for (range, lock) in &other.0 {
            let stronger: Vec<(Range, Lock)> =
                self.0.iter().filter(|(own, as_own)| own.meets(*range) && as_own > lock).copied().collect();
            self.set(*range, Some(*lock));
            stronger.into_iter().for_each(|(range, lock)| self.set(range, Some(lock)));
        }
    }

    /// Whether every byte of another is locked here, at least as strongly.
    #[must_use]
    pub fn has(&self, other: &Self) -> bool {
        let mut both = self.clone();
        both.add(other);
        both == *self
    }

    /// What here is in the way of locking these bytes so.
    #[must_use]
    pub fn in_the_way(&self, range: Range, lock: Lock) -> Option<(Range, Lock)> {
        self.0.iter().find(|(own, as_own)| own.meets(range) && as_own.excludes(lock)).copied()
    }

    /// What here is in the way of another's locks.
    #[must_use]
    pub fn in_the_way_of(&self, other: &Self) -> Option<(Range, Lock)> {
        other.0.iter().find_map(|(range, lock)| self.in_the_way(*range, *lock))
    }

    /// Whether nothing is locked.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// In their order.
    pub fn iter(&self) -> impl Iterator<Item = (Range, Lock)> {
        self.0.iter().copied()
    }

    /// From ranges as [`Ranges::iter`] has them, whatever their order.
    #[must_use]
    pub fn of(ranges: impl IntoIterator<Item = (Range, Lock)>) -> Self {
        let mut all = Self::default();
        for (range, lock) in ranges {
            if range.first <= range.last {
                all.set(range, Some(lock));
            }
        }
        all
    }
}

/// The locks of a file, by their owners.
#[derive(Clone, Debug)]
pub struct Owners<O>(BTreeMap<O, Ranges>);

impl<O> Default for Owners<O> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<O: Copy + Ord> Owners<O> {
    /// Whose lock is in the way of an owner's, and which.
    #[must_use]
    pub fn in_the_way(&self, owner: O, range: Range, lock: Lock) -> Option<(O, Range, Lock)> {
        let others = self.0.iter().filter(|(other, _)| **other != owner);
        let mut found = others.filter_map(|(other, ranges)| {
            let (range, lock) = ranges.in_the_way(range, lock)?;
            Some((*other, range, lock))
        });
        found.next()
    }

    /// The owner has these bytes locked so from now on; nothing of others is in the way.
    pub fn set(&mut self, owner: O, range: Range, lock: Option<Lock>) {
        let ranges = self.0.entry(owner).or_default();
        ranges.set(range, lock);
        if ranges.is_empty() {
            self.0.remove(&owner);
        }
    }

    /// Unlocks all that an owner has.
    pub fn free(&mut self, owner: O) {
        self.0.remove(&owner);
    }

    /// Whether an owner has anything locked.
    #[must_use]
    pub fn has(&self, owner: O) -> bool {
        self.0.contains_key(&owner)
    }

    /// What all of them have together.
    #[must_use]
    pub fn all(&self) -> Ranges {
        let mut all = Ranges::default();
        self.0.values().for_each(|ranges| all.add(ranges));
        all
    }
}
