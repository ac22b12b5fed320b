//! The contenders: one trait, whatever is between the load and the disks.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::bcache::Bcache;
use super::mapper::{DmCache, DmWritecache};
use super::measure::Order;
use crate::machine;
use crate::surgetank::{Elastic, Places, Surgetank};

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
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

impl Kind {
    /// All of them, in the order of tables.
    pub const ALL: [Self; 7] =
        [Self::RawSlow, Self::RawFast, Self::Bcache, Self::DmWritecache, Self::DmCache, Self::Paper, Self::Adaptive];

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
    pub fn prepare(self, order: &Order, cache_mib: u64) -> anyhow::Result<Box<dyn Peer>> {
        let slow = machine::disk("slow")?;
        let cache = || machine::disk(&caching_volume(cache_mib));
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

/// The serial of the disk that is a cache of this size.
pub fn caching_volume(cache_mib: u64) -> String {
    format!("cache-{cache_mib}")
}

/// A contender. What it has made goes when it is dropped, as far as that is possible after a failure.
pub trait Peer {
    /// The device before a cache stands before it, if it is one that is in use all the time.
    fn at_rest(&self) -> anyhow::Result<Option<PathBuf>> {
        Ok(None)
    }

    /// Puts the cache before the slow disk; what the load then writes to.
    fn attach(&mut self) -> anyhow::Result<PathBuf>;

    /// What is in the cache alone, in MiB.
    fn dirty_mib(&mut self) -> anyhow::Result<f64>;

    /// Writes all of it back, at once and as fast as it goes; returns when nothing is dirty.
    fn drain(&mut self) -> anyhow::Result<()>;

    /// Takes the cache away.
    fn detach(&mut self) -> anyhow::Result<()>;

    /// A process of its own, if it has one.
    fn process(&self) -> Option<u32> {
        None
    }

    /// How it shows its device.
    fn export(&self) -> String {
        "kernel".to_owned()
    }
}

/// Over the slow disk, not boosted yet.
fn serve(order: &Order, policy: &str, slow: &Path, cache_mib: u64) -> anyhow::Result<Surgetank> {
    let elastic = Elastic::steered(policy, slow, cache_mib, (order.slow_mib_s, order.fast_mib_s));
    Surgetank::start(&order.surgetank, &elastic, &Places::plugged(order.service.clone()))
}

impl Peer for Surgetank {
    fn at_rest(&self) -> anyhow::Result<Option<PathBuf>> {
        self.device().map(Some)
    }

    fn attach(&mut self) -> anyhow::Result<PathBuf> {
        self.boost()
    }

    fn dirty_mib(&mut self) -> anyhow::Result<f64> {
        Surgetank::dirty_mib(self)
    }

    fn drain(&mut self) -> anyhow::Result<()> {
        self.drain_seen(|_| ())
    }

    fn detach(&mut self) -> anyhow::Result<()> {
        self.detached()
    }

    fn process(&self) -> Option<u32> {
        Some(Surgetank::process(self))
    }

    fn export(&self) -> String {
        Surgetank::export(self)
    }
}

struct Raw(PathBuf);

impl Peer for Raw {
    fn attach(&mut self) -> anyhow::Result<PathBuf> {
        Ok(Path::to_owned(&self.0))
    }

    fn dirty_mib(&mut self) -> anyhow::Result<f64> {
        Ok(0.0)
    }

    fn drain(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    fn detach(&mut self) -> anyhow::Result<()> {
        Ok(())
    }
}
