//! A file or block device as a volume, through io_uring and, where the file system allows it, `O_DIRECT`.

use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use io_uring::{IoUring, squeue, types};
use surgetank_model::Instant;

use super::beneath::look_beneath;
use super::exclusive::{self, OpenError};
use super::request::{Progress, Request, Support};
use super::{Completion, Failure, Operation, Volume, VolumeIo};

/// How to open a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Refuse a volume that anybody else uses, and keep others from using it.
    pub exclusive: bool,
    /// Open for reading; everything that changes data fails as unsupported.
    pub read_only: bool,
    /// The logical block size, in bytes, instead of the device's own; not smaller than that.
    pub logical_block: Option<u32>,
    /// I/Os in flight, at most; more wait here. A power of two is best.
    pub depth: u32,
}

impl Default for Options {
    /// Exclusive, for writing, the device's own logical block, 256 in flight.
    fn default() -> Self {
        Self { exclusive: true, read_only: false, logical_block: None, depth: 256 }
    }
}

/// How long a dropped volume waits for I/Os in flight before it leaks their memory.
const DROP_TIMEOUT: Duration = Duration::from_secs(5);
/// When to try again after the kernel had no room for submissions and nothing is in flight that would wake us.
const RETRY: Duration = Duration::from_millis(1);

/// A file or block device.
pub struct FileVolume {
    ring: IoUring,
    file: File,
    path: PathBuf,
    size: u64,
    logical_block: u32,
    read_only: bool,
    is_disk: bool,
    notes: Vec<String>,
    support: Support,
    depth: usize,
    /// I/Os in flight, by the index that the kernel returns. Boxed: the kernel holds addresses inside.
    slots: Vec<Option<Box<Request>>>,
    free: Vec<u32>,
    backlog: VecDeque<Box<Request>>,
    /// Requests that have ended, for new I/Os.
    #[expect(clippy::vec_box, reason = "they move into `slots` as they are, without another allocation")]
    spare: Vec<Box<Request>>,
    ended: Vec<Completion>,
    retry_at: Option<Instant>,
}

impl std::fmt::Debug for FileVolume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileVolume").field("path", &self.path).field("size", &self.size).finish_non_exhaustive()
    }
}

impl AsFd for FileVolume {
    /// The file itself, to make sure of what was opened.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl FileVolume {
    /// Opens the file or block device at `path`.
    ///
    /// # Errors
    /// One sentence for people: missing, forbidden, in use and by whom, too small, no io_uring.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, OpenError> {
        let path = path.as_ref();
        Self::over(path, open_file(path, options)?, options)
    }

    /// Opens the regular file `name` beneath `directory`: for names that somebody else chose. Neither links nor `..` lead
    /// out of the directory, and the file has no other name.
    ///
    /// # Errors
    /// As [`FileVolume::open`].
    pub fn open_beneath(directory: &Path, name: &Path, options: Options) -> Result<Self, OpenError> {
        Self::over(&directory.join(name), open_file_beneath(directory, name, options)?, options)
    }

    fn over(path: &Path, opened: Opened, options: Options) -> Result<Self, OpenError> {
        let system = |error| OpenError::System { path: path.to_owned(), error };
        let mut notes = Vec::new();
        let Alignments { block: least, memory } = opened.alignments().map_err(system)?;
        let logical_block = options.logical_block.unwrap_or(least);
        if logical_block < least || !logical_block.is_power_of_two() || logical_block > 4096 {
            return Err(OpenError::LogicalBlock { path: path.to_owned(), asked: logical_block, least });
        }
        if !opened.direct {
            notes.push(format!("{} goes through the page cache: its file system refuses O_DIRECT", path.display()));
        }
        let size = opened.size().map_err(system)? / u64::from(logical_block) * u64::from(logical_block);
        if size == 0 {
            let (size, needed) = (opened.size().map_err(system)?, logical_block.into());
            return Err(OpenError::TooSmall { path: path.to_owned(), size, needed });
        }
        let depth = options.depth.clamp(1, 4096);
        let ring = build_ring(depth).map_err(OpenError::NoIoUring)?;
        Ok(Self {
            ring,
            support: Support::new(memory),
            is_disk: opened.metadata.file_type().is_block_device(),
            file: opened.file,
            path: path.to_owned(),
            size,
            logical_block,
            read_only: options.read_only,
            notes,
            depth: depth as usize,
            slots: Vec::new(),
            free: Vec::new(),
            backlog: VecDeque::new(),
            spare: Vec::new(),
            ended: Vec::new(),
            retry_at: None,
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the user should know, one sentence each (no `O_DIRECT`).
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Moves I/Os from the backlog to the kernel's queue while there is room for them.
    fn fill(&mut self) {
        while self.in_flight() < self.depth {
            let Some(request) = self.backlog.pop_front() else { return };
            let index = self.free.pop().unwrap_or_else(|| {
                self.slots.push(None);
                self.slots.len() as u32 - 1
            });
            let request = self.slots[index as usize].insert(request);
            let entry = request.entry(types::Fd(self.file.as_raw_fd()), &self.support);
            if !push(&mut self.ring, &entry.user_data(index.into())) {
                // The kernel has not taken what is queued already; this one waits until it has.
                if let Some(request) = self.slots[index as usize].take() {
                    self.backlog.push_front(request);
                }
                self.free.push(index);
                return;
            }
        }
    }

    /// Hands the queue to the kernel.
    fn enter(&mut self, now: Instant) {
        self.retry_at = None;
        loop {
            if self.ring.submission().is_empty() {
                return;
            }
            match self.ring.submit() {
                Ok(_) => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // EAGAIN, EBUSY, ENOMEM: the entries stay queued.
                Err(error) => {
                    tracing::debug!(path = %self.path.display(), %error, "io_uring is busy");
                    self.retry_at = Some(now + RETRY);
                    return;
                }
            }
        }
    }

    /// Takes what the kernel has ended. Says whether anything has to go to the kernel again.
    fn reap(&mut self, completions: &mut Vec<Completion>) -> bool {
        let mut again = false;
        for entry in self.ring.completion() {
            let index = entry.user_data() as u32;
            let Some(slot) = self.slots.get_mut(index as usize) else { continue };
            let Some(mut request) = slot.take() else { continue };
            self.free.push(index);
            match request.advance(entry.result(), &mut self.support) {
                Progress::Again => {
                    self.backlog.push_front(request);
                    again = true;
                }
                Progress::Ended(result) => {
                    let pulled = result.is_err() && self.is_disk && is_pulled(&self.file);
                    let result = if pulled { Err(Failure::Gone) } else { result };
                    completions.push(Completion { token: request.token(), result });
                    request.release_cache();
                    if self.spare.len() < self.depth {
                        self.spare.push(request);
                    }
                }
            }
        }
        again
    }
}

/// Completions are written to the ring when the thread is in the kernel anyway (Linux 5.19), instead of interrupting it.
fn build_ring(depth: u32) -> io::Result<IoUring> {
    match IoUring::builder().setup_clamp().setup_coop_taskrun().build(depth) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => IoUring::builder().setup_clamp().build(depth),
        result => result,
    }
}

fn push(ring: &mut IoUring, entry: &squeue::Entry) -> bool {
    // SAFETY: the entry's descriptor and addresses belong to a `Request` that stays in its slot, boxed, until the
    // kernel has completed the entry; `Drop` waits for that or leaks them.
    unsafe { ring.submission().push(entry).is_ok() }
}

impl Volume for FileVolume {
    fn size(&self) -> u64 {
        self.size
    }

    fn logical_block(&self) -> u32 {
        self.logical_block
    }

    fn submit(&mut self, _now: Instant, io: VolumeIo) {
        let allowed = if self.read_only && !matches!(io.operation, Operation::Read | Operation::Flush) {
            Err(Failure::Unsupported)
        } else {
            io.check(self.size, self.logical_block)
        };
        if allowed.is_err() || (io.length == 0 && io.operation != Operation::Flush) {
            return self.ended.push(Completion { token: io.token, result: allowed });
        }
        let request = match self.spare.pop() {
            Some(mut request) => {
                request.renew(io, &self.support);
                request
            }
            None => Box::new(Request::new(io, &self.support, Vec::new())),
        };
        self.backlog.push_back(request);
    }

    fn poll(&mut self, now: Instant, completions: &mut Vec<Completion>) {
        completions.append(&mut self.ended);
        self.fill();
        self.enter(now);
        // What the submission itself completed (from the page cache, or refused) is reaped at once.
        while self.reap(completions) || (!self.backlog.is_empty() && self.retry_at.is_none()) {
            let in_flight = self.in_flight();
            self.fill();
            if self.in_flight() == in_flight {
                break;
            }
            self.enter(now);
        }
    }

    fn has_ended(&mut self) -> bool {
        !self.ring.completion().is_empty()
    }

    fn resize_check(&mut self) -> Result<u64, Failure> {
        let size = self.file.metadata().and_then(|metadata| size_of(&self.file, &metadata));
        let size = size.map_err(|error| Failure::from_errno(error.raw_os_error().unwrap_or(0)))?;
        self.size = size / u64::from(self.logical_block) * u64::from(self.logical_block);
        Ok(self.size)
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.retry_at
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        // The ring itself is readable while it holds completions; unlike an eventfd it need not be read empty.
        // SAFETY: the ring's descriptor is open as long as `self`.
        Some(unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) })
    }
}

impl Drop for FileVolume {
    /// Waits for I/Os in flight, since the kernel writes to their memory; leaks that if the device is stuck.
    fn drop(&mut self) {
        let mut ended = Vec::new();
        let patience = types::Timespec::from(DROP_TIMEOUT);
        let arguments = types::SubmitArgs::new().timespec(&patience);
        self.backlog.clear();
        while self.in_flight() > 0 {
            let waited = self.ring.submitter().submit_with_args(1, &arguments);
            self.reap(&mut ended);
            match waited {
                Err(error) if error.kind() != io::ErrorKind::Interrupted && ended.is_empty() => break,
                _ => ended.clear(),
            }
            self.backlog.clear();
        }
        if self.in_flight() > 0 {
            tracing::warn!(path = %self.path.display(), in_flight = self.in_flight(), "closed with I/Os in flight");
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}

/// A descriptor and how it was obtained.
struct Opened {
    file: File,
    metadata: Metadata,
    direct: bool,
}

fn open_file(path: &Path, options: Options) -> Result<Opened, OpenError> {
    let failed = |error| failed(path, error);
    let metadata = std::fs::metadata(path).map_err(failed)?;
    let block = metadata.file_type().is_block_device();
    if !block && !metadata.is_file() {
        return Err(OpenError::NotAVolume { path: path.to_owned() });
    }
    if options.exclusive {
        exclusive::check(path, &metadata)?;
    }
    let always = if block && options.exclusive { libc::O_EXCL } else { 0 };
    let open = |flags| File::options().read(true).write(!options.read_only).custom_flags(flags | always).open(path);
    let (file, direct) = match direct_or_not(open) {
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Err(exclusive::busy(path, &metadata)),
        result => result.map_err(failed)?,
    };
    // The path may have changed hands since it was looked at.
    let metadata = file.metadata().map_err(failed)?;
    if options.exclusive && !block {
        exclusive::lock(path, &file, &metadata)?;
    }
    Ok(Opened { file, metadata, direct })
}

fn open_file_beneath(directory: &Path, name: &Path, options: Options) -> Result<Opened, OpenError> {
    let path = &directory.join(name);
    let failed = |error: io::Error| match error.raw_os_error() {
        Some(libc::ELOOP | libc::EXDEV) => OpenError::Link { path: path.clone() },
        _ => failed(path, error),
    };
    let found = File::from(look_beneath(directory, name).map_err(failed)?);
    let metadata = found.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Err(OpenError::NotAVolume { path: path.clone() });
    }
    if metadata.nlink() != 1 {
        return Err(OpenError::Names { path: path.clone(), names: metadata.nlink() });
    }
    if options.exclusive {
        exclusive::check(path, &metadata)?;
    }
    // What was looked at, whatever has its name by now.
    let same = format!("/proc/self/fd/{}", found.as_raw_fd());
    let open = |flags| File::options().read(true).write(!options.read_only).custom_flags(flags).open(&same);
    let (file, direct) = direct_or_not(open).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if options.exclusive {
        exclusive::lock(path, &file, &metadata)?;
    }
    Ok(Opened { file, metadata, direct })
}

/// With `O_DIRECT` if the file system has it; whether it does.
fn direct_or_not(open: impl Fn(i32) -> io::Result<File>) -> io::Result<(File, bool)> {
    match open(libc::O_DIRECT) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(0).map(|file| (file, false)),
        result => result.map(|file| (file, true)),
    }
}

fn failed(path: &Path, error: io::Error) -> OpenError {
    let path = path.to_owned();
    match error.kind() {
        io::ErrorKind::NotFound => OpenError::Missing { path },
        io::ErrorKind::PermissionDenied => OpenError::Forbidden { path },
        _ => OpenError::System { path, error },
    }
}

impl Opened {
    fn size(&self) -> io::Result<u64> {
        size_of(&self.file, &self.metadata)
    }

    /// What `O_DIRECT` asks for.
    fn alignments(&self) -> io::Result<Alignments> {
        // SAFETY: `statx` is plain data; the kernel fills what it knows.
        let mut status: libc::statx = unsafe { std::mem::zeroed() };
        // SAFETY: the descriptor is open, the path is a terminated string, and `status` is writable.
        let result = unsafe {
            let (descriptor, flags) = (self.file.as_raw_fd(), libc::AT_EMPTY_PATH);
            libc::statx(descriptor, c"".as_ptr(), flags, libc::STATX_DIOALIGN, &raw mut status)
        };
        let known = result == 0 && status.stx_mask & libc::STATX_DIOALIGN != 0 && status.stx_dio_offset_align > 0;
        let block = if self.metadata.file_type().is_block_device() {
            rustix::fs::ioctl_blksszget(&self.file)?
        } else if known && self.direct {
            status.stx_dio_offset_align.clamp(512, 4096)
        } else {
            // Kernels before 6.1 do not say; this is right for ext4 and XFS on any disk with 512-byte sectors.
            512
        };
        let memory = match (self.direct, known) {
            (false, _) => 1,
            (true, false) => block,
            (true, true) => status.stx_dio_mem_align,
        };
        Ok(Alignments { block, memory })
    }
}

/// What I/Os on a descriptor must be multiples of, in bytes.
struct Alignments {
    /// Offsets and lengths: the logical block.
    block: u32,
    /// Addresses and lengths of memory.
    memory: u32,
}

fn size_of(file: &File, metadata: &Metadata) -> io::Result<u64> {
    if !metadata.file_type().is_block_device() {
        return Ok(metadata.len());
    }
    disk_size(file)
}

fn disk_size(file: &File) -> io::Result<u64> {
    /// `_IOR(0x12, 114, size_t)`: the size of a block device, in bytes.
    const BLKGETSIZE64: libc::Ioctl = 0x8008_1272;
    let mut size = 0u64;
    // SAFETY: this request writes a 64-bit number to its argument.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(size) }
}

/// Whether a disk has left the machine. The kernel takes its size away then: reads answer nothing, writes that there is no
/// space, and neither says why.
fn is_pulled(disk: &File) -> bool {
    match disk_size(disk) {
        Ok(size) => size == 0,
        Err(error) => error.raw_os_error().is_some_and(|errno| Failure::from_errno(errno) == Failure::Gone),
    }
}
