//! Segments as files of a directory: all of the room is taken at the start, so that it does not end in the middle.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};

use super::Disk;

/// Bytes of a segment.
pub const SEGMENT: u64 = 64 << 20;
/// Segments, at least: one is filled, one is left to tables, and one becomes empty meanwhile.
const LEAST: u64 = 4;

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum BadDirectory {
    /// Too little is to be lent.
    #[error("{lent} bytes of SSD make no {LEAST} segments of {segment} bytes: lend at least {least}, or none")]
    TooSmall {
        /// What was to be lent.
        lent: u64,
        /// Bytes of a segment.
        segment: u64,
        /// What is needed.
        least: u64,
    },
    /// Another process has it.
    #[error("SSD directory {0}: another benefactor uses it; name one directory for each")]
    InUse(PathBuf),
    /// A file in it is none of ours.
    #[error(
        "SSD directory {0}: {1} has {2} bytes, and a segment has {3}: name an empty directory, or the one that was used before"
    )]
    Strange(PathBuf, String, u64, u64),
    /// The system refuses something.
    #[error("SSD directory {0}: {1}")]
    System(PathBuf, String),
    /// There is no room for what is to be lent.
    #[error("SSD directory {0}: there is no room for {1} bytes: lend less, or make room")]
    Full(PathBuf, u64),
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
        let count = bytes / segment.max(1);
        if count < LEAST {
            return Err(BadDirectory::TooSmall { lent: bytes, segment, least: segment.saturating_mul(LEAST) });
        }
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
        let mut files = Vec::new();
        // Those that a former life had beyond what is lent now may have chunks.
        for number in 0.. {
            let name = format!("{number:08}.chunks");
            let (file, is_there) = (path.join(&name), path.join(&name).exists());
            if number >= count && !is_there {
                break;
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

    fn write(&self, segment: u32, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file(segment)?.write_all_at(bytes, offset)
    }

    fn sync(&self, segment: u32) -> io::Result<()> {
        self.file(segment)?.sync_data()
    }
}
