//! Stretches of a device, or of a file, as the oracle wants them: written, flushed, read back without the page cache.

use std::fs::OpenOptions;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;

use crate::cuts::oracle::{BLOCK, Fault, Stretch};

/// Writes one stretch, an operation after the other, until told to stop or the end of the world; from `next` on, which is
/// the operation that failed if one does. `flushed` is told of each flush that was answered.
pub fn write(
    device: &Path,
    stretch: &Stretch,
    next: &mut u64,
    over: &AtomicBool,
    mut flushed: impl FnMut(u64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let file = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(device)?;
    while !over.load(Ordering::Relaxed) {
        let operation = stretch.operation(*next);
        let data = Aligned::of(&stretch.data(*next));
        let offset = (stretch.first + operation.block) * BLOCK as u64;
        file.write_all_at(data.bytes(), offset).context("cannot write to the device")?;
        if operation.flush {
            file.sync_data().context("cannot flush the device")?;
            flushed(*next)?;
        }
        *next += 1;
    }
    Ok(())
}

/// Reads all stretches and judges them.
pub fn judge(device: &Path, offset: u64, stretches: &mut [Stretch], ends: u64) -> anyhow::Result<Vec<Fault>> {
    // The page cache must not answer for the disk.
    let mut file = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(device)?;
    let mut faults = Vec::new();
    for stretch in stretches {
        file.seek(SeekFrom::Start(offset + stretch.first * BLOCK as u64))?;
        let mut found = Vec::with_capacity(stretch.least.len() * BLOCK);
        let mut piece = Aligned::zeroed(1 << 20);
        while found.len() < stretch.least.len() * BLOCK {
            let wanted = (stretch.least.len() * BLOCK - found.len()).min(1 << 20);
            file.read_exact(&mut piece.bytes_mut()[..wanted]).context("cannot read the device")?;
            found.extend_from_slice(&piece.bytes()[..wanted]);
        }
        faults.extend(stretch.judge(&found, ends));
    }
    Ok(faults)
}

/// What is wrong with a stretch that is a file by itself.
pub fn judge_file(file: &Path, stretch: &mut Stretch, ends: u64) -> Vec<String> {
    match judge(file, 0, std::slice::from_mut(stretch), ends) {
        Ok(faults) => faults.iter().map(Fault::to_string).collect(),
        Err(error) => vec![format!("{error:#}")],
    }
}

/// What memory is aligned to.
const PAGE: usize = 4096;

/// Memory that direct I/O takes.
pub struct Aligned {
    memory: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    pub fn zeroed(length: usize) -> Self {
        let memory = vec![0; length + PAGE];
        let start = memory.as_ptr().align_offset(PAGE);
        Self { memory, start, length }
    }

    fn of(bytes: &[u8]) -> Self {
        let mut aligned = Self::zeroed(bytes.len());
        aligned.bytes_mut().copy_from_slice(bytes);
        aligned
    }

    /// All of it.
    pub fn bytes(&self) -> &[u8] {
        &self.memory[self.start..self.start + self.length]
    }

    /// The same, to be changed.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..self.start + self.length]
    }
}
