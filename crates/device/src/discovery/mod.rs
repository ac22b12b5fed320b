//! Finding a disk that was just attached to this machine, by what its provider says tells it from the others (a serial, a name, or the
//! number of a logical unit), and making sure that what was opened is that disk.
//!
//! The names of disks (`/dev/vdb`) are given in the order of appearance and say nothing. The kernel's tables under
//! `/sys` are what counts: they are looked at whenever the caller asks, so that a machine without udev or without
//! uevents is served as well. [`Watch`] says when a look is worth its while.

mod identity;
mod nvme;
mod watch;

use std::fs;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;

use rustix::fs::{FileType, SeekFrom, major, minor};
use surgetank_model::volume::DiskIdentity;

pub use identity::is_same;
use identity::{Itself, Shown};
pub use watch::{Watch, is_about_a_disk};

/// The disks of this machine, as the kernel tells of them.
#[derive(Clone, Debug)]
pub struct Disks {
    sysfs: PathBuf,
    devices: PathBuf,
}

/// Why a disk cannot be used. One sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    /// Several disks have the identity.
    #[error(
        "the disks {first} and {second} both have {identity}, and which of them was rented cannot be told: detach the one that \
         is not"
    )]
    Twice {
        /// The identity.
        identity: DiskIdentity,
        /// A disk's name.
        first: String,
        /// Another one's.
        second: String,
    },
    /// What was opened is not the disk that was found.
    #[error("{0}")]
    Another(String),
    /// The kernel's tables cannot be read.
    #[error("the disks of this machine cannot be listed: {0}")]
    Unreadable(String),
}

impl Default for Disks {
    fn default() -> Self {
        Self::under("/sys", "/dev")
    }
}

impl Disks {
    /// As told of under other directories than `/sys` and `/dev`.
    pub fn under(sysfs: impl Into<PathBuf>, devices: impl Into<PathBuf>) -> Self {
        Self { sysfs: sysfs.into(), devices: devices.into() }
    }

    /// Looks for the disk with this identity, once. `None`: it has not appeared (yet), or has no device node yet.
    ///
    /// # Errors
    /// If there are several, or if the kernel's tables cannot be read.
    pub fn find(&self, identity: &DiskIdentity) -> Result<Option<PathBuf>, DiscoveryError> {
        let mut found: Option<String> = None;
        for (name, directory) in self.all()? {
            let node = self.node(&name);
            let shown = Shown { directory: &directory, disk: Itself::Node(&node) };
            if !shown.like(identity).is_some_and(|there| is_same(&there, identity)) {
                continue;
            }
            if let Some(first) = found {
                let (first, second) = if first < name { (first, name) } else { (name, first) };
                return Err(DiscoveryError::Twice { identity: identity.clone(), first, second });
            }
            found = Some(name);
        }
        // The kernel makes the node before it tells of the disk, but not every machine has it from the kernel.
        Ok(found.map(|name| self.node(&name)).filter(|path| path.exists()))
    }

    /// The identities of all disks that are here now: a disk may have several.
    ///
    /// # Errors
    /// If the kernel's tables cannot be read, or a disk does not tell a name or a number that it has.
    pub fn identities(&self) -> Result<Vec<DiskIdentity>, DiscoveryError> {
        let mut all = Vec::new();
        for (name, directory) in self.all()? {
            let node = self.node(&name);
            let shown = Shown { directory: &directory, disk: Itself::Node(&node) };
            let untold = || DiscoveryError::Unreadable(format!("{name} does not tell which disk it is"));
            all.extend(shown.identities().ok_or_else(untold)?);
        }
        Ok(all)
    }

    /// The name and the directory of each disk; paths of NVMe disks that have several are no disks.
    fn all(&self) -> Result<Vec<(String, PathBuf)>, DiscoveryError> {
        let unreadable = |error: std::io::Error| DiscoveryError::Unreadable(error.to_string());
        let block = self.sysfs.join("block");
        let mut all = Vec::new();
        for entry in fs::read_dir(&block).map_err(unreadable)? {
            let Ok(name) = entry.map_err(unreadable)?.file_name().into_string() else { continue };
            let directory = block.join(&name);
            let is_hidden = fs::read(directory.join("hidden")).is_ok_and(|hidden| hidden.starts_with(b"1"));
            if !is_hidden {
                all.push((name, directory));
            }
        }
        Ok(all)
    }

    fn node(&self, name: &str) -> PathBuf {
        self.devices.join(name.replace('!', "/"))
    }

    /// Makes sure that an open file is the disk with this identity and of this size in bytes: between a look and the
    /// opening one disk may have gone and another come under the same name.
    ///
    /// # Errors
    /// `Another`: it is not.
    pub fn verify(&self, file: BorrowedFd<'_>, identity: &DiskIdentity, size: u64) -> Result<(), DiscoveryError> {
        let another = |why: String| Err(DiscoveryError::Another(why));
        let status = match rustix::fs::fstat(file) {
            Ok(status) => status,
            Err(error) => {
                return another(format!("what was opened for the disk with {identity} cannot be looked at: {error}"));
            }
        };
        if FileType::from_raw_mode(status.st_mode) != FileType::BlockDevice {
            return another(format!("what was opened for the disk with {identity} is no block device"));
        }
        let number = format!("{}:{}", major(status.st_rdev), minor(status.st_rdev));
        let shown = Shown { directory: &self.sysfs.join("dev/block").join(&number), disk: Itself::Open(file) };
        match shown.like(identity) {
            Some(there) if is_same(&there, identity) => {}
            Some(there) => return another(format!("the disk {number} has {there} instead of {identity}")),
            None => return another(format!("the disk {number}, opened for {identity}, has none any more")),
        }
        match rustix::fs::seek(file, SeekFrom::End(0)) {
            Ok(there) if there == size => Ok(()),
            Ok(there) => another(format!("the disk with {identity} has {there} bytes instead of {size}")),
            Err(error) => another(format!("the size of the disk with {identity} cannot be told: {error}")),
        }
    }
}
