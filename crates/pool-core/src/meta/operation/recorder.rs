//! Records what an operation reads and writes.

use std::collections::BTreeMap;

use super::{Attempt, Refusal, Reply};
use crate::id::{Inode, MountId};
use crate::meta::key::{Key, Prefix};
use crate::meta::store::{Compare, Lease, Stored, Transaction, Write};
use crate::meta::value::{Change, Kind, Node, Path, Value};

/// What was read from the store.
#[derive(Clone, Debug, Default)]
pub struct Reads {
    keys: BTreeMap<Key, Option<Stored>>,
    prefixes: BTreeMap<Prefix, Vec<(Key, Stored)>>,
    now: u64,
}

impl Reads {
    /// Nothing was read yet; the operation takes place at this time, in nanoseconds since 1970.
    #[must_use]
    pub fn at(now: u64) -> Self {
        Self { now, ..Self::default() }
    }

    /// What a key stands for; `None`: it is not there.
    pub fn key(&mut self, key: Key, stored: Option<Stored>) {
        self.keys.insert(key, stored);
    }

    /// All keys of a prefix.
    pub fn prefix(&mut self, prefix: Prefix, keys: Vec<(Key, Stored)>) {
        self.prefixes.insert(prefix, keys);
    }
}

/// Why an operation ends early.
#[derive(Debug)]
pub(super) enum Stop {
    /// Something has to be read first.
    Missing,
    /// It is refused.
    Refused(Refusal),
}

impl From<Refusal> for Stop {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// See the module.
pub(super) struct Recorder<'a> {
    reads: &'a Reads,
    missing: (Vec<Key>, Vec<Prefix>),
    compares: Vec<Compare>,
    writes: BTreeMap<Key, Write>,
}

impl<'a> Recorder<'a> {
    pub(super) const fn new(reads: &'a Reads) -> Self {
        Self { reads, missing: (Vec::new(), Vec::new()), compares: Vec::new(), writes: BTreeMap::new() }
    }

    /// A key, which must stay as it is until the transaction takes place.
    pub(super) fn get(&mut self, key: Key) -> Result<Option<&'a Stored>, Stop> {
        let stored = self.read(&key)?;
        self.compare(match stored {
            Some(stored) => Compare::Modified(key, stored.modified),
            None => Compare::Absent(key),
        });
        Ok(stored)
    }

    /// A key, which must stay there until the transaction takes place, but may change.
    pub(super) fn stays(&mut self, key: Key) -> Result<Option<&'a Stored>, Stop> {
        let stored = self.read(&key)?;
        self.compare(match stored {
            Some(stored) => Compare::Created(key, stored.created),
            None => Compare::Absent(key),
        });
        Ok(stored)
    }

    /// A key, which may be another when the transaction takes place.
    pub(super) fn seen(&mut self, key: &Key) -> Result<Option<&'a Stored>, Stop> {
        self.read(key)
    }

    /// All keys of a prefix, without a comparison: something else that the transaction compares must change with them.
    pub(super) fn under(&mut self, prefix: Prefix) -> Result<&'a [(Key, Stored)], Stop> {
        match self.reads.prefixes.get(&prefix) {
            Some(keys) => Ok(keys),
            None => {
                self.missing.1.push(prefix);
                Err(Stop::Missing)
            }
        }
    }

    /// When the operation takes place, in nanoseconds since 1970.
    pub(super) const fn now(&self) -> u64 {
        self.reads.now
    }

    pub(super) fn compare(&mut self, compare: Compare) {
        if !self.compares.contains(&compare) {
            self.compares.push(compare);
        }
    }

    pub(super) fn put(&mut self, key: Key, value: Value) {
        self.writes.insert(key.clone(), Write::Put(key, value));
    }

    pub(super) fn put_leased(&mut self, key: Key, value: Value, lease: Lease) {
        self.writes.insert(key.clone(), Write::PutLeased(key, value, lease));
    }

    pub(super) fn delete(&mut self, key: Key) {
        self.writes.insert(key.clone(), Write::Delete(key));
    }

    pub(super) fn journal(&mut self, mount: MountId, number: u64, change: Change) {
        self.put(Key::Journal(mount, number), Value::Journal(change));
    }

    /// A node, which must stay as it is.
    pub(super) fn node(&mut self, inode: Inode) -> Result<&'a Node, Stop> {
        match self.get(Key::Node(inode))?.map(|stored| &stored.value) {
            Some(Value::Node(node)) => Ok(node),
            _ => Err(Refusal::NotFound.into()),
        }
    }

    /// A directory, which must stay, but may change.
    pub(super) fn directory(&mut self, inode: Inode) -> Result<&'a Node, Stop> {
        match self.stays(Key::Node(inode))?.map(|stored| &stored.value) {
            Some(Value::Node(node)) if node.kind == Kind::Directory => Ok(node),
            Some(_) => Err(Refusal::NotADirectory.into()),
            None => Err(Refusal::NotFound.into()),
        }
    }

    /// The path of a directory's entry. The directories above must stay where they are.
    pub(super) fn path(&mut self, (directory, name): &super::At) -> Result<Path, Stop> {
        let mut names = vec![name.clone()];
        let mut above = *directory;
        while let Some((parent, name)) = &self.node(above)?.at {
            names.push(name.clone());
            above = *parent;
        }
        names.reverse();
        Ok(Path(names))
    }

    pub(super) fn end(mut self, reply: Result<Reply, Stop>) -> Attempt {
        let reply = match reply {
            Err(Stop::Missing) => return Attempt::Read(self.missing.0, self.missing.1),
            Err(Stop::Refused(refusal)) => {
                self.writes.clear();
                Err(refusal)
            }
            Ok(reply) => Ok(reply),
        };
        // What a key says exactly is more than that it is there.
        let exact: Vec<Key> = self
            .compares
            .iter()
            .filter_map(|compare| match compare {
                Compare::Modified(key, _) => Some(key.clone()),
                _ => None,
            })
            .collect();
        self.compares.retain(|compare| !matches!(compare, Compare::Created(key, _) if exact.contains(key)));
        Attempt::Commit(Transaction { compares: self.compares, writes: self.writes.into_values().collect() }, reply)
    }

    fn read(&mut self, key: &Key) -> Result<Option<&'a Stored>, Stop> {
        match self.reads.keys.get(key) {
            Some(stored) => Ok(stored.as_ref()),
            None => {
                self.missing.0.push(key.clone());
                Err(Stop::Missing)
            }
        }
    }
}
