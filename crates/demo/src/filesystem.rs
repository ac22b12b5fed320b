//! ext4 on a device: make, mount, check, unmount. Uses e2fsprogs and util-linux, which Debian installs everywhere.
//!
//! Whatever waits for one of our own devices runs in another process: a thread of ours that waits in the kernel for
//! an answer of ours could not be killed, and neither could the process, so the device would never be released.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use surgetank_device::mountinfo;
use surgetank_report::{Doing, Failure};

/// Where system administration commands live when they are not on the user's PATH.
const ADMIN_PATH: &str = "/usr/local/sbin:/usr/sbin:/sbin";
/// How often a busy mount is tried again, a tenth of a second apart, before it is detached lazily.
const UNMOUNT_TRIES: u32 = 50;

/// The file systems of the demo need these commands; the Debian package of each.
const COMMANDS: [(&str, &str); 5] = [
    ("mkfs.ext4", "e2fsprogs"),
    ("e2fsck", "e2fsprogs"),
    ("mount", "mount"),
    ("umount", "mount"),
    ("losetup", "mount"),
];

fn search_path() -> String {
    match std::env::var("PATH") {
        Ok(path) if !path.is_empty() => format!("{path}:{ADMIN_PATH}"),
        _ => format!("/usr/local/bin:/usr/bin:/bin:{ADMIN_PATH}"),
    }
}

/// A command that does not hear the terminal's Ctrl-C: the demo decides what is ended when.
pub fn command(name: &str) -> Command {
    use std::os::unix::process::CommandExt;
    let mut command = Command::new(name);
    command.env("PATH", search_path()).env("LC_ALL", "C").stdin(Stdio::null()).process_group(0);
    command
}

fn run(mut command: Command) -> Result<Output, Failure> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().doing(|| format!("cannot run {name}"))?;
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it gave no reason").trim();
    Err(Failure::Failed(format!("{name} failed ({}): {said}", output.status)))
}

/// Checks that the commands which the demo's file systems need are installed.
///
/// # Errors
/// Which are missing, and how to install them.
pub fn check_commands() -> Result<(), Failure> {
    let path = search_path();
    let is_installed = |name: &str| std::env::split_paths(&path).any(|directory| directory.join(name).is_file());
    let missing: Vec<_> = COMMANDS.iter().filter(|(name, _)| !is_installed(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = missing.iter().map(|(name, _)| *name).collect();
    let mut packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    packages.dedup();
    Err(Failure::Failed(format!(
        "the demo needs {}, which is not installed: install it with \"apt-get install {}\"",
        names.join(", "),
        packages.join(" ")
    )))
}

/// Makes an ext4 file system with nothing left to do in the background, and as little metadata as the demo's few
/// large files need: what the device sees afterwards is the application.
///
/// # Errors
/// What mkfs.ext4 said.
pub fn make_ext4(device: &Path, journal_mib: u32) -> Result<(), Failure> {
    let mut mkfs = command("mkfs.ext4");
    mkfs.args(["-q", "-F", "-b", "4096", "-m", "0", "-i", "1048576", "-J"]).arg(format!("size={journal_mib}"));
    mkfs.args(["-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"]).arg(device);
    run(mkfs).map(drop)
}

/// Checks an unmounted ext4 file system without changing it.
///
/// # Errors
/// What e2fsck found.
pub fn check_ext4(volume: &Path) -> Result<(), Failure> {
    let mut fsck = command("e2fsck");
    fsck.args(["-f", "-n"]).arg(volume);
    let output = fsck.output().doing(|| "cannot run e2fsck".to_owned())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stdout);
    let first = said.lines().find(|line| !line.trim().is_empty() && !line.starts_with("Pass 1")).unwrap_or("no reason");
    Err(Failure::Failed(format!("e2fsck found the file system on {} damaged: {first}", volume.display())))
}

/// A mounted file system; unmounted when dropped.
#[derive(Debug)]
pub struct Mount {
    point: PathBuf,
    mounted: bool,
}

impl Mount {
    /// Mounts the ext4 file system on a block device.
    ///
    /// # Errors
    /// What mount said.
    pub fn ext4(device: &Path, point: &Path) -> Result<Self, Failure> {
        Self::with_options("noatime", device, point)
    }

    /// Mounts the ext4 file system in a file, read-only and without replaying its journal, through a loop device
    /// that goes away with the mount.
    ///
    /// # Errors
    /// What mount said.
    pub fn read_only_file(volume: &Path, point: &Path) -> Result<Self, Failure> {
        Self::with_options("loop,ro,noload", volume, point)
    }

    fn with_options(options: &str, source: &Path, point: &Path) -> Result<Self, Failure> {
        std::fs::create_dir_all(point).doing(|| format!("cannot create {}", point.display()))?;
        let mut mount = command("mount");
        mount.args(["-t", "ext4", "-o", options]).arg(source).arg(point);
        run(mount)?;
        Ok(Self { point: point.to_owned(), mounted: true })
    }

    /// Where it is mounted.
    #[must_use]
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Writes back what is cached and unmounts.
    ///
    /// # Errors
    /// If it stays busy; it is then detached and ends when its last user does.
    pub fn unmount(mut self) -> Result<(), Failure> {
        self.mounted = false;
        unmount(&self.point)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            let _ = unmount(&self.point);
        }
    }
}

/// Unmounts whatever is mounted there, waiting a little while it is busy, then lazily.
///
/// # Errors
/// What umount said; that nothing is mounted there is no error.
pub fn unmount(point: &Path) -> Result<(), Failure> {
    for _ in 0..UNMOUNT_TRIES {
        if !is_mount_point(point) {
            return Ok(());
        }
        let mut umount = command("umount");
        umount.arg(point);
        if run(umount).is_ok() {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut umount = command("umount");
    umount.arg("--lazy").arg(point);
    match run(umount) {
        Err(failure) if is_mount_point(point) => Err(failure),
        _ => Ok(()),
    }
}

fn is_mount_point(point: &Path) -> bool {
    mounts_below(point).is_ok_and(|points| points.iter().any(|mounted| mounted == point))
}

/// Tells the kernel that nobody answers for the FUSE mounts at or below `directory` any more, so that nothing waits
/// for them. Best effort: it needs the kernel's control file system, which Debian mounts.
pub fn abort_fuse_below(directory: &Path) {
    for connection in fuse_connections(&mountinfo::read().unwrap_or_default(), directory) {
        let _ = std::fs::write(format!("/sys/fs/fuse/connections/{connection}/abort"), "1");
    }
}

/// The FUSE connections (their device numbers' minors) mounted at or below `directory`.
fn fuse_connections(mounts: &[mountinfo::Mount], directory: &Path) -> Vec<u32> {
    let fuse = mounts.iter().filter(|mount| matches!(&*mount.kind, "fuse" | "fuseblk"));
    let below = fuse.filter(|mount| mount.point.starts_with(directory));
    below.filter_map(|mount| mount.number.split_once(':')?.1.parse().ok()).collect()
}

/// Mount points at or below `directory`, the deepest and latest first, so that they can be unmounted in order.
///
/// # Errors
/// If /proc cannot be read.
pub fn mounts_below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let points = mountinfo::read()?.into_iter().rev().map(|mount| mount.point);
    Ok(points.filter(|point| point.starts_with(directory)).collect())
}

/// Loop devices whose backing file lies below `directory`.
///
/// # Errors
/// If /sys cannot be read.
pub fn loops_below(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/sys/block")? {
        let entry = entry?;
        let Ok(file) = std::fs::read_to_string(entry.path().join("loop/backing_file")) else { continue };
        let file = file.trim_end_matches('\n').trim_end_matches(" (deleted)");
        if Path::new(file).starts_with(directory) {
            found.push(Path::new("/dev").join(entry.file_name()));
        }
    }
    Ok(found)
}

/// Releases a loop device.
///
/// # Errors
/// What losetup said.
pub fn release_loop(device: &Path) -> Result<(), Failure> {
    let mut losetup = command("losetup");
    losetup.arg("--detach").arg(device);
    run(losetup).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fuse_mounts_are_found_by_their_device_number() {
        let text = "42 27 0:39 / /w/a/demo.fuse rw - fuse surgetank rw\n\
                    43 27 0:40 / /x/demo.fuse rw - fuse surgetank rw\n\
                    44 27 0:41 / /w/b rw shared:3 - ext4 /dev/loop0 rw\n";
        assert_eq!(fuse_connections(&mountinfo::parse(text), Path::new("/w")), [39]);
    }

    #[test]
    fn this_machine_has_a_root_mount() {
        let points = mounts_below(Path::new("/")).unwrap();
        assert!(points.iter().any(|point| point == Path::new("/")));
    }

    #[test]
    fn a_failed_command_is_one_sentence() {
        let directory = tempfile::tempdir().unwrap();
        if check_commands().is_err() {
            return;
        }
        let failure = make_ext4(&directory.path().join("missing"), 16).unwrap_err().to_string();
        assert!(failure.starts_with("mkfs.ext4 failed"), "{failure}");
        assert!(!failure.contains('\n'), "{failure}");
    }
}
