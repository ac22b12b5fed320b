//! Finding a disk that was just attached to this machine, by the serial that its provider says it has, and making sure
//! that what was opened is that disk.
//!
//! The names of disks (`/dev/vdb`) are given in the order of appearance and say nothing. The kernel's tables under
//! `/sys` are what counts: they are looked at whenever the caller asks, so that a machine without udev or without
//! uevents is served as well. [`Watch`] says when a look is worth its while.

mod watch;

use std::fs;
use std::io::ErrorKind;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, SeekFrom, major, minor};

pub use watch::{Watch, is_about_a_disk};

/// The longest serial that a virtio disk shows, in bytes; longer ones are cut (VIRTIO 1.2, 5.2.6).
const VIRTIO_SERIAL_BYTES: usize = 20;
/// Where a disk's directory has its serial, after so many bytes: virtio has it at the disk, NVMe at the controller, and of SCSI the kernel
/// shows the whole page 0x80, which begins with its number and length (SPC-5, 7.7.17).
const SERIALS: &[(&str, usize)] = &[("serial", 0), ("device/serial", 0), ("device/vpd_pg80", 4)];

/// The disks of this machine, as the kernel tells of them.
#[derive(Clone, Debug)]
pub struct Disks {
    sysfs: PathBuf,
    devices: PathBuf,
}

/// Why a disk cannot be used. One sentence.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    /// Several disks have the serial.
    #[error(
        "the disks {first} and {second} both have the serial {serial:?}, and which of them was rented cannot be told: \
         detach the one that is not"
    )]
    Twice {
        /// The serial.
        serial: String,
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

    /// Looks for the disk with this serial, once. `None`: it has not appeared (yet), or has no device node yet.
    ///
    /// # Errors
    /// If there are several, or if the kernel's tables cannot be read.
    pub fn find(&self, serial: &str) -> Result<Option<PathBuf>, DiscoveryError> {
        let unreadable = |error: std::io::Error| DiscoveryError::Unreadable(error.to_string());
        let block = self.sysfs.join("block");
        let mut found: Option<String> = None;
        for entry in fs::read_dir(&block).map_err(unreadable)? {
            let Ok(name) = entry.map_err(unreadable)?.file_name().into_string() else { continue };
            if !serial_of(&block.join(&name)).is_some_and(|there| is_same(&there, serial)) {
                continue;
            }
            if let Some(first) = found {
                let (first, second) = if first < name { (first, name) } else { (name, first) };
                return Err(DiscoveryError::Twice { serial: serial.to_owned(), first, second });
            }
            found = Some(name);
        }
        let path = found.map(|name| self.devices.join(name.replace('!', "/")));
        // The kernel makes the node before it tells of the disk, but not every machine has it from the kernel.
        Ok(path.filter(|path| path.exists()))
    }

    /// The serials of all disks that are here now.
    ///
    /// # Errors
    /// If the kernel's tables cannot be read.
    pub fn serials(&self) -> Result<Vec<String>, DiscoveryError> {
        let unreadable = |error: std::io::Error| DiscoveryError::Unreadable(error.to_string());
        let entries = fs::read_dir(self.sysfs.join("block")).map_err(unreadable)?;
        Ok(entries.filter_map(|entry| serial_of(&entry.ok()?.path())).collect())
    }

    /// Makes sure that an open file is the disk with this serial and of this size in bytes: between a look and the
    /// opening one disk may have gone and another come under the same name.
    ///
    /// # Errors
    /// `Another`: it is not.
    pub fn verify(&self, file: BorrowedFd<'_>, serial: &str, size: u64) -> Result<(), DiscoveryError> {
        let another = |why: String| Err(DiscoveryError::Another(why));
        let status = match rustix::fs::fstat(file) {
            Ok(status) => status,
            Err(error) => {
                return another(format!("what was opened for the disk {serial:?} cannot be looked at: {error}"));
            }
        };
        if FileType::from_raw_mode(status.st_mode) != FileType::BlockDevice {
            return another(format!("what was opened for the disk {serial:?} is no block device"));
        }
        let number = format!("{}:{}", major(status.st_rdev), minor(status.st_rdev));
        match serial_of(&self.sysfs.join("dev/block").join(&number)) {
            Some(there) if is_same(&there, serial) => {}
            Some(there) => return another(format!("the disk {number} has the serial {there:?} instead of {serial:?}")),
            None => return another(format!("the disk {number}, opened for the serial {serial:?}, has none any more")),
        }
        match rustix::fs::seek(file, SeekFrom::End(0)) {
            Ok(there) if there == size => Ok(()),
            Ok(there) => another(format!("the disk {serial:?} has {there} bytes instead of {size}")),
            Err(error) => another(format!("the size of the disk {serial:?} cannot be told: {error}")),
        }
    }
}

/// A disk's serial, without the spaces that fill it up; `None` if it has none or is going.
fn serial_of(disk: &Path) -> Option<String> {
    SERIALS.iter().find_map(|(place, head)| match fs::read(disk.join(place)) {
        Ok(bytes) => {
            let text = String::from_utf8_lossy(bytes.get(*head..).unwrap_or_default());
            let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
            (!text.is_empty()).then(|| text.to_owned())
        }
        Err(error) => {
            if error.kind() != ErrorKind::NotFound {
                tracing::debug!(disk = %disk.display(), %error, "a serial cannot be read");
            }
            None
        }
    })
}

/// Whether a disk that shows `there` is the one whose serial is `wanted`: virtio cuts long ones.
#[must_use]
pub fn is_same(there: &str, wanted: &str) -> bool {
    let cut = there.len() == VIRTIO_SERIAL_BYTES && wanted.len() > VIRTIO_SERIAL_BYTES;
    there == wanted || (cut && wanted.starts_with(there))
}
