//! Files that programs have open, and their handles.
//!
//! All programs of a mount that write one file share its writer, so that they see what the others wrote, and commit together. Whoever
//! only reads shares a reader and the chunks that it read last.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use fuser::{Errno, INodeNo};
use surgetank_pool::client::{Held, Reader, Writer};
use surgetank_pool_core::id::{Inode, Version};
use tokio::time::Instant;

use crate::attributes::Uncommitted;

/// Chunks of a file that are kept for the next read.
const CHUNKS: usize = 8;
/// Chunks that are fetched ahead of who reads one after the other: the kernel asks for no more than one beyond those that it reads.
pub(crate) const AHEAD: u64 = 4;

/// A chunk that was read: of which commit, where it begins, its bytes.
pub(crate) type Chunk = (Version, u64, Bytes);

/// A file that somebody has open.
pub(crate) struct File {
    pub(crate) inode: Inode,
    /// How it is named in the log.
    pub(crate) what: String,
    pub(crate) gate: tokio::sync::Mutex<Gate>,
    /// Each is held while its chunk is read, so that several readers of one chunk fetch it once.
    pub(crate) chunks: [tokio::sync::Mutex<Option<Chunk>>; CHUNKS],
    /// A writer is open, and its size counts.
    written: AtomicBool,
    size: AtomicU64,
    modified: AtomicU64,
}

/// What one thread at a time works with.
#[derive(Default)]
pub(crate) struct Gate {
    pub(crate) writer: Option<Writer>,
    /// The writer began with an empty file, and nothing was written into it yet.
    pub(crate) is_empty: bool,
    /// Handles that have written something since they were closed last. Who closes the last of them has the target see the file.
    pub(crate) active: usize,
    /// Handles of earlier generations have failed.
    pub(crate) generation: u64,
    /// Why the last of them has.
    pub(crate) why: Option<Errno>,
    /// The pool keeps the file open for this session, though it has no name.
    pub(crate) is_kept: bool,
    /// Nor does the target lose it for this session.
    pub(crate) held: Option<Held>,
    /// Reads what was committed when it was opened, and when that was.
    pub(crate) reader: Option<(Reader, Instant)>,
}

impl Gate {
    /// What every call of a handle that has failed answers. The kernel cuts a large write into several, and shows a program none of the
    /// failures behind one that went well: it learns of no room by the next.
    pub(crate) fn why(&self) -> Errno {
        self.why.unwrap_or(Errno::EIO)
    }
}

impl File {
    fn new(inode: Inode, what: String) -> Self {
        Self {
            inode,
            what,
            gate: tokio::sync::Mutex::default(),
            chunks: Default::default(),
            written: AtomicBool::new(false),
            size: AtomicU64::new(0),
            modified: AtomicU64::new(0),
        }
    }

    /// What programs see of its size and time while it is written.
    pub(crate) fn uncommitted(&self) -> Option<Uncommitted> {
        let seen =
            || Uncommitted { size: self.size.load(Ordering::Acquire), modified: self.modified.load(Ordering::Acquire) };
        self.written.load(Ordering::Acquire).then(seen)
    }

    /// It has so many bytes now, as it is written. `modified`: when, in nanoseconds since 1970; zero: all of it is committed.
    pub(crate) fn has(&self, size: u64, modified: u64) {
        self.size.store(size, Ordering::Release);
        self.modified.store(modified, Ordering::Release);
        self.written.store(true, Ordering::Release);
    }

    /// It has so many bytes now, since others have committed to it.
    pub(crate) fn has_size(&self, size: u64) {
        self.size.store(size, Ordering::Release);
    }

    /// What the pool says counts.
    pub(crate) fn is_as_committed(&self) {
        self.written.store(false, Ordering::Release);
    }

    /// Whether something is not committed.
    pub(crate) fn is_dirty(&self) -> bool {
        self.written.load(Ordering::Acquire) && self.modified.load(Ordering::Acquire) != 0
    }
}

/// An open file description of a program.
pub(crate) struct Handle {
    pub(crate) file: Arc<File>,
    pub(crate) writes: bool,
    /// The file's generation when it was opened.
    pub(crate) generation: u64,
    /// Which processes have written through it and not closed it since; only with the file's gate.
    owners: Mutex<BTreeSet<Owner>>,
    /// The session in which something was locked through it, which is still locked; zero: none.
    pub(crate) locked_in: AtomicU64,
    /// A process has closed it since something was locked through it: the kernel may be about to say that it was the last.
    pub(crate) is_closing: AtomicBool,
}

/// A process, as the kernel names its table of descriptors; `None`: it does not say.
pub(crate) type Owner = Option<u64>;

impl Handle {
    fn new(file: Arc<File>, writes: bool, generation: u64) -> Self {
        Self {
            file,
            writes,
            generation,
            owners: Mutex::default(),
            locked_in: AtomicU64::new(0),
            is_closing: AtomicBool::new(false),
        }
    }

    fn owners(&self) -> MutexGuard<'_, BTreeSet<Owner>> {
        self.owners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A process writes; whether it is the first.
    pub(crate) fn written_by(&self, owner: Owner) -> bool {
        let mut owners = self.owners();
        let is_first = owners.is_empty();
        owners.insert(owner);
        is_first
    }

    /// Whether others write through it and this process does not. A program that another one starts closes what it has inherited.
    pub(crate) fn is_of_others(&self, owner: Owner) -> bool {
        let owners = self.owners();
        !owners.is_empty() && !owners.contains(&owner) && !owners.contains(&None)
    }

    /// A process closes it; whether it was the last that had written.
    pub(crate) fn closed_by(&self, owner: Owner) -> bool {
        let mut owners = self.owners();
        let was_written = !owners.is_empty();
        owners.remove(&owner);
        owners.remove(&None);
        was_written && owners.is_empty()
    }

    /// Nobody has it any more; whether somebody had written and not closed it.
    pub(crate) fn is_over(&self) -> bool {
        let owners = std::mem::take(&mut *self.owners());
        !owners.is_empty()
    }
}

#[derive(Default)]
struct Table {
    files: BTreeMap<Inode, (Arc<File>, usize)>,
    handles: BTreeMap<u64, Arc<Handle>>,
    /// Handles of files that the target alone has, which are only read.
    at_target: BTreeMap<u64, (INodeNo, Arc<std::fs::File>)>,
    next: u64,
}

impl Table {
    fn take(&mut self, inode: Inode, what: impl FnOnce() -> String) -> Arc<File> {
        let (file, uses) = self.files.entry(inode).or_insert_with(|| (Arc::new(File::new(inode, what())), 0));
        *uses += 1;
        Arc::clone(file)
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Files(Mutex<Table>);

impl Files {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file, which stays in the table until its uses have ended as often.
    pub(crate) fn take(&self, inode: Inode, what: impl FnOnce() -> String) -> Arc<File> {
        self.table().take(inode, what)
    }

    /// Whether nobody has the file any more; with its gate held, so that nobody who comes meanwhile finds it half closed.
    pub(crate) fn end_use(&self, inode: Inode) -> bool {
        let mut table = self.table();
        let Some((_, uses)) = table.files.get_mut(&inode) else { return true };
        *uses -= 1;
        let is_over = *uses == 0;
        if is_over {
            table.files.remove(&inode);
        }
        is_over
    }

    /// Whether this use of a file is the only one.
    pub(crate) fn is_only_use(&self, inode: Inode) -> bool {
        self.table().files.get(&inode).is_none_or(|(_, uses)| *uses <= 1)
    }

    /// The file, if somebody has it open.
    pub(crate) fn find(&self, inode: Inode) -> Option<Arc<File>> {
        self.table().files.get(&inode).map(|(file, _)| Arc::clone(file))
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<Arc<File>> {
        self.table().files.values().map(|(file, _)| Arc::clone(file)).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.table().files.is_empty()
    }

    /// A handle of a file that was taken.
    pub(crate) fn open(&self, file: Arc<File>, writes: bool, generation: u64) -> u64 {
        let mut table = self.table();
        table.next += 1;
        let number = table.next;
        table.handles.insert(number, Arc::new(Handle::new(file, writes, generation)));
        number
    }

    /// A handle of a file that the target alone has, under the kernel's number of it.
    pub(crate) fn open_at_target(&self, file: std::fs::File, of: INodeNo) -> u64 {
        let mut table = self.table();
        table.next += 1;
        let number = table.next;
        table.at_target.insert(number, (of, Arc::new(file)));
        number
    }

    /// What such a handle reads.
    pub(crate) fn at_target(&self, handle: u64) -> Option<Arc<std::fs::File>> {
        self.table().at_target.get(&handle).map(|(_, file)| Arc::clone(file))
    }

    /// The pool has a file by now: whoever has it open sees what is written into it from now on.
    pub(crate) fn imported(&self, of: INodeNo, inode: Inode) {
        let mut table = self.table();
        let handles: Vec<u64> =
            table.at_target.iter().filter(|(_, (number, _))| *number == of).map(|(handle, _)| *handle).collect();
        for handle in handles {
            table.at_target.remove(&handle);
            let file = table.take(inode, || format!("file {inode}"));
            table.handles.insert(handle, Arc::new(Handle::new(file, false, 0)));
        }
    }

    /// Closes a handle of a file that the target alone has; `false`: it is none.
    pub(crate) fn close_at_target(&self, handle: u64) -> bool {
        self.table().at_target.remove(&handle).is_some()
    }

    pub(crate) fn handle(&self, number: u64) -> Option<Arc<Handle>> {
        self.table().handles.get(&number).cloned()
    }

    pub(crate) fn close(&self, number: u64) -> Option<Arc<Handle>> {
        self.table().handles.remove(&number)
    }
}
