//! Directories of the host in a guest, by virtiofsd: its root, which it cannot change, and one for results.

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Context;

use crate::host::Lab;
use crate::interrupt::{Interrupt, Server};

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
        // SAFETY: only system calls, on strings that were made before the fork.
        unsafe {
            command.pre_exec(move || read_only_view(&view));
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

/// In a mount namespace of its own: everything that is mounted, again at `view`, read-only.
fn read_only_view(view: &CString) -> io::Result<()> {
    let check = |result: libc::c_long| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    let none = std::ptr::null::<libc::c_char>();
    let attributes = libc::mount_attr { attr_set: libc::MOUNT_ATTR_RDONLY, attr_clr: 0, propagation: 0, userns_fd: 0 };
    // SAFETY: every pointer is null or to a string or structure that lives through the call.
    unsafe {
        check(libc::unshare(libc::CLONE_NEWNS).into())?;
        check(libc::mount(none, c"/".as_ptr(), none, libc::MS_REC | libc::MS_PRIVATE, std::ptr::null()).into())?;
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
