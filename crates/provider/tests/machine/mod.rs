//! A QEMU without a guest system, for tests: its processors stand still, so it costs nothing.
//!
//! With PCI Express hot-plug a slot that no guest has switched on releases it at once; with ACPI hot-plug the guest would
//! have to, and as there is none it never does.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

/// Whether the machine releases disks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unplug {
    /// At once.
    AtOnce,
    /// Never, until it is reset.
    Never,
}

/// A running QEMU, killed when it is dropped.
pub struct Machine {
    child: Child,
    unplug: Unplug,
    ports: usize,
    directory: TempDir,
}

/// Says why there is no QEMU here, if there is none.
pub fn skip() -> bool {
    let missing = Command::new("qemu-system-x86_64").arg("--version").stdout(Stdio::null()).status().is_err();
    if missing {
        println!("skipped: there is no qemu-system-x86_64 (Debian: qemu-system-x86)");
    }
    missing
}

impl Machine {
    /// Starts one with so many free ports, `port0` and on.
    pub fn start(unplug: Unplug, ports: usize) -> Self {
        let directory = TempDir::new().unwrap();
        let child = spawn(directory.path(), unplug, ports);
        Self { child, unplug, ports, directory }
    }

    /// The socket of its machine protocol.
    pub fn qmp(&self) -> PathBuf {
        self.directory.path().join("qmp")
    }

    /// A directory for volumes and state.
    pub fn volumes(&self) -> PathBuf {
        self.directory.path().join("volumes")
    }

    /// Ends it, as a power cut of the host's would.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it anew: nothing is plugged in.
    pub fn restart(&mut self) {
        self.kill();
        self.child = spawn(self.directory.path(), self.unplug, self.ports);
    }

    /// Stops or continues the process, which then answers nothing.
    pub fn hang(&self, hangs: bool) {
        let signal = if hangs { rustix::process::Signal::STOP } else { rustix::process::Signal::CONT };
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

fn spawn(directory: &Path, unplug: Unplug, ports: usize) -> Child {
    let qmp = directory.join("qmp");
    let _ = std::fs::remove_file(&qmp);
    let mut command = Command::new("qemu-system-x86_64");
    command.args(["-machine", "q35,accel=tcg", "-m", "64", "-nodefaults", "-display", "none", "-S"]);
    command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", qmp.display()));
    for port in 0..ports {
        command.arg("-device").arg(format!("pcie-root-port,id=port{port},chassis={port}"));
    }
    if unplug == Unplug::AtOnce {
        command.args(["-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"]);
    }
    let mut child = command.stdin(Stdio::null()).spawn().unwrap();
    while std::os::unix::net::UnixStream::connect(&qmp).is_err() {
        assert_eq!(child.try_wait().unwrap(), None, "QEMU comes up");
        std::thread::sleep(Duration::from_millis(10));
    }
    child
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
