//! What clients ask of names and of files' versions and sizes, and what they hear: each history is to be linearizable. The directory with all
//! its names is one object, since a rename is about two of them, and each file is one.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use surgetank_model::random::Random;
use surgetank_pool_core::id::{Inode, Version};
use surgetank_pool_core::meta::lookup::Lookup;
use surgetank_pool_core::meta::operation::{Operation, Refusal, Reply};
use surgetank_pool_core::meta::store::{Transaction, Write};
use surgetank_pool_core::meta::value::{Path, Value};
use surgetank_pool_core::meta::{Key, Name};

use super::linear::{Call, Spec, check};
use super::{Asker, Event, ROOT, World, names};

/// What each name stands for.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Directory(BTreeMap<Name, Inode>);

#[derive(Debug)]
enum OfNames {
    Create(Name, Inode),
    Look(Name),
    Unlink(Name),
    Rename(Name, Name),
}

type Named = Result<Inode, Refusal>;

impl Directory {
    fn change(&mut self, asked: &OfNames) -> Named {
        let there = |name: &Name| self.0.get(name).copied().ok_or(Refusal::NotFound);
        match asked {
            OfNames::Create(name, _) if self.0.contains_key(name) => Err(Refusal::Exists),
            OfNames::Create(name, inode) => {
                self.0.insert(name.clone(), *inode);
                Ok(*inode)
            }
            OfNames::Look(name) => there(name),
            OfNames::Unlink(name) => {
                let inode = there(name)?;
                self.0.remove(name);
                Ok(inode)
            }
            OfNames::Rename(from, to) => {
                let inode = there(from)?;
                self.0.remove(from);
                self.0.insert(to.clone(), inode);
                Ok(inode)
            }
        }
    }
}

impl Spec for Directory {
    type Asked = OfNames;
    type Heard = Named;

    fn step(&mut self, asked: &OfNames, heard: Option<&Named>) -> bool {
        let before = self.clone();
        match heard {
            // Its session had ended: that is known of no name, but for that it was free.
            Some(Err(Refusal::NotTheWriter)) => matches!(asked, OfNames::Create(name, _) if !self.0.contains_key(name)),
            Some(heard) => self.change(asked) == *heard,
            None => self.change(asked).is_ok() && *self != before,
        }
    }
}

/// A file's version and size; whether it has ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct File {
    version: Version,
    size: u64,
    gone: bool,
}

#[derive(Debug)]
enum OfFile {
    Commit { on: Version, size: u64 },
    Open,
    Read,
}

type Content = Result<(Version, Option<u64>), Refusal>;

impl Spec for File {
    type Asked = OfFile;
    type Heard = Content;

    fn step(&mut self, asked: &OfFile, heard: Option<&Content>) -> bool {
        let may = !self.gone && matches!(asked, OfFile::Commit { on, .. } if *on == self.version);
        match (asked, heard) {
            // A file ends unasked, when it has neither a name nor a writer.
            (_, Some(Err(Refusal::NotFound))) => {
                self.gone = true;
                true
            }
            (OfFile::Commit { size, .. }, None | Some(Ok(_))) => {
                if may {
                    (self.version, self.size) = (self.version.next(), *size);
                }
                may && heard.is_none_or(|heard| *heard == Ok((self.version, None)))
            }
            (OfFile::Commit { on, .. }, Some(Err(Refusal::Version(version)))) => {
                !self.gone && *version == self.version && version != on
            }
            // Or the file has left the pool, which is no call of a client.
            (OfFile::Commit { .. }, Some(Err(Refusal::Benefactors(_) | Refusal::Moved))) => may,
            (_, Some(Err(Refusal::NotTheWriter))) => !self.gone,
            (OfFile::Open, Some(heard)) => !self.gone && *heard == Ok((self.version, None)),
            (OfFile::Read, Some(heard)) => !self.gone && *heard == Ok((self.version, Some(self.size))),
            _ => false,
        }
    }
}

/// Who asked, and the number of the request.
type Request = (Asker, u64);

/// Which call.
#[derive(Clone, Copy, Debug)]
pub enum CallId {
    Names(usize),
    File(Inode, usize),
}

/// What a manager looks for.
#[derive(Clone, Debug)]
pub enum Looking {
    Name(Name, Lookup),
    File(Inode),
}

/// What it finds.
#[derive(Clone, Debug)]
pub enum Looked {
    Name(Named),
    File(Content),
}

/// See the module. It has chances of its own, so that a run is the same whoever looks at it.
pub struct History {
    random: Random,
    clock: u64,
    names: Vec<Call<Directory>>,
    files: BTreeMap<Inode, Vec<Call<File>>>,
    calls: BTreeMap<Request, CallId>,
    /// A bug on purpose: managers answer with what they found when they were asked before.
    caches: bool,
    stale: BTreeMap<(usize, Name), Inode>,
}

impl History {
    pub fn new(seed: u64, caches: bool) -> Self {
        let random = Random::from_seed(seed ^ 0x6869_7374_6f72_7921);
        Self {
            random,
            clock: 0,
            names: Vec::new(),
            files: BTreeMap::new(),
            calls: BTreeMap::new(),
            caches,
            stale: BTreeMap::new(),
        }
    }

    /// A client asks for an operation.
    pub fn asked(&mut self, request: Request, operation: &Operation) {
        let call = match operation {
            Operation::Create { at, fresh, .. } => self.of_names(OfNames::Create(at.1.clone(), Inode(*fresh))),
            Operation::Unlink { at, .. } => self.of_names(OfNames::Unlink(at.1.clone())),
            Operation::Rename { from, to, .. } => self.of_names(OfNames::Rename(from.1.clone(), to.1.clone())),
            Operation::OpenForWriting { inode, .. } => self.of_file(*inode, OfFile::Open),
            Operation::Commit { inode, on, size, .. } => self.of_file(*inode, OfFile::Commit { on: on.0, size: *size }),
            _ => return,
        };
        self.calls.insert(request, call);
    }

    fn of_names(&mut self, what: OfNames) -> CallId {
        self.clock += 1;
        self.names.push(Call { what, asked: self.clock, done: None, heard: None });
        CallId::Names(self.names.len() - 1)
    }

    fn of_file(&mut self, inode: Inode, what: OfFile) -> CallId {
        self.clock += 1;
        let calls = self.files.entry(inode).or_default();
        calls.push(Call { what, asked: self.clock, done: None, heard: None });
        CallId::File(inode, calls.len() - 1)
    }

    /// It hears how that ended.
    pub fn replied(&mut self, request: Request, reply: &Result<Reply, Refusal>) {
        let Some(call) = self.calls.get(&request).copied() else { return };
        let looked = match (call, reply) {
            (CallId::Names(_), Ok(Reply::Inode(inode))) => Looked::Name(Ok(*inode)),
            (CallId::Names(_), Err(refusal)) => Looked::Name(Err(refusal.clone())),
            (CallId::File(..), Ok(Reply::Version(version))) => Looked::File(Ok((*version, None))),
            (CallId::File(..), Err(refusal)) => Looked::File(Err(refusal.clone())),
            _ => return,
        };
        self.heard(call, looked);
    }

    fn heard(&mut self, call: CallId, looked: Looked) {
        self.clock += 1;
        match (call, looked) {
            (CallId::Names(at), Looked::Name(named)) => self.names[at].heard = Some((self.clock, named)),
            (CallId::File(inode, at), Looked::File(content)) => {
                if let Some(calls) = self.files.get_mut(&inode) {
                    calls[at].heard = Some((self.clock, content));
                }
            }
            _ => {}
        }
    }

    /// A transaction of these requests took place. Without requests their manager has died: then its writes tell which they were.
    pub fn took_place(&mut self, transaction: &Transaction, requests: &[Request]) {
        if transaction.writes.iter().all(|write| matches!(write.key(), Key::Receipt(..))) {
            return;
        }
        let calls: Vec<CallId> = requests.iter().filter_map(|request| self.calls.get(request).copied()).collect();
        calls.into_iter().for_each(|call| self.done(call));
        if !requests.is_empty() {
            return;
        }
        self.clock += 1;
        let now = Some(self.clock);
        let (mut made, mut gone) = (BTreeMap::new(), BTreeSet::new());
        for write in &transaction.writes {
            match write {
                Write::Put(Key::Entry(_, name), Value::Entry(inode)) => drop(made.insert(name, *inode)),
                Write::Delete(Key::Entry(_, name)) => drop(gone.insert(name)),
                Write::Put(Key::Node(inode), Value::Node(node)) => {
                    let is_it = |what: &OfFile| matches!(what, OfFile::Commit { on, .. } if on.next() == node.version);
                    let calls = self.files.entry(*inode).or_default().iter_mut();
                    let mut open = calls.filter(|call| call.heard.is_none() && call.done.is_none());
                    open.find(|call| is_it(&call.what)).into_iter().for_each(|call| call.done = now);
                }
                _ => {}
            }
        }
        for call in self.names.iter_mut().filter(|call| call.heard.is_none() && call.done.is_none()) {
            let is_it = match &call.what {
                OfNames::Create(name, inode) => made.get(name) == Some(inode) && made.remove(name).is_some(),
                OfNames::Rename(from, to) => made.contains_key(to) && gone.remove(from) && made.remove(to).is_some(),
                OfNames::Unlink(name) => made.is_empty() && gone.remove(name),
                OfNames::Look(_) => false,
            };
            call.done = now.filter(|_| is_it).or(call.done);
        }
    }

    /// The store did it, or a manager has read what it answers.
    fn done(&mut self, call: CallId) {
        self.clock += 1;
        match call {
            CallId::Names(at) => self.names[at].done = Some(self.clock),
            CallId::File(inode, at) => {
                if let Some(calls) = self.files.get_mut(&inode) {
                    calls[at].done = Some(self.clock);
                }
            }
        }
    }

    /// Calls whose answers were heard.
    pub fn heard_so_far(&self) -> u64 {
        let names = self.names.iter().filter(|call| call.heard.is_some()).count();
        let files = self.files.values().flatten().filter(|call| call.heard.is_some()).count();
        (names + files) as u64
    }

    pub fn check(&self) -> Result<(), String> {
        check(&Directory::default(), &self.names).map_err(|what| format!("names: {what}"))?;
        for (inode, calls) in &self.files {
            check(&File::default(), calls).map_err(|what| format!("file {inode}: {what}"))?;
        }
        Ok(())
    }

    fn after(&mut self, to: u64) -> Duration {
        Duration::from_millis(1 + self.random.below(to))
    }
}

impl World {
    /// Others look at names and files, by whichever manager.
    pub(super) fn observe(&mut self) {
        if self.faults.calm || !self.history.random.chance(0.5) {
            return;
        }
        let random = &mut self.history.random;
        let files: Vec<Inode> = self.oracle.files.keys().copied().collect();
        let manager = random.below(self.managers.len() as u64) as usize;
        let (call, looking) = if random.chance(0.7) || files.is_empty() {
            let all = names();
            let name = all[random.below(all.len() as u64) as usize].clone();
            let lookup = Lookup::new(ROOT, &Path(vec![name.clone()]));
            (self.history.of_names(OfNames::Look(name.clone())), Looking::Name(name, lookup))
        } else {
            let inode = files[random.below(files.len() as u64) as usize];
            (self.history.of_file(inode, OfFile::Read), Looking::File(inode))
        };
        let after = self.history.after(4);
        self.queue.push(self.now + after, Event::Look(manager, call, Box::new(looking)));
    }

    /// A manager reads the store for whoever looks; now and then that takes long.
    pub(super) fn look(&mut self, manager: usize, call: CallId, mut looking: Box<Looking>) {
        if self.faults.store_gone || self.managers[manager].is_down(self.now) {
            return;
        }
        let looked = match &mut *looking {
            Looking::Name(name, _) if self.history.stale.contains_key(&(manager, name.clone())) => {
                Some(Looked::Name(Ok(self.history.stale[&(manager, name.clone())])))
            }
            Looking::Name(name, lookup) => {
                let stored: Vec<_> = lookup.wants().iter().map(|key| self.store.get(key).cloned()).collect();
                lookup.read(&stored).map(|found| {
                    let named = found.map(|(inode, _)| inode);
                    if let (true, Ok(inode)) = (self.history.caches, &named) {
                        self.history.stale.insert((manager, name.clone()), *inode);
                    }
                    Looked::Name(named)
                })
            }
            Looking::File(inode) => Some(Looked::File(match self.store.get(&Key::Node(*inode)).map(|of| &of.value) {
                Some(Value::Node(node)) => Ok((node.version, Some(node.size))),
                _ => Err(Refusal::NotFound),
            })),
        };
        if looked.is_some() {
            self.history.done(call);
        }
        let is_late = self.history.random.chance(0.05);
        let after = self.history.after(if is_late { 2000 } else { 4 });
        let event = match looked {
            Some(looked) => Event::Looked(call, Box::new(looked)),
            None => Event::Look(manager, call, looking),
        };
        self.queue.push(self.now + after, event);
    }

    pub(super) fn looked(&mut self, call: CallId, looked: Looked) {
        self.history.heard(call, looked);
    }
}
