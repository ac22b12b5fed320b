//! `fallocate`, and where a file has holes.

use std::time::SystemTime;

use fuser::Errno;
use surgetank_pool::chunks::FILE_MAX;

use crate::attributes::since_1970;
use crate::errno::stale;
use crate::files::{File, Gate};
use crate::tree::Tree;

/// What `fallocate` is to do. Nothing is reserved: see `docs/POOL.md`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allocate {
    /// The file is at least as long as the range afterwards.
    extends: bool,
    /// The range is zeros afterwards.
    zeroes: bool,
}

impl Allocate {
    /// `None`: the pool cannot do it.
    pub(crate) const fn of(mode: i32) -> Option<Self> {
        let extends = mode & libc::FALLOC_FL_KEEP_SIZE == 0;
        match mode & !libc::FALLOC_FL_KEEP_SIZE {
            0 => Some(Self { extends, zeroes: false }),
            libc::FALLOC_FL_ZERO_RANGE => Some(Self { extends, zeroes: true }),
            libc::FALLOC_FL_PUNCH_HOLE if !extends => Some(Self { extends, zeroes: true }),
            _ => None,
        }
    }
}

/// Whether a file may be so long.
pub(crate) const fn may_have(size: u64) -> Result<(), Errno> {
    if size > FILE_MAX { Err(Errno::EFBIG) } else { Ok(()) }
}

impl Tree {
    pub(crate) async fn allocate(&self, handle: u64, (offset, length): (u64, u64), how: Allocate) -> Result<(), Errno> {
        let end = offset.saturating_add(length);
        may_have(end)?;
        let handle = self.handle(handle)?;
        let mut gate = handle.file.gate.lock().await;
        self.begin_writing(&handle, None, &mut gate).await?;
        self.allocate_in(&handle.file, &mut gate, (offset, end), how).await
    }

    async fn allocate_in(
        &self,
        file: &File,
        gate: &mut Gate,
        (offset, end): (u64, u64),
        how: Allocate,
    ) -> Result<(), Errno> {
        let Some(writer) = &mut gate.writer else { return Err(Errno::EIO) };
        let done = async {
            // The length first, which a quota may refuse: then nothing was zeroed.
            if how.extends {
                // Others may have made it longer.
                writer.refresh().await?;
                if end > writer.size() {
                    writer.set_size(end).await?;
                }
            }
            if how.zeroes {
                writer.punch(offset, end - offset).await?;
            }
            Ok(())
        };
        if let Err(error) = done.await {
            return Err(self.failed(file, gate, &error));
        }
        if how.zeroes || how.extends {
            file.has(writer.size(), since_1970(SystemTime::now()));
        }
        Ok(())
    }

    /// Where the next hole is from an offset on, or the next byte that is in none.
    pub(crate) async fn seek(&self, handle: u64, offset: u64, wants_hole: bool) -> Result<u64, Errno> {
        if let Some(file) = self.files.at_target(handle) {
            use rustix::fs::{SeekFrom, seek};
            let from = if wants_hole { SeekFrom::Hole(offset) } else { SeekFrom::Data(offset) };
            let found = tokio::task::spawn_blocking(move || seek(&file, from)).await.map_err(|_| Errno::EIO)?;
            return found.map_err(|error| Errno::from_i32(error.raw_os_error()));
        }
        let handle = self.handle(handle)?;
        let gate = handle.file.gate.lock().await;
        let found = match &gate.writer {
            Some(writer) => writer.seek(offset, wants_hole),
            None => {
                drop(gate);
                let client = self.client().await?;
                let reader = client.read_node(handle.file.inode, &handle.file.what).await;
                reader.map_err(|error| stale(&error))?.seek(offset, wants_hole)
            }
        };
        found.ok_or(Errno::ENXIO)
    }
}
