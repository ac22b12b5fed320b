//! bcache, driven through sysfs.
//!
//! <https://docs.kernel.org/admin-guide/bcache.html>

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use super::machine::{ask, forget, run, sectors, tell, wait_for};
use super::peer::Peer;

const SETS: &str = "/sys/fs/bcache";
/// It takes no cache of fewer buckets than about half of this.
const BUCKETS: u64 = 1024;
const PATIENCE: Duration = Duration::from_secs(20);
const DRAIN: Duration = Duration::from_secs(900);

/// A bcache device over two disks.
pub struct Bcache {
    slow: PathBuf,
    cache: PathBuf,
    /// `bcacheN`, once there is one.
    name: Option<String>,
    /// Its cache set in sysfs, once it has been drained and lies beside it.
    set: Option<PathBuf>,
}

impl Bcache {
    /// Over these disks, which it formats.
    pub fn new(slow: PathBuf, cache: PathBuf) -> Self {
        Self { slow, cache, name: None, set: None }
    }

    fn file(&self, name: &str) -> anyhow::Result<PathBuf> {
        let device = self.name.as_ref().context("bcache is not attached")?;
        Ok(Path::new("/sys/block").join(device).join("bcache").join(name))
    }
}

impl Peer for Bcache {
    fn attach(&mut self) -> anyhow::Result<PathBuf> {
        let (slow, cache) = (self.slow.display().to_string(), self.cache.display().to_string());
        let bucket = bucket_kib(sectors(&self.cache)? / 2).to_string() + "k";
        run("make-bcache", &["--wipe-bcache", "--writeback", "--bucket", &bucket, "-B", &slow, "-C", &cache])?;
        for disk in [&slow, &cache] {
            tell(format!("{SETS}/register"), disk)?;
        }
        let name = wait_for("a bcache device", PATIENCE, || Ok(device_over(&self.slow)))?;
        let node = PathBuf::from("/dev").join(&name);
        self.name = Some(name);
        wait_for("the cache set", PATIENCE, || Ok((ask(self.file("state")?)? != "no cache").then_some(())))?;
        tell(self.file("cache_mode")?, "writeback")?;
        tell(self.file("sequential_cutoff")?, "0")?;
        for what in ["read", "write"] {
            tell(self.file(&format!("cache/congested_{what}_threshold_us"))?, "0")?;
        }
        Ok(node)
    }

    fn dirty_mib(&mut self) -> anyhow::Result<f64> {
        human_mib(&ask(self.file("dirty_data")?)?)
    }

    fn drain(&mut self) -> anyhow::Result<()> {
        // Its writer-back holds itself to a rate as long as less than this share is dirty. It also sleeps for half a
        // minute before it begins, out of which nothing but a detach wakes it.
        tell(self.file("writeback_percent")?, "0")?;
        self.set = Some(fs::canonicalize(self.file("cache")?).context("bcache has no cache set")?);
        tell(self.file("detach")?, "1")?;
        wait_for("bcache's drain", DRAIN, || Ok((ask(self.file("state")?)? == "no cache").then_some(())))
    }

    fn detach(&mut self) -> anyhow::Result<()> {
        if self.set.is_none() {
            self.drain()?;
        }
        let set = self.set.take().context("bcache has no cache set")?;
        let name = self.name.clone().unwrap_or_default();
        tell(set.join("unregister"), "1")?;
        tell(self.file("stop")?, "1")?;
        self.name = None;
        let gone = || Ok((!Path::new("/sys/block").join(&name).exists() && !set.exists()).then_some(()));
        wait_for("bcache's end", PATIENCE, gone)?;
        forget(&self.slow)?;
        forget(&self.cache)
    }
}

impl Drop for Bcache {
    fn drop(&mut self) {
        if self.name.is_some() {
            let _ = self.detach();
        }
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
        assert!(human_mib("1.5X").is_err() && human_mib("").is_err());
    }
}
