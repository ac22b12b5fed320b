//! What a mount shows: the union of what the pool has and what lies at the target (decision 0046).
//!
//! The pool is asked first. What it does not know is looked for at the target, where it is seen as it is at that moment. Before it is changed
//! it is *imported*: the pool has a node of it, and remembers what it has seen, so that a later change by somebody else is told.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use surgetank_pool_core::id::{Inode, MountId};
use surgetank_pool_core::meta::lookup::{self, Lookup, Whereabouts};
use surgetank_pool_core::meta::operation::{At, Operation, Refusal};
use surgetank_pool_core::meta::store::Stored;
use surgetank_pool_core::meta::value::Path;
use surgetank_pool_core::meta::{Key, Kind, Name, Node, Prefix, Value};
use tokio::sync::Semaphore;

use super::Manager;
use super::answers::values;
use super::look::{self, Seen, Site};
use super::protocol::{AtTarget, Ended, Listed, Reply};
use super::rights::{self, NOT_ALLOWED, Within};
use crate::meta::Unavailable;
use crate::planted::objects::{Bug, planted};
use crate::security::token::Claims;

/// How long a target may take to answer, before its client asks again.
const ANSWER: Duration = Duration::from_secs(2);
/// Looks at a target at a time: one that does not answer keeps no more of this process's threads.
const LOOKS: usize = 16;
/// Entries of a directory in an answer.
const ENTRIES: usize = 4096;
/// How long a directory is looked at for one answer.
const ENTRIES_TIME: Duration = Duration::from_millis(500);
/// Journals that are read as a whole at a time for who looks where a target has a file: they may be long.
static JOURNALS: Semaphore = Semaphore::const_new(2);
/// How often a look is taken again at most since a directory was moved meanwhile.
const AGAIN: usize = 8;

/// The targets that were looked at.
#[derive(Default)]
pub(super) struct Targets(Mutex<BTreeMap<MountId, Looks>>);

#[derive(Clone)]
struct Looks {
    target: Site,
    free: Arc<Semaphore>,
}

/// What a path leads to.
enum What {
    Node(Inode, Node),
    AtTarget(Place, Box<Seen>),
    Refused(Refusal),
}

/// Where the target has something.
struct Place {
    mount: MountId,
    path: Path,
}

/// Where the target may have a directory now.
#[derive(PartialEq)]
struct Places {
    mount: MountId,
    paths: Vec<Path>,
}

impl Manager {
    /// Looks at a mount's target, apart from everything else: it may be slow, stuck or gone.
    async fn at_target<T: Send + 'static>(
        &self,
        mount: MountId,
        look: impl FnOnce(&Site) -> std::io::Result<T> + Send + 'static,
    ) -> Result<Result<T, Refusal>, Unavailable> {
        let known = self.targets.0.lock().unwrap_or_else(PoisonError::into_inner).get(&mount).cloned();
        let looks = match known {
            Some(looks) => looks,
            None => {
                let read = self.store.read(&[Key::Mount(mount)], &[]).await?;
                let [Some(Value::Mount(of))] = &values(&read)[..] else { return Ok(Err(Refusal::NotFound)) };
                let target = match self.bucket(&of.target) {
                    Ok(Some(bucket)) => Site::Bucket(bucket),
                    Ok(None) => Site::Directory(PathBuf::from(&of.target)),
                    Err(error) => return Err(Unavailable(format!("target {}: {error}", of.target))),
                };
                let looks = Looks { target, free: Arc::new(Semaphore::new(LOOKS)) };
                let mut targets = self.targets.0.lock().unwrap_or_else(PoisonError::into_inner);
                targets.entry(mount).or_insert(looks).clone()
            }
        };
        let shown = looks.target.to_string();
        // Of a bucket it is said of the credentials, which are new ones soon, and of nobody's rights.
        let is_directory = matches!(looks.target, Site::Directory(_)) || planted(Bug::CredentialsAsRights);
        let looked = tokio::time::timeout(ANSWER, async {
            let free = looks.free.acquire_owned().await;
            tokio::task::spawn_blocking(move || {
                let _taken_until_it_answers = free;
                look(&looks.target)
            })
            .await
            .unwrap_or_else(|error| Err(std::io::Error::other(error)))
        });
        match looked.await {
            Ok(Ok(found)) => Ok(Ok(found)),
            Ok(Err(error)) if is_directory && look::is_refused(&error) => Ok(Err(Refusal::NotAllowed)),
            Ok(Err(error)) => Err(Unavailable(format!("target {shown}: {error}"))),
            Err(_) => Err(Unavailable(format!("target {shown} does not answer"))),
        }
    }

    /// Where the target has a directory now. `None`: it is not there any more. What is known of the way there is read at once.
    async fn whereabouts(&self, whereabouts: &mut Whereabouts) -> Result<Option<Places>, Unavailable> {
        loop {
            let (keys, prefixes) = whereabouts.wants();
            let read = self.store.read(&keys, &prefixes).await?;
            match (whereabouts.read(&read.keys, &read.prefixes), values(&read).first()) {
                (Some(Ok(paths)), Some(Some(Value::Node(node)))) => {
                    return Ok(Some(Places { mount: node.mount, paths }));
                }
                (Some(_), _) => return Ok(None),
                (None, _) => {}
            }
        }
    }

    /// Looks for something at the target where the pool has nothing: below a directory of the pool.
    async fn fall(&self, directory: Inode, names: &Path) -> Result<What, Unavailable> {
        let Some((name, above)) = names.0.split_last() else { return Ok(What::Refused(Refusal::NotFound)) };
        let (name, above) = (name.clone(), above.to_vec());
        let look = move |target: &Site, path: &Path| {
            let Some(directory) = look::directory(target, path)? else { return Ok(None) };
            if above.is_empty() {
                return directory.find(&name).map(Some);
            }
            let path = Path(path.0.iter().chain(&above).cloned().collect());
            match look::directory(target, &path)? {
                Some(directory) => directory.find(&name).map(Some),
                None => Ok(Some(None)),
            }
        };
        Ok(match self.at_whereabouts(directory, look).await? {
            Ok(Some((mut place, seen))) => {
                place.path.0.extend(names.0.iter().cloned());
                What::AtTarget(place, seen)
            }
            Ok(None) => What::Refused(Refusal::NotFound),
            Err(refusal) => What::Refused(refusal),
        })
    }

    /// Looks for something where the target has a directory of the pool now; `None`: it is not there. The look says `None` where there is no
    /// directory, and the first place where one is decides: at the other one another may be, which is to be removed.
    async fn at_whereabouts<T: Send + 'static>(
        &self,
        directory: Inode,
        look: impl Fn(&Site, &Path) -> std::io::Result<Option<Option<T>>> + Clone + Send + 'static,
    ) -> Result<Result<Option<(Place, T)>, Refusal>, Unavailable> {
        let mut whereabouts = Whereabouts::new(directory);
        for _ in 0..AGAIN {
            let Some(places) = self.whereabouts(&mut whereabouts).await? else { break };
            for path in &places.paths {
                let (look, at, mount) = (look.clone(), path.clone(), places.mount);
                match self.at_target(mount, move |target| look(target, &at)).await? {
                    Ok(Some(Some(found))) => return Ok(Ok(Some((Place { mount, path: path.clone() }, found)))),
                    Ok(Some(None)) => break,
                    Ok(None) => {}
                    Err(refusal) => return Ok(Err(refusal)),
                }
            }
            // It may have been moved between the looks.
            let is_root = places.paths.iter().all(|path| path.0.is_empty());
            if is_root || self.whereabouts(&mut whereabouts).await?.is_none_or(|now| now == places) {
                break;
            }
        }
        Ok(Ok(None))
    }

    /// What is at a path, in the pool or at the target.
    async fn find(&self, directory: Inode, path: &Path, within: Option<Within>) -> Result<What, Unavailable> {
        let mut lookup = Lookup::new(directory, path);
        loop {
            let read = self.store.read(&lookup.wants(), &[]).await?;
            if within.is_some_and(|within| !within.has(&read)) {
                return Ok(What::Refused(NOT_ALLOWED));
            }
            match (lookup.read(&read.keys), lookup.falls_to()) {
                (Some(Ok((inode, node))), _) => return Ok(What::Node(inode, node)),
                (Some(Err(_)), Some((directory, names))) => return self.fall(directory, &names).await,
                (Some(Err(refusal)), None) => return Ok(What::Refused(refusal)),
                (None, _) => {}
            }
        }
    }

    /// What is at a path.
    pub(super) async fn lookup(
        &self,
        directory: Inode,
        path: &Path,
        within: Option<Within>,
    ) -> Result<Reply, Unavailable> {
        Ok(match self.find(directory, path, within).await? {
            What::Node(inode, node) => Reply::Found(inode, node),
            What::AtTarget(place, seen) => {
                Reply::AtTarget(AtTarget { path: place.path, number: seen.number, node: seen.node })
            }
            What::Refused(refusal) => Reply::Refused(refusal),
        })
    }

    /// What is at a path becomes the pool's, if the target alone has it.
    pub(super) async fn import(
        &self,
        directory: Inode,
        path: &Path,
        number: Option<u64>,
        by: &Claims,
    ) -> Result<Reply, Unavailable> {
        let within = Within::of(by);
        let (mut at, mut found) = (directory, None);
        for (index, name) in path.0.iter().enumerate() {
            let number = number.filter(|_| index + 1 == path.0.len());
            match self.bring_numbered(by, &(at, name.clone()), number, within).await? {
                Ok((inode, node)) => (at, found) = (inode, Some((inode, node))),
                Err(refusal) => return Ok(Reply::Refused(refusal)),
            }
        }
        match found {
            Some((inode, node)) => Ok(Reply::Found(inode, node)),
            None => self.lookup(directory, path, within).await,
        }
    }

    /// What is at a name, imported if the target alone has it.
    async fn bring(
        &self,
        by: &Claims,
        at: &At,
        within: Option<Within>,
    ) -> Result<Result<(Inode, Node), Refusal>, Unavailable> {
        self.bring_numbered(by, at, None, within).await
    }

    /// The same, if the target calls it so. Whoever works in a directory by its number must not end in another one, which others have
    /// put in its place meanwhile.
    async fn bring_numbered(
        &self,
        by: &Claims,
        at: &At,
        number: Option<u64>,
        within: Option<Within>,
    ) -> Result<Result<(Inode, Node), Refusal>, Unavailable> {
        let mut is_known = number.is_none();
        loop {
            let seen = match self.find(at.0, &Path(vec![at.1.clone()]), within).await? {
                What::Node(inode, node) => {
                    if !is_known && node.kind == Kind::Directory && self.number_of(inode).await? != Ok(number) {
                        return Ok(Err(Refusal::NotFound));
                    }
                    return Ok(Ok((inode, node)));
                }
                What::AtTarget(_, seen) => seen,
                What::Refused(refusal) => return Ok(Err(refusal)),
            };
            if number.is_some_and(|number| number != seen.number) {
                return Ok(Err(Refusal::NotFound));
            }
            if !rights::may_import(by, &seen.node) {
                return Ok(Err(NOT_ALLOWED));
            }
            let fresh = self.number()?;
            let placed = seen.placed(Inode(fresh));
            let operation = Operation::Import { at: at.clone(), fresh, node: seen.node, placed };
            // Another manager may have been faster, or a program may have made something there.
            match self.commits.perform(&operation).await? {
                Ended::Before | Ended::Reply(_) => is_known = true,
                Ended::Refused(Refusal::Exists) => {}
                Ended::Refused(refusal) => return Ok(Err(refusal)),
            }
        }
    }

    /// The number that the target has for a directory; `None`: the target does not have it.
    async fn number_of(&self, directory: Inode) -> Result<Result<Option<u64>, Refusal>, Unavailable> {
        if self.store.read(&[Key::Unseen(directory)], &[]).await?.keys.iter().any(Option::is_some) {
            return Ok(Ok(None));
        }
        let number =
            |target: &Site, path: &Path| Ok(look::directory(target, path)?.map(|directory| Some(directory.number())));
        Ok(self.at_whereabouts(directory, number).await?.map(|found| found.map(|(_, number)| number)))
    }

    /// What the pool has put last at a name of a directory of the target on which a file is drained.
    pub(super) async fn recorded(
        &self,
        inode: Inode,
        directory: u64,
        name: &Name,
        within: Option<Within>,
    ) -> Result<Reply, Unavailable> {
        let mount = match self.mount_of(inode, within).await? {
            Ok(mount) => mount,
            Err(refusal) => return Ok(Reply::Refused(refusal)),
        };
        let read = self.store.read(&[Key::Placed(mount, directory, name.clone())], &[]).await?;
        Ok(Reply::Recorded(match &values(&read)[..] {
            [Some(Value::Placed(placed))] => Some(*placed),
            _ => None,
        }))
    }

    /// Where the target has a file with this path as long as changes of names wait in the journal.
    pub(super) async fn before(&self, inode: Inode, path: &Path, within: Option<Within>) -> Result<Reply, Unavailable> {
        let mount = match self.mount_of(inode, within).await? {
            Ok(mount) => mount,
            Err(refusal) => return Ok(Reply::Refused(refusal)),
        };
        let _one_of_few = JOURNALS.acquire().await;
        let read = self.store.read(&[], &[Prefix::Journal(mount)]).await?;
        Ok(Reply::Before(read.prefixes.first().map(|journal| lookup::places(path, journal)).unwrap_or_default()))
    }

    /// To which mount a node belongs, for who may see it.
    async fn mount_of(&self, inode: Inode, within: Option<Within>) -> Result<Result<MountId, Refusal>, Unavailable> {
        let read = self.store.read(&[Key::Node(inode)], &[]).await?;
        if within.is_some_and(|within| !within.has(&read)) {
            return Ok(Err(NOT_ALLOWED));
        }
        Ok(match &values(&read)[..] {
            [Some(Value::Node(node))] => Ok(node.mount),
            _ => Err(Refusal::NotFound),
        })
    }

    /// What an operation needs to know of the target, before it takes place in the pool: what it changes is imported, and what is in its
    /// way there is a refusal.
    pub(super) async fn look_at_target(
        &self,
        by: &Claims,
        operation: &Operation,
    ) -> Result<Option<Refusal>, Unavailable> {
        let within = Within::of(by);
        if let Some((at, _)) = operation.makes() {
            return self.is_taken(at, within).await;
        }
        match operation {
            Operation::Link { at, .. } => self.in_the_way(at, within).await,
            Operation::Unlink { at, .. } => Ok(unless_known(self.bring(by, at, within).await?).err()),
            Operation::RemoveDirectory { at, .. } => match unless_known(self.bring(by, at, within).await?) {
                Ok(Some((inode, node))) if node.kind == Kind::Directory => self.is_empty(inode).await,
                Ok(_) => Ok(None),
                Err(refusal) => Ok(Some(refusal)),
            },
            Operation::Rename { from, to, replace, .. } => {
                let moved = match unless_known(self.bring(by, from, within).await?) {
                    Ok(moved) => moved,
                    Err(refusal) => return Ok(Some(refusal)),
                };
                if moved.is_none() || !replace {
                    return self.in_the_way(to, within).await;
                }
                match (moved, unless_known(self.bring(by, to, within).await?)) {
                    (_, Err(refusal)) => Ok(Some(refusal)),
                    (Some((moved, of)), Ok(Some((inode, node))))
                        if moved != inode && of.kind == Kind::Directory && node.kind == Kind::Directory =>
                    {
                        self.is_empty(inode).await
                    }
                    _ => Ok(None),
                }
            }
            _ => Ok(None),
        }
    }

    /// Refuses what is to be made at a name that the pool or the target has: creations are attempted as if the name were free, and one
    /// that is not would take those with which it shares a transaction a second one.
    async fn is_taken(&self, at: &At, within: Option<Within>) -> Result<Option<Refusal>, Unavailable> {
        Ok(match self.find(at.0, &Path(vec![at.1.clone()]), within).await? {
            What::AtTarget(..) | What::Node(..) => Some(Refusal::Exists),
            What::Refused(Refusal::NotFound) => None,
            What::Refused(refusal) => Some(refusal),
        })
    }

    /// Refuses what is to be made at a name that the target alone has.
    async fn in_the_way(&self, at: &At, within: Option<Within>) -> Result<Option<Refusal>, Unavailable> {
        Ok(match self.find(at.0, &Path(vec![at.1.clone()]), within).await? {
            What::AtTarget(..) => Some(Refusal::Exists),
            What::Node(..) | What::Refused(Refusal::NotFound) => None,
            What::Refused(refusal) => Some(refusal),
        })
    }

    /// Refuses to remove a directory in which something is at the target alone. What is there until the journal is replayed is none.
    async fn is_empty(&self, directory: Inode) -> Result<Option<Refusal>, Unavailable> {
        let Some(of) = self.pools(directory, None).await? else { return Ok(None) };
        let known = |name: &Name| of.entries.contains_key(name) || of.hidden.contains(name);
        if of.is_unseen {
            return Ok(None);
        }
        let names = |target: &Site, path: &Path| {
            look::directory(target, path)?.map(|directory| directory.names().map(Some)).transpose()
        };
        Ok(match self.at_whereabouts(directory, names).await? {
            Ok(Some((_, names))) => names.iter().any(|name| !known(name)).then_some(Refusal::NotEmpty),
            Ok(None) => None,
            Err(refusal) => Some(refusal),
        })
    }

    /// What the pool has of a directory; `None`: it is none.
    async fn pools(&self, directory: Inode, within: Option<Within>) -> Result<Option<Pools>, Unavailable> {
        let keys = [Key::Node(directory), Key::Unseen(directory)];
        let read = self.store.read(&keys, &[Prefix::Entries(directory), Prefix::Hidden(directory)]).await?;
        let is_unseen = match &values(&read)[..] {
            [Some(Value::Node(node)), unseen] if node.kind == Kind::Directory => unseen.is_some(),
            _ => return Ok(None),
        };
        if within.is_some_and(|within| !within.has(&read)) {
            return Ok(None);
        }
        let mut of = Pools { is_unseen, ..Pools::default() };
        for (key, stored) in read.prefixes.into_iter().flatten() {
            match (key, stored.value) {
                (Key::Entry(_, name), Value::Entry(inode)) => drop(of.entries.insert(name, inode)),
                (Key::Hidden(_, name), _) => drop(of.hidden.insert(name)),
                _ => {}
            }
        }
        Ok(Some(of))
    }

    /// What is in a directory, behind a name; as much as an answer takes.
    pub(super) async fn read_dir(
        &self,
        directory: Inode,
        path: &Path,
        after: Option<&Name>,
        within: Option<Within>,
    ) -> Result<Reply, Unavailable> {
        let after = after.cloned();
        let refused = |refusal| Ok(Reply::Refused(refusal));
        match self.find(directory, path, within).await? {
            What::Node(inode, node) if node.kind == Kind::Directory => {
                let Some(of) = self.pools(inode, within).await? else { return refused(Refusal::NotFound) };
                let of = Arc::new(of);
                let found = match of.is_unseen {
                    true => Ok(None),
                    false => {
                        let (of, after) = (Arc::clone(&of), after.clone());
                        let look = move |target: &Site, path: &Path| {
                            let Some(directory) = look::directory(target, path)? else { return Ok(None) };
                            page(&of, directory.names()?, Some(&directory), after.as_ref()).map(|page| Some(Some(page)))
                        };
                        self.at_whereabouts(inode, look).await?
                    }
                };
                match found {
                    Ok(Some((_, page))) => self.entries(inode, page, within).await,
                    // The target does not have it.
                    Ok(None) => match page(&of, Vec::new(), None, after.as_ref()) {
                        Ok(page) => self.entries(inode, page, within).await,
                        Err(error) => Err(Unavailable(error.to_string())),
                    },
                    Err(refusal) => refused(refusal),
                }
            }
            What::AtTarget(Place { mount, path }, seen) if seen.node.kind == Kind::Directory => {
                let look = move |target: &Site| match look::directory(target, &path)? {
                    Some(directory) => {
                        page(&Pools::default(), directory.names()?, Some(&directory), after.as_ref()).map(Some)
                    }
                    None => Ok(None),
                };
                match self.at_target(mount, look).await? {
                    Ok(Some(page)) => self.entries(directory, page, within).await,
                    Ok(None) => refused(Refusal::NotFound),
                    Err(refusal) => refused(refusal),
                }
            }
            What::Node(..) | What::AtTarget(..) => refused(Refusal::NotADirectory),
            What::Refused(refusal) => refused(refusal),
        }
    }

    /// What the names of a page stand for.
    async fn entries(&self, directory: Inode, page: Page, within: Option<Within>) -> Result<Reply, Unavailable> {
        let keys: Vec<Key> =
            page.names.iter().filter_map(|(_, what)| what.as_ref().ok()).copied().map(Key::Node).collect();
        let nodes = self.store.read(&keys, &[]).await?.keys;
        let directories = self.directories(&keys, &nodes).await?;
        let mut nodes = nodes.into_iter();
        let mut listed = Vec::with_capacity(page.names.len());
        for (name, what) in page.names {
            let (inode, node, at_target) = match what {
                Err(seen) => (Inode(seen.number), seen.node, true),
                Ok(inode) => match nodes.next().flatten().map(|stored| stored.value) {
                    Some(Value::Node(node)) if node.kind != Kind::Directory => (inode, node, false),
                    Some(Value::Node(_)) if directories.contains_key(&inode) => {
                        (inode, directories[&inode].clone(), false)
                    }
                    // It ended between the two reads: the name may stand for another by now.
                    _ => match self.lookup(directory, &Path(vec![name.clone()]), within).await? {
                        Reply::Found(inode, node) => (inode, node, false),
                        Reply::AtTarget(AtTarget { number, node, .. }) => (Inode(number), node, true),
                        _ => continue,
                    },
                },
            };
            listed.push(Listed { name, inode, node, at_target });
        }
        Ok(Reply::Entries(listed, page.more))
    }

    /// Those nodes that are directories, each as it was when its entries had changed last.
    async fn directories(&self, keys: &[Key], nodes: &[Option<Stored>]) -> Result<BTreeMap<Inode, Node>, Unavailable> {
        let is_directory = |stored: &Stored| matches!(&stored.value, Value::Node(node) if node.kind == Kind::Directory);
        let directories = keys.iter().zip(nodes).filter_map(|(key, stored)| match key {
            Key::Node(inode) if stored.as_ref().is_some_and(is_directory) => Some(*inode),
            _ => None,
        });
        let directories: Vec<Inode> = directories.collect();
        if directories.is_empty() {
            return Ok(BTreeMap::new());
        }
        let keys: Vec<Key> = directories.iter().flat_map(|of| [Key::Node(*of), Key::Changed(*of)]).collect();
        let read = self.store.read(&keys, &[]).await?.keys;
        let found = directories.into_iter().zip(read.chunks_exact(2)).filter_map(|(of, pair)| match pair {
            [Some(Stored { value: Value::Node(node), .. }), changed] => {
                let changed = changed.as_ref().map(|stored| &stored.value);
                Some((of, node.clone().with_changed_entries(changed)))
            }
            _ => None,
        });
        Ok(found.collect())
    }
}

/// What is not there is told by the operation itself.
fn unless_known<T>(found: Result<T, Refusal>) -> Result<Option<T>, Refusal> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Refusal::NotFound) => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

/// What the pool has of a directory.
#[derive(Default)]
struct Pools {
    entries: BTreeMap<Name, Inode>,
    /// Names that are not seen at the target.
    hidden: BTreeSet<Name>,
    /// Nor is anything else there.
    is_unseen: bool,
}

/// A part of a directory's names, each with the pool's number or what the target has.
struct Page {
    names: Vec<(Name, Result<Inode, Box<Seen>>)>,
    more: bool,
}

/// The next names of a directory, of the pool's and those that the target has.
fn page(
    of: &Pools,
    at_target: Vec<Name>,
    directory: Option<&look::Directory>,
    after: Option<&Name>,
) -> std::io::Result<Page> {
    let until = Instant::now() + ENTRIES_TIME;
    let theirs = at_target.into_iter().filter(|name| !of.entries.contains_key(name) && !of.hidden.contains(name));
    let mut all: Vec<(Name, Option<Inode>)> = theirs.map(|name| (name, None)).collect();
    all.extend(of.entries.iter().map(|(name, inode)| (name.clone(), Some(*inode))));
    all.retain(|(name, _)| after.is_none_or(|after| name > after));
    all.sort_unstable();
    let (mut names, mut rest) = (Vec::new(), all.into_iter());
    for (name, inode) in rest.by_ref() {
        match (inode, directory) {
            (Some(inode), _) => names.push((name, Ok(inode))),
            (None, Some(directory)) => {
                if let Some(seen) = directory.find(&name)? {
                    names.push((name, Err(seen)));
                }
            }
            (None, None) => {}
        }
        if !names.is_empty() && (names.len() >= ENTRIES || Instant::now() >= until) {
            break;
        }
    }
    Ok(Page { names, more: rest.next().is_some() })
}
