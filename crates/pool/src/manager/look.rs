//! What lies at a target, as it is there now. Links are seen, and never followed.

use std::ffi::OsStr;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat, statat};
use rustix::io::Errno;
use surgetank_pool_core::id::{Inode, MountId, Version};
use surgetank_pool_core::meta::value::{self, Placed, Special, SpecialKind, Times};
use surgetank_pool_core::meta::{FileState, Kind, Name, Node};

use super::objects::look::Listing;
use super::target::ASIDE;
use crate::beneath;
use crate::bucket::Bucket;

/// Where a target is.
#[derive(Clone, Debug)]
pub(super) enum Site {
    Directory(PathBuf),
    Bucket(Arc<Bucket>),
}

impl std::fmt::Display for Site {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Directory(path) => path.display().fmt(f),
            Self::Bucket(bucket) => bucket.address().fmt(f),
        }
    }
}

/// What is at a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    /// What the pool has to say of it: a file is one that it has evicted.
    pub(super) node: Node,
    /// Its number at the target, and that of its directory.
    pub(super) number: u64,
    pub(super) directory: u64,
    /// What it is compared with later.
    size: u64,
    modified: u64,
}

impl Seen {
    /// An object, or what several keys begin with, by its number and that of its directory, bytes, and time in nanoseconds since 1970. Its owner
    /// is the pool's user.
    pub(super) fn of_object(kind: Kind, (number, directory): (u64, u64), (size, modified): (u64, u64)) -> Self {
        let is_file = matches!(kind, Kind::File(_));
        let version = if is_file { Version::NONE.next() } else { Version::NONE };
        let mode = if is_file { 0o644 } else { 0o755 };
        let owner = (mode, rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let node = Node {
            times: Times::new(modified),
            size,
            version,
            journalled: version,
            published: version,
            ..Node::new(kind, MountId(0), None, owner)
        };
        Self { node, number, directory, size, modified: 0 }
    }

    /// What the pool records of it as one of its nodes; of a directory nothing.
    pub(super) fn placed(&self, inode: Inode) -> Option<(u64, Placed)> {
        let node = match self.node.kind {
            Kind::Directory => return None,
            Kind::File(_) => inode,
            Kind::Link(_) | Kind::Special(_) => Inode(0),
        };
        Some((self.directory, Placed { node, size: self.size, modified: self.modified, number: self.number }))
    }
}

/// A directory of a target.
pub(super) enum Directory {
    OfDirectory(Opened),
    OfBucket(Listing),
}

/// Opens a directory of a target; `None`: there is none at that path.
///
/// # Errors
/// The target itself is not there, or does not answer.
pub(super) fn directory(site: &Site, path: &value::Path) -> Result<Option<Directory>> {
    match site {
        Site::Directory(target) => Ok(opened(target, path)?.map(Directory::OfDirectory)),
        Site::Bucket(bucket) => Ok(Listing::open(bucket, path)?.map(Directory::OfBucket)),
    }
}

impl Directory {
    /// The number that the target has for it.
    pub(super) fn number(&self) -> u64 {
        match self {
            Self::OfDirectory(of) => of.number,
            Self::OfBucket(of) => of.number(),
        }
    }

    /// What is at a name; `None`: nothing that can be reached without a link.
    pub(super) fn find(&self, name: &Name) -> Result<Option<Box<Seen>>> {
        match self {
            Self::OfDirectory(of) => of.find(name),
            Self::OfBucket(of) => of.find(name),
        }
    }

    /// All names, in their order.
    pub(super) fn names(&self) -> Result<Vec<Name>> {
        match self {
            Self::OfDirectory(of) => of.names(),
            Self::OfBucket(of) => of.names(),
        }
    }
}

/// A directory of a file system, and its number.
pub(super) struct Opened {
    at: OwnedFd,
    number: u64,
    /// What is kept there beside the target's own is not seen.
    is_root: bool,
}

fn opened(target: &Path, path: &value::Path) -> Result<Option<Opened>> {
    let root = beneath::root(target)?;
    // A target whose file system is not mounted looks like an empty one.
    statat(&root, ASIDE, AtFlags::SYMLINK_NOFOLLOW)?;
    let Some(at) = there(beneath::at(&root, path, OFlags::PATH | OFlags::DIRECTORY))? else { return Ok(None) };
    let number = fstat(&at)?.st_ino;
    Ok(Some(Opened { at, number, is_root: path.0.is_empty() }))
}

/// What is not there, or behind a link, is none.
fn there<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::NAMETOOLONG) => Ok(None),
            _ => Err(error),
        },
    }
}

impl Opened {
    fn find(&self, name: &Name) -> Result<Option<Box<Seen>>> {
        if self.is_root && name.bytes() == ASIDE.as_bytes() {
            return Ok(None);
        }
        let at = OsStr::from_bytes(name.bytes());
        let Some(found) = there(statat(&self.at, at, AtFlags::SYMLINK_NOFOLLOW).map_err(Into::into))? else {
            return Ok(None);
        };
        let special = |what, device| Kind::Special(Special { what, device });
        let kind = match FileType::from_raw_mode(found.st_mode) {
            FileType::RegularFile => Kind::File(FileState::Evicted),
            FileType::Directory => Kind::Directory,
            FileType::Symlink => match there(readlinkat(&self.at, at, Vec::new()).map_err(Into::into)) {
                Ok(Some(to)) => Kind::Link(to.into_bytes()),
                // It is another by now.
                _ => return Ok(None),
            },
            FileType::Fifo => special(SpecialKind::Fifo, 0),
            FileType::Socket => special(SpecialKind::Socket, 0),
            FileType::CharacterDevice => special(SpecialKind::Characters, found.st_rdev),
            FileType::BlockDevice => special(SpecialKind::Blocks, found.st_rdev),
            FileType::Unknown => return Ok(None),
        };
        Ok(Some(Box::new(self.seen(kind, &found))))
    }

    fn seen(&self, kind: Kind, found: &Stat) -> Seen {
        let is_file = matches!(kind, Kind::File(_));
        let size = found.st_size.cast_unsigned();
        let version = if is_file { Version::NONE.next() } else { Version::NONE };
        let times = Times {
            accessed: time(found.st_atime, found.st_atime_nsec),
            modified: time(found.st_mtime, found.st_mtime_nsec),
            changed: time(found.st_ctime, found.st_ctime_nsec),
        };
        let owner = (found.st_mode & 0o7777, found.st_uid, found.st_gid);
        let size_shown = if is_file { size } else { 0 };
        let node = Node {
            times,
            size: size_shown,
            version,
            journalled: version,
            published: version,
            ..Node::new(kind, MountId(0), None, owner)
        };
        let modified = super::target::nanoseconds(found.st_mtime, found.st_mtime_nsec.cast_signed());
        Seen { node, number: found.st_ino, directory: self.number, size, modified }
    }

    fn names(&self) -> Result<Vec<Name>> {
        let mut names = Vec::new();
        let read = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        for entry in Dir::new(openat(&self.at, c".", read, Mode::empty())?)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if self.is_root && name == ASIDE.as_bytes() {
                continue;
            }
            // All but `.` and `..` are names.
            names.extend(Name::new(name));
        }
        names.sort_unstable();
        Ok(names)
    }
}

/// A time in nanoseconds since 1970; what is before counts as that.
fn time(seconds: i64, nanoseconds: u64) -> u64 {
    u64::try_from(seconds).map_or(0, |seconds| seconds.saturating_mul(1_000_000_000).saturating_add(nanoseconds))
}

/// Whether the manager may not look there, as the owner of the pool's process.
pub(super) fn is_refused(error: &Error) -> bool {
    error.kind() == ErrorKind::PermissionDenied
}

#[cfg(test)]
mod tests {
    use rustix::fs::CWD;

    use super::*;

    fn name(text: &[u8]) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn what_lies_at_a_target_is_seen_as_it_is() {
        let target = tempfile::tempdir().unwrap();
        let site = Site::Directory(target.path().to_owned());
        let at = |name: &str| target.path().join(name);
        let root = value::Path::default();
        assert!(directory(&site, &root).is_err(), "without the pool's directory it may not be mounted");
        std::fs::create_dir(at(ASIDE)).unwrap();
        std::fs::create_dir(at("d")).unwrap();
        std::fs::write(at("d/file"), "12345").unwrap();
        std::os::unix::fs::symlink("d", at("link")).unwrap();
        rustix::fs::mkfifoat(CWD, at("fifo"), Mode::RWXU).unwrap();
        std::fs::write(target.path().join(OsStr::from_bytes(b"\xff\n ")), "odd").unwrap();
        let opened = directory(&site, &root).unwrap().unwrap();
        let names = [&b"d"[..], b"fifo", b"link", b"\xff\n "].map(name);
        assert_eq!(opened.names().unwrap(), names);
        assert_eq!(opened.find(&name(ASIDE.as_bytes())).unwrap(), None);
        assert_eq!(opened.find(&name(b"other")).unwrap(), None);
        let kind = |of: &[u8]| opened.find(&name(of)).unwrap().map(|seen| seen.node.kind);
        assert_eq!(kind(b"d"), Some(Kind::Directory));
        assert_eq!(kind(b"link"), Some(Kind::Link(b"d".to_vec())));
        assert_eq!(kind(b"fifo"), Some(Kind::Special(Special { what: SpecialKind::Fifo, device: 0 })));
        let below = directory(&site, &value::Path(vec![name(b"d")])).unwrap().unwrap();
        let file = below.find(&name(b"file")).unwrap().unwrap();
        assert_eq!((file.node.size, file.placed(Inode(9)).map(|(_, placed)| placed.node)), (5, Some(Inode(9))));
        assert!(directory(&site, &value::Path(vec![name(b"link")])).unwrap().is_none(), "links lead nowhere");
    }
}
