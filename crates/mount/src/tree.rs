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
use surgetank_pool_core::meta::Name;
use surgetank_pool_core::meta::operation::{At, Refusal};
use surgetank_pool_core::meta::value::{Attributes, Special};

use crate::attributes::{attributes, inode, number, state};
use crate::errno::{errno, stale};
use crate::files::Files;
use crate::locks::Locks;
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
    root: Inode,
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
        let root = sessions.present().root();
        Self {
            sessions,
            files: Files::default(),
            locks: Locks::default(),
            notifier: OnceLock::new(),
            timeout,
            root,
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

    pub(crate) fn inode(&self, number: INodeNo) -> Inode {
        inode(self.root, number)
    }

    pub(crate) fn attributes(&self, stat: &Stat) -> FileAttr {
        let uncommitted = self.files.find(stat.inode).and_then(|file| file.uncommitted());
        attributes(number(self.root, stat.inode), stat, uncommitted)
    }

    pub(crate) fn cached(&self) -> MutexGuard<'_, BTreeMap<Inode, Version>> {
        self.cached.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A name that may be looked for.
    pub(crate) fn at(&self, parent: INodeNo, name: &OsStr) -> Result<At, Errno> {
        let bytes = name.as_bytes();
        if bytes.len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        let name = Name::new(bytes).map_err(|_| Errno::EINVAL)?;
        Ok((self.inode(parent), name))
    }

    /// A name that may be given: the target keeps what has no name yet under one that is none of the mount's.
    pub(crate) fn at_new(&self, parent: INodeNo, name: &OsStr) -> Result<At, Errno> {
        if parent == INodeNo::ROOT && name == OsStr::new(ASIDE) {
            return Err(Errno::EPERM);
        }
        self.at(parent, name)
    }

    pub(crate) async fn lookup(&self, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let at = self.at(parent, name)?;
        let stat = self.client().await?.child(at, &name.to_string_lossy()).await.map_err(|error| errno(&error))?;
        Ok(self.attributes(&stat))
    }

    pub(crate) async fn stat(&self, number: INodeNo) -> Result<Stat, Errno> {
        let inode = self.inode(number);
        self.client().await?.node(inode, &what(inode)).await.map_err(|error| stale(&error))
    }

    pub(crate) async fn get(&self, number: INodeNo) -> Result<FileAttr, Errno> {
        Ok(self.attributes(&self.stat(number).await?))
    }

    /// Where a file's bytes are.
    pub(crate) async fn state(&self, number: INodeNo) -> Result<Option<&'static str>, Errno> {
        let stat = self.stat(number).await?;
        let written = self.files.find(stat.inode).is_some_and(|file| file.is_dirty());
        Ok(state(&stat, written))
    }

    pub(crate) async fn set(&self, number: INodeNo, change: Change) -> Result<FileAttr, Errno> {
        let inode = self.inode(number);
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
        let at = self.at_new(parent, name)?;
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
        let at = self.at_new(parent, name)?;
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
        let at = self.at_new(parent, name)?;
        self.settle(None).await;
        let (client, what) = (self.client().await?, name.to_string_lossy());
        let inode = client.make_special_at(at, special, &what, owner).await.map_err(|error| errno(&error))?;
        let stat = client.node(inode, &what).await.map_err(|error| errno(&error))?;
        Ok(self.attributes(&stat))
    }

    pub(crate) async fn remove_directory(&self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        let at = self.at(parent, name)?;
        self.settle(None).await;
        let client = self.client().await?;
        client.remove_directory_at(at, &name.to_string_lossy()).await.map_err(|error| errno(&error))
    }

    pub(crate) async fn unlink(&self, parent: INodeNo, name: &OsStr) -> Result<(), Errno> {
        let at = self.at(parent, name)?;
        self.settle(None).await;
        let client = self.client().await?;
        self.keep_open(&client, &at).await?;
        client.unlink_at(at, &name.to_string_lossy()).await.map_err(|error| errno(&error))
    }

    /// Another name for what is there.
    pub(crate) async fn link(&self, number: INodeNo, parent: INodeNo, name: &OsStr) -> Result<FileAttr, Errno> {
        let (at, inode) = (self.at_new(parent, name)?, self.inode(number));
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
        let (from, to) = (self.at(from.0, from.1)?, self.at_new(to.0, to.1)?);
        self.settle(None).await;
        let client = self.client().await?;
        if replace {
            self.keep_open(&client, &to).await?;
        }
        client.rename_at(from, to, replace, &what).await.map_err(|error| errno(&error))
    }

    /// What loses its name stays as long as somebody here has it open.
    async fn keep_open(&self, client: &PoolClient, at: &At) -> Result<(), Errno> {
        if self.files.is_empty() {
            return Ok(());
        }
        let Ok(stat) = client.child(at.clone(), "").await else { return Ok(()) };
        let Some(file) = self.files.find(stat.inode).filter(|_| stat.state.is_some()) else { return Ok(()) };
        let mut gate = file.gate.lock().await;
        if !gate.is_kept {
            if gate.writer.is_none() {
                client.keep(stat.inode, &file.what).await.map_err(|error| errno(&error))?;
            }
            gate.is_kept = true;
        }
        Ok(())
    }

    pub(crate) async fn entries(&self, number: INodeNo) -> Result<Vec<(Name, Stat)>, Errno> {
        let inode = self.inode(number);
        self.client().await?.entries(inode, &what(inode)).await.map_err(|error| stale(&error))
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

/// How the log names a node.
pub(crate) fn what(inode: Inode) -> String {
    format!("file {inode}")
}
