//! Which of a log's records count that a process finds: of each name the latest.
//!
//! Compaction leaves copies of a record until their segments are filled again, and a power cut may tear one. A record that is torn or
//! damaged is none; an earlier one with another content is none in its place, since it may have been replaced for good.

use std::collections::BTreeMap;

use super::segments::At;
use crate::planted::{Bug, planted};

/// Bytes of a record's content, and their checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sum(pub u32, pub u32);

#[derive(Debug)]
struct Record<V> {
    at: At,
    sum: Sum,
    /// For sure: its segment was flushed after it was written.
    is_flushed: bool,
    value: V,
}

/// See the module.
#[derive(Debug)]
pub struct Latest<K, V> {
    whole: BTreeMap<K, Record<V>>,
    torn: Vec<(K, At, Sum)>,
}

impl<K, V> Default for Latest<K, V> {
    fn default() -> Self {
        Self { whole: BTreeMap::new(), torn: Vec::new() }
    }
}

impl<K: Ord, V> Latest<K, V> {
    /// A record is whole. Of two equal ones, one that was flushed counts.
    pub fn whole(&mut self, name: K, (at, sum): (At, Sum), is_flushed: bool, value: V) {
        let record = Record { at, sum, is_flushed, value };
        let counts = self.whole.get(&name).is_none_or(|known| {
            let is_same = known.sum == sum && known.is_flushed != is_flushed;
            let is_later = (known.at < at) != planted(Bug::OldCopyWins);
            if is_same { is_flushed } else { is_later }
        });
        if counts {
            self.whole.insert(name, record);
        }
    }

    /// A record is torn or damaged, and its header is whole.
    pub fn torn(&mut self, name: K, (at, sum): (At, Sum)) {
        self.torn.push((name, at, sum));
    }

    /// The records that count.
    pub fn into_records(mut self) -> impl Iterator<Item = (K, At, V)> {
        for (name, at, sum) in self.torn {
            let is_in_its_place = |whole: &Record<V>| {
                let is_copy = whole.sum == sum && !planted(Bug::TornCopyHides);
                whole.at < at && !is_copy
            };
            if self.whole.get(&name).is_some_and(is_in_its_place) {
                self.whole.remove(&name);
            }
        }
        self.whole.into_iter().map(|(name, record)| (name, record.at, record.value))
    }
}
