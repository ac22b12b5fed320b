//! The contenders: one trait, whatever is between the load and the disks.

use std::path::PathBuf;

use crate::surgetank::Surgetank;

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

impl Peer for Surgetank {
    fn at_rest(&self) -> anyhow::Result<Option<PathBuf>> {
        self.device().map(Some)
    }

    fn attach(&mut self) -> anyhow::Result<PathBuf> {
        self.boost()
    }

    fn dirty_mib(&mut self) -> anyhow::Result<f64> {
        Ok(self.status()?.dirty_mib())
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

/// A disk by itself.
pub struct Raw(pub PathBuf);

impl Peer for Raw {
    fn attach(&mut self) -> anyhow::Result<PathBuf> {
        Ok(self.0.clone())
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
