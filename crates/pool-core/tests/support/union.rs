//! The union of what the pool has and what lies at the target, beside one plain tree of names.
//!
//! Programs make, write, link, move and remove files and directories, whether the pool or the target alone has them; others put files at
//! the target; a publisher replays the journal, and what it has done may not be on record yet. After every step each path stands for what
//! it stands for in the plain tree.

use std::collections::{BTreeMap, BTreeSet};

use surgetank_model::random::Random;
use surgetank_pool_core::id::{Inode, MountId, SessionId, Version};
use surgetank_pool_core::meta::lookup::{Lookup, Whereabouts};
use surgetank_pool_core::meta::operation::{Operation, PublicationEnd, Refusal, Reply};
use surgetank_pool_core::meta::store::{Lease, MemoryStore, Outcome, Transaction, Write};
use surgetank_pool_core::meta::value::{Change, Path, Placed};
use surgetank_pool_core::meta::{Attempt, FileState, Key, Kind, Name, Node, Prefix, Reads, Role, Value, attempt};
use surgetank_pool_core::publishing::{self, Effect, Publisher};

const ROOT: Inode = Inode(1);
const MOUNT: MountId = MountId(1);
const WRITER: (SessionId, Lease) = (SessionId(1), Lease(1));
const NAMES: [&str; 3] = ["a", "b", "c"];
const STEPS: usize = 120;

/// What is at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Directory,
    File(u64),
}

/// What is at a path: its number there, which all names of a file have, and what it is.
type Numbered = (u64, What);

/// What the pool has at names of the target by a change.
type Recorded = Vec<((u64, Name), Option<Placed>)>;

struct World {
    random: Random,
    store: MemoryStore,
    target: BTreeMap<Path, Numbered>,
    truth: BTreeMap<Path, Numbered>,
    /// What programs have open for writing, which the target does not see yet.
    open: BTreeSet<Inode>,
    /// What versions of files contain.
    contents: BTreeMap<(Inode, Version), u64>,
    publisher: Publisher,
    /// What was done at the target and is not on record.
    unrecorded: Option<(Effect, Recorded)>,
    fresh: u64,
}

/// Where something was found.
enum Found {
    Pool(Inode, Node),
    AtTarget(Path, Numbered),
}

pub fn run(seed: u64) -> Result<(), String> {
    let mut world = World::new(seed);
    for _ in 0..STEPS {
        world.step()?;
        world.check()?;
    }
    while world.close()? {
        world.check()?;
    }
    while world.publish()? {
        world.check()?;
    }
    world.end()
}

impl World {
    fn new(seed: u64) -> Self {
        let mut world = Self {
            random: Random::from_seed(seed),
            store: MemoryStore::default(),
            target: BTreeMap::new(),
            truth: BTreeMap::new(),
            open: BTreeSet::new(),
            contents: BTreeMap::new(),
            publisher: Publisher::new(),
            unrecorded: None,
            fresh: 100,
        };
        let root = Node::new(Kind::Directory, MOUNT, None, (0o755, 0, 0));
        let writes = vec![
            Write::Put(Key::Node(ROOT), Value::Node(root)),
            Write::Put(Key::Session(WRITER.0), Value::Session(WRITER.0)),
            Write::Put(Key::Owner(Role::Publisher(MOUNT)), Value::Owner(1)),
        ];
        world.store.commit(&Transaction { compares: Vec::new(), writes });
        for _ in 0..world.random.below(6) {
            world.others();
        }
        world
    }

    fn number(&mut self) -> u64 {
        self.fresh += 1;
        self.fresh
    }

    fn path(&mut self) -> Path {
        let depth = 1 + self.random.below(3);
        let names = (0..depth).map(|_| name(NAMES[self.random.below(NAMES.len() as u64) as usize]));
        Path(names.collect())
    }

    fn step(&mut self) -> Result<(), String> {
        match self.random.below(14) {
            0 => self.others(),
            1..=3 => drop(self.publish()?),
            4..=5 => self.write()?,
            6 => self.make_directory()?,
            7 => self.unlink()?,
            8 => self.remove_directory()?,
            9..=10 => self.link()?,
            11 => drop(self.close()?),
            _ => self.rename()?,
        }
        Ok(())
    }

    /// Others put a file or directory where neither they nor the pool have or had anything under way.
    fn others(&mut self) {
        let path = self.path();
        let parent = Path(path.0[..path.0.len() - 1].to_vec());
        let is_quiet = self.store.under(Prefix::Journal(MOUNT)).next().is_none();
        let is_there = |path: &Path| path.0.is_empty() || matches!(self.target.get(path), Some((_, What::Directory)));
        if !is_quiet || self.truth.contains_key(&path) || self.target.contains_key(&path) || !is_there(&parent) {
            return;
        }
        let number = self.number();
        let what = if self.random.chance(0.4) { What::Directory } else { What::File(number) };
        self.target.insert(path.clone(), (number, what));
        self.truth.insert(path, (number, what));
    }

    /// What a path leads to, as a manager finds it.
    fn find(&self, from: Inode, path: &Path) -> Option<Found> {
        let mut lookup = Lookup::new(from, path);
        let read = |keys: Vec<Key>| keys.iter().map(|key| self.store.get(key).cloned()).collect::<Vec<_>>();
        let found = loop {
            if let Some(found) = lookup.read(&read(lookup.wants())) {
                break found;
            }
        };
        if let Ok((inode, node)) = found {
            return Some(Found::Pool(inode, node));
        }
        let (directory, names) = lookup.falls_to()?;
        let mut whereabouts = Whereabouts::new(directory);
        let places = loop {
            let (keys, prefixes) = whereabouts.wants();
            let under = |prefix: &Prefix| {
                self.store.under(*prefix).map(|(key, stored)| (key.clone(), stored.clone())).collect::<Vec<_>>()
            };
            let under: Vec<_> = prefixes.iter().map(under).collect();
            if let Some(places) = whereabouts.read(&read(keys), &under) {
                break places.ok()?;
            }
        };
        // The first of them that is there: at the other one another directory may be, which is to be removed.
        let is_there =
            |place: &Path| place.0.is_empty() || matches!(self.target.get(place), Some((_, What::Directory)));
        let place = places.into_iter().find(is_there)?;
        let path = Path(place.0.into_iter().chain(names.0.iter().cloned()).collect());
        self.target.get(&path).map(|found| Found::AtTarget(path.clone(), *found))
    }

    fn what(&self, found: &Found) -> Option<What> {
        match found {
            Found::AtTarget(_, (_, what)) => Some(*what),
            Found::Pool(_, Node { kind: Kind::Directory, .. }) => Some(What::Directory),
            Found::Pool(inode, node) => self.contents.get(&(*inode, node.version)).copied().map(What::File),
        }
    }

    /// Every path stands for what it should.
    fn check(&self) -> Result<(), String> {
        let names = || NAMES.iter().map(|text| name(text));
        let mut paths: Vec<Vec<Name>> = names().map(|name| vec![name]).collect();
        for depth in 1..3 {
            let longer = paths.iter().filter(|path| path.len() == depth);
            let longer = longer.flat_map(|path| names().map(move |name| [path.clone(), vec![name]].concat()));
            paths = longer.collect::<Vec<_>>().into_iter().chain(paths).collect();
        }
        for path in paths.into_iter().map(Path) {
            let seen = self.find(ROOT, &path).and_then(|found| self.what(&found));
            if seen != self.at_path(&path) {
                return Err(format!("{path:?} is {seen:?} and should be {:?}", self.truth.get(&path)));
            }
        }
        Ok(())
    }

    /// What a path should stand for.
    fn at_path(&self, path: &Path) -> Option<What> {
        self.truth.get(path).map(|(_, what)| *what)
    }

    /// The target has everything in the end, hidden is nothing.
    fn end(&self) -> Result<(), String> {
        let whats = |tree: &BTreeMap<Path, Numbered>| -> BTreeMap<Path, What> {
            tree.iter().map(|(path, (_, what))| (path.clone(), *what)).collect()
        };
        if whats(&self.target) != whats(&self.truth) {
            return Err(format!("the target has {:?} in the end, and the programs {:?}", self.target, self.truth));
        }
        let mut links: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for (path, (number, _)) in &self.truth {
            links.entry(*number).or_default().extend(self.target.get(path).map(|(number, _)| *number));
        }
        if links.values().any(|numbers| numbers.len() > 1) {
            return Err(format!("names of one file are several at the target: {:?}", self.target));
        }
        let is_left = |key: &Key| matches!(key, Key::Hidden(..) | Key::Unseen(_) | Key::Hides(..) | Key::Moved(..));
        match self.store.all().find(|(key, _)| is_left(key)) {
            Some(left) => Err(format!("{left:?} is left though the target has seen everything")),
            None => Ok(()),
        }
    }

    fn perform(&mut self, operation: &Operation) -> Result<Reply, Refusal> {
        loop {
            let mut reads = Reads::at(1);
            let (transaction, reply) = loop {
                match attempt(operation, &reads) {
                    Attempt::Read(keys, prefixes) => {
                        for key in keys {
                            let stored = self.store.get(&key).cloned();
                            reads.key(key, stored);
                        }
                        for prefix in prefixes {
                            let all = self.store.under(prefix).map(|(key, stored)| (key.clone(), stored.clone()));
                            reads.prefix(prefix, all.collect());
                        }
                    }
                    Attempt::Commit(transaction, reply) => break (transaction, reply),
                }
            };
            if let Outcome::Committed(_) = self.store.commit(&transaction) {
                return reply;
            }
        }
    }

    /// The pool's number of what is at a path, imported if the target alone has it.
    fn bring(&mut self, path: &Path) -> Result<Option<Inode>, String> {
        let mut at = ROOT;
        for name in &path.0 {
            at = match self.find(at, &Path(vec![name.clone()])) {
                None => return Ok(None),
                Some(Found::Pool(inode, _)) => inode,
                Some(Found::AtTarget(there, (number, what))) => {
                    let fresh = self.number();
                    let parent = self.directory_at_target(&there);
                    let (node, placed) = match what {
                        What::Directory => (Node::new(Kind::Directory, MOUNT, None, (0o755, 0, 0)), None),
                        What::File(content) => {
                            let version = Version::NONE.next();
                            self.contents.insert((Inode(fresh), version), content);
                            let of = Node::new(Kind::File(FileState::Evicted), MOUNT, None, (0o644, 0, 0));
                            let of = Node { version, journalled: version, published: version, ..of };
                            (of, Some((parent, placed(Inode(fresh), number, content))))
                        }
                    };
                    let operation = Operation::Import { at: (at, name.clone()), fresh, node, placed };
                    self.perform(&operation).map_err(|refusal| format!("{path:?} is not imported: {refusal}"))?;
                    Inode(fresh)
                }
            };
        }
        Ok(Some(at))
    }

    /// The number of the directory in which something is at the target.
    fn directory_at_target(&self, path: &Path) -> u64 {
        let parent = Path(path.0[..path.0.len() - 1].to_vec());
        self.target.get(&parent).map_or(1, |(number, _)| *number)
    }

    /// A directory and a name in it, if programs see that directory.
    fn at(&mut self, path: &Path) -> Result<Option<(Inode, Name)>, String> {
        let (name, parent) = path.0.split_last().ok_or("no name")?;
        let parent = Path(parent.to_vec());
        if !parent.0.is_empty() && self.at_path(&parent) != Some(What::Directory) {
            return Ok(None);
        }
        let directory = self.bring(&parent)?.ok_or_else(|| format!("{parent:?} cannot be imported"))?;
        Ok(Some((directory, name.clone())))
    }

    fn done(&mut self, operation: &Operation) -> Result<Reply, String> {
        self.perform(operation).map_err(|refusal| format!("{operation:?} is refused: {refusal}"))
    }

    fn write(&mut self) -> Result<(), String> {
        let path = self.path();
        let is_there = match self.at_path(&path) {
            Some(What::Directory) => return Ok(()),
            other => other.is_some(),
        };
        let Some(at) = self.at(&path)? else { return Ok(()) };
        let inode = if is_there {
            let inode = self.bring(&path)?.ok_or_else(|| format!("{path:?} is not there"))?;
            if !self.open.contains(&inode) {
                self.done(&Operation::OpenForWriting { inode, writer: WRITER, rewrites: false })?;
            }
            inode
        } else {
            let fresh = self.number();
            self.done(&Operation::Create { at, fresh, writer: WRITER, owner: (0o644, 0, 0) })?;
            self.truth.insert(path.clone(), (fresh, What::File(0)));
            Inode(fresh)
        };
        self.open.insert(inode);
        let on = match self.store.get(&Key::Node(inode)).map(|stored| &stored.value) {
            Some(Value::Node(node)) => node.version,
            _ => return Err(format!("{inode} has no node")),
        };
        let content = self.number();
        self.contents.insert((inode, on.next()), content);
        let commit =
            Operation::Commit { inode, session: WRITER.0, on: (on, 0), size: content, groups: Vec::new(), close: None };
        self.done(&commit)?;
        let number = self.truth.get(&path).map(|(number, _)| *number);
        let names = self.truth.values_mut().filter(|(of, _)| Some(*of) == number);
        names.for_each(|(_, what)| *what = What::File(content));
        if self.random.chance(0.6) { self.close().map(drop) } else { Ok(()) }
    }

    /// The target is to see a file that programs have written; `false`: none is open.
    fn close(&mut self) -> Result<bool, String> {
        let Some(inode) = self.open.pop_first() else { return Ok(false) };
        let journal = self.number();
        self.done(&Operation::Close { inode, session: WRITER.0, journal })?;
        Ok(true)
    }

    fn link(&mut self) -> Result<(), String> {
        let (from, to) = (self.path(), self.path());
        let Some(linked @ (_, What::File(_))) = self.truth.get(&from).copied() else { return Ok(()) };
        if self.truth.contains_key(&to) {
            return Ok(());
        }
        let inode = self.bring(&from)?.ok_or_else(|| format!("{from:?} is not there"))?;
        let Some(at) = self.at(&to)? else { return Ok(()) };
        let journal = self.number();
        self.done(&Operation::Link { inode, at, journal })?;
        self.truth.insert(to, linked);
        Ok(())
    }

    fn make_directory(&mut self) -> Result<(), String> {
        let path = self.path();
        if self.truth.contains_key(&path) {
            return Ok(());
        }
        let Some(at) = self.at(&path)? else { return Ok(()) };
        let (fresh, journal) = (self.number(), self.number());
        self.done(&Operation::MakeDirectory { at, fresh, journal, owner: (0o755, 0, 0) })?;
        self.truth.insert(path, (fresh, What::Directory));
        Ok(())
    }

    fn unlink(&mut self) -> Result<(), String> {
        let path = self.path();
        if !matches!(self.at_path(&path), Some(What::File(_))) {
            return Ok(());
        }
        self.bring(&path)?;
        let Some(at) = self.at(&path)? else { return Ok(()) };
        let journal = self.number();
        self.done(&Operation::Unlink { at, journal })?;
        self.truth.remove(&path);
        Ok(())
    }

    fn remove_directory(&mut self) -> Result<(), String> {
        let path = self.path();
        let is_empty = !self.truth.keys().any(|other| other != &path && other.0.starts_with(&path.0));
        if self.at_path(&path) != Some(What::Directory) || !is_empty {
            return Ok(());
        }
        self.bring(&path)?;
        let Some(at) = self.at(&path)? else { return Ok(()) };
        let journal = self.number();
        self.done(&Operation::RemoveDirectory { at, journal })?;
        self.truth.remove(&path);
        Ok(())
    }

    fn rename(&mut self) -> Result<(), String> {
        let (from, to) = (self.path(), self.path());
        let (Some(moved), replaced) = (self.truth.get(&from).copied(), self.truth.get(&to).copied()) else {
            return Ok(());
        };
        let into_itself = to.0.starts_with(&from.0) || from.0.starts_with(&to.0);
        let is_file = |(_, what): Numbered| matches!(what, What::File(_));
        if into_itself || replaced.is_some_and(|replaced| !is_file(replaced) || !is_file(moved)) {
            return Ok(());
        }
        // Deeper than paths are looked at.
        let is_deeper = |path: &Path| path.0.starts_with(&from.0) && path.0.len() - from.0.len() + to.0.len() > 3;
        if self.truth.keys().any(is_deeper) {
            return Ok(());
        }
        self.bring(&from)?;
        self.bring(&to)?;
        let (Some(at), Some(to_at)) = (self.at(&from)?, self.at(&to)?) else { return Ok(()) };
        let journal = self.number();
        self.done(&Operation::Rename { from: at, to: to_at, replace: true, journal })?;
        // Of two names of one file both stay.
        if replaced.is_none_or(|(number, _)| number != moved.0) {
            rename(&mut self.truth, &from, &to);
        }
        Ok(())
    }

    /// The publisher makes a change at the target, or records the last one; `false`: nothing is left.
    fn publish(&mut self) -> Result<bool, String> {
        if let Some((effect, placed)) = self.unrecorded.take() {
            self.publisher.complete(effect.journal, publishing::Outcome::Done);
            let (journal, ended) = self.publisher.next_record().ok_or("nothing is to be recorded")?;
            let about = None;
            let operation = Operation::Published { publisher: 1, mount: MOUNT, journal, ended, placed, about };
            if ended != PublicationEnd::Done {
                return Err(format!("{operation:?} does not end well"));
            }
            self.done(&operation)?;
            self.publisher.recorded(journal);
            return Ok(true);
        }
        for (key, stored) in self.store.under(Prefix::Journal(MOUNT)) {
            if let (Key::Journal(_, number), Value::Journal(change)) = (key, &stored.value) {
                if let Some((inode, version)) = change.publishes() {
                    self.publisher.drained(inode, version);
                }
                self.publisher.journalled(stored.created, *number, change.clone());
            }
        }
        let Some(effect) = self.publisher.next_effect() else { return Ok(false) };
        let placed = self.change(&effect.change)?;
        self.unrecorded = Some((effect, placed));
        Ok(true)
    }

    /// What the pool has put at a name of the target, if that is what is there.
    fn is_ours(&self, path: &Path) -> Result<((u64, Name), Option<Placed>), String> {
        let name = path.0.last().cloned().ok_or("no name")?;
        let key = (self.directory_at_target(path), name);
        let was = match self.store.get(&Key::Placed(MOUNT, key.0, key.1.clone())).map(|stored| &stored.value) {
            Some(Value::Placed(placed)) => Some(*placed),
            _ => None,
        };
        match (self.target.get(path), was) {
            (Some((number, What::File(content))), was)
                if was.map(|was| (was.number, was.size)) != Some((*number, *content)) =>
            {
                Err(format!("{path:?} is somebody else's: {was:?}"))
            }
            _ => Ok((key, was)),
        }
    }

    /// Makes a change as a target does that is compared with what the pool has put there.
    fn change(&mut self, change: &Change) -> Result<Recorded, String> {
        match change {
            Change::MakeDirectory(path) => {
                let number = self.number();
                self.target.entry(path.clone()).or_insert((number, What::Directory));
                Ok(Vec::new())
            }
            Change::Publish { inode, version, path } => self.put((*inode, *version), [path]),
            Change::Linked { change, also } => match &**change {
                Change::Publish { inode, version, path } => {
                    self.put((*inode, *version), std::iter::once(path).chain(also))
                }
                _ => Err("that is not asked for here".to_owned()),
            },
            Change::Link { from, to } => {
                let (of_from, of_to) = (self.is_ours(from)?, self.is_ours(to)?);
                let linked = self.target.get(from).copied().ok_or_else(|| format!("{from:?} is not there"))?;
                if self.target.insert(to.clone(), linked).is_some() {
                    return Err(format!("{to:?} is there already"));
                }
                Ok(vec![of_from.clone(), (of_to.0, of_from.1)])
            }
            Change::Rename { from, to } => {
                let (of_from, of_to) = (self.is_ours(from)?, self.is_ours(to)?);
                if !self.target.contains_key(from) {
                    return Err(format!("{from:?} is not there to be moved"));
                }
                rename(&mut self.target, from, to);
                Ok(vec![(of_from.0, None), (of_to.0, of_from.1)])
            }
            Change::Remove(path) => {
                let (key, _) = self.is_ours(path)?;
                if self.target.remove(path).is_none() || self.target.keys().any(|other| other.0.starts_with(&path.0)) {
                    return Err(format!("{path:?} cannot be removed"));
                }
                Ok(vec![(key, None)])
            }
            Change::MakeLink { .. } | Change::MakeSpecial { .. } | Change::Attributes { .. } => {
                Err("that is not asked for here".to_owned())
            }
        }
    }

    /// A version takes the place of what the pool has put at all these paths.
    fn put<'a>(
        &mut self,
        (inode, version): (Inode, Version),
        paths: impl IntoIterator<Item = &'a Path>,
    ) -> Result<Recorded, String> {
        let content = self.contents.get(&(inode, version)).copied().ok_or("no content")?;
        let (number, mut recorded) = (self.number(), Vec::new());
        for path in paths {
            let (key, _) = self.is_ours(path)?;
            self.target.insert(path.clone(), (number, What::File(content)));
            recorded.push((key, Some(placed(inode, number, content))));
        }
        Ok(recorded)
    }
}

fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).expect("it is a name")
}

fn placed(node: Inode, number: u64, content: u64) -> Placed {
    Placed { node, size: content, modified: 0, number }
}

fn rename<T: Clone>(tree: &mut BTreeMap<Path, T>, from: &Path, to: &Path) {
    let moved: Vec<Path> = tree.keys().filter(|path| path.0.starts_with(&from.0)).cloned().collect();
    let moved: Vec<(Path, T)> =
        moved.into_iter().filter_map(|path| tree.remove(&path).map(|what| (path, what))).collect();
    for (path, what) in moved {
        tree.insert(Path(to.0.iter().chain(&path.0[from.0.len()..]).cloned().collect()), what);
    }
}
