//! What is at a path.
//!
//! Directories are walked one after the other, each read on its own, as programs know it. The last entry and the node that it stands for
//! are read at one revision: had the entry been read before the node, one that a rename replaced meanwhile would count as missing,
//! though something had that name all the time.

use crate::id::Inode;
use crate::meta::key::{Key, Name};
use crate::meta::operation::Refusal;
use crate::meta::store::Stored;
use crate::meta::value::{Kind, Node, Path, Value};
use crate::planted::{Bug, planted};

/// A walk along a path.
#[derive(Clone, Debug)]
pub struct Lookup {
    at: Inode,
    /// What is left of the path, the last name first.
    names: Vec<Name>,
    /// What the last name stood for when it was read.
    guess: Option<Inode>,
}

/// What a path leads to: a file, directory or symbolic link.
pub type Found = Result<(Inode, Node), Refusal>;

impl Lookup {
    /// From a directory; an empty path is that itself.
    #[must_use]
    pub fn new(directory: Inode, path: &Path) -> Self {
        Self { at: directory, names: path.0.iter().rev().cloned().collect(), guess: None }
    }

    /// The keys to read next, all at one revision.
    #[must_use]
    pub fn wants(&self) -> Vec<Key> {
        let entry = self.names.last().map(|name| Key::Entry(self.at, name.clone()));
        std::iter::once(Key::Node(self.at)).chain(entry).chain(self.guess.map(Key::Node)).collect()
    }

    /// What [`Lookup::wants`] stands for, in that order; `None`: more is to be read.
    pub fn read(&mut self, stored: &[Option<Stored>]) -> Option<Found> {
        let value = |at: usize| stored.get(at).and_then(Option::as_ref).map(|stored| &stored.value);
        let node = |at: usize, inode: Inode| match value(at) {
            Some(Value::Node(node)) => Ok((inode, node.clone())),
            _ => Err(Refusal::NotFound),
        };
        match (node(0, self.at), self.names.len()) {
            (found, 0) => return Some(found),
            (Ok((_, node)), _) if node.kind != Kind::Directory => return Some(Err(Refusal::NotADirectory)),
            (Err(refusal), _) => return Some(Err(refusal)),
            (Ok(_), _) => {}
        }
        let inode = match (value(1), self.guess) {
            (_, Some(guess)) if planted(Bug::EntryUnconfirmed) => guess,
            (Some(Value::Entry(inode)), _) => *inode,
            _ => return Some(Err(Refusal::NotFound)),
        };
        if self.names.len() > 1 {
            self.names.pop();
            self.at = inode;
            return None;
        }
        match self.guess.replace(inode) {
            Some(guess) if guess == inode => Some(node(2, inode)),
            _ => None,
        }
    }
}
