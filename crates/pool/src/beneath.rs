//! Paths below a directory, of which nothing leads out: neither `..` nor a symbolic link, whoever has put it there.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Error, Result};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};
use surgetank_pool_core::meta::value;

/// A directory, to look below it.
pub(crate) fn root(directory: &Path) -> Result<OwnedFd> {
    Ok(open(directory, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// What is at a path below a directory; the directory itself, if the path is empty.
pub(crate) fn at(root: impl AsFd, path: &value::Path, flags: OFlags) -> Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    let names = path.0.iter().map(|name| OsStr::from_bytes(name.bytes()));
    let path = if path.0.is_empty() { PathBuf::from(".") } else { names.collect() };
    Ok(openat2(root, &path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?)
}

/// Opens a regular file for reading.
pub(crate) fn file(directory: &Path, path: &value::Path) -> Result<File> {
    file_in(directory, path).map(|(file, _)| file)
}

/// Opens a regular file for reading; it, and the number of the directory that it is in.
pub(crate) fn file_in(directory: &Path, path: &value::Path) -> Result<(File, u64)> {
    let (name, above) = path.0.split_last().ok_or(std::io::ErrorKind::IsADirectory)?;
    let above = at(root(directory)?, &value::Path(above.to_vec()), OFlags::PATH | OFlags::DIRECTORY)?;
    let number = fstat(&above)?.st_ino;
    // What is no regular file could make who opens it wait for ever.
    let file = at(above, &value::Path(vec![name.clone()]), OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY)?;
    match FileType::from_raw_mode(fstat(&file)?.st_mode) {
        FileType::RegularFile => Ok((file.into(), number)),
        _ => Err(Error::other("it is no regular file any more")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::fs::CWD;
    use surgetank_pool_core::meta::Name;

    use super::*;

    fn path(names: &[&str]) -> value::Path {
        value::Path(names.iter().map(|name| Name::new(name.as_bytes()).unwrap()).collect())
    }

    #[test]
    fn nothing_leads_out_of_a_directory() {
        let directory = tempfile::tempdir().unwrap();
        let (inner, at) = (directory.path().join("inner"), |name: &str| directory.path().join("inner").join(name));
        std::fs::create_dir_all(at("d")).unwrap();
        std::fs::write(directory.path().join("secret"), "secret").unwrap();
        std::fs::write(at("d/own"), "own").unwrap();
        for (to, name) in [("../secret", "up"), ("d/own", "own"), ("d", "dir"), ("/", "root")] {
            std::os::unix::fs::symlink(to, at(name)).unwrap();
        }
        std::os::unix::fs::symlink(directory.path().join("secret"), at("d/full")).unwrap();
        let mut text = String::new();
        file(&inner, &path(&["d", "own"])).unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "own");
        for names in [&["up"][..], &["own"], &["dir", "own"], &["root", "etc", "hostname"], &["d", "full"], &["d"]] {
            assert!(file(&inner, &path(names)).is_err(), "{names:?}");
        }
    }

    #[test]
    fn what_is_no_file_makes_nobody_wait() {
        let directory = tempfile::tempdir().unwrap();
        rustix::fs::mkfifoat(CWD, directory.path().join("fifo"), Mode::RWXU).unwrap();
        assert!(file(directory.path(), &path(&["fifo"])).is_err());
    }
}
