//! Directories of the host in a guest, by virtiofsd: its root, which it cannot change, and one for results.

use std::ffi::CString;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use crate::host::Lab;
use crate::interrupt::{Interrupt, Server};

/// Bytes that the list of all mounts may have.
const MOUNTS: usize = 1 << 20;

/// A served directory.
#[derive(Debug)]
pub struct Share {
    server: Server,
    /// Where QEMU connects.
    pub socket: PathBuf,
}

impl Share {
    /// Serves the host's root. The server sees it through a read-only mount of its own, so that no guest can change it.
    pub fn root(lab: &Lab, directory: &Path) -> anyhow::Result<Self> {
        let view = directory.join("root");
        fs::create_dir(&view)?;
        // What is on the host does not change for a guest that lives for minutes: it may keep everything.
        let mut command = command(lab, directory, "root", &view, "always");
        let view = CString::new(view.as_os_str().as_bytes()).context("a path with a zero byte")?;
        let mut below = std::env::temp_dir().into_os_string().into_vec();
        below.push(b'/');
        let mut mounts = vec![0; MOUNTS];
        // SAFETY: only system calls, on memory that was there before the fork.
        unsafe {
            command.pre_exec(move || read_only_view(&view, &below, &mut mounts));
        }
        Self::start(&mut command, directory, "root")
    }

    /// Serves a directory that the guest may write to.
    pub fn writable(lab: &Lab, directory: &Path, shared: &Path) -> anyhow::Result<Self> {
        Self::start(&mut command(lab, directory, "results", shared, "auto"), directory, "results")
    }

    fn start(command: &mut Command, directory: &Path, name: &str) -> anyhow::Result<Self> {
        let log = directory.join(format!("virtiofsd-{name}.log"));
        let server = Server::start("virtiofsd", &log, Duration::ZERO, command)?;
        Ok(Self { server, socket: socket(directory, name) })
    }

    /// Waits until QEMU can connect.
    pub fn wait(&mut self, interrupt: &Interrupt) -> anyhow::Result<()> {
        interrupt.wait_for("the start of virtiofsd", Duration::from_secs(20), || {
            self.server.check()?;
            Ok(self.socket.exists().then_some(()))
        })
    }
}

fn socket(directory: &Path, name: &str) -> PathBuf {
    directory.join(format!("virtiofsd-{name}.socket"))
}

fn command(lab: &Lab, directory: &Path, name: &str, shared: &Path, cache: &str) -> Command {
    let mut command = Command::new(&lab.virtiofsd);
    command.arg(format!("--socket-path={}", socket(directory, name).display()));
    command.arg("-o").arg(format!("source={}", shared.display()));
    command.args(["-o", "sandbox=chroot", "-o"]).arg(format!("cache={cache}"));
    command
}

/// In a mount namespace of its own: everything that is mounted, again at `view`, read-only. But not what is mounted below the directory
/// `below`, whose path ends in a slash: whoever unmounts it there takes for granted that nobody has it then. `mounts`: room for the list
/// of all mounts.
fn read_only_view(view: &CString, below: &[u8], mounts: &mut [u8]) -> io::Result<()> {
    let check = |result: libc::c_long| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    let none = std::ptr::null::<libc::c_char>();
    let attributes = libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: every pointer is null or to a string or structure that lives through the call.
    unsafe {
        check(libc::unshare(libc::CLONE_NEWNS).into())?;
        check(libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, std::ptr::null()).into())?;
    }
    detach(below, mounts)?;
    // SAFETY: as above.
    unsafe {
        let bind = libc::MS_BIND | libc::MS_REC;
        check(libc::mount(c"/".as_ptr(), view.as_ptr(), none, bind, std::ptr::null()).into())?;
        check(libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            view.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        ))
    }
}

/// Unmounts what is mounted below a directory. After a fork: it takes no memory.
fn detach(below: &[u8], mounts: &mut [u8]) -> io::Result<()> {
    let mut file = fs::File::open("/proc/self/mountinfo")?;
    let mut end = 0;
    loop {
        match file.read(&mut mounts[end..])? {
            0 if end == mounts.len() => return Err(io::ErrorKind::OutOfMemory.into()),
            0 => break,
            read => end += read,
        }
    }
    // The last one first: others may lie beneath it.
    for line in mounts[..end].rsplit_mut(|byte| *byte == b'\n') {
        let blank = |from: usize| line[from..].iter().position(|byte| *byte == b' ').map(|at| from + at);
        let Some(begins) = (0..4).try_fold(0, |from, _| Some(blank(from)? + 1)) else { continue };
        let Some(ends) = blank(begins) else { continue };
        let length = unescaped(&mut line[begins..ends]);
        if !line[begins..begins + length].starts_with(below) {
            continue;
        }
        // The blank behind it makes room for that.
        line[begins + length] = 0;
        let place = line[begins..].as_ptr().cast();
        // SAFETY: it points to bytes that end with a zero.
        if unsafe { libc::umount2(place, libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

/// Takes back what the kernel does to blanks and the like in a path: a backslash and three octal digits. The length afterwards.
fn unescaped(path: &mut [u8]) -> usize {
    let (mut from, mut to) = (0, 0);
    while from < path.len() {
        match path[from..] {
            [b'\\', a, b, c, ..] => {
                path[to] = (a - b'0') << 6 | (b - b'0') << 3 | (c - b'0');
                from += 4;
            }
            [byte, ..] => {
                path[to] = byte;
                from += 1;
            }
            [] => {}
        }
        to += 1;
    }
    to
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_mounts_are_read_as_they_are() {
        for (written, path) in [("/a", "/a"), ("/a\\040b\\134c\\011", "/a b\\c\t"), ("", "")] {
            let mut bytes = written.as_bytes().to_vec();
            let length = unescaped(&mut bytes);
            assert_eq!(&bytes[..length], path.as_bytes());
        }
    }
}
