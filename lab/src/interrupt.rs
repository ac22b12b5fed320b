//! Ctrl-C and the end of children.
//!
//! Children run in process groups of their own, so Ctrl-C reaches only this program, which ends them in order; and they
//! are killed by the kernel should the thread that started them die without doing so.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

/// How often a wait looks again.
pub const POLL: Duration = Duration::from_millis(10);

/// Raised by SIGINT, SIGTERM or SIGHUP.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes over the signals for the rest of the process.
    ///
    /// # Errors
    /// If the handlers cannot be installed.
    pub fn install() -> anyhow::Result<Self> {
        let raised = Self::default();
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&raised.0)).context("cannot install a signal handler")?;
        }
        Ok(raised)
    }

    /// Raises it, as a signal would.
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
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
                bail!("{what} did not happen within {} s", timeout.as_secs_f64());
            }
            sleep(POLL);
        }
    }
}

/// Runs a command to its end and hands over what it printed.
///
/// # Errors
/// If it cannot be run or fails; the message is its last line.
pub fn output(command: &mut Command) -> anyhow::Result<Output> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("cannot run {name}"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("{name} failed ({}): {}", output.status, said.trim().lines().last().unwrap_or("it said nothing"));
    }
    Ok(output)
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
        let name = command.get_program().to_string_lossy().into_owned();
        command.stdin(Stdio::null()).process_group(0);
        // SAFETY: prctl is async-signal-safe and takes no pointers here.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        Ok(Self { child: command.spawn().with_context(|| format!("cannot run {name}"))? })
    }

    /// Whether it has ended by itself, and how.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Asks it to end (SIGTERM) and waits; kills it if it does not listen.
    pub fn ask_to_end(&mut self, patience: Duration) {
        if let Some(process) = i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw)
            && self.ended().is_none()
        {
            let _ = rustix::process::kill_process(process, rustix::process::Signal::TERM);
        }
        let until = Instant::now() + patience;
        while self.ended().is_none() && Instant::now() < until {
            sleep(POLL);
        }
        self.kill();
    }

    /// Kills it, as a power cut does.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}
