//! Outages: one guest under a load, whose caching volume, backing volume or both fail for a while, again and again.

mod campaign;
mod console;
pub mod plan;
mod report;
mod strike;
mod switched;

use std::path::PathBuf;

use clap::Args;

use crate::command_line::absolute;
use crate::daemon::Daemon;
use crate::host::Lab;
use crate::interrupt::Interrupt;

/// Flags of the outages.
#[derive(Args, Clone, Debug)]
pub struct Arguments {
    /// How many outages there are
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    outages: u32,
    /// What chance follows from
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Kinds of outages; all, if none is named
    #[arg(long = "kind", value_enum)]
    kinds: Vec<plan::Kind>,
    /// Where the report goes, and what is left of a failure
    #[arg(long, default_value = "bench-out/outages", value_parser = absolute)]
    out: PathBuf,
    #[command(flatten)]
    daemon: Daemon,
}

impl Arguments {
    /// Runs the outages and reports; whether nothing was lost.
    ///
    /// # Errors
    /// If no guest can be booted, or a guest fails in another way than under an outage.
    pub fn run(&self) -> anyhow::Result<bool> {
        let interrupt = Interrupt::install()?;
        let lab = Lab::open().map_err(|reason| anyhow::anyhow!("no guest can be booted here: {reason}"))?;
        let surgetank = self.daemon.binary()?;
        let planned = plan::outages(self.outages, self.seed, &self.kinds);
        let mut report = report::Report::new(self.seed, planned.len());
        let run = campaign::run(&lab, &interrupt, &surgetank, self.seed, &planned, &self.out, &mut report);
        // What was found before a failure or Ctrl-C stands in the report all the same.
        if !report.outages.is_empty() {
            report.write(&self.out)?;
        }
        run?;
        Ok(report.is_good())
    }
}
