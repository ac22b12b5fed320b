//! Users and their quotas beside a plain count: several managers admit what sessions ask for, each by looks at the store that are late.

pub mod edges;

use std::collections::BTreeMap;

use surgetank_model::random::Random;
use surgetank_pool_core::id::{Inode, MountId, Revision, SessionId, Version};
use surgetank_pool_core::meta::operation::{Operation, PublicationEnd, Refusal, Reply};
use surgetank_pool_core::meta::store::{Lease, MemoryStore, Outcome, Stored, Transaction, Write};
use surgetank_pool_core::meta::value::{Attributes, Kind, Node, Value};
use surgetank_pool_core::meta::{Attempt, Key, Name, Prefix, Reads, Role, attempt};
use surgetank_pool_core::quota::{
    self, Admission, Answer, GrantId, Limit, Looked, Quota, Quotas, Resource, Used, Want, used,
};

const ROOT: Inode = Inode(1);
const MOUNT: MountId = MountId(1);
/// Steps for which a look may serve.
const LATELY: u64 = 15;
/// Steps for which a request waits, if a look has ended meanwhile.
const TURN: u64 = 60;
/// Bytes that a session asks for at a time, at most.
const REQUEST: u64 = 300;
const USERS: [u32; 3] = [1, 2, 3];

/// A file as its users know it.
#[derive(Debug, Default)]
struct File {
    user: u32,
    names: usize,
    size: u64,
    version: u64,
    /// The target does not have it.
    is_staged: bool,
    /// What each session that writes it has room for.
    writers: BTreeMap<SessionId, u64>,
}

#[derive(Clone, Debug)]
enum What {
    Create(u32, SessionId),
    /// So long; whether that was taken already.
    Longer(Inode, SessionId, u64, bool),
}

#[derive(Debug)]
struct Ask {
    since: u64,
    what: What,
    /// What was given, and the operation that takes it, unless that has been tried.
    given: Option<(GrantId, Option<Operation>)>,
}

struct Look {
    began: u64,
    at: Revision,
    quotas: Quotas,
    used: BTreeMap<u32, Used>,
    counted: BTreeMap<u32, Used>,
}

#[derive(Default)]
struct Manager {
    admission: Admission,
    /// When the look began that it knows, when it ended, and what users had when it began.
    looked: Option<(u64, u64, BTreeMap<u32, Used>)>,
    /// A look whose answer has not come.
    look: Option<Look>,
    asks: Vec<Ask>,
}

struct World {
    random: Random,
    now: u64,
    store: MemoryStore,
    fresh: u64,
    sessions: Vec<SessionId>,
    files: BTreeMap<Inode, File>,
    names: BTreeMap<Name, Inode>,
    lost: Vec<Inode>,
    managers: Vec<Manager>,
    /// Whoever is given files by others, or writes over what is drained, may have more than the quota allows.
    is_lax: bool,
}

fn named(number: u64) -> Name {
    Name::new(format!("f{number}").as_bytes()).expect("it is a name")
}

fn lease(session: SessionId) -> Lease {
    Lease(session.0)
}

pub fn run(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let managers = (0..1 + random.below(4)).map(|_| Manager::default()).collect();
    let is_lax = random.chance(0.3);
    let mut world = World { managers, is_lax, ..World::new(random, 100) };
    world.begin();
    for step in 0..300 {
        world.now += 1;
        world.step().and_then(|()| world.agrees()).map_err(|what| format!("step {step}: {what}"))?;
    }
    world.end()
}

impl World {
    /// An empty one.
    fn new(random: Random, now: u64) -> Self {
        Self {
            random,
            now,
            store: MemoryStore::default(),
            fresh: 1000,
            sessions: Vec::new(),
            files: BTreeMap::new(),
            names: BTreeMap::new(),
            lost: Vec::new(),
            managers: Vec::new(),
            is_lax: false,
        }
    }

    fn begin(&mut self) {
        let root = Node::new(Kind::Directory, MOUNT, None, (0o755, 1, 1));
        self.write(Write::Put(Key::Node(ROOT), Value::Node(root)));
        self.write(Write::Put(Key::Owner(Role::Publisher(MOUNT)), Value::Owner(1)));
        (0..3).for_each(|_| self.start_session());
        let of = |random: &mut Random, most: u64| match random.below(5) {
            0 => Limit::Unlimited,
            1 => Limit::AsDefault,
            _ => Limit::AtMost(random.below(most)),
        };
        for user in [None, Some(1), Some(2)] {
            if self.random.chance(0.8) {
                let quota = Quota { bytes: of(&mut self.random, 3000), files: of(&mut self.random, 12) };
                self.write(Write::Put(Key::Quota(user), Value::Quota(quota)));
            }
        }
        // Before anybody is served.
        let quotas = quota::quotas(&self.under(Prefix::Quotas));
        self.managers.iter_mut().for_each(|manager| manager.admission.set(quotas.clone(), self.store.revision()));
    }

    fn write(&mut self, write: Write) {
        self.store.commit(&Transaction { compares: Vec::new(), writes: vec![write] });
    }

    fn start_session(&mut self) {
        self.fresh += 1;
        let session = SessionId(self.fresh);
        self.write(Write::PutLeased(Key::Session(session), Value::Session(session), lease(session)));
        self.sessions.push(session);
    }

    fn number(&mut self) -> u64 {
        self.fresh += 1;
        self.fresh
    }

    fn under(&self, prefix: Prefix) -> Vec<(Key, Stored)> {
        self.store.under(prefix).map(|(key, stored)| (key.clone(), stored.clone())).collect()
    }

    /// Carries an operation out, as the only one.
    fn carry_out(&mut self, operation: &Operation) -> Result<Reply, Refusal> {
        let mut reads = Reads::default();
        loop {
            match attempt(operation, &reads) {
                Attempt::Read(keys, prefixes) => {
                    for key in keys {
                        let stored = self.store.get(&key).cloned();
                        reads.key(key, stored);
                    }
                    prefixes.into_iter().for_each(|prefix| reads.prefix(prefix, self.under(prefix)));
                }
                Attempt::Commit(transaction, reply) => {
                    assert!(matches!(self.store.commit(&transaction), Outcome::Committed(_)), "nobody else is there");
                    return reply;
                }
            }
        }
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> Option<T> {
        let at = self.random.below(of.len().max(1) as u64);
        of.get(usize::try_from(at).unwrap_or_default()).cloned()
    }

    fn pick_file(&mut self) -> Option<Inode> {
        let all: Vec<Inode> = self.files.keys().copied().collect();
        self.pick(&all)
    }

    /// A file that somebody writes, and who does.
    fn pick_writer(&mut self) -> Option<(Inode, SessionId)> {
        let of = |(inode, file): (&Inode, &File)| file.writers.keys().map(|by| (*inode, *by)).collect::<Vec<_>>();
        let all: Vec<(Inode, SessionId)> = self.files.iter().flat_map(of).collect();
        self.pick(&all)
    }

    fn step(&mut self) -> Result<(), String> {
        let at = self.random.below(self.managers.len() as u64) as usize;
        match self.random.below(24) {
            0..=2 => self.ask(at),
            3..=6 => self.go_on(at)?,
            7..=10 => self.take(at)?,
            11 | 12 => self.look_ends(at),
            13 => self.open(),
            14..=16 => self.commit(),
            17 | 18 => self.close(),
            19 | 20 => self.publish(),
            21 => self.rename_or_unlink(),
            22 if self.random.chance(0.1) => self.session_ends(),
            22 => self.forget(),
            _ => self.change_owner_or_evict(),
        }
        Ok(())
    }

    fn ask(&mut self, at: usize) {
        let what = match self.random.chance(0.3) {
            true => {
                let session = self.pick(&self.sessions.clone());
                session.zip(self.pick(&USERS)).map(|(session, user)| What::Create(user, session))
            }
            false => {
                let (more, writer) = (self.random.below(REQUEST), self.pick_writer());
                let (has, was_taken) = (|inode| self.files[&inode].size, self.is_lax && self.random.chance(0.3));
                writer.map(|(inode, session)| What::Longer(inode, session, has(inode) + more, was_taken))
            }
        };
        let since = self.now;
        self.managers[at].asks.extend(what.map(|what| Ask { since, what, given: None }));
    }

    /// A manager decides on a request.
    fn go_on(&mut self, at: usize) -> Result<(), String> {
        let waiting: Vec<usize> =
            (0..self.managers[at].asks.len()).filter(|ask| self.managers[at].asks[*ask].given.is_none()).collect();
        let Some(index) = self.pick(&waiting) else { return Ok(()) };
        let Ask { since, what, .. } = &self.managers[at].asks[index];
        let (since, what) = (*since, what.clone());
        let looked = match self.managers[at].looked {
            Some((_, ended, _)) if ended >= since && since + TURN < self.now => Looked::Last,
            Some((began, ..)) if began >= since => Looked::Since,
            Some((began, ..)) if began + LATELY >= self.now => Looked::Lately,
            _ => Looked::LongAgo,
        };
        let number = self.number();
        let (user, want, operation) = match what {
            What::Create(user, session) => {
                let (fresh, writer) = (number, (session, lease(session)));
                let owner = (0o644, user, user);
                (user, Want::File, Operation::Create { at: (ROOT, named(fresh)), fresh, writer, owner })
            }
            What::Longer(inode, session, size, was_taken) => {
                let read = self.store.get(&Key::Node(inode)).map(|stored| stored.value.clone());
                let Some(Value::Node(node)) = read else {
                    self.managers[at].asks.swap_remove(index);
                    return Ok(());
                };
                let writers = self.under(Prefix::Writers(inode));
                let reserved = quota::reserved(writers.iter().map(|(_, stored)| &stored.value));
                let (counts, user) = (quota::of_node(&node, reserved).bytes, node.owner.1);
                let (more, writer) = (size.saturating_sub(counts), (session, lease(session)));
                let (taken, least) = if was_taken { (more, 0) } else { (0, more) };
                let reserve = Operation::Reserve { inode, writer, user, counts, size };
                (user, Want::Bytes { taken, least, most: least + 50 }, reserve)
            }
        };
        let manager = &mut self.managers[at];
        match manager.admission.ask(user, want, looked) {
            Answer::Granted(id, given) => {
                let operation = match operation {
                    Operation::Reserve { inode, writer, user, counts, size } => {
                        Operation::Reserve { inode, writer, user, counts, size: size.max(counts + given) }
                    }
                    other => other,
                };
                manager.asks[index].given = Some((id, Some(operation)));
            }
            Answer::Unlimited => {
                manager.asks.swap_remove(index);
                self.performed(&operation)?;
            }
            Answer::Look if looked == Looked::Last => return Err(format!("{want:?} of user {user} waits for ever")),
            Answer::Look => self.look_begins(at),
            Answer::Over(resource) => {
                manager.asks.swap_remove(index);
                let Some((_, _, counted)) = &manager.looked else { return Err("it was refused blindly".to_owned()) };
                let has = counted.get(&user).copied().unwrap_or_default().of(resource);
                let least = match want {
                    Want::File => 1,
                    Want::Bytes { taken, least: 0, .. } if taken > 0 => {
                        return Err(format!("user {user} is refused {taken} {resource} that were taken"));
                    }
                    Want::Bytes { least, .. } => least,
                };
                let limit = quota::limit(manager.admission.quotas(), user, resource).unwrap_or(u64::MAX);
                if looked == Looked::Since && has + least <= limit {
                    return Err(format!("user {user} has {has} of {limit} {resource} and is refused {least}"));
                }
            }
        }
        Ok(())
    }

    fn look_begins(&mut self, at: usize) {
        if self.managers[at].look.is_some() {
            return;
        }
        self.managers[at].admission.begin_look();
        let quotas = quota::quotas(&self.under(Prefix::Quotas));
        let used = used(&self.under(Prefix::Nodes), &self.under(Prefix::AllWriters));
        let counted = USERS.map(|user| (user, self.counted(user))).into();
        self.managers[at].look = Some(Look { began: self.now, at: self.store.revision(), quotas, used, counted });
    }

    fn look_ends(&mut self, at: usize) {
        let Some(Look { began, at: revision, quotas, used, counted }) = self.managers[at].look.take() else { return };
        self.managers[at].admission.looked(quotas, used, revision);
        self.managers[at].looked = Some((began, self.now, counted));
    }

    /// What was given is taken, or is not, and then the manager hears of it.
    fn take(&mut self, at: usize) -> Result<(), String> {
        let given: Vec<usize> =
            (0..self.managers[at].asks.len()).filter(|ask| self.managers[at].asks[*ask].given.is_some()).collect();
        let Some(index) = self.pick(&given) else { return Ok(()) };
        let Some((id, operation)) = &mut self.managers[at].asks[index].given else { return Ok(()) };
        match operation.take() {
            Some(operation) if self.random.chance(0.9) => self.performed(&operation)?,
            Some(_) => {}
            None => {
                let id = *id;
                self.managers[at].admission.ended(id);
                self.managers[at].asks.swap_remove(index);
            }
        }
        Ok(())
    }

    /// An operation takes place, here as in the store.
    fn performed(&mut self, operation: &Operation) -> Result<(), String> {
        let reply = self.carry_out(operation);
        match operation {
            Operation::Create { at, fresh, writer, owner } if reply.is_ok() => {
                let writers = [(writer.0, 0)].into();
                let file = File { user: owner.1, names: 1, is_staged: true, writers, ..File::default() };
                self.files.insert(Inode(*fresh), file);
                self.names.insert(at.1.clone(), Inode(*fresh));
            }
            Operation::Reserve { inode, writer, user, size, .. } if reply.is_ok() => {
                if self.files.get(inode).is_some_and(|file| file.user != *user) {
                    return Err(format!("what user {user} was given goes to a file of another"));
                }
                let has = self.files.get_mut(inode).and_then(|file| file.writers.get_mut(&writer.0));
                has.into_iter().for_each(|has| *has = (*has).max(*size));
            }
            _ => {}
        }
        Ok(())
    }

    fn open(&mut self) {
        let (Some(inode), Some(session)) = (self.pick_file(), self.pick(&self.sessions.clone())) else { return };
        // What nobody has open ends, and is opened no more.
        if self.files[&inode].names == 0 && self.files[&inode].writers.is_empty() {
            return;
        }
        let (writer, rewrites) = ((session, lease(session)), self.random.chance(0.3));
        if self.carry_out(&Operation::OpenForWriting { inode, writer, rewrites }).is_ok()
            && let Some(file) = self.files.get_mut(&inode)
        {
            file.writers.entry(session).or_default();
        }
    }

    /// A session commits no more than it has room for.
    fn commit(&mut self) {
        let Some((inode, session)) = self.pick_writer() else { return };
        let (room, on) = (self.files[&inode].writers[&session], self.files[&inode].version);
        let size = if self.random.chance(0.7) { room } else { self.random.below(room + 1) };
        let close = if self.random.chance(0.3) { Some(self.number()) } else { None };
        let on = (Version(on), self.changes(inode));
        let done = self.carry_out(&Operation::Commit { inode, session, on, size, groups: Vec::new(), close });
        let (true, Some(file)) = (done.is_ok(), self.files.get_mut(&inode)) else { return };
        (file.size, file.version, file.is_staged) = (size, file.version + 1, true);
        if close.is_some() {
            file.writers.remove(&session);
        }
    }

    fn changes(&self, inode: Inode) -> u64 {
        match self.store.get(&Key::Node(inode)).map(|stored| &stored.value) {
            Some(Value::Node(node)) => node.changes(),
            _ => 0,
        }
    }

    fn close(&mut self) {
        let (journal, Some((inode, session))) = (self.number(), self.pick_writer()) else { return };
        if self.carry_out(&Operation::Close { inode, session, journal }).is_ok() {
            let _ = self.files.get_mut(&inode).and_then(|file| file.writers.remove(&session));
        }
    }

    /// The target has seen the oldest entry of the journal.
    fn publish(&mut self) {
        let mut journal = self.under(Prefix::Journal(MOUNT));
        journal.sort_by_key(|(_, stored)| stored.created);
        let Some((Key::Journal(mount, journal), Stored { value: Value::Journal(change), .. })) = journal.first() else {
            return;
        };
        let (mount, journal, ended) = (*mount, *journal, PublicationEnd::Done);
        let of = change.publishes();
        let published = Operation::Published { publisher: 1, mount, journal, ended, placed: Vec::new(), about: None };
        if self.carry_out(&published).is_ok()
            && let Some((inode, version)) = of
            && let Some(file) = self.files.get_mut(&inode)
            && file.version == version.0
        {
            file.is_staged = false;
        }
    }

    fn rename_or_unlink(&mut self) {
        let names: Vec<Name> = self.names.keys().cloned().collect();
        let (Some(name), Some(other)) = (self.pick(&names), self.pick(&names)) else { return };
        let journal = self.number();
        let (from, to) = ((ROOT, name.clone()), (ROOT, other.clone()));
        let inode = self.names[&name];
        match self.random.below(3) {
            0 if name != other => {
                let replaced = self.names[&other];
                if self.carry_out(&Operation::Rename { from, to, replace: true, journal }).is_ok() && replaced != inode
                {
                    self.names.remove(&name);
                    self.names.insert(other, inode);
                    self.loses_a_name(replaced);
                }
            }
            1 => {
                let link = named(self.number());
                if self.carry_out(&Operation::Link { inode, at: (ROOT, link.clone()), journal }).is_ok() {
                    self.names.insert(link, inode);
                    self.files.get_mut(&inode).into_iter().for_each(|file| file.names += 1);
                }
            }
            _ => {
                if self.carry_out(&Operation::Unlink { at: from, journal }).is_ok() {
                    self.names.remove(&name);
                    self.loses_a_name(inode);
                }
            }
        }
    }

    fn loses_a_name(&mut self, inode: Inode) {
        self.files.get_mut(&inode).into_iter().for_each(|file| file.names -= 1);
    }

    fn session_ends(&mut self) {
        let Some(session) = self.pick(&self.sessions.clone()) else { return };
        self.sessions.retain(|other| *other != session);
        self.store.end(lease(session));
        for (inode, file) in &mut self.files {
            if file.writers.remove(&session).is_some() {
                self.lost.push(*inode);
            }
        }
        self.start_session();
    }

    fn forget(&mut self) {
        if let Some(inode) = self.lost.pop() {
            let journal = self.number();
            let _ = self.carry_out(&Operation::WriterLost { inode, journal });
            return;
        }
        let Some(inode) = self.pick_file() else { return };
        if self.carry_out(&Operation::Forget { inode }).is_ok() {
            self.files.remove(&inode);
        }
    }

    fn change_owner_or_evict(&mut self) {
        let (Some(inode), Some(user)) = (self.pick_file(), self.pick(&USERS)) else { return };
        let number = self.number();
        if !self.is_lax || self.random.chance(0.5) {
            let _ = self.carry_out(&Operation::Evict { inode, changes: number });
            return;
        }
        let attributes = Attributes { user: Some(user), ..Attributes::default() };
        if self.carry_out(&Operation::SetAttributes { inode, attributes, journal: number }).is_ok() {
            self.files.get_mut(&inode).into_iter().for_each(|file| file.user = user);
        }
    }

    /// What a user has, counted file by file.
    fn counted(&self, user: u32) -> Used {
        let mut all = Used::NONE;
        for file in self.files.values().filter(|file| file.user == user) {
            if file.names == 0 && file.writers.is_empty() {
                continue;
            }
            let room = file.writers.values().copied().max().unwrap_or(0);
            all.bytes += if file.is_staged { file.size.max(room) } else { room };
            all.files += 1;
        }
        all
    }

    fn limits(&self, user: u32) -> [(Resource, Option<u64>); 2] {
        let quotas = quota::quotas(&self.under(Prefix::Quotas));
        [Resource::Bytes, Resource::Files].map(|of| (of, quota::limit(&quotas, user, of)))
    }

    fn agrees(&self) -> Result<(), String> {
        let seen = used(&self.under(Prefix::Nodes), &self.under(Prefix::AllWriters));
        for user in USERS {
            let (seen, counted) = (seen.get(&user).copied().unwrap_or_default(), self.counted(user));
            if seen != counted {
                return Err(format!("user {user} has {counted:?}, and the store says {seen:?}"));
            }
            for (resource, limit) in self.limits(user) {
                let Some(limit) = limit.filter(|_| !self.is_lax) else { continue };
                // Each manager beyond the first may have given a part of what was free a while ago, and one request.
                let others = self.managers.len() as u64 - 1;
                let request = if resource == Resource::Bytes { REQUEST } else { 1 };
                let most = limit + others * (limit / 4 + request);
                if counted.of(resource) > most {
                    let has = counted.of(resource);
                    return Err(format!("user {user} has {has} {resource} of {limit}, by {} managers", others + 1));
                }
            }
        }
        Ok(())
    }

    /// When nothing is under way, a user gets all that is left, and not more.
    fn end(&mut self) -> Result<(), String> {
        for at in 0..self.managers.len() {
            for Ask { given, .. } in std::mem::take(&mut self.managers[at].asks) {
                given.into_iter().for_each(|(id, _)| self.managers[at].admission.ended(id));
            }
            for user in USERS {
                for (resource, limit) in self.limits(user) {
                    let Some(limit) = limit else { continue };
                    let left = limit.saturating_sub(self.counted(user).of(resource));
                    for (amount, fits) in [(left, left > 0), (left + 1, false)] {
                        if amount == 0 || resource == Resource::Files && amount > 1 {
                            continue;
                        }
                        self.now += 1;
                        // One may be under way that began earlier.
                        self.look_ends(at);
                        self.look_begins(at);
                        self.look_ends(at);
                        let want = match resource {
                            Resource::Bytes => Want::Bytes { taken: 0, least: amount, most: amount },
                            Resource::Files => Want::File,
                        };
                        match self.managers[at].admission.ask(user, want, Looked::Since) {
                            Answer::Granted(id, given) if fits && given == amount => {
                                self.managers[at].admission.ended(id);
                            }
                            Answer::Over(of) if !fits && of == resource => {}
                            other => {
                                return Err(format!(
                                    "of {left} {resource} that are left {amount} are asked: {other:?}"
                                ));
                            }
                        }
                    }
                }
            }
        }
        Ok(())
    }
}
