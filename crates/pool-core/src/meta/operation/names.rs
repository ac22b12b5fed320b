//! Operations on names.

use super::recorder::{Recorder, Stop};
use super::{At, Refusal, Reply};
use crate::id::{Inode, MountId, SessionId, Version};
use crate::meta::key::{Key, Prefix};
use crate::meta::store::{Compare, Lease};
use crate::meta::value::{Attributes, Change, FileState, HardLink, Kind, Node, Placed, Special, Times, Value};
use crate::planted::{Bug, planted};

type Answer = Result<Reply, Stop>;

/// Names of a file beside its first: all of them are in one value of the store, and in one entry of the journal.
const LINKS_MAX: usize = 1000;

impl Recorder<'_> {
    pub(super) fn create(
        &mut self,
        at: &At,
        fresh: u64,
        (session, lease): (SessionId, Lease),
        owner: (u32, u32, u32),
    ) -> Answer {
        let inode = Inode(fresh);
        self.new_node(at, inode, Kind::File(FileState::Created), owner)?;
        if self.stays(Key::Session(session))?.is_none() {
            return Err(Refusal::NotTheWriter.into());
        }
        self.put_leased(Key::Writer(inode, session), Value::Session(session), lease);
        Ok(Reply::Inode(inode))
    }

    pub(super) fn make_directory(&mut self, at: &At, fresh: u64, journal: u64, owner: (u32, u32, u32)) -> Answer {
        let inode = Inode(fresh);
        let mount = self.new_node(at, inode, Kind::Directory, owner)?.mount;
        let path = self.path(at)?;
        self.journal(mount, journal, Change::MakeDirectory(path));
        self.put(Key::Unseen(inode), Value::Hidden(journal));
        self.put(Key::Hides(mount, journal), Value::Hides(inode, None));
        Ok(Reply::Inode(inode))
    }

    pub(super) fn make_link(&mut self, at: &At, fresh: u64, journal: u64, owner: (u32, u32, u32), to: &[u8]) -> Answer {
        let inode = Inode(fresh);
        let mount = self.new_node(at, inode, Kind::Link(to.to_vec()), owner)?.mount;
        let path = self.path(at)?;
        self.journal(mount, journal, Change::MakeLink { path, to: to.to_vec() });
        Ok(Reply::Inode(inode))
    }

    pub(super) fn make_special(
        &mut self,
        at: &At,
        fresh: u64,
        journal: u64,
        owner: (u32, u32, u32),
        special: Special,
    ) -> Answer {
        let inode = Inode(fresh);
        let mount = self.new_node(at, inode, Kind::Special(special), owner)?.mount;
        let path = self.path(at)?;
        self.journal(mount, journal, Change::MakeSpecial { path, special, owner });
        Ok(Reply::Inode(inode))
    }

    pub(super) fn set_attributes(&mut self, inode: Inode, attributes: &Attributes, journal: u64) -> Answer {
        let mut node = self.node(inode)?.clone();
        if node.kind == Kind::Directory {
            let changed = self.seen(&Key::Changed(inode))?.map(|stored| &stored.value);
            node = node.with_changed_entries(changed);
        }
        let (mode, user, group) = node.owner;
        let owner =
            (attributes.mode.unwrap_or(mode), attributes.user.unwrap_or(user), attributes.group.unwrap_or(group));
        let times = Times {
            accessed: attributes.accessed.unwrap_or(node.times.accessed),
            modified: attributes.modified.unwrap_or(node.times.modified),
            changed: self.now(),
        };
        // A root's target is not the pool's to change, and what the target has not heard of is published with its attributes.
        if let (Some(at), true) = (&node.at, node.is_at_target()) {
            let path = self.path(at)?;
            let change = self.of_all_names(&node, Change::Attributes { path, owner, times }, Bug::OneNamePublished)?;
            self.journal(node.mount, journal, change);
        }
        if node.kind == Kind::Directory && attributes.modified.is_some() {
            self.delete(Key::Changed(inode));
        }
        self.put(Key::Node(inode), Value::Node(Node { owner, times, ..node }));
        Ok(Reply::Inode(inode))
    }

    /// A new node in a directory, which is returned.
    fn new_node(&mut self, at: &At, inode: Inode, kind: Kind, owner: (u32, u32, u32)) -> Result<Node, Stop> {
        let directory = self.directory(at.0)?;
        if self.get(Key::Entry(at.0, at.1.clone()))?.is_some() {
            return Err(Refusal::Exists.into());
        }
        self.put(Key::Entry(at.0, at.1.clone()), Value::Entry(inode));
        self.entries_changed(at.0);
        let node = Node::new(kind, directory.mount, Some(at.clone()), owner);
        self.put(Key::Node(inode), Value::Node(Node { times: Times::new(self.now()), ..node }));
        Ok(directory.clone())
    }

    /// What an entry stands for; both must stay as they are.
    fn entry(&mut self, at: &At) -> Result<Option<(Inode, Node)>, Stop> {
        self.directory(at.0)?;
        match self.get(Key::Entry(at.0, at.1.clone()))?.map(|stored| &stored.value) {
            Some(Value::Entry(inode)) => Ok(Some((*inode, self.node(*inode)?.clone()))),
            _ => Ok(None),
        }
    }

    pub(super) fn unlink(&mut self, at: &At, journal: u64) -> Answer {
        let (inode, node) = self.entry(at)?.ok_or(Refusal::NotFound)?;
        if node.kind == Kind::Directory {
            return Err(Refusal::IsADirectory.into());
        }
        if node.is_at_target() || node.covers_at(at) {
            let path = self.path(at)?;
            self.journal(node.mount, journal, Change::Remove(path));
            self.hide(at, node.mount, journal);
        }
        self.delete(Key::Entry(at.0, at.1.clone()));
        self.entries_changed(at.0);
        self.take_name(inode, node, at);
        Ok(Reply::Inode(inode))
    }

    /// What is in a directory changes now.
    fn entries_changed(&mut self, directory: Inode) {
        let now = self.now();
        self.put(Key::Changed(directory), Value::Moment(now));
    }

    /// A directory ends.
    fn end_directory(&mut self, directory: Inode) {
        self.delete(Key::Node(directory));
        self.delete(Key::Changed(directory));
    }

    /// The target has something under a name until an entry of the journal is replayed, and that is not to be seen there.
    fn hide(&mut self, at: &At, mount: MountId, journal: u64) {
        self.put(Key::Hidden(at.0, at.1.clone()), Value::Hidden(journal));
        self.put(Key::Hides(mount, journal), Value::Hides(at.0, Some(at.1.clone())));
    }

    pub(super) fn import(&mut self, at: &At, fresh: u64, node: &Node, placed: Option<(u64, Placed)>) -> Answer {
        let mount = self.directory(at.0)?.mount;
        if self.get(Key::Entry(at.0, at.1.clone()))?.is_some() {
            return Err(Refusal::Exists.into());
        }
        let is_hidden = self.get(Key::Hidden(at.0, at.1.clone()))?.is_some() || self.get(Key::Unseen(at.0))?.is_some();
        if is_hidden && !planted(Bug::HiddenSeen) {
            return Err(Refusal::NotFound.into());
        }
        let inode = Inode(fresh);
        if let Some((directory, placed)) = placed {
            self.put(Key::Placed(mount, directory, at.1.clone()), Value::Placed(placed));
        }
        self.put(Key::Entry(at.0, at.1.clone()), Value::Entry(inode));
        self.put(Key::Node(inode), Value::Node(Node { mount, at: Some(at.clone()), ..node.clone() }));
        Ok(Reply::Inode(inode))
    }

    pub(super) fn remove_directory(&mut self, at: &At, journal: u64) -> Answer {
        let (inode, node) = self.entry(at)?.ok_or(Refusal::NotFound)?;
        if node.kind != Kind::Directory {
            return Err(Refusal::NotADirectory.into());
        }
        self.is_empty(inode, Bug::DirectoryRemovedWithEntries)?;
        let path = self.path(at)?;
        self.journal(node.mount, journal, Change::Remove(path));
        self.hide(at, node.mount, journal);
        self.delete(Key::Entry(at.0, at.1.clone()));
        self.entries_changed(at.0);
        self.end_directory(inode);
        Ok(Reply::Done)
    }

    /// Refuses unless nothing is in a directory, also when the transaction takes place.
    fn is_empty(&mut self, directory: Inode, without: Bug) -> Result<(), Stop> {
        let entries = self.under(Prefix::Entries(directory))?;
        if let Some((entry, stored)) = entries.first() {
            // Enough to know that it is not empty.
            self.compare(Compare::Modified(entry.clone(), stored.modified));
            return if planted(Bug::RenameOverFullDirectory) { Ok(()) } else { Err(Refusal::NotEmpty.into()) };
        }
        if !planted(without) {
            self.compare(Compare::NoneUnder(Prefix::Entries(directory)));
        }
        Ok(())
    }

    pub(super) fn rename(&mut self, from: &At, to: &At, replace: bool, journal: u64) -> Answer {
        let (inode, node) = self.entry(from)?.ok_or(Refusal::NotFound)?;
        let replaced = self.entry(to)?;
        if replaced.is_some() && !replace {
            return Err(Refusal::Exists.into());
        }
        if replaced.as_ref().is_some_and(|(replaced, _)| *replaced == inode) {
            return Ok(Reply::Inode(inode));
        }
        let is_directory = node.kind == Kind::Directory;
        if is_directory {
            self.is_not_below(to.0, inode)?;
        }
        if let Some((replaced, old)) = &replaced {
            match (is_directory, old.kind == Kind::Directory) {
                (true, false) => return Err(Refusal::NotADirectory.into()),
                (false, true) => return Err(Refusal::IsADirectory.into()),
                (true, true) => {
                    self.is_empty(*replaced, Bug::DirectoryRemovedWithEntries)?;
                    self.end_directory(*replaced);
                }
                (false, false) => {
                    self.take_name(*replaced, old.clone(), to);
                }
            }
        }
        let in_the_way = replaced.is_some_and(|(_, old)| old.is_at_target() || old.covers_at(to));
        let known = node.is_at_target();
        let change = match (known, node.covers_at(from)) {
            (true, _) => Some(Change::Rename { from: self.path(from)?, to: self.path(to)? }),
            // What it was to take the place of has no name any more.
            (false, true) => Some(Change::Remove(self.path(from)?)),
            (false, false) => None,
        };
        if let Some(change) = change {
            if is_directory {
                self.put(Key::Moved(node.mount, journal), Value::Journal(change.clone()));
            }
            self.journal(node.mount, journal, change);
            self.hide(from, node.mount, journal);
        }
        self.delete(Key::Entry(from.0, from.1.clone()));
        self.put(Key::Entry(to.0, to.1.clone()), Value::Entry(inode));
        self.entries_changed(from.0);
        self.entries_changed(to.0);
        let moved = self.changed(node).moved(from, to, !known && in_the_way);
        self.put(Key::Node(inode), Value::Node(moved));
        Ok(Reply::Inode(inode))
    }

    /// Another name for a file or symbolic link.
    pub(super) fn link(&mut self, inode: Inode, at: &At, journal: u64) -> Answer {
        let node = self.node(inode)?.clone();
        if node.kind == Kind::Directory {
            return Err(Refusal::IsADirectory.into());
        }
        self.directory(at.0)?;
        if self.get(Key::Entry(at.0, at.1.clone()))?.is_some() {
            return Err(Refusal::Exists.into());
        }
        // What has lost all its names gets none any more.
        let first = node.at.clone().ok_or(Refusal::NotFound)?;
        if node.links.len() >= LINKS_MAX {
            return Err(Refusal::TooManyLinks.into());
        }
        if node.is_at_target() {
            let change = Change::Link { from: self.path(&first)?, to: self.path(at)? };
            self.journal(node.mount, journal, change);
        }
        self.put(Key::Entry(at.0, at.1.clone()), Value::Entry(inode));
        self.entries_changed(at.0);
        let mut node = self.changed(node);
        node.links.push(HardLink { at: at.clone(), covers: false });
        self.put(Key::Node(inode), Value::Node(node));
        Ok(Reply::Inode(inode))
    }

    /// The change of the first name, for all names of a node.
    pub(super) fn of_all_names(&mut self, node: &Node, change: Change, but: Bug) -> Result<Change, Stop> {
        if node.links.is_empty() || planted(but) {
            return Ok(change);
        }
        let also = node.links.iter().map(|link| self.path(&link.at)).collect::<Result<_, _>>()?;
        Ok(Change::Linked { change: Box::new(change), also })
    }

    /// A node loses a name. Without any a file stays for those who have it open; anything else ends.
    fn take_name(&mut self, inode: Inode, node: Node, at: &At) {
        let node = self.changed(node).without(at);
        match (&node.at, &node.kind) {
            (None, Kind::Link(_) | Kind::Special(_)) => self.delete(Key::Node(inode)),
            _ => self.put(Key::Node(inode), Value::Node(node)),
        }
    }

    /// Something of what the store has of a node changes now.
    fn changed(&self, node: Node) -> Node {
        let times = Times { changed: self.now(), ..node.times };
        Node { times, ..node }
    }

    /// Refuses if a directory is another or lies below it.
    fn is_not_below(&mut self, mut directory: Inode, other: Inode) -> Result<(), Stop> {
        loop {
            if directory == other {
                return Err(Refusal::IntoItself.into());
            }
            match &self.node(directory)?.at {
                Some((parent, _)) => directory = *parent,
                None => return Ok(()),
            }
        }
    }
}

impl Node {
    /// Whether the target has it, or will have it by what is in the journal.
    fn is_at_target(&self) -> bool {
        match self.kind {
            Kind::File(_) => self.journalled != Version::NONE,
            Kind::Directory | Kind::Link(_) | Kind::Special(_) => true,
        }
    }
}
