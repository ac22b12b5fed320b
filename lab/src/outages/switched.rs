//! A disk that answers every request with an error while it is told to.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use surgetank_model::Bytes;
use surgetank_model::random::Random;

use crate::cuts::lossy::{self, Lost};
use crate::nbd::{Medium, Server};

/// A medium that can be told to fail.
struct Failing<M> {
    medium: M,
    fails: bool,
    /// Requests that were answered with an error.
    failed: u64,
}

impl<M: Medium> Failing<M> {
    fn check(&mut self) -> io::Result<&mut M> {
        if self.fails {
            self.failed += 1;
            return Err(io::Error::other("an outage"));
        }
        Ok(&mut self.medium)
    }
}

impl<M: Medium> Medium for Failing<M> {
    fn size(&self) -> u64 {
        self.medium.size()
    }

    fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.check()?.read(offset, length)
    }

    fn write(&mut self, offset: u64, data: Vec<u8>, forced: bool) -> io::Result<()> {
        self.check()?.write(offset, data, forced)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.check()?.flush()
    }
}

/// A file of somebody else's. What is written to it stays.
pub struct Image {
    file: File,
    size: u64,
}

impl Medium for Image {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut data = vec![0; length];
        self.file.read_exact_at(&mut data, offset)?;
        Ok(data)
    }

    fn write(&mut self, offset: u64, data: Vec<u8>, forced: bool) -> io::Result<()> {
        self.file.write_all_at(&data, offset)?;
        if forced { self.file.sync_data() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// A disk that can be told to fail, served over NBD as long as it lives.
pub struct Switched<M> {
    server: Server<Failing<M>>,
}

impl<M: Medium> Switched<M> {
    fn serve(medium: M, socket: PathBuf) -> anyhow::Result<Self> {
        Ok(Self { server: Server::start(socket, Failing { medium, fails: false, failed: 0 })? })
    }

    /// Where QEMU connects.
    pub fn socket(&self) -> &Path {
        self.server.socket()
    }

    /// From now on it fails, or does not.
    pub fn fails(&self, fails: bool) {
        self.server.medium().fails = fails;
    }

    /// How many requests have failed so far.
    pub fn failed(&self) -> u64 {
        self.server.medium().failed
    }
}

impl Switched<Image> {
    /// Over a file.
    pub fn over(file: &Path, socket: PathBuf) -> anyhow::Result<Self> {
        let opened = File::options().read(true).write(true).open(file);
        let opened = opened.with_context(|| format!("cannot open {}", file.display()))?;
        let size = opened.metadata()?.len();
        Self::serve(Image { file: opened, size }, socket)
    }
}

impl Switched<lossy::Disk> {
    /// A disk of zeroes that forgets, with its files and its socket in a directory.
    pub fn forgetful(directory: &Path, name: &str, size: Bytes) -> anyhow::Result<Self> {
        Self::serve(lossy::Disk::new(directory, name, size)?, directory.join(format!("{name}.socket")))
    }

    /// Everything that was not flushed is gone.
    pub fn forget(&self) -> anyhow::Result<Lost> {
        let mut disk = self.server.medium();
        disk.medium.cut(&mut Random::from_seed(0), 0.0).context("cannot cut the power of a disk")
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// Over a file of 8 KiB.
    fn over_a_file() -> (TempDir, Switched<Image>) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, vec![7; 8192]).unwrap();
        let switched = Switched::over(&file, directory.path().join("socket")).unwrap();
        (directory, switched)
    }

    fn fails_and_keeps_what_it_has<M: Medium>(switched: &Switched<M>) {
        let write = |byte| switched.server.medium().write(4096, vec![byte; 512], true);
        let read = |offset| switched.server.medium().read(offset, 1);
        write(8).unwrap();
        let other = read(0).unwrap();
        assert_eq!(switched.failed(), 0);
        switched.fails(true);
        assert!(write(9).is_err() && read(4096).is_err() && switched.server.medium().flush().is_err());
        switched.fails(false);
        assert_eq!(switched.failed(), 3);
        assert_eq!((read(4096).unwrap(), read(0).unwrap()), (vec![8], other));
    }

    #[test]
    fn it_fails_as_long_as_it_is_told_to_and_keeps_what_it_has() {
        let (_directory, switched) = over_a_file();
        fails_and_keeps_what_it_has(&switched);
        let directory = tempfile::tempdir().unwrap();
        fails_and_keeps_what_it_has(&Switched::forgetful(directory.path(), "a", Bytes::from_mib(1)).unwrap());
    }

    #[test]
    fn what_was_not_flushed_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let switched = Switched::forgetful(directory.path(), "a", Bytes::from_mib(1)).unwrap();
        let write = |byte| switched.server.medium().write(0, vec![byte; 512], false).unwrap();
        write(1);
        switched.server.medium().flush().unwrap();
        write(2);
        assert_eq!(switched.server.medium().read(0, 1).unwrap(), [2]);
        assert_eq!(switched.forget().unwrap().lost_bytes, 512);
        assert_eq!(switched.server.medium().read(0, 1).unwrap(), [1]);
    }

    #[test]
    fn ending_it_does_not_wait_for_its_client() {
        let (_directory, switched) = over_a_file();
        let client = std::os::unix::net::UnixStream::connect(switched.socket()).unwrap();
        drop(switched);
        drop(client);
    }
}
