//! Devices of one daemon that have read caches, and what reads them: one read after the other, measured where it is made.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Context;
use surgetank_model::random::Random;
use surgetank_nbd::Client;

use crate::bench::Bench;
use crate::surgetank::{Places, Rent, Share, Surgetank};

/// Where hot spots are.
const HOT_MIB: u64 = 512;
/// Of a read.
const READ: u64 = 128 << 10;
/// The throttle of a device's backing volume: a read is one operation.
pub const IOPS: u64 = 250;
/// The names of the devices.
pub const DEVICES: [&str; 2] = ["a", "b"];
/// Volumes are files in memory: the throttles are what limits.
const MEMORY: &str = "/dev/shm";
const MIB: u64 = 1 << 20;

/// What a device is read for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mix {
    /// Uniformly from these MiB; one read in so many, in turn, is from anywhere.
    Hot { from_mib: u64, mib: u64, cold_every: u64 },
    /// All but the first [`HOT_MIB`] in turn, where other loads have hot spots.
    Scan,
}

/// Reads of an interval.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reads {
    pub count: u64,
    total: Duration,
}

impl Reads {
    /// How long one took on average.
    pub fn mean_ms(self) -> f64 {
        self.total.as_secs_f64() * 1e3 / self.count as f64
    }
}

/// The load of one device, which others change and measure.
#[derive(Debug)]
pub struct Load {
    mix: Mutex<Mix>,
    reads: Mutex<Reads>,
}

impl Load {
    pub fn new(mix: Mix) -> Self {
        Self { mix: Mutex::new(mix), reads: Mutex::default() }
    }

    pub fn change(&self, mix: Mix) {
        *lock(&self.mix) = mix;
    }

    /// The reads that ended since the last call.
    pub fn take(&self) -> Reads {
        std::mem::take(&mut *lock(&self.reads))
    }

    fn read(&self, socket: &Path, seed: u64, over: &AtomicBool) -> anyhow::Result<()> {
        let mut client = Client::connect(socket).context("the device does not answer")?;
        let (blocks, hot) = (client.size() / READ, HOT_MIB * MIB / READ);
        let (mut random, mut turn, mut scanned) = (Random::from_seed(seed), 0, 0);
        while !over.load(Ordering::Relaxed) {
            turn += 1;
            let mix = *lock(&self.mix);
            let block = match mix {
                Mix::Scan => {
                    scanned += 1;
                    hot + scanned % (blocks - hot)
                }
                Mix::Hot { cold_every, .. } if turn % cold_every == 0 => random.below(blocks),
                Mix::Hot { from_mib, mib, .. } => from_mib * MIB / READ + random.below(mib * MIB / READ),
            };
            let began = Instant::now();
            client.read(block * READ, READ as usize).context("a read failed")?;
            let taken = began.elapsed();
            let mut reads = lock(&self.reads);
            (reads.count, reads.total) = (reads.count + 1, reads.total + taken);
        }
        Ok(())
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the caches of a daemon have.
#[derive(Clone, Copy, Debug)]
pub enum Caches {
    /// So many MiB together, planned at this interval under this SLO.
    Shared { mib: u64, interval: Duration, slo: f64 },
    /// Each so many MiB.
    Each { mib: u64 },
}

/// A daemon with [`DEVICES`], whose backing volumes have so many MiB.
pub struct Rig {
    surgetank: Surgetank,
    sockets: [PathBuf; 2],
    _memory: tempfile::TempDir,
}

impl Rig {
    pub fn serve(bench: &Bench, name: &str, caches: Caches, disk_mib: u64) -> anyhow::Result<Self> {
        let memory = tempfile::Builder::new().prefix("surgetank-lab-").tempdir_in(MEMORY);
        let memory = memory.with_context(|| format!("cannot make volumes in {MEMORY}"))?;
        let (mut sections, member_mib) = match caches {
            Caches::Shared { mib, interval, slo } => {
                let interval = interval.as_millis();
                (format!("[allocation]\ncache = \"{mib} MiB\"\ninterval = \"{interval} ms\"\nslo = {slo:?}\n"), mib)
            }
            Caches::Each { mib } => (String::new(), mib),
        };
        sections += "[provider.local.types.cache]\nbandwidth = \"4000 MiB/s\"\npreallocate = false\n";
        for device in DEVICES {
            sections += &format!(
                "[device.{device}]\nbacking = \"memory:{disk_mib} MiB\"\nexport = \"nbd\"\nthrottle = true\n\
                 backing_limits = {{ bandwidth = \"4000 MiB/s\", iops = \"{IOPS} IOPS\" }}\n\
                 [device.{device}.read_cache]\nvolume_type = \"cache\"\nmembers = 1\n\
                 member_size = \"{member_mib} MiB\"\nthrottle = false\n"
            );
        }
        let files = memory.path().to_owned();
        let log = bench.out.join(format!("{name}.log"));
        let places = Places { rent: Rent::Local(files.join("volumes")), log, files: files.clone() };
        let command = Command::new(&bench.surgetank);
        let surgetank = Surgetank::with_read_caches(command, (DEVICES.len(), 1), &sections, &places, &bench.interrupt)?;
        let sockets = DEVICES.map(|device| files.join(format!("run/{device}.sock")));
        Ok(Self { surgetank, sockets, _memory: memory })
    }

    /// What the daemon says of the shares; empty if caches do not share.
    pub fn shares(&self) -> anyhow::Result<[Share; 2]> {
        let devices = self.surgetank.devices()?;
        let of =
            |name: &str| devices.iter().find(|device| device.name == name).and_then(|device| device.share().cloned());
        Ok(DEVICES.map(|name| of(name).unwrap_or_default()))
    }

    /// Does `work` while the devices are read.
    pub fn under<T>(&self, loads: &[Load; 2], work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers: Vec<_> = loads
                .iter()
                .zip(&self.sockets)
                .zip(1..)
                .map(|((load, socket), seed)| {
                    let over = &over;
                    scope.spawn(move || load.read(socket, seed, over))
                })
                .collect();
            let done = work();
            over.store(true, Ordering::Relaxed);
            for reader in readers {
                reader.join().map_err(|_| anyhow::anyhow!("a load panicked"))??;
            }
            done
        })
    }

    pub fn stop(self) -> anyhow::Result<()> {
        self.surgetank.stop()
    }
}
