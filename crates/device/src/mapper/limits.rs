//! What users of a mapped device see of the device below it, which must not change when it is switched.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// A block device's properties that its users rely on while they have it open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of a logical block.
    pub logical_block: u32,
    /// It has a volatile write cache: what is not flushed may go with the power.
    pub write_cache: bool,
    /// It takes discard requests.
    pub discards: bool,
    /// It is zoned, or stores checksums with its blocks: nothing else can stand in for it.
    pub is_special: bool,
}

/// How two devices differ. A list for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch(Vec<String>);

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

impl Limits {
    /// Those of a block device, by its number.
    ///
    /// # Errors
    /// The kernel has no such device, or does not tell.
    pub fn of((major, minor): (u32, u32)) -> io::Result<Self> {
        Self::read(&PathBuf::from(format!("/sys/dev/block/{major}:{minor}")))
    }

    fn read(directory: &Path) -> io::Result<Self> {
        // A partition has its disk's queue.
        let own = directory.join("queue");
        let queue = if own.exists() { own } else { fs::canonicalize(directory)?.join("../queue") };
        let text = |name: &str| fs::read_to_string(queue.join(name)).map(|text| text.trim().to_owned());
        let logical_block = text("logical_block_size")?.parse().map_err(io::Error::other)?;
        let zoned = text("zoned").is_ok_and(|zoned| zoned != "none");
        let integrity =
            fs::read_to_string(queue.join("../integrity/format")).is_ok_and(|format| format.trim() != "none");
        Ok(Self {
            logical_block,
            write_cache: text("write_cache")? == "write back",
            discards: text("discard_max_bytes")? != "0",
            is_special: zoned || integrity,
        })
    }

    /// Whether users notice no switch between this device and the other one.
    ///
    /// # Errors
    /// What they would notice.
    pub fn check(&self, other: &Self) -> Result<(), Mismatch> {
        let mut found = Vec::new();
        let yes = |yes: bool| if yes { "yes" } else { "no" };
        let mut compare = |what: &str, ours: String, theirs: String| {
            if ours != theirs {
                found.push(format!("{what} {ours} and {theirs}"));
            }
        };
        compare("logical blocks of", self.logical_block.to_string(), other.logical_block.to_string());
        compare("a volatile write cache:", yes(self.write_cache).into(), yes(other.write_cache).into());
        compare("discard requests:", yes(self.discards).into(), yes(other.discards).into());
        if self.is_special || other.is_special {
            found.push("zones or checksums of the disk's own".to_owned());
        }
        if found.is_empty() { Ok(()) } else { Err(Mismatch(found)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk(settings: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("queue")).unwrap();
        for (name, value) in settings {
            fs::write(directory.path().join("queue").join(name), format!("{value}\n")).unwrap();
        }
        directory
    }

    #[test]
    fn limits_are_read_and_compared() {
        let usual = [("logical_block_size", "512"), ("write_cache", "write back"), ("discard_max_bytes", "4096")];
        let one = Limits::read(disk(&usual).path()).unwrap();
        assert_eq!(one, Limits { logical_block: 512, write_cache: true, discards: true, is_special: false });
        assert_eq!(one.check(&one), Ok(()));
        let other = [
            ("logical_block_size", "4096"),
            ("write_cache", "write through"),
            ("discard_max_bytes", "0"),
            ("zoned", "none"),
        ];
        let other = Limits::read(disk(&other).path()).unwrap();
        assert_eq!(
            one.check(&other).unwrap_err().to_string(),
            "logical blocks of 512 and 4096, a volatile write cache: yes and no, discard requests: yes and no"
        );
        let zoned = Limits { is_special: true, ..one };
        assert!(one.check(&zoned).is_err() && zoned.check(&zoned).is_err());
    }

    #[test]
    fn what_the_kernel_does_not_tell_is_an_error() {
        assert!(Limits::read(disk(&[("write_cache", "write back")]).path()).is_err());
        assert!(Limits::read(Path::new("/nowhere")).is_err());
    }
}
