//! How transactions are spelt for etcd.

use std::collections::BTreeMap;

use surgetank_pool_core::id::Revision;
use surgetank_pool_core::meta::store::{Lease, Transaction, Write};
use surgetank_pool_core::meta::{Compare, Key, Prefix};

use super::messages::{
    self, CREATE, Compared, DeleteRangeRequest, GREATER, MOD, Op, PutRequest, RangeRequest, RequestOp, ResponseOp,
    TxnRequest, op,
};
use crate::meta::keys;
use crate::wire::Wire;

/// What the key `=` of a pool says.
pub(super) const FORMAT: &[u8] = b"surgetank pool 1";

/// The keys of one pool.
pub(super) struct Spelling {
    root: Vec<u8>,
}

impl Spelling {
    pub(super) fn new(pool: &str) -> Self {
        Self { root: format!("/{pool}/").into_bytes() }
    }

    /// What all keys of the pool begin with.
    pub(super) fn root(&self) -> Vec<u8> {
        self.root.clone()
    }

    fn with(&self, rest: &[u8]) -> Vec<u8> {
        [&self.root, rest].concat()
    }

    pub(super) fn key(&self, key: &Key) -> Vec<u8> {
        self.with(&keys::of_key(key))
    }

    pub(super) fn prefix(&self, prefix: Prefix) -> Vec<u8> {
        self.with(&keys::of_prefix(prefix))
    }

    /// A key without what all have.
    pub(super) fn own<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        key.strip_prefix(self.root.as_slice()).unwrap_or_default()
    }

    /// The key that says whose these are.
    pub(super) fn mark(&self) -> Vec<u8> {
        self.with(b"=")
    }

    pub(super) fn transaction(&self, transaction: &Transaction) -> TxnRequest {
        let mut success: Vec<RequestOp> = transaction.writes.iter().map(|write| self.write(write)).collect();
        // In etcd a deletion of what is not there takes no revision, and whoever joins needs one of its own.
        if !success.is_empty() && transaction.writes.iter().all(|write| matches!(write, Write::Delete(_))) {
            success.push(put(self.with(b"#"), Vec::new(), 0));
        }
        let (compares, _) = once(&transaction.compares);
        TxnRequest {
            compare: compares.iter().map(|compare| self.compare(compare)).collect(),
            success,
            failure: compares.iter().map(|compare| self.look(compare)).collect(),
        }
    }

    fn compare(&self, compare: &Compare) -> messages::Compare {
        // A key that is not there has the revision 0 in etcd, and none here.
        let number = |at: Revision| if at.0 == 0 { -1 } else { at.0.cast_signed() };
        let equal = |key: &Key, target, with| messages::Compare {
            result: 0,
            target,
            key: self.key(key),
            with: Some(with),
            range_end: Vec::new(),
        };
        match compare {
            Compare::Absent(key) => equal(key, CREATE, Compared::CreateRevision(0)),
            Compare::Present(key) => {
                messages::Compare { result: GREATER, ..equal(key, CREATE, Compared::CreateRevision(0)) }
            }
            Compare::Modified(key, at) => equal(key, MOD, Compared::ModRevision(number(*at))),
            Compare::Created(key, at) => equal(key, CREATE, Compared::CreateRevision(number(*at))),
            Compare::NoneUnder(prefix) => none_under(self.prefix(*prefix)),
        }
    }

    /// What is read to know whether a compare held.
    fn look(&self, compare: &Compare) -> RequestOp {
        let look =
            |key, range_end| op(Op::Range(RangeRequest { key, range_end, limit: 1, revision: 0, keys_only: true }));
        match compare {
            Compare::Absent(key) | Compare::Present(key) | Compare::Modified(key, _) | Compare::Created(key, _) => {
                look(self.key(key), Vec::new())
            }
            Compare::NoneUnder(prefix) => {
                let prefix = self.prefix(*prefix);
                look(prefix.clone(), end_of(prefix))
            }
        }
    }

    fn write(&self, write: &Write) -> RequestOp {
        match write {
            Write::Put(key, value) => put(self.key(key), value.to_bytes(), 0),
            Write::PutLeased(key, value, of) => put(self.key(key), value.to_bytes(), lease(*of)),
            Write::Delete(key) => op(Op::DeleteRange(DeleteRangeRequest { key: self.key(key) })),
        }
    }
}

pub(super) fn put(key: Vec<u8>, value: Vec<u8>, lease: i64) -> RequestOp {
    op(Op::Put(PutRequest { key, value, lease }))
}

/// No key begins so: etcd compares each that does, and one of revision 0 if none does.
pub(super) fn none_under(prefix: Vec<u8>) -> messages::Compare {
    messages::Compare {
        result: 0,
        target: CREATE,
        key: prefix.clone(),
        with: Some(Compared::CreateRevision(0)),
        range_end: end_of(prefix),
    }
}

/// Each compare once, and the place of each among these: requests that share a transaction compare the same directories and sessions.
fn once(compares: &[Compare]) -> (Vec<&Compare>, Vec<usize>) {
    let (mut at, mut once) = (BTreeMap::new(), Vec::new());
    let place = |compare| {
        *at.entry(compare).or_insert_with(|| {
            once.push(compare);
            once.len() - 1
        })
    };
    let places = compares.iter().map(place).collect();
    (once, places)
}

/// Which compares did not hold, from what was read in their places.
pub(super) fn refused(compares: &[Compare], found: &[ResponseOp]) -> Vec<usize> {
    let holds = |compare: &Compare, found: &ResponseOp| {
        let found = found.range.as_ref().and_then(|range| range.kvs.first());
        match compare {
            Compare::Absent(_) | Compare::NoneUnder(_) => found.is_none(),
            Compare::Present(_) => found.is_some(),
            Compare::Modified(_, at) => found.is_some_and(|found| revision(found.mod_revision) == *at),
            Compare::Created(_, at) => found.is_some_and(|found| revision(found.create_revision) == *at),
        }
    };
    let (once, places) = once(compares);
    let hold: Vec<bool> = once.iter().zip(found).map(|(compare, found)| holds(compare, found)).collect();
    let failed = |place: &usize| hold.get(*place) == Some(&false);
    places.iter().enumerate().filter(|(_, place)| failed(place)).map(|(at, _)| at).collect()
}

pub(super) const fn revision(its: i64) -> Revision {
    Revision(its.cast_unsigned())
}

/// etcd's number of a lease. 0 would mean none there: here it is one that has ended.
pub(super) const fn lease(lease: Lease) -> i64 {
    if lease.0 == 0 { i64::MAX } else { lease.0.cast_signed() }
}

/// The first key behind all that begin so.
pub(super) fn end_of(mut prefix: Vec<u8>) -> Vec<u8> {
    while prefix.last() == Some(&u8::MAX) {
        prefix.pop();
    }
    if let Some(last) = prefix.last_mut() {
        *last += 1;
    }
    prefix
}

#[cfg(test)]
mod tests {
    use surgetank_pool_core::id::{Inode, SessionId};

    use super::super::messages::{KeyValue, RangeResponse};
    use super::*;

    #[test]
    fn what_several_compare_is_asked_once_and_fails_for_all_of_them() {
        let (node, session) = (Key::Node(Inode(1)), Key::Session(SessionId(2)));
        let compares = [
            Compare::Created(node.clone(), Revision(5)),
            Compare::Absent(session.clone()),
            Compare::Created(node.clone(), Revision(5)),
            Compare::Modified(node.clone(), Revision(6)),
            Compare::Absent(session),
            Compare::Created(node, Revision(5)),
        ];
        let asked = Spelling::new("p").transaction(&Transaction { compares: compares.to_vec(), writes: Vec::new() });
        assert_eq!((asked.compare.len(), asked.failure.len()), (3, 3));
        let found = |revision: Option<i64>| {
            let found = revision.map(|at| KeyValue { create_revision: at, mod_revision: at, ..KeyValue::default() });
            ResponseOp { range: Some(RangeResponse { kvs: found.into_iter().collect(), ..RangeResponse::default() }) }
        };
        assert_eq!(refused(&compares, &[found(Some(5)), found(Some(9)), found(Some(6))]), [1, 4]);
        assert_eq!(refused(&compares, &[found(Some(7)), found(None), found(Some(6))]), [0, 2, 5]);
        assert_eq!(refused(&compares, &[found(None), found(None), found(None)]), [0, 2, 3, 5]);
    }

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(end_of(b"/p/i".to_vec()), b"/p/j");
        assert_eq!(end_of(b"/p/d\x00\xff\xff".to_vec()), b"/p/d\x01");
    }
}
