//! The demo's work directory, and the putting away of what an earlier run left when it was killed.
//!
//! Everything that a run makes lies below its work directory: volume files, state, mount points. The directory holds
//! an owner file that the run keeps locked; the kernel drops the lock when the process dies, however it dies. So a
//! directory without a locked owner file is a leftover, and everything that still points into it (mounts, loop
//! devices) can be released.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use surgetank_report::output::note;
use surgetank_report::{Doing, Failure};

use crate::filesystem;

/// Every work directory's name begins so.
const PREFIX: &str = "surgetank-demo-";
/// The file that a running demo keeps locked in its work directory; it says what the directory is for.
const OWNER: &str = "owner";

/// A work directory; emptied of mounts and removed when dropped, unless kept.
#[derive(Debug)]
pub struct Workspace {
    path: PathBuf,
    keep: bool,
    _owner: File,
}

impl Workspace {
    /// Makes a work directory below `root`.
    ///
    /// # Errors
    /// If the directory cannot be written.
    pub fn create(root: &Path, keep: bool) -> Result<Self, Failure> {
        let path = root.join(format!("{PREFIX}{}", std::process::id()));
        let doing = || format!("cannot create the work directory {}", path.display());
        fs::DirBuilder::new().mode(0o700).create(&path).doing(doing)?;
        let path = path.canonicalize().doing(doing)?;
        let owner = write_owner(&path).doing(doing)?;
        Ok(Self { path, keep, _owner: owner })
    }

    /// Where it is, without symbolic links (as the kernel names it in its tables).
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        release(&self.path);
        if !self.keep
            && let Err(error) = fs::remove_dir_all(&self.path)
        {
            note(&format!("surgetank: cannot remove {}: {error}; remove it by hand", self.path.display()));
        }
    }
}

fn write_owner(directory: &Path) -> io::Result<File> {
    let mut owner = OpenOptions::new().write(true).create_new(true).mode(0o600).open(directory.join(OWNER))?;
    rustix::fs::flock(&owner, FlockOperation::NonBlockingLockExclusive)?;
    writeln!(
        owner,
        "Work directory of \"surgetank demo\", process {}. While it runs this file is locked; else the directory is a \
         leftover, which the next run puts away.",
        std::process::id()
    )?;
    Ok(owner)
}

/// Unmounts what is mounted below `directory` and releases loop devices over files in it: those of a mount before it,
/// because they hold it busy, and nothing tells where a loop device's file was once its mount is gone.
fn release(directory: &Path) {
    for point in filesystem::mounts_below(directory).unwrap_or_default() {
        release_loops(&point);
        if let Err(failure) = filesystem::unmount(&point) {
            note(&format!("surgetank: cannot unmount {}: {failure}", point.display()));
        }
    }
    release_loops(directory);
}

fn release_loops(directory: &Path) {
    for device in filesystem::loops_below(directory).unwrap_or_default() {
        if let Err(failure) = filesystem::release_loop(&device) {
            note(&format!("surgetank: cannot release {}: {failure}", device.display()));
        }
    }
}

/// Puts away what killed runs left below these directories and wherever something of theirs is still mounted; says
/// which directories that were.
#[must_use]
pub fn sweep(roots: &[PathBuf]) -> Vec<PathBuf> {
    let mut candidates: Vec<PathBuf> = Vec::new();
    for root in roots {
        let entries = fs::read_dir(root).into_iter().flatten().flatten();
        candidates.extend(entries.map(|entry| entry.path()).filter(|path| is_work_directory(path)));
    }
    for point in filesystem::mounts_below(Path::new("/")).unwrap_or_default() {
        candidates.extend(point.ancestors().find(|path| is_work_directory(path)).map(Path::to_owned));
    }
    for path in &mut candidates {
        if let Ok(canonical) = path.canonicalize() {
            *path = canonical;
        }
    }
    candidates.sort();
    candidates.dedup();
    candidates.retain(|path| put_away(path));
    candidates
}

fn is_work_directory(path: &Path) -> bool {
    let number = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix(PREFIX));
    number.is_some_and(|number| number.parse::<u32>().is_ok()) && path.join(OWNER).is_file()
}

fn put_away(directory: &Path) -> bool {
    let Ok(owner) = File::open(directory.join(OWNER)) else { return false };
    if rustix::fs::flock(&owner, FlockOperation::NonBlockingLockExclusive).is_err() {
        return false;
    }
    filesystem::abort_fuse_below(directory);
    release(directory);
    fs::remove_dir_all(directory).is_ok()
}

/// Places that may hold the work directory, each with its free bytes, the roomiest first: TMPDIR alone if it is set,
/// else `out` and the usual places. Memory file systems are taken only if TMPDIR names one, because the demo's volumes
/// would compete with the page cache.
#[must_use]
pub fn places(out: &Path) -> Vec<(PathBuf, u64)> {
    if let Some(directory) = std::env::var_os("TMPDIR").filter(|value| !value.is_empty()) {
        let free = free_space(Path::new(&directory)).unwrap_or_default();
        return vec![(PathBuf::from(directory), free)];
    }
    let here = std::env::current_dir().ok();
    let known = [Path::new("/var/tmp"), Path::new("/tmp"), out].into_iter().chain(here.as_deref());
    let mut places: Vec<(PathBuf, u64)> = Vec::new();
    for place in known.filter(|place| is_writable(place) && !is_memory(place)) {
        let Ok(free) = free_space(place) else { continue };
        if !places.iter().any(|(known, _)| known == place) {
            places.push((place.to_owned(), free));
        }
    }
    // A stable sort: among places on one disk the first stays first.
    places.sort_by_key(|(_, free)| std::cmp::Reverse(*free));
    places
}

fn is_writable(directory: &Path) -> bool {
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK).is_ok()
}

fn is_memory(directory: &Path) -> bool {
    rustix::fs::statfs(directory).is_ok_and(|found| found.f_type == libc::TMPFS_MAGIC)
}

/// Bytes that this user can still write below `directory`.
///
/// # Errors
/// If the directory does not exist.
pub fn free_space(directory: &Path) -> io::Result<u64> {
    let space = rustix::fs::statvfs(directory)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, PoisonError};

    use super::*;

    /// A sweep finds what is mounted on the whole machine: one test at a time makes something for it.
    static SWEEPING: Mutex<()> = Mutex::new(());

    #[test]
    fn a_running_demo_is_left_alone_and_a_dead_one_put_away() {
        let _alone = SWEEPING.lock().unwrap_or_else(PoisonError::into_inner);
        let root = tempfile::tempdir().unwrap();
        let roots = [root.path().to_owned()];
        let running = Workspace::create(root.path(), false).unwrap();
        let dead = root.path().join(format!("{PREFIX}1"));
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join(OWNER), "").unwrap();
        fs::write(dead.join("volume"), "data").unwrap();
        let foreign = root.path().join(format!("{PREFIX}notes"));
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join(OWNER), "").unwrap();
        // What other killed runs left mounted on this machine is put away as well.
        let dead_path = dead.canonicalize().unwrap();
        assert!(sweep(&roots).contains(&dead_path));
        assert!(!dead.exists() && running.path().exists() && foreign.exists());
        let path = running.path().to_owned();
        drop(running);
        assert!(!path.exists());
        assert!(foreign.exists());
    }

    #[test]
    fn a_loop_device_in_a_mount_is_released_with_it() {
        let _alone = SWEEPING.lock().unwrap_or_else(PoisonError::into_inner);
        let root = tempfile::tempdir().unwrap();
        let dead = root.path().canonicalize().unwrap().join(format!("{PREFIX}2"));
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join(OWNER), "").unwrap();
        let mount = |name: &str, inside: &Path, size: u64| {
            let (image, point) = (inside.join(format!("{name}.image")), dead.join(name));
            File::create(&image)?.set_len(size)?;
            fs::create_dir(&point)?;
            filesystem::make_ext4(&image, 4).map_err(|failure| io::Error::other(failure.to_string()))?;
            // Not by "mount -o loop": such a device goes away by itself.
            let attached = filesystem::command("losetup").args(["--find", "--show"]).arg(&image).output()?;
            let device = String::from_utf8_lossy(&attached.stdout).trim().to_owned();
            let mount = filesystem::command("mount").arg(device).arg(&point).output()?;
            if mount.status.success() { Ok(point) } else { Err(io::Error::other("mount refuses")) }
        };
        let mounted = mount("outer", &dead, 256 << 20).and_then(|outer| mount("inner", &outer, 64 << 20));
        let loops = filesystem::loops_below(&dead).unwrap_or_default();
        assert!(sweep(&[root.path().to_owned()]).contains(&dead));
        let Ok(inner) = mounted else {
            note(&format!("skipped: no loop devices here: {}", mounted.unwrap_err()));
            return;
        };
        assert!(loops.len() == 2 && !inner.exists());
        for device in loops {
            let still =
                fs::read_to_string(Path::new("/sys/block").join(device.file_name().unwrap()).join("loop/backing_file"));
            assert!(!still.is_ok_and(|file| file.contains(".image")), "{} is still attached", device.display());
        }
    }

    #[test]
    fn there_is_a_place_on_this_machine() {
        let out = tempfile::tempdir().unwrap();
        let found = places(out.path());
        assert!(found.windows(2).all(|pair| pair[0].1 >= pair[1].1), "{found:?}");
        assert!(!found.is_empty());
    }

    #[test]
    fn a_kept_directory_stays() {
        let root = tempfile::tempdir().unwrap();
        let kept = Workspace::create(root.path(), true).unwrap().path().to_owned();
        assert!(kept.join(OWNER).is_file());
    }
}
