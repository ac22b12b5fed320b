//! Files with several names beside a plain model: who has which names, and what the target has under each of them.

use std::collections::{BTreeMap, BTreeSet};

use surgetank_model::random::Random;
use surgetank_pool_core::id::{Inode, MountId, SessionId, Version};
use surgetank_pool_core::meta::operation::{Operation, PublicationEnd, Refusal, Reply};
use surgetank_pool_core::meta::store::{Lease, MemoryStore, Outcome, Transaction, Write};
use surgetank_pool_core::meta::value::{Attributes, Kind, Node, Path};
use surgetank_pool_core::meta::{Attempt, Key, Name, Prefix, Reads, Role, Value, attempt};
use surgetank_pool_core::publishing::{self, Publisher};

use super::target::Target;

const ROOT: Inode = Inode(1);
const MOUNT: MountId = MountId(1);
const SESSION: SessionId = SessionId(1);
const LEASE: Lease = Lease(1);

type At = (Inode, Name);

#[derive(Default)]
struct World {
    store: MemoryStore,
    fresh: u64,
    directories: Vec<Inode>,
    /// What each name stands for.
    names: BTreeMap<At, Inode>,
    versions: BTreeMap<Inode, u64>,
    open: BTreeSet<Inode>,
    publisher: Publisher,
    number: u64,
    target: Target,
}

pub fn run(seed: u64) -> Result<(), String> {
    let mut random = Random::from_seed(seed);
    let mut world = World { fresh: 10, ..World::default() };
    world.write(Key::Node(ROOT), Value::Node(Node::new(Kind::Directory, MOUNT, None, (0o755, 0, 0))));
    world.write(Key::Session(SESSION), Value::Session(SESSION));
    world.take_over();
    world.directories.push(ROOT);
    for name in ["d0", "d1"] {
        let (fresh, journal) = (world.number(), world.number());
        let at = (ROOT, named(name));
        world.done(&Operation::MakeDirectory { at: at.clone(), fresh, journal, owner: (0o755, 0, 0) })?;
        world.directories.push(Inode(fresh));
        world.names.insert(at, Inode(fresh));
    }
    for step in 0..150 {
        world.step(&mut random).and_then(|()| world.agrees()).map_err(|what| format!("step {step}: {what}"))?;
    }
    for inode in world.versions.keys().copied().collect::<Vec<_>>() {
        world.save(inode)?;
    }
    while !world.open.is_empty() {
        world.close()?;
    }
    world.publish(usize::MAX)?;
    world.end()
}

fn named(name: &str) -> Name {
    Name::new(name.as_bytes()).expect("it is a name")
}

impl World {
    fn write(&mut self, key: Key, value: Value) {
        self.store.commit(&Transaction { compares: Vec::new(), writes: vec![Write::Put(key, value)] });
    }

    fn number(&mut self) -> u64 {
        self.fresh += 1;
        self.fresh
    }

    fn take_over(&mut self) {
        self.number += 1;
        self.publisher = Publisher::new();
        self.write(Key::Owner(Role::Publisher(MOUNT)), Value::Owner(self.number));
    }

    fn act(&mut self, operation: &Operation) -> Result<Result<Reply, Refusal>, String> {
        let mut reads = Reads::default();
        loop {
            match attempt(operation, &reads) {
                Attempt::Read(keys, prefixes) => {
                    keys.into_iter().for_each(|key| reads.key(key.clone(), self.store.get(&key).cloned()));
                    for prefix in prefixes {
                        let keys = self.store.under(prefix).map(|(key, stored)| (key.clone(), stored.clone()));
                        reads.prefix(prefix, keys.collect());
                    }
                }
                Attempt::Commit(transaction, reply) => {
                    return match self.store.commit(&transaction) {
                        Outcome::Committed(_) => Ok(reply),
                        other => Err(format!("{operation:?} ends as {other:?}")),
                    };
                }
            }
        }
    }

    fn done(&mut self, operation: &Operation) -> Result<(), String> {
        self.act(operation)?.map(|_| ()).map_err(|refusal| format!("{operation:?}: {refusal}"))
    }

    fn at(&self, random: &mut Random) -> At {
        let directory = self.directories[random.below(3) as usize];
        (directory, named(["a", "b", "c"][random.below(3) as usize]))
    }

    fn step(&mut self, random: &mut Random) -> Result<(), String> {
        let (at, to, journal) = (self.at(random), self.at(random), self.number());
        let is_there = self.names.get(&at).copied();
        match (random.below(12), is_there) {
            (0..=2, None) => {
                let fresh = self.number();
                let operation =
                    Operation::Create { at: at.clone(), fresh, writer: (SESSION, LEASE), owner: (0o644, 0, 0) };
                self.done(&operation)?;
                self.names.insert(at, Inode(fresh));
                self.versions.insert(Inode(fresh), 0);
                self.open.insert(Inode(fresh));
            }
            (0..=2, Some(inode)) => self.save(inode)?,
            (3..=5, Some(inode)) => {
                let linked = self.act(&Operation::Link { inode, at: to.clone(), journal })?;
                match self.names.contains_key(&to) {
                    true if linked == Err(Refusal::Exists) => {}
                    false if linked.is_ok() => drop(self.names.insert(to, inode)),
                    is_there => return Err(format!("a link to what is there ({is_there}): {linked:?}")),
                }
            }
            (6 | 7, Some(_)) => {
                self.done(&Operation::Unlink { at: at.clone(), journal })?;
                self.names.remove(&at);
            }
            (8 | 9, Some(inode)) => {
                self.done(&Operation::Rename { from: at.clone(), to: to.clone(), replace: true, journal })?;
                // Of two names of one file both stay.
                if self.names.insert(to, inode) != Some(inode) {
                    self.names.remove(&at);
                }
            }
            (10, Some(inode)) => {
                let attributes = Attributes { mode: Some(0o600), ..Attributes::default() };
                self.done(&Operation::SetAttributes { inode, attributes, journal })?;
            }
            (11, _) if random.chance(0.3) => {
                let was = self.names.iter().find(|(_, inode)| **inode == self.directories[1]).map(|(at, _)| at.clone());
                let (from, to) = (was.ok_or("a directory has no name")?, (ROOT, named(&format!("d{}", 2 + journal))));
                self.done(&Operation::Rename { from: from.clone(), to: to.clone(), replace: true, journal })?;
                self.names.remove(&from);
                self.names.insert(to, self.directories[1]);
            }
            (11, _) if random.chance(0.2) => self.take_over(),
            (11, _) if random.chance(0.5) => self.close()?,
            _ => {
                let changes = random.below(4) as usize;
                self.publish(changes)?;
            }
        }
        Ok(())
    }

    /// A new version of a file.
    fn save(&mut self, inode: Inode) -> Result<(), String> {
        if self.open.insert(inode) {
            self.done(&Operation::OpenForWriting { inode, writer: (SESSION, LEASE), rewrites: false })?;
        }
        let version = self.versions.entry(inode).or_default();
        let (on, size) = (Version(*version), *version);
        *version += 1;
        self.done(&Operation::Commit { inode, session: SESSION, on: (on, 0), size, groups: Vec::new(), close: None })
    }

    fn close(&mut self) -> Result<(), String> {
        let Some(inode) = self.open.pop_first() else { return Ok(()) };
        let journal = self.number();
        self.done(&Operation::Close { inode, session: SESSION, journal })
    }

    /// The target sees some of the next changes.
    fn publish(&mut self, changes: usize) -> Result<(), String> {
        for (key, stored) in self.store.under(Prefix::Journal(MOUNT)) {
            if let (Key::Journal(_, number), Value::Journal(change)) = (key, &stored.value) {
                self.publisher.journalled(stored.created, *number, change.clone());
            }
        }
        let wanted: Vec<_> = self.publisher.wanted().collect();
        wanted.into_iter().for_each(|(inode, version)| self.publisher.drained(inode, version));
        for _ in 0..changes {
            let Some(effect) = self.publisher.next_effect() else { break };
            self.target.change(&effect.change, effect.maybe_done, &|_| true)?;
            self.publisher.complete(effect.journal, publishing::Outcome::Done);
            while let Some((journal, ended)) = self.publisher.next_record() {
                assert_eq!(ended, PublicationEnd::Done);
                let (publisher, placed) = (self.number, Vec::new());
                self.done(&Operation::Published { publisher, mount: MOUNT, journal, ended, placed, about: None })?;
                self.publisher.recorded(journal);
            }
        }
        Ok(())
    }

    /// The store has the names of the model.
    fn agrees(&self) -> Result<(), String> {
        for (key, stored) in self.store.all() {
            match (key, &stored.value) {
                (Key::Entry(directory, name), Value::Entry(inode)) => {
                    let of = self.names.get(&(*directory, name.clone()));
                    of.filter(|of| *of == inode).ok_or(format!("{directory} has {name} for {inode}, not {of:?}"))?;
                }
                (Key::Node(inode), Value::Node(node)) if *inode != ROOT => {
                    let has: BTreeSet<&At> =
                        self.names.iter().filter(|(_, of)| *of == inode).map(|(at, _)| at).collect();
                    if node.names().collect::<BTreeSet<_>>() != has || node.count() as usize != has.len() {
                        return Err(format!("{inode} is at {:?} and {:?}, not at {has:?}", node.at, node.links));
                    }
                }
                _ => {}
            }
        }
        let entries = self.store.all().filter(|(key, _)| matches!(key, Key::Entry(..))).count();
        if entries == self.names.len() { Ok(()) } else { Err(format!("{entries} entries, not {}", self.names.len())) }
    }

    /// The target has every name, and under it the newest version.
    fn end(&self) -> Result<(), String> {
        let path = |(directory, name): &At| {
            let above = self.names.iter().find(|(_, inode)| *inode == directory).map(|((_, name), _)| name.clone());
            Path(above.into_iter().chain([name.clone()]).collect())
        };
        let file = |inode: &Inode| self.versions.get(inode).map(|version| (*inode, Version(*version)));
        let expected: BTreeMap<Path, _> = self.names.iter().map(|(at, inode)| (path(at), file(inode))).collect();
        if expected != self.target.0 {
            return Err(format!("the target has {:?}, not {expected:?}", self.target.0));
        }
        let hides = |key: &Key| matches!(key, Key::Hidden(..) | Key::Unseen(_) | Key::Hides(..) | Key::Moved(..));
        match self.store.all().find(|(key, _)| hides(key)) {
            Some(left) => Err(format!("{left:?} is left though the target has seen everything")),
            None => Ok(()),
        }
    }
}
