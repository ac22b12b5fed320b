//! What files contain: opened, read, written, committed, closed.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use fuser::{Errno, FileAttr, INodeNo};
use surgetank_pool::client::{self, Owner, PoolClient, Writer};
use surgetank_pool_core::id::Inode;
use surgetank_pool_core::meta::operation::Refusal;
use tokio::time::Instant;

use crate::attributes::since_1970;
use crate::errno::{errno, sentence, stale};
use crate::files::{self, File, Gate, Handle};
use crate::holes::may_have;
use crate::tree::{Tree, what};

/// How a file was opened.
pub(crate) struct Opened {
    pub(crate) handle: u64,
    /// Neither reads nor writes go through the kernel's pages.
    pub(crate) direct: bool,
    /// The kernel's pages are still those of the file.
    pub(crate) keeps: bool,
}

impl Tree {
    fn closed(&self) -> MutexGuard<'_, BTreeSet<Inode>> {
        self.closed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a file and opens it; `exclusive`: one that is there is in the way.
    pub(crate) async fn create(
        &self,
        (parent, name): (INodeNo, &OsStr),
        owner: Owner,
        (exclusive, truncate): (bool, bool),
    ) -> Result<(FileAttr, Opened), Errno> {
        let at = self.at(parent, name).await?;
        let (client, what) = (self.client().await?, name.to_string_lossy());
        let writer = match client.create_at(at.clone(), &what, owner).await {
            Ok(writer) => writer,
            Err(client::Error::Refused(_, Refusal::Exists)) if !exclusive => {
                // Another mount was faster, or somebody at the target.
                let stat = client.child(at.clone(), &what).await.map_err(|error| errno(&error))?;
                let attributes = self.attributes_at(parent, &at.1, &stat);
                let opened = self.open(attributes.ino, true, truncate).await?;
                return Ok((attributes, opened));
            }
            Err(error) => return Err(errno(&error)),
        };
        let inode = writer.inode();
        let file = self.files.take(inode, || what.to_string());
        let mut gate = file.gate.lock().await;
        file.has(0, since_1970(SystemTime::now()));
        (gate.writer, gate.is_empty) = (Some(writer), true);
        let handle = self.files.open(Arc::clone(&file), true, gate.generation);
        drop(gate);
        let stat = client.node(inode, &what).await.map_err(|error| errno(&error))?;
        Ok((self.attributes(&stat), Opened { handle, direct: true, keeps: false }))
    }

    /// Opens a file; `truncate`: what it has is dropped.
    pub(crate) async fn open(&self, number: INodeNo, writes: bool, truncate: bool) -> Result<Opened, Errno> {
        let (opened, size) = self.open_now(number, writes, truncate).await?;
        if self.numbers.has_other_size(number, size) {
            // What is read would be cut off where the file ended a moment ago.
            self.drop_cached(number, None).await;
        }
        Ok(opened)
    }

    /// Opens it; and how long it is.
    async fn open_now(&self, number: INodeNo, writes: bool, truncate: bool) -> Result<(Opened, u64), Errno> {
        if !writes
            && !truncate
            && self.numbers.inode(number).is_none()
            && let Some(opened) = self.open_at_target(number).await?
        {
            return Ok(opened);
        }
        let inode = self.inode(number).await?;
        let file = self.files.take(inode, || what(inode));
        let mut gate = self.gate(&file).await;
        let opened = self.open_file(&file, &mut gate, writes, truncate).await;
        if opened.is_err() {
            self.files.end_use(inode);
        }
        opened
    }

    /// Opens a file for reading that the target alone has, where it is; `None`: the pool has it by now.
    async fn open_at_target(&self, number: INodeNo) -> Result<Option<(Opened, u64)>, Errno> {
        let (directory, path) = self.numbers.place(number)?;
        let client = self.client().await?;
        let at_target = self.numbers.number_at_target(number).ok_or(Errno::ESTALE)?;
        let opened = client.open_at_target(directory, &path, at_target, &what(directory)).await;
        let file = opened.map_err(|error| stale(&error))?;
        let Some((file, size)) = file else { return Ok(None) };
        let handle = self.files.open_at_target(file, number);
        // It may have been imported meanwhile.
        if let Some(inode) = self.numbers.inode(number) {
            self.files.imported(number, inode);
        }
        Ok(Some((Opened { handle, direct: false, keeps: false }, size)))
    }

    /// The kernel drops what it has of a file's attributes, and of its pages from an offset on.
    pub(crate) async fn drop_cached(&self, number: INodeNo, pages_from: Option<i64>) {
        let Some(notifier) = self.notifier.get().cloned() else { return };
        // It may wait for reads that other tasks answer.
        let dropped =
            tokio::task::spawn_blocking(move || notifier.inval_inode(number, pages_from.unwrap_or(-1), 0)).await;
        if let Ok(Err(error)) = dropped
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!("the kernel does not drop what it has of number {number}: {error}");
        }
    }

    async fn open_file(
        &self,
        file: &Arc<File>,
        gate: &mut Gate,
        writes: bool,
        truncate: bool,
    ) -> Result<(Opened, u64), Errno> {
        let client = self.client().await?;
        if truncate {
            self.truncate(file, gate, &client).await?;
        }
        let mut keeps = false;
        let size;
        if let Some(writer) = &mut gate.writer {
            // Other mounts may write it as well.
            writer.refresh().await.map_err(|error| stale(&error))?;
            size = writer.size();
            file.has_size(size);
        } else {
            // What others have committed is seen by whoever opens the file afterwards.
            let reader = client.read_node(file.inode, &file.what).await.map_err(|error| stale(&error))?;
            if !reader.is_named() && self.files.is_only_use(file.inode) {
                // The kernel has it from a name that another mount has taken away: it looks that up again.
                return Err(Errno::ESTALE);
            }
            let version = reader.version();
            size = reader.size();
            keeps = self.cached().insert(file.inode, version) == Some(version);
            gate.reader = Some((reader, Instant::now()));
        }
        let direct = writes || gate.writer.is_some();
        if direct {
            self.cached().remove(&file.inode);
        }
        Ok((Opened { handle: self.files.open(Arc::clone(file), writes, gate.generation), direct, keeps }, size))
    }

    async fn truncate(&self, file: &File, gate: &mut Gate, client: &PoolClient) -> Result<(), Errno> {
        let done = match &mut gate.writer {
            Some(writer) => writer.set_size(0).await,
            None => match client.rewrite_node(file.inode, &file.what).await {
                Ok(writer) => {
                    gate.writer = Some(writer);
                    gate.reader = None;
                    Ok(())
                }
                Err(error) => Err(error),
            },
        };
        match done {
            Ok(()) => {
                gate.is_empty = gate.active == 0;
                file.has(0, since_1970(SystemTime::now()));
                Ok(())
            }
            Err(error) => Err(self.failed(file, gate, &error)),
        }
    }

    /// What a file is worked with. Whoever has written it in a session that has ended is in nobody's way.
    pub(crate) async fn gate<'a>(&self, file: &'a File) -> tokio::sync::MutexGuard<'a, Gate> {
        let mut gate = file.gate.lock().await;
        if let Some(over) = gate.writer.as_ref().and_then(Writer::session_ended) {
            self.failed(file, &mut gate, &over);
        }
        gate
    }

    pub(crate) fn handle(&self, number: u64) -> Result<Arc<Handle>, Errno> {
        self.files.handle(number).ok_or(Errno::EBADF)
    }

    /// Writes at an offset; `None`: at the end, which the kernel does not know if others have changed the file a moment ago.
    pub(crate) async fn write(
        &self,
        (handle, owner): (u64, files::Owner),
        offset: Option<u64>,
        bytes: &Bytes,
    ) -> Result<(), Errno> {
        self.write_with((handle, owner), offset, bytes, false).await
    }

    /// Writes a part of a page to which a program has written in its memory: no quota refuses it any more.
    pub(crate) async fn write_back(&self, by: (u64, files::Owner), offset: u64, bytes: &Bytes) -> Result<(), Errno> {
        self.write_with(by, Some(offset), bytes, true).await
    }

    async fn write_with(
        &self,
        (handle, owner): (u64, files::Owner),
        offset: Option<u64>,
        bytes: &Bytes,
        was_taken: bool,
    ) -> Result<(), Errno> {
        let handle = self.handle(handle)?;
        let file = &handle.file;
        let mut gate = file.gate.lock().await;
        self.begin_writing(&handle, owner, &mut gate).await?;
        let Some(writer) = &mut gate.writer else { return Err(Errno::EIO) };
        let offset = offset.unwrap_or(writer.size());
        may_have(offset.saturating_add(bytes.len() as u64))?;
        let written = match was_taken {
            true => writer.write_back_at(offset, bytes).await,
            false => writer.write_bytes_at(offset, bytes).await,
        };
        match written {
            Ok(()) => {
                file.has(writer.size(), since_1970(SystemTime::now()));
                Ok(())
            }
            Err(error) => Err(self.failed(file, &mut gate, &error)),
        }
    }

    /// The file has a writer, and the handle counts as one that has written.
    pub(crate) async fn begin_writing(
        &self,
        handle: &Handle,
        owner: files::Owner,
        gate: &mut Gate,
    ) -> Result<(), Errno> {
        if !handle.writes {
            return Err(Errno::EBADF);
        }
        self.has_its_locks(handle)?;
        if handle.generation != gate.generation {
            return Err(gate.why());
        }
        self.open_writer(&handle.file, gate).await?;
        gate.is_empty = false;
        if handle.written_by(owner) {
            gate.active += 1;
        }
        Ok(())
    }

    async fn open_writer(&self, file: &File, gate: &mut Gate) -> Result<(), Errno> {
        if gate.writer.is_none() {
            let writer =
                self.client().await?.write_node(file.inode, &file.what).await.map_err(|error| stale(&error))?;
            file.has(writer.size(), 0);
            (gate.writer, gate.reader) = (Some(writer), None);
        }
        Ok(())
    }

    pub(crate) async fn set_size(&self, inode: Inode, size: u64, handle: Option<u64>) -> Result<(), Errno> {
        may_have(size)?;
        if let Some(handle) = handle.and_then(|handle| self.files.handle(handle)).filter(|handle| handle.writes) {
            let mut gate = handle.file.gate.lock().await;
            self.begin_writing(&handle, None, &mut gate).await?;
            return self.resize(&handle.file, &mut gate, size).await;
        }
        let file = self.files.take(inode, || what(inode));
        let mut gate = self.gate(&file).await;
        let is_written = gate.writer.is_some();
        let done = async {
            match size {
                0 if gate.writer.is_none() => {
                    let client = self.client().await?;
                    self.truncate(&file, &mut gate, &client).await?;
                }
                _ => {
                    self.open_writer(&file, &mut gate).await?;
                    self.resize(&file, &mut gate, size).await?;
                }
            }
            self.commit(&file, &mut gate).await?;
            if gate.active == 0 { self.close_if_idle(&file, &mut gate).await } else { Ok(()) }
        };
        let done = done.await;
        // Nobody else closes what was opened for this: as long as a session has a file open, the target does not see what others write.
        if done.is_err() && !is_written && gate.active == 0 {
            self.abandon(&file, &mut gate).await;
        }
        self.files.end_use(inode);
        done
    }

    async fn abandon(&self, file: &File, gate: &mut Gate) {
        let Some(writer) = gate.writer.take() else { return };
        file.is_as_committed();
        if let Err(error) = writer.abandon().await {
            tracing::warn!("{error}");
        }
    }

    async fn resize(&self, file: &File, gate: &mut Gate, size: u64) -> Result<(), Errno> {
        let Some(writer) = &mut gate.writer else { return Err(Errno::EIO) };
        match writer.set_size(size).await {
            Ok(()) => {
                let is_committed = writer.is_committed();
                file.has(size, if is_committed { 0 } else { since_1970(SystemTime::now()) });
                Ok(())
            }
            Err(error) => Err(self.failed(file, gate, &error)),
        }
    }

    /// Commits what programs have written into a file, if it is open.
    pub(crate) async fn commit_open(&self, inode: Inode) -> Result<(), Errno> {
        let Some(file) = self.files.find(inode) else { return Ok(()) };
        let mut gate = file.gate.lock().await;
        self.commit(&file, &mut gate).await
    }

    pub(crate) async fn commit(&self, file: &File, gate: &mut Gate) -> Result<(), Errno> {
        let Some(writer) = &mut gate.writer else { return Ok(()) };
        if writer.is_committed() {
            file.has(writer.size(), 0);
            return Ok(());
        }
        match writer.sync().await {
            Ok(()) => {
                file.has(writer.size(), 0);
                Ok(())
            }
            Err(error) => Err(self.failed(file, gate, &error)),
        }
    }

    /// `fsync`: as many benefactors have it as the mount's durability says, and every mount reads it.
    pub(crate) async fn sync(&self, handle: u64) -> Result<(), Errno> {
        if self.files.at_target(handle).is_some() {
            return Ok(());
        }
        let handle = self.handle(handle)?;
        self.has_its_locks(&handle)?;
        let mut gate = handle.file.gate.lock().await;
        if handle.writes && handle.generation != gate.generation {
            return Err(gate.why());
        }
        self.commit(&handle.file, &mut gate).await
    }

    /// `close`: committed, and on its way to the target once nobody else writes the file.
    ///
    /// A shell opens a file, gives it to a command under another number, and closes its own. Nothing has been written then, and the
    /// target need not see the empty file: that waits until the kernel releases the handle, or until the target has to see something else.
    /// So does a file of which one of several descriptors is closed: `is_open` says whether the process has others.
    pub(crate) async fn flush(
        &self,
        handle: u64,
        owner: files::Owner,
        is_open: impl FnOnce() -> bool,
    ) -> Result<(), Errno> {
        if self.files.at_target(handle).is_some() {
            return Ok(());
        }
        let handle = self.handle(handle)?;
        let has_its_locks = self.has_its_locks(&handle);
        handle.is_closing.store(true, Ordering::Release);
        let committed = self.close_once(&handle, owner, is_open).await;
        let unlocked = match owner {
            Some(owner) => self.unlock_all(handle.file.inode, owner).await,
            None => Ok(()),
        };
        has_its_locks.and(committed).and(unlocked)
    }

    async fn close_once(
        &self,
        handle: &Handle,
        owner: files::Owner,
        is_open: impl FnOnce() -> bool,
    ) -> Result<(), Errno> {
        if !handle.writes {
            return Ok(());
        }
        let file = &handle.file;
        let mut gate = file.gate.lock().await;
        if handle.generation != gate.generation {
            return Err(gate.why());
        }
        if handle.is_of_others(owner) {
            return Ok(());
        }
        if is_open() {
            return self.commit(file, &mut gate).await;
        }
        if handle.closed_by(owner) {
            gate.active -= 1;
        }
        if gate.active == 0 && !gate.is_empty && !gate.is_kept {
            // Committed and closed in one transaction.
            return self.close_if_idle(file, &mut gate).await;
        }
        self.commit(file, &mut gate).await?;
        if gate.active == 0 && gate.writer.is_some() && gate.is_empty {
            self.closed().insert(file.inode);
        }
        Ok(())
    }

    /// Has the target see a file that nobody writes any more, unless it has no name.
    async fn close_if_idle(&self, file: &File, gate: &mut Gate) -> Result<(), Errno> {
        if gate.is_kept || gate.writer.is_none() {
            return Ok(());
        }
        self.settle(Some(file.inode)).await;
        self.finish(file, gate).await
    }

    async fn finish(&self, file: &File, gate: &mut Gate) -> Result<(), Errno> {
        let Some(writer) = &mut gate.writer else { return Ok(()) };
        match writer.finish().await {
            Ok(()) => {
                gate.writer = None;
                file.is_as_committed();
                Ok(())
            }
            Err(error) => Err(self.failed(file, gate, &error)),
        }
    }

    /// The target sees files that were closed before anything that comes now.
    pub(crate) async fn settle(&self, but: Option<Inode>) {
        let closed: Vec<Inode> = {
            let mut closed = self.closed();
            let all = std::mem::take(&mut *closed);
            closed.extend(all.iter().filter(|inode| Some(**inode) == but));
            all.into_iter().filter(|inode| Some(*inode) != but).collect()
        };
        for inode in closed {
            let Some(file) = self.files.find(inode) else { continue };
            let mut gate = match but {
                None => file.gate.lock().await,
                // Whoever holds a gate waits for no other: two would wait for each other.
                Some(_) => match file.gate.try_lock() {
                    Ok(gate) => gate,
                    Err(_) => {
                        self.closed().insert(inode);
                        continue;
                    }
                },
            };
            if gate.active == 0 && gate.writer.is_some() && !gate.is_kept {
                self.close_writer(&file, &mut gate).await;
            }
        }
    }

    /// Closes what nobody waits for.
    pub(crate) async fn close_writer(&self, file: &File, gate: &mut Gate) {
        let _ = self.finish(file, gate).await;
    }

    /// The kernel releases a handle.
    pub(crate) async fn release(&self, number: u64) {
        if self.files.close_at_target(number) {
            return;
        }
        let Some(handle) = self.files.close(number) else { return };
        let file = &handle.file;
        if let Err(errno) = self.unlock_handle(file.inode, number).await {
            tracing::warn!("{}: its locks are not returned: {}", file.what, sentence(errno));
        }
        let mut gate = file.gate.lock().await;
        if handle.generation == gate.generation && handle.is_over() {
            gate.active -= 1;
        }
        let is_last = self.files.is_only_use(file.inode);
        if gate.active == 0 && gate.writer.is_some() && (is_last || !gate.is_kept) {
            self.close_writer(file, &mut gate).await;
        } else if is_last
            && gate.is_kept
            && let Ok(client) = self.client().await
            && let Err(error) = client.keep_no_more(file.inode, &file.what).await
        {
            tracing::warn!("{error}");
        }
        self.closed().remove(&file.inode);
        self.files.end_use(file.inode);
    }

    /// What was not committed is lost, and every handle that was open for writing stays failed; unless nothing of the call was taken, since the
    /// quota of the file's user has no room for it, or nobody says whether it has.
    pub(crate) fn failed(&self, file: &File, gate: &mut Gate, error: &client::Error) -> Errno {
        if error.took_nothing() {
            tracing::debug!("{}: {error}", file.what);
            return errno(error);
        }
        tracing::error!("{}: {error}", file.what);
        gate.generation += 1;
        gate.why = Some(errno(error));
        gate.active = 0;
        gate.reader = None;
        file.is_as_committed();
        if let Some(writer) = gate.writer.take() {
            tokio::spawn(async move {
                if let Err(error) = writer.abandon().await {
                    tracing::warn!("{error}");
                }
            });
        }
        errno(error)
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use bytes::Bytes;
    use fuser::{Errno, INodeNo};
    use surgetank_pool_core::locks::{Lock, Range};

    use crate::fixture::{ENDING, Pool, run, tree, until};
    use crate::locks::Ask;

    #[test]
    fn who_wrote_in_a_session_that_has_ended_is_in_no_readers_way() {
        run(async {
            let mut pool = Pool::new(1, 2, 24).with_sessions_of(ENDING);
            let tree = tree(&pool).await;
            let owner = (0o644, 0, 0);
            let (attributes, written) =
                tree.create((INodeNo::ROOT, OsStr::new("file")), owner, (true, false)).await.unwrap();
            tree.write((written.handle, None), Some(0), &Bytes::from_static(b"committed")).await.unwrap();
            tree.sync(written.handle).await.unwrap();
            let reads = tree.open(attributes.ino, false, false).await.unwrap();
            tree.write((written.handle, None), Some(0), &Bytes::from_static(b"lost")).await.unwrap();
            // Nobody renews the session while there is no manager, and the store ends it.
            let session = tree.sessions.present().session();
            pool.managers[0].kill();
            tokio::time::sleep(pool.session * 2).await;
            pool.restart_manager(0);
            until("it has ended", async || {
                let _ = tree.client().await;
                tree.sessions.present().session() != session
            })
            .await;
            let (range, lock) = (Range { first: 0, last: u64::MAX }, Some(Lock::Shared));
            let (inode, handle) = (attributes.ino, reads.handle);
            tree.lock(Ask { inode, handle, owner: 1, range, lock, process: 1, waits: None }).await.unwrap();
            tree.release(reads.handle).await;
            let read = tree.open(attributes.ino, false, false).await.unwrap();
            assert_eq!(tree.read(read.handle, 0, 64).await.unwrap(), Bytes::from_static(b"committed"));
            let again = tree.write((written.handle, None), Some(0), &Bytes::from_static(b"x")).await;
            assert_eq!(again.unwrap_err().code(), Errno::EIO.code(), "it stays failed");
            tree.release(read.handle).await;
            tree.release(written.handle).await;
            tree.end().await;
        });
    }
}
