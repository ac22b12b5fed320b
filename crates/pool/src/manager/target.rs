//! A directory as a target. What has no name yet lies in `.surgetank` below it.

use std::fs::{File, FileTimes, OpenOptions, Permissions};
use std::io::{Error, ErrorKind, Result};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use surgetank_pool_core::id::{Inode, MountId, Version};
use surgetank_pool_core::meta::value::{self, Change, Times};

/// Where files lie that have no name yet.
pub const ASIDE: &str = ".surgetank";

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

    /// Where a path of the mount is.
    /// Where a change takes place, for messages.
    pub(super) fn place(&self, change: &Change) -> PathBuf {
        match change {
            Change::MakeDirectory(path) | Change::Remove(path) => self.at(path),
            Change::Publish { path, .. } | Change::MakeLink { path, .. } | Change::Attributes { path, .. } => {
                self.at(path)
            }
            Change::Rename { to, .. } => self.at(to),
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

    /// Makes a change, flushed; `maybe_done`: it may have been made before, by a publisher that ended before it could record that.
    pub(super) fn change(&self, change: &Change, maybe_done: bool) -> Result<()> {
        let forgive = |result: Result<()>, kinds: &[ErrorKind]| match result {
            Err(error) if maybe_done && kinds.contains(&error.kind()) => Ok(()),
            other => other,
        };
        match change {
            Change::MakeDirectory(path) => {
                match std::fs::create_dir(self.at(path)) {
                    // One that is there already is as good.
                    Err(error) if error.kind() == ErrorKind::AlreadyExists && self.at(path).is_dir() => {}
                    other => other?,
                }
                self.flush_parent(path)
            }
            Change::Publish { inode, version, path } => {
                let aside = self.aside(*inode, *version);
                // Its bytes were drained by this publisher, so they are there even if the change was made before.
                std::fs::rename(&aside, self.at(path))?;
                self.flush_parent(path)
            }
            Change::Rename { from, to } => {
                forgive(std::fs::rename(self.at(from), self.at(to)), &[ErrorKind::NotFound])?;
                self.flush_parent(to)?;
                self.flush_parent(from)
            }
            Change::MakeLink { path, to } => {
                let to = Path::new(std::ffi::OsStr::from_bytes(to));
                forgive(std::os::unix::fs::symlink(to, self.at(path)), &[ErrorKind::AlreadyExists])?;
                self.flush_parent(path)
            }
            Change::Attributes { path, owner, times } => {
                forgive(give(&self.at(path), *owner, *times), &[ErrorKind::NotFound])?;
                self.flush_parent(path)
            }
            Change::Remove(path) => {
                let at = self.at(path);
                let removed = match std::fs::symlink_metadata(&at) {
                    Ok(found) if found.is_dir() => std::fs::remove_dir(&at),
                    Ok(_) => std::fs::remove_file(&at),
                    Err(error) => Err(error),
                };
                forgive(removed, &[ErrorKind::NotFound])?;
                self.flush_parent(path)
            }
        }
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

/// Gives what is there its owner, permissions and times. Where this process may not, as on a target with other users, they stay as they are:
/// the bytes are what must arrive.
fn give(at: &Path, (mode, user, group): Owner, times: Times) -> Result<()> {
    let if_allowed = |result: Result<()>| match result {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Ok(()),
        other => other,
    };
    let found = std::fs::symlink_metadata(at)?;
    // Changing the owner takes bits of the mode away, so it comes first.
    if_allowed(std::os::unix::fs::lchown(at, Some(user), Some(group)))?;
    if found.is_symlink() {
        return Ok(());
    }
    if_allowed(std::fs::set_permissions(at, Permissions::from_mode(mode & 0o7777)))?;
    let time = |nanoseconds: u64| SystemTime::UNIX_EPOCH + Duration::from_nanos(nanoseconds);
    let times = FileTimes::new().set_accessed(time(times.accessed)).set_modified(time(times.modified));
    if_allowed(File::open(at).and_then(|file| file.set_times(times)))
}
