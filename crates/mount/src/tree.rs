//! Names and attributes: what the kernel asks about nodes, asked of the pool.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use fuser::{Errno, FileAttr, INodeNo, Notifier};
use surgetank_pool::client::{Error, Owner, PoolClient, Stat};
use surgetank_pool::manager::ASIDE;
use surgetank_pool_core::id::{Inode, Version};
use surgetank_pool_core::meta::operation::{At, Refusal};
use surgetank_pool_core::meta::value::{Attributes, Special};
use surgetank_pool_core::meta::{FileState, Name};

use crate::attributes::attributes;
use crate::errno::{errno, stale};
use crate::files::Files;
use crate::locks::Locks;
use crate::numbers::Numbers;
use crate::sessions::Sessions;

/// A mounted pool.
pub(crate) struct Tree {
    pub(crate) sessions: Sessions,
    pub(crate) files: Files,
    pub(crate) locks: Locks,
    /// Tells the kernel to drop what it has; none before the file system is mounted.
    pub(crate) notifier: OnceLock<Notifier>,
    /// How long a call waits for the pool before it fails.
    pub(crate) timeout: Duration,
    pub(crate) numbers: Numbers,
    /// Files that programs have closed, and whose handles the kernel has not released yet.
    pub(crate) closed: Mutex<BTreeSet<Inode>>,
    /// The commit of which the kernel may have pages.
    pub(crate) cached: Mutex<BTreeMap<Inode, Version>>,
}

/// What to set of a node.
pub(crate) struct Change {
    pub(crate) size: Option<u64>,
    pub(crate) attributes: Attributes,
    pub(crate) handle: Option<u64>,
}

impl Tree {
    pub(crate) fn new(sessions: Sessions, timeout: Duration) -> Self {
        let numbers = Numbers::new(sessions.present().root());
        Self {
            sessions,
            files: Files::default(),
            locks: Locks::default(),
            notifier: OnceLock::new(),
            timeout,
            numbers,
            closed: Mutex::default(),
            cached: Mutex::default(),
        }
    }

    pub(crate) async fn client(&self) -> Result<Arc<PoolClient>, Errno> {
        self.sessions.client().await.map_err(|error| {
            tracing::error!("{error}");
            errno(&error)
        })
    }

    /// The pool's number of what the kernel names; what the target alone has is imported, for something of it is about to change.
    pub(crate) async fn inode(&self, number: INodeNo) -> Result<Inode, Errno> {
        if let Some(inode) = self.numbers.inode(number) {
            return Ok(inode);
        }
        // Each directory on the way keeps its number here: whoever stands in it would stand nowhere otherwise.
        for above in self.numbers.way_to(number) {
            self.import(above).await?;
        }
        self.import(number).await
    }

    async fn import(&self, number: INodeNo) -> Result<Inode, Errno> {
        let (directory, path) = self.numbers.place(number)?;
        let client = self.client().await?;
        let what = path.0.last().map(Name::to_string).unwrap_or_default();
        let at_target = self.numbers.number_at_target(number);
        let inode = client.import(directory, &path, at_target, &what).await.map_err(|error| stale(&error))?.inode;
        self.numbers.imported(number, inode);
        self.files.imported(number, inode);
        Ok(inode)
    }

    /// The attributes of what the pool has.
    pub(crate) fn attributes(&self, stat: &Stat) -> FileAttr {
        self.attributes_as(self.numbers.number(stat.inode), stat)
    }

    fn attributes_as(&self, number: INodeNo, stat: &Stat) -> FileAttr {
        let file = if stat.at_target { None } else { self.files.find(stat.inode) };
        attributes(number, stat, file.and_then(|file| file.uncommitted()))
    }

    /// The attributes of what has a name.
    pub(crate) fn attributes_at(&self, parent: INodeNo, name: &Name, stat: &Stat) -> FileAttr {
        self.attributes_named(parent, name, stat, false)
    }

    /// The same of an entry of a directory that was read a moment ago.
    pub(crate) fn attributes_listed(&self, parent: INodeNo, name: &Name, stat: &Stat) -> FileAttr {
        self.attributes_named(parent, name, stat, true)
    }

    fn attributes_named(&self, parent: INodeNo, name: &Name, stat: &Stat, was: bool) -> FileAttr {
        match stat.at_target {
            true => self.attributes_as(self.numbers.at_target(parent, name, stat.inode.0, was), stat),
            false => self.attributes(stat),
        }
    }

    pub(crate) fn cached(&self) -> MutexGuard<'_, BTreeMap<Inode, Version>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A name that may be given or taken away: the target keeps what has no name yet under one that is none of the mount's.
    pub(crate) async fn at(&self, parent: INodeNo, name: &OsStr) -> Result<At, Errno> {
        if parent == INodeNo::ROOT && name == OsStr::new(ASIDE) {
            return Err(Errno::EPERM);
        }
        let name = checked(name)?;
        Ok((self.inode(parent).await?, name))
    }

    pub(crate) async fn lookup(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let (shown, name) = (name.to_string_lossy(), checked(name)?);
        let (directory, mut path) = self.numbers.place(parent)?;
        path.0.push(name.clone());
        let stat = self.client().await?.below(directory, &path, &shown).await.map_err(|error| errno(&error))?;
        // It may have been imported a moment ago, by a task that is about to say so.
        if stat.is_directory
            && !stat.at_target
            && let Some(number) = self.numbers.named(parent, &name)
            && self.inode(number).await.is_ok_and(|inode| inode == stat.inode)
        {
            return Ok(self.attributes_as(number, &stat));
        }
        Ok(self.attributes_at(parent, &name, &stat))
    }

    pub(crate) async fn stat(&self, number: INodeNo) -> Result<Stat, Errno> {
        let (directory, path) = self.numbers.place(number)?;
        let client = self.client().await?;
        client.below(directory, &path, &what(directory)).await.map_err(|error| stale(&error))
    }

    pub(crate) async fn get(&self, number: INodeNo) -> Result<FileAttr, Errno> {
        Ok(self.attributes_as(number, &self.stat(number).await?))
    }

    /// Where a file's bytes are.
    pub(crate) async fn state(&self, number: INodeNo) -> Result<Option<&'static str>, Errno> {
        let stat = self.stat(number).await?;
        let written = !stat.at_target && self.files.find(stat.inode).is_some_and(|file| file.is_dirty());
        let client = self.client().await?;
        client.state(&stat, written, &what(stat.inode)).await.map_err(|error| stale(&error))
    }

    pub(crate) async fn set(&self, number: INodeNo, change: Change) -> Result<FileAttr, Errno> {
        let inode = self.inode(number).await?;
        if let Some(size) = change.size {
            self.set_size(inode, size, change.handle).await?;
        }
        let wanted = change.attributes;
        if wanted != Attributes::default() {
            if wanted.modified.is_some() {
                // What is committed afterwards would count as a change.
                self.commit_open(inode).await?;
            }
            self.settle(None).await;
            let client = self.client().await?;
            client.set_attributes(inode, wanted, &what(inode)).await.map_err(|error| stale(&error))?;
        }
        self.get(number).await
    }

    pub(crate) async fn make_directory(&self, parent: INodeNo, name: &OsStr, owner: Owner) -> Result<FileAttr, Errno> {
        let at = self.at(parent, name).await?;
        self.settle(None).await;
        let (client, what) = (self.client().await?, name.to_string_lossy());
        let inode = client.make_directory_at(at, &what, owner).await.map_err(|error| errno(&error))?;
        let stat = client.node(inode, &what).await.map_err(|error| errno(&error))?;
        Ok(self.attributes(&stat))
    }

    pub(crate) async fn make_link(
        &self,
        parent: INodeNo,
        name: &OsStr,
        to: Vec<u8>,
        owner: Owner,
    ) -> Result<FileAttr, Errno> {
        let at = self.at(parent, name).await?;
        self.settle(None).await;
        let (client, what) = (self.client().await?, name.to_string_lossy());
        let inode = client.make_link_at(at, to, &what, owner).await.map_err(|error| errno(&error))?;
        let stat = client.node(inode, &what).await.map_err(|error| errno(&error))?;
        Ok(self.attributes(&stat))
    }

    pub(crate) async fn make_special(
        &self,
        parent: INodeNo,
        name: &OsStr,
        special: Special,
        owner: Owner,
    ) -> Result<FileAttr, Errno> {
        let at = self.at(parent, name).await?;
        self.settle(None).await;
        let (client, what) = (self.client().await?, name.to_string_lossy());
        let inode = client.make_special_at(at, special, &what, owner).await.map_err(|error| errno(&error))?;
        let stat = client.node(inode, &what).await.map_err(|error| errno(&error))?;
        Ok(self.attributes(&stat))
    }

    pub(crate) async fn remove_directory(&self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        let at = self.at(parent, name).await?;
        self.settle(None).await;
        let client = self.client().await?;
        client.remove_directory_at(at.clone(), &name.to_string_lossy()).await.map_err(|error| errno(&error))?;
        self.numbers.unnamed(parent, &at.1);
        Ok(())
    }

    pub(crate) async fn unlink(&self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        let at = self.at(parent, name).await?;
        self.settle(None).await;
        self.import_named(parent, &at.1).await?;
        let client = self.client().await?;
        self.keep_open(&client, &at).await?;
        client.unlink_at(at.clone(), &name.to_string_lossy()).await.map_err(|error| errno(&error))?;
        self.numbers.unnamed(parent, &at.1);
        Ok(())
    }

    /// Another name for what is there.
    pub(crate) async fn link(&self, number: INodeNo, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let (at, inode) = (self.at(parent, name).await?, self.inode(number).await?);
        self.settle(None).await;
        let client = self.client().await?;
        match client.link_node(inode, at, &name.to_string_lossy()).await {
            Ok(()) => self.get(number).await,
            Err(Error::Refused(_, Refusal::IsADirectory)) => Err(Errno::EPERM),
            Err(error) => Err(errno(&error)),
        }
    }

    pub(crate) async fn rename(
        &self,
        from: (INodeNo, &OsStr),
        to: (INodeNo, &OsStr),
        replace: bool,
    ) -> Result<(), Errno> {
        let what = format!("{} to {}", from.1.to_string_lossy(), to.1.to_string_lossy());
        let (parents, from, to) = ((from.0, to.0), self.at(from.0, from.1).await?, self.at(to.0, to.1).await?);
        self.settle(None).await;
        self.import_named(parents.0, &from.1).await?;
        let client = self.client().await?;
        if replace {
            self.import_named(parents.1, &to.1).await?;
            self.keep_open(&client, &to).await?;
        }
        client.rename_at(from.clone(), to.clone(), replace, &what).await.map_err(|error| errno(&error))?;
        self.numbers.unnamed(parents.0, &from.1);
        self.numbers.unnamed(parents.1, &to.1);
        Ok(())
    }

    /// What has a name keeps its number here when it loses that.
    async fn import_named(&self, parent: INodeNo, name: &Name) -> Result<(), Errno> {
        match self.numbers.named(parent, name) {
            Some(number) => self.inode(number).await.map(|_| ()),
            None => Ok(()),
        }
    }

    /// What loses its name stays as long as somebody here has it open.
    async fn keep_open(&self, client: &PoolClient, at: &At) -> Result<(), Errno> {
        if self.files.is_empty() {
            return Ok(());
        }
        let Ok(stat) = client.child(at.clone(), "").await else { return Ok(()) };
        let Some(file) = self.files.find(stat.inode).filter(|_| stat.state.is_some() && !stat.at_target) else {
            return Ok(());
        };
        let mut gate = file.gate.lock().await;
        if !gate.is_kept {
            if gate.writer.is_none() {
                client.keep(stat.inode, &file.what).await.map_err(|error| errno(&error))?;
            }
            gate.is_kept = true;
        }
        if gate.held.is_none() && stat.state == Some(FileState::Evicted) {
            match client.hold(stat.inode, &file.what).await {
                Ok(held) => gate.held = held,
                Err(error) => tracing::warn!("{}: whoever has it open may not read it any more: {error}", file.what),
            }
        }
        Ok(())
    }

    pub(crate) async fn entries(&self, number: INodeNo) -> Result<Vec<(Name, Stat)>, Errno> {
        let (directory, path) = self.numbers.place(number)?;
        let client = self.client().await?;
        let entries = client.entries(directory, &path, &what(directory)).await.map_err(|error| stale(&error))?;
        for (name, stat) in &entries {
            // As in a lookup: from here on the pool's number is known as that of the number that the kernel has.
            if stat.is_directory
                && !stat.at_target
                && let Some(known) = self.numbers.named(number, name)
            {
                let _ = self.inode(known).await;
            }
        }
        Ok(entries)
    }

    /// Closes what is still open, and ends the session: the file system is no longer mounted.
    pub(crate) async fn end(&self) {
        for file in self.files.all() {
            let mut gate = file.gate.lock().await;
            self.close_writer(&file, &mut gate).await;
        }
        if let Err(error) = self.sessions.present().finish().await {
            tracing::warn!("{error}");
        }
    }
}

/// A name that may be looked for.
pub(crate) fn checked(name: &OsStr) -> Result<Name, Errno> {
    match name.as_bytes() {
        bytes if bytes.len() > 255 => Err(Errno::ENAMETOOLONG),
        bytes => Name::new(bytes).map_err(|_| Errno::EINVAL),
    }
}

/// How the log names a node.
pub(crate) fn what(inode: Inode) -> String {
    format!("file {inode}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Pool, run, tree};

    /// The pool has what the kernel knows as something that the target alone has, and this mount is about to learn it.
    async fn imported_elsewhere(tree: &Tree, name: &str) -> INodeNo {
        let number = tree.lookup(INodeNo::ROOT, OsStr::new(name)).await.unwrap().ino;
        let (directory, path) = tree.numbers.place(number).unwrap();
        let at_target = tree.numbers.number_at_target(number);
        tree.client().await.unwrap().import(directory, &path, at_target, name).await.unwrap();
        number
    }

    #[test]
    fn a_directory_that_is_being_imported_has_the_number_that_the_kernel_knows() {
        run(async {
            let pool = Pool::new(1, 1, 12);
            let names = ["looked up", "listed"];
            names.iter().for_each(|name| std::fs::create_dir(pool.target().join(name)).unwrap());
            let tree = tree(&pool).await;
            let looked_up = imported_elsewhere(&tree, names[0]).await;
            let listed = imported_elsewhere(&tree, names[1]).await;
            assert_eq!(tree.lookup(INodeNo::ROOT, OsStr::new(names[0])).await.unwrap().ino, looked_up);
            let entries = tree.entries(INodeNo::ROOT).await.unwrap();
            let (name, stat) = entries.iter().find(|(name, _)| name.bytes() == names[1].as_bytes()).unwrap();
            assert!(!stat.at_target, "the pool has it");
            assert_eq!(tree.attributes_listed(INodeNo::ROOT, name, stat).ino, listed);
            assert_eq!(tree.inode(listed).await.unwrap(), stat.inode);
            tree.end().await;
        });
    }
}
