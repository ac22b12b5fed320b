//! Clients ask several managers at the same time over a store whose answers are late or lost, and one process after the other
//! publishes. Every transaction that the store commits is compared with the operation carried out alone, at that revision.

mod asks;
mod contents;

use std::collections::{BTreeMap, BTreeSet};

use surgetank_model::random::Random;
use surgetank_pool_core::id::{BenefactorId, Incarnation, Inode, MountId, Revision, SessionId, Version};
use surgetank_pool_core::meta::group::Answer;
use surgetank_pool_core::meta::operation::{Operation, PublicationEnd, Refusal, Reply};
use surgetank_pool_core::meta::store::{Compare, Lease, Limits, MemoryStore, Outcome, Transaction, Write};
use surgetank_pool_core::meta::value::{Change, FileState, Kind, Node, Path, Value};
use surgetank_pool_core::meta::{Attempt, CommitId, GroupCommit, Key, Known, Prefix, Reads, RequestId, Role, attempt};
use surgetank_pool_core::placement::Place;
use surgetank_pool_core::publishing::{self, Publisher};

use self::contents::Contents;
use super::namespace::{AtTarget, Namespace, ROOT};
use super::target::Target;

const MOUNT: MountId = MountId(1);
const MANAGERS: u64 = 3;
/// Compares, and writes, of a transaction: small, so that groups are cut.
const LIMITS: Limits = Limits { operations: 14, ..Limits::NONE };

/// A request that a manager works on.
#[derive(Debug)]
struct Doing {
    manager: u64,
    operation: Operation,
    reads: Reads,
    /// It is attempted from what its manager has read before.
    first: bool,
    reply: Option<Result<Reply, Refusal>>,
    /// Its compares and writes, while it is submitted.
    submitted: Option<Transaction>,
    /// It took place.
    applied: bool,
    /// A transaction of it was looked at, and its own compares failed.
    own_failed: bool,
}

/// A copy of a transaction on its way to the store.
#[derive(Debug)]
struct Copy {
    manager: u64,
    id: CommitId,
    transaction: Transaction,
    /// Which requests share it; empty: it only takes a receipt.
    requests: Vec<RequestId>,
    /// The manager waits for the answer.
    awaited: bool,
}

struct World {
    random: Random,
    store: MemoryStore,
    truth: Namespace,
    managers: Vec<GroupCommit>,
    /// What each of them has read.
    known: Vec<Known>,
    doing: BTreeMap<RequestId, Doing>,
    copies: Vec<Copy>,
    fresh: u64,
    benefactors: BTreeMap<BenefactorId, u64>,
    sessions: BTreeSet<SessionId>,
    sessions_so_far: u64,
    lost_writers: Vec<Inode>,
    publisher: (u64, Publisher),
    effects: Vec<publishing::Effect>,
    target: Target,
    /// What the target is to be once it has seen all entries up to a revision.
    expected: BTreeMap<Revision, BTreeMap<Path, AtTarget>>,
    recording: BTreeMap<RequestId, u64>,
    drained: BTreeSet<(Inode, Version)>,
    contents: Contents,
    /// Steps of publishing in which the target does not answer.
    target_gone: u32,
    calm: bool,
}

pub fn run(seed: u64) -> Result<(), String> {
    let mut world = World::new(seed);
    world.take_over()?;
    for step in 0..1000 {
        world.step().map_err(|what| format!("step {step}: {what}"))?;
    }
    world.calm = true;
    for step in 0..20_000 {
        if world.is_idle() {
            return world.end();
        }
        world.step().map_err(|what| format!("step {step} at the end: {what}"))?;
    }
    Err(format!("it does not come to an end: {:?}, {} entries", world.doing, world.publisher.1.waiting()))
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            random: Random::from_seed(seed),
            store: MemoryStore::default(),
            truth: Namespace::new(),
            managers: (0..MANAGERS).map(|id| GroupCommit::new(id, Lease(1_000_000 + id), LIMITS)).collect(),
            known: vec![Known::default(); MANAGERS as usize],
            doing: BTreeMap::new(),
            copies: Vec::new(),
            fresh: 10,
            benefactors: BTreeMap::new(),
            sessions: BTreeSet::new(),
            sessions_so_far: 0,
            lost_writers: Vec::new(),
            publisher: (0, Publisher::new()),
            effects: Vec::new(),
            target: Target::default(),
            expected: BTreeMap::new(),
            recording: BTreeMap::new(),
            drained: BTreeSet::new(),
            contents: Contents::default(),
            target_gone: 0,
            calm: false,
        };
        let root = Node::new(Kind::Directory, MOUNT, None, (0o755, 0, 0));
        world.write(vec![Write::Put(Key::Node(ROOT), Value::Node(root))]);
        (0..4).for_each(|id| world.start_benefactor(BenefactorId(id)));
        (0..2).for_each(|_| world.start_session());
        world
    }

    fn write(&mut self, writes: Vec<Write>) {
        self.store.commit(&Transaction { compares: Vec::new(), writes });
    }

    fn start_benefactor(&mut self, id: BenefactorId) {
        let incarnation = self.benefactors.entry(id).or_default();
        *incarnation += 1;
        let place = Place { id, incarnation: Incarnation(*incarnation) };
        let lease = Lease(u64::from(id.0) * 1000 + *incarnation);
        self.truth.benefactor(id, Some(place.incarnation));
        self.write(vec![Write::PutLeased(Key::Benefactor(id), Value::Benefactor(place), lease)]);
    }

    fn stop_benefactor(&mut self, id: BenefactorId) {
        self.store.end(Lease(u64::from(id.0) * 1000 + self.benefactors[&id]));
        self.truth.benefactor(id, None);
    }

    fn start_session(&mut self) {
        self.sessions_so_far += 1;
        let session = SessionId(self.sessions_so_far);
        self.sessions.insert(session);
        self.truth.session(session, true);
        let lease = Lease(100_000 + session.0);
        self.write(vec![Write::PutLeased(Key::Session(session), Value::Session(session), lease)]);
    }

    fn end_session(&mut self, session: SessionId) {
        let writes: Vec<Inode> = self
            .store
            .all()
            .filter_map(|(key, _)| match key {
                Key::Writer(inode, of) if *of == session => Some(*inode),
                _ => None,
            })
            .collect();
        self.lost_writers.extend(writes);
        self.store.end(Lease(100_000 + session.0));
        self.sessions.remove(&session);
        self.truth.session(session, false);
    }

    /// The next process publishes. The last one ends: what it did at the target stays, though it may not be on record.
    fn take_over(&mut self) -> Result<(), String> {
        for effect in std::mem::take(&mut self.effects) {
            if self.random.chance(0.5) {
                self.at_target(&effect)?;
            }
        }
        let number = self.publisher.0 + 1;
        let owner = Write::Put(Key::Owner(Role::Publisher(MOUNT)), Value::Owner(number));
        self.write(vec![owner]);
        self.publisher = (number, Publisher::new());
        self.truth.publisher = number;
        self.recording.clear();
        self.drained.iter().for_each(|(inode, version)| self.publisher.1.drained(*inode, *version));
        self.watch();
        Ok(())
    }

    /// The publisher hears of the journal.
    fn watch(&mut self) {
        for (key, stored) in self.store.under(Prefix::Journal(MOUNT)) {
            if let (Key::Journal(_, number), Value::Journal(change)) = (key, &stored.value) {
                self.publisher.1.journalled(stored.created, *number, change.clone());
            }
        }
    }

    fn step(&mut self) -> Result<(), String> {
        let faults = !self.calm;
        match self.random.below(26) {
            0 if faults => self.ask(),
            0..=8 => self.go_on(),
            9 | 10 => self.send(),
            11..=14 => return self.deliver(),
            15 if faults && self.random.chance(0.3) => {
                let id = BenefactorId(u32::try_from(self.random.below(4)).unwrap_or_default());
                self.stop_benefactor(id);
                self.start_benefactor(id);
            }
            16 if faults && self.random.chance(0.15) => {
                let sessions: Vec<SessionId> = self.sessions.iter().copied().collect();
                self.pick(&sessions).into_iter().for_each(|session| self.end_session(session));
                self.start_session();
            }
            17 if faults && self.random.chance(0.1) => return self.take_over(),
            // Now and then the target does not answer for a while.
            18..=22 if faults && self.target_gone > 0 => self.target_gone -= 1,
            18 if faults && self.random.chance(0.05) => self.target_gone = 60,
            24 if faults && self.random.chance(0.2) => self.remove_unused(),
            24 if faults => self.drain_early(),
            25 => self.come_late(),
            18 => self.drain(),
            19..=22 => return self.publish(),
            _ => {
                if let Some(inode) = self.lost_writers.pop() {
                    let journal = self.number();
                    self.begin(Operation::WriterLost { inode, journal });
                }
            }
        }
        Ok(())
    }

    fn number(&mut self) -> u64 {
        self.fresh += 1;
        self.fresh
    }

    fn begin(&mut self, operation: Operation) -> RequestId {
        let request = RequestId(self.number());
        let manager = self.random.below(MANAGERS);
        let doing = Doing {
            manager,
            operation,
            reads: Reads::default(),
            first: true,
            reply: None,
            submitted: None,
            applied: false,
            own_failed: false,
        };
        self.doing.insert(request, doing);
        request
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        from.get(self.random.below(from.len() as u64) as usize).cloned()
    }

    /// A manager reads, and submits.
    fn go_on(&mut self) {
        let waiting: Vec<RequestId> =
            self.doing.iter().filter(|(_, doing)| doing.submitted.is_none()).map(|(request, _)| *request).collect();
        let Some(request) = self.pick(&waiting) else { return };
        let Some(doing) = self.doing.get_mut(&request) else { return };
        let known = &mut self.known[doing.manager as usize];
        if std::mem::take(&mut doing.first)
            && let Some((transaction, reply)) = known.creation(&doing.operation, 0, |_| true)
        {
            (doing.reply, doing.submitted) = (Some(Ok(reply)), Some(transaction.clone()));
            self.managers[doing.manager as usize].submit(request, transaction, 0);
            return;
        }
        match attempt(&doing.operation, &doing.reads) {
            Attempt::Read(keys, prefixes) => {
                for key in keys {
                    let stored = self.store.get(&key).cloned();
                    known.learn(&key, stored.as_ref());
                    doing.reads.key(key, stored);
                }
                for prefix in prefixes {
                    let keys = self.store.under(prefix).map(|(key, stored)| (key.clone(), stored.clone())).collect();
                    doing.reads.prefix(prefix, keys);
                }
            }
            Attempt::Commit(transaction, reply) => {
                doing.reply = Some(reply);
                doing.submitted = Some(transaction.clone());
                self.managers[doing.manager as usize].submit(request, transaction, 0);
            }
        }
    }

    /// A manager sends to the store.
    fn send(&mut self) {
        let manager = self.random.below(MANAGERS);
        let group = &mut self.managers[manager as usize];
        if let Some((id, transaction)) = group.next_commit() {
            let requests: Vec<RequestId> = group.in_flight().collect();
            let is_receipt = |compare: &Compare| matches!(compare, Compare::Absent(Key::Receipt(..)));
            let only_receipt = transaction.compares.iter().all(is_receipt);
            let requests = if only_receipt { Vec::new() } else { requests };
            self.copies.push(Copy { manager, id, transaction, requests, awaited: true });
        }
    }

    /// A copy reaches the store, and its answer the manager; or neither, or late.
    fn deliver(&mut self) -> Result<(), String> {
        if self.copies.is_empty() {
            return Ok(());
        }
        let at = self.random.below(self.copies.len() as u64) as usize;
        let faults = !self.calm;
        if faults && self.copies[at].awaited && self.random.chance(0.25) {
            // The manager waits no longer; the copy is still on its way.
            let (manager, id) = (self.copies[at].manager, self.copies[at].id);
            self.copies[at].awaited = false;
            return self.complete(manager, id, &Outcome::Unknown);
        }
        if faults && !self.copies[at].awaited && self.random.chance(0.85) {
            return Ok(());
        }
        let copy = self.copies.swap_remove(at);
        if !copy.awaited && self.random.chance(0.2) {
            return Ok(());
        }
        let outcome = self.at_store(&copy)?;
        if !copy.awaited {
            return Ok(());
        }
        let lost = faults && self.random.chance(0.15);
        self.complete(copy.manager, copy.id, if lost { &Outcome::Unknown } else { &outcome })
    }

    /// The store looks at a transaction. What took place is what the operations alone would have done now.
    fn at_store(&mut self, copy: &Copy) -> Result<Outcome, String> {
        for request in &copy.requests {
            if let Some(doing) = self.doing.get_mut(request)
                && let Some(own) = &doing.submitted
            {
                let alone = self.store.clone().commit(&Transaction { compares: own.compares.clone(), writes: vec![] });
                doing.own_failed |= matches!(alone, Outcome::Refused(_));
            }
        }
        let asked = copy.requests.iter().filter_map(|request| Some(self.doing.get(request)?.operation.clone()));
        let asked: Vec<_> = asked.map(|operation| (self.taken_from(&operation), operation)).collect();
        let outcome = self.store.commit(&copy.transaction);
        let Outcome::Committed(revision) = outcome else { return Ok(outcome) };
        for request in &copy.requests {
            let Some(doing) = self.doing.get_mut(request) else {
                return Err(format!("{request:?} took place after it was answered"));
            };
            let operation = doing.operation.clone();
            if std::mem::replace(&mut doing.applied, true) {
                return Err(format!("{operation:?} took place twice"));
            }
            let reply = doing.reply.clone();
            let alone = self.truth.apply(&operation);
            if alone.is_ok() {
                let before = asked.iter().find(|(_, other)| *other == operation).map(|(before, _)| before.clone());
                self.leave(&operation, &before.unwrap_or_default());
            }
            if reply.as_ref() != Some(&alone) {
                return Err(format!("{operation:?} answers {reply:?}, and alone it would be {alone:?}"));
            }
        }
        self.expected.insert(revision, self.truth.target.clone());
        self.agrees()?;
        self.watch();
        Ok(outcome)
    }

    fn complete(&mut self, manager: u64, id: CommitId, outcome: &Outcome) -> Result<(), String> {
        let group = &mut self.managers[manager as usize];
        group.complete(id, outcome);
        while let Some((request, answer)) = group.next_answer() {
            let Some(doing) = self.doing.get_mut(&request) else {
                return Err(format!("{request:?} is answered twice"));
            };
            match answer {
                Answer::Committed(_) if !doing.applied => {
                    return Err(format!("{:?} is answered, and did not take place", doing.operation));
                }
                Answer::Refused if doing.applied => {
                    return Err(format!("{:?} is refused, and took place", doing.operation));
                }
                Answer::Refused if !doing.own_failed => {
                    return Err(format!("{:?} is refused, and nothing that it compares had changed", doing.operation));
                }
                Answer::Committed(_) => {
                    let doing = self.doing.remove(&request);
                    if let (Some(journal), Some(doing)) = (self.recording.remove(&request), doing) {
                        match doing.reply {
                            Some(Ok(_)) => drop(self.publisher.1.recorded(journal)),
                            other => return Err(format!("the record of entry {journal} ends with {other:?}")),
                        }
                    }
                }
                Answer::Refused => {
                    doing.submitted.iter().for_each(|refused| self.known[manager as usize].refused(refused));
                    (doing.submitted, doing.reply, doing.reads) = (None, None, Reads::default());
                    doing.own_failed = false;
                }
            }
        }
        Ok(())
    }

    /// A version's bytes reach the target under a temporary name.
    fn drain(&mut self) {
        let wanted: Vec<(Inode, Version)> = self.publisher.1.wanted().collect();
        if let Some((inode, version)) = self.pick(&wanted) {
            self.drained.insert((inode, version));
            self.publisher.1.drained(inode, version);
        }
    }

    fn publish(&mut self) -> Result<(), String> {
        if let Some(effect) = self.publisher.1.next_effect() {
            self.effects.push(effect);
        }
        if !self.effects.is_empty() && self.random.chance(0.5) {
            let at = self.random.below(self.effects.len() as u64) as usize;
            let effect = self.effects.swap_remove(at);
            if !self.calm && self.random.chance(0.2) {
                // It may have come as far as the flush.
                if self.random.chance(0.5) {
                    self.at_target(&effect)?;
                }
                self.publisher.1.complete(effect.journal, publishing::Outcome::Later);
                return Ok(());
            }
            self.at_target(&effect)?;
            self.publisher.1.complete(effect.journal, publishing::Outcome::Done);
        }
        while let Some((journal, ended)) = self.publisher.1.next_record() {
            if ended != PublicationEnd::Done {
                return Err("nothing is lost here".to_owned());
            }
            let operation = Operation::Published {
                publisher: self.publisher.0,
                mount: MOUNT,
                journal,
                ended,
                placed: Vec::new(),
                about: None,
            };
            let request = self.begin(operation);
            self.recording.insert(request, journal);
        }
        Ok(())
    }

    /// A change at the target, which then is what it was to be at that revision.
    fn at_target(&mut self, effect: &publishing::Effect) -> Result<(), String> {
        if let Change::Publish { inode, version, .. } = &effect.change {
            let committed = self.truth.history[&(*inode, version.0)].clone();
            // Who has just begun may find it done already, and recorded.
            if self.store.get(&Key::Journal(MOUNT, effect.journal)).is_some() {
                self.can_be_read(*inode, *version, &committed).map_err(|what| format!("published: {what}"))?;
                self.has_name(*inode, &committed);
            }
        }
        let complete = |of: (Inode, Version)| self.drained.contains(&of);
        self.target.change(&effect.change, effect.maybe_done, &complete)?;
        self.shows_what_it_may(effect.journal)
    }

    /// After the last entry of a revision the target is what it was to be then.
    fn shows_what_it_may(&self, journal: u64) -> Result<(), String> {
        let entries: Vec<(Revision, u64)> = self
            .store
            .under(Prefix::Journal(MOUNT))
            .filter_map(|(key, stored)| match key {
                Key::Journal(_, number) => Some((stored.created, *number)),
                _ => None,
            })
            .collect();
        let Some((revision, _)) = entries.iter().find(|(_, number)| *number == journal) else { return Ok(()) };
        let last = entries.iter().filter(|(of, _)| of == revision).map(|(_, number)| number).max();
        if last != Some(&journal) {
            return Ok(());
        }
        let kind = |what: &AtTarget| match what {
            AtTarget::Directory(_) => None,
            AtTarget::File(inode, version) => Some((*inode, *version)),
        };
        let expected: BTreeMap<Path, Option<(Inode, Version)>> =
            self.expected[revision].iter().map(|(path, what)| (path.clone(), kind(what))).collect();
        if self.target.0 != expected {
            return Err(format!("at {revision:?} the target is {:?}, not {expected:?}", self.target));
        }
        Ok(())
    }

    /// The store and the plain account of it say the same.
    fn agrees(&self) -> Result<(), String> {
        let mut names = BTreeMap::new();
        for (key, stored) in self.store.all() {
            match (key, &stored.value) {
                (Key::Entry(directory, name), Value::Entry(inode)) => {
                    names.insert((*directory, name.clone()), *inode);
                }
                (Key::Node(inode), Value::Node(node)) if matches!(node.kind, Kind::File(_)) => {
                    let Some((version, size, digests)) = self.truth.content(*inode) else {
                        return Err(format!("{inode} is in the store, and should be gone"));
                    };
                    if (node.version.0, node.size) != (version, size) {
                        return Err(format!("{inode} has {node:?}, not {version} {size}"));
                    }
                    self.can_be_read(*inode, node.version, digests)?;
                    // Its name may have moved on or gone; what it says of the version must be true.
                    if node.kind == Kind::File(FileState::Drained) && !self.drained.contains(&(*inode, node.version)) {
                        return Err(format!("{inode} counts as drained, and that version is not: {node:?}"));
                    }
                }
                _ => {}
            }
        }
        if names == self.truth.names() { Ok(()) } else { Err(format!("names are {names:?}")) }
    }

    fn is_idle(&self) -> bool {
        self.doing.is_empty()
            && self.lost_writers.is_empty()
            && self.effects.is_empty()
            && self.publisher.1.waiting() == 0
            && self.copies.iter().all(|copy| !copy.awaited)
    }

    /// At the end the target shows everything that was closed.
    fn end(&mut self) -> Result<(), String> {
        while let Some(copy) = self.copies.pop() {
            self.at_store(&copy)?;
        }
        self.agrees()?;
        let left = self.store.under(Prefix::Journal(MOUNT)).count();
        if left > 0 {
            return Err(format!("{left} entries stay in the journal"));
        }
        let shown: Vec<&Path> = self.target.0.keys().collect();
        let expected: Vec<&Path> = self.truth.target.keys().collect();
        if shown == expected { Ok(()) } else { Err(format!("at the end the target has {shown:?}, not {expected:?}")) }
    }
}
