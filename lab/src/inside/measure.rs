//! Every peer under every load, in turns, and what each cost.

use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::bcache::Bcache;
use super::load::{self, Load, Shape};
use super::mapper::{DmCache, DmWritecache};
use super::peer::{Peer, Raw};
use crate::fio::Measured;
use crate::machine::{self, STAT, busy_s};
use crate::samples;
use crate::surgetank::{Elastic, Places, Surgetank};

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PeerKind {
    /// The backing volume by itself.
    RawSlow,
    /// A volume as fast as the caching volume by itself.
    RawFast,
    /// bcache: writeback, sequential cutoff and congestion thresholds off.
    Bcache,
    /// dm-writecache on an SSD.
    DmWritecache,
    /// dm-cache: smq, writeback.
    DmCache,
    /// surgetank with the papers' controller: write-back.
    Paper,
    /// surgetank with its own: the burst goes to both volumes.
    Adaptive,
}

impl PeerKind {
    /// As it stands in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::RawSlow => "raw slow",
            Self::RawFast => "raw fast",
            Self::Bcache => "bcache",
            Self::DmWritecache => "dm-writecache",
            Self::DmCache => "dm-cache",
            Self::Paper => "surgetank paper",
            Self::Adaptive => "surgetank adaptive",
        }
    }

    /// Whether it is a cache of the kernel's.
    pub fn is_kernel_cache(self) -> bool {
        matches!(self, Self::Bcache | Self::DmWritecache | Self::DmCache)
    }

    /// Whether it has no cache.
    pub fn is_raw(self) -> bool {
        matches!(self, Self::RawSlow | Self::RawFast)
    }

    /// Makes it ready, as far as that is not part of an attach.
    fn prepare(self, order: &Order, cache_mib: u64) -> anyhow::Result<Box<dyn Peer>> {
        let slow = machine::disk("slow")?;
        let cache = || machine::disk(&format!("cache-{cache_mib}"));
        Ok(match self {
            Self::RawSlow => Box::new(Raw(slow)),
            Self::RawFast => Box::new(Raw(machine::disk("fast")?)),
            Self::Bcache => Box::new(Bcache::new(slow, cache()?)),
            Self::DmWritecache => Box::new(DmWritecache::new(slow, cache()?)),
            Self::DmCache => Box::new(DmCache::new(slow, cache()?, machine::disk("meta")?)),
            Self::Paper => Box::new(serve(order, "paper", &slow, cache_mib)?),
            Self::Adaptive => Box::new(serve(order, "adaptive", &slow, cache_mib)?),
        })
    }
}

/// What the host wants measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    pub surgetank: PathBuf,
    pub peers: Vec<PeerKind>,
    pub loads: Vec<Load>,
    pub rounds: u32,
    /// What QEMU throttles the slow disk to.
    pub slow_mib_s: u64,
    /// What QEMU throttles the fast disks to.
    pub fast_mib_s: u64,
    /// Where the daemon rents volumes.
    pub service: String,
}

impl Order {
    /// A disk by itself does not care how large the cache would be: it is measured once for each size of a load.
    fn wants_raw(&self, load: &Load) -> bool {
        let same = |other: &&Load| other.is_same_without_cache(load);
        load.shape != Shape::Idle && self.loads.iter().find(same) == Some(load)
    }
}

/// One peer under one load, once.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeerSample {
    pub peer: PeerKind,
    pub load: Load,
    /// Which time, from 0.
    pub round: u32,
    /// What was found, or what went wrong.
    pub outcome: Result<Found, String>,
}

/// What a sample found.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Found {
    /// How the device is shown: `kernel`, `ublk`, `fuse`, …
    pub export: String,
    /// Until the cache stood before the slow disk.
    pub attach_s: f64,
    pub measured: Measured,
    /// What was in the cache alone when the load had ended.
    pub dirty_mib: f64,
    /// From then until nothing was.
    pub drain_s: f64,
    /// Until the cache was away, after that.
    pub detach_s: f64,
    /// Processor time of the whole machine, load and drain.
    pub busy_s: f64,
    /// Of that, the daemon's.
    pub daemon_s: f64,
    /// How much less memory was available than before the cache, at worst.
    pub memory_mib: f64,
    /// The most that the daemon had.
    pub daemon_mib: f64,
}

impl Found {
    /// Processor seconds of the whole machine for each GiB that the load moved.
    pub fn busy_s_per_gib(&self) -> f64 {
        self.busy_s / self.measured.moved_mib * 1024.0
    }
}

/// Runs everything.
pub fn all(order: &Order) -> anyhow::Result<()> {
    for round in 0..order.rounds {
        for load in &order.loads {
            let turns = order.peers.len().max(1);
            for turn in 0..turns {
                // Who begins changes from round to round.
                let peer = order.peers[(turn + round as usize) % turns];
                if peer.is_raw() && !order.wants_raw(load) {
                    continue;
                }
                let outcome = measure(order, peer, load).map_err(|error| format!("{error:#}"));
                let sample = PeerSample { peer, load: *load, round, outcome };
                samples::add(&sample)?;
                say(&sample);
            }
        }
    }
    Ok(())
}

fn measure(order: &Order, kind: PeerKind, load: &Load) -> anyhow::Result<Found> {
    let before_mib = machine::settled_memory_mib();
    let mut peer = kind.prepare(order, load.cache_mib)?;
    let (found, memory_mib) = machine::with_memory(before_mib, || life(peer.as_mut(), load));
    Ok(Found { memory_mib, ..found? })
}

/// Attach, load, drain, detach.
fn life(peer: &mut dyn Peer, load: &Load) -> anyhow::Result<Found> {
    // A device whose server has never served would pay in the first burst for memory and code that it has at hand from
    // its first day on; the kernel's have.
    if let Some(device) = peer.at_rest()?.filter(|_| load.shape != Shape::Idle) {
        load::warm(&device)?;
    }
    let (device, attach_s) = timed(|| peer.attach())?;
    let (busy, daemon) = (busy_s(STAT)?, daemon_s(peer));
    let measured = load.run(&device)?;
    if load.shape == Shape::Idle {
        let mut found = Found { export: peer.export(), attach_s, measured, ..Found::default() };
        (found.busy_s, found.daemon_s) = (busy_s(STAT)? - busy, daemon_s(peer) - daemon);
        peer.drain()?;
        peer.detach()?;
        return Ok(found);
    }
    let dirty_mib = peer.dirty_mib()?;
    let busy = busy_s(STAT)?;
    let ((), drain_s) = timed(|| peer.drain())?;
    let (busy_s, daemon_s) = (busy_s(STAT)? - busy + measured.busy_s, daemon_s(peer) - daemon);
    let daemon_mib = peer.process().map_or(Ok(0.0), |process| machine::memory_mib(process, "VmHWM"))?;
    let ((), detach_s) = timed(|| peer.detach())?;
    Ok(Found {
        export: peer.export(),
        attach_s,
        measured,
        dirty_mib,
        drain_s,
        detach_s,
        busy_s,
        daemon_s,
        daemon_mib,
        memory_mib: 0.0,
    })
}

/// Over the slow disk, not boosted yet.
fn serve(order: &Order, policy: &str, slow: &Path, cache_mib: u64) -> anyhow::Result<Surgetank> {
    let elastic = Elastic::steered(policy, slow, cache_mib, (order.slow_mib_s, order.fast_mib_s));
    Surgetank::start(&order.surgetank, &elastic, &Places::plugged(order.service.clone()))
}

fn daemon_s(peer: &dyn Peer) -> f64 {
    peer.process().and_then(|process| machine::process_s(process).ok()).unwrap_or(0.0)
}

fn timed<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<(T, f64)> {
    let began = Instant::now();
    let done = work()?;
    Ok((done, began.elapsed().as_secs_f64()))
}

/// Progress, for whoever watches.
#[allow(clippy::print_stdout)] // this program's output in the guest
fn say(sample: &PeerSample) {
    let PeerSample { peer, load, round, outcome } = sample;
    let what = format!("{round} {:?} {} MiB, cache {} MiB, {}", load.shape, load.size_mib, load.cache_mib, peer.name());
    match outcome {
        Err(error) => println!("{what}: FAILED: {error}"),
        Ok(found) => println!(
            "{what} ({}): {:.2} s, {:.0} IOPS, {:.0} us, dirty {:.0} MiB, drain {:.2} s, attach {:.2} s, detach {:.2} s, cpu {:.2} s",
            found.export,
            found.measured.run_s,
            found.measured.iops,
            found.measured.write_us,
            found.dirty_mib,
            found.drain_s,
            found.attach_s,
            found.detach_s,
            found.busy_s,
        ),
    }
}
