//! A directory as a target. What has no name yet lies in `.surgetank` below it.

mod drafts;
mod links;
mod special;
mod state;

pub(super) use state::AtName;

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps, utimensat};
use surgetank_pool_core::id::{Inode, MountId, Revision, Version};
use surgetank_pool_core::meta::Name;
use surgetank_pool_core::meta::value::{self, Change, Placed, Times};

pub(crate) use self::drafts::draft_name;
use super::objects::look::wait;
use super::objects::{self, Objects};

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
    /// The revision since which this publisher has its role: a later one's is larger.
    since: Revision,
    /// What it is, if it is no directory.
    objects: Option<Arc<Objects>>,
}

impl Target {
    /// A mount's target, as this publisher sees it.
    pub(super) const fn new(directory: PathBuf, mount: MountId, since: Revision) -> Self {
        Self { directory, mount, since, objects: None }
    }

    /// The same of a bucket, whose address stands for the directory.
    pub(super) const fn of_objects(address: PathBuf, mount: MountId, since: Revision, objects: Arc<Objects>) -> Self {
        Self { directory: address, mount, since, objects: Some(objects) }
    }

    /// What it is, if it is a bucket.
    pub(super) const fn objects(&self) -> Option<&Arc<Objects>> {
        self.objects.as_ref()
    }

    /// The directory.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whose it is.
    pub(super) const fn mount(&self) -> MountId {
        self.mount
    }

    /// Makes the place for files without a name, and removes what earlier publishers of the mount left there. What is of a later one stays:
    /// this one may have been replaced, and not know it yet.
    pub(super) fn take_over(&self) -> Result<()> {
        if let Some(objects) = &self.objects {
            return wait(objects.take_over());
        }
        let aside = self.directory.join(ASIDE);
        match std::fs::create_dir(&aside) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let of_mount = format!("{}.", self.mount);
        for entry in std::fs::read_dir(&aside)? {
            let entry = entry?;
            let name = entry.file_name();
            let since = name.to_str().and_then(|name| name.strip_prefix(&of_mount)?.split('.').next()?.parse().ok());
            if since.is_some_and(|since: u64| since < self.since.0) {
                links::remove(&entry.path())?;
            }
        }
        Ok(())
    }

    /// Where this publisher has what has no name yet.
    fn beside(&self, name: &std::fmt::Arguments) -> PathBuf {
        self.directory.join(ASIDE).join(format!("{}.{}.{name}", self.mount, self.since))
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

    /// Where a path is.
    pub(super) fn at(&self, path: &value::Path) -> PathBuf {
        let names = path.0.iter().map(|name| std::ffi::OsStr::from_bytes(name.bytes()));
        names.fold(self.directory.clone(), |at, name| at.join(name))
    }

    /// Where a version's bytes are before it is published.
    fn aside(&self, inode: Inode, version: Version) -> PathBuf {
        self.beside(&format_args!("{inode}.{version}"))
    }

    /// Where benefactors write a version's bytes. Each attempt has a number of its own, and a file of its own: what was asked for by another
    /// one and comes late finds no file, or one that nobody needs.
    pub(super) fn part(&self, inode: Inode, version: Version, attempt: u64) -> PathBuf {
        self.beside(&format_args!("{inode}.{version}.{attempt}"))
    }

    /// Makes such a file, with the permissions of this mode alone: it is this process's until it is finished, and nobody is to run it as such.
    #[allow(clippy::unused_self, reason = "it is work on a target")]
    pub(super) fn begin(&self, part: &Path, mode: u32) -> Result<()> {
        OpenOptions::new().write(true).create_new(true).mode(mode & 0o777).open(part)?;
        Ok(())
    }

    /// Verifies the length of a version's bytes, gives them owner and times, flushes them, and puts them where they are to be before they are
    /// published; what is there then. If not everybody has `answered` who was asked to write, somebody may write late into the file that it
    /// knows: then it is a copy.
    pub(super) fn finish(
        &self,
        (inode, version): (Inode, Version),
        part: &Path,
        size: u64,
        (owner, times): (Owner, Times),
        answered: bool,
    ) -> Result<Placed> {
        let aside = self.aside(inode, version);
        let length = std::fs::metadata(part)?.len();
        if length != size {
            let sentence = format!("{} has {length} bytes, and {size} were written", part.display());
            return Err(Error::other(sentence));
        }
        // Of two names of one file, as of a draft, a rename would leave both.
        links::remove(&aside)?;
        if answered {
            std::fs::rename(part, &aside)?;
        } else {
            self.begin(&aside, owner.0)?;
            self.copy(&File::open(part)?, &aside, &[(0, size)])?;
            links::remove(part)?;
        }
        give(&aside, owner, times)?;
        File::open(&aside)?.sync_all()?;
        Ok(placed(inode, &std::fs::symlink_metadata(&aside)?))
    }

    /// Removes a file that benefactors have written in vain.
    #[allow(clippy::unused_self, reason = "it is work on a target")]
    pub(super) fn drop_part(&self, part: &Path) -> Result<()> {
        links::remove(part)
    }

    /// Removes a version's bytes that get no name.
    pub(super) fn discard(&self, inode: Inode, version: Version) -> Result<()> {
        if let Some(objects) = &self.objects {
            return wait(objects.discard((inode, version)));
        }
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
        if self.objects.is_some() {
            let (name, above) = path.0.split_last().ok_or(ErrorKind::InvalidInput)?;
            return Ok((objects::number(above), name.clone()));
        }
        let at = self.at(path);
        let directory = std::fs::metadata(at.parent().unwrap_or(Path::new("/")))?;
        let name = path.0.last().cloned().ok_or(ErrorKind::InvalidInput)?;
        Ok((directory.ino(), name))
    }

    /// Makes a change, flushed; `maybe_done`: it may have been made before, by a publisher that ended before it could record that, or by an attempt
    /// that failed. `finished`: what this publisher has finished, if it is a publication. `was`: what the pool has put last at each of
    /// [`Target::names`]; what is returned is what it has there afterwards. Whatever else is there is somebody else's, and stays as it is.
    pub(super) fn change(
        &self,
        change: &Change,
        (maybe_done, finished): (bool, Option<Placed>),
        was: &[Option<Placed>],
    ) -> Result<Vec<Option<Placed>>> {
        if let Some(objects) = &self.objects {
            return wait(objects.change(change, maybe_done, was));
        }
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
                let (from, at) = (self.publishes((*inode, *version), path, maybe_done, finished)?, self.at(path));
                let is_from = std::fs::symlink_metadata(&from)?;
                if from != at {
                    match self.replaces((&from, &is_from), &at, was(0), maybe_done)? {
                        None => rename_new(&from, &at)?,
                        // A draft that a former publisher has given its name: the kernel would leave both.
                        Some(there) if is_one(&there, &is_from) => std::fs::remove_file(&from)?,
                        Some(_) => std::fs::rename(&from, &at)?,
                    }
                }
                self.flush_parent(path)?;
                Ok(vec![Some(placed(*inode, &is_from))])
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
            Change::Linked { change, also } => self.change_all(change, also, (maybe_done, finished), &was),
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

    /// The file that a publication gives its name: the one beside the names, or what an attempt that failed behind the rename has left there.
    fn publishes(
        &self,
        (inode, version): (Inode, Version),
        path: &value::Path,
        maybe_done: bool,
        finished: Option<Placed>,
    ) -> Result<PathBuf> {
        let (aside, at) = (self.aside(inode, version), self.at(path));
        match found(&aside)? {
            Some(_) => Ok(aside),
            None if maybe_done && found(&at)?.is_some_and(|there| is(&there, finished)) => Ok(at),
            None => Err(theirs()),
        }
    }

    /// What is at a name of a publication, if that takes its place: what the pool has put there last, or the same file or bytes, which an
    /// attempt that failed has put there, or a publisher that ended before it could record that.
    #[allow(clippy::unused_self, reason = "it is work on a target")]
    fn replaces(
        &self,
        (from, is_from): (&Path, &Metadata),
        at: &Path,
        was: Option<Placed>,
        maybe_done: bool,
    ) -> Result<Option<Metadata>> {
        match found(at)? {
            Some(there) if !(is(&there, was) || maybe_done && links::is_same(from, is_from, at, &there)?) => {
                Err(theirs())
            }
            other => Ok(other),
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
pub(super) fn theirs() -> Error {
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
        if_allowed(std::fs::set_permissions(at, Permissions::from_mode(mode & 0o777)))?;
    }
    Ok(found.is_symlink())
}

fn if_allowed(result: Result<()>) -> Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OF: (Inode, Version) = (Inode(7), Version(1));

    fn path(name: &str) -> value::Path {
        value::Path(vec![Name::new(name.as_bytes()).unwrap()])
    }

    fn publish(name: &str) -> Change {
        Change::Publish { inode: OF.0, version: OF.1, path: path(name) }
    }

    /// A target with a version that is finished; its file was written by who still has it open.
    fn finished(directory: &Path, answered: bool) -> (Target, Placed, File) {
        let target = Target::new(directory.to_owned(), MountId(1), Revision(5));
        target.take_over().unwrap();
        let part = target.part(OF.0, OF.1, 1);
        target.begin(&part, 0o644).unwrap();
        let writer = OpenOptions::new().write(true).open(&part).unwrap();
        writer.write_all_at(b"content", 0).unwrap();
        let owner = (0o644, rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let placed = target.finish(OF, &part, 7, (owner, Times::new(1_000_000_000)), answered).unwrap();
        (target, placed, writer)
    }

    #[test]
    fn nobody_runs_a_file_at_the_target_as_its_maker() {
        let directory = tempfile::tempdir().unwrap();
        let target = Target::new(directory.path().to_owned(), MountId(1), Revision(5));
        target.take_over().unwrap();
        let mode = |at: &Path| std::fs::metadata(at).unwrap().mode() & 0o7000;
        for answered in [true, false] {
            let part = target.part(OF.0, OF.1, 1);
            target.begin(&part, 0o6755).unwrap();
            assert_eq!(mode(&part), 0);
            let owner = (0o6755, rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            target.finish(OF, &part, 0, (owner, Times::new(1_000_000_000)), answered).unwrap();
            assert_eq!(mode(&target.aside(OF.0, OF.1)), 0);
        }
    }

    #[test]
    fn an_attempt_that_failed_behind_the_change_is_taken_for_done_by_the_next_one() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let linked =
            |first: &str, also: &str| Change::Linked { change: Box::new(publish(first)), also: vec![path(also)] };
        for (change, also) in [(publish("one"), None), (linked("two", "three"), Some("three"))] {
            let (target, placed, _) = finished(directory.path(), true);
            let made = target.change(&change, (false, Some(placed)), &[None, None]).unwrap();
            assert_eq!(target.change(&change, (true, Some(placed)), &[None, None]).unwrap(), made);
            let Some(also) = also else { continue };
            // Between the two names.
            let (target, placed, _) = finished(directory.path(), true);
            std::fs::remove_file(at("two")).unwrap();
            std::fs::remove_file(at(also)).unwrap();
            std::fs::hard_link(target.aside(OF.0, OF.1), at(also)).unwrap();
            let made = target.change(&change, (true, Some(placed)), &[None, None]).unwrap();
            assert_eq!(made, [Some(placed), Some(placed)]);
        }
        // What somebody else has put there meanwhile is theirs.
        let (target, placed, _) = finished(directory.path(), true);
        target.change(&publish("four"), (false, Some(placed)), &[None]).unwrap();
        std::fs::write(at("four"), "theirs").unwrap();
        assert!(target.change(&publish("four"), (true, Some(placed)), &[None]).is_err());
        assert_eq!(std::fs::read(at("four")).unwrap(), b"theirs");
    }

    #[test]
    fn who_was_replaced_removes_nothing_of_its_successor() {
        let directory = tempfile::tempdir().unwrap();
        let of = |since: u64| Target::new(directory.path().to_owned(), MountId(1), Revision(since));
        of(9).take_over().unwrap();
        let part = |since: u64| {
            let part = of(since).part(OF.0, OF.1, 1);
            of(since).begin(&part, 0o644).unwrap();
            part
        };
        let (former, own, later) = (part(8), part(9), part(10));
        of(9).take_over().unwrap();
        assert_eq!([former, own, later].map(|part| part.exists()), [false, true, true]);
    }

    #[test]
    fn what_is_written_late_reaches_nothing_that_is_published() {
        for answered in [true, false] {
            let directory = tempfile::tempdir().unwrap();
            let (target, placed, writer) = finished(directory.path(), answered);
            target.change(&publish("file"), (false, Some(placed)), &[None]).unwrap();
            writer.write_all_at(b"content", 0).unwrap();
            let there = found(&directory.path().join("file")).unwrap().unwrap();
            assert_eq!(is(&there, Some(placed)), !answered, "a copy, unless nobody writes any more");
            assert_eq!(std::fs::read_dir(directory.path().join(ASIDE)).unwrap().count(), 0);
        }
    }

    #[test]
    fn a_draft_gets_what_it_rests_on_but_for_what_was_written_there() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let target = Target::new(directory.path().to_owned(), MountId(1), Revision(5));
        let base: Vec<u8> = (0..100).collect();
        std::fs::write(at("base"), &base).unwrap();
        for but in [vec![], vec![(0, 10)], vec![(10, 20), (20, 30), (50, 60)], vec![(90, 120)], vec![(0, 200)]] {
            std::fs::write(at("draft"), [255; 100]).unwrap();
            target.copy_but(Some(&File::open(at("base")).unwrap()), &at("draft"), &but).unwrap();
            let is_but = |at: u64| but.iter().any(|(first, end)| (*first..*end).contains(&at));
            let expected: Vec<u8> = (0..100).map(|at| if is_but(at.into()) { 255 } else { at }).collect();
            assert_eq!(std::fs::read(at("draft")).unwrap(), expected, "{but:?}");
        }
    }
}
