//! The demo's application: a process that writes one file and makes it durable. It runs as a child of the demo, from
//! the same executable, so that the writes are those of an ordinary program.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use serde::{Deserialize, Serialize};
use surgetank_device::Buffer;
use surgetank_report::{Doing, Failure, output};

use super::content::{BLOCK, FileContent};
use super::plan::PlannedFile;

/// Bytes of one write.
const REQUEST: usize = 1 << 20;
/// Bytes after which a buffered writer makes its data durable, as applications do that do not want a long fsync.
const SYNC_EVERY: u64 = 2 << 20;

/// Arguments of the hidden `demo-writer` command.
#[derive(Clone, Debug, clap::Args)]
pub struct Arguments {
    /// The file to create, or the Unix socket of an NBD export.
    #[arg(long)]
    path: PathBuf,
    /// Bytes to write.
    #[arg(long)]
    bytes: u64,
    /// Seed of the run.
    #[arg(long)]
    seed: u64,
    /// Number of the file in its run.
    #[arg(long)]
    file: u64,
    /// Bypass the page cache.
    #[arg(long)]
    direct: bool,
    /// `path` is an NBD socket; write from this byte of the export on.
    #[arg(long)]
    nbd_offset: Option<u64>,
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

/// The body of the `demo-writer` command.
///
/// # Errors
/// The first I/O error.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let content = FileContent { seed: arguments.seed, file: arguments.file };
    let target = || format!("cannot write {}", arguments.path.display());
    let mut sink = Sink::open(arguments).doing(target)?;
    let mut buffer = Buffer::zeroed(REQUEST);
    let bytes = buffer.unique().ok_or_else(|| Failure::failed("the write buffer is shared"))?;
    let begin = Instant::now();
    let mut crc32c = 0;
    let mut offset = 0;
    while offset < arguments.bytes {
        let length = REQUEST.min(usize::try_from(arguments.bytes - offset).unwrap_or(REQUEST));
        let part = &mut bytes[..length];
        content.fill(offset / BLOCK as u64, part);
        crc32c = crc32c::crc32c_append(crc32c, part);
        sink.write(offset, part).doing(target)?;
        offset += length as u64;
    }
    sink.finish().doing(|| format!("cannot make {} durable", arguments.path.display()))?;
    let written = Written { bytes: arguments.bytes, crc32c, seconds: begin.elapsed().as_secs_f64() };
    output::print(&serde_json::to_string(&written).map_err(Failure::failed)?)
}

enum Sink {
    File { file: File, path: PathBuf, direct: bool, unsynced: u64 },
    Nbd { client: surgetank_nbd::Client, base: u64 },
}

impl Sink {
    fn open(arguments: &Arguments) -> io::Result<Self> {
        if let Some(base) = arguments.nbd_offset {
            return Ok(Self::Nbd { client: surgetank_nbd::Client::connect(&arguments.path)?, base });
        }
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        if arguments.direct {
            options.custom_flags(libc::O_DIRECT);
        }
        let file = options.open(&arguments.path)?;
        rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, arguments.bytes)?;
        Ok(Self::File { file, path: arguments.path.clone(), direct: arguments.direct, unsynced: 0 })
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

/// Starts the process that writes `file`. It ignores the terminal's Ctrl-C: the demo ends it in order.
///
/// # Errors
/// If the process cannot be started.
pub fn spawn(file: &PlannedFile, destination: &Destination<'_>) -> io::Result<Child> {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("demo-writer").arg("--path");
    match destination {
        Destination::Directory(root) => {
            let path = root.join(&file.path);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            command.arg(path);
        }
        Destination::Nbd(socket) => {
            command.arg(socket).args(["--nbd-offset", &file.device_offset.to_string()]);
        }
    }
    command.args(["--bytes", &file.size.to_string()]);
    command.args(["--seed", &file.content.seed.to_string(), "--file", &file.content.file.to_string()]);
    if file.direct {
        command.arg("--direct");
    }
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0).spawn()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(path: &Path, direct: bool) -> Arguments {
        Arguments { path: path.to_owned(), bytes: 3 * REQUEST as u64 / 2, seed: 1, file: 2, direct, nbd_offset: None }
    }

    #[test]
    fn what_is_written_is_what_is_expected() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        run(&arguments(&path, false)).unwrap();
        let found = std::fs::read(&path).unwrap();
        assert_eq!(found.len(), 3 * REQUEST / 2);
        FileContent { seed: 1, file: 2 }.verify(0, &found, &mut vec![0; found.len()]).unwrap();
    }

    #[test]
    fn an_existing_file_is_not_overwritten() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let failure = run(&arguments(file.path(), false)).unwrap_err();
        assert!(failure.to_string().starts_with("cannot write "), "{failure}");
    }
}
