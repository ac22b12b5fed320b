//! Watches disks and what is rented while something runs: the papers' I/O activity and adjusted storage accumulation.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use serde::{Deserialize, Serialize};

use crate::machine::ask;
use crate::surgetank::Rented;

/// How often it looks. What is rented is known to as much.
const INTERVAL: Duration = Duration::from_millis(250);
const SECTOR: u64 = 512;
const MIB: f64 = 1_048_576.0;

/// What moved since the tick before, and what was rented at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Tick {
    /// Its end, in seconds since the workload's start.
    pub at_s: f64,
    /// Read from what the file system lies on.
    pub read_mib: f64,
    /// Written to it.
    pub written_mib: f64,
    /// Read from and written to the backing disk.
    pub backing_mib: f64,
    /// Read from and written to caching volumes.
    pub cache_mib: f64,
    /// Size of the caching volume that is rented.
    pub rented_mib: f64,
}

/// What is watched.
pub struct Watched<'a> {
    /// What the file system lies on.
    pub device: PathBuf,
    /// The disk below; the same without a cache.
    pub backing: PathBuf,
    /// What is rented now.
    pub rented: &'a (dyn Fn() -> Rented + Sync),
}

/// Runs `work`; also what moved meanwhile.
pub fn watching<T>(watched: &Watched<'_>, work: impl FnOnce() -> T) -> anyhow::Result<(T, Vec<Tick>)> {
    let began = Instant::now();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let watcher = scope.spawn(|| -> anyhow::Result<Vec<Tick>> {
            let mut before = Counters::read(watched)?;
            let mut ticks = Vec::new();
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(INTERVAL);
                let now = Counters::read(watched)?;
                let rented_mib = (watched.rented)().cache_mib;
                ticks.push(now.since(&before, began.elapsed().as_secs_f64(), rented_mib));
                before = now;
            }
            Ok(ticks)
        });
        let done = work();
        over.store(true, Ordering::Relaxed);
        let ticks = watcher.join().map_err(|_| anyhow::anyhow!("the watcher died"))??;
        Ok((done, ticks))
    })
}

/// Bytes read and written by a disk since it came.
pub fn moved_bytes(device: &Path) -> anyhow::Result<(u64, u64)> {
    let name = device.file_name().context("a device has a name")?.to_string_lossy();
    parse(&ask(format!("/sys/class/block/{name}/stat"))?)
}

/// Source: block-stat (`docs/REFERENCES.md`).
fn parse(text: &str) -> anyhow::Result<(u64, u64)> {
    let fields: Vec<u64> = text.split_whitespace().filter_map(|field| field.parse().ok()).collect();
    match fields[..] {
        [_, _, read, _, _, _, written, ..] => Ok((read * SECTOR, written * SECTOR)),
        _ => anyhow::bail!("cannot read a disk's counters: {text}"),
    }
}

struct Counters {
    device: (u64, u64),
    backing: u64,
    /// Of every disk that the host has plugged in: caching volumes.
    caches: BTreeMap<String, u64>,
}

impl Counters {
    fn read(watched: &Watched<'_>) -> anyhow::Result<Self> {
        let backing = moved_bytes(&watched.backing)?;
        let mut caches = BTreeMap::new();
        for (name, path) in plugged() {
            // One that goes this moment is looked at no more.
            if let Ok((read, written)) = moved_bytes(&path) {
                caches.insert(name, read + written);
            }
        }
        Ok(Self { device: moved_bytes(&watched.device)?, backing: backing.0 + backing.1, caches })
    }

    fn since(&self, before: &Self, at_s: f64, rented_mib: f64) -> Tick {
        let mib = |now: u64, before: u64| now.saturating_sub(before) as f64 / MIB;
        let cache = self.caches.iter().map(|(name, now)| mib(*now, before.caches.get(name).copied().unwrap_or(0)));
        Tick {
            at_s,
            read_mib: mib(self.device.0, before.device.0),
            written_mib: mib(self.device.1, before.device.1),
            backing_mib: mib(self.backing, before.backing),
            cache_mib: cache.sum(),
            rented_mib,
        }
    }
}

/// Disks with a serial that were not there when the guest's script began: their serials and nodes.
pub fn plugged() -> Vec<(String, PathBuf)> {
    let Ok(entries) = std::fs::read_dir("/sys/block") else { return Vec::new() };
    let disks = entries.filter_map(Result::ok).filter_map(|entry| {
        let serial = ask(entry.path().join("serial")).ok().filter(|serial| !serial.is_empty())?;
        let known = Path::new("/dev/lab").join(&serial).exists();
        (!known).then(|| (serial, Path::new("/dev").join(entry.file_name())))
    });
    disks.collect()
}

/// The papers' adjusted storage accumulation of caching volumes: their size and rate, from moment to moment.
pub fn cache_agbs(ticks: &[Tick], fast_mib_s: u64) -> f64 {
    let mut from_s = 0.0;
    let mut gib_s = 0.0;
    for tick in ticks {
        gib_s += tick.rented_mib / 1024.0 * (tick.at_s - from_s);
        from_s = tick.at_s;
    }
    gib_s * fast_mib_s as f64
}

/// The sizes that were rented, one after the other.
pub fn sizes_mib(ticks: &[Tick]) -> Vec<f64> {
    let mut sizes = Vec::new();
    let mut before = 0.0;
    for tick in ticks {
        if tick.rented_mib > 0.0 && tick.rented_mib != before {
            sizes.push(tick.rented_mib);
        }
        before = tick.rented_mib;
    }
    sizes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tick(at_s: f64, rented_mib: f64) -> Tick {
        Tick { at_s, rented_mib, ..Tick::default() }
    }

    #[test]
    fn agbs_are_size_times_rate_times_time() {
        let ticks = [tick(1.0, 0.0), tick(3.0, 512.0), tick(4.0, 0.0), tick(5.0, 1024.0)];
        // Half a GiB for two seconds, one GiB for one, at 128 MiB/s.
        assert!((cache_agbs(&ticks, 128) - 256.0).abs() < 1e-9);
        assert_eq!(sizes_mib(&ticks), [512.0, 1024.0]);
        assert_eq!(cache_agbs(&[], 128), 0.0);
    }

    #[test]
    fn counters_are_in_sectors() {
        let text = "  10  0  2048  5  20  0  4096  6  0  7  8  0 0 0 0 0 0";
        assert_eq!(parse(text).unwrap(), (1 << 20, 2 << 20));
        assert!(parse("1 2 3").is_err());
    }
}
