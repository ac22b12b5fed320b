//! Segments as files of a directory: all of the room is taken at the start, so that it does not end in the middle.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Advice, FallocateFlags, fadvise, fallocate};
use surgetank_model::Bytes;

use super::Disk;

/// Bytes of a segment.
pub const SEGMENT: u64 = 64 << 20;
/// Segments, at least: one is filled, one is left to tables, and one becomes empty meanwhile.
const LEAST: u64 = 4;

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadDirectory {
    /// Too little is to be lent.
    #[error("{lent} of SSD make no {LEAST} segments of {segment}: lend at least {least}, or none")]
    TooSmall {
        /// What was to be lent.
        lent: Bytes,
        /// Bytes of a segment.
        segment: Bytes,
        /// What is needed.
        least: Bytes,
    },
    /// Another process has it.
    #[error("SSD directory {0}: another benefactor uses it; name one directory for each")]
    InUse(PathBuf),
    /// A file in it is none of ours.
    #[error(
        "SSD directory {0}: {1} has {2} bytes, and a segment has {3}: name an empty directory, or the one that was used before{cut}",
        cut = cut_off(&.0.join(.1), *.2, *.3)
    )]
    Strange(PathBuf, String, u64, u64),
    /// The system refuses something.
    #[error("SSD directory {0}: {1}: name one that can be written")]
    System(PathBuf, String),
    /// There is no room for what is to be lent.
    #[error("SSD directory {0}: there is no room for {room}: lend less, or make room", room = Bytes::new(*.1))]
    Full(PathBuf, u64),
}

/// What to do with a segment that was cut off.
fn cut_off(file: &Path, bytes: u64, segment: u64) -> String {
    match bytes < segment {
        true => format!(
            "; if the file was cut off there, `truncate -s {segment} {}` makes it a segment again, without what was lost",
            file.display()
        ),
        false => String::new(),
    }
}

/// The file of a segment.
fn name(number: u64) -> String {
    format!("{number:08}.chunks")
}

/// See the module.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    size: u64,
    files: Vec<File>,
    /// Locked as long as this process uses the directory.
    _lock: File,
}

impl Directory {
    /// Takes a directory, which is made if it is not there, and so many bytes of room in it. What a former life left in it stays.
    ///
    /// # Errors
    /// [`BadDirectory`].
    pub fn open(path: &Path, bytes: u64) -> Result<Self, BadDirectory> {
        Self::with_segments(path, bytes, SEGMENT)
    }

    /// [`Directory::open`] with segments of so many bytes.
    ///
    /// # Errors
    /// [`BadDirectory`].
    pub fn with_segments(path: &Path, bytes: u64, segment: u64) -> Result<Self, BadDirectory> {
        let count = enough(bytes, segment)?;
        let mut made = Vec::new();
        let taken = Self::take(path, (count, bytes), segment, &mut made);
        if taken.is_err() {
            // Half of a log is room that nobody can use.
            made.iter().for_each(|file| drop(std::fs::remove_file(file)));
        }
        taken
    }

    /// Takes a directory with what a former life left in it, and nothing more.
    ///
    /// # Errors
    /// [`BadDirectory`].
    pub fn as_it_is(path: &Path) -> Result<Self, BadDirectory> {
        Self::take(path, (0, 0), SEGMENT, &mut Vec::new())
    }

    /// Whether a former life has left anything in a directory.
    #[must_use]
    pub fn is_there(path: &Path) -> bool {
        path.join(name(0)).exists()
    }

    /// Whether so many bytes make an SSD tier.
    ///
    /// # Errors
    /// [`BadDirectory::TooSmall`].
    pub fn is_enough(bytes: u64) -> Result<(), BadDirectory> {
        enough(bytes, SEGMENT).map(drop)
    }

    fn take(
        path: &Path,
        (count, bytes): (u64, u64),
        segment: u64,
        made: &mut Vec<PathBuf>,
    ) -> Result<Self, BadDirectory> {
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::StorageFull => BadDirectory::Full(path.to_owned(), bytes),
            _ => BadDirectory::System(path.to_owned(), error.to_string()),
        };
        std::fs::create_dir_all(path).map_err(failed)?;
        let lock =
            OpenOptions::new().create(true).truncate(false).write(true).open(path.join("lock")).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(BadDirectory::InUse(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        // Nothing of others is filled up for a log that does not fit.
        let new = count - (0..count).take_while(|number| path.join(name(*number)).exists()).count() as u64;
        let room = rustix::fs::statvfs(path).map_err(|error| failed(error.into()))?;
        if new.saturating_mul(segment) > room.f_bavail.saturating_mul(room.f_frsize) {
            return Err(BadDirectory::Full(path.to_owned(), bytes));
        }
        let mut files = Vec::new();
        // Those that a former life had beyond what is lent now may have chunks.
        for number in 0.. {
            let name = name(number);
            let file = path.join(&name);
            let is_there = file.exists();
            if number >= count && !is_there {
                break;
            }
            if !is_there {
                made.push(file.clone());
            }
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(false).open(file).map_err(failed)?;
            let found = file.metadata().map_err(failed)?.len();
            if found > segment || !found.is_multiple_of(segment) {
                return Err(BadDirectory::Strange(path.to_owned(), name, found, segment));
            }
            if found < segment {
                fallocate(&file, FallocateFlags::empty(), 0, segment).map_err(|error| failed(error.into()))?;
                file.sync_all().map_err(failed)?;
            }
            files.push(file);
        }
        File::open(path).and_then(|directory| directory.sync_all()).map_err(failed)?;
        Ok(Self { path: path.to_owned(), size: segment, files, _lock: lock })
    }

    fn file(&self, segment: u32) -> io::Result<&File> {
        self.files.get(segment as usize).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Segments in so many bytes.
fn enough(bytes: u64, segment: u64) -> Result<u64, BadDirectory> {
    let count = bytes / segment.max(1);
    if count < LEAST {
        let (lent, of) = (Bytes::new(bytes), Bytes::new(segment));
        return Err(BadDirectory::TooSmall { lent, segment: of, least: Bytes::new(segment.saturating_mul(LEAST)) });
    }
    Ok(count)
}

impl Disk for Directory {
    fn segments(&self) -> u32 {
        u32::try_from(self.files.len()).unwrap_or(u32::MAX)
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn read(&self, segment: u32, offset: u64, into: &mut [u8]) -> io::Result<()> {
        self.file(segment)?.read_exact_at(into, offset)
    }

    fn uncache(&self, segment: u32, offset: u64, length: u64) {
        if let Ok(file) = self.file(segment) {
            let _ = fadvise(file, offset, NonZeroU64::new(length), Advice::DontNeed);
        }
    }

    fn write(&self, segment: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file(segment)?.write_all_at(bytes, offset)
    }

    fn sync(&self, segment: u32) -> io::Result<()> {
        self.file(segment)?.sync_data()
    }
}
