//! Ctrl-C and the end of children.
//!
//! Children run in process groups of their own, so Ctrl-C reaches only this program, which ends them in order; and they
//! are killed by the kernel should the thread that started them die without doing so.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};

/// How often a wait looks again.
pub const POLL: Duration = Duration::from_millis(10);
/// How long a command may take to end in order after Ctrl-C: it may have to unmount a file system.
const ORDERLY: Duration = Duration::from_secs(60);

/// Raised by SIGINT, SIGTERM or SIGHUP.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(surgetank_report::Interrupt);

impl Interrupt {
    /// Takes over the signals for the rest of the process.
    ///
    /// # Errors
    /// If the handlers cannot be installed.
    pub fn install() -> anyhow::Result<Self> {
        Ok(Self(surgetank_report::Interrupt::install()?))
    }

    /// Raises it, as a signal would.
    pub fn raise(&self) {
        self.0.raise();
    }

    /// # Errors
    /// Once raised.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.0.raised() {
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
        wait_for(what, timeout, POLL, || {
            self.check()?;
            done()
        })
    }

    /// Runs a command to its end and returns what it printed.
    ///
    /// # Errors
    /// If it cannot be run or fails, or on Ctrl-C, which ends it and its children.
    pub fn run(&self, command: &mut Command) -> anyhow::Result<Output> {
        let (mut stdout, mut stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
        let mut running = Running::start(command.stdout(stdout.try_clone()?).stderr(stderr.try_clone()?))?;
        let end = pidfd_open(Pid::from_child(&running.child), PidfdFlags::empty())?;
        let poll_s = Timespec::try_from(POLL)?;
        let status = loop {
            if let Some(status) = running.ended() {
                break status;
            }
            if let Err(interrupted) = self.check() {
                running.ask_to_end(ORDERLY);
                return Err(interrupted);
            }
            // Wakes as soon as it has ended: times are measured around this.
            match poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&poll_s)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        };
        let read = |file: &mut File| -> anyhow::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            file.rewind()?;
            file.read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let (stdout, stderr) = (read(&mut stdout)?, read(&mut stderr)?);
        succeeded(command, Output { status, stdout, stderr })
    }
}

/// Calls `done` until it answers something, every `poll`, at most `timeout`.
///
/// # Errors
/// What `done` answers, or that `what` did not happen in time.
pub fn wait_for<T>(
    what: &str,
    timeout: Duration,
    poll: Duration,
    mut done: impl FnMut() -> anyhow::Result<Option<T>>,
) -> anyhow::Result<T> {
    let until = Instant::now() + timeout;
    loop {
        if let Some(answer) = done()? {
            return Ok(answer);
        }
        if Instant::now() > until {
            bail!("{what} did not happen within {} s", timeout.as_secs_f64());
        }
        sleep(poll);
    }
}

/// Runs a short command to its end, which Ctrl-C does not change, and returns what it printed.
///
/// # Errors
/// If it cannot be run or fails.
pub fn output(command: &mut Command) -> anyhow::Result<Output> {
    let output = command.stdin(Stdio::null()).process_group(0).output();
    let output = output.with_context(|| format!("cannot run {}", name(command)))?;
    succeeded(command, output)
}

fn succeeded(command: &Command, output: Output) -> anyhow::Result<Output> {
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed ({}): {}", name(command), output.status, last_lines(&said));
    }
    Ok(output)
}

fn name(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

/// Where a program says why it fails.
fn last_lines(said: &str) -> String {
    let mut last: Vec<&str> = said.trim().lines().rev().take(3).collect();
    last.reverse();
    if last.is_empty() { "it said nothing".to_owned() } else { last.join(" | ") }
}

/// A child that does not outlive its value.
#[derive(Debug)]
pub struct Running {
    /// The process.
    pub child: Child,
}

impl Running {
    /// Starts it in a process group of its own.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(command: &mut Command) -> anyhow::Result<Self> {
        command.stdin(Stdio::null()).process_group(0);
        // SAFETY: prctl is async-signal-safe and takes no pointers here.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        Ok(Self { child: command.spawn().with_context(|| format!("cannot run {}", name(command)))? })
    }

    /// Whether it has ended by itself, and how.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Asks it and its children to end (SIGTERM) and waits; kills them if it does not listen.
    pub fn ask_to_end(&mut self, patience: Duration) {
        self.signal(Signal::TERM);
        let until = Instant::now() + patience;
        while self.ended().is_none() && Instant::now() < until {
            sleep(POLL);
        }
        self.kill();
    }

    /// Kills it and its children, as a power cut does.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
        let _ = self.child.wait();
    }

    fn signal(&mut self, signal: Signal) {
        if self.ended().is_none() {
            let _ = kill_process_group(Pid::from_child(&self.child), signal);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A child whose words go to a file, and that is asked to end when its value is dropped.
#[derive(Debug)]
pub struct Server {
    /// The process.
    pub running: Running,
    /// How long it may take to end.
    pub patience: Duration,
    name: &'static str,
    log: PathBuf,
}

impl Server {
    /// Starts it; what it says is added to the file `log`.
    ///
    /// # Errors
    /// If it cannot be started.
    pub fn start(name: &'static str, log: &Path, patience: Duration, command: &mut Command) -> anyhow::Result<Self> {
        let file = File::options().create(true).append(true).open(log);
        let file = file.with_context(|| format!("cannot make {}", log.display()))?;
        let running = Running::start(command.stdout(file.try_clone()?).stderr(file))?;
        Ok(Self { running, patience, name, log: log.to_owned() })
    }

    /// # Errors
    /// If it has ended by itself, with what it said last.
    pub fn check(&mut self) -> anyhow::Result<()> {
        if let Some(status) = self.running.ended() {
            let said = std::fs::read_to_string(&self.log).unwrap_or_default();
            bail!("{} ended ({status}): {}", self.name, last_lines(&said));
        }
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.running.ask_to_end(self.patience);
    }
}
