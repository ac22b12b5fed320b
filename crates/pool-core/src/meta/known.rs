//! What a manager has read of directories and sessions, so that a creation is attempted without reading them again.
//!
//! A creation needs its directory, its session, and that nothing has the name. The first two hardly ever change, and whoever creates has
//! mostly looked for the name before. So the first attempt of a creation rests on what was read before, however long ago, and on the guess
//! that the name is free. **Each of these is compared in the transaction**: if one is not so any more, the transaction does not take place,
//! what it rested on is forgotten, and the creation is attempted anew with fresh reads. So what is old costs an attempt, and never a wrong
//! answer. Nothing else is answered from here: no refusal, no look, nothing that takes no transaction.

use std::collections::BTreeMap;

use crate::meta::key::Key;
use crate::meta::operation::{Attempt, Operation, Reads, Reply, attempt};
use crate::meta::store::{Compare, Stored, Transaction};
use crate::meta::value::{Kind, Value};
use crate::planted::{Bug, planted};

/// Keys of each half. A value is that of a directory or a session, of less than 1 KiB: both halves take 8 MiB at most.
const HALF: usize = 4096;

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// What was read or used of late. Once it is full it takes the place of the other half, which is forgotten.
    young: BTreeMap<Key, Stored>,
    old: BTreeMap<Key, Stored>,
}

impl Known {
    /// A key was read.
    pub fn learn(&mut self, key: &Key, stored: Option<&Stored>) {
        match stored.filter(|stored| is_kept(stored)) {
            Some(stored) => self.keep(key.clone(), stored.clone()),
            None => self.forget(key),
        }
    }

    /// The transaction of an operation that makes a node, and its answer if that takes place; `None`: something has to be read, or may not
    /// be used, or the operation makes nothing. Every value that it rests on is one that `may` be used.
    pub fn creation(
        &mut self,
        operation: &Operation,
        now: u64,
        may: impl Fn(&Value) -> bool,
    ) -> Option<(Transaction, Reply)> {
        let (at, _) = operation.makes()?;
        let mut rests_on = vec![Key::Entry(at.0, at.1.clone())];
        let mut reads = Reads::at(now);
        reads.key(rests_on[0].clone(), None);
        loop {
            match attempt(operation, &reads) {
                Attempt::Read(keys, prefixes) => {
                    if !prefixes.is_empty() {
                        return None;
                    }
                    for key in keys {
                        let stored = self.get(&key).filter(|stored| may(&stored.value))?;
                        reads.key(key.clone(), Some(stored));
                        rests_on.push(key);
                    }
                }
                Attempt::Commit(mut transaction, Ok(reply)) => {
                    let is_compared = |key| transaction.compares.iter().any(|compare| compared(compare) == Some(key));
                    if !rests_on.iter().all(is_compared) {
                        return None;
                    }
                    if planted(Bug::KnownNotCompared) {
                        transaction.compares.clear();
                    }
                    return Some((transaction, reply));
                }
                Attempt::Commit(_, Err(_)) => return None,
            }
        }
    }

    /// A transaction was refused: what it compares is not known any more.
    pub fn refused(&mut self, transaction: &Transaction) {
        transaction.compares.iter().filter_map(compared).for_each(|key| self.forget(key));
    }

    fn get(&mut self, key: &Key) -> Option<Stored> {
        if let Some(stored) = self.young.get(key) {
            return Some(stored.clone());
        }
        let stored = self.old.remove(key)?;
        self.keep(key.clone(), stored.clone());
        Some(stored)
    }

    fn keep(&mut self, key: Key, stored: Stored) {
        self.old.remove(&key);
        if self.young.len() >= HALF && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(key, stored);
    }

    fn forget(&mut self, key: &Key) {
        self.young.remove(key);
        self.old.remove(key);
    }
}

/// Values of a bounded size that creations rest on.
fn is_kept(stored: &Stored) -> bool {
    match &stored.value {
        Value::Node(node) => node.kind == Kind::Directory,
        Value::Session(_) => true,
        _ => false,
    }
}

fn compared(compare: &Compare) -> Option<&Key> {
    match compare {
        Compare::Absent(key) | Compare::Present(key) | Compare::Modified(key, _) | Compare::Created(key, _) => {
            Some(key)
        }
        Compare::NoneUnder(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{Inode, MountId, SessionId};
    use crate::meta::key::Name;
    use crate::meta::store::{Lease, MemoryStore, Outcome, Write};
    use crate::meta::value::{FileState, Node};

    const ROOT: Inode = Inode(1);
    const WRITER: (SessionId, Lease) = (SessionId(7), Lease(7));
    const OWNER: (u32, u32, u32) = (0o644, 1, 1);

    fn write(store: &mut MemoryStore, writes: Vec<Write>) {
        let outcome = store.commit(&Transaction { compares: Vec::new(), writes });
        assert!(matches!(outcome, Outcome::Committed(_)));
    }

    fn directory(at: Option<(Inode, Name)>) -> Value {
        Value::Node(Node::new(Kind::Directory, MountId(1), at, (0o755, 0, 0)))
    }

    fn name(text: &str) -> Name {
        Name::new(text.as_bytes()).expect("it is a name")
    }

    fn create(text: &str, fresh: u64) -> Operation {
        Operation::Create { at: (ROOT, name(text)), fresh, writer: WRITER, owner: OWNER }
    }

    /// A store with a root and a session, and a manager that has read both.
    fn begin() -> (MemoryStore, Known) {
        let mut store = MemoryStore::default();
        let session = Write::PutLeased(Key::Session(WRITER.0), Value::Session(WRITER.0), WRITER.1);
        write(&mut store, vec![Write::Put(Key::Node(ROOT), directory(None)), session]);
        let mut known = Known::default();
        [Key::Node(ROOT), Key::Session(WRITER.0)].iter().for_each(|key| known.learn(key, store.get(key)));
        (store, known)
    }

    fn creation(known: &mut Known, operation: &Operation) -> Option<Transaction> {
        known.creation(operation, 0, |_| true).map(|(transaction, _)| transaction)
    }

    /// What the store says to a creation that rests on what is known: which of its compares do not hold.
    fn refused(store: &mut MemoryStore, known: &mut Known, operation: &Operation) -> Vec<Compare> {
        let transaction = creation(known, operation).expect("all that it needs was read");
        let Outcome::Refused(failed) = store.commit(&transaction) else { panic!("{transaction:?} took place") };
        known.refused(&transaction);
        assert_eq!(creation(known, operation), None, "it is read anew");
        failed.into_iter().map(|at| transaction.compares[at].clone()).collect()
    }

    #[test]
    fn a_creation_that_rests_on_what_was_read_compares_all_of_it() {
        let (mut store, mut known) = begin();
        let revision = store.revision();
        let transaction = creation(&mut known, &create("a", 10)).expect("all that it needs was read");
        let compares = vec![
            Compare::Created(Key::Node(ROOT), revision),
            Compare::Absent(Key::Entry(ROOT, name("a"))),
            Compare::Created(Key::Session(WRITER.0), revision),
        ];
        assert_eq!(transaction.compares, compares);
        assert!(matches!(store.commit(&transaction), Outcome::Committed(_)));
    }

    #[test]
    fn what_is_not_so_any_more_costs_an_attempt_and_is_forgotten() {
        let (mut store, mut known) = begin();
        write(&mut store, vec![Write::Put(Key::Entry(ROOT, name("a")), Value::Entry(Inode(9)))]);
        let failed = refused(&mut store, &mut known, &create("a", 10));
        assert_eq!(failed, [Compare::Absent(Key::Entry(ROOT, name("a")))]);

        let (mut store, mut known) = begin();
        let revision = store.revision();
        store.end(WRITER.1);
        let failed = refused(&mut store, &mut known, &create("a", 10));
        assert_eq!(failed, [Compare::Created(Key::Session(WRITER.0), revision)]);

        let (mut store, mut known) = begin();
        let revision = store.revision();
        write(&mut store, vec![Write::Delete(Key::Node(ROOT))]);
        let failed = refused(&mut store, &mut known, &create("a", 10));
        assert_eq!(failed, [Compare::Created(Key::Node(ROOT), revision)]);
    }

    #[test]
    fn a_directory_is_made_on_a_path_that_has_not_changed() {
        let (mut store, mut known) = begin();
        let (above, below) = (Key::Node(Inode(2)), Key::Node(Inode(3)));
        write(&mut store, vec![Write::Put(above.clone(), directory(Some((ROOT, name("above")))))]);
        write(&mut store, vec![Write::Put(below.clone(), directory(Some((Inode(2), name("below")))))]);
        let make = Operation::MakeDirectory { at: (Inode(3), name("a")), fresh: 10, journal: 11, owner: OWNER };
        known.learn(&below, store.get(&below));
        assert_eq!(creation(&mut known, &make), None, "nobody has read what is above");
        known.learn(&above, store.get(&above));
        let revision = store.get(&above).expect("it is there").modified;
        write(&mut store, vec![Write::Put(above.clone(), directory(Some((ROOT, name("moved")))))]);
        assert_eq!(refused(&mut store, &mut known, &make), [Compare::Modified(above, revision)]);
    }

    #[test]
    fn nothing_but_a_creation_that_takes_place_rests_on_what_is_known() {
        let (store, mut known) = begin();
        for other in [
            Operation::Unlink { at: (ROOT, name("a")), journal: 10 },
            Operation::Import {
                at: (ROOT, name("a")),
                fresh: 10,
                node: Node::new(Kind::Directory, MountId(1), None, OWNER),
                placed: None,
            },
        ] {
            assert_eq!(known.creation(&other, 0, |_| true), None, "{other:?}");
        }
        // Neither what may not be used, nor what is absent or no directory, nor a refusal.
        assert_eq!(known.creation(&create("a", 10), 0, |value| matches!(value, Value::Session(_))), None);
        let file = Key::Node(Inode(9));
        let node = Node::new(Kind::File(FileState::Created), MountId(1), None, OWNER);
        let stored = Stored { value: Value::Node(node), ..store.get(&Key::Node(ROOT)).expect("it is there").clone() };
        known.learn(&file, Some(&stored));
        let in_file = Operation::Create { at: (Inode(9), name("a")), fresh: 10, writer: WRITER, owner: OWNER };
        assert_eq!(known.creation(&in_file, 0, |_| true), None);
        known.learn(&Key::Session(WRITER.0), None);
        assert_eq!(known.creation(&create("a", 10), 0, |_| true), None);
    }

    #[test]
    fn what_is_used_stays_and_what_is_not_makes_room() {
        let (store, mut known) = begin();
        let stored = store.get(&Key::Session(WRITER.0)).expect("it is there").clone();
        for number in 0..10 * HALF as u64 {
            known.learn(&Key::Session(SessionId(1000 + number)), Some(&stored));
            assert!(known.young.len() <= HALF && known.old.len() <= HALF);
            if number % 1000 == 0 {
                assert!(creation(&mut known, &create("a", 10)).is_some(), "after {number} others");
            }
        }
        assert_eq!(known.get(&Key::Session(SessionId(1000))), None);
    }
}
