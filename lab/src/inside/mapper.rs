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
/// The same as lvmcache chooses it for a small cache, 64 KiB.
const READ_BLOCK_SECTORS: u64 = 128;
/// dm-cache's metadata, in sectors: 5 MiB, for which its documentation asks at the least.
const METADATA_SECTORS: u64 = 10 * 1024;

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

/// dm-cache as lvmcache sets it up for reads: `writethrough`, smq, and data and metadata on one striped volume.
pub struct ReadCache {
    // Dropped in this order: each lies over the next.
    cached: Mapped,
    _parts: [Mapped; 2],
    _stripe: Mapped,
}

impl ReadCache {
    /// Over this disk, with the first MiB of each of the others as its cache, which is formatted.
    pub fn new(slow: &Path, volumes: &[PathBuf], volume_mib: u64) -> anyhow::Result<Self> {
        let (count, sectors_all) = (volumes.len(), volume_mib * 2048 * volumes.len() as u64);
        let places: String = volumes.iter().map(|volume| format!(" {} 0", volume.display())).collect();
        let stripe =
            Mapped::new("lab-stripe", &format!("0 {sectors_all} striped {count} {READ_BLOCK_SECTORS}{places}"))?;
        let metadata = Mapped::part("lab-metadata", &stripe.node, 0..METADATA_SECTORS)?;
        let data = Mapped::part("lab-data", &stripe.node, METADATA_SECTORS..sectors_all)?;
        forget(&metadata.node)?;
        let [at_metadata, at_data] = [&metadata, &data].map(|part| part.node.display());
        let table = format!(
            "0 {} cache {at_metadata} {at_data} {} {READ_BLOCK_SECTORS} 1 writethrough smq 0",
            sectors(slow)?,
            slow.display()
        );
        Ok(Self { cached: Mapped::new(NAME, &table)?, _parts: [metadata, data], _stripe: stripe })
    }

    /// What is read from.
    pub fn node(&self) -> &Path {
        &self.cached.node
    }

    /// Reads that the cache has answered, and that it has not.
    pub fn reads() -> anyhow::Result<[f64; 2]> {
        // metadata block, used/total, cache block, used/total, hits, misses
        let fields = status()?;
        Ok([field(&fields, 4)?, field(&fields, 5)?])
    }
}
