//! Locks beside a model that knows each byte; and sessions that lock a file through managers, some of whose requests arrive late or twice.

use std::collections::BTreeMap;

use surgetank_model::random::Random;
use surgetank_pool_core::id::{Inode, MountId, SessionId};
use surgetank_pool_core::locks::{Lock, Owners, Range, Ranges};
use surgetank_pool_core::meta::operation::{Granted, Locking, Operation, Refusal, Reply};
use surgetank_pool_core::meta::store::{Lease, MemoryStore, Outcome, Transaction, Write};
use surgetank_pool_core::meta::value::{Held, Kind, Node};
use surgetank_pool_core::meta::{Attempt, FileState, Key, Reads, Value, attempt};

const FILE: Inode = Inode(1 << 30);
/// Bytes that the model knows: the first ones. The last of them stands for all behind it.
const BYTES: [u64; 14] = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13];

type Plain = BTreeMap<u64, Lock>;

fn range(random: &mut Random) -> Range {
    let mut ends = [0, 1].map(|_| BYTES[random.below(BYTES.len() as u64) as usize]);
    ends.sort_unstable();
    Range { first: ends[0], last: if ends[1] == 13 { u64::MAX } else { ends[1] } }
}

fn lock(random: &mut Random) -> Lock {
    if random.chance(0.5) { Lock::Shared } else { Lock::Alone }
}

fn plain(ranges: &Ranges) -> Plain {
    let within = |byte: &&u64, range: &Range| (range.first..=range.last).contains(*byte);
    let all = ranges.iter().collect::<Vec<_>>();
    all.iter()
        .flat_map(|(range, lock)| BYTES.iter().filter(|byte| within(byte, range)).map(|byte| (*byte, *lock)))
        .collect()
}

fn exclude(one: &Plain, other: &Plain) -> bool {
    one.iter().any(|(byte, lock)| other.get(byte).is_some_and(|as_other| Lock::Alone == *lock.max(as_other)))
}

/// Owners of one process beside the model.
pub fn owners(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let mut owners = Owners::default();
    let mut model: BTreeMap<u64, Plain> = BTreeMap::new();
    for step in 0..200 {
        let (owner, range) = (random.below(3), range(&mut random));
        let wanted = if random.chance(0.4) { None } else { Some(lock(&mut random)) };
        let bytes: Plain = plain(&Ranges::of([(range, wanted.unwrap_or(Lock::Shared))]));
        if let Some(wanted) = wanted {
            let in_the_way = owners.in_the_way(owner, range, wanted).is_some();
            let is_so = model.iter().any(|(other, of)| *other != owner && exclude(of, &bytes));
            if in_the_way != is_so {
                return Err(format!(
                    "step {step}: {range:?} {wanted:?} of {owner}: in the way {in_the_way}, and {is_so}"
                ));
            }
            if is_so {
                continue;
            }
        }
        let of = model.entry(owner).or_default();
        if random.chance(0.05) {
            owners.free(owner);
            of.clear();
        } else {
            owners.set(owner, range, wanted);
            of.retain(|byte, _| !bytes.contains_key(byte));
            of.extend(bytes.iter().filter(|_| wanted.is_some()));
        }
        if owners.has(owner) == of.is_empty() {
            return Err(format!("step {step}: {owner} has {of:?}, and something: {}", owners.has(owner)));
        }
        let mut all = Plain::new();
        for (byte, lock) in model.values().flatten() {
            let stronger = all.get(byte).map_or(*lock, |other| *lock.max(other));
            all.insert(*byte, stronger);
        }
        let found = owners.all();
        if plain(&found) != all {
            return Err(format!("step {step}: together {found:?}, and {all:?}"));
        }
        let other = Ranges::of([(range, lock(&mut random))]);
        let has = plain(&other).iter().all(|(byte, lock)| all.get(byte).is_some_and(|own| own >= lock));
        if found.has(&other) != has {
            return Err(format!("step {step}: {found:?} has {other:?}: {}", !has));
        }
    }
    Ok(())
}

/// A session, as its client knows it.
#[derive(Default)]
struct Session {
    number: u64,
    whole: bool,
    held: Plain,
    /// A copy of one of its requests may be under way.
    repeated: bool,
}

#[derive(Default)]
struct World {
    store: MemoryStore,
    sessions: BTreeMap<u64, Session>,
    begun: u64,
    late: Vec<Late>,
}

/// What arrives late: a request, or what a manager has made of it.
enum Late {
    Operation(Operation),
    Transaction(Transaction),
}

/// Sessions that lock one file.
pub fn run(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let mut world = World::default();
    let node = Node::new(Kind::File(FileState::Created), MountId(1), None, (0o644, 0, 0));
    world.write(Write::Put(Key::Node(FILE), Value::Node(node)));
    (0..3).for_each(|_| world.begin());
    for step in 0..300 {
        world.step(&mut random).and_then(|()| world.agrees()).map_err(|what| format!("step {step}: {what}"))?;
    }
    Ok(())
}

impl World {
    fn write(&mut self, write: Write) {
        self.store.commit(&Transaction { compares: Vec::new(), writes: vec![write] });
    }

    fn begin(&mut self) {
        self.begun += 1;
        let session = SessionId(self.begun);
        self.write(Write::PutLeased(Key::Session(session), Value::Session(session), Lease(self.begun)));
        self.sessions.insert(self.begun, Session::default());
    }

    fn step(&mut self, random: &mut Random) -> Result<(), String> {
        if random.chance(0.02) {
            let ended = *self.sessions.keys().next().ok_or("no session")?;
            self.sessions.remove(&ended);
            self.store.end(Lease(ended));
            self.begin();
            return Ok(());
        }
        if !self.late.is_empty() && random.chance(0.2) {
            match self.late.swap_remove(random.below(self.late.len() as u64) as usize) {
                Late::Operation(operation) => drop(self.carry_out(&operation)?),
                Late::Transaction(transaction) => drop(self.store.commit(&transaction)),
            }
            return Ok(());
        }
        let at = *self.sessions.keys().nth(random.below(3) as usize).ok_or("no session")?;
        let session = self.sessions.get_mut(&at).ok_or("no session")?;
        session.number += 1;
        let number = session.number;
        let (ranges, how) = match random.below(8) {
            0 if !session.repeated => (Ranges::default(), Locking::Leave),
            0 | 1 => (Ranges::default(), Locking::Ranges),
            2 => (Ranges::of([(range(random), lock(random))]), Locking::Look),
            3 => (Ranges::of([(range(random), lock(random))]), Locking::Ranges),
            _ => (Ranges::of((0..2).map(|_| (range(random), lock(random)))), Locking::Whole),
        };
        let operation = Operation::Lock { inode: FILE, session: SessionId(at), number, ranges: ranges.clone(), how };
        if how != Locking::Leave && random.chance(0.2) {
            self.sessions.entry(at).or_default().repeated = true;
            let (transaction, _) = self.attempt(&operation);
            let is_operation = random.chance(0.5);
            self.late.push(if is_operation {
                Late::Operation(operation.clone())
            } else {
                Late::Transaction(transaction)
            });
        }
        let reply = self.carry_out(&operation)?;
        let wanted = plain(&ranges);
        let others = || self.sessions.iter().filter(|(other, _)| **other != at);
        let is_locked = !ranges.is_empty() && others().any(|(_, other)| other.whole || exclude(&other.held, &wanted));
        let granted = match reply {
            Ok(Reply::Granted(granted)) => granted,
            other => return Err(format!("{operation:?} answers {other:?}")),
        };
        match granted {
            Granted::Locked(..) | Granted::Recalled if is_locked => {
                let session = self.sessions.entry(at).or_default();
                if !session.repeated || how == Locking::Look {
                    return Ok(());
                }
                // A copy may take place later: a newer request says what the session has, so that it does not count.
                session.number += 1;
                let ranges = Ranges::of(session.held.iter().map(|(at, lock)| (Range { first: *at, last: *at }, *lock)));
                let (session, number) = (SessionId(at), session.number);
                let operation = Operation::Lock { inode: FILE, session, number, ranges, how: Locking::Ranges };
                return self.carry_out(&operation).map(|_| ());
            }
            Granted::Whole | Granted::Ranges if !is_locked => {}
            _ => return Err(format!("{operation:?} answers {granted:?}, and it is locked by others: {is_locked}")),
        }
        let session = self.sessions.entry(at).or_default();
        if how != Locking::Look {
            (session.whole, session.held) = (granted == Granted::Whole, wanted);
        }
        Ok(())
    }

    fn attempt(&self, operation: &Operation) -> (Transaction, Result<Reply, Refusal>) {
        let mut reads = Reads::default();
        loop {
            match attempt(operation, &reads) {
                Attempt::Read(keys, _) => {
                    keys.into_iter().for_each(|key| reads.key(key.clone(), self.store.get(&key).cloned()));
                }
                Attempt::Commit(transaction, reply) => return (transaction, reply),
            }
        }
    }

    fn carry_out(&mut self, operation: &Operation) -> Result<Result<Reply, Refusal>, String> {
        let (transaction, reply) = self.attempt(operation);
        match self.store.commit(&transaction) {
            Outcome::Committed(_) => Ok(reply),
            other => Err(format!("{operation:?}: nobody else does anything, and it ends as {other:?}")),
        }
    }

    /// What the store has is what the clients know.
    fn agrees(&self) -> Result<(), String> {
        let lockers = match self.store.get(&Key::Locks(FILE)).map(|stored| &stored.value) {
            Some(Value::Locks(lockers)) => lockers.clone(),
            _ => Vec::new(),
        };
        for (number, session) in &self.sessions {
            let held = lockers.iter().find(|locker| locker.session == SessionId(*number)).map(|locker| &locker.held);
            let (whole, ranges) = match held {
                Some(Held::Whole) => (true, session.held.clone()),
                Some(Held::Ranges(ranges)) => (false, plain(ranges)),
                None => (false, Plain::new()),
            };
            if (whole, &ranges) != (session.whole, &session.held) {
                return Err(format!("session {number} has {:?}, and the store says {held:?}", session.held));
            }
        }
        Ok(())
    }
}
