//! What commands have in common that serve in the foreground until they are stopped.

use clap::Args;
use rustix::io;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};
use surgetank_report::Failure;

use crate::logging;

/// Their flags.
#[derive(Debug, Args)]
pub struct Foreground {
    /// Check the configuration, and whether a start would succeed on this machine, and stop
    #[arg(long)]
    pub check: bool,
    #[command(flatten)]
    running: Running,
}

/// Flags of a process that runs for long.
#[derive(Debug, Args)]
pub struct Running {
    /// Form of the log on stderr
    #[arg(long, value_enum, default_value_t = logging::Form::Text)]
    log: logging::Form,
    /// Let a crash leave a core dump, for debugging: it holds keys and users' data
    #[arg(long)]
    core_dumps: bool,
}

impl Foreground {
    /// See [`Running::begin`].
    pub fn begin(&self) -> Result<(), Failure> {
        self.running.begin()
    }
}

impl Running {
    /// Starts the log, and keeps keys and users' data out of core dumps unless dumps are asked for.
    pub fn begin(&self) -> Result<(), Failure> {
        logging::start(self.log, tracing::Level::INFO)?;
        if self.core_dumps {
            tracing::warn!("a crash will leave a core dump with keys and users' data");
        } else if let Err(error) = forbid_core_dumps() {
            tracing::warn!(%error, "core dumps cannot be forbidden: one would hold keys and users' data");
        }
        Ok(())
    }
}

/// What the process holds then can also not be read through ptrace(2) or `/proc` by other processes of its user.
fn forbid_core_dumps() -> io::Result<()> {
    // A handler behind a pipe (core(5)) gets a dump whatever the limit is: not one of what cannot be dumped.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
}
