//! What a bench sets up and must put away, also on Ctrl-C: processes, loop devices, control groups.
//!
//! Everything is a value whose drop undoes it, so an error or an interrupt that travels up as `Err` cleans up on its
//! way. Children run in process groups of their own: Ctrl-C reaches only this program, which then ends them in order.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process};

/// How often a wait looks again.
const POLL: Duration = Duration::from_millis(20);

/// Raised by SIGINT or SIGTERM.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes over SIGINT and SIGTERM for the rest of the process.
    ///
    /// # Errors
    /// If the handlers cannot be installed.
    pub fn install() -> anyhow::Result<Self> {
        let raised = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&raised)).context("cannot install a signal handler")?;
        }
        Ok(Self(raised))
    }

    /// # Errors
    /// Once raised.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.0.load(Ordering::Relaxed) {
            bail!("interrupted; everything was put away");
        }
        Ok(())
    }

    /// Calls `done` until it answers something, at most `timeout`.
    ///
    /// # Errors
    /// What `done` answers, interruption, or that `what` did not happen in time.
    pub fn wait_for<T>(
        &self,
        what: &str,
        timeout: Duration,
        mut done: impl FnMut() -> anyhow::Result<Option<T>>,
    ) -> anyhow::Result<T> {
        let until = Instant::now() + timeout;
        loop {
            self.check()?;
            if let Some(answer) = done()? {
                return Ok(answer);
            }
            if Instant::now() > until {
                bail!("{what} did not happen within {} s", timeout.as_secs());
            }
            sleep(POLL);
        }
    }

    /// Runs a command to its end and hands over what it printed.
    ///
    /// # Errors
    /// If it cannot be run, fails, or the bench is interrupted (the command is ended then).
    pub fn run(&self, command: &mut Command) -> anyhow::Result<Output> {
        let what = describe(command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
        let mut child = command.spawn().with_context(|| format!("cannot run {what}"))?;
        // Both pipes are emptied by threads of their own, so the command never blocks on them.
        let stdout = drain(child.stdout.take());
        let stderr = drain(child.stderr.take());
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if let Err(interrupted) = self.check() {
                let _ = child.kill();
                let _ = child.wait();
                return Err(interrupted);
            }
            sleep(POLL);
        };
        let output =
            Output { status, stdout: stdout.join().unwrap_or_default(), stderr: stderr.join().unwrap_or_default() };
        if !status.success() {
            bail!("{what} failed ({status}): {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(output)
    }
}

fn drain(pipe: Option<impl std::io::Read + Send + 'static>) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            let _ = pipe.read_to_end(&mut bytes);
        }
        bytes
    })
}

fn describe(command: &Command) -> String {
    let arguments = command.get_args().map(|argument| argument.to_string_lossy().into_owned());
    std::iter::once(command.get_program().to_string_lossy().into_owned()).chain(arguments).collect::<Vec<_>>().join(" ")
}

/// A server that is asked to end (SIGTERM) when dropped, and killed if it does not listen.
#[derive(Debug)]
pub struct Server {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Server {
    /// Starts it; what it says goes to a file `NAME.log` in `directory`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(name: &str, directory: &Path, command: &mut Command) -> anyhow::Result<Self> {
        let log = directory.join(format!("{name}.log"));
        let file = fs::File::create(&log).with_context(|| format!("cannot make {}", log.display()))?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
        let child = command.spawn().with_context(|| format!("cannot run {}", describe(command)))?;
        Ok(Self { child, name: name.to_owned(), log })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// # Errors
    /// If it has ended by itself, with the last lines that it said.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.child.try_wait()? {
            let said = fs::read_to_string(&self.log).unwrap_or_default();
            let last: Vec<&str> = said.lines().rev().take(5).collect();
            bail!("{} ended ({status}): {}", self.name, last.into_iter().rev().collect::<Vec<_>>().join(" | "));
        }
        Ok(())
    }

    /// Asks it to end and waits.
    pub fn stop(&mut self) {
        if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
            return;
        }
        if let Some(id) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(id, Signal::TERM);
        }
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until {
            if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return;
            }
            sleep(POLL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A loop device over a file, with direct I/O.
#[derive(Debug)]
pub struct Loop {
    /// `/dev/loopN`.
    pub path: PathBuf,
}

impl Loop {
    /// # Errors
    /// If losetup fails.
    pub fn attach(interrupt: &Interrupt, file: &Path) -> anyhow::Result<Self> {
        let output = interrupt.run(Command::new("losetup").args(["--find", "--show", "--direct-io=on"]).arg(file))?;
        Ok(Self { path: String::from_utf8_lossy(&output.stdout).trim().into() })
    }

    /// `MAJOR:MINOR`.
    ///
    /// # Errors
    /// If sysfs does not say.
    pub fn number(&self) -> anyhow::Result<String> {
        let name = self.path.file_name().context("a loop device has a name")?.to_string_lossy().into_owned();
        Ok(fs::read_to_string(format!("/sys/block/{name}/dev"))?.trim().to_owned())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.path).stderr(Stdio::null()).status();
    }
}

/// What the kernel lets the processes of a control group do to one disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskLimit {
    /// Bytes per second, each for reads and writes.
    pub bytes: Option<u64>,
    /// Requests per second, each for reads and writes.
    pub requests: Option<u64>,
}

/// A control group (version 1, `blkio`) that throttles one disk.
#[derive(Debug)]
pub struct Throttle {
    directory: PathBuf,
    disk: String,
}

impl Throttle {
    /// Where the controller is mounted on a machine with control groups of version 1.
    const CONTROLLER: &str = "/sys/fs/cgroup/blkio";

    /// Whether this machine has what it takes.
    pub fn available() -> bool {
        Path::new(Self::CONTROLLER).join("blkio.throttle.write_bps_device").exists()
    }

    /// # Errors
    /// If the group cannot be made.
    pub fn new(disk: &str) -> anyhow::Result<Self> {
        let directory = Path::new(Self::CONTROLLER).join(format!("surgetank-bench-{}", std::process::id()));
        fs::create_dir(&directory).with_context(|| format!("cannot make the control group {}", directory.display()))?;
        Ok(Self { directory, disk: disk.to_owned() })
    }

    /// Sets the limits; they hold at once.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn set(&self, limit: DiskLimit) -> anyhow::Result<()> {
        for (what, value) in [("bps", limit.bytes), ("iops", limit.requests)] {
            for direction in ["read", "write"] {
                let file = self.directory.join(format!("blkio.throttle.{direction}_{what}_device"));
                fs::write(&file, format!("{} {}", self.disk, value.unwrap_or(0)))
                    .with_context(|| format!("cannot set {}", file.display()))?;
            }
        }
        Ok(())
    }

    /// A command that runs in the group.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("sh");
        command.arg("-c").arg("echo $$ > \"$0\" && exec \"$@\"").arg(self.directory.join("cgroup.procs")).arg(program);
        command
    }
}

impl Drop for Throttle {
    fn drop(&mut self) {
        // A group goes away only when its last process has been reaped by the kernel.
        for _ in 0..50 {
            if fs::remove_dir(&self.directory).is_ok() || !self.directory.exists() {
                return;
            }
            sleep(POLL);
        }
    }
}
