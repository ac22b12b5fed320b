//! A disk that answers every request with an error while it is told to.

use std::io;

use crate::nbd::Medium;

/// A medium that can be told to fail.
pub struct Failing<M> {
    /// What is below.
    pub medium: M,
    /// Whether it fails.
    pub fails: bool,
    /// Requests that were answered with an error so far.
    pub failed: u64,
}

impl<M: Medium> Failing<M> {
    /// Not failing yet.
    pub fn over(medium: M) -> Self {
        Self { medium, fails: false, failed: 0 }
    }

    fn check(&mut self) -> io::Result<&mut M> {
        if self.fails {
            self.failed += 1;
            return Err(io::Error::other("an outage"));
        }
        Ok(&mut self.medium)
    }
}

impl<M: Medium> Medium for Failing<M> {
    fn size(&self) -> io::Result<u64> {
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use surgetank_model::Bytes;
    use surgetank_model::random::Random;

    use super::*;
    use crate::cuts::lossy;
    use crate::nbd::Server;

    fn fails_and_keeps_what_it_has(medium: impl Medium) {
        let mut failing = Failing::over(medium);
        let write = |failing: &mut Failing<_>, byte| failing.write(4096, vec![byte; 512], true);
        write(&mut failing, 8).unwrap();
        let other = failing.read(0, 1).unwrap();
        assert_eq!(failing.failed, 0);
        failing.fails = true;
        assert!(write(&mut failing, 9).is_err() && failing.read(4096, 1).is_err() && failing.flush().is_err());
        failing.fails = false;
        assert_eq!(failing.failed, 3);
        assert_eq!((failing.read(4096, 1).unwrap(), failing.read(0, 1).unwrap()), (vec![8], other));
    }

    #[test]
    fn it_fails_as_long_as_it_is_told_to_and_keeps_what_it_has() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 8192]).unwrap();
        fails_and_keeps_what_it_has(file);
        let directory = tempfile::tempdir().unwrap();
        fails_and_keeps_what_it_has(lossy::Disk::new(directory.path(), "a", Bytes::from_mib(1)).unwrap());
    }

    #[test]
    fn what_was_not_flushed_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let mut failing = Failing::over(lossy::Disk::new(directory.path(), "a", Bytes::from_mib(1)).unwrap());
        failing.write(0, vec![1; 512], false).unwrap();
        failing.flush().unwrap();
        failing.write(0, vec![2; 512], false).unwrap();
        assert_eq!(failing.read(0, 1).unwrap(), [2]);
        assert_eq!(failing.medium.cut(&mut Random::from_seed(0), 0.0).unwrap().lost_bytes, 512);
        assert_eq!(failing.read(0, 1).unwrap(), [1]);
    }

    #[test]
    fn ending_it_does_not_wait_for_its_client() {
        let directory = tempfile::tempdir().unwrap();
        let medium = Failing::over(tempfile::tempfile().unwrap());
        let server = Server::start(directory.path().join("socket"), medium).unwrap();
        let client = std::os::unix::net::UnixStream::connect(server.socket()).unwrap();
        drop(server);
        drop(client);
    }
}
