//! The daemon in a child process: the test program itself, at its test `daemon_in_a_child`.

use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use surgetank_daemon::{Client, Config, Daemon, DevicePhase, Overrides, Request};

use super::tables::Tables;
use super::{Machine, Nbd, eventually};

const CONFIG: &str = "SURGETANK_TEST_CONFIG";
/// Where tables of disks are in the place of the kernel's, beside the configuration.
pub const TABLES: &str = "tables";
const CRASH_AT: &str = "SURGETANK_CRASH_AT";
const STOP_AT: &str = "SURGETANK_STOP_AT";
const PLANT: &str = "SURGETANK_PLANT";

/// What the test `daemon_in_a_child` does: nothing, unless it was started by [`Running`].
pub fn serve_if_asked() {
    let Some(file) = std::env::var_os(CONFIG) else { return };
    if super::rounds::is_emulated() {
        // As `packaging/systemd/surgetank.service` has it: an emulated processor is always short, and the writers are many.
        let _ = rustix::process::setpriority_process(None, -20);
    }
    let tables = Path::new(&file).with_file_name(TABLES);
    let overrides = Overrides { disks: tables.is_dir().then(|| Tables::new(tables).disks()), ..Overrides::default() };
    let started = Daemon::start_with(Config::load(Path::new(&file)).unwrap(), overrides);
    let daemon = started.unwrap_or_else(|error| panic!("{error}"));
    while !daemon.wait_stop(Duration::from_secs(600)) {}
    daemon.stop();
}

/// A daemon that can be killed. Dropping it kills it.
pub struct Running {
    pub child: Child,
    pub client: Client,
    /// Of the device `data`.
    pub socket: PathBuf,
    /// Where its block device would be served.
    mount: PathBuf,
}

impl Running {
    pub fn start(machine: &Machine, crash_at: Option<&str>) -> Self {
        Self::start_with(machine, crash_at.map(|point| (CRASH_AT, point)))
    }

    /// A daemon that stands still once it comes to a point, as [`Running::has_stopped`] tells.
    pub fn start_and_stop(machine: &Machine, stop_at: &str) -> Self {
        Self::start_with(machine, Some((STOP_AT, stop_at)))
    }

    /// A daemon with a bug on purpose.
    pub fn start_planted(machine: &Machine, bug: &str) -> Self {
        Self::start_with(machine, Some((PLANT, bug)))
    }

    fn start_with(machine: &Machine, end: Option<(&str, &str)>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "daemon_in_a_child", "--nocapture", "--test-threads=1"]);
        command.env(CONFIG, machine.path("config.toml")).env_remove(CRASH_AT).env_remove(STOP_AT).envs(end);
        Self::spawn(machine, command)
    }

    /// Starts some other program that serves the machine's configuration.
    pub fn spawn(machine: &Machine, mut command: Command) -> Self {
        let log = std::fs::File::create(machine.path("log")).unwrap();
        command.stdout(Stdio::null()).stderr(log);
        let mut spawned = command.spawn();
        // A program that was just written is busy while a child of another thread still has it open, until its own exec.
        while matches!(&spawned, Err(error) if error.kind() == std::io::ErrorKind::ExecutableFileBusy) {
            std::thread::sleep(std::time::Duration::from_millis(10));
            spawned = command.spawn();
        }
        let child = spawned.unwrap();
        let client = Client::new(machine.path("run/control.sock"));
        let mut running =
            Self { child, client, socket: machine.path("run/data.sock"), mount: machine.path("run/data.fuse") };
        eventually("the daemon answers or has died", || running.client.status().is_ok() || running.dead());
        running
    }

    pub fn dead(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Whether it stands still at the point that it was started for.
    pub fn has_stopped(&self) -> bool {
        let status = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        // The name may hold blanks and parentheses; the state follows the last one.
        status.rsplit(')').next().is_some_and(|fields| fields.trim_start().starts_with('T'))
    }

    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub fn was_killed(&mut self) -> bool {
        self.child.wait().unwrap().signal() == Some(9)
    }

    pub fn phase(&self) -> Option<DevicePhase> {
        self.client.status().ok().and_then(|status| Some(status.devices.first()?.phase))
    }

    pub fn nbd(&mut self) -> Option<Nbd> {
        let mut nbd = None;
        eventually("the export answers or the daemon has died", || {
            nbd = super::nbd(&self.socket).ok();
            nbd.is_some() || self.dead()
        });
        nbd
    }

    pub fn stop(mut self) {
        self.client.ask(&Request::Stop).unwrap();
        assert!(self.child.wait().unwrap().success(), "a clean stop");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            // Otherwise the next daemon clears what this one left, which is a part of what is tested.
            super::mounted::clear(&self.mount);
        }
    }
}
