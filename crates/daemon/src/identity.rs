//! Which backing volume a device's records speak of: another one under the same name would be merged with a caching
//! volume that knows nothing of it.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::config::Backing;

/// What tells one backing volume from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// Which one, for people, too: a disk's own number if the platform tells it, else the path.
    pub name: String,
    /// Its size in bytes when it was last served.
    pub size_bytes: u64,
}

impl Identity {
    /// The identity of a backing volume of `size_bytes`.
    ///
    /// # Errors
    /// One sentence: its path cannot be looked at.
    pub fn of(backing: &Backing, size_bytes: u64) -> Result<Self, String> {
        let name = match backing {
            Backing::Memory(_) => "memory".to_owned(),
            Backing::Array(name) => format!("array {name}"),
            Backing::Path(path) => {
                name(path).map_err(|error| format!("{} cannot be looked at: {error}", path.display()))?
            }
        };
        Ok(Self { name, size_bytes })
    }

    /// Whether the records of `self` may be applied to `found`: the same volume, of at least the same size.
    ///
    /// # Errors
    /// One sentence with the remedy.
    pub fn admits(&self, found: &Self, device: &str) -> Result<(), String> {
        if self.name != found.name {
            return Err(format!(
                "device {device} has newest data on a caching volume that belongs to the backing volume {}, but is \
                 configured with {}: name the former one as its backing and drain it first",
                self.name, found.name
            ));
        }
        if found.size_bytes < self.size_bytes {
            return Err(format!(
                "the backing volume of device {device} shrank from {} to {} bytes while newest data is on a caching \
                 volume: restore its size",
                self.size_bytes, found.size_bytes
            ));
        }
        Ok(())
    }
}

fn name(path: &Path) -> std::io::Result<String> {
    let path = fs::canonicalize(path)?;
    let metadata = fs::metadata(&path)?;
    if metadata.file_type().is_block_device() {
        return Ok(disk_name(metadata.rdev()).unwrap_or_else(|| format!("{}", path.display())));
    }
    // Device numbers of file systems change from boot to boot; a file that replaced another has its own inode.
    Ok(format!("{} (inode {})", path.display(), metadata.ino()))
}

/// The number that a disk carries itself, with the partition's.
fn disk_name(device: u64) -> Option<String> {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let own = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let (disk, partition) = match line(&own.join("partition")) {
        Some(partition) => (own.parent()?.to_owned(), format!(" partition {partition}")),
        None => (own, String::new()),
    };
    let files = ["wwid", "device/wwid", "serial", "device/serial", "dm/uuid"];
    let number = files.iter().find_map(|file| line(&disk.join(file)))?;
    Some(format!("disk {number}{partition}"))
}

fn line(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_file_and_a_shrunk_one_are_told_and_a_grown_one_passes() {
        let directory = tempfile::tempdir().unwrap();
        let (one, two) = (directory.path().join("one"), directory.path().join("two"));
        fs::write(&one, "1").unwrap();
        fs::write(&two, "2").unwrap();
        let of = |path: &Path, size| Identity::of(&Backing::Path(path.to_owned()), size).unwrap();
        let served = of(&one, 8192);
        assert_eq!(served.admits(&of(&one, 8192), "data"), Ok(()));
        assert_eq!(served.admits(&of(&one, 12288), "data"), Ok(()));
        assert!(served.admits(&of(&one, 4096), "data").unwrap_err().contains("shrank"));
        assert!(served.admits(&of(&two, 8192), "data").unwrap_err().contains("name the former one"));
        fs::rename(&two, &one).unwrap();
        assert!(served.admits(&of(&one, 8192), "data").is_err(), "a file that replaced it");
        assert!(Identity::of(&Backing::Path(two), 0).is_err());
    }
}
