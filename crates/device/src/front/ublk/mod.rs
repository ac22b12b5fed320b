//! The ublk export: a `/dev/ublkbN` of the kernel's own ublk driver, the fastest of the exports.
//!
//! The thread that owns the device serves the driver's queue itself, through an io_uring whose descriptor is the
//! front's: no other thread takes part in a request. Set-up and teardown wait for requests to be served (a new disk is
//! searched for partitions), so they run on other threads, as for fuse; and they begin only when requests are answered
//! ([`UblkHandle::bring_up`]), for the kernel holds locks of its own meanwhile.
//!
//! A device outlives its server: while nobody serves it, its I/O waits. A daemon that was killed or replaced leaves it
//! so, and the next one, which finds it by the identity that the driver keeps with it, takes it over under whatever is
//! mounted on it; requests that were in hand come again.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use self::abi::{DeviceInfo, DeviceState, Features, Parameters};
use self::control::Control;
use self::queue::Queue;
use self::takeover::Found;
use super::{Export, Front, FrontError, Submission, Token, users};
use crate::buffer::Buffer;

mod abi;
mod control;
mod queue;
mod tags;
mod takeover;
mod translate;

/// Requests in hand, at most.
const DEPTH: u16 = 128;
/// Bytes of one read or write, at most; every tag has that much address space.
const IO_BYTES_MAX: u32 = 512 << 10;
/// How long a device is waited for whose last server is dying.
const DYING_TIMEOUT: Duration = Duration::from_secs(60);
const DYING_PAUSE: Duration = Duration::from_millis(10);
/// How long the kernel may take to bring the device up.
const UP_TIMEOUT: Duration = Duration::from_secs(50);

/// What is exported.
#[derive(Clone, Debug)]
pub struct UblkConfig {
    /// The device.
    pub export: Export,
    /// Names the device among all ublk devices of the machine, so that a later daemon finds it: the same for every
    /// start, different from any other device's. Not 0.
    pub identity: u64,
    /// It has a volatile write cache; without one, every change is durable when it is answered.
    pub write_cache: bool,
    /// It takes discard requests.
    pub discards: bool,
    /// The kernel looks for partitions on it.
    pub partitions: bool,
}

/// Where the export stands.
#[derive(Clone, Debug)]
enum ExportState {
    /// Requests are not answered yet.
    Waiting,
    Starting,
    Ready,
    Failed(FrontError),
    Closed,
}

/// What the front, its handles and its threads share.
#[derive(Debug)]
struct Shared {
    name: String,
    block: BlockDevice,
    way: Way,
    features: Features,
    state: Mutex<ExportState>,
    changed: Condvar,
    /// The queue cannot be served any more.
    broken: AtomicBool,
    closing: Mutex<()>,
    set_up: Mutex<Option<JoinHandle<()>>>,
}

/// The ublk export. Dropping it without [`UblkHandle::close`] leaves the device to the next server.
pub struct UblkFront {
    shared: Arc<Shared>,
    export: Export,
    queue: Queue,
}

/// Waits for the export and closes it, from any thread but the one that serves it.
#[derive(Clone, Debug)]
pub struct UblkHandle(Arc<Shared>);

/// How a device comes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    New,
    TakeOver,
}

/// Whether this machine has a ublk driver that can do what is needed, and we may use it.
///
/// # Errors
/// Why not.
pub fn possible() -> Result<(), FrontError> {
    Control::open().map(|_| ())
}

/// The number of the block device of this identity, if an earlier daemon left one.
///
/// # Errors
/// As [`possible`].
pub fn left_behind(identity: u64) -> Result<Option<(u32, u32)>, FrontError> {
    let (control, _) = Control::open()?;
    let ours = |device: &u32| control.info(*device).is_ok_and(|info| info.identity == identity);
    let found = control::devices().into_iter().find(ours).map(BlockDevice);
    Ok(found.and_then(|block| parse_number(&fs::read_to_string(block.sysfs().join("dev")).ok()?)))
}

/// Deletes the device of this identity that an earlier daemon left, unless somebody uses it. Its requests are served by nobody.
///
/// # Errors
/// Somebody uses it, or the driver does not delete it.
pub fn delete_left_behind(identity: u64) -> Result<(), FrontError> {
    let (control, _) = Control::open()?;
    let ours = |device: &u32| control.info(*device).is_ok_and(|info| info.identity == identity);
    let Some(device) = control::devices().into_iter().find(ours) else { return Ok(()) };
    let block = BlockDevice(device);
    let users = block.users();
    if !users.is_empty() {
        return Err(block.busy(&users));
    }
    control.stop(device).map_err(|error| cannot("stop", device, error))?;
    control.delete(device).map_err(|error| cannot("delete", device, error))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl UblkFront {
    /// Takes over the device of this identity if an earlier daemon left one, else makes one. It comes up on a thread
    /// of its own: serve the front, say [`UblkHandle::bring_up`] when requests are answered, and ask
    /// [`UblkHandle::wait_ready`] for the device.
    ///
    /// # Errors
    /// There is no driver that can do what is needed, or the device is served by a living process, or is in use with
    /// another geometry.
    pub fn start(config: &UblkConfig) -> Result<Self, FrontError> {
        let (control, features) = Control::open()?;
        let (way, info) = match take_over(&control, config)? {
            Some(info) => (Way::TakeOver, info),
            None => (Way::New, add(&control, config)?),
        };
        let opened = open_character_device(info.device)
            .and_then(|device| Queue::new(device, info.depth, info.io_bytes_max, config))
            .map_err(|error| cannot("serve", info.device, error));
        let queue = match opened {
            Ok(queue) => queue,
            Err(error) => {
                if way == Way::New {
                    let _ = control.delete(info.device);
                }
                return Err(error);
            }
        };
        let shared = Arc::new(Shared {
            name: config.export.name.clone(),
            block: BlockDevice(info.device),
            way,
            features,
            state: Mutex::new(ExportState::Waiting),
            changed: Condvar::new(),
            broken: AtomicBool::new(false),
            closing: Mutex::new(()),
            set_up: Mutex::new(None),
        });
        let front = Self { shared: Arc::clone(&shared), export: config.export.clone(), queue };
        let (for_set_up, size) = (Arc::clone(&shared), config.export.size);
        let set_up =
            std::thread::Builder::new().name("ublk-set-up".into()).spawn(move || for_set_up.set_up(&control, size));
        let failed = |error| FrontError::new("cannot start a thread", error, "raise the limit on threads");
        *lock(&shared.set_up) = Some(set_up.map_err(failed)?);
        Ok(front)
    }

    /// For other threads.
    #[must_use]
    pub fn handle(&self) -> UblkHandle {
        UblkHandle(Arc::clone(&self.shared))
    }

    /// What the kernel refuses now it will refuse again: [`Front::is_broken`], and the device stays for the next server.
    fn served(&mut self, result: io::Result<()>) {
        if let Err(error) = result
            && !self.shared.broken.swap(true, Ordering::Relaxed)
        {
            tracing::error!(device = self.export.name, %error, "the ublk queue cannot be served: the device stops");
        }
    }
}

impl Shared {
    /// Brings the device up once requests are answered; one that nobody has seen goes if that never comes.
    fn set_up(&self, control: &Control, size: u64) {
        let waiting = |state: &mut ExportState| matches!(state, ExportState::Waiting);
        let state = self.changed.wait_while(lock(&self.state), waiting).unwrap_or_else(PoisonError::into_inner);
        let starting = matches!(*state, ExportState::Starting);
        drop(state);
        if starting {
            let up = match self.bring_up(control, size) {
                Ok(()) => ExportState::Ready,
                Err(error) => ExportState::Failed(error),
            };
            self.pass(|state| matches!(state, ExportState::Starting), up);
        } else if self.way == Way::New {
            let _ = control.delete(self.block.0);
        }
    }

    /// Goes on to another state, if it is in one of those; whether it was.
    fn pass(&self, from: impl Fn(&ExportState) -> bool, to: ExportState) -> bool {
        let mut state = lock(&self.state);
        let passes = from(&state);
        if passes {
            *state = to;
            self.changed.notify_all();
        }
        passes
    }

    fn bring_up(&self, control: &Control, size: u64) -> Result<(), FrontError> {
        let device = self.block.0;
        match self.way {
            Way::New => {
                if let Err(error) = control.start(device, UP_TIMEOUT) {
                    let _ = control.delete(device);
                    return Err(cannot("start", device, error));
                }
            }
            Way::TakeOver => {
                control.end_recovery(device, UP_TIMEOUT).map_err(|error| cannot("take over", device, error))?;
                tracing::info!(
                    device = self.name,
                    "took over {}, which waited for a daemon",
                    self.block.path().display()
                );
                self.follow_size(control, size);
            }
        }
        self.block.tune();
        self.block.make_node();
        Ok(())
    }

    /// A device that is taken over follows a backing volume that has grown meanwhile, if the kernel can do that.
    fn follow_size(&self, control: &Control, size: u64) {
        let device = self.block.0;
        let Ok(parameters) = control.parameters(device) else { return };
        if parameters.size == size {
            return;
        }
        match self.features.has(Features::UPDATE_SIZE) {
            true => {
                if let Err(error) = control.update_size(device, size) {
                    tracing::warn!(device = self.name, %error, "the device keeps its old size");
                }
            }
            false => tracing::warn!(device = self.name, "the device keeps its old size: {CANNOT_GROW}"),
        }
    }
}

const CANNOT_GROW: &str = "this kernel cannot resize a ublk device in use (Linux 6.16 can); stop the daemon while \
                           nobody uses the device and start it again";

impl UblkHandle {
    /// Requests are answered from now on: the device may come up.
    pub fn bring_up(&self) {
        self.0.pass(|state| matches!(state, ExportState::Waiting), ExportState::Starting);
    }

    /// The block device's path once it is up. The front must be served meanwhile.
    ///
    /// # Errors
    /// If it did not come up, or the export is closed.
    pub fn wait_ready(&self) -> Result<PathBuf, FrontError> {
        let coming = |state: &mut ExportState| matches!(state, ExportState::Waiting | ExportState::Starting);
        let state = self.0.changed.wait_while(lock(&self.0.state), coming).unwrap_or_else(PoisonError::into_inner);
        match &*state {
            ExportState::Ready => Ok(self.0.block.path()),
            ExportState::Failed(error) => Err(error.clone()),
            ExportState::Closed | ExportState::Waiting | ExportState::Starting => {
                Err(FrontError("the export is closed; start it again".into()))
            }
        }
    }

    /// Where the block device is, or will be.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.0.block.path()
    }

    /// The block device's major and minor number, once it is up.
    ///
    /// # Errors
    /// As [`UblkHandle::wait_ready`]; or the kernel does not tell.
    pub fn number(&self) -> Result<(u32, u32), FrontError> {
        self.wait_ready()?;
        let text = fs::read_to_string(self.0.block.sysfs().join("dev"));
        let text = text.map_err(|error| cannot("find", self.0.block.0, error))?;
        let parsed = parse_number(&text);
        parsed.ok_or_else(|| FrontError(format!("{} has no number: {text:?}", self.0.block.path().display())))
    }

    /// Lets the block device follow the front's size, in bytes.
    ///
    /// # Errors
    /// If the kernel cannot, or the export is not up.
    pub fn grown(&self, size: u64) -> Result<(), FrontError> {
        if !matches!(&*lock(&self.0.state), ExportState::Ready) {
            return Err(FrontError("the export is not up; start it again".into()));
        }
        if !self.0.features.has(Features::UPDATE_SIZE) {
            return Err(FrontError(CANNOT_GROW.into()));
        }
        let (control, _) = Control::open()?;
        control.update_size(self.0.block.0, size).map_err(|error| cannot("resize", self.0.block.0, error))
    }

    /// Who uses the device.
    #[must_use]
    pub fn users(&self) -> Vec<String> {
        match &*lock(&self.0.state) {
            ExportState::Ready => self.0.block.users(),
            _ => Vec::new(),
        }
    }

    /// Takes the block device away and deletes it. The front must be served until this returns; then drop it.
    ///
    /// # Errors
    /// If the device is in use (the error says by whom), or its requests cannot be answered; then everything stays as it
    /// is, and dropping the front leaves the device to the next server.
    pub fn close(&self) -> Result<(), FrontError> {
        // In one step: the device may be coming up at this very moment.
        let waits = self.0.pass(|state| matches!(state, ExportState::Waiting), ExportState::Closed);
        if let Some(set_up) = lock(&self.0.set_up).take() {
            let _ = set_up.join();
        }
        let _only_one = lock(&self.0.closing);
        let path = self.0.block.path();
        if waits && self.0.way == Way::TakeOver {
            return Err(FrontError(format!("{} was not served yet; start again to serve it", path.display())));
        }
        if !matches!(&*lock(&self.0.state), ExportState::Ready) {
            return Ok(());
        }
        if self.0.broken.load(Ordering::Relaxed) {
            return Err(FrontError(format!("{} cannot be served; start again to serve it", path.display())));
        }
        let (control, _) = Control::open()?;
        self.0.block.remove(&control)?;
        self.0.pass(|_| true, ExportState::Closed);
        Ok(())
    }
}

impl Drop for UblkFront {
    fn drop(&mut self) {
        if matches!(&*lock(&self.shared.state), ExportState::Closed) {
            return;
        }
        // The kernel takes the queue's commands back in its own time, and may copy to their memory until then.
        self.queue.keep_memory();
        self.shared.pass(|_| true, ExportState::Closed);
    }
}

impl Front for UblkFront {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.queue.descriptor()
    }

    fn receive(&mut self, budget: usize, sink: &mut Vec<Submission>) {
        if !self.is_broken() {
            let result = self.queue.receive(&self.export, budget, sink);
            self.served(result);
        }
    }

    fn is_broken(&self) -> bool {
        self.shared.broken.load(Ordering::Relaxed)
    }

    fn has_arrived(&mut self) -> bool {
        !self.is_broken() && self.queue.has_arrived()
    }

    fn reply(&mut self, token: Token, result: Result<(), i32>, buffer: Option<Buffer>) {
        // Not for the application: the next server gets the request again.
        if result != Err(libc::ESHUTDOWN) {
            self.queue.reply(token, result, buffer);
        }
    }

    fn flush(&mut self) {
        if !self.is_broken() {
            let result = self.queue.submit();
            self.served(result);
        }
    }

    /// Empty until the block device is up.
    fn address(&self) -> String {
        match &*lock(&self.shared.state) {
            ExportState::Ready => self.shared.block.path().display().to_string(),
            _ => String::new(),
        }
    }

    fn set_size(&mut self, size: u64) {
        self.export.size = size;
    }
}

/// A block device, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BlockDevice(u32);

impl BlockDevice {
    fn path(self) -> PathBuf {
        PathBuf::from(format!("/dev/ublkb{}", self.0))
    }

    fn sysfs(self) -> PathBuf {
        PathBuf::from(format!("/sys/block/ublkb{}", self.0))
    }

    fn users(self) -> Vec<String> {
        users::of(&self.path(), &self.sysfs())
    }

    /// No scheduler: the engine has its own order. And one tag that the block layer does not use: before Linux 6.15 a
    /// dead server is noticed only by a tag that it had not taken. Setting these waits for all requests in flight, so a
    /// device that is taken over is left as it is.
    fn tune(self) {
        for (name, value) in [("scheduler", "[none]".to_owned()), ("nr_requests", (DEPTH - 1).to_string())] {
            let path = self.sysfs().join("queue").join(name);
            let is = fs::read_to_string(&path).unwrap_or_default();
            if is.split_whitespace().any(|word| word == value) {
                continue;
            }
            let value = value.trim_matches(['[', ']']);
            if let Err(error) = fs::write(&path, value) {
                tracing::debug!(path = %path.display(), %error, "not set");
            }
        }
    }

    /// Containers have no udev to make the node.
    fn make_node(self) {
        let exists = fs::metadata(self.path()).is_ok_and(|metadata| metadata.file_type().is_block_device());
        if !exists {
            make_node(&self.path(), &self.sysfs().join("dev"), rustix::fs::FileType::BlockDevice);
        }
    }

    fn busy(self, users: &[String]) -> FrontError {
        let who = if users.is_empty() { "something not visible from here".to_owned() } else { users.join(", ") };
        FrontError(format!("{} is in use by {who}; unmount or close it first", self.path().display()))
    }

    /// Stops and deletes a device that is served, if nobody uses it: the kernel wrote its page cache when the last user closed it.
    /// Nothing is asked of the device here. Its answer would be our own, and if we were killed meanwhile, the thread that waits
    /// for it would keep this process, and so the next server, from ever going on.
    fn remove(self, control: &Control) -> Result<(), FrontError> {
        let path = self.path();
        let exclusively = OpenOptions::new().read(true).write(true).custom_flags(libc::O_EXCL).open(&path);
        let opened = match exclusively {
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Err(self.busy(&self.users())),
            result => result
                .map_err(|error| FrontError::new(&format!("cannot open {}", path.display()), error, "run as root"))?,
        };
        let users = self.users();
        if !users.is_empty() {
            return Err(self.busy(&users));
        }
        control.stop(self.0).map_err(|error| cannot("stop", self.0, error))?;
        drop(opened);
        control.delete(self.0).map_err(|error| cannot("delete", self.0, error))
    }
}

fn cannot(what: &str, device: u32, error: io::Error) -> FrontError {
    let what = format!("cannot {what} the ublk device {device}");
    FrontError::new(&what, error, "see the kernel's log, or export with fuse or nbd")
}

/// Adds a device of our identity.
fn add(control: &Control, config: &UblkConfig) -> Result<DeviceInfo, FrontError> {
    let wanted = DeviceInfo {
        queues: 1,
        depth: DEPTH,
        state: DeviceState::Dead,
        io_bytes_max: IO_BYTES_MAX,
        device: abi::ANY_DEVICE,
        server: -1,
        features: Features::USER_RECOVERY.and(Features::RECOVERY_REISSUE).and(Features::IOCTL_ENCODE),
        identity: config.identity,
    };
    let failed =
        |error| FrontError::new("cannot add a ublk device", error, "see the kernel's log, or export with fuse or nbd");
    let info = control.add(&wanted).map_err(failed)?;
    let Export { size, logical_block, .. } = config.export;
    let UblkConfig { write_cache, discards, .. } = *config;
    let parameters = Parameters { size, logical_block, io_bytes_max: info.io_bytes_max, write_cache, discards };
    control.set_parameters(info.device, &parameters).map_err(|error| {
        let _ = control.delete(info.device);
        failed(error)
    })?;
    Ok(info)
}

/// Looks for the device that an earlier daemon left, and makes it ready for us.
fn take_over(control: &Control, config: &UblkConfig) -> Result<Option<DeviceInfo>, FrontError> {
    let until = Instant::now() + DYING_TIMEOUT;
    loop {
        let ours = |device| control.info(device).ok().filter(|info| info.identity == config.identity);
        let Some(info) = control::devices().into_iter().find_map(ours) else { return Ok(None) };
        let block = BlockDevice(info.device);
        let parameters = control.parameters(info.device).ok();
        match takeover::decide(&info, parameters.as_ref(), config) {
            Found::TakeOver => match control.start_recovery(info.device) {
                // EINVAL: an earlier daemon had begun and was killed before it served the queue.
                Err(error) if !matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EINVAL)) => {
                    return Err(cannot("take over", info.device, error));
                }
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
                _ => return Ok(Some(info)),
            },
            Found::Wait => {}
            Found::Delete => {
                tracing::warn!(device = config.export.name, number = info.device, "deleting what a killed daemon left");
                control.delete(info.device).map_err(|error| cannot("delete", info.device, error))?;
            }
            Found::Replace => {
                let users = block.users();
                if !users.is_empty() {
                    let busy = block.busy(&users);
                    return Err(FrontError(format!("the device has changed its size or block since; {busy}")));
                }
                control.stop(info.device).map_err(|error| cannot("stop", info.device, error))?;
                control.delete(info.device).map_err(|error| cannot("delete", info.device, error))?;
            }
        }
        if Instant::now() >= until {
            return Err(FrontError(format!(
                "{} is still served by process {}; stop it first",
                block.path().display(),
                info.server
            )));
        }
        sleep(DYING_PAUSE);
    }
}

/// Opens a device's character file. A dying server may hold it for a moment.
fn open_character_device(device: u32) -> io::Result<File> {
    let path = PathBuf::from(format!("/dev/ublkc{device}"));
    if !path.exists() {
        let number = PathBuf::from(format!("/sys/class/ublk-char/ublkc{device}/dev"));
        make_node(&path, &number, rustix::fs::FileType::CharacterDevice);
    }
    OpenOptions::new().read(true).write(true).open(&path)
}

/// Makes a device's node from its number in sysfs, where nothing else does.
fn make_node(path: &Path, number: &Path, kind: rustix::fs::FileType) {
    let text = fs::read_to_string(number).unwrap_or_default();
    if let Some((major, minor)) = parse_number(&text) {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let _ = rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, rustix::fs::makedev(major, minor));
    }
}

/// `major:minor`.
fn parse_number(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.trim().split_once(':')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}
