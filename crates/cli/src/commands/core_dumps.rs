//! Keeps keys and users' data out of core dumps.

use clap::Args;
use rustix::io;
use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Whether the process may leave a core dump.
#[derive(Debug, Args)]
pub struct CoreDumps {
    /// Let a crash leave a core dump, for debugging: it holds keys and users' data
    #[arg(long)]
    core_dumps: bool,
}

impl CoreDumps {
    /// Forbids them, unless they are asked for. What the process holds then can also not be read through ptrace(2) or
    /// `/proc` by other processes of its user.
    pub fn forbid(&self) {
        if self.core_dumps {
            tracing::warn!("a crash will leave a core dump with keys and users' data");
            return;
        }
        if let Err(error) = forbid() {
            tracing::warn!(%error, "core dumps cannot be forbidden: one would hold keys and users' data");
        }
    }
}

fn forbid() -> io::Result<()> {
    // A handler behind a pipe (core(5)) gets a dump whatever the limit is: not one of what cannot be dumped.
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })
}
