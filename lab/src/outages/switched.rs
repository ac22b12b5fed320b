//! A disk that answers every request with an error while it is told to.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::nbd::{Medium, Server};

/// The disk.
struct Disk {
    file: File,
    size: u64,
    fails: bool,
    /// Requests that were answered with an error.
    failed: u64,
}

impl Disk {
    fn check(&mut self) -> io::Result<()> {
        if self.fails {
            self.failed += 1;
            return Err(io::Error::other("an outage"));
        }
        Ok(())
    }
}

impl Medium for Disk {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.check()?;
        let mut data = vec![0; length];
        self.file.read_exact_at(&mut data, offset)?;
        Ok(data)
    }

    fn write(&mut self, offset: u64, data: Vec<u8>, forced: bool) -> io::Result<()> {
        self.check()?;
        self.file.write_all_at(&data, offset)?;
        if forced { self.file.sync_data() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.check()?;
        self.file.sync_data()
    }
}

/// Served over NBD as long as it lives.
pub struct Switched {
    server: Server<Disk>,
}

impl Switched {
    /// Serves a file.
    ///
    /// # Errors
    /// If it cannot be opened, or there cannot be a socket.
    pub fn new(file: &Path, socket: PathBuf) -> anyhow::Result<Self> {
        let opened = File::options().read(true).write(true).open(file);
        let opened = opened.with_context(|| format!("cannot open {}", file.display()))?;
        let size = opened.metadata()?.len();
        Ok(Self { server: Server::start(socket, Disk { file: opened, size, fails: false, failed: 0 })? })
    }

    /// Where QEMU connects.
    #[must_use]
    pub fn socket(&self) -> &Path {
        self.server.socket()
    }

    /// From now on it fails, or does not; how many requests have failed so far.
    pub fn fails(&self, fails: bool) -> u64 {
        let mut disk = self.server.medium();
        disk.fails = fails;
        disk.failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_fails_as_long_as_it_is_told_to_and_keeps_what_it_has() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, vec![7; 8192]).unwrap();
        let switched = Switched::new(&file, directory.path().join("socket")).unwrap();
        let write = |byte| switched.server.medium().write(4096, vec![byte; 512], true);
        let read = |offset| switched.server.medium().read(offset, 1);
        write(8).unwrap();
        assert_eq!(switched.fails(true), 0);
        assert!(write(9).is_err() && read(4096).is_err() && switched.server.medium().flush().is_err());
        assert_eq!(switched.fails(false), 3);
        assert_eq!((read(4096).unwrap(), read(0).unwrap()), (vec![8], vec![7]));
    }

    #[test]
    fn ending_it_does_not_wait_for_its_client() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        std::fs::write(&file, vec![0; 512]).unwrap();
        let switched = Switched::new(&file, directory.path().join("socket")).unwrap();
        let client = std::os::unix::net::UnixStream::connect(switched.socket()).unwrap();
        drop(switched);
        drop(client);
    }
}
