//! Small state files that survive a crash at any point: written whole, or not at all.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, IntoInnerError, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags};

/// Replaces `path` with `bytes`, durably: a temporary file beside it (mode 0600) is written and synced, renamed over
/// it, and the directory is synced. After an error the file holds the old bytes or the new ones, never a mixture.
///
/// # Errors
/// Whatever the file system answers.
pub fn write_atomically(path: &Path, bytes: &[u8]) -> io::Result<()> {
    replace(path, |file| file.write_all(bytes)).map(|_| ())
}

/// The same with bytes that need not be in memory together. Answers how many there are.
///
/// # Errors
/// Whatever the file system answers.
pub fn replace(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<u64> {
    let directory = path.parent().ok_or_else(|| io::Error::other("a state file lies in a directory"))?;
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".new");
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&temporary)?;
    let mut file = BufWriter::new(file);
    let written = write(&mut file).and_then(|()| {
        let file = file.into_inner().map_err(IntoInnerError::into_error)?;
        file.sync_all()?;
        let length = file.metadata()?.len();
        rustix::fs::renameat_with(CWD, Path::new(&temporary), CWD, path, RenameFlags::empty())?;
        Ok(length)
    });
    // On a full disk the part that was written would only take up room.
    let length = written.inspect_err(|_| drop(fs::remove_file(&temporary)))?;
    File::open(directory)?.sync_all()?;
    Ok(length)
}

/// Removes a state file, durably. It need not be there.
///
/// # Errors
/// Whatever the file system answers.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Ok(()) => sync_directory(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes sure that a state file is on disk as it is read now: whoever wrote it may have died before it synced it.
///
/// # Errors
/// Whatever the file system answers.
pub fn make_durable(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()?;
    sync_directory(path)
}

fn sync_directory(path: &Path) -> io::Result<()> {
    let directory = path.parent().ok_or_else(|| io::Error::other("a state file lies in a directory"))?;
    File::open(directory)?.sync_all()
}

/// The bytes of a state file; `None` if it does not exist.
///
/// # Errors
/// Whatever the file system answers, with the file's name.
pub fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    match File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)) {
        Ok(_) => Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(io::Error::new(error.kind(), format!("{} cannot be read: {error}", path.display()))),
    }
}

/// Why a state file is not read, with the remedy: the end of a sentence that begins with the file's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// A newer surgetank wrote it: it is whole, and nothing may take its place.
    Newer {
        /// Its version.
        version: u32,
        /// The newest that this one reads.
        newest: u32,
    },
    /// It is damaged, or missing.
    Damaged(String),
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Newer { version, newest } => write!(
                f,
                "was written by a newer surgetank (its version is {version}, this one reads {newest} and older): upgrade \
                 this one, or drain the device with the newer one before going back"
            ),
            Self::Damaged(why) => write!(f, "{why}; put a copy of it in its place"),
        }
    }
}

impl From<String> for Unreadable {
    fn from(why: String) -> Self {
        Self::Damaged(why)
    }
}

impl Unreadable {
    /// The whole sentence about a file that is `what`.
    #[must_use]
    pub fn of(&self, what: &str, path: &Path) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, format!("{what} {} {self}", path.display()))
    }
}

/// The version of a state file, if it is one that can be read: at most `newest`. Files name it first of all, and a newer
/// one may hold anything besides.
///
/// # Errors
/// It is none.
pub fn version(bytes: &[u8], newest: u32) -> Result<u32, Unreadable> {
    #[derive(serde::Deserialize)]
    struct Versioned {
        version: u32,
    }
    match serde_json::from_slice::<Versioned>(bytes) {
        Ok(Versioned { version: 0 }) => Err("is damaged: its version is 0".to_owned().into()),
        Ok(Versioned { version }) if version > newest => Err(Unreadable::Newer { version, newest }),
        Ok(Versioned { version }) => Ok(version),
        Err(error) => Err(format!("is damaged: {error}").into()),
    }
}

/// Makes a directory (and its parents) that only its owner may enter, durably.
///
/// # Errors
/// Whatever the file system answers.
pub fn make_directory(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    if path.is_dir() {
        return Ok(());
    }
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        File::open(parent)?.sync_all()?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_whole() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b");
        make_directory(path.parent().unwrap()).unwrap();
        assert_eq!(read(&path).unwrap(), None);
        write_atomically(&path, b"one").unwrap();
        write_atomically(&path, b"two").unwrap();
        assert_eq!(read(&path).unwrap().as_deref(), Some(&b"two"[..]));
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_planted_link_is_not_written_through() {
        let directory = tempfile::tempdir().unwrap();
        let (path, precious) = (directory.path().join("record"), directory.path().join("precious"));
        fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, directory.path().join("record.new")).unwrap();
        assert!(write_atomically(&path, b"one").is_err());
        std::os::unix::fs::symlink(&precious, &path).unwrap();
        fs::remove_file(directory.path().join("record.new")).unwrap();
        write_atomically(&path, b"two").unwrap();
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
        assert_eq!(read(&path).unwrap().as_deref(), Some(&b"two"[..]), "the link was replaced");
    }
}
