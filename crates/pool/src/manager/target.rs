//! A directory as a target. What has no name yet lies in `.surgetank` below it.

mod drafts;
mod links;
mod special;

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use surgetank_pool_core::id::{Inode, MountId, Version};
use surgetank_pool_core::meta::Name;
use surgetank_pool_core::meta::value::{self, Change, Placed, Times};

pub(crate) use self::drafts::draft_name;

/// Where files lie that have no name yet.
pub const ASIDE: &str = ".surgetank";
/// Bytes that are compared at a time.
const PIECE: usize = 1 << 20;

/// Mode, user, group.
type Owner = (u32, u32, u32);

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Target {
    directory: PathBuf,
    mount: MountId,
    publisher: u64,
}

impl Target {
    /// A mount's target, as this publisher sees it.
    pub(super) const fn new(directory: PathBuf, mount: MountId, publisher: u64) -> Self {
        Self { directory, mount, publisher }
    }

    /// Makes the place for files without a name, and removes what earlier publishers of the mount left there.
    pub(super) fn take_over(&self) -> Result<()> {
        let aside = self.directory.join(ASIDE);
        match std::fs::create_dir(&aside) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let (of_mount, own) = (format!("{}.", self.mount), format!("{}.{}.", self.mount, self.publisher));
        for entry in std::fs::read_dir(&aside)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with(&of_mount) && !name.starts_with(&own) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// Where a change takes place, for messages.
    pub(super) fn place(&self, change: &Change) -> PathBuf {
        match change {
            Change::MakeDirectory(path) | Change::Remove(path) => self.at(path),
            Change::Publish { path, .. }
            | Change::MakeLink { path, .. }
            | Change::MakeSpecial { path, .. }
            | Change::Attributes { path, .. } => self.at(path),
            Change::Rename { to, .. } | Change::Link { to, .. } => self.at(to),
            Change::Linked { change, .. } => self.place(change),
        }
    }

    fn at(&self, path: &value::Path) -> PathBuf {
        let names = path.0.iter().map(|name| std::ffi::OsStr::from_bytes(name.bytes()));
        names.fold(self.directory.clone(), |at, name| at.join(name))
    }

    /// Where a version's bytes are before it is published.
    pub(super) fn aside(&self, inode: Inode, version: Version) -> PathBuf {
        let name = format!("{}.{}.{inode}.{version}", self.mount, self.publisher);
        self.directory.join(ASIDE).join(name)
    }

    /// Makes the file for a version's bytes, with the mode that it is to have; what an earlier attempt left is replaced.
    pub(super) fn begin(&self, inode: Inode, version: Version, mode: u32) -> Result<PathBuf> {
        let aside = self.aside(inode, version);
        OpenOptions::new().write(true).create(true).truncate(true).mode(mode & 0o7777).open(&aside)?;
        Ok(aside)
    }

    /// Verifies the length of a version's bytes, gives them owner and times, and flushes them.
    pub(super) fn finish(
        &self,
        inode: Inode,
        version: Version,
        size: u64,
        (owner, times): (Owner, Times),
    ) -> Result<()> {
        let aside = self.aside(inode, version);
        let file = File::open(&aside)?;
        let length = file.metadata()?.len();
        if length != size {
            let sentence = format!("{} has {length} bytes, and {size} were written", aside.display());
            return Err(Error::other(sentence));
        }
        give(&aside, owner, times)?;
        file.sync_all()
    }

    /// Removes a version's bytes that get no name.
    pub(super) fn discard(&self, inode: Inode, version: Version) -> Result<()> {
        links::remove(&self.aside(inode, version))
    }

    /// The names that a change is about, each with the number of its directory here.
    pub(super) fn names(&self, change: &Change) -> Result<Vec<(u64, Name)>> {
        if let Change::Linked { change, also } = change {
            let mut names = self.names(change)?;
            for path in also {
                names.push(self.name(path)?);
            }
            return Ok(names);
        }
        let paths: &[&value::Path] = match change {
            // A directory is as good as any other.
            Change::MakeDirectory(_) | Change::Linked { .. } => &[],
            Change::Publish { path, .. }
            | Change::MakeLink { path, .. }
            | Change::MakeSpecial { path, .. }
            | Change::Attributes { path, .. }
            | Change::Remove(path) => &[path],
            Change::Rename { from, to } | Change::Link { from, to } => &[from, to],
        };
        paths.iter().map(|path| self.name(path)).collect()
    }

    fn name(&self, path: &value::Path) -> Result<(u64, Name)> {
        let at = self.at(path);
        let directory = std::fs::metadata(at.parent().unwrap_or(Path::new("/")))?;
        let name = path.0.last().cloned().ok_or(ErrorKind::InvalidInput)?;
        Ok((directory.ino(), name))
    }

    /// Makes a change, flushed; `maybe_done`: it may have been made before, by a publisher that ended before it could record that. `was`: what the
    /// pool has put last at each of [`Target::names`]; what is returned is what it has there afterwards. Whatever else is there is somebody
    /// else's, and stays as it is.
    pub(super) fn change(
        &self,
        change: &Change,
        maybe_done: bool,
        was: &[Option<Placed>],
    ) -> Result<Vec<Option<Placed>>> {
        let forgive = |result: Result<()>, kinds: &[ErrorKind]| match result {
            Err(error) if maybe_done && kinds.contains(&error.kind()) => Ok(()),
            other => other,
        };
        let was = |at: usize| was.get(at).copied().flatten();
        match change {
            Change::MakeDirectory(path) => {
                match std::fs::create_dir(self.at(path)) {
                    // One that is there already is as good.
                    Err(error) if error.kind() == ErrorKind::AlreadyExists && self.at(path).is_dir() => {}
                    other => other?,
                }
                self.flush_parent(path)?;
                Ok(Vec::new())
            }
            Change::Publish { inode, version, path } => {
                let (aside, at) = (self.aside(*inode, *version), self.at(path));
                let placed = placed(*inode, &std::fs::symlink_metadata(&aside)?);
                match found(&at)? {
                    None => rename_new(&aside, &at)?,
                    // A draft that such a publisher has given its name: the kernel would leave both.
                    Some(found) if maybe_done && is_one(&found, &std::fs::symlink_metadata(&aside)?) => {
                        std::fs::remove_file(&aside)?;
                    }
                    Some(found) if is(&found, was(0)) => std::fs::rename(&aside, &at)?,
                    // One that ended before it could record it has put the same bytes there.
                    Some(found) if maybe_done && found.is_file() && have_same_bytes(&aside, &at)? => {
                        std::fs::rename(&aside, &at)?;
                    }
                    Some(_) => return Err(theirs()),
                }
                self.flush_parent(path)?;
                Ok(vec![Some(placed)])
            }
            Change::Rename { from, to } => {
                let placed = self.rename(&self.at(from), &self.at(to), (was(0), was(1)), maybe_done)?;
                self.flush_parent(to)?;
                self.flush_parent(from)?;
                Ok(vec![None, placed])
            }
            Change::MakeSpecial { path, special, owner } => {
                let placed = special::make(&self.at(path), *special, *owner, maybe_done)?;
                self.flush_parent(path)?;
                Ok(vec![Some(placed)])
            }
            Change::Link { from, to } => {
                let placed = self.link(&self.at(from), &self.at(to), was(0), maybe_done)?;
                self.flush_parent(to)?;
                Ok(vec![was(0), Some(placed)])
            }
            Change::Linked { change, also } => self.change_all(change, also, maybe_done, &was),
            Change::MakeLink { path, to } => {
                let (to, at) = (Path::new(std::ffi::OsStr::from_bytes(to)), self.at(path));
                match std::os::unix::fs::symlink(to, &at) {
                    Err(error)
                        if maybe_done
                            && error.kind() == ErrorKind::AlreadyExists
                            && std::fs::read_link(&at).is_ok_and(|found| found == to) => {}
                    other => other?,
                }
                let placed = placed(Inode(0), &std::fs::symlink_metadata(&at)?);
                self.flush_parent(path)?;
                Ok(vec![Some(placed)])
            }
            Change::Attributes { path, owner, times } => {
                let placed = match found(&self.at(path))? {
                    None => forgive(Err(ErrorKind::NotFound.into()), &[ErrorKind::NotFound]).map(|()| was(0))?,
                    Some(found) => give_placed(&self.at(path), &found, (*owner, *times), was(0), maybe_done)?,
                };
                self.flush_parent(path)?;
                Ok(vec![placed])
            }
            Change::Remove(path) => {
                let at = self.at(path);
                let removed = match found(&at)? {
                    Some(found) if found.is_dir() => std::fs::remove_dir(&at),
                    Some(found) if is(&found, was(0)) => std::fs::remove_file(&at),
                    Some(_) => Err(theirs()),
                    None => Err(ErrorKind::NotFound.into()),
                };
                forgive(removed, &[ErrorKind::NotFound])?;
                self.flush_parent(path)?;
                Ok(vec![None])
            }
        }
    }

    /// Moves what the pool has put at a name; what it has at the other one afterwards. What a directory has goes with it, whosever it is.
    fn rename(
        &self,
        from: &Path,
        to: &Path,
        was: (Option<Placed>, Option<Placed>),
        maybe_done: bool,
    ) -> Result<Option<Placed>> {
        let (at_from, at_to) = (found(from)?, found(to)?);
        let Some(moved) = at_from else {
            let is_done = at_to.is_some_and(|at_to| at_to.is_dir() && was.0.is_none() || is(&at_to, was.0));
            return if maybe_done && is_done { Ok(was.0) } else { Err(ErrorKind::NotFound.into()) };
        };
        let is_ours = if moved.is_dir() { was.0.is_none() } else { is(&moved, was.0) };
        if !is_ours {
            return Err(theirs());
        }
        match at_to {
            None => rename_new(from, to)?,
            // The kernel refuses one in which something is.
            Some(at_to) if at_to.is_dir() && moved.is_dir() => std::fs::rename(from, to)?,
            // Of two names of one file the kernel would leave both.
            Some(at_to) if is(&at_to, was.1) && (at_to.ino(), at_to.dev()) == (moved.ino(), moved.dev()) => {
                std::fs::remove_file(from)?;
            }
            Some(at_to) if !moved.is_dir() && is(&at_to, was.1) => std::fs::rename(from, to)?,
            Some(_) => return Err(theirs()),
        }
        Ok(was.0)
    }

    fn flush_parent(&self, path: &value::Path) -> Result<()> {
        let at = self.at(path);
        match File::open(at.parent().unwrap_or(Path::new("/"))) {
            Ok(directory) => directory.sync_all(),
            // A later entry has removed it already: this one was made before.
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

/// Why a change is not made: the publisher takes it for a conflict.
fn theirs() -> Error {
    Error::new(ErrorKind::AlreadyExists, "somebody else has put or changed what is there: it stays as it is")
}

/// What is at a place; not what a symbolic link points at.
fn found(at: &Path) -> Result<Option<Metadata>> {
    match std::fs::symlink_metadata(at) {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn placed(node: Inode, found: &Metadata) -> Placed {
    Placed { node, size: found.len(), modified: modified(found), number: found.ino() }
}

fn modified(found: &Metadata) -> u64 {
    nanoseconds(found.mtime(), found.mtime_nsec())
}

/// A time of the kernel, in nanoseconds since 1970; earlier times count from the end.
pub(super) fn nanoseconds(seconds: i64, more: i64) -> u64 {
    seconds.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(more.cast_unsigned())
}

/// Whether what is there is what the pool has put there last.
fn is(found: &Metadata, was: Option<Placed>) -> bool {
    !found.is_dir() && was.is_some_and(|was| placed(was.node, found) == was)
}

/// Whether two names are of one file.
fn is_one(one: &Metadata, other: &Metadata) -> bool {
    (one.ino(), one.dev()) == (other.ino(), other.dev())
}

/// Gives a file a name that nothing has. Where the file system cannot do that in one step, it is looked at before.
fn rename_new(from: &Path, to: &Path) -> Result<()> {
    use rustix::fs::{RenameFlags, renameat_with};
    use rustix::io::Errno;
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => std::fs::rename(from, to),
        other => Ok(other?),
    }
}

/// Whether two files have the same bytes.
fn have_same_bytes(one: &Path, other: &Path) -> Result<bool> {
    let (one, other) = (File::open(one)?, File::open(other)?);
    let length = one.metadata()?.len();
    if length != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut of_one, mut of_other) = (vec![0; PIECE], vec![0; PIECE]);
    let mut offset = 0;
    while offset < length {
        let piece = usize::try_from(length - offset).unwrap_or(PIECE).min(PIECE);
        one.read_exact_at(&mut of_one[..piece], offset)?;
        other.read_exact_at(&mut of_other[..piece], offset)?;
        if of_one[..piece] != of_other[..piece] {
            return Ok(false);
        }
        offset += piece as u64;
    }
    Ok(true)
}

/// Gives what the pool has put there its attributes; how it is afterwards. Directories are nobody's.
fn give_placed(
    at: &Path,
    before: &Metadata,
    (owner, times): (Owner, Times),
    was: Option<Placed>,
    maybe_done: bool,
) -> Result<Option<Placed>> {
    let has_times = |found: &Metadata| modified(found) / 1_000_000_000 == times.modified / 1_000_000_000;
    let is_ours = is(before, was)
        || maybe_done
            && has_times(before)
            && was.is_some_and(|was| (was.size, was.number) == (before.len(), before.ino()));
    if !before.is_dir() && !is_ours {
        return Err(theirs());
    }
    give(at, owner, times)?;
    let after = std::fs::symlink_metadata(at)?;
    // What somebody else has written meanwhile is not ours.
    let is_as_given = after.len() == before.len() && (has_times(&after) || modified(&after) == modified(before));
    Ok(was.map(|was| if is_as_given { placed(was.node, &after) } else { was }))
}

/// Gives what is there its owner, permissions and times. Where this process may not, as on a target with other users, they stay as they are:
/// the bytes are what must arrive.
fn give(at: &Path, (mode, user, group): Owner, times: Times) -> Result<()> {
    if give_owner(at, (mode, user, group))? {
        return Ok(());
    }
    // Not through a descriptor: opening a FIFO waits for somebody who writes.
    let time = |nanoseconds: u64| Timespec {
        tv_sec: i64::try_from(nanoseconds / 1_000_000_000).unwrap_or(i64::MAX),
        tv_nsec: (nanoseconds % 1_000_000_000).try_into().unwrap_or_default(),
    };
    let times = Timestamps { last_access: time(times.accessed), last_modification: time(times.modified) };
    if_allowed(utimensat(CWD, at, &times, AtFlags::SYMLINK_NOFOLLOW).map_err(Error::from))
}

/// The owner and the permissions alone; whether it is a symbolic link, which has no permissions.
fn give_owner(at: &Path, (mode, user, group): Owner) -> Result<bool> {
    let found = std::fs::symlink_metadata(at)?;
    // Changing the owner takes bits of the mode away, so it comes first.
    if_allowed(std::os::unix::fs::lchown(at, Some(user), Some(group)))?;
    if !found.is_symlink() {
        if_allowed(std::fs::set_permissions(at, Permissions::from_mode(mode & 0o7777)))?;
    }
    Ok(found.is_symlink())
}

fn if_allowed(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        other => other,
    }
}
