//! A disk with a write cache that forgets: it keeps every write that was not flushed by chance only when its power is cut.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use surgetank_model::Bytes;
use surgetank_model::random::Random;

use crate::nbd::{Medium, Server};

/// What survives a cut whole or not at all.
const SECTOR: usize = 512;
/// More than this is not kept unflushed: a disk's cache is finite. The oldest is made durable then.
const PENDING_MAX: usize = 128 << 20;

/// A write that may be lost.
struct Pending {
    offset: u64,
    data: Vec<u8>,
    /// It carried FUA: it is durable, but what was written before it may not come after it.
    forced: bool,
}

/// The disk: what reads see, and what a cut would leave at least.
pub struct Disk {
    now: File,
    durable: File,
    pending: Vec<Pending>,
    pending_bytes: usize,
}

impl Medium for Disk {
    fn size(&self) -> io::Result<u64> {
        self.now.size()
    }

    fn read(&mut self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.now.read(offset, length)
    }

    fn write(&mut self, offset: u64, data: Vec<u8>, forced: bool) -> io::Result<()> {
        self.now.write_all_at(&data, offset)?;
        self.pending_bytes += data.len();
        self.pending.push(Pending { offset, data, forced });
        if self.pending_bytes > PENDING_MAX {
            let oldest: Vec<Pending> = self.pending.drain(..self.pending.len() / 2).collect();
            for write in oldest {
                self.pending_bytes -= write.data.len();
                self.durable.write_all_at(&write.data, write.offset)?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.pending_bytes = 0;
        for write in std::mem::take(&mut self.pending) {
            self.durable.write_all_at(&write.data, write.offset)?;
        }
        Ok(())
    }
}

impl Disk {
    /// A disk of zeroes, served on a Unix socket; its files and the socket are in a directory.
    pub fn serve(directory: &Path, name: &str, size: Bytes) -> anyhow::Result<Server<Self>> {
        Server::start(socket(directory, name), Self::new(directory, name, size)?)
    }

    /// Of zeroes, with its files in a directory.
    pub fn new(directory: &Path, name: &str, size: Bytes) -> anyhow::Result<Self> {
        let file = |suffix: &str| -> anyhow::Result<File> {
            let path = directory.join(format!("{name}.{suffix}"));
            let file = File::options().read(true).write(true).create_new(true).open(&path);
            let file = file.with_context(|| format!("cannot make {}", path.display()))?;
            file.set_len(size.get())?;
            Ok(file)
        };
        let (now, durable) = (file("now")?, file("durable")?);
        Ok(Self { now, durable, pending: Vec::new(), pending_bytes: 0 })
    }

    /// The power fails. Of what was not flushed every sector is kept with this probability, each by itself. Call it once
    /// whoever wrote is dead.
    pub fn cut(&mut self, chance: &mut Random, kept: f64) -> anyhow::Result<Lost> {
        self.pending_bytes = 0;
        let pending = std::mem::take(&mut self.pending);
        let unflushed = pending.iter().filter(|write| !write.forced).map(|write| write.data.len() as u64);
        let mut lost = Lost { pending_bytes: unflushed.sum(), lost_bytes: 0 };
        for write in &pending {
            for (index, sector) in write.data.chunks(SECTOR).enumerate() {
                if write.forced || chance.chance(kept) {
                    self.durable.write_all_at(sector, write.offset + (index * SECTOR) as u64)?;
                } else {
                    lost.lost_bytes += sector.len() as u64;
                }
            }
        }
        for write in &pending {
            let mut left = vec![0; write.data.len()];
            self.durable.read_exact_at(&mut left, write.offset)?;
            self.now.write_all_at(&left, write.offset)?;
        }
        Ok(lost)
    }
}

/// Where a disk of this name is served.
pub fn socket(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("{name}.socket"))
}

/// What a cut did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// What was not flushed.
    pub pending_bytes: u64,
    /// What of it is gone.
    pub lost_bytes: u64,
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    fn disk() -> (tempfile::TempDir, Server<Disk>) {
        let directory = tempfile::tempdir().unwrap();
        let lossy = Disk::serve(directory.path(), "a", Bytes::from_mib(1)).unwrap();
        (directory, lossy)
    }

    #[test]
    fn what_was_flushed_or_forced_stays_and_the_rest_may_go() {
        let (_directory, lossy) = disk();
        let mut chance = Random::from_seed(7);
        {
            let mut disk = lossy.medium();
            disk.write(0, vec![1; 4096], false).unwrap();
            disk.flush().unwrap();
            disk.write(0, vec![2; 4096], false).unwrap();
            disk.write(8192, vec![3; 512], false).unwrap();
            disk.write(8192, vec![4; 512], true).unwrap();
            assert_eq!(disk.read(0, 1).unwrap(), [2]);
        }
        let mut disk = lossy.medium();
        let lost = disk.cut(&mut chance, 0.0).unwrap();
        assert_eq!(lost, Lost { pending_bytes: 4608, lost_bytes: 4608 });
        assert_eq!((disk.read(0, 4096).unwrap(), disk.read(8192, 512).unwrap()), (vec![1; 4096], vec![4; 512]));
    }

    #[test]
    fn a_cut_tears_at_sectors_only() {
        let (_directory, lossy) = disk();
        lossy.medium().write(0, vec![9; 65_536], false).unwrap();
        lossy.medium().cut(&mut Random::from_seed(3), 0.5).unwrap();
        let found = lossy.medium().read(0, 65_536).unwrap();
        let kept = found.chunks(SECTOR).filter(|sector| sector[0] == 9).count();
        assert!(found.chunks(SECTOR).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
        assert!(kept > 30 && kept < 98, "{kept}");
    }

    #[test]
    fn clients_of_another_make_understand_it() {
        let (_directory, lossy) = disk();
        let uri = format!("nbd+unix:///?socket={}", lossy.socket().display());
        let commands = ["write -P 0x78 1024 512", "flush", "write -P 0x79 1024 512", "read -P 0x79 1024 512"];
        let arguments = commands.iter().flat_map(|command| ["-c", command]);
        match std::process::Command::new("qemu-io").args(["-t", "none", "-f", "raw"]).args(arguments).arg(&uri).output()
        {
            Ok(output) => {
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(output.status.success() && !said.contains("failed"), "{said}");
                // qemu-io flushes when it closes; what is lost is written after that.
                lossy.medium().write(1024, vec![0x7a; 512], false).unwrap();
                lossy.medium().cut(&mut Random::from_seed(1), 0.0).unwrap();
                assert_eq!(lossy.medium().read(1024, 1).unwrap(), b"y");
            }
            Err(_) => assert!(UnixStream::connect(lossy.socket()).is_ok()),
        }
    }
}
