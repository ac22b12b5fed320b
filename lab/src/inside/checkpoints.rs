//! An application whose sizes and times are known exactly, so that what it takes can be predicted: it sleeps and writes,
//! as the product's demo does.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::modes::{MOUNT, Mode, ModeSample, Setting, Site};
use super::stretch::Aligned;
use crate::samples;

/// Its slow and its fast disk.
pub const SERIALS: [&str; 2] = ["slow", "fast"];

/// Bytes of a write, and how many are in flight.
const REQUEST: u64 = 1 << 20;
const WRITERS: u64 = 8;

/// A dump of the initial state, then sleep in place of computing and a checkpoint, several times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Checkpoints {
    /// What is dumped at the start.
    pub dump_mib: u64,
    /// What each checkpoint writes.
    pub checkpoint_mib: u64,
    pub checkpoints: u32,
    /// Before each, in seconds.
    pub compute_s: f64,
}

/// What the host wants measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    pub site: Site,
    pub modes: Vec<Mode>,
    /// What runs, and how modes are set.
    pub load: (Checkpoints, Setting),
}

/// The application in one mode.
pub type Sample = ModeSample<Checkpoints, Dump>;

/// What the application says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Dump {
    /// Until the initial state was durable, which is when the papers' clock starts.
    pub dump_s: f64,
}

/// Does what the order says; samples are kept as they are taken. A mode that fails is a sample that says so.
#[allow(clippy::print_stdout)] // this program's output in the guest
pub fn checkpoints(order: &Order) -> anyhow::Result<()> {
    let (application, _) = &order.load;
    for mode in &order.modes {
        let sample = order.site.sample(*mode, order.load, SERIALS, |_, _| application.run(Path::new(MOUNT)));
        samples::add(&sample)?;
        println!("{}", sample.describe("checkpoints"));
    }
    Ok(())
}

impl Checkpoints {
    /// Runs in a directory, where every checkpoint is a file of its own.
    fn run(&self, directory: &Path) -> anyhow::Result<Dump> {
        let began = Instant::now();
        dump(directory, 0, self.dump_mib)?;
        let dump_s = began.elapsed().as_secs_f64();
        for index in 1..=self.checkpoints {
            std::thread::sleep(Duration::from_secs_f64(self.compute_s));
            dump(directory, index, self.checkpoint_mib)?;
        }
        Ok(Dump { dump_s })
    }
}

fn dump(directory: &Path, index: u32, size_mib: u64) -> anyhow::Result<()> {
    let path = directory.join(format!("checkpoint.{index}"));
    let file = File::options().create(true).write(true).custom_flags(libc::O_DIRECT).open(&path);
    let file = file.with_context(|| format!("cannot make {}", path.display()))?;
    write(&file, size_mib << 20).with_context(|| format!("cannot write {}", path.display()))?;
    file.sync_all().context("cannot flush a checkpoint")
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
