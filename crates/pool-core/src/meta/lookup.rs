//! What is at a path, in the pool and at its target.
//!
//! A mount shows the union of what the pool has and what lies at its target. A name that the pool does not know is looked for at the target
//! ([`Lookup::falls_to`]), where the present path of its directory may be a former one of the pool's ([`Whereabouts`]).
//!
//! Directories are walked one after the other, each read on its own, as programs know it. The last entry and the node that it stands for
//! are read at one revision: had the entry been read before the node, one that a rename replaced meanwhile would count as missing,
//! though something had that name all the time.

use crate::id::{Inode, MountId};
use crate::meta::key::{Key, Name, Prefix};
use crate::meta::operation::Refusal;
use crate::meta::store::Stored;
use crate::meta::value::{Change, Kind, Node, Path, Value};
use crate::planted::{Bug, planted};

/// A walk along a path.
#[derive(Clone, Debug)]
pub struct Lookup {
    at: Inode,
    /// What is left of the path, the last name first.
    names: Vec<Name>,
    /// What the last name stood for when it was read.
    guess: Option<Inode>,
    falls: bool,
}

/// What a path leads to: a file, directory or symbolic link.
pub type Found = Result<(Inode, Node), Refusal>;

impl Lookup {
    /// From a directory; an empty path is that itself.
    #[must_use]
    pub fn new(directory: Inode, path: &Path) -> Self {
        Self { at: directory, names: path.0.iter().rev().cloned().collect(), guess: None, falls: false }
    }

    /// The keys to read next, all at one revision.
    #[must_use]
    pub fn wants(&self) -> Vec<Key> {
        let mut keys = vec![Key::Node(self.at)];
        if let Some(name) = self.names.last() {
            let hidden = Key::Hidden(self.at, name.clone());
            keys.extend([Key::Entry(self.at, name.clone()), hidden, Key::Unseen(self.at)]);
        } else {
            keys.push(Key::Changed(self.at));
        }
        keys.extend(self.guess.into_iter().flat_map(|guess| [Key::Node(guess), Key::Changed(guess)]));
        keys
    }

    /// Once the path was not found: the last directory that the pool has of it, and the names below, if the target may have them.
    #[must_use]
    pub fn falls_to(&self) -> Option<(Inode, Path)> {
        self.falls.then(|| (self.at, Path(self.names.iter().rev().cloned().collect())))
    }

    /// What [`Lookup::wants`] stands for, in that order; `None`: more is to be read.
    pub fn read(&mut self, stored: &[Option<Stored>]) -> Option<Found> {
        let value = |at: usize| stored.get(at).and_then(Option::as_ref).map(|stored| &stored.value);
        let node = |at: usize, inode: Inode, changed: Option<usize>| match value(at) {
            Some(Value::Node(node)) => Ok((inode, node.clone().with_changed_entries(changed.and_then(value)))),
            _ => Err(Refusal::NotFound),
        };
        match (node(0, self.at, self.names.is_empty().then_some(1)), self.names.len()) {
            (found, 0) => return Some(found),
            (Ok((_, node)), _) if node.kind != Kind::Directory => return Some(Err(Refusal::NotADirectory)),
            (Err(refusal), _) => return Some(Err(refusal)),
            (Ok(_), _) => {}
        }
        let inode = match (value(1), self.guess) {
            (_, Some(guess)) if planted(Bug::EntryUnconfirmed) => guess,
            (Some(Value::Entry(inode)), _) => *inode,
            _ => {
                self.falls = value(2).is_none() && value(3).is_none() || planted(Bug::HiddenSeen);
                return Some(Err(Refusal::NotFound));
            }
        };
        if self.names.len() > 1 {
            self.names.pop();
            self.at = inode;
            return None;
        }
        match self.guess.replace(inode) {
            Some(guess) if guess == inode => Some(node(4, inode, Some(5))),
            _ => None,
        }
    }
}

/// Where the target has a directory now: its path, but for moves that the target has not seen. Of the oldest of these nobody knows: it may
/// have been made and not be on record. So there are one or two places to look at, in this order.
#[derive(Clone, Debug)]
pub struct Whereabouts {
    /// The directory and those above it, as far as they are known.
    chain: Vec<Inode>,
    mount: Option<MountId>,
}

impl Whereabouts {
    /// Of a directory.
    #[must_use]
    pub fn new(directory: Inode) -> Self {
        Self { chain: vec![directory], mount: None }
    }

    /// What to read next, all at one revision.
    #[must_use]
    pub fn wants(&self) -> (Vec<Key>, Vec<Prefix>) {
        (self.chain.iter().copied().map(Key::Node).collect(), self.mount.map(Prefix::Moved).into_iter().collect())
    }

    /// What [`Whereabouts::wants`] stands for, in that order; `None`: more is to be read.
    pub fn read(
        &mut self,
        nodes: &[Option<Stored>],
        moved: &[Vec<(Key, Stored)>],
    ) -> Option<Result<Vec<Path>, Refusal>> {
        let mut names = Vec::new();
        for at in 0..self.chain.len() {
            let Some(Value::Node(node)) = nodes.get(at).and_then(Option::as_ref).map(|stored| &stored.value) else {
                return Some(Err(Refusal::NotFound));
            };
            self.mount = Some(node.mount);
            let Some((parent, name)) = &node.at else {
                if names.is_empty() {
                    return Some(Ok(vec![Path::default()]));
                }
                names.reverse();
                return moved.first().map(|moved| Ok(places(&Path(names), moved)));
            };
            names.push(name.clone());
            // A directory has moved between two reads, or is read for the first time.
            if self.chain.get(at + 1) != Some(parent) {
                self.chain.truncate(at + 1);
                self.chain.push(*parent);
                return None;
            }
        }
        None
    }
}

/// Where the target may have what has this path now, while these entries of the journal are not on record. Of the oldest that names
/// something anew nobody knows: so there are one or two places, in this order.
#[must_use]
pub fn places(path: &Path, waiting: &[(Key, Stored)]) -> Vec<Path> {
    let mut waiting: Vec<&(Key, Stored)> = waiting.iter().collect();
    waiting.sort_by_key(|(key, stored)| std::cmp::Reverse((stored.created, key)));
    let mut named: Vec<(&Path, &Path)> = waiting
        .iter()
        .filter_map(|(_, stored)| match &stored.value {
            Value::Journal(Change::Rename { from, to } | Change::Link { from, to }) => Some((from, to)),
            _ => None,
        })
        .collect();
    if planted(Bug::MoveIgnored) {
        named.clear();
    }
    let mut places = vec![before(path, &named)];
    named.pop();
    places.push(before(path, &named));
    places.dedup();
    places
}

/// The path that something had before what has one of these paths got the other, the newest first.
fn before(path: &Path, named: &[(&Path, &Path)]) -> Path {
    let mut path = path.clone();
    for (from, to) in named {
        if path.0.starts_with(&to.0) {
            path.0.splice(..to.0.len(), from.0.iter().cloned());
        }
    }
    path
}
