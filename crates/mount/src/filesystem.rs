//! The calls of the kernel: one that has to wait is answered by a task, so that it holds up no other.

mod requests;

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use bytes::Bytes;
use fuser::{
    BsdFileFlags, Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLock, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite,
    ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use surgetank_pool::bucket::is_address;
use surgetank_pool_core::locks::{Lock, Range};
use surgetank_pool_core::meta::value::Attributes;
use tokio::runtime::Handle as Runtime;

use self::requests::LIVE;
use crate::attributes::{NAME, STATE, kind, nanoseconds, special};
use crate::content::Opened;
use crate::descriptors;
use crate::directories::{Directories, directories, dots, listed, listing};
use crate::holes::Allocate;
use crate::locks::Ask;
use crate::numbers::Numbers;
use crate::tree::{Change, Tree};

/// Requests that the kernel may have in flight without somebody who waits for them.
const BACKGROUND_MAX: u16 = 64;
/// What the kernel may read ahead.
const READ_AHEAD: u32 = 1 << 20;
/// Mebibytes of room, and files, of a target that has no end: so much that programs go on, and little enough that they can add to it.
const BUCKET: u64 = 1 << 33;

pub(crate) struct PoolFilesystem {
    runtime: Runtime,
    tree: Arc<Tree>,
    directories: Arc<Mutex<Directories>>,
}

impl PoolFilesystem {
    pub(crate) fn new(runtime: Runtime, tree: Arc<Tree>) -> Self {
        Self { runtime, tree, directories: Arc::default() }
    }
}

fn flags(opened: &Opened) -> FopenFlags {
    match (opened.direct, opened.keeps) {
        (true, _) => FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES,
        (false, true) => FopenFlags::FOPEN_KEEP_CACHE,
        (false, false) => FopenFlags::empty(),
    }
}

impl Filesystem for PoolFilesystem {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let _ = config.set_max_background(BACKGROUND_MAX);
        let _ = config.set_max_readahead(READ_AHEAD);
        for (capability, what) in [
            (InitFlags::FUSE_ATOMIC_O_TRUNC, "opens that truncate"),
            (InitFlags::FUSE_ASYNC_DIO, "asynchronous direct I/O"),
            (InitFlags::FUSE_AUTO_INVAL_DATA, "pages that are dropped when others change a file"),
            (InitFlags::FUSE_PARALLEL_DIROPS, "parallel lookups"),
            (InitFlags::FUSE_DO_READDIRPLUS, "directories that are read with attributes"),
            (InitFlags::FUSE_READDIRPLUS_AUTO, "directories that are read without them"),
            (InitFlags::FUSE_POSIX_LOCKS, "fcntl locks that are known to other mounts"),
            (InitFlags::FUSE_FLOCK_LOCKS, "flock locks that are known to other mounts"),
            (InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP, "shared mappings"),
        ] {
            if config.add_capabilities(capability).is_err() {
                tracing::warn!("this kernel's FUSE has no {what}");
            }
        }
        Ok(())
    }

    fn destroy(&mut self) {
        self.runtime.block_on(self.tree.end());
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_owned();
        self.answer(request, reply, async move |tree, reply| reply.node(&tree, tree.lookup(parent, &name).await));
    }

    fn forget(&self, _request: &Request, inode: INodeNo, lookups: u64) {
        if let Some(of) = self.tree.numbers.inode(inode) {
            self.tree.cached().remove(&of);
        }
        self.tree.numbers.forget(inode, lookups);
    }

    fn getattr(&self, request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        self.answer(request, reply, async move |tree, reply| reply.node(&tree, tree.get(inode).await));
    }

    fn setattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _checked: Option<SystemTime>,
        _saved: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let attributes = Attributes {
            mode: mode.map(|mode| mode & 0o7777),
            user,
            group,
            accessed: accessed.map(nanoseconds),
            modified: modified.map(nanoseconds),
        };
        let change = Change { size, attributes, handle: handle.map(|handle| handle.0) };
        self.answer_when_done(reply, async move |tree, reply| reply.node(&tree, tree.set(inode, change).await));
    }

    fn readlink(&self, request: &Request, inode: INodeNo, reply: ReplyData) {
        self.answer(request, reply, async move |tree, reply| {
            let link = tree.stat(inode).await.and_then(|stat| stat.link.ok_or(Errno::EINVAL));
            reply.with(link, |reply, to| reply.data(&to));
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let (name, owner) = (name.to_owned(), (mode & 0o7777, request.uid(), request.gid()));
        if let Some(special) = special(mode, device) {
            return self.answer_when_done(reply, async move |tree, reply| {
                reply.node(&tree, tree.make_special(parent, &name, special, owner).await);
            });
        }
        self.answer_when_done(reply, async move |tree, reply| {
            let made = tree.create((parent, &name), owner, (true, false)).await;
            let closed = match &made {
                Ok((_, opened)) => tree.sync(opened.handle).await,
                Err(_) => Ok(()),
            };
            if let Ok((_, opened)) = &made {
                tree.release(opened.handle).await;
            }
            reply.node(&tree, closed.and(made.map(|(attributes, _)| attributes)));
        });
    }

    fn mkdir(&self, request: &Request, parent: INodeNo, name: &OsStr, mode: u32, _umask: u32, reply: ReplyEntry) {
        let (name, owner) = (name.to_owned(), (mode & 0o7777, request.uid(), request.gid()));
        self.answer_when_done(reply, async move |tree, reply| {
            reply.node(&tree, tree.make_directory(parent, &name, owner).await)
        });
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.answer_when_done(reply, async move |tree, reply| reply.done(tree.unlink(parent, &name).await));
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.to_owned();
        self.answer_when_done(reply, async move |tree, reply| reply.done(tree.remove_directory(parent, &name).await));
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, to: &Path, reply: ReplyEntry) {
        let (name, to) = (name.to_owned(), to.as_os_str().as_bytes().to_vec());
        let owner = (0o777, request.uid(), request.gid());
        self.answer_when_done(reply, async move |tree, reply| {
            reply.node(&tree, tree.make_link(parent, &name, to, owner).await)
        });
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        to_parent: INodeNo,
        to_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if flags.intersects(RenameFlags::RENAME_EXCHANGE | RenameFlags::RENAME_WHITEOUT) {
            return reply.error(Errno::EINVAL);
        }
        let (name, to_name) = (name.to_owned(), to_name.to_owned());
        let replace = !flags.contains(RenameFlags::RENAME_NOREPLACE);
        self.answer_when_done(reply, async move |tree, reply| {
            reply.done(tree.rename((parent, &name), (to_parent, &to_name), replace).await);
        });
    }

    fn link(&self, _request: &Request, inode: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.to_owned();
        self.answer_when_done(reply, async move |tree, reply| reply.node(&tree, tree.link(inode, parent, &name).await));
    }

    fn open(&self, _request: &Request, inode: INodeNo, with: OpenFlags, reply: ReplyOpen) {
        let writes = with.acc_mode() != OpenAccMode::O_RDONLY;
        let truncate = with.0 & libc::O_TRUNC != 0;
        self.answer_when_done(reply, async move |tree, reply| {
            let opened = tree.open(inode, writes, truncate).await;
            reply.with(opened, |reply, opened| reply.opened(FileHandle(opened.handle), flags(&opened)));
        });
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        with: i32,
        reply: ReplyCreate,
    ) {
        let (name, owner) = (name.to_owned(), (mode & 0o7777, request.uid(), request.gid()));
        let how = (with & libc::O_EXCL != 0, with & libc::O_TRUNC != 0);
        self.answer_when_done(reply, async move |tree, reply| {
            let created = tree.create((parent, &name), owner, how).await;
            reply.with(created, |reply, (attributes, opened)| {
                tree.numbers.given(&attributes);
                reply.created(&LIVE, &attributes, Generation(0), FileHandle(opened.handle), flags(&opened));
            });
        });
    }

    fn read(
        &self,
        request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.answer(request, reply, async move |tree, reply| {
            reply.with(tree.read(handle.0, offset, size as usize).await, |reply, bytes| reply.data(&bytes));
        });
    }

    fn write(
        &self,
        request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        with: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let (bytes, by) = (Bytes::copy_from_slice(data), (handle.0, owner.map(|owner| owner.0)));
        // Parts of one direct write may come in any order: the kernel's offsets tell which is which.
        let is_append = with.0 & (libc::O_APPEND | libc::O_DIRECT) == libc::O_APPEND;
        let is_page = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        self.answer(request, reply, async move |tree, reply| {
            let written = match is_page {
                true => tree.write_back(by, offset, &bytes).await,
                false => tree.write(by, if is_append { None } else { Some(offset) }, &bytes).await,
            };
            reply.with(written, |reply, ()| reply.written(u32::try_from(bytes.len()).unwrap_or(u32::MAX)));
        });
    }

    fn flush(&self, request: &Request, inode: INodeNo, handle: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        let process = request.pid();
        self.answer_when_done(reply, async move |tree, reply| {
            let is_open = || descriptors::have(process, inode.0);
            reply.done(tree.flush(handle.0, Some(owner.0), is_open).await);
        });
    }

    fn release(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.answer_apart(async move |tree| {
            tree.release(handle.0).await;
            reply.ok();
        });
    }

    fn fsync(&self, request: &Request, _inode: INodeNo, handle: FileHandle, _data: bool, reply: ReplyEmpty) {
        self.answer(request, reply, async move |tree, reply| reply.done(tree.sync(handle.0).await));
    }

    fn getlk(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        first: u64,
        last: u64,
        kind: i32,
        process: u32,
        reply: ReplyLock,
    ) {
        let Ok(Some(lock)) = lock(kind) else { return reply.error(Errno::EINVAL) };
        let (range, handle, owner) = (Range { first, last }, handle.0, owner.0);
        let ask = Ask { inode, handle, owner, range, lock: Some(lock), process, waits: None };
        self.answer(request, reply, async move |tree, reply| {
            reply.with(tree.in_the_way(ask, lock).await, |reply, found| match found {
                None => reply.locked(first, last, libc::F_UNLCK, 0),
                Some((range, lock, process)) => {
                    let kind = if lock == Lock::Alone { libc::F_WRLCK } else { libc::F_RDLCK };
                    reply.locked(range.first, range.last, kind, process);
                }
            });
        });
    }

    fn setlk(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        first: u64,
        last: u64,
        kind: i32,
        process: u32,
        waits: bool,
        reply: ReplyEmpty,
    ) {
        let Ok(lock) = lock(kind) else { return reply.error(Errno::EINVAL) };
        let (range, waits) = (Range { first, last }, waits.then(|| request.pid()));
        let ask = Ask { inode, handle: handle.0, owner: owner.0, range, lock, process, waits };
        self.answer_when_done(reply, async move |tree, reply| reply.done(tree.lock(ask).await));
    }

    fn opendir(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let mut open = directories(&self.directories);
        open.next += 1;
        let handle = FileHandle(open.next);
        drop(open);
        reply.opened(handle, FopenFlags::empty());
    }

    fn readdir(&self, request: &Request, inode: INodeNo, handle: FileHandle, offset: u64, reply: ReplyDirectory) {
        let open = Arc::clone(&self.directories);
        self.answer(request, reply, async move |tree, reply| {
            reply.with(listing(&tree, &open, inode, handle, offset).await, |mut reply, entries| {
                let is_full = dots(offset).any(|(cookie, name)| reply.add(inode, cookie, FileType::Directory, name));
                if !is_full {
                    for (cookie, (name, stat)) in listed(&entries, offset) {
                        let number = match stat.at_target {
                            true => Numbers::like(stat.inode.0),
                            false => tree.numbers.number(stat.inode),
                        };
                        if reply.add(number, cookie, kind(stat), OsStr::from_bytes(name.bytes())) {
                            break;
                        }
                    }
                }
                reply.ok();
            });
        });
    }

    fn readdirplus(
        &self,
        request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let open = Arc::clone(&self.directories);
        self.answer(request, reply, async move |tree, reply| {
            let own = match tree.get(inode).await {
                Ok(own) => own,
                Err(errno) => return reply.error(errno),
            };
            reply.with(listing(&tree, &open, inode, handle, offset).await, |mut reply, entries| {
                let add = |(cookie, name)| reply.add(inode, cookie, name, &LIVE, &own, Generation(0));
                if !dots(offset).any(add) {
                    for (cookie, (name, stat)) in listed(&entries, offset) {
                        let attributes = tree.attributes_listed(inode, name, stat);
                        tree.numbers.given(&attributes);
                        let name = OsStr::from_bytes(name.bytes());
                        if reply.add(attributes.ino, cookie, name, &LIVE, &attributes, Generation(0)) {
                            tree.numbers.forget(attributes.ino, 1);
                            break;
                        }
                    }
                }
                reply.ok();
            });
        });
    }

    fn releasedir(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        directories(&self.directories).open.remove(&handle.0);
        reply.ok();
    }

    fn fsyncdir(&self, _r: &Request, _inode: INodeNo, _handle: FileHandle, _data: bool, reply: ReplyEmpty) {
        // Every change of a name was committed before it was answered.
        reply.ok();
    }

    /// The room is that of the target: what the pool takes in goes there.
    fn statfs(&self, request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        self.answer(request, reply, async move |tree, reply| {
            let target = tree.sessions.present().target().to_owned();
            if target.to_str().is_some_and(is_address) {
                // A bucket has no end.
                return reply.with(Ok(()), |reply, ()| {
                    reply.statfs(BUCKET, BUCKET, BUCKET, BUCKET, BUCKET, 1 << 20, 255, 1 << 20);
                });
            }
            let found = tokio::task::spawn_blocking(move || rustix::fs::statvfs(&target)).await;
            let found = found.map_err(|_| Errno::EIO);
            let found = found.and_then(|found| found.map_err(|error| Errno::from_i32(error.raw_os_error())));
            reply.with(found, |reply, found| {
                reply.statfs(
                    found.f_blocks,
                    found.f_bfree,
                    found.f_bavail,
                    found.f_files,
                    found.f_ffree,
                    u32::try_from(found.f_bsize).unwrap_or(4096),
                    255,
                    u32::try_from(found.f_frsize).unwrap_or(4096),
                );
            });
        });
    }

    fn getxattr(&self, request: &Request, inode: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        if name == OsStr::new(NAME) {
            return self.answer(request, reply, async move |tree, reply| {
                let name = tree.sessions.present().name().to_owned();
                reply.with(Ok(()), |reply, ()| value(reply, size, name.as_bytes()));
            });
        }
        // The kernel asks for capabilities at every write.
        if name != OsStr::new(STATE) {
            return reply.error(Errno::NO_XATTR);
        }
        self.answer(request, reply, async move |tree, reply| {
            let state = tree.state(inode).await.and_then(|state| state.ok_or(Errno::NO_XATTR));
            reply.with(state, |reply, state| value(reply, size, state.as_bytes()));
        });
    }

    fn listxattr(&self, request: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        self.answer(request, reply, async move |tree, reply| {
            let names = tree.state(inode).await.map(|state| state.map_or_else(String::new, |_| format!("{STATE}\0")));
            reply.with(names, |reply, names| value(reply, size, names.as_bytes()));
        });
    }

    fn setxattr(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _name: &OsStr,
        _value: &[u8],
        _flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EOPNOTSUPP);
    }

    fn removexattr(&self, _request: &Request, _inode: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EOPNOTSUPP);
    }

    fn fallocate(
        &self,
        _request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let Some(how) = Allocate::of(mode) else { return reply.error(Errno::EOPNOTSUPP) };
        self.answer_when_done(reply, async move |tree, reply| {
            reply.done(tree.allocate(handle.0, (offset, length), how).await)
        });
    }

    fn ioctl(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        _command: u32,
        _input: &[u8],
        _output: u32,
        reply: ReplyIoctl,
    ) {
        // Programs ask whether a file is a terminal.
        reply.error(Errno::ENOTTY);
    }

    fn lseek(
        &self,
        request: &Request,
        _inode: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let wants_hole = match whence {
            libc::SEEK_DATA => false,
            libc::SEEK_HOLE => true,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        self.answer(request, reply, async move |tree, reply| {
            let found = tree.seek(handle.0, offset, wants_hole).await;
            reply.with(found, |reply, found| reply.offset(i64::try_from(found).unwrap_or(i64::MAX)));
        });
    }
}

/// How the kernel wants bytes locked; `None`: not any more.
fn lock(kind: i32) -> Result<Option<Lock>, Errno> {
    match kind {
        libc::F_RDLCK => Ok(Some(Lock::Shared)),
        libc::F_WRLCK => Ok(Some(Lock::Alone)),
        libc::F_UNLCK => Ok(None),
        _ => Err(Errno::EINVAL),
    }
}

fn value(reply: ReplyXattr, size: u32, value: &[u8]) {
    match (size, u32::try_from(value.len()).unwrap_or(u32::MAX)) {
        (0, length) => reply.size(length),
        (size, length) if length > size => reply.error(Errno::ERANGE),
        _ => reply.data(value),
    }
}
