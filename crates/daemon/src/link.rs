//! The stable name of an exported block device: `RUN/NAME` leads to `/dev/loopN`.
//!
//! Loop devices are numbered as they come, and the elastic device carries the same UUID and label as the disk
//! underneath, so `fstab` needs a name that is ours alone.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A link that exists while the device is exported.
#[derive(Clone, Debug)]
pub struct Link(PathBuf);

impl Link {
    /// The link of the device `name` in the run directory; not made yet.
    #[must_use]
    pub fn new(run_directory: &Path, name: &str) -> Self {
        Self(run_directory.join(name))
    }

    /// Lets it lead to `device`, in place of whatever link a killed daemon left.
    ///
    /// # Errors
    /// If something else than a link has that name, or the directory cannot be written.
    pub fn point_to(&self, device: &Path) -> io::Result<()> {
        match fs::symlink_metadata(&self.0) {
            Ok(found) if !found.is_symlink() => return Err(io::ErrorKind::AlreadyExists.into()),
            Ok(_) => fs::remove_file(&self.0)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        symlink(device, &self.0)
    }

    /// Takes it away.
    pub fn remove(&self) {
        if fs::symlink_metadata(&self.0).is_ok_and(|found| found.is_symlink())
            && let Err(error) = fs::remove_file(&self.0)
        {
            tracing::warn!(link = %self.0.display(), %error, "the link to the device stays behind");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_replaced_and_removed() {
        let run = tempfile::tempdir().unwrap();
        let link = Link::new(run.path(), "data");
        for device in ["/dev/loop0", "/dev/loop7"] {
            link.point_to(Path::new(device)).unwrap();
            assert_eq!(fs::read_link(run.path().join("data")).unwrap(), Path::new(device));
        }
        link.remove();
        link.remove();
        assert_eq!(fs::read_dir(run.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_no_link_is_left_alone() {
        let run = tempfile::tempdir().unwrap();
        fs::write(run.path().join("data"), "precious").unwrap();
        let link = Link::new(run.path(), "data");
        assert_eq!(link.point_to(Path::new("/dev/loop0")).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        link.remove();
        assert_eq!(fs::read_to_string(run.path().join("data")).unwrap(), "precious");
    }
}
