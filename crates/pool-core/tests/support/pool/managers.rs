//! Managers, which have no state but what they are doing, and the store, whose answers are late or lost; leases.

use std::collections::BTreeMap;
use std::time::Duration;

use surgetank_model::Instant;
use surgetank_pool_core::id::Inode;
use surgetank_pool_core::meta::group::Answer;
use surgetank_pool_core::meta::operation::{Operation, Refusal, Reply};
use surgetank_pool_core::meta::store::{Lease, Limits, Outcome, Transaction, Write};
use surgetank_pool_core::meta::value::{FileState, Kind, Value};
use surgetank_pool_core::meta::{Attempt, CommitId, GroupCommit, Key, Known, Prefix, Reads, RequestId, attempt};
use surgetank_pool_core::placement::Place;

use super::clients::lease_of;
use super::{Asker, Event, World};

struct Doing {
    asker: Asker,
    request: u64,
    operation: Operation,
    reads: Reads,
    /// It is attempted from what the manager has read before.
    first: bool,
    reply: Option<Result<Reply, Refusal>>,
    submitted: Option<Transaction>,
}

/// See the module.
pub struct Manager {
    process: u64,
    group: GroupCommit,
    known: Known,
    doing: BTreeMap<RequestId, Doing>,
    flying: Option<(CommitId, Instant)>,
    /// It is dead until then.
    down: Instant,
}

/// Compares, and writes, of a transaction at most: small, so that groups are cut.
const LIMITS: Limits = Limits { operations: 40, ..Limits::NONE };
const LEASE: Duration = Duration::from_secs(2);

impl Manager {
    pub fn new(process: u64) -> Self {
        let group = GroupCommit::new(process, Lease(process), LIMITS);
        Self { process, group, known: Known::default(), doing: BTreeMap::new(), flying: None, down: Instant::ZERO }
    }

    /// Whose requests share the transaction that is under way.
    fn in_flight(&self) -> Vec<(Asker, u64)> {
        let doing = self.group.in_flight().filter_map(|request| self.doing.get(&request));
        doing.map(|doing| (doing.asker, doing.request)).collect()
    }

    pub fn is_down(&self, now: Instant) -> bool {
        self.down > now
    }
}

fn lease_of_place(place: Place) -> Lease {
    Lease(1_000_000 + u64::from(place.id.0) * 10_000 + place.incarnation.0)
}

impl World {
    /// A manager dies; what it was doing goes on without it where it is on its way to the store.
    pub(super) fn stop_manager(&mut self, at: usize) {
        let process = self.number();
        let down = self.now + self.milliseconds(100, 3000);
        self.managers[at] = Manager { down, ..Manager::new(process) };
    }

    pub(super) fn asked(&mut self, at: usize, asker: Asker, request: u64, operation: Operation) {
        if self.managers[at].down > self.now {
            return;
        }
        let own = RequestId(self.number());
        let reads = Reads::default();
        let doing = Doing { asker, request, operation, reads, first: true, reply: None, submitted: None };
        self.managers[at].doing.insert(own, doing);
        self.work_manager(at);
    }

    pub(super) fn tick_managers(&mut self) {
        for at in 0..self.managers.len() {
            if let Some((id, since)) = self.managers[at].flying
                && self.now.since(since) >= Duration::from_millis(500)
            {
                self.managers[at].flying = None;
                self.managers[at].group.complete(id, &Outcome::Unknown);
            }
            self.work_manager(at);
        }
    }

    fn work_manager(&mut self, at: usize) {
        let manager = &mut self.managers[at];
        if manager.down > self.now {
            return;
        }
        let mut replies = Vec::new();
        while let Some((request, answer)) = manager.group.next_answer() {
            let Some(doing) = manager.doing.get_mut(&request) else { continue };
            match answer {
                Answer::Committed(_) => {
                    if let Some(doing) = manager.doing.remove(&request)
                        && let Some(reply) = doing.reply
                    {
                        replies.push((doing.asker, doing.request, reply));
                    }
                }
                Answer::Refused => {
                    (doing.reads, doing.reply) = (Reads::default(), None);
                    doing.submitted.take().iter().for_each(|refused| manager.known.refused(refused));
                }
            }
        }
        if !self.faults.store_gone {
            for (request, doing) in manager.doing.iter_mut().filter(|(_, doing)| doing.submitted.is_none()) {
                let known = &mut manager.known;
                if std::mem::take(&mut doing.first)
                    && let Some((transaction, reply)) = known.creation(&doing.operation, 0, |_| true)
                {
                    (doing.reply, doing.submitted) = (Some(Ok(reply)), Some(transaction.clone()));
                    manager.group.submit(*request, transaction, 0);
                    continue;
                }
                loop {
                    match attempt(&doing.operation, &doing.reads) {
                        Attempt::Read(keys, prefixes) => {
                            for key in keys {
                                let stored = self.store.get(&key).cloned();
                                known.learn(&key, stored.as_ref());
                                doing.reads.key(key, stored);
                            }
                            for prefix in prefixes {
                                let under = self.store.under(prefix);
                                doing
                                    .reads
                                    .prefix(prefix, under.map(|(key, stored)| (key.clone(), stored.clone())).collect());
                            }
                        }
                        Attempt::Commit(transaction, reply) => {
                            (doing.reply, doing.submitted) = (Some(reply), Some(transaction.clone()));
                            manager.group.submit(*request, transaction, 0);
                            break;
                        }
                    }
                }
            }
        }
        let sent = manager.group.next_commit();
        if let Some((id, transaction)) = sent {
            let process = manager.process;
            manager.flying = Some((id, self.now));
            let noisy = self.faults.noisy;
            if !(noisy && self.random.chance(0.02)) {
                let to = if noisy && self.random.chance(0.03) { 3000 } else { 3 };
                self.later(1, to, Event::AtStore(at, process, id, transaction));
            }
        }
        for (asker, request, reply) in replies {
            // A connection neither doubles nor reorders; the answer may be lost with it.
            if !(self.faults.noisy && self.random.chance(0.02)) {
                self.later(1, 4, Event::Reply(asker, request, reply));
            }
        }
    }

    /// A transaction reaches the store.
    pub(super) fn at_store(&mut self, at: usize, process: u64, id: CommitId, transaction: &Transaction) {
        if self.faults.store_gone {
            return;
        }
        let before: BTreeMap<Key, Option<Value>> = transaction
            .writes
            .iter()
            .map(|write| (write.key().clone(), self.store.get(write.key()).map(|stored| stored.value.clone())))
            .collect();
        let registered = self.places_registered(transaction);
        let outcome = self.store.commit(transaction);
        let is_alive = self.managers[at].process == process;
        let requests = if is_alive { self.managers[at].in_flight() } else { Vec::new() };
        if matches!(outcome, Outcome::Committed(_)) {
            self.history.took_place(transaction, &requests);
            self.took_place(transaction, &before, registered);
        }
        let lost = self.faults.noisy && self.random.chance(0.03);
        if !lost && is_alive {
            if self.managers[at].flying.is_some_and(|(flying, _)| flying == id) {
                self.managers[at].flying = None;
            }
            self.managers[at].group.complete(id, &outcome);
            self.work_manager(at);
        }
    }

    /// Benefactors renew their leases, and sessions theirs; those that do not are lost, unless the store itself is gone.
    pub(super) fn tick_leases(&mut self) {
        if self.faults.store_gone {
            for node in self.nodes.values_mut() {
                node.lease_until = self.now + LEASE;
            }
            self.clients.iter_mut().for_each(|client| client.lease_until = self.now + LEASE);
            return;
        }
        let mut ended = Vec::new();
        let mut began = Vec::new();
        for node in self.nodes.values_mut() {
            let renews = node.holdings.is_some() && node.cut_off <= self.now;
            if renews {
                node.lease_until = self.now + LEASE;
                if !node.leased {
                    node.leased = true;
                    began.push(node.place());
                }
            } else if node.lease_until <= self.now {
                node.leased = false;
                ended.push(node.place());
            }
        }
        ended.into_iter().for_each(|place| self.store.end(lease_of_place(place)));
        for place in began {
            // The key of a former life goes first: a life's key is created with it.
            let former = match self.store.get(&Key::Benefactor(place.id)).map(|stored| &stored.value) {
                Some(Value::Benefactor(former)) => Some(*former),
                _ => None,
            };
            former.into_iter().for_each(|former| self.store.end(lease_of_place(former)));
            if self.is_leaving(place.id) {
                continue;
            }
            self.put(vec![Write::PutLeased(
                Key::Benefactor(place.id),
                Value::Benefactor(place),
                lease_of_place(place),
            )]);
        }
        for at in 0..self.clients.len() {
            let session = self.clients[at].session;
            let alive = self.store.get(&Key::Session(session)).is_some();
            if self.clients[at].stalled <= self.now {
                self.clients[at].lease_until = self.now + LEASE;
                if self.clients[at].registered && !alive {
                    self.session_over(at);
                } else if !self.clients[at].registered {
                    self.clients[at].registered = true;
                    let session_key =
                        Write::PutLeased(Key::Session(session), Value::Session(session), lease_of(session));
                    self.put(vec![session_key]);
                }
            } else if alive && self.clients[at].lease_until <= self.now {
                self.end_session(at);
            }
        }
    }

    /// The store ends a session; others look after what it had open.
    pub(super) fn end_session(&mut self, at: usize) {
        let session = self.clients[at].session;
        let open = super::all_keys(&self.store).filter_map(|(key, _)| match key {
            Key::Writer(inode, of) if *of == session => Some(*inode),
            _ => None,
        });
        let open: Vec<Inode> = open.collect();
        self.faults.lost_writers.extend(open);
        self.store.end(lease_of(session));
    }

    pub(super) fn end_leases(&mut self) {
        let places: Vec<Place> = self.nodes.values().map(super::nodes::Node::place).collect();
        places.into_iter().for_each(|place| self.store.end(lease_of_place(place)));
    }

    pub(super) fn put(&mut self, writes: Vec<Write>) {
        self.store.commit(&Transaction { compares: Vec::new(), writes });
    }

    /// Files that nobody has open and nobody needs end; writers that ended without a word are looked after.
    pub(super) fn janitor(&mut self) {
        if self.faults.store_gone {
            return;
        }
        if let Some(inode) = self.faults.lost_writers.iter().next().copied() {
            // It is asked until the file has neither a writer nor a version that the target does not hear of.
            let done = match self.store.get(&Key::Node(inode)).map(|stored| &stored.value) {
                Some(Value::Node(node)) => node.at.is_none() || node.journalled == node.version,
                _ => true,
            };
            let written = self.store.under(Prefix::Writers(inode)).next().is_some();
            if done || written {
                self.faults.lost_writers.remove(&inode);
            } else if self.random.chance(0.3) {
                let (request, journal) = (self.number(), self.number());
                self.ask_once(Asker::Janitor, request, &Operation::WriterLost { inode, journal });
            }
        }
        let nodes = super::all_keys(&self.store).filter_map(|(key, stored)| match (key, &stored.value) {
            (Key::Node(inode), Value::Node(node)) if matches!(node.kind, Kind::File(_)) => Some((*inode, node.clone())),
            _ => None,
        });
        let nodes: Vec<_> = nodes.collect();
        let Some((inode, node)) = self.pick(&nodes) else { return };
        if node.at.is_none() {
            let request = self.number();
            self.ask_once(Asker::Janitor, request, &Operation::Forget { inode });
        } else if self.random.chance(0.02) && !matches!(node.kind, Kind::File(FileState::Created)) {
            self.ask_to_evict(inode);
        }
    }

    /// Here what is written rests on the pool alone: a file that somebody writes stays.
    pub(super) fn ask_to_evict(&mut self, inode: Inode) {
        if self.store.under(Prefix::Writers(inode)).next().is_none() {
            let (request, changes) = (self.number(), self.number());
            self.ask_once(Asker::Janitor, request, &Operation::Evict { inode, changes });
        }
    }

    pub(super) fn ask_once(&mut self, asker: Asker, request: u64, operation: &Operation) {
        let manager = self.random.below(self.managers.len() as u64) as usize;
        if !(self.faults.noisy && self.random.chance(0.02)) {
            self.later(1, 4, Event::Ask(manager, asker, request, operation.clone()));
        }
    }
}
