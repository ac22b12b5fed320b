//! Upgrade in place: on SIGUSR2 the binary that now lies where this one was started from takes over, in this process.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use surgetank_daemon::{Config, Daemon, check_certificates};
use surgetank_report::Failure;

/// What to start, as it was found when this process started: later the binary's own link names a deleted file.
#[derive(Debug)]
pub struct Upgrade {
    asked: Arc<AtomicBool>,
    binary: PathBuf,
    arguments: Vec<OsString>,
}

impl Upgrade {
    /// Remembers how this process was started.
    ///
    /// # Errors
    /// If the binary has no path.
    pub fn new() -> io::Result<Self> {
        let mut arguments = std::env::args_os();
        let named = arguments.next().map(PathBuf::from).filter(|name| name.components().count() > 1);
        // The name it was started by may be a link that an upgrade points elsewhere.
        let binary = match named {
            Some(name) => std::path::absolute(name)?,
            None => std::env::current_exe()?,
        };
        Ok(Self { asked: Arc::default(), binary, arguments: arguments.collect() })
    }

    /// Asks for an upgrade, from any thread.
    pub fn asker(&self) -> impl Fn() + Send + use<> {
        let asked = self.asked.clone();
        move || asked.store(true, Ordering::Relaxed)
    }

    /// Whether an upgrade was asked for since it was last looked.
    #[must_use]
    pub fn asked(&self) -> bool {
        self.asked.swap(false, Ordering::Relaxed)
    }

    /// Whether the new binary can take over from this daemon.
    ///
    /// # Errors
    /// One sentence: a device is in use that cannot be passed on, certificates would be refused, or the new binary
    /// refuses.
    pub fn check(&self, daemon: &Daemon, configuration: &Path) -> Result<(), String> {
        daemon.may_upgrade()?;
        // A device whose certificates do not do would not be served any more. A configuration that only the new binary
        // takes is for that one to judge.
        if let Ok(config) = Config::load(configuration) {
            check_certificates(&config)?;
        }
        let shown = self.binary.display();
        let checked = Command::new(&self.binary)
            .args(["serve", "--check", "--config"])
            .arg(configuration)
            .stdin(Stdio::null())
            .output()
            .map_err(|error| format!("{shown} cannot be started: {error}"))?;
        if checked.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&checked.stderr);
        Err(format!("{shown} does not take this configuration ({}): {}", checked.status, said.trim()))
    }

    /// Becomes the new binary. Returns only if that fails.
    ///
    /// # Errors
    /// Why it failed.
    pub fn become_it(&self) -> Result<Infallible, Failure> {
        let error = Command::new(&self.binary).args(&self.arguments).exec();
        Err(Failure::Failed(format!(
            "the devices are stopped, and {} cannot be started: {error}: start the daemon again",
            self.binary.display()
        )))
    }
}
