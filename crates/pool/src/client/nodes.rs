//! Nodes by their numbers, as a file system of the kernel names them.
//!
//! `what` is how a node is named in errors.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use surgetank_pool_core::id::{Inode, Version};
use surgetank_pool_core::meta::operation::{At, Operation, Refusal, Reply as Done};
use surgetank_pool_core::meta::value::{Attributes, Path, Special, Times};
use surgetank_pool_core::meta::{FileState, Kind, Name, Node};

use tokio::time::Instant;

use super::reader::AtTarget;
use super::{Error, Inner, LOOK, PoolClient, Reader, Writer, senseless};
use crate::manager::{Listed, Reply, Request};

/// How long a file is looked for that loses its name: a rename of it may not have reached the target yet.
const HOLD: Duration = Duration::from_secs(2);

/// A file that stays readable: see [`PoolClient::hold`].
pub struct Held {
    inner: Arc<Inner>,
    inode: Inode,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.inner.held().remove(&self.inode);
    }
}

/// Mode, user, group.
pub type Owner = (u32, u32, u32);

/// What is known of a file, directory or symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stat {
    /// Its number.
    pub inode: Inode,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Whether it has a name: a root has none, nor has what was unlinked.
    pub is_named: bool,
    /// How many names it has.
    pub names: u32,
    /// Where a symbolic link points.
    pub link: Option<Vec<u8>>,
    /// What it is, if it is a FIFO, a socket or a device.
    pub special: Option<Special>,
    /// Mode, user, group.
    pub owner: Owner,
    /// When it was changed.
    pub times: Times,
    /// Bytes, as committed.
    pub size: u64,
    /// The newest commit.
    pub version: Version,
    /// Where a file's newest commit is.
    pub state: Option<FileState>,
    /// The newest commit is on its way to the target: nobody writes the file.
    pub draining: bool,
    /// A writer ended without a word, after the newest commit.
    pub torn: bool,
    /// The target alone has it: the number is that which it has there, and means nothing to the pool.
    pub at_target: bool,
}

impl Stat {
    pub(super) fn new(inode: Inode, node: Node) -> Self {
        let (is_directory, names) = (node.kind == Kind::Directory, node.count());
        let (mut state, mut link, mut special) = (None, None, None);
        match node.kind {
            Kind::File(of) => state = Some(of),
            Kind::Link(to) => link = Some(to),
            Kind::Special(of) => special = Some(of),
            Kind::Directory => {}
        }
        Self {
            inode,
            is_directory,
            names,
            is_named: node.at.is_some(),
            link,
            special,
            owner: node.owner,
            times: node.times,
            size: node.size,
            version: node.version,
            state,
            draining: node.published < node.journalled && node.journalled == node.version,
            torn: node.torn,
            at_target: false,
        }
    }

    /// Where a file's bytes are, as far as the store knows; `written`: whoever asks has written something that is not committed.
    fn state(&self, written: bool) -> Option<&'static str> {
        Some(match self.state? {
            FileState::Failed => "failed",
            FileState::Conflict => "conflict",
            _ if written => "staged",
            _ if self.torn => "torn",
            FileState::Created => "staged",
            FileState::Drained | FileState::Evicted => "drained",
            FileState::Replicated if self.draining => "draining",
            FileState::Replicated => "replicated",
        })
    }

    /// What lies at the target alone.
    fn at_target(number: u64, node: Node) -> Self {
        Self { is_named: true, names: 1, at_target: true, ..Self::new(Inode(number), node) }
    }
}

impl Inner {
    pub(super) async fn found(&self, request: Request, what: &str) -> Result<Stat, Error> {
        match self.ask(request).await? {
            Reply::Found(inode, node) => Ok(Stat::new(inode, node)),
            Reply::AtTarget(found) => Ok(Stat::at_target(found.number, found.node)),
            Reply::Refused(refusal) => Err(Error::Refused(what.to_owned(), refusal)),
            _ => Err(senseless()),
        }
    }

    fn unreadable(&self, what: &str, error: &impl std::fmt::Display) -> Error {
        let why = format!("at the target {}: {error}", self.target.display());
        Error::Unreadable { path: what.to_owned(), offset: 0, why }
    }
}

impl PoolClient {
    /// The mount's root.
    #[must_use]
    pub fn root(&self) -> Inode {
        self.inner.root
    }

    /// The mount's name in the pool.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.inner.config.mount
    }

    /// The directory that the mount is drained to, or the bucket's address.
    #[must_use]
    pub fn target(&self) -> &std::path::Path {
        &self.inner.target
    }

    /// Whether the session has ended in the store: everything that is asked of it fails.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.inner.over.load(std::sync::atomic::Ordering::Relaxed)
    }

    /// What is known of a node.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn node(&self, inode: Inode, what: &str) -> Result<Stat, Error> {
        self.below(inode, &Path::default(), what).await
    }

    /// Whether each committed chunk of a file has all its copies, as a manager sees the benefactors now.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn is_whole(&self, inode: Inode, what: &str) -> Result<bool, Error> {
        match self.inner.ask(Request::Whole(inode)).await? {
            Reply::Whole(is_so) => Ok(is_so),
            Reply::Refused(refusal) => Err(Error::Refused(what.to_owned(), refusal)),
            _ => Err(senseless()),
        }
    }

    /// Where a file's bytes are, in one word; `written`: this session has written something that is not committed. `None`: it is no file.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn state(&self, stat: &Stat, written: bool, what: &str) -> Result<Option<&'static str>, Error> {
        Ok(match stat.state(written) {
            Some("replicated" | "draining") if !self.is_whole(stat.inode, what).await? => Some("repairing"),
            state => state,
        })
    }

    /// What is at a name.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn child(&self, (directory, name): At, what: &str) -> Result<Stat, Error> {
        self.below(directory, &Path(vec![name]), what).await
    }

    /// What is at a path below a directory, in the pool or at the target.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn below(&self, directory: Inode, path: &Path, what: &str) -> Result<Stat, Error> {
        self.inner.found(Request::Lookup(directory, path.clone()), what).await
    }

    /// What is at a path below a directory becomes the pool's, if the target alone has it: so begins every change of it. `number`: only
    /// if it is that which the target calls so; of a file that the pool has by now this is not asked.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn import(&self, directory: Inode, path: &Path, number: Option<u64>, what: &str) -> Result<Stat, Error> {
        self.inner.found(Request::Import(directory, path.clone(), number), what).await
    }

    /// Opens a file that the target alone has, at a path below a directory, by the number that it has there; it, and its
    /// bytes. `None`: the pool has it by now.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn open_at_target(
        &self,
        directory: Inode,
        path: &Path,
        number: u64,
        what: &str,
    ) -> Result<Option<(File, u64)>, Error> {
        let until = self.inner.until();
        if self.inner.is_in_bucket() {
            // The pool remembers what it has seen, and it is read as any file that the pool has drained.
            return self.import(directory, path, Some(number), what).await.map(|_| None);
        }
        loop {
            let found = match self.inner.ask(Request::Lookup(directory, path.clone())).await? {
                Reply::AtTarget(found) if found.number == number => found,
                Reply::AtTarget(_) => return Err(Error::Refused(what.to_owned(), Refusal::NotFound)),
                Reply::Found(..) => return Ok(None),
                Reply::Refused(refusal) => return Err(Error::Refused(what.to_owned(), refusal)),
                _ => return Err(senseless()),
            };
            let target = self.inner.target.clone();
            let opened = tokio::task::spawn_blocking(move || {
                let file = crate::beneath::file(&target, &found.path)?;
                let of = file.metadata()?;
                let is_same = of.ino() == found.number;
                if is_same { Ok((file, of.len())) } else { Err(std::io::Error::other("another has taken its place")) }
            });
            match opened.await {
                Ok(Ok(opened)) => return Ok(Some(opened)),
                // It was moved or replaced between the two looks.
                Ok(Err(_)) if Instant::now() < until => tokio::time::sleep(LOOK).await,
                Ok(Err(error)) => return Err(self.inner.unreadable(what, &error)),
                Err(error) => return Err(self.inner.unreadable(what, &error)),
            }
        }
    }

    /// What is in a directory, in the order of the names.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn entries(&self, directory: Inode, path: &Path, what: &str) -> Result<Vec<(Name, Stat)>, Error> {
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            match self.inner.ask(Request::ReadDir(directory, path.clone(), after.clone())).await? {
                Reply::Entries(listed, more) => {
                    after = listed.last().map(|listed| listed.name.clone()).or(after);
                    all.extend(listed.into_iter().map(|Listed { name, inode, node, at_target }| match at_target {
                        true => (name, Stat::at_target(inode.0, node)),
                        false => (name, Stat::new(inode, node)),
                    }));
                    if !more {
                        return Ok(all);
                    }
                }
                Reply::Refused(refusal) => return Err(Error::Refused(what.to_owned(), refusal)),
                _ => return Err(senseless()),
            }
        }
    }

    /// Makes a file that is not there, and opens it for writing.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn create_at(&self, at: At, what: &str, owner: Owner) -> Result<Writer, Error> {
        let inner = &self.inner;
        let fresh = inner.number().await?;
        let writer = (inner.session, inner.lease);
        inner.operate(what, &Operation::Create { at, fresh, writer, owner }).await?;
        inner.opened(what, Inode(fresh))?;
        Ok(Writer::new(inner.clone(), what, (Inode(fresh), owner.1), Version::NONE, 0))
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn make_directory_at(&self, at: At, what: &str, owner: Owner) -> Result<Inode, Error> {
        let (fresh, journal) = (self.inner.number().await?, self.inner.number().await?);
        self.inner.operate(what, &Operation::MakeDirectory { at, fresh, journal, owner }).await?;
        Ok(Inode(fresh))
    }

    /// Makes a symbolic link.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn make_link_at(&self, at: At, to: Vec<u8>, what: &str, owner: Owner) -> Result<Inode, Error> {
        let (fresh, journal) = (self.inner.number().await?, self.inner.number().await?);
        self.inner.operate(what, &Operation::MakeLink { at, fresh, journal, owner, to }).await?;
        Ok(Inode(fresh))
    }

    /// Moves a file or directory; `replace`: in the place of what is there.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn rename_at(&self, from: At, to: At, replace: bool, what: &str) -> Result<(), Error> {
        let operation = Operation::Rename { from, to, replace, journal: self.inner.number().await? };
        self.inner.operate(what, &operation).await.map(|_| ())
    }

    /// Unlinks a file or symbolic link.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn unlink_at(&self, at: At, what: &str) -> Result<(), Error> {
        let operation = Operation::Unlink { at, journal: self.inner.number().await? };
        self.inner.operate(what, &operation).await.map(|_| ())
    }

    /// Gives a file or symbolic link another name.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn link_node(&self, inode: Inode, at: At, what: &str) -> Result<(), Error> {
        let operation = Operation::Link { inode, at, journal: self.inner.number().await? };
        self.inner.operate(what, &operation).await.map(|_| ())
    }

    /// Removes a directory in which nothing is.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn remove_directory_at(&self, at: At, what: &str) -> Result<(), Error> {
        let operation = Operation::RemoveDirectory { at, journal: self.inner.number().await? };
        self.inner.operate(what, &operation).await.map(|_| ())
    }

    /// Makes a FIFO, a socket or a device.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn make_special_at(&self, at: At, special: Special, what: &str, owner: Owner) -> Result<Inode, Error> {
        let (fresh, journal) = (self.inner.number().await?, self.inner.number().await?);
        let operation = Operation::MakeSpecial { at, fresh, journal, owner, special };
        self.inner.operate(what, &operation).await?;
        Ok(Inode(fresh))
    }

    /// Sets permissions, owner or times.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn set_attributes(&self, inode: Inode, attributes: Attributes, what: &str) -> Result<(), Error> {
        let operation = Operation::SetAttributes { inode, attributes, journal: self.inner.number().await? };
        self.inner.operate(what, &operation).await.map(|_| ())
    }

    /// Opens a file for writing.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn write_node(&self, inode: Inode, what: &str) -> Result<Writer, Error> {
        self.write_opened(inode, what, false).await
    }

    /// Opens a file for writing, and cuts it off at its beginning: nothing that it has is read. As long as no other session writes it, it
    /// is as it was until the first commit.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn rewrite_node(&self, inode: Inode, what: &str) -> Result<Writer, Error> {
        self.write_opened(inode, what, true).await
    }

    async fn write_opened(&self, inode: Inode, what: &str, rewrites: bool) -> Result<Writer, Error> {
        self.inner.opened(what, inode)?;
        let opened = self.open_for_writing(inode, what, rewrites).await;
        if opened.is_err() {
            // Whoever opened the file next would cut it off for this session.
            if rewrites {
                let _ = self.inner.close(what, inode).await;
            }
            self.inner.open().remove(&inode);
        }
        opened
    }

    async fn open_for_writing(&self, inode: Inode, what: &str, rewrites: bool) -> Result<Writer, Error> {
        let inner = &self.inner;
        loop {
            let (on, cut_first) = self.register(inode, what, rewrites).await?;
            let content = inner.content(what, inode).await?;
            let (version, size, groups) = (content.node.version, content.node.size, content.groups.len());
            // What is to be cut off is what was there then.
            if version != on && (cut_first || rewrites) {
                continue;
            }
            // What the pool does not have, and what is at the target is somebody else's.
            let in_part = !rewrites && !cut_first;
            if in_part && content.node.kind == Kind::File(FileState::Conflict) && groups == 0 && size > 0 {
                let why = "somebody else has changed what is at its place at the target".to_owned();
                return Err(Error::Unreadable { path: what.to_owned(), offset: 0, why });
            }
            let mut writer = Writer::new(inner.clone(), what, (inode, content.node.owner.1), version, size);
            writer.has(content);
            match (cut_first, rewrites) {
                (true, _) if writer.commit_empty().await? => return Ok(writer),
                // Somebody was faster.
                (true, _) => {
                    drop(writer);
                    inner.opened(what, inode)?;
                }
                (false, true) => return writer.rewrite().await.map(|()| writer),
                (false, false) => return Ok(writer),
            }
        }
    }

    /// This session writes a file from now on; which version it has, and whether that is to be committed empty before anything else is.
    async fn register(&self, inode: Inode, what: &str, rewrites: bool) -> Result<(Version, bool), Error> {
        let writer = (self.inner.session, self.inner.lease);
        loop {
            match self.inner.operate(what, &Operation::OpenForWriting { inode, writer, rewrites }).await? {
                Some(Done::Version(version)) => return Ok((version, false)),
                Some(Done::CutFirst(version)) => return Ok((version, true)),
                Some(_) => return Err(senseless()),
                // The answer was lost: another one says the same, or what is true by now.
                None => {}
            }
        }
    }

    /// This session has a file open as a writer does, so that it stays when it is unlinked.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn keep(&self, inode: Inode, what: &str) -> Result<(), Error> {
        self.register(inode, what, false).await.map(|_| ())
    }

    /// Has a file that rests on what the target has stay readable, and writable in part, as long as the answer lives: the target may lose
    /// it. `None`: it does not.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn hold(&self, inode: Inode, what: &str) -> Result<Option<Held>, Error> {
        let content = self.inner.content(what, inode).await?;
        if self.inner.is_in_bucket() {
            // What the store has removed, nobody reads any more.
            return Ok(None);
        }
        let is_drained = content.node.kind == Kind::File(FileState::Drained);
        let Some(base) = content.node.rests_on().filter(|base| base.draft.is_none() && !is_drained) else {
            return Ok(None);
        };
        let until = self.inner.until().min(Instant::now() + HOLD);
        let opened = AtTarget::open(&self.inner, what, (inode, &content.node), base, until).await?;
        self.inner.held().insert(inode, opened);
        Ok(Some(Held { inner: self.inner.clone(), inode }))
    }

    /// What [`PoolClient::keep`] did is over.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn keep_no_more(&self, inode: Inode, what: &str) -> Result<(), Error> {
        self.inner.close(what, inode).await
    }

    /// Opens a file for reading: what is committed now.
    ///
    /// # Errors
    /// [`Error`].
    pub async fn read_node(&self, inode: Inode, what: &str) -> Result<Reader, Error> {
        let content = self.inner.content(what, inode).await?;
        Ok(Reader::new(self.inner.clone(), what, inode, content))
    }
}
