//! The contract of a store with transactions, and the one that tests and simulations use.
//!
//! The contract is what etcd promises: a transaction looks at all its [`Compare`]s, and if every one holds it makes all its
//! [`Write`]s, at one [`Revision`], as one step that nobody sees the half of. A key has the revision at which it was created (last,
//! if it was deleted between) and the one at which it was changed last.

use std::collections::BTreeMap;

use crate::id::Revision;
use crate::meta::key::{Key, Prefix};
use crate::meta::value::Value;

/// A key's value and its revisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// What it stands for.
    pub value: Value,
    /// When it was created.
    pub created: Revision,
    /// When it was changed last.
    pub modified: Revision,
}

/// What must be so for a transaction to take place.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Compare {
    /// There is no such key.
    Absent(Key),
    /// The key is there, whatever it says.
    Present(Key),
    /// The key was changed last at this revision.
    Modified(Key, Revision),
    /// The key was created at this revision, whatever it says now.
    Created(Key, Revision),
    /// No key begins so.
    NoneUnder(Prefix),
}

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// The key has this value from now on.
    Put(Key, Value),
    /// The key is there, with this value, as long as the lease.
    PutLeased(Key, Value, Lease),
    /// The key is gone.
    Delete(Key),
}

/// A lease: keys that end when their owner no longer says that it is alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lease(pub u64);

impl Write {
    /// The key that it changes.
    #[must_use]
    pub const fn key(&self) -> &Key {
        match self {
            Self::Put(key, _) | Self::PutLeased(key, ..) | Self::Delete(key) => key,
        }
    }
}

/// All or nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Transaction {
    /// What must be so.
    pub compares: Vec<Compare>,
    /// What changes: no key twice.
    pub writes: Vec<Write>,
}

/// What a store takes in one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// So many compares, and as many writes.
    pub operations: usize,
    /// So many bytes of keys and values.
    pub bytes: usize,
}

impl Limits {
    /// Whatever it is.
    pub const NONE: Self = Self { operations: usize::MAX, bytes: usize::MAX };
}

/// What became of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It took place.
    Committed(Revision),
    /// It did not: these compares, by their places, did not hold. Every one that did not is named.
    Refused(Vec<usize>),
    /// Nobody knows: the answer did not come.
    Unknown,
}

/// A store in memory.
#[derive(Clone, Debug, Default)]
pub struct MemoryStore {
    keys: BTreeMap<Key, Stored>,
    leases: BTreeMap<Key, Lease>,
    revision: u64,
}

impl MemoryStore {
    /// What a key stands for.
    #[must_use]
    pub fn get(&self, key: &Key) -> Option<&Stored> {
        self.keys.get(key)
    }

    /// All keys that begin so.
    pub fn under(&self, prefix: Prefix) -> impl Iterator<Item = (&Key, &Stored)> {
        self.keys.range(prefix.first()..).take_while(move |(key, _)| prefix.has(key))
    }

    /// All keys.
    pub fn all(&self) -> impl Iterator<Item = (&Key, &Stored)> {
        self.keys.iter()
    }

    /// The newest revision.
    #[must_use]
    pub const fn revision(&self) -> Revision {
        Revision(self.revision)
    }

    /// Carries out a transaction.
    pub fn commit(&mut self, transaction: &Transaction) -> Outcome {
        let failed: Vec<usize> =
            (0..).zip(&transaction.compares).filter(|(_, compare)| !self.holds(compare)).map(|(at, _)| at).collect();
        if !failed.is_empty() {
            return Outcome::Refused(failed);
        }
        self.revision += 1;
        for write in &transaction.writes {
            match write {
                Write::Put(key, value) => self.put(key, value, None),
                Write::PutLeased(key, value, lease) => self.put(key, value, Some(*lease)),
                Write::Delete(key) => {
                    self.keys.remove(key);
                    self.leases.remove(key);
                }
            }
        }
        Outcome::Committed(Revision(self.revision))
    }

    /// A lease has ended, and its keys with it.
    pub fn end(&mut self, lease: Lease) {
        self.revision += 1;
        let keys = &mut self.keys;
        self.leases.retain(|key, of| {
            let stays = *of != lease;
            if !stays {
                keys.remove(key);
            }
            stays
        });
    }

    fn put(&mut self, key: &Key, value: &Value, lease: Option<Lease>) {
        match lease {
            Some(lease) => drop(self.leases.insert(key.clone(), lease)),
            None => drop(self.leases.remove(key)),
        }
        let now = Revision(self.revision);
        let created = self.keys.get(key).map_or(now, |stored| stored.created);
        self.keys.insert(key.clone(), Stored { value: value.clone(), created, modified: now });
    }

    fn holds(&self, compare: &Compare) -> bool {
        match compare {
            Compare::Absent(key) => !self.keys.contains_key(key),
            Compare::Present(key) => self.keys.contains_key(key),
            Compare::Modified(key, at) => self.keys.get(key).is_some_and(|stored| stored.modified == *at),
            Compare::Created(key, at) => self.keys.get(key).is_some_and(|stored| stored.created == *at),
            Compare::NoneUnder(prefix) => self.under(*prefix).next().is_none(),
        }
    }
}
