//! The directory of volumes that are files: every system call that touches it is here.
//!
//! ```text
//! DIR/                  flock()ed by whoever looks or changes
//!   volumes/ID.img      the volume, mode 0600
//!   state/ID.json       its record, mode 0600
//!   state/.ID.json.tmp  a record being written; left only by a process that died
//! ```
//!
//! Order of writes, so that a process may die between any two of them:
//! - a record is replaced as a whole: write aside, fsync, rename, fsync the directory;
//! - *create*: record with `made = false`, image, record with `made = true`. A record that is not made is taken back;
//! - *delete*: record `Deleting`, image unlinked, record unlinked. A record that is `Deleting` is finished.
//!
//! So an image without a record is never ours to judge: it is reported and left alone, as is whatever else lies here.
//! A file that has a record's name but cannot be read as one (damaged, or of a newer program) stands for a volume of
//! which nothing is known: neither there nor gone. Only people can fix that, so every answer that depends on it is an
//! error.
//!
//! The directory itself is made if it is missing, its parent never: that may be the mount point of a disk that is not
//! mounted, and volumes would fill the disk below it.
//!
//! Names are made of ids that this provider drew, never of what a caller passed unchecked; files are opened relative
//! to the directories' descriptors and symbolic links are not followed.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, File};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, Dir, FallocateFlags, FileType, FlockOperation, Mode, OFlags};
use rustix::io::{Errno, retry_on_intr};
use surgetank_model::Bytes;

use super::record::{FORMAT, Record, is_ours};
use crate::{ProviderError, VolumeId};

/// A record is some kilobytes at most; what is longer is none.
const RECORD_BYTES_MAX: u64 = 256 << 10;

/// Preallocation leaves this much of the file system free, so that records can still be rewritten.
const RESERVE_BYTES: u64 = 1 << 20;

/// The open directory.
#[derive(Debug)]
pub struct Store {
    path: PathBuf,
    root: OwnedFd,
    volumes: OwnedFd,
    state: OwnedFd,
    /// What was already warned of, so that a poll each second does not fill the log.
    warned: Mutex<BTreeSet<String>>,
}

/// The directory, locked against every other thread and process.
pub struct Locked<'a> {
    store: &'a Store,
    /// flock() belongs to the open file description and ends with it, also when the process is killed.
    _lock: OwnedFd,
}

/// What lies in the directory.
#[derive(Debug, Default)]
pub struct Contents {
    /// Every readable record, by id.
    pub records: Vec<Record>,
    /// Records that are there but cannot be read, by id.
    pub unreadable: Vec<Unreadable>,
    /// Names of files that are not ours, relative to the directory.
    pub foreign: Vec<String>,
}

/// A file with a record's name that is no record which this program knows.
#[derive(Clone, Debug)]
pub struct Unreadable {
    /// The volume that its name speaks of.
    pub id: VolumeId,
    /// The file, relative to the directory.
    pub name: String,
    /// Why it cannot be read, and the remedy.
    pub error: ProviderError,
}

/// Holds space for the records of volumes that are deleted: that must go on while the disk is full.
const BALLAST: &str = ".ballast";
const BALLAST_BYTES: usize = 64 << 10;

impl Store {
    /// Opens the directory and makes it if it is missing; its parent must be there.
    pub fn open(path: &Path) -> Result<Self, ProviderError> {
        let refuse = |what: &str, error: &dyn std::fmt::Display| {
            ProviderError::Invalid(format!(
                "the volumes' directory {} cannot be {what}: {error}; name another or fix its permissions",
                path.display()
            ))
        };
        match DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => {}
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(no_parent(path)),
            Err(error) => return Err(refuse("made", &error)),
        }
        // The operator may keep the directory behind a symbolic link; inside it none is followed.
        let path = path.canonicalize().map_err(|error| refuse("found", &error))?;
        let directory = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(&path, directory, Mode::empty()).map_err(|error| refuse("opened", &error))?;
        let child = |name: &str| -> Result<OwnedFd, Errno> {
            match rustix::fs::mkdirat(&root, name, Mode::RWXU) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
            let child = rustix::fs::openat(&root, name, directory | OFlags::NOFOLLOW, Mode::empty())?;
            // A directory that was there already keeps its own mode; ours must not be readable by others.
            rustix::fs::fchmod(&child, Mode::RWXU)?;
            Ok(child)
        };
        let volumes = child("volumes").map_err(|error| refuse("used (its \"volumes\")", &error))?;
        let state = child("state").map_err(|error| refuse("used (its \"state\")", &error))?;
        rustix::fs::fsync(&root).map_err(|error| refuse("synced", &error))?;
        let store = Self { path, root, volumes, state, warned: Mutex::default() };
        store.lay_in_ballast();
        Ok(store)
    }

    /// Makes the ballast if it is missing and there is space for it.
    fn lay_in_ballast(&self) {
        let Ok(mut file) = new_file(&self.root, BALLAST) else { return };
        if file.write_all(&[0; BALLAST_BYTES]).and_then(|()| file.sync_all()).is_err() {
            self.drop_ballast();
        }
    }

    /// Gives the ballast's space away. False: there was none.
    fn drop_ballast(&self) -> bool {
        let dropped = rustix::fs::unlinkat(&self.root, BALLAST, AtFlags::empty());
        dropped.and_then(|()| rustix::fs::fsync(&self.root)).is_ok()
    }

    /// Waits for the lock.
    pub fn lock(&self) -> Result<Locked<'_>, ProviderError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        // A description of its own, so that threads exclude each other too.
        let lock = rustix::fs::openat(&self.root, ".", flags, Mode::empty())
            .map_err(|error| self.transient("open the directory", error))?;
        retry_on_intr(|| rustix::fs::flock(&lock, FlockOperation::LockExclusive))
            .map_err(|error| self.transient("lock the directory", error))?;
        Ok(Locked { store: self, _lock: lock })
    }

    /// Where the volumes' images are.
    pub fn images_path(&self) -> PathBuf {
        self.path.join("volumes")
    }

    /// Where the volume's bytes are.
    pub fn image_path(&self, id: &VolumeId) -> PathBuf {
        self.images_path().join(image_name(id))
    }

    /// Warns, once for each text.
    pub fn warn(&self, text: String) {
        let mut warned = self.warned.lock().unwrap_or_else(PoisonError::into_inner);
        if warned.insert(text.clone()) {
            tracing::warn!(directory = %self.path.display(), "{text}");
        }
    }

    fn unreadable(&self, id: VolumeId, reason: &str) -> Unreadable {
        let name = format!("state/{}", record_name(&id));
        let error = ProviderError::Invalid(format!(
            "the record {} cannot be read, {reason}: run the surgetank that wrote it or restore the file, or, if \
             `surgetank inspect` on its volume {} shows nothing that is needed, move both out of the directory",
            self.path.join(&name).display(),
            self.image_path(&id).display()
        ));
        Unreadable { id, name, error }
    }

    fn transient(&self, what: &str, error: Errno) -> ProviderError {
        let path = self.path.display();
        match error {
            Errno::NOSPC | Errno::DQUOT => {
                ProviderError::Capacity(format!("could not {what} in {path}: the disk is full; free some space"))
            }
            error => ProviderError::Transient(format!("could not {what} in {path}: {error}")),
        }
    }
}

impl Locked<'_> {
    /// Where the volume's bytes are.
    pub fn image_path(&self, id: &VolumeId) -> PathBuf {
        self.store.image_path(id)
    }

    /// Reads every record. Half-written records of dead processes are removed; what is foreign or cannot be read is
    /// left and warned of.
    pub fn contents(&self) -> Result<Contents, ProviderError> {
        let mut contents = Contents::default();
        for name in self.names(&self.store.state, "state")? {
            if name.strip_prefix('.').and_then(|name| name.strip_suffix(".json.tmp")).is_some_and(is_ours) {
                // Its writer held the lock that we hold, so it is dead; the record proper is as it was before.
                let _ = rustix::fs::unlinkat(&self.store.state, name.as_str(), AtFlags::empty());
                continue;
            }
            let Some(id) = name.strip_suffix(".json").filter(|id| is_ours(id)) else {
                self.store.warn(format!("state/{name} is left alone: its name is not a record's"));
                contents.foreign.push(format!("state/{name}"));
                continue;
            };
            let id = VolumeId(id.to_owned());
            match self.read_record(&id)? {
                Ok(record) => contents.records.push(record),
                Err(reason) => {
                    let unreadable = self.store.unreadable(id, &reason);
                    self.store.warn(unreadable.error.to_string());
                    contents.unreadable.push(unreadable);
                }
            }
        }
        contents.records.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(contents)
    }

    /// Names in `volumes` of which no record knows.
    pub fn foreign_images<'b>(&self, known: impl Iterator<Item = &'b VolumeId>) -> Result<Vec<String>, ProviderError> {
        let known: BTreeSet<String> = known.map(image_name).collect();
        let mut foreign = self.names(&self.store.volumes, "volumes")?;
        foreign.retain(|name| !known.contains(name));
        for name in &mut foreign {
            *name = format!("volumes/{name}");
            self.store.warn(format!("{name} is left alone: no record knows it"));
        }
        Ok(foreign)
    }

    /// Names in a directory, sorted. Names that are not text are written with replacement characters: never ours.
    fn names(&self, directory: &OwnedFd, what: &str) -> Result<Vec<String>, ProviderError> {
        let list = || -> Result<Vec<String>, Errno> {
            let mut names = Vec::new();
            for entry in Dir::read_from(directory)? {
                let name = entry?.file_name().to_string_lossy().into_owned();
                if name != "." && name != ".." {
                    names.push(name);
                }
            }
            names.sort();
            Ok(names)
        };
        list().map_err(|error| self.store.transient(&format!("list \"{what}\""), error))
    }

    /// Reads a record, or says why the file is none. An I/O error is neither: to take it for a missing volume would
    /// have somebody rent it again.
    fn read_record(&self, id: &VolumeId) -> Result<Result<Record, String>, ProviderError> {
        let failed = |error| self.store.transient(&format!("read the state of {}", id.0), error);
        // NONBLOCK: a FIFO of that name must not hang us.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = match rustix::fs::openat(&self.store.state, record_name(id), flags, Mode::empty()) {
            Ok(file) => file,
            Err(Errno::LOOP) => return Ok(Err("because it is a symbolic link".to_owned())),
            Err(Errno::NXIO) => return Ok(Err("because it is not a regular file".to_owned())),
            Err(error) => return Err(failed(error)),
        };
        let status = rustix::fs::fstat(&file).map_err(failed)?;
        if FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
            return Ok(Err("because it is not a regular file".to_owned()));
        }
        let mut text = Vec::new();
        let read = File::from(file).take(RECORD_BYTES_MAX).read_to_end(&mut text);
        read.map_err(|error| failed(Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
        Ok(parse_record(id, &text))
    }

    /// Replaces or makes a record, durably.
    pub fn write_record(&self, record: &Record) -> Result<(), ProviderError> {
        let aside = format!(".{}.tmp", record_name(&record.id));
        let write = || -> Result<(), Errno> {
            let text = serde_json::to_vec_pretty(record).map_err(|_| Errno::INVAL)?;
            step()?;
            let mut file = new_file(&self.store.state, &aside)?;
            step()?;
            file.write_all(&text).map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
            rustix::fs::fsync(&file)?;
            step()?;
            rustix::fs::renameat(&self.store.state, aside.as_str(), &self.store.state, record_name(&record.id))?;
            step()?;
            rustix::fs::fsync(&self.store.state)
        };
        write().map_err(|error| {
            let _ = rustix::fs::unlinkat(&self.store.state, aside.as_str(), AtFlags::empty());
            self.store.transient(&format!("write the state of {}", record.id.0), error)
        })
    }

    /// Replaces the record of a volume that is in use or deleted, durably: on a full disk in the ballast's place.
    pub fn rewrite_record(&self, record: &Record) -> Result<(), ProviderError> {
        let written = match self.write_record(record) {
            Err(ProviderError::Capacity(_)) if self.store.drop_ballast() => self.write_record(record),
            written => written,
        };
        written.map_err(|error| match error {
            // Nobody asked for a volume.
            ProviderError::Capacity(text) => ProviderError::Transient(text),
            error => error,
        })
    }

    /// Makes a volume's image, durably. On an error nothing of it is left (unless unlinking fails too).
    pub fn make_image(&self, id: &VolumeId, size: Bytes, preallocate: bool) -> Result<(), ProviderError> {
        if preallocate {
            self.check_space(size)?;
        }
        let name = image_name(id);
        let make = || -> Result<(), Errno> {
            step()?;
            let file = new_file(&self.store.volumes, &name)?;
            step()?;
            if preallocate {
                retry_on_intr(|| rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, size.get()))?;
            } else {
                rustix::fs::ftruncate(&file, size.get())?;
            }
            step()?;
            rustix::fs::fsync(&file)?;
            rustix::fs::fsync(&self.store.volumes)
        };
        make().map_err(|error| {
            let _ = rustix::fs::unlinkat(&self.store.volumes, name.as_str(), AtFlags::empty());
            self.image_error(&format!("make the volume {}", id.0), size, error)
        })
    }

    /// Reserves the space by which a volume's image is to grow, durably; its size stays.
    pub fn reserve_growth(&self, id: &VolumeId, from: Bytes, to: Bytes) -> Result<(), ProviderError> {
        let more = Bytes::new(to.get().saturating_sub(from.get()));
        self.check_space(more)?;
        let reserve = |file: File| {
            retry_on_intr(|| rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, from.get(), more.get()))?;
            rustix::fs::fsync(&file)
        };
        self.change_image(id, reserve).map_err(|error| {
            self.unreserve_growth(id);
            self.image_error(&format!("grow the volume {}", id.0), more, error)
        })
    }

    /// Frees what was reserved behind the end of an image, as far as that is possible.
    pub fn unreserve_growth(&self, id: &VolumeId) {
        let _ = self.change_image(id, |file| {
            let length = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
            rustix::fs::ftruncate(&file, length)
        });
    }

    /// Makes a volume's image as large as that, durably, unless it is larger.
    pub fn grow_image(&self, id: &VolumeId, size: Bytes) -> Result<(), ProviderError> {
        let grow = |file: File| {
            let there = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
            if there < size.get() {
                rustix::fs::ftruncate(&file, size.get())?;
            }
            rustix::fs::fsync(&file)
        };
        self.change_image(id, grow).map_err(|error| self.image_error(&format!("grow the volume {}", id.0), size, error))
    }

    fn change_image(&self, id: &VolumeId, change: impl FnOnce(File) -> Result<(), Errno>) -> Result<(), Errno> {
        step()?;
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.store.volumes, image_name(id), flags, Mode::empty())?;
        step()?;
        change(File::from(file))
    }

    fn image_error(&self, what: &str, size: Bytes, error: Errno) -> ProviderError {
        match error {
            Errno::NOSPC | Errno::DQUOT => self.no_room(size),
            Errno::FBIG => ProviderError::Invalid(format!(
                "the file system of {} has no files of {size}: ask for a smaller volume",
                self.store.path.display()
            )),
            Errno::OPNOTSUPP => ProviderError::Invalid(format!(
                "the file system of {} cannot preallocate: set preallocate = false for the volume's type",
                self.store.path.display()
            )),
            error => self.store.transient(what, error),
        }
    }

    /// Refuses early what cannot fit: filling a disk to the brim first would hurt its other users.
    fn check_space(&self, size: Bytes) -> Result<(), ProviderError> {
        let free = self.free_bytes()?;
        if size.get().saturating_add(RESERVE_BYTES) > free { Err(self.no_room(size)) } else { Ok(()) }
    }

    fn free_bytes(&self) -> Result<u64, ProviderError> {
        let status = rustix::fs::fstatvfs(&self.store.volumes)
            .map_err(|error| self.store.transient("ask for the free space", error))?;
        Ok(status.f_bavail.saturating_mul(status.f_frsize))
    }

    fn no_room(&self, size: Bytes) -> ProviderError {
        let free = self
            .free_bytes()
            .map_or_else(|_| "too little".to_owned(), |free| format!("{:.1} GiB", Bytes::new(free).as_gib()));
        ProviderError::Capacity(format!(
            "no room for a volume of {size} in {}: {free} is free; free some space, move the directory or ask for less",
            self.store.path.display()
        ))
    }

    /// Whether the volume's image is there, as a regular file.
    pub fn has_image(&self, id: &VolumeId) -> Result<bool, ProviderError> {
        match rustix::fs::statat(&self.store.volumes, image_name(id), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(status) => Ok(FileType::from_raw_mode(status.st_mode) == FileType::RegularFile),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(self.store.transient(&format!("look for the volume {}", id.0), error)),
        }
    }

    /// Removes a volume's image, durably; its space is free once nobody has it open. Fine if it is gone.
    pub fn remove_image(&self, id: &VolumeId) -> Result<(), ProviderError> {
        self.remove(&self.store.volumes, &image_name(id))?;
        self.store.lay_in_ballast();
        Ok(())
    }

    /// Removes a record, durably. Fine if it is gone.
    pub fn remove_record(&self, id: &VolumeId) -> Result<(), ProviderError> {
        self.remove(&self.store.state, &record_name(id))
    }

    fn remove(&self, directory: &OwnedFd, name: &str) -> Result<(), ProviderError> {
        let remove = || -> Result<(), Errno> {
            step()?;
            match rustix::fs::unlinkat(directory, name, AtFlags::empty()) {
                Err(Errno::NOENT) => return Ok(()),
                other => other?,
            }
            step()?;
            rustix::fs::fsync(directory)
        };
        remove().map_err(|error| self.store.transient(&format!("remove {name}"), error))
    }
}

/// Makes a file for us alone, which was not there before.
fn new_file(directory: &OwnedFd, name: &str) -> Result<File, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR).map(File::from)
}

/// A missing parent: most often a disk that is not mounted.
/// Looks whether a directory could be opened, or made where it is missing.
///
/// # Errors
/// As [`Store::open`].
pub fn would_open(path: &Path) -> Result<(), ProviderError> {
    let exists = |path: &Path| path.try_exists().unwrap_or(true);
    match path {
        path if path.is_dir() => Ok(()),
        path if exists(path) => Err(ProviderError::Invalid(format!(
            "the volumes' directory {} is no directory: name another",
            path.display()
        ))),
        path if path.parent().is_some_and(|parent| !parent.as_os_str().is_empty() && !exists(parent)) => {
            Err(no_parent(path))
        }
        _ => Ok(()),
    }
}

/// How much the file system of a directory holds all in all, if the directory or the one in which it is to be is there.
pub fn capacity(path: &Path) -> Option<Bytes> {
    let found = [Some(path), path.parent()].into_iter().flatten().find_map(|path| rustix::fs::statvfs(path).ok())?;
    Some(Bytes::new(found.f_blocks.saturating_mul(found.f_frsize)))
}

fn no_parent(path: &Path) -> ProviderError {
    let parent = path.parent().unwrap_or(path);
    ProviderError::Invalid(format!(
        "the volumes' directory {} cannot be made, because {} does not exist: mount the disk that it is on, or make it",
        path.display(),
        parent.display()
    ))
}

/// The one field that every version of a record has.
#[derive(serde::Deserialize)]
struct Stamp {
    format: u32,
}

fn parse_record(id: &VolumeId, text: &[u8]) -> Result<Record, String> {
    let damaged = |error: serde_json::Error| format!("because it is damaged ({error})");
    // First: the other fields of another format may be anything.
    let Stamp { format } = serde_json::from_slice(text).map_err(damaged)?;
    if format != FORMAT {
        return Err(format!("because its format is {format} and this program knows {FORMAT}"));
    }
    let record: Record = serde_json::from_slice(text).map_err(damaged)?;
    if record.id != *id {
        return Err(format!("because it speaks of another volume, {:?}", record.id.0));
    }
    Ok(record)
}

fn image_name(id: &VolumeId) -> String {
    format!("{}.img", id.0)
}

fn record_name(id: &VolumeId) -> String {
    format!("{}.json", id.0)
}

#[cfg(not(test))]
#[inline]
#[allow(clippy::unnecessary_wraps, reason = "the tests' version fails on demand")]
fn step() -> Result<(), Errno> {
    Ok(())
}

#[cfg(test)]
pub(super) use trouble::step;

/// Trouble before a chosen change of the directory, for this thread: the process dies, or the change fails.
#[cfg(test)]
pub(crate) mod trouble {
    use std::cell::Cell;

    use rustix::io::Errno;

    /// What happens at the chosen step.
    #[derive(Clone, Copy)]
    pub enum Trouble {
        /// Unwinds, and nothing cleans up: what a SIGKILL leaves.
        Death,
        /// The change fails.
        Error(Errno),
    }

    thread_local! {
        static PLAN: Cell<Option<(u32, Trouble)>> = const { Cell::new(None) };
    }

    /// Lets `steps` changes pass before the trouble.
    pub fn after(steps: u32, trouble: Trouble) {
        PLAN.set(Some((steps, trouble)));
    }

    /// Takes the plan back; true if it did not happen.
    pub fn disarm() -> bool {
        PLAN.take().is_some()
    }

    pub fn step() -> Result<(), Errno> {
        match PLAN.take() {
            Some((0, Trouble::Death)) => std::panic::resume_unwind(Box::new("killed")),
            Some((0, Trouble::Error(error))) => Err(error),
            Some((steps, trouble)) => {
                PLAN.set(Some((steps - 1, trouble)));
                Ok(())
            }
            None => Ok(()),
        }
    }
}
