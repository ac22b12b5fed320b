//! Power cuts: guests killed in every phase of a boost, over disks that lose what was not flushed, then booted again,
//! recovered, and read.

mod lives;
pub mod lossy;
pub mod oracle;
mod report;

use std::path::PathBuf;

use clap::Args;

use crate::command_line::absolute;
use crate::daemon::Daemon;
use crate::host::Lab;
use crate::interrupt::Interrupt;

pub use lives::{Phase, planted};

/// Flags of the power cuts.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// How often the power is cut
    #[arg(long, default_value_t = 50)]
    cuts: u32,
    /// What chance follows from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How often bcache is treated in the same way
    #[arg(long, default_value_t = 5)]
    bcache: u32,
    /// Where the report goes, and what is left of a failure
    #[arg(long, default_value = "bench-out/cuts", value_parser = absolute)]
    out: PathBuf,
    #[command(flatten)]
    daemon: Daemon,
}

impl Arguments {
    /// Cuts and reports; whether surgetank lost nothing.
    ///
    /// # Errors
    /// If no guest can be booted, or a guest fails in another way than by losing data.
    pub fn run(&self) -> anyhow::Result<bool> {
        let interrupt = Interrupt::install()?;
        let lab = Lab::open().map_err(|reason| anyhow::anyhow!("no guest can be booted here: {reason}"))?;
        let surgetank = self.daemon.binary()?;
        let mut report = report::Report::new(self.seed);
        let ours = lives::surgetank(&lab, &interrupt, &surgetank, self.seed, self.cuts, &self.out, &mut report);
        // What was found before a failure stands in the report all the same.
        let theirs = match ours {
            Ok(()) => lives::bcache(&lab, &interrupt, self.seed, self.bcache, &mut report),
            Err(_) => Ok(()),
        };
        if !report.is_empty() {
            report.write(&self.out)?;
        }
        ours.and(theirs)?;
        Ok(report.lost() == 0)
    }
}
