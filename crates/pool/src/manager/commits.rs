//! Carries out operations: attempts by `pool-core`, and transactions that share the store's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use surgetank_pool_core::meta::group::Answer;
use surgetank_pool_core::meta::operation::{Attempt, Operation, Reads, Refusal, attempt};
use surgetank_pool_core::meta::store::{Compare, Lease, Limits, Outcome, Stored, Transaction, Write};
use surgetank_pool_core::meta::{GroupCommit, Key, Known, RequestId, Value};
use tokio::sync::{Notify, oneshot};

use super::protocol::{Ended, Once};
use super::rights::{NOT_ALLOWED, Within};
use crate::meta::{self, LeaseEnded, MetaStore, Unavailable};

/// Compares, and writes, of requests that share a transaction, also if the store takes more: when one is refused, the others are sent again.
const SHARED_MAX: usize = 512;
/// A group's own compare, and its writes: its receipt, and the former one that is deleted.
const OWN: usize = 2;
/// How often other tasks have their turn before a transaction that has fewer requests than the last one: some ten microseconds.
const TURNS: usize = 32;
/// The pause after a transaction whose outcome is unknown.
const PAUSE: Duration = Duration::from_millis(50);

/// Why a change was not made.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotDone {
    #[error(transparent)]
    Unavailable(#[from] Unavailable),
    #[error(
        "the change needs {needed} operations in one transaction, and the store takes {}: start etcd with --max-txn-ops={} or more",
        .limits.operations,
        .needed.next_power_of_two()
    )]
    Operations { needed: usize, limits: Limits },
    #[error("the change is of {needed} bytes, and the store takes {} in one transaction: sync more often", .limits.bytes)]
    Bytes { needed: usize, limits: Limits },
}

impl From<NotDone> for Unavailable {
    fn from(error: NotDone) -> Self {
        match error {
            NotDone::Unavailable(error) => error,
            other => Self(other.to_string()),
        }
    }
}

struct Waiting {
    answer: oneshot::Sender<Answer>,
    compares: usize,
    leases: Vec<Lease>,
}

struct Queue {
    group: GroupCommit,
    waiting: BTreeMap<RequestId, Waiting>,
    requests: u64,
    /// The manager's lease has ended: nothing is committed any more.
    is_over: bool,
}

/// See the module.
pub(super) struct Commits {
    store: Arc<dyn MetaStore>,
    lease: Lease,
    queue: Mutex<Queue>,
    known: Mutex<Known>,
    wake: Notify,
}

impl Commits {
    /// Of a manager's process, with the lease of its receipts.
    pub(super) fn new(store: Arc<dyn MetaStore>, manager: u64, lease: Lease) -> Self {
        let limits = store.limits();
        let shared = Limits { operations: limits.operations.min(SHARED_MAX), ..limits };
        let group = GroupCommit::new(manager, lease, shared);
        let queue = Queue { group, waiting: BTreeMap::new(), requests: 0, is_over: false };
        Self { store, lease, queue: Mutex::new(queue), known: Mutex::default(), wake: Notify::new() }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives transactions to the store, one after the other. It ends when the manager's lease has.
    pub(super) async fn run(&self) -> LeaseEnded {
        loop {
            for _ in 0..TURNS {
                if !self.queue().group.gathers() {
                    break;
                }
                tokio::task::yield_now().await;
            }
            let next = self.queue().group.next_commit();
            let Some((id, transaction)) = next else {
                self.wake.notified().await;
                continue;
            };
            let outcome = match self.store.commit(&transaction).await {
                Ok(outcome) => outcome,
                Err(ended) if ended.0 == self.lease => return ended,
                Err(ended) => self.queue().without(ended.0),
            };
            let unknown = outcome == Outcome::Unknown;
            {
                let mut queue = self.queue();
                queue.group.complete(id, &outcome);
                while let Some((request, answer)) = queue.group.next_answer() {
                    if let Some(waiting) = queue.waiting.remove(&request) {
                        // Whoever asked may have gone.
                        let _ = waiting.answer.send(answer);
                    }
                }
            }
            if unknown {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// The lease has ended: whoever waits is told that nobody knows, and so is whoever comes later.
    pub(super) fn end(&self) {
        let mut queue = self.queue();
        queue.is_over = true;
        queue.waiting.clear();
    }

    /// Whether a transaction took place.
    pub(super) async fn commit(&self, transaction: Transaction) -> Result<bool, NotDone> {
        let limits = self.store.limits();
        let needed = transaction.compares.len().max(transaction.writes.len()) + OWN;
        if needed > limits.operations {
            return Err(NotDone::Operations { needed, limits });
        }
        let bytes = meta::bytes(&transaction);
        if bytes > limits.bytes {
            return Err(NotDone::Bytes { needed: bytes, limits });
        }
        let (answer, answered) = oneshot::channel();
        {
            let mut queue = self.queue();
            if queue.is_over {
                return Err(Unavailable("this manager's lease has ended".to_owned()).into());
            }
            queue.requests += 1;
            let request = RequestId(queue.requests);
            let leases = transaction.writes.iter().filter_map(|write| match write {
                Write::PutLeased(_, _, lease) => Some(*lease),
                _ => None,
            });
            let waiting = Waiting { answer, compares: transaction.compares.len(), leases: leases.collect() };
            queue.waiting.insert(request, waiting);
            queue.group.submit(request, transaction, bytes);
        }
        self.wake.notify_one();
        match answered.await {
            Ok(answer) => Ok(matches!(answer, Answer::Committed(_))),
            Err(_) => Err(Unavailable("this manager's lease has ended".to_owned()).into()),
        }
    }

    /// Carries out an operation of this manager.
    pub(super) async fn perform(&self, operation: &Operation) -> Result<Ended, NotDone> {
        self.perform_within(operation, None, None).await
    }

    /// Carries out an operation, `once` and `within` a mount if a client asked for it.
    pub(super) async fn perform_within(
        &self,
        operation: &Operation,
        once: Option<Once>,
        within: Option<Within>,
    ) -> Result<Ended, NotDone> {
        let mut first = true;
        loop {
            if let Some(once) = once
                && (once.again || !first)
                && let Some(ended) = self.settled(once).await?
            {
                return Ok(ended);
            }
            let known = if std::mem::take(&mut first) { self.attempt_known(operation, within) } else { None };
            let rests_on_known = known.is_some();
            let (mut transaction, reply) = match known {
                Some(attempted) => attempted,
                None => self.attempt(operation, within).await?,
            };
            let again = once.is_some_and(|once| once.again);
            if transaction.writes.is_empty() && transaction.compares.len() <= 1 && !again {
                return Ok(reply);
            }
            if let Some(once) = once
                && (again || !transaction.writes.is_empty())
            {
                // A refusal of what was sent before takes the receipt, so that no copy of it takes place later.
                once.take_receipt(&mut transaction, &reply);
            }
            let looked = rests_on_known.then(|| transaction.clone());
            if self.commit(transaction).await? {
                return Ok(reply);
            }
            looked.iter().for_each(|refused| self.known().refused(refused));
        }
    }

    /// Refuses a request; one that was sent before may have taken place, and does not later.
    pub(super) async fn refuse(&self, once: Once, refusal: Refusal) -> Result<Ended, NotDone> {
        loop {
            if !once.again {
                return Ok(Ended::Refused(refusal));
            }
            if let Some(ended) = self.settled(once).await? {
                return Ok(ended);
            }
            let (mut transaction, refused) = (Transaction::default(), Ended::Refused(refusal.clone()));
            once.take_receipt(&mut transaction, &refused);
            if self.commit(transaction).await? {
                return Ok(refused);
            }
        }
    }

    /// What is known of a request whose answer did not come, or whose transaction was refused.
    pub(super) async fn settled(&self, once: Once) -> Result<Option<Ended>, Unavailable> {
        let keys = [Key::Session(once.session), once.receipt()];
        let read = self.store.read(&keys, &[]).await?;
        Ok(match &read.keys[..] {
            [_, Some(Stored { value: Value::Refused(refusal), .. })] => Some(Ended::Refused(refusal.clone())),
            [_, Some(_)] => Some(Ended::Before),
            [None, _] => Some(Ended::Refused(Refusal::NotTheWriter)),
            _ => None,
        })
    }

    /// The transaction of a creation, and its answer if that takes place, from what was read before; `None`: it has to be read.
    fn attempt_known(&self, operation: &Operation, within: Option<Within>) -> Option<(Transaction, Ended)> {
        let may = |value: &Value| within.is_none_or(|within| within.may_use(value));
        let (mut transaction, reply) = self.known().creation(operation, now(), may)?;
        let makes = within.and_then(|within| within.makes(operation));
        transaction.compares.extend(makes.map(|(_, compare)| compare));
        Some((transaction, Ended::Reply(reply)))
    }

    /// Reads what the operation needs; its transaction, and its answer if that takes place.
    async fn attempt(
        &self,
        operation: &Operation,
        within: Option<Within>,
    ) -> Result<(Transaction, Ended), Unavailable> {
        let not_allowed = || (Transaction::default(), Ended::Refused(NOT_ALLOWED));
        let mut reads = Reads::at(now());
        let makes = within.and_then(|within| within.makes(operation));
        if let Some((key, _)) = &makes
            && self.store.read(std::slice::from_ref(key), &[]).await?.keys.first().is_some_and(Option::is_some)
        {
            return Ok(not_allowed());
        }
        loop {
            match attempt(operation, &reads) {
                Attempt::Read(keys, prefixes) => {
                    let read = self.store.read(&keys, &prefixes).await?;
                    if within.is_some_and(|within| !within.has(&read)) {
                        return Ok(not_allowed());
                    }
                    for (key, stored) in keys.into_iter().zip(read.keys) {
                        self.known().learn(&key, stored.as_ref());
                        reads.key(key, stored);
                    }
                    prefixes.into_iter().zip(read.prefixes).for_each(|(prefix, keys)| reads.prefix(prefix, keys));
                }
                Attempt::Commit(mut transaction, Ok(reply)) => {
                    transaction.compares.extend(makes.map(|(_, compare)| compare));
                    return Ok((transaction, Ended::Reply(reply)));
                }
                Attempt::Commit(transaction, Err(refusal)) => return Ok((transaction, Ended::Refused(refusal))),
            }
        }
    }
}

impl Once {
    const fn receipt(self) -> Key {
        Key::Receipt(self.session.0, self.number)
    }

    /// A transaction takes the receipt, so that no copy of the request takes place afterwards.
    fn take_receipt(self, transaction: &mut Transaction, ended: &Ended) {
        let value = match ended {
            Ended::Refused(refusal) => Value::Refused(refusal.clone()),
            Ended::Before | Ended::Reply(_) => Value::Receipt,
        };
        transaction.compares.push(Compare::Absent(self.receipt()));
        transaction.writes.push(Write::PutLeased(self.receipt(), value, self.lease));
    }
}

/// This manager's clock, in nanoseconds since 1970.
pub(super) fn now() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

impl Queue {
    /// The transaction under way did not take place since a lease in it has ended: those who attached keys to it are refused, and
    /// look at their sessions again.
    fn without(&self, lease: Lease) -> Outcome {
        let (mut failed, mut first) = (Vec::new(), 0);
        for request in self.group.in_flight() {
            let Some(waiting) = self.waiting.get(&request) else { continue };
            if waiting.leases.contains(&lease) {
                failed.push(first);
            }
            first += waiting.compares;
        }
        Outcome::Refused(failed)
    }
}
