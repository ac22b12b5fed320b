//! The fuse export: one file served by FUSE, with a loop device on it: a real `/dev/loopN` on any kernel.
//!
//! Calls arrive on fuser's session threads, which queue them for the thread that owns the device; replies go out from
//! that thread. Everything that touches our own mount or loop device can wait for us, so it runs on other threads:
//! the set-up on one that [`FuseFront::start`] starts, the teardown on whichever calls [`FuseHandle::close`], both
//! while the device's thread serves.

use std::ffi::CString;
use std::fs::{self, DirBuilder, OpenOptions};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use fuser::{Session, SessionACL};
use rustix::fs::{AtFlags, CWD, StatxFlags, statx};
use rustix::mount::MountFlags;

use self::filesystem::{Calls, DiskFilesystem, FILE, Reply};
use self::loop_device::LoopDevice;
use super::wake::Wake;
use super::{Export, Front, FrontError, KERNEL, Submission, Token, reclaim};
use crate::buffer::{Buffer, BufferPool};

mod filesystem;
mod loop_device;
mod stale;

/// Idle buffers of each size kept for use again, in bytes.
const POOL_BYTES: usize = 8 << 20;

/// What is exported, and where.
#[derive(Clone, Debug)]
pub struct FuseConfig {
    /// The device.
    pub export: Export,
    /// Where the private directory `NAME.fuse` is made.
    pub run_directory: PathBuf,
    /// Threads that take calls from the kernel; 1 is enough for most (see `docs/decisions/0004-exports.md`).
    pub session_threads: usize,
}

/// Where the export stands.
#[derive(Clone, Debug)]
enum ExportState {
    Starting,
    Ready(LoopDevice),
    Failed(FrontError),
    Closed,
}

/// What the front, its handles and its threads share.
#[derive(Debug)]
struct Shared {
    directory: PathBuf,
    state: Mutex<ExportState>,
    changed: Condvar,
    closing: Mutex<()>,
    session: Mutex<Option<JoinHandle<()>>>,
    set_up: Mutex<Option<JoinHandle<()>>>,
    calls: Arc<Calls>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The fuse export. Dropping it without [`FuseHandle::close`] fails every call and detaches what can be detached.
#[derive(Debug)]
pub struct FuseFront {
    shared: Arc<Shared>,
    replies: Vec<Option<Reply>>,
    idle_tokens: Vec<u64>,
}

/// Waits for the export and closes it, from any thread but the one that serves it.
#[derive(Clone, Debug)]
pub struct FuseHandle(Arc<Shared>);

impl FuseFront {
    /// Mounts the file system, and sets the loop device up on a thread of its own: serve the front at once, and ask
    /// [`FuseHandle::wait_ready`] for the device. What a killed predecessor left is cleared first.
    ///
    /// # Errors
    /// If the directory cannot be made, is served by a living process, or FUSE refuses the mount.
    pub fn start(config: &FuseConfig) -> Result<Self, FrontError> {
        map_large_buffers();
        let directory = prepare(config)?;
        let wake = Wake::new().map_err(|error| FrontError::new("cannot make an eventfd", error, "close some files"))?;
        let calls = Arc::new(Calls::new(wake, BufferPool::new(POOL_BYTES), config.export.size));
        let session = mount(config, &directory, &calls)?;
        let shared = Arc::new(Shared {
            directory,
            state: Mutex::new(ExportState::Starting),
            changed: Condvar::new(),
            closing: Mutex::new(()),
            session: Mutex::new(None),
            set_up: Mutex::new(None),
            calls,
        });
        let front = Self { shared: Arc::clone(&shared), replies: Vec::new(), idle_tokens: Vec::new() };
        let failed = |error| FrontError::new("cannot start a thread", error, "raise the limit on threads");
        let serve = std::thread::Builder::new().name("fuse".into()).spawn(move || {
            // fuser's own threads start from here and inherit it.
            if let Err(error) = reclaim::mark_io_flusher() {
                tracing::debug!(%error, "the session threads are not marked as I/O flushers");
            }
            if let Err(error) = session.run() {
                tracing::error!(%error, "the fuse session ended");
            }
        });
        *lock(&shared.session) = Some(serve.map_err(failed)?);
        let (block, for_set_up) = (config.export.logical_block, Arc::clone(&shared));
        let set_up = std::thread::Builder::new().name("fuse-set-up".into()).spawn(move || {
            let state = match attach(&for_set_up.directory, block) {
                Ok(device) => ExportState::Ready(device),
                Err(error) => ExportState::Failed(error),
            };
            *lock(&for_set_up.state) = state;
            for_set_up.changed.notify_all();
            for_set_up.calls.wake.raise();
        });
        *lock(&shared.set_up) = Some(set_up.map_err(failed)?);
        Ok(front)
    }

    /// For other threads.
    #[must_use]
    pub fn handle(&self) -> FuseHandle {
        FuseHandle(Arc::clone(&self.shared))
    }
}

fn prepare(config: &FuseConfig) -> Result<PathBuf, FrontError> {
    let parent = &config.run_directory;
    let failed = |error: std::io::Error| {
        FrontError::new(
            &format!("cannot use the directory {}", parent.display()),
            error,
            "choose one that you may write to",
        )
    };
    fs::create_dir_all(parent).map_err(failed)?;
    let directory = parent.canonicalize().map_err(failed)?.join(format!("{}.fuse", config.export.name));
    stale::clear(&directory)?;
    match DirBuilder::new().mode(0o700).create(&directory) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        other => other.map_err(failed)?,
    }
    Ok(directory)
}

/// Has the C library map what is as large as a session's buffer: 16 MiB, of which the kernel fills as much as its largest request
/// takes. Such a mapping has no pages until they are written to. Left to itself, the library takes all but the first from
/// its heap, because that has been freed once, and clears them, which makes every page of them resident.
fn map_large_buffers() {
    #[cfg(target_env = "gnu")]
    {
        const LARGE: libc::c_int = 8 << 20;
        // What the heap keeps of what is freed: as much as if the library had chosen.
        const KEPT: libc::c_int = 4 * LARGE;
        // SAFETY: both change where memory is taken from, and nothing that has been taken.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGE);
            libc::mallopt(libc::M_TRIM_THRESHOLD, KEPT);
        }
    }
}

fn mount(config: &FuseConfig, directory: &Path, calls: &Arc<Calls>) -> Result<Session<DiskFilesystem>, FrontError> {
    let mut options = fuser::Config::default();
    options.acl = SessionACL::Owner;
    options.n_threads = Some(config.session_threads.max(1));
    options.clone_fd = config.session_threads > 1;
    let filesystem = DiskFilesystem::new(config.export.logical_block, Arc::clone(calls));
    let failed = |error: std::io::Error| {
        FrontError::new(
            &format!("cannot mount FUSE on {}", directory.display()),
            error,
            "run as root with the fuse module loaded, or export with nbd",
        )
    };
    let channel = mount_kernel(&config.export.name, directory).map_err(failed)?;
    Session::from_fd(filesystem, channel, options.acl, options).map_err(|error| {
        let _ = stale::unmount_any(directory);
        failed(error)
    })
}

/// Mounts, and gives the channel to the kernel. Not left to fuser: its session unmounts the path when it ends, and one
/// that outlived its front, because the device was in use, would take the mount of its successor away.
fn mount_kernel(name: &str, directory: &Path) -> std::io::Result<OwnedFd> {
    let channel = OpenOptions::new().read(true).write(true).open("/dev/fuse")?;
    let (user, group) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let data = format!("fd={},rootmode=40000,user_id={user},group_id={group}", channel.as_raw_fd());
    let data = CString::new(data)?;
    let flags = MountFlags::NODEV | MountFlags::NOSUID | MountFlags::NOEXEC | MountFlags::NOATIME;
    rustix::mount::mount(format!("surgetank-{name}"), directory, "fuse.surgetank", flags, Some(data.as_c_str()))?;
    Ok(channel.into())
}

fn attach(directory: &Path, block: u32) -> Result<LoopDevice, FrontError> {
    let path = directory.join(FILE);
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(&path);
    let file = file.map_err(|error| {
        FrontError::new(&format!("cannot open {}", path.display()), error, "see the log for the cause")
    })?;
    LoopDevice::attach(&file, &path, block)
}

impl FuseHandle {
    /// The loop device's path once it is set up. The front must be served meanwhile.
    ///
    /// # Errors
    /// If it could not be set up, the export is closed, or `timeout` has passed.
    pub fn wait_ready(&self, timeout: Duration) -> Result<PathBuf, FrontError> {
        let state = lock(&self.0.state);
        let waited = self.0.changed.wait_timeout_while(state, timeout, |state| matches!(state, ExportState::Starting));
        match &*waited.unwrap_or_else(PoisonError::into_inner).0 {
            ExportState::Ready(device) => Ok(device.path()),
            ExportState::Failed(error) => Err(error.clone()),
            ExportState::Closed => Err(FrontError("the export is closed; start it again".into())),
            ExportState::Starting => Err(FrontError(
                "the loop device was not set up in time; see whether the device is served and the machine overloaded"
                    .into(),
            )),
        }
    }

    /// Lets the loop device follow the front's size. The front must be served meanwhile.
    ///
    /// # Errors
    /// If the kernel refuses, or the export is not up.
    pub fn grown(&self) -> Result<(), FrontError> {
        let failed = |error: std::io::Error| {
            FrontError::new("the loop device does not follow the new size", error, "start the daemon again")
        };
        // The kernel believes what it knows of the file until somebody insists.
        let (path, flags) = (self.0.directory.join(FILE), AtFlags::STATX_FORCE_SYNC);
        statx(CWD, &path, flags, StatxFlags::SIZE).map_err(|errno| failed(errno.into()))?;
        match lock(&self.0.state).clone() {
            ExportState::Ready(device) => device.follow_size().map_err(failed),
            _ => Err(FrontError("the export is not up; start it again".into())),
        }
    }

    /// Whether nobody uses the device, so that it can be closed at once.
    ///
    /// # Errors
    /// Who does.
    pub fn unused(&self) -> Result<(), FrontError> {
        let state = lock(&self.0.state).clone();
        match state {
            ExportState::Ready(device) => device.unused(),
            ExportState::Starting | ExportState::Failed(_) | ExportState::Closed => Ok(()),
        }
    }

    /// Detaches the loop device, unmounts and removes the directory. Dirty pages are written first, so the front must
    /// be served until this returns; then drop it.
    ///
    /// # Errors
    /// If the device is in use (the error says by whom); then everything stays as it is.
    pub fn close(&self) -> Result<(), FrontError> {
        if let Some(set_up) = lock(&self.0.set_up).take() {
            let _ = set_up.join();
        }
        let _only_one = lock(&self.0.closing);
        // Not under the lock of the state: the thread that serves us may ask for the address.
        let state = lock(&self.0.state).clone();
        match state {
            ExportState::Closed => return Ok(()),
            ExportState::Ready(device) => device.detach()?,
            ExportState::Starting | ExportState::Failed(_) => {}
        }
        *lock(&self.0.state) = ExportState::Closed;
        self.dismantle()
    }

    fn dismantle(&self) -> Result<(), FrontError> {
        let directory = &self.0.directory;
        let gone = stale::unmount_any(directory).map_err(|error| {
            let shown = directory.display();
            FrontError::new(&format!("cannot unmount {shown}"), error, &format!("try `umount {shown}`"))
        })?;
        let session = lock(&self.0.session).take();
        // What is left of a busy mount keeps its session until its last user goes.
        if gone && let Some(session) = session {
            let _ = session.join();
        }
        let _ = fs::remove_dir(directory);
        Ok(())
    }
}

impl Drop for FuseFront {
    fn drop(&mut self) {
        // From here the session threads answer every call with an error themselves, so nothing below waits for us.
        self.shared.calls.close();
        for reply in self.replies.drain(..).flatten() {
            reply.fail(libc::EIO);
        }
        let handle = self.handle();
        if let Some(set_up) = lock(&self.shared.set_up).take() {
            let _ = set_up.join();
        }
        let state = std::mem::replace(&mut *lock(&self.shared.state), ExportState::Closed);
        match state {
            ExportState::Closed => return,
            ExportState::Ready(device) => {
                if let Err(error) = device.detach() {
                    tracing::error!(%error, "the export ends while its device is in use");
                    device.detach_lazily();
                }
            }
            ExportState::Starting | ExportState::Failed(_) => {}
        }
        if let Err(error) = handle.dismantle() {
            tracing::error!(%error, "the export could not be taken down");
        }
    }
}

impl Front for FuseFront {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.shared.calls.wake.as_fd()
    }

    fn receive(&mut self, budget: usize, sink: &mut Vec<Submission>) {
        let calls = &self.shared.calls;
        calls.wake.clear();
        for _ in 0..budget {
            let Some(call) = calls.queue.pop() else { return };
            let buffer = match &call.reply {
                Reply::Data(_) => Some(calls.pool.take(call.length as usize)),
                _ => call.buffer,
            };
            let token = match self.idle_tokens.pop() {
                Some(token) => {
                    self.replies[token as usize] = Some(call.reply);
                    Token(token)
                }
                None => {
                    self.replies.push(Some(call.reply));
                    Token(self.replies.len() as u64 - 1)
                }
            };
            let (operation, offset, length) = (call.operation, call.offset, call.length);
            sink.push(Submission { token, client: KERNEL, operation, offset, length, buffer });
        }
        if !calls.queue.is_empty() {
            calls.wake.raise();
        }
    }

    fn reply(&mut self, token: Token, result: Result<(), i32>, buffer: Option<Buffer>) {
        let Some(reply) = self.replies.get_mut(token.0 as usize).and_then(Option::take) else { return };
        self.idle_tokens.push(token.0);
        match (reply, result, buffer) {
            (reply, Err(errno), _) => reply.fail(errno),
            (Reply::Data(reply), Ok(()), Some(buffer)) => {
                // SAFETY: the buffer came back with its reply, so its I/O has ended, and nobody else writes to it.
                reply.data(unsafe { buffer.bytes() });
            }
            // A read that comes back without its data has failed.
            (reply @ Reply::Data(_), Ok(()), None) => reply.fail(libc::EIO),
            (Reply::Write(reply, length), Ok(()), _) => reply.written(length),
            (Reply::Empty(reply), Ok(()), _) => reply.ok(),
        }
    }

    fn flush(&mut self) {}

    fn set_size(&mut self, size: u64) {
        self.shared.calls.set_size(size);
    }

    /// Empty until the loop device is set up.
    fn address(&self) -> String {
        match &*lock(&self.shared.state) {
            ExportState::Ready(device) => device.path().display().to_string(),
            _ => String::new(),
        }
    }
}
