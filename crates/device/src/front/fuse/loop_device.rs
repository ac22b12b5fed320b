//! Loop devices: attach a file with direct I/O, detach, find out who uses one.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use crate::front::{FrontError, users};

// ioctls and flags of linux/loop.h.
const LOOP_SET_FD: libc::Ioctl = 0x4c00;
const LOOP_CLR_FD: libc::Ioctl = 0x4c01;
const LOOP_SET_STATUS64: libc::Ioctl = 0x4c04;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4c05;
const LOOP_SET_CAPACITY: libc::Ioctl = 0x4c07;
const LOOP_SET_DIRECT_IO: libc::Ioctl = 0x4c08;
const LOOP_SET_BLOCK_SIZE: libc::Ioctl = 0x4c09;
const LOOP_CONFIGURE: libc::Ioctl = 0x4c0a;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4c82;
const LO_FLAGS_DIRECT_IO: u32 = 16;
const LOOP_MAJOR: u32 = 7;

/// Devices tried when others take the free one before we do.
const ATTEMPTS: usize = 1024;
/// How often a detached device is looked at until the kernel has released it, and the pause between.
const DETACH_LOOKS: usize = 500;
const DETACH_PAUSE: Duration = Duration::from_millis(10);

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
#[derive(Clone, Copy)]
struct LoopConfig {
    descriptor: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

impl LoopInfo {
    fn new(name: &Path) -> Self {
        let mut file_name = [0; 64];
        let bytes = name.as_os_str().as_encoded_bytes();
        let length = bytes.len().min(63);
        file_name[..length].copy_from_slice(&bytes[..length]);
        Self {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: LO_FLAGS_DIRECT_IO,
            file_name,
            crypt_name: [0; 64],
            encrypt_key: [0; 32],
            init: [0; 2],
        }
    }
}

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn ioctl_number(device: &File, request: libc::Ioctl, number: libc::c_ulong) -> io::Result<libc::c_int> {
    // SAFETY: these requests take an integer and touch no memory of ours.
    check(unsafe { libc::ioctl(device.as_raw_fd(), request, number) })
}

/// A loop device, by number. No descriptor is kept: the last close of a block device writes its dirty pages, which a
/// dying daemon would wait for and never serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LoopDevice {
    number: u32,
}

impl LoopDevice {
    /// `/dev/loopN`.
    pub(super) fn path(&self) -> PathBuf {
        PathBuf::from(format!("/dev/loop{}", self.number))
    }

    fn sysfs(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/sys/block/loop{}/{name}", self.number))
    }

    /// Attaches `file` to a free device, with direct I/O.
    pub(super) fn attach(file: &File, name: &Path, block_size: u32) -> Result<Self, FrontError> {
        let failed = |error: io::Error| {
            FrontError::new(
                "cannot set up a loop device",
                error,
                "run as root with the loop module loaded, or export with nbd",
            )
        };
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control").map_err(failed)?;
        let mut last = io::Error::from_raw_os_error(libc::EBUSY);
        for _ in 0..ATTEMPTS {
            let number = ioctl_number(&control, LOOP_CTL_GET_FREE, 0).map_err(failed)?;
            let device = Self { number: number as u32 };
            match device.configure(file, name, block_size) {
                Ok(()) => return Ok(device),
                // Another process, or another device of this one, took it between the two calls.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => last = error,
                Err(error) => return Err(failed(error)),
            }
        }
        Err(failed(last))
    }

    fn open(&self, exclusive: bool) -> io::Result<File> {
        let path = self.path();
        if !fs::metadata(&path).is_ok_and(|metadata| metadata.file_type().is_block_device()) {
            // Containers have no udev to make the node.
            let device = rustix::fs::makedev(LOOP_MAJOR, self.number);
            let mode = rustix::fs::Mode::from_raw_mode(0o600);
            let _ = rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::BlockDevice, mode, device);
        }
        let flags = if exclusive { libc::O_EXCL } else { 0 };
        OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path)
    }

    fn configure(&self, file: &File, name: &Path, block_size: u32) -> io::Result<()> {
        let device = self.open(false)?;
        let info = LoopInfo::new(name);
        let config = LoopConfig { descriptor: raw(file) as u32, block_size, info, reserved: [0; 8] };
        // SAFETY: the kernel reads a `loop_config`, which lives until the call returns.
        match check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) }) {
            Ok(_) => {}
            // Before Linux 5.8.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOTTY | libc::ENOSYS)) => {
                configure_stepwise(&device, file, &info, block_size)?;
            }
            Err(error) => return Err(error),
        }
        if !has_direct_io(&device)? && ioctl_number(&device, LOOP_SET_DIRECT_IO, 1).is_err() {
            tracing::warn!(device = %self.path().display(), "the loop driver refuses direct I/O; data are cached twice");
        }
        Ok(())
    }

    /// Detaches. Writes what the page cache holds for the device, so the device must be served meanwhile.
    pub(super) fn detach(&self) -> Result<(), FrontError> {
        let shown = self.path();
        let shown = shown.display();
        let device = match self.open(true) {
            Ok(device) => device,
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => return Err(self.busy(self.users())),
            Err(error) => return Err(FrontError::new(&format!("cannot open {shown}"), error, "run as root")),
        };
        let users = self.users();
        if !users.is_empty() {
            return Err(self.busy(users));
        }
        match ioctl_number(&device, LOOP_CLR_FD, 0) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => return Ok(()),
            Err(error) => {
                return Err(FrontError::new(
                    &format!("cannot detach {shown}"),
                    error,
                    &format!("try `losetup -d {shown}`"),
                ));
            }
        }
        drop(device);
        for _ in 0..DETACH_LOOKS {
            if !self.sysfs("loop").exists() {
                return Ok(());
            }
            sleep(DETACH_PAUSE);
        }
        Err(self.busy(self.users()))
    }

    /// Takes the size that its file has now.
    pub(super) fn follow_size(&self) -> io::Result<()> {
        ioctl_number(&self.open(false)?, LOOP_SET_CAPACITY, 0).map(drop)
    }

    /// Detaches as soon as nobody uses it any more.
    pub(super) fn detach_lazily(&self) {
        if let Ok(device) = self.open(false) {
            let _ = ioctl_number(&device, LOOP_CLR_FD, 0);
        }
    }

    /// Whether nobody uses it.
    pub(super) fn unused(&self) -> Result<(), FrontError> {
        let users = self.users();
        if users.is_empty() { Ok(()) } else { Err(self.busy(users)) }
    }

    fn busy(&self, users: Vec<String>) -> FrontError {
        let shown = self.path();
        let who = if users.is_empty() { "something not visible from here".to_owned() } else { users.join(", ") };
        FrontError(format!("{} is in use by {who}; unmount or close it first", shown.display()))
    }

    fn users(&self) -> Vec<String> {
        users::of(&self.path(), &PathBuf::from(format!("/sys/block/loop{}", self.number)))
    }

    /// The devices whose file the kernel finds at `file`.
    pub(super) fn backed_by(file: &Path) -> Vec<Self> {
        Self::attached().filter(|(_, backing)| backing == file).map(|(device, _)| device).collect()
    }

    /// The devices that were attached under the name `file` and whose mount is gone: the kernel then names the file by its
    /// path within the mount. None if the name is too long for the kernel to keep.
    pub(super) fn left_by(file: &Path) -> Vec<Self> {
        let name = LoopInfo::new(file).file_name;
        if file.as_os_str().len() >= name.len() {
            return Vec::new();
        }
        let within = Path::new("/").join(file.file_name().unwrap_or_default());
        // Read-only: the end of writing to somebody else's device would be told to udev.
        let known_as = |device: &Self| Ok::<_, io::Error>(status(&File::open(device.path())?)?.file_name);
        let left = Self::attached()
            .filter(|(device, backing)| *backing == within && known_as(device).is_ok_and(|known_as| known_as == name));
        left.map(|(device, _)| device).collect()
    }

    /// All devices with a file, and where the kernel says that it is.
    fn attached() -> impl Iterator<Item = (Self, PathBuf)> {
        fs::read_dir("/sys/block").into_iter().flatten().flatten().filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("loop")?.parse().ok()?;
            let backing = fs::read_to_string(entry.path().join("loop/backing_file")).ok()?;
            let backing = backing.trim_end_matches('\n').trim_end_matches(" (deleted)");
            Some((Self { number }, PathBuf::from(backing)))
        })
    }
}

fn raw(file: &File) -> RawFd {
    file.as_raw_fd()
}

fn configure_stepwise(device: &File, file: &File, info: &LoopInfo, block_size: u32) -> io::Result<()> {
    ioctl_number(device, LOOP_SET_FD, raw(file) as libc::c_ulong)?;
    // SAFETY: the kernel reads a `loop_info64`, which lives until the call returns.
    let status = check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_SET_STATUS64, std::ptr::from_ref(info)) });
    let done = status.and_then(|_| ioctl_number(device, LOOP_SET_BLOCK_SIZE, block_size.into()));
    if done.is_err() {
        let _ = ioctl_number(device, LOOP_CLR_FD, 0);
    }
    done.map(|_| ())
}

fn has_direct_io(device: &File) -> io::Result<bool> {
    Ok(status(device)?.flags & LO_FLAGS_DIRECT_IO != 0)
}

fn status(device: &File) -> io::Result<LoopInfo> {
    let mut info = LoopInfo::new(Path::new(""));
    // SAFETY: the kernel writes a `loop_info64`, which lives until the call returns.
    check(unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) })?;
    Ok(info)
}
