//! A disk with a write cache that forgets: an NBD server for QEMU, whose disk keeps every write that was not flushed by
//! chance only when its power is cut.
//!
//! <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>: fixed newstyle, simple replies, flush and FUA.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use anyhow::Context;
use surgetank_model::Bytes;
use surgetank_model::random::Random;

/// What survives a cut whole or not at all.
const SECTOR: usize = 512;
/// More than this is not kept unflushed: a disk's cache is finite. The oldest is made durable then.
const PENDING_MAX: usize = 128 << 20;
/// The longest request that is taken.
const REQUEST_MAX: u32 = 32 << 20;

const MAGIC: u64 = 0x4e42_444d_4147_4943;
const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// Flags are there; flush; FUA.
const FLAGS: u16 = 1 | 1 << 2 | 1 << 3;
const EINVAL: u32 = 22;
const EIO: u32 = 5;

/// A write that may be lost.
struct Pending {
    offset: u64,
    data: Vec<u8>,
    /// It carried FUA: it is durable, but what was written before it may not come after it.
    forced: bool,
}

/// The disk: what reads see, and what a cut would leave at least.
struct Disk {
    size: u64,
    now: File,
    durable: File,
    pending: Vec<Pending>,
    pending_bytes: usize,
}

impl Disk {
    fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut data = vec![0; length];
        self.now.read_exact_at(&mut data, offset)?;
        Ok(data)
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

    /// Of what was not flushed every sector is kept with this probability, each by itself.
    fn cut(&mut self, chance: &mut Random, kept: f64) -> io::Result<Lost> {
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

/// What a cut did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// What was not flushed.
    pub pending_bytes: u64,
    /// What of it is gone.
    pub lost_bytes: u64,
}

/// A lossy disk, served on a Unix socket as long as it lives.
pub struct Lossy {
    disk: Arc<Mutex<Disk>>,
    socket: PathBuf,
    ending: Arc<AtomicBool>,
    listener: Option<JoinHandle<()>>,
}

impl Lossy {
    /// A disk of zeroes, with its files and its socket in a directory.
    ///
    /// # Errors
    /// If they cannot be made.
    pub fn new(directory: &Path, name: &str, size: Bytes) -> anyhow::Result<Self> {
        let file = |suffix: &str| -> anyhow::Result<File> {
            let path = directory.join(format!("{name}.{suffix}"));
            let file = File::options().read(true).write(true).create_new(true).open(&path);
            let file = file.with_context(|| format!("cannot make {}", path.display()))?;
            file.set_len(size.get())?;
            Ok(file)
        };
        let disk = Disk {
            size: size.get(),
            now: file("now")?,
            durable: file("durable")?,
            pending: Vec::new(),
            pending_bytes: 0,
        };
        let disk = Arc::new(Mutex::new(disk));
        let socket = directory.join(format!("{name}.socket"));
        let listener = UnixListener::bind(&socket).with_context(|| format!("cannot listen at {}", socket.display()))?;
        let shared = Arc::clone(&disk);
        let ending = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ending);
        let listener = std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                // A client that goes away in the middle of something is what this disk is for.
                let _ = serve(stream, &shared);
            }
        });
        Ok(Self { disk, socket, ending, listener: Some(listener) })
    }

    /// Where QEMU connects.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// The power fails. Call it once whoever wrote is dead.
    ///
    /// # Errors
    /// If the disk's files cannot be written.
    pub fn cut(&self, chance: &mut Random, kept: f64) -> anyhow::Result<Lost> {
        lock(&self.disk).cut(chance, kept).context("cannot cut the power of a disk")
    }
}

impl Drop for Lossy {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::SeqCst);
        // Wakes the listener, which looks whether this is the end.
        let _ = UnixStream::connect(&self.socket);
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
    }
}

fn lock(disk: &Mutex<Disk>) -> MutexGuard<'_, Disk> {
    disk.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One connection, from greeting to end.
fn serve(mut stream: UnixStream, disk: &Mutex<Disk>) -> io::Result<()> {
    let size = lock(disk).size;
    if !greet(&mut stream, size)? {
        return Ok(());
    }
    loop {
        let magic = u32::from_be_bytes(take(&mut stream)?);
        let flags = u16::from_be_bytes(take(&mut stream)?);
        let command = u16::from_be_bytes(take(&mut stream)?);
        let handle: [u8; 8] = take(&mut stream)?;
        let offset = u64::from_be_bytes(take(&mut stream)?);
        let length = u32::from_be_bytes(take(&mut stream)?);
        if magic != REQUEST_MAGIC || length > REQUEST_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let fits = offset.checked_add(u64::from(length)).is_some_and(|end| end <= size);
        let mut reply = Vec::new();
        let done = match command {
            0 if fits => lock(disk).read(offset, length as usize).map(|data| reply = data),
            1 => {
                let mut data = vec![0; length as usize];
                stream.read_exact(&mut data)?;
                if fits {
                    lock(disk).write(offset, data, flags & 1 != 0)
                } else {
                    Err(io::ErrorKind::InvalidInput.into())
                }
            }
            2 => return Ok(()),
            3 => lock(disk).flush(),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        };
        let error = match done {
            Ok(()) => 0,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => EINVAL,
            Err(_) => EIO,
        };
        let mut answer = SIMPLE_REPLY_MAGIC.to_be_bytes().to_vec();
        answer.extend_from_slice(&u32::to_be_bytes(error));
        answer.extend_from_slice(&handle);
        if error == 0 {
            answer.extend_from_slice(&reply);
        }
        stream.write_all(&answer)?;
    }
}

fn take<const N: usize>(stream: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Options, until the client goes on to requests (true) or away.
fn greet(stream: &mut UnixStream, size: u64) -> io::Result<bool> {
    let mut hello = MAGIC.to_be_bytes().to_vec();
    hello.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    hello.extend_from_slice(&3u16.to_be_bytes()); // fixed newstyle, no zeroes
    stream.write_all(&hello)?;
    let _client_flags: [u8; 4] = take(stream)?;
    loop {
        let magic = u64::from_be_bytes(take(stream)?);
        let option = u32::from_be_bytes(take(stream)?);
        let length = u32::from_be_bytes(take(stream)?);
        if magic != OPTION_MAGIC || length > 65_536 {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut data = vec![0; length as usize];
        stream.read_exact(&mut data)?;
        let mut reply = |kind: u32, data: &[u8]| {
            let mut answer = REPLY_MAGIC.to_be_bytes().to_vec();
            answer.extend_from_slice(&option.to_be_bytes());
            answer.extend_from_slice(&kind.to_be_bytes());
            answer.extend_from_slice(&(data.len() as u32).to_be_bytes());
            answer.extend_from_slice(data);
            stream.write_all(&answer)
        };
        const ACKNOWLEDGED: u32 = 1;
        const INFORMATION: u32 = 3;
        const UNSUPPORTED: u32 = (1 << 31) + 1;
        match option {
            // Information and its variant that goes on to requests; any name will do.
            6 | 7 => {
                let mut export = 0u16.to_be_bytes().to_vec();
                export.extend_from_slice(&size.to_be_bytes());
                export.extend_from_slice(&FLAGS.to_be_bytes());
                reply(INFORMATION, &export)?;
                reply(ACKNOWLEDGED, &[])?;
                if option == 7 {
                    return Ok(true);
                }
            }
            2 => {
                reply(ACKNOWLEDGED, &[])?;
                return Ok(false);
            }
            _ => reply(UNSUPPORTED, &[])?,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> (tempfile::TempDir, Lossy) {
        let directory = tempfile::tempdir().unwrap();
        let lossy = Lossy::new(directory.path(), "a", Bytes::from_mib(1)).unwrap();
        (directory, lossy)
    }

    #[test]
    fn what_was_flushed_or_forced_stays_and_the_rest_may_go() {
        let (_directory, lossy) = disk();
        let mut chance = Random::from_seed(7);
        {
            let mut disk = lock(&lossy.disk);
            disk.write(0, vec![1; 4096], false).unwrap();
            disk.flush().unwrap();
            disk.write(0, vec![2; 4096], false).unwrap();
            disk.write(8192, vec![3; 512], false).unwrap();
            disk.write(8192, vec![4; 512], true).unwrap();
            assert_eq!(disk.read(0, 1).unwrap(), [2]);
        }
        let lost = lossy.cut(&mut chance, 0.0).unwrap();
        assert_eq!(lost, Lost { pending_bytes: 4608, lost_bytes: 4608 });
        let disk = lock(&lossy.disk);
        assert_eq!((disk.read(0, 4096).unwrap(), disk.read(8192, 512).unwrap()), (vec![1; 4096], vec![4; 512]));
    }

    #[test]
    fn a_cut_tears_at_sectors_only() {
        let (_directory, lossy) = disk();
        lock(&lossy.disk).write(0, vec![9; 65_536], false).unwrap();
        lossy.cut(&mut Random::from_seed(3), 0.5).unwrap();
        let found = lock(&lossy.disk).read(0, 65_536).unwrap();
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
                lock(&lossy.disk).write(1024, vec![0x7a; 512], false).unwrap();
                lossy.cut(&mut Random::from_seed(1), 0.0).unwrap();
                assert_eq!(lock(&lossy.disk).read(1024, 1).unwrap(), b"y");
            }
            Err(_) => assert!(UnixStream::connect(lossy.socket()).is_ok()),
        }
    }
}
