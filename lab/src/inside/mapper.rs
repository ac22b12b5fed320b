//! The device mapper: its devices, and its caches, dm-writecache and dm-cache.
//!
//! Sources: dm-writecache, dm-cache (`docs/REFERENCES.md`).

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;

use super::peer::Peer;
use crate::machine::{forget, run, sectors, wait_for};

const NAME: &str = "lab";
const DRAIN: Duration = Duration::from_secs(900);
/// dm-writecache's block, in bytes: its default for an SSD.
const WRITECACHE_BLOCK: u64 = 4096;
/// dm-cache's block, in sectors: lvmcache's smallest choice times four, 256 KiB.
const CACHE_BLOCK_SECTORS: u64 = 512;

/// A mapped device that goes with its value.
#[derive(Debug)]
pub struct Mapped {
    name: &'static str,
    /// Where it is.
    pub node: PathBuf,
    is_there: bool,
}

impl Mapped {
    /// Makes it.
    pub fn new(name: &'static str, table: &str) -> anyhow::Result<Self> {
        // The number by which a disk is told from others, which a mapped device lacks.
        let uuid = format!("lab-{name}");
        run("dmsetup", &["create", "--noudevsync", "--noudevrules", "--uuid", &uuid, name, "--table", table])?;
        let number = run("dmsetup", &["info", "--columns", "--noheadings", "-o", "minor", name])?;
        Ok(Self { name, node: format!("/dev/dm-{}", number.trim()).into(), is_there: true })
    }

    /// A part of another device, in sectors.
    pub fn part(name: &'static str, whole: &Path, sectors: Range<u64>) -> anyhow::Result<Self> {
        Self::new(name, &format!("0 {} linear {} {}", sectors.end - sectors.start, whole.display(), sectors.start))
    }

    /// Tells the target something.
    pub fn tell(&self, words: &[&str]) -> anyhow::Result<()> {
        run("dmsetup", &[&["message", self.name, "0"], words].concat()).map(|_| ())
    }

    /// Removes it and says whether that went well.
    pub fn remove(mut self) -> anyhow::Result<()> {
        self.end()
    }

    fn end(&mut self) -> anyhow::Result<()> {
        self.is_there = false;
        run("dmsetup", &["remove", "--noudevsync", "--noudevrules", self.name]).map(|_| ())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        if self.is_there {
            let _ = self.end();
        }
    }
}

/// The fields of a target's status, after its name.
fn status() -> anyhow::Result<Vec<String>> {
    let said = run("dmsetup", &["status", "--noflush", NAME])?;
    Ok(said.split_whitespace().skip(3).map(str::to_owned).collect())
}

fn field(fields: &[String], at: usize) -> anyhow::Result<f64> {
    let field = fields.get(at).with_context(|| format!("dmsetup status is short: {fields:?}"))?;
    field.parse().with_context(|| format!("dmsetup status has no number: {field}"))
}

/// dm-writecache over two disks.
pub struct DmWritecache {
    slow: PathBuf,
    cache: PathBuf,
    attached: Option<Mapped>,
}

impl DmWritecache {
    /// Over these disks; the cache is formatted.
    pub fn new(slow: PathBuf, cache: PathBuf) -> Self {
        Self { slow, cache, attached: None }
    }
}

impl Peer for DmWritecache {
    fn attach(&mut self) -> anyhow::Result<PathBuf> {
        forget(&self.cache)?;
        let size = sectors(&self.slow)?;
        let table =
            format!("0 {size} writecache s {} {} {WRITECACHE_BLOCK} 0", self.slow.display(), self.cache.display());
        Ok(self.attached.insert(Mapped::new(NAME, &table)?).node.clone())
    }

    fn dirty_mib(&mut self) -> anyhow::Result<f64> {
        // error, blocks, free blocks, blocks under writeback
        let fields = status()?;
        Ok((field(&fields, 1)? - field(&fields, 2)?) * WRITECACHE_BLOCK as f64 / 1_048_576.0)
    }

    fn drain(&mut self) -> anyhow::Result<()> {
        run("dmsetup", &["message", NAME, "0", "flush"])?;
        wait_for("dm-writecache's drain", DRAIN, || Ok((self.dirty_mib()? == 0.0).then_some(())))
    }

    fn detach(&mut self) -> anyhow::Result<()> {
        self.attached.take().map_or(Ok(()), Mapped::remove)
    }
}

/// dm-cache over three disks.
pub struct DmCache {
    slow: PathBuf,
    cache: PathBuf,
    metadata: PathBuf,
    attached: Option<Mapped>,
}

impl DmCache {
    /// Over these disks; the cache and its metadata are formatted.
    pub fn new(slow: PathBuf, cache: PathBuf, metadata: PathBuf) -> Self {
        Self { slow, cache, metadata, attached: None }
    }

    fn table(&self, policy: &str) -> anyhow::Result<String> {
        let size = sectors(&self.slow)?;
        let [metadata, cache, slow] = [&self.metadata, &self.cache, &self.slow].map(|path| path.display());
        // What it may migrate at a time is 1 MiB by default, which would hold the drain below the disk's rate.
        let policy = format!("{policy} 2 migration_threshold 20480");
        Ok(format!("0 {size} cache {metadata} {cache} {slow} {CACHE_BLOCK_SECTORS} 1 writeback {policy}"))
    }
}

impl Peer for DmCache {
    fn attach(&mut self) -> anyhow::Result<PathBuf> {
        forget(&self.metadata)?;
        let table = self.table("smq")?;
        Ok(self.attached.insert(Mapped::new(NAME, &table)?).node.clone())
    }

    fn dirty_mib(&mut self) -> anyhow::Result<f64> {
        // metadata block, used/total, cache block, used/total, 2 × (hits, misses), demotions, promotions, dirty
        Ok(field(&status()?, 10)? * CACHE_BLOCK_SECTORS as f64 / 2048.0)
    }

    fn drain(&mut self) -> anyhow::Result<()> {
        run("dmsetup", &["suspend", "--noudevsync", NAME])?;
        let reloaded = run("dmsetup", &["reload", NAME, "--table", &self.table("cleaner")?]);
        run("dmsetup", &["resume", "--noudevsync", "--noudevrules", NAME])?;
        reloaded?;
        wait_for("dm-cache's drain", DRAIN, || Ok((self.dirty_mib()? == 0.0).then_some(())))
    }

    fn detach(&mut self) -> anyhow::Result<()> {
        self.attached.take().map_or(Ok(()), Mapped::remove)
    }
}
