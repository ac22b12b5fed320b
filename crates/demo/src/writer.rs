//! The demo's application: a process that writes one file and makes it durable. It runs as a child of the demo, from
//! the same executable, so that the writes are those of an ordinary program.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Instant;

use serde::{Deserialize, Serialize};
use surgetank_device::Buffer;
use surgetank_report::{Doing, Failure, output};

use crate::child;
use crate::content::{BLOCK, FileContent};
use crate::plan::PlannedFile;

/// Bytes of one write.
const REQUEST: usize = 1 << 20;
/// Bytes after which a buffered writer makes its data durable, as applications do that do not want a long fsync.
const SYNC_EVERY: u64 = 2 << 20;

/// What a writer process is told, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    target: Target,
    content: FileContent,
    bytes: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
enum Target {
    /// A file to make.
    File { path: PathBuf, direct: bool },
    /// An export behind a Unix socket, from this byte on.
    Nbd { socket: PathBuf, offset: u64 },
}

impl Target {
    fn path(&self) -> &Path {
        match self {
            Self::File { path, .. } => path,
            Self::Nbd { socket, .. } => socket,
        }
    }
}

/// What a writer says when it is done.
#[derive(Clone, Debug, Serialize, Deserialize, PartialEq)]
pub struct Written {
    /// Bytes.
    pub bytes: u64,
    /// Of the whole file.
    pub crc32c: u32,
    /// From the first write until everything was durable.
    pub seconds: f64,
}

/// Where a writer's bytes go.
#[derive(Clone, Debug)]
pub enum Destination<'a> {
    /// A file below this directory.
    Directory(&'a Path),
    /// A range of the export behind this socket.
    Nbd(&'a Path),
}

/// Writes what the demo ordered and says how it went.
///
/// # Errors
/// The first I/O error.
pub fn write(order: &Order) -> Result<(), Failure> {
    let written = carry_out(order)?;
    output::print(&serde_json::to_string(&written).map_err(Failure::failed)?)
}

fn carry_out(order: &Order) -> Result<Written, Failure> {
    let target = || format!("cannot write {}", order.target.path().display());
    let mut sink = Sink::open(order).doing(target)?;
    let mut buffer = Buffer::zeroed(REQUEST);
    let bytes = buffer.unique().ok_or_else(|| Failure::failed("the write buffer is shared"))?;
    let begin = Instant::now();
    let mut crc32c = 0;
    let mut offset = 0;
    while offset < order.bytes {
        let length = REQUEST.min(usize::try_from(order.bytes - offset).unwrap_or(REQUEST));
        let part = &mut bytes[..length];
        order.content.fill(offset / BLOCK as u64, part);
        crc32c = crc32c::crc32c_append(crc32c, part);
        sink.write(offset, part).doing(target)?;
        offset += length as u64;
    }
    sink.finish().doing(|| format!("cannot make {} durable", order.target.path().display()))?;
    Ok(Written { bytes: order.bytes, crc32c, seconds: begin.elapsed().as_secs_f64() })
}

enum Sink {
    File { file: File, path: PathBuf, direct: bool, unsynced: u64 },
    Nbd { client: surgetank_nbd::Client, base: u64 },
}

impl Sink {
    fn open(order: &Order) -> io::Result<Self> {
        match &order.target {
            Target::Nbd { socket, offset } => {
                Ok(Self::Nbd { client: surgetank_nbd::Client::connect(socket)?, base: *offset })
            }
            Target::File { path, direct } => {
                let mut options = OpenOptions::new();
                options.write(true).create_new(true);
                if *direct {
                    options.custom_flags(libc::O_DIRECT);
                }
                let file = options.open(path)?;
                rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, order.bytes)?;
                Ok(Self::File { file, path: path.clone(), direct: *direct, unsynced: 0 })
            }
        }
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::File { file, direct, unsynced, .. } => {
                file.write_all(bytes)?;
                *unsynced += bytes.len() as u64;
                if !*direct && *unsynced >= SYNC_EVERY {
                    *unsynced = 0;
                    file.sync_data()?;
                }
                Ok(())
            }
            Self::Nbd { client, base } => client.write(*base + offset, bytes),
        }
    }

    /// Everything is durable, the name of the file too.
    fn finish(self) -> io::Result<()> {
        match self {
            Self::File { file, path, .. } => {
                file.sync_all()?;
                path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
            }
            Self::Nbd { mut client, .. } => {
                client.flush()?;
                client.disconnect()
            }
        }
    }
}

/// Starts the process that writes `file`.
///
/// # Errors
/// If the process cannot be started.
pub fn spawn(file: &PlannedFile, destination: &Destination<'_>) -> io::Result<Child> {
    let target = match destination {
        Destination::Directory(root) => {
            let path = root.join(&file.path);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            Target::File { path, direct: file.direct }
        }
        Destination::Nbd(socket) => Target::Nbd { socket: (*socket).to_owned(), offset: file.device_offset },
    };
    child::spawn(&child::Order::Write(Order { target, content: file.content, bytes: file.size }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(path: &Path) -> Order {
        let target = Target::File { path: path.to_owned(), direct: false };
        Order { target, content: FileContent { seed: 1, file: 2 }, bytes: 3 * REQUEST as u64 / 2 }
    }

    #[test]
    fn what_is_written_is_what_is_expected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        carry_out(&order(&path)).unwrap();
        let found = std::fs::read(&path).unwrap();
        assert_eq!(found.len(), 3 * REQUEST / 2);
        FileContent { seed: 1, file: 2 }.verify(0, &found, &mut vec![0; found.len()]).unwrap();
    }

    #[test]
    fn an_existing_file_is_not_overwritten() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let failure = carry_out(&order(file.path())).unwrap_err();
        assert!(failure.to_string().starts_with("cannot write "), "{failure}");
    }
}
