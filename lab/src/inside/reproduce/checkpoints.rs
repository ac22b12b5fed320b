//! An application whose sizes and times are known exactly, so that what it takes can be predicted: it sleeps and writes,
//! as the product's demo does.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::super::stretch::Aligned;
use super::{Phase, unix_s};

/// Bytes of a write, and how many are in flight.
const REQUEST: u64 = 1 << 20;
const WRITERS: u64 = 8;

/// A dump of the initial state, then computing and a checkpoint, several times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoints {
    /// What is dumped at the start.
    pub dump_mib: u64,
    /// What each checkpoint writes.
    pub checkpoint_mib: u64,
    /// How many.
    pub checkpoints: u32,
    /// Before each, in seconds.
    pub compute_s: f64,
}

impl Checkpoints {
    /// Runs in a directory, where every checkpoint is a file of its own.
    pub fn run(&self, directory: &Path) -> anyhow::Result<Vec<Phase>> {
        let mut phases = Vec::new();
        for index in 0..=self.checkpoints {
            let began_s = unix_s();
            let (compute_s, size_mib) =
                if index == 0 { (0.0, self.dump_mib) } else { (self.compute_s, self.checkpoint_mib) };
            std::thread::sleep(Duration::from_secs_f64(compute_s));
            let computed_s = unix_s();
            let file = dump(directory, index, size_mib)?;
            let written_s = unix_s();
            file.sync_all().context("cannot flush a checkpoint")?;
            phases.push(Phase {
                began_s,
                compute_s: computed_s - began_s,
                write_s: written_s - computed_s,
                sync_s: unix_s() - written_s,
            });
        }
        Ok(phases)
    }
}

fn dump(directory: &Path, index: u32, size_mib: u64) -> anyhow::Result<File> {
    let path = directory.join(format!("checkpoint.{index}"));
    let file = File::options().create(true).write(true).custom_flags(libc::O_DIRECT).open(&path);
    let file = file.with_context(|| format!("cannot make {}", path.display()))?;
    write(&file, size_mib << 20).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(file)
}

/// Writes so many bytes from the file's beginning on, several requests at a time.
fn write(file: &File, bytes: u64) -> std::io::Result<()> {
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|_| {
                scope.spawn(|| {
                    let data = Aligned::zeroed(REQUEST as usize);
                    loop {
                        let offset = next.fetch_add(REQUEST, Ordering::Relaxed);
                        if offset >= bytes {
                            return Ok(());
                        }
                        let length = REQUEST.min(bytes - offset) as usize;
                        file.write_all_at(&data.bytes()[..length], offset)?;
                    }
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().unwrap_or_else(|_| Err(std::io::Error::other("died"))))
    })
}
