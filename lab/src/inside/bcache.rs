//! bcache, driven through sysfs.
//!
//! Source: bcache (`docs/REFERENCES.md`).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use super::peer::Peer;
use crate::machine::{ask, forget, run, sectors, tell, wait_for};

const SETS: &str = "/sys/fs/bcache";
/// It takes no cache of fewer buckets than about half of this.
const BUCKETS: u64 = 1024;
const TIMEOUT: Duration = Duration::from_secs(20);
const DRAIN: Duration = Duration::from_secs(900);
/// Its default: how much of the cache it leaves dirty while it absorbs.
const WRITEBACK_PERCENT: &str = "10";
/// Its default: with more of the cache in use than this, what need not be synchronous is written past it.
const CUTOFF_PERCENT: u64 = 40;
/// Its default.
const WRITEBACK_DELAY: Duration = Duration::from_secs(30);

/// bcache over two disks, from an attach to a detach.
pub struct Bcache {
    slow: PathBuf,
    cache: PathBuf,
    device: Option<Device>,
}

impl Bcache {
    /// Over these disks, which an attach formats.
    pub fn new(slow: PathBuf, cache: PathBuf) -> Self {
        Self { slow, cache, device: None }
    }

    fn device(&mut self) -> anyhow::Result<&mut Device> {
        self.device.as_mut().context("bcache is not attached")
    }
}

impl Peer for Bcache {
    fn attach(&mut self) -> anyhow::Result<PathBuf> {
        let device = self.device.insert(Device::format(self.slow.clone(), WRITEBACK_DELAY)?);
        device.adopt(&self.cache)?;
        Ok(device.device())
    }

    fn dirty_mib(&mut self) -> anyhow::Result<f64> {
        self.device()?.dirty_mib()
    }

    fn drain(&mut self) -> anyhow::Result<()> {
        self.device()?.detach()
    }

    fn detach(&mut self) -> anyhow::Result<()> {
        self.device()?.release()?;
        self.device = None;
        forget(&self.cache)
    }
}

/// A bcache device over a slow disk that is formatted once, and that gets and loses caches while a file system lies on it.
pub struct Device {
    slow: PathBuf,
    /// `bcacheN`.
    name: String,
    /// How long its writer-back waits before it begins.
    writeback_delay: Duration,
    adopted: Option<Adopted>,
}

struct Adopted {
    disk: PathBuf,
    /// Its cache set in sysfs.
    set: PathBuf,
}

/// How a cache is used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Usage {
    pub size_bytes: u64,
    /// In the cache alone.
    pub dirty_bytes: u64,
    /// In buckets that hold something.
    pub used_bytes: u64,
    /// So much is in use that it writes past the cache, or makes room.
    pub full: bool,
}

impl Device {
    /// Over this disk, which it formats.
    pub fn format(slow: PathBuf, writeback_delay: Duration) -> anyhow::Result<Self> {
        let disk = slow.display().to_string();
        run("make-bcache", &["--wipe-bcache", "-B", &disk])?;
        tell(format!("{SETS}/register"), &disk)?;
        let name = wait_for("a bcache device", TIMEOUT, || Ok(device_over(&slow)))?;
        Ok(Self { slow, name, writeback_delay, adopted: None })
    }

    /// What the file system lies on.
    pub fn device(&self) -> PathBuf {
        Path::new("/dev").join(&self.name)
    }

    /// Puts a cache in front, and absorbs.
    pub fn adopt(&mut self, disk: &Path) -> anyhow::Result<()> {
        let node = disk.display().to_string();
        let bucket = bucket_kib(sectors(disk)? / 2).to_string() + "k";
        run("make-bcache", &["--wipe-bcache", "--writeback", "--bucket", &bucket, "-C", &node])?;
        tell(format!("{SETS}/register"), &node)?;
        let link = Path::new("/sys/class/block").join(disk.file_name().unwrap_or_default()).join("bcache/set");
        let set = wait_for("the cache set", TIMEOUT, || Ok(fs::canonicalize(&link).ok()))?;
        let name = set.file_name().context("a cache set has a name")?.to_string_lossy().into_owned();
        self.adopted = Some(Adopted { disk: disk.to_owned(), set: set.clone() });
        tell(self.file("attach"), &name)?;
        wait_for("the cache", TIMEOUT, || Ok((ask(self.file("state"))? != "no cache").then_some(())))?;
        tell(self.file("sequential_cutoff"), "0")?;
        for what in ["read", "write"] {
            tell(set.join(format!("congested_{what}_threshold_us")), "0")?;
        }
        self.absorb()
    }

    /// Reads and writes go to the cache; it is written back with what the slow disk has to spare.
    pub fn absorb(&self) -> anyhow::Result<()> {
        tell(self.file("cache_mode"), "writeback")?;
        tell(self.file("writeback_percent"), WRITEBACK_PERCENT)?;
        tell(self.file("writeback_delay"), &self.writeback_delay.as_secs().max(1).to_string())
    }

    /// Writes go past the cache, which is written back as fast as it goes.
    pub fn drain(&self) -> anyhow::Result<()> {
        tell(self.file("cache_mode"), "writearound")?;
        tell(self.file("writeback_delay"), "0")?;
        tell(self.file("writeback_percent"), "0")
    }

    /// In the cache alone.
    fn dirty_mib(&self) -> anyhow::Result<f64> {
        human_mib(&ask(self.file("dirty_data"))?)
    }

    /// How the cache is used; `None` without one.
    pub fn usage(&self) -> anyhow::Result<Option<Usage>> {
        let Some(Adopted { disk, set }) = &self.adopted else { return Ok(None) };
        let size_bytes = sectors(disk)? * 512;
        let unused = unused_percent(&ask(set.join("cache0/priority_stats"))?)?;
        let available: u64 = ask(set.join("cache_available_percent"))?.parse().context("bcache says no share")?;
        Ok(Some(Usage {
            size_bytes,
            dirty_bytes: (self.dirty_mib()? * 1_048_576.0) as u64,
            used_bytes: size_bytes / 100 * (100 - unused.min(100)),
            full: available < 100 - CUTOFF_PERCENT,
        }))
    }

    /// Drains as fast as it goes, and leaves the cache beside the device. Its writer-back holds itself to a rate as long as
    /// less than a share is dirty. It also sleeps for half a minute before it begins, out of which nothing but a detach
    /// wakes it.
    fn detach(&self) -> anyhow::Result<()> {
        if ask(self.file("state"))? == "no cache" {
            return Ok(());
        }
        tell(self.file("writeback_percent"), "0")?;
        tell(self.file("detach"), "1")?;
        wait_for("bcache's drain", DRAIN, || Ok((ask(self.file("state"))? == "no cache").then_some(())))
    }

    /// Takes the cache away, drained.
    pub fn release(&mut self) -> anyhow::Result<()> {
        let Some(Adopted { set, .. }) = &self.adopted else { return Ok(()) };
        self.detach()?;
        tell(set.join("unregister"), "1")?;
        wait_for("the cache set's end", TIMEOUT, || Ok((!set.exists()).then_some(())))?;
        self.adopted = None;
        Ok(())
    }

    fn file(&self, name: &str) -> PathBuf {
        Path::new("/sys/block").join(&self.name).join("bcache").join(name)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let _ = self.release();
        let _ = tell(self.file("stop"), "1");
        let gone = || Ok((!Path::new("/sys/block").join(&self.name).exists()).then_some(()));
        let _ = wait_for("bcache's end", TIMEOUT, gone);
        let _ = forget(&self.slow);
    }
}

/// Its default, 512 KiB, or less for a cache that would have too few.
fn bucket_kib(cache_kib: u64) -> u64 {
    let fits = cache_kib / BUCKETS;
    (1 << fits.max(1).ilog2()).clamp(4, 512)
}

/// The bcache device that lies over a disk.
fn device_over(slow: &Path) -> Option<String> {
    let name = slow.file_name()?.to_str()?;
    let target = fs::read_link(format!("/sys/block/{name}/bcache/dev")).ok()?;
    Some(target.file_name()?.to_str()?.to_owned())
}

/// The share of buckets that hold nothing, of `priority_stats`: a line `Unused: 98%`, with tabs.
fn unused_percent(text: &str) -> anyhow::Result<u64> {
    let share = text.lines().find_map(|line| line.strip_prefix("Unused:")?.trim().strip_suffix('%')?.parse().ok());
    share.context("bcache does not say how much of its cache is unused")
}

/// Sizes as bcache writes them, `1.5G` or `512.0k`, in MiB.
fn human_mib(text: &str) -> anyhow::Result<f64> {
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let number: f64 = text[..end].parse().with_context(|| format!("cannot read bcache's size {text}"))?;
    let factor = match &text[end..] {
        "" => 1.0 / 1_048_576.0,
        "k" => 1.0 / 1024.0,
        "M" => 1.0,
        "G" => 1024.0,
        "T" => 1_048_576.0,
        _ => anyhow::bail!("cannot read bcache's size {text}"),
    };
    Ok(number * factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_fit_the_cache() {
        for (mib, kib) in [(4096, 512), (512, 512), (384, 256), (128, 128), (1, 4)] {
            assert_eq!(bucket_kib(mib * 1024), kib, "{mib}");
        }
    }

    #[test]
    fn sizes_are_read() {
        for (text, expected) in [("0.0k", 0.0), ("512.0k", 0.5), ("1.5G", 1536.0), ("20M", 20.0), ("1048576", 1.0)] {
            assert_eq!(human_mib(text).unwrap(), expected, "{text}");
        }
        assert_eq!(unused_percent("Unused:\t\t54%\nClean:\t\t23%\n").unwrap(), 54);
        assert!(unused_percent("Clean: 1%").is_err());
        assert!(human_mib("1.5X").is_err() && human_mib("").is_err());
    }
}
