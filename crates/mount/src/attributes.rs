//! Nodes of the pool as the kernel and programs see them.

use std::time::{Duration, SystemTime};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};
use surgetank_pool::client::Stat;
use surgetank_pool_core::meta::value::{Special, SpecialKind};

/// The extended attribute that says where a file's bytes are.
pub const STATE: &str = "user.surgetank.state";
/// The one that says the mount's name in the pool.
pub const NAME: &str = "user.surgetank.mount";

/// What programs write at a time, if they ask: a chunk.
const BLOCK: u32 = 1 << 20;

/// What a program that writes sees, and the pool does not yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uncommitted {
    /// Bytes of the file.
    pub(crate) size: u64,
    /// When it was written, in nanoseconds since 1970.
    pub(crate) modified: u64,
}

/// The attributes of a node, under the number that the kernel has for it.
pub(crate) fn attributes(number: INodeNo, stat: &Stat, uncommitted: Option<Uncommitted>) -> FileAttr {
    let kind = kind(stat);
    let committed = stat.link.as_ref().map_or(stat.size, |to| to.len() as u64);
    let size = uncommitted.map_or(committed, |uncommitted| uncommitted.size);
    let modified = uncommitted.map_or(0, |uncommitted| uncommitted.modified).max(stat.times.modified);
    let (mode, uid, gid) = stat.owner;
    FileAttr {
        ino: number,
        size,
        blocks: size.div_ceil(512),
        atime: time(stat.times.accessed),
        mtime: time(modified),
        ctime: time(stat.times.changed.max(uncommitted.map_or(0, |uncommitted| uncommitted.modified))),
        crtime: time(0),
        kind,
        perm: u16::try_from(mode & 0o7777).unwrap_or_default(),
        nlink: if stat.is_directory { 2 } else { stat.names },
        uid,
        gid,
        rdev: stat.special.map_or(0, |special| u32::try_from(special.device).unwrap_or_default()),
        blksize: BLOCK,
        flags: 0,
    }
}

pub(crate) const fn kind(stat: &Stat) -> FileType {
    match (stat.is_directory, &stat.link, &stat.special) {
        (true, ..) => FileType::Directory,
        (false, Some(_), _) => FileType::Symlink,
        (false, None, None) => FileType::RegularFile,
        (false, None, Some(special)) => match special.what {
            SpecialKind::Fifo => FileType::NamedPipe,
            SpecialKind::Socket => FileType::Socket,
            SpecialKind::Characters => FileType::CharDevice,
            SpecialKind::Blocks => FileType::BlockDevice,
        },
    }
}

/// What is made by `mknod` with this mode; `None`: a regular file, or nothing that there is.
pub(crate) fn special(mode: u32, device: u32) -> Option<Special> {
    let (what, device) = match mode & libc::S_IFMT {
        libc::S_IFIFO => (SpecialKind::Fifo, 0),
        libc::S_IFSOCK => (SpecialKind::Socket, 0),
        libc::S_IFCHR => (SpecialKind::Characters, device.into()),
        libc::S_IFBLK => (SpecialKind::Blocks, device.into()),
        _ => return None,
    };
    Some(Special { what, device })
}

fn time(nanoseconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds)
}

/// A time that a program sets, in nanoseconds since 1970.
pub(crate) fn nanoseconds(time: TimeOrNow) -> u64 {
    match time {
        TimeOrNow::SpecificTime(time) => since_1970(time),
        TimeOrNow::Now => since_1970(SystemTime::now()),
    }
}

pub(crate) fn since_1970(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
