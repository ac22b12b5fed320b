//! What surgetank's exports are compared with: nbdkit's memory disk, behind NBD and behind nbdfuse and a loop device.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::rig::Loop;
use crate::interrupt::{Interrupt, Server, output};

const START: Duration = Duration::from_secs(10);
const END: Duration = Duration::from_secs(20);

/// `nbdkit memory` on a Unix socket.
#[derive(Debug)]
pub struct Nbdkit {
    _server: Server,
    socket: PathBuf,
}

impl Nbdkit {
    pub fn start(interrupt: &Interrupt, directory: &Path, bytes: u64) -> anyhow::Result<Self> {
        let socket = directory.join("nbdkit.sock");
        let mut command = Command::new("nbdkit");
        command
            .args(["--foreground", "--exit-with-parent", "--unix"])
            .arg(&socket)
            .arg("memory")
            .arg(format!("size={bytes}"));
        let mut server = Server::start("nbdkit", &directory.join("nbdkit.log"), END, &mut command)?;
        interrupt.wait_for("nbdkit's socket", START, || {
            server.check()?;
            Ok(socket.exists().then_some(()))
        })?;
        Ok(Self { _server: server, socket })
    }

    /// Its address for NBD clients.
    pub fn address(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }
}

/// nbdfuse in front of [`Nbdkit`], and a loop device over its file.
#[derive(Debug)]
pub struct NbdFuse {
    // In this order: the loop device holds the file, nbdfuse serves it.
    device: Loop,
    _mount: Mount,
    _server: Server,
}

impl NbdFuse {
    pub fn start(interrupt: &Interrupt, directory: &Path, nbdkit: &Nbdkit) -> anyhow::Result<Self> {
        let file = directory.join("nbdfuse.disk");
        fs::write(&file, "")?;
        let mut command = Command::new("nbdfuse");
        command.arg(&file).arg("--unix").arg(&nbdkit.socket);
        let mut server = Server::start("nbdfuse", &directory.join("nbdfuse.log"), END, &mut command)?;
        let mount = Mount(file.clone());
        interrupt.wait_for("nbdfuse's mount", START, || {
            server.check()?;
            Ok(fs::metadata(&file).is_ok_and(|metadata| metadata.len() > 0).then_some(()))
        })?;
        Ok(Self { device: Loop::attach(&file)?, _mount: mount, _server: server })
    }

    /// The loop device.
    pub fn device(&self) -> &Path {
        &self.device.path
    }
}

/// Unmounts when dropped; nbdfuse ends with its mount.
#[derive(Debug)]
struct Mount(PathBuf);

impl Drop for Mount {
    fn drop(&mut self) {
        for _ in 0..50 {
            // The loop device releases the file a moment after losetup has answered.
            if output(Command::new("fusermount3").arg("-u").arg(&self.0)).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
