//! Several requests in one transaction, and outcomes that nobody heard of.
//!
//! A store takes a few thousand transactions a second, whatever is in them, and an N-N checkpoint creates a hundred thousand files at
//! once: requests that wait share a transaction. Those in one group do not touch each other's keys, so that each of them holds or
//! fails as it would alone; if the group is refused, those whose compares failed are answered, and the others go on. When the entries of a
//! directory changed last is written by all who change them, and compared by nobody: in one transaction the latest counts.
//!
//! **Unknown outcomes.** Each transaction writes a receipt of its own, and compares that it is absent: sent again, it takes place at
//! most once. One copy of it may still be on its way when another was refused, and take place later, when its compares hold
//! again. So a transaction of which any copy's outcome is unknown is refused only after its receipt was taken by a transaction that
//! does nothing else. That one leaves a mark beside the receipt, since its own outcome may be unknown as well: who finds the receipt
//! without the mark knows that the transaction took place. A receipt that nobody will ask for, since the only copy of its transaction was
//! answered, is deleted by the next transaction: the store keeps one for each manager, not one for each transaction.
//!
//! **Who comes back.** Clients that wait for one request before they ask for the next come back together once a transaction is answered. A
//! transaction that begins with the first of them leaves the others to the one after it, and so each has half of them, for ever. So
//! [`GroupCommit::gathers`] tells a driver to let others run before it asks for the next transaction.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::id::Revision;
use crate::meta::key::{Key, Prefix};
use crate::meta::store::{Compare, Lease, Limits, Outcome, Transaction, Write};
use crate::meta::value::Value;
use crate::planted::{Bug, planted};

/// A request of this manager's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

/// A transaction that was given to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommitId(pub u64);

/// What became of a request's transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It took place; at this revision, if that is known.
    Committed(Option<Revision>),
    /// It did not, and never will.
    Refused,
}

/// The part of a group that a request has.
#[derive(Debug)]
struct Part {
    request: RequestId,
    transaction: Transaction,
    /// Bytes of its keys and values.
    bytes: usize,
}

#[derive(Debug)]
struct Flying {
    id: CommitId,
    receipt: Key,
    /// That the receipt was taken.
    mark: Key,
    parts: Vec<Part>,
    /// A copy of it may still take place.
    unknown: bool,
    stage: Stage,
}

#[derive(Debug, PartialEq, Eq)]
enum Stage {
    /// To be sent.
    Send,
    /// Sent.
    Sent,
    /// It was refused; its receipt is to be taken. Whose compares failed.
    Take(Vec<usize>),
    /// That was sent.
    Taking(Vec<usize>),
}

/// See the module.
#[derive(Debug)]
pub struct GroupCommit {
    /// This manager's process, and the lease of its receipts.
    manager: (u64, Lease),
    /// Of a group. A single request's transaction that is beyond them goes alone.
    limits: Limits,
    receipts: u64,
    commits: u64,
    queue: VecDeque<Part>,
    flying: Option<Flying>,
    /// The receipt of a transaction of which no copy is under way.
    over: Option<Key>,
    /// Requests that the last transaction answered.
    answered: usize,
    answers: VecDeque<(RequestId, Answer)>,
}

impl GroupCommit {
    /// For a manager's process, and a store that takes so much in a transaction.
    #[must_use]
    pub const fn new(manager: u64, lease: Lease, limits: Limits) -> Self {
        Self {
            manager: (manager, lease),
            limits,
            receipts: 0,
            commits: 0,
            queue: VecDeque::new(),
            flying: None,
            over: None,
            answered: 0,
            answers: VecDeque::new(),
        }
    }

    /// A transaction to commit, of so many bytes.
    pub fn submit(&mut self, request: RequestId, transaction: Transaction, bytes: usize) {
        self.queue.push_back(Part { request, transaction, bytes });
    }

    /// Whether fewer requests wait than the last transaction answered, so that more may come at any moment.
    #[must_use]
    pub fn gathers(&self) -> bool {
        self.flying.is_none() && (1..self.answered).contains(&self.queue.len())
    }

    /// What to send to the store. One at a time: what comes meanwhile shares the next.
    pub fn next_commit(&mut self) -> Option<(CommitId, Transaction)> {
        if self.flying.is_none() {
            let parts = self.next_group()?;
            self.receipts += 2;
            let [receipt, mark] = [0, 1].map(|more| Key::Receipt(self.manager.0, self.receipts + more));
            self.flying = Some(Flying { id: CommitId(0), receipt, mark, parts, unknown: false, stage: Stage::Send });
        }
        let lease = self.manager.1;
        let flying = self.flying.as_mut()?;
        let mut transaction = Transaction::default();
        match std::mem::replace(&mut flying.stage, Stage::Sent) {
            Stage::Send => {
                let mut moments = BTreeMap::new();
                for part in &flying.parts {
                    transaction.compares.extend(part.transaction.compares.iter().cloned());
                    for write in &part.transaction.writes {
                        match is_moment(write) {
                            true => keep_later(&mut moments, write),
                            false => transaction.writes.push(write.clone()),
                        }
                    }
                }
                transaction.writes.extend(moments.into_values().cloned());
                transaction.writes.extend(self.over.iter().cloned().map(Write::Delete));
            }
            Stage::Take(failed) => {
                flying.stage = Stage::Taking(failed);
                transaction.compares.push(Compare::Absent(flying.mark.clone()));
                transaction.writes.push(Write::PutLeased(flying.mark.clone(), Value::Receipt, lease));
            }
            sent => {
                flying.stage = sent;
                return None;
            }
        }
        if !planted(Bug::RetriedWithoutReceipt) {
            transaction.compares.push(Compare::Absent(flying.receipt.clone()));
            transaction.writes.push(Write::PutLeased(flying.receipt.clone(), Value::Receipt, lease));
        }
        self.commits += 1;
        flying.id = CommitId(self.commits);
        Some((flying.id, transaction))
    }

    /// The requests that share a transaction which is under way, in the order of their compares in it.
    pub fn in_flight(&self) -> impl Iterator<Item = RequestId> {
        self.flying.iter().flat_map(|flying| flying.parts.iter().map(|part| part.request))
    }

    /// What became of it. A late word about an earlier copy is not minded.
    pub fn complete(&mut self, id: CommitId, outcome: &Outcome) {
        let Some(mut flying) = self.flying.take_if(|flying| flying.id == id) else { return };
        let compares: usize = flying.parts.iter().map(|part| part.transaction.compares.len()).sum();
        match (flying.stage, outcome) {
            (Stage::Sent, Outcome::Committed(revision)) => {
                self.over = (!flying.unknown || planted(Bug::ReceiptForgottenEarly)).then_some(flying.receipt);
                self.took_place(flying.parts, Some(*revision));
            }
            // The receipt is there: an earlier copy took place.
            (Stage::Sent, Outcome::Refused(failed)) if failed.contains(&compares) => {
                self.took_place(flying.parts, None);
            }
            (Stage::Sent, Outcome::Refused(failed)) if flying.unknown && !planted(Bug::RefusedWhileUnderWay) => {
                flying.stage = Stage::Take(failed.clone());
                self.flying = Some(flying);
            }
            (Stage::Sent, Outcome::Refused(failed)) => self.refused(flying.parts, failed),
            (Stage::Taking(failed), Outcome::Committed(_)) => self.refused(flying.parts, &failed),
            // The mark is there: an earlier copy has taken the receipt.
            (Stage::Taking(failed), Outcome::Refused(there)) if there.contains(&0) => {
                self.refused(flying.parts, &failed);
            }
            (Stage::Taking(_), Outcome::Refused(_)) => self.took_place(flying.parts, None),
            (stage, _) => {
                flying.unknown = true;
                flying.stage = match stage {
                    Stage::Taking(failed) | Stage::Take(failed) => Stage::Take(failed),
                    Stage::Send | Stage::Sent => Stage::Send,
                };
                self.flying = Some(flying);
            }
        }
    }

    /// What became of a request's transaction.
    pub fn next_answer(&mut self) -> Option<(RequestId, Answer)> {
        self.answers.pop_front()
    }

    /// Requests that are not answered.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queue.len() + self.flying.as_ref().map_or(0, |flying| flying.parts.len())
    }

    fn took_place(&mut self, parts: Vec<Part>, revision: Option<Revision>) {
        self.answered = parts.len();
        self.answers.extend(parts.into_iter().map(|part| (part.request, Answer::Committed(revision))));
    }

    /// Answers those whose compares failed, and has the others go on.
    fn refused(&mut self, parts: Vec<Part>, failed: &[usize]) {
        let mut first = 0;
        let mut rest = Vec::new();
        for part in parts {
            let own = first..first + part.transaction.compares.len();
            first = own.end;
            if planted(Bug::GroupFailsTogether) || failed.iter().any(|at| own.contains(at)) {
                self.answers.push_back((part.request, Answer::Refused));
            } else {
                rest.push(part);
            }
        }
        rest.into_iter().rev().for_each(|part| self.queue.push_front(part));
    }

    /// Requests in the order in which they came, without those that touch what an earlier one touches.
    fn next_group(&mut self) -> Option<Vec<Part>> {
        let (mut group, mut rest) = (Vec::new(), VecDeque::new());
        let (mut compares, mut writes, mut bytes) = (1, 2, 0);
        let (mut touched, mut moments) = (Touched::default(), BTreeSet::new());
        while let Some(part) = self.queue.pop_front() {
            let of_part = part.transaction.writes.iter().filter(|write| is_moment(write)).map(Write::key);
            let (again, new): (Vec<&Key>, Vec<&Key>) = of_part.partition(|key| moments.contains(*key));
            let new: Vec<Key> = new.into_iter().cloned().collect();
            let needs = (part.transaction.compares.len(), part.transaction.writes.len() - again.len());
            let Limits { operations, bytes: bytes_max } = self.limits;
            let room =
                compares + needs.0 <= operations && writes + needs.1 <= operations && bytes + part.bytes <= bytes_max;
            let fits = group.is_empty() || room;
            let apart = touched.add(&part.transaction);
            if fits && apart {
                (compares, writes, bytes) = (compares + needs.0, writes + needs.1, bytes + part.bytes);
                moments.extend(new);
                group.push(part);
            } else {
                rest.push_back(part);
                if !room {
                    break;
                }
            }
        }
        rest.append(&mut self.queue);
        self.queue = rest;
        (!group.is_empty()).then_some(group)
    }
}

/// What the requests so far compare and write.
#[derive(Default)]
struct Touched {
    compared: BTreeSet<Key>,
    compared_under: BTreeSet<Prefix>,
    written: BTreeSet<Key>,
}

impl Touched {
    /// Adds a transaction; whether it touches nothing that the others write, and writes nothing that they compare.
    fn add(&mut self, transaction: &Transaction) -> bool {
        let mut apart = true;
        for compare in &transaction.compares {
            match compare {
                Compare::Absent(key) | Compare::Present(key) | Compare::Modified(key, _) | Compare::Created(key, _) => {
                    apart &= !self.written.contains(key);
                }
                Compare::NoneUnder(prefix) => apart &= !self.written.iter().any(|key| prefix.has(key)),
            }
        }
        for write in transaction.writes.iter().filter(|write| !is_moment(write)) {
            let key = write.key();
            apart &= !self.written.contains(key) && !self.compared.contains(key);
            apart &= !self.compared_under.iter().any(|prefix| prefix.has(key));
        }
        for compare in &transaction.compares {
            match compare {
                Compare::Absent(key) | Compare::Present(key) | Compare::Modified(key, _) | Compare::Created(key, _) => {
                    self.compared.insert(key.clone());
                }
                Compare::NoneUnder(prefix) => drop(self.compared_under.insert(*prefix)),
            }
        }
        let written = transaction.writes.iter().filter(|write| !is_moment(write));
        self.written.extend(written.map(|write| write.key().clone()));
        apart
    }
}

/// Of two moments the later one counts.
fn keep_later<'a>(moments: &mut BTreeMap<&'a Key, &'a Write>, write: &'a Write) {
    let at = |write: &Write| match write {
        Write::Put(_, Value::Moment(at)) => *at,
        _ => 0,
    };
    if moments.get(write.key()).is_none_or(|former| at(former) < at(write)) {
        moments.insert(write.key(), write);
    }
}

/// Whether nobody compares what is written, and a later value of a transaction takes the place of an earlier one. What ends the key ends the
/// directory as well, which everybody else who writes the key compares; or sets its node, and comes in another transaction.
fn is_moment(write: &Write) -> bool {
    matches!(write, Write::Put(Key::Changed(_), _))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::Inode;
    use crate::meta::key::Name;

    /// Clients that come back one after the other, each as soon as it is answered: how many are in each transaction.
    fn sizes(gather: bool) -> Vec<usize> {
        let mut group = GroupCommit::new(1, Lease(1), Limits::NONE);
        let mut asked = 0_u64;
        let mut ask = |group: &mut GroupCommit| {
            asked += 1;
            let name = Name::new(asked.to_string().as_bytes()).expect("it is a name");
            let entry = Write::Put(Key::Entry(Inode(1), name), Value::Entry(Inode(asked)));
            group.submit(RequestId(asked), Transaction { compares: Vec::new(), writes: vec![entry] }, 0);
        };
        (0..16).for_each(|_| ask(&mut group));
        let (mut sizes, mut back) = (Vec::new(), 0);
        for _ in 0..10 {
            // One comes before anybody looks, and the others only if they have a turn.
            if back > 0 {
                back -= 1;
                ask(&mut group);
            }
            while gather && back > 0 && group.gathers() {
                back -= 1;
                ask(&mut group);
            }
            let (id, transaction) = group.next_commit().expect("somebody waits");
            (0..std::mem::take(&mut back)).for_each(|_| ask(&mut group));
            sizes.push(transaction.writes.iter().filter(|write| matches!(write.key(), Key::Entry(..))).count());
            group.complete(id, &Outcome::Committed(Revision(1)));
            back = std::iter::from_fn(|| group.next_answer()).count();
        }
        sizes
    }

    #[test]
    fn clients_that_come_back_together_share_a_transaction_again() {
        assert_eq!(sizes(true), [16; 10]);
        assert_eq!(sizes(false)[..5], [16, 1, 16, 1, 16], "without, those who come first leave the others to the next");
    }

    #[test]
    fn nobody_is_waited_for_without_a_request_or_beyond_those_who_were_answered() {
        let mut group = GroupCommit::new(1, Lease(1), Limits::NONE);
        let ask = |group: &mut GroupCommit, number| group.submit(RequestId(number), Transaction::default(), 0);
        ask(&mut group, 1);
        assert!(!group.gathers(), "nobody was answered");
        ask(&mut group, 2);
        let (id, _) = group.next_commit().expect("two wait");
        ask(&mut group, 3);
        assert!(!group.gathers(), "one is under way");
        group.complete(id, &Outcome::Committed(Revision(1)));
        assert!(group.gathers(), "one waits, and two were answered");
        ask(&mut group, 4);
        assert!(!group.gathers());
        let (id, _) = group.next_commit().expect("two wait");
        group.complete(id, &Outcome::Committed(Revision(2)));
        assert!(!group.gathers(), "nobody waits");
    }
}
