//! Holding a volume exclusively: a volume that somebody else uses is refused, saying who it is and how to fix it.
//!
//! A block device is opened with `O_EXCL`, which fails while the kernel itself uses it (mounted, swap, RAID, device
//! mapper) or another surgetank holds it. A file is held by `flock`: the lock belongs to the open file description,
//! so I/Os that are still in flight after a `kill -9` keep it until they have ended. Neither notices a file that is
//! attached to a loop device, so that is looked up.

use std::fs::{self, File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};

use crate::holders::{Tables, Use, entries};
use crate::mountinfo;

/// Who holds a volume, as far as that can be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// This process.
    This,
    /// Another process, or the kernel.
    Another,
    /// Nothing was found that holds it. A killed process holds its volumes until their I/O in flight has ended.
    Unseen,
}

/// Why a volume could not be opened. One sentence, with the remedy.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// There is nothing at the path.
    #[error("{path} does not exist; check the path, or create the volume first", path = .path.display())]
    Missing {
        /// As it was given.
        path: PathBuf,
    },
    /// The rights do not suffice.
    #[error("{path} may not be opened by this user; run as root, or give the user rights on it", path = .path.display())]
    Forbidden {
        /// As it was given.
        path: PathBuf,
    },
    /// It is a directory, a socket, ...
    #[error("{path} is neither a file nor a block device; name the disk or the image itself", path = .path.display())]
    NotAVolume {
        /// As it was given.
        path: PathBuf,
    },
    /// It is a symbolic link where none belongs.
    #[error(
        "{path} is a symbolic link where surgetank keeps a volume of its own; somebody planted it: remove it",
        path = .path.display()
    )]
    Link {
        /// As it was given.
        path: PathBuf,
    },
    /// It is a file of which somebody else may hold another name.
    #[error(
        "{path} has {names} names (hard links), and surgetank uses a volume that has one: remove the others",
        path = .path.display()
    )]
    Names {
        /// As it was given.
        path: PathBuf,
        /// How many.
        names: u64,
    },
    /// It holds less than a block.
    #[error("{path} has only {size} bytes; a volume needs at least {needed}: enlarge it (truncate -s)", path = .path.display())]
    TooSmall {
        /// As it was given.
        path: PathBuf,
        /// Bytes.
        size: u64,
        /// Bytes.
        needed: u64,
    },
    /// The logical block that was asked for is not possible.
    #[error("{path} cannot have logical blocks of {asked} bytes; use a power of two from {least} to 4096", path = .path.display())]
    LogicalBlock {
        /// As it was given.
        path: PathBuf,
        /// Bytes.
        asked: u32,
        /// Bytes.
        least: u32,
    },
    /// Somebody else uses it.
    #[error("{path} {use_}", path = .path.display())]
    InUse {
        /// As it was given.
        path: PathBuf,
        /// Who uses it, and the remedy.
        use_: String,
        /// The same for programs.
        holder: Holder,
    },
    /// The kernel does not offer io_uring to this process.
    #[error(
        "io_uring is not available ({0}); set kernel.io_uring_disabled to 0 and allow it in the container's seccomp profile"
    )]
    NoIoUring(io::Error),
    /// Anything else.
    #[error("{path} cannot be opened: {error}", path = .path.display())]
    System {
        /// As it was given.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
}

/// Refuses a volume that the kernel uses: mounted, for swap, below a loop device. For those who open it in their own way.
///
/// # Errors
/// Who uses it, and the remedy; or it cannot be looked at.
pub fn refuse_used(path: &Path) -> Result<(), OpenError> {
    let metadata = fs::metadata(path).map_err(|error| OpenError::System { path: path.to_owned(), error })?;
    check(path, &metadata)
}

/// Refuses a volume that somebody uses, before it is opened (opening a device that is in use can disturb it).
pub(super) fn check(path: &Path, metadata: &Metadata) -> Result<(), OpenError> {
    let (identity, tables) = (Identity::of(metadata), Tables::read());
    let use_ = match identity {
        Identity::Device(device) => tables.uses_of(device).first().map(Use::sentence),
        Identity::File(..) => swap_use(&identity),
    };
    match use_.or_else(|| loop_use(&tables, path, &identity)) {
        Some(use_) => Err(OpenError::InUse { path: path.to_owned(), use_, holder: Holder::Another }),
        None => Ok(()),
    }
}

/// The sentence for a device or file that the kernel says is busy.
pub(super) fn busy(path: &Path, metadata: &Metadata) -> OpenError {
    in_use(path, metadata, 0)
}

/// `ours` descriptors of this process do not hold it.
fn in_use(path: &Path, metadata: &Metadata, ours: usize) -> OpenError {
    let (holder, use_) = match process_using(path, &Identity::of(metadata), ours) {
        Some((number, process)) => {
            let holder = if number == std::process::id() { Holder::This } else { Holder::Another };
            (holder, format!("is in use by {process}; stop that first"))
        }
        None => (Holder::Unseen, "is in use by another program; stop that first (lsof shows who it is)".to_owned()),
    };
    OpenError::InUse { path: path.to_owned(), use_, holder }
}

/// Takes the lock on a file.
pub(super) fn lock(path: &Path, file: &File, metadata: &Metadata) -> Result<(), OpenError> {
    match flock(file.as_fd(), FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        // It is open here as well, through `file`.
        Err(rustix::io::Errno::WOULDBLOCK) => Err(in_use(path, metadata, 1)),
        Err(errno) => Err(OpenError::System { path: path.to_owned(), error: errno.into() }),
    }
}

/// What makes two paths the same volume.
#[derive(Debug, PartialEq, Eq)]
enum Identity {
    Device(u64),
    File(u64, u64),
}

impl Identity {
    fn of(metadata: &Metadata) -> Self {
        if metadata.file_type().is_block_device() {
            Self::Device(metadata.rdev())
        } else {
            Self::File(metadata.dev(), metadata.ino())
        }
    }

    fn is(&self, path: impl AsRef<Path>) -> bool {
        fs::metadata(path).is_ok_and(|metadata| Self::of(&metadata) == *self)
    }
}

/// The loop device that a file or device is attached to.
fn loop_use(tables: &Tables, path: &Path, identity: &Identity) -> Option<String> {
    let real = fs::canonicalize(path).ok()?;
    entries(Path::new("/sys/block")).find_map(|directory| {
        let file = fs::read_to_string(directory.join("loop/backing_file")).ok()?;
        let file = Path::new(file.trim_end_matches('\n'));
        // Looking at a file can wait for whoever serves it: for ever, if that is a dead FUSE server, or ourselves.
        if file != real && (is_served_by_others(file) || !identity.is(file)) {
            return None;
        }
        let name = device_name(&directory)?;
        Some(match tables.mounted_on(&directory) {
            Some(place) => format!(
                "is attached to {name}, which is mounted on {place}; \
                 release it first (umount {place}; losetup -d {name})"
            ),
            None => format!("is attached to {name}; detach it first (losetup -d {name}), or use {name} itself"),
        })
    })
}

/// A file that the kernel swaps to.
fn swap_use(identity: &Identity) -> Option<String> {
    let swaps = fs::read_to_string("/proc/swaps").ok()?;
    let path =
        swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next()).find(|path| identity.is(path))?;
    Some(format!("is in use as swap; turn that off first (swapoff {path})"))
}

/// Whether looking at a path asks a FUSE or network server.
fn is_served_by_others(path: &Path) -> bool {
    let Ok(mounts) = mountinfo::read() else { return true };
    let kind = mountinfo::innermost(&mounts, path).map_or("", |mount| &*mount.kind);
    ["fuse", "nfs", "cifs", "smb", "ceph", "9p", "virtiofs"].iter().any(|served| kind.starts_with(served))
}

fn device_name(directory: &Path) -> Option<String> {
    let directory = fs::canonicalize(directory).ok()?;
    Some(format!("/dev/{}", directory.file_name()?.to_string_lossy().replace('!', "/")))
}

/// A process that has the volume open, rather another one than this, which has `ours` descriptors of it that do not count;
/// for the sentence, so as good as the rights allow.
fn process_using(path: &Path, identity: &Identity, ours: usize) -> Option<(u32, String)> {
    let real = fs::canonicalize(path).ok()?;
    // By name, and devices by number: looking at any other open file could wait for whoever serves it.
    let is_it = |descriptor: &PathBuf| {
        fs::read_link(descriptor).is_ok_and(|file| file == real || (file.starts_with("/dev") && identity.is(file)))
    };
    let has_it = |number: u32, free: usize| entries(&process(number).join("fd")).filter(is_it).nth(free).is_some();
    let this = std::process::id();
    let numbers = entries(Path::new("/proc")).filter_map(|process| process.file_name()?.to_str()?.parse().ok());
    let mut others = numbers.filter(|number| *number != this);
    let number = others.find(|number| has_it(*number, 0)).or_else(|| has_it(this, ours).then_some(this))?;
    let name = fs::read_to_string(process(number).join("comm")).unwrap_or_default();
    Some((number, format!("{} (process {number})", name.trim_end())))
}

fn process(number: u32) -> PathBuf {
    PathBuf::from(format!("/proc/{number}"))
}
