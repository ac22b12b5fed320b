//! The file system with one file: its session threads turn calls into submissions.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crossbeam_queue::SegQueue;
use fuser::{
    Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs,
    ReplyWrite, Request, WriteFlags,
};
use surgetank_model::Operation;

use crate::buffer::{Buffer, BufferPool};
use crate::front::Export;
use crate::front::wake::Wake;
use crate::waking::Closing;

/// The name of the one file.
pub(super) const FILE: &str = "disk";
const INODE: INodeNo = INodeNo(2);
/// Nothing about the file changes behind the kernel's back.
const FOREVER: Duration = Duration::from_secs(1 << 30);
/// Requests that the kernel may have in flight; a loop device has 128.
const BACKGROUND_MAX: u16 = 512;
const BLOCK: u32 = 4096;

/// What the kernel waits for.
#[derive(Debug)]
pub(super) enum Reply {
    Data(ReplyData),
    Write(ReplyWrite, u32),
    Empty(ReplyEmpty),
}

impl Reply {
    pub(super) fn fail(self, errno: i32) {
        let errno = Errno::from_i32(errno);
        match self {
            Self::Data(reply) => reply.error(errno),
            Self::Write(reply, _) => reply.error(errno),
            Self::Empty(reply) => reply.error(errno),
        }
    }
}

/// A call on its way to the thread that owns the device.
#[derive(Debug)]
pub(super) struct Call {
    pub(super) operation: Operation,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) buffer: Option<Buffer>,
    pub(super) reply: Reply,
}

/// What session threads and the device's thread share.
#[derive(Debug)]
pub(super) struct Calls {
    pub(super) queue: SegQueue<Call>,
    pub(super) wake: Wake,
    pub(super) pool: BufferPool,
    /// Bytes of the device: it may grow.
    size: AtomicU64,
    closing: Closing,
}

impl Calls {
    pub(super) fn new(wake: Wake, pool: BufferPool, size: u64) -> Self {
        Self { queue: SegQueue::new(), wake, pool, size: AtomicU64::new(size), closing: Closing::new() }
    }

    pub(super) fn set_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    fn push(&self, call: Call) {
        self.queue.push(call);
        if self.closing.is_closed() {
            self.fail_all();
        } else {
            self.wake.raise();
        }
    }

    /// Nobody serves the device any more: every call fails from now on.
    pub(super) fn close(&self) {
        self.closing.close();
        self.fail_all();
    }

    fn fail_all(&self) {
        while let Some(call) = self.queue.pop() {
            call.reply.fail(libc::EIO);
        }
    }
}

pub(super) struct DiskFilesystem {
    logical_block: u32,
    calls: Arc<Calls>,
    owner: (u32, u32),
}

impl DiskFilesystem {
    pub(super) fn new(logical_block: u32, calls: Arc<Calls>) -> Self {
        let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Self { logical_block, calls, owner }
    }

    /// The export as large as it is now.
    fn export(&self) -> Export {
        // Its name is of no use here, and an empty one costs nothing.
        let size = self.calls.size.load(Ordering::Acquire);
        Export { name: String::new(), size, logical_block: self.logical_block }
    }

    fn attributes(&self, inode: INodeNo) -> Option<FileAttr> {
        let (kind, perm, size, nlink) = match inode {
            INodeNo::ROOT => (FileType::Directory, 0o500, 0, 2),
            INODE => (FileType::RegularFile, 0o600, self.export().size, 1),
            _ => return None,
        };
        let epoch = SystemTime::UNIX_EPOCH;
        Some(FileAttr {
            ino: inode,
            size,
            blocks: size / 512,
            atime: epoch,
            mtime: epoch,
            ctime: epoch,
            crtime: epoch,
            kind,
            perm,
            nlink,
            uid: self.owner.0,
            gid: self.owner.1,
            rdev: 0,
            blksize: BLOCK,
            flags: 0,
        })
    }

    fn pass(&self, operation: Operation, offset: u64, length: u64, buffer: Option<Buffer>, reply: Reply) {
        self.calls.push(Call { operation, offset, length, buffer, reply });
    }
}

impl Filesystem for DiskFilesystem {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // The write size stays at the library's maximum; the kernel lowers it to what it can (1 MiB by default).
        let _ = config.set_max_background(BACKGROUND_MAX);
        let _ = config.set_congestion_threshold(BACKGROUND_MAX);
        // Without it the kernel waits for each direct I/O in turn.
        if config.add_capabilities(InitFlags::FUSE_ASYNC_DIO).is_err() {
            tracing::warn!("this kernel's FUSE has no asynchronous direct I/O; the export will be slow");
        }
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.attributes(INODE) {
            Some(attributes) if parent == INodeNo::ROOT && name == FILE => {
                reply.entry(&FOREVER, &attributes, Generation(0));
            }
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _request: &Request, inode: INodeNo, _handle: Option<FileHandle>, reply: ReplyAttr) {
        match self.attributes(inode) {
            Some(attributes) => reply.attr(&FOREVER, &attributes),
            None => reply.error(Errno::ENOENT),
        }
    }

    fn open(&self, _request: &Request, _inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(0), flags);
    }

    fn readdir(&self, _r: &Request, inode: INodeNo, _h: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if inode == INodeNo::ROOT && offset == 0 {
            let _ = reply.add(INODE, 1, FileType::RegularFile, FILE);
        }
        reply.ok();
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        // The loop driver takes the block size for the granularity of discards.
        reply.statfs(self.export().size / u64::from(BLOCK), 0, 0, 1, 0, BLOCK, 255, BLOCK);
    }

    fn getxattr(&self, _r: &Request, _i: INodeNo, _name: &OsStr, _size: u32, reply: fuser::ReplyXattr) {
        // The kernel does not ask again.
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let length = u64::from(size).min(self.export().size.saturating_sub(offset));
        if length == 0 {
            return reply.data(&[]);
        }
        match self.export().check(offset, length) {
            Ok(()) => self.pass(Operation::Read, offset, length, None, Reply::Data(reply)),
            Err(errno) => reply.error(Errno::from_i32(errno)),
        }
    }

    fn write(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let length = data.len() as u64;
        if let Err(errno) = self.export().check(offset, length) {
            return reply.error(Errno::from_i32(errno));
        }
        let mut buffer = self.calls.pool.take(data.len());
        match buffer.unique() {
            Some(memory) => memory.copy_from_slice(data),
            None => return reply.error(Errno::ENOMEM),
        }
        let reply = Reply::Write(reply, data.len() as u32);
        self.pass(Operation::Write { fua: false }, offset, length, Some(buffer), reply);
    }

    fn flush(&self, _r: &Request, _inode: INodeNo, _handle: FileHandle, _owner: LockOwner, reply: ReplyEmpty) {
        // Closing a file promises nothing.
        reply.ok();
    }

    fn fsync(&self, _r: &Request, _inode: INodeNo, _handle: FileHandle, _datasync: bool, reply: ReplyEmpty) {
        self.pass(Operation::Flush, 0, 0, None, Reply::Empty(reply));
    }

    fn fallocate(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let operation = match mode & !libc::FALLOC_FL_KEEP_SIZE {
            libc::FALLOC_FL_PUNCH_HOLE => Operation::Discard,
            libc::FALLOC_FL_ZERO_RANGE => Operation::WriteZeroes { fua: false },
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        match self.export().check(offset, length) {
            Ok(()) => self.pass(operation, offset, length, None, Reply::Empty(reply)),
            Err(errno) => reply.error(Errno::from_i32(errno)),
        }
    }
}
