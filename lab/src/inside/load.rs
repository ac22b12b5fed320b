//! What is done to a device, by fio.

use std::hint::black_box;
use std::num::NonZero;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use surgetank_model::Bytes;

use crate::fio::{self, Measured};
use crate::machine::{STAT, busy_s, run};

/// Where fio leaves the machine's counters when it begins and when it has ended.
const BEFORE: &str = "/run/lab/before";
const AFTER: &str = "/run/lab/after";

/// What fio is told, so that [`counted_s`] knows how busy the machine was.
pub fn counting() -> impl Iterator<Item = String> {
    [("prerun", BEFORE), ("postrun", AFTER)].into_iter().map(|(when, file)| format!("--exec_{when}=cp {STAT} {file}"))
}

/// Processor time of the whole machine from the first request of the last fio to its last answer.
pub fn counted_s() -> anyhow::Result<f64> {
    Ok(busy_s(AFTER)? - busy_s(BEFORE)?)
}

/// What kind of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum Shape {
    /// 1 MiB sequential writes, 16 in flight, so many bytes, and a flush at the end.
    #[value(name = "bursts")]
    Burst,
    /// 4 KiB random writes, 32 in flight.
    #[value(name = "random")]
    RandomWrites,
    /// 16 KiB requests, 7 reads for 3 writes, 16 in flight, some places far more often than others.
    Mixed,
    /// 4 KiB random writes, one at a time, each followed by a flush.
    #[value(name = "synced")]
    SyncedWrites,
    /// Nothing, for as long as the others take: what a device costs when nobody uses it.
    Idle,
}

/// A load on a device with a cache.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// What kind of requests.
    pub shape: Shape,
    /// Bursts: how much is written. Others: the part of the device, from its start, that they go to.
    pub size_mib: u64,
    /// How long, but for bursts.
    pub time_s: u64,
    pub cache_mib: u64,
    /// Beside a thread for each processor that computes all the time, as applications do.
    #[serde(default)]
    pub busy: bool,
}

/// Threads that compute, one for each processor, until this is dropped.
struct Computing {
    ends: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Computing {
    fn on_every_processor() -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let count = std::thread::available_parallelism().map_or(1, NonZero::get);
        let compute = |ends: Arc<AtomicBool>| {
            move || {
                let mut value = 1_u64;
                while !ends.load(Ordering::Relaxed) {
                    value = black_box(value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
                }
            }
        };
        let threads = (0..count).map(|_| std::thread::spawn(compute(ends.clone()))).collect();
        Self { ends, threads }
    }
}

impl Drop for Computing {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Reads a little through a device, with more in flight than a burst has; not so much that it would be taken for one.
pub fn warm(device: &Path) -> anyhow::Result<()> {
    let filename = format!("--filename={}", device.display());
    let words =
        ["--name=warm", "--direct=1", "--ioengine=libaio", "--rw=read", "--bs=512k", "--iodepth=64", "--size=28m"];
    run("fio", &[&words[..], &[&filename]].concat()).map(drop)
}

impl Load {
    /// Whether the two differ at most in the cache, of which a disk by itself knows nothing.
    pub fn is_same_without_cache(&self, other: &Self) -> bool {
        Self { cache_mib: 0, ..*self } == Self { cache_mib: 0, ..*other }
    }

    pub fn run(&self, device: &Path) -> anyhow::Result<Measured> {
        if self.shape == Shape::Idle {
            std::thread::sleep(std::time::Duration::from_secs(self.time_s));
            return Ok(Measured { run_s: self.time_s as f64, ..Measured::default() });
        }
        let words = self.words(device);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let _computing = self.busy.then(Computing::on_every_processor);
        let measured = fio::parse(&run("fio", &words)?)?;
        Ok(Measured { busy_s: counted_s()?, ..measured })
    }

    fn words(&self, device: &Path) -> Vec<String> {
        let size = Bytes::from_mib(self.size_mib).get();
        let shape = match self.shape {
            Shape::Burst | Shape::Idle => "--rw=write --bs=1m --iodepth=16 --end_fsync=1",
            Shape::RandomWrites => "--rw=randwrite --bs=4k --iodepth=32",
            Shape::Mixed => "--rw=randrw --rwmixread=70 --bs=16k --iodepth=16 --random_distribution=zipf:1.1",
            Shape::SyncedWrites => "--rw=randwrite --bs=4k --ioengine=psync --fsync=1",
        };
        let mut words: Vec<String> = fio::words(shape).map(str::to_owned).collect();
        words.push("--direct=1".to_owned());
        if self.shape != Shape::SyncedWrites {
            words.push("--ioengine=libaio".to_owned());
        }
        words.extend(counting());
        words.extend([format!("--filename={}", device.display()), format!("--size={size}")]);
        if self.shape != Shape::Burst {
            words.extend(["--time_based".to_owned(), format!("--runtime={}", self.time_s)]);
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_bytes_and_the_rest_is_time() {
        let load = Load { shape: Shape::Burst, size_mib: 256, time_s: 5, cache_mib: 128, busy: false };
        let words = load.words(Path::new("/dev/x")).join(" ");
        assert!(words.contains("--size=268435456") && words.contains("--end_fsync=1") && !words.contains("runtime"));
        let words = Load { shape: Shape::SyncedWrites, ..load }.words(Path::new("/dev/x")).join(" ");
        assert!(words.contains("--runtime=5") && words.contains("--fsync=1") && !words.contains("libaio"));
    }
}
