//! What files and directories are after a sequence of operations, told in the plainest way, and what the target may show of it.

use std::collections::{BTreeMap, BTreeSet};

use surgetank_pool_core::id::{BenefactorId, Incarnation, Inode, SessionId, Version};
use surgetank_pool_core::meta::operation::{Operation, PublicationEnd, Refusal, Reply};
use surgetank_pool_core::meta::value::{Base, Path};
use surgetank_pool_core::meta::{Group, Name};

pub const ROOT: Inode = Inode(1);

#[derive(Clone, Debug, Default)]
struct File {
    version: u64,
    size: u64,
    /// Digests of its groups.
    groups: BTreeMap<u32, u32>,
    writers: BTreeMap<SessionId, Writer>,
    /// The version of the last close without other writers, and the last that the target has seen.
    closed: u64,
    published: u64,
    evicted: bool,
    /// What the store has of the newest version, by the versions of its groups: the target has the others.
    staged: BTreeMap<u32, u64>,
    /// What a version rests on that the target does not have.
    base: Option<Base>,
}

impl File {
    fn is_drained(&self) -> bool {
        self.version > 0 && self.published == self.version && !self.evicted
    }

    fn changes(&self) -> u64 {
        self.base.map_or(0, |base| base.changes)
    }

    fn rests_on(&self) -> Option<Base> {
        let (size, version, changes) = (self.size, Version(self.version), self.changes());
        if self.is_drained() || self.evicted { Some(Base { draft: None, size, version, changes }) } else { self.base }
    }
}

/// What a session that has a file open was told.
#[derive(Clone, Copy, Debug, Default)]
struct Writer {
    /// It drops this version by what it commits first.
    rewrites: Option<u64>,
    /// It is to commit this version empty.
    cuts: Option<u64>,
}

/// What the target has at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtTarget {
    Directory(Inode),
    File(Inode, Version),
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Namespace {
    directories: BTreeMap<Inode, BTreeMap<Name, Inode>>,
    files: BTreeMap<Inode, File>,
    /// Which process publishes.
    pub publisher: u64,
    sessions: BTreeSet<SessionId>,
    benefactors: BTreeMap<BenefactorId, Incarnation>,
    /// What the entries of the journal publish.
    publications: BTreeMap<u64, (Inode, u64)>,
    /// Digests of the groups of every version of every file.
    pub history: BTreeMap<(Inode, u64), BTreeMap<u32, u32>>,
    /// The target once it has seen everything so far.
    pub target: BTreeMap<Path, AtTarget>,
}

impl Namespace {
    pub fn new() -> Self {
        let mut namespace = Self::default();
        namespace.directories.insert(ROOT, BTreeMap::new());
        namespace
    }

    pub fn session(&mut self, session: SessionId, alive: bool) {
        if alive {
            self.sessions.insert(session);
        } else {
            self.sessions.remove(&session);
            for file in self.files.values_mut() {
                file.writers.remove(&session);
            }
        }
    }

    pub fn benefactor(&mut self, id: BenefactorId, incarnation: Option<Incarnation>) {
        match incarnation {
            Some(incarnation) => drop(self.benefactors.insert(id, incarnation)),
            None => drop(self.benefactors.remove(&id)),
        }
    }

    pub fn files(&self) -> Vec<Inode> {
        self.files.keys().copied().collect()
    }

    pub fn directories(&self) -> Vec<Inode> {
        self.directories.keys().copied().collect()
    }

    pub fn version(&self, inode: Inode) -> Version {
        Version(self.files.get(&inode).map_or(0, |file| file.version))
    }

    /// What a file is: version, bytes, digests of its groups.
    pub fn content(&self, inode: Inode) -> Option<(u64, u64, &BTreeMap<u32, u32>)> {
        self.files.get(&inode).map(|file| (file.version, file.size, &file.groups))
    }

    /// Every name and what it stands for.
    pub fn names(&self) -> BTreeMap<(Inode, Name), Inode> {
        let of = |(directory, entries): (&Inode, &BTreeMap<Name, Inode>)| {
            entries.iter().map(|(name, inode)| ((*directory, name.clone()), *inode)).collect::<Vec<_>>()
        };
        self.directories.iter().flat_map(of).collect()
    }

    /// Carries an operation out, as the only one.
    pub fn apply(&mut self, operation: &Operation) -> Result<Reply, Refusal> {
        let before = self.paths();
        let reply = self.change(operation);
        if reply.is_ok() {
            self.tell_target(operation, &before);
        }
        reply
    }

    fn change(&mut self, operation: &Operation) -> Result<Reply, Refusal> {
        match operation {
            Operation::Create { at, fresh, writer, .. } => {
                self.absent(at)?;
                if !self.sessions.contains(&writer.0) {
                    return Err(Refusal::NotTheWriter);
                }
                let inode = Inode(*fresh);
                self.entries(at.0)?.insert(at.1.clone(), inode);
                self.files.insert(inode, File { writers: [(writer.0, Writer::default())].into(), ..File::default() });
                Ok(Reply::Inode(inode))
            }
            Operation::OpenForWriting { inode, writer, rewrites } => {
                let alive = self.sessions.contains(&writer.0);
                let file = self.file(*inode)?;
                if !alive {
                    return Err(Refusal::NotTheWriter);
                }
                let own = file.writers.remove(&writer.0).unwrap_or_default();
                let now = Some(file.version);
                let is_told = own.rewrites == now;
                let others_rewrite = file.writers.values().any(|other| other.rewrites == now);
                let cut_first = file.size > 0 && (others_rewrite || *rewrites && !is_told && !file.writers.is_empty());
                let waits = is_told || *rewrites && file.size > 0 && !cut_first;
                let told = Writer { rewrites: now.filter(|_| waits), cuts: now.filter(|_| cut_first) };
                file.writers.insert(writer.0, told);
                let version = Version(file.version);
                Ok(if cut_first { Reply::CutFirst(version) } else { Reply::Version(version) })
            }
            Operation::MakeDirectory { at, fresh, .. } => {
                self.absent(at)?;
                let inode = Inode(*fresh);
                self.entries(at.0)?.insert(at.1.clone(), inode);
                self.directories.insert(inode, BTreeMap::new());
                Ok(Reply::Inode(inode))
            }
            Operation::MakeLink { .. } | Operation::MakeSpecial { .. } => unreachable!("only files are made here"),
            Operation::Import { .. } => unreachable!("nothing is imported here"),
            Operation::SetAttributes { inode, .. } => {
                if !self.directories.contains_key(inode) {
                    self.file(*inode)?;
                }
                Ok(Reply::Inode(*inode))
            }
            Operation::Commit { inode, session, on, size, groups, close } => {
                let benefactors = self.benefactors.clone();
                let file = self.file(*inode)?;
                if !file.writers.contains_key(session) {
                    return Err(Refusal::NotTheWriter);
                }
                if Version(file.version) != on.0 {
                    return Err(Refusal::Version(Version(file.version)));
                }
                if file.changes() != on.1 {
                    return Err(Refusal::Moved);
                }
                let mut places: Vec<_> = groups.iter().flat_map(|(_, group)| group.layout.places()).collect();
                places.retain(|place| benefactors.get(&place.id) != Some(&place.incarnation));
                places.sort_unstable();
                places.dedup();
                if !places.is_empty() {
                    return Err(Refusal::Benefactors(places));
                }
                // Nothing is committed on top of what another session has dropped by opening the file, but by whoever was told.
                let now = Some(file.version);
                let others = file.writers.iter().filter(|(other, _)| *other != session);
                let is_dropped = others.clone().any(|(_, other)| other.rewrites == now);
                assert!(!is_dropped || file.writers[session].cuts == now, "{inode} is written on, and was cut off");
                file.base = file.rests_on();
                (file.version, file.size, file.evicted) = (file.version + 1, *size, false);
                file.staged.extend(groups.iter().map(|(index, _)| (*index, file.version)));
                file.groups.extend(groups.iter().map(|(index, group): &(u32, Group)| (*index, group.digest)));
                let (version, groups) = (file.version, file.groups.clone());
                self.history.insert((*inode, version), groups);
                let file = self.file(*inode)?;
                if close.is_some() {
                    file.writers.remove(session);
                }
                Ok(Reply::Version(Version(file.version)))
            }
            Operation::Close { inode, session, .. } => {
                let file = self.file(*inode)?;
                if file.writers.remove(session).is_none() {
                    return Err(Refusal::NotTheWriter);
                }
                Ok(Reply::Version(Version(file.version)))
            }
            Operation::WriterLost { inode, .. } => Ok(Reply::Version(Version(self.file(*inode)?.version))),
            Operation::Rename { from, to, replace, .. } => self.rename(from, to, *replace),
            Operation::Unlink { at, .. } => {
                let inode = self.present(at)?;
                if self.directories.contains_key(&inode) {
                    return Err(Refusal::IsADirectory);
                }
                self.entries(at.0)?.remove(&at.1);
                Ok(Reply::Inode(inode))
            }
            Operation::RemoveDirectory { at, .. } => {
                let inode = self.present(at)?;
                match self.directories.get(&inode) {
                    None => return Err(Refusal::NotADirectory),
                    Some(entries) if !entries.is_empty() => return Err(Refusal::NotEmpty),
                    Some(_) => {}
                }
                self.entries(at.0)?.remove(&at.1);
                self.directories.remove(&inode);
                Ok(Reply::Done)
            }
            Operation::Published { publisher, journal, ended, .. } => {
                assert_eq!(*ended, PublicationEnd::Done, "nothing is lost here, and nobody else changes the target");
                if *publisher != self.publisher {
                    return Err(Refusal::NotThePublisher);
                }
                if let Some((inode, version)) = self.publications.get(journal)
                    && let Some(file) = self.files.get_mut(inode)
                {
                    file.published = *version;
                    let version = Version(*version);
                    file.base = file.base.map(|base| Base { draft: None, version, ..base });
                }
                Ok(Reply::Done)
            }
            Operation::Prefetched { .. } | Operation::Reserve { .. } => unreachable!("these models ask for none"),
            Operation::Evict { inode, changes } => {
                let file = self.file(*inode)?;
                if !file.is_drained() {
                    return Err(Refusal::NotDrained);
                }
                file.base = file.rests_on().map(|base| Base { changes: *changes, ..base });
                file.evicted = true;
                file.staged.clear();
                Ok(Reply::Done)
            }
            Operation::DrainedEarly { publisher, inode, former, draft, groups, .. } => {
                if *publisher != self.publisher {
                    return Err(Refusal::NotThePublisher);
                }
                let file = self.file(*inode)?;
                let is_newest = |(index, version, _): &(u32, Version, _)| file.staged.get(index) == Some(&version.0);
                let waits = file.published < file.closed;
                if waits || file.rests_on() != *former || file.is_drained() || !groups.iter().all(is_newest) {
                    return Err(Refusal::Version(Version(file.version)));
                }
                let (size, version) = former.map_or((0, Version::NONE), |base| (base.size, base.version));
                file.base = Some(Base { draft: Some(draft.0), size, version, changes: draft.1 });
                Ok(Reply::Done)
            }
            Operation::Forget { inode } => {
                let named = self.names().values().any(|named| named == inode);
                let file = self.file(*inode)?;
                if named {
                    return Err(Refusal::Named);
                }
                if !file.writers.is_empty() || file.published < file.closed {
                    return Err(Refusal::InUse);
                }
                self.files.remove(inode);
                Ok(Reply::Done)
            }
            // Where bytes are is no matter of names: the simulated pool asks for this.
            Operation::Relocate { .. } | Operation::RelocateColumns { .. } => Err(Refusal::NotFound),
            Operation::Lock { .. } | Operation::Link { .. } => unreachable!("they have a run of their own"),
        }
    }

    fn rename(&mut self, from: &(Inode, Name), to: &(Inode, Name), replace: bool) -> Result<Reply, Refusal> {
        let inode = self.present(from)?;
        let replaced = self.entries(to.0)?.get(&to.1).copied();
        if replaced.is_some() && !replace {
            return Err(Refusal::Exists);
        }
        if replaced == Some(inode) {
            return Ok(Reply::Inode(inode));
        }
        let is_directory = self.directories.contains_key(&inode);
        let mut above = Some(to.0);
        while let Some(directory) = above.filter(|_| is_directory) {
            if directory == inode {
                return Err(Refusal::IntoItself);
            }
            above = self.names().into_iter().find(|(_, child)| *child == directory).map(|((parent, _), _)| parent);
        }
        if let Some(replaced) = replaced {
            match (is_directory, self.directories.get(&replaced)) {
                (true, None) => return Err(Refusal::NotADirectory),
                (false, Some(_)) => return Err(Refusal::IsADirectory),
                (true, Some(entries)) if !entries.is_empty() => return Err(Refusal::NotEmpty),
                (true, Some(_)) => drop(self.directories.remove(&replaced)),
                (false, None) => {}
            }
        }
        self.entries(from.0)?.remove(&from.1);
        self.entries(to.0)?.insert(to.1.clone(), inode);
        Ok(Reply::Inode(inode))
    }

    /// The target follows: what it has moves with its name and goes with it; directories come at once, files when the last writer has
    /// closed them.
    fn tell_target(&mut self, operation: &Operation, before: &BTreeMap<Inode, Path>) {
        let now = self.paths();
        // What has moved takes what the target has of it along. What is not of the file that has its name now moves with its directory.
        let at: BTreeMap<&Path, Inode> = before.iter().map(|(inode, path)| (path, *inode)).collect();
        let mut target = BTreeMap::new();
        for (path, what) in std::mem::take(&mut self.target) {
            let (AtTarget::Directory(inode) | AtTarget::File(inode, _)) = what;
            let is = match before.get(&inode) == Some(&path) {
                true => now.get(&inode).cloned(),
                false => path.0.split_last().and_then(|(name, above)| {
                    let mut moved = now.get(at.get(&Path(above.to_vec()))?)?.clone();
                    moved.0.push(name.clone());
                    Some(moved)
                }),
            };
            // Where two come together, it is that which moved there.
            if let Some(is) = is.filter(|is| *is != path || !target.contains_key(is)) {
                target.insert(is, what);
            } else if before.get(&inode) == Some(&path) && !now.contains_key(&inode) {
                // It has no name any more; who has it now may hide it.
                target.entry(path).or_insert(what);
            }
        }
        self.target = target;
        if let Operation::MakeDirectory { fresh, .. } = operation {
            self.target.insert(now[&Inode(*fresh)].clone(), AtTarget::Directory(Inode(*fresh)));
        }
        if let Operation::Close { inode, journal, .. }
        | Operation::WriterLost { inode, journal }
        | Operation::Commit { inode, close: Some(journal), .. } = operation
            && let Some(file) = self.files.get_mut(inode)
            && file.writers.is_empty()
            && file.version > file.closed
            && let Some(path) = now.get(inode)
        {
            file.closed = file.version;
            self.publications.insert(*journal, (*inode, file.version));
            self.target.insert(path.clone(), AtTarget::File(*inode, Version(file.version)));
        }
        // Nothing is at a path that has no name.
        let named: BTreeSet<&Path> = now.values().collect();
        self.target.retain(|path, _| named.contains(path));
    }

    fn paths(&self) -> BTreeMap<Inode, Path> {
        let mut paths = BTreeMap::from([(ROOT, Path::default())]);
        let mut next = vec![ROOT];
        while let Some(directory) = next.pop() {
            for (name, inode) in &self.directories[&directory] {
                let mut path = paths[&directory].clone();
                path.0.push(name.clone());
                paths.insert(*inode, path);
                if self.directories.contains_key(inode) {
                    next.push(*inode);
                }
            }
        }
        paths
    }

    fn entries(&mut self, directory: Inode) -> Result<&mut BTreeMap<Name, Inode>, Refusal> {
        let is_file = self.files.contains_key(&directory);
        self.directories.get_mut(&directory).ok_or(if is_file { Refusal::NotADirectory } else { Refusal::NotFound })
    }

    fn present(&mut self, at: &(Inode, Name)) -> Result<Inode, Refusal> {
        self.entries(at.0)?.get(&at.1).copied().ok_or(Refusal::NotFound)
    }

    fn absent(&mut self, at: &(Inode, Name)) -> Result<(), Refusal> {
        if self.entries(at.0)?.contains_key(&at.1) { Err(Refusal::Exists) } else { Ok(()) }
    }

    fn file(&mut self, inode: Inode) -> Result<&mut File, Refusal> {
        let is_directory = self.directories.contains_key(&inode);
        self.files.get_mut(&inode).ok_or(if is_directory { Refusal::IsADirectory } else { Refusal::NotFound })
    }
}
