//! What the daemon's own directories lie on: one that lies on a device which the daemon serves makes it wait for itself,
//! for ever if that device outlived its last daemon.
//!
//! The kernel's tables are asked, and a path is not looked at before it is known not to lead there.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use surgetank_device::mountinfo::{self, Mount};

/// Symbolic links that a path may lead through (as in the kernel).
const LINKS_MAX: usize = 40;

/// The kernel's tables.
pub struct Tables {
    mounts: Vec<Mount>,
    sysfs: PathBuf,
}

impl Tables {
    /// Those of this machine.
    #[must_use]
    pub fn read() -> Self {
        // Without mounts nothing is mounted on a device of ours.
        let mounts = mountinfo::read().unwrap_or_default();
        Self { mounts, sysfs: "/sys".into() }
    }

    /// Refuses a directory on one of these devices, whose links lie in `run_directory`; `what` it is called.
    ///
    /// # Errors
    /// One sentence with the remedy.
    pub fn refuse_own<'a>(
        &self,
        what: &str,
        directory: &Path,
        run_directory: &Path,
        devices: impl Iterator<Item = &'a String>,
    ) -> Result<(), String> {
        for device in devices {
            let Some(exported) = fs::read_link(run_directory.join(device)).ok() else { continue };
            let Some(number) = self.number(&exported) else { continue };
            if self.leads_to(directory, &number) {
                return Err(format!(
                    "{what} {} lies on {}, the device {device} that this daemon serves, and would wait for itself: move it \
                     to another disk",
                    directory.display(),
                    exported.display()
                ));
            }
        }
        Ok(())
    }

    /// Whether a path lies on a disk, whatever is in between.
    fn leads_to(&self, path: &Path, number: &str) -> bool {
        let mut left = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let lies_there = |path: &Path| self.mounted(path).is_some_and(|mounted| self.below(mounted).contains(number));
        for _ in 0..LINKS_MAX {
            let mut done = PathBuf::new();
            let mut parts = left.components();
            let mut followed = None;
            for part in parts.by_ref() {
                done.push(part);
                // What lies there may not answer; something else may be mounted further inside.
                if !lies_there(&done)
                    && let Ok(target) = fs::read_link(&done)
                {
                    done.pop();
                    followed = Some(done.join(target));
                    break;
                }
            }
            match followed {
                Some(followed) => left = followed.join(parts.as_path()),
                None => return lies_there(&left),
            }
        }
        false
    }

    /// The number of the disk whose file system a path is in.
    fn mounted(&self, path: &Path) -> Option<String> {
        let mount = mountinfo::innermost(&self.mounts, path)?;
        if !mount.number.starts_with("0:") {
            return Some(mount.number.clone());
        }
        // A file system over several disks has a number of its own, and names one of them.
        let source = &mount.source;
        source.starts_with("/dev").then(|| self.number(&fs::canonicalize(source).unwrap_or_else(|_| source.clone())))?
    }

    /// The number of a disk, by its name.
    fn number(&self, disk: &Path) -> Option<String> {
        line(&self.sysfs.join("class/block").join(disk.file_name()?).join("dev"))
    }

    /// A disk and all those that it consists of: the disk of a partition, the parts of a mapped one, and the disk on which
    /// the file of a loop device lies.
    fn below(&self, number: String) -> BTreeSet<String> {
        let (mut found, mut left) = (BTreeSet::new(), vec![number]);
        while let Some(number) = left.pop() {
            if !found.insert(number.clone()) {
                continue;
            }
            let Ok(directory) = fs::canonicalize(self.sysfs.join("dev/block").join(number)) else { continue };
            if directory.join("partition").exists() {
                left.extend(directory.parent().and_then(|disk| line(&disk.join("dev"))));
            }
            let slaves = fs::read_dir(directory.join("slaves")).into_iter().flatten().flatten();
            left.extend(slaves.filter_map(|slave| line(&slave.path().join("dev"))));
            let file = line(&directory.join("loop/backing_file")).map(PathBuf::from);
            left.extend(file.and_then(|file| self.mounted(&file)));
        }
        found
    }
}

fn line(path: &Path) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim_end_matches('\n').to_owned())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// The elastic device is ublkb0; loop1 is a file on it, dm-0 lies on a partition of it, sda on nothing of ours.
    fn tables(root: &Path) -> Tables {
        let sysfs = root.join("sys");
        for (name, number) in
            [("ublkb0", "259:0"), ("ublkb0/ublkb0p1", "259:1"), ("loop1", "7:1"), ("dm-0", "254:0"), ("sda", "8:0")]
        {
            let disk = sysfs.join("block").join(name);
            fs::create_dir_all(&disk).unwrap();
            fs::write(disk.join("dev"), format!("{number}\n")).unwrap();
            for (table, key) in [("dev/block", number), ("class/block", disk.file_name().unwrap().to_str().unwrap())] {
                fs::create_dir_all(sysfs.join(table)).unwrap();
                symlink(&disk, sysfs.join(table).join(key)).unwrap();
            }
        }
        let block = sysfs.join("block");
        fs::write(block.join("ublkb0/ublkb0p1/partition"), "1\n").unwrap();
        fs::create_dir(block.join("loop1/loop")).unwrap();
        fs::write(block.join("loop1/loop/backing_file"), "/srv/image\n").unwrap();
        fs::create_dir(block.join("dm-0/slaves")).unwrap();
        symlink(block.join("ublkb0/ublkb0p1"), block.join("dm-0/slaves/ublkb0p1")).unwrap();
        let mounts = "1 0 8:0 / / rw - ext4 /dev/sda rw\n2 1 259:0 / /srv rw - ext4 /dev/ublkb0 rw\n\
                      3 1 7:1 / /looped rw - ext4 /dev/loop1 rw\n4 1 254:0 / /mapped\\040well rw - xfs /dev/dm-0 rw\n\
                      5 1 0:44 / /pool rw - btrfs /dev/ublkb0p1 rw\n6 2 0:45 / /srv/memory rw - tmpfs tmpfs rw\n";
        Tables { mounts: mountinfo::parse(mounts), sysfs }
    }

    #[test]
    fn a_directory_on_a_device_of_ours_is_found_through_whatever_lies_between() {
        let root = tempfile::tempdir().unwrap();
        let run = root.path().join("run");
        fs::create_dir(&run).unwrap();
        symlink("/dev/ublkb0", run.join("data")).unwrap();
        symlink("/srv/far", root.path().join("link")).unwrap();
        let tables = tables(root.path());
        let devices = ["data".to_owned(), "other".to_owned()];
        let refused = |path: &Path| tables.refuse_own("the state directory", path, &run, devices.iter());
        let linked = root.path().join("link/state");
        for path in ["/srv/state", "/srv", "/looped/state", "/mapped well/state", "/pool/a/b", linked.to_str().unwrap()]
        {
            let error = refused(Path::new(path)).unwrap_err();
            assert!(error.contains("lies on /dev/ublkb0, the device data"), "{error}");
        }
        for path in ["/var/lib/surgetank", "/srvx", "/", "/srv/memory/state", "/pooled"] {
            assert_eq!(refused(Path::new(path)), Ok(()), "{path}");
        }
        let none = tables.refuse_own("the state directory", Path::new("/srv/state"), root.path(), devices.iter());
        assert_eq!(none, Ok(()), "nothing is exported");
    }
}
